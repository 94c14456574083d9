/* faults.c - the scenario's commands: requests, and what is done to processes and links.
 * After `heal` nothing is injected any more, everybody runs, and killed workers come back; requests go on.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/client.h"
#include "sim/etcd.h"
#include "sim/members.h"
#include "sim/net.h"
#include "sim/worker.h"

#include <string.h>

#define ABSENT_US 1200000u /* who was away for longer knows it for sure: a look is due every 0.1 s, and one that is late by 1 s tells */

static void command(struct sim *s, struct sim_event *e);

static void post_command(struct sim *s, uint32_t index, uint64_t at_us)
{
    sim_post(s, at_us, &(struct sim_event){.run = command, .node = SIM_NOBODY, .id = index});
}

void sim_start_commands(struct sim *s)
{
    for (uint32_t i = 0; i < s->scenario->command_count; i++)
        post_command(s, i, s->scenario->command[i].at_us);
}

/* --- who --- */

static bool matches(const struct sim *s, uint32_t node, const char *who)
{
    const struct sim_node *n = &s->node[node];
    if (strcmp(who, n->id) == 0)
        return true;
    if (sim_is_router(s, node))
        return strcmp(who, "router") == 0;
    bool prefills = n->card.role != MSG_ROLE_DECODE, decodes = n->card.role != MSG_ROLE_PREFILL;
    return strcmp(who, "any") == 0 || (strcmp(who, "prefill") == 0 && prefills) || (strcmp(who, "decode") == 0 && decodes);
}

/* A running node that fits, drawn from the seed; SIM_NOBODY: none. */
static uint32_t choose(struct sim *s, const char *who)
{
    uint32_t from = (uint32_t)sim_draw(s, 0, s->node_count - 1);
    for (uint32_t k = 0; k < s->node_count; k++) {
        uint32_t i = (from + k) % s->node_count;
        if (matches(s, i, who) && s->node[i].alive && !s->node[i].hung)
            return i;
    }
    return SIM_NOBODY;
}

static struct sim_conn *choose_conn(struct sim *s, const struct sim_command *c)
{
    if (s->conn_count == 0)
        return NULL;
    uint32_t from = (uint32_t)sim_draw(s, 0, s->conn_count - 1);
    for (uint32_t k = 0; k < s->conn_count; k++) {
        struct sim_conn *x = s->conn[(from + k) % s->conn_count];
        bool straight = matches(s, x->node[0], c->who[0]) && matches(s, x->node[1], c->who[1]);
        bool crossed = matches(s, x->node[1], c->who[0]) && matches(s, x->node[0], c->who[1]);
        if (!x->broken && (straight || crossed))
            return x;
    }
    return NULL;
}

/* --- processes --- */

void sim_start_process(struct sim *s, uint32_t node)
{
    struct sim_node *n = &s->node[node];
    KVS_ASSERT(!n->alive);
    n->alive = true;
    n->gone = false;
    n->life++;
    n->epoch = kvs_rng_next(&s->rng) | 1;
    n->skew_us = sim_draw(s, 0, s->set.skew_us);
    n->slow_until_us = 0;
    n->card = (struct msg_card){.role = n->role, .epoch = n->epoch, .protocol_min = MSG_PROTOCOL_MIN, .protocol_max = MSG_PROTOCOL_MAX,
                                .block_tokens = s->set.block_tokens, .context = s->set.context, .vocab = s->set.vocab};
    memcpy(n->card.id, n->id, sizeof n->card.id);
    kvs_format(n->card.control_url, sizeof n->card.control_url, "sim://%s", n->id);
    if (sim_is_router(s, node))
        sim_router_create(s, node);
    else
        sim_worker_create(s, node);
    sim_members_start(s, node);
    sim_pulse_begin(s, node);
    for (uint32_t i = 0; i < s->node_count; i++)
        if (i != node && s->node[i].alive)
            sim_dial_soon(s, i, node, 0, 30000);
}

static void restart(struct sim *s, struct sim_event *e)
{
    if (s->node[e->id].alive)
        return;
    sim_note(s, SIM_NOBODY, "%n starts again", e->id);
    sim_start_process(s, (uint32_t)e->id);
}

static void end_process(struct sim *s, uint32_t node)
{
    sim_net_killed(s, node);
    sim_members_stop(s, node, false);
    if (sim_is_router(s, node)) {
        sim_client_cut(s, node);
        sim_router_destroy(s, node);
    } else {
        sim_worker_destroy(s->node[node].worker);
    }
}

