/* step.c - composes one ragged step from what the sequences still lack, and books what came of it.
 * Single tokens of running sequences go first: they are what users watch. Then prompt chunks, oldest sequence first, chunk_tokens in all.
 * Growth comes before composition, since it may take pages (and so the place in the step) from a newer sequence.
 * A step's entries point into the sequences' token buffers (which never move) and tables; nothing here or in sched.c changes either for a
 * sequence with in_step set: append, grow and preempt assert it, close and stop only change the state.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/sched_private.h"

#include <string.h>

static bool has_work(const struct wrk_seq *q)
{
    return q->state == WRK_SEQ_READY && !q->paused && q->computed < q->token_count;
}

static bool is_single(const struct wrk_seq *q)
{
    return q->running && q->computed + 1 == q->token_count;
}

/* Pages for the running sequences' next tokens, oldest first. True when somebody lost its pages. */
static bool grow_running(struct wrk_sched *s)
{
    bool preempted = false;
    for (uint32_t i = s->oldest; i != WRK_NIL; i = s->seqs[i].newer) {
        struct wrk_seq *q = &s->seqs[i];
        if (!has_work(q) || !is_single(q))
            continue;
        uint32_t blocks = kvc_blocks_for(&s->layout, q->token_count);
        if (blocks > s->pages_least) { /* alone it would not fit either */
            wrk__seq_drop_pages(s, q);
            q->state = WRK_SEQ_FAILED;
            preempted = true;
            continue;
        }
        while (q->state == WRK_SEQ_READY && !wrk__seq_grow(s, q, blocks)) {
            struct wrk_seq *victim = wrk__seq_newest(s);
            KVS_ASSERT(victim && victim->order >= q->order);
            wrk__seq_preempt(s, victim);
            preempted = true;
        }
    }
    return preempted;
}

/* What the step will write belongs to this sequence alone. */
static bool is_writable(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t count)
{
    uint32_t end = kvc_blocks_for(&s->layout, q->computed + count);
    for (uint32_t g = 0; g < s->layout.group_count; g++)
        for (uint32_t b = q->computed / s->layout.block_tokens; b < end; b++)
            if (wrk__kinds_entry_needed(s, q, g, b, q->computed + count) &&
                !kvc_pool_writable(s->pool[g], kvc_block_row(&q->table, g)[b]))
                return false;
    return true;
}

static void add_entry(struct wrk_sched *s, struct wrk_seq *q, uint32_t count)
{
    KVS_ASSERT(s->step.entry_count < s->batch_seqs);
    KVS_ASSERT(count > 0 && q->computed + count <= q->token_count);
    KVS_ASSERT(kvc_blocks_for(&s->layout, q->computed + count) <= q->table.block_count);
    wrk__kinds_advance(s, q, count);
    KVS_ASSERT(is_writable(s, q, count));
    bool last = q->computed + count == q->token_count;
    s->entries[s->step.entry_count++] = (struct wrk_step_entry){.seq = wrk__seq_id(s, q),
                                                                .owner = q->owner,
                                                                .user = q->user,
                                                                .ids = q->tokens + q->computed,
                                                                .count = count,
                                                                .pos = q->computed,
                                                                .table = &q->table,
                                                                .last = last,
                                                                .logits = last ? q->logits : WRK_LOGITS_NONE,
                                                                .sampling = q->sampling,
                                                                .choice = q->choice,
                                                                .position = q->computed + count};
    s->step.token_count += count;
    if (last && q->logits != WRK_LOGITS_NONE)
        s->step.logits_count++;
    q->in_step = true;
}

static uint32_t count_running(const struct wrk_sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = s->oldest; i != WRK_NIL; i = s->seqs[i].newer)
        n += has_work(&s->seqs[i]) && is_single(&s->seqs[i]);
    return n;
}

