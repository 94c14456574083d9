/* sink.c - see sink.h. What an action brings about at once (a grant that could not be given, a sample) is queued and fed to the core after
 * its actions are drained, as the core's contract asks.
 * Metrics of transfers are counted here, by the sink only: pages landed and verified.
 * SPDX-License-Identifier: Apache-2.0 */
#include "decode-worker/edge/sink.h"

#include "base/arena.h"
#include "decode-worker/core/decode.h"
#include "decode-worker/edge/pulse.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/log.h"
#include "worker/edge/worker.h"
#include <stdlib.h>
#include <string.h>

#define XFERS_MAX 4096u
#define DECODE_MAX ((size_t)4 << 20)
#define ACTIONS 8
#define PENDING_MAX 8192u

struct xfer {
    uint64_t id; /* 0: free */
    uint32_t peer;
    net_conn conn;
    uint32_t stream; /* of the PREFILL call; 0: none */
    bool refused;    /* the grant could not be given: no call is made */
    float *logits;
};

struct sink {
    struct wrk_worker *w;
    struct dcw *core;
    struct xfer xfer[XFERS_MAX];
    uint32_t xfer_top; /* slots in use lie below */
    struct dcw_event *pending;
    uint32_t head, count;
    uint32_t *missing; /* scratch for one GRANT event */
    char label[WRK_PEERS_MAX][16];           /* transport of each peer, as metrics name it */
    struct kvs_counter *pages[4], *bytes[4]; /* by transport */
    struct kvs_counter *group_pages[KVC_GROUPS_MAX];
    struct kvs_histogram *seconds, *exposed;
    struct dcw_pulse pulse;
    struct wrk_follow declined[KVT_VERDICTS];
    struct wrk_follow ended[5], local_prompt, remote, local, fallbacks, stalled, tokens, eager, forced, cut, fetches, fetched;
};

static const char *const transport_label[4] = {"shm", "tcp", "rdma", "loopback"};
static const char *const outcome_label[5] = {"", "stop", "length", "abort", "error"};

static void perform(struct sink *s);

static void feed_one(struct sink *s, const struct dcw_event *ev)
{
    dcw_step(s->core, ev, kvs_now_us());
    wrk_worker_zero(s->w);
    perform(s);
}

/* Feeds an event and everything that its actions brought about. */
static void feed(struct sink *s, const struct dcw_event *ev)
{
    feed_one(s, ev);
    while (s->count > 0) {
        struct dcw_event next = s->pending[s->head];
        s->head = (s->head + 1) % PENDING_MAX;
        s->count--;
        feed_one(s, &next);
    }
}

static void pend(struct sink *s, const struct dcw_event *ev)
{
    KVS_ASSERT(s->count < PENDING_MAX); /* at most two for each transfer, and XFERS_MAX of those */
    s->pending[(s->head + s->count++) % PENDING_MAX] = *ev;
}

/* --- transfers --- */

static struct xfer *xfer_find(struct sink *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->xfer_top; i++)
        if (s->xfer[i].id == id)
            return &s->xfer[i];
    return NULL;
}

static struct xfer *xfer_new(struct sink *s, uint64_t id)
{
    for (uint32_t i = 0; i < XFERS_MAX; i++) {
        if (s->xfer[i].id != 0)
            continue;
        s->xfer[i] = (struct xfer){.id = id};
        if (i >= s->xfer_top)
            s->xfer_top = i + 1;
        return &s->xfer[i];
    }
    return NULL;
}

static void xfer_forget(struct sink *s, struct xfer *x)
{
    free(x->logits);
    *x = (struct xfer){0};
    while (s->xfer_top > 0 && s->xfer[s->xfer_top - 1].id == 0)
        s->xfer_top--;
}

