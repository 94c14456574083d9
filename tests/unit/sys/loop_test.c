/* loop_test.c - timers in order, posts from other threads exactly once and none lost, watches that remove themselves, signals.
 * Every test arms a guard timer that fails it after 60 s, so that a lost wake-up shows as a failure and not as a hang.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sys/clock.h"
#include "sys/loop.h"
#include "sys/thread.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

static struct kvs_loop *loop;

static void on_guard(void *user, uint64_t now_us)
{
    (void)user;
    (void)now_us;
    fprintf(stderr, "the loop did not finish in 60 s\n");
    abort();
}

static void loop_begin(void)
{
    struct kvs_timer *guard = NULL;
    assert_int_equal(kvs_loop_create(&loop), KVS_OK);
    assert_int_equal(kvs_timer_create(loop, on_guard, NULL, &guard), KVS_OK);
    kvs_timer_set(guard, kvs_now_us() + 60000000);
}

/* ---- timers ---- */

enum { TIMERS = 300 };

struct timed {
    uint64_t at_us, order;
    struct kvs_timer *timer;
};
static struct timed timed[TIMERS];
static size_t fired[TIMERS], fired_count, expected_count;

static void on_timed(void *user, uint64_t now_us)
{
    struct timed *t = user;
    assert_true(now_us >= t->at_us); /* never early */
    assert_true(fired_count < TIMERS);
    fired[fired_count++] = (size_t)(t - timed);
    if (fired_count == expected_count) {
        kvs_loop_stop(loop);
    }
}

static void test_timers_fire_in_order(void **state)
{
    (void)state;
    struct kvs_rng rng = {.state = 4711};
    printf("seed %llu\n", (unsigned long long)rng.state);
    loop_begin();
    uint64_t base = kvs_now_us();
    uint64_t order = 0;
    for (size_t i = 0; i < TIMERS; i++) {
        assert_int_equal(kvs_timer_create(loop, on_timed, &timed[i], &timed[i].timer), KVS_OK);
    }
    for (int step = 0; step < 3000; step++) { /* set, set anew, disarm */
        struct timed *t = &timed[kvs_rng_below(&rng, TIMERS)];
        bool off = kvs_rng_below(&rng, 4) == 0;
        t->at_us = off ? UINT64_MAX : base + kvs_rng_below(&rng, 40) * 1000;
        t->order = order++;
        kvs_timer_set(t->timer, t->at_us);
    }
    expected_count = 0;
    fired_count = 0;
    for (size_t i = 0; i < TIMERS; i++) {
        if (i % 10 == 0) {
            kvs_timer_destroy(timed[i].timer);
            timed[i].at_us = UINT64_MAX;
        }
        expected_count += timed[i].at_us != UINT64_MAX ? 1 : 0;
    }
    assert_true(expected_count > 100);
    kvs_loop_run(loop);
    assert_int_equal(fired_count, expected_count);
    for (size_t i = 1; i < fired_count; i++) {
        struct timed *a = &timed[fired[i - 1]], *b = &timed[fired[i]];
        assert_true(a->at_us < b->at_us || (a->at_us == b->at_us && a->order < b->order));
    }
    kvs_loop_destroy(loop);
}

static struct kvs_timer *again_timer, *victim_timer;
static int again_left;
static bool fd_was_served;

static void on_again(void *user, uint64_t now_us)
{
    (void)user;
    (void)now_us;
    kvs_timer_set(again_timer, 0); /* in the past: must not keep the loop from descriptors */
    if (victim_timer != NULL) {
        kvs_timer_destroy(victim_timer); /* due in this same round */
        victim_timer = NULL;
    }
    if (again_left-- == 0 || fd_was_served) {
        kvs_loop_stop(loop);
    }
}

static void on_victim(void *user, uint64_t now_us)
{
    (void)user;
    (void)now_us;
    fail_msg("a destroyed timer fired");
}

static void on_readable(void *user, int fd, uint32_t events)
{
    char c;
    assert_true((events & EPOLLIN) != 0);
    assert_int_equal(read(fd, &c, 1), 1);
    fd_was_served = true;
    kvs_watch_remove(*(struct kvs_watch **)user);
}

