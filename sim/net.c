/* net.c - see net.h. A frame is an event of the receiving process. Both ends share one list of calls per connection with a flag for what
 * each end knows; entries go when neither end needs them. END twice on one call, or an ITEM after it, is a broken promise and is told.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/net.h"

#include "proto/wire.h"
#include "sim/members.h"

#include <stdlib.h>
#include <string.h>

#define CALM_US 6000000u

typedef enum frame_type { CALL, ITEM, END, CANCEL, ACK, NACK, PAUSE, RESUME, PING, PONG } frame_type;

struct frame {
    frame_type type;
    uint32_t stream;
    size_t n;
    uint8_t body[];
};

static const struct sim_handlers *handlers(const struct sim *s, uint32_t node)
{
    return sim_is_router(s, node) ? &sim_router_handlers : &sim_worker_handlers;
}

struct sim_conn *sim_conn_find(struct sim *s, uint64_t id)
{
    return id < s->conn_by_id_cap ? s->conn_by_id[id] : NULL;
}

static void enter(struct sim *s, struct sim_conn *c)
{
    if (s->conn_count == s->conn_cap) {
        s->conn_cap = s->conn_cap != 0 ? s->conn_cap * 2 : 32;
        s->conn = realloc(s->conn, s->conn_cap * sizeof(struct sim_conn *));
        KVS_ASSERT(s->conn != NULL);
    }
    s->conn[s->conn_count++] = c;
    if (c->id >= s->conn_by_id_cap) {
        uint64_t cap = c->id * 2 + 64;
        s->conn_by_id = realloc(s->conn_by_id, cap * sizeof(struct sim_conn *));
        KVS_ASSERT(s->conn_by_id != NULL);
        memset(s->conn_by_id + s->conn_by_id_cap, 0, (cap - s->conn_by_id_cap) * sizeof(struct sim_conn *));
        s->conn_by_id_cap = cap;
    }
    s->conn_by_id[c->id] = c;
}

uint32_t sim_conn_side(const struct sim_conn *c, uint32_t node)
{
    KVS_ASSERT(c->node[0] == node || c->node[1] == node);
    return c->node[0] == node ? 0 : 1;
}

static struct sim_pair *pair_of(struct sim *s, uint32_t a, uint32_t b)
{
    return a < b ? &s->pair[a][b] : &s->pair[b][a];
}

/* --- calls --- */

static struct sim_call *call_find(struct sim_conn *c, uint32_t stream)
{
    for (uint32_t i = 0; i < c->call_count; i++)
        if (c->call[i].stream == stream)
            return &c->call[i];
    return NULL;
}

static void call_tidy(struct sim_conn *c, struct sim_call *k)
{
    if (k->caller_done && k->callee == SIM_CALLEE_DONE)
        *k = c->call[--c->call_count];
}

static bool keeps_after_end(msg_method m)
{
    return m == MSG_PREFILL || m == MSG_FETCH;
}

/* --- sending --- */

static void deliver(struct sim *s, struct sim_event *e);

static void send(struct sim *s, struct sim_conn *c, uint32_t side, frame_type type, uint32_t stream, const struct kvs_buf *body)
{
    size_t n = body != NULL ? body->len : 0;
    struct frame *f = malloc(sizeof *f + n);
    KVS_ASSERT(f != NULL);
    *f = (struct frame){.type = type, .stream = stream, .n = n};
    if (n != 0)
        memcpy(f->body, body->data, n);
    bool beat = type == PING || type == PONG;
    uint64_t low = s->set.latency_us / 4, high = s->set.latency_us * 2;
    uint64_t at = beat ? s->now_us + low + kvs_rng_below(&s->beat_rng, high - low + 1) : sim_in(s, low, high);
    if (at < c->held_us[side])
        at = c->held_us[side];
    if (at <= c->last_us[side] && at != SIM_FOREVER)
        at = c->last_us[side] + 1;
    if (at != SIM_FOREVER)
        c->last_us[side] = at;
    if (at == SIM_FOREVER || at > c->cut_us[side]) {
        free(f);
        return;
    }
    sim_post(s, at, &(struct sim_event){.run = deliver, .node = c->node[!side], .life = c->life[!side], .id = c->id, .ptr = f});
}

