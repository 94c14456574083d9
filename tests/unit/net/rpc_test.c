/* rpc_test.c - two endpoints that behave: calls both ways, items in order, ends, cancels, deadlines, credit,
 * reconnecting.
 * Everything runs over ipc and over tcp.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rpc_harness.h"
#include "sys/clock.h"
#include "tests/support/calm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct endpoint a, b;
static net_conn at_a, at_b;

static const char *ipc_url(const char *name)
{
    static char url[256];
    (void)snprintf(url, sizeof url, "ipc://%s/%s.sock", test_dir, name);
    return url;
}

static int setup_ipc(void **state)
{
    (void)state;
    connect_pair(&a, &b, ipc_url("pair"), &at_a, &at_b);
    return 0;
}

static int setup_tcp(void **state)
{
    (void)state;
    connect_pair(&a, &b, "tcp://127.0.0.1:0", &at_a, &at_b);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    endpoint_stop(&a);
    endpoint_stop(&b);
    return 0;
}

static void test_a_call_with_items_and_end(void **state)
{
    (void)state;
    uint32_t stream = call(&a, at_a, MSG_GENERATE, 30000, "body", 4);
    assert_int_equal(stream, 1); /* the dialer counts odd */
    struct event c = expect(&b, EV_CALL, 2000);
    assert_int_equal(c.status, MSG_GENERATE);
    assert_int_equal(c.number, 30000);
    assert_string_equal(c.text, "body");
    for (int i = 0; i < 100; i++) {
        char text[32];
        int n = snprintf(text, sizeof text, "item %d", i);
        assert_int_equal(item(&b, c.conn, c.stream, text, (size_t)n), KVS_OK);
    }
    end_call(&b, c.conn, c.stream, KVS_OK, "done");
    for (int i = 0; i < 100; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "item %d", i);
        struct event it = expect(&a, EV_ITEM, 2000);
        assert_string_equal(it.text, text);
        assert_int_equal(it.stream, stream);
    }
    struct event end = expect(&a, EV_END, 2000);
    assert_int_equal(end.status, KVS_OK);
    assert_int_equal(end.number, 7);
    assert_string_equal(end.text, "done");
    assert_int_equal(item(&b, c.conn, c.stream, "late", 4), KVS_REQ_CANCELLED);
    assert_int_equal(count_events(&a, EV_END), 1);
}

static void test_the_listener_calls_too(void **state)
{
    (void)state;
    uint32_t first = call(&b, at_b, MSG_ABORT, 1000, NULL, 0), second = call(&b, at_b, MSG_ABORT, 1000, NULL, 0);
    assert_int_equal(first, 2);
    assert_int_equal(second, 4);
    struct event c = expect(&a, EV_CALL, 2000);
    assert_int_equal(c.stream, 2);
    assert_int_equal(expect(&a, EV_CALL, 2000).stream, 4);
    end_call(&a, c.conn, 4, KVS_BUSY_PAGES, "none free");
    end_call(&a, c.conn, 2, KVS_OK, "");
    struct event end = expect(&b, EV_END, 2000);
    assert_int_equal(end.stream, 4);
    assert_int_equal(end.status, KVS_BUSY_PAGES);
    assert_int_equal(expect(&b, EV_END, 2000).stream, 2);
}

static void test_cancel_reaches_the_callee_and_nothing_comes_back(void **state)
{
    (void)state;
    uint32_t stream = call(&a, at_a, MSG_GENERATE, 0, NULL, 0);
    struct event c = expect(&b, EV_CALL, 2000);
    cancel(&a, at_a, stream);
    assert_int_equal(expect(&b, EV_CANCEL, 2000).stream, c.stream);
    assert_int_equal(item(&b, c.conn, c.stream, "x", 1), KVS_REQ_CANCELLED);
    end_call(&b, c.conn, c.stream, KVS_OK, "");
    assert_false(happened(&a, EV_END, 100));
    uint32_t back = call(&b, at_b, MSG_HEALTH, 0, NULL, 0); /* the other way round */
    c = expect(&a, EV_CALL, 2000);
    cancel(&b, at_b, back);
    assert_int_equal(expect(&a, EV_CANCEL, 2000).stream, back);
    assert_int_equal(count_events(&a, EV_DOWN) + count_events(&b, EV_DOWN), 0);
}

