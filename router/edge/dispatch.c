/* dispatch.c - the loop's centre: everything that happens becomes an event of the core, and the core's actions are performed.
 * Performing an action may bring up a new event (a call that cannot be sent, a stop string): those wait in a queue until the core's
 * actions are drained, since a core is never stepped from inside its own actions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/dispatch_impl.h"

#include "net/etcd.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOBS_SLACK 1024u
#define SCRATCH_MAX (64u << 20)
#define ARENA_MAX (64u << 20)

/* ---- feeding the core ---- */

static void perform(struct rtr_dispatch *d, const struct rtr_action *a)
{
    switch (a->type) {
    case RTR_ACT_GENERATE: rtr_peer_generate(d, a); break;
    case RTR_ACT_ABORT: rtr_peer_abort(d, a); break;
    case RTR_ACT_CANCEL: rtr_peer_cancel(d, a); break;
    case RTR_ACT_PAUSE: rtr_peer_pause(d, a); break;
    case RTR_ACT_SNAPSHOT: rtr_cache_again(d, a); break;
    case RTR_ACT_TOKEN: rtr_job_token(d, a->id, a->token); break;
    case RTR_ACT_FINISH:
    case RTR_ACT_REJECT: rtr_job_finish(d, a->id, a->status, a->text, a->retry_after_s); break;
    }
}

static void step(struct rtr_dispatch *d, const struct rtr_event *ev)
{
    struct rtr_action a[4];
    size_t n;
    rtr_step(d->core, ev, kvs_now_us());
    while ((n = rtr_actions(d->core, a, sizeof(a) / sizeof(*a))) > 0)
        for (size_t i = 0; i < n; i++)
            perform(d, &a[i]);
}

static void drain_deferred(struct rtr_dispatch *d)
{
    while (d->deferred_count) {
        struct rtr_deferred v = d->deferred[d->deferred_head++]; /* a copy: the queue may move */
        d->deferred_count--;
        step(d, &(struct rtr_event){.type = v.type,
                                    .worker = v.worker,
                                    .id = v.id,
                                    .attempt = v.attempt,
                                    .choice = v.choice,
                                    .flag = v.flag,
                                    .status = v.status,
                                    .text = v.text});
    }
    d->deferred_head = 0;
}

void rtr_feed(struct rtr_dispatch *d, const struct rtr_event *ev)
{
    KVS_ASSERT(!d->feeding);
    d->feeding = true;
    step(d, ev);
    drain_deferred(d);
    d->feeding = false;
    kvs_timer_set(d->deadline, rtr_deadline_us(d->core));
}

/* A job brings up at most: the ends of the calls of two attempts that could not be made, a stop of each choice, a departure, pauses. */
static size_t deferred_of(uint32_t choices)
{
    return 4 * (size_t)choices + 4;
}

kvs_status rtr_defer_reserve(struct rtr_dispatch *d, uint32_t choices)
{
    size_t need = d->deferred_due + deferred_of(choices);
    if (need > d->deferred_cap) {
        size_t cap = need > d->deferred_cap * 2 ? need : d->deferred_cap * 2;
        struct rtr_deferred *grown = realloc(d->deferred, cap * sizeof(*grown));
        if (!grown)
            return KVS_SELF_NOMEM;
        d->deferred = grown;
        d->deferred_cap = cap;
    }
    d->deferred_due = need;
    return KVS_OK;
}

void rtr_defer_release(struct rtr_dispatch *d, uint32_t choices)
{
    KVS_ASSERT(d->deferred_due >= deferred_of(choices));
    d->deferred_due -= deferred_of(choices);
}

void rtr_defer(struct rtr_dispatch *d, const struct rtr_deferred *ev)
{
    KVS_ASSERT(d->deferred_count < d->deferred_cap); /* every job has room: rtr_defer_reserve */
    if (d->deferred_head + d->deferred_count == d->deferred_cap) {
        memmove(d->deferred, d->deferred + d->deferred_head, d->deferred_count * sizeof(*d->deferred));
        d->deferred_head = 0;
    }
    d->deferred[d->deferred_head + d->deferred_count++] = *ev;
}

/* What was deferred outside of a feed (a tick, a client's credit). */
static void settle(struct rtr_dispatch *d)
{
    if (d->deferred_count && !d->feeding)
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_TIMER});
}

/* ---- handlers of the control streams ---- */

