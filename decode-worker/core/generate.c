/* generate.c - GENERATE calls: what is accepted, what a sampled token leads to, how a call ends.
 * A token's index counts from the answer's first token (first_index when resumed), its position from the prompt's first; both are functions
 * of how many tokens there are, so a resumed, preempted or moved sequence goes on with the same draws.
 * The last entry of a call that was not aborted carries finish != RUNNING; END comes after it, once the pages are back or fenced.
 * SPDX-License-Identifier: Apache-2.0 */
#include "decode-worker/core/private.h"

#include <string.h>

static struct dcw_call *free_call(struct dcw *d)
{
    for (uint32_t i = 0; i < d->calls_max; i++)
        if (!d->calls[i].live)
            return &d->calls[i];
    return NULL;
}

/* The same call once more (to be ignored), or the same sequence on another stream (to be refused). */
static bool is_known(const struct dcw *d, const struct dcw_event *ev, bool *same_call)
{
    const struct msg_generate *m = ev->generate.msg;
    bool known = false;
    *same_call = false;
    for (uint32_t i = 0; i < d->calls_max; i++) {
        const struct dcw_call *c = &d->calls[i];
        if (!c->live || c->conn != ev->conn)
            continue;
        if (c->stream == ev->stream)
            *same_call = true;
        if (c->phase < DCW_ENDING && c->request == m->request && c->attempt == m->attempt && c->choice == m->choice)
            known = true;
    }
    return known || *same_call;
}

static kvs_status check_generate(struct dcw *d, const struct dcw_event *ev, struct kvs_error *err)
{
    const struct msg_generate *m = ev->generate.msg;
    uint32_t context = wrk_sched_context(d->sched);
    if (d->draining)
        return kvs_fail(err, KVS_SELF_STOPPING, "this decode worker is draining");
    if (d->off)
        return kvs_fail(err, KVS_SELF_STOPPING, "this worker does not decode now");
    if (!dcw__router(d, ev->conn))
        return kvs_fail(err, KVS_REQ_INVALID, "no Tokens call is open on this connection: where should tokens go?");
    if (m->adapter[0])
        return kvs_fail(err, KVS_REQ_UNSUPPORTED, "adapters are not offered");
    if (m->token_count == 0 || m->prompt_count == 0 || m->prompt_count > m->token_count)
        return kvs_fail(err, KVS_REQ_INVALID, "a prompt of %u in %u tokens", m->prompt_count, m->token_count);
    if (m->first_index != m->token_count - m->prompt_count)
        return kvs_fail(err, KVS_REQ_INVALID, "first_index %u, but %u tokens follow the prompt", m->first_index,
                        m->token_count - m->prompt_count);
    if (m->token_count >= context)
        return kvs_fail(err, KVS_REQ_TOO_LONG, "%u tokens leave no room to write in a context of %u", m->token_count,
                        context);
    if (m->stop_id_count > DCW_STOP_IDS_MAX)
        return kvs_fail(err, KVS_REQ_INVALID, "%u stop ids, %d are the most", m->stop_id_count, DCW_STOP_IDS_MAX);
    for (uint32_t i = 0; i < m->token_count; i++)
        if (m->tokens[i] < 0 || (uint32_t)m->tokens[i] >= d->vocab)
            return kvs_fail(err, KVS_REQ_INVALID, "token %u is outside the vocabulary", i);
    return KVS_OK;
}

