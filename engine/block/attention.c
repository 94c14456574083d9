/* attention.c - grouped-query attention over paged KV: projections, head norms, rotation, pages, scores, output.
 *
 * Rows of all sequences go through the products together; attention looks up each row's own block table. A few rows are
 * split by segment over the threads: partial results are merged left to right either way.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/block/block.h"
#include <math.h>
#include <string.h>

bool eng_attention_quantized(const struct eng_layer *l)
{
    return eng_any_quantized((const struct eng_weight *const[]){&l->q, &l->k, &l->v}, 3);
}

struct eng_kv_view eng_kv_view_of(const struct eng_ctx *c, uint32_t layer, uint32_t kv_head,
                                  const struct kvc_block_table *t)
{
    bool latent = c->m->card.latent.kv_rank != 0;
    struct kvc_place at = kvc_layer_place(&c->layout, layer, 0);
    uint32_t group = at.group;
    const struct kvc_group *g = &c->layout.group[group];
    return (struct eng_kv_view){.base = c->kv.base[group] + kvc_head_offset(g, at.slot, kv_head),
                                .page_bytes = g->page_bytes,
                                .page = kvc_block_row(t, group),
                                .block_tokens = c->layout.block_tokens,
                                .block_shift = c->block_shift,
                                .key_dim = g->key_dim,
                                .value_dim = latent ? c->m->card.latent.kv_rank : g->value_dim,
                                .type = c->layout.kv_type,
                                .value_offset = g->value_offset,
                                .key_scale_offset = g->key_scale_offset,
                                .value_scale_offset = g->value_scale_offset,
                                .latent = latent};
}

float eng_kv_limit(kvc_type type, float limit)
{
    return type == KVC_F16 ? 65520.0f : type == KVC_Q8_0 ? ENG_Q8_LIMIT : limit;
}

void eng_rotate_row(const struct eng_run *r, uint32_t row, uint32_t layer, float *x, uint32_t heads, uint32_t head_dim)
{
    const struct mdl_card *k = r->card;
    uint32_t rotation = r->m->layer[layer].attention.rotation;
    if (rotation != ENG_ROTATION_NONE) {
        const struct eng_rotation *t = &r->m->rotation[rotation];
        size_t at = (size_t)r->c->row[row].pos * (k->rope.dims / 2);
        (k->rope.neox ? r->ops->rope_neox : r->ops->rope)(x, heads, head_dim, k->rope.dims, t->cosines + at,
                                                          t->sines + at);
    }
}

/* Bias, norm of each head and rotation of one row's queries or keys. */
static void prepare(struct eng_run *r, uint32_t row, uint32_t layer, float *x, uint32_t heads, const float *bias,
                    const float *norm)
{
    const struct mdl_card *k = r->card;
    if (bias != NULL) {
        r->ops->add(x, bias, heads * k->key_dim);
    }
    for (uint32_t h = 0; norm != NULL && h < heads; h++) {
        float *head = x + (size_t)h * k->key_dim;
        eng_row_bad(r->c, row, r->ops->norm(head, norm, k->key_dim, k->norm_eps, head));
    }
    eng_rotate_row(r, row, layer, x, heads, k->key_dim);
}

static void rotate(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct mdl_card *k = r->card;
    const struct eng_layer *l = &r->m->layer[layer];
    kvc_type type = c->layout.kv_type;
    ENG_OWN_ROWS (r, i) {
        float *q = eng_row_at(c->q, i, c->q_stride), *key = eng_row_at(c->k, i, c->k_stride),
              *v = eng_row_at(c->v, i, c->v_stride);
        prepare(r, i, layer, q, k->heads, l->q_bias, l->q_norm);
        prepare(r, i, layer, key, k->kv_heads, l->k_bias, l->k_norm);
        if (l->v_bias != NULL) {
            r->ops->add(v, l->v_bias, k->kv_heads * k->value_dim);
        }
        eng_row_bad(c, i, r->ops->below(q, k->heads * k->key_dim, ENG_SCORE_LIMIT));
        eng_row_bad(c, i, r->ops->below(key, k->kv_heads * k->key_dim, eng_kv_limit(type, ENG_SCORE_LIMIT)));
        eng_row_bad(c, i, r->ops->below(v, k->kv_heads * k->value_dim, eng_kv_limit(type, INFINITY)));
        for (uint32_t h = 0; h < k->kv_heads; h++) {
            struct eng_kv_view view = eng_kv_view_of(c, layer, h, c->row[i].table);
            r->ops->kv_write(&view, c->row[i].pos, key + (size_t)h * k->key_dim, v + (size_t)h * k->value_dim);
        }
    }
}

static float *partial(const struct eng_run *r, uint32_t slot, uint32_t head)
{
    return r->c->partial + ((size_t)slot * r->card->heads + head) * (r->card->value_dim + 2);
}

/* A head's sink takes part in the softmax as one more key, the last, whose value is zero. */
static void add_sink(const struct eng_run *r, const struct eng_layer *l, uint32_t head, float *m_io, float *l_io,
                     float *o_io)
{
    static const float nothing[ENG_HEAD_DIM_MAX];
    if (l->sinks != NULL) {
        r->ops->merge(m_io, l_io, o_io, l->sinks[head], 1.0f, nothing, r->card->value_dim);
    }
}

