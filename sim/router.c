/* router.c - the router's node: its core, and what stands for its edge (streams to workers, load reports, one timer).
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"
#include "proto/wire.h"
#include "sim/client.h"
#include "sim/members.h"
#include "sim/net.h"

#include <stdlib.h>
#include <string.h>

#define ACTIONS 4
#define ARENA ((size_t)4 << 20)

struct link { /* a worker's connection */
    uint64_t conn;
    uint32_t node, tokens_stream;
};

struct sim_router {
    struct rtr *core;
    struct link link[64];
    uint32_t link_count;
    uint64_t timer_us;
    bool feeding;
};

struct rtr *sim_router_core(struct sim *s)
{
    return s->router->core;
}

void sim_router_create(struct sim *s)
{
    struct rtr_config c;
    struct kvs_error err = {0};
    s->router = calloc(1, sizeof *s->router);
    KVS_ASSERT(s->router != NULL);
    rtr_config_default(&c);
    c.requests_max = s->set.requests_max;
    c.queue_max = s->set.queue_max;
    c.worker_sequences_max = s->set.worker_sequences;
    c.local_threshold = s->set.local_threshold;
    c.deadline_us = s->set.deadline_us;
    kvs_status st = rtr_create(&c, &s->router->core, &err);
    KVS_ASSERT(st == KVS_OK);
    s->router->timer_us = SIM_FOREVER;
}

void sim_router_free(struct sim *s)
{
    rtr_destroy(s->router->core);
    free(s->router);
}

static struct link *link_of(struct sim *s, uint64_t conn)
{
    for (uint32_t i = 0; i < s->router->link_count; i++)
        if (s->router->link[i].conn == conn)
            return &s->router->link[i];
    return NULL;
}

/* --- actions --- */

static void lost_generate(struct sim *s, struct sim_event *e)
{
    const struct sim_call *k = e->ptr;
    sim_router_feed(s, &(struct rtr_event){.type = RTR_EV_END, .worker = e->id, .id = k->id, .attempt = k->attempt, .choice = k->choice,
                                           .status = KVS_PEER_LOST, .text = "the connection is gone"});
}

static void act_generate(struct sim *s, const struct rtr_action *a)
{
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_generate_encode(&a->generate, &body);
    KVS_ASSERT(st == KVS_OK);
    sim_note(s, SIM_ROUTER, "place request %u attempt %u choice %u on connection %u", a->id, a->attempt, a->choice, a->worker);
    const struct link *l = link_of(s, a->worker);
    sim_client_placed(s, a->id, a->attempt, l != NULL ? l->node : SIM_ROUTER, a->generate.prefill_worker);
    struct sim_call own = {.id = a->id, .attempt = a->attempt, .choice = a->choice};
    if (sim_rpc_call(s, SIM_ROUTER, a->worker, MSG_GENERATE, a->remaining_ms, &body, &own) == 0) {
        /* The connection is gone and the core has not heard of it yet: as if the call had been lost. */
        struct sim_call *copy = malloc(sizeof *copy);
        KVS_ASSERT(copy != NULL);
        *copy = own;
        sim_post(s, s->now_us, &(struct sim_event){.run = lost_generate, .node = SIM_NOBODY, .id = a->worker, .ptr = copy});
    }
    kvs_buf_fini(&body);
}

static void act_abort(struct sim *s, const struct rtr_action *a)
{
    struct msg_abort m = {.request = a->id, .attempt = a->attempt};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_abort_encode(&m, &body);
    KVS_ASSERT(st == KVS_OK);
    (void)sim_rpc_call(s, SIM_ROUTER, a->worker, MSG_ABORT, 5000, &body, &(struct sim_call){.id = a->id});
    kvs_buf_fini(&body);
}

static void act_cancel(struct sim *s, const struct rtr_action *a)
{
    struct sim_conn *c = sim_conn_find(s, a->worker);
    for (uint32_t i = 0; c != NULL && i < c->call_count; i++) {
        const struct sim_call *k = &c->call[i];
        if (k->method == MSG_GENERATE && k->id == a->id && k->attempt == a->attempt && k->choice == a->choice) {
            sim_rpc_cancel(s, SIM_ROUTER, a->worker, k->stream);
            return;
        }
    }
}

static void act_pause(struct sim *s, const struct rtr_action *a)
{
    struct msg_pause m = {.request = a->id};
    struct link *l = link_of(s, a->worker);
    struct kvs_buf body;
    if (l == NULL)
        return;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_pause_encode(&m, &body);
    KVS_ASSERT(st == KVS_OK);
    sim_note(s, SIM_ROUTER, "%u: pause of request %u", a->flag, a->id);
    sim_rpc_pause(s, SIM_ROUTER, a->worker, l->tokens_stream, &body, !a->flag);
    kvs_buf_fini(&body);
}

static void act(struct sim *s, const struct rtr_action *a)
{
    switch (a->type) {
    case RTR_ACT_GENERATE: act_generate(s, a); break;
    case RTR_ACT_ABORT: act_abort(s, a); break;
    case RTR_ACT_CANCEL: act_cancel(s, a); break;
    case RTR_ACT_PAUSE: act_pause(s, a); break;
    case RTR_ACT_SNAPSHOT: sim_fail(s, "a hole in cache events that nobody sends"); break;
    case RTR_ACT_TOKEN: sim_client_token(s, a->id, a->choice, a->token); break;
    case RTR_ACT_FINISH: sim_client_over(s, a->id, a->status, a->text, false); break;
    case RTR_ACT_REJECT: sim_client_over(s, a->id, a->status, a->text, true); break;
    }
}

