/* fake_device.h - a device for tests of the worker cores: KV of a position is a hash of all tokens up to it, a sampled token is a hash of
 * the sequence so far. So every wrong page, stale page, missing zero or lost token shows up as another number. Before a step reads pages
 * it compares every position of every group with what the sequence's tokens say, and the rest of the last block with zero. Window groups:
 * the positions that the window shows, others may have no page. State groups: the first number of a page is the state after so many tokens.
 * The token FAKE_BAD makes its sequence's step entry fail with KVS_SELF_NUMERIC.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_FAKE_DEVICE_H
#define KVS_TESTS_FAKE_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "worker/core/sched.h"

#define FAKE_BAD 7 /* never sampled */
#define FAKE_VOCAB 1000u
#define FAKE_GARBAGE 0xdeadbeefdeadbeefull

struct fake_kv {
    const struct kvc_layout *l;
    uint64_t *cell[KVC_GROUPS_MAX]; /* [page][token of the block] */
};

static inline uint64_t fake_mix(uint64_t a, uint64_t b)
{
    struct kvs_rng r = {a ^ (b * 0x9e3779b97f4a7c15ull)};
    return kvs_rng_next(&r) | 1; /* never zero */
}
static inline uint64_t fake_prefix(const int32_t *tokens, uint32_t n)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < n; i++)
        h = fake_mix(h, (uint64_t)tokens[i] + 1);
    return h;
}
static inline int32_t fake_sample(uint64_t row, uint64_t seed, uint32_t choice, uint32_t position)
{
    uint64_t h = fake_mix(fake_mix(row, seed), (uint64_t)choice << 32 | position);
    int32_t id = (int32_t)(h % FAKE_VOCAB);
    return id == FAKE_BAD ? FAKE_BAD + 1 : id;
}
/* The answer of a naive loop: out gets at most `max` tokens; a stop id ends it. Returns how many. */
static inline uint32_t fake_answer(const int32_t *prompt, uint32_t n, uint64_t seed, uint32_t choice, uint32_t max,
                                   uint32_t context, int32_t stop, int32_t *out)
{
    int32_t *all = malloc((n + max + 1) * sizeof *all);
    uint32_t made = 0;
    memcpy(all, prompt, n * sizeof *all);
    while (made < max && n + made < context) {
        int32_t id = fake_sample(fake_prefix(all, n + made), seed, choice, n + made);
        all[n + made] = out[made] = id;
        made++;
        if (id == stop)
            break;
    }
    free(all);
    return made;
}

static inline void fake_kv_init(struct fake_kv *kv, const struct kvc_layout *l, const uint32_t *pages)
{
    *kv = (struct fake_kv){.l = l};
    for (uint32_t g = 0; g < l->group_count; g++) {
        size_t n = (size_t)pages[g] * l->block_tokens;
        kv->cell[g] = malloc(n * sizeof(uint64_t));
        for (size_t i = 0; i < n; i++)
            kv->cell[g][i] = FAKE_GARBAGE;
    }
}
static inline void fake_kv_fini(struct fake_kv *kv)
{
    for (uint32_t g = 0; g < kv->l->group_count; g++)
        free(kv->cell[g]);
}
static inline uint64_t *fake_page(struct fake_kv *kv, uint32_t group, uint32_t page)
{
    return kv->cell[group] + (size_t)page * kv->l->block_tokens;
}
static inline void fake_zero(struct fake_kv *kv, struct wrk_sched *s)
{
    struct wrk_page list[7]; /* small, so that the loop is needed */
    size_t n;
    while ((n = wrk_sched_take_zeros(s, list, 7)) > 0)
        for (size_t i = 0; i < n; i++)
            memset(fake_page(kv, list[i].group, list[i].page), 0, kv->l->block_tokens * sizeof(uint64_t));
    struct wrk_copy copy[3];
    while ((n = wrk_sched_take_copies(s, copy, 3)) > 0)
        for (size_t i = 0; i < n; i++)
            memcpy(fake_page(kv, copy[i].group, copy[i].to), fake_page(kv, copy[i].group, copy[i].from),
                   copy[i].tokens * sizeof(uint64_t));
}

