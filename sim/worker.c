/* worker.c - see worker.h: life of a worker, its streams, its slots for peers, its loop's turn (worker/core/sched.h says how to drive it).
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/worker.h"

#include "proto/frame.h"
#include "proto/wire.h"
#include "sim/client.h"
#include "sim/members.h"

#include <stdlib.h>
#include <string.h>

#define TICKS_MAX 8
#define SPINS_MAX 2000u
#define LOAD_US 250000u
#define ARENA ((size_t)4 << 20)

static void on_report_timer(struct sim *s, struct sim_event *e);

static struct sim_worker *worker_of(struct sim *s, uint32_t node)
{
    return s->node[node].worker;
}

void sim_worker_post(struct sim_worker *w, uint64_t at_us, sim_run_fn run, uint64_t id, uint64_t a, uint64_t b, void *ptr)
{
    sim_post(w->s, at_us,
             &(struct sim_event){.run = run, .node = w->node, .life = w->s->node[w->node].life, .id = id, .a = a, .b = b, .ptr = ptr});
}

/* --- life --- */

void sim_worker_create(struct sim *s, uint32_t node)
{
    const struct sim_settings *c = &s->set;
    struct sim_node *n = &s->node[node];
    struct kvs_error err = {0};
    struct sim_worker *w = calloc(1, sizeof *w);
    KVS_ASSERT(w != NULL && n->worker == NULL);
    w->s = s;
    w->node = node;
    w->timer_us = w->fenced_since_us = SIM_FOREVER;
    sim_device_create(w);
    n->foreign = c->foreign != 0 && (node - s->router_count) % 3 == 2;
    kvs_format(n->card.numerics, sizeof n->card.numerics, n->foreign ? "sim of another class" : "sim");
    kvs_format(n->card.kv_types, sizeof n->card.kv_types, "k=f32,v=f32");
    kvs_format(n->card.rope, sizeof n->card.rope, "none");
    (void)kvc_layout_text(&w->layout, n->card.layout, sizeof n->card.layout);
    n->card.group_count = w->layout.group_count;
    for (uint32_t g = 0; g < w->layout.group_count; g++)
        n->card.group[g] = (struct msg_group_info){.page_bytes = w->layout.group[g].page_bytes, .pages = c->pages};
    struct wrk_sched_config sc = {.layout = &w->layout, .seqs_max = c->sequences, .batch_seqs = c->batch, .context = c->context,
                                  .chunk_tokens = c->chunk_tokens, .reserve_tokens = c->reserve_tokens, .tree_nodes = c->tree_nodes, .tree_ttl_us = c->tree_ttl_us, .snapshot_blocks = c->snapshot_blocks,
                                  .model = {.numerics = n->card.numerics, .kv_types = n->card.kv_types, .rope = n->card.rope}};
    for (uint32_t g = 0; g < w->layout.group_count; g++)
        sc.pages[g] = c->pages;
    kvs_status st = wrk_sched_create(&sc, &w->sched, &err);
    KVS_ASSERT(st == KVS_OK);
    struct pfw_config pc = {.sched = w->sched, .calls_max = c->prefill_calls, .vocab = c->vocab, .send_window = c->send_window,
                            .queue_wait_us = c->queue_wait_us};
    st = pfw_create(&pc, &w->pfw, &err);
    KVS_ASSERT(st == KVS_OK);
    struct dcw_config dc = {.sched = w->sched, .id = n->id, .epoch = n->epoch, .seed = kvs_rng_next(&s->rng), .calls_max = c->calls,
                            .vocab = c->vocab};
    st = dcw_create(&dc, &w->dcw, &err);
    KVS_ASSERT(st == KVS_OK);
    w->pending = calloc(SIM_PENDING, sizeof *w->pending);
    KVS_ASSERT(w->pending != NULL);
    n->worker = w;
    sim_orders_tell_role(w);
    sim_worker_post(w, s->now_us + LOAD_US, on_report_timer, 0, 0, 0, NULL);
}

