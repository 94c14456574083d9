/* worker.h - the worker daemon: one process, one model, one device, one or two roles. What the roles may use of it.
 * Threads: the loop thread owns everything here; the device thread computes; the transport thread moves pages; NNG and HTTP have theirs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_WORKER_H
#define KVS_WORKER_EDGE_WORKER_H

#include "sys/metrics.h"
#include "worker/core/fit.h"
#include "worker/core/sched.h"
#include "worker/edge/config.h"
#include "worker/edge/device.h"
#include "worker/edge/peers.h"
#include "worker/edge/role.h"

/* Whole life of a worker process with these roles (at most two): reads flags, loads, serves, returns the exit code. */
int wrk_main(int argc, char **argv, msg_role role, const struct wrk_role_ops *const *roles, size_t role_count);

/* --- for roles --- */
struct wrk_sched *wrk_worker_sched(struct wrk_worker *w);
struct wrk_device *wrk_worker_device(struct wrk_worker *w);
struct wrk_peers *wrk_worker_peers(struct wrk_worker *w);
struct net_rpc *wrk_worker_rpc(struct wrk_worker *w);
struct kvt_port *wrk_worker_port(struct wrk_worker *w);
struct kvs_metrics *wrk_worker_metrics(struct wrk_worker *w);
const struct wrk_speed *wrk_worker_speed(const struct wrk_worker *w);
void wrk_worker_link(struct wrk_worker *w, struct msg_peer_link *link); /* adds what KV from link->id takes, if that was measured */
const struct wrk_config *wrk_worker_config(const struct wrk_worker *w);
const struct msg_card *wrk_worker_card(const struct wrk_worker *w);
uint8_t *wrk_worker_page(struct wrk_worker *w, uint32_t group, uint32_t page); /* address of a KV page */
void wrk_worker_zero(struct wrk_worker *w); /* zeroes the pages that the scheduler gave out and copies heads of cached ones; before a core's actions are performed */

/* A metric counter that follows a running total. */
struct wrk_follow {
    struct kvs_counter *counter;
    uint64_t seen;
};
static inline void wrk_follow(struct wrk_follow *f, uint64_t total)
{
    if (total > f->seen)
        kvs_counter_add(f->counter, total - f->seen);
    f->seen = total;
}

#endif
