/* pool.c - hands out KV pages of one group by index and counts who holds them.
 * Owner thread: the daemon's loop. It never sees KV bytes.
 *
 * Free pages form a stack of indices: acquire and release are O(1), and the page released last is given out first,
 * while its bytes may still be in the processor's cache. Each page has a holder count and two marks:
 *   known   the prefix tree refers to it: the last release turns it into `cached` instead of `free`
 *   fenced  nobody holds it, but a broken peer might still write: neither free nor cached until the peer is gone
 * A fenced page may be known no more: the tree must not offer what might still change, so fence drops the mark and the
 * tree must have forgotten the page before (asserted).
 * Invariant after every call: free + cached + held + fenced == total (asserted).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvcache/pool.h"

#include <stdlib.h>

enum { PAGE_KNOWN = 1, PAGE_FENCED = 2 };

struct kvc_pool_page {
    uint32_t holders;
    uint32_t marks;
};

/* Owner thread: the loop. */
struct kvc_pool {
    struct kvc_pool_counts counts;
    struct kvc_pool_page *page; /* [total], owned */
    uint32_t *stack;            /* [total], owned: the first counts.free entries are the free pages */
};

static void check_sum(const struct kvc_pool *p)
{
    const struct kvc_pool_counts *c = &p->counts;
    KVS_ASSERT((uint64_t)c->free + c->cached + c->held + c->fenced == c->total);
}

static struct kvc_pool_page *page_at(const struct kvc_pool *p, uint32_t page)
{
    KVS_ASSERT(p != NULL && page < p->counts.total);
    return &p->page[page];
}

static void push_free(struct kvc_pool *p, uint32_t page)
{
    KVS_ASSERT(p->page[page].holders == 0 && p->page[page].marks == 0);
    p->stack[p->counts.free++] = page;
}

kvs_status kvc_pool_create(uint32_t total, struct kvc_pool **out)
{
    KVS_ASSERT(out != NULL && total < UINT32_MAX); /* UINT32_MAX is KVC_BLOCK_NONE */
    struct kvc_pool *p = calloc(1, sizeof *p);
    if (p == NULL)
        return KVS_SELF_NOMEM;
    p->page = calloc(total ? total : 1, sizeof *p->page);
    p->stack = calloc(total ? total : 1, sizeof *p->stack);
    if (p->page == NULL || p->stack == NULL) {
        kvc_pool_destroy(p);
        return KVS_SELF_NOMEM;
    }
    for (uint32_t i = 0; i < total; i++)
        p->stack[i] = total - 1 - i; /* page 0 goes first */
    p->counts.total = p->counts.free = total;
    *out = p;
    return KVS_OK;
}

void kvc_pool_destroy(struct kvc_pool *p)
{
    if (p == NULL)
        return;
    free(p->page);
    free(p->stack);
    free(p);
}

kvs_status kvc_pool_acquire(struct kvc_pool *p, uint32_t count, uint32_t *pages_out)
{
    KVS_ASSERT(p != NULL && (pages_out != NULL || count == 0));
    if (count > p->counts.free)
        return KVS_BUSY_PAGES;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page = p->stack[--p->counts.free];
        KVS_ASSERT(p->page[page].holders == 0 && p->page[page].marks == 0);
        p->page[page].holders = 1;
        pages_out[i] = page;
    }
    p->counts.held += count;
    check_sum(p);
    return KVS_OK;
}

void kvc_pool_share(struct kvc_pool *p, uint32_t page)
{
    struct kvc_pool_page *e = page_at(p, page);
    KVS_ASSERT(e->holders > 0 || e->marks == PAGE_KNOWN); /* held or cached, never free or fenced */
    KVS_ASSERT(e->holders < UINT32_MAX);
    if (e->holders++ == 0) {
        p->counts.cached--;
        p->counts.held++;
    }
    check_sum(p);
}

void kvc_pool_release(struct kvc_pool *p, uint32_t page)
{
    struct kvc_pool_page *e = page_at(p, page);
    KVS_ASSERT(e->holders > 0); /* else: a double release */
    if (--e->holders > 0)
        return;
    p->counts.held--;
    if (e->marks == PAGE_KNOWN)
        p->counts.cached++;
    else
        push_free(p, page);
    check_sum(p);
}

void kvc_pool_fence(struct kvc_pool *p, uint32_t page)
{
    struct kvc_pool_page *e = page_at(p, page);
    KVS_ASSERT(e->holders == 1); /* the last holder hands it over */
    KVS_ASSERT(e->marks == 0);
    e->holders = 0;
    e->marks = PAGE_FENCED;
    p->counts.held--;
    p->counts.fenced++;
    check_sum(p);
}

void kvc_pool_unfence(struct kvc_pool *p, uint32_t page)
{
    struct kvc_pool_page *e = page_at(p, page);
    KVS_ASSERT(e->marks == PAGE_FENCED && e->holders == 0);
    e->marks = 0;
    p->counts.fenced--;
    push_free(p, page);
    check_sum(p);
}

void kvc_pool_mark_cached(struct kvc_pool *p, uint32_t page)
{
    struct kvc_pool_page *e = page_at(p, page);
    KVS_ASSERT(e->holders > 0); /* the tree learns of a page from somebody who holds it */
    KVS_ASSERT(e->marks == 0);  /* and from one block only */
    e->marks = PAGE_KNOWN;
}

void kvc_pool_unmark_cached(struct kvc_pool *p, uint32_t page)
{
    struct kvc_pool_page *e = page_at(p, page);
    KVS_ASSERT(e->marks == PAGE_KNOWN);
    e->marks = 0;
    if (e->holders == 0) {
        p->counts.cached--;
        push_free(p, page);
    }
    check_sum(p);
}

uint32_t kvc_pool_holders(const struct kvc_pool *p, uint32_t page)
{
    return page_at(p, page)->holders;
}

bool kvc_pool_known(const struct kvc_pool *p, uint32_t page)
{
    return page_at(p, page)->marks == PAGE_KNOWN;
}

bool kvc_pool_writable(const struct kvc_pool *p, uint32_t page)
{
    const struct kvc_pool_page *e = page_at(p, page);
    return e->holders == 1 && e->marks == 0;
}

struct kvc_pool_counts kvc_pool_counts(const struct kvc_pool *p)
{
    KVS_ASSERT(p != NULL);
    return p->counts;
}
