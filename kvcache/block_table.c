/* block_table.c - memory of a sequence's block table. All entries begin as KVC_BLOCK_NONE; rows are as long as the
 * context allows, so that a sequence never has to move its table while a step reads it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvcache/block_table.h"

#include <stdlib.h>
#include <string.h>

kvs_status kvc_block_table_init(struct kvc_block_table *t, uint32_t group_count, uint32_t block_cap)
{
    KVS_ASSERT(t != NULL);
    KVS_ASSERT(group_count > 0 && group_count <= KVC_GROUPS_MAX && block_cap > 0);
    memset(t, 0, sizeof *t);
    uint64_t entries = (uint64_t)group_count * block_cap;
    if (entries > SIZE_MAX / sizeof *t->page)
        return KVS_SELF_NOMEM;
    t->page = malloc((size_t)entries * sizeof *t->page);
    if (t->page == NULL)
        return KVS_SELF_NOMEM;
    memset(t->page, 0xff, (size_t)entries * sizeof *t->page); /* KVC_BLOCK_NONE */
    t->group_count = group_count;
    t->block_cap = block_cap;
    return KVS_OK;
}

void kvc_block_table_fini(struct kvc_block_table *t)
{
    if (t == NULL)
        return;
    free(t->page);
    memset(t, 0, sizeof *t);
}
