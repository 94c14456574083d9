/* rpc_nomem_test.c - control streams with every allocation of both ends failing in turn, in whichever thread it is made: listen, dial, HELLO,
 * a call with items and END, an end of all. A status or an event says what failed; nobody hangs; what was refused works when it is tried again,
 * dials are made good by the pace of dialing; nothing is left over, neither memory nor descriptors.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc_harness.h"
#include "sys/clock.h"
#include "tests/support/files.h"
#include "tests/support/nomem.h"

#define WHOLE_MS 30000u
#define ITEMS 3

static _Thread_local bool ours;
static struct endpoint a, b;

static bool counts(void)
{
    return !ours;
}

static void serve(struct endpoint *e, net_conn conn, uint32_t stream, const struct msg_call *c)
{
    const struct msg_end end = {.status = KVS_OK, .pages_sent = 7};
    (void)c;
    for (int i = 0; i < ITEMS; i++) {
        if (net_rpc_item(e->rpc, conn, stream, "an item", 7) != KVS_OK) {
            return; /* the stream is gone, or the caller */
        }
    }
    net_rpc_end(e->rpc, conn, stream, &end);
}

struct ask {
    char url[128];
    net_conn conn;
    uint32_t stream;
    kvs_status status;
    struct kvs_error err;
};

static void ask_listen(void *arg)
{
    struct ask *q = arg;
    q->status = net_rpc_listen(b.rpc, "tcp://127.0.0.1:0", q->url, sizeof q->url, &q->err);
}

static void ask_dial(void *arg)
{
    struct ask *q = arg;
    q->status = net_rpc_dial(a.rpc, q->url);
}

static void ask_call(void *arg)
{
    struct ask *q = arg;
    q->status = net_rpc_call(a.rpc, q->conn, MSG_HEALTH, 5000, "trace", "body", 4, &q->stream);
}

/* Once more when it was refused; the second time nothing fails. */
static void twice(struct endpoint *e, void (*fn)(void *arg), struct ask *q)
{
    on_loop(e, fn, q);
    if (q->status != KVS_OK) {
        assert_int_equal(q->status, KVS_SELF_NOMEM);
        assert_true(tst_nomem_fired());
        on_loop(e, fn, q);
    }
    assert_int_equal(q->status, KVS_OK);
}

/* The end of the last call: KVS_OK, or why not. */
static kvs_status end_of_call(struct ask *q)
{
    on_loop(&a, ask_call, q);
    if (q->status != KVS_OK) {
        return q->status;
    }
    struct event end;
    do { /* of an earlier call it may still come */
        end = expect(&a, EV_END, WHOLE_MS);
    } while (end.stream != q->stream || end.conn != q->conn);
    if (end.status == KVS_OK) {
        assert_int_equal(end.number, 7);
    }
    return end.status;
}

static void whole(void)
{
    struct ask q = {0};
    uint64_t end_us = kvs_now_us() + WHOLE_MS * 1000u;
    twice(&b, ask_listen, &q);
    twice(&a, ask_dial, &q);
    for (;;) {
        q.conn = expect(&a, EV_UP, WHOLE_MS).conn;
        kvs_status st = end_of_call(&q);
        if (st == KVS_OK) {
            return;
        }
        assert_true(tst_nomem_fired());
        assert_true(kvs_now_us() < end_us);
        if (st == KVS_SELF_NOMEM) { /* the call alone; the stream is as it was, or it is dialed anew */
            st = end_of_call(&q);
        }
        if (st == KVS_OK) {
            return;
        }
        assert_true(kvs_is_peer(st) || kvs_is_self(st));
    }
}

static void start(void)
{
    endpoint_start(&a, "a", MSG_ROLE_CLIENT);
    endpoint_start(&b, "b", MSG_ROLE_ROUTER);
    b.serve = serve;
}

static void stop(void)
{
    endpoint_stop(&a);
    endpoint_stop(&b);
}

/* Not more than before. What was counted before may hold something that was still being closed: it is the least that was ever there. */
static bool settles(int64_t *live, int *fds)
{
    uint64_t end_us = kvs_now_us() + 30000000;
    while ((tst_nomem_live() > *live || tst_descriptors() > *fds) && kvs_now_us() < end_us) {
        kvs_sleep_us(500);
    }
    int64_t live_now = tst_nomem_live();
    int fds_now = tst_descriptors();
    bool settled = live_now <= *live && fds_now <= *fds;
    *live = live_now < *live ? live_now : *live;
    *fds = fds_now < *fds ? fds_now : *fds;
    return settled;
}

static void test_streams(void **state)
{
    (void)state;
    start();
    whole();
    stop(); /* what libraries open once is open now */
    kvs_sleep_us(100000);
    int64_t live = tst_nomem_live(), n = 0;
    int fds = tst_descriptors();
    for (bool fired = true; fired; n++) {
        start();
        tst_nomem_arm(n);
        whole();
        fired = tst_nomem_disarm();
        stop();
        if (!settles(&live, &fds)) {
            fail_msg("allocation %lld fails: %lld blocks and %d descriptors are left over", (long long)n,
                     (long long)(tst_nomem_live() - live), tst_descriptors() - fds);
        }
    }
    printf("%lld allocations\n", (long long)n - 1);
    assert_true(n >= 15);
}

static void test_create(void **state)
{
    (void)state;
    int64_t live = tst_nomem_live(), n = 0;
    int fds = tst_descriptors();
    for (bool fired = true; fired; n++) {
        const struct msg_hello self = {.protocol_min = 1, .protocol_max = 1, .role = MSG_ROLE_CLIENT, .epoch = 5, .id = "x"};
        const struct net_rpc_handlers h = {0};
        struct kvs_error err = {0};
        struct net_rpc *r = NULL;
        struct kvs_loop *loop;
        assert_int_equal(kvs_loop_create(&loop), KVS_OK);
        tst_nomem_arm(n);
        ours = false;
        kvs_status st = net_rpc_create(loop, &self, &h, &r, &err);
        ours = true;
        fired = tst_nomem_disarm();
        assert_int_equal(st, fired ? KVS_SELF_NOMEM : KVS_OK);
        assert_true(!fired || (r == NULL && err.text[0] != 0));
        net_rpc_destroy(r);
        kvs_loop_destroy(loop); /* it keeps what was removed until its next round */
        assert_true(settles(&live, &fds));
    }
    printf("%lld allocations\n", (long long)n - 1);
    assert_true(n > 4);
}

int main(void)
{
    ours = true;
    tst_nomem_where(counts);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_create), cmocka_unit_test(test_streams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
