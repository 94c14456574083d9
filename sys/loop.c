/* loop.c - epoll, an eventfd, a heap of timers and a ring of posted work.
 * A round: sleep in epoll until a descriptor, a wake-up or the first deadline; descriptors; due timers; posted work; idle.
 *
 * Wake-ups are not lost: a poster pushes, then sets wake_pending and writes the eventfd if it was clear. The loop reads the
 * eventfd, then clears wake_pending, then pops. A push that the pops miss therefore sees the flag clear and writes again.
 * (Reading after clearing would eat that second write.) Under a flood of posts only one write a round is made.
 *
 * Timers that are due together are taken off the heap before the first one runs: a callback that sets its timer into the past
 * gets another round, not an endless one. The heap's array grows in kvs_timer_create, so that setting a timer cannot fail.
 * Watches removed inside a round may still stand in epoll's answer; they are marked and freed at the round's end.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/loop.h"

#include "base/ring.h"
#include "sys/clock.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { POSTS_MAX = 65536, EVENTS_PER_ROUND = 128, NOT_IN_HEAP = -1, SIGNAL_SETS_MAX = 4 };

/* Owner thread: the loop's. */
struct kvs_watch {
    struct kvs_loop *loop;
    struct kvs_watch *prev, *next; /* loop->watches, or loop->removed (next only) */
    int fd;
    bool dead;
    kvs_fd_fn fn;
    void *user;
};

/* Owner thread: the loop's. In the heap, in the due list, or in neither. */
struct kvs_timer {
    struct kvs_loop *loop;
    struct kvs_timer *all_prev, *all_next;
    struct kvs_timer *due_prev, *due_next;
    uint64_t at_us, order; /* order: timers with the same time fire as they were set */
    ptrdiff_t index;       /* in the heap */
    bool due;
    kvs_timer_fn fn;
    void *user;
};

struct post {
    kvs_post_fn fn;
    void *arg;
};

struct signal_set {
    struct kvs_watch *watch;
    int fd;
    void (*fn)(void *user, int signal);
    void *user;
};

/* Owner thread: the one that runs it. Other threads touch posts, wake_fd and the two atomics only. */
struct kvs_loop {
    int epoll_fd, wake_fd;
    _Atomic bool stop, wake_pending;
    struct kvs_ring *posts;
    struct kvs_watch *watches, *removed;
    struct kvs_timer *timers;
    struct kvs_timer **heap;
    size_t heap_len, heap_cap, timer_count;
    struct kvs_timer *due_first, *due_last;
    uint64_t order_next;
    bool dispatching, again; /* again: work is left, do not sleep */
    kvs_idle_fn idle;
    void *idle_user;
    struct signal_set signals[SIGNAL_SETS_MAX];
    size_t signal_sets;
};

/* ---- timers ---- */

