/* llama.c - the llama architecture (Llama, Mistral, SmolLM, TinyLlama): RMSNorm, rotated pairs (2i, 2i+1),
 * grouped-query attention, SwiGLU, tied or untied output.
 *
 * One layer is ten phases with a barrier after each; a phase either walks rows (each row belongs to one member) or
 * deals out strips of products and items of attention by ticket. Rows of all sequences go through the products
 * together; attention looks up each row's own block table. No phase's arithmetic depends on how many rows or threads
 * there are.
 *
 *   x -> [norm, quantize] -> q k v -> [rotate, write K V into pages] -> attention -> [merge, quantize] -> o
 *     -> [add, norm, quantize] -> gate up -> [silu, quantize] -> down -> (added at the start of the next layer)
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"
#include <math.h>
#include <string.h>

/* --- tensors --- */

typedef enum extent_of { WIDTH, HEADS_Q, HEADS_K, HEADS_V, HEADS_O, FF, ONE } extent_of;

static const struct slot {
    const char *name;
    size_t offset;
    extent_of rows, cols; /* rows ONE: a vector */
} slots[] = {
    {"attn_norm.weight", offsetof(struct eng_layer, attn_norm), ONE, WIDTH},
    {"attn_q.weight", offsetof(struct eng_layer, q), HEADS_Q, WIDTH},
    {"attn_k.weight", offsetof(struct eng_layer, k), HEADS_K, WIDTH},
    {"attn_v.weight", offsetof(struct eng_layer, v), HEADS_V, WIDTH},
    {"attn_output.weight", offsetof(struct eng_layer, o), WIDTH, HEADS_O},
    {"ffn_norm.weight", offsetof(struct eng_layer, ffn_norm), ONE, WIDTH},
    {"ffn_gate.weight", offsetof(struct eng_layer, gate), FF, WIDTH},
    {"ffn_up.weight", offsetof(struct eng_layer, up), FF, WIDTH},
    {"ffn_down.weight", offsetof(struct eng_layer, down), WIDTH, FF},
};

static uint64_t extent(const struct mdl_card *c, extent_of d)
{
    switch (d) {
    case WIDTH: return c->width;
    case HEADS_Q: return (uint64_t)c->heads * c->key_dim;
    case HEADS_K: return (uint64_t)c->kv_heads * c->key_dim;
    case HEADS_V: return (uint64_t)c->kv_heads * c->value_dim;
    case HEADS_O: return (uint64_t)c->heads * c->value_dim;
    case FF: return c->ff;
    case ONE: return 1;
    }
    return 0;
}

static bool is(struct mdl_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* "blk.12.attn_q.weight" -> 12 and "attn_q.weight"; false for another form. */
static bool block_name(struct mdl_str name, uint32_t *layer_out, struct mdl_str *rest_out)
{
    size_t i = 4;
    if (name.len < 7 || memcmp(name.data, "blk.", 4) != 0) {
        return false;
    }
    uint32_t layer = 0;
    for (; i < name.len && i < 9 && name.data[i] >= '0' && name.data[i] <= '9'; i++) {
        layer = layer * 10 + (uint32_t)(name.data[i] - '0');
    }
    if (i == 4 || i >= name.len || name.data[i] != '.') {
        return false;
    }
    *layer_out = layer;
    *rest_out = (struct mdl_str){.data = name.data + i + 1, .len = name.len - i - 1};
    return true;
}

static kvs_status llama_check(const struct mdl_gguf *g, const struct mdl_card *card, struct kvs_error *err)
{
    uint64_t experts = 0;
    if (mdl_gguf_u64(g, "llama.expert_count", &experts) && experts > 0) {
        return kvs_fail(err, KVS_SELF_UNSUPPORTED,
                        "llama.expert_count is %llu: mixture of experts is not in this build",
                        (unsigned long long)experts);
    }
    (void)card;
    return KVS_OK;
}

static kvs_status layer_tensor(struct eng_model *m, uint32_t layer, struct mdl_str rest, const struct mdl_tensor *t,
                               struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    if (layer >= c->layers) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %.*s is beyond the last of %u layers", (int)t->name.len,
                        t->name.data, c->layers);
    }
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        const struct slot *s = &slots[i];
        if (is(rest, s->name)) {
            void *field = (uint8_t *)&m->layer[layer] + s->offset;
            return s->rows == ONE ? eng_model_vector(m, t, extent(c, s->cols), field, err)
                                  : eng_model_matrix(m, t, extent(c, s->rows), extent(c, s->cols), field, err);
        }
    }
    return kvs_fail(err, KVS_SELF_UNSUPPORTED, "tensor %.*s is not known to architecture llama of this build",
                    (int)t->name.len, t->name.data);
}