/* The wants of a grant, with the addresses where they land; the logits last. */
static kvs_status build_sink(struct sink *s, const struct dcw_action *a, struct xfer *x, struct kvt_sink **out)
{
    const struct kvc_layout *layout = wrk_sched_layout(wrk_worker_sched(s->w));
    uint32_t n = a->grant.want_count;
    struct kvt_want *wants = calloc((size_t)n + 1, sizeof *wants);
    if (wants == NULL)
        return KVS_SELF_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const struct msg_want *m = &a->grant.wants[i];
        uint32_t page = kvc_block_row(a->grant.table, m->group)[m->block];
        wants[i] = (struct kvt_want){.block = m->block, .group = (uint16_t)m->group, .bytes = layout->group[m->group].page_bytes,
                                     .dest = wrk_worker_page(s->w, m->group, page)};
    }
    bool logits = a->grant.logits_bytes > 0;
    wants[n] = (struct kvt_want){.block = KVT_LOGITS_BLOCK, .group = KVT_LOGITS_GROUP, .bytes = a->grant.logits_bytes, .dest = x->logits};
    struct kvt_sink_config c = {.sink_epoch = a->grant.sink_epoch, .xfer = a->xfer, .nonce = a->grant.nonce, .wants = wants, .want_count = n + logits};
    kvs_status st = kvt_sink_create(&c, out);
    free(wants);
    return st;
}

static void act_grant(struct sink *s, const struct dcw_action *a)
{
    struct xfer *x = xfer_new(s, a->xfer);
    struct kvt_sink *ks = NULL;
    kvs_status st = x == NULL ? KVS_BUSY_FULL : KVS_OK;
    if (st == KVS_OK) {
        x->peer = a->peer;
        x->logits = a->grant.logits_bytes > 0 ? malloc(a->grant.logits_bytes) : NULL;
        st = a->grant.logits_bytes > 0 && x->logits == NULL ? KVS_SELF_NOMEM : build_sink(s, a, x, &ks);
    }
    if (st == KVS_OK) {
        st = kvt_grant(wrk_worker_port(s->w), a->peer, ks);
        if (st != KVS_OK)
            kvt_sink_destroy(ks);
    }
    if (st == KVS_OK)
        return;
    KVS_WARN("grant not given", "req=%llu status=%s", (unsigned long long)a->request, kvs_status_name(st));
    if (x != NULL)
        x->refused = true;
    pend(s, &(struct dcw_event){.kind = DCW_EV_GRANT, .xfer = a->xfer, .grant = {.status = st}});
}

static void act_call_prefill(struct sink *s, const struct dcw_action *a)
{
    struct xfer *x = xfer_find(s, a->xfer);
    if (x == NULL || x->refused)
        return;
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    uint64_t now = kvs_now_us();
    uint64_t left_ms = a->prefill.deadline_us > now ? (a->prefill.deadline_us - now) / 1000 + 1 : 1;
    x->conn = wrk_peers_conn(wrk_worker_peers(s->w), a->peer);
    kvs_status st = x->conn == 0 ? KVS_PEER_LOST : msg_prefill_encode(&a->prefill.msg, &body);
    if (st == KVS_OK)
        st = net_rpc_call(wrk_worker_rpc(s->w), x->conn, a->prefill.fetch ? MSG_FETCH : MSG_PREFILL, left_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)left_ms, "", body.data, body.len,
                          &x->stream);
    kvs_buf_fini(&body);
    if (st == KVS_OK)
        return;
    KVS_WARN("prefill not called", "req=%llu status=%s", (unsigned long long)a->request, kvs_status_name(st));
    x->stream = 0;
    static const struct msg_end lost = {.status = KVS_PEER_LOST, .text = "the PREFILL call could not be made"};
    pend(s, &(struct dcw_event){.kind = DCW_EV_PREFILL_END, .xfer = a->xfer, .prefill_end = &lost});
}

static void act_nack(struct sink *s, const struct dcw_action *a, struct xfer *x)
{
    struct msg_nack m = {.missing = a->nack.missing, .count = a->nack.count};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    if (msg_nack_encode(&m, &body) == KVS_OK)
        net_rpc_nack(wrk_worker_rpc(s->w), x->conn, x->stream, body.data, body.len);
    else
        net_rpc_nack(wrk_worker_rpc(s->w), x->conn, x->stream, NULL, 0);
    kvs_buf_fini(&body);
}

/* Samples the first token from the row that landed. */
static void act_sample(struct sink *s, const struct dcw_action *a)
{
    struct dcw_event ev = {.kind = DCW_EV_SAMPLED, .call = a->call};
    struct xfer *x = xfer_find(s, a->xfer);
    ev.sampled.status = KVS_SELF_INTERNAL;
    if (x != NULL && x->logits != NULL &&
        wrk_device_sample(wrk_worker_device(s->w), x->logits, &a->sample.sampling, a->sample.choice, a->sample.position, &ev.sampled) != KVS_OK)
        KVS_WARN("first token not sampled", "req=%llu status=%s", (unsigned long long)a->request, kvs_status_name(ev.sampled.status));
    pend(s, &ev);
}

