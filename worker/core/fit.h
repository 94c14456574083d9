/* fit.h - what steps and transfers take, fitted online to those that were seen: seconds = c0 x0 + c1 x1 + c2 x2, no c below zero. Pure.
 * Least squares of the relative error, so that a step of 5 ms counts as much as one of half a second, and one that stood still (a stopped
 * process, a swapped machine) hardly counts. Older samples count less: after some hundreds of new ones they are forgotten, and with them what a
 * machine did before its load changed. What the samples cannot tell apart (all prompts of one size) goes to c1, the cost of each, rather than to
 * c0, the cost of beginning.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_FIT_H
#define KVS_WORKER_CORE_FIT_H

#include "proto/msg.h"

#include "worker/core/sched.h"

#define WRK_FIT_TERMS 3u

struct wrk_fit {
    double xx[WRK_FIT_TERMS][WRK_FIT_TERMS], xt[WRK_FIT_TERMS]; /* weighted sums */
    uint32_t samples;
};

/* Zeros are an empty fit. A sample with seconds that are not above zero, or terms that are not finite and at least zero, is left out. */
void wrk_fit_add(struct wrk_fit *f, const double x[WRK_FIT_TERMS], double seconds);
/* false: no samples. */
bool wrk_fit_solve(const struct wrk_fit *f, double c_out[WRK_FIT_TERMS]);

/* A worker's steps: those of running sequences alone, and those with prompt chunks (less what the running ones in them take). */
struct wrk_speed {
    struct wrk_fit prefill, step;
};
void wrk_speed_add(struct wrk_speed *s, const struct wrk_step *step, double seconds);
void wrk_speed_tell(const struct wrk_speed *s, struct msg_speed *out);

/* A transfer that nothing was computed under. */
void wrk_link_add(struct wrk_fit *f, uint64_t bytes, double seconds);
void wrk_link_tell(const struct wrk_fit *f, struct msg_peer_link *out);

#endif
