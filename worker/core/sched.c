/* sched.c - sequences and their pages: opening, admission, growth, preemption, fencing, closing.
 * Admission reserves for the known tokens and some room (reserve_tokens), all groups or none, oldest sequence first and never past one
 * that does not fit: small late requests cannot starve a big early one. Growth beyond the reservation goes block by block; whoever cannot
 * grow takes from the newest decode sequence. Sequences under a transfer (HELD) are never preempted, since a peer may be writing there.
 * No deadlock: a waiting sequence holds nothing, everything that holds pages either runs or waits for an event with a deadline, and a
 * sequence that could not even run alone is refused at open or ends as FAILED.
 * Page contents are not seen here: pages that were given out stand on the zero list until the edge has taken them from it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/sched_private.h"

#include <stdlib.h>
#include <string.h>

static uint32_t slot_of(const struct wrk_sched *s, const struct wrk_seq *q)
{
    return (uint32_t)(q - s->seqs);
}

wrk_seq_id wrk__seq_id(const struct wrk_sched *s, const struct wrk_seq *q)
{
    return q->generation << 12 | slot_of(s, q);
}

struct wrk_seq *wrk__seq(const struct wrk_sched *s, wrk_seq_id id)
{
    uint32_t slot = id & (WRK_SEQS_MAX - 1);
    if (id == WRK_SEQ_NONE || slot >= s->seqs_max)
        return NULL;
    struct wrk_seq *q = &s->seqs[slot];
    return q->state != WRK_SEQ_GONE && q->generation == id >> 12 ? q : NULL;
}

/* --- zero list --- */

void wrk__zero(struct wrk_sched *s, uint32_t group, uint32_t page)
{
    struct wrk_zeros *z = &s->zeros;
    if (z->flag[group][page])
        return;
    KVS_ASSERT(z->count < z->cap);
    z->flag[group][page] = 1;
    z->ring[(z->head + z->count++) % z->cap] = (struct wrk_page){.group = group, .page = page};
}

/* Those of blocks [from, end) off the list: what was marked in one walk over the pages goes in one walk over the list. */
void wrk__unzero(struct wrk_sched *s, const struct wrk_seq *q, uint32_t from, uint32_t end)
{
    enum { LISTED = 1, LEAVES = 2 };
    struct wrk_zeros *z = &s->zeros;
    size_t kept = 0;
    for (uint32_t g = 0; g < s->layout.group_count; g++)
        for (uint32_t b = from; b < end; b++) {
            uint32_t page = kvc_block_row(&q->table, g)[b];
            if (page != KVC_BLOCK_NONE && z->flag[g][page] == LISTED)
                z->flag[g][page] = LEAVES;
        }
    for (size_t i = 0; i < z->count; i++) {
        struct wrk_page p = z->ring[(z->head + i) % z->cap];
        if (z->flag[p.group][p.page] == LEAVES)
            z->flag[p.group][p.page] = 0;
        else
            z->ring[(z->head + kept++) % z->cap] = p;
    }
    z->count = kept;
}

size_t wrk_sched_take_zeros(struct wrk_sched *s, struct wrk_page *out, size_t cap)
{
    struct wrk_zeros *z = &s->zeros;
    size_t n = 0;
    for (; n < cap && z->count > 0; n++, z->count--) {
        out[n] = z->ring[z->head];
        z->flag[out[n].group][out[n].page] = 0;
        z->head = (z->head + 1) % z->cap;
    }
    return n;
}

/* --- create, destroy --- */

static kvs_status check_config(const struct wrk_sched_config *c, struct kvs_error *err)
{
    if (c->seqs_max == 0 || c->seqs_max > WRK_SEQS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "a worker can have 1 to %u sequences, not %u", WRK_SEQS_MAX, c->seqs_max);
    if (c->context == 0 || c->context > MSG_TOKENS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "the context must have 1 to %d tokens, not %u", MSG_TOKENS_MAX,
                        c->context);
    for (uint32_t g = 0; g < c->layout->group_count; g++)
        if (c->pages[g] == 0)
            return kvs_fail(err, KVS_SELF_CONFIG, "no KV page for layer group %u: raise kv-memory", g);
    return KVS_OK;
}