static void act_tokens(struct sink *s, const struct dcw_action *a)
{
    struct msg_tokens m = {.entries = a->tokens.entries, .count = a->tokens.count};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_tokens_encode(&m, &body);
    if (st == KVS_OK)
        st = net_rpc_item(wrk_worker_rpc(s->w), a->tokens.conn, a->tokens.stream, body.data, body.len);
    kvs_buf_fini(&body);
    if (st != KVS_OK) { /* a router that cannot take its tokens must not believe in a gapless stream */
        KVS_WARN("tokens not sent", "entries=%u status=%s", m.count, kvs_status_name(st));
        net_rpc_close(wrk_worker_rpc(s->w), a->tokens.conn, st, "token entries could not be sent");
    }
    uint64_t now_us = kvs_now_us();
    for (uint32_t i = 0; i < m.count; i++) {
        dcw_pulse_token(&s->pulse, &m.entries[i], now_us);
        if (m.entries[i].has_placed && m.entries[i].placed.mode == MSG_PLACE_REMOTE)
            kvs_histogram_observe(s->exposed, (double)m.entries[i].placed.exposed_us * 1e-6);
        if (m.entries[i].id >= 0)
            (void)KVS_FAILPOINT("decode.after_token");
    }
}

static void act(struct sink *s, const struct dcw_action *a)
{
    struct net_rpc *rpc = wrk_worker_rpc(s->w);
    struct kvt_port *port = wrk_worker_port(s->w);
    struct xfer *x = a->xfer != 0 ? xfer_find(s, a->xfer) : NULL;
    switch (a->kind) {
    case DCW_ACT_GRANT: act_grant(s, a); break;
    case DCW_ACT_CALL_PREFILL: act_call_prefill(s, a); break;
    case DCW_ACT_GRANT_END:
        if (kvt_grant_end(port, a->xfer, a->grant_end.status, a->grant_end.pages_sent) != KVS_OK)
            KVS_ERROR("transport command lost", "xfer=%llx command=end", (unsigned long long)a->xfer);
        break;
    case DCW_ACT_GRANT_CANCEL:
        if (kvt_grant_cancel(port, a->xfer) != KVS_OK)
            KVS_ERROR("transport command lost", "xfer=%llx command=cancel", (unsigned long long)a->xfer);
        break;
    case DCW_ACT_ACK:
        if (x != NULL && x->stream != 0)
            net_rpc_ack(rpc, x->conn, x->stream);
        break;
    case DCW_ACT_NACK:
        if (x != NULL && x->stream != 0)
            act_nack(s, a, x);
        break;
    case DCW_ACT_CANCEL:
        if (x != NULL && x->stream != 0)
            net_rpc_cancel(rpc, x->conn, x->stream);
        break;
    case DCW_ACT_PEER_CLOSE:
        wrk_peers_close(wrk_worker_peers(s->w), a->peer, "messages under way do not arrive, and nobody wants them any more");
        break;
    case DCW_ACT_SAMPLE: act_sample(s, a); break;
    case DCW_ACT_FORGET:
        if (x != NULL)
            xfer_forget(s, x);
        break;
    case DCW_ACT_TOKENS: act_tokens(s, a); break;
    case DCW_ACT_END:
        KVS_DEBUG("call ended", "req=%llu status=%s", (unsigned long long)a->request, kvs_status_name(a->end.end.status));
        net_rpc_end(rpc, a->end.conn, a->end.stream, &a->end.end);
        break;
    }
}

static void perform(struct sink *s)
{
    struct dcw_action a[ACTIONS];
    size_t n;
    while ((n = dcw_actions(s->core, a, ACTIONS)) != 0)
        for (size_t i = 0; i < n; i++)
            act(s, &a[i]);
}

/* --- life --- */

static void sink_destroy(void *self)
{
    struct sink *s = self;
    if (s == NULL)
        return;
    dcw_destroy(s->core);
    dcw_pulse_fini(&s->pulse);
    for (uint32_t i = 0; i < XFERS_MAX; i++)
        free(s->xfer[i].logits);
    free(s->pending);
    free(s->missing);
    free(s);
}

