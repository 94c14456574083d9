/* embedded_server.c - the router's side of embedded discovery: the registry, and a watch for every worker that has
 * registered.
 * One MSG_REGISTER call is a registration and a watch in one: the card comes in, ITEMs of msg_members go out (the
 * whole view, its end, then changes) for as long as the call lives. A CANCEL is a leave. A lost stream starts the
 * lease: the member is gone a TTL later unless it has registered again by then. The same epoch under the same id
 * takes the registration over to its new call; another epoch replaces it (GONE, PUT) and ends the old call.
 * Leases run on the time in which this process could have heard its members: a stall of our own (stopped, swapped
 * out) is left out, or it would end the leases of all members whose streams are alive. Those whose streams did not
 * outlive it dial again at a pace that had time to grow, as after a restart: they have the same grace.
 * A second router's card is refused: two routers would each know half of the load.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/core/registry.h"
#include "cluster/discovery.h"
#include "net/core/pulse.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/log.h"
#include <stdlib.h>
#include <string.h>

#define TICK_US (CLS_EMBEDDED_TTL_US / 4)
#define MEMBERS_PER_ITEM 64

/* A member's call, or a member without one whose lease is running out (conn 0). */
struct registration {
    net_conn conn;
    uint32_t stream;
    bool used;
    char id[MSG_ID_MAX];
    uint64_t epoch;
};

/* Owner thread: the loop's. */
struct server {
    struct cls_discovery base; /* first */
    struct kvs_loop *loop;
    struct net_rpc *rpc;
    struct cls_events ev;
    struct kvs_timer *timer;
    struct cls_registry *registry;
    struct registration reg[CLS_EMBEDDED_MEMBERS_MAX];
    bool joined, announced;
    struct msg_card self;
    struct kvs_buf scratch;
    uint64_t seen_us, stalled_us; /* when time was last looked at; how much of it was a stall of our own */
    uint64_t grace_us;            /* no lease ends before (the registry's time) */
};

/* The registry's time. The timer looks at it every TICK_US, so a longer gap is a stall. */
static uint64_t server_now(struct server *s)
{
    uint64_t now = kvs_now_us(), gap = s->seen_us != 0 ? now - s->seen_us : 0;
    if (gap > 2 * TICK_US) {
        s->stalled_us += gap - TICK_US;
    }
    s->seen_us = now;
    now -= s->stalled_us;
    if (gap > NET_PULSE_STALL_US) {
        s->grace_us = now + CLS_EMBEDDED_GRACE_US;
    }
    return now;
}

static void tell(struct server *s, const struct msg_member *m)
{
    if (s->ev.on_member != NULL) {
        s->ev.on_member(s->ev.user, m);
    }
}

static struct registration *find_reg(struct server *s, const char *id)
{
    for (size_t i = 0; i < CLS_EMBEDDED_MEMBERS_MAX; i++) {
        if (s->reg[i].used && strcmp(s->reg[i].id, id) == 0) {
            return &s->reg[i];
        }
    }
    return NULL;
}

static struct registration *find_call(struct server *s, net_conn conn, uint32_t stream)
{
    for (size_t i = 0; i < CLS_EMBEDDED_MEMBERS_MAX; i++) {
        if (s->reg[i].used && s->reg[i].conn == conn && s->reg[i].stream == stream) {
            return &s->reg[i];
        }
    }
    return NULL;
}

/* ---- to the watchers ---- */

static void send_members(struct server *s, const struct registration *reg, const struct msg_members *list)
{
    kvs_buf_clear(&s->scratch);
    kvs_status st = msg_members_encode(list, &s->scratch);
    if (st == KVS_OK) {
        st = net_rpc_item(s->rpc, reg->conn, reg->stream, s->scratch.data, s->scratch.len);
    }
    if (st != KVS_OK && !kvs_is_peer(st) &&
        st != KVS_REQ_CANCELLED) { /* a watcher with a hole in its view must start anew */
        net_rpc_close(s->rpc, reg->conn, st, "the list of members could not be sent");
    }
}

static void broadcast(struct server *s, const struct msg_member *m)
{
    const struct msg_members one = {.members = m, .count = 1};
    for (size_t i = 0; i < CLS_EMBEDDED_MEMBERS_MAX; i++) {
        if (s->reg[i].used && s->reg[i].conn != 0) {
            send_members(s, &s->reg[i], &one);
        }
    }
}

