/* grant.c - from a message's header to the slot of a sink, and the end of a grant.
 * kvt_accept runs first on every message, whatever brought it, and trusts nothing: the header is decoded from exactly 56 bytes, the
 * transfer is found by its number among the grants of the very peer that sent it, and the sink compares the rest. Nothing that
 * comes from the wire is ever an address. What is not accepted is counted by reason and dropped.
 *
 * A grant ends exactly once, with one event, when its sink has left OPEN and no receive is posted: then its pages may be reused.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/port_private.h"

#include "sys/clock.h"
#include "sys/failpoint.h"
#include <stdlib.h>

void kvt_decline(struct kvt_port *p, kvt_verdict v)
{
    KVS_ASSERT(v > KVT_ACCEPT && v < KVT_VERDICTS);
    atomic_fetch_add_explicit(&p->declined[v], 1, memory_order_relaxed);
}

struct kvt_grant_rec *kvt_grant_find(const struct kvt_port *p, uint64_t xfer)
{
    uint64_t value;
    return kvs_map_get(p->grants, xfer, &value) ? (struct kvt_grant_rec *)(uintptr_t)value : NULL;
}

static kvt_verdict check(struct kvt_peer *peer, const void *header, size_t header_bytes, uint64_t length,
                         struct kvt_grant_rec **rec_out, uint32_t *slot_out, uint64_t *checksum_out)
{
    struct kvt_header h;
    if (!kvt_header_decode(header, header_bytes, &h))
        return KVT_DECLINE_HEADER;
    struct kvt_grant_rec *g = kvt_grant_find(peer->port, h.xfer);
    if (g == NULL) {
        kvt_take_grants(peer->port);
        g = kvt_grant_find(peer->port, h.xfer);
    }
    if (g == NULL || g->peer != peer) { /* the same order of reasons as in the sink */
        if (!kvt_header_known(&h))
            return KVT_DECLINE_VERSION;
        return h.sink_epoch != peer->port->config.epoch ? KVT_DECLINE_EPOCH : KVT_DECLINE_XFER;
    }
    if (peer->state == KVT_PEER_CLOSING)
        return KVT_DECLINE_CLOSED;
    *rec_out = g;
    *checksum_out = h.checksum;
    return kvt_sink_check(g->sink, &h, length, slot_out);
}

kvt_verdict kvt_accept(struct kvt_peer *peer, const void *header, size_t header_bytes, uint64_t length,
                       struct kvt_grant_rec **rec_out, uint32_t *slot_out)
{
    uint64_t checksum = 0;
    kvt_verdict v = check(peer, header, header_bytes, length, rec_out, slot_out, &checksum);
    if (v != KVT_ACCEPT) {
        kvt_decline(peer->port, v);
        return v;
    }
    kvt_sink_begin((*rec_out)->sink, *slot_out, checksum);
    if ((*rec_out)->first_us == 0)
        (*rec_out)->first_us = kvs_now_us();
    return KVT_ACCEPT;
}

void kvt_receive_done(struct kvt_grant_rec *g, uint32_t slot, bool received)
{
    const struct kvt_want *w = kvt_sink_want(g->sink, slot);
    struct kvt_port *p = g->peer->port;
    bool cancelled = kvt_sink_state_of(g->sink) != KVT_SINK_OPEN; /* nobody wants the bytes any more */
    bool good = received && (cancelled || kvt_checksum(w->dest, (size_t)w->bytes) == kvt_sink_checksum(g->sink, slot));
    if (!received) {
        g->lost = true;
        kvt_decline(p, KVT_DECLINE_TRANSPORT);
    } else if (!good) {
        g->corrupt = true;
        kvt_decline(p, KVT_DECLINE_CHECKSUM);
    }
    kvt_sink_landed(g->sink, slot, good && !cancelled);
    if (good && !cancelled) {
        g->last_us = kvs_now_us();
        if (w->block != KVT_LOGITS_BLOCK) {
            g->pages++;
            (void)KVS_FAILPOINT("kvt.after_page");
        }
    }
    kvt_grant_settle(g);
}

static kvs_status grant_status(const struct kvt_grant_rec *g)
{
    switch (kvt_sink_state_of(g->sink)) {
    case KVT_SINK_COMPLETE: return KVS_OK;
    case KVT_SINK_CANCELLED: return KVS_REQ_CANCELLED;
    case KVT_SINK_OPEN: return KVS_PEER_LOST;
    case KVT_SINK_FAILED: break;
    }
    if (g->end_status != KVS_OK)
        return g->end_status;
    if (g->corrupt)
        return KVS_PEER_CORRUPT;
    return g->lost ? KVS_PEER_LOST : KVS_PEER_PROTOCOL;
}

static void finish(struct kvt_grant_rec *g, kvs_status status)
{
    struct kvt_peer *peer = g->peer;
    KVS_ASSERT(kvt_sink_receiving(g->sink) == 0);
    bool known = kvs_map_remove(peer->port->grants, kvt_sink_xfer(g->sink));
    KVS_ASSERT(known);
    *(g->prev == NULL ? &peer->grants : &g->prev->next) = g->next;
    if (g->next != NULL)
        g->next->prev = g->prev;
    /* Last: from here on the sink is the loop's. */
    kvt_note(peer->port, &(struct kvt_note){.kind = KVT_EV_GRANT,
                                            .peer = peer->index,
                                            .status = status,
                                            .transport = peer->transport,
                                            .sink = g->sink,
                                            .bytes = kvt_sink_landed_bytes(g->sink),
                                            .elapsed_us = g->last_us > g->first_us ? g->last_us - g->first_us : 0,
                                            .pages = g->pages});
    free(g);
}

void kvt_grant_settle(struct kvt_grant_rec *g)
{
    if (kvt_sink_state_of(g->sink) != KVT_SINK_OPEN && kvt_sink_receiving(g->sink) == 0)
        finish(g, grant_status(g));
}

void kvt_grants_lost(struct kvt_peer *peer)
{
    while (peer->grants != NULL) {
        kvs_status status = grant_status(peer->grants);
        finish(peer->grants, status == KVS_OK || status == KVS_REQ_CANCELLED ? status : KVS_PEER_LOST);
    }
}

static void refuse(struct kvt_port *p, uint32_t peer_index, struct kvt_sink *sink, kvs_status status)
{
    kvt_note(p, &(struct kvt_note){.kind = KVT_EV_GRANT, .peer = peer_index, .status = status, .sink = sink});
}

void kvt_grant_open(struct kvt_port *p, struct kvt_peer *peer, uint32_t peer_index, struct kvt_sink *sink)
{
    if (peer == NULL || peer->state == KVT_PEER_CLOSING) {
        refuse(p, peer_index, sink, KVS_PEER_LOST);
        return;
    }
    struct kvt_grant_rec *g = calloc(1, sizeof *g);
    if (g == NULL) {
        refuse(p, peer_index, sink, KVS_SELF_NOMEM);
        return;
    }
    KVS_ASSERT(kvt_grant_find(p, kvt_sink_xfer(sink)) == NULL); /* transfer numbers are ours: unique */
    g->sink = sink;
    g->peer = peer;
    kvs_status st = kvs_map_put(p->grants, kvt_sink_xfer(sink), (uint64_t)(uintptr_t)g);
    if (st != KVS_OK) {
        free(g);
        refuse(p, peer_index, sink, st);
        return;
    }
    g->next = peer->grants;
    if (g->next != NULL)
        g->next->prev = g;
    peer->grants = g;
}
