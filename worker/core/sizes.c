/* sizes.c - see sizes.h. One number decides: the blocks that full and latent groups hold. All other pools follow from it and never shrink when
 * it grows, so the largest number that fits is found by halving.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/sizes.h"

#include <string.h>

#define USUAL_TOKENS 1024u /* of a sequence: shorter ones run out of window and state pages first, longer ones of the others */
#define BLOCKS_MAX (UINT32_MAX / 4)

uint32_t wrk_sizes_quota(const struct kvc_layout *l, uint32_t group, uint32_t tokens, uint32_t chunk_tokens, bool snapshots, bool source)
{
    const struct kvc_group *g = &l->group[group];
    if (g->kind == KVC_STATE)
        return 1 + (uint32_t)snapshots + (uint32_t)source;
    uint32_t n = l->block_tokens, all = kvc_blocks_for(l, tokens);
    uint64_t most = ((uint64_t)g->window + chunk_tokens + n) / n + 2; /* W tokens back from a chunk, and a block of slack at either end */
    return most < all ? (uint32_t)most : all;
}

static void sizes_for(const struct wrk_sizes_config *c, uint32_t blocks, struct wrk_sizes *out)
{
    const struct kvc_layout *l = c->layout;
    uint32_t usual = kvc_blocks_for(l, c->context < USUAL_TOKENS ? c->context : USUAL_TOKENS);
    uint64_t sequences = blocks / usual < 2 ? 2 : blocks / usual; /* a prompt and an answer at once */
    if (sequences > c->sequences && c->sequences >= 2)
        sequences = c->sequences;
    out->blocks = blocks;
    for (uint32_t g = 0; g < l->group_count; g++) {
        const struct kvc_group *k = &l->group[g];
        uint64_t quota = wrk_sizes_quota(l, g, c->context, c->chunk_tokens, true, true), pages = blocks;
        if (k->kind == KVC_WINDOW)
            pages = sequences * (quota + k->window / l->block_tokens + 1); /* and each one's end to be gone on with later */
        if (k->kind == KVC_STATE)
            pages = sequences * quota + blocks / c->snapshot_blocks;
        if (k->kind == KVC_WINDOW && pages > blocks)
            pages = blocks > quota ? blocks : quota;
        out->pages[g] = pages < BLOCKS_MAX ? (uint32_t)pages : BLOCKS_MAX;
    }
}

static bool fits(const struct wrk_sizes_config *c, const struct wrk_sizes *s)
{
    uint64_t left = c->memory;
    for (uint32_t g = 0; g < c->layout->group_count; g++) {
        uint64_t page = c->layout->group[g].page_bytes;
        if (s->pages[g] > left / page)
            return false;
        left -= s->pages[g] * page;
    }
    return true;
}

kvs_status wrk_sizes_choose(const struct wrk_sizes_config *c, struct wrk_sizes *out, struct kvs_error *err)
{
    KVS_ASSERT(c->snapshot_blocks > 0 && c->chunk_tokens > 0 && c->context > 0);
    struct wrk_sizes s = {.blocks = 0};
    uint32_t low = 1, high = BLOCKS_MAX; /* low: too few to be of use; high: more than fit, or the most there can be */
    while (low + 1 < high) {
        uint32_t mid = low + (high - low) / 2;
        sizes_for(c, mid, &s);
        *(fits(c, &s) ? &low : &high) = mid;
    }
    if (low < 2) {
        uint64_t need = 0;
        sizes_for(c, 2, &s);
        for (uint32_t g = 0; g < c->layout->group_count; g++)
            need += s.pages[g] * c->layout->group[g].page_bytes;
        return kvs_fail(err, KVS_SELF_CONFIG, "--kv-memory %llu is too little for this model: the least is %llu bytes", (unsigned long long)c->memory,
                        (unsigned long long)need);
    }
    sizes_for(c, low, out);
    return KVS_OK;
}