static bool before(const struct kvs_timer *a, const struct kvs_timer *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void heap_put(struct kvs_loop *l, size_t i, struct kvs_timer *t)
{
    l->heap[i] = t;
    t->index = (ptrdiff_t)i;
}

/* Moves the timer that belongs at or above/below slot i to its place. */
static void heap_settle(struct kvs_loop *l, size_t i, struct kvs_timer *t)
{
    while (i > 0 && before(t, l->heap[(i - 1) / 2])) {
        heap_put(l, i, l->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        size_t child = i * 2 + 1;
        if (child >= l->heap_len) {
            break;
        }
        if (child + 1 < l->heap_len && before(l->heap[child + 1], l->heap[child])) {
            child++;
        }
        if (!before(l->heap[child], t)) {
            break;
        }
        heap_put(l, i, l->heap[child]);
        i = child;
    }
    heap_put(l, i, t);
}

static void disarm(struct kvs_timer *t)
{
    struct kvs_loop *l = t->loop;
    if (t->index != NOT_IN_HEAP) {
        size_t i = (size_t)t->index;
        KVS_ASSERT(i < l->heap_len && l->heap[i] == t);
        struct kvs_timer *last = l->heap[--l->heap_len];
        t->index = NOT_IN_HEAP;
        if (last != t) {
            heap_settle(l, i, last);
        }
    }
    if (t->due) {
        *(t->due_prev != NULL ? &t->due_prev->due_next : &l->due_first) = t->due_next;
        *(t->due_next != NULL ? &t->due_next->due_prev : &l->due_last) = t->due_prev;
        t->due_prev = t->due_next = NULL;
        t->due = false;
    }
}

kvs_status kvs_timer_create(struct kvs_loop *l, kvs_timer_fn fn, void *user, struct kvs_timer **out)
{
    if (l->timer_count == l->heap_cap) {
        size_t cap = l->heap_cap == 0 ? 16 : l->heap_cap * 2;
        struct kvs_timer **heap = realloc(l->heap, cap * sizeof(*heap));
        if (heap == NULL) {
            return KVS_SELF_NOMEM;
        }
        l->heap = heap;
        l->heap_cap = cap;
    }
    struct kvs_timer *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return KVS_SELF_NOMEM;
    }
    *t = (struct kvs_timer){.loop = l, .fn = fn, .user = user, .index = NOT_IN_HEAP, .all_next = l->timers};
    if (l->timers != NULL) {
        l->timers->all_prev = t;
    }
    l->timers = t;
    l->timer_count++;
    *out = t;
    return KVS_OK;
}

void kvs_timer_set(struct kvs_timer *t, uint64_t at_us)
{
    struct kvs_loop *l = t->loop;
    disarm(t);
    if (at_us == UINT64_MAX) {
        return;
    }
    t->at_us = at_us;
    t->order = l->order_next++;
    KVS_ASSERT(l->heap_len < l->heap_cap);
    heap_settle(l, l->heap_len++, t);
}

void kvs_timer_destroy(struct kvs_timer *t)
{
    if (t == NULL) {
        return;
    }
    struct kvs_loop *l = t->loop;
    disarm(t);
    *(t->all_prev != NULL ? &t->all_prev->all_next : &l->timers) = t->all_next;
    if (t->all_next != NULL) {
        t->all_next->all_prev = t->all_prev;
    }
    l->timer_count--;
    free(t);
}

static void fire_timers(struct kvs_loop *l)
{
    if (l->heap_len == 0) {
        return;
    }
    uint64_t now = kvs_now_us();
    while (l->heap_len > 0 && l->heap[0]->at_us <= now) {
        struct kvs_timer *t = l->heap[0];
        disarm(t);
        t->due = true;
        t->due_prev = l->due_last;
        *(l->due_last != NULL ? &l->due_last->due_next : &l->due_first) = t;
        l->due_last = t;
    }
    while (l->due_first != NULL) {
        struct kvs_timer *t = l->due_first;
        disarm(t);
        t->fn(t->user, now); /* may destroy t */
    }
}

/* ---- descriptors ---- */

kvs_status kvs_loop_watch(struct kvs_loop *l, int fd, uint32_t epoll_events, kvs_fd_fn fn, void *user,
                          struct kvs_watch **out)
{
    struct kvs_watch *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return KVS_SELF_NOMEM;
    }
    *w = (struct kvs_watch){.loop = l, .fd = fd, .fn = fn, .user = user, .next = l->watches};
    struct epoll_event ev = {.events = epoll_events, .data.ptr = w};
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
        free(w);
        return KVS_SELF_IO;
    }
    if (l->watches != NULL) {
        l->watches->prev = w;
    }
    l->watches = w;
    *out = w;
    return KVS_OK;
}

kvs_status kvs_watch_events(struct kvs_watch *w, uint32_t epoll_events)
{
    KVS_ASSERT(!w->dead);
    struct epoll_event ev = {.events = epoll_events, .data.ptr = w};
    return epoll_ctl(w->loop->epoll_fd, EPOLL_CTL_MOD, w->fd, &ev) == 0 ? KVS_OK : KVS_SELF_IO;
}

void kvs_watch_remove(struct kvs_watch *w)
{
    if (w == NULL) {
        return;
    }
    KVS_ASSERT(!w->dead);
    struct kvs_loop *l = w->loop;
    (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL); /* fails when fd was closed before: gone all the same */
    *(w->prev != NULL ? &w->prev->next : &l->watches) = w->next;
    if (w->next != NULL) {
        w->next->prev = w->prev;
    }
    w->dead = true;
    w->prev = NULL;
    w->next = l->removed;
    l->removed = w;
}

static void free_removed(struct kvs_loop *l)
{
    while (l->removed != NULL) {
        struct kvs_watch *w = l->removed;
        l->removed = w->next;
        free(w);
    }
}

/* ---- posted work ---- */

static void wake(struct kvs_loop *l)
{
    int saved = errno;
    const uint64_t one = 1;
    ssize_t n;
    do {
        n = write(l->wake_fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
    /* EAGAIN: the counter is at its maximum, so the loop wakes anyway. */
    errno = saved;
}

kvs_status kvs_loop_post(struct kvs_loop *l, kvs_post_fn fn, void *arg)
{
    const struct post p = {fn, arg};
    kvs_status st = kvs_ring_push(l->posts, &p);
    if (st == KVS_OK && !atomic_exchange(&l->wake_pending, true)) {
        wake(l);
    }
    return st;
}

void kvs_loop_stop(struct kvs_loop *l)
{
    atomic_store(&l->stop, true);
    wake(l);
}

static void run_posts(struct kvs_loop *l, size_t at_most)
{
    struct post p;
    while (at_most > 0 && kvs_ring_pop(l->posts, &p)) {
        p.fn(p.arg);
        at_most--;
    }
    /* Stopped by the bound: look again without sleeping. Stopped by the ring: whoever pushes next wakes us. */
    l->again = l->again || (at_most == 0 && kvs_ring_count(l->posts) > 0);
}

static void take_wake_up(struct kvs_loop *l)
{
    uint64_t n;
    ssize_t got = read(l->wake_fd, &n, sizeof n);
    KVS_ASSERT(got == (ssize_t)sizeof n || errno == EAGAIN || errno == EINTR);
    atomic_exchange(&l->wake_pending, false);
}

/* ---- signals ---- */

static void on_signal_fd(void *user, int fd, uint32_t events)
{
    struct signal_set *set = user;
    (void)events;
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
        set->fn(set->user, (int)info.ssi_signo);
    }
}

kvs_status kvs_loop_signals(struct kvs_loop *l, const int *signals, size_t n, void (*fn)(void *user, int signal),
                            void *user)
{
    if (l->signal_sets == SIGNAL_SETS_MAX) {
        return KVS_BUSY_FULL;
    }
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < n; i++) {
        sigaddset(&set, signals[i]);
    }
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0) {
        return KVS_SELF_IO;
    }
    struct signal_set *s = &l->signals[l->signal_sets];
    *s = (struct signal_set){.fn = fn, .user = user};
    s->fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->fd < 0) {
        return KVS_SELF_IO;
    }
    kvs_status st = kvs_loop_watch(l, s->fd, EPOLLIN, on_signal_fd, s, &s->watch);
    if (st != KVS_OK) {
        (void)close(s->fd);
        return st;
    }
    l->signal_sets++;
    return KVS_OK;
}

