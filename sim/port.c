/* port.c - the KV transport in virtual time: commands go in and events come out in order, each a little later; messages take their own way.
 *
 *   send -> (picked up: checksum taken) -> arrives: kvt_sink_check -> receive posted -> bytes copied from the source's memory -> landed
 *                                              '- declined                                  '-> SENT at the source (also when declined)
 *
 * Bytes are read at the copy, as a rendezvous does: a source that lets go of a page too early ships whatever stands there then. Landing is
 * told after the copy, sometimes much later, so END may come first. A message to or from a dead process, or over a cut link, stays stuck
 * until a side closes its peer; closing lets receives run on for up to 0.1 s, then ends what is left, then says CLOSED.
 * Faults: dropped, flipped bit, failed receive, failed send, doubled, late, begun and never ended, and forgeries (a stranger's message with one field wrong).
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/worker.h"

#include <stdlib.h>
#include <string.h>

#define STUCK_US 1000000000u /* longer than a run: until a side closes its peer */

struct message {
    struct kvt_header header;
    uint64_t length, number; /* number: of the send at the source; 0: nobody waits for SENT */
    uint32_t source, source_life, source_slot, sink, sink_life;
    uint64_t conn;
    const uint8_t *bytes; /* in the source's memory */
    uint64_t recv;        /* number of the posted receive */
    uint64_t copy_us;     /* how long the receive takes */
    bool flip, fail, forged;
    size_t own_bytes;
    uint8_t own[]; /* a stranger's bytes */
};

/* --- order --- */

static uint64_t command_time(struct sim_worker *w)
{
    uint64_t at = sim_in(w->s, 1, 20);
    w->port_in_us = at > w->port_in_us ? at : w->port_in_us + 1;
    return w->port_in_us;
}

static uint64_t event_time(struct sim_worker *w)
{
    uint64_t at = sim_in(w->s, 1, 60);
    w->port_out_us = at > w->port_out_us ? at : w->port_out_us + 1;
    return w->port_out_us;
}

/* --- sends of this worker --- */

static struct sim_send *send_find(struct sim_worker *w, uint64_t number)
{
    for (uint32_t i = 0; i < w->send_count; i++)
        if (w->send[i].number == number)
            return &w->send[i];
    return NULL;
}

static void loop_sent(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
    if (times == 2)
        sim_fault(s, SIM_N_doubled_events);
    while (times-- > 0)
        sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_SENT, .sent = {.cookie = e->id, .status = (kvs_status)e->a}});
    sim_worker_turn(w);
}

/* The transport is done with a send. told: the loop hears of it (a closed peer's last sends may be left to CLOSED). */
static void send_over(struct sim_worker *w, struct sim_send *x, kvs_status st, bool told)
{
    (*x->watch)--;
    if (told)
        sim_worker_post(w, event_time(w), loop_sent, x->cookie, st, 0, NULL);
    *x = w->send[--w->send_count];
}

static void completed(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    struct sim_send *x = send_find(w, e->id);
    if (x != NULL)
        send_over(w, x, (kvs_status)e->a, true);
}

static void post_completed(struct sim *s, const struct message *m, kvs_status st)
{
    if (m->number != 0)
        sim_post(s, sim_in(s, 5, s->set.latency_us),
                 &(struct sim_event){.run = completed, .node = m->source, .life = m->source_life, .id = m->number, .a = st});
}

/* --- grants of this worker --- */

static struct sim_grant *grant_find(struct sim_worker *w, uint64_t xfer, sim_grant_state state)
{
    for (uint32_t i = 0; i < w->grant_count; i++)
        if (w->grant[i]->xfer == xfer && w->grant[i]->state == state)
            return w->grant[i];
    return NULL;
}

static struct sim_grant *newest_grant(struct sim_worker *w)
{
    for (uint32_t i = w->grant_count; i-- > 0;)
        if (w->grant[i]->state == SIM_GRANT_IN_PORT)
            return w->grant[i];
    return NULL;
}

static void grant_free(struct sim_worker *w, struct sim_grant *g)
{
    for (uint32_t i = 0; i < w->grant_count; i++)
        if (w->grant[i] == g) {
            memmove(&w->grant[i], &w->grant[i + 1], (w->grant_count - i - 1) * sizeof(struct sim_grant *));
            w->grant_count--;
            break;
        }
    kvt_sink_destroy(g->sink);
    free(g->page);
    free(g);
}