/* This process' end of a connection that it still believes in; NULL: none. */
static struct sim_conn *mine(struct sim *s, uint32_t node, uint64_t conn, uint32_t *side_out)
{
    struct sim_conn *c = sim_conn_find(s, conn);
    if (c == NULL)
        return NULL;
    *side_out = sim_conn_side(c, node);
    return c->up[*side_out] && !c->over[*side_out] ? c : NULL;
}

bool sim_rpc_alive(struct sim *s, uint32_t node, uint64_t conn)
{
    uint32_t side;
    return mine(s, node, conn, &side) != NULL;
}

bool sim_conn_calm(const struct sim *s, const struct sim_conn *c)
{
    bool calm = !c->broken && (c->stall_us == 0 || c->stall_us + CALM_US <= s->now_us);
    for (uint32_t side = 0; side < 2; side++) {
        const struct sim_node *n = &s->node[c->node[side]];
        calm = calm && n->alive && !n->hung && (n->hung_us == 0 || n->hung_us + CALM_US <= s->now_us);
    }
    return calm;
}

static void deadline(struct sim *s, struct sim_event *e)
{
    uint32_t side;
    struct sim_conn *c = mine(s, e->node, e->id, &side);
    struct sim_call *k = c != NULL ? call_find(c, (uint32_t)e->a) : NULL;
    if (k == NULL || !k->caller_waits || k->caller_done || k->caller != side)
        return;
    if (k->method == MSG_ABORT && sim_conn_calm(s, c))
        sim_fail(s, "%s did not answer ABORT", s->node[c->node[!side]].id);
    static const struct msg_end late = {.status = KVS_REQ_DEADLINE, .text = "no END before the call's deadline"};
    struct sim_call copy = *k;
    k->caller_waits = false;
    k->caller_done = true;
    send(s, c, side, CANCEL, k->stream, NULL);
    call_tidy(c, k);
    handlers(s, e->node)->end(s, e->node, e->id, &copy, &late);
}

uint32_t sim_rpc_call(struct sim *s, uint32_t node, uint64_t conn, msg_method method, uint32_t remaining_ms, const struct kvs_buf *body,
                      const struct sim_call *own)
{
    uint32_t side;
    struct sim_conn *c = mine(s, node, conn, &side);
    if (c == NULL)
        return 0;
    if (c->call_count == c->call_cap) {
        c->call_cap = c->call_cap != 0 ? c->call_cap * 2 : 32;
        c->call = realloc(c->call, c->call_cap * sizeof *c->call);
        KVS_ASSERT(c->call != NULL);
    }
    struct sim_call *k = &c->call[c->call_count++];
    *k = *own;
    k->stream = c->next_stream[side];
    c->next_stream[side] += 2;
    k->caller = side;
    k->method = method;
    k->caller_waits = true;
    k->caller_done = false;
    k->callee = SIM_CALLEE_PENDING;
    k->deadline_us = remaining_ms != 0 ? (uint64_t)remaining_ms * 1000 : 0; /* becomes absolute when the callee hears of it */
    uint32_t stream = k->stream;
    send(s, c, side, CALL, stream, body);
    if (remaining_ms != 0)
        sim_post(s, s->now_us + (uint64_t)remaining_ms * 1000,
                 &(struct sim_event){.run = deadline, .node = node, .life = c->life[side], .id = conn, .a = stream});
    return stream;
}

static struct sim_call *callee_call(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, struct sim_conn **conn_out)
{
    uint32_t side;
    struct sim_conn *c = mine(s, node, conn, &side);
    struct sim_call *k = c != NULL ? call_find(c, stream) : NULL;
    *conn_out = c;
    return k != NULL && k->caller != side ? k : NULL;
}

