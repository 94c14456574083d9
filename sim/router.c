/* router.c - the router's node: its core, and what stands for its edge (streams to workers, load reports, one timer).
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"
#include "proto/wire.h"
#include "router/core/index.h"
#include "sim/client.h"
#include "sim/members.h"
#include "sim/net.h"

#include <stdlib.h>
#include <string.h>

#define ACTIONS 4
#define LINKS_MAX 256u
#define AGAIN_US 1000000u
#define TICK_US 250000u
#define ARENA ((size_t)4 << 20)

struct link { /* a worker's connection, as router/edge/workers.c keeps it */
    uint64_t conn, epoch;
    uint32_t node, tokens_stream, cache_stream;
    uint64_t cache_at_us;
    bool cache_refused;
    bool ready;    /* the core knows it */
    bool vanished; /* etcd says that it is gone, but the stream lives */
    struct msg_card card;
};

struct sim_router {
    struct sim *s;
    uint32_t node, life;
    struct rtr *core;
    struct link *link[LINKS_MAX];
    uint32_t link_count;
    uint64_t timer_us;
    bool feeding;
};

struct rtr *sim_router_core(struct sim *s, uint32_t node)
{
    return s->node[node].router->core;
}

static void on_tick(struct sim *s, struct sim_event *e);

void sim_router_create(struct sim *s, uint32_t node)
{
    struct rtr_config c;
    struct kvs_error err = {0};
    struct sim_router *r = calloc(1, sizeof *r);
    KVS_ASSERT(r != NULL && s->node[node].router == NULL);
    *r = (struct sim_router){.s = s, .node = node, .life = s->node[node].life, .timer_us = SIM_FOREVER};
    s->node[node].router = r;
    rtr_config_default(&c);
    c.requests_max = s->set.requests_max;
    c.queue_max = s->set.queue_max;
    c.worker_sequences_max = s->set.worker_sequences;
    c.local_threshold = s->set.local_threshold;
    c.deadline_us = s->set.deadline_us;
    c.index_bytes = s->set.index_bytes;
    c.restart_us = s->set.restart_wait_us;
    kvs_status st = rtr_create(&c, &r->core, &err);
    KVS_ASSERT(st == KVS_OK);
    sim_post(s, s->now_us + TICK_US, &(struct sim_event){.run = on_tick, .node = node, .life = r->life});
}

void sim_router_destroy(struct sim *s, uint32_t node)
{
    struct sim_router *r = s->node[node].router;
    struct rtr_stats st;
    if (r == NULL)
        return;
    rtr_stats(r->core, &st);
    sim_count(s, SIM_N_replaced, st.replaced);
    sim_count(s, SIM_N_resumed, st.resumed);
    sim_count(s, SIM_N_moved, st.moved);
    sim_count(s, SIM_N_late_entries, st.late);
    sim_count(s, SIM_N_index_blocks, st.index_blocks);
    sim_count(s, SIM_N_index_dropped, st.index_dropped);
    rtr_destroy(r->core);
    for (uint32_t i = 0; i < r->link_count; i++)
        free(r->link[i]);
    free(r);
    s->node[node].router = NULL;
}

static struct link *link_of(struct sim_router *r, uint64_t conn)
{
    for (uint32_t i = 0; i < r->link_count; i++)
        if (r->link[i]->conn == conn)
            return r->link[i];
    return NULL;
}

/* --- actions --- */

static void lost_generate(struct sim *s, struct sim_event *e)
{
    const struct sim_call *k = e->ptr;
    sim_router_feed(s, e->node, &(struct rtr_event){.type = RTR_EV_END, .worker = e->id, .id = k->id, .attempt = k->attempt, .choice = k->choice,
                                           .status = KVS_PEER_LOST, .text = "the connection is gone"});
}