static void drain(struct server *s)
{
    struct msg_member m;
    while (cls_registry_next_change(s->registry, &m)) {
        broadcast(s, &m);
        tell(s, &m);
    }
}

static void send_snapshot(struct server *s, const struct registration *reg)
{
    struct msg_member *list = calloc(MEMBERS_PER_ITEM, sizeof *list);
    struct msg_members part = {.members = list, .count = 0};
    if (list == NULL) {
        net_rpc_close(s->rpc, reg->conn, KVS_SELF_NOMEM, "no memory for the list of members");
        return;
    }
    const struct msg_card *card;
    for (uint32_t i = 0; (card = cls_registry_at(s->registry, i)) != NULL; i++) {
        list[part.count++] = (struct msg_member){.change = MSG_MEMBER_PUT, .card = *card};
        if (part.count == MEMBERS_PER_ITEM) {
            send_members(s, reg, &part);
            part.count = 0;
        }
    }
    if (part.count > 0) {
        send_members(s, reg, &part);
    }
    const struct msg_member end = {.change = MSG_MEMBER_SNAPSHOT_END};
    part = (struct msg_members){.members = &end, .count = 1};
    send_members(s, reg, &part);
    free(list);
}

static void refuse(struct server *s, net_conn conn, uint32_t stream, kvs_status why, const char *text)
{
    struct msg_end end = {.status = why};
    (void)kvs_format(end.text, sizeof end.text, "%s", text);
    net_rpc_end(s->rpc, conn, stream, &end);
}

/* ---- time ---- */

static void server_tick(void *user, uint64_t loop_us)
{
    struct server *s = user;
    uint64_t now_us = server_now(s);
    (void)loop_us;
    for (size_t i = 0; i < CLS_EMBEDDED_MEMBERS_MAX; i++) {
        struct registration *reg = &s->reg[i];
        if (reg->used && (reg->conn != 0 || now_us + CLS_EMBEDDED_TTL_US < s->grace_us)) {
            (void)cls_registry_renew(s->registry, reg->id, reg->epoch, now_us);
        }
    }
    if (s->joined) {
        (void)cls_registry_renew(s->registry, s->self.id, s->self.epoch, now_us);
    }
    cls_registry_tick(s->registry, now_us);
    drain(s);
    for (size_t i = 0; i < CLS_EMBEDDED_MEMBERS_MAX; i++) { /* whose lease has ended needs no place any more */
        struct registration *reg = &s->reg[i];
        if (!reg->used || cls_registry_has(s->registry, reg->id, reg->epoch)) {
            continue;
        }
        reg->used = false;
        if (reg->conn != 0) { /* cannot be, but if it were, nobody would ever tell the worker that it is out */
            refuse(s, reg->conn, reg->stream, KVS_PEER_TIMEOUT, "the registration's lease has ended");
        }
    }
    if (s->joined && !s->announced) {
        const struct msg_member end = {.change = MSG_MEMBER_SNAPSHOT_END};
        s->announced = true;
        tell(s, &end);
        if (s->ev.on_backend != NULL) {
            s->ev.on_backend(s->ev.user, true, "");
        }
    }
    kvs_timer_set(s->timer, kvs_now_us() + TICK_US);
}

static void soon(struct server *s)
{
    kvs_timer_set(s->timer, kvs_now_us());
}

/* ---- calls ---- */

static kvs_status judge_card(const struct server *s, const struct msg_card *card, struct kvs_error *err)
{
    if (card->role == MSG_ROLE_ROUTER) {
        return kvs_fail(err, KVS_PEER_REFUSED,
                        "%s is this cluster's router already: embedded discovery has room for one",
                        s->joined ? s->self.id : "another process");
    }
    if (card->role == MSG_ROLE_CLIENT || card->epoch == 0) {
        return kvs_fail(err, KVS_REQ_INVALID, "%s is no worker's card", card->id);
    }
    if (s->joined && strcmp(card->id, s->self.id) == 0) {
        return kvs_fail(err, KVS_PEER_REFUSED, "the name %s is the router's", card->id);
    }
    return KVS_OK;
}

static struct registration *take_place(struct server *s, const struct msg_card *card)
{
    struct registration *reg = find_reg(s, card->id);
    for (size_t i = 0; reg == NULL && i < CLS_EMBEDDED_MEMBERS_MAX; i++) {
        if (!s->reg[i].used) {
            reg = &s->reg[i];
            *reg = (struct registration){.used = true};
        }
    }
    return reg;
}