static void test_a_timer_in_the_past_does_not_starve_others(void **state)
{
    (void)state;
    int fds[2];
    struct kvs_watch *w = NULL;
    loop_begin();
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    assert_int_equal(kvs_timer_create(loop, on_again, NULL, &again_timer), KVS_OK);
    assert_int_equal(kvs_timer_create(loop, on_victim, NULL, &victim_timer), KVS_OK);
    kvs_timer_set(again_timer, 0);
    kvs_timer_set(victim_timer, 1);
    assert_int_equal(kvs_loop_watch(loop, fds[0], EPOLLIN, on_readable, &w, &w), KVS_OK);
    again_left = 1000;
    fd_was_served = false;
    kvs_loop_run(loop);
    assert_true(fd_was_served);
    assert_null(victim_timer);
    kvs_loop_destroy(loop);
    close(fds[0]);
    close(fds[1]);
}

/* ---- posts ---- */

enum { POSTERS = 4, POSTS = 20000 };

static uint32_t next_number[POSTERS], posts_run, idle_rounds;
static pthread_t loop_thread;

static void on_post(void *arg)
{
    uint64_t v = (uint64_t)(uintptr_t)arg;
    uint32_t who = (uint32_t)(v >> 32);
    assert_true(pthread_equal(pthread_self(), loop_thread));
    assert_int_equal((uint32_t)v, next_number[who]);
    next_number[who]++;
    if (++posts_run == POSTERS * POSTS) {
        kvs_loop_stop(loop);
    }
}

static void poster(void *arg)
{
    uint64_t who = (uint64_t)(uintptr_t)arg;
    for (uint64_t i = 0; i < POSTS; i++) {
        while (kvs_loop_post(loop, on_post, (void *)(uintptr_t)(who << 32 | i)) != KVS_OK) {
            sched_yield();
        }
        if (i % 64 == 0) {
            kvs_sleep_us(20); /* lets the loop fall asleep: this is where a wake-up could be lost */
        }
    }
}

static void on_idle(void *user, uint64_t now_us)
{
    (void)user;
    (void)now_us;
    idle_rounds++;
}

static void test_posts_of_four_threads_run_once_in_order(void **state)
{
    (void)state;
    struct kvs_thread *t[POSTERS];
    loop_begin();
    loop_thread = pthread_self();
    kvs_loop_on_idle(loop, on_idle, NULL);
    for (uintptr_t i = 0; i < POSTERS; i++) {
        assert_int_equal(kvs_thread_start("poster", poster, (void *)i, &t[i]), KVS_OK);
    }
    kvs_loop_run(loop);
    for (int i = 0; i < POSTERS; i++) {
        kvs_thread_join(t[i]);
        assert_int_equal(next_number[i], POSTS);
    }
    assert_true(idle_rounds > 0);
    kvs_loop_destroy(loop);
}

enum { TURN_TAKERS = 2, TURNS = 15000, TURNS_US = 20000000 }; /* as many as there is time for: each costs switches, which a crowd makes slow */
static _Atomic int turns_run[TURN_TAKERS], turns_asked[TURN_TAKERS], takers_done;
static uint64_t turns_until_us;

static void on_turn(void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, 1);
}

static void take_turns(void *arg)
{
    _Atomic int *run = arg;
    for (int i = 0; i < TURNS && kvs_now_us() < turns_until_us; i++) {
        atomic_fetch_add(&turns_asked[run - turns_run], 1);
        kvs_status st = kvs_loop_post(loop, on_turn, run);
        KVS_ASSERT(st == KVS_OK);
        for (int spin = 0; atomic_load(run) <= i; spin++) { /* a lost wake-up leaves us here until the guard ends it */
            if (i % 2 == 0 || spin > 1000) {
                sched_yield();
            }
        }
    }
    if (atomic_fetch_add(&takers_done, 1) == TURN_TAKERS - 1) {
        kvs_loop_stop(loop);
    }
}

/* Two threads, each with at most one post under way: one's post falls into the other's wake-up, and nobody comes after it. */
static void test_each_single_post_wakes_the_loop(void **state)
{
    (void)state;
    struct kvs_thread *t[TURN_TAKERS];
    loop_begin();
    turns_until_us = kvs_now_us() + TURNS_US;
    for (int i = 0; i < TURN_TAKERS; i++) {
        assert_int_equal(kvs_thread_start("turns", take_turns, &turns_run[i], &t[i]), KVS_OK);
    }
    kvs_loop_run(loop);
    for (int i = 0; i < TURN_TAKERS; i++) {
        kvs_thread_join(t[i]);
        assert_int_equal(atomic_load(&turns_run[i]), atomic_load(&turns_asked[i]));
        assert_true(atomic_load(&turns_run[i]) > 100);
    }
    kvs_loop_destroy(loop);
}

