/* source.c - see source.h. The core decides; here bytes are looked up and handed to the transport. A send that the transport does not
 * take (its command ring is full) waits in a bounded line and goes out in order before any later one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "prefill-worker/edge/source.h"

#include "base/arena.h"
#include "prefill-worker/core/prefill.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/log.h"
#include "worker/edge/worker.h"
#include <stdlib.h>
#include <string.h>

#define CALLS_MAX 64u
#define SEND_WINDOW 64u
/* Two workers of both roles, each with all its pages reserved for prompts that the other is to compute, wait for each other: refusing soon
 * makes the callers compute their prompts themselves (found by the simulator: sim/scenarios/both.sim). */
#define BOTH_WAIT_US 100000u
#define LINE_MAX_ (CALLS_MAX * SEND_WINDOW)
#define DECODE_MAX ((size_t)4 << 20)
#define ACTIONS 16

struct source {
    struct wrk_worker *w;
    struct pfw *core;
    struct pfw_action *line; /* sends that the transport did not take yet, oldest at head */
    uint32_t head, count;
    uint64_t *dropped; /* cookies of sends that were given up while they stood in line: their SENT is due */
    uint32_t dropped_count;
    uint64_t sends_cancelled;
    struct wrk_follow calls, refused, posted, cancelled;
};

static void perform(struct source *s);

static void feed(struct source *s, const struct pfw_event *ev)
{
    pfw_step(s->core, ev, kvs_now_us());
    wrk_worker_zero(s->w);
    perform(s);
}

static kvs_status send_now(struct source *s, const struct pfw_action *a)
{
    const void *bytes = a->kind == PFW_ACT_SEND_LOGITS ? (const void *)wrk_device_ship_row(wrk_worker_device(s->w), a->user)
                                                       : wrk_worker_page(s->w, a->send.group, a->send.page);
    kvs_status st = kvt_send(wrk_worker_port(s->w), a->send.peer, &a->send.header, bytes, a->send.cookie);
    if (st == KVS_OK && a->kind == PFW_ACT_SEND_PAGE) {
        KVS_TRACE("page posted", "req=%llu block=%u group=%u", (unsigned long long)a->request, a->send.header.block, a->send.group);
        (void)KVS_FAILPOINT("prefill.after_post");
    }
    return st;
}

static void drain_line(struct source *s)
{
    while (s->count > 0 && send_now(s, &s->line[s->head]) == KVS_OK) {
        s->head = (s->head + 1) % LINE_MAX_;
        s->count--;
    }
}

static void send(struct source *s, const struct pfw_action *a)
{
    if (s->count == 0 && send_now(s, a) == KVS_OK)
        return;
    KVS_ASSERT(s->count < LINE_MAX_); /* the core keeps at most SEND_WINDOW sends of each of CALLS_MAX calls */
    s->line[(s->head + s->count++) % LINE_MAX_] = *a;
}

static void drop(struct source *s, const struct pfw_action *d)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        struct pfw_action a = s->line[(s->head + i) % LINE_MAX_];
        if (a.send.peer == d->send.peer && a.send.header.xfer == d->send.header.xfer)
            s->dropped[s->dropped_count++] = a.send.cookie;
        else
            s->line[(s->head + kept++) % LINE_MAX_] = a;
    }
    s->count = kept;
    if (kvt_send_drop(wrk_worker_port(s->w), d->send.peer, d->send.header.xfer) != KVS_OK)
        KVS_DEBUG("sends not given up", "req=%llu", (unsigned long long)d->request); /* then they go out, for nobody */
}

static void perform_one(struct source *s, const struct pfw_action *a)
{
    if (a->kind == PFW_ACT_DROP) {
        drop(s, a);
    } else if (a->kind == PFW_ACT_PEER_CLOSE) {
        wrk_peers_close(wrk_worker_peers(s->w), a->send.peer, "pages under way do not leave, and nobody wants them any more");
    } else if (a->kind == PFW_ACT_END) {
        KVS_DEBUG("prefill ended", "req=%llu status=%s messages=%u tokens=%u", (unsigned long long)a->request,
                  kvs_status_name(a->end.end.status), a->end.end.pages_sent, a->end.end.prefill_tokens);
        net_rpc_end(wrk_worker_rpc(s->w), a->end.conn, a->end.stream, &a->end.end);
    } else {
        send(s, a);
    }
}