static kvs_status llama_tensor(struct eng_model *m, const struct mdl_tensor *t, struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    uint32_t layer;
    struct mdl_str rest;
    if (block_name(t->name, &layer, &rest)) {
        return layer_tensor(m, layer, rest, t, err);
    }
    if (is(t->name, "token_embd.weight")) {
        return eng_model_matrix(m, t, c->vocab, c->width, &m->embed, err);
    }
    if (is(t->name, "output.weight")) {
        return eng_model_matrix(m, t, c->vocab, c->width, &m->output, err);
    }
    if (is(t->name, "output_norm.weight")) {
        return eng_model_vector(m, t, c->width, &m->output_norm, err);
    }
    if (is(t->name, "rope_freqs.weight")) {
        return eng_model_vector(m, t, c->rope.dims / 2, &m->rope_freqs, err);
    }
    return kvs_fail(err, KVS_SELF_UNSUPPORTED, "tensor %.*s is not known to architecture llama of this build",
                    (int)t->name.len, t->name.data);
}

static kvs_status llama_complete(struct eng_model *m, struct kvs_error *err)
{
    for (uint32_t l = 0; l < m->card.layers; l++) {
        for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
            const uint8_t *field = (const uint8_t *)&m->layer[l] + slots[i].offset;
            const void *data;
            if (slots[i].rows == ONE) {
                memcpy(&data, field, sizeof data);
            } else {
                data = ((const struct eng_weight *)(const void *)field)->data;
            }
            if (data == NULL) {
                return kvs_fail(err, KVS_SELF_MODEL, "tensor blk.%u.%s is missing", l, slots[i].name);
            }
        }
    }
    if (m->embed.data == NULL || m->output_norm == NULL) {
        return kvs_fail(err, KVS_SELF_MODEL, "tensor %s is missing",
                        m->embed.data == NULL ? "token_embd.weight" : "output_norm.weight");
    }
    m->head = m->output.data != NULL ? &m->output : &m->embed;
    return KVS_OK;
}

/* --- phases --- */

/* What the phases of one member share. */
struct run {
    struct eng_ctx *c;
    struct eng_member *self;
    const struct eng_ops *ops;
    const struct eng_model *m;
    const struct mdl_card *card;
    uint32_t first, step; /* this member's rows: first, first + step, ... */
    struct eng_scratch *scratch;
};

/* Products that read the same input. */
struct product {
    const struct eng_weight *w;
    float *y;
    uint32_t y_stride;
};

/* 16-bit blocks of one input row, when some weight wants them. */
static void quantize_row(struct run *r, uint32_t row, const float *x, uint32_t n)
{
    struct eng_ctx *c = r->c;
    size_t blocks = n / ENG_BLOCK;
    eng_row_bad(c, row,
                r->ops->quantize(x, n, c->act_q + (size_t)row * n, c->act_dx + row * blocks, c->act_sx + row * blocks,
                                 c->act_sum + row * blocks));
}

static void products(struct run *r, const struct product *p, uint32_t count, const float *x, uint32_t x_stride,
                     uint32_t rows)
{
    struct eng_ctx *c = r->c;
    struct eng_acts a = {
        .x = x, .x_stride = x_stride, .q = c->act_q, .dx = c->act_dx, .sx = c->act_sx, .sum = c->act_sum};
    uint32_t strips = 0, run = rows < ENG_SPLIT_ROWS ? 4 : 1; /* few rows: strips are quick, take several at a time */
    for (uint32_t i = 0; i < count; i++) {
        strips += p[i].w->rows_padded / ENG_STRIP;
    }
    for (;;) {
        uint64_t s = (uint64_t)eng_team_ticket(r->self) * run;
        if (s >= strips) {
            return;
        }
        for (uint64_t end = s + run; s < end && s < strips; s++) {
            uint32_t strip = (uint32_t)s;
            const struct product *q = p;
            while (strip >= q->w->rows_padded / ENG_STRIP) {
                strip -= q->w->rows_padded / ENG_STRIP;
                q++;
            }
            r->ops->matmul(q->w, strip, &a, rows, q->y + strip * ENG_STRIP, q->y_stride, r->scratch);
        }
    }
}

