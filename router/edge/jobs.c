/* jobs.c - requests on the loop: from submission to the last byte. What the core decides (token, finish) becomes text and bytes here.
 * A job lives until its request has ended in the core (FINISH or REJECT) and, for control clients, its chunks are sent.
 * The head of an HTTP answer is fixed with the first token (or error), so that an earlier failure has its own status.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/dispatch_impl.h"

#include "router/edge/openai.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct rtr_job *rtr_job_of(struct rtr_dispatch *d, uint64_t id)
{
    uint64_t i;
    return kvs_map_get(d->job_by_id, id, &i) ? d->jobs[i] : NULL;
}

void rtr_job_remove(struct rtr_dispatch *d, struct rtr_job *j)
{
    uint64_t i = 0;
    bool there = kvs_map_get(d->job_by_id, j->id, &i);
    KVS_ASSERT(there && d->jobs[i] == j);
    (void)kvs_map_remove(d->job_by_id, j->id);
    struct rtr_job *last = d->jobs[--d->job_count];
    d->jobs[i] = last;
    if (last != j) {
        kvs_status s = kvs_map_put(d->job_by_id, last->id, i); /* replaces: cannot be full */
        KVS_ASSERT(s == KVS_OK);
    }
    if (j->x) {
        rtr_exchange_release(j->x);
        atomic_fetch_sub(&d->active, 1);
    }
    rtr_defer_release(d, j->answer->choice_count);
    rtr_answer_destroy(j->answer);
    free(j);
}

void rtr_exchange_fault(struct rtr_exchange *x, const struct rtr_fault *f)
{
    struct rtr_head head = {.http = rtr_fault_http(f->status), .final = rtr_fault_final(f->status), .retry_after_s = f->retry_after_s};
    struct kvs_buf b;
    size_t backlog;
    kvs_buf_init(&b, 65536);
    if (rtr_fault_write(f, &b) != KVS_OK || rtr_exchange_write(x, b.data, b.len, &backlog) != KVS_OK)
        KVS_WARN("an error is told without its text", "status=%s text=\"%s\"", kvs_status_name(f->status), f->text);
    rtr_exchange_head(x, &head); /* in any case: without a head the connection would wait for ever */
    kvs_buf_fini(&b);
    rtr_exchange_end(x);
}

void rtr_exchange_reply(struct rtr_exchange *x, const char *json)
{
    size_t backlog;
    struct rtr_fault f = {.retry_after_s = 1};
    kvs_status s = rtr_exchange_write(x, json, strlen(json), &backlog);
    if (s != KVS_OK) {
        (void)rtr_fail(&f, s, NULL, "done, but the answer could not be written");
        rtr_exchange_fault(x, &f);
        return;
    }
    rtr_exchange_head(x, &(struct rtr_head){.http = 200});
    rtr_exchange_end(x);
}

/* ---- begin ---- */

static kvs_status keep_job(struct rtr_dispatch *d, struct rtr_job *j)
{
    if (d->job_count == d->jobs_max)
        return KVS_BUSY_QUEUE;
    kvs_status s = rtr_defer_reserve(d, j->answer->choice_count);
    if (s != KVS_OK)
        return s;
    s = kvs_map_put(d->job_by_id, j->id, d->job_count);
    if (s == KVS_OK)
        d->jobs[d->job_count++] = j;
    else
        rtr_defer_release(d, j->answer->choice_count);
    return s;
}

static void fill_request(const struct rtr_submit *s, const struct rtr_answer *a, struct rtr_request *q)
{
    memset(q, 0, sizeof(*q));
    q->id = s->id;
    q->model = s->model->key;
    q->choices = s->params.choices;
    q->tokens = s->ids.ids;
    q->token_count = (uint32_t)s->ids.count;
    q->max_tokens = s->max_tokens;
    q->sampling = s->params.sampling;
    if (!s->params.seed_given)
        q->sampling.seed = kvs_random_u64();
    q->stop_id_count = a->stop_id_count;
    memcpy(q->stop_ids, a->stop_ids, sizeof(q->stop_ids));
    q->ignore_eos = s->params.ignore_eos;
    q->logits = s->params.logits;
    q->placement = s->params.placement;
    memcpy(q->fetch_worker, s->params.fetch_worker, sizeof(q->fetch_worker));
    memcpy(q->cache_salt, s->params.cache_salt, sizeof(q->cache_salt));
    memcpy(q->trace, s->trace, sizeof(q->trace));
}