void cls_embedded_server_call(struct cls_discovery *d, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    struct server *s = (struct server *)d;
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_card card;
    KVS_ASSERT(call->method == MSG_REGISTER);
    kvs_arena_init(&arena, 1u << 20);
    kvs_status st = msg_card_decode(call->body, call->body_bytes, &arena, &card, &err);
    kvs_arena_fini(&arena);
    if (st == KVS_OK) {
        st = judge_card(s, &card, &err);
    }
    if (st == KVS_OK) {
        st = cls_registry_put(s->registry, &card, server_now(s), &err);
    }
    struct registration *reg = st == KVS_OK ? take_place(s, &card) : NULL;
    if (reg == NULL) {
        if (st == KVS_OK) {
            cls_registry_leave(s->registry, card.id, card.epoch, server_now(s));
            st = kvs_fail(&err, KVS_BUSY_FULL, "the router serves %d members at most", CLS_EMBEDDED_MEMBERS_MAX);
        }
        KVS_WARN("registration refused", "worker=%s cause=\"%s\"", st == KVS_PEER_PROTOCOL ? "?" : card.id, err.text);
        refuse(s, conn, stream, st, err.text);
        return;
    }
    if (reg->conn != 0 && reg->epoch != card.epoch) {
        refuse(s, reg->conn, reg->stream, KVS_PEER_REFUSED, "another process has registered under this name");
    }
    reg->conn = 0; /* no watcher while the change is told: the snapshot has it */
    memcpy(reg->id, card.id, sizeof reg->id);
    reg->epoch = card.epoch;
    drain(s);
    reg->conn = conn;
    reg->stream = stream;
    send_snapshot(s, reg);
}

void cls_embedded_server_cancel(struct cls_discovery *d, net_conn conn, uint32_t stream)
{
    struct server *s = (struct server *)d;
    struct registration *reg = find_call(s, conn, stream);
    if (reg != NULL) {
        reg->used = false;
        cls_registry_leave(s->registry, reg->id, reg->epoch, server_now(s));
        soon(s);
    }
}

void cls_embedded_server_down(struct cls_discovery *d, net_conn conn)
{
    struct server *s = (struct server *)d;
    for (size_t i = 0; i < CLS_EMBEDDED_MEMBERS_MAX; i++) {
        struct registration *reg = &s->reg[i];
        if (reg->used && reg->conn == conn) {
            (void)cls_registry_renew(s->registry, reg->id, reg->epoch, server_now(s)); /* the lease runs from now */
            reg->conn = 0;
        }
    }
}

/* ---- ops ---- */

static kvs_status server_join(struct cls_discovery *d, const struct msg_card *card)
{
    struct server *s = (struct server *)d;
    struct kvs_error err;
    kvs_status st = cls_registry_put(s->registry, card, server_now(s), &err);
    if (st == KVS_OK) {
        s->self = *card;
        s->joined = true;
        soon(s);
    }
    return st;
}

static void server_leave(struct cls_discovery *d)
{
    struct server *s = (struct server *)d;
    if (s->joined) {
        s->joined = false;
        cls_registry_leave(s->registry, s->self.id, s->self.epoch, server_now(s));
        soon(s);
    }
}

static void server_destroy(struct cls_discovery *d)
{
    struct server *s = (struct server *)d;
    if (s != NULL) {
        kvs_timer_destroy(s->timer);
        cls_registry_destroy(s->registry);
        kvs_buf_fini(&s->scratch);
        free(s);
    }
}

static const struct cls_ops server_ops = {"embedded", server_join, server_leave, server_destroy};

kvs_status cls_embedded_server_create(struct kvs_loop *loop, struct net_rpc *rpc, const struct cls_events *ev,
                                      struct cls_discovery **out)
{
    struct server *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return KVS_SELF_NOMEM;
    }
    s->base.ops = &server_ops;
    s->loop = loop;
    s->rpc = rpc;
    s->ev = *ev;
    kvs_buf_init(&s->scratch, 2u << 20);
    kvs_status st = cls_registry_create(CLS_EMBEDDED_MEMBERS_MAX, CLS_EMBEDDED_TTL_US, &s->registry);
    if (st == KVS_OK) {
        st = kvs_timer_create(loop, server_tick, s, &s->timer);
    }
    if (st != KVS_OK) {
        server_destroy(&s->base);
        return st;
    }
    soon(s);
    *out = &s->base;
    return KVS_OK;
}