static kvs_status check_hello(void *user, const struct msg_hello *h, struct kvs_error *err)
{
    const struct rtr_dispatch *d = user;
    if (h->role == MSG_ROLE_ROUTER)
        return kvs_fail(err, KVS_PEER_REFUSED, d->etcd ? "routers do not speak to each other" : "embedded discovery serves one router; this one is already there");
    if (h->protocol_min > MSG_PROTOCOL_MAX || h->protocol_max < MSG_PROTOCOL_MIN)
        return kvs_fail(err, KVS_PEER_MISMATCH, "protocol %u..%u here, %u..%u there: use builds of the same version", MSG_PROTOCOL_MIN,
                        MSG_PROTOCOL_MAX, h->protocol_min, h->protocol_max);
    return KVS_OK;
}

static void on_up(void *user, net_conn conn, const struct msg_hello *h, bool we_dialed, const char *url)
{
    struct rtr_dispatch *d = user;
    (void)we_dialed;
    (void)url;
    if (h->role != MSG_ROLE_CLIENT)
        rtr_peer_up(d, conn, h);
}

static void on_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    struct rtr_dispatch *d = user;
    struct rtr_peer *p = rtr_peer_of(d, conn);
    char id[MSG_ID_MAX] = "";
    uint64_t epoch = p ? p->epoch : 0;
    bool vanished = p && p->vanished;
    if (p)
        memcpy(id, p->id, sizeof(id));
    if (!d->etcd)
        rtr_members_down(d, conn, id, epoch, vanished);
    if (p)
        rtr_peer_down(d, p, text && text[0] ? text : kvs_status_name(why));
    else
        rtr_client_down(d, conn);
    if (d->etcd)
        rtr_members_down(d, conn, id, epoch, vanished);
}

static void on_suspect(void *user, net_conn conn, bool suspect)
{
    struct rtr_dispatch *d = user;
    struct rtr_peer *p = rtr_peer_of(d, conn);
    if (p)
        rtr_peer_suspect(d, p, suspect);
}

/* A worker registers itself and nobody else: a card that somebody else may put, he may also take away. */
static void on_register(struct rtr_dispatch *d, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    const struct rtr_peer *p = rtr_peer_of(d, conn);
    struct msg_card card;
    struct kvs_error e = {0};
    kvs_status st = p ? msg_card_decode(call->body, call->body_bytes, &d->arena, &card, &e) : kvs_fail(&e, KVS_REQ_INVALID, "only workers register");
    if (st == KVS_OK && (card.epoch != p->epoch || strcmp(card.id, p->id) != 0))
        st = kvs_fail(&e, KVS_REQ_INVALID, "the card of %s came over a connection of %s", card.id, p->id);
    if (st == KVS_OK) {
        cls_embedded_server_call(d->discovery, conn, stream, call);
        return;
    }
    struct msg_end end = {.status = st};
    kvs_format(end.text, sizeof(end.text), "%s", e.text);
    KVS_WARN("registration refused", "cause=\"%s\"", e.text);
    net_rpc_end(d->rpc, conn, stream, &end);
}

static void on_call(void *user, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    struct rtr_dispatch *d = user;
    kvs_arena_fini(&d->arena);
    if (call->method == MSG_REGISTER && !d->etcd)
        on_register(d, conn, stream, call);
    else
        rtr_client_call(d, conn, stream, call);
}

static void on_cancel(void *user, net_conn conn, uint32_t stream)
{
    struct rtr_dispatch *d = user;
    if (rtr_peer_of(d, conn) && !d->etcd)
        cls_embedded_server_cancel(d->discovery, conn, stream);
    else
        rtr_client_cancel(d, conn, stream);
}

static void on_ack(void *user, net_conn conn, uint32_t stream)
{
    (void)user;
    (void)conn;
    (void)stream;
}

static void on_nack(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    (void)user;
    (void)conn;
    (void)stream;
    (void)payload;
    (void)n;
}

static void on_item(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    struct rtr_dispatch *d = user;
    struct rtr_peer *p = rtr_peer_of(d, conn);
    kvs_arena_fini(&d->arena);
    if (p)
        rtr_peer_item(d, p, stream, payload, n);
    kvs_arena_fini(&d->arena);
}

static void on_end(void *user, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    struct rtr_dispatch *d = user;
    struct rtr_peer *p = rtr_peer_of(d, conn);
    if (p)
        rtr_peer_end(d, p, stream, end);
}

static void on_pause(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n, bool resume)
{
    struct rtr_dispatch *d = user;
    (void)payload;
    (void)n;
    rtr_client_pause(d, conn, stream, resume);
}

