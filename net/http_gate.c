/* http_gate.c - see http_gate.h.
 *   accepted -> WAITING (bytes are looked at with MSG_PEEK and stay in the socket) --head whole--> handed on
 *                  '--no HTTP, too large, late, no place--> answered, CLOSING (what still comes is thrown away, so that the answer is
 *                                                            not lost to a reset) --EOF or 1 s--> closed
 * Edge-triggered epoll: a half head is looked at again only when more has come. No place, or out of descriptors: accepting pauses for a tenth
 * of a second, whoever is in goes on.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/http_gate.h"
#include "net/http_head.h"
#include "sys/clock.h"
#include "sys/thread.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, ACCEPTS = 64, TICK_MS = 100, CLOSING_US = 1000000 };
enum { ID_LISTEN = NET_GATE_WAITING_MAX, ID_STOP };

typedef enum guest_state { FREE, WAITING, CLOSING } guest_state;

struct guest {
    guest_state state;
    int fd;
    uint64_t since_us;
    struct sockaddr_storage addr;
    socklen_t addr_bytes;
};

struct net_gate {
    struct net_gate_config c;
    int epoll_fd, stop_fd;
    struct kvs_thread *thread;
    struct guest guest[NET_GATE_WAITING_MAX];
    uint64_t paused_until_us;
    bool stopping;
    atomic_uint waiting;
    atomic_ullong passed, refused, late, pushed_out, full;
    char peek[NET_HEAD_BYTES_MAX + 4];
};

static void guest_free(struct net_gate *g, struct guest *x)
{
    if (x->state == WAITING) {
        atomic_fetch_sub(&g->waiting, 1);
    }
    x->state = FREE;
    x->fd = -1;
}

static void guest_drop(struct net_gate *g, struct guest *x)
{
    (void)close(x->fd);
    guest_free(g, x);
}

static const char *reason_of(unsigned status)
{
    switch (status) {
    case 408: return "Request Timeout";
    case 414: return "URI Too Long";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Bad Request";
    }
}

/* Answers and closes; the texts are ours and need no escaping. */
static void guest_refuse(struct net_gate *g, struct guest *x, unsigned status, const char *why)
{
    char body[300], head[700];
    int n = snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}\n",
                     why, status == 503 ? "service_unavailable_error" : "invalid_request_error",
                     status == 503   ? "busy_full"
                     : status == 408 ? "req_deadline"
                                     : "req_invalid");
    int m = snprintf(head, sizeof head,
                     "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s",
                     status, reason_of(status), status == 503 ? "Retry-After: 1\r\n" : "", n, body);
    (void)!send(x->fd, head, (size_t)m, MSG_NOSIGNAL | MSG_DONTWAIT); /* a fresh socket takes so little, or is broken */
    (void)shutdown(x->fd, SHUT_WR);
    if (x->state == WAITING) {
        atomic_fetch_sub(&g->waiting, 1);
    }
    x->state = CLOSING;
    x->since_us = kvs_now_us();
}

static void guest_closing(struct net_gate *g, struct guest *x)
{
    for (int i = 0; i < 64; i++) {
        ssize_t n = recv(x->fd, g->peek, sizeof g->peek, MSG_DONTWAIT);
        if (n > 0) {
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            guest_drop(g, x);
        }
        return;
    }
}

static void guest_look(struct net_gate *g, struct guest *x, bool ended)
{
    const char *why = "";
    ssize_t n = recv(x->fd, g->peek, NET_HEAD_BYTES_MAX, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        guest_drop(g, x);
        return;
    }
    unsigned status = net_http_head(g->peek, (size_t)n, &why);
    if (status == 0 && !ended) {
        return;
    }
    if (status == 0) {
        guest_drop(g, x); /* the rest will never come */
    } else if (status != 200) {
        atomic_fetch_add(&g->refused, 1);
        guest_refuse(g, x, status, why);
    } else if (!g->c.has_place(g->c.user)) {
        atomic_fetch_add(&g->full, 1);
        guest_refuse(g, x, 503, "the server is at its limit of connections; try again soon");
    } else {
        atomic_fetch_add(&g->passed, 1);
        (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, x->fd, NULL);
        g->c.take(g->c.user, x->fd, (const struct sockaddr *)&x->addr, x->addr_bytes);
        guest_free(g, x);
    }
}

static void pause_accepting(struct net_gate *g)
{
    g->paused_until_us = kvs_now_us() + TICK_MS * 1000u;
    (void)epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, g->c.listen_fd, NULL);
}