static kvs_status create_pools(struct wrk_sched *s, const struct wrk_sched_config *c)
{
    s->pages_least = UINT32_MAX;
    for (uint32_t g = 0; g < s->layout.group_count; g++) {
        s->pages[g] = c->pages[g];
        s->mixed = s->mixed || wrk__by_quota(s, g);
        s->has_state = s->has_state || s->layout.group[g].kind == KVC_STATE;
        if (!wrk__by_quota(s, g) && s->pages[g] < s->pages_least)
            s->pages_least = s->pages[g];
        s->zeros.cap += s->pages[g];
        kvs_status st = kvc_pool_create(s->pages[g], &s->pool[g]);
        if (st != KVS_OK)
            return st;
        s->zeros.flag[g] = calloc(s->pages[g], 1);
        s->mark[g] = calloc(s->pages[g], sizeof *s->mark[g]);
        if (!s->zeros.flag[g] || !s->mark[g])
            return KVS_SELF_NOMEM;
    }
    s->zeros.ring = calloc(s->zeros.cap, sizeof *s->zeros.ring);
    if (!s->zeros.ring)
        return KVS_SELF_NOMEM;
    return wrk__prefix_create(s, c);
}

static kvs_status create_seqs(struct wrk_sched *s)
{
    s->seqs = calloc(s->seqs_max, sizeof *s->seqs);
    s->entries = calloc(s->batch_seqs, sizeof *s->entries);
    if (!s->seqs || !s->entries)
        return KVS_SELF_NOMEM;
    for (uint32_t o = 0; o < WRK_OWNERS; o++) {
        s->results[o] = calloc(s->batch_seqs, sizeof *s->results[o]);
        if (!s->results[o])
            return KVS_SELF_NOMEM;
    }
    for (uint32_t i = 0; i < s->seqs_max; i++)
        s->seqs[i].newer = i + 1 < s->seqs_max ? i + 1 : WRK_NIL;
    s->free_slot = 0;
    s->oldest = s->newest = WRK_NIL;
    return KVS_OK;
}

kvs_status wrk_sched_create(const struct wrk_sched_config *c, struct wrk_sched **out, struct kvs_error *err)
{
    KVS_ASSERT(c->layout && c->layout->group_count > 0 && c->layout->group_count <= KVC_GROUPS_MAX);
    kvs_status st = check_config(c, err);
    if (st != KVS_OK)
        return st;
    struct wrk_sched *s = calloc(1, sizeof *s);
    if (!s)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the scheduler");
    s->layout = *c->layout;
    s->seqs_max = c->seqs_max;
    s->batch_seqs = c->batch_seqs == 0 || c->batch_seqs > c->seqs_max ? c->seqs_max : c->batch_seqs;
    s->context = c->context;
    s->chunk_tokens = c->chunk_tokens ? c->chunk_tokens : 128;
    s->reserve_tokens = c->reserve_tokens ? c->reserve_tokens : 512;
    s->snapshot_blocks = c->snapshot_blocks ? c->snapshot_blocks : 16;
    st = create_pools(s, c);
    if (st == KVS_OK)
        st = create_seqs(s);
    if (st != KVS_OK)
        goto fail;
    *out = s;
    return KVS_OK;
fail:
    wrk_sched_destroy(s);
    return kvs_fail(err, st, "no memory for the scheduler's tables");
}

void wrk_sched_destroy(struct wrk_sched *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->seqs && i < s->seqs_max; i++) {
        free(s->seqs[i].tokens);
        free(s->seqs[i].chain);
        kvc_block_table_fini(&s->seqs[i].table);
    }
    kvc_tree_destroy(s->tree);
    wrk_events_destroy(s->events);
    for (uint32_t g = 0; g < s->layout.group_count; g++) {
        kvc_pool_destroy(s->pool[g]);
        free(s->zeros.flag[g]);
        free(s->mark[g]);
    }
    for (uint32_t o = 0; o < WRK_OWNERS; o++)
        free(s->results[o]);
    free(s->zeros.ring);
    free(s->copies);
    free(s->seqs);
    free(s->entries);
    free(s);
}