static void act_generate(struct sim_router *r, const struct rtr_action *a)
{
    struct sim *s = r->s;
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_generate_encode(&a->generate, &body);
    KVS_ASSERT(st == KVS_OK);
    const struct link *l = link_of(r, a->worker);
    sim_note(s, r->node, "place request %r attempt %u choice %u on %n", a->id, a->attempt, a->choice, l != NULL ? l->node : SIM_NOBODY);
    sim_client_placed(s, a->id, a->attempt, l != NULL ? l->node : r->node, &a->generate);
    struct sim_call own = {.id = a->id, .attempt = a->attempt, .choice = a->choice};
    if (sim_rpc_call(s, r->node, a->worker, MSG_GENERATE, a->remaining_ms, &body, &own) == 0) {
        /* The connection is gone and the core has not heard of it yet: as if the call had been lost. */
        struct sim_call *copy = malloc(sizeof *copy);
        KVS_ASSERT(copy != NULL);
        *copy = own;
        sim_post(s, s->now_us, &(struct sim_event){.run = lost_generate, .node = r->node, .life = r->life, .id = a->worker, .ptr = copy});
    }
    kvs_buf_fini(&body);
}

static void act_abort(struct sim_router *r, const struct rtr_action *a)
{
    struct sim *s = r->s;
    struct msg_abort m = {.request = a->id, .attempt = a->attempt, .keep = a->flag};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_abort_encode(&m, &body);
    KVS_ASSERT(st == KVS_OK);
    (void)sim_rpc_call(s, r->node, a->worker, MSG_ABORT, 5000, &body, &(struct sim_call){.id = a->id});
    kvs_buf_fini(&body);
}

static void act_cancel(struct sim_router *r, const struct rtr_action *a)
{
    struct sim *s = r->s;
    struct sim_conn *c = sim_conn_find(s, a->worker);
    for (uint32_t i = 0; c != NULL && i < c->call_count; i++) {
        const struct sim_call *k = &c->call[i];
        if (k->method == MSG_GENERATE && k->id == a->id && k->attempt == a->attempt && k->choice == a->choice) {
            sim_rpc_cancel(s, r->node, a->worker, k->stream);
            return;
        }
    }
}

static void act_pause(struct sim_router *r, const struct rtr_action *a)
{
    struct sim *s = r->s;
    struct msg_pause m = {.request = a->id};
    struct link *l = link_of(r, a->worker);
    struct kvs_buf body;
    if (l == NULL)
        return;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_pause_encode(&m, &body);
    KVS_ASSERT(st == KVS_OK);
    sim_note(s, r->node, "%u: pause of request %r", a->flag, a->id);
    sim_rpc_pause(s, r->node, a->worker, l->tokens_stream, &body, !a->flag);
    kvs_buf_fini(&body);
}

/* --- cache events, as router/edge/caches.c --- */

static void cache_open(struct sim_router *r, struct link *l)
{
    if (!l->ready || l->cache_stream != 0 || l->cache_refused || r->s->now_us < l->cache_at_us)
        return;
    l->cache_at_us = r->s->now_us + AGAIN_US;
    l->cache_stream = sim_rpc_call(r->s, r->node, l->conn, MSG_CACHE, 0, NULL, &(struct sim_call){0});
}

static void cache_close(struct sim_router *r, struct link *l)
{
    if (l->cache_stream != 0)
        sim_rpc_cancel(r->s, r->node, l->conn, l->cache_stream);
    l->cache_stream = 0;
    l->cache_at_us = 0;
}

static void cache_again(struct sim_router *r, uint64_t conn)
{
    struct link *l = link_of(r, conn);
    if (l == NULL || l->cache_stream == 0)
        return;
    sim_count(r->s, SIM_N_cache_gaps, 1);
    sim_note(r->s, r->node, "cache events of %n are missing: a snapshot is asked for", l->node);
    cache_close(r, l);
    cache_open(r, l);
}

static void on_tick(struct sim *s, struct sim_event *e)
{
    struct sim_router *r = s->node[e->node].router;
    for (uint32_t i = 0; i < r->link_count; i++)
        cache_open(r, r->link[i]);
    sim_post(s, s->now_us + TICK_US, &(struct sim_event){.run = on_tick, .node = r->node, .life = r->life});
}