void sim_rpc_item(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, const struct kvs_buf *body)
{
    struct sim_conn *c;
    struct sim_call *k = callee_call(s, node, conn, stream, &c);
    if (k != NULL && k->callee == SIM_CALLEE_ENDED)
        sim_fail(s, "%s sent an ITEM after END on stream %u", s->node[node].id, stream);
    if (k != NULL && k->callee == SIM_CALLEE_OPEN)
        send(s, c, !k->caller, ITEM, stream, body);
}

void sim_rpc_end(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, const struct msg_end *end)
{
    struct sim_conn *c;
    struct sim_call *k = callee_call(s, node, conn, stream, &c);
    if (k != NULL && k->callee == SIM_CALLEE_ENDED)
        sim_fail(s, "%s sent END twice on stream %u", s->node[node].id, stream);
    if (k == NULL || k->callee != SIM_CALLEE_OPEN)
        return;
    struct kvs_buf body;
    kvs_buf_init(&body, 1 << 16);
    kvs_status st = msg_end_encode(end, &body);
    KVS_ASSERT(st == KVS_OK);
    send(s, c, !k->caller, END, stream, &body);
    kvs_buf_fini(&body);
    k->callee = keeps_after_end(k->method) ? SIM_CALLEE_ENDED : SIM_CALLEE_DONE;
    call_tidy(c, k);
}

void sim_rpc_cancel(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream)
{
    uint32_t side;
    struct sim_conn *c = mine(s, node, conn, &side);
    struct sim_call *k = c != NULL ? call_find(c, stream) : NULL;
    if (k == NULL || k->caller != side || k->caller_done)
        return;
    k->caller_done = true;
    k->caller_waits = false;
    send(s, c, side, CANCEL, stream, NULL);
    call_tidy(c, k);
}

void sim_rpc_ack(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, const struct kvs_buf *nack)
{
    uint32_t side;
    struct sim_conn *c = mine(s, node, conn, &side);
    struct sim_call *k = c != NULL ? call_find(c, stream) : NULL;
    if (k == NULL || k->caller != side || k->caller_done)
        return;
    if (k->caller_waits)
        sim_fail(s, "%s sent ACK or NACK before END came on stream %u", s->node[node].id, stream);
    k->caller_done = true;
    send(s, c, side, nack != NULL ? NACK : ACK, stream, nack);
    call_tidy(c, k);
}

bool sim_rpc_owes(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream)
{
    uint32_t side;
    struct sim_conn *c = mine(s, node, conn, &side);
    const struct sim_call *k = c != NULL ? call_find(c, stream) : NULL;
    return k != NULL && k->caller == side && !k->caller_done;
}

void sim_rpc_pause(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, const struct kvs_buf *body, bool resume)
{
    uint32_t side;
    struct sim_conn *c = mine(s, node, conn, &side);
    if (c != NULL && call_find(c, stream) != NULL)
        send(s, c, side, resume ? RESUME : PAUSE, stream, body);
}

/* --- receiving --- */

static void deliver_call(struct sim *s, struct sim_conn *c, struct sim_call *k, uint32_t node, const struct frame *f)
{
    k->callee = SIM_CALLEE_OPEN;
    k->deadline_us = k->deadline_us != 0 ? s->now_us + k->deadline_us : 0;
    struct sim_call copy = *k;
    handlers(s, node)->call(s, node, c->id, &copy, f->body, f->n);
}

static void deliver_end(struct sim *s, struct sim_conn *c, struct sim_call *k, uint32_t node, const struct frame *f)
{
    if (k->caller_done || !k->caller_waits)
        return;
    struct kvs_arena arena;
    struct msg_end end;
    kvs_arena_init(&arena, 1 << 16);
    kvs_status st = msg_end_decode(f->body, f->n, &arena, &end, NULL);
    KVS_ASSERT(st == KVS_OK);
    struct sim_call copy = *k;
    k->caller_waits = false;
    k->caller_done = !keeps_after_end(k->method);
    call_tidy(c, k);
    handlers(s, node)->end(s, node, c->id, &copy, &end);
    kvs_arena_fini(&arena);
}

