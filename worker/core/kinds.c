/* kinds.c - pages of window and state groups, which a sequence needs few of however long it is: its quota.
 *
 *   window   [none][none][ W tokens back ... newest ]          passed pages go back before each step, new ones come block by block
 *   state    [none][none][none][running]                       one page, whose entry moves along (layout.h: kvc_state_block)
 *            [none][snapshot][none][running]                   at a boundary that policy chose the page stays, and the state goes on in a copy
 *
 * A quota is taken when a sequence gets its first pages and given back with its last. The sum of quotas never exceeds a pool and no sequence
 * ever holds more than its quota (pages shared with others counted for each), so what is not held and not free is cached, and can be taken:
 * a step never fails for want of such a page, and nobody is preempted for one.
 * Policy: a snapshot after every `snapshot_blocks` blocks and at the prompt's last full block (`keep`), in the prefix tree; chunks end there.
 * A page that the tree knows or that somebody shares is never written: the next step copies it whole. A source keeps its snapshot at `keep`
 * until it closes, since the sink may want it. A step that was stopped half-way has spoilt the running state: such a sequence is preempted.
 * A transfer brings what is needed to go on after `landing` tokens, and nothing else (wrk_seq_land): if it fails, what the tree gave for less is
 * no longer here, and the sequence begins anew.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/sched_private.h"
#include "worker/core/sizes.h"

bool wrk__by_quota(const struct wrk_sched *s, uint32_t group)
{
    kvc_kind kind = s->layout.group[group].kind;
    return kind == KVC_WINDOW || kind == KVC_STATE;
}

/* Blocks of the known tokens that another prompt could reuse whole: the last token is always computed. */
static uint32_t whole_blocks(const struct wrk_sched *s, uint32_t tokens)
{
    return (tokens - 1) / s->layout.block_tokens;
}

uint32_t wrk__quota(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t group)
{
    if (q->pinned)
        return q->shared - kvc_first_needed(&s->layout, &s->layout.group[group], q->shared);
    return wrk_sizes_quota(&s->layout, group, q->tokens_max, s->chunk_tokens, s->tree != NULL, q->owner == WRK_OWNER_PREFILL);
}

bool wrk__quota_fits(const struct wrk_sched *s, const struct wrk_seq *q, bool alone)
{
    for (uint32_t g = 0; s->mixed && g < s->layout.group_count; g++)
        if (wrk__by_quota(s, g) && (alone ? 0 : s->quotas[g]) + (uint64_t)wrk__quota(s, q, g) > s->pages[g])
            return false;
    return true;
}

bool wrk__quota_take(struct wrk_sched *s, struct wrk_seq *q)
{
    KVS_ASSERT(!q->has_quota);
    if (!wrk__quota_fits(s, q, false))
        return false;
    for (uint32_t g = 0; s->mixed && g < s->layout.group_count; g++)
        if (wrk__by_quota(s, g))
            s->quotas[g] += wrk__quota(s, q, g);
    q->has_quota = true;
    return true;
}

void wrk__quota_give(struct wrk_sched *s, struct wrk_seq *q)
{
    for (uint32_t g = 0; q->has_quota && s->mixed && g < s->layout.group_count; g++)
        if (wrk__by_quota(s, g)) {
            KVS_ASSERT(s->quotas[g] >= wrk__quota(s, q, g));
            s->quotas[g] -= wrk__quota(s, q, g);
        }
    q->has_quota = false;
    q->state_at = q->kept_at = q->keep = WRK_NIL;
    q->trimmed = q->landing = 0;
}

/* --- single pages --- */

static void give_back(struct wrk_sched *s, struct wrk_seq *q, uint32_t group, uint32_t block)
{
    uint32_t *page = &kvc_block_row(&q->table, group)[block];
    if (*page == KVC_BLOCK_NONE)
        return;
    kvc_pool_release(s->pool[group], *page);
    *page = KVC_BLOCK_NONE;
    s->changed = true;
}

static void get(struct wrk_sched *s, struct wrk_seq *q, uint32_t group, uint32_t block)
{
    uint32_t *page = &kvc_block_row(&q->table, group)[block];
    KVS_ASSERT(*page == KVC_BLOCK_NONE && q->has_quota && block < q->table.block_count);
    if (kvc_pool_counts(s->pool[group]).free == 0 && s->tree)
        (void)kvc_tree_evict(s->tree, group, 1 + s->pages[group] / 32); /* some more at a time: each look walks the tree */
    kvs_status st = kvc_pool_acquire(s->pool[group], 1, page);
    KVS_ASSERT(st == KVS_OK); /* quotas see to it */
    wrk__zero(s, group, *page);
}