static void fill_call(struct dcw *d, struct dcw_call *c, const struct dcw_event *ev, uint64_t now_us)
{
    const struct msg_generate *m = ev->generate.msg;
    *c =
        (struct dcw_call){.live = true,
                          .generation = c->generation + 1,
                          .conn = ev->conn,
                          .stream = ev->stream,
                          .request = m->request,
                          .attempt = m->attempt,
                          .choice = m->choice,
                          .next_index = m->first_index,
                          .prompt_count = m->prompt_count,
                          .max_tokens = m->max_tokens,
                          .sampling = m->sampling,
                          .logits = m->logits,
                          .priority = m->priority,
                          .arrived_us = now_us,
                          .deadline_us = ev->generate.deadline_us ? ev->generate.deadline_us : now_us + d->call_max_us};
    c->stop_id_count = m->ignore_eos ? 0 : m->stop_id_count;
    for (uint32_t i = 0; i < c->stop_id_count; i++)
        c->stop_ids[i] = m->stop_ids[i];
    memcpy(c->prefill_worker, m->prefill_worker, sizeof c->prefill_worker);
    memcpy(c->tenant, m->tenant, sizeof c->tenant);
    memcpy(c->cache_salt, m->cache_salt, sizeof c->cache_salt);
    bool remote = m->placement == MSG_PLACE_REMOTE && m->prefill_worker[0] && strcmp(m->prefill_worker, d->id) != 0;
    bool fetch = m->fetch_tokens > 0 && m->fetch_worker[0] && strcmp(m->fetch_worker, d->id) != 0;
    c->remote = remote;
    c->fetch_tokens = fetch ? m->fetch_tokens : 0;
    memcpy(c->fetch_worker, m->fetch_worker, sizeof c->fetch_worker);
    c->phase = remote || fetch ? DCW_QUEUED : DCW_LOCAL;
    c->placed.mode = MSG_PLACE_LOCAL;
    memcpy(c->placed.prefill_worker, d->id, sizeof c->placed.prefill_worker);
    kvs_format(c->placed.transport, sizeof c->placed.transport, "none");
}

static kvs_status open_seq(struct dcw *d, struct dcw_call *c, const struct msg_generate *m, struct kvs_error *err)
{
    uint32_t context = wrk_sched_context(d->sched);
    uint64_t longest = (uint64_t)m->token_count + (m->max_tokens - m->first_index);
    struct wrk_seq_config qc = {.owner = WRK_OWNER_DECODE,
                                .user = (uint32_t)(c - d->calls),
                                .tokens = m->tokens,
                                .token_count = m->token_count,
                                .tokens_max = longest < context ? (uint32_t)longest : context,
                                .hold = c->phase == DCW_QUEUED,
                                .logits = WRK_LOGITS_SAMPLE,
                                .sampling = m->sampling,
                                .choice = m->choice,
                                .tenant = m->tenant,
                                .cache_salt = m->cache_salt,
                                .adapter = m->adapter};
    return wrk_seq_open(d->sched, &qc, &c->seq, err);
}

static struct msg_token *new_entry(struct dcw *d, struct dcw_call *c, uint64_t now_us);

void dcw__on_generate(struct dcw *d, const struct dcw_event *ev, uint64_t now_us)
{
    const struct msg_generate *m = ev->generate.msg;
    struct kvs_error err = {.code = KVS_OK};
    bool same_call, known = is_known(d, ev, &same_call);
    if (same_call)
        return;
    struct dcw_call *c = free_call(d);
    kvs_status st = check_generate(d, ev, &err);
    if (st == KVS_OK && known)
        st = kvs_fail(&err, KVS_REQ_INVALID, "this attempt of the request is running already");
    if (st == KVS_OK && !c)
        st = kvs_fail(&err, KVS_BUSY_QUEUE, "all %u calls of this decode worker are taken", d->calls_max);
    if (st == KVS_OK) {
        fill_call(d, c, ev, now_us);
        if (m->max_tokens <= m->first_index) { /* nothing is left to write */
            d->stats.accepted++;
            new_entry(d, c, now_us)->finish = MSG_FINISH_LENGTH;
            dcw__end(d, c, MSG_FINISH_LENGTH, KVS_OK, "");
            return;
        }
        st = open_seq(d, c, m, &err);
        if (st != KVS_OK)
            *c = (struct dcw_call){.generation = c->generation};
    }
    if (st != KVS_OK) {
        d->stats.refused++;
        dcw__act_end(d, ev->conn, ev->stream, m->request, st, err.text);
        return;
    }
    d->stats.accepted++;
}