static void create_metrics(struct sink *s)
{
    struct kvs_metrics *m = wrk_worker_metrics(s->w);
    char labels[64];
    for (int i = 0; i < 4; i++) {
        kvs_format(labels, sizeof labels, "transport=\"%s\"", transport_label[i]);
        s->pages[i] = kvs_counter(m, "kvasir_kv_transfer_pages_total", labels, "KV pages landed and verified, by the sink");
        s->bytes[i] = kvs_counter(m, "kvasir_kv_transfer_bytes_total", labels, "KV bytes landed and verified, by the sink");
    }
    for (uint32_t g = 0; g < wrk_sched_layout(wrk_worker_sched(s->w))->group_count; g++) {
        kvs_format(labels, sizeof labels, "group=\"%u\"", g);
        s->group_pages[g] = kvs_counter(m, "kvasir_kv_transfer_group_pages_total", labels, "KV pages landed and verified, by group of layers");
    }
    s->seconds = kvs_histogram(m, "kvasir_kv_transfer_seconds", "", "First message begun to last landed, by the sink", kvs_latency_bounds,
                               kvs_latency_bound_count);
    s->exposed = kvs_histogram(m, "kvasir_kv_exposed_seconds", "", "Remote prefill: from its last step done to the first token possible here",
                               kvs_latency_bounds, kvs_latency_bound_count);
    for (int i = 1; i < KVT_VERDICTS; i++) {
        kvs_format(labels, sizeof labels, "reason=\"%s\"", kvt_verdict_name((kvt_verdict)i));
        s->declined[i].counter = kvs_counter(m, "kvasir_kv_declined_total", labels, "KV messages declined, by reason");
    }
    for (int i = 1; i < 5; i++) {
        kvs_format(labels, sizeof labels, "outcome=\"%s\"", outcome_label[i]);
        s->ended[i].counter = kvs_counter(m, "kvasir_requests_total", labels, "Sequences ended, by outcome");
    }
    s->local_prompt.counter = kvs_counter(m, "kvasir_local_prefill_tokens_total", "", "Prompt tokens prefilled on the decode worker");
    s->remote.counter = kvs_counter(m, "kvasir_placements_total", "mode=\"remote\"", "Prompts by how they got their KV");
    s->local.counter = kvs_counter(m, "kvasir_placements_total", "mode=\"local\"", "Prompts by how they got their KV");
    s->fallbacks.counter = kvs_counter(m, "kvasir_prefill_fallbacks_total", "", "Remote prefills that ended in a local one");
    s->stalled.counter = kvs_counter(m, "kvasir_kv_stalled_total", "", "Transfers given up because their pages came too slowly");
    s->tokens.counter = kvs_counter(m, "kvasir_generated_tokens_total", "", "Tokens sent to routers");
    s->fetches.counter = kvs_counter(m, "kvasir_fetches_total", "", "Prefixes asked from a worker that was said to have them");
    s->fetched.counter = kvs_counter(m, "kvasir_fetched_tokens_total", "", "Prompt tokens whose KV came from another worker's cache");
    s->eager.counter = kvs_counter(m, "kvasir_kv_eager_total", "", "KV messages that came eagerly instead of by rendezvous");
    s->forced.counter = kvs_counter(m, "kvasir_kv_forced_closes_total", "", "Peers closed by force");
    s->cut.counter = kvs_counter(m, "kvasir_kv_cut_receives_total", "", "Posted receives that ended with a peer's destruction");
}

static void sink_set_role(void *self, msg_role role)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_ROLE, .role = {.decodes = role == MSG_ROLE_DECODE || role == MSG_ROLE_BOTH}});
}