static kvs_status status_of(const struct kvt_sink *sink)
{
    switch (kvt_sink_state_of(sink)) {
    case KVT_SINK_COMPLETE: return KVS_OK;
    case KVT_SINK_CANCELLED: return KVS_REQ_CANCELLED;
    case KVT_SINK_OPEN:
    case KVT_SINK_FAILED: break;
    }
    return KVS_PEER_CORRUPT;
}

static void loop_granted(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    struct sim_grant *g = grant_find(w, e->id, SIM_GRANT_OVER);
    kvs_status st = status_of(g->sink);
    sim_note(s, w->node, "grant %t over: %s, %u pages", g->xfer, st, g->landed_pages);
    sim_sink_granted(w, g->sink, st, g->landed_pages, g->last_us - g->first_us);
    grant_free(w, g);
    sim_worker_turn(w);
}

/* Hands the sink back when nothing can happen to it any more. */
static void grant_check(struct sim_worker *w, struct sim_grant *g)
{
    if (kvt_sink_state_of(g->sink) == KVT_SINK_OPEN || kvt_sink_receiving(g->sink) > 0)
        return;
    g->state = SIM_GRANT_OVER;
    for (uint32_t i = 0; i < g->page_count; i++)
        w->recvs[g->page[i].group][g->page[i].page]--;
    sim_worker_post(w, event_time(w), loop_granted, g->xfer, 0, 0, NULL);
}

static void port_granted(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    struct sim_grant *g = grant_find(w, e->id, SIM_GRANT_COMMANDED);
    g->state = SIM_GRANT_IN_PORT;
    if (w->slot[g->slot].state == SIM_SLOT_FREE) { /* the peer was closed meanwhile */
        kvt_sink_end(g->sink, KVS_PEER_LOST, 0);
        grant_check(w, g);
    }
}

void sim_port_grant(struct sim_worker *w, uint32_t slot, struct kvt_sink *sink, uint32_t want_count)
{
    struct sim_grant *g = calloc(1, sizeof *g);
    KVS_ASSERT(g != NULL);
    *g = (struct sim_grant){.xfer = kvt_sink_xfer(sink), .slot = slot, .sink = sink};
    g->page = calloc(want_count, sizeof *g->page);
    KVS_ASSERT(g->page != NULL);
    for (uint32_t i = 0; i < want_count; i++) {
        struct wrk_page *p = &g->page[g->page_count];
        if (!sim_page_of(w, kvt_sink_want(sink, i)->dest, p))
            continue;
        g->page_count++;
        sim_note(w->s, w->node, "page %g may be written by transfer %t", SIM_PAGE(p->group, p->page), g->xfer);
        sim_about_page(w->s, w->node, p->group, p->page);
        if (w->recvs[p->group][p->page]++ != 0)
            sim_fail(w->s, "%s grants page %u of group %u to two transfers", w->s->node[w->node].id, p->page, p->group);
        if (w->reads[p->group][p->page] != 0)
            sim_fail(w->s, "%s grants page %u of group %u while a send reads it", w->s->node[w->node].id, p->page, p->group);
    }
    if (w->grant_count == w->grant_cap) {
        w->grant_cap = w->grant_cap != 0 ? w->grant_cap * 2 : 16;
        w->grant = realloc(w->grant, w->grant_cap * sizeof(struct sim_grant *));
        KVS_ASSERT(w->grant != NULL);
    }
    w->grant[w->grant_count++] = g;
    sim_worker_post(w, command_time(w), port_granted, g->xfer, 0, 0, NULL);
}

static void port_grant_end(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    struct sim_grant *g = grant_find(w, e->id, SIM_GRANT_IN_PORT);
    if (g == NULL)
        return;
    if (kvt_sink_receiving(g->sink) > 0)
        sim_count(s, SIM_N_end_overtook, 1);
    kvt_sink_end(g->sink, (kvs_status)e->a, (uint32_t)e->b);
    grant_check(w, g);
}

void sim_port_grant_end(struct sim_worker *w, uint64_t xfer, kvs_status st, uint32_t pages_sent)
{
    sim_worker_post(w, command_time(w), port_grant_end, xfer, st, pages_sent, NULL);
}

static void port_grant_cancel(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    struct sim_grant *g = grant_find(w, e->id, SIM_GRANT_IN_PORT);
    if (g == NULL)
        return;
    kvt_sink_cancel(g->sink);
    grant_check(w, g);
}

void sim_port_grant_cancel(struct sim_worker *w, uint64_t xfer)
{
    sim_worker_post(w, command_time(w), port_grant_cancel, xfer, 0, 0, NULL);
}

/* --- a message on its way --- */