const struct kvc_layout *wrk_sched_layout(const struct wrk_sched *s)
{
    return &s->layout;
}
uint32_t wrk_sched_chunk_tokens(const struct wrk_sched *s)
{
    return s->chunk_tokens;
}

uint32_t wrk_sched_context(const struct wrk_sched *s)
{
    return s->context;
}
const struct wrk_events *wrk_sched_events(const struct wrk_sched *s)
{
    return s->events;
}

struct kvc_tree *wrk_sched_tree(struct wrk_sched *s)
{
    return s->tree;
}
uint32_t wrk_sched_batch_tokens(const struct wrk_sched *s)
{
    return s->chunk_tokens + s->batch_seqs;
}
uint32_t wrk_sched_batch_seqs(const struct wrk_sched *s)
{
    return s->batch_seqs;
}
struct kvc_pool_counts wrk_sched_pages(const struct wrk_sched *s, uint32_t group)
{
    KVS_ASSERT(group < s->layout.group_count);
    return kvc_pool_counts(s->pool[group]);
}

/* --- pages of a sequence --- */

/* That many pages are free in each full and latent group or can be made so. */
static bool pages_free(const struct wrk_sched *s, uint32_t blocks)
{
    for (uint32_t g = 0; g < s->layout.group_count; g++) {
        struct kvc_pool_counts n = kvc_pool_counts(s->pool[g]);
        if (wrk__by_quota(s, g) || n.free >= blocks)
            continue;
        if (!s->tree || n.free + n.cached < blocks)
            return false;
        if (kvc_tree_evictable(s->tree, g, blocks - n.free) < blocks - n.free) /* not all that is cached can go */
            return false;
    }
    return true;
}

static void pages_evict(struct wrk_sched *s, uint32_t blocks)
{
    for (uint32_t g = 0; s->tree && g < s->layout.group_count; g++) {
        uint32_t have = kvc_pool_counts(s->pool[g]).free, known = kvc_tree_blocks(s->tree);
        if (wrk__by_quota(s, g) || have >= blocks)
            continue;
        (void)kvc_tree_evict(s->tree, g, blocks - have);
        s->stats.evicted_blocks += known - kvc_tree_blocks(s->tree);
    }
}

bool wrk__seq_grow(struct wrk_sched *s, struct wrk_seq *q, uint32_t blocks)
{
    struct kvc_block_table *t = &q->table;
    KVS_ASSERT(blocks <= t->block_cap);
    KVS_ASSERT(!q->in_step);
    if (blocks <= t->block_count)
        return true;
    uint32_t more = blocks - t->block_count;
    if (!pages_free(s, more))
        return false;
    pages_evict(s, more);
    for (uint32_t g = 0; g < s->layout.group_count; g++) {
        if (wrk__by_quota(s, g))
            continue;
        uint32_t *row = kvc_block_row(t, g) + t->block_count;
        kvs_status st = kvc_pool_acquire(s->pool[g], more, row);
        KVS_ASSERT(st == KVS_OK);
        for (uint32_t i = 0; i < more; i++)
            wrk__zero(s, g, row[i]);
    }
    t->block_count = blocks;
    return true;
}

void wrk__seq_drop_pages(struct wrk_sched *s, struct wrk_seq *q)
{
    struct kvc_block_table *t = &q->table;
    KVS_ASSERT(!q->in_step);
    wrk__prefix_forget_copies(s, q);
    for (uint32_t g = 0; g < t->group_count; g++) {
        uint32_t *row = kvc_block_row(t, g);
        for (uint32_t b = 0; b < t->block_count; b++) {
            if (row[b] == KVC_BLOCK_NONE)
                continue;
            if (q->state == WRK_SEQ_FENCED)
                kvc_pool_unfence(s->pool[g], row[b]);
            else
                kvc_pool_release(s->pool[g], row[b]);
            row[b] = KVC_BLOCK_NONE;
        }
    }
    t->block_count = 0;
    q->computed = 0;
    wrk__quota_give(s, q);
    q->shared = q->offered = 0;
    s->changed = true;
}