static void collect(struct sim_worker *w)
{
    struct dcw_stats d = dcw_stats(w->dcw);
    struct pfw_stats p = pfw_stats(w->pfw);
    sim_count(w->s, SIM_N_remote, d.remote);
    sim_count(w->s, SIM_N_local, d.local);
    sim_count(w->s, SIM_N_fallbacks, d.fallbacks);
    sim_count(w->s, SIM_N_fetches, d.fetches);
    sim_count(w->s, SIM_N_fetched_tokens, d.fetched_tokens);
    sim_count(w->s, SIM_N_acked, p.acked);
    sim_count(w->s, SIM_N_nacked, p.nacked);
    sim_count(w->s, SIM_N_cancelled, p.cancelled);
    struct wrk_sched_stats st = wrk_sched_stats(w->sched);
    sim_count(w->s, SIM_N_preemptions, st.preemptions);
    sim_count(w->s, SIM_N_reused_tokens, st.cached_tokens);
    sim_count(w->s, SIM_N_evicted, st.evicted_blocks);
}

void sim_worker_destroy(struct sim_worker *w)
{
    collect(w);
    if (w->step != NULL)
        (void)wrk_sched_step_done(w->sched, w->step->id, KVS_REQ_CANCELLED, NULL);
    pfw_destroy(w->pfw);
    dcw_destroy(w->dcw);
    wrk_sched_destroy(w->sched);
    sim_port_free(w);
    sim_sink_free(w);
    sim_device_free(w);
    w->s->node[w->node].worker = NULL;
    free(w);
}

/* --- the loop's turn --- */

void sim_worker_zero(struct sim_worker *w)
{
    struct wrk_page page[16];
    size_t n;
    while ((n = wrk_sched_take_zeros(w->sched, page, 16)) != 0)
        for (size_t i = 0; i < n; i++)
            sim_device_zero(w, page[i].group, page[i].page);
    struct wrk_copy copy;
    while (wrk_sched_take_copies(w->sched, &copy, 1) != 0)
        sim_device_copy(w, &copy);
}

static uint64_t next_deadline(const struct sim_worker *w)
{
    uint64_t p = pfw_deadline_us(w->pfw), d = dcw_deadline_us(w->dcw);
    return sim_world_us(w->s, w->node, p < d ? p : d);
}

static void tick(struct sim_worker *w)
{
    sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_TICK});
    sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_TICK});
}

static void start_step(struct sim_worker *w)
{
    if (w->step != NULL)
        return;
    if (wrk_sched_stats(w->sched).active != 0 && sim_chance(w->s, w->s->set.preempt) && wrk_sched_preempt_newest(w->sched))
        sim_fault(w->s, SIM_N_forced_preemptions);
    if (sim_chance(w->s, w->s->set.flush)) {
        (void)wrk_sched_flush(w->sched);
        sim_fault(w->s, SIM_N_flushes);
    }
    const struct wrk_step *step = wrk_sched_next_step(w->sched);
    sim_worker_zero(w);
    if (step != NULL)
        sim_device_submit(w, step);
}

static void on_timer(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = worker_of(s, e->node);
    w->spins = e->at_us == w->spun_us ? w->spins + 1 : 0;
    w->spun_us = e->at_us;
    if (w->spins > SPINS_MAX)
        sim_fail(s, "%s: a machine asks for a TICK again and again and does nothing with it", s->node[e->node].id);
    if (w->timer_us <= e->at_us)
        w->timer_us = SIM_FOREVER;
    sim_worker_turn(w);
}

void sim_worker_turn(struct sim_worker *w)
{
    for (int i = 0; i < TICKS_MAX && next_deadline(w) <= w->s->now_us; i++)
        tick(w);
    start_step(w);
    sim_serve_pump(w);
    if (w->step != NULL)
        w->stop_step = wrk_sched_stop_wanted(w->sched);
    uint64_t at = next_deadline(w);
    if (at < w->timer_us) {
        w->timer_us = at > w->s->now_us ? at : w->s->now_us;
        sim_worker_post(w, w->timer_us, on_timer, 0, 0, 0, NULL);
    }
}

/* --- peers --- */

uint32_t sim_worker_slot(const struct sim_worker *w, uint64_t conn)
{
    for (uint32_t i = 0; i < SIM_SLOTS; i++)
        if (w->slot[i].state == SIM_SLOT_UP && w->slot[i].conn == conn)
            return i;
    return SIM_SLOTS;
}

