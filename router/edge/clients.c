/* clients.c - clients on control streams: Generate and Abort of the same requests that HTTP carries, without its shapes. A client's Generate
 * gives tokens or text and a model's name; it gets chunks (text and ids, finish at a choice's end) and END with the request's status.
 * Chunks are credited: without credit they gather in the answer, and a client that lets much gather pauses its sequences. One that takes none
 * for long while some wait is cut, as one that does not read its HTTP stream is (core/stall.h).
 * The prompt is tokenized on the loop: a frame is at most 1 MiB.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/dispatch_impl.h"

#include "proto/wire.h"
#include "router/edge/prompt.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_TEXT_MAX 65536u
#define CHUNK_IDS_MAX 4096u
#define GATHERED_MAX 262144u

static void end_call(struct rtr_dispatch *d, net_conn conn, uint32_t stream, kvs_status s, const char *text)
{
    struct msg_end end = {.status = s};
    kvs_format(end.text, sizeof(end.text), "%s", text);
    net_rpc_end(d->rpc, conn, stream, &end);
}

/* ---- what comes in ---- */

static kvs_status read_generate(struct rtr_dispatch *d, const struct msg_generate *g, struct rtr_submit *s, struct rtr_fault *f)
{
    struct rtr_params *p = &s->params;
    p->kind = RTR_CONTROL;
    p->stream = true;
    p->choices = g->choice ? g->choice : 1; /* from a client: how many */
    p->max_tokens = g->max_tokens;
    p->sampling = g->sampling;
    p->seed_given = g->sampling.temperature == 0.0f || g->sampling.seed != 0;
    p->placement = g->placement;
    p->ignore_eos = g->ignore_eos;
    memcpy(p->fetch_worker, g->fetch_worker, sizeof(p->fetch_worker));
    memcpy(p->cache_salt, g->cache_salt, sizeof(p->cache_salt));
    p->text = g->prompt;
    p->text_len = g->prompt_bytes;
    if (p->choices > RTR_CHOICES_MAX)
        return rtr_fail(f, KVS_REQ_INVALID, "choice", "a request may have at most %d choices", RTR_CHOICES_MAX);
    if (p->sampling.top_p <= 0.0f)
        p->sampling.top_p = 1.0f; /* not given */
    kvs_format(p->model, sizeof(p->model), "%s", g->model);
    s->model = rtr_models_acquire(d->models, p->model);
    if (!s->model)
        return rtr_fail(f, KVS_REQ_UNKNOWN_MODEL, "model", "the model '%.100s' does not exist here", p->model);
    for (uint32_t i = 0; i < g->token_count; i++) {
        if (g->tokens[i] < 0)
            return rtr_fail(f, KVS_REQ_INVALID, "token_ids", "token %u is negative", i);
        if (mdl_ids_push(&p->ids, g->tokens[i]) != KVS_OK)
            return rtr_fail(f, KVS_SELF_NOMEM, NULL, "out of memory");
    }
    return rtr_prompt(s->model, p, &s->ids, &s->max_tokens, f);
}

static struct rtr_job *job_of_client(struct rtr_dispatch *d, net_conn conn, uint64_t client_request)
{
    for (uint32_t i = 0; i < d->job_count; i++)
        if (!d->jobs[i]->x && d->jobs[i]->conn == conn && d->jobs[i]->client_request == client_request && !d->jobs[i]->ended)
            return d->jobs[i];
    return NULL;
}