/* ---- the loop ---- */

kvs_status kvs_loop_create(struct kvs_loop **out)
{
    struct kvs_loop *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return KVS_SELF_NOMEM;
    }
    kvs_status st = KVS_SELF_IO;
    l->wake_fd = -1;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll_fd < 0) {
        goto fail;
    }
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL}; /* NULL: the wake-up */
    if (l->wake_fd < 0 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->wake_fd, &ev) != 0) {
        goto fail;
    }
    st = kvs_ring_create(POSTS_MAX, sizeof(struct post), &l->posts);
    if (st != KVS_OK) {
        goto fail;
    }
    *out = l;
    return KVS_OK;
fail:
    kvs_loop_destroy(l);
    return st;
}

void kvs_loop_destroy(struct kvs_loop *l)
{
    if (l == NULL) {
        return;
    }
    KVS_ASSERT(!l->dispatching);
    for (size_t i = 0; i < l->signal_sets; i++) {
        (void)close(l->signals[i].fd);
    }
    while (l->watches != NULL) {
        struct kvs_watch *next = l->watches->next;
        free(l->watches);
        l->watches = next;
    }
    free_removed(l);
    while (l->timers != NULL) {
        kvs_timer_destroy(l->timers);
    }
    free(l->heap);
    kvs_ring_destroy(l->posts);
    if (l->wake_fd >= 0) {
        (void)close(l->wake_fd);
    }
    if (l->epoll_fd >= 0) {
        (void)close(l->epoll_fd);
    }
    free(l);
}

void kvs_loop_on_idle(struct kvs_loop *l, kvs_idle_fn fn, void *user)
{
    l->idle = fn;
    l->idle_user = user;
}

static int wait_events(struct kvs_loop *l, struct epoll_event *events)
{
    struct timespec ts = {0, 0};
    struct timespec *timeout = NULL;
    if (l->again) {
        timeout = &ts;
    } else if (l->heap_len > 0) {
        uint64_t now = kvs_now_us();
        uint64_t us = l->heap[0]->at_us > now ? l->heap[0]->at_us - now : 0;
        const uint64_t day = (uint64_t)86400 * 1000000;
        us = us < day ? us : day;
        ts = (struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
        timeout = &ts;
    }
    l->again = false;
    int n = epoll_pwait2(l->epoll_fd, events, EVENTS_PER_ROUND, timeout, NULL);
    if (n < 0 && errno == ENOSYS) { /* kernels before 5.11: whole milliseconds, rounded up */
        int ms = timeout == NULL ? -1 : (int)(ts.tv_sec * 1000 + (ts.tv_nsec + 999999) / 1000000);
        n = epoll_wait(l->epoll_fd, events, EVENTS_PER_ROUND, ms);
    }
    KVS_ASSERT(n >= 0 || errno == EINTR);
    return n;
}

static void one_round(struct kvs_loop *l)
{
    struct epoll_event events[EVENTS_PER_ROUND];
    int n = wait_events(l, events);
    l->dispatching = true;
    for (int i = 0; i < n; i++) {
        struct kvs_watch *w = events[i].data.ptr;
        if (w == NULL) {
            take_wake_up(l);
        } else if (!w->dead) {
            w->fn(w->user, w->fd, events[i].events);
        }
    }
    fire_timers(l);
    run_posts(l, kvs_ring_count(l->posts)); /* bounded: a post that posts again waits for the next round */
    if (l->idle != NULL) {
        l->idle(l->idle_user, kvs_now_us());
    }
    l->dispatching = false;
    free_removed(l);
}

void kvs_loop_run(struct kvs_loop *l)
{
    KVS_ASSERT(!l->dispatching);
    while (!atomic_load(&l->stop)) {
        one_round(l);
    }
    /* What was posted before the stop still runs: each post runs exactly once. */
    l->dispatching = true;
    run_posts(l, POSTS_MAX);
    l->dispatching = false;
    free_removed(l);
    atomic_store(&l->stop, false);
}