static void post_message(struct sim *s, uint64_t at_us, sim_run_fn run, const struct message *m, uint32_t node, uint32_t life)
{
    struct message *copy = malloc(sizeof *copy + m->own_bytes);
    KVS_ASSERT(copy != NULL);
    memcpy(copy, m, sizeof *m + m->own_bytes);
    sim_post(s, at_us, &(struct sim_event){.run = run, .node = node, .life = life, .ptr = copy});
}

/* The link's state: false: stuck for good; *at_us: not before. */
static bool link_moves(struct sim *s, const struct message *m, uint64_t *at_us)
{
    struct sim_conn *c = sim_conn_find(s, m->conn);
    if (m->forged) /* strangers come by another way */
        return true;
    if (!s->node[m->source].alive || s->node[m->source].life != m->source_life)
        return false;
    if (c == NULL)
        return true; /* the control stream is gone, the link may not be yet */
    if (c->kv_dead)
        return false;
    if (c->stall_us > *at_us)
        *at_us = c->stall_us + sim_draw(s, 1, 500);
    return true;
}

static struct sim_recv *recv_find(struct sim_worker *w, uint64_t number)
{
    for (uint32_t i = 0; i < w->recv_count; i++)
        if (w->recv[i].number == number)
            return &w->recv[i];
    return NULL;
}

/* A receive ends, well or not; the sink is told if there still is one. */
static void recv_over(struct sim_worker *w, struct sim_recv *r, bool ok)
{
    struct sim_recv x = *r;
    *r = w->recv[--w->recv_count];
    struct sim_grant *g = grant_find(w, x.xfer, SIM_GRANT_IN_PORT);
    if (g == NULL)
        return;
    if (ok && x.want < g->page_count) {
        g->landed_pages++;
        sim_note(w->s, w->node, "page %g has landed for transfer %t", SIM_PAGE(g->page[x.want].group, g->page[x.want].page), x.xfer);
    }
    g->first_us = g->first_us != 0 ? g->first_us : w->s->now_us;
    g->last_us = w->s->now_us;
    kvt_sink_landed(g->sink, x.want, ok);
    grant_check(w, g);
}

static void landed(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    const struct message *m = e->ptr;
    struct sim_recv *r = recv_find(w, m->recv);
    if (r == NULL) /* the peer was closed by force: its receives are over */
        return;
    bool ok = !m->fail && kvt_checksum(r->dest, r->bytes) == m->header.checksum;
    if (!ok)
        sim_count(s, SIM_N_declined, 1);
    recv_over(w, r, ok);
}

/* Do these bytes still belong to a transfer? */
static bool may_write(const struct sim_worker *w, const struct sim_recv *r)
{
    struct wrk_page p;
    if (sim_page_of(w, r->dest, &p))
        return w->recvs[p.group][p.page] != 0;
    for (uint32_t i = 0; i < w->xfer_count; i++)
        if (w->xfer[i].logits == r->dest && w->xfer[i].in_port)
            return true;
    return false;
}

static void copied(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    const struct message *m = e->ptr;
    uint64_t at = s->now_us;
    if (!link_moves(s, m, &at))
        return; /* never completes; closing the peer ends it */
    if (at > s->now_us) {
        post_message(s, at, copied, m, e->node, e->life);
        return;
    }
    struct sim_recv *r = recv_find(w, m->recv);
    if (r == NULL)
        return;
    if (!may_write(w, r)) {
        sim_fail(s, "%s: a receive of xfer %llx writes into memory that its transfer has given back", s->node[w->node].id,
                 (unsigned long long)r->xfer);
        return;
    }
    if (m->fail)
        memset(r->dest, 0x5a, r->bytes / 2); /* a broken receive leaves something behind */
    else
        memcpy(r->dest, m->forged ? m->own : m->bytes, r->bytes);
    if (m->flip)
        r->dest[sim_draw(s, 0, r->bytes - 1)] ^= 1;
    post_completed(s, m, KVS_OK);
    post_message(s, sim_in(s, 1, sim_chance(s, 100) ? 20000 : 200), landed, m, e->node, e->life);
}

static void post_receive(struct sim_worker *w, struct message *m, const struct sim_grant *g, uint32_t want)
{
    if (w->recv_count == w->recv_cap) {
        w->recv_cap = w->recv_cap != 0 ? w->recv_cap * 2 : 32;
        w->recv = realloc(w->recv, w->recv_cap * sizeof *w->recv);
        KVS_ASSERT(w->recv != NULL);
    }
    const struct kvt_want *x = kvt_sink_want(g->sink, want);
    m->recv = ++w->number;
    w->recv[w->recv_count++] =
        (struct sim_recv){.number = m->recv, .xfer = g->xfer, .slot = g->slot, .want = want, .dest = x->dest, .bytes = x->bytes};
    kvt_sink_begin(g->sink, want, m->header.checksum);
}

