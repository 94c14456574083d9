/* index.h - which worker has which blocks in its cache, as far as the router has heard. Pure; owner: the router's core.
 * Filled from the workers' cache events (or from their digests in etcd until these arrive), asked once for each placement. A location is one
 * block on one worker; every location costs RTR_INDEX_LOCATION_BYTES, and the whole index never takes more than the bytes given at creation:
 * when it is full the location that was told, or decided a match, longest ago goes, and is counted. A hit is a hint: the worker itself has the last word.
 * Workers are known by slot, the place of their entry in rtr_fleet.workers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_INDEX_H
#define KVS_ROUTER_CORE_INDEX_H

#include "base/error.h"
#include "kvcache/hash.h"

#define RTR_INDEX_LOCATION_BYTES 36u
#define RTR_INDEX_WORKER_BYTES 16u
#define RTR_INDEX_BASE_BYTES \
    256u /* room for what does not grow: with workers_max x WORKER_BYTES it is taken off bytes_max first */
#define RTR_INDEX_WORKERS_MAX 65536u

struct rtr_index;

struct rtr_index_stats {
    uint64_t locations, locations_max;
    uint64_t bytes;   /* of the locations in use, and of what is fixed */
    uint64_t dropped; /* thrown out because the index was full */
};

/* KVS_SELF_CONFIG: bytes_max has no room for one location. Memory is reserved here and touched as the index grows. */
KVS_MUST_CHECK kvs_status rtr_index_create(uint32_t workers_max, uint64_t bytes_max, struct rtr_index **out);
void rtr_index_destroy(struct rtr_index *ix);

/* The worker has these blocks. Give a chain's blocks from its head on: the head is then forgotten last. Known ones only become newer. */
void rtr_index_add(struct rtr_index *ix, uint32_t slot, const struct kvc_hash *blocks, uint32_t count);
void rtr_index_remove(struct rtr_index *ix, uint32_t slot, const struct kvc_hash *blocks,
                      uint32_t count); /* unknown: nothing happens */
/* Between begin and end everything that the worker has is added; what was known before and is not said again goes at the end. Until then
 * both count. A second begin starts anew; an end without a begin does nothing. */
void rtr_index_snapshot_begin(struct rtr_index *ix, uint32_t slot);
void rtr_index_snapshot_end(struct rtr_index *ix, uint32_t slot);
/* The worker is gone, or its cache is: all its locations go, at some 0.2 us each. */
void rtr_index_drop(struct rtr_index *ix, uint32_t slot);

/* chain: the hashes of a prompt's complete blocks. Sets blocks_of_slot[0 .. workers_max) to the length in blocks of the longest prefix that
 * each worker is known to have; returns the largest. The deepest known block decides, since a worker's cache has no block without those
 * before it: locations that were dropped (or that a digest leaves out) in front of it do not matter. What decided becomes the newest, so an index that is
 * full keeps the places where prompts part and end. Cost: at most blocks look-ups, plus one step for each worker of each block found; it ends
 * as soon as every worker that has anything is found. */
uint32_t rtr_index_match(struct rtr_index *ix, const struct kvc_hash *chain, uint32_t blocks, uint32_t *blocks_of_slot);

uint32_t rtr_index_workers_max(const struct rtr_index *ix);
uint64_t rtr_index_worker_blocks(const struct rtr_index *ix, uint32_t slot);
void rtr_index_stats(const struct rtr_index *ix, struct rtr_index_stats *out);
bool rtr_index_consistent(const struct rtr_index *ix); /* walks everything; for tests and the simulator */

#endif
