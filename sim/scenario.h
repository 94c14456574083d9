/* scenario.h - a scenario file: settings, timed commands and what the run must have shown at its end.
 *
 *   set KEY VALUE                      a setting (scenario.c has the table); faults in permille
 *   workers prefill 2 decode 2 both 0 [routers 1]      50 workers at most, 4 routers; more than one router needs `set etcd 1`
 *   at 40ms ACTION                     once            every 50ms ACTION [from 0ms] [until 3s]    again and again, with jitter
 *   expect NAME OP NUMBER              of each run     total NAME OP NUMBER                       summed over all seeds of a run
 *
 *   ACTION: request [prompt A..B] [answer A..B] [choices A..B] [deadline A..B] [remote|local|auto] [leave N] [slow N] [stop N] [exact N]
 *                   [prefix N] [fetch N] [poison N]
 *           kill WHO | hang WHO for A..B | break WHO WHO | partition WHO WHO for A..B | oneway WHO WHO for A..B (the first hears nothing)
 *           kverror WHO | preempt WHO | drain WHO | slow WHO for A..B | role WHO prefill|decode|both
 *           set KEY VALUE | heal
 *           etcd kill for A..B | etcd wipe for A..B (killed, and back without its data) | etcd hang for A..B | etcd lag for A..B (watches)
 *           etcd leaderless for A..B | etcd compact | etcd cut WHO for A..B (they do not reach each other) | etcd expire WHO (its lease ends)
 *           etcd deaf WHO (its watches say nothing more, and it is not told)
 *   WHO: a node's name (router, router-1, prefill-0, decode-1, ...), `any` (worker), `prefill`, `decode` or `router` (one of these, drawn)
 * Times take us, ms or s. A # begins a comment. Anything that is not understood is an error with its line.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_SCENARIO_H
#define KVS_SIM_SCENARIO_H

#include "base/error.h"
#include "proto/msg.h"

#define SIM_WORKERS_MAX 50u
#define SIM_ROUTERS_MAX 4u
#define SIM_COMMANDS_MAX 64
#define SIM_EXPECTS_MAX 64
#define SIM_FOREVER UINT64_MAX

struct sim_settings {
    /* the model and the workers */
    uint32_t block_tokens, layers, group_layers, pages, context, chunk_tokens, reserve_tokens, batch, sequences, vocab;
    uint32_t kinds, window, snapshot_blocks; /* what the layers remember (device.c: arrangement), tokens seen through a window, sched.h */
    uint32_t tree_nodes, tree_ttl_us; /* prefix reuse; 0 nodes: off */
    uint32_t flush;                  /* permille of steps before which the cache is flushed */
    uint32_t prefixes, prefix_tokens, tenants; /* prompts share so many beginnings of so many tokens */
    uint32_t calls, prefill_calls, send_window, queue_wait_us, both_wait_us;
    /* the router */
    uint32_t requests_max, queue_max, worker_sequences, local_threshold, deadline_us, index_bytes;
    uint32_t restart_wait_us; /* how long requests wait for the last decode worker when it has crashed; 0: as usual */
    /* speed */
    uint32_t step_us, token_us, latency_us, kv_us;
    /* faults, permille unless they say otherwise */
    uint32_t kv_drop, kv_corrupt, kv_broken, kv_send_error, kv_double, kv_late, kv_stuck, kv_forge, doubled, numeric, preempt, grant_refused, cache_skip;
    uint32_t restart_us; /* a killed worker comes back after about so long; 0: never */
    uint32_t skew_us, slow_factor; /* clocks of processes differ by up to so much; how slow a slow worker is */
    uint32_t drained_back_us; /* the same for one that has drained and ended */
    uint32_t foreign; /* not 0: every third worker is of another numerics class */
    uint32_t etcd, lease_us;  /* discovery: by etcd, and its leases; 0: embedded */
};

struct sim_range {
    uint64_t low, high;
};

typedef enum sim_action {
    SIM_REQUEST,
    SIM_KILL,
    SIM_HANG,
    SIM_BREAK,
    SIM_PARTITION,
    SIM_KVERROR,
    SIM_PREEMPT,
    SIM_DRAIN,
    SIM_SLOW,
    SIM_ROLE,
    SIM_ONE_WAY,
    SIM_ETCD_KILL,
    SIM_ETCD_WIPE,
    SIM_ETCD_HANG,
    SIM_ETCD_LAG,
    SIM_ETCD_LEADERLESS,
    SIM_ETCD_COMPACT,
    SIM_ETCD_CUT,
    SIM_ETCD_EXPIRE,
    SIM_ETCD_DEAF,
    SIM_SET,
    SIM_HEAL
} sim_action;

struct sim_command {
    sim_action action;
    uint64_t at_us, every_us, until_us; /* every_us 0: once */
    char who[2][24];
    struct sim_range duration;
    uint32_t setting; /* SIM_SET: index into the table */
    uint32_t value;
    /* SIM_REQUEST */
    struct sim_range prompt, answer, choices, deadline;
    msg_placement placement;
    msg_role role; /* SIM_ROLE */
    uint32_t leave, slow, stop, exact, prefix, fetch, poison; /* permille of requests; exact: the prompt fills whole blocks; prefix: begins with a shared one */
};

struct sim_expect {
    uint32_t counter;
    char op; /* '=', '<', '>' */
    uint64_t number;
    bool total;
};

struct sim_scenario {
    struct sim_settings settings;
    uint32_t workers[4]; /* prefill, decode, both; routers */
    struct sim_command command[SIM_COMMANDS_MAX];
    uint32_t command_count;
    struct sim_expect expect[SIM_EXPECTS_MAX];
    uint32_t expect_count;
};

/* text: the whole file, NUL-terminated; it is not kept. */
KVS_MUST_CHECK kvs_status sim_scenario_parse(const char *text, struct sim_scenario *out, struct kvs_error *err);
void sim_setting_put(struct sim_settings *s, uint32_t index, uint32_t value);
void sim_faults_off(struct sim_settings *s);

#endif