static void on_writable(void *user, net_conn conn, uint32_t stream)
{
    rtr_client_writable(user, conn, stream);
    settle(user);
}

/* ---- timers, departures ---- */

static void on_deadline(void *user, uint64_t now_us)
{
    (void)now_us;
    rtr_feed(user, &(struct rtr_event){.type = RTR_EV_TIMER});
}

static void on_tick(void *user, uint64_t now_us)
{
    struct rtr_dispatch *d = user;
    rtr_jobs_tick(d, now_us);
    rtr_peers_tick(d, now_us);
    rtr_members_tick(d);
    settle(d);
    rtr_peers_view(d, now_us);
    kvs_timer_set(d->tick, now_us + RTR_TICK_US);
}

static void client_gone(void *user, uint64_t id)
{
    struct rtr_dispatch *d = user;
    if (rtr_job_of(d, id))
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_GONE, .id = id});
}

static void client_cut(void *user, uint64_t id, rtr_cut why, uint32_t waiting_bytes)
{
    struct rtr_dispatch *d = user;
    rtr_job_cut(d, rtr_job_of(d, id), id, why, waiting_bytes);
}

/* ---- from other threads ---- */

struct note {
    struct rtr_dispatch *d;
    uint64_t id;
    bool left;
};

static void run_note(void *arg)
{
    struct note *n = arg;
    struct rtr_job *j = rtr_job_of(n->d, n->id);
    if (j && n->left)
        client_gone(n->d, n->id);
    else if (j)
        rtr_job_pause(n->d, j, false);
    settle(n->d);
    atomic_fetch_sub(&n->d->active, 1);
    free(n);
}

static void post_note(struct rtr_dispatch *d, uint64_t id, bool left)
{
    struct note *n = malloc(sizeof(*n));
    if (!n)
        return; /* rtr_jobs_tick finds out by itself */
    *n = (struct note){d, id, left};
    atomic_fetch_add(&d->active, 1);
    if (kvs_loop_post(d->loop, run_note, n) == KVS_OK)
        return;
    atomic_fetch_sub(&d->active, 1);
    free(n);
}

void rtr_dispatch_left(struct rtr_dispatch *d, uint64_t id)
{
    if (!atomic_load(&d->stopping))
        post_note(d, id, true);
}

void rtr_dispatch_reads_again(struct rtr_dispatch *d, uint64_t id)
{
    if (!atomic_load(&d->stopping))
        post_note(d, id, false);
}

uint64_t rtr_dispatch_next_id(struct rtr_dispatch *d)
{
    return atomic_fetch_add(&d->next_id, 1);
}

struct rtr_models *rtr_dispatch_models(struct rtr_dispatch *d)
{
    return d->models;
}

struct rtr_gone *rtr_dispatch_gone(struct rtr_dispatch *d)
{
    return d->gone;
}

uint32_t rtr_dispatch_active(struct rtr_dispatch *d)
{
    return atomic_load(&d->active);
}

void rtr_submit_destroy(struct rtr_submit *s)
{
    if (!s)
        return;
    rtr_exchange_release(s->x);
    rtr_params_fini(&s->params);
    rtr_model_release(s->model);
    mdl_ids_fini(&s->ids);
    free(s);
}

static void run_submit(void *arg)
{
    struct rtr_submit *s = arg;
    struct rtr_dispatch *d = s->d;
    if (!atomic_load(&d->draining)) {
        rtr_job_begin(d, s, 0, 0, 0);
        return;
    }
    struct rtr_fault f = {.retry_after_s = 1};
    (void)rtr_fail(&f, KVS_SELF_STOPPING, NULL, "this router is stopping; try another one");
    rtr_exchange_fault(s->x, &f);
    rtr_submit_destroy(s);
    atomic_fetch_sub(&d->active, 1);
}

kvs_status rtr_dispatch_submit(struct rtr_dispatch *d, struct rtr_submit *s)
{
    atomic_fetch_add(&d->active, 1); /* before the look at stopping: the stopping side waits for 0 */
    kvs_status st = atomic_load(&d->draining) ? KVS_SELF_STOPPING : kvs_loop_post(d->loop, run_submit, s);
    if (st != KVS_OK)
        atomic_fetch_sub(&d->active, 1);
    return st;
}

/* ---- life ---- */

void rtr_dispatch_drain(struct rtr_dispatch *d)
{
    atomic_store(&d->draining, true);
}

bool rtr_dispatch_idle(const struct rtr_dispatch *d)
{
    return d->job_count == 0 && atomic_load(&d->active) == 0;
}