static void phase_input(struct run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct eng_layer *l = &r->m->layer[layer];
    uint32_t width = r->card->width;
    bool quantized = eng_ops_quantized(l->q.type) || eng_ops_quantized(l->k.type) || eng_ops_quantized(l->v.type);
    for (uint32_t i = r->first; i < c->rows; i += r->step) {
        float *x = c->x + (size_t)i * c->y_stride, *h = c->h + (size_t)i * c->y_stride;
        if (layer == 0) {
            r->ops->row(&r->m->embed, (uint32_t)c->row[i].id, x);
        } else {
            r->ops->add(x, c->y + (size_t)i * c->y_stride, width);
        }
        eng_row_bad(c, i, r->ops->norm(x, l->attn_norm, width, r->card->norm_eps, h));
        if (quantized) {
            quantize_row(r, i, h, width);
        }
    }
}

static struct eng_kv_view kv_view(const struct eng_ctx *c, uint32_t layer, uint32_t kv_head,
                                  const struct kvc_block_table *t)
{
    uint32_t group = c->layout.layer_group[layer];
    const struct kvc_group *g = &c->layout.group[group];
    return (struct eng_kv_view){.base = c->kv.base[group] + kvc_head_offset(g, layer, kv_head),
                                .page_bytes = g->page_bytes,
                                .page = kvc_block_row(t, group),
                                .block_tokens = c->layout.block_tokens,
                                .block_shift = c->block_shift,
                                .key_dim = g->key_dim,
                                .value_dim = g->value_dim,
                                .type = c->layout.kv_type};
}

/* Above this an f16 element would round to infinity. */
static float kv_limit(kvc_type type, float limit)
{
    return type == KVC_F16 ? 65520.0f : limit;
}

static void phase_rotate(struct run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct mdl_card *k = r->card;
    uint32_t half = k->rope.dims / 2;
    kvc_type type = c->layout.kv_type;
    for (uint32_t i = r->first; i < c->rows; i += r->step) {
        float *q = c->q + (size_t)i * c->q_stride, *key = c->k + (size_t)i * c->k_stride,
              *v = c->v + (size_t)i * c->v_stride;
        const float *co = r->m->cosines + (size_t)c->row[i].pos * half,
                    *si = r->m->sines + (size_t)c->row[i].pos * half;
        r->ops->rope(q, k->heads, k->key_dim, k->rope.dims, co, si);
        r->ops->rope(key, k->kv_heads, k->key_dim, k->rope.dims, co, si);
        eng_row_bad(c, i, r->ops->below(q, k->heads * k->key_dim, ENG_SCORE_LIMIT));
        eng_row_bad(c, i, r->ops->below(key, k->kv_heads * k->key_dim, kv_limit(type, ENG_SCORE_LIMIT)));
        eng_row_bad(c, i, r->ops->below(v, k->kv_heads * k->value_dim, kv_limit(type, INFINITY)));
        for (uint32_t h = 0; h < k->kv_heads; h++) {
            struct eng_kv_view view = kv_view(c, layer, h, c->row[i].table);
            r->ops->kv_write(&view, c->row[i].pos, key + (size_t)h * k->key_dim, v + (size_t)h * k->value_dim);
        }
    }
}

static float *partial(const struct run *r, uint32_t slot, uint32_t head)
{
    return r->c->partial + ((size_t)slot * r->card->heads + head) * (r->card->value_dim + 2);
}

