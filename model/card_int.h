/* card_int.h - inside of the card's reader: what an architecture's metadata may say, and typed access to keys with the
 * architecture's prefix.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_CARD_INT_H
#define KVS_MODEL_CARD_INT_H

#include "model/card.h"
#include "model/keys.h"

#define MDL_KEY_CAP 96u
#define MDL_HEAD_DIM_MAX 4096u
#define MDL_FF_MAX 4194304u
#define MDL_CONTEXT_MAX 16777216u

/* Sets of keys beyond the common ones. */
enum {
    MDL_KEYS_EXPERTS = 1u << 0, /* expert_*, leading_dense_block_count */
    MDL_KEYS_WINDOW = 1u << 1,  /* sliding_window_pattern, freq_base_swa */
    MDL_KEYS_SCALES = 1u << 2,  /* embedding_scale, residual_scale, attention.scale, logit_scale */
    MDL_KEYS_STATE = 1u << 3,   /* ssm.* */
    MDL_KEYS_LATENT = 1u << 4,  /* lora ranks, *_mla lengths, yarn_log_multiplier */
    MDL_KEYS_GEMMA = 1u << 5,   /* soft caps, what the picture part of the model has */
    MDL_KEYS_STEPS = 1u << 6,   /* ssm.dt_b_c_rms */
};

/* How an architecture's layers remember. */
typedef enum mdl_memory {
    MDL_MEMORY_ATTENTION,
    MDL_MEMORY_LATENT,
    MDL_MEMORY_STATE_ONLY,
    MDL_MEMORY_STATE_OR_ATTENTION,
    MDL_MEMORY_STATE_AND_ATTENTION
} mdl_memory;

struct mdl_arch {
    const char *name;
    mdl_memory memory;
    uint32_t keys;
    bool neox;              /* rotated pairs are (i, i + dims / 2), else (2i, 2i + 1) */
    uint32_t window_period; /* every so many layers one sees all keys, the others attention.sliding_window; 0: no windows */
    double window_base;     /* rope base of the windowed layers; 0: as the others */
    mdl_gating gating;      /* of experts, where the file does not say */
    bool expert_norm;       /* likewise: weights of the chosen are divided by their sum */
    bool needs_experts;
    bool gemma;        /* scales follow from the shape */
    bool ff_is_expert; /* feed_forward_length is that of one expert where expert_feed_forward_length is absent */
};

const struct mdl_arch *mdl_arch_find(struct mdl_str name); /* NULL: not there */
size_t mdl_arch_names(char *out, size_t cap);

struct mdl_card_reader {
    const struct mdl_gguf *g;
    const struct mdl_arch *arch;
    struct kvs_error *err;
};

const char *mdl_card_key(const struct mdl_card_reader *r, const char *name, char out[MDL_KEY_CAP]);
/* By the rule of keys.h, of keys with the architecture's prefix.
 * need: an error when absent. layered: also an array of equal numbers, one a layer. optional: *inout stays when absent. */
KVS_MUST_CHECK kvs_status mdl_card_need_u32(const struct mdl_card_reader *r, const char *name, uint32_t max,
                                            uint32_t *out);
KVS_MUST_CHECK kvs_status mdl_card_layered_u32(const struct mdl_card_reader *r, const char *name, uint32_t max,
                                               bool needed, uint32_t layers, uint32_t *out);
KVS_MUST_CHECK kvs_status mdl_card_optional_u32(const struct mdl_card_reader *r, const char *name, uint32_t max,
                                                uint32_t *inout);
KVS_MUST_CHECK kvs_status mdl_card_optional_f64(const struct mdl_card_reader *r, const char *name, double min,
                                                double max, double *inout);
KVS_MUST_CHECK kvs_status mdl_card_optional_bool(const struct mdl_card_reader *r, const char *name, bool *inout);
/* As optional_u32, but 0 is a value. */
KVS_MUST_CHECK kvs_status mdl_card_optional_count(const struct mdl_card_reader *r, const char *name, uint32_t max,
                                                  uint32_t *inout);

/* Refuses keys with the architecture's prefix that this build does not know: they might change the result. */
KVS_MUST_CHECK kvs_status mdl_card_check_keys(const struct mdl_card_reader *r);
KVS_MUST_CHECK kvs_status mdl_card_read_experts(struct mdl_card *c, const struct mdl_card_reader *r);
KVS_MUST_CHECK kvs_status mdl_card_read_window(struct mdl_card *c, const struct mdl_card_reader *r);
KVS_MUST_CHECK kvs_status mdl_card_read_scales(struct mdl_card *c, const struct mdl_card_reader *r);

#endif
