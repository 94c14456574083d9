/* gone.h - notices clients that leave while their connection is suspended (libmicrohttpd does not look then): an epoll of our own over the
 * connections' descriptors, watched by the loop. EPOLLRDHUP, HUP or ERR means gone; half-closed clients are not supported.
 * A client whose host vanishes sends no FIN, and TCP itself would believe in it for a quarter of an hour. It is given up within
 * RTR_VANISHED_S: the kernel's keepalive while nothing is on its way to it, and a look at the retransmissions while something is. A client
 * that merely does not read still answers the probes of its closed window; it is given up when it has taken no byte for stall_us while bytes
 * waited for it (core/stall.h). Who is given up is cut with a reset: what the kernel has kept for it goes at once.
 * add and remove: any thread; on_gone, on_cut: loop thread. A descriptor is removed before libmicrohttpd closes it (completed callback), so that its
 * number is never watched for somebody else; a departure is told by request id, which is never reused.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_GONE_H
#define KVS_ROUTER_EDGE_GONE_H

#include "router/core/stall.h"
#include "sys/loop.h"

#define RTR_VANISHED_S 15

typedef enum rtr_cut { RTR_CUT_STALLED, RTR_CUT_VANISHED } rtr_cut; /* why a client was given up */

struct rtr_gone;
struct rtr_gone_config {
    struct kvs_loop *loop;
    uint64_t stall_us; /* not 0 */
    void *user;
    void (*on_gone)(void *user, uint64_t id); /* it left */
    void (*on_cut)(void *user, uint64_t id, rtr_cut why, uint32_t waiting_bytes); /* we gave it up; bytes: what it had not taken */
};
KVS_MUST_CHECK kvs_status rtr_gone_create(const struct rtr_gone_config *c, struct rtr_gone **out);
void rtr_gone_destroy(struct rtr_gone *g);
KVS_MUST_CHECK kvs_status rtr_gone_add(struct rtr_gone *g, int fd, uint64_t id);
void rtr_gone_remove(struct rtr_gone *g, int fd);

/* What TCP knows of a peer: retransmissions and window probes in a row that nothing answered, and how long ago it last confirmed anything. */
bool rtr_gone_vanished(uint32_t retransmits, uint32_t probes, uint32_t last_ack_ms);

#endif