/* --- a sequence that got its first pages --- */

void wrk__kinds_begin(struct wrk_sched *s, struct wrk_seq *q)
{
    uint32_t n = s->layout.block_tokens;
    if (!s->mixed)
        return;
    uint32_t whole = whole_blocks(s, q->token_count);
    bool snapshots = s->tree || q->owner == WRK_OWNER_PREFILL;
    q->keep = snapshots && whole > 0 ? whole - 1 : WRK_NIL;
    q->state_at = q->shared > 0 ? q->shared - 1 : WRK_NIL;
    q->trimmed = q->shared > 0 ? q->shared * n - 1 : 0;
    wrk__kinds_computed(s, q);
}

/* A source keeps the snapshot it may be asked for. */
void wrk__kinds_computed(struct wrk_sched *s, struct wrk_seq *q)
{
    if (s->has_state && q->owner == WRK_OWNER_PREFILL && q->keep != WRK_NIL &&
        q->computed == (q->keep + 1) * s->layout.block_tokens)
        q->kept_at = q->keep;
}

/* --- steps --- */

uint32_t wrk__kinds_room(const struct wrk_sched *s, const struct wrk_seq *q)
{
    uint32_t n = s->layout.block_tokens, room = UINT32_MAX;
    if (!s->has_state)
        return room;
    if (q->keep != WRK_NIL && q->computed < (q->keep + 1) * n)
        room = (q->keep + 1) * n - q->computed;
    if (!s->tree)
        return room;
    uint64_t every = (uint64_t)s->snapshot_blocks * n, next = every - q->computed % every;
    return next < room ? (uint32_t)next : room;
}

/* A running state that stands exactly behind the block is its snapshot, where policy wants one; so is one that landed there. */
bool wrk__kinds_offers(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t group, uint32_t block)
{
    if (s->layout.group[group].kind != KVC_STATE || block == q->kept_at)
        return true;
    bool due = block == q->keep || (block + 1) % s->snapshot_blocks == 0;
    return due && block == q->state_at && q->computed == (block + 1) * s->layout.block_tokens;
}

/* Gives back what a step at `pos` and later ones cannot see. A sink may want what its own tree needs to offer the whole prompt. */
static void trim(struct wrk_sched *s, struct wrk_seq *q, uint32_t pos)
{
    uint32_t whole = whole_blocks(s, q->token_count) * s->layout.block_tokens;
    if (q->owner == WRK_OWNER_PREFILL && pos >= whole)
        pos = whole > 0 ? whole - 1 : 0;
    if (pos <= q->trimmed)
        return;
    for (uint32_t g = 0; g < s->layout.group_count; g++) {
        const struct kvc_group *k = &s->layout.group[g];
        if (k->kind != KVC_WINDOW)
            continue;
        uint32_t end = kvc_first_visible(&s->layout, k, pos);
        for (uint32_t b = kvc_first_visible(&s->layout, k, q->trimmed); b < end; b++)
            give_back(s, q, g, b);
    }
    q->trimmed = pos;
}

static void copy_whole(struct wrk_sched *s, struct wrk_seq *q, uint32_t group, uint32_t from, uint32_t to)
{
    const uint32_t *row = kvc_block_row(&q->table, group);
    kvc_pool_share(s->pool[group], row[from]);
    wrk__copy(s, q, (struct wrk_copy){.group = group, .from = row[from], .to = row[to], .tokens = s->layout.block_tokens});
}

/* The running state of one group goes on in entry `to`. */
static void move_state(struct wrk_sched *s, struct wrk_seq *q, uint32_t group, uint32_t to)
{
    uint32_t *row = kvc_block_row(&q->table, group), from = q->state_at;
    if (from == WRK_NIL) {
        get(s, q, group, to);
        return;
    }
    bool own = from != q->kept_at && kvc_pool_writable(s->pool[group], row[from]);
    if (from == to) {
        KVS_ASSERT(own);
        return;
    }
    if (own) {
        row[to] = row[from];
        row[from] = KVC_BLOCK_NONE;
        return;
    }
    get(s, q, group, to);
    copy_whole(s, q, group, from, to);
    if (from != q->kept_at)
        give_back(s, q, group, from);
}

