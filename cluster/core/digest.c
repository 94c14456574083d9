/* digest.c - see digest.h. Entry e of the table lies in segment e / 512: a place is a segment. A hash table of chains finds an entry; free
 * places hang in a bitmap that is searched from the bottom.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/core/digest.h"

#include "base/checked.h"
#include <stdlib.h>
#include <string.h>

#define PER_SEGMENT MSG_DIGEST_BLOCKS_MAX

struct entry {
    uint8_t hash[MSG_BLOCK_HASH_BYTES];
    uint32_t blocks; /* 0: free */
    uint32_t next;   /* index + 1 in its bucket; 0: last */
    bool marked;
};

struct cls_digest {
    uint32_t max, count, buckets, used; /* used: places ever taken reach so far */
    uint32_t free_hint;                 /* no free place below */
    uint32_t turn;                      /* segment that is looked at first */
    struct entry *at;
    uint32_t *bucket;
    bool dirty[CLS_DIGEST_SEGMENTS_MAX];
    uint64_t refused;
    uint8_t hashes[PER_SEGMENT * MSG_BLOCK_HASH_BYTES]; /* of the segment taken last */
    uint32_t blocks[PER_SEGMENT];
};

kvs_status cls_digest_create(uint32_t entries_max, struct cls_digest **out)
{
    KVS_ASSERT(entries_max > 0 && entries_max <= CLS_DIGEST_ENTRIES_MAX);
    struct cls_digest *d = calloc(1, sizeof(*d));
    if (!d)
        return KVS_SELF_NOMEM;
    d->max = entries_max;
    d->buckets = entries_max;
    d->at = calloc(entries_max, sizeof(*d->at));
    d->bucket = calloc(d->buckets, sizeof(*d->bucket));
    if (!d->at || !d->bucket) {
        cls_digest_destroy(d);
        return KVS_SELF_NOMEM;
    }
    *out = d;
    return KVS_OK;
}

void cls_digest_destroy(struct cls_digest *d)
{
    if (!d)
        return;
    free(d->at);
    free(d->bucket);
    free(d);
}

static uint32_t *link_to(struct cls_digest *d, const uint8_t *hash)
{
    uint32_t *link = &d->bucket[(uint64_t)kvs_load_u32(hash) * d->buckets >> 32];
    while (*link && memcmp(d->at[*link - 1].hash, hash, MSG_BLOCK_HASH_BYTES) != 0)
        link = &d->at[*link - 1].next;
    return link;
}

static uint32_t free_place(struct cls_digest *d)
{
    uint32_t i = d->free_hint;
    while (i < d->max && d->at[i].blocks)
        i++;
    d->free_hint = i;
    return i;
}

void cls_digest_put(struct cls_digest *d, const uint8_t hash[MSG_BLOCK_HASH_BYTES], uint32_t blocks)
{
    KVS_ASSERT(blocks > 0);
    uint32_t *link = link_to(d, hash);
    if (*link) {
        d->at[*link - 1].marked = false;
        return;
    }
    uint32_t i = free_place(d);
    if (i == d->max) {
        d->refused++;
        return;
    }
    struct entry *e = &d->at[i];
    *e = (struct entry){.blocks = blocks};
    memcpy(e->hash, hash, sizeof(e->hash));
    *link = i + 1;
    d->count++;
    d->dirty[i / PER_SEGMENT] = true;
    if (i >= d->used)
        d->used = i + 1;
}

void cls_digest_remove(struct cls_digest *d, const uint8_t hash[MSG_BLOCK_HASH_BYTES])
{
    uint32_t *link = link_to(d, hash);
    if (!*link)
        return;
    uint32_t i = *link - 1;
    *link = d->at[i].next;
    memset(&d->at[i], 0, sizeof(d->at[i]));
    d->count--;
    d->dirty[i / PER_SEGMENT] = true;
    if (i < d->free_hint)
        d->free_hint = i;
}

void cls_digest_mark_all(struct cls_digest *d)
{
    for (uint32_t i = 0; i < d->used; i++)
        d->at[i].marked = d->at[i].blocks != 0;
}

void cls_digest_drop_marked(struct cls_digest *d)
{
    for (uint32_t i = 0; i < d->used; i++) {
        uint8_t hash[MSG_BLOCK_HASH_BYTES];
        if (!d->at[i].marked)
            continue;
        memcpy(hash, d->at[i].hash, sizeof(hash));
        cls_digest_remove(d, hash);
    }
}

static uint32_t segments_used(const struct cls_digest *d)
{
    return (d->used + PER_SEGMENT - 1) / PER_SEGMENT;
}

bool cls_digest_dirty(const struct cls_digest *d)
{
    for (uint32_t s = 0; s < segments_used(d); s++)
        if (d->dirty[s])
            return true;
    return false;
}

bool cls_digest_take(struct cls_digest *d, uint32_t *segment_out, struct msg_cache_digest *out)
{
    uint32_t n = segments_used(d), s = d->turn;
    if (!cls_digest_dirty(d))
        return false;
    while (s >= n || !d->dirty[s])
        s = s + 1 < n ? s + 1 : 0;
    *out = (struct msg_cache_digest){.hashes = d->hashes, .blocks = d->blocks};
    for (uint32_t i = s * PER_SEGMENT; i < d->used && i < (s + 1) * PER_SEGMENT; i++) {
        if (!d->at[i].blocks)
            continue;
        memcpy(d->hashes + (size_t)out->count * MSG_BLOCK_HASH_BYTES, d->at[i].hash, MSG_BLOCK_HASH_BYTES);
        d->blocks[out->count++] = d->at[i].blocks;
    }
    d->dirty[s] = false;
    d->turn = s + 1;
    *segment_out = s;
    return true;
}

void cls_digest_spoil(struct cls_digest *d, uint32_t segment)
{
    KVS_ASSERT(segment < CLS_DIGEST_SEGMENTS_MAX);
    d->dirty[segment] = true;
}

void cls_digest_spoil_all(struct cls_digest *d)
{
    for (uint32_t s = 0; s < segments_used(d); s++)
        d->dirty[s] = true;
}

void cls_digest_stats(const struct cls_digest *d, struct cls_digest_stats *out)
{
    *out = (struct cls_digest_stats){.entries = d->count, .segments = segments_used(d), .refused = d->refused};
}

bool cls_digest_consistent(const struct cls_digest *d)
{
    uint32_t live = 0, chained = 0;
    for (uint32_t i = 0; i < d->max; i++) {
        live += d->at[i].blocks != 0;
        if (d->at[i].blocks && i >= d->used)
            return false;
        if (!d->at[i].blocks && i < d->free_hint)
            return false;
    }
    for (uint32_t b = 0; b < d->buckets; b++)
        for (uint32_t n = d->bucket[b]; n && chained <= d->max; n = d->at[n - 1].next, chained++)
            if (!d->at[n - 1].blocks)
                return false;
    return live == d->count && chained == d->count;
}
