/* ctx.c - memory of a step, checks of what the caller hands in, and the plan of attention work.
 *
 * Everything a step needs is allocated here once. eng_forward checks all parts before anything is written, lists the
 * rows of the ragged batch, cuts their attention into items, and lets the team run the architecture's forward pass. An
 * item is up to 16 positions of one sequence that share a tile, with all query heads of a KV head, so that keys and
 * values are read once for all of them. A step of very few rows splits each row's keys by segment instead: the segments
 * are merged left to right either way, so the result is the same.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ctx.h"
#include "engine/arch/arch.h"
#include "engine/memory.h"
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX 65536u
#define POSITIONS_PER_ITEM 16u

static uint32_t padded(uint32_t n)
{
    return (n + ENG_STRIP - 1) / ENG_STRIP * ENG_STRIP;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

struct want {
    void **p;
    size_t bytes;
};

static kvs_status allocate(struct eng_ctx *c, const struct want *w, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        c->resident += eng_alloc_resident(w[i].bytes);
        *w[i].p = c->plan ? NULL : eng_alloc(w[i].bytes);
        if (*w[i].p == NULL && !c->plan) {
            return KVS_SELF_NOMEM;
        }
    }
    return KVS_OK;
}

static kvs_status scratch_create(struct eng_ctx *c, uint32_t threads)
{
    const struct mdl_card *card = &c->m->card;
    size_t ks = padded(card->key_dim), vs = padded(card->value_dim), n = ENG_ATTN_ROWS;
    size_t floats = 4 * n + 16 * n + n * ks + 2 * n * vs + 8 * ENG_TILE + ks * ENG_TILE + vs * ENG_TILE;
    size_t bytes = (floats * sizeof(float) + ENG_STRIP_SCRATCH + 4095) / 4096 * 4096;
    const struct want want[] = {{(void **)&c->scratch, threads * sizeof *c->scratch},
                                {(void **)&c->scratch_bytes, bytes * threads}};
    kvs_status st = allocate(c, want, sizeof want / sizeof want[0]);
    for (uint32_t i = 0; st == KVS_OK && !c->plan && i < threads; i++) {
        struct eng_scratch *s = &c->scratch[i];
        s->strip = c->scratch_bytes + i * bytes;
        float *p = (float *)(void *)(s->strip + ENG_STRIP_SCRATCH);
        s->key_stride = (uint32_t)ks;
        s->value_stride = (uint32_t)vs;
        s->k_tile = p, p += ks * ENG_TILE;
        s->v_tile = p, p += vs * ENG_TILE;
        s->prob = p, p += 8 * ENG_TILE;
        s->lanes = p, p += 16 * n;
        s->q = p, p += n * ks;
        s->o = p, p += n * vs;
        s->sum_o = p, p += n * vs;
        s->m = p, p += n;
        s->l = p, p += n;
        s->sum_m = p, p += n;
        s->sum_l = p;
    }
    return st;
}

/* Rows of recurrent layers. */
static kvs_status state_create(struct eng_ctx *c)
{
    const struct mdl_card *k = &c->m->card;
    size_t n = c->batch_tokens;
    const struct want span = {(void **)&c->span, c->batch_seqs * sizeof *c->span};
    kvs_status s = allocate(c, &span, 1);
    if (s != KVS_OK || k->ssm.inner == 0) {
        return s;
    }
    uint32_t inner = k->ssm.inner, channels = mdl_card_conv_channels(k), steps = k->ssm.per_channel ? inner : 0;
    c->in_stride = padded(inner + (k->ssm.per_channel ? inner : channels + k->ssm.heads));
    c->mid_stride = padded(channels);
    c->low_stride = padded(k->ssm.per_channel ? k->ssm.heads + 2 * k->ssm.state_size : 0);
    c->dt_stride = padded(steps);
    const struct want want[] = {{(void **)&c->in, 4 * n * c->in_stride},
                                {(void **)&c->mid, 4 * n * c->mid_stride},
                                {(void **)&c->low, 4 * n * c->low_stride},
                                {(void **)&c->dt, 4 * n * c->dt_stride}};
    return allocate(c, want, sizeof want / sizeof want[0]);
}

