/* role.h - what a role (prefill, decode) plugs into the worker daemon: reactions to what happens, as one op table. Every worker has both; what
 * the worker is at the time (its card's role) says which of them takes new work.
 * All calls are on the loop thread. A reaction feeds the role's core, zeroes fresh pages (wrk_worker_zero) and performs the core's actions
 * before it returns. Ops may be NULL when a role has no use for them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_ROLE_H
#define KVS_WORKER_EDGE_ROLE_H

#include "kvtransfer/port.h"
#include "net/rpc.h"
#include "proto/msg.h"

struct wrk_worker;

struct wrk_role_ops {
    msg_role role;
    uint32_t ship_rows; /* logits rows that the device keeps for this role */
    kvs_status (*create)(struct wrk_worker *w, void **self_out, struct kvs_error *err);
    void (*destroy)(void *self);
    /* Control streams. bool: true when it was this role's. */
    bool (*call)(void *self, net_conn conn, uint32_t stream, const struct msg_call *call, uint64_t deadline_us);
    bool (*cancel)(void *self, net_conn conn, uint32_t stream);
    bool (*ack)(void *self, net_conn conn, uint32_t stream, bool nack);
    bool (*end)(void *self, net_conn conn, uint32_t stream, const struct msg_end *end);
    bool (*pause)(void *self, net_conn conn, uint64_t request, bool resume);
    void (*conn_down)(void *self, net_conn conn);
    /* Transport. */
    void (*peer_up)(void *self, uint32_t peer, const char *id, const char *transport);
    void (*peer_down)(void *self, uint32_t peer);
    void (*peer_closed)(void *self, uint32_t peer);
    bool (*port_event)(void *self, const struct kvt_event *ev); /* SENT and GRANT */
    /* Device. */
    void (*layer)(void *self, uint64_t step, uint32_t layers);
    void (*step_done)(void *self);
    /* Time. */
    void (*tick)(void *self);
    uint64_t (*deadline_us)(void *self); /* 0: tick now; UINT64_MAX: never */
    void (*drain)(void *self);         /* takes nothing new from now on */
    void (*set_role)(void *self, msg_role role); /* what the worker is from now on; also told by create */
    uint32_t (*busy)(void *self);      /* calls that are not over */
    uint32_t (*kept)(void *self);      /* requests that went on elsewhere and whose KV is to be fetched here */
    void (*hand_back)(void *self);     /* ends them so that their callers go elsewhere */
    bool (*link)(void *self, struct msg_peer_link *link); /* what transfers from the peer link->id take; false: none of mine */
    void (*metrics)(void *self); /* brings the role's series up to date */
};

#endif
