/* prefix.c - reuse of KV across sequences: what is found in the prefix tree at admission, and what is offered to it.
 * Names of blocks are made once a block, when its tokens are known. A block is offered as soon as it is complete in all groups, so sequences
 * that run at the same time share, too; the page stays its holder's and is cached when the last holder lets go.
 *
 *   tokens   |<---- m blocks known: pages shared ---->|<-- k: head copied -->|<-- computed (at least the last token) -->|
 *
 * The copy goes into a page of the sequence's own, which the edge zeroes and then fills (wrk_sched_take_copies). Its source has a hold
 * until then, so that it is neither evicted nor written; a sequence that loses its pages first takes its copies off the list.
 * A sequence under a transfer gets a copied head only when nothing but the last block is missing (and at least half of an only block is
 * found): otherwise the transfer brings that page, and must find nothing in it that counts.
 * The blocks of a sequence that was opened before a flush are not offered after it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/sched_private.h"

#include <stdlib.h>
#include <string.h>

#define TTL_US ((uint64_t)72 * 3600 * 1000000)
#define EXPIRE_EVERY_US 1000000u
#define EVENTS_MIN 64u
#define EVENTS_MAX 65536u /* of some 40 bytes */

static void copy_text(char *out, size_t cap, const char *text)
{
    size_t n = text ? strlen(text) : 0;
    KVS_ASSERT(n < cap); /* a member card's field */
    if (n > 0)
        memcpy(out, text, n);
    out[n] = 0;
}

kvs_status wrk__prefix_create(struct wrk_sched *s, const struct wrk_sched_config *c)
{
    s->ttl_us = c->tree_ttl_us ? c->tree_ttl_us : TTL_US;
    s->copy_cap = (size_t)s->seqs_max * s->layout.group_count;
    s->copies = calloc(s->copy_cap, sizeof *s->copies);
    if (!s->copies)
        return KVS_SELF_NOMEM;
    if (c->tree_nodes == 0)
        return KVS_OK;
    memcpy(s->fingerprint, c->model.fingerprint, sizeof s->fingerprint);
    copy_text(s->numerics, sizeof s->numerics, c->model.numerics);
    copy_text(s->kv_types, sizeof s->kv_types, c->model.kv_types);
    copy_text(s->rope, sizeof s->rope, c->model.rope);
    kvs_status st = kvc_tree_create(&s->layout, s->pool, c->tree_nodes, &s->tree);
    uint32_t events = c->tree_nodes < EVENTS_MAX / 2 ? c->tree_nodes * 2 : EVENTS_MAX;
    if (st == KVS_OK)
        st = wrk_events_create(events < EVENTS_MIN ? EVENTS_MIN : events, &s->events);
    if (st == KVS_OK)
        kvc_tree_watch(s->tree, wrk_events_note, s->events);
    return st;
}

static struct kvc_bytes bytes_of(const char *text)
{
    return (struct kvc_bytes){.data = text, .len = text ? strlen(text) : 0};
}

void wrk__prefix_open(struct wrk_sched *s, struct wrk_seq *q, const struct wrk_seq_config *c)
{
    if (!s->tree)
        return;
    struct kvc_root_fields f = {.fingerprint = {.data = s->fingerprint, .len = sizeof s->fingerprint},
                                .numerics = bytes_of(s->numerics),
                                .tenant = bytes_of(c->tenant),
                                .cache_salt = bytes_of(c->cache_salt),
                                .kv_types = bytes_of(s->kv_types),
                                .rope = bytes_of(s->rope),
                                .adapter = bytes_of(c->adapter),
                                .block_tokens = s->layout.block_tokens};
    q->flushes = s->flushes;
    if (kvc_hash_root(&f, &q->root) == KVS_OK)
        return;
    free(q->chain); /* no name, no reuse */
    q->chain = NULL;
}

/* Names of the first `blocks` blocks, all of whose tokens are known. False: the sequence takes no part in reuse (any more). */
static bool make_names(const struct wrk_sched *s, struct wrk_seq *q, uint32_t blocks)
{
    uint32_t n = s->layout.block_tokens;
    for (; q->chain && q->chain_count < blocks; q->chain_count++) {
        uint32_t b = q->chain_count;
        const struct kvc_hash *parent = b == 0 ? &q->root : &q->chain[b - 1];
        if (kvc_hash_block(parent, q->tokens + (size_t)b * n, n, NULL, 0, &q->chain[b]) == KVS_OK)
            continue;
        free(q->chain);
        q->chain = NULL;
        break;
    }
    return q->chain != NULL;
}

