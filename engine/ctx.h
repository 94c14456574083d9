/* ctx.h - inside of an eng_ctx: scratch of one step, its rows, and the plan of its attention work.
 * Owner: the device thread; members of the team read the plan and write disjoint rows between barriers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_CTX_H
#define KVS_ENGINE_CTX_H

#include "engine/model.h"
#include "engine/team.h"
#include <stdatomic.h>

#define ENG_SPLIT_ROWS 4u /* steps with no more rows than this split a row's segments over the threads */

/* One token of the batch. */
struct eng_row {
    int32_t id;
    uint32_t pos, part;
    const struct kvc_block_table *table;
    uint32_t slot; /* split steps: its first partial result; its segments follow */
};

/* Attention work of one KV head: `count` rows from `row` on, of one sequence and one tile. */
struct eng_attn_item {
    uint32_t row, count;
    uint32_t segment_first, segment_count;
    uint32_t slot; /* where a split segment's result goes; UINT32_MAX: whole rows, straight to the output */
};

/* Rows of one part: row .. row + count - 1. */
struct eng_span {
    uint32_t row, count;
};

/* Scratch of a mixture of experts; an entry is a (row, chosen expert) pair, entries of one expert side by side. */
struct eng_moe {
    float *value, *choice; /* [row][value_stride] of the router; [thread][2 * experts] */
    uint32_t value_stride, x_stride, g_stride;
    uint32_t *expert;       /* [row][used], by rank */
    float *weight;          /* likewise */
    uint32_t *entry, *row;  /* [row][used] -> entry; entry -> row */
    uint32_t *first, *next; /* [experts + 1]: an expert's first entry */
    uint32_t *active;       /* experts that have entries */
    uint32_t active_count;
    float *x, *g, *u; /* [entry]: input and later output; gate, up */
    int16_t *q;       /* 16-bit blocks of x, later of g */
    float *dx, *sx;
    int32_t *sum;
    float *shared; /* [row][ENG_STRIP]: the shared expert's router */
};

struct eng_ctx {
    const struct eng_model *m;
    struct kvc_layout layout;
    struct eng_kv kv;
    uint32_t batch_tokens, batch_seqs, block_shift;
    struct eng_team *team;

    /* Activations, [row][stride]; strides are padded to whole strips where products write. */
    float *x, *y, *h, *q, *k, *v, *o, *g, *u;
    float *in, *mid, *low, *dt; /* recurrent layers: what each product and the convolution leave */
    uint32_t in_stride, mid_stride, low_stride, dt_stride;
    uint32_t y_stride, q_stride, k_stride, v_stride, o_stride, g_stride;
    int16_t *act_q;
    float *act_dx, *act_sx;
    int32_t *act_sum;
    struct eng_moe moe;
    float *partial; /* [slot][head][value_dim + 2]: m, l, o */
    uint32_t slots;
    struct eng_scratch *scratch; /* [threads] */
    uint8_t *scratch_bytes;      /* what they point into */
    float *head_tail;            /* [batch_tokens][ENG_STRIP]: a last strip that the caller's logits have no room for */

    /* The step. */
    struct eng_row *row;
    uint32_t *logit_row;
    struct eng_attn_item *item;
    struct eng_span *span; /* [batch_seqs] */
    uint32_t spans;
    uint32_t rows, logit_rows, items;
    atomic_uchar *bad; /* [row]: a NaN, infinity or overflow was met */
    float *logits;
    eng_layer_fn layer_done;
    void *user;
    bool stop; /* written by member 0 before a barrier, read by all after it */
    bool plan; /* memory is counted only (eng_ctx_plan) */
    uint64_t resident;
};

/* What a context makes resident; m may be a plan. */
KVS_MUST_CHECK kvs_status eng_ctx_plan(const struct eng_model *m, const struct kvc_layout *layout,
                                       const struct eng_ctx_options *o, uint64_t *resident_out, struct kvs_error *err);

static inline void eng_row_bad(struct eng_ctx *c, uint32_t row, bool good)
{
    if (!good) {
        atomic_store_explicit(&c->bad[row], 1, memory_order_relaxed);
    }
}

#endif
