/* block.h - the pieces that architectures are composed of: norm, attention, feed-forward, mixture of experts, output.
 *
 * All members of the team call a block together; each block ends with a barrier, so that the next one finds everything
 * written. A phase inside a block either walks rows (each row belongs to one member: ENG_OWN_ROWS) or deals out strips of
 * products and items of attention by ticket. No phase's arithmetic depends on how many rows or threads there are.
 *
 * The stream of a step: c->x is the residual, c->h the normed input of the next block (and its 16-bit blocks in c->act_*,
 * when asked for), c->y what the last block computed. A block does not add y to x itself: it leaves it pending, and the
 * next eng_block_norm adds it in the same pass that reads x (with the bias, norm and scale that belong to it).
 *
 *   layer:  eng_block_norm -> eng_block_attention -> eng_block_norm -> eng_block_ffn or eng_block_moe
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_BLOCK_BLOCK_H
#define KVS_ENGINE_BLOCK_BLOCK_H

#include "engine/ctx.h"
#include "engine/model.h"
#include "engine/team.h"

/* One member's view of a step; what is pending is the same for all of them. */
struct eng_run {
    struct eng_ctx *c;
    struct eng_member *self;
    const struct eng_ops *ops;
    const struct eng_model *m;
    const struct mdl_card *card;
    uint32_t first, step; /* this member's rows: first, first + step, ... */
    struct eng_scratch *scratch;
    bool pending;              /* c->y waits to be added to c->x: x += residual_scale * norm(y + bias) */
    const float *pending_bias; /* [width] or NULL */
    const float *pending_norm; /* [width] or NULL */
};
#define ENG_OWN_ROWS(r, i) for (uint32_t i = (r)->first; i < (r)->c->rows; i += (r)->step)

static inline float *eng_row_at(float *rows, uint32_t i, uint32_t stride)
{
    return rows + (size_t)i * stride;
}

/* --- products --- */

/* Products that read the same input: y[row][0..w->rows) of each; y's rows have room for w->rows_padded floats. */
struct eng_product {
    const struct eng_weight *w;
    float *y;
    uint32_t y_stride;
};
/* Strips by ticket over all members; a barrier must follow. Quantized weights read c->act_*, others x. */
void eng_products(struct eng_run *r, const struct eng_product *p, uint32_t count, const float *x, uint32_t x_stride,
                  uint32_t rows);
/* 16-bit blocks of one row of n floats into c->act_* (row stride n), where quantized weights will look for them. */
void eng_quantize_row(struct eng_run *r, uint32_t row, const float *x, uint32_t n);
bool eng_any_quantized(const struct eng_weight *const *w, uint32_t count);

/* --- blocks --- */

/* x = embedding rows, scaled by the card's embedding_scale. */
void eng_block_embed(struct eng_run *r);
/* Adds what is pending, then h = norm(x) * weight; with quantize also its 16-bit blocks. weight NULL: adds only. */
void eng_block_norm(struct eng_run *r, const float *weight, bool quantize);
/* 16-bit blocks of h anew, after another block has used c->act_*: when two blocks read the same h. */
void eng_block_requantize(struct eng_run *r);
/* q, k, v (with bias, head norms, rotation as the layer has them), attention over pages, output product: pending. */
void eng_block_attention(struct eng_run *r, uint32_t layer);
/* Whether attention's, the feed-forward's or the mixture's input products want 16-bit blocks of h. */
bool eng_attention_quantized(const struct eng_layer *l);
bool eng_ffn_quantized(const struct eng_layer *l);
/* The same by way of a latent: queries and values go through the latent's projections. Pending. */
void eng_block_latent(struct eng_run *r, uint32_t layer);
bool eng_latent_quantized(const struct eng_layer *l);
/* A recurrent layer's mixing of h (mamba, mamba2); the state in the sequence's page goes on: pending. */
void eng_block_state(struct eng_run *r, uint32_t layer);
bool eng_state_quantized(const struct eng_layer *l);
/* gate and up, activation, down: pending. */
void eng_block_ffn(struct eng_run *r, uint32_t layer);
/* The architecture's activation: g = f(g) * u. */
void eng_activate(const struct eng_run *r, float *g, const float *u, uint32_t n);
/* Mixture of experts, with its shared expert where the layer has one: pending. */
void eng_block_moe(struct eng_run *r, uint32_t layer);
bool eng_moe_quantized(const struct eng_layer *l);
/* Logits of the rows that are asked for, scaled by the card's logit_scale. */
void eng_block_head(struct eng_run *r);

/* --- pieces of attention --- */

struct eng_kv_view eng_kv_view_of(const struct eng_ctx *c, uint32_t layer, uint32_t kv_head,
                                  const struct kvc_block_table *t);
/* limit, or less: above it an f16 element would round to infinity. */
float eng_kv_limit(kvc_type type, float limit);
/* Rotates the first rope.dims of heads that lie head_dim apart, by the layer's table. */
void eng_rotate_row(const struct eng_run *r, uint32_t row, uint32_t layer, float *x, uint32_t heads, uint32_t head_dim);
/* c->o = what the queries in c->q find in the pages. Rows whose segments were split want the merge, by their owners. */
void eng_attend(struct eng_run *r, uint32_t layer);
void eng_attend_merge(struct eng_run *r, uint32_t layer, uint32_t row);

/* --- layers --- */

/* The second half of a layer: norm, then feed-forward or, where there is a router, a mixture. */
void eng_layer_feed_forward(struct eng_run *r, uint32_t layer);
/* The layer most architectures have: norm, attention, norm, feed-forward (a mixture where there is a router). */
void eng_layer_transformer(struct eng_run *r, uint32_t layer);
/* A layer with nothing but a state: norm, recurrent block. */
void eng_layer_state(struct eng_run *r, uint32_t layer);
/* A step: embedding, m->arch->layer for each layer with the caller's callback after it, output. */
void eng_forward_member(struct eng_ctx *c, struct eng_member *self);

#endif