/* Is the process behind this stream the one that discovery names, and does its card fit ours? */
static bool knows(struct sim *s, uint32_t node, const struct sim_slot *p)
{
    struct kvs_error err = {0};
    const struct sim_conn *c = sim_conn_find(s, p->conn);
    const struct msg_card *card = sim_members_find(s, node, s->node[p->node].id);
    if (c == NULL || card == NULL || card->epoch != c->epoch[!sim_conn_side(c, node)])
        return false;
    if (cls_cards_compatible(&s->node[node].card, card, &err) != KVS_OK)
        sim_fail(s, "%s and %s do not fit: %s", s->node[node].id, card->id, err.text);
    return true;
}

/* Of another class: the stream stays, and no page will ever go over it. */
static bool is_misfit(struct sim *s, uint32_t node, uint32_t other)
{
    struct kvs_error err = {0};
    if (s->node[node].foreign == s->node[other].foreign)
        return false;
    if (cls_cards_compatible(&s->node[node].card, &s->node[other].card, &err) == KVS_OK)
        sim_fail(s, "%s and %s are of two numerics classes, and their cards fit", s->node[node].id, s->node[other].id);
    sim_count(s, SIM_N_misfits, 1);
    return true;
}

static void linked(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = worker_of(s, e->node);
    uint32_t i = (uint32_t)e->id;
    struct sim_slot *p = &w->slot[i];
    if (p->state != SIM_SLOT_CONNECTED || p->conn != e->a || is_misfit(s, e->node, p->node))
        return;
    if (!knows(s, e->node, p)) { /* the stream is there before the router has told of the worker */
        sim_worker_post(w, sim_in(s, 50000, 200000), linked, i, p->conn, 0, NULL);
        return;
    }
    p->state = SIM_SLOT_UP;
    p->announced = true;
    sim_note(s, e->node, "peer %u is linked to %n", i, p->node);
    sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_PEER_UP, .peer = i});
    sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_PEER_UP, .peer = i, .peer_up = {.id = s->node[p->node].id, .transport = "loopback"}});
    sim_worker_turn(w);
}

static void peer_connected(struct sim_worker *w, uint64_t conn, uint32_t peer_node)
{
    for (uint32_t i = 0; i < SIM_SLOTS; i++) { /* its old stream is not known to be dead yet */
        const struct sim_slot *p = &w->slot[i];
        if ((p->state == SIM_SLOT_CONNECTED || p->state == SIM_SLOT_UP) && p->node == peer_node)
            sim_conn_close(w->s, w->node, p->conn);
    }
    for (uint32_t i = 0; i < SIM_SLOTS; i++) {
        if (w->slot[i].state != SIM_SLOT_FREE)
            continue;
        w->slot[i] = (struct sim_slot){.state = SIM_SLOT_CONNECTED, .conn = conn, .node = peer_node};
        sim_worker_post(w, sim_in(w->s, 3000, 12000), linked, i, conn, 0, NULL);
        return;
    }
    sim_fail(w->s, "%s: all slots for peers are taken: closed ones do not come back", w->s->node[w->node].id);
}

static void peer_lost(struct sim_worker *w, uint64_t conn)
{
    for (uint32_t i = 0; i < SIM_SLOTS; i++) {
        struct sim_slot *p = &w->slot[i];
        if (p->conn != conn || (p->state != SIM_SLOT_CONNECTED && p->state != SIM_SLOT_UP))
            continue;
        bool announced = p->announced;
        p->announced = false;
        sim_port_close(w, i);
        if (announced)
            sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_PEER_DOWN, .peer = i});
        if (announced)
            sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_PEER_DOWN, .peer = i});
    }
}

void sim_worker_member(struct sim *s, uint32_t node, const struct msg_member *m)
{
    for (uint32_t i = s->router_count; m->change == MSG_MEMBER_PUT && i < s->node_count; i++)
        if (i != node && strcmp(s->node[i].id, m->card.id) == 0)
            sim_dial_soon(s, node, i, 0, 5000);
}

void sim_worker_port_error(struct sim_worker *w)
{
    uint32_t from = (uint32_t)sim_draw(w->s, 0, SIM_SLOTS - 1);
    for (uint32_t k = 0; k < SIM_SLOTS; k++) {
        const struct sim_slot *p = &w->slot[(from + k) % SIM_SLOTS];
        if (p->state != SIM_SLOT_UP)
            continue;
        sim_note(w->s, w->node, "the transport to %n reports an error", p->node);
        sim_conn_close(w->s, w->node, p->conn);
        return;
    }
}

