/* serve.c - what a worker tells routers: load four times a second, with what its steps and links take by its own fits, and what its prefix
 * cache gains and loses. The readers, the fits and the tree's log are the real ones; the loops are those of worker/edge/serve.c and cache.c.
 * Fault `cache_skip`: an item is thrown away as if it had been sent, so that the router sees a hole. Now and then the stream has no credit.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"
#include "proto/wire.h"
#include "sim/worker.h"

#include <stdlib.h>
#include <string.h>

/* --- load --- */

void sim_serve_load(struct sim_worker *w, uint64_t conn, uint32_t stream)
{
    for (uint32_t i = 0; i < SIM_LOADS; i++) {
        if (w->load[i].conn != 0 && w->load[i].conn != conn)
            continue;
        w->load[i].conn = conn;
        w->load[i].stream = stream;
        sim_serve_report(w);
        return;
    }
    sim_fail(w->s, "%s: streams of lost routers do not come back", w->s->node[w->node].id);
}

static void fill_load(struct sim_worker *w, struct msg_load *m)
{
    struct wrk_sched_stats st = wrk_sched_stats(w->sched);
    m->sequence = ++w->load_sequence;
    m->running = st.active;
    m->waiting = st.waiting;
    m->outstanding_tokens = st.outstanding_tokens;
    m->group_count = w->layout.group_count;
    for (uint32_t g = 0; g < w->layout.group_count; g++) {
        struct kvc_pool_counts n = wrk_sched_pages(w->sched, g);
        m->pages[g] = (struct msg_pages){.total = n.total, .free = n.free, .cached = n.cached, .held = n.held, .fenced = n.fenced};
    }
    m->metrics = "";
    for (uint32_t i = 0; i < SIM_SLOTS && m->peer_count < sizeof m->peers / sizeof m->peers[0]; i++) {
        if (w->slot[i].state != SIM_SLOT_UP)
            continue;
        struct msg_peer_link *p = &m->peers[m->peer_count++];
        kvs_format(p->id, sizeof p->id, "%s", w->s->node[w->slot[i].node].id);
        kvs_format(p->transport, sizeof p->transport, "loopback");
        (void)dcw_link(w->dcw, p);
    }
    wrk_speed_tell(&w->speed, &m->speed);
    m->prefill_left = st.prefill_left;
    m->context_tokens = st.context_tokens;
    m->decoding = st.decoding;
    m->chunk_tokens = wrk_sched_chunk_tokens(w->sched);
    m->draining = w->draining;
    m->role = w->s->node[w->node].card.role;
}

void sim_serve_report(struct sim_worker *w)
{
    struct msg_load *m = calloc(1, sizeof *m);
    struct kvs_buf body;
    KVS_ASSERT(m != NULL);
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    fill_load(w, m);
    kvs_status coded = msg_load_encode(m, &body);
    KVS_ASSERT(coded == KVS_OK);
    for (uint32_t i = 0; i < SIM_LOADS; i++)
        if (w->load[i].conn != 0)
            sim_rpc_item(w->s, w->node, w->load[i].conn, w->load[i].stream, &body);
    kvs_buf_fini(&body);
    free(m);
}

/* --- cache events --- */

void sim_serve_cache(struct sim_worker *w, uint64_t conn, uint32_t stream)
{
    static const struct msg_end none = {.status = KVS_REQ_UNSUPPORTED, .text = "this worker keeps no prefixes"};
    if (wrk_sched_events(w->sched) == NULL) {
        sim_rpc_end(w->s, w->node, conn, stream, &none);
        return;
    }
    for (uint32_t i = 0; i < SIM_LOADS; i++) {
        if (w->cache[i].conn != 0)
            continue;
        memset(&w->cache[i], 0, sizeof w->cache[i]);
        w->cache[i].conn = conn;
        w->cache[i].stream = stream;
        return; /* the pump follows */
    }
    sim_fail(w->s, "%s: the readers of lost routers do not come back", w->s->node[w->node].id);
}

void sim_serve_cancel(struct sim_worker *w, uint64_t conn, uint32_t stream)
{
    for (uint32_t i = 0; i < SIM_LOADS; i++)
        if (w->cache[i].conn == conn && w->cache[i].stream == stream)
            w->cache[i].conn = 0;
}

void sim_serve_down(struct sim_worker *w, uint64_t conn)
{
    for (uint32_t i = 0; i < SIM_LOADS; i++) {
        if (w->load[i].conn == conn)
            w->load[i].conn = 0;
        if (w->cache[i].conn == conn)
            w->cache[i].conn = 0;
    }
}

/* One item; false: nothing new, or no credit. */
static bool send_item(struct sim_worker *w, uint32_t i, struct wrk_cache_item *item)
{
    struct sim *s = w->s;
    struct wrk_reader next = w->cache[i].reader;
    struct kvs_buf body;
    if (!wrk_events_read(wrk_sched_events(w->sched), wrk_sched_tree(w->sched), &next, (uint32_t)sim_draw(s, 1, 64), item) || sim_chance(s, 50))
        return false;
    bool events = !item->msg.snapshot_begin && !w->cache[i].reader.walking; /* a lost piece of a walk could not be noticed, nor can it be lost */
    bool skip = events && sim_chance(s, s->set.cache_skip);
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_cache_events_encode(&item->msg, &body);
    KVS_ASSERT(st == KVS_OK);
    if (skip)
        sim_fault(s, SIM_N_cache_skips);
    else
        sim_rpc_item(s, w->node, w->cache[i].conn, w->cache[i].stream, &body);
    kvs_buf_fini(&body);
    w->cache[i].reader = next;
    w->cache[i].hole = skip;
    sim_count(s, SIM_N_cache_items, 1);
    return true;
}

void sim_serve_pump(struct sim_worker *w)
{
    static struct wrk_cache_item item; /* scratch; one simulation at a time */
    if (wrk_sched_events(w->sched) == NULL)
        return;
    for (uint32_t i = 0; i < SIM_LOADS; i++)
        while (w->cache[i].conn != 0 && send_item(w, i, &item))
            ;
}

bool sim_serve_hole(const struct sim_worker *w)
{
    for (uint32_t i = 0; i < SIM_LOADS; i++)
        if (w->cache[i].conn != 0 && w->cache[i].hole)
            return true;
    return false;
}

uint32_t sim_serve_known(const struct sim_worker *w)
{
    struct kvc_tree_block block[64];
    const struct kvc_tree *t = wrk_sched_tree(w->sched);
    uint32_t at = 0, count = 0, n;
    while (t != NULL && (n = kvc_tree_walk(t, &at, block, 64)) != 0)
        for (uint32_t i = 0; i < n; i++)
            count += block[i].ends;
    return count;
}
