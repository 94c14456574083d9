/* pulse.c - heartbeats in virtual time: every process looks at the pulses of its connections by the daemons' own rule (net/core/pulse.h), ten
 * times a second of its own clock, and sends PINGs when it says so. What is injected is only what happens to processes and wires; who
 * suspects whom and who is given up, and when, follows from what was heard.
 * A process that was stopped has its look put aside with everything else; when it goes on it takes in what has arrived first, as the daemons do.
 * The world keeps its own record of what arrived, and holds the rule to the promises: nobody is suspected after less than 1 s of silence or
 * given up after less than 2, nor for an absence of one's own, nor when nothing has happened to the link; and no silence of 3 s goes unnoticed.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/net.h"

static void look(struct sim *s, struct sim_event *e);

static void look_later(struct sim *s, uint32_t node, uint64_t in_us)
{
    sim_post(s, s->now_us + in_us, &(struct sim_event){.run = look, .node = node, .life = s->node[node].life});
}

void sim_pulse_begin(struct sim *s, uint32_t node)
{
    s->node[node].looked_us = sim_local(s, node);
    s->node[node].back_us = 0;
    look_later(s, node, kvs_rng_below(&s->beat_rng, NET_PULSE_LOOK_US));
}

void sim_pulse_up(struct sim *s, struct sim_conn *c, uint32_t side)
{
    c->arrived_us[side] = s->now_us;
    net_pulse_start(&c->pulse[side], sim_local(s, c->node[side]));
}

bool sim_pulse_heard(struct sim *s, struct sim_conn *c, uint32_t side)
{
    c->arrived_us[side] = s->now_us;
    return net_pulse_heard(&c->pulse[side], sim_local(s, c->node[side]));
}

/* For how long this process has been there and has not heard anything of the other one. */
static uint64_t silence(const struct sim *s, const struct sim_conn *c, uint32_t side, uint64_t back_us)
{
    return s->now_us - (c->arrived_us[side] > back_us ? c->arrived_us[side] : back_us);
}

static void judge(struct sim *s, const struct sim_conn *c, uint32_t side, net_pulse_verdict v)
{
    const struct sim_node *n = &s->node[c->node[side]];
    const char *me = n->id, *other = s->node[c->node[!side]].id;
    uint64_t silent = silence(s, c, side, n->back_us), longest = silence(s, c, side, n->hung_us); /* an absence of about 1 s may be forgiven or not */
    unsigned ms = (unsigned)(silent / 1000);
    if (v.lost && silent <= SIM_DEAD_US)
        sim_fail(s, "%s gave up %s after a silence of %u ms", me, other, ms);
    else if (v.lost && sim_conn_calm(s, c))
        sim_fail(s, "%s gave up %s though nothing had happened to either of them or between them", me, other);
    else if (v.suspect && s->now_us - c->arrived_us[side] <= SIM_SUSPECT_US)
        sim_fail(s, "%s suspects %s after a silence of %u ms", me, other, ms);
    else if (!v.lost && longest > SIM_NOTICED_US)
        sim_fail(s, "%s has heard nothing from %s for %u ms and has not noticed", me, other, (unsigned)(longest / 1000));
}

static void look_at(struct sim *s, struct sim_conn *c, uint32_t side)
{
    uint32_t node = c->node[side];
    net_pulse_verdict v = net_pulse_look(&c->pulse[side], sim_local(s, node));
    judge(s, c, side, v);
    if (v.lost) {
        sim_note(s, node, "connection %u to %n is given up: nothing is heard of it", c->id, c->node[!side]);
        sim_count(s, SIM_N_silences, 1);
        c->kv_dead = true;
        sim_conn_hang_up(s, c, side);
    }
    if (v.ping)
        sim_conn_ping(s, c, side);
    if (v.suspect) {
        sim_count(s, SIM_N_suspicions, 1);
        sim_conn_suspect(s, c, side, true);
    }
}

static void look(struct sim *s, struct sim_event *e)
{
    uint32_t node = e->node;
    if (e->first_us != s->now_us) { /* it was stopped: first what has arrived meanwhile */
        look_later(s, node, 0);
        return;
    }
    uint64_t now = sim_local(s, node);
    bool away = net_pulse_we_were_away(&s->node[node].looked_us, now);
    for (uint32_t i = 0; i < s->conn_count; i++) {
        struct sim_conn *c = s->conn[i];
        if (c->node[0] != node && c->node[1] != node)
            continue;
        uint32_t side = sim_conn_side(c, node);
        if (!c->up[side] || c->over[side] || c->life[side] != s->node[node].life || c->given_up[side])
            continue;
        if (away)
            net_pulse_forgive(&c->pulse[side], now);
        look_at(s, c, side);
    }
    look_later(s, node, NET_PULSE_LOOK_US);
}
