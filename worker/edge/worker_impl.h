/* worker_impl.h - inside of the worker daemon: its one struct, and calls of the roles' ops. Private to edge/{worker,orders}.c. Loop thread only,
 * but for the atomics.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_WORKER_IMPL_H
#define KVS_WORKER_EDGE_WORKER_IMPL_H

#include "cluster/discovery.h"
#include "net/ops_http.h"
#include "worker/edge/load.h"
#include "worker/edge/serve.h"
#include "worker/edge/worker.h"

#include <stdatomic.h>

#define WRK_ROLES_MAX 2

struct wrk_worker {
    struct wrk_config config;
    struct wrk_loaded loaded;
    struct msg_hello hello;
    struct kvs_loop *loop;
    struct kvs_metrics *metrics;
    struct wrk_sched *sched;
    struct wrk_device *device;
    struct kvt_port *port;
    struct kvt_region region;
    struct eng_kv kv;
    struct net_rpc *rpc;
    struct net_ops *ops;
    struct wrk_peers *peers;
    struct wrk_serve *serve;
    struct cls_discovery *discovery;
    struct kvs_timer *wake_timer, *report_timer;
    const struct wrk_role_ops *role[WRK_ROLES_MAX];
    void *self[WRK_ROLES_MAX];
    size_t role_count;
    bool etcd;       /* discovery by etcd: routers dial us */
    net_conn router; /* the connection that embedded discovery runs on */
    struct wrk_speed speed;
    uint64_t decoded; /* decode tokens when the last step was started */
    bool stopping;
    bool joined;      /* the first view of the cluster is complete */
    char misfit[256]; /* why we do not fit into it; "": we do */
    uint64_t drain_until_us;
    uint64_t yield_until_us; /* not 0: it decodes no more, and what still runs has until then to move or to end */
    uint32_t quiet_reports; /* in a row, while draining */
    atomic_bool device_posted, port_posted; /* a wake-up is on its way to the loop */
    atomic_bool registered, draining;       /* for /health/ready */
    struct kvs_gauge *pages[KVC_GROUPS_MAX][4];
    struct wrk_follow prefill_tokens, decode_tokens, steps, chunks, preemptions, cached_tokens, evicted_blocks, silent_watches;
    struct kvs_gauge *widest, *discovery_up;
    struct kvs_gauge *running, *waiting;
    struct kvs_gauge *build_info; /* of the present role */
};

/* Calls op of the roles in order until one says true. */
#define ANY_ROLE(w, op, ...)                                                                                                       \
    for (size_t i_ = 0; i_ < (w)->role_count; i_++)                                                                                \
        if ((w)->role[i_]->op != NULL && (w)->role[i_]->op((w)->self[i_], __VA_ARGS__))                                            \
            return;
#define EACH_ROLE(w, op, ...)                                                                                                      \
    for (size_t i_ = 0; i_ < (w)->role_count; i_++)                                                                                \
        if ((w)->role[i_]->op != NULL)                                                                                             \
            (w)->role[i_]->op(__VA_ARGS__);

/* orders.c: a worker is told to go, or to be another. */
void wrk_orders_drain(struct wrk_worker *w);
/* DRAIN and ROLE; true: was one of them. Only routers may give orders. */
bool wrk_orders_call(struct wrk_worker *w, net_conn conn, uint32_t stream, const struct msg_call *call);
/* Once a load report; true: drained, nothing is left to do here. */
bool wrk_orders_watch(struct wrk_worker *w, uint64_t now_us);
/* The series that names version, instruction set and role. */
void wrk_orders_build_info(struct wrk_worker *w);

#endif
