/* world.h - the simulated world: one clock, one event queue, one random stream, the nodes, and what every part of the simulator may call.
 *
 *   main -> sim_run -> events in order of (time, posting) -> node's part (router.c, worker.c) -> the real cores -> actions -> new events
 *
 * An event belongs to a process (node and life) or to nobody. It is dropped when that process has died, and put aside while it is stopped
 * (hung). Nothing here knows wall clock or threads; the order of events is a function of scenario and seed alone, so that a seed replays.
 * A broken promise is told with sim_fail: the run ends, the last notes are printed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_WORLD_H
#define KVS_SIM_WORLD_H

#include "base/rng.h"
#include "cluster/core/registry.h"
#include "sim/report.h"
#include "sim/scenario.h"
#include "sim/sim.h"

#define SIM_NODES_MAX 9
#define SIM_ROUTER 0u
#define SIM_NOBODY UINT32_MAX
#define SIM_DEAD_US 2000000u    /* silence after which a peer is dead (design: heartbeats) */
#define SIM_SUSPECT_US 1000000u

struct sim;
struct sim_worker;
struct sim_router;
struct sim_event;
typedef void (*sim_run_fn)(struct sim *s, struct sim_event *e);

struct sim_event {
    uint64_t at_us, order;
    uint64_t first_us; /* when it was due before its process was stopped */
    sim_run_fn run;
    uint32_t node, life; /* SIM_NOBODY: no process */
    uint64_t id, a, b;
    void *ptr; /* owned by the event; the handler takes it by setting it to NULL */
};

struct sim_node {
    char id[MSG_ID_MAX];
    msg_role role;
    uint32_t life;
    uint64_t epoch;
    bool alive, hung;
    uint64_t hung_us; /* when it was stopped, and later when it went on */
    struct sim_event *held; /* events that wait for SIGCONT, in order */
    uint32_t held_count, held_cap;
    struct sim_worker *worker; /* NULL: router, or dead */
    struct msg_card card;
};

struct sim_pair { /* [i][j], i < j */
    bool wanted, dialing;
    uint64_t blocked_us; /* no connection can be made before */
};

struct sim_note {
    uint64_t at_us, arg[4];
    uint32_t node;
    const char *text;
};

struct sim {
    const struct sim_scenario *scenario;
    struct sim_settings set;
    uint64_t seed;
    struct kvs_rng rng;
    uint64_t now_us, order;
    struct sim_event *heap;
    size_t heap_count, heap_cap;

    struct sim_node node[SIM_NODES_MAX];
    uint32_t node_count;
    struct sim_pair pair[SIM_NODES_MAX][SIM_NODES_MAX];
    struct sim_conn **conn;
    uint32_t conn_count, conn_cap;
    uint64_t next_conn;

    struct sim_router *router;
    struct sim_members *members;
    struct sim_client *client;
    uint64_t *secret; /* xfers and nonces so far */
    uint32_t secret_count, secret_cap;
    uint64_t heal_us; /* SIM_FOREVER: not yet */

    struct sim_report report;
    bool failed;
    char why[512];
    struct sim_note *notes; /* ring */
    uint32_t note_next;
    bool echo; /* --trace: print every note as it comes */
};

/* --- kernel.c --- */
void sim_post(struct sim *s, uint64_t at_us, const struct sim_event *e); /* e->at_us and order are set here */
bool sim_next(struct sim *s);                                           /* runs the next event; false: none left */
void sim_wake(struct sim *s, uint32_t node);                            /* SIGCONT: what was put aside is due now */
void sim_drop_events(struct sim *s);
uint64_t sim_draw(struct sim *s, uint64_t low, uint64_t high); /* low..high, both included */
bool sim_chance(struct sim *s, uint32_t permille);
uint64_t sim_in(struct sim *s, uint64_t low_us, uint64_t high_us); /* a moment from now */
uint64_t sim_mix(uint64_t a, uint64_t b);
void sim_count(struct sim *s, sim_counter c, uint64_t n);
void sim_fault(struct sim *s, sim_counter kind); /* counts it and `faults` */
void sim_fail(struct sim *s, const char *fmt, ...) KVS_PRINTF(2, 3);
/* One line of the trace. In text each % followed by u or x takes the next number; n marks a node's number, s a kvs_status. */
void sim_note_at(struct sim *s, uint32_t node, const char *text, const uint64_t arg[4]);
#define sim_note(s, node, text, ...) sim_note_at(s, node, text, (const uint64_t[4]){__VA_ARGS__})
void sim_print_notes(const struct sim *s);

/* --- faults.c --- */
void sim_start_commands(struct sim *s);
void sim_start_process(struct sim *s, uint32_t node);
void sim_kill(struct sim *s, uint32_t node);

/* --- check.c --- */
void sim_check_event(struct sim *s, const struct sim_event *e);
void sim_check_idle(struct sim *s); /* everything healed and over: nothing may be left anywhere */
bool sim_is_idle(struct sim *s);

#endif
