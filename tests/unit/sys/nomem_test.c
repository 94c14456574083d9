/* nomem_test.c - every allocation behind loop, timers, watches, metrics and threads fails in turn: an error comes back, what
 * existed goes on working, nothing leaks (asan, and descriptors are counted here).
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/loop.h"
#include "sys/metrics.h"
#include "sys/thread.h"
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static int fail_at = -1; /* this many allocations from now; -1: never */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *text);

static bool fails(void)
{
    return fail_at >= 0 && fail_at-- == 0;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}
char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

static int next_fd(void)
{
    int fd = dup(0);
    assert_true(fd >= 0);
    close(fd);
    return fd;
}

static void on_timer(void *user, uint64_t now_us)
{
    (void)now_us;
    kvs_loop_stop(user);
}

static void on_fd(void *user, int fd, uint32_t events)
{
    (void)user;
    (void)fd;
    (void)events;
}

static void test_loop(void **state)
{
    (void)state;
    int failures = 0, fd_before = next_fd();
    struct kvs_loop *l = NULL;
    for (int n = 0;; n++) {
        fail_at = n;
        kvs_status st = kvs_loop_create(&l);
        fail_at = -1;
        if (st == KVS_OK) {
            break;
        }
        assert_int_equal(st, KVS_SELF_NOMEM);
        assert_null(l);
        assert_int_equal(next_fd(), fd_before);
        failures++;
    }
    assert_true(failures >= 3);
    struct kvs_timer *t = NULL;
    struct kvs_watch *w = NULL;
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    for (int n = 0; n < 2; n++) {
        fail_at = n;
        assert_int_equal(kvs_timer_create(l, on_timer, l, &t), KVS_SELF_NOMEM);
        assert_null(t);
    }
    fail_at = 0;
    assert_int_equal(kvs_loop_watch(l, pipe_fds[0], EPOLLIN, on_fd, NULL, &w), KVS_SELF_NOMEM);
    assert_null(w);
    fail_at = -1;
    assert_int_equal(kvs_timer_create(l, on_timer, l, &t), KVS_OK);
    assert_int_equal(kvs_loop_watch(l, pipe_fds[0], EPOLLIN, on_fd, NULL, &w), KVS_OK);
    kvs_timer_set(t, 0);
    kvs_loop_run(l);
    kvs_loop_destroy(l);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    assert_int_equal(next_fd(), fd_before);
}

static void test_metrics(void **state)
{
    (void)state;
    struct kvs_metrics *m = NULL;
    for (int n = 0; n < 2; n++) {
        fail_at = n;
        assert_int_equal(kvs_metrics_create(&m), KVS_SELF_NOMEM);
        assert_null(m);
    }
    fail_at = -1;
    assert_int_equal(kvs_metrics_create(&m), KVS_OK);
    int failures = 0;
    struct kvs_counter *c = NULL;
    for (int n = 0; c == NULL; n++, failures++) {
        fail_at = n;
        c = kvs_counter(m, "a_total", "x=\"1\"", "help");
    }
    fail_at = -1;
    assert_true(failures > 4); /* family, name, help, series, labels, and the one that worked */
    kvs_counter_add(c, 5);
    struct kvs_buf out;
    kvs_buf_init(&out, 1000);
    assert_int_equal(kvs_metrics_write(m, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "# HELP a_total help\n# TYPE a_total counter\na_total{x=\"1\"} 5\n");
    kvs_buf_fini(&out);
    kvs_metrics_destroy(m);
}

static void no_work(void *arg)
{
    (void)arg;
}

static void test_thread(void **state)
{
    (void)state;
    struct kvs_thread *t = NULL;
    fail_at = 0;
    assert_int_equal(kvs_thread_start("x", no_work, NULL, &t), KVS_SELF_NOMEM);
    fail_at = -1;
    assert_null(t);
    assert_int_equal(kvs_thread_start("x", no_work, NULL, &t), KVS_OK);
    kvs_thread_join(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loop),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