void rtr_dispatch_stop(struct rtr_dispatch *d)
{
    atomic_store(&d->draining, true);
    atomic_store(&d->stopping, true);
    for (uint32_t i = d->job_count; i-- > 0;) {
        if (i >= d->job_count || d->jobs[i]->ended || d->jobs[i]->failed)
            continue;
        struct rtr_job *j = d->jobs[i];
        j->failed = true;
        (void)rtr_fail(&j->fault, KVS_SELF_STOPPING, NULL, "the router is stopping");
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_GONE, .id = j->id});
    }
}

static void make_metrics(struct rtr_dispatch *d)
{
    static const char *const outcomes[] = {"ok", "invalid", "cancelled", "deadline", "busy", "error"};
    struct kvs_metrics *m = rtr_board_metrics(d->board);
    char label[64];
    for (size_t i = 0; i < sizeof(outcomes) / sizeof(*outcomes); i++) {
        kvs_format(label, sizeof(label), "outcome=\"%s\"", outcomes[i]);
        d->m.outcome[i] = kvs_counter(m, "kvasir_requests_total", label, RTR_REQUESTS_HELP);
    }
    d->m.placed[0] = kvs_counter(m, "kvasir_router_placements_total", "mode=\"local\"", "Requests by where their prompt was read.");
    d->m.placed[1] = kvs_counter(m, "kvasir_router_placements_total", "mode=\"remote\"", "Requests by where their prompt was read.");
    d->m.prompt_tokens = kvs_counter(m, "kvasir_prompt_tokens_total", "", "Prompt tokens of requests that were taken.");
    d->m.answer_tokens = kvs_counter(m, "kvasir_generation_tokens_total", "", "Tokens delivered to answers.");
    d->m.replaced = kvs_counter(m, "kvasir_replaced_total", "", "Requests given to another worker before their first token.");
    d->m.resumed = kvs_counter(m, "kvasir_resumed_total", "", "Answers under way that went on at another worker, their own being lost.");
    d->m.moved = kvs_counter(m, "kvasir_moved_total", "", "Requests that went on at another worker, their own being about to drain.");
    rtr_cache_metrics(d, m);
    for (int i = 0; i < 2; i++)
        d->m.cut[i] = kvs_counter(m, "kvasir_router_clients_cut_total", i == RTR_CUT_STALLED ? "reason=\"stalled\"" : "reason=\"vanished\"",
                                  "Clients that were given up: they took nothing of what waited for them, or their host is gone.");
    d->m.running = kvs_gauge(m, "kvasir_router_requests", "state=\"running\"", "Requests in the router.");
    d->m.waiting = kvs_gauge(m, "kvasir_router_requests", "state=\"waiting\"", "Requests in the router.");
    d->m.workers = kvs_gauge(m, "kvasir_router_workers", "", "Workers connected to the router.");
    d->m.ttft = kvs_histogram(m, "kvasir_ttft_seconds", "", "Time from a request's arrival to its first token.", kvs_latency_bounds,
                              kvs_latency_bound_count);
    d->m.ttft_predicted = kvs_histogram(m, "kvasir_ttft_predicted_seconds", "", "Time to first token that was predicted when a request was placed.",
                                        kvs_latency_bounds, kvs_latency_bound_count);
    d->m.ttft_off = kvs_histogram(m, "kvasir_ttft_prediction_error_seconds", "", "By how much that was off, from the request's arrival on.",
                                  kvs_latency_bounds, kvs_latency_bound_count);
    d->m.itl = kvs_histogram(m, "kvasir_itl_seconds", "", "Time between two tokens of an answer.", kvs_latency_bounds, kvs_latency_bound_count);
}