/* --- what is found --- */

bool wrk__prefix_awaited(const struct wrk_sched *s, struct wrk_seq *q)
{
    uint32_t n = s->layout.block_tokens, usable = (q->token_count - 1) / n, next = 0;
    if (!s->tree || !make_names(s, q, q->token_count / n))
        return false;
    while (next < usable && kvc_tree_has(s->tree, &q->chain[next]))
        next++;
    for (uint32_t i = s->oldest; next < usable && i != WRK_NIL; i = s->seqs[i].newer) {
        const struct wrk_seq *p = &s->seqs[i];
        /* Whoever prefills for others waits for nothing that comes from others: two workers could wait for each other so, for ever. */
        bool computes = (p->state == WRK_SEQ_READY && !p->paused) || (p->state == WRK_SEQ_HELD && q->owner == WRK_OWNER_DECODE);
        if (computes && p->chain && p->flushes == s->flushes && next < p->chain_count && p->computed < (next + 1) * n &&
            kvc_hash_equal(&p->chain[next], &q->chain[next]))
            return true;
    }
    return false;
}

/* The head of a block that goes on like this sequence; source pages are shared. 0: none that saves work. */
static uint32_t find_head(struct wrk_sched *s, struct wrk_seq *q, uint32_t found, uint32_t *source)
{
    uint32_t n = s->layout.block_tokens, at = found * n, most = q->token_count - 1 - at;
    if (q->hold && found + 1 < kvc_blocks_for(&s->layout, q->token_count))
        return 0;
    uint32_t least = n >= 16 ? n / 16 : 1; /* below that the copy costs as much as it saves */
    if (q->hold && found == 0)
        least = (q->token_count + 1) / 2;
    uint32_t head = kvc_tree_partial(s->tree, found == 0 ? &q->root : &q->chain[found - 1], q->tokens + at,
                                     most < n ? most : n, source, s->now_us);
    if (head >= least)
        return head;
    for (uint32_t g = 0; head > 0 && g < s->layout.group_count; g++)
        kvc_pool_release(s->pool[g], source[g]);
    return 0;
}

void wrk__copy(struct wrk_sched *s, const struct wrk_seq *q, struct wrk_copy copy)
{
    KVS_ASSERT(s->copy_count < s->copy_cap);
    s->copies[s->copy_count++] = (struct wrk_pending_copy){.copy = copy, .slot = (uint32_t)(q - s->seqs)};
}

static void push_copies(struct wrk_sched *s, struct wrk_seq *q, uint32_t block, const uint32_t *source, uint32_t head)
{
    for (uint32_t g = 0; g < s->layout.group_count; g++)
        wrk__copy(s, q, (struct wrk_copy){.group = g, .from = source[g], .to = kvc_block_row(&q->table, g)[block], .tokens = head});
}

bool wrk__prefix_admit(struct wrk_sched *s, struct wrk_seq *q, uint32_t blocks)
{
    KVS_ASSERT(q->table.block_count == 0 && q->computed == 0);
    if (!s->tree || !make_names(s, q, q->token_count / s->layout.block_tokens))
        return wrk__seq_grow(s, q, blocks);
    uint32_t source[KVC_GROUPS_MAX], usable = (q->token_count - 1) / s->layout.block_tokens;
    uint32_t found = kvc_tree_match(s->tree, q->chain, usable, q->table.page, q->table.block_cap, s->now_us);
    q->table.block_count = q->shared = q->offered = found;
    uint32_t head = find_head(s, q, found, source);
    bool done = wrk__seq_grow(s, q, blocks);
    for (uint32_t g = 0; !done && head > 0 && g < s->layout.group_count; g++)
        kvc_pool_release(s->pool[g], source[g]);
    if (!done && head > 0) { /* the source itself may be the page that is lacking */
        head = 0;
        done = wrk__seq_grow(s, q, blocks);
    }
    if (!done) {
        wrk__seq_drop_pages(s, q);
        return false;
    }
    if (head > 0)
        push_copies(s, q, found, source, head);
    q->computed = found * s->layout.block_tokens + head;
    if (q->preemptions == 0) /* afterwards it finds what it has computed itself */
        q->cached = q->computed;
    s->stats.cached_tokens += q->computed;
    return true;
}