/* --- what the core wants --- */

static void act(struct sim_router *r, const struct rtr_action *a)
{
    struct sim *s = r->s;
    switch (a->type) {
    case RTR_ACT_GENERATE: act_generate(r, a); break;
    case RTR_ACT_ABORT: act_abort(r, a); break;
    case RTR_ACT_CANCEL: act_cancel(r, a); break;
    case RTR_ACT_PAUSE: act_pause(r, a); break;
    case RTR_ACT_SNAPSHOT: cache_again(r, a->worker); break;
    case RTR_ACT_TOKEN: sim_client_token(s, a->id, a->choice, a->token); break;
    case RTR_ACT_FINISH: sim_client_over(s, a->id, a->status, a->text, false); break;
    case RTR_ACT_REJECT: sim_client_over(s, a->id, a->status, a->text, true); break;
    }
}

static void on_timer(struct sim *s, struct sim_event *e)
{
    struct sim_router *r = s->node[e->node].router;
    if (r->timer_us <= e->at_us)
        r->timer_us = SIM_FOREVER;
    sim_router_feed(s, e->node, &(struct rtr_event){.type = RTR_EV_TIMER});
}

/* The index of what workers have cached: its memory has a hard cap, and a scenario may want to see that it was reached. */
static void check_index(struct sim *s, const struct sim_router *r)
{
    struct rtr_stats st;
    uint64_t cap = s->set.index_bytes;
    rtr_stats(r->core, &st);
    if (st.index_bytes > cap || st.index_blocks * RTR_INDEX_LOCATION_BYTES > cap)
        sim_fail(s, "%s: the index has %llu blocks and %llu bytes, and may have %llu", s->node[r->node].id, (unsigned long long)st.index_blocks,
                 (unsigned long long)st.index_bytes, (unsigned long long)cap);
    sim_count(s, SIM_N_index_full, st.index_bytes + RTR_INDEX_LOCATION_BYTES > cap);
}

void sim_router_feed(struct sim *s, uint32_t node, const struct rtr_event *ev)
{
    struct sim_router *r = s->node[node].router;
    struct rtr_action a[ACTIONS];
    size_t n;
    KVS_ASSERT(!r->feeding);
    r->feeding = true;
    rtr_step(r->core, ev, sim_local(s, node));
    if (ev->type == RTR_EV_CACHE)
        check_index(s, r);
    while ((n = rtr_actions(r->core, a, ACTIONS)) != 0)
        for (size_t i = 0; i < n; i++)
            act(r, &a[i]);
    r->feeding = false;
    uint64_t at = sim_world_us(s, node, rtr_deadline_us(r->core));
    if (at < r->timer_us) {
        r->timer_us = at;
        sim_post(s, at, &(struct sim_event){.run = on_timer, .node = node, .life = r->life});
    }
}

/* --- workers come and go, as router/edge/workers.c and members.c have it --- */

static void leave_core(struct sim_router *r, struct link *l)
{
    if (l->ready) {
        l->ready = false;
        cache_close(r, l);
        sim_count(r->s, SIM_N_links_lost, 1);
        sim_router_feed(r->s, r->node, &(struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = l->conn});
    }
}

static void become_ready(struct sim_router *r, struct link *l)
{
    struct sim *s = r->s;
    if (l->card.role != MSG_ROLE_PREFILL && l->tokens_stream == 0)
        l->tokens_stream = sim_rpc_call(s, r->node, l->conn, MSG_TOKENS, 0, NULL, &(struct sim_call){0});
    (void)sim_rpc_call(s, r->node, l->conn, MSG_LOAD, 0, NULL, &(struct sim_call){0});
    l->ready = true;
    sim_router_feed(s, r->node, &(struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = l->conn, .model = 1, .card = &l->card});
    sim_digests_ready(s, r->node, &l->card, l->conn);
    cache_open(r, l);
}