static void test_an_item_on_its_way_when_cancelled_is_dropped(void **state)
{
    (void)state;
    uint32_t stream = call(&a, at_a, MSG_TOKENS, 0, NULL, 0);
    struct event c = expect(&b, EV_CALL, 2000);
    for (int i = 0; i < 50; i++) {
        (void)item(&b, c.conn, c.stream, "x", 1);
        if (i == 10) {
            cancel(&a, at_a, stream);
        }
    }
    expect(&b, EV_CANCEL, 2000);
    uint32_t next = call(&a, at_a, MSG_HEALTH, 1000, NULL, 0);
    expect(&b, EV_CALL, 2000);
    end_call(&b, c.conn, next, KVS_OK, "");
    assert_int_equal(expect(&a, EV_END, 2000).stream, next); /* the connection lives */
}

static void test_deadline(void **state)
{
    (void)state;
    uint64_t before = kvs_now_us();
    uint32_t stream = call(&a, at_a, MSG_GENERATE, 200, NULL, 0);
    struct event c = expect(&b, EV_CALL, 2000);
    struct event end = expect(&a, EV_END, 2000);
    assert_int_equal(end.status, KVS_REQ_DEADLINE);
    assert_int_equal(end.stream, stream);
    assert_in_range(end.at_us - before, 195000, 20000000);
    assert_int_equal(expect(&b, EV_CANCEL, 2000).stream, c.stream);
    assert_int_equal(count_events(&a, EV_END), 1);
}

static void do_ack(void *arg)
{
    net_rpc_ack(a.rpc, at_a, *(uint32_t *)arg);
}

static void do_nack(void *arg)
{
    net_rpc_nack(a.rpc, at_a, *(uint32_t *)arg, "1234", 4);
}

static void test_prefill_waits_for_ack_or_nack_or_cancel(void **state)
{
    (void)state;
    uint32_t s[3];
    for (int i = 0; i < 3; i++) {
        s[i] = call(&a, at_a, MSG_PREFILL, 10000, NULL, 0);
        struct event c = expect(&b, EV_CALL, 2000);
        end_call(&b, c.conn, c.stream, KVS_OK, "");
        assert_int_equal(expect(&a, EV_END, 2000).stream, s[i]);
    }
    on_loop(&a, do_ack, &s[1]);
    on_loop(&a, do_nack, &s[0]);
    cancel(&a, at_a, s[2]);
    assert_int_equal(expect(&b, EV_ACK, 2000).stream, s[1]);
    struct event nack = expect(&b, EV_NACK, 2000);
    assert_int_equal(nack.stream, s[0]);
    assert_int_equal(nack.number, 4);
    assert_int_equal(expect(&b, EV_CANCEL, 2000).stream, s[2]);
    on_loop(&a, do_ack, &s[1]); /* over: nothing happens */
    assert_false(happened(&b, EV_ACK, 50));
}

static void test_an_ended_prefill_is_cancelled_at_its_deadline_without_a_second_end(void **state)
{
    (void)state;
    uint32_t s = call(&a, at_a, MSG_FETCH, 150, NULL, 0);
    struct event c = expect(&b, EV_CALL, 2000);
    end_call(&b, c.conn, c.stream, KVS_OK, "");
    assert_int_equal(expect(&a, EV_END, 2000).stream, s);
    assert_int_equal(expect(&b, EV_CANCEL, 2000).stream, s);
    assert_int_equal(count_events(&a, EV_END), 1);
}

