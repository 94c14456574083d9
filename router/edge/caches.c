/* caches.c - what the workers tell of their prefix caches: one long Cache call a worker, whose items go to the core.
 * A worker that does not know the call is asked no more on that connection; it only counts as having nothing. A call that ends otherwise is
 * made again a second later. A hole in the events (the core says so) ends the call and makes it again: it begins with a snapshot.
 * Failpoint router.cache_call: the call is not made (again: tried a second later).
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/dispatch_impl.h"

#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/log.h"

#define AGAIN_US 1000000u

void rtr_cache_metrics(struct rtr_dispatch *d, struct kvs_metrics *m)
{
    d->m.index_blocks =
        kvs_gauge(m, "kvasir_router_index_blocks", "", "Cached blocks that the router knows of, each on each worker.");
    d->m.index_bytes = kvs_gauge(m, "kvasir_router_index_bytes", "", "Memory of the index of cached blocks.");
    d->m.index_dropped =
        kvs_counter(m, "kvasir_router_index_dropped_total", "", "Cached blocks forgotten because the index was full.");
    d->m.cache_gaps = kvs_counter(m, "kvasir_router_cache_gaps_total", "",
                                  "Holes in workers' cache events; each one asked for a snapshot.");
}

static void follow(struct kvs_counter *counter, uint64_t now, uint64_t *seen)
{
    kvs_counter_add(counter, now - *seen);
    *seen = now;
}

void rtr_cache_view(struct rtr_dispatch *d, const struct rtr_stats *st)
{
    kvs_gauge_set(d->m.index_blocks, (int64_t)st->index_blocks);
    kvs_gauge_set(d->m.index_bytes, (int64_t)st->index_bytes);
    follow(d->m.index_dropped, st->index_dropped, &d->index_dropped_seen);
    follow(d->m.cache_gaps, st->cache_gaps, &d->cache_gaps_seen);
}

void rtr_cache_open(struct rtr_dispatch *d, struct rtr_peer *p, uint64_t now_us)
{
    if (p->state != RTR_JOIN_READY || p->cache_stream || p->cache_refused || now_us < p->cache_at_us)
        return;
    p->cache_at_us = now_us + AGAIN_US;
    if (KVS_FAILPOINT("router.cache_call"))
        return;
    if (net_rpc_call(d->rpc, p->conn, MSG_CACHE, 0, "", NULL, 0, &p->cache_stream) != KVS_OK)
        p->cache_stream = 0; /* a second later, if the connection lives */
}

/* The core forgets what the worker told: when it is used again it has to tell anew. */
void rtr_cache_close(struct rtr_dispatch *d, struct rtr_peer *p)
{
    if (p->cache_stream)
        net_rpc_cancel(d->rpc, p->conn, p->cache_stream);
    p->cache_stream = 0;
    p->cache_at_us = 0;
}

void rtr_cache_item(struct rtr_dispatch *d, struct rtr_peer *p, const uint8_t *payload, size_t n)
{
    struct msg_cache_events ev;
    struct kvs_error e = {0};
    kvs_status s = msg_cache_events_decode(payload, n, &d->arena, &ev, &e);
    if (s == KVS_SELF_NOMEM) { /* a hole: everything is told anew, a little later */
        KVS_INFO("cache events are missing", "worker=%s cause=\"%s\" remedy=\"a snapshot is asked for\"", p->id, e.text);
        rtr_cache_close(d, p);
        p->cache_at_us = kvs_now_us() + AGAIN_US;
        return;
    }
    if (s != KVS_OK) {
        net_rpc_close(d->rpc, p->conn, s, e.text);
        return;
    }
    rtr_feed(d, &(struct rtr_event){.type = RTR_EV_CACHE, .worker = p->conn, .cache = &ev});
}

void rtr_cache_end(struct rtr_peer *p, const struct msg_end *end)
{
    p->cache_stream = 0;
    p->cache_refused = end->status == KVS_REQ_UNSUPPORTED;
    if (p->cache_refused)
        KVS_INFO("worker tells nothing of its cache", "worker=%s cause=\"%s\"", p->id, end->text);
}

void rtr_cache_again(struct rtr_dispatch *d, const struct rtr_action *a)
{
    struct rtr_peer *p = rtr_peer_of(d, a->worker);
    if (!p || !p->cache_stream)
        return;
    KVS_INFO("cache events are missing", "worker=%s remedy=\"a snapshot is asked for\"", p->id);
    rtr_cache_close(d, p);
    rtr_cache_open(d, p, kvs_now_us());
}
