/* cached.c - see cached.h. A worker's slot goes NONE -> TELLING -> FOLLOWING; a gap leads to LOST until it tells again, and its locations
 * stay meanwhile.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/cached.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct kvc_hash) == MSG_BLOCK_HASH_BYTES, "a hash on the wire is a hash");

struct kind {        /* workers that give the same prompt the same names */
    uint64_t serial; /* never used again */
    uint32_t model, workers, block_tokens;
    uint8_t fingerprint[32];
    char numerics[128], kv_types[32], rope[160];
};

typedef enum follow_state { NONE = 0, TELLING, FOLLOWING, LOST } follow_state;

struct follower {
    struct kind *kind; /* NULL: no worker here */
    follow_state state;
    uint64_t next; /* number of the event that must come next */
};

struct rtr_cached {
    struct rtr_index *index;
    uint32_t workers_max;
    struct follower *of; /* workers_max each */
    struct kind *kinds;
    uint32_t *blocks, *scratch;
    uint64_t serials;
};

kvs_status rtr_cached_create(uint32_t workers_max, uint64_t bytes_max, struct rtr_cached **out)
{
    struct rtr_cached *c = calloc(1, sizeof(*c));
    if (!c)
        return KVS_SELF_NOMEM;
    c->workers_max = workers_max;
    c->of = calloc(workers_max, sizeof(*c->of));
    c->kinds = calloc(workers_max, sizeof(*c->kinds));
    c->blocks = calloc(workers_max, sizeof(*c->blocks));
    c->scratch = calloc(workers_max, sizeof(*c->scratch));
    kvs_status s = c->of && c->kinds && c->blocks && c->scratch ? KVS_OK : KVS_SELF_NOMEM;
    if (s == KVS_OK)
        s = rtr_index_create(workers_max, bytes_max, &c->index);
    if (s != KVS_OK) {
        rtr_cached_destroy(c);
        return s;
    }
    *out = c;
    return KVS_OK;
}

void rtr_cached_destroy(struct rtr_cached *c)
{
    if (!c)
        return;
    rtr_index_destroy(c->index);
    free(c->of);
    free(c->kinds);
    free(c->blocks);
    free(c->scratch);
    free(c);
}

const struct rtr_index *rtr_cached_index(const struct rtr_cached *c)
{
    return c->index;
}

/* ---- workers ---- */

static bool is_kind(const struct kind *k, uint32_t model, const struct msg_card *card)
{
    return k->workers && k->model == model && k->block_tokens == card->block_tokens &&
           memcmp(k->fingerprint, card->fingerprint, sizeof(k->fingerprint)) == 0 &&
           strcmp(k->numerics, card->numerics) == 0 && strcmp(k->kv_types, card->kv_types) == 0 &&
           strcmp(k->rope, card->rope) == 0;
}

static struct kind *kind_of(struct rtr_cached *c, uint32_t model, const struct msg_card *card)
{
    struct kind *unused = NULL;
    for (uint32_t i = 0; i < c->workers_max; i++) {
        if (is_kind(&c->kinds[i], model, card))
            return &c->kinds[i];
        if (!c->kinds[i].workers && !unused)
            unused = &c->kinds[i];
    }
    KVS_ASSERT(unused); /* as many as slots */
    *unused = (struct kind){.serial = ++c->serials, .model = model, .block_tokens = card->block_tokens};
    memcpy(unused->fingerprint, card->fingerprint, sizeof(unused->fingerprint));
    memcpy(unused->numerics, card->numerics, sizeof(unused->numerics));
    memcpy(unused->kv_types, card->kv_types, sizeof(unused->kv_types));
    memcpy(unused->rope, card->rope, sizeof(unused->rope));
    return unused;
}

void rtr_cached_up(struct rtr_cached *c, uint32_t slot, uint32_t model, const struct msg_card *card)
{
    KVS_ASSERT(slot < c->workers_max);
    rtr_cached_down(c, slot);
    if (!card->block_tokens)
        return; /* names no blocks */
    c->of[slot].kind = kind_of(c, model, card);
    c->of[slot].kind->workers++;
}

void rtr_cached_down(struct rtr_cached *c, uint32_t slot)
{
    KVS_ASSERT(slot < c->workers_max);
    struct follower *f = &c->of[slot];
    if (f->kind) {
        KVS_ASSERT(f->kind->workers > 0);
        f->kind->workers--;
    }
    memset(f, 0, sizeof(*f));
    rtr_index_drop(c->index, slot);
}

/* ---- what they tell ---- */

static const struct kvc_hash *hash_at(const uint8_t *hashes, uint32_t i)
{
    return (const struct kvc_hash *)(const void *)(hashes + (size_t)i * MSG_BLOCK_HASH_BYTES);
}

/* Runs of added and of removed blocks, in the order in which it happened. */
static void apply(struct rtr_cached *c, uint32_t slot, const struct msg_cache_events *ev)
{
    for (uint32_t i = 0, n; i < ev->count; i += n) {
        bool gone = ev->depths[i] == 0;
        for (n = 1; i + n < ev->count && (ev->depths[i + n] == 0) == gone; n++) {}
        if (gone)
            rtr_index_remove(c->index, slot, hash_at(ev->hashes, i), n);
        else
            rtr_index_add(c->index, slot, hash_at(ev->hashes, i), n);
    }
}