/* An entry of this step without a token; the first one of a call says how its prompt's KV came to be. */
static struct msg_token *new_entry(struct dcw *d, struct dcw_call *c, uint64_t now_us)
{
    KVS_ASSERT(d->entry_count < d->entry_cap && !c->router_lost);
    d->entry_conn[d->entry_count] = c->conn;
    struct msg_token *e = &d->entries[d->entry_count++];
    *e = (struct msg_token){
        .request = c->request, .attempt = c->attempt, .choice = c->choice, .index = c->next_index, .id = -1};
    if (c->placed_sent)
        return e;
    c->placed_sent = true;
    struct msg_placed *p = &c->placed;
    struct wrk_seq_view v = wrk_seq_look(d->sched, c->seq);
    uint32_t found = p->mode == MSG_PLACE_REMOTE ? c->t.source_cached : v.cached;
    if (found < c->found_elsewhere)
        found = c->found_elsewhere;
    p->cached_tokens = found < c->prompt_count ? found : c->prompt_count;
    p->local_prefill_tokens = v.prefilled;
    p->queue_us = (c->started_us ? c->started_us : now_us) - c->arrived_us;
    if (p->mode == MSG_PLACE_LOCAL && c->started_us)
        p->prefill_us = now_us - c->started_us;
    e->has_placed = true;
    e->placed = *p;
    return e;
}

void dcw__end(struct dcw *d, struct dcw_call *c, msg_finish finish, kvs_status status, const char *text)
{
    if (c->phase >= DCW_ENDING)
        return;
    d->stats.ended[finish]++;
    c->phase = DCW_ENDING;
    c->end_status = status;
    kvs_format(c->end_text, sizeof c->end_text, "%s", text);
    if (c->seq != WRK_SEQ_NONE)
        dcw__transfer_abandon(d, c);
}

void dcw__fail(struct dcw *d, struct dcw_call *c, kvs_status status, const char *text, uint64_t now_us)
{
    if (c->phase >= DCW_ENDING)
        return;
    struct msg_token *e = new_entry(d, c, now_us);
    e->finish = MSG_FINISH_ERROR;
    e->error = status;
    kvs_format(e->text, sizeof e->text, "%s", text);
    dcw__end(d, c, MSG_FINISH_ERROR, status, text);
}

static bool is_stop(const struct dcw_call *c, int32_t id)
{
    for (uint32_t i = 0; i < c->stop_id_count; i++)
        if (c->stop_ids[i] == id)
            return true;
    return false;
}

void dcw__token(struct dcw *d, struct dcw_call *c, const struct wrk_result *r, uint64_t now_us)
{
    KVS_ASSERT(c->phase == DCW_LOCAL);
    if (r->status != KVS_OK) {
        dcw__fail(d, c, r->status,
                  r->status == KVS_SELF_NUMERIC ? "a number of this sequence is not finite" : "the step failed",
                  now_us);
        return;
    }
    uint32_t length = wrk_seq_look(d->sched, c->seq).token_count + 1;
    if (!c->placed_sent)
        (*(c->placed.mode == MSG_PLACE_REMOTE ? &d->stats.remote : &d->stats.local))++;
    struct msg_token *e = new_entry(d, c, now_us);
    e->id = r->token;
    e->logit = c->logits ? r->logit : 0;
    e->logprob = c->logits ? r->logprob : 0;
    c->next_index++;
    d->stats.tokens++;
    if (is_stop(c, r->token))
        e->finish = MSG_FINISH_STOP;
    else if (c->next_index >= c->max_tokens || length >= wrk_sched_context(d->sched))
        e->finish = MSG_FINISH_LENGTH;
    if (e->finish != MSG_RUNNING)
        dcw__end(d, c, e->finish, KVS_OK, "");
    else
        wrk_seq_append(d->sched, c->seq, r->token);
}

void dcw__on_step_done(struct dcw *d, uint64_t now_us)
{
    uint32_t n;
    const struct wrk_seq_result *r = wrk_sched_results(d->sched, WRK_OWNER_DECODE, &n, NULL);
    for (uint32_t i = 0; i < n; i++, r++) {
        struct dcw_call *c = r->user < d->calls_max ? &d->calls[r->user] : NULL;
        if (!c || !c->live || c->seq != r->seq || c->phase != DCW_LOCAL)
            continue;
        struct wrk_seq_view v = wrk_seq_look(d->sched, c->seq);
        d->stats.local_prefill_tokens += v.prefilled - c->prefilled_seen;
        c->prefilled_seen = v.prefilled;
        /* A result that was told before names fewer tokens than there are now. */
        bool fresh =
            r->r.status != KVS_OK || (r->last && r->pos + r->count == v.token_count && v.computed == v.token_count);
        if (fresh)
            dcw__token(d, c, &r->r, now_us);
    }
}