/* What it is or may do is another. One that decodes from now on needs a Tokens call before it is given anything. */
static void card_changed(struct sim_router *r, struct link *l)
{
    if (l->card.role != MSG_ROLE_PREFILL && l->tokens_stream == 0)
        l->tokens_stream = sim_rpc_call(r->s, r->node, l->conn, MSG_TOKENS, 0, NULL, &(struct sim_call){0});
    sim_router_feed(r->s, r->node, &(struct rtr_event){.type = RTR_EV_WORKER_CARD, .worker = l->conn, .card = &l->card});
}

static void take_card(struct sim_router *r, struct link *l, const struct msg_card *card)
{
    if (l->epoch != card->epoch || strcmp(r->s->node[l->node].id, card->id) != 0)
        return;
    bool draining = l->card.draining;
    msg_role role = l->card.role;
    l->card = *card;
    if (l->ready && (draining != card->draining || role != card->role))
        card_changed(r, l);
    if (!l->ready)
        become_ready(r, l);
}

static void forget(struct sim_router *r, const struct msg_card *card)
{
    for (uint32_t i = 0; i < r->link_count; i++)
        if (r->link[i]->epoch == card->epoch && strcmp(r->s->node[r->link[i]->node].id, card->id) == 0)
            leave_core(r, r->link[i]);
}

uint64_t sim_router_conn(struct sim *s, uint32_t node, const char *id, uint64_t epoch)
{
    const struct sim_router *r = s->node[node].router;
    for (uint32_t i = 0; i < r->link_count; i++)
        if (r->link[i]->ready && r->link[i]->epoch == epoch && strcmp(s->node[r->link[i]->node].id, id) == 0)
            return r->link[i]->conn;
    return 0;
}

void sim_router_member(struct sim *s, uint32_t node, const struct msg_member *m)
{
    sim_digests_member(s, node, m);
    struct sim_router *r = s->node[node].router;
    bool put = m->change == MSG_MEMBER_PUT;
    for (uint32_t i = 0; i < r->link_count; i++) {
        struct link *l = r->link[i];
        if (l->epoch != m->card.epoch || strcmp(s->node[l->node].id, m->card.id) != 0)
            continue;
        l->vanished = s->set.etcd && !put; /* a key that vanishes is no proof: the stream is asked */
        if (put)
            take_card(r, l, &m->card);
        sim_count(s, SIM_N_vanished, l->vanished);
    }
    if (!put && !s->set.etcd)
        forget(r, &m->card);
    for (uint32_t i = s->router_count; put && s->set.etcd && i < s->node_count; i++)
        if (strcmp(s->node[i].id, m->card.id) == 0)
            sim_dial_soon(s, node, i, 0, 5000);
}

/* --- streams --- */

static void on_up(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node)
{
    struct sim_router *r = s->node[node].router;
    const struct sim_conn *c = sim_conn_find(s, conn);
    KVS_ASSERT(r->link_count < LINKS_MAX);
    for (uint32_t i = 0; i < r->link_count; i++) /* a new life of a worker whose old connection is not yet known to be dead */
        if (r->link[i]->node == peer_node)
            sim_conn_close(s, node, r->link[i]->conn);
    struct link *l = calloc(1, sizeof *l);
    KVS_ASSERT(l != NULL);
    *l = (struct link){.conn = conn, .node = peer_node, .epoch = c->epoch[!sim_conn_side(c, node)]};
    r->link[r->link_count++] = l;
    const struct msg_card *card = sim_members_find(s, node, s->node[peer_node].id);
    if (card != NULL)
        take_card(r, l, card);
}

static void on_down(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node)
{
    struct sim_router *r = s->node[node].router;
    struct link *l = link_of(r, conn);
    if (l != NULL) {
        leave_core(r, l);
        for (uint32_t i = 0; i < r->link_count; i++)
            if (r->link[i] == l)
                r->link[i] = r->link[--r->link_count];
        free(l);
    }
    sim_members_conn_down(s, node, conn, peer_node);
}

