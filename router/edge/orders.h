/* orders.h - orders of operators: `cache flush` (workers are told to forget their cached prefixes, and the client hears how much each forgot),
 * `drain` and `role` (the client hears that the worker has taken it, or why not). Loop thread, but for the submission.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_ORDERS_H
#define KVS_ROUTER_EDGE_ORDERS_H

#include "net/rpc.h"
#include "router/edge/exchange.h"
#include "proto/msg.h"

struct rtr_dispatch;
struct rtr_order; /* one client's order, until all its workers have answered */

/* Any thread. MSG_CACHE_FLUSH (worker "": all that are connected), MSG_DRAIN, MSG_SET_ROLE (role: which). The answer goes to x when the worker
 * has given its own, at most 5 s later; x's reference is taken; on failure nothing was taken. */
KVS_MUST_CHECK kvs_status rtr_dispatch_order(struct rtr_dispatch *d, const char *worker, msg_method method, msg_role role, struct rtr_exchange *x);

/* A call of this connection ended; false: not an order. */
bool rtr_order_end(struct rtr_dispatch *d, net_conn conn, uint32_t stream, const struct msg_end *end);
void rtr_order_down(struct rtr_dispatch *d, net_conn conn); /* the connection is gone, and with it the cache */
void rtr_orders_destroy(struct rtr_dispatch *d);

#endif
