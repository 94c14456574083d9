/* faults.c - the scenario's commands: requests, and what is done to processes and links.
 * After `heal` nothing is injected any more, everybody runs, and killed workers come back; requests go on.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/client.h"
#include "sim/worker.h"

#include <string.h>

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
    if (node == SIM_ROUTER)
        return false;
    bool prefills = n->role != MSG_ROLE_DECODE, decodes = n->role != MSG_ROLE_PREFILL;
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
    n->life++;
    n->epoch = kvs_rng_next(&s->rng);
    n->card = (struct msg_card){.role = n->role, .epoch = n->epoch, .protocol_min = MSG_PROTOCOL_MIN, .protocol_max = MSG_PROTOCOL_MAX,
                                .block_tokens = s->set.block_tokens, .context = s->set.context, .vocab = s->set.vocab};
    memcpy(n->card.id, n->id, sizeof n->card.id);
    if (node != SIM_ROUTER)
        sim_worker_create(s, node);
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

void sim_kill(struct sim *s, uint32_t node)
{
    struct sim_node *n = &s->node[node];
    sim_note(s, SIM_NOBODY, "%n is killed", node);
    n->alive = false;
    if (n->hung)
        sim_wake(s, node); /* what was put aside is dropped with the process */
    sim_net_killed(s, node);
    sim_worker_destroy(n->worker);
    uint64_t back = s->set.restart_us;
    if (back != 0)
        sim_post(s, sim_in(s, back / 2, back * 2), &(struct sim_event){.run = restart, .node = SIM_NOBODY, .id = node});
}

static void hang_dead(struct sim *s, struct sim_event *e)
{
    struct sim_node *n = &s->node[e->id];
    if (!n->alive || !n->hung || n->life != e->a || n->hung_us != e->b)
        return;
    for (uint32_t i = 0; i < s->conn_count; i++) {
        struct sim_conn *c = s->conn[i];
        if ((c->node[0] == e->id || c->node[1] == e->id) && c->life[sim_conn_side(c, (uint32_t)e->id)] == n->life)
            sim_conn_timeout(s, c, (uint32_t)e->id);
    }
}

static void hang_suspect(struct sim *s, struct sim_event *e)
{
    struct sim_node *n = &s->node[e->id];
    if (!n->alive || !n->hung || n->life != e->a || n->hung_us != e->b)
        return;
    for (uint32_t i = 0; i < s->conn_count; i++)
        if (s->conn[i]->node[0] == e->id && s->conn[i]->node[1] == SIM_ROUTER && s->conn[i]->up[1] && !s->conn[i]->over[1])
            sim_router_handlers.suspect(s, SIM_ROUTER, s->conn[i]->id, true);
}

static void unhang(struct sim *s, uint32_t node)
{
    sim_note(s, SIM_NOBODY, "%n goes on", node);
    s->node[node].hung_us = s->now_us;
    sim_wake(s, node);
    for (uint32_t i = 0; i < s->conn_count; i++)
        if (s->conn[i]->node[0] == node && s->conn[i]->node[1] == SIM_ROUTER && s->conn[i]->up[1] && !s->conn[i]->over[1])
            sim_router_handlers.suspect(s, SIM_ROUTER, s->conn[i]->id, false);
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
    struct sim_event e = {.node = SIM_NOBODY, .id = node, .a = n->life, .b = n->hung_us};
    e.run = hang_suspect;
    sim_post(s, s->now_us + SIM_SUSPECT_US, &e);
    e.run = hang_dead;
    sim_post(s, s->now_us + SIM_DEAD_US, &e);
    e.run = hang_over;
    sim_post(s, s->now_us + for_us, &e);
}

static void heal(struct sim *s)
{
    sim_note(s, SIM_NOBODY, "all faults are healed: %u so far", s->report.n[SIM_N_faults]);
    sim_faults_off(&s->set);
    s->set.restart_us = s->set.restart_us != 0 ? s->set.restart_us : 1000;
    s->heal_us = s->now_us;
    for (uint32_t i = 0; i < s->node_count; i++) {
        struct sim_node *n = &s->node[i];
        if (n->alive && n->hung)
            unhang(s, i);
        else if (!n->alive)
            sim_post(s, sim_in(s, 0, 100000), &(struct sim_event){.run = restart, .node = SIM_NOBODY, .id = i});
        for (uint32_t k = i + 1; k < s->node_count; k++)
            s->pair[i][k].blocked_us = 0;
    }
}

/* --- commands --- */

static void partition(struct sim *s, struct sim_conn *x, uint64_t for_us)
{
    uint32_t a = x->node[0] < x->node[1] ? x->node[0] : x->node[1], b = x->node[0] + x->node[1] - a;
    sim_note(s, SIM_NOBODY, "%n and %n do not reach each other for %u us", a, b, for_us);
    s->pair[a][b].blocked_us = s->now_us + for_us;
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
    sim_fault(s, SIM_N_partitions);
    partition(s, x, sim_draw(s, c->duration.low, c->duration.high));
}

static void on_process(struct sim *s, const struct sim_command *c)
{
    uint32_t node = choose(s, c->who[0]);
    if (node == SIM_NOBODY || node == SIM_ROUTER)
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
    case SIM_PREEMPT:
        if (wrk_sched_preempt_newest(w->sched))
            sim_fault(s, SIM_N_forced_preemptions);
        sim_worker_turn(w);
        break;
    case SIM_DRAIN:
        sim_fault(s, SIM_N_drains);
        sim_note(s, node, "drains%u", 0);
        sim_worker_drain(w);
        break;
    default: break;
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
    case SIM_PARTITION: on_link(s, c); break;
    default: on_process(s, c); break;
    }
}