/* A free place, or that of whoever has been here longest, if that is long enough to be no honest request's head on its way. */
static struct guest *guest_place(struct net_gate *g)
{
    struct guest *oldest = &g->guest[0];
    for (uint32_t i = 0; i < NET_GATE_WAITING_MAX; i++) {
        struct guest *x = &g->guest[i];
        if (x->state == FREE) {
            return x;
        }
        if (x->since_us < oldest->since_us) {
            oldest = x;
        }
    }
    if (kvs_now_us() - oldest->since_us < NET_GATE_PATIENCE_US) {
        return NULL;
    }
    atomic_fetch_add(&g->pushed_out, 1);
    guest_drop(g, oldest);
    return oldest;
}

static void accept_some(struct net_gate *g)
{
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage addr;
        socklen_t bytes = sizeof addr;
        struct guest *x = guest_place(g);
        if (x == NULL) {
            pause_accepting(g);
            return;
        }
        int fd = accept4(g->c.listen_fd, (struct sockaddr *)&addr, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                pause_accepting(g);
            }
            return;
        }
        *x = (struct guest){.state = WAITING, .fd = fd, .since_us = kvs_now_us(), .addr = addr, .addr_bytes = bytes};
        atomic_fetch_add(&g->waiting, 1);
        struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u64 = (uint64_t)(x - g->guest)};
        if (epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
            guest_drop(g, x);
        } else {
            guest_look(g, x, false); /* most heads are there by now */
        }
    }
}

static bool watch_listener(struct net_gate *g)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = ID_LISTEN};
    return epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, g->c.listen_fd, &ev) == 0;
}

static void tick(struct net_gate *g, uint64_t now_us)
{
    for (uint32_t i = 0; i < NET_GATE_WAITING_MAX; i++) {
        struct guest *x = &g->guest[i];
        if (x->state == CLOSING && now_us - x->since_us > CLOSING_US) {
            guest_drop(g, x);
        } else if (x->state == WAITING && now_us - x->since_us > g->c.head_us) {
            atomic_fetch_add(&g->late, 1);
            guest_refuse(g, x, 408, "the request's head did not arrive in time");
        }
    }
    if (g->paused_until_us != 0 && now_us >= g->paused_until_us && watch_listener(g)) {
        g->paused_until_us = 0;
    }
}

static void gate_run(void *arg)
{
    struct net_gate *g = arg;
    struct epoll_event ev[EVENTS];
    uint64_t tick_us = 0;
    while (!g->stopping) {
        int n = epoll_wait(g->epoll_fd, ev, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++) {
            uint64_t id = ev[i].data.u64;
            if (id == ID_STOP) {
                g->stopping = true;
            } else if (id == ID_LISTEN) {
                accept_some(g);
            } else if (g->guest[id].state == WAITING) {
                guest_look(g, &g->guest[id], (ev[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
            } else if (g->guest[id].state == CLOSING) {
                guest_closing(g, &g->guest[id]);
            }
        }
        uint64_t now = kvs_now_us();
        if (now - tick_us >= TICK_MS * 1000u) {
            tick_us = now;
            tick(g, now);
        }
    }
}

kvs_status net_gate_start(const struct net_gate_config *c, struct net_gate **out)
{
    struct net_gate *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return KVS_SELF_NOMEM;
    }
    g->c = *c;
    g->c.head_us = c->head_us != 0 ? c->head_us : NET_GATE_HEAD_US;
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    g->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = ID_STOP};
    bool good = g->epoll_fd >= 0 && g->stop_fd >= 0 && epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, g->stop_fd, &ev) == 0 &&
                watch_listener(g);
    kvs_status s = good ? kvs_thread_start("http-gate", gate_run, g, &g->thread) : KVS_SELF_IO;
    if (s != KVS_OK) {
        g->c.listen_fd = -1; /* stays the caller's */
        net_gate_stop(g);
        return s;
    }
    *out = g;
    return KVS_OK;
}

void net_gate_stop(struct net_gate *g)
{
    if (g == NULL) {
        return;
    }
    uint64_t one = 1;
    (void)!write(g->stop_fd, &one, sizeof one);
    kvs_thread_join(g->thread);
    for (uint32_t i = 0; i < NET_GATE_WAITING_MAX; i++) {
        if (g->guest[i].state != FREE) {
            guest_drop(g, &g->guest[i]);
        }
    }
    if (g->c.listen_fd >= 0) {
        (void)close(g->c.listen_fd);
    }
    if (g->epoll_fd >= 0) {
        (void)close(g->epoll_fd);
    }
    if (g->stop_fd >= 0) {
        (void)close(g->stop_fd);
    }
    free(g);
}

void net_gate_counters(struct net_gate *g, struct net_gate_counters *out)
{
    *out = (struct net_gate_counters){.passed = atomic_load(&g->passed),
                                      .refused = atomic_load(&g->refused),
                                      .late = atomic_load(&g->late),
                                      .pushed_out = atomic_load(&g->pushed_out),
                                      .full = atomic_load(&g->full),
                                      .waiting = atomic_load(&g->waiting)};
}
