/* memory.h - how much memory a prompt of so many tokens makes resident in a worker beside its weights: pages of each group, and the books kept of
 * pages and tokens. Pure; the other part (weights, rotation, scratch) is the engine's (eng_memory_predict). An upper bound for one prompt at a
 * time and its answer, on either role: the decode worker may have to compute the prompt itself.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_MEMORY_H
#define KVS_WORKER_CORE_MEMORY_H

#include "worker/core/sizes.h"

struct wrk_memory_config {
    struct wrk_sizes_config sizes; /* as the worker has them, kv-memory included */
    uint32_t prompt_tokens, answer_tokens; /* answer: reserved at once (reserve_tokens), or less */
    uint32_t vocab;
    bool prefix_cache;
};
struct wrk_memory {
    uint32_t pools[KVC_GROUPS_MAX]; /* pages there are */
    uint32_t held[KVC_GROUPS_MAX];  /* most that the prompt needs at the same time */
    uint32_t pages[KVC_GROUPS_MAX]; /* that it touches: what it holds, and what of it stays cached meanwhile */
    uint64_t held_bytes;            /* pages held, all groups */
    uint64_t kv_bytes;              /* pages touched, rounded to what the kernel gives at a time */
    uint64_t all_kv_bytes;          /* when later prompts have filled every pool */
    uint64_t books;                 /* pools, prefix tree, the sequence's tokens and tables, and copies of them on the way */
    uint64_t rows;                  /* logits: computed, shipped, sampled */
    bool fits;                      /* prompt and answer have room in every pool */
};

/* KVS_SELF_CONFIG as wrk_sizes_choose. KVS_REQ_TOO_LONG: the prompt is over the context. */
KVS_MUST_CHECK kvs_status wrk_memory_predict(const struct wrk_memory_config *c, struct wrk_memory *out, struct kvs_error *err);
/* The least KV memory with which such a prompt fits, as one would write it (rounded up to MiB). */
uint64_t wrk_memory_least(const struct wrk_memory_config *c);

#endif
