/* decode.c - the decode machine's frame: events in, conclusions for all calls, actions out.
 * Order of what one dcw_step says: transfer actions in the order of their causes, then one TOKENS a router, then ENDs, so that a call's END
 * never overtakes its last entry. Zeroed pages come before all of them (worker/core/sched.h, the loop's step 2).
 * SPDX-License-Identifier: Apache-2.0 */
#include "decode-worker/core/private.h"

#include <stdlib.h>
#include <string.h>

#define CALLS_MAX 4096u

kvs_status dcw_create(const struct dcw_config *c, struct dcw **out, struct kvs_error *err)
{
    KVS_ASSERT(c->sched && c->vocab > 0 && c->id);
    if (c->calls_max == 0 || c->calls_max > CALLS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "a decode worker can have 1 to %u calls, not %u", CALLS_MAX,
                        c->calls_max);
    struct dcw *d = calloc(1, sizeof *d);
    if (!d)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the decode machine");
    d->sched = c->sched;
    kvs_format(d->id, sizeof d->id, "%s", c->id);
    d->epoch = c->epoch;
    d->seed = c->seed;
    d->calls_max = c->calls_max;
    d->routers_max = c->routers_max ? c->routers_max : 16;
    d->vocab = c->vocab;
    d->keep_due_us = UINT64_MAX;
    d->call_max_us = c->call_max_us ? c->call_max_us : 600000000;
    d->stall_us = c->stall_us ? c->stall_us : WRK_STALL_US;
    d->action_cap = (size_t)d->calls_max * 9 + d->routers_max + 8;
    d->entry_cap = d->calls_max * 2; /* a token and an end without one */
    d->calls = calloc(d->calls_max, sizeof *d->calls);
    d->keep_us = c->keep_us ? c->keep_us : 30000000;
    d->routers = calloc(d->routers_max, sizeof *d->routers);
    d->keeps = calloc(d->calls_max, sizeof *d->keeps);
    d->actions = calloc(d->action_cap, sizeof *d->actions);
    d->entries = calloc(d->entry_cap, sizeof *d->entries);
    d->sorted = calloc(d->entry_cap, sizeof *d->sorted);
    d->entry_conn = calloc(d->entry_cap, sizeof *d->entry_conn);
    if (!d->calls || !d->routers || !d->keeps || !d->actions || !d->entries || !d->sorted || !d->entry_conn)
        goto fail;
    *out = d;
    return KVS_OK;
fail:
    dcw_destroy(d);
    return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the decode machine's tables");
}

void dcw_destroy(struct dcw *d)
{
    if (!d)
        return;
    for (uint32_t i = 0; d->calls && i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        wrk_seq_state state = c->live ? wrk_seq_look(d->sched, c->seq).state : WRK_SEQ_GONE;
        if (state == WRK_SEQ_FENCED)
            wrk_seq_unfence(d->sched, c->seq);
        else if (state != WRK_SEQ_GONE)
            wrk_seq_close(d->sched, c->seq);
        dcw__transfer_free(&c->t);
    }
    free(d->calls);
    free(d->routers);
    free(d->keeps);
    free(d->actions);
    free(d->entries);
    free(d->sorted);
    free(d->entry_conn);
    free(d);
}

/* --- actions --- */

uint64_t dcw__handle(const struct dcw *d, const struct dcw_call *c)
{
    return (uint64_t)c->generation << 32 | (uint64_t)(c - d->calls);
}

struct dcw_action *dcw__act(struct dcw *d, dcw_action_kind kind, const struct dcw_call *c)
{
    KVS_ASSERT(d->action_count < d->action_cap);
    struct dcw_action *a = &d->actions[d->action_count++];
    *a = (struct dcw_action){.kind = kind};
    if (c) {
        a->request = c->request;
        a->call = dcw__handle(d, c);
    }
    return a;
}

void dcw__act_end(struct dcw *d, uint64_t conn, uint32_t stream, uint64_t request, kvs_status status, const char *text)
{
    struct dcw_action *a = dcw__act(d, DCW_ACT_END, NULL);
    a->request = request;
    a->end.conn = conn;
    a->end.stream = stream;
    a->end.end.status = status;
    kvs_format(a->end.end.text, sizeof a->end.end.text, "%s", text);
}