static void deliver(struct sim *s, struct sim_event *e)
{
    struct frame *f = e->ptr;
    uint32_t side;
    struct sim_conn *c = mine(s, e->node, e->id, &side);
    if (c == NULL || e->first_us > c->cut_us[!side])
        return;
    if (sim_pulse_heard(s, c, side))
        sim_conn_suspect(s, c, side, false);
    if (f->type == PING)
        send(s, c, side, PONG, 0, NULL);
    struct sim_call *k = call_find(c, f->stream);
    const struct sim_handlers *h = handlers(s, e->node);
    if (k == NULL)
        return;
    bool callee = k->caller != side;
    switch (f->type) {
    case CALL: deliver_call(s, c, k, e->node, f); break;
    case ITEM:
        if (!callee && k->caller_waits && !k->caller_done) {
            struct sim_call copy = *k;
            h->item(s, e->node, c->id, &copy, f->body, f->n);
        }
        break;
    case END: deliver_end(s, c, k, e->node, f); break;
    case CANCEL:
    case ACK:
    case NACK: {
        bool open = k->callee == SIM_CALLEE_OPEN || k->callee == SIM_CALLEE_ENDED;
        k->callee = SIM_CALLEE_DONE;
        call_tidy(c, k);
        if (open && f->type == CANCEL)
            h->cancel(s, e->node, e->id, f->stream);
        else if (open)
            h->ack(s, e->node, e->id, f->stream, f->type == NACK);
        break;
    }
    case PAUSE:
    case RESUME: h->pause(s, e->node, c->id, f->body, f->n, f->type == RESUME); break;
    case PING:
    case PONG: break;
    }
}

/* --- life of a connection --- */

static void conn_free(struct sim *s, struct sim_conn *c)
{
    for (uint32_t i = 0; i < s->conn_count; i++)
        if (s->conn[i] == c) {
            s->conn[i] = s->conn[--s->conn_count];
            break;
        }
    s->conn_by_id[c->id] = NULL;
    free(c->call);
    free(c);
}

static void lost_calls(struct sim *s, struct sim_conn *c, uint32_t side)
{
    static const struct msg_end lost = {.status = KVS_PEER_LOST, .text = "the connection is gone"};
    uint32_t count = 0;
    struct sim_call *copy = malloc((c->call_count + 1) * sizeof *copy);
    KVS_ASSERT(copy != NULL);
    for (uint32_t i = 0; i < c->call_count; i++)
        if (c->call[i].caller == side && c->call[i].caller_waits && !c->call[i].caller_done)
            copy[count++] = c->call[i];
    uint32_t node = c->node[side];
    uint64_t id = c->id;
    for (uint32_t i = 0; i < count; i++)
        handlers(s, node)->end(s, node, id, &copy[i], &lost);
    free(copy);
}

/* One end learns that the connection is over. */
static void on_down(struct sim *s, struct sim_event *e)
{
    struct sim_conn *c = sim_conn_find(s, e->id);
    if (c == NULL)
        return;
    uint32_t side = sim_conn_side(c, e->node);
    if (c->over[side])
        return;
    bool was_up = c->up[side], ends_first = sim_chance(s, 500);
    uint32_t peer = c->node[!side];
    c->over[side] = true;
    if (was_up) {
        sim_note(s, e->node, "connection %u to %n is down", c->id, peer);
        if (ends_first)
            lost_calls(s, c, side);
        handlers(s, e->node)->down(s, e->node, c->id, peer);
        if (!ends_first)
            lost_calls(s, c, side);
    }
    if (c->over[!side])
        conn_free(s, c);
    sim_dial_soon(s, e->node, peer, 20000, 300000);
}

