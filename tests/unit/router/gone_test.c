/* gone_test.c - clients that leave (FIN, reset), that stop reading, and what counts as vanished. That a vanished host is noticed in time, and
 * one that reads nothing for 25 s is kept, is shown with real wires in tests/cluster/disagree_test.py.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "router/edge/gone.h"
#include "sys/clock.h"

struct seen {
    struct kvs_loop *loop;
    uint64_t id[8];
    int count;
    uint64_t cut_id, cut_at_us;
    rtr_cut why;
    uint32_t waiting_bytes;
    int cuts;
};

static void on_gone(void *user, uint64_t id)
{
    struct seen *s = user;
    assert_true(s->count < 8);
    s->id[s->count++] = id;
    kvs_loop_stop(s->loop);
}

static void on_cut(void *user, uint64_t id, rtr_cut why, uint32_t waiting_bytes)
{
    struct seen *s = user;
    s->cut_id = id;
    s->why = why;
    s->waiting_bytes = waiting_bytes;
    s->cut_at_us = kvs_now_us();
    s->cuts++;
    kvs_loop_stop(s->loop);
}

static struct rtr_gone *watch(struct seen *s, uint64_t stall_us)
{
    struct rtr_gone *g = NULL;
    assert_int_equal(kvs_loop_create(&s->loop), KVS_OK);
    struct rtr_gone_config c = {.loop = s->loop, .stall_us = stall_us, .user = s, .on_gone = on_gone, .on_cut = on_cut};
    assert_int_equal(rtr_gone_create(&c, &g), KVS_OK);
    return g;
}

static void too_late(void *user, uint64_t now_us)
{
    (void)now_us;
    struct seen *s = user;
    kvs_loop_stop(s->loop);
}

/* A connected pair over loopback TCP: ours is the accepted end. */
static void pair(int *ours, int *theirs)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);
    int l = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&a, &n), 0);
    *theirs = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(*theirs, (struct sockaddr *)&a, n), 0);
    *ours = accept(l, NULL, NULL);
    assert_true(*ours >= 0);
    close(l);
}

static void run(struct seen *s, uint64_t us)
{
    struct kvs_timer *t;
    assert_int_equal(kvs_timer_create(s->loop, too_late, s, &t), KVS_OK);
    kvs_timer_set(t, kvs_now_us() + us);
    kvs_loop_run(s->loop);
    kvs_timer_destroy(t);
}

static void test_departures(void **state)
{
    (void)state;
    struct seen s = {0};
    struct rtr_gone *g = watch(&s, 30000000);
    int ours[3], theirs[3], value = 0;
    socklen_t n = sizeof(value);
    for (int i = 0; i < 3; i++) {
        pair(&ours[i], &theirs[i]);
        assert_int_equal(rtr_gone_add(g, ours[i], 100 + (uint64_t)i), KVS_OK);
    }
    assert_int_equal(getsockopt(ours[0], SOL_SOCKET, SO_KEEPALIVE, &value, &n), 0);
    assert_int_equal(value, 1);
    int idle = 0, interval = 0, probes = 0;
    assert_int_equal(getsockopt(ours[0], IPPROTO_TCP, TCP_KEEPIDLE, &idle, &n), 0);
    assert_int_equal(getsockopt(ours[0], IPPROTO_TCP, TCP_KEEPINTVL, &interval, &n), 0);
    assert_int_equal(getsockopt(ours[0], IPPROTO_TCP, TCP_KEEPCNT, &probes, &n), 0);
    assert_in_range(idle + interval * probes, 1, RTR_VANISHED_S);
    close(theirs[1]);
    run(&s, 10000000);
    assert_int_equal(s.count, 1);
    assert_int_equal(s.id[0], 101);
    rtr_gone_remove(g, ours[2]); /* no longer watched: its end is nobody's news */
    close(theirs[2]);
    run(&s, 1500000); /* a sweep passes over a healthy one */
    assert_int_equal(s.count, 1);
    struct linger reset = {1, 0};
    assert_int_equal(setsockopt(theirs[0], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    close(theirs[0]);
    run(&s, 10000000);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.id[1], 100);
    rtr_gone_destroy(g);
    for (int i = 0; i < 3; i++)
        close(ours[i]);
    kvs_loop_destroy(s.loop);
}

#define STALL_US 1000000u

/* Writes until the kernel takes no more, not even some times 5 ms later: their window is shut then, and what is left waits here. When it took
 * the last byte. */
static uint64_t fill(int fd, int tries_max)
{
    static const char bytes[65536];
    uint64_t last_us = kvs_now_us();
    for (int tries = 0; tries < tries_max; tries++) {
        while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
            tries = 0;
            last_us = kvs_now_us();
        }
        kvs_sleep_us(5000);
    }
    return last_us;
}