size_t dcw_actions(struct dcw *d, struct dcw_action *out, size_t cap)
{
    size_t n = d->action_count - d->action_next;
    if (n > cap)
        n = cap;
    memcpy(out, d->actions + d->action_next, n * sizeof *out);
    d->action_next += n;
    return n;
}

/* --- routers --- */

struct dcw_router *dcw__router(struct dcw *d, uint64_t conn)
{
    for (uint32_t i = 0; i < d->routers_max; i++)
        if (d->routers[i].open && d->routers[i].conn == conn)
            return &d->routers[i];
    return NULL;
}

static void on_tokens_open(struct dcw *d, const struct dcw_event *ev)
{
    struct dcw_router *r = dcw__router(d, ev->conn);
    if (r) {
        if (r->stream != ev->stream)
            dcw__act_end(d, ev->conn, ev->stream, 0, KVS_REQ_INVALID,
                         "a Tokens call is open on this connection already");
        return;
    }
    for (uint32_t i = 0; i < d->routers_max; i++)
        if (!d->routers[i].open) {
            d->routers[i] = (struct dcw_router){.open = true, .conn = ev->conn, .stream = ev->stream};
            return;
        }
    dcw__act_end(d, ev->conn, ev->stream, 0, KVS_BUSY_FULL, "this decode worker serves as many routers as it can");
}

/* --- what others are to fetch --- */

/* An entry of that request, or a free one; NULL: none, and the request's KV is on its own. */
static void keep(struct dcw *d, const struct dcw_event *ev, uint64_t now_us)
{
    struct dcw_keep *k = NULL;
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_keep *have = &d->keeps[i];
        if (have->until_us && have->conn == ev->conn && have->request == ev->request) {
            k = have;
            break;
        }
        if (!have->until_us && !k)
            k = have;
    }
    d->keep_due_us = 0; /* look anew */
    if (k)
        *k = (struct dcw_keep){.conn = ev->conn, .request = ev->request, .attempt = ev->abort.attempt, .until_us = now_us + d->keep_us};
}

/* All of a connection (request 0), or that request's up to that attempt. */
static void let_go(struct dcw *d, uint64_t conn, uint64_t request, uint32_t attempt)
{
    if (d->keep_due_us == UINT64_MAX)
        return; /* there are none */
    d->keep_due_us = 0;
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_keep *k = &d->keeps[i];
        if (k->until_us && k->conn == conn && (request == 0 || (k->request == request && k->attempt <= attempt)))
            *k = (struct dcw_keep){0};
    }
}

static uint64_t expire_keeps(struct dcw *d, uint64_t now_us)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_keep *k = &d->keeps[i];
        if (k->until_us && k->until_us <= now_us)
            *k = (struct dcw_keep){0};
        else if (k->until_us && k->until_us < least)
            least = k->until_us;
    }
    return least;
}

/* Ends all calls of a connection; `lost`: nothing can be sent there any more. */
static void router_gone(struct dcw *d, uint64_t conn, bool lost)
{
    struct dcw_router *r = dcw__router(d, conn);
    if (r && !lost)
        dcw__act_end(d, conn, r->stream, 0, KVS_REQ_CANCELLED, "cancelled by the caller");
    if (r)
        r->open = false;
    let_go(d, conn, 0, 0);
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (!c->live || c->conn != conn)
            continue;
        if (lost)
            c->router_lost = true;
        dcw__end(d, c, MSG_FINISH_ABORT, KVS_REQ_CANCELLED,
                 lost ? "the router's connection is gone" : "cancelled by the caller");
    }
}

static void on_cancel(struct dcw *d, const struct dcw_event *ev)
{
    const struct dcw_router *r = dcw__router(d, ev->conn);
    if (r && r->stream == ev->stream) {
        router_gone(d, ev->conn, false);
        return;
    }
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (c->live && c->conn == ev->conn && c->stream == ev->stream)
            dcw__end(d, c, MSG_FINISH_ABORT, KVS_REQ_CANCELLED, "cancelled by the caller");
    }
}