/* ---- bound ---- */

static int bounded_run;

static void on_bounded(void *arg)
{
    (void)arg;
    bounded_run++;
}

static void on_repost(void *arg)
{
    if (*(int *)arg > 0) {
        (*(int *)arg)--;
        assert_int_equal(kvs_loop_post(loop, on_repost, arg), KVS_OK);
    } else {
        kvs_loop_stop(loop);
    }
}

static void test_posts_are_bounded_and_run_before_the_end(void **state)
{
    (void)state;
    loop_begin();
    for (int i = 0; i < 65536; i++) {
        assert_int_equal(kvs_loop_post(loop, on_bounded, NULL), KVS_OK);
    }
    assert_int_equal(kvs_loop_post(loop, on_bounded, NULL), KVS_BUSY_QUEUE);
    kvs_loop_stop(loop); /* before run: run returns, but what was posted has run */
    kvs_loop_run(loop);
    assert_int_equal(bounded_run, 65536);
    int left = 1000;
    assert_int_equal(kvs_loop_post(loop, on_repost, &left), KVS_OK);
    kvs_loop_run(loop); /* may be run again after a stop */
    assert_int_equal(left, 0);
    kvs_loop_destroy(loop);
}

/* ---- watches ---- */

enum { PAIRS = 8 };
static struct kvs_watch *pair_watch[PAIRS];
static int pair_calls;

static void on_pair(void *user, int fd, uint32_t events)
{
    (void)user;
    (void)fd;
    (void)events;
    pair_calls++;
    for (int i = 0; i < PAIRS; i++) { /* all were ready in this round; only the first may be called */
        kvs_watch_remove(pair_watch[i]);
        pair_watch[i] = NULL;
    }
    kvs_loop_stop(loop);
}

static void test_removed_watches_are_not_called(void **state)
{
    (void)state;
    int fds[PAIRS][2];
    loop_begin();
    for (int i = 0; i < PAIRS; i++) {
        assert_int_equal(pipe(fds[i]), 0);
        assert_int_equal(write(fds[i][1], "x", 1), 1);
        assert_int_equal(kvs_loop_watch(loop, fds[i][0], 0, on_pair, NULL, &pair_watch[i]), KVS_OK);
        assert_int_equal(kvs_watch_events(pair_watch[i], EPOLLIN), KVS_OK);
    }
    struct kvs_watch *twice = NULL;
    assert_int_equal(kvs_loop_watch(loop, fds[0][0], EPOLLIN, on_pair, NULL, &twice), KVS_SELF_IO);
    assert_int_equal(kvs_loop_watch(loop, -1, EPOLLIN, on_pair, NULL, &twice), KVS_SELF_IO);
    assert_null(twice);
    kvs_loop_run(loop);
    assert_int_equal(pair_calls, 1);
    kvs_loop_destroy(loop);
    for (int i = 0; i < PAIRS; i++) {
        close(fds[i][0]);
        close(fds[i][1]);
    }
}

/* ---- signals ---- */

static int signal_seen;

static void on_signal(void *user, int signal)
{
    assert_ptr_equal(user, &signal_seen);
    signal_seen = signal;
    kvs_loop_stop(loop);
}

static void test_signals_arrive_as_events(void **state)
{
    (void)state;
    const int signals[] = {SIGTERM, SIGUSR1};
    loop_begin();
    assert_int_equal(kvs_loop_signals(loop, signals, 2, on_signal, &signal_seen), KVS_OK);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    kvs_loop_run(loop);
    assert_int_equal(signal_seen, SIGUSR1);
    kvs_loop_destroy(loop);
    kvs_loop_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timers_fire_in_order),
        cmocka_unit_test(test_a_timer_in_the_past_does_not_starve_others),
        cmocka_unit_test(test_posts_of_four_threads_run_once_in_order),
        cmocka_unit_test(test_each_single_post_wakes_the_loop),
        cmocka_unit_test(test_posts_are_bounded_and_run_before_the_end),
        cmocka_unit_test(test_removed_watches_are_not_called),
        cmocka_unit_test(test_signals_arrive_as_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