void wrk__seq_preempt(struct wrk_sched *s, struct wrk_seq *q)
{
    KVS_ASSERT(q->state == WRK_SEQ_READY && q->owner == WRK_OWNER_DECODE);
    wrk__seq_drop_pages(s, q);
    q->state = WRK_SEQ_WAITING;
    q->hold = false; /* its prompt may have come from a peer once; the second time it is computed here */
    q->running = false;
    q->chunks = 0;
    q->preemptions++;
    s->stats.preemptions++;
}

struct wrk_seq *wrk__seq_newest(const struct wrk_sched *s)
{
    for (uint32_t i = s->newest; i != WRK_NIL; i = s->seqs[i].older) {
        struct wrk_seq *q = &s->seqs[i];
        if (q->state == WRK_SEQ_READY && q->owner == WRK_OWNER_DECODE)
            return q;
    }
    return NULL;
}

bool wrk_sched_preempt_newest(struct wrk_sched *s)
{
    struct wrk_seq *q = s->in_flight ? NULL : wrk__seq_newest(s);
    if (!q)
        return false;
    wrk__seq_preempt(s, q);
    return true;
}

/* Blocks that admission asks for: known tokens and some room, but never more than there are, so that it is satisfiable. */
static uint32_t admission_blocks(const struct wrk_sched *s, const struct wrk_seq *q)
{
    uint32_t room = q->tokens_max - 1 > q->token_count ? q->tokens_max - 1 - q->token_count : 0;
    if (room > s->reserve_tokens)
        room = s->reserve_tokens;
    uint32_t blocks = kvc_blocks_for(&s->layout, q->token_count + room);
    return blocks < s->pages_least ? blocks : s->pages_least;
}

static struct wrk_seq *first_waiting(const struct wrk_sched *s)
{
    for (uint32_t i = s->oldest; i != WRK_NIL; i = s->seqs[i].newer)
        if (s->seqs[i].state == WRK_SEQ_WAITING)
            return &s->seqs[i];
    return NULL;
}

bool wrk_sched_can_admit(const struct wrk_sched *s)
{
    const struct wrk_seq *q = first_waiting(s);
    if (!q || s->tree)
        return q && s->changed;
    return kvc_blocks_for(&s->layout, q->token_count) > s->pages_least ||
           (wrk__quota_fits(s, q, false) && pages_free(s, admission_blocks(s, q)));
}

/* Oldest first. One that does not fit ends it, so that later ones cannot starve it; one that waits for its prefix does not. */
void wrk_sched_admit(struct wrk_sched *s)
{
    if (s->tree && !s->changed)
        return;
    for (uint32_t i = s->oldest; i != WRK_NIL; i = s->seqs[i].newer) {
        struct wrk_seq *q = &s->seqs[i];
        if (q->state != WRK_SEQ_WAITING)
            continue;
        if (kvc_blocks_for(&s->layout, q->token_count) > s->pages_least) {
            q->state = WRK_SEQ_FAILED;
            continue;
        }
        q->deferred = wrk__prefix_awaited(s, q);
        if (q->deferred)
            continue;
        if (!wrk__quota_take(s, q))
            break;
        if (!wrk__prefix_admit(s, q, admission_blocks(s, q))) {
            wrk__quota_give(s, q);
            break;
        }
        wrk__kinds_begin(s, q);
        q->state = q->hold ? WRK_SEQ_HELD : WRK_SEQ_READY;
        q->hold = false;
    }
    s->changed = false;
}

/* --- life of a sequence --- */

