/* gone.c - see gone.h. One-shot events: a client is reported once, and a level that stays up does not keep the loop busy.
 * A vanished client's socket is shut down here, which is then an event like any other, and lets libmicrohttpd drop the connection too.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/gone.h"

#include "sys/clock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    EVENTS_PER_LOOK = 64,
    SWEEP_US = 1000000,
    SILENT_MS = 10000,
    UNANSWERED = 4,
    /* keepalive: 5 s of nothing, then three probes, 3 s apart */
    KEEP_IDLE_S = 5,
    KEEP_INTERVAL_S = 3,
    KEEP_PROBES = 3,
};

struct rtr_gone {
    int epoll_fd;
    struct kvs_watch *watch;
    struct kvs_timer *sweep;
    void (*on_gone)(void *user, uint64_t id);
    void *user;
    pthread_mutex_t lock; /* guards all below */
    int *fd;
    size_t count, cap;
};

static void look(void *user, int fd, uint32_t events)
{
    struct rtr_gone *g = user;
    struct epoll_event ev[EVENTS_PER_LOOK];
    (void)events;
    int n = epoll_wait(fd, ev, EVENTS_PER_LOOK, 0);
    for (int i = 0; i < n; i++)
        g->on_gone(g->user, ev[i].data.u64);
}

bool rtr_gone_vanished(uint32_t retransmits, uint32_t probes, uint32_t last_ack_ms)
{
    return last_ack_ms >= SILENT_MS && (retransmits >= UNANSWERED || probes >= UNANSWERED);
}

static void sweep(void *user, uint64_t now_us)
{
    struct rtr_gone *g = user;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->count; i++) {
        struct tcp_info t;
        socklen_t n = sizeof(t);
        if (getsockopt(g->fd[i], IPPROTO_TCP, TCP_INFO, &t, &n) == 0 &&
            rtr_gone_vanished(t.tcpi_retransmits, t.tcpi_probes, t.tcpi_last_ack_recv))
            (void)shutdown(g->fd[i], SHUT_RDWR);
    }
    pthread_mutex_unlock(&g->lock);
    kvs_timer_set(g->sweep, now_us + SWEEP_US);
}

kvs_status rtr_gone_create(struct kvs_loop *loop, void (*on_gone)(void *user, uint64_t id), void *user, struct rtr_gone **out)
{
    struct rtr_gone *g = calloc(1, sizeof(*g));
    if (!g)
        return KVS_SELF_NOMEM;
    g->on_gone = on_gone;
    g->user = user;
    pthread_mutex_init(&g->lock, NULL);
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (g->epoll_fd < 0 || kvs_loop_watch(loop, g->epoll_fd, EPOLLIN, look, g, &g->watch) != KVS_OK ||
        kvs_timer_create(loop, sweep, g, &g->sweep) != KVS_OK) {
        rtr_gone_destroy(g);
        return KVS_SELF_IO;
    }
    kvs_timer_set(g->sweep, kvs_now_us() + SWEEP_US);
    *out = g;
    return KVS_OK;
}

void rtr_gone_destroy(struct rtr_gone *g)
{
    if (!g)
        return;
    kvs_timer_destroy(g->sweep);
    if (g->watch)
        kvs_watch_remove(g->watch);
    if (g->epoll_fd >= 0)
        close(g->epoll_fd);
    pthread_mutex_destroy(&g->lock);
    free(g->fd);
    free(g);
}

/* Without them only the sweep would see a client off, and only once something is on its way to it. */
static void keep_alive(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S},
                   {IPPROTO_TCP, TCP_KEEPINTVL, KEEP_INTERVAL_S},
                   {IPPROTO_TCP, TCP_KEEPCNT, KEEP_PROBES}};
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(options[i].value));
}

static kvs_status remember(struct rtr_gone *g, int fd)
{
    kvs_status s = KVS_OK;
    pthread_mutex_lock(&g->lock);
    if (g->count == g->cap) {
        size_t cap = g->cap ? g->cap * 2 : 64;
        int *grown = realloc(g->fd, cap * sizeof(*grown));
        s = grown ? KVS_OK : KVS_SELF_NOMEM;
        g->fd = grown ? grown : g->fd;
        g->cap = grown ? cap : g->cap;
    }
    if (s == KVS_OK)
        g->fd[g->count++] = fd;
    pthread_mutex_unlock(&g->lock);
    return s;
}

kvs_status rtr_gone_add(struct rtr_gone *g, int fd, uint64_t id)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = id};
    if (remember(g, fd) != KVS_OK)
        return KVS_SELF_NOMEM;
    keep_alive(fd);
    if (epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0)
        return KVS_OK;
    rtr_gone_remove(g, fd);
    return KVS_SELF_IO;
}

void rtr_gone_remove(struct rtr_gone *g, int fd)
{
    struct epoll_event none = {0};
    (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, fd, &none); /* not there: nothing to do */
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->count; i++) {
        if (g->fd[i] == fd) {
            g->fd[i] = g->fd[--g->count];
            break;
        }
    }
    pthread_mutex_unlock(&g->lock);
}
