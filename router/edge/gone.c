/* gone.c - see gone.h. One-shot events: a client is reported once, and a level that stays up does not keep the loop busy.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/gone.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { EVENTS_PER_LOOK = 64 };

struct rtr_gone {
    int epoll_fd;
    struct kvs_watch *watch;
    void (*on_gone)(void *user, uint64_t id);
    void *user;
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

kvs_status rtr_gone_create(struct kvs_loop *loop, void (*on_gone)(void *user, uint64_t id), void *user, struct rtr_gone **out)
{
    struct rtr_gone *g = calloc(1, sizeof(*g));
    if (!g)
        return KVS_SELF_NOMEM;
    g->on_gone = on_gone;
    g->user = user;
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (g->epoll_fd < 0 || kvs_loop_watch(loop, g->epoll_fd, EPOLLIN, look, g, &g->watch) != KVS_OK) {
        rtr_gone_destroy(g);
        return KVS_SELF_IO;
    }
    *out = g;
    return KVS_OK;
}

void rtr_gone_destroy(struct rtr_gone *g)
{
    if (!g)
        return;
    if (g->watch)
        kvs_watch_remove(g->watch);
    if (g->epoll_fd >= 0)
        close(g->epoll_fd);
    free(g);
}

kvs_status rtr_gone_add(struct rtr_gone *g, int fd, uint64_t id)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = id};
    return epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0 ? KVS_OK : KVS_SELF_IO;
}

void rtr_gone_remove(struct rtr_gone *g, int fd)
{
    struct epoll_event none = {0};
    (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, fd, &none); /* not there: nothing to do */
}
