/* latent.c - multi-head latent attention, in the absorbed form: what a token leaves in the cache is one row (a normed
 * latent and one rotated key part for all heads), and keys and values are never built from it. Instead the part of a
 * key's projection that meets a head's query is applied to the query, and the value's projection to what the head's
 * attention found.
 *
 *   h -> q_a -> norm -> q_b (or one step)    -> q of each head: [nope | rotated]
 *   h -> kv_a: [latent -> norm | rotated]    -> the page
 *   k_b of each head x its nope, rotated     -> query over rows of rank + rope numbers
 *   attention over the rows, values their first `rank` numbers -> v_b of each head -> output product
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/block/block.h"
#include <string.h>

bool eng_latent_quantized(const struct eng_layer *l)
{
    const struct eng_weight *q = l->latent.q_a.data != NULL ? &l->latent.q_a : &l->latent.q_b;
    return eng_any_quantized((const struct eng_weight *const[]){q, &l->latent.kv_a}, 2);
}

/* 16-bit blocks of n floats for each head of a row, where head_products looks for them: [head][row][n]. */
static void quantize_heads(struct eng_run *r, uint32_t row, const float *x, uint32_t n, uint32_t stride)
{
    struct eng_ctx *c = r->c;
    size_t blocks = n / ENG_BLOCK;
    for (uint32_t h = 0; h < r->card->heads; h++) {
        size_t at = (size_t)h * c->rows + row;
        eng_row_bad(c, row,
                    r->ops->quantize(x + (size_t)h * stride, n, c->act_q + at * n, c->act_dx + at * blocks,
                                     c->act_sx + at * blocks, c->act_sum + at * blocks));
    }
}

/* y of each head = its own matrix times its own part of x. */
static void head_products(struct eng_run *r, const struct eng_weight *w, const float *x, uint32_t x_stride,
                          uint32_t x_head, float *y, uint32_t y_stride, uint32_t y_head)
{
    struct eng_ctx *c = r->c;
    uint32_t strips = w->rows_padded / ENG_STRIP;
    uint64_t tasks = (uint64_t)strips * r->card->heads;
    for (uint64_t t; (t = eng_team_ticket(r->self)) < tasks;) {
        uint32_t h = (uint32_t)(t / strips), strip = (uint32_t)(t % strips);
        size_t first = (size_t)h * c->rows, blocks = w->cols / ENG_BLOCK;
        struct eng_acts a = {.x = x + (size_t)h * x_head,
                             .x_stride = x_stride,
                             .q = c->act_q + first * w->cols,
                             .dx = c->act_dx + first * blocks,
                             .sx = c->act_sx + first * blocks,
                             .sum = c->act_sum + first * blocks};
        r->ops->matmul(&w[h], strip, &a, c->rows, y + (size_t)h * y_head + strip * ENG_STRIP, y_stride, r->scratch);
    }
    eng_team_barrier(r->self);
}

/* The cached row of each token, and the input of q_b where queries take two steps. */
static void write_rows(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct mdl_card *k = r->card;
    const struct eng_latent_weights *w = &r->m->layer[layer].latent;
    uint32_t rank = k->latent.kv_rank;
    ENG_OWN_ROWS (r, i) {
        float *key = eng_row_at(c->k, i, c->k_stride);
        eng_row_bad(c, i, r->ops->norm(key, w->kv_a_norm, rank, k->norm_eps, key));
        eng_rotate_row(r, i, layer, key + rank, 1, k->rope.dims);
        eng_row_bad(c, i, r->ops->below(key, k->key_dim, eng_kv_limit(c->layout.kv_type, ENG_SCORE_LIMIT)));
        struct eng_kv_view view = eng_kv_view_of(c, layer, 0, c->row[i].table);
        r->ops->kv_write(&view, c->row[i].pos, key, NULL);
        if (w->q_a.data != NULL) {
            float *low = eng_row_at(c->low, i, c->low_stride);
            eng_row_bad(c, i, r->ops->norm(low, w->q_a_norm, k->latent.q_rank, k->norm_eps, low));
            if (eng_ops_quantized(w->q_b.type)) {
                eng_quantize_row(r, i, low, k->latent.q_rank);
            }
        }
    }
    eng_team_barrier(r->self);
}

/* c->in holds the queries of all heads; c->q becomes what the cached rows are compared with. */
static void absorb(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct mdl_card *k = r->card;
    const struct eng_latent_weights *w = &r->m->layer[layer].latent;
    uint32_t rank = k->latent.kv_rank, nope = k->latent.nope_dim, head = nope + k->rope.dims;
    ENG_OWN_ROWS (r, i) {
        float *q = eng_row_at(c->in, i, c->in_stride);
        eng_rotate_row(r, i, layer, q + nope, k->heads, head);
        if (eng_ops_quantized(w->k_b->type)) {
            quantize_heads(r, i, q, nope, head);
        }
    }
    eng_team_barrier(r->self);
    head_products(r, w->k_b, c->in, c->in_stride, head, c->q, c->q_stride, k->key_dim);
    ENG_OWN_ROWS (r, i) {
        const float *from = eng_row_at(c->in, i, c->in_stride) + nope;
        float *q = eng_row_at(c->q, i, c->q_stride);
        for (uint32_t h = 0; h < k->heads; h++) {
            memcpy(q + (size_t)h * k->key_dim + rank, from + (size_t)h * head, k->rope.dims * sizeof *q);
        }
        eng_row_bad(c, i, r->ops->below(q, k->heads * k->key_dim, ENG_SCORE_LIMIT));
    }
    eng_team_barrier(r->self);
}

void eng_block_latent(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct mdl_card *k = r->card;
    const struct eng_latent_weights *w = &r->m->layer[layer].latent;
    const struct eng_weight *o = &r->m->layer[layer].o;
    uint32_t rank = k->latent.kv_rank, value = k->latent.value_dim;
    bool two = w->q_a.data != NULL;
    struct eng_product first[2] = {{&w->q_b, c->in, c->in_stride}, {&w->kv_a, c->k, c->k_stride}};
    if (two) {
        first[0] = (struct eng_product){&w->q_a, c->low, c->low_stride};
    }
    eng_products(r, first, 2, c->h, c->y_stride, c->rows);
    eng_team_barrier(r->self);
    write_rows(r, layer);
    if (two) {
        eng_products(r, &(struct eng_product){&w->q_b, c->in, c->in_stride}, 1, c->low, c->low_stride, c->rows);
        eng_team_barrier(r->self);
    }
    absorb(r, layer);
    eng_attend(r, layer);
    ENG_OWN_ROWS (r, i) {
        eng_attend_merge(r, layer, i);
        if (eng_ops_quantized(w->v_b->type)) {
            quantize_heads(r, i, eng_row_at(c->o, i, c->o_stride), rank, rank);
        }
    }
    eng_team_barrier(r->self);
    head_products(r, w->v_b, c->o, c->o_stride, rank, c->in, c->in_stride, value);
    if (eng_ops_quantized(o->type)) {
        ENG_OWN_ROWS (r, i) {
            eng_quantize_row(r, i, eng_row_at(c->in, i, c->in_stride), k->heads * value);
        }
        eng_team_barrier(r->self);
    }
    eng_products(r, &(struct eng_product){o, c->y, c->y_stride}, 1, c->in, c->in_stride, c->rows);
    eng_team_barrier(r->self);
    r->pending = true;
}
