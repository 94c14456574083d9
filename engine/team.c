/* team.c - barriers that spin, yield, then sleep; members that sleep on a condition when there is no step.
 *
 * A step has some three hundred barriers, most of them a few microseconds after the one before, so waiting begins with a short
 * spin. It must not go on: with more threads than cores (a prefill and a decode worker on a laptop) the thread waited for may
 * need this very core, so after some microseconds the core is yielded, and after some hundred yields the waiter sleeps in the
 * kernel (futex) until the last one arrives. Between runs a member waits in the same way, then sleeps on a condition: an idle
 * worker must not burn a core.
 *
 * Tickets: two counters take turns. The last to arrive at the barrier that ends phase p clears p's counter, which is used
 * again in phase p + 2, so nobody can see it half cleared.
 * Sleep: a member raises `sleepers`, then looks at `run` again; run() raises `run`, then looks at `sleepers`: with
 * sequentially consistent operations at least one of them sees the other. The barrier's `sleeping` and `passed` likewise.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/team.h"
#include "sys/thread.h"
#include <pthread.h>
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 200u /* some 5 us */
#define BARRIER_YIELDS 200u
#define IDLE_YIELDS 20u

struct eng_team {
    uint32_t threads;
    eng_team_fn fn; /* written by the device thread before `run` is raised */
    void *arg;
    atomic_uint run; /* counts runs; a change wakes the members */
    atomic_bool quit;
    atomic_uint sleepers;
    _Alignas(64) atomic_uint arrived;
    atomic_uint passed;   /* barriers completed since creation; the futex word */
    atomic_uint sleeping; /* members in the kernel, waiting for `passed` to change */
    _Alignas(64) atomic_uint ticket[2];
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool sync_ready;
    struct kvs_thread **thread; /* [threads - 1], owned */
    struct start {
        struct eng_team *team;
        uint32_t index;
    } * start;
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Spins, then yields, until *word differs from seen; false when it still does not after `yields` yields. */
static bool wait_awake(const atomic_uint *word, unsigned seen, uint32_t yields)
{
    for (uint32_t spins = 0; spins < SPINS + yields; spins++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) {
            return true;
        }
        if (spins < SPINS) {
            pause_cpu();
        } else {
            (void)sched_yield();
        }
    }
    return false;
}

static void barrier_sleep(struct eng_team *t, unsigned seen)
{
    atomic_fetch_add(&t->sleeping, 1);
    while (atomic_load(&t->passed) == seen) {
        (void)syscall(SYS_futex, &t->passed, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    atomic_fetch_sub(&t->sleeping, 1);
}

void eng_team_barrier(struct eng_member *self)
{
    struct eng_team *t = self->team;
    uint32_t phase = self->phase++;
    if (t->threads == 1) {
        atomic_store_explicit(&t->ticket[phase & 1u], 0, memory_order_relaxed);
        return;
    }
    unsigned passed = atomic_load_explicit(&t->passed, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) == t->threads - 1) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&t->ticket[phase & 1u], 0, memory_order_relaxed);
        atomic_store(&t->passed, passed + 1);
        if (atomic_load(&t->sleeping) != 0) {
            (void)syscall(SYS_futex, &t->passed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        }
        return;
    }
    if (!wait_awake(&t->passed, passed, BARRIER_YIELDS)) {
        barrier_sleep(t, passed);
    }
}

uint32_t eng_team_ticket(struct eng_member *self)
{
    return atomic_fetch_add_explicit(&self->team->ticket[self->phase & 1u], 1, memory_order_relaxed);
}

static void wait_for_run(struct eng_team *t, unsigned seen)
{
    if (wait_awake(&t->run, seen, IDLE_YIELDS)) {
        return;
    }
    (void)pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(&t->run) == seen) {
        (void)pthread_cond_wait(&t->wake, &t->lock);
    }
    atomic_fetch_sub(&t->sleepers, 1);
    (void)pthread_mutex_unlock(&t->lock);
}

static void member_main(void *arg)
{
    struct start *s = arg;
    struct eng_team *t = s->team;
    kvs_fp_environment();
    for (unsigned seen = 0;; seen++) {
        wait_for_run(t, seen);
        if (atomic_load(&t->quit)) {
            return;
        }
        struct eng_member self = {.team = t, .index = s->index, .phase = 0};
        t->fn(t->arg, &self);
        eng_team_barrier(&self);
    }
}

/* Raises `run` and wakes who sleeps. */
static void release_members(struct eng_team *t)
{
    atomic_fetch_add(&t->run, 1);
    if (atomic_load(&t->sleepers) != 0) {
        (void)pthread_mutex_lock(&t->lock);
        (void)pthread_cond_broadcast(&t->wake);
        (void)pthread_mutex_unlock(&t->lock);
    }
}

void eng_team_run(struct eng_team *t, eng_team_fn fn, void *arg)
{
    struct eng_member self = {.team = t, .index = 0, .phase = 0};
    t->fn = fn;
    t->arg = arg;
    atomic_store(&t->ticket[0], 0);
    atomic_store(&t->ticket[1], 0);
    kvs_fp_environment();
    if (t->threads > 1) {
        release_members(t);
    }
    fn(arg, &self);
    eng_team_barrier(&self);
}

uint32_t eng_team_threads(const struct eng_team *t)
{
    return t->threads;
}

kvs_status eng_team_create(uint32_t threads, struct eng_team **out)
{
    KVS_ASSERT(threads >= 1 && threads <= ENG_THREADS_MAX);
    struct eng_team *t = aligned_alloc(64, (sizeof *t + 63) / 64 * 64);
    if (t == NULL) {
        return KVS_SELF_NOMEM;
    }
    *t = (struct eng_team){.threads = 1};
    kvs_status status = KVS_SELF_NOMEM;
    t->thread = calloc(threads, sizeof *t->thread);
    t->start = calloc(threads, sizeof *t->start);
    if (t->thread == NULL || t->start == NULL) {
        goto fail;
    }
    if (pthread_mutex_init(&t->lock, NULL) != 0 || pthread_cond_init(&t->wake, NULL) != 0) {
        goto fail;
    }
    t->sync_ready = true;
    for (uint32_t i = 1; i < threads; i++) {
        t->start[i - 1] = (struct start){.team = t, .index = i};
        status = kvs_thread_start("kvs-engine", member_main, &t->start[i - 1], &t->thread[i - 1]);
        if (status != KVS_OK) {
            goto fail;
        }
        t->threads = i + 1; /* nobody reads it before the first run */
    }
    *out = t;
    return KVS_OK;
fail:
    eng_team_destroy(t);
    return status;
}

void eng_team_destroy(struct eng_team *t)
{
    if (t == NULL) {
        return;
    }
    if (t->sync_ready) {
        atomic_store(&t->quit, true);
        release_members(t);
        for (uint32_t i = 1; i < t->threads; i++) {
            kvs_thread_join(t->thread[i - 1]);
        }
        (void)pthread_cond_destroy(&t->wake);
        (void)pthread_mutex_destroy(&t->lock);
    }
    free(t->start);
    free(t->thread);
    free(t);
}
