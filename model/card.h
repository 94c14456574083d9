/* card.h - what a model is: the hyperparameters of its architecture and its identity, read from a GGUF header.
 * Router and workers build the same card from the same header bytes. Immutable after mdl_card_read.
 * Defaults of absent keys: reference sheet of the GGUF specification (head_count_kv = head_count, key_length = d/heads, ...).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_CARD_H
#define KVS_MODEL_CARD_H

#include "model/gguf.h"

typedef enum mdl_rope_scaling { MDL_ROPE_NONE, MDL_ROPE_LINEAR, MDL_ROPE_YARN, MDL_ROPE_LONGROPE, MDL_ROPE_FACTORS } mdl_rope_scaling;

#define MDL_LAYERS_MAX 1024u
/* What a layer remembers of earlier tokens. */
#define MDL_LAYER_ATTENTION 1u
#define MDL_LAYER_STATE 2u
#define MDL_LAYER_WINDOW 4u /* with ATTENTION: of the last window.tokens only */

/* How the logits of the router of a mixture become weights; the numbers are the file format's. */
typedef enum mdl_gating { MDL_GATE_SOFTMAX = 1, MDL_GATE_SIGMOID = 2, MDL_GATE_SOFTMAX_CHOSEN = 3 } mdl_gating;

struct mdl_card {
    char arch[32];           /* "llama" */
    char name[96];           /* general.name, or "" */
    uint32_t layers, width;  /* block_count, embedding_length */
    uint8_t layer[MDL_LAYERS_MAX];
    uint32_t heads, kv_heads;    /* 0 where no layer attends; kv_heads is 1 with a latent */
    uint32_t key_dim, value_dim; /* per head, as cached: with a latent kv_rank + rope.dims and kv_rank */
    struct {
        uint32_t q_rank;              /* 0: queries are projected in one step */
        uint32_t kv_rank;             /* 0: no latent, plain keys and values */
        uint32_t nope_dim, value_dim; /* per head: what a key has besides its rotated part; a value */
        double log_multiplier;        /* of the score scale, by the logarithm of the rope factor */
    } latent;
    struct {
        uint32_t conv_kernel, inner, state_size; /* all 0 where no layer has a state */
        uint32_t heads;                          /* per_channel: rank of the time step */
        bool per_channel;                        /* mamba: each channel has its own time step; else each head */
        uint32_t groups;                         /* that share B and C */
        bool normed_steps; /* per_channel: the time step's low form, B and C are normed (FalconMamba) */
    } ssm;
    uint32_t ff;             /* feed_forward_length; 0: no layer has a feed-forward part */
    uint32_t vocab;          /* rows of token_embd */
    uint32_t context_length; /* of the file */
    float norm_eps;
    bool tied;               /* no output.weight */
    struct {
        uint32_t dims;       /* rotated dims per head */
        double base;
        mdl_rope_scaling scaling; /* MDL_ROPE_FACTORS: tensor rope_freqs.weight, and nothing else */
        bool divided;             /* by rope_freqs.weight, before any other scaling */
        double beta_fast, beta_slow; /* of YaRN */
        double factor, attn_factor;
        uint32_t original_context;
        bool neox;           /* rotated pairs are (i, i + dims / 2), else (2i, 2i + 1) */
        double window_base;  /* base of the windowed layers, which have no scaling then; 0: as the others */
    } rope;
    struct {                 /* count 0: no mixture of experts, and nothing else is set */
        uint32_t count, used, ff, ff_shared; /* ff_shared 0: no shared expert */
        uint32_t dense_layers;               /* so many at the start have none */
        uint32_t groups, groups_used;
        mdl_gating gating;
        bool normalise;                      /* weights of the chosen are divided by their sum */
        float scale;
    } experts;
    struct {
        uint32_t tokens; /* keys that a layer with MDL_LAYER_WINDOW sees, itself included; 0: none has it */
    } window;
    struct {
        float embedding, residual; /* factors: 1 = none */
        float attention;           /* of scores; 0: 1 / sqrt(key_dim) */
        float logit;               /* logits are divided by it */
        float softcap;             /* c: logits become c * tanh(logit / c); 0: they stay */
        float score_cap;           /* the same for attention's scores */
    } scale;
    int32_t bos, eos, eot, unk, pad; /* -1 when absent */
    int32_t eog[16];         /* ids that end generation: eos, eot, eom and their like */
    uint32_t eog_count;
};

/* Keys that layer `layer` sees, itself included; 0: all. */
static inline uint32_t mdl_card_window(const struct mdl_card *c, uint32_t layer)
{
    return (c->layer[layer] & MDL_LAYER_WINDOW) != 0 ? c->window.tokens : 0;
}

/* Channels of a recurrent layer's convolution: x, and with mamba2 B and C. */
static inline uint32_t mdl_card_conv_channels(const struct mdl_card *c)
{
    return c->ssm.inner + (c->ssm.per_channel ? 0 : 2 * c->ssm.groups * c->ssm.state_size);
}
/* What one recurrent layer keeps: the convolution's last inputs, then its states. */
static inline uint64_t mdl_card_state_bytes(const struct mdl_card *c)
{
    return 4 * ((uint64_t)(c->ssm.conv_kernel - 1) * mdl_card_conv_channels(c) + (uint64_t)c->ssm.state_size * c->ssm.inner);
}

/* Fails with KVS_SELF_MODEL and the offending key when something needed is absent or out of range, and for architectures
 * that this build has not: the text names the architecture and those that are there. */
KVS_MUST_CHECK kvs_status mdl_card_read(const struct mdl_gguf *g, struct mdl_card *out, struct kvs_error *err);

/* The rope settings as bytes for the hash root and the member card: "base=10000,dims=64,scaling=none,context=2048". */
size_t mdl_card_rope_text(const struct mdl_card *c, uint32_t context, char *out, size_t cap);

/* fingerprint = SHA-256(header bytes, then XXH3-128 (canonical big-endian bytes) of each tensor's bytes, in the order of
 * the tensor table: mdl_gguf_tensor_at(0), (1), ...). */
struct mdl_fingerprint {
    uint8_t bytes[32];
};
struct mdl_fingerprint_state;
KVS_MUST_CHECK kvs_status mdl_fingerprint_begin(const uint8_t *header, size_t header_bytes, struct mdl_fingerprint_state **out);
KVS_MUST_CHECK kvs_status mdl_fingerprint_tensor(struct mdl_fingerprint_state *s, const uint8_t *bytes, size_t n);
KVS_MUST_CHECK kvs_status mdl_fingerprint_end(struct mdl_fingerprint_state *s, struct mdl_fingerprint *out); /* frees s, also on failure */
void mdl_fingerprint_drop(struct mdl_fingerprint_state *s); /* instead of end; NULL is fine */
/* All of it over a parsed whole file. */
KVS_MUST_CHECK kvs_status mdl_fingerprint_file(const struct mdl_gguf *g, const uint8_t *bytes, size_t size, struct mdl_fingerprint *out);

#endif