static void perform(struct source *s)
{
    struct pfw_action a[ACTIONS];
    size_t n;
    drain_line(s);
    while ((n = pfw_actions(s->core, a, ACTIONS)) != 0)
        for (size_t i = 0; i < n; i++)
            perform_one(s, &a[i]);
    while (s->dropped_count > 0) {
        struct pfw_event ev = {.kind = PFW_EV_SENT, .sent = {.cookie = s->dropped[--s->dropped_count], .status = KVS_REQ_CANCELLED}};
        s->sends_cancelled++;
        feed(s, &ev);
    }
}

static void source_destroy(void *self)
{
    struct source *s = self;
    if (s == NULL)
        return;
    pfw_destroy(s->core);
    free(s->line);
    free(s->dropped);
    free(s);
}

static void source_set_role(void *self, msg_role role)
{
    bool prefills = role == MSG_ROLE_PREFILL || role == MSG_ROLE_BOTH;
    feed(self, &(struct pfw_event){.kind = PFW_EV_ROLE, .role = {.prefills = prefills, .queue_wait_us = role == MSG_ROLE_BOTH ? BOTH_WAIT_US : 0}});
}

static kvs_status source_create(struct wrk_worker *w, void **self_out, struct kvs_error *err)
{
    struct source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory for the prefill role");
    s->w = w;
    s->line = calloc(LINE_MAX_, sizeof *s->line);
    s->dropped = calloc(LINE_MAX_, sizeof *s->dropped);
    struct pfw_config c = {.sched = wrk_worker_sched(w), .calls_max = CALLS_MAX, .vocab = wrk_worker_card(w)->vocab, .send_window = SEND_WINDOW,
                           .stall_us = wrk_worker_config(w)->kv_stall_us};
    kvs_status st = s->line == NULL || s->dropped == NULL ? kvs_fail(err, KVS_SELF_NOMEM, "out of memory for the prefill role") : pfw_create(&c, &s->core, err);
    if (st != KVS_OK) {
        source_destroy(s);
        return st;
    }
    struct kvs_metrics *m = wrk_worker_metrics(w);
    s->calls.counter = kvs_counter(m, "kvasir_prefill_calls_total", "", "PREFILL calls taken or refused");
    s->refused.counter = kvs_counter(m, "kvasir_prefill_refused_total", "", "PREFILL calls refused");
    s->posted.counter = kvs_counter(m, "kvasir_kv_posted_pages_total", "", "KV pages handed to the transport as their source");
    s->cancelled.counter = kvs_counter(m, "kvasir_kv_sends_cancelled_total", "", "Messages that were given up before they left, their call being over");
    *self_out = s;
    source_set_role(s, wrk_worker_card(w)->role);
    return KVS_OK;
}

static bool source_call(void *self, net_conn conn, uint32_t stream, const struct msg_call *call, uint64_t deadline_us)
{
    struct source *s = self;
    bool fetch = call->method == MSG_FETCH;
    if (!fetch && call->method != MSG_PREFILL)
        return false;
    struct msg_end end = {.status = KVS_OK};
    struct kvs_error err = {0};
    struct kvs_arena arena;
    struct msg_prefill msg;
    kvs_arena_init(&arena, DECODE_MAX);
    uint32_t peer = wrk_peers_by_conn(wrk_worker_peers(s->w), conn);
    if (peer == WRK_PEER_NONE)
        end.status = kvs_fail(&err, KVS_PEER_REFUSED, "no KV link to this worker is up");
    else
        end.status = msg_prefill_decode(call->body, call->body_bytes, &arena, &msg, &err);
    if (end.status == KVS_OK) {
        KVS_DEBUG("prefill called", "req=%llu tokens=%u wants=%u peer=%u", (unsigned long long)msg.request, msg.token_count, msg.want_count, peer);
        struct pfw_event ev = {.kind = PFW_EV_CALL, .conn = conn, .stream = stream, .peer = peer, .call = {.msg = &msg, .fetch = fetch, .deadline_us = deadline_us}};
        feed(s, &ev);
    } else {
        memcpy(end.text, err.text, sizeof end.text);
        net_rpc_end(wrk_worker_rpc(s->w), conn, stream, &end);
    }
    kvs_arena_fini(&arena);
    return true;
}

