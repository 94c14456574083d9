/* gone_test.c - clients that leave (FIN, reset) and what counts as vanished. That a vanished host is noticed in time, and a slow reader kept,
 * is shown with real wires in tests/cluster/disagree_test.py.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "router/edge/gone.h"
#include "sys/clock.h"

struct seen {
    struct kvs_loop *loop;
    uint64_t id[8];
    int count;
};

static void on_gone(void *user, uint64_t id)
{
    struct seen *s = user;
    assert_true(s->count < 8);
    s->id[s->count++] = id;
    kvs_loop_stop(s->loop);
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
    struct rtr_gone *g;
    int ours[3], theirs[3], value = 0;
    socklen_t n = sizeof(value);
    assert_int_equal(kvs_loop_create(&s.loop), KVS_OK);
    assert_int_equal(rtr_gone_create(s.loop, on_gone, &s, &g), KVS_OK);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_departures), cmocka_unit_test(test_what_counts_as_vanished)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