bool rtr_cached_events(struct rtr_cached *c, uint32_t slot, const struct msg_cache_events *ev)
{
    KVS_ASSERT(slot < c->workers_max);
    struct follower *f = &c->of[slot];
    if (!f->kind)
        return true;
    if (ev->snapshot_begin) {
        rtr_index_snapshot_begin(c->index, slot);
        f->state = TELLING;
        f->next = ev->first_sequence;
    }
    if (f->state == NONE || f->state == LOST || ev->first_sequence != f->next) {
        f->state = LOST;
        return false;
    }
    apply(c, slot, ev);
    if (f->state == FOLLOWING)
        f->next += ev->count;
    if (f->state == TELLING && ev->snapshot_end) {
        rtr_index_snapshot_end(c->index, slot);
        f->state = FOLLOWING;
    }
    return true;
}

void rtr_cached_digest(struct rtr_cached *c, uint32_t slot, const struct msg_cache_digest *d)
{
    KVS_ASSERT(slot < c->workers_max);
    if (c->of[slot].kind && c->of[slot].state == NONE && d->count)
        rtr_index_add(c->index, slot, hash_at(d->hashes, 0), d->count);
}

/* ---- what a prompt finds ---- */

void rtr_chains_fini(struct rtr_chains *c)
{
    for (uint32_t i = 0; i < RTR_CHAINS_MAX; i++)
        free(c->of[i].blocks);
    memset(c, 0, sizeof(*c));
}

static struct kvc_bytes text(const char *t)
{
    return (struct kvc_bytes){.data = t, .len = t ? strlen(t) : 0};
}

static bool name_blocks(const struct kind *k, const struct rtr_named *n, struct kvc_hash *out, uint32_t count)
{
    struct kvc_hash parent;
    struct kvc_root_fields root = {.fingerprint = {.data = k->fingerprint, .len = sizeof(k->fingerprint)},
                                   .numerics = text(k->numerics),
                                   .tenant = text(n->tenant),
                                   .cache_salt = text(n->cache_salt),
                                   .kv_types = text(k->kv_types),
                                   .rope = text(k->rope),
                                   .adapter = text(n->adapter),
                                   .block_tokens = k->block_tokens};
    kvs_status s = kvc_hash_root(&root, &parent);
    for (uint32_t i = 0; i < count && s == KVS_OK; i++) {
        s = kvc_hash_block(&parent, n->tokens + (size_t)i * k->block_tokens, k->block_tokens, NULL, 0, &out[i]);
        parent = out[i];
    }
    return s == KVS_OK;
}

/* The prompt's names for this kind of worker, made when they are first needed. NULL: no memory or no room; then it counts as unknown. */
static const struct rtr_chain *chain_of(const struct rtr_cached *c, const struct kind *k, const struct rtr_named *n,
                                        struct rtr_chains *chains)
{
    struct rtr_chain *unused = NULL;
    for (uint32_t i = 0; i < RTR_CHAINS_MAX; i++) {
        struct rtr_chain *ch = &chains->of[i];
        if (ch->kind == k->serial)
            return ch;
        bool stale = true;
        for (uint32_t w = 0; ch->kind && stale && w < c->workers_max; w++)
            stale = !c->kinds[w].workers || c->kinds[w].serial != ch->kind;
        if (stale && !unused)
            unused = ch;
    }
    if (!unused)
        return NULL;
    uint32_t count = (n->token_count - 1) / k->block_tokens; /* the last token is always computed */
    struct kvc_hash *blocks = malloc((count ? count : 1) * sizeof(*blocks));
    if (!blocks || !name_blocks(k, n, blocks, count)) {
        free(blocks);
        return NULL;
    }
    free(unused->blocks);
    *unused = (struct rtr_chain){.kind = k->serial, .blocks = blocks, .count = count};
    return unused;
}

const uint32_t *rtr_cached_match(struct rtr_cached *c, uint32_t model, const struct rtr_named *n,
                                 struct rtr_chains *chains)
{
    struct rtr_index_stats st;
    bool any = false;
    KVS_ASSERT(n->token_count > 0);
    rtr_index_stats(c->index, &st);
    if (!st.locations)
        return NULL;
    memset(c->blocks, 0, c->workers_max * sizeof(*c->blocks));
    for (uint32_t i = 0; i < c->workers_max; i++) {
        const struct kind *k = &c->kinds[i];
        const struct rtr_chain *ch = k->workers && k->model == model ? chain_of(c, k, n, chains) : NULL;
        if (!ch || !rtr_index_match(c->index, ch->blocks, ch->count, c->scratch))
            continue;
        any = true;
        for (uint32_t w = 0; w < c->workers_max; w++)
            if (c->of[w].kind == k)
                c->blocks[w] = c->scratch[w];
    }
    return any ? c->blocks : NULL;
}
