/* sim.c - one run: build the world, let the scenario play, heal, wait until everything is over, see that nothing is left.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/sim.h"

#include "sim/client.h"
#include "sim/env.h"
#include "sim/etcd.h"
#include "sim/members.h"
#include "sim/worker.h"

#include <stdlib.h>

#define EVENTS_MAX 20000000u
#define QUIET_US 5000000u /* after the last request: nothing may be left by then */

static struct sim *current;

void sim_print_current(void)
{
    if (current != NULL)
        sim_print_story(current);
}

uint64_t sim_current_seed(void)
{
    return current != NULL ? current->seed : 0;
}

const struct sim_report *sim_current_report(void)
{
    static const struct sim_report none;
    return current != NULL ? &current->report : &none;
}

static void name_nodes(struct sim *s)
{
    static const char *const name[4] = {"router", "prefill", "decode", "both"};
    static const msg_role role[4] = {MSG_ROLE_ROUTER, MSG_ROLE_PREFILL, MSG_ROLE_DECODE, MSG_ROLE_BOTH};
    s->router_count = s->scenario->workers[3];
    for (int k = 0; k < 4; k++)
        for (uint32_t i = 0; i < s->scenario->workers[(k + 3) % 4]; i++) {
            struct sim_node *n = &s->node[s->node_count++];
            n->role = role[k];
            if (k == 0 && s->router_count == 1)
                kvs_format(n->id, sizeof n->id, "router");
            else
                kvs_format(n->id, sizeof n->id, "%s-%u", name[k], i);
        }
}

static struct sim *create(const struct sim_scenario *scenario, uint64_t seed, bool echo)
{
    struct sim *s = calloc(1, sizeof *s);
    KVS_ASSERT(s != NULL);
    s->scenario = scenario;
    s->set = scenario->settings;
    s->seed = seed;
    s->rng.state = sim_mix(seed, 0x73696du);
    s->beat_rng.state = sim_mix(seed, 0x62656174u);
    s->heal_us = SIM_FOREVER;
    s->echo = echo;
    sim_notes_create(s);
    sim_env_begin(s);
    name_nodes(s);
    sim_client_create(s);
    sim_etcd_create(s);
    for (uint32_t i = 0; i < s->node_count; i++)
        sim_start_process(s, i);
    sim_start_commands(s);
    return s;
}

static void destroy(struct sim *s)
{
    for (uint32_t i = 0; i < s->node_count; i++) {
        if (s->node[i].worker != NULL)
            sim_worker_destroy(s->node[i].worker);
        sim_members_stop(s, i, false);
        sim_router_destroy(s, i);
    }
    sim_net_free(s);
    sim_client_free(s);
    sim_etcd_free(s);
    sim_etcd_port_free(s);
    sim_env_end(s);
    sim_drop_events(s);
    sim_notes_free(s);
    free(s->secret);
    free(s);
}

/* Requests come until the last `until` of the scenario; a scenario without heal is healed there. */
static uint64_t last_command(const struct sim_scenario *c)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < c->command_count; i++) {
        const struct sim_command *x = &c->command[i];
        uint64_t end = x->every_us == 0 ? x->at_us : x->until_us;
        if (end != SIM_FOREVER && end > last)
            last = end;
    }
    return last;
}

static bool holds(const struct sim_expect *e, const struct sim_report *r)
{
    uint64_t n = r->n[e->counter];
    return e->op == '=' ? n == e->number : e->op == '<' ? n < e->number : n > e->number;
}

static bool met(const struct sim_scenario *c, const struct sim_report *r, bool total, sim_counter *unmet_out, char *why, size_t cap)
{
    for (uint32_t i = 0; i < c->expect_count; i++) {
        const struct sim_expect *e = &c->expect[i];
        if (e->total != total || holds(e, r))
            continue;
        kvs_format(why, cap, "expected %s %c %llu, but it is %llu", sim_counter_name(e->counter), e->op, (unsigned long long)e->number,
                   (unsigned long long)r->n[e->counter]);
        *unmet_out = (sim_counter)e->counter;
        return false;
    }
    return true;
}

bool sim_totals_met(const struct sim_scenario *scenario, const struct sim_report *sum, char *why_out, size_t why_cap)
{
    sim_counter unmet;
    return met(scenario, sum, true, &unmet, why_out, why_cap);
}

static void play(struct sim *s)
{
    uint64_t end = last_command(s->scenario), quiet = 0;
    while (!s->failed) {
        if (!sim_next(s)) {
            sim_fail(s, "nothing is due any more, but the run is not over");
            break;
        }
        if (s->report.n[SIM_N_events] > EVENTS_MAX)
            sim_fail(s, "more than %u events: something goes round in circles", EVENTS_MAX);
        if (s->now_us <= end || s->client->open != 0)
            continue;
        if (quiet == 0)
            quiet = s->now_us + QUIET_US;
        if (sim_is_idle(s))
            break;
        if (s->now_us > quiet)
            sim_check_idle(s);
    }
    s->report.n[SIM_N_virtual_ms] = s->now_us / 1000;
}

bool sim_run(const struct sim_scenario *scenario, uint64_t seed, bool trace, struct sim_report *out, char *why_out, size_t why_cap)
{
    struct sim *s = create(scenario, seed, trace);
    current = s;
    play(s);
    bool failed = s->failed;
    if (failed)
        kvs_format(why_out, why_cap, "%s", s->why);
    uint64_t hash = s->report.trace_hash;
    if (failed && !trace)
        sim_print_story(s);
    for (uint32_t i = 0; i < s->node_count && !failed; i++) { /* their numbers are added up when they end */
        if (s->node[i].worker != NULL)
            sim_worker_destroy(s->node[i].worker);
        sim_router_destroy(s, i);
    }
    *out = s->report;
    out->trace_hash = hash;
    sim_counter unmet = SIM_COUNTER_COUNT;
    if (!failed)
        failed = !met(scenario, out, false, &unmet, why_out, why_cap);
    if (failed && !trace && unmet != SIM_COUNTER_COUNT) {
        s->about = (struct sim_about){.request = s->witness[unmet], .node = SIM_NOBODY};
        sim_print_story(s);
    }
    destroy(s);
    current = NULL;
    return !failed;
}