/* Rows of latent attention: queries of all heads (later values), and their low rank. */
static kvs_status latent_create(struct eng_ctx *c)
{
    const struct mdl_card *k = &c->m->card;
    if (k->latent.kv_rank == 0) {
        return KVS_OK;
    }
    c->in_stride = padded(k->heads * max_u32(k->latent.nope_dim + k->rope.dims, k->latent.value_dim));
    c->low_stride = padded(k->latent.q_rank);
    const struct want want[] = {{(void **)&c->in, 4ull * c->batch_tokens * c->in_stride},
                                {(void **)&c->low, 4ull * c->batch_tokens * c->low_stride}};
    return allocate(c, want, sizeof want / sizeof want[0]);
}

static kvs_status moe_create(struct eng_ctx *c, uint32_t threads)
{
    const struct mdl_card *k = &c->m->card;
    struct eng_moe *e = &c->moe;
    if (k->experts.count == 0) {
        return KVS_OK;
    }
    size_t rows = c->batch_tokens, n = k->experts.count, pairs = rows * k->experts.used;
    e->value_stride = padded(k->experts.count);
    e->x_stride = padded(k->width);
    e->g_stride = padded(k->experts.ff);
    size_t widest = max_u32(e->x_stride, e->g_stride), blocks = (widest + ENG_BLOCK - 1) / ENG_BLOCK;
    const struct want want[] = {
        {(void **)&e->value, 4 * rows * e->value_stride},
        {(void **)&e->choice, 4 * threads * 2 * n},
        {(void **)&e->expert, 4 * pairs},
        {(void **)&e->weight, 4 * pairs},
        {(void **)&e->entry, 4 * pairs},
        {(void **)&e->row, 4 * pairs},
        {(void **)&e->first, 4 * (n + 1)},
        {(void **)&e->next, 4 * (n + 1)},
        {(void **)&e->active, 4 * n},
        {(void **)&e->x, 4 * pairs * e->x_stride},
        {(void **)&e->g, 4 * pairs * e->g_stride},
        {(void **)&e->u, 4 * pairs * e->g_stride},
        {(void **)&e->q, 2 * pairs * widest},
        {(void **)&e->dx, 4 * pairs * blocks},
        {(void **)&e->sx, 4 * pairs * blocks},
        {(void **)&e->sum, 4 * pairs * blocks},
        {(void **)&e->shared, 4 * rows * ENG_STRIP},
    };
    return allocate(c, want, sizeof want / sizeof want[0]);
}

static kvs_status activations_create(struct eng_ctx *c)
{
    const struct mdl_card *k = &c->m->card;
    size_t n = c->batch_tokens;
    c->y_stride = padded(k->width);
    c->q_stride = padded(k->heads * k->key_dim);
    c->k_stride = padded(k->kv_heads * k->key_dim);
    c->v_stride = padded(k->kv_heads * k->value_dim);
    c->o_stride = padded(k->heads * k->value_dim);
    c->g_stride = padded(max_u32(k->ff, k->experts.ff_shared));
    uint32_t heads = k->heads * max_u32(k->latent.nope_dim, k->latent.value_dim), inner = max_u32(k->ssm.inner, heads);
    size_t widest = max_u32(max_u32(c->y_stride, padded(inner)), max_u32(c->o_stride, c->g_stride)),
           blocks = (widest + ENG_BLOCK - 1) / ENG_BLOCK;
    const struct want want[] = {
        {(void **)&c->x, 4 * n * c->y_stride},  {(void **)&c->y, 4 * n * c->y_stride},
        {(void **)&c->h, 4 * n * c->y_stride},  {(void **)&c->q, 4 * n * c->q_stride},
        {(void **)&c->k, 4 * n * c->k_stride},  {(void **)&c->v, 4 * n * c->v_stride},
        {(void **)&c->o, 4 * n * c->o_stride},  {(void **)&c->g, 4 * n * c->g_stride},
        {(void **)&c->u, 4 * n * c->g_stride},  {(void **)&c->act_q, 2 * n * widest},
        {(void **)&c->act_dx, 4 * n * blocks},  {(void **)&c->act_sx, 4 * n * blocks},
        {(void **)&c->act_sum, 4 * n * blocks}, {(void **)&c->head_tail, 4 * n * ENG_STRIP},
        {(void **)&c->row, n * sizeof *c->row}, {(void **)&c->logit_row, 4 * n},
        {(void **)&c->bad, n * sizeof *c->bad},
    };
    kvs_status s = allocate(c, want, sizeof want / sizeof want[0]);
    if (s != KVS_OK) {
        return s;
    }
    if (state_create(c) != KVS_OK || latent_create(c) != KVS_OK) {
        return KVS_SELF_NOMEM;
    }
    c->slots = ENG_SPLIT_ROWS * ((c->m->context + ENG_SEGMENT - 1) / ENG_SEGMENT);
    const struct want split[] = {
        {(void **)&c->partial, 4ull * c->slots * k->heads * (k->value_dim + 2)},
        {(void **)&c->item, max_u32(c->batch_tokens, c->slots) * sizeof *c->item},
    };
    return allocate(c, split, sizeof split / sizeof split[0]);
}

