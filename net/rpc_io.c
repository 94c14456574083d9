/* rpc_io.c - the hub between NNG's threads and the loop, the dialer and the listener.
 * Completions are not posted to the loop one by one: objects queue themselves on a list and one eventfd wakes the
 * loop. An object that is destroyed takes itself off the list, so nothing that refers to it can be left behind, and
 * nothing can be lost because a queue was full.
 * Order of destruction, the same everywhere: close (NNG completes what is under way), nng_aio_stop (waits for the
 * callback), net_io_forget, free. The callbacks never wait for the loop, so the loop may wait for them.
 * Unix sockets: a file left by a dead process is removed when nobody answers on it; ours are made with mode 0600.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/rpc_io.h"
#include "sys/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define DIAL_TIMEOUT_MS 3000
#define ACCEPT_PAUSE_US 100000

/* ---- hub ---- */

static void io_wake(struct net_io *io)
{
    uint64_t one = 1;
    ssize_t n = write(io->fd, &one, sizeof one);
    (void)n; /* the counter cannot overflow: it is written once per wake */
}

void net_io_signal(struct net_io_source *s, uint32_t bit)
{
    struct net_io *io = s->io;
    pthread_mutex_lock(&io->lock);
    s->done |= bit;
    if (!s->ready) {
        s->ready = true;
        s->next = NULL;
        *(io->last != NULL ? &io->last->next : &io->first) = s;
        io->last = s;
        io->ready_count++;
    }
    bool wake = !io->woken;
    io->woken = true;
    pthread_mutex_unlock(&io->lock);
    if (wake) {
        io_wake(io);
    }
}

static void io_unlink(struct net_io *io, struct net_io_source *s)
{
    struct net_io_source *before = NULL;
    for (struct net_io_source *at = io->first; at != s; at = at->next) {
        KVS_ASSERT(at != NULL);
        before = at;
    }
    *(before != NULL ? &before->next : &io->first) = s->next;
    if (io->last == s) {
        io->last = before;
    }
    s->next = NULL;
    s->ready = false;
    io->ready_count--;
}

void net_io_forget(struct net_io_source *s)
{
    pthread_mutex_lock(&s->io->lock);
    if (s->ready) {
        io_unlink(s->io, s);
    }
    pthread_mutex_unlock(&s->io->lock);
}

void net_io_dispatch(struct net_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->woken = false;
    size_t bound = io->ready_count; /* what becomes ready meanwhile waits for its own wake-up */
    while (bound-- > 0 && io->first != NULL) {
        struct net_io_source *s = io->first;
        io_unlink(io, s);
        uint32_t done = s->done;
        s->done = 0;
        pthread_mutex_unlock(&io->lock);
        s->fn(s, done);
        pthread_mutex_lock(&io->lock);
    }
    pthread_mutex_unlock(&io->lock);
}

static void io_on_event(void *user, int fd, uint32_t events)
{
    (void)events;
    uint64_t n;
    ssize_t got = read(fd, &n, sizeof n);
    (void)got; /* empty when a dispatch from elsewhere came first */
    net_io_dispatch(user);
}

kvs_status net_io_init(struct net_io *io, struct kvs_loop *loop)
{
    *io = (struct net_io){.loop = loop};
    io->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (io->fd < 0) {
        return KVS_SELF_IO;
    }
    if (pthread_mutex_init(&io->lock, NULL) != 0) {
        (void)close(io->fd);
        return KVS_SELF_NOMEM;
    }
    kvs_status s = kvs_loop_watch(loop, io->fd, EPOLLIN, io_on_event, io, &io->watch);
    if (s != KVS_OK) {
        pthread_mutex_destroy(&io->lock);
        (void)close(io->fd);
    }
    return s;
}

void net_io_fini(struct net_io *io)
{
    if (io->watch == NULL) {
        return;
    }
    KVS_ASSERT(io->first == NULL);
    kvs_watch_remove(io->watch);
    io->watch = NULL;
    (void)close(io->fd);
    pthread_mutex_destroy(&io->lock);
}

const char *net_io_error(int nng_error)
{
    switch (nng_error) {
    case NNG_ECONNSHUT:
    case NNG_ECLOSED: return "the connection was closed";
    case NNG_ECONNREFUSED:
    case NNG_ENOENT: return "nobody listens there";
    case NNG_ETIMEDOUT: return "no answer in time";
    default: return nng_strerror(nng_error);
    }
}

/* ---- dialer ---- */