static kvs_status sink_create(struct wrk_worker *w, void **self_out, struct kvs_error *err)
{
    struct sink *s = calloc(1, sizeof *s);
    if (s == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory for the decode role");
    s->w = w;
    s->pending = calloc(PENDING_MAX, sizeof *s->pending);
    s->missing = calloc(MSG_WANTS_MAX + 1, sizeof *s->missing);
    uint32_t calls = wrk_worker_config(w)->sequences + wrk_worker_config(w)->queue;
    struct dcw_config c = {.sched = wrk_worker_sched(w), .id = wrk_worker_card(w)->id, .epoch = wrk_worker_card(w)->epoch, .seed = kvs_random_u64(),
                           .calls_max = calls > 4096 ? 4096 : calls, .vocab = wrk_worker_card(w)->vocab,
                           .stall_us = wrk_worker_config(w)->kv_stall_us};
    kvs_status st = s->pending == NULL || s->missing == NULL ? kvs_fail(err, KVS_SELF_NOMEM, "out of memory for the decode role")
                                                             : dcw_create(&c, &s->core, err);
    if (st == KVS_OK)
        st = dcw_pulse_init(&s->pulse, wrk_worker_metrics(w), c.calls_max);
    if (st != KVS_OK) {
        sink_destroy(s);
        return st;
    }
    create_metrics(s);
    sink_set_role(s, wrk_worker_card(w)->role);
    *self_out = s;
    return KVS_OK;
}

/* --- reactions --- */

static void end_with(struct sink *s, net_conn conn, uint32_t stream, kvs_status st, const char *text)
{
    struct msg_end end = {.status = st};
    kvs_format(end.text, sizeof end.text, "%s", text);
    net_rpc_end(wrk_worker_rpc(s->w), conn, stream, &end);
}

static bool sink_call(void *self, net_conn conn, uint32_t stream, const struct msg_call *call, uint64_t deadline_us)
{
    struct sink *s = self;
    struct kvs_error err = {0};
    struct kvs_arena arena;
    kvs_status st = KVS_OK;
    struct dcw_event ev = {.conn = conn, .stream = stream};
    struct msg_generate generate = {0}; /* what cannot be decoded stays empty, and is not fed */
    struct msg_abort abort_msg = {0};
    kvs_arena_init(&arena, DECODE_MAX);
    if (call->method == MSG_TOKENS) {
        ev.kind = DCW_EV_TOKENS_OPEN;
    } else if (call->method == MSG_GENERATE) {
        st = msg_generate_decode(call->body, call->body_bytes, &arena, &generate, &err);
        ev.kind = DCW_EV_GENERATE;
        ev.request = generate.request;
        if (st == KVS_OK)
            dcw_pulse_call(&s->pulse, &generate, kvs_now_us());
        ev.generate.msg = &generate;
        ev.generate.deadline_us = deadline_us;
    } else if (call->method == MSG_ABORT) {
        st = msg_abort_decode(call->body, call->body_bytes, &arena, &abort_msg, &err);
        ev.kind = DCW_EV_ABORT;
        ev.request = abort_msg.request;
        ev.abort.attempt = abort_msg.attempt;
        ev.abort.keep = abort_msg.keep;
    } else {
        kvs_arena_fini(&arena);
        return false;
    }
    if (st == KVS_OK)
        feed(s, &ev);
    else
        end_with(s, conn, stream, st, err.text);
    kvs_arena_fini(&arena);
    return true;
}

static bool sink_cancel(void *self, net_conn conn, uint32_t stream)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_CANCEL, .conn = conn, .stream = stream});
    return true;
}

static bool sink_end(void *self, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    struct sink *s = self;
    for (uint32_t i = 0; i < s->xfer_top; i++) {
        struct xfer *x = &s->xfer[i];
        if (x->id == 0 || x->conn != conn || x->stream != stream)
            continue;
        feed(s, &(struct dcw_event){.kind = DCW_EV_PREFILL_END, .xfer = x->id, .prefill_end = end});
        return true;
    }
    return false;
}

static bool sink_pause(void *self, net_conn conn, uint64_t request, bool resume)
{
    feed(self, &(struct dcw_event){.kind = resume ? DCW_EV_RESUME : DCW_EV_PAUSE, .conn = conn, .request = request});
    return true;
}

static void sink_conn_down(void *self, net_conn conn)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_ROUTER_DOWN, .conn = conn});
}

static const char *label_of(const char *transport)
{
    static const char *const near[] = {"cma", "sysv", "posix", "shm"};
    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++)
        if (strcmp(transport, near[i]) == 0)
            return "shm";
    return transport;
}

static void sink_peer_up(void *self, uint32_t peer, const char *id, const char *transport)
{
    struct sink *s = self;
    KVS_ASSERT(peer < WRK_PEERS_MAX);
    kvs_format(s->label[peer], sizeof s->label[peer], "%s", label_of(transport));
    feed(s, &(struct dcw_event){.kind = DCW_EV_PEER_UP, .peer = peer, .peer_up = {.id = id, .transport = label_of(transport)}});
}

static void sink_peer_down(void *self, uint32_t peer)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_PEER_DOWN, .peer = peer});
}

static void sink_peer_closed(void *self, uint32_t peer)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_PEER_CLOSED, .peer = peer});
}

