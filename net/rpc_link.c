/* rpc_link.c - one nng_stream as a queue of bytes in both directions.
 * Reading: NNG fills a 64 KiB piece, the loop takes it and only then asks for the next one. So a peer that sends
 * faster than we work fills its own socket, not our memory.
 * Writing: frames are appended to `out`; when no send is under way the whole buffer changes hands (`sending`) and
 * NNG has it until every byte has gone (nng_stream_send may take only a part: the completion asks again for the
 * rest). What is appended meanwhile waits and goes as one piece: a step's tokens for a hundred requests are one
 * write.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/rpc_io.h"
#include <stdlib.h>
#include <string.h>

#define RX_BYTES 65536
#define KEEP_BYTES (256u << 10)

enum { RX_DONE = 1, TX_DONE = 2 };

/* Owner thread: the loop's; the members of a direction belong to NNG while its busy flag is set. */
struct net_link {
    struct net_io_source source;
    nng_stream *stream;
    struct net_link_events ev;
    void *user;
    nng_aio *rx, *tx;
    bool rx_busy, tx_busy;
    bool broken, muted, dispatching, closed;
    struct kvs_buf out;     /* loop */
    struct kvs_buf sending; /* NNG while tx_busy */
    size_t sent;
    int tx_error;
    uint8_t rx_bytes[RX_BYTES];
};

static void rx_done(void *arg)
{
    struct net_link *l = arg;
    net_io_signal(&l->source, RX_DONE);
}

static void tx_ask(struct net_link *l)
{
    nng_iov iov = {.iov_buf = l->sending.data + l->sent, .iov_len = l->sending.len - l->sent};
    int rv = nng_aio_set_iov(l->tx, 1, &iov);
    KVS_ASSERT(rv == 0); /* fails only for more than eight pieces */
    nng_stream_send(l->stream, l->tx);
}

static void tx_done(void *arg)
{
    struct net_link *l = arg;
    l->tx_error = nng_aio_result(l->tx);
    if (l->tx_error == 0) {
        l->sent += nng_aio_count(l->tx);
        if (l->sent < l->sending.len) {
            tx_ask(l);
            return;
        }
    }
    net_io_signal(&l->source, TX_DONE);
}

static void rx_ask(struct net_link *l)
{
    nng_iov iov = {.iov_buf = l->rx_bytes, .iov_len = RX_BYTES};
    int rv = nng_aio_set_iov(l->rx, 1, &iov);
    KVS_ASSERT(rv == 0);
    l->rx_busy = true;
    nng_stream_recv(l->stream, l->rx);
}

static void link_broken(struct net_link *l, int nng_error)
{
    if (!l->broken) {
        l->broken = true;
        if (!l->muted && !l->closed) {
            l->ev.on_broken(l->user, nng_error);
        }
    }
}

static void link_sent(struct net_link *l)
{
    l->tx_busy = false;
    if (l->tx_error != 0) {
        link_broken(l, l->tx_error);
        return;
    }
    if (l->sending.cap > KEEP_BYTES) {
        kvs_buf_fini(&l->sending);
    } else {
        kvs_buf_clear(&l->sending);
    }
    net_link_flush(l);
}

static void link_received(struct net_link *l)
{
    l->rx_busy = false;
    int rv = nng_aio_result(l->rx);
    size_t n = nng_aio_count(l->rx);
    if (rv != 0 || n == 0) {
        link_broken(l, rv != 0 ? rv : NNG_ECONNSHUT);
        return;
    }
    if (!l->muted) {
        l->ev.on_bytes(l->user, l->rx_bytes, n);
    }
    if (!l->closed && !l->broken) {
        rx_ask(l); /* also when muted: this is how the peer's close is noticed */
    }
}

static void link_free(struct net_link *l)
{
    if (l->rx != NULL) {
        nng_aio_free(l->rx);
    }
    if (l->tx != NULL) {
        nng_aio_free(l->tx);
    }
    nng_stream_free(l->stream);
    kvs_buf_fini(&l->out);
    kvs_buf_fini(&l->sending);
    free(l);
}

static void link_ready(struct net_io_source *source, uint32_t done)
{
    struct net_link *l = (struct net_link *)source;
    l->dispatching = true;
    if ((done & RX_DONE) != 0 && !l->closed) {
        link_received(l);
    }
    if ((done & TX_DONE) != 0 && !l->closed) {
        link_sent(l);
    }
    l->dispatching = false;
    if (l->closed) {
        link_free(l);
    }
}

kvs_status net_link_create(struct net_io *io, nng_stream *stream, const struct net_link_events *ev, void *user,
                           struct net_link **out)
{
    struct net_link *l = calloc(1, sizeof *l);
    if (l == NULL) {
        nng_stream_close(stream);
        nng_stream_free(stream);
        return KVS_SELF_NOMEM;
    }
    l->source = (struct net_io_source){.io = io, .fn = link_ready};
    l->stream = stream;
    l->ev = *ev;
    l->user = user;
    kvs_buf_init(&l->out, 2 * NET_LINK_QUEUE_MAX);
    kvs_buf_init(&l->sending, 2 * NET_LINK_QUEUE_MAX);
    if (nng_aio_alloc(&l->rx, rx_done, l) != 0 || nng_aio_alloc(&l->tx, tx_done, l) != 0) {
        nng_stream_close(stream);
        link_free(l);
        return KVS_SELF_NOMEM;
    }
    (void)nng_stream_set_bool(stream, NNG_OPT_TCP_NODELAY,
                              true);                   /* a token must not wait for the next; ipc has no such thing */
    nng_aio_set_timeout(l->rx, NNG_DURATION_INFINITE); /* silence is the heartbeat's business */
    nng_aio_set_timeout(l->tx, NNG_DURATION_INFINITE);
    *out = l;
    return KVS_OK;
}

void net_link_start(struct net_link *l)
{
    rx_ask(l);
}

struct kvs_buf *net_link_out(struct net_link *l)
{
    return &l->out;
}

void net_link_flush(struct net_link *l)
{
    if (l->tx_busy || l->broken || l->closed || l->out.len == 0) {
        return;
    }
    struct kvs_buf swap = l->sending;
    l->sending = l->out;
    l->out = swap;
    l->sent = 0;
    l->tx_busy = true;
    tx_ask(l);
}

size_t net_link_queued(const struct net_link *l)
{
    /* `sending` keeps its length while NNG has it; how much of that has gone is not looked at from here. */
    return l->out.len + (l->tx_busy ? l->sending.len : 0);
}

void net_link_mute(struct net_link *l)
{
    l->muted = true;
}

bool net_link_drained(const struct net_link *l)
{
    return l->broken || (!l->tx_busy && l->out.len == 0);
}

void net_link_close(struct net_link *l)
{
    if (l == NULL || l->closed) {
        return;
    }
    l->closed = true;
    nng_stream_close(l->stream);
    nng_aio_stop(l->rx);
    nng_aio_stop(l->tx);
    net_io_forget(&l->source);
    if (!l->dispatching) {
        link_free(l);
    }
}