static void arrived(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    struct message *m = e->ptr;
    uint64_t at = s->now_us;
    if (!link_moves(s, m, &at))
        return;
    if (at > s->now_us) {
        post_message(s, at, arrived, m, e->node, e->life);
        return;
    }
    uint32_t slot = SIM_SLOTS;
    for (uint32_t i = 0; i < SIM_SLOTS; i++)
        if (w->slot[i].state != SIM_SLOT_FREE && w->slot[i].conn == m->conn)
            slot = i;
    if (slot == SIM_SLOTS) /* their endpoint is gone: nobody answers */
        return;
    struct sim_grant *g = grant_find(w, m->header.xfer, SIM_GRANT_IN_PORT);
    kvt_verdict v = KVT_DECLINE_XFER;
    uint32_t want = 0;
    if (g != NULL)
        v = kvt_sink_check(g->sink, &m->header, m->length, &want);
    else if (m->forged && (g = newest_grant(w)) != NULL) /* a port that finds its sinks by something else than the xfer asks one of them */
        v = kvt_sink_check(g->sink, &m->header, m->length, &want);
    if (v != KVT_ACCEPT) {
        sim_note(s, w->node, "message of xfer %t block %u group %u declined: reason %u", m->header.xfer, m->header.block, m->header.group, v);
        sim_count(s, SIM_N_declined, 1);
        post_completed(s, m, KVS_OK); /* the sender cannot tell */
        return;
    }
    if (m->forged)
        sim_note(s, w->node, "a stranger's message was ACCEPTED for xfer %t block %u", g->xfer, m->header.block);
    post_receive(w, m, g, want);
    post_message(s, s->now_us + m->copy_us, copied, m, e->node, e->life);
}

/* A stranger who knows everything but one field. */
static void forge(struct sim *s, const struct message *m)
{
    struct message *f = malloc(sizeof *f + m->length);
    KVS_ASSERT(f != NULL);
    *f = *m;
    f->number = 0;
    f->forged = true;
    f->own_bytes = m->length;
    for (uint64_t i = 0; i < m->length; i++)
        f->own[i] = (uint8_t)sim_draw(s, 0, 255);
    f->header.checksum = kvt_checksum(f->own, m->length);
    switch (sim_draw(s, 0, 6)) {
    case 0: f->header.nonce ^= 1u << sim_draw(s, 0, 31); break;
    case 1: f->header.sink_epoch ^= 1u << sim_draw(s, 0, 31); break;
    case 2: f->header.xfer ^= 1u << sim_draw(s, 0, 31); break;
    case 3: f->header.block += 100000; break;
    case 4: f->header.version++; break;
    case 5: f->length += 8; break;
    default: f->header.bytes += 8; break;
    }
    f->flip = f->fail = false;
    f->copy_us = sim_draw(s, 1, 50);
    sim_fault(s, SIM_N_kv_forgeries);
    post_message(s, sim_in(s, 1, 20), arrived, f, f->sink, f->sink_life);
    free(f);
}

static void picked_up(struct sim *s, struct sim_event *e)
{
    struct message *m = e->ptr;
    const struct sim_settings *c = &s->set;
    if (send_find(s->node[e->node].worker, m->number) == NULL)
        return; /* closed meanwhile */
    m->header.checksum = kvt_checksum(m->bytes, m->length);
    m->copy_us = sim_draw(s, c->kv_us / 4, c->kv_us);
    uint64_t at = sim_in(s, c->latency_us / 4, c->latency_us * 2);
    if (sim_chance(s, c->kv_drop)) {
        sim_fault(s, SIM_N_kv_drops);
        post_completed(s, m, KVS_OK);
        return;
    }
    if (sim_chance(s, c->kv_send_error)) {
        sim_fault(s, SIM_N_kv_send_errors);
        post_completed(s, m, KVS_PEER_LOST);
        return;
    }
    if (sim_chance(s, c->kv_corrupt))
        sim_fault(s, SIM_N_kv_corruptions), m->flip = true;
    if (sim_chance(s, c->kv_broken))
        sim_fault(s, SIM_N_kv_broken), m->fail = true;
    if (sim_chance(s, c->kv_late)) {
        sim_fault(s, SIM_N_kv_lates);
        uint64_t late = sim_draw(s, 5000, sim_chance(s, 100) ? 2500000 : 150000);
        if (sim_chance(s, 300))
            at += late; /* else the receive is posted in time and takes long */
        else
            m->copy_us += late;
    }
    if (sim_chance(s, c->kv_stuck)) {
        sim_fault(s, SIM_N_kv_stuck);
        m->copy_us = STUCK_US;
    }
    if (sim_chance(s, c->kv_forge))
        forge(s, m);
    post_message(s, at, arrived, m, m->sink, m->sink_life);
    if (sim_chance(s, c->kv_double)) {
        struct message twin = *m;
        sim_fault(s, SIM_N_kv_doubles);
        twin.number = 0;
        twin.copy_us = sim_draw(s, 1, c->kv_us);
        post_message(s, at + sim_draw(s, 0, 5000), arrived, &twin, m->sink, m->sink_life);
    }
}