static void on_generate(struct rtr_dispatch *d, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    struct msg_generate g;
    struct kvs_error e = {0};
    struct rtr_fault f = {0};
    kvs_status st = msg_generate_decode(call->body, call->body_bytes, &d->arena, &g, &e);
    if (st == KVS_OK && job_of_client(d, conn, g.request))
        st = kvs_fail(&e, KVS_REQ_INVALID, "request %llu is already running on this connection", (unsigned long long)g.request);
    if (st == KVS_OK && atomic_load(&d->draining))
        st = kvs_fail(&e, KVS_SELF_STOPPING, "this router is stopping");
    if (st != KVS_OK) {
        end_call(d, conn, stream, st == KVS_PEER_PROTOCOL ? KVS_REQ_INVALID : st, e.text);
        return;
    }
    struct rtr_submit *s = calloc(1, sizeof(*s));
    if (!s) {
        end_call(d, conn, stream, KVS_SELF_NOMEM, "out of memory");
        return;
    }
    s->d = d;
    s->id = rtr_dispatch_next_id(d);
    s->arrived_us = kvs_now_us();
    kvs_format(s->trace, sizeof(s->trace), "%s", g.trace[0] ? g.trace : call->trace);
    st = read_generate(d, &g, s, &f);
    if (st != KVS_OK) {
        rtr_jobs_count(d, st);
        end_call(d, conn, stream, st, f.text);
        rtr_submit_destroy(s);
        return;
    }
    rtr_job_begin(d, s, conn, stream, g.request);
}

static void on_abort(struct rtr_dispatch *d, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    struct msg_abort m;
    struct kvs_error e = {0};
    kvs_status st = msg_abort_decode(call->body, call->body_bytes, &d->arena, &m, &e);
    if (st != KVS_OK) {
        end_call(d, conn, stream, st == KVS_PEER_PROTOCOL ? KVS_REQ_INVALID : st, e.text);
        return;
    }
    struct rtr_job *j = job_of_client(d, conn, m.request);
    end_call(d, conn, stream, KVS_OK, "");
    if (j)
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_GONE, .id = j->id});
}

static void on_health(struct rtr_dispatch *d, net_conn conn, uint32_t stream)
{
    struct msg_health h = {0};
    h.ready = rtr_board_is_ready(d->board, h.text, sizeof(h.text));
    kvs_buf_clear(&d->scratch);
    kvs_status s = msg_health_encode(&h, &d->scratch);
    if (s == KVS_OK)
        s = net_rpc_item(d->rpc, conn, stream, d->scratch.data, d->scratch.len);
    end_call(d, conn, stream, s, "");
}

void rtr_client_call(struct rtr_dispatch *d, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    switch (call->method) {
    case MSG_GENERATE: on_generate(d, conn, stream, call); break;
    case MSG_ABORT: on_abort(d, conn, stream, call); break;
    case MSG_HEALTH: on_health(d, conn, stream); break;
    default: end_call(d, conn, stream, KVS_REQ_UNSUPPORTED, "a router does not serve this method"); break;
    }
}

static struct rtr_job *job_of_stream(struct rtr_dispatch *d, net_conn conn, uint32_t stream)
{
    for (uint32_t i = 0; i < d->job_count; i++)
        if (!d->jobs[i]->x && d->jobs[i]->conn == conn && d->jobs[i]->stream == stream)
            return d->jobs[i];
    return NULL;
}

/* Nobody wants the rest: the job is emptied, and goes when the core has ended the request. */
static void abandon(struct rtr_dispatch *d, struct rtr_job *j)
{
    j->conn = 0;
    if (j->ended)
        rtr_job_remove(d, j);
    else
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_GONE, .id = j->id});
}

void rtr_client_cancel(struct rtr_dispatch *d, net_conn conn, uint32_t stream)
{
    struct rtr_job *j = job_of_stream(d, conn, stream);
    if (j)
        abandon(d, j);
}

void rtr_client_down(struct rtr_dispatch *d, net_conn conn)
{
    for (uint32_t i = d->job_count; i-- > 0;)
        if (i < d->job_count && !d->jobs[i]->x && d->jobs[i]->conn == conn)
            abandon(d, d->jobs[i]);
}

void rtr_client_pause(struct rtr_dispatch *d, net_conn conn, uint32_t stream, bool resume)
{
    struct rtr_job *j = job_of_stream(d, conn, stream);
    if (j && !j->ended)
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_PAUSE, .id = j->id, .flag = !resume});
}

/* ---- what goes out ---- */

static size_t gathered(const struct rtr_job *j)
{
    size_t n = 0;
    for (uint32_t i = 0; i < j->answer->choice_count; i++)
        n += j->answer->choice[i].text.len + j->answer->choice[i].ids.count * sizeof(int32_t);
    return n;
}