static void do_pause(void *arg)
{
    kvs_status st = net_rpc_pause(a.rpc, at_a, *(uint32_t *)arg, "12345678", 8, false);
    assert_int_equal(st, KVS_OK);
    st = net_rpc_pause(a.rpc, at_a, *(uint32_t *)arg, "12345678", 8, true);
    assert_int_equal(st, KVS_OK);
}

static void test_pause_and_resume(void **state)
{
    (void)state;
    uint32_t s = call(&a, at_a, MSG_TOKENS, 0, NULL, 0);
    on_loop(&a, do_pause, &s);
    struct event p = expect(&b, EV_PAUSE, 2000);
    assert_int_equal(p.number, 0);
    assert_int_equal(p.status, 8);
    assert_int_equal(expect(&b, EV_PAUSE, 2000).number, 1);
}

static void test_unknown_method_is_answered(void **state)
{
    (void)state;
    uint32_t s = call(&a, at_a, (msg_method)77, 1000, NULL, 0);
    struct event end = expect(&a, EV_END, 2000);
    assert_int_equal(end.stream, s);
    assert_int_equal(end.status, KVS_REQ_UNSUPPORTED);
    assert_int_equal(count_events(&b, EV_CALL), 0);
}

/* ---- flow control ---- */

#define PIECE 10000
static struct {
    uint32_t sent, total, stalls;
} pump_state;

static void pump(struct endpoint *e, net_conn conn, uint32_t stream)
{
    static const uint8_t piece[PIECE];
    while (pump_state.sent < pump_state.total) {
        kvs_status s = net_rpc_item(e->rpc, conn, stream, piece, sizeof piece);
        if (s == KVS_BUSY_QUEUE) {
            pump_state.stalls++;
            return;
        }
        if (s != KVS_OK) {
            return;
        }
        pump_state.sent++;
    }
    struct msg_end end = {.status = KVS_OK};
    net_rpc_end(e->rpc, conn, stream, &end);
}

static void pump_call(struct endpoint *e, net_conn conn, uint32_t stream, const struct msg_call *c)
{
    (void)c;
    pump(e, conn, stream);
}

static void test_credit_stalls_and_resumes(void **state)
{
    (void)state;
    b.serve = pump_call;
    b.writable = pump;
    memset(&pump_state, 0, sizeof pump_state);
    pump_state.total = 2000; /* 20 MB through a window of 256 KiB */
    (void)call(&a, at_a, MSG_MODEL_INFO, 30000, NULL, 0);
    assert_int_equal(expect(&a, EV_END, 20000).status, KVS_OK);
    assert_int_equal(a.items, 2000);
    assert_int_equal(a.item_bytes, 2000u * PIECE);
    assert_true(pump_state.stalls > 10);
}

static void test_items_of_a_whole_frame(void **state)
{
    (void)state;
    uint8_t *big = calloc(1, MSG_PAYLOAD_MAX + 1);
    uint32_t s = call(&a, at_a, MSG_GENERATE, 10000, NULL, 0);
    struct event c = expect(&b, EV_CALL, 2000);
    assert_int_equal(item(&b, c.conn, s, big, MSG_PAYLOAD_MAX + 1), KVS_REQ_TOO_LARGE);
    for (int i = 0; i < 4; i++) { /* each overdraws the window, so each waits for the one before */
        kvs_status st;
        while ((st = item(&b, c.conn, s, big, MSG_PAYLOAD_MAX)) == KVS_BUSY_QUEUE) {
            expect(&b, EV_WRITABLE, 5000);
        }
        assert_int_equal(st, KVS_OK);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(expect(&a, EV_ITEM, 5000).number, MSG_PAYLOAD_MAX);
    }
    free(big);
}

/* ---- coming and going ---- */

