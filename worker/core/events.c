/* events.c - see events.h. The log is a ring over event numbers: number n lies at n % cap.
 * Blocks where no prefix can end (no snapshot of a state group) are left out: whoever follows asks only where a prompt may go on.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/events.h"

#include <stdlib.h>
#include <string.h>

/* Owner thread: the loop. */
struct wrk_events {
    struct wrk_cache_event *ring; /* cap */
    uint32_t cap;
    uint64_t next;
};

kvs_status wrk_events_create(uint32_t cap, struct wrk_events **out)
{
    KVS_ASSERT(cap > 0);
    struct wrk_events *e = calloc(1, sizeof *e);
    if (!e)
        return KVS_SELF_NOMEM;
    e->cap = cap;
    e->ring = calloc(cap, sizeof *e->ring);
    if (!e->ring) {
        wrk_events_destroy(e);
        return KVS_SELF_NOMEM;
    }
    *out = e;
    return KVS_OK;
}

void wrk_events_destroy(struct wrk_events *e)
{
    if (!e)
        return;
    free(e->ring);
    free(e);
}

void wrk_events_note(void *events, const struct kvc_tree_block *b, bool gone)
{
    struct wrk_events *e = events;
    if (!b->ends)
        return;
    e->ring[e->next++ % e->cap] =
        (struct wrk_cache_event){.hash = b->hash, .parent = b->parent, .depth = b->depth, .gone = gone};
}

uint64_t wrk_events_oldest(const struct wrk_events *e)
{
    return e->next > e->cap ? e->next - e->cap : 0;
}

uint64_t wrk_events_next(const struct wrk_events *e)
{
    return e->next;
}

const struct wrk_cache_event *wrk_events_at(const struct wrk_events *e, uint64_t number)
{
    KVS_ASSERT(number >= wrk_events_oldest(e) && number < e->next);
    return &e->ring[number % e->cap];
}

static void put(struct wrk_cache_item *out, const struct kvc_hash *hash, uint32_t depth)
{
    KVS_ASSERT(out->msg.count < MSG_CACHE_BLOCKS_MAX);
    memcpy(out->hashes + (size_t)out->msg.count * MSG_BLOCK_HASH_BYTES, hash->bytes, MSG_BLOCK_HASH_BYTES);
    out->depths[out->msg.count++] = depth;
}

static void read_walk(const struct kvc_tree *t, struct wrk_reader *r, uint32_t most, struct wrk_cache_item *out)
{
    const uint32_t room = sizeof out->blocks / sizeof out->blocks[0];
    while (out->msg.count < most) {
        uint32_t want = most - out->msg.count < room ? most - out->msg.count : room;
        uint32_t n = kvc_tree_walk(t, &r->at, out->blocks, want);
        for (uint32_t i = 0; i < n; i++)
            if (out->blocks[i].ends)
                put(out, &out->blocks[i].hash, out->blocks[i].depth);
        if (n < want) {
            r->walking = false;
            out->msg.snapshot_end = true;
            return;
        }
    }
}

bool wrk_events_read(const struct wrk_events *e, const struct kvc_tree *t, struct wrk_reader *r, uint32_t most,
                     struct wrk_cache_item *out)
{
    KVS_ASSERT(most > 0 && most <= MSG_CACHE_BLOCKS_MAX);
    out->msg = (struct msg_cache_events){.hashes = out->hashes, .depths = out->depths};
    if (!r->begun || r->next < wrk_events_oldest(e)) {
        *r = (struct wrk_reader){.begun = true, .walking = true, .next = wrk_events_next(e)};
        out->msg.snapshot_begin = true;
    }
    KVS_ASSERT(r->next <= e->next);
    out->msg.first_sequence = r->next;
    if (r->walking) {
        read_walk(t, r, most, out);
        return true;
    }
    for (; r->next < e->next && out->msg.count < most; r->next++) {
        const struct wrk_cache_event *ev = wrk_events_at(e, r->next);
        put(out, &ev->hash, ev->gone ? 0 : ev->depth);
    }
    return out->msg.count > 0;
}