static void post_down(struct sim *s, struct sim_conn *c, uint32_t side, uint64_t at_us)
{
    if (!c->over[side])
        sim_post(s, at_us, &(struct sim_event){.run = on_down, .node = c->node[side], .life = c->life[side], .id = c->id});
}

static void cut(struct sim *s, struct sim_conn *c, uint32_t sender, uint64_t at_us)
{
    (void)s;
    if (at_us < c->cut_us[sender])
        c->cut_us[sender] = at_us;
}

void sim_conn_break(struct sim *s, struct sim_conn *c)
{
    if (c->broken)
        return;
    c->broken = true;
    for (uint32_t side = 0; side < 2; side++) {
        cut(s, c, side, sim_in(s, 0, 2000));
        post_down(s, c, !side, c->cut_us[side] + sim_draw(s, 1, sim_chance(s, 300) ? 90000 : 2000));
    }
}

void sim_conn_hang_up(struct sim *s, struct sim_conn *c, uint32_t side)
{
    if (c->given_up[side])
        return;
    c->broken = c->given_up[side] = true;
    cut(s, c, !side, s->now_us);
    post_down(s, c, side, s->now_us);
    if (c->held_us[side] == SIM_FOREVER)
        return; /* word of it never gets there */
    uint64_t at = (c->held_us[side] > s->now_us ? c->held_us[side] : s->now_us) + s->set.latency_us;
    cut(s, c, side, at);
    post_down(s, c, !side, at + sim_draw(s, 1, 2000));
}

void sim_conn_close(struct sim *s, uint32_t node, uint64_t conn)
{
    uint32_t side;
    struct sim_conn *c = mine(s, node, conn, &side);
    if (c != NULL)
        sim_conn_hang_up(s, c, side);
}

void sim_conn_ping(struct sim *s, struct sim_conn *c, uint32_t side)
{
    send(s, c, side, PING, 0, NULL);
}

void sim_conn_suspect(struct sim *s, struct sim_conn *c, uint32_t side, bool suspect)
{
    handlers(s, c->node[side])->suspect(s, c->node[side], c->id, suspect);
}

void sim_conn_silence(struct sim *s, struct sim_conn *c, uint64_t for_us)
{
    if (c->broken)
        return;
    c->stall_us = s->now_us + for_us;
    for (uint32_t side = 0; side < 2; side++)
        c->held_us[side] = c->stall_us;
}

void sim_conn_one_way(struct sim *s, struct sim_conn *c, uint32_t deaf_node)
{
    (void)s;
    if (c->broken)
        return;
    c->broken = c->kv_dead = true;
    c->held_us[!sim_conn_side(c, deaf_node)] = SIM_FOREVER;
}

void sim_net_killed(struct sim *s, uint32_t node)
{
    for (uint32_t i = s->conn_count; i-- > 0;) {
        struct sim_conn *c = s->conn[i];
        if (c->node[0] != node && c->node[1] != node)
            continue;
        uint32_t side = sim_conn_side(c, node);
        if (c->life[side] != s->node[node].life)
            continue;
        c->over[side] = true;
        c->broken = true;
        uint64_t at = sim_in(s, 0, 1000), later = sim_draw(s, 1, 50000);
        if (c->held_us[side] > at)
            at = c->held_us[side];
        cut(s, c, side, at);
        if (c->over[!side])
            conn_free(s, c);
        else if (at != SIM_FOREVER)
            post_down(s, c, !side, at + later);
    }
}

void sim_net_free(struct sim *s)
{
    while (s->conn_count > 0)
        conn_free(s, s->conn[0]);
    free(s->conn);
    free(s->conn_by_id);
}

/* --- dialing --- */

static void on_up(struct sim *s, struct sim_event *e)
{
    struct sim_conn *c = sim_conn_find(s, e->id);
    if (c == NULL)
        return;
    uint32_t side = sim_conn_side(c, e->node);
    if (c->over[side] || e->first_us > c->cut_us[!side])
        return;
    c->up[side] = true;
    sim_pulse_up(s, c, side);
    sim_note(s, e->node, "connection %u to %n is up", c->id, c->node[!side]);
    handlers(s, e->node)->up(s, e->node, c->id, c->node[!side]);
}