void sim_port_send(struct sim_worker *w, uint32_t slot, const struct kvt_header *h, const uint8_t *bytes, uint64_t cookie, uint16_t *watch)
{
    struct sim *s = w->s;
    if (w->send_count == w->send_cap) {
        w->send_cap = w->send_cap != 0 ? w->send_cap * 2 : 32;
        w->send = realloc(w->send, w->send_cap * sizeof *w->send);
        KVS_ASSERT(w->send != NULL);
    }
    struct sim_send *x = &w->send[w->send_count++];
    *x = (struct sim_send){.cookie = cookie, .number = ++w->number, .slot = slot, .watch = watch};
    (*watch)++;
    sim_count(s, SIM_N_kv_messages, 1);
    const struct sim_slot *p = &w->slot[slot];
    if (p->state != SIM_SLOT_UP) { /* the peer is being closed: nothing leaves any more */
        send_over(w, x, KVS_PEER_LOST, true);
        return;
    }
    struct message *m = calloc(1, sizeof *m);
    KVS_ASSERT(m != NULL);
    *m = (struct message){.header = *h, .length = h->bytes, .number = x->number, .source = w->node, .source_life = s->node[w->node].life,
                          .source_slot = slot, .sink = p->node, .sink_life = s->node[p->node].life, .conn = p->conn, .bytes = bytes};
    struct sim_conn *c = sim_conn_find(s, p->conn);
    if (c != NULL) /* the other side as it was when this link was made */
        m->sink_life = c->life[!sim_conn_side(c, w->node)];
    sim_worker_post(w, command_time(w), picked_up, 0, 0, 0, m);
}

/* --- closing --- */

static void loop_closed(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    uint32_t slot = (uint32_t)e->id;
    w->slot[slot] = (struct sim_slot){.state = SIM_SLOT_FREE};
    sim_note(s, w->node, "peer %u closed", slot);
    uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
    while (times-- > 0) {
        sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_PEER_CLOSED, .peer = slot});
        sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_PEER_CLOSED, .peer = slot});
    }
    sim_worker_turn(w);
}

static void destroy_peer(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    uint32_t slot = (uint32_t)e->id;
    for (uint32_t i = w->recv_count; i-- > 0;)
        if (w->recv[i].slot == slot)
            recv_over(w, &w->recv[i], false);
    for (uint32_t i = w->grant_count; i-- > 0;) {
        struct sim_grant *g = w->grant[i];
        if (g->slot != slot || g->state != SIM_GRANT_IN_PORT)
            continue;
        if (kvt_sink_state_of(g->sink) == KVT_SINK_OPEN)
            kvt_sink_end(g->sink, KVS_PEER_LOST, 0);
        grant_check(w, g);
    }
    bool told = !sim_chance(s, 300);
    for (uint32_t i = w->send_count; i-- > 0;)
        if (w->send[i].slot == slot)
            send_over(w, &w->send[i], KVS_PEER_LOST, told);
    sim_worker_post(w, event_time(w), loop_closed, slot, 0, 0, NULL);
}

void sim_port_close(struct sim_worker *w, uint32_t slot)
{
    w->slot[slot].state = SIM_SLOT_CLOSING;
    sim_worker_post(w, command_time(w) + sim_draw(w->s, 0, 100000), destroy_peer, slot, 0, 0, NULL);
}

void sim_port_free(struct sim_worker *w)
{
    while (w->recv_count > 0)
        recv_over(w, &w->recv[0], false);
    while (w->grant_count > 0)
        grant_free(w, w->grant[0]);
    free(w->grant);
    free(w->send);
    free(w->recv);
}