static void on_abort(struct dcw *d, const struct dcw_event *ev, uint64_t now_us)
{
    dcw__act_end(d, ev->conn, ev->stream, ev->request, KVS_OK, "");
    if (ev->abort.keep)
        keep(d, ev, now_us);
    else
        let_go(d, ev->conn, ev->request, ev->abort.attempt);
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (c->live && c->conn == ev->conn && c->request == ev->request && c->attempt <= ev->abort.attempt)
            dcw__end(d, c, MSG_FINISH_ABORT, KVS_REQ_CANCELLED, "aborted");
    }
}

static void on_pause(struct dcw *d, const struct dcw_event *ev)
{
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (c->live && c->phase < DCW_ENDING && c->conn == ev->conn && c->request == ev->request)
            wrk_seq_pause(d->sched, c->seq, ev->kind == DCW_EV_PAUSE);
    }
}

static void on_peer_up(struct dcw *d, const struct dcw_event *ev)
{
    if (ev->peer >= DCW_PEERS_MAX)
        return;
    struct dcw_peer *p = &d->peers[ev->peer];
    p->up = true;
    if (strcmp(p->id, ev->peer_up.id) != 0 || strcmp(p->transport, ev->peer_up.transport) != 0)
        p->link = (struct wrk_fit){0};
    kvs_format(p->id, sizeof p->id, "%s", ev->peer_up.id);
    kvs_format(p->transport, sizeof p->transport, "%s", ev->peer_up.transport);
}

static void hand_back(struct dcw *d, uint64_t now_us)
{
    for (uint32_t i = 0; i < d->calls_max; i++)
        if (d->calls[i].live)
            dcw__fail(d, &d->calls[i], KVS_SELF_STOPPING, "this decode worker stops before the sequence has come to its end", now_us);
}

/* --- conclusions --- */

static void settle(struct dcw *d, uint64_t now_us)
{
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (c->live && (c->phase == DCW_TRANSFER || c->phase == DCW_ENDING))
            dcw__transfer_watch(d, c, now_us);
        if (!c->live || c->phase >= DCW_ENDING)
            continue;
        wrk_seq_state state = wrk_seq_look(d->sched, c->seq).state;
        if (c->started_us == 0 && state != WRK_SEQ_WAITING)
            c->started_us = now_us;
        if (now_us >= c->deadline_us)
            dcw__fail(d, c, KVS_REQ_DEADLINE, "the request's time is up", now_us);
        else if (state == WRK_SEQ_FAILED)
            dcw__fail(d, c, KVS_BUSY_PAGES, "the sequence outgrew this worker's KV memory", now_us);
        else if (c->phase == DCW_QUEUED && state == WRK_SEQ_HELD && !c->later)
            dcw__transfer_begin(d, c, now_us);
    }
}

static void flush_tokens(struct dcw *d)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < d->routers_max && n < d->entry_count; r++) {
        if (!d->routers[r].open)
            continue;
        uint32_t first = n;
        for (uint32_t i = 0; i < d->entry_count; i++)
            if (d->entry_conn[i] == d->routers[r].conn)
                d->sorted[n++] = d->entries[i];
        if (n == first)
            continue;
        struct dcw_action *a = dcw__act(d, DCW_ACT_TOKENS, NULL);
        a->tokens.conn = d->routers[r].conn;
        a->tokens.stream = d->routers[r].stream;
        a->tokens.entries = d->sorted + first;
        a->tokens.count = n - first;
    }
}

static void flush_ends(struct dcw *d)
{
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (!c->live || c->phase != DCW_ENDING)
            continue;
        wrk_seq_state state = wrk_seq_look(d->sched, c->seq).state;
        if (state != WRK_SEQ_GONE && state != WRK_SEQ_FENCED)
            continue;
        if (!c->end_sent && !c->router_lost)
            dcw__act_end(d, c->conn, c->stream, c->request, c->end_status, c->end_text);
        c->end_sent = true;
        if (state == WRK_SEQ_GONE)
            c->phase = DCW_DEAD;
    }
}