/* --- streams --- */

static void on_up(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node)
{
    if (sim_is_router(s, peer_node))
        sim_members_conn_up(s, node, conn, peer_node);
    else
        peer_connected(worker_of(s, node), conn, peer_node);
}

void sim_worker_close_peer(struct sim_worker *w, uint32_t peer)
{
    if (w->slot[peer].state == SIM_SLOT_UP)
        sim_conn_close(w->s, w->node, w->slot[peer].conn);
}

static void on_down(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node)
{
    struct sim_worker *w = worker_of(s, node);
    if (sim_is_router(s, peer_node))
        sim_members_conn_down(s, node, conn, peer_node);
    else
        peer_lost(w, conn);
    sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_ROUTER_DOWN, .conn = conn});
    sim_serve_down(w, conn);
    sim_worker_turn(w);
}

static void on_report_timer(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = worker_of(s, e->node);
    sim_serve_report(w);
    sim_worker_post(w, s->now_us + LOAD_US, on_report_timer, 0, 0, 0, NULL);
    if (sim_orders_watch(w))
        sim_exit(s, e->node);
    else
        sim_worker_turn(w);
}

static uint64_t local_deadline(const struct sim_worker *w, const struct sim_call *call)
{
    return call->deadline_us != 0 ? call->deadline_us + w->s->node[w->node].skew_us : 0;
}

static void call_generate(struct sim_worker *w, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    struct sim *s = w->s;
    struct kvs_arena arena;
    struct msg_generate m;
    struct kvs_error err = {0};
    kvs_arena_init(&arena, ARENA);
    kvs_status st = msg_generate_decode(body, n, &arena, &m, &err);
    if (st != KVS_OK)
        sim_fail(s, "GENERATE does not decode: %s", err.text);
    struct dcw_event ev = {.kind = DCW_EV_GENERATE, .conn = conn, .stream = call->stream, .generate = {.msg = &m, .deadline_us = local_deadline(w, call)}};
    sim_note(s, w->node, "GENERATE request %r attempt %u choice %u, %u tokens", m.request, m.attempt, m.choice, m.token_count);
    sim_about_request(s, m.request);
    uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
    if (times == 2)
        sim_fault(s, SIM_N_doubled_events);
    uint64_t accepted = dcw_stats(w->dcw).accepted;
    if (st == KVS_OK && sim_client_poisons(s, m.request))
        sim_poison(s, w->node);
    while (st == KVS_OK && times-- > 0)
        sim_sink_feed(w, &ev);
    if (w->draining && dcw_stats(w->dcw).accepted != accepted)
        sim_fail(s, "%s is draining and takes a request", s->node[w->node].id);
    if (s->node[w->node].card.role == MSG_ROLE_PREFILL && dcw_stats(w->dcw).accepted != accepted)
        sim_fail(s, "%s does not decode any more and takes a request", s->node[w->node].id);
    kvs_arena_fini(&arena);
}

static void call_abort(struct sim_worker *w, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    struct kvs_arena arena;
    struct msg_abort m;
    kvs_arena_init(&arena, 4096);
    kvs_status st = msg_abort_decode(body, n, &arena, &m, NULL);
    KVS_ASSERT(st == KVS_OK);
    sim_note(w->s, w->node, "ABORT request %r up to attempt %u", m.request, m.attempt);
    sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_ABORT, .conn = conn, .stream = call->stream, .request = m.request, .abort = {.attempt = m.attempt, .keep = m.keep}});
    kvs_arena_fini(&arena);
}

