/* events.h - what the prefix cache has gained and lost, for those who follow it: a log of numbered events, and readers of it. Pure; loop thread.
 * The log keeps the last `cap` events. A reader begins with a snapshot (a walk through the tree, in pieces) and goes on with the events since
 * the walk began; one that has fallen behind the log begins anew. So nobody has to be waited for, and memory is bounded.
 *
 *   reader:  begin -> snapshot pieces (number of the first event after) ... end -> events -> events ...
 *                ^------------------------- events it needs are no longer kept ------------'
 * Events during the walk come again after it, in order; what they say last about a block holds, whatever the walk has seen.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_EVENTS_H
#define KVS_WORKER_CORE_EVENTS_H

#include "kvcache/tree.h"
#include "proto/msg.h"

struct wrk_events;

struct wrk_cache_event {
    struct kvc_hash hash, parent; /* parent: zeros for the first block of a prompt */
    uint32_t depth;               /* blocks of the prefix that it ends */
    bool gone;
};

KVS_MUST_CHECK kvs_status wrk_events_create(uint32_t cap, struct wrk_events **out);
void wrk_events_destroy(struct wrk_events *e);
void wrk_events_note(void *events, const struct kvc_tree_block *b, bool gone); /* a kvc_tree_change_fn */
uint64_t wrk_events_oldest(const struct wrk_events *e); /* number of the oldest event that is kept, */
uint64_t wrk_events_next(const struct wrk_events *e);   /* and of the one that will come next; equal: none is kept */
const struct wrk_cache_event *wrk_events_at(const struct wrk_events *e, uint64_t number);

struct wrk_reader { /* zeros: at its beginning */
    bool begun, walking;
    uint32_t at;   /* walking: place in the tree */
    uint64_t next; /* number of the event to tell next */
};

/* One item for a reader; `msg` points into it. */
struct wrk_cache_item {
    struct msg_cache_events msg;
    uint8_t hashes[MSG_CACHE_BLOCKS_MAX * MSG_BLOCK_HASH_BYTES];
    uint32_t depths[MSG_CACHE_BLOCKS_MAX];
    struct kvc_tree_block blocks[256]; /* scratch */
};
/* The next item, at most `most` blocks of it (up to MSG_CACHE_BLOCKS_MAX); false: the reader knows everything. Only the reader moves: keep a
 * copy of it when the item may not get through. */
bool wrk_events_read(const struct wrk_events *e, const struct kvc_tree *t, struct wrk_reader *r, uint32_t most,
                     struct wrk_cache_item *out);

#endif
