/* dispatch.h - the loop side of the router: control streams, membership, model objects, the core, and the answers being made.
 * Everything runs on the loop thread, except what says otherwise.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_DISPATCH_H
#define KVS_ROUTER_EDGE_DISPATCH_H

#include "router/core/router.h"
#include "router/edge/board.h"
#include "router/edge/exchange.h"
#include "router/edge/gone.h"
#include "router/edge/model.h"
#include "router/edge/params.h"
#include "sys/loop.h"

struct rtr_dispatch;

#define RTR_REQUESTS_HELP "Requests by how they ended."

struct rtr_dispatch_config {
    struct kvs_loop *loop;
    struct rtr_config core;
    const char *name;        /* this router's id */
    const char *control_url; /* to listen on */
    const char *discovery;   /* "embedded" or NULL: this router keeps the registry; or etcd://HOST:PORT[,HOST:PORT] */
    const char *cluster, *advertise, *etcd_user, *etcd_password; /* with etcd */
    const char *auth; /* the cluster's shared key; NULL or "": none */
    struct rtr_board *board; /* metrics and status for other threads */
    uint64_t client_stall_us;  /* a client that takes nothing for so long while something waits for it is cut; 0: not before its deadline */
    uint64_t head_after_us;    /* a stream without a token gets its head then; 0: 10 s */
    uint64_t comment_every_us; /* and a comment so often while nothing else is sent; 0: 2 s */
};
KVS_MUST_CHECK kvs_status rtr_dispatch_create(const struct rtr_dispatch_config *c, struct rtr_dispatch **out, char *url_out, size_t url_cap,
                                              struct kvs_error *err);
/* With etcd: becomes a member, once HTTP is served at http_url. */
KVS_MUST_CHECK kvs_status rtr_dispatch_announce(struct rtr_dispatch *d, const char *http_url, struct kvs_error *err);
void rtr_dispatch_destroy(struct rtr_dispatch *d);
/* No new requests; running ones go on, until rtr_dispatch_idle. */
void rtr_dispatch_drain(struct rtr_dispatch *d);
bool rtr_dispatch_idle(const struct rtr_dispatch *d);
/* No new requests; running ones end with KVS_SELF_STOPPING. */
void rtr_dispatch_stop(struct rtr_dispatch *d);

/* A request from an HTTP thread: params, model and ids move to the loop. */
struct rtr_submit {
    uint64_t id; /* from rtr_dispatch_next_id */
    struct rtr_dispatch *d;
    struct rtr_exchange *x; /* one reference, moves along */
    struct rtr_params params;
    struct rtr_model *model; /* one reference, moves along */
    struct mdl_ids ids;
    uint32_t max_tokens;
    uint64_t arrived_us;
    char trace[MSG_ID_MAX];
};
uint64_t rtr_dispatch_next_id(struct rtr_dispatch *d); /* any thread */
/* Any thread. On failure nothing was taken; KVS_SELF_STOPPING, KVS_BUSY_QUEUE. */
KVS_MUST_CHECK kvs_status rtr_dispatch_submit(struct rtr_dispatch *d, struct rtr_submit *s);
void rtr_submit_destroy(struct rtr_submit *s);
void rtr_dispatch_left(struct rtr_dispatch *d, uint64_t id);        /* any thread: the connection broke; unknown or ended ids are ignored */
void rtr_dispatch_reads_again(struct rtr_dispatch *d, uint64_t id); /* any thread: the backlog is low */
struct rtr_models *rtr_dispatch_models(struct rtr_dispatch *d);     /* any thread */
struct rtr_gone *rtr_dispatch_gone(struct rtr_dispatch *d);         /* any thread */
uint32_t rtr_dispatch_active(struct rtr_dispatch *d);               /* any thread: requests submitted and not yet ended */

#endif
