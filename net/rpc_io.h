/* rpc_io.h - the only code that NNG's threads run: bytes in, bytes out, streams dialed and accepted; the rest is
 * loop thread.
 * A completion on an NNG thread leaves its result in the object, puts the object on the hub's ready list and wakes
 * the loop by an eventfd.
 * While an aio is under way its buffer belongs to NNG; afterwards to the loop. So the hub's lock guards the ready
 * list and nothing big.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_RPC_IO_H
#define KVS_NET_RPC_IO_H

#include "base/buf.h"
#include "sys/loop.h"
#include <nng/nng.h>
#include <pthread.h>

struct net_io_source;

/* Owner thread: the loop's; lock guards first, last, woken and each source's ready, next, done. */
struct net_io {
    struct kvs_loop *loop;
    struct kvs_watch *watch;
    int fd;
    pthread_mutex_t lock;
    struct net_io_source *first, *last;
    size_t ready_count;
    bool woken;
};
/* Something that NNG completes; first member of links, dialers and listeners. */
struct net_io_source {
    struct net_io *io;
    struct net_io_source *next;
    bool ready;
    uint32_t done;                                           /* bits set by completions, taken by the loop */
    void (*fn)(struct net_io_source *source, uint32_t done); /* loop thread */
};

KVS_MUST_CHECK kvs_status net_io_init(struct net_io *io, struct kvs_loop *loop);
void net_io_fini(struct net_io *io);                       /* all sources must be gone */
void net_io_dispatch(struct net_io *io);                   /* loop thread: runs what is ready now */
void net_io_signal(struct net_io_source *s, uint32_t bit); /* any thread */
void net_io_forget(struct net_io_source *s);               /* loop thread, after the source's aios have been stopped */
const char *net_io_error(int nng_error);

/* ---- a byte stream ---- */
#define NET_LINK_QUEUE_MAX (8u << 20)

struct net_link;
struct net_link_events {
    void (*on_bytes)(void *user, const uint8_t *bytes, size_t n);
    void (*on_broken)(void *user, int nng_error); /* EOF or error; once; the link is still to be closed */
};
KVS_MUST_CHECK kvs_status net_link_create(struct net_io *io, nng_stream *stream, const struct net_link_events *ev,
                                          void *user, struct net_link **out); /* takes the stream, also on failure */
void net_link_start(struct net_link *l);                                      /* begins to read */
struct kvs_buf *net_link_out(struct net_link *l);                             /* append, then flush */
void net_link_flush(struct net_link *l);
size_t net_link_queued(const struct net_link *l);
/* No event follows; what is queued is dropped. */
void net_link_close(struct net_link *l);
void net_link_mute(struct net_link *l);          /* no more events; keeps sending what is queued */
bool net_link_drained(const struct net_link *l); /* nothing left to send, or broken */

/* ---- dialing and accepting ---- */
struct net_dialer;
typedef void (*net_stream_fn)(void *user, nng_stream *stream, int nng_error); /* exactly one of them is set */
KVS_MUST_CHECK kvs_status net_dialer_create(struct net_io *io, const char *url, net_stream_fn fn, void *user,
                                            struct net_dialer **out);
void net_dialer_start(struct net_dialer *d); /* one attempt; fn is called once for it */
void net_dialer_destroy(struct net_dialer *d);

struct net_listener;
KVS_MUST_CHECK kvs_status net_listener_create(struct net_io *io, const char *url, char *url_out, size_t url_cap,
                                              net_stream_fn fn, void *user, struct net_listener **out,
                                              struct kvs_error *err);
void net_listener_destroy(struct net_listener *l);

#endif