void sim_kill(struct sim *s, uint32_t node)
{
    struct sim_node *n = &s->node[node];
    sim_note(s, SIM_NOBODY, "%n is killed", node);
    n->alive = false;
    if (n->hung)
        sim_wake(s, node); /* what was put aside is dropped with the process */
    end_process(s, node);
    uint64_t back = s->set.restart_us;
    if (back != 0)
        sim_post(s, sim_in(s, back / 2, back * 2), &(struct sim_event){.run = restart, .node = SIM_NOBODY, .id = node});
}

void sim_exit(struct sim *s, uint32_t node)
{
    uint64_t back = s->set.drained_back_us;
    sim_note(s, SIM_NOBODY, "%n has drained and ends", node);
    sim_count(s, SIM_N_exits, 1);
    sim_members_stop(s, node, true);
    s->node[node].alive = false;
    s->node[node].gone = true;
    end_process(s, node);
    if (back != 0)
        sim_post(s, sim_in(s, back / 2, back * 2), &(struct sim_event){.run = restart, .node = SIM_NOBODY, .id = node});
}

static void poisoned(struct sim *s, struct sim_event *e)
{
    if (!s->node[e->id].alive || s->node[e->id].life != e->a)
        return;
    sim_fault(s, SIM_N_kills);
    sim_kill(s, (uint32_t)e->id);
}

/* A request that kills whoever takes it. */
void sim_poison(struct sim *s, uint32_t node)
{
    sim_post(s, sim_in(s, 100, 20000), &(struct sim_event){.run = poisoned, .node = SIM_NOBODY, .id = node, .a = s->node[node].life});
}

static void unhang(struct sim *s, uint32_t node)
{
    sim_note(s, SIM_NOBODY, "%n goes on", node);
    if (s->now_us - s->node[node].hung_us > ABSENT_US)
        s->node[node].back_us = s->now_us;
    s->node[node].hung_us = s->now_us;
    sim_wake(s, node);
}

static void hang_over(struct sim *s, struct sim_event *e)
{
    struct sim_node *n = &s->node[e->id];
    if (n->alive && n->hung && n->life == e->a && n->hung_us == e->b)
        unhang(s, (uint32_t)e->id);
}

static void hang(struct sim *s, uint32_t node, uint64_t for_us)
{
    struct sim_node *n = &s->node[node];
    sim_note(s, SIM_NOBODY, "%n is stopped for %u us", node, for_us);
    n->hung = true;
    n->hung_us = s->now_us;
    sim_post(s, s->now_us + for_us, &(struct sim_event){.run = hang_over, .node = SIM_NOBODY, .id = node, .a = n->life, .b = n->hung_us});
}

static void heal(struct sim *s)
{
    sim_note(s, SIM_NOBODY, "all faults are healed: %u so far", s->report.n[SIM_N_faults]);
    sim_faults_off(&s->set);
    s->set.restart_us = s->set.restart_us != 0 ? s->set.restart_us : 1000;
    s->heal_us = s->now_us;
    for (uint32_t i = 0; i < s->node_count; i++)
        s->node[i].slow_until_us = 0;
    sim_etcd_heal(s);
    for (uint32_t i = 0; i < s->node_count; i++) {
        struct sim_node *n = &s->node[i];
        if (n->alive && n->hung)
            unhang(s, i);
        else if (!n->alive && !n->gone)
            sim_post(s, sim_in(s, 0, 100000), &(struct sim_event){.run = restart, .node = SIM_NOBODY, .id = i});
        for (uint32_t k = i + 1; k < s->node_count; k++)
            s->pair[i][k].blocked_us = 0;
    }
}

/* --- commands --- */

static void pair_block(struct sim *s, const struct sim_conn *x, uint64_t for_us)
{
    uint32_t a = x->node[0] < x->node[1] ? x->node[0] : x->node[1], b = x->node[0] + x->node[1] - a;
    s->pair[a][b].blocked_us = s->now_us + for_us;
}

static void partition(struct sim *s, struct sim_conn *x, uint64_t for_us)
{
    sim_note(s, SIM_NOBODY, "%n and %n do not reach each other for %u us", x->node[0], x->node[1], for_us);
    pair_block(s, x, for_us);
    sim_conn_silence(s, x, for_us);
}

static void on_link(struct sim *s, const struct sim_command *c)
{
    struct sim_conn *x = choose_conn(s, c);
    if (x == NULL)
        return;
    if (c->action == SIM_BREAK) {
        sim_note(s, SIM_NOBODY, "connection %u between %n and %n breaks", x->id, x->node[0], x->node[1]);
        sim_fault(s, SIM_N_breaks);
        sim_conn_break(s, x);
        return;
    }
    if (c->action == SIM_ONE_WAY) {
        uint32_t deaf = matches(s, x->node[0], c->who[0]) ? x->node[0] : x->node[1];
        sim_note(s, SIM_NOBODY, "%n hears nothing from %n any more", deaf, x->node[0] == deaf ? x->node[1] : x->node[0]);
        sim_fault(s, SIM_N_one_ways);
        pair_block(s, x, sim_draw(s, c->duration.low, c->duration.high));
        sim_conn_one_way(s, x, deaf);
        return;
    }
    sim_fault(s, SIM_N_partitions);
    partition(s, x, sim_draw(s, c->duration.low, c->duration.high));
}

