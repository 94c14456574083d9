/* memory.c - see memory.h. KV memory is mapped at once and becomes resident page by page; free pages are taken last in, first out, so that what
 * was never needed is never touched. Passed window pages and old snapshots stay cached while their pool has room: they count.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/memory.h"

#include <string.h>

#define HUGE_PAGE ((uint64_t)2 << 20) /* the kernel may give memory in such pieces */
#define MIB ((uint64_t)1 << 20)
#define PAGE_BOOKS 40u   /* bytes a page: its count, its place in the free list, in the list of pages to zero */
#define BUCKET_BOOKS 8u /* bytes a bucket of the tree, by name and by parent; there are as many as it may have blocks, rounded up to 2^n */
#define BLOCK_BOOKS 256u /* bytes a block that it has: node, names, what peers are told of it */
#define TOKEN_BOOKS 64u  /* bytes a token: ids in the sequence, in its request, in frames of the control streams and their copies; hashes */
#define ENTRY_BOOKS 32u  /* bytes a block and group: block tables, wanted pages, sends */
#define LOGITS_ROWS 11u  /* of 4 bytes a token: computed, shipped, received; sampling has two numbers of 8 bytes a token, twice */

static uint64_t least_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Pages of a group: held at once, and touched. */
static void group_pages(const struct wrk_memory_config *c, uint32_t g, uint32_t pool, uint32_t *held_out, uint32_t *pages_out)
{
    const struct kvc_layout *l = c->sizes.layout;
    uint64_t tokens = least_u64((uint64_t)c->prompt_tokens + c->answer_tokens, c->sizes.context);
    uint64_t all = kvc_blocks_for(l, (uint32_t)tokens), held = all, kept = 0;
    if (l->group[g].kind == KVC_WINDOW || l->group[g].kind == KVC_STATE)
        held = wrk_sizes_quota(l, g, (uint32_t)tokens, c->sizes.chunk_tokens, c->prefix_cache, true);
    if (c->prefix_cache && l->group[g].kind == KVC_WINDOW)
        kept = all > held ? all - held : 0;
    if (c->prefix_cache && l->group[g].kind == KVC_STATE)
        kept = all / c->sizes.snapshot_blocks;
    *held_out = (uint32_t)held;
    *pages_out = (uint32_t)least_u64(held + kept, pool);
}

static bool prompt_fits(const struct wrk_memory_config *c, const uint32_t *pools)
{
    uint32_t held, pages;
    for (uint32_t g = 0; g < c->sizes.layout->group_count; g++) {
        group_pages(c, g, pools[g], &held, &pages);
        if (held > pools[g])
            return false;
    }
    return true;
}

kvs_status wrk_memory_predict(const struct wrk_memory_config *c, struct wrk_memory *out, struct kvs_error *err)
{
    const struct kvc_layout *l = c->sizes.layout;
    struct wrk_sizes sizes;
    memset(out, 0, sizeof *out);
    if (c->prompt_tokens == 0 || c->prompt_tokens > c->sizes.context)
        return kvs_fail(err, KVS_REQ_TOO_LONG, "a prompt of %u tokens does not fit into a context of %u; raise --context", c->prompt_tokens,
                        c->sizes.context);
    kvs_status st = wrk_sizes_choose(&c->sizes, &sizes, err);
    if (st != KVS_OK)
        return st;
    uint64_t region = 0, total = 0, used = 0, blocks = kvc_blocks_for(l, c->prompt_tokens + c->answer_tokens);
    for (uint32_t g = 0; g < l->group_count; g++) {
        uint64_t page = l->group[g].page_bytes;
        out->pools[g] = sizes.pages[g];
        group_pages(c, g, sizes.pages[g], &out->held[g], &out->pages[g]);
        out->held_bytes += page * (out->held[g] < sizes.pages[g] ? out->held[g] : sizes.pages[g]);
        out->kv_bytes += round_up(page * out->pages[g], HUGE_PAGE) + HUGE_PAGE; /* a slab begins anywhere in such a piece */
        region += page * sizes.pages[g];
        total += sizes.pages[g];
        used += out->pages[g];
    }
    out->all_kv_bytes = round_up(region, HUGE_PAGE);
    out->kv_bytes = least_u64(out->kv_bytes, out->all_kv_bytes);
    KVS_ASSERT(used <= total);
    uint64_t nodes = c->prefix_cache ? wrk_sizes_nodes(sizes.blocks) : 0, buckets = 16;
    while (buckets < nodes)
        buckets *= 2;
    out->books = PAGE_BOOKS * total + BUCKET_BOOKS * buckets +
                 least_u64(nodes, blocks) * (BLOCK_BOOKS + 4 * (l->group_count + l->block_tokens)) +
                 (uint64_t)TOKEN_BOOKS * (c->prompt_tokens + c->answer_tokens) + ENTRY_BOOKS * blocks * l->group_count;
    out->rows = 4ull * LOGITS_ROWS * c->vocab;
    out->fits = prompt_fits(c, sizes.pages);
    return KVS_OK;
}

uint64_t wrk_memory_least(const struct wrk_memory_config *c)
{
    uint64_t low = 0, high = (uint64_t)1 << 32; /* MiB */
    while (low + 1 < high) {
        uint64_t mid = low + (high - low) / 2;
        struct wrk_memory_config with = *c;
        struct wrk_sizes sizes;
        with.sizes.memory = mid * MIB;
        bool enough = wrk_sizes_choose(&with.sizes, &sizes, NULL) == KVS_OK && prompt_fits(&with, sizes.pages);
        *(enough ? &high : &low) = mid;
    }
    return high * MIB;
}