struct net_dialer {
    struct net_io_source source;
    nng_stream_dialer *dialer;
    nng_aio *aio;
    bool busy; /* loop: an attempt is under way */
    net_stream_fn fn;
    void *user;
};

static void dialer_done(void *arg)
{
    struct net_dialer *d = arg;
    net_io_signal(&d->source, 1);
}

static void dialer_ready(struct net_io_source *source, uint32_t done)
{
    struct net_dialer *d = (struct net_dialer *)source;
    if (done == 0 || !d->busy) {
        return;
    }
    d->busy = false;
    int rv = nng_aio_result(d->aio);
    d->fn(d->user, rv == 0 ? nng_aio_get_output(d->aio, 0) : NULL, rv);
}

kvs_status net_dialer_create(struct net_io *io, const char *url, net_stream_fn fn, void *user, struct net_dialer **out)
{
    struct net_dialer *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return KVS_SELF_NOMEM;
    }
    d->source = (struct net_io_source){.io = io, .fn = dialer_ready};
    d->fn = fn;
    d->user = user;
    int rv = nng_stream_dialer_alloc(&d->dialer, url);
    if (rv == 0) {
        rv = nng_aio_alloc(&d->aio, dialer_done, d);
    }
    if (rv != 0) {
        net_dialer_destroy(d);
        return rv == NNG_ENOMEM ? KVS_SELF_NOMEM : KVS_SELF_CONFIG;
    }
    nng_aio_set_timeout(d->aio, DIAL_TIMEOUT_MS);
    *out = d;
    return KVS_OK;
}

void net_dialer_start(struct net_dialer *d)
{
    KVS_ASSERT(!d->busy);
    d->busy = true;
    nng_stream_dialer_dial(d->dialer, d->aio);
}

void net_dialer_destroy(struct net_dialer *d)
{
    if (d == NULL) {
        return;
    }
    if (d->dialer != NULL) {
        nng_stream_dialer_close(d->dialer);
    }
    if (d->aio != NULL) {
        nng_aio_stop(d->aio);
        net_io_forget(&d->source);
        if (d->busy && nng_aio_result(d->aio) == 0) {
            nng_stream *s = nng_aio_get_output(d->aio, 0); /* connected, but the loop has not been told */
            if (s != NULL) {
                nng_stream_close(s);
                nng_stream_free(s);
            }
        }
        nng_aio_free(d->aio);
    }
    if (d->dialer != NULL) {
        nng_stream_dialer_free(d->dialer);
    }
    free(d);
}

/* ---- listener ---- */

struct net_listener {
    struct net_io_source source;
    nng_stream_listener *listener;
    nng_aio *aio;
    struct kvs_timer *pause; /* out of descriptors: existing streams go on, accepting waits */
    bool busy;
    net_stream_fn fn;
    void *user;
};

static void listener_done(void *arg)
{
    struct net_listener *l = arg;
    net_io_signal(&l->source, 1);
}

static void listener_accept(struct net_listener *l)
{
    l->busy = true;
    nng_stream_listener_accept(l->listener, l->aio);
}

static void listener_resume(void *user, uint64_t now_us)
{
    (void)now_us;
    listener_accept(user);
}

static void listener_ready(struct net_io_source *source, uint32_t done)
{
    struct net_listener *l = (struct net_listener *)source;
    if (done == 0 || !l->busy) {
        return;
    }
    l->busy = false;
    int rv = nng_aio_result(l->aio);
    if (rv == 0) {
        nng_stream *s = nng_aio_get_output(l->aio, 0);
        listener_accept(l);
        l->fn(l->user, s, 0);
    } else if (rv != NNG_ECLOSED && rv != NNG_ECANCELED) {
        kvs_timer_set(l->pause, kvs_now_us() + ACCEPT_PAUSE_US);
    }
}

/* A socket file without a listener behind it is left over from a process that died. */
static kvs_status remove_stale_socket(const char *path, struct kvs_error *err)
{
    struct stat st;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path) {
        return kvs_fail(err, KVS_SELF_CONFIG, "the socket path is longer than %zu bytes: use a shorter directory",
                        sizeof at.sun_path - 1);
    }
    if (lstat(path, &st) != 0) {
        return KVS_OK;
    }
    if (!S_ISSOCK(st.st_mode)) {
        return kvs_fail(err, KVS_SELF_CONFIG, "cannot listen on ipc://%s: a file that is no socket is in the way",
                        path);
    }
    memcpy(at.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return kvs_fail(err, KVS_SELF_IO, "cannot open a socket: %s", strerror(errno));
    }
    bool dead = connect(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno == ECONNREFUSED;
    (void)close(fd);
    if (dead && unlink(path) != 0) {
        return kvs_fail(err, KVS_SELF_CONFIG, "cannot remove the stale socket %s: %s", path, strerror(errno));
    }
    return KVS_OK;
}

