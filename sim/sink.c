/* sink.c - actions of the decode machine, as decode-worker/edge/sink.c performs them: what an action brings about at once is queued and
 * fed after the machine's actions are drained.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"
#include "proto/wire.h"
#include "sim/client.h"
#include "sim/worker.h"

#include <stdlib.h>
#include <string.h>

#define ACTIONS 4

static void pend(struct sim_worker *w, const struct dcw_event *ev)
{
    KVS_ASSERT(w->pending_count < SIM_PENDING);
    w->pending[(w->pending_head + w->pending_count++) % SIM_PENDING] = *ev;
}

/* --- transfers --- */

static struct sim_xfer *xfer_find(struct sim_worker *w, uint64_t id)
{
    for (uint32_t i = 0; i < w->xfer_count; i++)
        if (w->xfer[i].id == id)
            return &w->xfer[i];
    return NULL;
}

static struct sim_xfer *xfer_new(struct sim_worker *w, uint64_t id)
{
    if (xfer_find(w, id) != NULL)
        sim_fail(w->s, "%s: xfer %llx is granted twice", w->s->node[w->node].id, (unsigned long long)id);
    if (w->xfer_count == w->xfer_cap) {
        w->xfer_cap = w->xfer_cap != 0 ? w->xfer_cap * 2 : 16;
        w->xfer = realloc(w->xfer, w->xfer_cap * sizeof *w->xfer);
        KVS_ASSERT(w->xfer != NULL);
    }
    struct sim_xfer *x = &w->xfer[w->xfer_count++];
    *x = (struct sim_xfer){.id = id, .logits = calloc(1, sim_logits_bytes(w))};
    KVS_ASSERT(x->logits != NULL);
    return x; /* a fetch has no use for the logits' place */
}

/* Numbers that a stranger must not be able to guess do not come twice, in no process and in no life of one. */
static void check_unique(struct sim *s, uint32_t node, uint64_t number)
{
    for (uint32_t i = 0; i < s->secret_count; i++)
        if (s->secret[i] == number)
            sim_fail(s, "%s uses %llx a second time as xfer or nonce", s->node[node].id, (unsigned long long)number);
    if (s->secret_count == s->secret_cap) {
        s->secret_cap = s->secret_cap != 0 ? s->secret_cap * 2 : 256;
        s->secret = realloc(s->secret, s->secret_cap * sizeof *s->secret);
        KVS_ASSERT(s->secret != NULL);
    }
    s->secret[s->secret_count++] = number;
}

static void act_grant(struct sim_worker *w, const struct dcw_action *a)
{
    struct sim *s = w->s;
    struct sim_xfer *x = xfer_new(w, a->xfer);
    check_unique(s, w->node, a->xfer);
    check_unique(s, w->node, a->grant.nonce);
    if (a->grant.sink_epoch != s->node[w->node].epoch)
        sim_fail(s, "%s grants under an epoch that is not its own", s->node[w->node].id);
    if (sim_chance(s, s->set.grant_refused)) {
        sim_fault(s, SIM_N_grants_refused);
        x->refused = true;
        pend(w, &(struct dcw_event){.kind = DCW_EV_GRANT, .xfer = a->xfer, .grant = {.status = KVS_BUSY_QUEUE}});
        return;
    }
    uint32_t n = a->grant.want_count;
    struct kvt_want *wants = calloc((size_t)n + 1, sizeof *wants);
    struct kvt_sink *sink = NULL;
    KVS_ASSERT(wants != NULL);
    for (uint32_t i = 0; i < n; i++) {
        const struct msg_want *m = &a->grant.wants[i];
        uint32_t page = kvc_block_row(a->grant.table, m->group)[m->block];
        wants[i] = (struct kvt_want){.block = m->block, .group = (uint16_t)m->group, .bytes = w->layout.group[m->group].page_bytes,
                                     .dest = sim_page(w, m->group, page)};
    }
    wants[n] = (struct kvt_want){.block = KVT_LOGITS_BLOCK, .group = KVT_LOGITS_GROUP, .bytes = a->grant.logits_bytes, .dest = x->logits};
    uint32_t logits = a->grant.logits_bytes > 0; /* FETCH: none */
    struct kvt_sink_config c = {.sink_epoch = a->grant.sink_epoch, .xfer = a->xfer, .nonce = a->grant.nonce, .wants = wants,
                                .want_count = n + logits};
    kvs_status st = kvt_sink_create(&c, &sink);
    KVS_ASSERT(st == KVS_OK);
    free(wants);
    x->in_port = true;
    sim_note(s, w->node, "grant %t for request %r: %u pages", a->xfer, a->request, n);
    sim_about_request(s, a->request);
    sim_port_grant(w, a->peer, sink, n + logits);
}

