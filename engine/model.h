/* model.h - inside of an eng_model: packed weights, rotation tables, and the op table they were packed for.
 * Immutable after load; arch files fill and read it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_MODEL_H
#define KVS_ENGINE_MODEL_H

#include "engine/engine.h"
#include "engine/ops/ops.h"

typedef enum eng_activation { ENG_SILU, ENG_GELU, ENG_CLAMPED_SWIGLU } eng_activation;

/* How a layer attends; filled from the card, changed by architectures whose layers differ. */
struct eng_attention {
    float scale;       /* of scores */
    float cap;         /* of scaled scores: c * tanh(score / c); 0: none */
    uint32_t window;   /* keys visible, self included; 0: all */
    uint32_t rotation; /* which of the model's tables, or ENG_ROTATION_NONE */
};
#define ENG_ROTATION_NONE UINT32_MAX
#define ENG_ROTATIONS 2u

/* A recurrent layer's weights; units: channels (mamba) or heads (mamba2). */
struct eng_state_weights {
    struct eng_weight in, x, dt, out; /* x, dt: mamba only */
    float *conv, *conv_bias;          /* [kernel][channels of the convolution] */
    float *dt_bias, *d;               /* [units] */
    float *a;                         /* mamba: [state_size][inner]; mamba2: [heads] */
    float *norm;                      /* [inner], by group, or NULL */
};

/* Latent attention's weights; k_b and v_b: a matrix for each head, data of the first owns all. */
struct eng_latent_weights {
    struct eng_weight q_a, q_b, kv_a; /* q_a: none where queries are projected in one step, by q_b */
    float *q_a_norm, *kv_a_norm;
    struct eng_weight *k_b, *v_b; /* [rank][nope], [value][rank] */
};

/* Fields that a layer's parts (block/tensors.h) do not include stay zero. All data is owned and freed by tensors.c. */
struct eng_layer {
    struct eng_attention attention;
    struct eng_weight q, k, v, o;
    float *attn_norm; /* [width] */
    float *q_bias, *k_bias, *v_bias, *o_bias;
    float *q_norm, *k_norm;          /* [key_dim], of each head */
    float *attn_post_norm;           /* [width] */
    float *ffn_norm, *ffn_post_norm; /* [width] */
    struct eng_weight gate, up, down;
    float *gate_bias, *up_bias, *down_bias; /* [ff], [ff], [width] */
    float *sinks; /* [heads]: a score without a value */
    /* Mixture of experts. */
    struct eng_weight router;                                    /* [experts][width] */
    float *router_bias, *router_choice_bias;                     /* [experts]; choice: for the selection only */
    struct eng_weight *gate_experts, *up_experts, *down_experts; /* [experts]; data of the first owns all */
    float *gate_expert_bias, *up_expert_bias, *down_expert_bias; /* [experts][ff or width] */
    struct eng_weight shared_gate, shared_up, shared_down, shared_router; /* shared_router: one row, or none */
    struct eng_state_weights state;
    struct eng_latent_weights latent;
};

/* Cosines and sines of every position, [context][dims / 2]. */
struct eng_rotation {
    float *cosines, *sines;
};

struct eng_model {
    struct mdl_card card;
    const struct eng_ops *ops;
    const struct eng_arch *arch;
    uint32_t context;        /* rows of the rotation tables */
    struct eng_layer *layer; /* [card.layers], owned */
    struct eng_weight embed, output;
    const struct eng_weight *head; /* output, or embed when tied */
    float *output_norm;
    float *rope_freqs, *rope_long, *rope_short; /* [rope.dims / 2] or NULL */
    struct eng_rotation rotation[ENG_ROTATIONS];
    uint64_t bytes;
    /* Memory by eng_model_room; with `plan` what is asked of it is counted only, and no tensor is read or packed (eng_memory_predict): small
     * tables of the loader's own are allocated all the same. */
    bool plan;
    uint64_t resident, tables, loading; /* tables: part of resident; loading: most at a time until all is packed */
};

/* Memory of the model's own into *out (NULL after it with plan); false: there is none. free() it. */
bool eng_model_room(struct eng_model *m, void *out, size_t bytes);

/* Packs `rows` rows from row `first` on of a matrix that has all_rows of them into *w. */
KVS_MUST_CHECK kvs_status eng_model_rows(struct eng_model *m, const struct mdl_tensor *t, uint64_t all_rows,
                                         uint64_t first, uint64_t rows, uint64_t cols, struct eng_weight *w,
                                         struct kvs_error *err);
/* `count` matrices of rows x cols (an expert's, a head's), from a tensor that has them one after the other; with skip and
 * all_rows: rows skip .. skip + rows - 1 of the all_rows that each has there. */
KVS_MUST_CHECK kvs_status eng_model_each(struct eng_model *m, const struct mdl_tensor *t, uint32_t count,
                                         uint64_t all_rows, uint64_t skip, uint64_t rows, uint64_t cols,
                                         struct eng_weight **out, struct kvs_error *err);
/* attn_kv_b of latent attention: each head's key projection turned (as F32: its rows become columns) and value projection. */
KVS_MUST_CHECK kvs_status eng_model_kv_b(struct eng_model *m, const struct mdl_tensor *t, struct eng_latent_weights *w,
                                         struct kvs_error *err);
/* Packs a matrix of the given shape into *w; a vector of n floats into *out. Errors name the tensor. */
KVS_MUST_CHECK kvs_status eng_model_matrix(struct eng_model *m, const struct mdl_tensor *t, uint64_t rows,
                                           uint64_t cols, struct eng_weight *w, struct kvs_error *err);
/* A small F32, F16 or BF16 tensor of the given shape as floats [rows][cols], or turned: [cols][rows]. */
KVS_MUST_CHECK kvs_status eng_model_table(struct eng_model *m, const struct mdl_tensor *t, uint64_t rows, uint64_t cols,
                                          bool turned, float **out, struct kvs_error *err);
/* Numbers first .. first + n - 1 of a vector that has all_n of them. */
KVS_MUST_CHECK kvs_status eng_model_piece(struct eng_model *m, const struct mdl_tensor *t, uint64_t all_n,
                                          uint64_t first, uint64_t n, float **out, struct kvs_error *err);
KVS_MUST_CHECK kvs_status eng_model_vector(struct eng_model *m, const struct mdl_tensor *t, uint64_t n, float **out,
                                           struct kvs_error *err);

#endif