void rtr_job_begin(struct rtr_dispatch *d, struct rtr_submit *s, net_conn conn, uint32_t stream, uint64_t client_request)
{
    struct rtr_request q;
    struct rtr_job *j = calloc(1, sizeof(*j));
    kvs_status st = j ? rtr_answer_create(&s->params, s->model, s->id, &s->ids, &j->answer) : KVS_SELF_NOMEM;
    if (st == KVS_OK) {
        j->id = s->id;
        j->x = s->x;
        j->conn = conn;
        j->stream = stream;
        j->client_request = client_request;
        j->arrived_us = j->written_us = s->arrived_us;
        st = keep_job(d, j);
    }
    if (st != KVS_OK) {
        struct rtr_fault f = {.retry_after_s = 1};
        (void)rtr_fail(&f, st, NULL, st == KVS_SELF_NOMEM ? "the router is out of memory; try again later"
                                                         : "the router cannot take another request now; try again later");
        rtr_jobs_count(d, st);
        if (s->x) {
            rtr_exchange_fault(s->x, &f);
            atomic_fetch_sub(&d->active, 1);
        } else {
            struct msg_end end = {.status = st};
            kvs_format(end.text, sizeof(end.text), "%s", f.text);
            net_rpc_end(d->rpc, conn, stream, &end);
        }
        if (j)
            rtr_answer_destroy(j->answer);
        free(j);
        rtr_submit_destroy(s);
        return;
    }
    s->x = NULL; /* the job's now */
    KVS_DEBUG("request", "req=%016" PRIx64 " trace=%s model=%s prompt_tokens=%zu max_tokens=%u choices=%u", j->id, s->trace, s->model->name,
              s->ids.count, s->max_tokens, s->params.choices);
    kvs_counter_add(d->m.prompt_tokens, s->ids.count);
    fill_request(s, j->answer, &q);
    rtr_feed(d, &(struct rtr_event){.type = RTR_EV_REQUEST, .request = &q});
    rtr_submit_destroy(s);
}

void rtr_job_started(struct rtr_dispatch *d, const struct rtr_action *generate, const char *decode)
{
    struct rtr_job *j = rtr_job_of(d, generate->id);
    if (!j)
        return;
    kvs_format(j->decode, sizeof(j->decode), "%s", decode);
    KVS_ASSERT(generate->option_count <= RTR_OPTIONS_MAX);
    j->row.id = j->id;
    j->row.prompt_tokens = generate->generate.prompt_count;
    j->row.option_count = generate->option_count;
    if (generate->option_count)
        memcpy(j->row.option, generate->options, generate->option_count * sizeof(*generate->options));
}

/* ---- the head ---- */

static void send_head(struct rtr_job *j, unsigned http)
{
    struct rtr_head head = {.http = http, .stream = j->answer->stream};
    kvs_format(head.placement, sizeof(head.placement), "%s", j->placement);
    if (!j->placement[0])
        kvs_format(head.placement, sizeof(head.placement), "mode=- prefill=- decode=%s cached=- bytes=- transport=-",
                   j->decode[0] ? j->decode : "-");
    rtr_exchange_head(j->x, &head);
    j->head_sent = true;
}

/* Beside the prediction: what came of it. Predicted is from the placement on, measured from the request's arrival. */
static void note_times(struct rtr_dispatch *d, struct rtr_job *j, const struct msg_placed *p, uint64_t now_us)
{
    struct rtr_placed_row *row = &j->row;
    row->at_us = now_us;
    row->mode = p->mode;
    row->cached_tokens = p->cached_tokens;
    row->measured_s = (double)(now_us - j->arrived_us) * 1e-6;
    if (!row->option_count)
        return;
    double predicted = row->option[0].cost.ttft_s, off = predicted - row->measured_s;
    kvs_histogram_observe(d->m.ttft_predicted, predicted);
    kvs_histogram_observe(d->m.ttft_off, off < 0 ? -off : off);
    rtr_recent_add(&d->recent, row);
}

static void note_placement(struct rtr_dispatch *d, struct rtr_job *j, const struct msg_placed *p, uint64_t now_us)
{
    bool remote = p->mode == MSG_PLACE_REMOTE;
    char times[320];
    if (j->placed)
        return;
    j->placed = true;
    note_times(d, j, p, now_us);
    rtr_recent_text(&j->row, times, sizeof(times));
    kvs_format(j->placement, sizeof(j->placement), "mode=%s prefill=%s decode=%s cached=%u bytes=%" PRIu64 " transport=%s%s", remote ? "remote" : "local",
               p->prefill_worker[0] ? p->prefill_worker : j->decode, j->decode, p->cached_tokens, p->bytes,
               p->transport[0] ? p->transport : "none", times);
    kvs_counter_add(d->m.placed[remote], 1);
}