static void on_call(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    if (!sim_members_call(s, node, conn, call, body, n))
        sim_fail(s, "the router is called with method %u", call->method);
}

static void on_cancel(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream)
{
    sim_members_cancel(s, node, conn, stream);
}

static void on_ack(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, bool nack)
{
    (void)s, (void)node, (void)conn, (void)stream, (void)nack;
}

static void item_tokens(struct sim *s, uint32_t node, uint64_t conn, const uint8_t *body, size_t n)
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
            sim_router_feed(s, node, &(struct rtr_event){.type = RTR_EV_TOKEN, .worker = conn, .token = &m.entries[i]});
    }
    kvs_arena_fini(&arena);
}

static void take_load(struct sim_router *r, struct link *l, const struct msg_load *m)
{
    if (m->role != l->card.role) { /* discovery may say so later, or be away */
        l->card.role = m->role;
        card_changed(r, l);
    }
    sim_router_feed(r->s, r->node, &(struct rtr_event){.type = RTR_EV_LOAD, .worker = l->conn, .load = m});
}

static void item_load(struct sim *s, uint32_t node, struct link *l, const uint8_t *body, size_t n)
{
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_load *m = calloc(1, sizeof *m);
    KVS_ASSERT(m != NULL);
    kvs_arena_init(&arena, ARENA);
    if (msg_load_decode(body, n, &arena, m, &err) != KVS_OK)
        sim_fail(s, "Load does not decode: %s", err.text);
    else
        take_load(s->node[node].router, l, m);
    kvs_arena_fini(&arena);
    free(m);
}

static void item_cache(struct sim *s, uint32_t node, uint64_t conn, const uint8_t *body, size_t n)
{
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_cache_events ev;
    kvs_arena_init(&arena, ARENA);
    if (msg_cache_events_decode(body, n, &arena, &ev, &err) != KVS_OK)
        sim_fail(s, "Cache's item does not decode: %s", err.text);
    else
        sim_router_feed(s, node, &(struct rtr_event){.type = RTR_EV_CACHE, .worker = conn, .cache = &ev});
    kvs_arena_fini(&arena);
}

static void on_item(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    struct link *l = link_of(s->node[node].router, conn);
    if (l == NULL || !l->ready)
        return;
    if (call->method == MSG_CACHE && call->stream == l->cache_stream)
        item_cache(s, node, conn, body, n);
    if (call->method == MSG_TOKENS)
        item_tokens(s, node, conn, body, n);
    else if (call->method == MSG_LOAD)
        item_load(s, node, l, body, n);
}

static void on_end(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const struct msg_end *end)
{
    struct link *l = link_of(s->node[node].router, conn);
    if (call->method == MSG_CACHE && l != NULL && l->cache_stream == call->stream) {
        l->cache_stream = 0;
        l->cache_refused = end->status == KVS_REQ_UNSUPPORTED;
    }
    if (call->method != MSG_GENERATE)
        return;
    struct rtr_event ev = {.type = RTR_EV_END, .worker = conn, .id = call->id, .attempt = call->attempt, .choice = call->choice,
                           .status = end->status, .text = end->text};
    uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
    while (times-- > 0)
        sim_router_feed(s, node, &ev);
}

static void on_pause(struct sim *s, uint32_t node, uint64_t conn, const uint8_t *body, size_t n, bool resume)
{
    (void)s, (void)node, (void)conn, (void)body, (void)n, (void)resume;
}

static void on_suspect(struct sim *s, uint32_t node, uint64_t conn, bool suspect)
{
    const struct link *l = link_of(s->node[node].router, conn);
    if (l != NULL && l->ready)
        sim_router_feed(s, node, &(struct rtr_event){.type = RTR_EV_SUSPECT, .worker = conn, .flag = suspect});
}

const struct sim_handlers sim_router_handlers = {.up = on_up, .down = on_down, .call = on_call, .cancel = on_cancel, .ack = on_ack,
                                                 .item = on_item, .end = on_end, .pause = on_pause, .suspect = on_suspect};