static bool group_fits(const struct mdl_card *c, const struct kvc_group *g)
{
    switch (g->kind) {
    case KVC_FULL:
    case KVC_WINDOW:
        return c->latent.kv_rank == 0 && g->kv_heads == c->kv_heads && g->key_dim == c->key_dim &&
               g->value_dim == c->value_dim;
    case KVC_LATENT: return c->latent.kv_rank != 0 && g->key_dim == c->key_dim;
    case KVC_STATE: return g->state_bytes == mdl_card_state_bytes(c);
    }
    return false;
}

static kvs_status check_batch(const struct eng_ctx_options *o, struct kvs_error *err)
{
    if (o->batch_tokens == 0 || o->batch_tokens > BATCH_MAX || o->batch_seqs == 0 || o->threads > ENG_THREADS_MAX) {
        return kvs_fail(err, KVS_SELF_CONFIG, "a batch of %u tokens and %u sequences on %u threads is out of range",
                        o->batch_tokens, o->batch_seqs, o->threads);
    }
    return KVS_OK;
}

static kvs_status check_options(const struct eng_model *m, const struct kvc_layout *l, const struct eng_kv *kv,
                                const struct eng_ctx_options *o, struct kvs_error *err)
{
    const struct mdl_card *c = &m->card;
    kvs_status s = check_batch(o, err);
    if (s != KVS_OK) {
        return s;
    }
    if (l->layer_count != c->layers || l->group_count == 0 || l->group_count > KVC_GROUPS_MAX || l->block_tokens == 0 ||
        (l->block_tokens & (l->block_tokens - 1)) != 0) {
        return kvs_fail(err, KVS_SELF_INTERNAL, "the KV layout belongs to another model");
    }
    for (uint32_t i = 0; i < l->group_count; i++) {
        const struct kvc_group *g = &l->group[i];
        if (!group_fits(c, g)) {
            return kvs_fail(err, KVS_SELF_INTERNAL, "KV group %u does not fit the model", i);
        }
        if (kv->base[i] == NULL || ((uintptr_t)kv->base[i] & 63u) != 0) {
            return kvs_fail(err, KVS_SELF_INTERNAL, "KV memory of group %u is absent or not 64-byte aligned", i);
        }
    }
    for (uint32_t i = 0; i < c->layers; i++) { /* what a layer looks at must be kept */
        struct kvc_place at = kvc_layer_place(l, i, 0);
        uint32_t window = m->layer[i].attention.window;
        if (at.group != KVC_NO_GROUP && l->group[at.group].kind == KVC_WINDOW &&
            (window == 0 || window > l->group[at.group].window)) {
            return kvs_fail(err, KVS_SELF_INTERNAL, "layer %u looks at more than the %u keys that its KV group keeps",
                            i, l->group[at.group].window);
        }
    }
    return KVS_OK;
}

