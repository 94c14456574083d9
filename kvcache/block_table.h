/* block_table.h - which page holds which block of one sequence, per group. Entries may be KVC_BLOCK_NONE.
 * Plain data: worker/core owns and changes it, the engine reads it during a step (it must not change meanwhile).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVCACHE_BLOCK_TABLE_H
#define KVS_KVCACHE_BLOCK_TABLE_H

#include "kvcache/layout.h"

struct kvc_block_table {
    uint32_t group_count;
    uint32_t block_cap;       /* blocks a sequence may have (context / block_tokens, rounded up) */
    uint32_t block_count;     /* blocks in use, the same for all groups */
    uint32_t *page;           /* [group][block_cap], owned */
};

KVS_MUST_CHECK kvs_status kvc_block_table_init(struct kvc_block_table *t, uint32_t group_count, uint32_t block_cap);
void kvc_block_table_fini(struct kvc_block_table *t);
static inline uint32_t *kvc_block_row(const struct kvc_block_table *t, uint32_t group)
{
    return t->page + (size_t)group * t->block_cap;
}

#endif