/* Oldest first; when there are more than `room` they take turns: the walk begins behind the one that was served last. */
static void add_running(struct wrk_sched *s, uint32_t room)
{
    uint64_t after = count_running(s) > room ? s->served_order : 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = s->oldest; i != WRK_NIL && s->step.entry_count < room; i = s->seqs[i].newer) {
            struct wrk_seq *q = &s->seqs[i];
            bool turn = (q->order > after) == (pass == 0);
            if (!turn || q->in_step || !has_work(q) || !is_single(q))
                continue;
            add_entry(s, q, 1);
            s->served_order = q->order;
        }
}

static void add_chunks(struct wrk_sched *s)
{
    uint32_t budget = s->chunk_tokens;
    for (uint32_t i = s->oldest; i != WRK_NIL && budget > 0 && s->step.entry_count < s->batch_seqs;
         i = s->seqs[i].newer) {
        struct wrk_seq *q = &s->seqs[i];
        if (q->in_step || !has_work(q) || is_single(q))
            continue;
        uint32_t left = q->token_count - q->computed, room = wrk__kinds_room(s, q);
        uint32_t n = left < budget ? left : budget;
        n = n < room ? n : room;
        budget -= n;
        add_entry(s, q, n);
    }
}

static bool chunk_waits(const struct wrk_sched *s)
{
    for (uint32_t i = s->oldest; i != WRK_NIL; i = s->seqs[i].newer)
        if (has_work(&s->seqs[i]) && !is_single(&s->seqs[i]))
            return true;
    return false;
}

static void compose(struct wrk_sched *s)
{
    uint32_t room =
        s->batch_seqs; /* one place is kept for a chunk, else prompts would wait for running sequences to end */
    if (room > 1 && chunk_waits(s))
        room--;
    add_running(s, room);
    add_chunks(s);
}

const struct wrk_step *wrk_sched_next_step(struct wrk_sched *s)
{
    if (s->in_flight)
        return NULL;
    memset(s->result_count, 0, sizeof s->result_count);
    uint64_t id = s->step.id;
    s->step = (struct wrk_step){.id = id, .entries = s->entries};
    bool preempted = grow_running(s);
    compose(s);
    if (s->step.entry_count == 0 && preempted) {
        wrk_sched_admit(s); /* nothing else may come along to do it */
        (void)grow_running(s);
        compose(s);
    }
    if (s->step.entry_count == 0)
        return NULL;
    s->step.id++;
    s->in_flight = true;
    s->stats.steps++;
    if (s->step.entry_count > s->stats.widest_batch)
        s->stats.widest_batch = s->step.entry_count;
    return &s->step;
}

const struct wrk_step *wrk_sched_in_flight(const struct wrk_sched *s)
{
    return s->in_flight ? &s->step : NULL;
}

bool wrk_sched_stop_wanted(const struct wrk_sched *s)
{
    if (!s->in_flight)
        return false;
    for (uint32_t i = 0; i < s->step.entry_count; i++) {
        const struct wrk_seq *q = wrk__seq(s, s->entries[i].seq);
        if (q->state != WRK_SEQ_CLOSING && q->state != WRK_SEQ_STOPPED)
            return false;
    }
    return true;
}

/* A step that was stopped is done again if it is still wanted. But nobody knows how far a state has gone on: a decode sequence begins anew;
 * a source, from whose pages sends may run, has to be given up by its owner (true). */
static bool stop_spoils(struct wrk_sched *s, struct wrk_seq *q)
{
    if (!s->has_state || q->state != WRK_SEQ_READY)
        return false;
    if (q->owner == WRK_OWNER_DECODE)
        wrk__seq_preempt(s, q);
    return q->owner == WRK_OWNER_PREFILL;
}

