/* port_private.h - what the files of the KV transport share: the port, its peers, messages on their way, and grants.
 * Everything here belongs to the transport thread, except where a field says otherwise. Loopback ports of one process serve each
 * other directly; their threads take kvt_loopback_lock around each round, which makes them one owner.
 *
 *   port.c      commands in, events out, the thread
 *   grant.c     from a message's header to the sink's slot, and the end of a grant
 *   ucx_peer.c  one peer over UCX: context, worker, endpoint, active messages, forced close
 *   loopback.c  one peer in the same process
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVTRANSFER_PORT_PRIVATE_H
#define KVS_KVTRANSFER_PORT_PRIVATE_H

#include "base/map.h"
#include "base/ring.h"
#include "kvtransfer/port.h"
#include "sys/thread.h"
#include <stdatomic.h>

#define KVT_PEERS_MAX 256
#define KVT_CLOSE_US 100000u      /* from forced close to destruction, at most */
#define KVT_HANDSHAKE_US 5000000u /* from connect to UP, at most */
#define KVT_STALL_US 1000000u

struct kvt_peer;
struct kvt_command;

/* A message to send: queued, then posted. */
struct kvt_message {
    struct kvt_message *next, *prev;
    struct kvt_peer *peer;
    struct kvt_header header;
    uint8_t wire[KVT_HEADER_BYTES]; /* stays in place until the send completes */
    const void *bytes;
    uint64_t cookie;
};
struct kvt_message_list {
    struct kvt_message *head, *tail;
    uint32_t count;
};

struct kvt_grant_rec {
    struct kvt_grant_rec *next, *prev; /* of the peer */
    struct kvt_peer *peer;
    struct kvt_sink *sink;
    kvs_status end_status; /* what END said */
    bool corrupt, lost;    /* a checksum was wrong; a receive failed */
    uint32_t pages;        /* KV pages landed */
    uint64_t first_us, last_us;
};

/* A receive that UCX has been given. */
struct kvt_receive {
    struct kvt_receive *next, *prev; /* of the peer */
    struct kvt_grant_rec *grant;
    uint32_t slot;
};

typedef enum kvt_peer_state { KVT_PEER_OPEN, KVT_PEER_CONNECTING, KVT_PEER_UP, KVT_PEER_CLOSING } kvt_peer_state;

struct kvt_ops {
    kvs_status (*open)(struct kvt_peer *peer); /* reports KVT_EV_ADDRESS */
    kvs_status (*connect)(struct kvt_peer *peer, const void *address, size_t n);
    bool (*step)(struct kvt_peer *peer, uint64_t now_us);  /* progress, handshake, posting; true: something moved */
    bool (*arm)(struct kvt_peer *peer);                    /* before sleeping; false: work is waiting */
    bool (*close)(struct kvt_peer *peer, uint64_t now_us); /* called until true: nothing refers to our memory */
    void (*destroy)(struct kvt_peer *peer);                /* frees peer->link */
};
extern const struct kvt_ops kvt_ucx_ops, kvt_loopback_ops;

struct kvt_peer {
    struct kvt_port *port;
    uint32_t index;
    kvt_lane lane;
    kvt_peer_state state;
    uint64_t generation; /* of this opening: no two peers of a port ever share one */
    uint64_t remote_epoch;
    uint64_t connect_us, close_us;
    const char *transport;
    bool error_reported;
    struct kvt_message_list queued, posted;
    struct kvt_receive *receives;
    struct kvt_grant_rec *grants;
    const struct kvt_ops *ops;
    void *link; /* the transport's own part, owned */
};

/* An event on its way to the loop: small; the address is a heap copy. */
struct kvt_note {
    kvt_event_kind kind;
    uint32_t peer;
    kvs_status status;
    const char *transport;
    uint64_t cookie;
    struct kvt_sink *sink;
    uint64_t bytes, elapsed_us;
    uint32_t pages;
    uint8_t *address;
    uint32_t address_bytes;
};

struct kvt_port {
    struct kvt_port_config config; /* id copied below; read-only */
    char id[128];
    uint64_t serial; /* of this port in the process */
    struct kvs_ring *commands, *events;
    struct kvt_command *waiting; /* owned: commands taken from the ring and not yet run, in order */
    uint32_t waiting_count;
    int epoll_fd, kick_fd;
    struct kvs_thread *thread;
    _Atomic bool stopping;                    /* any thread */
    _Atomic uint32_t sends_open, grants_open; /* any thread: accepted, and their event not yet read */
    _Atomic uint64_t declined[KVT_VERDICTS];  /* any thread reads */
    _Atomic uint64_t cut_receives, eager, forced_closes, stalls;
    struct kvt_peer *peer[KVT_PEERS_MAX];
    uint64_t generations;
    struct kvs_map *grants; /* xfer -> struct kvt_grant_rec * */
    bool notes_pending;     /* the loop has to be woken */
    struct kvt_port *next;  /* registry of loopback ports, under its lock */
};

/* port.c */
/* Takes grants that are waiting among the commands: a message may come right behind the CALL that followed its grant. */
void kvt_take_grants(struct kvt_port *p);
void kvt_note(struct kvt_port *p, const struct kvt_note *note);
void kvt_kick(const struct kvt_port *p);
void kvt_peer_error(struct kvt_peer *peer, kvs_status status); /* KVT_EV_ERROR, once */
void kvt_peer_up(struct kvt_peer *peer, const char *transport);
void kvt_message_push(struct kvt_message_list *l, struct kvt_message *m);
void kvt_message_unlink(struct kvt_message_list *l, struct kvt_message *m);
void kvt_message_done(struct kvt_message *m,
                      kvs_status status); /* unlinked by the caller; reports KVT_EV_SENT and frees */

/* grant.c: kvt_accept checks everything and, on KVT_ACCEPT, tells the sink that the receive begins; anything else is counted. */
kvt_verdict kvt_accept(struct kvt_peer *peer, const void *header, size_t header_bytes, uint64_t length,
                       struct kvt_grant_rec **rec_out, uint32_t *slot_out);
/* The bytes are in place (received true) or will not come; verifies, and ends the grant when it was the last. g may be gone afterwards. */
void kvt_receive_done(struct kvt_grant_rec *g, uint32_t slot, bool received);
void kvt_decline(struct kvt_port *p, kvt_verdict v);
void kvt_grant_open(struct kvt_port *p, struct kvt_peer *peer, uint32_t peer_index, struct kvt_sink *sink);
void kvt_grant_settle(struct kvt_grant_rec *g);
struct kvt_grant_rec *kvt_grant_find(const struct kvt_port *p, uint64_t xfer);
void kvt_grants_lost(struct kvt_peer *peer); /* the peer is gone: no receive is posted any more */

/* loopback.c */
void kvt_loopback_lock(void);
void kvt_loopback_unlock(void);
void kvt_loopback_register(struct kvt_port *p);
void kvt_loopback_unregister(struct kvt_port *p);

/* process.c */
bool kvt_process_prepared(void);
const char *kvt_lane_prefix(kvt_lane lane); /* of the UCX environment */

#endif