static kvs_status check_open(const struct wrk_sched *s, const struct wrk_seq_config *c, struct kvs_error *err)
{
    KVS_ASSERT(c->owner < WRK_OWNERS && c->tokens && c->token_count > 0);
    if (c->tokens_max > s->context + 1 || c->token_count > c->tokens_max)
        return kvs_fail(err, KVS_REQ_TOO_LONG, "%u tokens do not fit into a context of %u", c->token_count, s->context);
    if (kvc_blocks_for(&s->layout, c->token_count) > s->pages_least)
        return kvs_fail(err, KVS_BUSY_PAGES,
                        "%u tokens need %u KV pages a group and this worker has %u: raise kv-memory", c->token_count,
                        kvc_blocks_for(&s->layout, c->token_count), s->pages_least);
    struct wrk_seq alone = {.owner = c->owner, .tokens_max = c->tokens_max};
    if (!wrk__quota_fits(s, &alone, true))
        return kvs_fail(err, KVS_BUSY_PAGES, "a sequence of %u tokens needs more window or state pages than this worker has: raise kv-memory",
                        c->tokens_max);
    if (s->free_slot == WRK_NIL)
        return kvs_fail(err, KVS_BUSY_FULL, "all %u sequences of this worker are taken", s->seqs_max);
    return KVS_OK;
}

kvs_status wrk_seq_open(struct wrk_sched *s, const struct wrk_seq_config *c, wrk_seq_id *out, struct kvs_error *err)
{
    kvs_status st = check_open(s, c, err);
    if (st != KVS_OK)
        return st;
    uint32_t slot = s->free_slot;
    struct wrk_seq *q = &s->seqs[slot];
    int32_t *tokens = malloc((size_t)c->tokens_max * sizeof *tokens);
    uint32_t blocks = kvc_blocks_for(&s->layout, c->tokens_max);
    struct kvc_hash *chain = s->tree ? malloc(blocks * sizeof *chain) : NULL;
    struct kvc_block_table table;
    if (!tokens || (s->tree && !chain) || kvc_block_table_init(&table, s->layout.group_count, blocks) != KVS_OK) {
        free(tokens);
        free(chain);
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for a sequence of %u tokens", c->tokens_max);
    }
    memcpy(tokens, c->tokens, (size_t)c->token_count * sizeof *tokens);
    s->free_slot = q->newer;
    *q = (struct wrk_seq){.state = WRK_SEQ_WAITING,
                          .generation = q->generation >= 0xfffff ? 1 : q->generation + 1,
                          .owner = c->owner,
                          .user = c->user,
                          .older = s->newest,
                          .newer = WRK_NIL,
                          .order = ++s->next_order,
                          .tokens = tokens,
                          .token_count = c->token_count,
                          .tokens_max = c->tokens_max,
                          .table = table,
                          .hold = c->hold,
                          .logits = c->logits,
                          .sampling = c->sampling,
                          .choice = c->choice,
                          .chain = chain,
                          .state_at = WRK_NIL,
                          .kept_at = WRK_NIL,
                          .keep = WRK_NIL};
    wrk__prefix_open(s, q, c);
    s->changed = true;
    if (s->newest != WRK_NIL)
        s->seqs[s->newest].newer = slot;
    else
        s->oldest = slot;
    s->newest = slot;
    *out = wrk__seq_id(s, q);
    return KVS_OK;
}

void wrk__seq_remove(struct wrk_sched *s, struct wrk_seq *q)
{
    uint32_t slot = slot_of(s, q);
    KVS_ASSERT(q->state != WRK_SEQ_GONE);
    wrk__seq_drop_pages(s, q);
    if (q->older != WRK_NIL)
        s->seqs[q->older].newer = q->newer;
    else
        s->oldest = q->newer;
    if (q->newer != WRK_NIL)
        s->seqs[q->newer].older = q->older;
    else
        s->newest = q->older;
    free(q->tokens);
    free(q->chain);
    q->tokens = NULL;
    q->chain = NULL;
    kvc_block_table_fini(&q->table);
    q->table = (struct kvc_block_table){0};
    q->state = WRK_SEQ_GONE;
    q->newer = s->free_slot;
    s->free_slot = slot;
}