/* Everything but the threads. */
static kvs_status fill(struct eng_ctx *c, const struct kvc_layout *layout, const struct eng_ctx_options *o,
                       uint32_t threads)
{
    c->layout = *layout;
    c->batch_tokens = o->batch_tokens;
    c->batch_seqs = o->batch_seqs;
    while (1u << c->block_shift < layout->block_tokens) {
        c->block_shift++;
    }
    kvs_status s = activations_create(c);
    if (s == KVS_OK) {
        s = moe_create(c, threads);
    }
    return s == KVS_OK ? scratch_create(c, threads) : s;
}

kvs_status eng_ctx_plan(const struct eng_model *m, const struct kvc_layout *layout, const struct eng_ctx_options *o,
                        uint64_t *resident_out, struct kvs_error *err)
{
    struct eng_ctx *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory to plan the engine's scratch");
    }
    c->m = m;
    c->plan = true;
    kvs_status s = check_batch(o, err);
    if (s == KVS_OK) {
        s = fill(c, layout, o, o->threads == 0 ? 1 : o->threads);
    }
    *resident_out = c->resident;
    free(c);
    return s;
}

kvs_status eng_ctx_create(const struct eng_model *m, const struct kvc_layout *layout, const struct eng_kv *kv,
                          const struct eng_ctx_options *o, struct eng_ctx **out, struct kvs_error *err)
{
    kvs_status s = check_options(m, layout, kv, o, err);
    if (s != KVS_OK) {
        return s;
    }
    struct eng_ctx *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the engine's scratch");
    }
    uint32_t threads = o->threads == 0 ? 1 : o->threads;
    c->m = m;
    c->kv = *kv;
    s = fill(c, layout, o, threads);
    if (s == KVS_OK) {
        s = eng_team_create(threads, &c->team);
    }
    if (s != KVS_OK) {
        eng_ctx_destroy(c);
        return kvs_fail(err, s, "cannot set up the engine: no memory or no thread for %u tokens a step",
                        o->batch_tokens);
    }
    *out = c;
    return KVS_OK;
}

void eng_ctx_destroy(struct eng_ctx *c)
{
    if (c == NULL) {
        return;
    }
    eng_team_destroy(c->team);
    void *owned[] = {c->in,        c->mid,
                     c->low,       c->dt,
                     c->span,      c->x,
                     c->y,         c->h,
                     c->q,         c->k,
                     c->v,         c->o,
                     c->g,         c->u,
                     c->act_q,     c->act_dx,
                     c->act_sx,    c->act_sum,
                     c->head_tail, c->row,
                     c->logit_row, c->bad,
                     c->partial,   c->item,
                     c->scratch,   c->scratch_bytes};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        free(owned[i]);
    }
    struct eng_moe *e = &c->moe;
    void *mixture[] = {e->value, e->choice, e->expert, e->weight, e->entry, e->row, e->first, e->next,  e->active,
                       e->x,     e->g,      e->u,      e->q,      e->dx,    e->sx,  e->sum,   e->shared};
    for (size_t i = 0; i < sizeof mixture / sizeof mixture[0]; i++) {
        free(mixture[i]);
    }
    free(c);
}

/* What a step over [pos, end) may read or write must be there in every group: see layout.h. */
static bool table_covers(const struct eng_ctx *c, const struct kvc_block_table *t, uint32_t pos, uint32_t end)
{
    uint32_t blocks = kvc_blocks_for(&c->layout, end);
    if (t == NULL || t->group_count != c->layout.group_count || t->block_count < blocks || t->block_cap < blocks) {
        return false;
    }
    for (uint32_t g = 0; g < t->group_count; g++) {
        const uint32_t *page = kvc_block_row(t, g);
        const struct kvc_group *kind = &c->layout.group[g];
        uint32_t from =
            kind->kind == KVC_STATE ? kvc_state_block(&c->layout, end) : kvc_first_visible(&c->layout, kind, pos);
        for (uint32_t b = from; b < blocks; b++) {
            if (page[b] >= c->kv.pages[g]) { /* NONE too */
                return false;
            }
        }
    }
    return true;
}