/* All segments of an item, merged left to right; a split item leaves its one segment for eng_attend_merge. */
static void attend_item(struct eng_run *r, const struct eng_layer *l, const struct eng_attn_item *it,
                        const struct eng_kv_view *kv, const struct eng_attn_rows *rows, uint32_t head, uint32_t heads)
{
    struct eng_ctx *c = r->c;
    struct eng_scratch *s = r->scratch;
    uint32_t dim = r->card->value_dim, vs = s->value_stride;
    if (it->slot != UINT32_MAX) {
        r->ops->attend(kv, it->segment_first * ENG_SEGMENT, rows, s);
        for (uint32_t i = 0; i < rows->count; i++) {
            float *p = partial(r, it->slot, head + i);
            p[0] = s->m[i];
            p[1] = s->l[i];
            memcpy(p + 2, s->o + (size_t)i * vs, dim * sizeof *p);
        }
        return;
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        s->sum_m[i] = -INFINITY;
        s->sum_l[i] = 0.0f;
        memset(s->sum_o + (size_t)i * vs, 0, dim * sizeof(float));
    }
    for (uint32_t seg = eng_first_key(rows->pos[0], rows->window) / ENG_SEGMENT; seg < it->segment_count; seg++) {
        r->ops->attend(kv, seg * ENG_SEGMENT, rows, s);
        for (uint32_t i = 0; i < rows->count; i++) {
            r->ops->merge(&s->sum_m[i], &s->sum_l[i], s->sum_o + (size_t)i * vs, s->m[i], s->l[i],
                          s->o + (size_t)i * vs, dim);
        }
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        float *o = c->o + (size_t)(it->row + i / heads) * c->o_stride + (size_t)(head + i % heads) * dim;
        add_sink(r, l, head + i % heads, &s->sum_m[i], &s->sum_l[i], s->sum_o + (size_t)i * vs);
        r->ops->finish(o, s->sum_o + (size_t)i * vs, s->sum_l[i], dim);
    }
}

void eng_attend(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct mdl_card *k = r->card;
    uint32_t share = k->heads / k->kv_heads, chunks = (share + ENG_ATTN_ROWS - 1) / ENG_ATTN_ROWS;
    uint64_t tasks = (uint64_t)c->items * k->kv_heads * chunks;
    struct eng_attn_rows rows;
    const struct eng_layer *l = &r->m->layer[layer];
    rows.scale = l->attention.scale;
    rows.cap = l->attention.cap;
    rows.window = l->attention.window;
    for (uint64_t t; (t = eng_team_ticket(r->self)) < tasks;) {
        const struct eng_attn_item *it = &c->item[t / (k->kv_heads * chunks)];
        uint32_t kv_head = (uint32_t)(t / chunks % k->kv_heads), chunk = (uint32_t)(t % chunks);
        uint32_t heads = share - chunk * ENG_ATTN_ROWS < ENG_ATTN_ROWS ? share - chunk * ENG_ATTN_ROWS : ENG_ATTN_ROWS;
        uint32_t head = kv_head * share + chunk * ENG_ATTN_ROWS;
        rows.count = 0;
        for (uint32_t i = it->row; i < it->row + it->count; i++) {
            for (uint32_t h = head; h < head + heads; h++) {
                rows.q[rows.count] = c->q + (size_t)i * c->q_stride + (size_t)h * k->key_dim;
                rows.pos[rows.count++] = c->row[i].pos;
            }
        }
        struct eng_kv_view view = eng_kv_view_of(c, layer, kv_head, c->row[it->row].table);
        attend_item(r, l, it, &view, &rows, head, heads);
    }
    eng_team_barrier(r->self);
}

void eng_attend_merge(struct eng_run *r, uint32_t layer, uint32_t row)
{
    const struct eng_ctx *c = r->c;
    uint32_t dim = r->card->value_dim, slot = c->row[row].slot;
    float *o = eng_row_at(c->o, row, c->o_stride);
    for (uint32_t h = 0; slot != UINT32_MAX && h < r->card->heads; h++) {
        float m = -INFINITY, l = 0.0f, *sum = r->scratch->sum_o;
        memset(sum, 0, dim * sizeof *sum);
        for (uint32_t s = 0; s <= c->row[row].pos / ENG_SEGMENT; s++) {
            const float *p = partial(r, slot + s, h);
            r->ops->merge(&m, &l, sum, p[0], p[1], p + 2, dim);
        }
        add_sink(r, &r->m->layer[layer], h, &m, &l, sum);
        r->ops->finish(o + (size_t)h * dim, sum, l, dim);
    }
}

void eng_block_attention(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct eng_layer *l = &r->m->layer[layer];
    eng_products(
        r, (struct eng_product[]){{&l->q, c->q, c->q_stride}, {&l->k, c->k, c->k_stride}, {&l->v, c->v, c->v_stride}},
        3, c->h, c->y_stride, c->rows);
    eng_team_barrier(r->self);
    rotate(r, layer);
    eng_team_barrier(r->self);
    eng_attend(r, layer);
    ENG_OWN_ROWS (r, i) {
        eng_attend_merge(r, layer, i);
        if (eng_ops_quantized(l->o.type)) {
            eng_quantize_row(r, i, eng_row_at(c->o, i, c->o_stride), l->o.cols);
        }
    }
    eng_team_barrier(r->self);
    eng_products(r, &(struct eng_product){&l->o, c->y, c->y_stride}, 1, c->o, c->o_stride, c->rows);
    eng_team_barrier(r->self);
    r->pending = true;
    r->pending_bias = l->o_bias;
    r->pending_norm = l->attn_post_norm;
}
