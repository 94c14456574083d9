/* peers.h - links between this worker and the others: who may pair with us, who dials, which lane, and when a peer is eligible.
 * Edge, loop thread. A slot is one connection's life: it keeps its number until the transport has closed that peer, so that a reconnect
 * of the same worker takes a new slot while the old one is still fenced.
 *
 *   free -> connected -> (LINK verdicts) -> opening -> (LINK addresses) -> connecting -> up -> closing -> free
 *
 * Of two workers the one with the bytewise smaller id dials and drives both LINK exchanges (docs/PROTOCOL.md).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_PEERS_H
#define KVS_WORKER_EDGE_PEERS_H

#include "kvtransfer/port.h"
#include "net/rpc.h"
#include "proto/msg.h"
#include "sys/loop.h"

#define WRK_PEERS_MAX 256
#define WRK_PEER_NONE UINT32_MAX

typedef enum wrk_transport { WRK_TRANSPORT_AUTO, WRK_TRANSPORT_SHM, WRK_TRANSPORT_TCP } wrk_transport;

struct wrk_peers;

struct wrk_peers_events {
    void *user;
    void (*up)(void *user, uint32_t peer, const char *id, uint64_t epoch, const char *transport);
    void (*down)(void *user, uint32_t peer);   /* no more use of this peer; pages with posted receives are still fenced */
    void (*closed)(void *user, uint32_t peer); /* after down: nothing can write on its behalf any more */
};

KVS_MUST_CHECK kvs_status wrk_peers_create(struct kvs_loop *loop, struct net_rpc *rpc, struct kvt_port *port, const struct msg_card *self,
                                           const struct msg_hello *hello, wrk_transport transport, const char *router_url, const struct wrk_peers_events *ev,
                                           struct wrk_peers **out);
void wrk_peers_destroy(struct wrk_peers *p);

void wrk_peers_member(struct wrk_peers *p, const struct msg_member *m);
/* Whether the hello's sender may talk to us as a worker; err names the field that differs. */
KVS_MUST_CHECK kvs_status wrk_peers_check(const struct wrk_peers *p, const struct msg_hello *hello, struct kvs_error *err);
void wrk_peers_conn_up(struct wrk_peers *p, net_conn conn, const struct msg_hello *hello, bool we_dialed);
bool wrk_peers_conn_down(struct wrk_peers *p, net_conn conn); /* true: it was a worker's */
/* LINK calls and their answers; true: was ours. */
bool wrk_peers_call(struct wrk_peers *p, net_conn conn, uint32_t stream, const struct msg_call *call);
bool wrk_peers_item(struct wrk_peers *p, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n);
bool wrk_peers_end(struct wrk_peers *p, net_conn conn, uint32_t stream, const struct msg_end *end);
/* Gives the link up; down and closed follow, and it is made anew. A peer that is not up: nothing. */
void wrk_peers_close(struct wrk_peers *p, uint32_t peer, const char *why);
/* ADDRESS, UP, ERROR and CLOSED events of the port. */
void wrk_peers_port_event(struct wrk_peers *p, const struct kvt_event *ev);

net_conn wrk_peers_conn(const struct wrk_peers *p, uint32_t peer);        /* 0 when not up */
bool wrk_peers_is_peer(struct wrk_peers *p, net_conn conn); /* linked or not */
uint32_t wrk_peers_by_conn(const struct wrk_peers *p, net_conn conn);     /* WRK_PEER_NONE */
uint32_t wrk_peers_links(const struct wrk_peers *p, struct msg_peer_link *out, uint32_t cap); /* those that are up */

#endif