/* The cell of a position of a sequence in a group. */
static inline uint64_t *fake_cell(struct fake_kv *kv, const struct kvc_block_table *t, uint32_t group,
                                  uint32_t position)
{
    uint32_t page = kvc_block_row(t, group)[position / kv->l->block_tokens];
    KVS_ASSERT(page != KVC_BLOCK_NONE);
    return fake_page(kv, group, page) + position % kv->l->block_tokens;
}
static inline uint64_t fake_kv_value(uint64_t prefix, uint32_t group)
{
    return fake_mix(prefix, 1000003 + group);
}

static inline uint64_t *fake_state(struct fake_kv *kv, const struct kvc_block_table *t, uint32_t group, uint32_t block)
{
    uint32_t page = kvc_block_row(t, group)[block];
    KVS_ASSERT(page != KVC_BLOCK_NONE);
    return fake_page(kv, group, page);
}
static inline bool fake_is_state(const struct fake_kv *kv, uint32_t group)
{
    return kv->l->group[group].kind == KVC_STATE;
}
/* The state of an entry's sequence goes from `pos` to its end. */
static inline void fake_advance(struct fake_kv *kv, const struct wrk_step_entry *e, const int32_t *tokens, uint32_t group)
{
    uint32_t end = e->pos + e->count;
    uint64_t *state = fake_state(kv, e->table, group, kvc_state_block(kv->l, end));
    KVS_ASSERT(*state == (e->pos == 0 ? 0 : fake_kv_value(fake_prefix(tokens, e->pos), group)));
    *state = fake_kv_value(fake_prefix(tokens, end), group);
}
/* A step that was stopped has left its states anywhere. */
static inline void fake_spoil(struct fake_kv *kv, const struct wrk_step *step)
{
    for (uint32_t i = 0; i < step->entry_count; i++)
        for (uint32_t g = 0; g < kv->l->group_count; g++) {
            const struct wrk_step_entry *e = &step->entries[i];
            if (fake_is_state(kv, g))
                *fake_state(kv, e->table, g, kvc_state_block(kv->l, e->pos + e->count)) = FAKE_GARBAGE;
        }
}
/* What a transfer brings of one page: everything that it is there for. `tokens`: how many of the sequence come. */
static inline void fake_land(struct fake_kv *kv, const struct kvc_block_table *t, uint32_t group, uint32_t block, const int32_t *ids,
                             uint32_t tokens)
{
    uint32_t n = kv->l->block_tokens, end = (block + 1) * n < tokens ? (block + 1) * n : tokens;
    if (fake_is_state(kv, group)) {
        *fake_state(kv, t, group, block) = fake_kv_value(fake_prefix(ids, end), group);
        return;
    }
    for (uint32_t p = block * n; p < (block + 1) * n; p++)
        *fake_cell(kv, t, group, p) = p < end ? fake_kv_value(fake_prefix(ids, p + 1), group) : 0;
}

/* Does a query at `query` read position p in this group? */
static inline bool fake_sees(const struct kvc_group *g, uint32_t query, uint32_t p)
{
    return g->kind != KVC_WINDOW || p + g->window > query;
}

/* One entry of a step; *row_out is what the logits are made of. */
static inline kvs_status fake_entry(struct fake_kv *kv, const struct wrk_sched *s, const struct wrk_step_entry *e,
                                    uint64_t *row_out)
{
    struct wrk_seq_view v = wrk_seq_look(s, e->seq);
    KVS_ASSERT(v.state != WRK_SEQ_GONE && v.in_step && v.computed == e->pos && v.table == e->table);
    KVS_ASSERT(e->ids == v.tokens + e->pos);
    uint32_t end = e->pos + e->count;
    uint64_t h = 1;
    bool bad = false;
    for (uint32_t p = 0; p < end; p++) {
        h = fake_mix(h, (uint64_t)v.tokens[p] + 1);
        bad = bad || (p >= e->pos && v.tokens[p] == FAKE_BAD);
        for (uint32_t g = 0; g < kv->l->group_count; g++) {
            if (fake_is_state(kv, g) || (p < e->pos && !fake_sees(&kv->l->group[g], e->pos, p)))
                continue;
            uint64_t *cell = fake_cell(kv, e->table, g, p);
            if (p >= e->pos)
                *cell = fake_kv_value(h, g);
            KVS_ASSERT(*cell == fake_kv_value(h, g)); /* what is read is what was written for exactly these tokens */
        }
    }
    for (uint32_t g = 0; g < kv->l->group_count; g++)
        if (fake_is_state(kv, g))
            fake_advance(kv, e, v.tokens, g);
    for (uint32_t p = end; p % kv->l->block_tokens != 0; p++)
        for (uint32_t g = 0; g < kv->l->group_count; g++) {
            if (fake_is_state(kv, g))
                continue;
            uint64_t value = *fake_cell(kv, e->table, g, p);
            KVS_ASSERT(
                value !=
                FAKE_GARBAGE); /* zeroed on acquire; a step that was stopped and is done again may have written here */
        }
    *row_out = h;
    return bad ? KVS_SELF_NUMERIC : KVS_OK;
}

