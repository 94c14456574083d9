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

#define SIM_NODES_MAX 56 /* 50 workers and some routers */
#define SIM_ROUTER 0u /* routers come first; with embedded discovery there is this one */
#define SIM_NOBODY UINT32_MAX
/* What is promised of heartbeats, against which net/core/pulse.h is held: silence after which a peer may be suspected, may be given up, and
 * must have been given up. */
#define SIM_SUSPECT_US 1000000u
#define SIM_DEAD_US 2000000u
#define SIM_NOTICED_US 3000000u

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
    uint64_t epoch, skew_us; /* its monotonic clock is so far ahead of the world's */
    bool alive, hung;
    uint64_t hung_us; /* when it was stopped, and later when it went on */
    uint64_t looked_us, back_us; /* at its pulses, by its own clock; when it went on after an absence that its peers are forgiven */
    struct sim_event *held; /* events that wait for SIGCONT, in order */
    uint32_t held_count, held_cap;
    uint64_t slow_until_us; /* its steps take a multiple until then */
    struct sim_worker *worker; /* NULL: router, or dead */
    struct sim_router *router; /* NULL: worker, or dead */
    struct sim_members *members; /* its discovery; NULL: dead */
    struct sim_digests *digests; /* with etcd */
    bool gone;                   /* has drained and ended: stays away */
    bool foreign;                /* of another numerics class than most */
    struct msg_card card;
};

struct sim_pair { /* [i][j], i < j */
    bool dialing;
    uint64_t blocked_us; /* no connection can be made before */
};

/* What the event at hand is about; a failure tells the story of it (trace.c). node SIM_NOBODY: no page. */
struct sim_about {
    uint64_t request, page;
    uint32_t node;
};
#define SIM_PAGE(group, page) ((uint64_t)(group) << 32 | (page))

struct sim_note {
    uint64_t at_us, arg[4];
    uint32_t node;
    const char *text;
};

struct sim {
    const struct sim_scenario *scenario;
    struct sim_settings set;
    uint64_t seed;
    struct kvs_rng rng, beat_rng; /* heartbeats have their own: they are everywhere, and leave what else is drawn as it is */
    uint64_t now_us, order;
    struct sim_event *heap;
    size_t heap_count, heap_cap;

    struct sim_node node[SIM_NODES_MAX];
    uint32_t node_count, router_count;
    struct sim_pair pair[SIM_NODES_MAX][SIM_NODES_MAX];
    struct sim_conn **conn;
    uint32_t conn_count, conn_cap;
    struct sim_conn **conn_by_id; /* NULL: over */
    uint64_t next_conn, conn_by_id_cap;

    struct kvs_timer **timer; /* by number (env.c); NULL: destroyed */
    uint32_t timer_count, timer_cap;
    struct sim_etcd *etcd;
    struct net_etcd **etcd_client; /* by number (etcd_port.c) */
    uint32_t etcd_client_count, etcd_client_cap;
    struct sim_client *client;
    uint64_t *secret; /* xfers and nonces so far */
    uint32_t secret_count, secret_cap;
    uint64_t heal_us; /* SIM_FOREVER: not yet */

    struct sim_report report;
    bool failed;
    char why[512];
    struct sim_about about;
    uint64_t witness[SIM_COUNTER_COUNT]; /* the last request that a counter of ends has counted: whose story an unmet expectation tells */
    struct sim_note *notes; /* ring */
    uint32_t note_next;
    bool echo; /* --trace: print every note as it comes */
};

static inline bool sim_is_router(const struct sim *s, uint32_t node)
{
    return node < s->router_count;
}

/* Between a process' own clock and the world's: no two processes may compare theirs. */
static inline uint64_t sim_local(const struct sim *s, uint32_t node)
{
    return s->now_us + s->node[node].skew_us;
}

static inline uint64_t sim_world_us(const struct sim *s, uint32_t node, uint64_t local_us)
{
    return local_us == SIM_FOREVER ? SIM_FOREVER : local_us > s->node[node].skew_us ? local_us - s->node[node].skew_us : 0;
}

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

/* --- trace.c --- */
void sim_notes_create(struct sim *s);
void sim_notes_free(struct sim *s);
/* One line of the trace. In text each % and a letter takes the next number: u, x a number, n a node, s a kvs_status, and, what stories are
 * told by: r a request, t a transfer, g a page (SIM_PAGE). */
void sim_note_at(struct sim *s, uint32_t node, const char *text, const uint64_t arg[4]);
#define sim_note(s, node, text, ...) sim_note_at(s, node, text, (const uint64_t[4]){__VA_ARGS__})
void sim_about_request(struct sim *s, uint64_t request);
void sim_about_page(struct sim *s, uint32_t node, uint32_t group, uint32_t page);
void sim_print_story(const struct sim *s);

/* --- faults.c --- */
void sim_start_commands(struct sim *s);
void sim_start_process(struct sim *s, uint32_t node);
void sim_kill(struct sim *s, uint32_t node);
void sim_poison(struct sim *s, uint32_t node);
void sim_exit(struct sim *s, uint32_t node); /* it has drained */

/* --- check.c --- */
void sim_check_event(struct sim *s, const struct sim_event *e);
void sim_check_idle(struct sim *s); /* everything healed and over: nothing may be left anywhere */
bool sim_is_idle(struct sim *s);

#endif
