/* gone.c - see gone.h. One-shot events: a client is reported once, and a level that stays up does not keep the loop busy.
 * The socket of a client that is given up is shut down here, which lets libmicrohttpd drop the connection; with SO_LINGER 0 its close resets,
 * so that no orphan with a full send buffer stays in the kernel for as long as the other side answers probes.
 * What a client has taken are the bytes that its kernel has confirmed: tcpi_bytes_acked; what waits is what this kernel still has (SIOCOUTQ).
 * When that is nothing, the client is not to blame. linux/tcp.h: the C library's copy of struct tcp_info ends before that field.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/gone.h"

#include "sys/clock.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    EVENTS_PER_LOOK = 64,
    CUTS_PER_SWEEP = 64,
    SWEEP_US = 1000000,
    SWEEPS_PER_STALL = 8, /* with a short time the looks are nearer */
    SWEEP_MIN_US = 10000,
    SILENT_MS = 10000,
    UNANSWERED = 4,
    /* keepalive: 5 s of nothing, then three probes, 3 s apart */
    KEEP_IDLE_S = 5,
    KEEP_INTERVAL_S = 3,
    KEEP_PROBES = 3,
};

struct watched {
    int fd;
    bool cut; /* shut down: libmicrohttpd will say that it is over */
    uint64_t id;
    struct rtr_stall stall;
};

struct rtr_gone {
    struct rtr_gone_config config;
    int epoll_fd;
    struct kvs_watch *watch;
    struct kvs_timer *sweep;
    pthread_mutex_t lock; /* guards all below */
    struct watched *all;
    size_t count, cap;
};

static void look(void *user, int fd, uint32_t events)
{
    struct rtr_gone *g = user;
    struct epoll_event ev[EVENTS_PER_LOOK];
    (void)events;
    int n = epoll_wait(fd, ev, EVENTS_PER_LOOK, 0);
    for (int i = 0; i < n; i++)
        g->config.on_gone(g->config.user, ev[i].data.u64);
}

bool rtr_gone_vanished(uint32_t retransmits, uint32_t probes, uint32_t last_ack_ms)
{
    return last_ack_ms >= SILENT_MS && (retransmits >= UNANSWERED || probes >= UNANSWERED);
}

struct cut {
    uint64_t id;
    rtr_cut why;
    uint32_t waiting_bytes;
};

/* Is it to be given up, and why? */
static bool hopeless(struct watched *w, uint64_t stall_us, uint64_t now_us, struct cut *out)
{
    struct tcp_info t = {0};
    socklen_t n = sizeof(t);
    int waiting = 0;
    if (getsockopt(w->fd, IPPROTO_TCP, TCP_INFO, &t, &n) != 0 || ioctl(w->fd, SIOCOUTQ, &waiting) != 0)
        return false;
    bool vanished = rtr_gone_vanished(t.tcpi_retransmits, t.tcpi_probes, t.tcpi_last_ack_recv);
    bool stalled = rtr_stall_look(&w->stall, t.tcpi_bytes_acked, waiting > 0, stall_us, now_us);
    *out = (struct cut){w->id, vanished ? RTR_CUT_VANISHED : RTR_CUT_STALLED, (uint32_t)waiting};
    return vanished || stalled;
}

static void sweep(void *user, uint64_t now_us)
{
    static const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct rtr_gone *g = user;
    struct cut cut[CUTS_PER_SWEEP];
    size_t cuts = 0;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->count && cuts < CUTS_PER_SWEEP; i++) {
        struct watched *w = &g->all[i];
        if (w->cut || !hopeless(w, g->config.stall_us, now_us, &cut[cuts]))
            continue;
        w->cut = true;
        cuts++;
        (void)setsockopt(w->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        (void)shutdown(w->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&g->lock);
    for (size_t i = 0; i < cuts; i++)
        g->config.on_cut(g->config.user, cut[i].id, cut[i].why, cut[i].waiting_bytes);
    uint64_t period_us = g->config.stall_us / SWEEPS_PER_STALL;
    kvs_timer_set(g->sweep, now_us + (period_us < SWEEP_MIN_US ? SWEEP_MIN_US : period_us < SWEEP_US ? period_us : SWEEP_US));
}

kvs_status rtr_gone_create(const struct rtr_gone_config *c, struct rtr_gone **out)
{
    struct rtr_gone *g = calloc(1, sizeof(*g));
    if (!g)
        return KVS_SELF_NOMEM;
    KVS_ASSERT(c->stall_us != 0);
    g->config = *c;
    pthread_mutex_init(&g->lock, NULL);
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (g->epoll_fd < 0 || kvs_loop_watch(c->loop, g->epoll_fd, EPOLLIN, look, g, &g->watch) != KVS_OK ||
        kvs_timer_create(c->loop, sweep, g, &g->sweep) != KVS_OK) {
        rtr_gone_destroy(g);
        return KVS_SELF_IO;
    }
    kvs_timer_set(g->sweep, kvs_now_us());
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
    free(g->all);
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

static kvs_status remember(struct rtr_gone *g, int fd, uint64_t id)
{
    kvs_status s = KVS_OK;
    pthread_mutex_lock(&g->lock);
    if (g->count == g->cap) {
        size_t cap = g->cap ? g->cap * 2 : 64;
        struct watched *grown = realloc(g->all, cap * sizeof(*grown));
        s = grown ? KVS_OK : KVS_SELF_NOMEM;
        g->all = grown ? grown : g->all;
        g->cap = grown ? cap : g->cap;
    }
    if (s == KVS_OK)
        g->all[g->count++] = (struct watched){.fd = fd, .id = id};
    pthread_mutex_unlock(&g->lock);
    return s;
}

kvs_status rtr_gone_add(struct rtr_gone *g, int fd, uint64_t id)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = id};
    if (remember(g, fd, id) != KVS_OK)
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
        if (g->all[i].fd == fd) {
            g->all[i] = g->all[--g->count];
            break;
        }
    }
    pthread_mutex_unlock(&g->lock);
}