static bool sink_port_event(void *self, const struct kvt_event *ev)
{
    struct sink *s = self;
    if (ev->kind != KVT_EV_GRANT)
        return false;
    uint32_t n = kvt_sink_missing(ev->sink, s->missing, MSG_WANTS_MAX + 1);
    struct dcw_event e = {.kind = DCW_EV_GRANT, .xfer = kvt_sink_xfer(ev->sink)};
    e.grant.status = ev->status;
    e.grant.missing = s->missing;
    e.grant.missing_count = n;
    e.grant.bytes = ev->bytes;
    e.grant.pages = ev->pages;
    e.grant.elapsed_us = ev->elapsed_us;
    for (int i = 0; i < 4; i++)
        if (ev->peer < WRK_PEERS_MAX && strcmp(transport_label[i], s->label[ev->peer]) == 0) {
            kvs_counter_add(s->pages[i], ev->pages);
            kvs_counter_add(s->bytes[i], ev->bytes);
        }
    uint32_t landed[KVC_GROUPS_MAX], groups = wrk_sched_layout(wrk_worker_sched(s->w))->group_count;
    kvt_sink_landed_of(ev->sink, landed, groups);
    for (uint32_t g = 0; g < groups; g++)
        kvs_counter_add(s->group_pages[g], landed[g]);
    if (ev->status == KVS_OK)
        kvs_histogram_observe(s->seconds, (double)ev->elapsed_us * 1e-6);
    feed(s, &e);
    kvt_sink_destroy(ev->sink);
    return true;
}

static void sink_step_done(void *self)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_STEP_DONE});
}

static void sink_tick(void *self)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_TICK});
}

static uint64_t sink_deadline_us(void *self)
{
    struct sink *s = self;
    return dcw_deadline_us(s->core);
}

static void sink_drain(void *self)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_DRAIN});
}

static uint32_t sink_busy(void *self)
{
    struct sink *s = self;
    return dcw_stats(s->core).calls;
}

static uint32_t sink_kept(void *self)
{
    struct sink *s = self;
    return dcw_stats(s->core).kept;
}

static void sink_hand_back(void *self)
{
    feed(self, &(struct dcw_event){.kind = DCW_EV_HAND_BACK});
}

static bool sink_link(void *self, struct msg_peer_link *link)
{
    const struct sink *s = self;
    return dcw_link(s->core, link);
}

static void sink_metrics(void *self)
{
    struct sink *s = self;
    struct dcw_stats st = dcw_stats(s->core);
    struct kvt_port_counters pc;
    kvt_port_counters(wrk_worker_port(s->w), &pc);
    for (int i = 1; i < KVT_VERDICTS; i++)
        wrk_follow(&s->declined[i], kvt_port_declined(wrk_worker_port(s->w), (kvt_verdict)i));
    for (int i = 1; i < 5; i++)
        wrk_follow(&s->ended[i], st.ended[i]);
    wrk_follow(&s->local_prompt, st.local_prefill_tokens);
    wrk_follow(&s->remote, st.remote);
    wrk_follow(&s->local, st.local);
    wrk_follow(&s->fallbacks, st.fallbacks);
    wrk_follow(&s->stalled, st.stalled);
    wrk_follow(&s->tokens, st.tokens);
    wrk_follow(&s->fetches, st.fetches);
    wrk_follow(&s->fetched, st.fetched_tokens);
    wrk_follow(&s->eager, pc.eager);
    wrk_follow(&s->forced, pc.forced_closes);
    wrk_follow(&s->cut, pc.cut_receives);
}

const struct wrk_role_ops dcw_role = {
    .role = MSG_ROLE_DECODE,
    .create = sink_create,
    .destroy = sink_destroy,
    .call = sink_call,
    .cancel = sink_cancel,
    .end = sink_end,
    .pause = sink_pause,
    .conn_down = sink_conn_down,
    .peer_up = sink_peer_up,
    .peer_down = sink_peer_down,
    .peer_closed = sink_peer_closed,
    .port_event = sink_port_event,
    .step_done = sink_step_done,
    .tick = sink_tick,
    .deadline_us = sink_deadline_us,
    .drain = sink_drain,
    .set_role = sink_set_role,
    .busy = sink_busy,
    .kept = sink_kept,
    .hand_back = sink_hand_back,
    .metrics = sink_metrics,
    .link = sink_link,
};
