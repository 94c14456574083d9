/* http_gate.h - stands before an HTTP server: accepts, waits until the head of a connection's first request is whole, and only then hands
 * the connection on, its bytes unread. So strangers who send half a head, or one byte now and then, never hold a place of the server's, and
 * what is no HTTP is refused in JSON. A head has NET_GATE_HEAD_US from the connection's beginning; NET_GATE_WAITING_MAX connections may wait
 * at once; when they do, one that has waited for NET_GATE_PATIENCE_US makes room, and until there is one, accepting pauses. One thread of
 * its own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_HTTP_GATE_H
#define KVS_NET_HTTP_GATE_H

#include "base/error.h"

#define NET_GATE_HEAD_US 10000000u
#define NET_GATE_WAITING_MAX 512
#define NET_GATE_PATIENCE_US 1000000u

struct sockaddr;
struct net_gate;

struct net_gate_config {
    int listen_fd;    /* non-blocking, listening; taken over when the start succeeds */
    uint64_t head_us; /* 0: NET_GATE_HEAD_US */
    void *user;
    /* On the gate's thread: may another connection be handed on? False: it is answered 503. */
    bool (*has_place)(void *user);
    /* Takes fd over, also when it fails. addr: the peer's. */
    void (*take)(void *user, int fd, const struct sockaddr *addr, uint32_t addr_bytes);
};
KVS_MUST_CHECK kvs_status net_gate_start(const struct net_gate_config *c, struct net_gate **out);
void net_gate_stop(struct net_gate *g); /* closes the listener and what waits; take is not called any more. NULL is fine */

struct net_gate_counters {
    uint64_t passed, refused, late, pushed_out, full;
    uint32_t waiting;
};
void net_gate_counters(struct net_gate *g, struct net_gate_counters *out); /* any thread */

#endif
