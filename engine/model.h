/* model.h - inside of an eng_model: packed weights, rotation tables, and the op table they were packed for.
 * Immutable after load; arch files fill and read it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_MODEL_H
#define KVS_ENGINE_MODEL_H

#include "engine/engine.h"
#include "engine/ops/ops.h"

struct eng_layer {
    struct eng_weight q, k, v, o, gate, up, down;
    float *attn_norm, *ffn_norm; /* [width], owned */
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
    float *rope_freqs;      /* [rope.dims / 2] or NULL */
    float *cosines, *sines; /* [context][rope.dims / 2] */
    uint64_t bytes;
};

/* Packs a matrix of the given shape into *w; a vector of n floats into *out. Errors name the tensor. */
KVS_MUST_CHECK kvs_status eng_model_matrix(struct eng_model *m, const struct mdl_tensor *t, uint64_t rows,
                                           uint64_t cols, struct eng_weight *w, struct kvs_error *err);
KVS_MUST_CHECK kvs_status eng_model_vector(struct eng_model *m, const struct mdl_tensor *t, uint64_t n, float **out,
                                           struct kvs_error *err);

#endif
