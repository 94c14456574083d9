/* team.h - a fixed group of threads that run one function together, with barriers and shared work counters.
 * The device thread is member 0 and calls eng_team_run; the others spin a moment after a run, then sleep until the
 * next. Nothing computed depends on who takes which ticket.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_TEAM_H
#define KVS_ENGINE_TEAM_H

#include "base/error.h"

#define ENG_THREADS_MAX 256u

struct eng_team;

/* One thread's place in the team during a run. */
struct eng_member {
    struct eng_team *team;
    uint32_t index;
    uint32_t phase; /* barriers passed in this run */
};
typedef void (*eng_team_fn)(void *arg, struct eng_member *self);

KVS_MUST_CHECK kvs_status eng_team_create(uint32_t threads, struct eng_team **out);
void eng_team_destroy(struct eng_team *t);
uint32_t eng_team_threads(const struct eng_team *t);
/* Runs fn on all members and returns when all are done. */
void eng_team_run(struct eng_team *t, eng_team_fn fn, void *arg);
void eng_team_barrier(struct eng_member *self);
/* The next piece of this phase's work: 0, 1, 2, ... over all members; starts afresh after each barrier. */
uint32_t eng_team_ticket(struct eng_member *self);

#endif