kvs_status wrk_seq_pin(struct wrk_sched *s, const struct wrk_seq_config *c, wrk_seq_id *out, struct kvs_error *err)
{
    if (!s->tree)
        return kvs_fail(err, KVS_REQ_NOT_FOUND, "this worker keeps no prefixes");
    wrk_seq_id id;
    kvs_status st = wrk_seq_open(s, c, &id, err);
    if (st != KVS_OK)
        return st;
    struct wrk_seq *q = wrk__seq(s, id);
    uint32_t full = q->token_count / s->layout.block_tokens, found = 0;
    if (make_names(s, q, full))
        found = kvc_tree_match(s->tree, q->chain, full, q->table.page, q->table.block_cap, s->now_us);
    q->table.block_count = q->shared = q->offered = found;
    q->cached = q->computed = found * s->layout.block_tokens;
    q->state = WRK_SEQ_STOPPED;
    q->pinned = true;
    if (found == 0 || !wrk__quota_take(s, q)) {
        wrk__seq_remove(s, q);
        return found == 0 ? kvs_fail(err, KVS_REQ_NOT_FOUND, "no block of these tokens is cached here")
                          : kvs_fail(err, KVS_BUSY_PAGES, "too many window or state pages are in use here");
    }
    s->stats.cached_tokens += q->cached;
    *out = id;
    return KVS_OK;
}

size_t wrk_sched_take_copies(struct wrk_sched *s, struct wrk_copy *out, size_t cap)
{
    size_t n = 0;
    for (; n < cap && s->copy_count > 0; n++) {
        out[n] = s->copies[--s->copy_count].copy; /* any order: no page is source and destination */
        kvc_pool_release(s->pool[out[n].group], out[n].from);
        s->changed = true;
    }
    return n;
}

void wrk__prefix_forget_copies(struct wrk_sched *s, const struct wrk_seq *q)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->copy_count; i++) {
        struct wrk_pending_copy c = s->copies[i];
        if (c.slot == (uint32_t)(q - s->seqs))
            kvc_pool_release(s->pool[c.copy.group], c.copy.from);
        else
            s->copies[kept++] = c;
    }
    s->copy_count = kept;
}

/* --- what is offered --- */

void wrk__prefix_offer(struct wrk_sched *s, struct wrk_seq *q)
{
    uint32_t full = q->computed / s->layout.block_tokens;
    if (!s->tree || q->flushes != s->flushes || q->offered >= full || !make_names(s, q, full))
        return;
    bool again = false;
    while (q->offered < full) {
        uint32_t b = q->offered, page[KVC_GROUPS_MAX];
        for (uint32_t g = 0; g < s->layout.group_count; g++)
            page[g] = wrk__kinds_offers(s, q, g, b) ? kvc_block_row(&q->table, g)[b] : KVC_BLOCK_NONE;
        kvs_status st = kvc_tree_insert_ids(s->tree, &q->root, q->chain, b,
                                            q->tokens + (size_t)b * s->layout.block_tokens, page, s->now_us);
        if (st == KVS_REQ_NOT_FOUND &&
            !again) { /* another's copy of an earlier block was evicted: ours takes its place */
            again = true;
            q->offered = 0;
            continue;
        }
        if (st != KVS_OK)
            break;
        q->offered++;
    }
    s->changed = true;
}

void wrk_sched_tell_time(struct wrk_sched *s, uint64_t now_us)
{
    s->now_us = now_us;
    if (!s->tree || now_us < s->ttl_us || now_us - s->expired_us < EXPIRE_EVERY_US)
        return;
    s->expired_us = now_us;
    if (kvc_tree_expire(s->tree, now_us - s->ttl_us) > 0)
        s->changed = true;
}

uint32_t wrk_sched_flush(struct wrk_sched *s)
{
    if (!s->tree)
        return 0;
    uint32_t blocks = kvc_tree_blocks(s->tree);
    kvc_tree_flush(s->tree);
    s->flushes++;
    s->changed = true;
    return blocks;
}