static void act_call_prefill(struct sim_worker *w, const struct dcw_action *a)
{
    struct sim *s = w->s;
    struct sim_xfer *x = xfer_find(w, a->xfer);
    if (x == NULL || x->refused)
        return;
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_prefill_encode(&a->prefill.msg, &body);
    KVS_ASSERT(st == KVS_OK);
    uint64_t now = sim_local(s, w->node), left_ms = a->prefill.deadline_us > now ? (a->prefill.deadline_us - now) / 1000 + 1 : 1;
    const struct sim_slot *p = &w->slot[a->peer];
    x->conn = p->state == SIM_SLOT_UP ? p->conn : 0;
    if (!a->prefill.fetch)
        sim_client_prefilled(s, a->request, w->node, p->node);
    x->stream = x->conn == 0 ? 0 : sim_rpc_call(s, w->node, x->conn, a->prefill.fetch ? MSG_FETCH : MSG_PREFILL, (uint32_t)left_ms, &body, &(struct sim_call){.id = a->xfer});
    kvs_buf_fini(&body);
    if (x->stream != 0)
        return;
    static const struct msg_end lost = {.status = KVS_PEER_LOST, .text = "the PREFILL call could not be made"};
    pend(w, &(struct dcw_event){.kind = DCW_EV_PREFILL_END, .xfer = a->xfer, .prefill_end = &lost});
}

static void act_nack(struct sim_worker *w, const struct dcw_action *a, const struct sim_xfer *x)
{
    struct msg_nack m = {.missing = a->nack.missing, .count = a->nack.count};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_nack_encode(&m, &body);
    KVS_ASSERT(st == KVS_OK);
    if (m.count == 0)
        sim_fail(w->s, "%s: a NACK that names nothing", w->s->node[w->node].id);
    sim_note(w->s, w->node, "NACK of xfer %t: %u missing", x->id, m.count);
    sim_rpc_ack(w->s, w->node, x->conn, x->stream, &body);
    kvs_buf_fini(&body);
}

static void sampled(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    struct dcw_event ev = {.kind = DCW_EV_SAMPLED, .call = e->id};
    memcpy(&ev.sampled, e->ptr, sizeof ev.sampled);
    sim_sink_feed(w, &ev);
    sim_worker_turn(w);
}

/* Answered at once, as the edge does, or later, as the machine allows. */
static void act_sample(struct sim_worker *w, const struct dcw_action *a)
{
    struct sim *s = w->s;
    struct dcw_event ev = {.kind = DCW_EV_SAMPLED, .call = a->call};
    struct sim_xfer *x = xfer_find(w, a->xfer);
    ev.sampled.status = KVS_SELF_INTERNAL;
    if (x != NULL)
        ev.sampled.status = sim_device_sample(w, x->logits, &a->sample.sampling, a->sample.choice, a->sample.position, &ev.sampled);
    uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
    if (times == 2)
        sim_fault(s, SIM_N_doubled_events);
    bool later = sim_chance(s, 300);
    while (times-- > 0) {
        if (!later) {
            pend(w, &ev);
            continue;
        }
        struct wrk_result *copy = malloc(sizeof *copy);
        KVS_ASSERT(copy != NULL);
        *copy = ev.sampled;
        sim_worker_post(w, sim_in(s, 1, 3000), sampled, a->call, 0, 0, copy);
    }
}

static void act_forget(struct sim_worker *w, struct sim_xfer *x)
{
    if (x->in_port)
        sim_fail(w->s, "%s forgets xfer %llx while the transport may write its logits", w->s->node[w->node].id, (unsigned long long)x->id);
    free(x->logits);
    *x = w->xfer[--w->xfer_count];
}

static void check_alive(struct sim_worker *w, uint64_t conn)
{
    if (!sim_rpc_alive(w->s, w->node, conn))
        sim_fail(w->s, "%s speaks to a router whose connection is gone", w->s->node[w->node].id);
}

static void act_tokens(struct sim_worker *w, const struct dcw_action *a)
{
    struct msg_tokens m = {.entries = a->tokens.entries, .count = a->tokens.count};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_tokens_encode(&m, &body);
    KVS_ASSERT(st == KVS_OK);
    check_alive(w, a->tokens.conn);
    sim_rpc_item(w->s, w->node, a->tokens.conn, a->tokens.stream, &body);
    kvs_buf_fini(&body);
}