static void test_close_tells_the_peer_why(void **state)
{
    (void)state;
    uint32_t s = call(&a, at_a, MSG_GENERATE, 0, NULL, 0);
    expect(&b, EV_CALL, 2000);
    close_conn(&b, at_b, KVS_SELF_STOPPING, "draining");
    assert_int_equal(expect(&b, EV_DOWN, 2000).status, KVS_SELF_STOPPING);
    struct event end = expect(&a, EV_END, 2000);
    assert_int_equal(end.stream, s);
    assert_int_equal(end.status, KVS_PEER_LOST);
    struct event down = expect(&a, EV_DOWN, 2000);
    assert_int_equal(down.status, KVS_SELF_STOPPING);
    assert_string_equal(down.text, "draining");
    struct event up = expect(&a, EV_UP, 5000); /* and dials again */
    assert_true(up.conn != at_a);
}

static void test_idle_streams_stay_up(void **state)
{
    (void)state;
    bool calm = false;
    for (int i = 0; i < 5 && !calm; i++) { /* a machine that keeps threads waiting shows nothing */
        size_t suspects = count_events(&a, EV_SUSPECT) + count_events(&b, EV_SUSPECT);
        tst_calm_begin();
        bool down = happened(&a, EV_DOWN, 3500); /* longer than every time limit but the heartbeat's success */
        calm = tst_calm_end() < 200000;
        suspects = count_events(&a, EV_SUSPECT) + count_events(&b, EV_SUSPECT) - suspects;
        assert_true(!calm || (!down && suspects == 0));
    }
}

