/* rpc_impl.h - connections, calls and dials as rpc.c, rpc_conn.c and rpc_stream.c share them. Loop thread only.
 *
 *   dial/accept -> WAIT (HELLO expected) -> UP -> DEAD (link closed or lingering; told by the reaper) -> freed
 *
 * A connection dies in two steps. conn_fail() ends its I/O and notes why; the reaper, a timer set to now, then
 * tells the owner: on_end of every call of ours, then on_down (or on_dial_failed). So no handler ever runs inside
 * the owner's own call.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_RPC_IMPL_H
#define KVS_NET_RPC_IMPL_H

#include "base/arena.h"
#include "base/rng.h"
#include "net/core/pulse.h"
#include "net/rpc.h"
#include "net/rpc_io.h"
#include "proto/frame.h"
#include "proto/wire.h"

#define RPC_CONNS_MAX 1024
#define RPC_CALLS_MAX 65536
#define RPC_DIALS_MAX 1024
#define RPC_LISTENERS_MAX 8
#define RPC_CREDIT_BYTES (256 << 10)
#define RPC_HELLO_US 3000000
#define RPC_FRAME_US 5000000
#define RPC_LINGER_US 500000
#define RPC_BACKOFF_MIN_US 50000
#define RPC_BACKOFF_MAX_US 2000000
#define RPC_STABLE_US 1000000 /* a connection that lived this long resets the pace of dialing */

/* One call, at its caller (ours) or its callee. */
struct call {
    uint32_t stream;
    bool ours;
    bool credited; /* ITEMs are bounded by credit */
    bool ended;    /* END has gone or come; Prefill and Fetch wait for ACK, NACK or CANCEL */
    bool starved;  /* callee: an ITEM was turned away for want of credit */
    msg_method method;
    int64_t credit;          /* callee: bytes that may still be sent; may go below 0 by one ITEM */
    uint32_t taken;          /* caller: bytes taken since the last CREDIT */
    uint64_t credited_bytes; /* callee: of all CREDIT that came */
    struct kvs_timer *timer; /* caller: deadline */
    struct conn *conn;
    struct call *next; /* in its bucket */
};
struct call_table {
    struct call **bucket; /* power of two; owned */
    uint32_t buckets, count;
};

typedef enum conn_state { CONN_WAIT, CONN_UP, CONN_DEAD } conn_state;

struct conn {
    struct net_rpc *rpc;
    net_conn id;
    conn_state state;
    bool was_up;
    struct net_link *link;      /* NULL once closed */
    struct dial *dial;          /* NULL: accepted, or the dial was given up */
    char given_up[MSG_URL_MAX]; /* what was dialed, when the dial was given up */
    struct kvs_buf in;          /* bytes of frames not yet whole */
    struct net_pulse pulse;
    uint64_t born_us, frame_us;        /* frame_us: when the frame under way began; 0: none */
    uint32_t next_stream, peer_stream; /* ours to give next; the peer's highest so far */
    struct call_table calls;
    kvs_status why;
    char why_text[256];
    struct conn *prev, *next;
};

struct dial {
    struct net_rpc *rpc;
    char url[MSG_URL_MAX];
    struct net_dialer *dialer;
    struct kvs_timer *timer;
    struct conn *conn;
    uint64_t backoff_us;
    struct dial *next;
};

/* A closed connection's link that still has a GOAWAY to send. */
struct linger {
    struct net_link *link;
    uint64_t until_us;
    struct linger *next;
};

struct net_rpc {
    struct kvs_loop *loop;
    struct net_io io;
    struct msg_hello self;
    struct net_rpc_handlers h;
    struct net_listener *listener[RPC_LISTENERS_MAX];
    uint32_t listener_count;
    struct conn *conns; /* all that are not freed */
    struct conn
        *slot[RPC_CONNS_MAX]; /* the same by slot: an id is a count of births times RPC_CONNS_MAX, plus the slot */
    uint32_t dial_count;
    uint64_t births;
    struct dial *dials;
    struct linger *lingers;
    struct kvs_timer *tick, *reaper;
    uint64_t ticked_us;
    struct kvs_rng rng;
    struct kvs_buf scratch; /* encoded END, GOAWAY, CALL envelopes */
    bool frozen;            /* failpoint rpc.freeze: deaf and mute, as a stopped process is */
};

/* rpc_conn.c */
void conn_accepted(void *rpc, nng_stream *stream, int nng_error); /* a net_stream_fn */
kvs_status conn_create(struct net_rpc *r, nng_stream *stream, struct dial *dial, struct conn **out);
struct conn *conn_find(struct net_rpc *r, net_conn id); /* UP ones only; NULL otherwise */
void conn_fail(struct conn *c, kvs_status why, const char *text);
void conn_goaway(struct conn *c, kvs_status why, const char *text); /* tells the peer, then fails */
void conn_send(struct conn *c, msg_frame_type type, uint32_t stream, const void *payload, size_t n);
void conn_linger(struct conn *c); /* hands the link over to the lingering ones */
void conn_tick(struct conn *c, uint64_t now_us);
void conn_reap(struct conn *c); /* tells the owner and frees */
void conn_free(struct conn *c);

#define TELL(r, handler, ...)                         \
    do {                                              \
        if ((r)->h.handler != NULL) {                 \
            (r)->h.handler((r)->h.user, __VA_ARGS__); \
        }                                             \
    } while (0)

/* rpc_stream.c */
void stream_frame(struct conn *c, const struct msg_frame *f); /* CALL and everything that names a stream */
struct call *call_find(struct conn *c, uint32_t stream);
void calls_end_all(struct conn *c, bool tell);

/* rpc.c */
void dial_lost(struct dial *d, const struct conn *c); /* its connection is over */
void rpc_reap_soon(struct net_rpc *r);

#endif