static void book_entry(struct wrk_sched *s, const struct wrk_step_entry *e, const struct wrk_result *r)
{
    struct wrk_seq *q = wrk__seq(s, e->seq);
    KVS_ASSERT(q && q->in_step && q->computed == e->pos);
    bool single = is_single(q);
    q->in_step = false;
    s->changed = true;
    if (q->state == WRK_SEQ_CLOSING) {
        wrk__seq_remove(s, q);
        return;
    }
    struct wrk_result given_up = {.status = KVS_REQ_CANCELLED};
    if (!r) {
        if (!stop_spoils(s, q))
            return;
        r = &given_up;
    }
    if (r->status == KVS_OK) {
        q->computed += e->count;
        wrk__kinds_computed(s, q);
        wrk__prefix_offer(s, q);
        if (single) {
            s->stats.decode_tokens++;
        } else {
            q->chunks++;
            q->prefilled += e->count;
            s->stats.chunks++;
            s->stats.prefill_tokens += e->count;
        }
    }
    if (q->state == WRK_SEQ_STOPPED)
        return;
    uint32_t n = s->result_count[q->owner]++;
    s->results[q->owner][n] = (struct wrk_seq_result){
        .seq = e->seq, .user = q->user, .pos = e->pos, .count = e->count, .last = e->last, .r = *r};
}

bool wrk_sched_step_done(struct wrk_sched *s, uint64_t id, kvs_status status, const struct wrk_result *results)
{
    if (!s->in_flight || s->step.id != id)
        return false;
    KVS_ASSERT(status != KVS_OK || results);
    struct wrk_result failed = {.status = status};
    memset(s->result_count, 0, sizeof s->result_count);
    s->result_step = id;
    s->in_flight = false;
    for (uint32_t i = 0; i < s->step.entry_count; i++) {
        const struct wrk_result *r = status == KVS_OK ? &results[i] : status == KVS_REQ_CANCELLED ? NULL : &failed;
        book_entry(s, &s->entries[i], r);
    }
    return true;
}

const struct wrk_seq_result *wrk_sched_results(const struct wrk_sched *s, wrk_owner owner, uint32_t *count_out,
                                               uint64_t *step_id_out)
{
    KVS_ASSERT(owner < WRK_OWNERS);
    *count_out = s->result_count[owner];
    if (step_id_out)
        *step_id_out = s->result_step;
    return s->results[owner];
}

struct wrk_blocks wrk_entry_blocks(const struct kvc_layout *l, uint32_t pos, uint32_t count, bool is_end)
{
    uint32_t first = pos / l->block_tokens;
    uint32_t end = is_end ? kvc_blocks_for(l, pos + count) : (pos + count) / l->block_tokens;
    return (struct wrk_blocks){.first = first, .count = end > first ? end - first : 0};
}

struct wrk_sched_stats wrk_sched_stats(const struct wrk_sched *s)
{
    struct wrk_sched_stats out = s->stats;
    for (uint32_t i = s->oldest; i != WRK_NIL; i = s->seqs[i].newer) {
        const struct wrk_seq *q = &s->seqs[i];
        bool wanted = q->state == WRK_SEQ_WAITING || q->state == WRK_SEQ_HELD || q->state == WRK_SEQ_READY;
        out.waiting += q->state == WRK_SEQ_WAITING;
        out.active += q->state == WRK_SEQ_HELD || q->state == WRK_SEQ_READY;
        out.fenced += q->state == WRK_SEQ_FENCED;
        uint32_t left = q->token_count - q->computed;
        bool writes = q->running && q->state == WRK_SEQ_READY;
        bool others = q->state == WRK_SEQ_HELD || (q->hold && q->state == WRK_SEQ_WAITING); /* a transfer brings it */
        out.decoding += writes;
        out.context_tokens += writes ? q->computed : 0;
        if (wanted && !others && !q->deferred && (!q->running || left > 1))
            out.prefill_left += left;
        if (wanted)
            out.outstanding_tokens += q->tokens_max - 1 > q->computed ? q->tokens_max - 1 - q->computed : 0;
    }
    return out;
}