/* All segments of an item, merged left to right; a split item leaves its one segment for phase_attended. */
static void attend_item(struct run *r, const struct eng_attn_item *it, const struct eng_kv_view *kv,
                        const struct eng_attn_rows *rows, uint32_t head, uint32_t heads)
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
    for (uint32_t seg = 0; seg < it->segment_count; seg++) {
        r->ops->attend(kv, seg * ENG_SEGMENT, rows, s);
        for (uint32_t i = 0; i < rows->count; i++) {
            r->ops->merge(&s->sum_m[i], &s->sum_l[i], s->sum_o + (size_t)i * vs, s->m[i], s->l[i],
                          s->o + (size_t)i * vs, dim);
        }
    }
    for (uint32_t i = 0; i < rows->count; i++) {
        float *o = c->o + (size_t)(it->row + i / heads) * c->o_stride + (size_t)(head + i % heads) * dim;
        r->ops->finish(o, s->sum_o + (size_t)i * vs, s->sum_l[i], dim);
    }
}

static void phase_attention(struct run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct mdl_card *k = r->card;
    uint32_t share = k->heads / k->kv_heads, chunks = (share + ENG_ATTN_ROWS - 1) / ENG_ATTN_ROWS;
    uint64_t tasks = (uint64_t)c->items * k->kv_heads * chunks;
    struct eng_attn_rows rows;
    rows.scale = 1.0f / sqrtf((float)k->key_dim);
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
        struct eng_kv_view view = kv_view(c, layer, kv_head, c->row[it->row].table);
        attend_item(r, it, &view, &rows, head, heads);
    }
}

static void phase_attended(struct run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct mdl_card *k = r->card;
    uint32_t dim = k->value_dim;
    for (uint32_t i = r->first; i < c->rows; i += r->step) {
        float *o = c->o + (size_t)i * c->o_stride;
        if (c->row[i].slot != UINT32_MAX) {
            for (uint32_t h = 0; h < k->heads; h++) {
                float m = -INFINITY, l = 0.0f, *sum = r->scratch->sum_o;
                memset(sum, 0, dim * sizeof *sum);
                for (uint32_t s = 0; s <= c->row[i].pos / ENG_SEGMENT; s++) {
                    const float *p = partial(r, c->row[i].slot + s, h);
                    r->ops->merge(&m, &l, sum, p[0], p[1], p + 2, dim);
                }
                r->ops->finish(o + (size_t)h * dim, sum, l, dim);
            }
        }
        if (eng_ops_quantized(r->m->layer[layer].o.type)) {
            quantize_row(r, i, o, k->heads * dim);
        }
    }
}

static void phase_ffn_input(struct run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct eng_layer *l = &r->m->layer[layer];
    uint32_t width = r->card->width;
    for (uint32_t i = r->first; i < c->rows; i += r->step) {
        float *x = c->x + (size_t)i * c->y_stride, *h = c->h + (size_t)i * c->y_stride;
        r->ops->add(x, c->y + (size_t)i * c->y_stride, width);
        eng_row_bad(c, i, r->ops->norm(x, l->ffn_norm, width, r->card->norm_eps, h));
        if (eng_ops_quantized(l->gate.type) || eng_ops_quantized(l->up.type)) {
            quantize_row(r, i, h, width);
        }
    }
}

static void phase_gate(struct run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    for (uint32_t i = r->first; i < c->rows; i += r->step) {
        float *g = c->g + (size_t)i * c->g_stride;
        r->ops->silu_mul(g, c->u + (size_t)i * c->g_stride, r->card->ff);
        if (eng_ops_quantized(r->m->layer[layer].down.type)) {
            quantize_row(r, i, g, r->card->ff);
        }
    }
}

static void layer_forward(struct run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct eng_layer *l = &r->m->layer[layer];
    phase_input(r, layer);
    eng_team_barrier(r->self);
    products(r, (struct product[]){{&l->q, c->q, c->q_stride}, {&l->k, c->k, c->k_stride}, {&l->v, c->v, c->v_stride}},
             3, c->h, c->y_stride, c->rows);
    eng_team_barrier(r->self);
    phase_rotate(r, layer);
    eng_team_barrier(r->self);
    phase_attention(r, layer);
    eng_team_barrier(r->self);
    phase_attended(r, layer);
    eng_team_barrier(r->self);
    products(r, &(struct product){&l->o, c->y, c->y_stride}, 1, c->o, c->o_stride, c->rows);
    eng_team_barrier(r->self);
    phase_ffn_input(r, layer);
    eng_team_barrier(r->self);
    products(r, (struct product[]){{&l->gate, c->g, c->g_stride}, {&l->up, c->u, c->g_stride}}, 2, c->h, c->y_stride,
             c->rows);
    eng_team_barrier(r->self);
    phase_gate(r, layer);
    eng_team_barrier(r->self);
    products(r, &(struct product){&l->down, c->y, c->y_stride}, 1, c->g, c->g_stride, c->rows);
    eng_team_barrier(r->self);
}

