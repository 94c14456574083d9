/* sizes.h - how many pages of each group a given amount of KV memory should be cut into. Pure.
 * With full and latent groups alone every block costs a page of each. Window and state groups need few pages a sequence, however long it is:
 * they get what the sequences need that the other pages have room for (taken to be of a usual length), and some to keep prefixes with.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_SIZES_H
#define KVS_WORKER_CORE_SIZES_H

#include "kvcache/layout.h"

struct wrk_sizes_config {
    const struct kvc_layout *layout;
    uint64_t memory;          /* bytes, all groups together */
    uint32_t context;         /* tokens a sequence may have */
    uint32_t chunk_tokens;    /* as in wrk_sched_config, after their defaults */
    uint32_t snapshot_blocks;
    uint32_t sequences;       /* that are to run at the same time at most */
};
struct wrk_sizes {
    uint32_t pages[KVC_GROUPS_MAX];
    uint32_t blocks; /* what the full and latent groups hold, or could: the prefix tree's bound */
};

/* Blocks that the prefix tree may hold, where there are so many: its books grow with them. */
static inline uint32_t wrk_sizes_nodes(uint32_t blocks)
{
    return blocks < 1u << 20 ? blocks : 1u << 20;
}

/* The most that fits. KVS_SELF_CONFIG with a text when not even one short sequence fits. */
KVS_MUST_CHECK kvs_status wrk_sizes_choose(const struct wrk_sizes_config *c, struct wrk_sizes *out, struct kvs_error *err);
/* Pages of a group that one sequence of at most `tokens` tokens never needs more of, for window and state groups. source: its snapshot is kept
 * for a sink. Both the scheduler's quota and the choice above. */
uint32_t wrk_sizes_quota(const struct kvc_layout *l, uint32_t group, uint32_t tokens, uint32_t chunk_tokens, bool snapshots, bool source);

#endif