/* ---- writing ---- */

void rtr_job_pause(struct rtr_dispatch *d, struct rtr_job *j, bool paused)
{
    if (j->paused == paused)
        return;
    j->paused = paused;
    struct rtr_deferred ev = {.type = RTR_EV_PAUSE, .id = j->id, .flag = paused};
    rtr_defer(d, &ev);
}

static kvs_status write_out(struct rtr_dispatch *d, struct rtr_job *j, const struct kvs_buf *b, uint64_t now_us)
{
    size_t backlog = 0;
    if (!b->len)
        return KVS_OK;
    kvs_status s = rtr_exchange_write(j->x, b->data, b->len, &backlog);
    j->written_us = now_us;
    if (backlog > RTR_BACKLOG_HIGH)
        rtr_job_pause(d, j, true);
    return s;
}

/* Our own failure to write: the request is given up; the client is told when its head is not out yet. */
static void give_up(struct rtr_dispatch *d, struct rtr_job *j, kvs_status s, const char *text)
{
    if (j->failed)
        return;
    j->failed = true;
    (void)rtr_fail(&j->fault, s, NULL, "%s", text);
    struct rtr_deferred ev = {.type = RTR_EV_GONE, .id = j->id};
    rtr_defer(d, &ev);
}

void rtr_job_cut(struct rtr_dispatch *d, struct rtr_job *j, uint64_t id, rtr_cut why, uint64_t waiting_bytes)
{
    static const char *const reason[] = {[RTR_CUT_STALLED] = "stalled", [RTR_CUT_VANISHED] = "vanished"};
    double seconds = (double)d->client_stall_us * 1e-6;
    kvs_counter_add(d->m.cut[why], 1);
    KVS_INFO("client cut", "req=%016" PRIx64 " reason=%s waiting_bytes=%" PRIu64 " stall_s=%.3g running=%d", id, reason[why], waiting_bytes, seconds,
             j && !j->ended);
    if (!j || j->ended)
        return;
    if (!j->failed) {
        j->failed = true;
        if (why == RTR_CUT_STALLED)
            (void)rtr_fail(&j->fault, KVS_REQ_CANCELLED, NULL, "the client took nothing for %.3g s of what waited for it", seconds);
        else
            (void)rtr_fail(&j->fault, KVS_REQ_CANCELLED, NULL, "the client's host is gone");
    }
    rtr_feed(d, &(struct rtr_event){.type = RTR_EV_GONE, .id = id});
}

static void observe(struct rtr_dispatch *d, struct rtr_job *j, uint64_t now_us)
{
    if (!j->first_us) {
        j->first_us = now_us;
        kvs_histogram_observe(d->m.ttft, (double)(now_us - j->arrived_us) / 1e6);
    } else if (j->answer->choice_count == 1) {
        kvs_histogram_observe(d->m.itl, (double)(now_us - j->last_us) / 1e6);
    }
    j->last_us = now_us;
    kvs_counter_add(d->m.answer_tokens, 1);
}

void rtr_job_token(struct rtr_dispatch *d, uint64_t id, const struct msg_token *t)
{
    struct rtr_job *j = rtr_job_of(d, id);
    bool stopped = false;
    if (!j || j->failed)
        return;
    uint64_t now_us = kvs_now_us();
    if (t->has_placed)
        note_placement(d, j, &t->placed, now_us);
    bool first = !j->first_us;
    if (t->id >= 0)
        observe(d, j, now_us);
    kvs_buf_clear(&d->scratch);
    kvs_status s = rtr_answer_token(j->answer, t, &d->scratch, &stopped);
    if (s == KVS_OK && j->x && j->answer->stream) {
        s = write_out(d, j, &d->scratch, now_us);
        if (s == KVS_OK && !j->head_sent)
            send_head(j, 200);
    }
    if (stopped) {
        struct rtr_deferred ev = {.type = RTR_EV_CHOICE_STOP, .id = id, .choice = t->choice};
        rtr_defer(d, &ev);
    }
    if (s != KVS_OK)
        give_up(d, j, s, "the answer could not be written");
    else if (!j->x)
        rtr_client_flush(d, j);
    if (first && KVS_FAILPOINT("router.after_first_token"))
        give_up(d, j, KVS_SELF_INTERNAL, "failpoint router.after_first_token");
}

/* ---- the end ---- */