/* --- output --- */

/* Strip s of the logits; the last one may have no room in the caller's rows and goes through a side buffer. */
static void head_strip(struct run *r, uint32_t s)
{
    struct eng_ctx *c = r->c;
    const struct eng_weight *w = r->m->head;
    struct eng_acts a = {
        .x = c->h, .x_stride = c->y_stride, .q = c->act_q, .dx = c->act_dx, .sx = c->act_sx, .sum = c->act_sum};
    uint32_t first = s * ENG_STRIP, valid = w->rows - first < ENG_STRIP ? w->rows - first : ENG_STRIP;
    float *y = c->logits + first;
    size_t stride = w->rows;
    if (valid < ENG_STRIP) {
        y = c->head_tail;
        stride = ENG_STRIP;
    }
    r->ops->matmul(w, s, &a, c->logit_rows, y, stride, r->scratch);
    for (uint32_t i = 0; i < c->logit_rows; i++) {
        float *to = c->logits + (size_t)i * w->rows + first;
        if (valid < ENG_STRIP) {
            memcpy(to, y + i * stride, valid * sizeof *to);
        }
        eng_row_bad(c, c->logit_row[i], r->ops->below(to, valid, INFINITY));
    }
}

static void head_forward(struct run *r)
{
    struct eng_ctx *c = r->c;
    const struct eng_weight *w = r->m->head;
    uint32_t width = r->card->width;
    for (uint32_t i = r->first; i < c->logit_rows; i += r->step) {
        uint32_t row = c->logit_row[i];
        float *x = c->x + (size_t)row * c->y_stride, *h = c->h + (size_t)i * c->y_stride;
        r->ops->add(x, c->y + (size_t)row * c->y_stride, width);
        eng_row_bad(c, row, r->ops->norm(x, r->m->output_norm, width, r->card->norm_eps, h));
        if (eng_ops_quantized(w->type)) {
            size_t blocks = width / ENG_BLOCK;
            eng_row_bad(c, row,
                        r->ops->quantize(h, width, c->act_q + (size_t)i * width, c->act_dx + i * blocks,
                                         c->act_sx + i * blocks, c->act_sum + i * blocks));
        }
    }
    eng_team_barrier(r->self);
    uint32_t strips = w->rows_padded / ENG_STRIP, run = 8;
    for (uint64_t s; (s = (uint64_t)eng_team_ticket(r->self) * run) < strips;) {
        for (uint64_t end = s + run; s < end && s < strips; s++) {
            head_strip(r, (uint32_t)s);
        }
    }
}

static void llama_forward(struct eng_ctx *c, struct eng_member *self)
{
    struct run r = {.c = c,
                    .self = self,
                    .ops = c->m->ops,
                    .m = c->m,
                    .card = &c->m->card,
                    .first = self->index,
                    .step = eng_team_threads(self->team),
                    .scratch = &c->scratch[self->index]};
    for (uint32_t l = 0; l < r.card->layers; l++) {
        layer_forward(&r, l);
        if (self->index == 0 && c->layer_done != NULL && c->layer_done(c->user, l)) {
            c->stop = true;
        }
        if (c->layer_done != NULL) {
            eng_team_barrier(self); /* all see the same answer */
            if (c->stop) {
                return;
            }
        }
    }
    if (c->logit_rows != 0) {
        head_forward(&r);
    }
}

const struct eng_arch eng_arch_llama = {
    .name = "llama",
    .check = llama_check,
    .tensor = llama_tensor,
    .complete = llama_complete,
    .forward = llama_forward,
};