static kvs_status check_parts(const struct eng_ctx *c, const struct eng_part *parts, uint32_t part_count,
                              const float *logits)
{
    uint64_t rows = 0;
    if (part_count == 0 || part_count > c->batch_seqs) {
        return KVS_REQ_INVALID;
    }
    for (uint32_t i = 0; i < part_count; i++) {
        const struct eng_part *p = &parts[i];
        rows += p->count;
        if (p->count == 0 || rows > c->batch_tokens || p->logits_from > p->count ||
            (logits == NULL && p->logits_from < p->count)) {
            return KVS_REQ_INVALID;
        }
        if ((uint64_t)p->pos + p->count > c->m->context || !table_covers(c, p->table, p->pos, p->pos + p->count)) {
            return KVS_REQ_INVALID;
        }
        for (uint32_t j = 0; j < p->count; j++) {
            if (p->ids[j] < 0 || (uint32_t)p->ids[j] >= c->m->card.vocab) {
                return KVS_REQ_INVALID;
            }
        }
    }
    return KVS_OK;
}

static void list_rows(struct eng_ctx *c, struct eng_part *parts, uint32_t part_count)
{
    c->rows = c->logit_rows = 0;
    c->spans = part_count;
    for (uint32_t i = 0; i < part_count; i++) {
        parts[i].status = KVS_OK;
        c->span[i] = (struct eng_span){.row = c->rows, .count = parts[i].count};
        for (uint32_t j = 0; j < parts[i].count; j++) {
            if (j >= parts[i].logits_from) {
                c->logit_row[c->logit_rows++] = c->rows;
            }
            atomic_store_explicit(&c->bad[c->rows], 0, memory_order_relaxed);
            c->row[c->rows++] = (struct eng_row){
                .id = parts[i].ids[j], .pos = parts[i].pos + j, .part = i, .table = parts[i].table, .slot = UINT32_MAX};
        }
    }
}

/* Later positions see more keys: they are listed first, so that the threads finish together. */
static void list_items(struct eng_ctx *c)
{
    c->items = 0;
    if (c->m->card.heads == 0) {
        return;
    }
    uint32_t share = c->m->card.heads / c->m->card.kv_heads, most = ENG_ATTN_ROWS / share;
    most = most < 1 ? 1 : most > POSITIONS_PER_ITEM ? POSITIONS_PER_ITEM : most;
    bool split = c->rows <= ENG_SPLIT_ROWS;
    uint32_t slot = 0;
    for (uint32_t end = c->rows; end > 0;) {
        struct eng_row *last = &c->row[end - 1];
        uint32_t segments = last->pos / ENG_SEGMENT + 1;
        if (split && segments > 1) {
            last->slot = slot;
            for (uint32_t s = 0; s < segments; s++) {
                c->item[c->items++] = (struct eng_attn_item){
                    .row = end - 1, .count = 1, .segment_first = s, .segment_count = 1, .slot = slot++};
            }
            end--;
            continue;
        }
        uint32_t begin = end - 1;
        while (begin > 0 && end - begin < most && c->row[begin - 1].part == last->part &&
               c->row[begin - 1].pos / POSITIONS_PER_ITEM == last->pos / POSITIONS_PER_ITEM) {
            begin--;
        }
        c->item[c->items++] =
            (struct eng_attn_item){.row = begin, .count = end - begin, .segment_count = segments, .slot = UINT32_MAX};
        end = begin;
    }
    KVS_ASSERT(slot <= c->slots);
}

static void run_member(void *arg, struct eng_member *self)
{
    struct eng_ctx *c = arg;
    eng_forward_member(c, self);
}

kvs_status eng_forward(struct eng_ctx *c, struct eng_part *parts, uint32_t part_count, float *logits,
                       eng_layer_fn layer_done, void *user)
{
    kvs_status s = check_parts(c, parts, part_count, logits);
    if (s != KVS_OK) {
        return s;
    }
    list_rows(c, parts, part_count);
    list_items(c);
    c->logits = logits;
    c->layer_done = layer_done;
    c->user = user;
    c->stop = false;
    eng_team_run(c->team, run_member, c);
    if (c->stop) {
        return KVS_REQ_CANCELLED;
    }
    for (uint32_t r = 0; r < c->rows; r++) {
        if (atomic_load_explicit(&c->bad[r], memory_order_relaxed) != 0) {
            parts[c->row[r].part].status = KVS_SELF_NUMERIC;
        }
    }
    return KVS_OK;
}
