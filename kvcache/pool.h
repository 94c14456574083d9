/* pool.h - hands out KV pages of one group by index and counts who holds them.
 * Owner thread: the daemon's loop. It never sees KV bytes; worker/ maps an index to an address and zeroes a page on acquire.
 * Invariant after every call: free + cached + held + fenced == total. A page's count is zero exactly while it is free,
 * cached or fenced. Running out is an ordinary answer (KVS_BUSY_PAGES); a double release is our bug and asserts.
 *
 *   free --acquire--> held --release (last)--> free, or cached when the tree keeps it
 *   cached --share--> held          cached --evict--> free
 *   held --fence (last holder gone, a broken peer might still write)--> fenced --unfence--> free
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVCACHE_POOL_H
#define KVS_KVCACHE_POOL_H

#include "base/error.h"

struct kvc_pool;

struct kvc_pool_counts {
    uint32_t total, free, cached, held, fenced;
};

KVS_MUST_CHECK kvs_status kvc_pool_create(uint32_t total, struct kvc_pool **out);
void kvc_pool_destroy(struct kvc_pool *p);
/* All or nothing: count pages with one holder each, or KVS_BUSY_PAGES and no change. */
KVS_MUST_CHECK kvs_status kvc_pool_acquire(struct kvc_pool *p, uint32_t count, uint32_t *pages_out);
void kvc_pool_share(struct kvc_pool *p, uint32_t page);          /* one more holder (held or cached page) */
void kvc_pool_release(struct kvc_pool *p, uint32_t page);        /* one holder less; last: free, or cached when marked */
void kvc_pool_fence(struct kvc_pool *p, uint32_t page);          /* the last holder's release, but the page is not free yet */
void kvc_pool_unfence(struct kvc_pool *p, uint32_t page);
void kvc_pool_mark_cached(struct kvc_pool *p, uint32_t page);    /* the prefix tree knows this page: a last release keeps it */
void kvc_pool_unmark_cached(struct kvc_pool *p, uint32_t page);  /* eviction or flush: free at once when nobody holds it */
uint32_t kvc_pool_holders(const struct kvc_pool *p, uint32_t page);
bool kvc_pool_known(const struct kvc_pool *p, uint32_t page);    /* marked by the tree */
bool kvc_pool_writable(const struct kvc_pool *p, uint32_t page); /* exactly one holder and not known to the tree */
struct kvc_pool_counts kvc_pool_counts(const struct kvc_pool *p);

#endif