static kvs_status bound_url(const struct net_listener *l, const char *url, char *out, size_t cap, struct kvs_error *err)
{
    int port = 0;
    size_t n = strlen(url);
    if (strncmp(url, "tcp://", 6) == 0) {
        const char *colon = strrchr(url, ':');
        if (nng_stream_listener_get_int(l->listener, NNG_OPT_TCP_BOUND_PORT, &port) != 0) {
            return kvs_fail(err, KVS_SELF_INTERNAL, "the port of %s is not known", url);
        }
        n = (size_t)(colon - url);
    }
    if (n + 8 > cap) {
        return kvs_fail(err, KVS_SELF_CONFIG, "the address %s is too long", url);
    }
    memcpy(out, url, n);
    out[n] = '\0';
    if (port != 0) {
        (void)kvs_format(out + n, cap - n, ":%d", port);
    }
    return KVS_OK;
}

static kvs_status listener_open(struct net_listener *l, const char *url, struct kvs_error *err)
{
    bool ipc = strncmp(url, "ipc://", 6) == 0;
    if (ipc) {
        kvs_status s = remove_stale_socket(url + 6, err);
        if (s != KVS_OK) {
            return s;
        }
    }
    int rv = nng_stream_listener_alloc(&l->listener, url);
    if (rv == 0 && ipc) {
        rv = nng_stream_listener_set_int(l->listener, NNG_OPT_IPC_PERMISSIONS, 0600);
    }
    if (rv == 0) {
        rv = nng_stream_listener_listen(l->listener);
    }
    if (rv == NNG_EADDRINUSE) {
        return kvs_fail(err, KVS_SELF_CONFIG, "%s is in use: choose another address or stop the process that holds it",
                        url);
    }
    if (rv != 0) {
        return kvs_fail(err, KVS_SELF_CONFIG, "cannot listen on %s: %s", url, nng_strerror(rv));
    }
    rv = nng_aio_alloc(&l->aio, listener_done, l);
    return rv == 0 ? KVS_OK : kvs_fail(err, KVS_SELF_NOMEM, "no memory to listen on %s", url);
}

kvs_status net_listener_create(struct net_io *io, const char *url, char *url_out, size_t url_cap, net_stream_fn fn,
                               void *user, struct net_listener **out, struct kvs_error *err)
{
    struct net_listener *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory to listen on %s", url);
    }
    l->source = (struct net_io_source){.io = io, .fn = listener_ready};
    l->fn = fn;
    l->user = user;
    kvs_status s = kvs_timer_create(io->loop, listener_resume, l, &l->pause);
    if (s == KVS_OK) {
        s = listener_open(l, url, err);
    }
    if (s == KVS_OK) {
        s = bound_url(l, url, url_out, url_cap, err);
    }
    if (s != KVS_OK) {
        net_listener_destroy(l);
        return s;
    }
    listener_accept(l);
    *out = l;
    return KVS_OK;
}

void net_listener_destroy(struct net_listener *l)
{
    if (l == NULL) {
        return;
    }
    kvs_timer_destroy(l->pause);
    if (l->listener != NULL) {
        nng_stream_listener_close(l->listener);
    }
    if (l->aio != NULL) {
        nng_aio_stop(l->aio);
        net_io_forget(&l->source);
        if (l->busy && nng_aio_result(l->aio) == 0) {
            nng_stream *s = nng_aio_get_output(l->aio, 0);
            if (s != NULL) {
                nng_stream_close(s);
                nng_stream_free(s);
            }
        }
        nng_aio_free(l->aio);
    }
    if (l->listener != NULL) {
        nng_stream_listener_free(l->listener);
    }
    free(l);
}

#ifdef __SANITIZE_THREAD__
/* NNG 1.5 frees dialers and streams on its reaper thread; the thread sanitizer sees their mutexes destroyed without
 * the hand-over that NNG makes through its (uninstrumented) reap list. Only reports about a mutex's destruction are
 * left out. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:pthread_mutex_destroy\n";
}
#endif
