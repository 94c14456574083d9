/* cost.h - what a placement takes, in seconds, from coefficients that workers have fitted to their own steps and links. Pure arithmetic.
 *   prefill of n tokens behind a context of k, in chunks of c:  steps * (fixed + what running sequences add) + n * token + pairs * pair
 *     with steps = n / c rounded up, pairs = n * k + n * (n + 1) / 2 (positions that the new tokens attend to)
 *   step of running sequences:                                  fixed + sequences * sequence + contexts * context
 *   transfer of b bytes:                                        latency + b * byte
 *   time to first token = queue + fetch + prefill + exposed transfer
 * What is not measured yet is taken from measured workers and links of the model, else from the defaults here: slow, so that what is measured
 * looks no worse than what is not, and the first requests measure the rest.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_COST_H
#define KVS_ROUTER_CORE_COST_H

#include "base/error.h"
#include "proto/msg.h"

#define RTR_COST_CHUNK 128u /* prompt tokens a step where a worker does not say */

struct rtr_cost { /* seconds */
    double queue_s, fetch_s, prefill_s, exposed_s;
    double ttft_s; /* the sum of these */
    double step_s; /* a step of its decode worker once it runs there */
};
struct rtr_link_cost {
    double latency_s, byte_s;
};

/* One measurement says little (the first one of a worker or link is a slow one), and what was measured long before the others is measured no
 * more because it looked slow: it would stay aside for good. So each figure counts by its trust, and for the rest as is usual in its model. */
struct rtr_measured {
    uint32_t samples;
    uint64_t at_us; /* when they last became more */
};

void rtr_cost_note(struct rtr_measured *m, uint32_t samples, uint64_t now_us);
/* 0: not measured; 1: often enough, and not long before newest_us, the latest measurement of its kind. */
double rtr_cost_trust(const struct rtr_measured *m, uint64_t newest_us);

/* Takes what a worker told: numbers that are not finite, negative or beyond reason make the part count as not measured. */
void rtr_cost_take_speed(const struct msg_speed *told, struct msg_speed *out);
bool rtr_cost_take_link(const struct msg_peer_link *told, struct rtr_link_cost *out); /* false: not measured; out is the default */
void rtr_cost_default_speed(struct msg_speed *out);

double rtr_cost_step_s(const struct msg_speed *s, double sequences, double contexts);
/* running, contexts: sequences that write there meanwhile, and the sum of their contexts. */
double rtr_cost_prefill_s(const struct msg_speed *s, uint32_t chunk, double tokens, double context, double running, double contexts);
double rtr_cost_link_s(const struct rtr_link_cost *l, double bytes);
/* Pages leave while later chunks are computed: what shows is the last chunk's, or what the link could not carry meanwhile. */
double rtr_cost_exposed_s(const struct rtr_link_cost *l, double bytes, double last_bytes, double prefill_s);
void rtr_cost_sum(struct rtr_cost *c);

#endif