/* One chunk of a choice; what does not fit into it stays for the next. A chunk ends between characters. */
static kvs_status send_chunk(struct rtr_dispatch *d, struct rtr_job *j, uint32_t choice)
{
    struct rtr_answer *a = j->answer;
    struct rtr_answer_choice *c = &a->choice[choice];
    size_t text = c->text.len, ids = c->ids.count;
    if (text > CHUNK_TEXT_MAX) {
        text = CHUNK_TEXT_MAX;
        while (text > 0 && (c->text.data[text] & 0xC0) == 0x80)
            text--;
    }
    ids = ids < CHUNK_IDS_MAX ? ids : CHUNK_IDS_MAX;
    bool last = c->finish != MSG_RUNNING && text == c->text.len && ids == c->ids.count;
    struct msg_chunk m = {.choice = choice,
                          .token_ids = c->ids.ids,
                          .token_count = (uint32_t)ids,
                          .text = (const char *)c->text.data,
                          .text_bytes = (uint32_t)text,
                          .finish = last ? c->finish : MSG_RUNNING};
    if (last) {
        m.prompt_tokens = a->prompt_tokens;
        m.completion_tokens = c->tokens;
        m.cached_tokens = a->cached_tokens;
    }
    kvs_buf_clear(&d->scratch);
    kvs_status s = msg_chunk_encode(&m, &d->scratch);
    if (s == KVS_OK)
        s = net_rpc_item(d->rpc, j->conn, j->stream, d->scratch.data, d->scratch.len);
    if (s != KVS_OK)
        return s;
    kvs_buf_consume(&c->text, text);
    c->ids.count -= ids;
    if (c->ids.count)
        memmove(c->ids.ids, c->ids.ids + ids, c->ids.count * sizeof(*c->ids.ids));
    c->begun = last; /* here: its last chunk was sent */
    return KVS_OK;
}

static bool has_more(const struct rtr_answer_choice *c)
{
    return !c->begun && (c->text.len || c->ids.count || c->finish != MSG_RUNNING);
}

void rtr_client_flush(struct rtr_dispatch *d, struct rtr_job *j)
{
    kvs_status s = j->conn ? KVS_OK : KVS_PEER_LOST;
    for (uint32_t i = 0; i < j->answer->choice_count; i++)
        while (s == KVS_OK && has_more(&j->answer->choice[i]))
            s = send_chunk(d, j, i);
    j->blocked = s == KVS_BUSY_QUEUE;
    if (!j->ended) {
        rtr_job_pause(d, j, s != KVS_OK && gathered(j) > GATHERED_MAX);
        return;
    }
    if ((j->blocked || s == KVS_SELF_NOMEM) && !j->cut) /* rtr_client_look comes back */
        return;
    if (j->conn && j->end_status == KVS_OK && s != KVS_OK)
        end_call(d, j->conn, j->stream, s, s == KVS_SELF_NOMEM ? "out of memory for what is left of the answer" : "the client took no more chunks");
    else if (j->conn)
        end_call(d, j->conn, j->stream, j->end_status, j->fault.text);
    rtr_job_remove(d, j);
}

/* What is left of an ended request has the time of another one, however slowly it is taken: its place in the table is bounded, too. */
void rtr_client_look(struct rtr_dispatch *d, struct rtr_job *j, uint64_t now_us)
{
    uint64_t taken = net_rpc_credited(d->rpc, j->conn, j->stream);
    bool stalled = rtr_stall_look(&j->stall, taken, j->blocked, d->client_stall_us, now_us);
    bool late = j->ended && now_us > j->end_us && now_us - j->end_us >= d->deadline_us;
    bool cut = (stalled || late) && !j->cut;
    bool again = j->ended || (j->paused && !cut); /* paused for want of memory: no credit wakes it up */
    if (cut) {
        j->cut = true;
        rtr_job_cut(d, j, j->id, RTR_CUT_STALLED, gathered(j)); /* one that runs ends in here, and is gone then */
    }
    if (again)
        rtr_client_flush(d, j);
}

void rtr_client_writable(struct rtr_dispatch *d, net_conn conn, uint32_t stream)
{
    struct rtr_job *j = job_of_stream(d, conn, stream);
    if (j)
        rtr_client_flush(d, j);
}
