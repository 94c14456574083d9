/* cached.h - what the router knows of its workers' prefix caches, put to a request: how many leading blocks of its prompt each worker has.
 * Owns the index (index.h) and follows each worker's cache events: a snapshot first, then numbered events; a hole in the numbers asks for a
 * new snapshot, and until that has come the old view stands. What a digest says counts only before the first event.
 * A prompt's blocks have names by the worker's card (model, numerics class, KV types, rope, block size): workers whose cards agree in these
 * form a kind, and a prompt is named once for each kind of its model, at most RTR_CHAINS_MAX (workers of further kinds count as empty).
 * Pure; owner: the router's core.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_CACHED_H
#define KVS_ROUTER_CORE_CACHED_H

#include "proto/msg.h"
#include "router/core/index.h"

#define RTR_CHAINS_MAX 4

struct rtr_cached;

/* The names of one prompt's blocks; belongs to the request. Zeros: none made yet. */
struct rtr_chains {
    struct rtr_chain {
        uint64_t kind; /* 0: free */
        struct kvc_hash *blocks;
        uint32_t count;
    } of[RTR_CHAINS_MAX];
};
void rtr_chains_fini(struct rtr_chains *c);

/* What stands in the prompt's names beside the model: all of them bytes of the request. */
struct rtr_named {
    const int32_t *tokens;
    uint32_t token_count;
    const char *tenant, *cache_salt, *adapter;
};

KVS_MUST_CHECK kvs_status rtr_cached_create(uint32_t workers_max, uint64_t bytes_max, struct rtr_cached **out);
void rtr_cached_destroy(struct rtr_cached *c);
void rtr_cached_up(struct rtr_cached *c, uint32_t slot, uint32_t model, const struct msg_card *card);
void rtr_cached_down(struct rtr_cached *c, uint32_t slot);
/* false: events are missing, the worker has to be asked for a snapshot. */
KVS_MUST_CHECK bool rtr_cached_events(struct rtr_cached *c, uint32_t slot, const struct msg_cache_events *ev);
void rtr_cached_digest(struct rtr_cached *c, uint32_t slot, const struct msg_cache_digest *d);
/* Leading blocks of the prompt (without the last token's block) that each worker of the model is believed to have, by slot; valid until the
 * next call. NULL: nobody has any. */
const uint32_t *rtr_cached_match(struct rtr_cached *c, uint32_t model, const struct rtr_named *n,
                                 struct rtr_chains *chains);
const struct rtr_index *rtr_cached_index(const struct rtr_cached *c);

#endif