/* At the beginning of a dcw_step: nothing points into calls and transfers any more. */
static void free_dead(struct dcw *d)
{
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        c->later = false;
        if (!c->live || c->phase != DCW_DEAD)
            continue;
        KVS_ASSERT(!c->t.open && c->end_sent);
        dcw__transfer_free(&c->t);
        *c = (struct dcw_call){.generation = c->generation};
    }
}

static void handle(struct dcw *d, const struct dcw_event *ev, uint64_t now_us)
{
    switch (ev->kind) {
    case DCW_EV_TICK: break;
    case DCW_EV_GENERATE: dcw__on_generate(d, ev, now_us); break;
    case DCW_EV_CANCEL: on_cancel(d, ev); break;
    case DCW_EV_ABORT: on_abort(d, ev, now_us); break;
    case DCW_EV_TOKENS_OPEN: on_tokens_open(d, ev); break;
    case DCW_EV_ROUTER_DOWN: router_gone(d, ev->conn, true); break;
    case DCW_EV_PAUSE:
    case DCW_EV_RESUME: on_pause(d, ev); break;
    case DCW_EV_PEER_UP: on_peer_up(d, ev); break;
    case DCW_EV_PEER_DOWN: dcw__on_peer_gone(d, ev->peer, false, now_us); break;
    case DCW_EV_PEER_CLOSED: dcw__on_peer_gone(d, ev->peer, true, now_us); break;
    case DCW_EV_PREFILL_END: dcw__on_prefill_end(d, ev->xfer, ev->prefill_end); break;
    case DCW_EV_GRANT: dcw__on_grant(d, ev, now_us); break;
    case DCW_EV_SAMPLED: dcw__on_sampled(d, ev, now_us); break;
    case DCW_EV_STEP_DONE: dcw__on_step_done(d, now_us); break;
    case DCW_EV_DRAIN: d->draining = true; break;
    case DCW_EV_HAND_BACK: hand_back(d, now_us); break;
    case DCW_EV_ROLE: d->off = !ev->role.decodes; break;
    }
}

void dcw_step(struct dcw *d, const struct dcw_event *ev, uint64_t now_us)
{
    KVS_ASSERT(d->action_next == d->action_count); /* the last event's actions were all taken */
    d->action_next = d->action_count = 0;
    d->entry_count = 0;
    free_dead(d);
    wrk_sched_tell_time(d->sched, now_us);
    handle(d, ev, now_us);
    settle(d, now_us);
    wrk_sched_admit(d->sched);
    settle(d, now_us);
    if (d->keep_due_us <= now_us)
        d->keep_due_us = expire_keeps(d, now_us);
    flush_tokens(d);
    flush_ends(d);
}

uint64_t dcw_deadline_us(const struct dcw *d)
{
    uint64_t least = wrk_sched_can_admit(d->sched) ? 0 : d->keep_due_us;
    for (uint32_t i = 0; i < d->calls_max; i++) {
        const struct dcw_call *c = &d->calls[i];
        uint64_t due_us = c->live ? dcw__transfer_due_us(c) : UINT64_MAX;
        least = due_us < least ? due_us : least;
        if (!c->live || c->phase >= DCW_ENDING)
            continue;
        wrk_seq_state state = wrk_seq_look(d->sched, c->seq).state;
        if (state == WRK_SEQ_FAILED || (c->phase == DCW_QUEUED && state == WRK_SEQ_HELD))
            return 0; /* the scheduler did something that this machine has not seen yet */
        if (c->deadline_us < least)
            least = c->deadline_us;
    }
    return least;
}

struct dcw_stats dcw_stats(const struct dcw *d)
{
    struct dcw_stats out = d->stats;
    out.calls = out.transfers = out.kept = 0;
    for (uint32_t i = 0; i < d->calls_max; i++) {
        out.calls += d->calls[i].live && d->calls[i].phase != DCW_DEAD;
        out.transfers += d->calls[i].live && d->calls[i].t.open;
        out.kept += d->keeps[i].until_us != 0;
    }
    return out;
}