static bool believes(const struct sim *s, uint32_t node, uint32_t peer)
{
    for (uint32_t i = 0; i < s->conn_count; i++) {
        const struct sim_conn *c = s->conn[i];
        for (uint32_t side = 0; side < 2; side++)
            if (c->node[side] == node && c->node[!side] == peer && c->life[side] == s->node[node].life && !c->over[side])
                return true;
    }
    return false;
}

static void connect(struct sim *s, uint32_t dialer, uint32_t listener)
{
    struct sim_conn *c = calloc(1, sizeof *c);
    KVS_ASSERT(c != NULL);
    c->id = ++s->next_conn;
    c->node[0] = dialer;
    c->node[1] = listener;
    c->next_stream[0] = 1;
    c->next_stream[1] = 2;
    for (uint32_t side = 0; side < 2; side++) {
        c->life[side] = s->node[c->node[side]].life;
        c->epoch[side] = s->node[c->node[side]].epoch;
        c->cut_us[side] = SIM_FOREVER;
    }
    enter(s, c);
    uint64_t at = sim_in(s, 100, 1000); /* the dialer's HELLO comes first */
    for (uint32_t side = 2; side-- > 0;) {
        c->last_us[!side] = at;
        sim_post(s, at, &(struct sim_event){.run = on_up, .node = c->node[side], .life = c->life[side], .id = c->id});
        at += sim_draw(s, 50, 500);
    }
}

/* Who dials whom, as the daemons do: workers their router (embedded) or routers their workers (etcd), and of two workers the one that comes
 * first by name (roles may change). SIM_NOBODY: nobody. */
static uint32_t dialer_of(struct sim *s, uint32_t a, uint32_t b)
{
    const struct msg_card *x = &s->node[a].card, *y = &s->node[b].card;
    if (sim_is_router(s, a) || sim_is_router(s, b)) {
        uint32_t router = sim_is_router(s, a) ? a : b, other = router == a ? b : a;
        if (sim_is_router(s, other))
            return SIM_NOBODY;
        return s->set.etcd ? router : other;
    }
    return strcmp(x->id, y->id) < 0 ? a : b;
}

/* An address is known from discovery, or (the router's, embedded) from the command line. */
static bool knows_address(struct sim *s, uint32_t dialer, uint32_t listener)
{
    return (!s->set.etcd && sim_is_router(s, listener)) || sim_members_find(s, dialer, s->node[listener].id) != NULL;
}

static void dial(struct sim *s, struct sim_event *e)
{
    uint32_t a = (uint32_t)e->a, b = (uint32_t)e->b, dialer = dialer_of(s, a, b);
    struct sim_pair *p = pair_of(s, a, b);
    p->dialing = false;
    if (!s->node[a].alive || !s->node[b].alive || dialer == SIM_NOBODY)
        return; /* a start of a process, or the end of that connection, asks again */
    uint32_t listener = dialer == a ? b : a;
    if (believes(s, dialer, listener) || !knows_address(s, dialer, listener))
        return; /* the end of that connection, or word of a new member, asks again */
    if (s->node[a].hung || s->node[b].hung || s->now_us < p->blocked_us)
        sim_dial_soon(s, a, b, 50000, 300000);
    else
        connect(s, dialer, listener);
}

void sim_dial_soon(struct sim *s, uint32_t a, uint32_t b, uint64_t low_us, uint64_t high_us)
{
    struct sim_pair *p = pair_of(s, a, b);
    if (p->dialing)
        return;
    p->dialing = true;
    sim_post(s, sim_in(s, low_us, high_us), &(struct sim_event){.run = dial, .node = SIM_NOBODY, .a = a, .b = b});
}