static bool source_cancel(void *self, net_conn conn, uint32_t stream)
{
    feed(self, &(struct pfw_event){.kind = PFW_EV_CANCEL, .conn = conn, .stream = stream});
    return false; /* in role both the stream may be a GENERATE; the core ignores what is not its own */
}

static bool source_ack(void *self, net_conn conn, uint32_t stream, bool nack)
{
    feed(self, &(struct pfw_event){.kind = nack ? PFW_EV_NACK : PFW_EV_ACK, .conn = conn, .stream = stream});
    return true;
}

static void source_peer_up(void *self, uint32_t peer, const char *id, const char *transport)
{
    (void)id;
    (void)transport;
    feed(self, &(struct pfw_event){.kind = PFW_EV_PEER_UP, .peer = peer});
}

static void source_peer_down(void *self, uint32_t peer)
{
    feed(self, &(struct pfw_event){.kind = PFW_EV_PEER_DOWN, .peer = peer});
}

/* Sends to a closed peer that still wait in line will never be taken: the core was told that they are over. */
static void source_peer_closed(void *self, uint32_t peer)
{
    struct source *s = self;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        struct pfw_action a = s->line[(s->head + i) % LINE_MAX_];
        if (a.send.peer != peer)
            s->line[(s->head + kept++) % LINE_MAX_] = a;
    }
    s->count = kept;
    feed(s, &(struct pfw_event){.kind = PFW_EV_PEER_CLOSED, .peer = peer});
}

static bool source_port_event(void *self, const struct kvt_event *ev)
{
    if (ev->kind != KVT_EV_SENT)
        return false;
    ((struct source *)self)->sends_cancelled += ev->status == KVS_REQ_CANCELLED;
    feed(self, &(struct pfw_event){.kind = PFW_EV_SENT, .sent = {.cookie = ev->cookie, .status = ev->status}});
    return true;
}

static void source_layer(void *self, uint64_t step, uint32_t layers)
{
    feed(self, &(struct pfw_event){.kind = PFW_EV_LAYER, .layer = {.step = step, .layers = layers}});
}

static void source_step_done(void *self)
{
    feed(self, &(struct pfw_event){.kind = PFW_EV_STEP_DONE});
    (void)KVS_FAILPOINT("prefill.after_step");
}

static void source_tick(void *self)
{
    feed(self, &(struct pfw_event){.kind = PFW_EV_TICK});
}

static uint64_t source_deadline_us(void *self)
{
    struct source *s = self;
    return pfw_deadline_us(s->core);
}

static void source_drain(void *self)
{
    feed(self, &(struct pfw_event){.kind = PFW_EV_DRAIN});
}

static uint32_t source_busy(void *self)
{
    struct source *s = self;
    struct pfw_stats st = pfw_stats(s->core);
    return st.queued + st.running;
}

static void source_metrics(void *self)
{
    struct source *s = self;
    struct pfw_stats st = pfw_stats(s->core);
    drain_line(s);
    wrk_follow(&s->calls, st.calls);
    wrk_follow(&s->refused, st.refused);
    wrk_follow(&s->posted, st.pages_posted);
    wrk_follow(&s->cancelled, s->sends_cancelled);
}

const struct wrk_role_ops pfw_role = {
    .role = MSG_ROLE_PREFILL,
    .ship_rows = CALLS_MAX,
    .create = source_create,
    .destroy = source_destroy,
    .call = source_call,
    .cancel = source_cancel,
    .ack = source_ack,
    .peer_up = source_peer_up,
    .peer_down = source_peer_down,
    .peer_closed = source_peer_closed,
    .port_event = source_port_event,
    .layer = source_layer,
    .step_done = source_step_done,
    .tick = source_tick,
    .deadline_us = source_deadline_us,
    .drain = source_drain,
    .set_role = source_set_role,
    .busy = source_busy,
    .metrics = source_metrics,
};
