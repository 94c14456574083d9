/* index.c - see index.h. One array of locations, in three sets of links: buckets by hash (all workers of a block stand in one bucket), the
 * locations of one worker (so that it can be dropped alone), and all of them by age.
 *
 *   bucket[h] -> location -> location ...      key: the first 8 bytes of the block's hash, and the slot
 *   worker[s].first <-> ...                    unordered
 *   newest <-> ... <-> oldest                  the oldest gives way when the array is full
 *
 * Eight bytes of a SHA-256 are enough to name a block: who meets a collision is sent to a worker that then finds nothing.
 * Links are index + 1, zero is nobody, so that fresh memory from calloc is an empty table and untouched pages cost nothing.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/index.h"

#include <stdlib.h>
#include <string.h>

struct location {
    uint32_t key[2];
    uint32_t next;         /* in the bucket, or among the unused */
    uint32_t newer, older; /* by age */
    uint32_t prev, after;  /* of the same worker */
    uint16_t slot;
    uint16_t round; /* of the worker, when it was last told */
};
_Static_assert(sizeof(struct location) + sizeof(uint32_t) == RTR_INDEX_LOCATION_BYTES, "a location and its bucket");

struct holder {
    uint64_t count;
    uint32_t first;
    uint16_t round;
    bool telling; /* between snapshot_begin and snapshot_end */
};
_Static_assert(sizeof(struct holder) == RTR_INDEX_WORKER_BYTES, "a worker");

struct rtr_index {
    struct location *at; /* max */
    uint32_t *bucket;    /* max: one for each location */
    struct holder *worker;
    uint32_t workers_max;
    uint32_t max, used; /* used: entries ever taken; beyond them memory is untouched */
    uint32_t unused;    /* list of entries given back */
    uint32_t newest, oldest;
    uint64_t count, dropped;
    uint32_t holding; /* workers with a location */
};
_Static_assert(sizeof(struct rtr_index) <= RTR_INDEX_BASE_BYTES, "what does not grow");

static uint64_t fixed_bytes(uint32_t workers_max)
{
    return RTR_INDEX_BASE_BYTES + (uint64_t)workers_max * RTR_INDEX_WORKER_BYTES;
}

kvs_status rtr_index_create(uint32_t workers_max, uint64_t bytes_max, struct rtr_index **out)
{
    KVS_ASSERT(workers_max > 0 && workers_max <= RTR_INDEX_WORKERS_MAX);
    uint64_t fixed = fixed_bytes(workers_max);
    if (bytes_max < fixed + RTR_INDEX_LOCATION_BYTES)
        return KVS_SELF_CONFIG;
    uint64_t max = (bytes_max - fixed) / RTR_INDEX_LOCATION_BYTES;
    struct rtr_index *ix = calloc(1, sizeof(*ix));
    if (!ix)
        return KVS_SELF_NOMEM;
    ix->workers_max = workers_max;
    ix->max = max < UINT32_MAX - 1 ? (uint32_t)max : UINT32_MAX - 1;
    ix->at = calloc(ix->max, sizeof(*ix->at));
    ix->bucket = calloc(ix->max, sizeof(*ix->bucket));
    ix->worker = calloc(workers_max, sizeof(*ix->worker));
    if (!ix->at || !ix->bucket || !ix->worker) {
        rtr_index_destroy(ix);
        return KVS_SELF_NOMEM;
    }
    *out = ix;
    return KVS_OK;
}

void rtr_index_destroy(struct rtr_index *ix)
{
    if (!ix)
        return;
    free(ix->at);
    free(ix->bucket);
    free(ix->worker);
    free(ix);
}

static struct location *loc(const struct rtr_index *ix, uint32_t link)
{
    KVS_ASSERT(link > 0 && link <= ix->used);
    return &ix->at[link - 1];
}

static void key_of(const struct kvc_hash *h, uint32_t key_out[2])
{
    memcpy(key_out, h->bytes, 8);
}

/* The high bits of a 32 x 32 product spread the hash over a table of any size. */
static uint32_t *bucket_of(const struct rtr_index *ix, const uint32_t key[2])
{
    return &ix->bucket[(uint64_t)key[0] * ix->max >> 32];
}

static bool same_key(const struct location *l, const uint32_t key[2])
{
    return l->key[0] == key[0] && l->key[1] == key[1];
}

static uint32_t find(const struct rtr_index *ix, uint32_t slot, const uint32_t key[2])
{
    uint32_t n = *bucket_of(ix, key);
    while (n && !(loc(ix, n)->slot == slot && same_key(loc(ix, n), key)))
        n = loc(ix, n)->next;
    return n;
}

static void age_remove(struct rtr_index *ix, uint32_t n)
{
    struct location *l = loc(ix, n);
    *(l->newer ? &loc(ix, l->newer)->older : &ix->newest) = l->older;
    *(l->older ? &loc(ix, l->older)->newer : &ix->oldest) = l->newer;
}

static void age_front(struct rtr_index *ix, uint32_t n)
{
    struct location *l = loc(ix, n);
    l->newer = 0;
    l->older = ix->newest;
    *(ix->newest ? &loc(ix, ix->newest)->newer : &ix->oldest) = n;
    ix->newest = n;
}

static void touch(struct rtr_index *ix, uint32_t n)
{
    if (ix->newest == n)
        return;
    age_remove(ix, n);
    age_front(ix, n);
}

static void forget(struct rtr_index *ix, uint32_t n)
{
    struct location *l = loc(ix, n);
    struct holder *w = &ix->worker[l->slot];
    uint32_t *link = bucket_of(ix, l->key);
    while (*link != n)
        link = &loc(ix, *link)->next; /* asserts when it is not there */
    *link = l->next;
    age_remove(ix, n);
    *(l->prev ? &loc(ix, l->prev)->after : &w->first) = l->after;
    if (l->after)
        loc(ix, l->after)->prev = l->prev;
    KVS_ASSERT(w->count > 0 && ix->count > 0);
    w->count--;
    ix->count--;
    ix->holding -= w->count == 0;
    l->next = ix->unused;
    ix->unused = n;
}