/* Runs a whole step. rows (by the entry's user) gets what SHIP entries made; may be NULL. */
static inline void fake_run(struct fake_kv *kv, const struct wrk_sched *s, const struct wrk_step *step,
                            struct wrk_result *results, uint64_t *rows)
{
    for (uint32_t i = 0; i < step->entry_count; i++) {
        const struct wrk_step_entry *e = &step->entries[i];
        uint64_t row;
        results[i] = (struct wrk_result){.status = fake_entry(kv, s, e, &row)};
        if (e->logits == WRK_LOGITS_SAMPLE)
            results[i].token = fake_sample(row, e->sampling.seed, e->choice, e->position);
        if (e->logits == WRK_LOGITS_SHIP && rows)
            rows[e->user] = row;
    }
}

static inline struct kvc_layout fake_layout(uint32_t layers, uint32_t block_tokens, uint32_t group_layers)
{
    struct kvc_layout_config c = {.layers = layers,
                                  .kv_heads = 1,
                                  .key_dim = 4,
                                  .value_dim = 4,
                                  .kv_type = KVC_F32,
                                  .block_tokens = block_tokens,
                                  .group_layers = group_layers};
    struct kvc_layout l;
    kvs_status st = kvc_layout_build(&c, &l, NULL);
    KVS_ASSERT(st == KVS_OK);
    return l;
}
/* Any mixture of kinds: window layers of one width, latent ones, states, hybrids, layers that keep nothing. */
static inline struct kvc_layout fake_layout_kinds(struct kvs_rng *rng, uint32_t layers, uint32_t block_tokens, uint32_t group_layers)
{
    struct kvc_layer y[8] = {0};
    KVS_ASSERT(layers <= 8);
    const struct kvc_cache of[4] = {
        {.kind = KVC_FULL, .kv_heads = 1, .key_dim = 4, .value_dim = 4},
        {.kind = KVC_WINDOW, .window = 1 + (uint32_t)kvs_rng_below(rng, 24), .kv_heads = 1, .key_dim = 4, .value_dim = 4},
        {.kind = KVC_LATENT, .kv_heads = 1, .key_dim = 8},
        {.kind = KVC_STATE, .state_bytes = 8}};
    for (uint32_t i = 0; i < layers; i++) {
        uint32_t what = (uint32_t)kvs_rng_below(rng, 6);
        y[i].count = what < 4 ? 1 : what == 4 ? 2 : i == 0;
        y[i].cache[0] = of[what < 4 ? what : 0];
        y[i].cache[1] = of[3];
    }
    struct kvc_layout_config c = {.layers = layers, .layer = y, .block_tokens = block_tokens, .group_layers = group_layers};
    struct kvc_layout l;
    kvs_status st = kvc_layout_build(&c, &l, NULL);
    KVS_ASSERT(st == KVS_OK);
    return l;
}
/* Pages of a group whose sequences need few: enough for one of `tokens` tokens, and some more. */
static inline uint32_t fake_few_pages(const struct kvc_layout *l, uint32_t group, uint32_t tokens, uint32_t chunk, uint32_t more)
{
    uint32_t n = l->block_tokens, most = (l->group[group].window + chunk + n) / n + 2, all = tokens / n + 2;
    return (l->group[group].kind == KVC_STATE ? 3 : most < all ? most : all) + more;
}
static inline void fake_prompt(struct kvs_rng *rng, int32_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (int32_t)kvs_rng_below(rng, FAKE_VOCAB);
        out[i] += out[i] == FAKE_BAD;
    }
}

#endif
