/* exchange.h - one HTTP request between the server's thread, which parses and writes, and the loop thread, which makes the answer.
 *   server thread: create, submit to the loop, wait (suspended) -> queue a response -> read the body as it comes -> release
 *   loop thread:   head, write..., end (or drop) -> release
 * One lock guards the state and the decision to suspend: "nothing to read, so suspend" and "something to read, so resume" can never miss each
 * other. After drop or after the connection has completed, everything is a no-op.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_EXCHANGE_H
#define KVS_ROUTER_EDGE_EXCHANGE_H

#include "base/buf.h"

struct MHD_Connection;
struct rtr_exchange;

struct rtr_head {
    unsigned http;       /* status */
    bool stream;         /* text/event-stream, body as it comes */
    bool final;          /* x-should-retry: false */
    uint32_t retry_after_s;
    char placement[640]; /* x-kvasir-placement; "" for none */
};

KVS_MUST_CHECK kvs_status rtr_exchange_create(struct MHD_Connection *conn, struct rtr_exchange **out); /* one reference */
void rtr_exchange_hold(struct rtr_exchange *x);
void rtr_exchange_release(struct rtr_exchange *x);

/* Loop thread. */
void rtr_exchange_head(struct rtr_exchange *x, const struct rtr_head *head);
KVS_MUST_CHECK kvs_status rtr_exchange_write(struct rtr_exchange *x, const void *bytes, size_t n, size_t *backlog_out);
void rtr_exchange_end(struct rtr_exchange *x);
void rtr_exchange_drop(struct rtr_exchange *x); /* the client is gone: let the connection go */

/* What was not read yet; and whether the connection is over, of which the loop may not have been told. */
void rtr_exchange_look(struct rtr_exchange *x, size_t *backlog_out, bool *completed_out);

/* Server thread. */
typedef enum rtr_wait { RTR_WAIT_SUSPENDED, RTR_WAIT_HEAD, RTR_WAIT_DROPPED } rtr_wait;
/* Is the head there (and, when the answer is no stream, the whole body)? Otherwise the connection is suspended until it is. */
rtr_wait rtr_exchange_wait(struct rtr_exchange *x, struct rtr_head *head_out);
uint8_t *rtr_exchange_take(struct rtr_exchange *x, size_t *len_out); /* the whole body of an answer that is no stream; free() it */
typedef enum rtr_read { RTR_READ_BYTES, RTR_READ_SUSPENDED, RTR_READ_END, RTR_READ_DROPPED } rtr_read;
/* Copies up to cap bytes; none there: suspends the connection. *low_out: what is left has just fallen below the low-water mark. */
rtr_read rtr_exchange_read(struct rtr_exchange *x, char *out, size_t cap, size_t *n_out, bool *low_out);
void rtr_exchange_completed(struct rtr_exchange *x); /* the connection must not be touched any more */

#define RTR_BACKLOG_HIGH (256u << 10)
#define RTR_BACKLOG_LOW (64u << 10)

#endif