static void act(struct sim_worker *w, const struct dcw_action *a)
{
    struct sim *s = w->s;
    struct sim_xfer *x = a->xfer != 0 ? xfer_find(w, a->xfer) : NULL;
    bool called = x != NULL && x->stream != 0;
    switch (a->kind) {
    case DCW_ACT_GRANT: act_grant(w, a); break;
    case DCW_ACT_CALL_PREFILL: act_call_prefill(w, a); break;
    case DCW_ACT_GRANT_END: sim_port_grant_end(w, a->xfer, a->grant_end.status, a->grant_end.pages_sent); break;
    case DCW_ACT_GRANT_CANCEL: sim_port_grant_cancel(w, a->xfer); break;
    case DCW_ACT_ACK:
        if (called)
            sim_rpc_ack(s, w->node, x->conn, x->stream, NULL);
        break;
    case DCW_ACT_NACK:
        if (called)
            act_nack(w, a, x);
        break;
    case DCW_ACT_CANCEL:
        if (called)
            sim_rpc_cancel(s, w->node, x->conn, x->stream);
        break;
    case DCW_ACT_PEER_CLOSE: sim_worker_close_peer(w, a->peer); break;
    case DCW_ACT_SAMPLE: act_sample(w, a); break;
    case DCW_ACT_FORGET:
        if (x != NULL)
            act_forget(w, x);
        break;
    case DCW_ACT_TOKENS: act_tokens(w, a); break;
    case DCW_ACT_END:
        check_alive(w, a->end.conn);
        sim_note(s, w->node, "END for request %r: %s", a->request, a->end.end.status);
        sim_rpc_end(s, w->node, a->end.conn, a->end.stream, &a->end.end);
        break;
    }
}

static void feed_one(struct sim_worker *w, const struct dcw_event *ev)
{
    struct dcw_action a[ACTIONS];
    size_t n;
    dcw_step(w->dcw, ev, sim_local(w->s, w->node));
    sim_worker_zero(w);
    while ((n = dcw_actions(w->dcw, a, ACTIONS)) != 0)
        for (size_t i = 0; i < n; i++)
            act(w, &a[i]);
}

void sim_sink_feed(struct sim_worker *w, const struct dcw_event *ev)
{
    feed_one(w, ev);
    while (w->pending_count > 0) {
        struct dcw_event next = w->pending[w->pending_head];
        w->pending_head = (w->pending_head + 1) % SIM_PENDING;
        w->pending_count--;
        feed_one(w, &next);
    }
}

/* --- reactions --- */

bool sim_sink_end(struct sim_worker *w, uint64_t conn, const struct sim_call *call, const struct msg_end *end)
{
    for (uint32_t i = 0; i < w->xfer_count; i++) {
        if (w->xfer[i].conn != conn || w->xfer[i].stream != call->stream)
            continue;
        struct dcw_event ev = {.kind = DCW_EV_PREFILL_END, .xfer = w->xfer[i].id, .prefill_end = end};
        bool twice = sim_chance(w->s, w->s->set.doubled);
        sim_sink_feed(w, &ev);
        if (twice) {
            sim_fault(w->s, SIM_N_doubled_events);
            sim_sink_feed(w, &ev);
        }
        return true;
    }
    return false;
}

void sim_sink_granted(struct sim_worker *w, struct kvt_sink *sink, kvs_status st, uint32_t pages, uint64_t elapsed_us)
{
    struct sim *s = w->s;
    struct sim_xfer *x = xfer_find(w, kvt_sink_xfer(sink));
    if (x == NULL)
        sim_fail(s, "%s: a transfer was forgotten before the transport let go of it", s->node[w->node].id);
    else
        x->in_port = false;
    uint32_t missing[4096];
    struct dcw_event ev = {.kind = DCW_EV_GRANT, .xfer = kvt_sink_xfer(sink)};
    ev.grant.status = st;
    ev.grant.missing = missing;
    ev.grant.missing_count = kvt_sink_missing(sink, missing, 4096);
    ev.grant.bytes = kvt_sink_landed_bytes(sink);
    ev.grant.pages = pages;
    ev.grant.elapsed_us = elapsed_us;
    sim_count(s, SIM_N_pages, pages);
    sim_count(s, SIM_N_bytes, ev.grant.bytes);
    if (st != KVS_OK && pages > 0)
        sim_count(s, SIM_N_partial, 1);
    bool twice = sim_chance(s, s->set.doubled);
    uint64_t conn = x != NULL ? x->conn : 0;
    uint32_t stream = x != NULL ? x->stream : 0;
    sim_sink_feed(w, &ev);
    if (stream != 0 && sim_rpc_owes(s, w->node, conn, stream))
        sim_fail(s, "%s: a transfer is over, and its source still waits for ACK, NACK or CANCEL", s->node[w->node].id);
    if (twice) {
        sim_fault(s, SIM_N_doubled_events);
        sim_sink_feed(w, &ev);
    }
}

void sim_sink_free(struct sim_worker *w)
{
    for (uint32_t i = 0; i < w->xfer_count; i++)
        free(w->xfer[i].logits);
    free(w->xfer);
    free(w->pending);
}
