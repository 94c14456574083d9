/* consistent.c - recounts everything from the sequences and compares it with pools and tree. For tests and the simulator.
 * A page may stand in several sequences only as the same block of equal prefixes; its holders are exactly those and the copies that read it;
 * what the tree knows is exactly what the pools call known. free + cached + held + fenced == total follows from what was counted.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/sched_private.h"

#include <string.h>

static bool same_prefix(const struct wrk_seq *a, const struct wrk_seq *b, uint32_t block)
{
    return a->chain && b->chain && block < a->chain_count && block < b->chain_count &&
           kvc_hash_equal(&a->chain[block], &b->chain[block]);
}

/* Counts a sequence's pages of one group; *own gets those that nobody counted before. */
static bool mark_row(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t group, uint32_t *own)
{
    const uint32_t *row = kvc_block_row(&q->table, group);
    uint32_t of_quota = 0;
    for (uint32_t b = 0; b < q->table.block_count; b++) {
        if (row[b] == KVC_BLOCK_NONE && (q->state == WRK_SEQ_FENCED || wrk__by_quota(s, group)))
            continue; /* a shared one, given back before; not needed */
        of_quota++;
        if (row[b] >= s->pages[group])
            return false;
        struct wrk_mark *m = &s->mark[group][row[b]];
        if (m->count++ > 0) {
            if (m->block != b || q->state == WRK_SEQ_FENCED || !same_prefix(q, &s->seqs[m->slot], b))
                return false;
            continue;
        }
        m->slot = (uint32_t)(q - s->seqs);
        m->block = b;
        (*own)++;
    }
    for (size_t i = 0; i < s->copy_count; i++) { /* a snapshot that goes on in a copy counts until it was copied */
        const struct wrk_copy *c = &s->copies[i].copy;
        bool kept = q->kept_at != WRK_NIL && row[q->kept_at] == c->from;
        of_quota += c->group == group && &s->seqs[s->copies[i].slot] == q && !kept;
    }
    return !wrk__by_quota(s, group) || of_quota == 0 || (q->has_quota && of_quota <= wrk__quota(s, q, group));
}

static bool quotas_add_up(const struct wrk_sched *s, uint32_t group)
{
    uint64_t sum = 0;
    for (uint32_t i = s->oldest; i != WRK_NIL; i = s->seqs[i].newer)
        if (s->seqs[i].has_quota)
            sum += wrk__quota(s, &s->seqs[i], group);
    return sum == s->quotas[group] && sum <= s->pages[group];
}

static kvs_status check_seqs(const struct wrk_sched *s, uint32_t g, uint32_t *held, uint32_t *fenced,
                             struct kvs_error *err)
{
    for (uint32_t i = s->oldest; i != WRK_NIL; i = s->seqs[i].newer) {
        const struct wrk_seq *q = &s->seqs[i];
        bool pageless = q->state == WRK_SEQ_WAITING || q->state == WRK_SEQ_FAILED;
        uint32_t next = q->computed / s->layout.block_tokens;
        if (!mark_row(s, q, g, q->state == WRK_SEQ_FENCED ? fenced : held))
            return kvs_fail(err, KVS_SELF_INTERNAL, "group %u: a page is in two sequences or out of range", g);
        if (pageless && q->table.block_count > 0)
            return kvs_fail(err, KVS_SELF_INTERNAL, "a waiting sequence holds pages");
        if (kvc_blocks_for(&s->layout, q->computed) > q->table.block_count)
            return kvs_fail(err, KVS_SELF_INTERNAL, "a sequence has more KV than pages");
        if (q->state != WRK_SEQ_FENCED && next < q->table.block_count &&
            !wrk__by_quota(s, g) && !kvc_pool_writable(s->pool[g], kvc_block_row(&q->table, g)[next]))
            return kvs_fail(err, KVS_SELF_INTERNAL, "a page that would be written next has another holder");
    }
    return KVS_OK;
}

/* Copies hold their sources; then every page's holders must be the ones that were found. */
static kvs_status check_holders(const struct wrk_sched *s, uint32_t g, uint32_t *held, struct kvs_error *err)
{
    uint32_t known = 0;
    for (size_t i = 0; i < s->copy_count; i++)
        if (s->copies[i].copy.group == g && s->mark[g][s->copies[i].copy.from].count++ == 0)
            (*held)++;
    for (uint32_t p = 0; p < s->pages[g]; p++) {
        uint32_t holders = kvc_pool_holders(s->pool[g], p);
        known += kvc_pool_known(s->pool[g], p);
        if (holders != s->mark[g][p].count && holders != 0)
            return kvs_fail(err, KVS_SELF_INTERNAL, "group %u page %u: %u holders, %u found", g, p, holders,
                            s->mark[g][p].count);
    }
    if (known != (s->tree ? kvc_tree_pages(s->tree, g) : 0))
        return kvs_fail(err, KVS_SELF_INTERNAL, "group %u: %u pages known, the tree has others", g, known);
    return KVS_OK;
}

bool wrk_sched_consistent(const struct wrk_sched *s, struct kvs_error *err)
{
    for (uint32_t g = 0; g < s->layout.group_count; g++) {
        struct kvc_pool_counts n = kvc_pool_counts(s->pool[g]);
        uint32_t held = 0, fenced = 0;
        if (wrk__by_quota(s, g) && !quotas_add_up(s, g))
            return kvs_fail(err, KVS_SELF_INTERNAL, "group %u: the sequences' quotas are not what was taken", g), false;
        memset(s->mark[g], 0, s->pages[g] * sizeof *s->mark[g]);
        if (check_seqs(s, g, &held, &fenced, err) != KVS_OK || check_holders(s, g, &held, err) != KVS_OK)
            return false;
        if (n.total != s->pages[g] || n.free + n.cached + n.held + n.fenced != n.total || n.held != held ||
            n.fenced != fenced)
            return kvs_fail(err, KVS_SELF_INTERNAL,
                            "group %u: free %u cached %u held %u (%u in sequences) fenced %u (%u) of %u", g, n.free,
                            n.cached, n.held, held, n.fenced, fenced, s->pages[g]),
                   false;
    }
    if (s->tree && !kvc_tree_consistent(s->tree))
        return kvs_fail(err, KVS_SELF_INTERNAL, "the prefix tree does not hang together"), false;
    return true;
}