static uint32_t take(struct rtr_index *ix)
{
    if (!ix->unused && ix->used < ix->max)
        return ++ix->used;
    if (!ix->unused) {
        forget(ix, ix->oldest);
        ix->dropped++;
    }
    uint32_t n = ix->unused;
    ix->unused = loc(ix, n)->next;
    return n;
}

static void add(struct rtr_index *ix, uint32_t slot, const struct kvc_hash *block)
{
    struct holder *w = &ix->worker[slot];
    uint32_t key[2];
    key_of(block, key);
    uint32_t n = find(ix, slot, key);
    if (n) {
        loc(ix, n)->round = w->round;
        touch(ix, n);
        return;
    }
    n = take(ix);
    uint32_t *bucket = bucket_of(ix, key);
    struct location *l = loc(ix, n);
    *l = (struct location){
        .key = {key[0], key[1]}, .next = *bucket, .after = w->first, .slot = (uint16_t)slot, .round = w->round};
    *bucket = n;
    if (w->first)
        loc(ix, w->first)->prev = n;
    w->first = n;
    age_front(ix, n);
    ix->holding += w->count == 0;
    w->count++;
    ix->count++;
}

void rtr_index_add(struct rtr_index *ix, uint32_t slot, const struct kvc_hash *blocks, uint32_t count)
{
    KVS_ASSERT(slot < ix->workers_max && (blocks || !count));
    while (count-- > 0)
        add(ix, slot, &blocks[count]);
}

void rtr_index_remove(struct rtr_index *ix, uint32_t slot, const struct kvc_hash *blocks, uint32_t count)
{
    KVS_ASSERT(slot < ix->workers_max && (blocks || !count));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key[2];
        key_of(&blocks[i], key);
        uint32_t n = find(ix, slot, key);
        if (n)
            forget(ix, n);
    }
}

void rtr_index_snapshot_begin(struct rtr_index *ix, uint32_t slot)
{
    KVS_ASSERT(slot < ix->workers_max);
    struct holder *w = &ix->worker[slot];
    w->round++;
    w->telling = true;
}

void rtr_index_snapshot_end(struct rtr_index *ix, uint32_t slot)
{
    KVS_ASSERT(slot < ix->workers_max);
    struct holder *w = &ix->worker[slot];
    if (!w->telling)
        return;
    w->telling = false;
    for (uint32_t n = w->first; n;) {
        uint32_t after = loc(ix, n)->after;
        if (loc(ix, n)->round != w->round)
            forget(ix, n);
        n = after;
    }
}

void rtr_index_drop(struct rtr_index *ix, uint32_t slot)
{
    KVS_ASSERT(slot < ix->workers_max);
    struct holder *w = &ix->worker[slot];
    while (w->first)
        forget(ix, w->first);
    KVS_ASSERT(w->count == 0);
    w->telling = false;
}

uint32_t rtr_index_match(struct rtr_index *ix, const struct kvc_hash *chain, uint32_t blocks, uint32_t *blocks_of_slot)
{
    KVS_ASSERT((chain || !blocks) && blocks_of_slot);
    uint32_t longest = 0, found = 0;
    memset(blocks_of_slot, 0, ix->workers_max * sizeof(*blocks_of_slot));
    for (uint32_t i = blocks;
         i-- > 0 && found < ix->holding;) { /* from the end: the first one seen of a worker is its longest */
        uint32_t key[2];
        key_of(&chain[i], key);
        for (uint32_t n = *bucket_of(ix, key); n; n = loc(ix, n)->next) {
            const struct location *l = loc(ix, n);
            if (!same_key(l, key) || blocks_of_slot[l->slot])
                continue;
            blocks_of_slot[l->slot] = i + 1;
            found++;
            touch(ix, n);
            if (!longest)
                longest = i + 1;
        }
    }
    return longest;
}

uint32_t rtr_index_workers_max(const struct rtr_index *ix)
{
    return ix->workers_max;
}

uint64_t rtr_index_worker_blocks(const struct rtr_index *ix, uint32_t slot)
{
    KVS_ASSERT(slot < ix->workers_max);
    return ix->worker[slot].count;
}

void rtr_index_stats(const struct rtr_index *ix, struct rtr_index_stats *out)
{
    *out = (struct rtr_index_stats){.locations = ix->count,
                                    .locations_max = ix->max,
                                    .bytes = fixed_bytes(ix->workers_max) + ix->count * RTR_INDEX_LOCATION_BYTES,
                                    .dropped = ix->dropped};
}

bool rtr_index_consistent(const struct rtr_index *ix)
{
    uint64_t by_age = 0, by_worker = 0;
    uint32_t holding = 0;
    for (uint32_t n = ix->newest; n && by_age <= ix->count; n = loc(ix, n)->older, by_age++) {
        const struct location *l = loc(ix, n);
        if (l->slot >= ix->workers_max || find(ix, l->slot, l->key) != n)
            return false;
    }
    for (uint32_t s = 0; s < ix->workers_max; s++) {
        uint64_t mine = 0;
        for (uint32_t n = ix->worker[s].first; n && mine <= ix->count; n = loc(ix, n)->after, mine++)
            if (loc(ix, n)->slot != s)
                return false;
        if (mine != ix->worker[s].count)
            return false;
        by_worker += mine;
        holding += mine > 0;
    }
    return by_age == ix->count && by_worker == ix->count && holding == ix->holding && ix->count <= ix->max;
}