static size_t drain(int fd, size_t most, int *error_out)
{
    static char bytes[65536];
    size_t all = 0;
    while (all < most) {
        ssize_t n = recv(fd, bytes, most - all < sizeof(bytes) ? most - all : sizeof(bytes), MSG_DONTWAIT);
        *error_out = n < 0 ? errno : 0;
        if (n <= 0)
            break;
        all += (size_t)n;
    }
    return all;
}

/* One does not read, one is idle with nothing waiting: the first is cut, once, in time and with a reset. */
static void test_a_client_that_does_not_read_is_cut(void **state)
{
    (void)state;
    struct seen s = {0};
    struct rtr_gone *g = watch(&s, STALL_US);
    int ours[2], theirs[2], error = 0;
    for (int i = 0; i < 2; i++) {
        pair(&ours[i], &theirs[i]);
        assert_int_equal(rtr_gone_add(g, ours[i], 200 + (uint64_t)i), KVS_OK);
    }
    uint64_t begin = fill(ours[0], 20);
    run(&s, 20 * STALL_US);
    assert_int_equal(s.cuts, 1);
    assert_int_equal(s.cut_id, 200);
    assert_int_equal(s.why, RTR_CUT_STALLED);
    assert_true(s.waiting_bytes > 0);
    printf("cut after %.2f s (limit %.2f), %u bytes waited\n", (double)(s.cut_at_us - begin) * 1e-6, STALL_US * 1e-6, s.waiting_bytes);
    assert_in_range(s.cut_at_us - begin, STALL_US * 3 / 4, 20 * STALL_US);
    for (int i = 0; i < 2; i++) /* its departure, which is told, too; then nothing more */
        run(&s, 2 * STALL_US);
    assert_int_equal(s.cuts, 1);
    rtr_gone_remove(g, ours[0]);
    close(ours[0]); /* as libmicrohttpd does: what has not been taken must not stay in the kernel */
    size_t got = drain(theirs[0], SIZE_MAX, &error);
    assert_int_equal(error, ECONNRESET);
    assert_true(got < s.waiting_bytes); /* what its own kernel had, and nothing of what waited */
    run(&s, 2 * STALL_US);
    assert_int_equal(s.cuts, 1); /* the idle one stays */
    rtr_gone_destroy(g);
    close(ours[1]);
    close(theirs[0]);
    close(theirs[1]);
    kvs_loop_destroy(s.loop);
}

/* Takes some now and then, far more slowly than is written, for several times the limit; then no more. */
static void test_a_slow_client_that_moves_is_kept(void **state)
{
    (void)state;
    struct seen s = {0};
    struct rtr_gone *g = watch(&s, STALL_US);
    int ours, theirs, error = 0;
    pair(&ours, &theirs);
    assert_int_equal(rtr_gone_add(g, ours, 300), KVS_OK);
    uint64_t end = kvs_now_us() + 6 * STALL_US;
    size_t taken = 0;
    while (kvs_now_us() < end) {
        (void)fill(ours, 4);
        run(&s, STALL_US / 10);
        assert_int_equal(s.cuts, 0);
        taken += drain(theirs, 1u << 20, &error);
    }
    (void)fill(ours, 20);
    run(&s, 20 * STALL_US);
    assert_int_equal(s.cuts, 1);
    assert_true(taken >= 8u << 20);
    rtr_gone_destroy(g);
    close(ours);
    close(theirs);
    kvs_loop_destroy(s.loop);
}

static void test_what_counts_as_vanished(void **state)
{
    (void)state;
    assert_false(rtr_gone_vanished(0, 0, 600000)); /* nothing on its way: keepalive's business */
    assert_false(rtr_gone_vanished(6, 0, 9999));   /* a bad line, but it speaks */
    assert_true(rtr_gone_vanished(4, 0, 10000));
    assert_false(rtr_gone_vanished(0, 1, 60000)); /* a shut window whose probes are answered, a minute apart */
    assert_true(rtr_gone_vanished(0, 4, 10000));  /* a shut window and nobody there */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_departures), cmocka_unit_test(test_a_client_that_does_not_read_is_cut),
                                       cmocka_unit_test(test_a_slow_client_that_moves_is_kept), cmocka_unit_test(test_what_counts_as_vanished)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
