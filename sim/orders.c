/* orders.c - a worker is told to go or to be another, as worker/edge/orders.c does it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/members.h"
#include "sim/worker.h"

#define DRAIN_US 30000000u
#define HAND_BACK_US 2000000u
#define FETCH_US 30000000u

static bool decodes(msg_role role)
{
    return role == MSG_ROLE_DECODE || role == MSG_ROLE_BOTH;
}

static void announce(struct sim_worker *w)
{
    sim_members_update(w->s, w->node);
    sim_serve_report(w);
    sim_worker_turn(w);
}

/* Also what a new process begins with. */
void sim_orders_tell_role(struct sim_worker *w)
{
    msg_role role = w->s->node[w->node].card.role;
    uint64_t wait_us = role == MSG_ROLE_BOTH ? w->s->set.both_wait_us : w->s->set.queue_wait_us;
    sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_ROLE, .role = {.prefills = role != MSG_ROLE_DECODE, .queue_wait_us = wait_us}});
    sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_ROLE, .role = {.decodes = decodes(role)}});
}

void sim_orders_drain(struct sim_worker *w)
{
    if (w->draining)
        return;
    w->draining = true;
    w->drain_until_us = w->s->now_us + DRAIN_US;
    sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_DRAIN});
    sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_DRAIN});
    w->s->node[w->node].card.draining = true;
    announce(w);
}

void sim_orders_role(struct sim_worker *w, msg_role role)
{
    struct msg_card *card = &w->s->node[w->node].card;
    if (w->draining || role == card->role)
        return;
    sim_note(w->s, SIM_NOBODY, "%n becomes a worker of role %u", w->node, role);
    w->yield_until_us = decodes(role) ? 0 : decodes(card->role) ? w->s->now_us + DRAIN_US : w->yield_until_us;
    card->role = role;
    sim_orders_tell_role(w);
    announce(w);
}

/* True: it has drained and ends. */
bool sim_orders_watch(struct sim_worker *w)
{
    uint64_t now = w->s->now_us;
    struct dcw_stats d = dcw_stats(w->dcw);
    uint32_t calls = pfw_stats(w->pfw).queued + pfw_stats(w->pfw).running + d.calls;
    bool back = w->yield_until_us != 0 && now >= w->yield_until_us;
    w->quiet_reports = calls != 0 || d.kept != 0 ? 0 : w->quiet_reports + 1;
    if (back || (w->draining && calls != 0 && now >= w->drain_until_us)) {
        sim_note(w->s, w->node, "hands %u calls back", calls);
        sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_HAND_BACK});
        w->yield_until_us = 0;
    }
    return w->draining && (w->quiet_reports >= 2 || now >= w->drain_until_us + HAND_BACK_US + (d.kept != 0 ? FETCH_US : 0));
}