static void on_process(struct sim *s, const struct sim_command *c)
{
    uint32_t node = choose(s, c->who[0]);
    if (node == SIM_NOBODY || (sim_is_router(s, node) && c->action != SIM_KILL && c->action != SIM_HANG))
        return;
    struct sim_worker *w = s->node[node].worker;
    switch (c->action) {
    case SIM_KILL:
        sim_fault(s, SIM_N_kills);
        sim_kill(s, node);
        break;
    case SIM_HANG:
        sim_fault(s, SIM_N_hangs);
        hang(s, node, sim_draw(s, c->duration.low, c->duration.high));
        break;
    case SIM_KVERROR:
        sim_fault(s, SIM_N_kv_errors);
        sim_worker_port_error(w);
        break;
    case SIM_SLOW:
        sim_fault(s, SIM_N_slow_workers);
        s->node[node].slow_until_us = sim_in(s, c->duration.low, c->duration.high);
        sim_note(s, SIM_NOBODY, "%n is slow for %u us", node, s->node[node].slow_until_us - s->now_us);
        break;
    case SIM_PREEMPT:
        if (wrk_sched_preempt_newest(w->sched))
            sim_fault(s, SIM_N_forced_preemptions);
        sim_worker_turn(w);
        break;
    case SIM_DRAIN:
        sim_fault(s, SIM_N_drains);
        sim_note(s, SIM_NOBODY, "%n is told to drain", node);
        sim_orders_drain(w);
        break;
    case SIM_ROLE:
        sim_fault(s, SIM_N_roles);
        sim_orders_role(w, c->role);
        break;
    default: break;
    }
}

static void on_etcd(struct sim *s, const struct sim_command *c)
{
    uint64_t us = sim_draw(s, c->duration.low, c->duration.high);
    bool whom = c->action == SIM_ETCD_CUT || c->action == SIM_ETCD_EXPIRE || c->action == SIM_ETCD_DEAF;
    uint32_t node = whom ? choose(s, c->who[0]) : SIM_NOBODY;
    if (!s->set.etcd || (whom && node == SIM_NOBODY))
        return;
    sim_fault(s, SIM_N_etcd_faults);
    switch (c->action) {
    case SIM_ETCD_KILL: sim_etcd_kill(s, us, false); break;
    case SIM_ETCD_WIPE: sim_etcd_kill(s, us, true); break;
    case SIM_ETCD_HANG: sim_etcd_hang(s, us); break;
    case SIM_ETCD_LAG: sim_etcd_starve(s, us); break;
    case SIM_ETCD_LEADERLESS: sim_etcd_leaderless(s, us); break;
    case SIM_ETCD_COMPACT: sim_etcd_compact(s); break;
    case SIM_ETCD_CUT: sim_etcd_partition(s, node, us); break;
    case SIM_ETCD_DEAF: sim_etcd_deafen(s, node); break;
    default: sim_etcd_expire(s, node); break;
    }
}

static void command(struct sim *s, struct sim_event *e)
{
    const struct sim_command *c = &s->scenario->command[e->id];
    bool fault = c->action != SIM_REQUEST && c->action != SIM_HEAL && c->action != SIM_SET;
    if (s->now_us > c->until_us)
        return;
    if (c->every_us != 0)
        post_command(s, (uint32_t)e->id, sim_in(s, c->every_us / 2, c->every_us * 3 / 2) + 1);
    if (fault && s->heal_us != SIM_FOREVER)
        return;
    switch (c->action) {
    case SIM_REQUEST: sim_client_ask(s, c); break;
    case SIM_HEAL: heal(s); break;
    case SIM_SET: sim_setting_put(&s->set, c->setting, c->value); break;
    case SIM_BREAK:
    case SIM_ONE_WAY:
    case SIM_PARTITION: on_link(s, c); break;
    case SIM_ETCD_KILL:
    case SIM_ETCD_WIPE:
    case SIM_ETCD_HANG:
    case SIM_ETCD_LAG:
    case SIM_ETCD_LEADERLESS:
    case SIM_ETCD_COMPACT:
    case SIM_ETCD_CUT:
    case SIM_ETCD_EXPIRE:
    case SIM_ETCD_DEAF: on_etcd(s, c); break;
    default: on_process(s, c); break;
    }
}