static size_t outcome_index(kvs_status s)
{
    static const char *const names[] = {"ok", "invalid", "cancelled", "deadline", "busy", "error"};
    const char *name = rtr_fault_outcome(s);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return 5;
}

void rtr_jobs_count(struct rtr_dispatch *d, kvs_status outcome)
{
    kvs_counter_add(d->m.outcome[outcome_index(outcome)], 1);
}

static void finish_ok(struct rtr_dispatch *d, struct rtr_job *j, struct rtr_fault *f)
{
    kvs_buf_clear(&d->scratch);
    kvs_status s = rtr_answer_done(j->answer, &d->scratch);
    if (s == KVS_OK)
        s = write_out(d, j, &d->scratch, kvs_now_us());
    if (s != KVS_OK)
        (void)rtr_fail(f, s, NULL, "the answer could not be written");
    else if (!j->head_sent)
        send_head(j, 200);
}

static void finish_fault(struct rtr_dispatch *d, struct rtr_job *j, const struct rtr_fault *f)
{
    if (!j->head_sent) {
        rtr_exchange_fault(j->x, f);
        return;
    }
    kvs_buf_clear(&d->scratch);
    if (!j->answer->stream || rtr_openai_error_event(f, &d->scratch) != KVS_OK || write_out(d, j, &d->scratch, kvs_now_us()) != KVS_OK)
        rtr_exchange_drop(j->x); /* broken off without an end: the client sees that it is not whole */
}

static void finish_http(struct rtr_dispatch *d, struct rtr_job *j, struct rtr_fault *f)
{
    if (f->status == KVS_OK)
        finish_ok(d, j, f);
    if (f->status == KVS_REQ_CANCELLED)
        rtr_exchange_drop(j->x);
    else if (f->status != KVS_OK)
        finish_fault(d, j, f);
    rtr_exchange_end(j->x);
}

void rtr_job_finish(struct rtr_dispatch *d, uint64_t id, kvs_status status, const char *text, uint32_t retry_after_s)
{
    struct rtr_job *j = rtr_job_of(d, id);
    struct rtr_fault f = {0};
    if (!j)
        return;
    if (j->failed)
        f = j->fault;
    else if (status != KVS_OK)
        (void)rtr_fail(&f, status, NULL, "%s", text);
    f.retry_after_s = retry_after_s;
    if (j->x)
        finish_http(d, j, &f);
    rtr_jobs_count(d, f.status);
    if (kvs_is_peer(f.status) || kvs_is_self(f.status))
        KVS_WARN("request failed", "req=%016" PRIx64 " status=%s text=\"%s\"", id, kvs_status_name(f.status), f.text);
    KVS_DEBUG("request over", "req=%016" PRIx64 " status=%s text=\"%s\" us=%" PRIu64, id, kvs_status_name(f.status), f.text,
              kvs_now_us() - j->arrived_us);
    if (j->x) {
        rtr_job_remove(d, j);
        return;
    }
    j->ended = true;
    j->end_status = f.status;
    j->end_us = kvs_now_us();
    j->fault = f;
    rtr_client_flush(d, j);
}

/* ---- once in a while ---- */

/* HTTP threads say when a client has left or reads again, if they have memory for that. */
static void look_after(struct rtr_dispatch *d, struct rtr_job *j)
{
    size_t backlog;
    bool completed;
    rtr_exchange_look(j->x, &backlog, &completed);
    if (completed)
        rtr_defer(d, &(struct rtr_deferred){.type = RTR_EV_GONE, .id = j->id});
    else if (j->paused && backlog <= RTR_BACKLOG_LOW)
        rtr_job_pause(d, j, false);
}

void rtr_jobs_tick(struct rtr_dispatch *d, uint64_t now_us)
{
    static const char comment[] = ": waiting\n\n";
    for (uint32_t i = d->job_count; i-- > 0;) { /* backwards: jobs may be removed, also others than the one looked at */
        if (i >= d->job_count)
            continue;
        struct rtr_job *j = d->jobs[i];
        if (!j->x) {
            rtr_client_look(d, j, now_us);
            continue;
        }
        look_after(d, j);
        if (!j->answer->stream)
            continue;
        if (!j->head_sent && now_us - j->arrived_us >= d->head_after_us)
            send_head(j, 200);
        if (j->head_sent && !j->paused && now_us - j->written_us >= d->comment_every_us) {
            size_t backlog;
            if (rtr_exchange_write(j->x, comment, sizeof(comment) - 1, &backlog) != KVS_OK)
                give_up(d, j, KVS_BUSY_FULL, "the client does not read its answer");
            j->written_us = now_us;
        }
    }
}