void wrk__kinds_advance(struct wrk_sched *s, struct wrk_seq *q, uint32_t count)
{
    uint32_t pos = q->computed, end = pos + count;
    if (!s->mixed)
        return;
    trim(s, q, pos);
    for (uint32_t g = 0; g < s->layout.group_count; g++) {
        kvc_kind kind = s->layout.group[g].kind;
        if (kind == KVC_STATE)
            move_state(s, q, g, kvc_state_block(&s->layout, end));
        for (uint32_t b = pos / s->layout.block_tokens; kind == KVC_WINDOW && b < kvc_blocks_for(&s->layout, end); b++)
            if (kvc_block_row(&q->table, g)[b] == KVC_BLOCK_NONE)
                get(s, q, g, b);
    }
    if (s->has_state)
        q->state_at = kvc_state_block(&s->layout, end);
}

/* --- transfers --- */

bool wrk_page_lands(const struct kvc_layout *l, uint32_t group, uint32_t block, uint32_t tokens, bool whole)
{
    KVS_ASSERT(tokens > 0);
    const struct kvc_group *g = &l->group[group];
    uint32_t blocks = whole ? tokens / l->block_tokens : (tokens - 1) / l->block_tokens; /* that can be gone on with */
    if (g->kind == KVC_STATE)
        return block == kvc_state_block(l, tokens) || (!whole && blocks > 0 && block == blocks - 1);
    return block >= (blocks > 0 ? kvc_first_needed(l, g, blocks) : 0) && block < kvc_blocks_for(l, tokens);
}

/* Without a tree nobody here would use the snapshot. */
static bool lands(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t group, uint32_t block)
{
    if (s->layout.group[group].kind == KVC_STATE)
        return block == q->state_at || block == q->kept_at;
    return wrk_page_lands(&s->layout, group, block, q->landing, q->landing < q->token_count);
}

void wrk_seq_land(struct wrk_sched *s, wrk_seq_id id, uint32_t tokens)
{
    struct wrk_seq *q = wrk__seq(s, id);
    uint32_t n = s->layout.block_tokens;
    KVS_ASSERT(q && q->state == WRK_SEQ_HELD);
    KVS_ASSERT(tokens <= q->token_count && tokens > q->shared * n && (tokens == q->token_count || tokens % n == 0));
    uint32_t blocks = kvc_blocks_for(&s->layout, tokens);
    uint32_t filled = kvc_blocks_for(&s->layout, q->computed); /* the last of these may have a head of copied tokens */
    if (!s->mixed) {
        wrk__unzero(s, q, filled, blocks);
        return;
    }
    q->landing = tokens;
    q->state_at = kvc_state_block(&s->layout, tokens);
    q->kept_at = tokens == q->token_count ? q->keep : WRK_NIL;
    for (uint32_t g = 0; g < s->layout.group_count; g++) {
        if (!wrk__by_quota(s, g))
            continue;
        const uint32_t *row = kvc_block_row(&q->table, g);
        for (uint32_t b = 0; b < q->table.block_count; b++)
            if (!lands(s, q, g, b))
                give_back(s, q, g, b);
        for (uint32_t b = 0; b < blocks; b++)
            if (row[b] == KVC_BLOCK_NONE && lands(s, q, g, b)) {
                KVS_ASSERT(b >= q->shared); /* what the tree gave before it was for no more than this */
                get(s, q, g, b);
            }
    }
    uint32_t whole = tokens < q->token_count ? tokens / n : whole_blocks(s, tokens);
    q->trimmed = whole > 0 ? whole * n - 1 : 0;
    wrk__unzero(s, q, filled, blocks);
}

bool wrk__kinds_landed(struct wrk_sched *s, struct wrk_seq *q, uint32_t computed)
{
    bool whole = q->landing == 0 ? computed == q->computed : computed == q->landing;
    if (!s->mixed || whole) {
        q->landing = 0;
        return true;
    }
    wrk__seq_drop_pages(s, q);
    q->state = WRK_SEQ_WAITING;
    return false;
}

/* After its blocks were offered: a sink's snapshot is the tree's, or nobody's. */
void wrk__kinds_offered(struct wrk_sched *s, struct wrk_seq *q)
{
    if (!s->has_state || q->owner == WRK_OWNER_PREFILL || q->kept_at == WRK_NIL)
        return;
    for (uint32_t g = 0; g < s->layout.group_count; g++)
        if (s->layout.group[g].kind == KVC_STATE && q->kept_at != q->state_at)
            give_back(s, q, g, q->kept_at);
    q->kept_at = WRK_NIL;
}

/* --- checks --- */

bool wrk__kinds_entry_needed(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t group, uint32_t block, uint32_t end)
{
    if (s->layout.group[group].kind == KVC_STATE)
        return block == kvc_state_block(&s->layout, end);
    return block >= kvc_first_visible(&s->layout, &s->layout.group[group], q->computed);
}
