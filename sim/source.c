/* source.c - actions of the prefill machine, as prefill-worker/edge/source.c performs them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/worker.h"

#define ACTIONS 4 /* few at a time, so that the drain loop is run through */

static void act(struct sim_worker *w, const struct pfw_action *a)
{
    struct sim *s = w->s;
    switch (a->kind) {
    case PFW_ACT_SEND_PAGE:
        sim_port_send(w, a->send.peer, &a->send.header, sim_page(w, a->send.group, a->send.page), a->send.cookie,
                      &w->reads[a->send.group][a->send.page]);
        break;
    case PFW_ACT_SEND_LOGITS:
        sim_port_send(w, a->send.peer, &a->send.header, w->row[a->user].bytes, a->send.cookie, &w->row[a->user].readers);
        break;
    case PFW_ACT_DROP: break; /* a send is posted at once here: it is always too late */
    case PFW_ACT_PEER_CLOSE: sim_worker_close_peer(w, a->send.peer); break;
    case PFW_ACT_END:
        sim_note(s, w->node, "END of prefill for request %r: %s, %u messages", a->request, a->end.end.status, a->end.end.pages_sent);
        sim_rpc_end(s, w->node, a->end.conn, a->end.stream, &a->end.end);
        break;
    }
}

void sim_source_feed(struct sim_worker *w, const struct pfw_event *ev)
{
    struct pfw_action a[ACTIONS];
    size_t n;
    pfw_step(w->pfw, ev, sim_local(w->s, w->node));
    sim_worker_zero(w);
    while ((n = pfw_actions(w->pfw, a, ACTIONS)) != 0)
        for (size_t i = 0; i < n; i++)
            act(w, &a[i]);
}