static void test_death_without_goodbye_is_noticed_at_once_and_dialed_again(void **state)
{
    (void)state;
    char url[256];
    struct endpoint c = {0}, d = {0};
    endpoint_start(&c, "c", MSG_ROLE_DECODE);
    endpoint_start(&d, "d", MSG_ROLE_PREFILL);
    listen_on(&d, ipc_url("again"), url, sizeof url);
    struct stat st;
    assert_int_equal(stat(url + 6, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(dial(&c, url), KVS_OK);
    net_conn conn = expect(&c, EV_UP, 5000).conn;
    uint32_t s = call(&c, conn, MSG_GENERATE, 0, NULL, 0);
    expect(&d, EV_CALL, 2000);
    endpoint_stop(&d);
    struct event end = expect(&c, EV_END, 2000);
    assert_int_equal(end.stream, s);
    assert_int_equal(end.status, KVS_PEER_LOST);
    struct event down = expect(&c, EV_DOWN, 2000);
    assert_true(end.at_us <= down.at_us);
    assert_int_equal(down.status, KVS_PEER_LOST); /* at once: its silence would be a KVS_PEER_TIMEOUT */
    for (int i = 0; i < 4; i++) { /* nobody there: paced attempts, each told */
        assert_int_equal(expect(&c, EV_DIAL_FAILED, 3000).status, KVS_PEER_LOST);
    }
    assert_in_range(count_events(&c, EV_DIAL_FAILED), 4, 12);
    endpoint_start(&d, "d2", MSG_ROLE_PREFILL);
    listen_on(&d, ipc_url("again"), url, sizeof url);
    assert_string_equal(expect(&c, EV_UP, 5000).text, "d2");
    undial(&c, url);
    endpoint_stop(&d);
    expect(&c, EV_DOWN, 2000);
    size_t failed = count_events(&c, EV_DIAL_FAILED);
    kvs_sleep_us(300000);
    assert_int_equal(count_events(&c, EV_DIAL_FAILED), failed); /* given up */
    endpoint_stop(&c);
}

/* Members come and go in the view of a worker while its streams live on: they are not made twice. */
static void test_a_live_connection_counts_for_a_new_dial(void **state)
{
    (void)state;
    char url[256];
    struct endpoint c = {0}, d = {0};
    endpoint_start(&c, "c", MSG_ROLE_DECODE);
    endpoint_start(&d, "d", MSG_ROLE_PREFILL);
    listen_on(&d, ipc_url("twice"), url, sizeof url);
    assert_int_equal(dial(&c, url), KVS_OK);
    net_conn first = expect(&c, EV_UP, 5000).conn;
    net_conn theirs = expect(&d, EV_UP, 5000).conn;
    undial(&c, url);
    assert_int_equal(dial(&c, url), KVS_OK);
    assert_false(happened(&d, EV_UP, 300));
    assert_int_equal(count_events(&c, EV_UP), 1);
    close_conn(&d, theirs, KVS_PEER_LOST, "the end of the first");
    assert_int_equal(expect(&c, EV_DOWN, 2000).conn, first);
    assert_true(expect(&c, EV_UP, 5000).conn != first); /* and it is dialed again when it is over */
    undial(&c, url);
    endpoint_stop(&d);
    expect(&c, EV_DOWN, 2000);
    endpoint_stop(&c);
}

static void test_dialing_before_the_listener_is_there(void **state)
{
    (void)state;
    char url[256];
    struct endpoint c = {0}, d = {0};
    endpoint_start(&c, "c", MSG_ROLE_DECODE);
    assert_int_equal(dial(&c, ipc_url("late")), KVS_OK);
    assert_int_equal(dial(&c, ipc_url("late")), KVS_OK); /* once is enough */
    assert_int_equal(dial(&c, "http://x:1"), KVS_SELF_CONFIG);
    expect(&c, EV_DIAL_FAILED, 3000);
    endpoint_start(&d, "d", MSG_ROLE_PREFILL);
    listen_on(&d, ipc_url("late"), url, sizeof url);
    expect(&c, EV_UP, 5000);
    expect(&d, EV_UP, 5000);
    assert_false(happened(&d, EV_UP, 100));
    endpoint_stop(&c);
    endpoint_stop(&d);
}

static void test_destroy_in_the_middle_of_everything(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct endpoint c = {0}, d = {0};
        net_conn at_c, at_d;
        connect_pair(&c, &d, round % 2 != 0 ? "tcp://127.0.0.1:0" : ipc_url("middle"), &at_c, &at_d);
        d.serve = NULL;
        for (int i = 0; i < 20; i++) {
            uint32_t s = call(&c, at_c, MSG_TOKENS, 0, NULL, 0);
            (void)s;
        }
        (void)dial(&c, ipc_url("nobody"));
        struct event k = expect(&d, EV_CALL, 2000);
        static const uint8_t bytes[60000];
        for (int i = 0; i < 20; i++) {
            (void)item(&d, k.conn, k.stream, bytes, sizeof bytes);
        }
        endpoint_stop(round % 3 == 0 ? &d : &c);
        endpoint_stop(round % 3 == 0 ? &c : &d);
    }
}

#define BOTH(test)                                    \
    {#test " ipc", test, setup_ipc, teardown, NULL},  \
    {                                                 \
#test " tcp", test, setup_tcp, teardown, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_a_call_with_items_and_end),
        BOTH(test_the_listener_calls_too),
        BOTH(test_cancel_reaches_the_callee_and_nothing_comes_back),
        BOTH(test_an_item_on_its_way_when_cancelled_is_dropped),
        BOTH(test_deadline),
        BOTH(test_prefill_waits_for_ack_or_nack_or_cancel),
        BOTH(test_an_ended_prefill_is_cancelled_at_its_deadline_without_a_second_end),
        BOTH(test_pause_and_resume),
        BOTH(test_unknown_method_is_answered),
        BOTH(test_credit_stalls_and_resumes),
        BOTH(test_items_of_a_whole_frame),
        BOTH(test_close_tells_the_peer_why),
        BOTH(test_idle_streams_stay_up),
        cmocka_unit_test(test_death_without_goodbye_is_noticed_at_once_and_dialed_again),
        cmocka_unit_test(test_a_live_connection_counts_for_a_new_dial),
        cmocka_unit_test(test_dialing_before_the_listener_is_there),
        cmocka_unit_test(test_destroy_in_the_middle_of_everything),
    };
    test_dir_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_dir_remove();
    return failed;
}
