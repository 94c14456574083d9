/* loop.h - the daemon's event loop: epoll, timers, work posted by other threads, signals.
 * Owner thread: the one that calls kvs_loop_run. Everything but kvs_loop_post and kvs_loop_stop is for that thread
 * (or for set-up before run). Callbacks may remove any watch, their own too.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_LOOP_H
#define KVS_SYS_LOOP_H

#include "base/error.h"

struct kvs_loop;
struct kvs_watch;
struct kvs_timer;

typedef void (*kvs_fd_fn)(void *user, int fd, uint32_t epoll_events);
typedef void (*kvs_timer_fn)(void *user, uint64_t now_us);
typedef void (*kvs_post_fn)(void *arg);
typedef void (*kvs_idle_fn)(void *user, uint64_t now_us);

KVS_MUST_CHECK kvs_status kvs_loop_create(struct kvs_loop **out);
void kvs_loop_destroy(struct kvs_loop *l);
void kvs_loop_run(struct kvs_loop *l);  /* until kvs_loop_stop */
void kvs_loop_stop(struct kvs_loop *l); /* any thread, async-signal-safe */

KVS_MUST_CHECK kvs_status kvs_loop_watch(struct kvs_loop *l, int fd, uint32_t epoll_events, kvs_fd_fn fn, void *user, struct kvs_watch **out);
KVS_MUST_CHECK kvs_status kvs_watch_events(struct kvs_watch *w, uint32_t epoll_events);
void kvs_watch_remove(struct kvs_watch *w);

/* A timer is armed by kvs_timer_set (absolute, kvs_now_us time; UINT64_MAX disarms) and fires once. */
KVS_MUST_CHECK kvs_status kvs_timer_create(struct kvs_loop *l, kvs_timer_fn fn, void *user, struct kvs_timer **out);
void kvs_timer_set(struct kvs_timer *t, uint64_t at_us);
void kvs_timer_destroy(struct kvs_timer *t);

/* Runs fn(arg) once on the loop thread. Any thread. Bounded: KVS_BUSY_QUEUE when 65536 are waiting. */
KVS_MUST_CHECK kvs_status kvs_loop_post(struct kvs_loop *l, kvs_post_fn fn, void *arg);
/* Called after every round of events, before the loop sleeps: where a core's actions are drained. */
void kvs_loop_on_idle(struct kvs_loop *l, kvs_idle_fn fn, void *user);
/* signalfd for the given signals (blocked in this thread and those created later). */
KVS_MUST_CHECK kvs_status kvs_loop_signals(struct kvs_loop *l, const int *signals, size_t n, void (*fn)(void *user, int signal), void *user);

#endif
