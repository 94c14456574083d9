/* check.c - the promises, looked at after every event, and what must be true when all is healed and over.
 * Tokens and ends are checked where they reach the client (client.c), KV where it is read (device.c), streams where they are used (net.c).
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/client.h"
#include "sim/members.h"
#include "sim/worker.h"

#define RECOUNT_EVERY 16u /* events of a worker */
#define FENCED_MAX_US 6000000u /* a fence: 2 s until a hung peer is dead, 0.5 s of timers, 0.1 s of closing, and room for a late message */

/* Who holds each page, from the sequences and the tree: the whole truth, at a price that grows with the pool. */
static void recount(struct sim *s, const struct sim_worker *w)
{
    struct kvs_error err = {0};
    if (!wrk_sched_consistent(w->sched, &err))
        sim_fail(s, "%s: pages do not add up: %s", s->node[w->node].id, err.text);
}

static void check_worker(struct sim *s, struct sim_worker *w)
{
    const char *id = s->node[w->node].id;
    uint32_t fenced = 0;
    for (uint32_t g = 0; g < w->layout.group_count; g++) {
        struct kvc_pool_counts n = wrk_sched_pages(w->sched, g);
        if (n.total != s->set.pages || n.free + n.cached + n.held + n.fenced != n.total)
            sim_fail(s, "%s: of %u pages of group %u, %u are free, %u cached, %u held, %u fenced", id, s->set.pages, g, n.free, n.cached, n.held,
                     n.fenced);
        fenced += n.fenced;
    }
    if (w->checks++ % RECOUNT_EVERY == 0)
        recount(s, w);
    if (fenced == 0) {
        w->fenced_since_us = SIM_FOREVER;
        return;
    }
    if (w->fenced_since_us == SIM_FOREVER) {
        w->fenced_since_us = s->now_us;
        sim_count(s, SIM_N_fenced, 1);
    }
    if (s->now_us > w->fenced_since_us + FENCED_MAX_US)
        sim_fail(s, "%s: pages are fenced for more than %u ms", id, FENCED_MAX_US / 1000);
}

void sim_check_event(struct sim *s, const struct sim_event *e)
{
    if (e->node != SIM_NOBODY && s->node[e->node].worker != NULL)
        check_worker(s, s->node[e->node].worker);
    struct sim_client *c = s->client;
    while (c->first_open < c->count && c->request[c->first_open]->over)
        c->first_open++;
    for (uint32_t i = c->first_open; i < c->count && i < c->first_open + 4; i++)
        if (!c->request[i]->over && s->now_us > sim_client_latest_us(s, c->request[i])) {
            sim_about_request(s, c->request[i]->id);
            sim_fail(s, "request %llu has not ended by its deadline", (unsigned long long)c->request[i]->id);
        }
}

static const char *worker_rest(const struct sim_worker *w)
{
    for (uint32_t g = 0; g < w->layout.group_count; g++) {
        struct kvc_pool_counts n = wrk_sched_pages(w->sched, g);
        if (n.held != 0)
            return "pages are held";
        if (n.fenced != 0)
            return "pages are fenced";
        if (n.free + n.cached != n.total)
            return "pages are missing";
        for (uint32_t i = 0; i < w->s->set.pages; i++)
            if (w->reads[g][i] != 0 || w->recvs[g][i] != 0)
                return "the transport still has a page";
    }
    struct wrk_sched_stats st = wrk_sched_stats(w->sched);
    if (st.waiting + st.active + st.fenced != 0 || st.outstanding_tokens != 0)
        return "the scheduler has sequences";
    if (dcw_stats(w->dcw).calls != 0)
        return "the decode machine has calls";
    if (dcw_stats(w->dcw).transfers != 0)
        return "the decode machine has transfers";
    if (dcw_stats(w->dcw).kept != 0)
        return "KV is kept for somebody";
    if (pfw_stats(w->pfw).queued + pfw_stats(w->pfw).running != 0)
        return "the prefill machine has calls";
    if (w->grant_count != 0 || w->send_count != 0 || w->recv_count != 0)
        return "the transport has grants, sends or receives";
    if (w->xfer_count != 0)
        return "transfers were not forgotten";
    return w->step != NULL ? "a step is in flight" : NULL;
}

static const char *router_rest(struct sim *s, uint32_t node)
{
    struct rtr_stats st;
    rtr_stats(sim_router_core(s, node), &st);
    if (st.running + st.waiting != 0)
        return "the router has requests";
    if (st.outstanding_tokens != 0 || st.sequences != 0)
        return "the router's account of its workers is not zero";
    uint64_t cached = 0; /* by all workers; a block is told once for each of them */
    bool hole = false;
    for (uint32_t i = s->router_count; i < s->node_count; i++) {
        cached += s->node[i].worker != NULL ? sim_serve_known(s->node[i].worker) : 0;
        hole = hole || (s->node[i].worker != NULL && sim_serve_hole(s->node[i].worker));
    }
    if (!hole && (st.index_dropped == 0 ? st.index_blocks != cached : st.index_blocks > cached))
        return "the router's index is not what its workers have cached";
    for (uint32_t i = 0; i < s->conn_count; i++)
        for (uint32_t k = 0; k < s->conn[i]->call_count; k++)
            if (s->conn[i]->call[k].method == MSG_GENERATE || s->conn[i]->call[k].method == MSG_PREFILL || s->conn[i]->call[k].method == MSG_ABORT)
                return "a call is open on a control stream";
    return NULL;
}

static const char *rest(struct sim *s, uint32_t *node_out)
{
    *node_out = SIM_ROUTER;
    const char *why = sim_members_rest(s, node_out);
    for (uint32_t i = 0; why == NULL && i < s->node_count; i++) {
        *node_out = i;
        if (s->node[i].gone)
            continue;
        if (!s->node[i].alive)
            why = "it is not running";
        else
            why = sim_is_router(s, i) ? router_rest(s, i) : worker_rest(s->node[i].worker);
    }
    return why;
}

bool sim_is_idle(struct sim *s)
{
    uint32_t node;
    if (s->client->open != 0 || rest(s, &node) != NULL)
        return false;
    for (uint32_t i = s->router_count; i < s->node_count; i++)
        if (s->node[i].worker != NULL)
            recount(s, s->node[i].worker);
    return true;
}

void sim_check_idle(struct sim *s)
{
    uint32_t node;
    const char *why = s->client->open != 0 ? "requests have not ended" : rest(s, &node);
    if (why != NULL)
        sim_fail(s, "all clients are served and all faults healed, but at %s: %s", s->client->open != 0 ? "the clients" : s->node[node].id, why);
}
