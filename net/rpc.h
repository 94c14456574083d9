/* rpc.h - control streams: nng_stream (ipc, tcp), framed, with HELLO, calls, credits and heartbeats. Edge.
 * All functions and all handlers run on the loop thread; NNG's threads only move bytes and post to the loop.
 * A connection is up after both HELLOs; PING goes out every 0.5 s, silence is suspect after 1 s and dead after 2 s
 * (KVS_PEER_TIMEOUT); EOF is noticed at once (KVS_PEER_LOST). After a stall of our own of over 1 s all peers'
 * clocks start anew.
 * Sending is bounded: a stream whose queue passes 8 MiB is closed. Flow control: credits per call (256 KiB), except
 * Tokens, Load and Register.
 * A call that the peer started ends for us with our END (Prefill, Fetch: with its ACK or NACK), with on_cancel, or
 * with on_down: what we still send for it after that is dropped in silence. No handler runs inside a call of this
 * header: losses are told from the loop.
 * With a key in self.auth nobody comes up who did not give the same one; without one only ipc:// and loopback are
 * listened on.
 * The dialer's HELLO comes first; the listener answers with its own, or with GOAWAY: a dialer that is refused gets
 * on_dial_failed.
 * net_rpc_destroy may not be called from a handler.
 * Nothing is called back after net_rpc_destroy; every started call ends exactly once (on_end), with KVS_PEER_LOST
 * when the stream dies.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_RPC_H
#define KVS_NET_RPC_H

#include "proto/msg.h"
#include "sys/loop.h"

struct net_rpc;
typedef uint64_t net_conn; /* never reused; 0 is none */

/* Payloads are the encoded messages of proto/wire.h; the handler decodes. Borrowed during the handler. */
struct net_rpc_handlers {
    void *user;
    /* Decide on a HELLO; KVS_OK accepts. Otherwise the peer gets GOAWAY with the status' name and err's text, and the
     * stream closes. */
    kvs_status (*check_hello)(void *user, const struct msg_hello *hello, struct kvs_error *err);
    void (*on_up)(void *user, net_conn conn, const struct msg_hello *hello, bool we_dialed, const char *url);
    /* Only after on_up; before that a dialer gets on_dial_failed (may be NULL; dialing goes on). */
    void (*on_down)(void *user, net_conn conn, kvs_status why, const char *text);
    void (*on_dial_failed)(void *user, const char *url, kvs_status why, const char *text);
    void (*on_suspect)(void *user, net_conn conn, bool suspect); /* may be NULL */

    /* The other side calls us. Answer with net_rpc_item*, then net_rpc_end exactly once (Prefill: END, then wait for
     * ACK/NACK/CANCEL). on_cancel: our answer is no longer wanted. on_writable (may be NULL): credit is back after
     * net_rpc_item said KVS_BUSY_QUEUE. */
    void (*on_call)(void *user, net_conn conn, uint32_t stream, const struct msg_call *call);
    void (*on_cancel)(void *user, net_conn conn, uint32_t stream);
    void (*on_ack)(void *user, net_conn conn, uint32_t stream);
    void (*on_nack)(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n);

    /* Answers to our calls. on_end is also made up here: at the call's deadline, and when the stream is lost (then
     * before on_down). */
    void (*on_item)(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n);
    void (*on_end)(void *user, net_conn conn, uint32_t stream, const struct msg_end *end);

    void (*on_pause)(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n, bool resume);
    void (*on_writable)(void *user, net_conn conn, uint32_t stream);
};

KVS_MUST_CHECK kvs_status net_rpc_create(struct kvs_loop *loop, const struct msg_hello *self,
                                         const struct net_rpc_handlers *h, struct net_rpc **out, struct kvs_error *err);
void net_rpc_destroy(struct net_rpc *r);

/* "tcp://127.0.0.1:0" or "ipc:///run/x.sock"; url_out gets the bound URL (port resolved). A port in use is
 * KVS_SELF_CONFIG with the remedy; so is an address beyond this machine without a key. */
KVS_MUST_CHECK kvs_status net_rpc_listen(struct net_rpc *r, const char *url, char *url_out, size_t url_cap,
                                         struct kvs_error *err);
/* Dials and keeps dialing with paced, jittered retries (50 ms doubling to 2 s) until net_rpc_undial; a live connection
 * to url counts. */
KVS_MUST_CHECK kvs_status net_rpc_dial(struct net_rpc *r, const char *url);
void net_rpc_undial(struct net_rpc *r, const char *url);
/* GOAWAY{why, text}, then closed; on_down follows. */
void net_rpc_close(struct net_rpc *r, net_conn conn, kvs_status why, const char *text);

/* Calls. remaining_ms 0: no deadline; otherwise on_end(KVS_REQ_DEADLINE) comes at the latest then, and CANCEL is
 * sent. */
KVS_MUST_CHECK kvs_status net_rpc_call(struct net_rpc *r, net_conn conn, msg_method method, uint32_t remaining_ms,
                                       const char *trace, const void *body, size_t n, uint32_t *stream_out);
/* Caller. CANCEL: the call is over for us, no on_end follows. ACK or NACK: after on_end of Prefill and Fetch. */
void net_rpc_cancel(struct net_rpc *r, net_conn conn, uint32_t stream);
void net_rpc_ack(struct net_rpc *r, net_conn conn, uint32_t stream);
void net_rpc_nack(struct net_rpc *r, net_conn conn, uint32_t stream, const void *payload, size_t n);
/* Callee. KVS_BUSY_QUEUE: no credit, wait for on_writable; KVS_REQ_CANCELLED: the call is over. END once. */
KVS_MUST_CHECK kvs_status net_rpc_item(struct net_rpc *r, net_conn conn, uint32_t stream, const void *payload,
                                       size_t n);
void net_rpc_end(struct net_rpc *r, net_conn conn, uint32_t stream, const struct msg_end *end);
/* Callee. Bytes of ITEMs that the caller has confirmed by CREDIT so far; 0: none, or no such call. */
uint64_t net_rpc_credited(struct net_rpc *r, net_conn conn, uint32_t stream);
/* Caller of Tokens: hold and go on with one sequence (msg_pause). */
KVS_MUST_CHECK kvs_status net_rpc_pause(struct net_rpc *r, net_conn conn, uint32_t stream, const void *payload,
                                        size_t n, bool resume);

#endif