static kvs_status make_rpc(struct rtr_dispatch *d, const struct rtr_dispatch_config *c, char *url_out, size_t url_cap, struct kvs_error *err)
{
    struct msg_hello self = {.protocol_min = MSG_PROTOCOL_MIN, .protocol_max = MSG_PROTOCOL_MAX, .role = MSG_ROLE_ROUTER};
    struct net_rpc_handlers h = {.user = d,
                                 .check_hello = check_hello,
                                 .on_up = on_up,
                                 .on_down = on_down,
                                 .on_suspect = on_suspect,
                                 .on_call = on_call,
                                 .on_cancel = on_cancel,
                                 .on_ack = on_ack,
                                 .on_nack = on_nack,
                                 .on_item = on_item,
                                 .on_end = on_end,
                                 .on_pause = on_pause,
                                 .on_writable = on_writable};
    kvs_format(self.id, sizeof(self.id), "%s", c->name);
    kvs_format(self.auth, sizeof(self.auth), "%s", c->auth ? c->auth : "");
    self.epoch = kvs_random_u64();
    self.uid = (uint32_t)getuid();
    self.pid = (uint32_t)getpid();
    kvs_status s = net_rpc_create(d->loop, &self, &h, &d->rpc, err);
    d->etcd = c->discovery && net_etcd_is_url(c->discovery);
    if (s == KVS_OK && !d->etcd) /* before the first worker can call */
        s = rtr_members_create(d, c, &self, c->control_url, err);
    if (s == KVS_OK)
        s = net_rpc_listen(d->rpc, c->control_url, url_out, url_cap, err);
    return s == KVS_OK && d->etcd ? rtr_members_create(d, c, &self, url_out, err) : s;
}

kvs_status rtr_dispatch_create(const struct rtr_dispatch_config *c, struct rtr_dispatch **out, char *url_out, size_t url_cap,
                               struct kvs_error *err)
{
    struct rtr_dispatch *d = calloc(1, sizeof(*d));
    if (!d)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    d->loop = c->loop;
    d->board = c->board;
    d->head_after_us = c->head_after_us ? c->head_after_us : RTR_HEAD_AFTER_US;
    d->comment_every_us = c->comment_every_us ? c->comment_every_us : RTR_COMMENT_EVERY_US;
    d->deadline_us = c->core.deadline_us ? c->core.deadline_us : 1;
    d->client_stall_us = c->client_stall_us ? c->client_stall_us : d->deadline_us;
    d->peers_max = c->core.workers_max;
    d->jobs_max = c->core.requests_max + JOBS_SLACK;
    atomic_init(&d->next_id, kvs_random_u64() >> 16 | 1); /* two lives of a router do not share ids; never 0 */
    atomic_init(&d->stopping, false);
    atomic_init(&d->draining, false);
    atomic_init(&d->active, 0);
    kvs_buf_init(&d->scratch, SCRATCH_MAX);
    kvs_arena_init(&d->arena, ARENA_MAX);
    make_metrics(d);
    d->members = calloc(MSG_MEMBERS_MAX, sizeof(*d->members)); /* touched as members come */
    d->peers = calloc(d->peers_max, sizeof(*d->peers));
    d->jobs = calloc(d->jobs_max, sizeof(*d->jobs));
    struct rtr_gone_config gone = {.loop = c->loop, .stall_us = d->client_stall_us, .user = d, .on_gone = client_gone, .on_cut = client_cut};
    kvs_status s = rtr_create(&c->core, &d->core, err);
    if (s == KVS_OK && (!d->members || !d->peers || !d->jobs || kvs_map_create(d->jobs_max, &d->job_by_id) != KVS_OK || rtr_models_create(&d->models) != KVS_OK ||
                        rtr_gone_create(&gone, &d->gone) != KVS_OK ||
                        kvs_timer_create(c->loop, on_deadline, d, &d->deadline) != KVS_OK ||
                        kvs_timer_create(c->loop, on_tick, d, &d->tick) != KVS_OK))
        s = kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    if (s == KVS_OK)
        s = make_rpc(d, c, url_out, url_cap, err);
    if (s != KVS_OK) {
        rtr_dispatch_destroy(d);
        return s;
    }
    kvs_timer_set(d->tick, kvs_now_us() + RTR_TICK_US);
    *out = d;
    return KVS_OK;
}

void rtr_dispatch_destroy(struct rtr_dispatch *d)
{
    if (!d)
        return;
    rtr_members_destroy(d);
    net_rpc_destroy(d->rpc);
    rtr_orders_destroy(d);
    while (d->peer_count) {
        struct rtr_peer *p = d->peers[--d->peer_count];
        free(p->header);
        free(p->calls);
        free(p->load);
        free(p);
    }
    while (d->job_count)
        rtr_job_remove(d, d->jobs[d->job_count - 1]);
    rtr_gone_destroy(d->gone);
    if (d->deadline)
        kvs_timer_destroy(d->deadline);
    if (d->tick)
        kvs_timer_destroy(d->tick);
    kvs_map_destroy(d->job_by_id);
    rtr_models_destroy(d->models);
    rtr_destroy(d->core);
    kvs_buf_fini(&d->scratch);
    kvs_arena_fini(&d->arena);
    free(d->deferred);
    free(d->members);
    free(d->peers);
    free(d->jobs);
    free(d);
}