struct wrk_seq_view wrk_seq_look(const struct wrk_sched *s, wrk_seq_id id)
{
    const struct wrk_seq *q = wrk__seq(s, id);
    if (!q)
        return (struct wrk_seq_view){.state = WRK_SEQ_GONE};
    return (struct wrk_seq_view){.state = q->state,
                                 .user = q->user,
                                 .token_count = q->token_count,
                                 .computed = q->computed,
                                 .cached = q->cached,
                                 .shared = q->shared,
                                 .deferred = q->deferred,
                                 .chunks = q->chunks,
                                 .prefilled = q->prefilled,
                                 .preemptions = q->preemptions,
                                 .paused = q->paused,
                                 .in_step = q->in_step,
                                 .tokens = q->tokens,
                                 .table = &q->table};
}

void wrk_seq_ready(struct wrk_sched *s, wrk_seq_id id, uint32_t computed, bool rezero)
{
    struct wrk_seq *q = wrk__seq(s, id);
    KVS_ASSERT(q && q->state == WRK_SEQ_HELD);
    KVS_ASSERT(computed <= q->token_count && computed >= q->computed);
    s->changed = true;
    if (!wrk__kinds_landed(s, q, computed))
        return;
    q->state = WRK_SEQ_READY;
    q->computed = computed;
    wrk__prefix_offer(s, q);
    wrk__kinds_offered(s, q);
    for (uint32_t g = 0; rezero && g < q->table.group_count; g++)
        for (uint32_t b = kvc_blocks_for(&s->layout, computed); b < q->table.block_count; b++)
            if (kvc_block_row(&q->table, g)[b] != KVC_BLOCK_NONE)
                wrk__zero(s, g, kvc_block_row(&q->table, g)[b]);
}

void wrk_seq_append(struct wrk_sched *s, wrk_seq_id id, int32_t token)
{
    struct wrk_seq *q = wrk__seq(s, id);
    KVS_ASSERT(q && q->state == WRK_SEQ_READY && !q->in_step);
    KVS_ASSERT(q->computed == q->token_count && q->token_count < q->tokens_max);
    q->tokens[q->token_count++] = token;
    q->running = true;
}

void wrk_seq_pause(struct wrk_sched *s, wrk_seq_id id, bool paused)
{
    struct wrk_seq *q = wrk__seq(s, id);
    KVS_ASSERT(q);
    q->paused = paused;
    s->changed = true;
}

void wrk_seq_stop(struct wrk_sched *s, wrk_seq_id id)
{
    struct wrk_seq *q = wrk__seq(s, id);
    KVS_ASSERT(q && q->state != WRK_SEQ_FENCED);
    if (q->state != WRK_SEQ_CLOSING)
        q->state = WRK_SEQ_STOPPED;
    s->changed = true;
}

void wrk_seq_close(struct wrk_sched *s, wrk_seq_id id)
{
    struct wrk_seq *q = wrk__seq(s, id);
    KVS_ASSERT(q && q->state != WRK_SEQ_FENCED);
    if (q->in_step)
        q->state = WRK_SEQ_CLOSING;
    else
        wrk__seq_remove(s, q);
}

void wrk_seq_fence(struct wrk_sched *s, wrk_seq_id id)
{
    struct wrk_seq *q = wrk__seq(s, id);
    KVS_ASSERT(q && q->state == WRK_SEQ_HELD);
    wrk__prefix_forget_copies(s, q);
    for (uint32_t g = 0; g < q->table.group_count; g++) {
        uint32_t *row = kvc_block_row(&q->table, g);
        for (uint32_t b = 0; b < q->table.block_count; b++) {
            if (row[b] == KVC_BLOCK_NONE)
                continue;
            if (b >= q->shared) {
                kvc_pool_fence(s->pool[g], row[b]);
                continue;
            }
            kvc_pool_release(s->pool[g], row[b]); /* was never granted to anybody */
            row[b] = KVC_BLOCK_NONE;
        }
    }
    q->computed = q->shared = 0;
    s->changed = true;
    q->state = WRK_SEQ_FENCED;
}

void wrk_seq_unfence(struct wrk_sched *s, wrk_seq_id id)
{
    struct wrk_seq *q = wrk__seq(s, id);
    KVS_ASSERT(q && q->state == WRK_SEQ_FENCED);
    wrk__seq_remove(s, q);
}