static void on_timer(struct sim *s, struct sim_event *e)
{
    if (s->router->timer_us <= e->at_us)
        s->router->timer_us = SIM_FOREVER;
    sim_router_feed(s, &(struct rtr_event){.type = RTR_EV_TIMER});
}

void sim_router_feed(struct sim *s, const struct rtr_event *ev)
{
    struct sim_router *r = s->router;
    struct rtr_action a[ACTIONS];
    size_t n;
    KVS_ASSERT(!r->feeding);
    r->feeding = true;
    rtr_step(r->core, ev, s->now_us);
    while ((n = rtr_actions(r->core, a, ACTIONS)) != 0)
        for (size_t i = 0; i < n; i++)
            act(s, &a[i]);
    r->feeding = false;
    uint64_t at = rtr_deadline_us(r->core);
    if (at < r->timer_us) {
        r->timer_us = at;
        sim_post(s, at, &(struct sim_event){.run = on_timer, .node = SIM_NOBODY});
    }
}

/* --- streams --- */

static void on_up(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node)
{
    struct sim_router *r = s->router;
    const struct sim_node *n = &s->node[peer_node];
    KVS_ASSERT(r->link_count < 64);
    (void)node;
    struct link *l = &r->link[r->link_count++];
    *l = (struct link){.conn = conn, .node = peer_node};
    if (n->role != MSG_ROLE_PREFILL)
        l->tokens_stream = sim_rpc_call(s, SIM_ROUTER, conn, MSG_TOKENS, 0, NULL, &(struct sim_call){0});
    (void)sim_rpc_call(s, SIM_ROUTER, conn, MSG_LOAD, 0, NULL, &(struct sim_call){0});
    sim_router_feed(s, &(struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = conn, .model = 1, .card = &n->card});
}

static void on_down(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node)
{
    struct link *l = link_of(s, conn);
    (void)node, (void)peer_node;
    if (l != NULL)
        *l = s->router->link[--s->router->link_count];
    sim_members_down(s->members, conn);
    sim_router_feed(s, &(struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = conn});
}

static void on_call(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    (void)node;
    if (call->method == MSG_REGISTER)
        sim_members_register(s, s->members, conn, call->stream, body, n);
    else
        sim_fail(s, "the router is called with method %u", call->method);
}

static void on_nothing(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream)
{
    (void)s, (void)node, (void)conn, (void)stream;
}

static void on_ack(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, bool nack)
{
    (void)nack;
    on_nothing(s, node, conn, stream);
}

static void item_tokens(struct sim *s, uint64_t conn, const uint8_t *body, size_t n)
{
    struct kvs_arena arena;
    struct msg_tokens m;
    struct kvs_error err = {0};
    kvs_arena_init(&arena, ARENA);
    if (msg_tokens_decode(body, n, &arena, &m, &err) != KVS_OK)
        sim_fail(s, "Tokens does not decode: %s", err.text);
    for (uint32_t i = 0; !s->failed && i < m.count; i++) {
        sim_client_entry(s, sim_conn_find(s, conn), &m.entries[i]);
        uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
        if (times == 2)
            sim_fault(s, SIM_N_doubled_events);
        while (times-- > 0)
            sim_router_feed(s, &(struct rtr_event){.type = RTR_EV_TOKEN, .worker = conn, .token = &m.entries[i]});
    }
    kvs_arena_fini(&arena);
}

static void item_load(struct sim *s, uint64_t conn, const uint8_t *body, size_t n)
{
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_load *m = calloc(1, sizeof *m);
    KVS_ASSERT(m != NULL);
    kvs_arena_init(&arena, ARENA);
    if (msg_load_decode(body, n, &arena, m, &err) != KVS_OK)
        sim_fail(s, "Load does not decode: %s", err.text);
    else
        sim_router_feed(s, &(struct rtr_event){.type = RTR_EV_LOAD, .worker = conn, .load = m});
    kvs_arena_fini(&arena);
    free(m);
}

static void on_item(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    (void)node;
    if (call->method == MSG_TOKENS)
        item_tokens(s, conn, body, n);
    else if (call->method == MSG_LOAD)
        item_load(s, conn, body, n);
}

static void on_end(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const struct msg_end *end)
{
    (void)node;
    if (call->method != MSG_GENERATE)
        return;
    struct rtr_event ev = {.type = RTR_EV_END, .worker = conn, .id = call->id, .attempt = call->attempt, .choice = call->choice,
                           .status = end->status, .text = end->text};
    uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
    while (times-- > 0)
        sim_router_feed(s, &ev);
}

static void on_pause(struct sim *s, uint32_t node, uint64_t conn, const uint8_t *body, size_t n, bool resume)
{
    (void)s, (void)node, (void)conn, (void)body, (void)n, (void)resume;
}

static void on_suspect(struct sim *s, uint32_t node, uint64_t conn, bool suspect)
{
    (void)node;
    sim_router_feed(s, &(struct rtr_event){.type = RTR_EV_SUSPECT, .worker = conn, .flag = suspect});
}

const struct sim_handlers sim_router_handlers = {.up = on_up, .down = on_down, .call = on_call, .cancel = on_nothing, .ack = on_ack,
                                                 .item = on_item, .end = on_end, .pause = on_pause, .suspect = on_suspect};
