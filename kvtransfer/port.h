/* port.h - a worker's KV transport: one thread that owns UCX (or the loopback) for all peers.
 * The loop thread gives commands, which never block, and reads events from a bounded ring after being woken through config.wake.
 *
 *   peer: open -> (ADDRESS) -> connect(remote address) -> UP (our AM ping arrived there and theirs here) -> close -> CLOSED
 *
 * Each peer has its own UCX context and worker. close = forced close, progress for up to 0.1 s, destroy; after CLOSED nothing can
 * write into our pages on that peer's behalf: that is what lifts a fence. Only UCP_FEATURE_AM: nobody writes into our memory unasked.
 * Lanes: NEAR = cma,tcp,self (same host, process_vm_readv proven both ways before connecting), TCP = tcp only. The lane is agreed by
 * the two loops (HELLO probe), given to open, asserted after connect, and reported in events and metrics.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVTRANSFER_PORT_H
#define KVS_KVTRANSFER_PORT_H

#include "kvtransfer/core/sink.h"
#include "kvtransfer/core/wire.h"

#define KVT_ADDRESS_MAX 1024

typedef enum kvt_lane { KVT_LANE_TCP, KVT_LANE_NEAR, KVT_LANE_LOOPBACK } kvt_lane;

struct kvt_port;

struct kvt_port_config {
    uint64_t epoch;           /* ours: sink_epoch of the grants we give */
    const char *id;
    bool loopback;            /* in-process transport for tests: ports find each other by id */
    uint32_t window;          /* messages in flight per peer, 4..16; 0: 8 */
    void (*wake)(void *user); /* any thread: events are waiting */
    void *wake_user;
};
/* Sets the UCX environment that we depend on; call first thing in main, before any thread and before UCX is touched
 * (UCX_ERROR_SIGNALS is read when the library loads: re-executes the program once when it must). */
void kvt_prepare_process(int argc, char **argv);

KVS_MUST_CHECK kvs_status kvt_port_create(const struct kvt_port_config *c, struct kvt_port **out, struct kvs_error *err);
void kvt_port_destroy(struct kvt_port *p); /* closes all peers, joins the thread */

/* KV memory that UCX should know (registered where registration is dear). region.base is 2 MiB aligned, zero-filled. */
struct kvt_region {
    uint8_t *base;
    uint64_t bytes;
    void *handle;
};
KVS_MUST_CHECK kvs_status kvt_region_create(struct kvt_port *p, uint64_t bytes, struct kvt_region *out);
void kvt_region_destroy(struct kvt_port *p, struct kvt_region *r);

/* Same-host probe (HELLO): a word of ours that the other side tries to read with process_vm_readv. */
struct kvt_probe {
    uint8_t boot_id[16];
    uint64_t pid_namespace; /* inode */
    uint32_t uid, pid;
    uint64_t address, value;
};
void kvt_probe_self(struct kvt_probe *out);
bool kvt_probe_try(const struct kvt_probe *peer); /* true: their word was read */

/* Commands (loop thread). peer: the caller's small number (< 256), reusable after CLOSED. Only kvt_send and kvt_grant can answer
 * KVS_BUSY_QUEUE (KVT_SENDS_MAX messages or KVT_GRANTS_MAX grants not yet ended): the rings hold the rest by construction, and no event
 * is ever dropped. A command that comes too late (unknown xfer, peer closing) is no error: its object ends with KVS_PEER_LOST.
 * Messages may be sent, and grants given, before UP: they wait. */
#define KVT_SENDS_MAX 4096
#define KVT_GRANTS_MAX 1024
KVS_MUST_CHECK kvs_status kvt_peer_open(struct kvt_port *p, uint32_t peer, kvt_lane lane);
KVS_MUST_CHECK kvs_status kvt_peer_connect(struct kvt_port *p, uint32_t peer, uint64_t remote_epoch, const void *address, size_t n);
KVS_MUST_CHECK kvs_status kvt_peer_close(struct kvt_port *p, uint32_t peer);
/* Takes the sink: messages that it accepts land in its wants' dest. Ends with one KVT_EV_GRANT event, after which the port has no
 * reference left. The sink itself is handed back in that event. */
KVS_MUST_CHECK kvs_status kvt_grant(struct kvt_port *p, uint32_t peer, struct kvt_sink *sink);
KVS_MUST_CHECK kvs_status kvt_grant_end(struct kvt_port *p, uint64_t xfer, kvs_status status, uint32_t pages_sent); /* END arrived */
KVS_MUST_CHECK kvs_status kvt_grant_cancel(struct kvt_port *p, uint64_t xfer); /* then KVT_EV_GRANT once no receive is posted */
/* Sends one message; bytes stay unchanged until KVT_EV_SENT with this cookie. The checksum is filled in on the transport thread. */
KVS_MUST_CHECK kvs_status kvt_send(struct kvt_port *p, uint32_t peer, const struct kvt_header *h, const void *bytes, uint64_t cookie);

/* Messages of (peer, xfer) that are queued and not yet posted are given up: each ends with KVT_EV_SENT, KVS_REQ_CANCELLED. For CANCEL. */
KVS_MUST_CHECK kvs_status kvt_send_drop(struct kvt_port *p, uint32_t peer, uint64_t xfer);

typedef enum kvt_event_kind { KVT_EV_ADDRESS, KVT_EV_UP, KVT_EV_ERROR, KVT_EV_CLOSED, KVT_EV_GRANT, KVT_EV_SENT } kvt_event_kind;
struct kvt_event {
    kvt_event_kind kind;
    uint32_t peer;
    kvs_status status;      /* ERROR, SENT, GRANT (KVS_OK: complete; KVS_PEER_*: failed; KVS_REQ_CANCELLED; else END's status) */
    const char *transport;  /* UP: "cma", "tcp", "sysv", "posix", "rdma", "loopback": the lane that carries pages */
    uint64_t cookie;        /* SENT */
    struct kvt_sink *sink;  /* GRANT: handed back */
    uint64_t bytes, elapsed_us; /* GRANT: KV bytes landed; first message begun to last landed */
    uint32_t pages;         /* GRANT: KV pages landed and verified */
    uint8_t address[KVT_ADDRESS_MAX]; /* ADDRESS */
    uint32_t address_bytes;
};
bool kvt_port_next(struct kvt_port *p, struct kvt_event *out); /* loop thread; false: nothing more */
uint64_t kvt_port_declined(const struct kvt_port *p, kvt_verdict reason); /* any thread */
/* Counters for metrics: transfers destroyed with receives still posted, eager messages, forced closes. */
struct kvt_port_counters {
    uint64_t cut_receives, eager, forced_closes, stalls;
};
void kvt_port_counters(const struct kvt_port *p, struct kvt_port_counters *out);

#endif