static void call_prefill(struct sim_worker *w, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    struct sim *s = w->s;
    uint32_t slot = sim_worker_slot(w, conn);
    bool fetch = call->method == MSG_FETCH;
    if (slot == SIM_SLOTS) {
        static const struct msg_end refused = {.status = KVS_PEER_REFUSED, .text = "no KV link to this worker is up"};
        sim_rpc_end(s, w->node, conn, call->stream, &refused);
        return;
    }
    struct kvs_arena arena;
    struct msg_prefill m;
    struct kvs_error err = {0};
    kvs_arena_init(&arena, ARENA);
    kvs_status st = msg_prefill_decode(body, n, &arena, &m, &err);
    if (st != KVS_OK)
        sim_fail(s, "PREFILL does not decode: %s", err.text);
    struct pfw_event ev = {.kind = PFW_EV_CALL, .conn = conn, .stream = call->stream, .peer = slot, .call = {.msg = &m, .fetch = fetch, .deadline_us = local_deadline(w, call)}};
    sim_note(s, w->node, fetch ? "FETCH request %r xfer %t, %u tokens, %u pages" : "PREFILL request %r xfer %t, %u tokens, %u pages", m.request, m.xfer,
             m.token_count, m.want_count);
    sim_about_request(s, m.request);
    uint64_t refused = pfw_stats(w->pfw).refused;
    if (st == KVS_OK)
        sim_source_feed(w, &ev);
    if (st == KVS_OK && pfw_stats(w->pfw).refused == refused && sim_chance(s, s->set.doubled)) {
        sim_fault(s, SIM_N_doubled_events); /* of a call that was refused nothing is left to know it by */
        sim_source_feed(w, &ev);
    }
    kvs_arena_fini(&arena);
}

static void on_call(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    struct sim_worker *w = worker_of(s, node);
    static const struct msg_end unknown = {.status = KVS_REQ_UNSUPPORTED, .text = "not offered here"};
    switch (call->method) {
    case MSG_LOAD:
        sim_serve_load(w, conn, call->stream);
        break;
    case MSG_CACHE: sim_serve_cache(w, conn, call->stream); break;
    case MSG_TOKENS:
        sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_TOKENS_OPEN, .conn = conn, .stream = call->stream});
        break;
    case MSG_GENERATE: call_generate(w, conn, call, body, n); break;
    case MSG_ABORT: call_abort(w, conn, call, body, n); break;
    case MSG_FETCH:
    case MSG_PREFILL: call_prefill(w, conn, call, body, n); break;
    default: sim_rpc_end(s, node, conn, call->stream, &unknown); break;
    }
    sim_worker_turn(w);
}

static void on_cancel(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream)
{
    struct sim_worker *w = worker_of(s, node);
    sim_serve_cancel(w, conn, stream);
    sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_CANCEL, .conn = conn, .stream = stream});
    sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_CANCEL, .conn = conn, .stream = stream});
    sim_worker_turn(w);
}

static void on_ack(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, bool nack)
{
    struct sim_worker *w = worker_of(s, node);
    uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
    while (times-- > 0)
        sim_source_feed(w, &(struct pfw_event){.kind = nack ? PFW_EV_NACK : PFW_EV_ACK, .conn = conn, .stream = stream});
    sim_worker_turn(w);
}

static void on_item(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    if (!sim_members_item(s, node, conn, call, body, n) && call->method != MSG_REGISTER)
        sim_fail(s, "%s: an ITEM on a call of method %u", s->node[node].id, call->method);
}

static void on_end(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const struct msg_end *end)
{
    struct sim_worker *w = worker_of(s, node);
    if (sim_members_end(s, node, conn, call, end) || (call->method != MSG_PREFILL && call->method != MSG_FETCH))
        return;
    (void)sim_sink_end(w, conn, call, end);
    sim_worker_turn(w);
}

static void on_pause(struct sim *s, uint32_t node, uint64_t conn, const uint8_t *body, size_t n, bool resume)
{
    struct sim_worker *w = worker_of(s, node);
    struct kvs_arena arena;
    struct msg_pause p;
    kvs_arena_init(&arena, 4096);
    kvs_status st = msg_pause_decode(body, n, &arena, &p, NULL);
    KVS_ASSERT(st == KVS_OK);
    kvs_arena_fini(&arena);
    sim_sink_feed(w, &(struct dcw_event){.kind = resume ? DCW_EV_RESUME : DCW_EV_PAUSE, .conn = conn, .request = p.request});
    sim_worker_turn(w);
}

static void on_suspect(struct sim *s, uint32_t node, uint64_t conn, bool suspect)
{
    (void)s, (void)node, (void)conn, (void)suspect;
}

const struct sim_handlers sim_worker_handlers = {.up = on_up, .down = on_down, .call = on_call, .cancel = on_cancel, .ack = on_ack,
                                                 .item = on_item, .end = on_end, .pause = on_pause, .suspect = on_suspect};
