/* nomem_test.c - every allocation of a whole transfer fails in turn, over loopback and over UCX: two ports are linked, a sink is granted,
 * pages go over, everything is closed. What cannot be had is told by a status or an event; nothing is lost or left over, every message and
 * grant ends once, and the same ports serve the next transfer. What UCX itself allocates does not fail here.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "kvtransfer/core/source.h"
#include "sys/clock.h"
#include "tests/support/nomem.h"
#include "tests/unit/kvtransfer/box.h"

enum { PAGE = 9000, BLOCKS = 4, EPOCH_A = 11, EPOCH_B = 22, PEER_A = 3, PEER_B = 7, WAIT_US = 30000000 };

static _Thread_local bool ours; /* this thread runs the test, not the code under test */

static bool counts(void)
{
    return !ours;
}

/* A call into the code under test. */
#define CALL(to, call) \
    do { \
        ours = false; \
        (to) = (call); \
        ours = true; \
    } while (0)

/* A UCX link that comes up looks at its lanes through a memory stream, whose text the C library has allocated and we free: one a link. */
static int64_t freed_for_others;

static uint8_t page[BLOCKS][PAGE], dest[BLOCKS][PAGE];

/* A is the sink and calls B its peer PEER_A; B is the source and calls A its peer PEER_B. */
struct pair {
    struct box a, b;
    kvt_lane lane;
};

/* Which of two events comes first. */
static bool comes(struct box *b, uint32_t peer, kvt_event_kind good, struct kvt_event *out)
{
    uint64_t end_us = kvs_now_us() + WAIT_US;
    while (kvs_now_us() < end_us) {
        if (box_try(b, good, peer, 1000, out)) {
            freed_for_others += good == KVT_EV_UP && strcmp(out->transport, "loopback") != 0;
            return true;
        }
        if (box_try(b, KVT_EV_ERROR, peer, 0, out)) {
            assert_int_not_equal(out->status, KVS_OK);
            return false;
        }
    }
    fail_msg("neither event %d nor an error of peer %u", (int)good, peer);
    return false;
}

static bool come_up(struct pair *p)
{
    struct kvt_event a, b, e;
    kvs_status st_a, st_b;
    box_check(kvt_peer_open(p->a.port, PEER_A, p->lane), "open");
    box_check(kvt_peer_open(p->b.port, PEER_B, p->lane), "open");
    bool have_a = comes(&p->a, PEER_A, KVT_EV_ADDRESS, &a), have_b = comes(&p->b, PEER_B, KVT_EV_ADDRESS, &b);
    if (!have_a || !have_b)
        return false;
    CALL(st_a, kvt_peer_connect(p->a.port, PEER_A, EPOCH_B, b.address, b.address_bytes));
    CALL(st_b, kvt_peer_connect(p->b.port, PEER_B, EPOCH_A, a.address, a.address_bytes));
    if (st_a != KVS_OK || st_b != KVS_OK) {
        assert_true(st_a == KVS_SELF_NOMEM || st_b == KVS_SELF_NOMEM);
        return false;
    }
    bool up_a = comes(&p->a, PEER_A, KVT_EV_UP, &e), up_b = comes(&p->b, PEER_B, KVT_EV_UP, &e);
    return up_a && up_b;
}

static struct kvt_sink *make_sink(uint64_t xfer)
{
    struct kvt_want wants[BLOCKS];
    struct kvt_sink *s = NULL;
    kvs_status st;
    for (uint32_t i = 0; i < BLOCKS; i++)
        wants[i] = (struct kvt_want){.block = i, .bytes = PAGE, .dest = dest[i]};
    CALL(st, kvt_sink_create(&(struct kvt_sink_config){EPOCH_A, xfer, xfer * 3, wants, BLOCKS}, &s));
    assert_int_equal(st, s == NULL ? KVS_SELF_NOMEM : KVS_OK);
    return s;
}

/* Sends the pages that can be sent; how many, and every one has its SENT. */
static uint32_t send_pages(struct pair *p, uint64_t xfer)
{
    uint32_t posted = 0, sent = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        kvs_status st;
        const struct kvt_header h = {
            .version = KVT_WIRE_VERSION, .sink_epoch = EPOCH_A, .xfer = xfer, .nonce = xfer * 3, .block = i, .bytes = PAGE};
        CALL(st, kvt_send(p->b.port, PEER_B, &h, page[i], i));
        assert_true(st == KVS_OK || st == KVS_SELF_NOMEM);
        posted += st == KVS_OK;
    }
    for (uint32_t i = 0; i < posted; i++) {
        struct kvt_event e;
        assert_true(box_try(&p->b, KVT_EV_SENT, PEER_B, WAIT_US, &e));
        sent += e.status == KVS_OK;
    }
    return sent;
}

static bool transfer(struct pair *p, uint64_t xfer)
{
    struct kvt_event e;
    memset(dest, 0x5a, sizeof dest);
    struct kvt_sink *s = make_sink(xfer);
    if (s == NULL)
        return false;
    box_check(kvt_grant(p->a.port, PEER_A, s), "grant");
    uint32_t sent = send_pages(p, xfer);
    box_check(kvt_grant_end(p->a.port, xfer, KVS_OK, sent), "end");
    assert_true(box_try(&p->a, KVT_EV_GRANT, PEER_A, WAIT_US, &e));
    assert_ptr_equal(e.sink, s);
    if (e.status == KVS_OK)
        for (uint32_t i = 0; i < BLOCKS; i++)
            assert_memory_equal(dest[i], page[i], PAGE);
    if (sent < BLOCKS)
        assert_int_not_equal(e.status, KVS_OK);
    assert_int_equal(kvt_sink_receiving(s), 0);
    kvt_sink_destroy(s);
    return e.status == KVS_OK;
}

static void go_down(struct pair *p)
{
    struct kvt_event e;
    box_check(kvt_peer_close(p->a.port, PEER_A), "close");
    box_check(kvt_peer_close(p->b.port, PEER_B), "close");
    assert_true(box_try(&p->a, KVT_EV_CLOSED, PEER_A, WAIT_US, &e));
    assert_true(box_try(&p->b, KVT_EV_CLOSED, PEER_B, WAIT_US, &e));
    static const kvt_event_kind links[] = {KVT_EV_ADDRESS, KVT_EV_UP, KVT_EV_ERROR}; /* of a link that nobody waits for any more */
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        while (box_try(&p->a, links[i], PEER_A, 0, &e) || box_try(&p->b, links[i], PEER_B, 0, &e))
            freed_for_others += links[i] == KVT_EV_UP && strcmp(e.transport, "loopback") != 0;
    assert_false(box_try(&p->a, KVT_EV_GRANT, UINT32_MAX, 0, &e));
    assert_false(box_try(&p->b, KVT_EV_SENT, UINT32_MAX, 0, &e));
}

static bool whole(struct pair *p, uint64_t xfer)
{
    bool good = come_up(p) && transfer(p, xfer);
    go_down(p);
    return good;
}

/* CLOSED is told a moment before the peer's memory goes. */
static bool settles(int64_t live)
{
    uint64_t end_us = kvs_now_us() + WAIT_US;
    while (tst_nomem_live() + freed_for_others != live && kvs_now_us() < end_us)
        kvs_sleep_us(200);
    return tst_nomem_live() + freed_for_others == live;
}

static void each_fails(bool loopback, kvt_lane lane)
{
    static struct pair p;
    uint64_t xfer = 100;
    int failed = 0;
    p.lane = lane;
    box_open(&p.a, "a", EPOCH_A, loopback);
    box_open(&p.b, "b", EPOCH_B, loopback);
    int64_t live = tst_nomem_live();
    freed_for_others = 0;
    assert_true(whole(&p, xfer++));
    assert_true(settles(live));
    for (int64_t n = 0;; n++) {
        tst_nomem_arm(n);
        bool good = whole(&p, xfer++);
        if (!tst_nomem_disarm()) {
            assert_true(good);
            break;
        }
        failed += !good;
        if (!settles(live))
            fail_msg("allocation %lld of a transfer fails: %lld are left over", (long long)n, (long long)(tst_nomem_live() - live));
        assert_true(whole(&p, xfer++)); /* and works afterwards */
        assert_true(settles(live));
    }
    box_close(&p.a);
    box_close(&p.b);
    printf("%s: %d allocations whose failure was told\n", loopback ? "loopback" : lane == KVT_LANE_TCP ? "tcp" : "cma", failed);
    assert_true(failed >= 12); /* two of everything that a link has, and the transfer's own */
}

static void test_loopback(void **state)
{
    (void)state;
    each_fails(true, KVT_LANE_LOOPBACK);
}

static void test_ucx_tcp(void **state)
{
    (void)state;
    each_fails(false, KVT_LANE_TCP);
}

static void test_port(void **state)
{
    (void)state;
    const struct kvt_port_config c = {.epoch = 5, .id = "p"};
    int64_t live = tst_nomem_live(), n = 0;
    for (;; n++) {
        struct kvs_error err = {0};
        struct kvt_port *p = NULL;
        kvs_status st;
        tst_nomem_arm(n);
        CALL(st, kvt_port_create(&c, &p, &err));
        bool fired = tst_nomem_disarm();
        assert_int_equal(st, fired ? KVS_SELF_NOMEM : KVS_OK);
        assert_true(!fired || (p == NULL && err.text[0] != 0));
        kvt_port_destroy(p);
        assert_int_equal(tst_nomem_live(), live);
        if (!fired)
            break;
    }
    printf("a port: %lld allocations\n", (long long)n);
    assert_true(n >= 5);
}

static void test_source_and_sink(void **state)
{
    (void)state;
    int64_t live = tst_nomem_live();
    for (int64_t n = 0;; n++) {
        struct kvt_source *s = NULL;
        kvs_status st;
        tst_nomem_arm(n);
        const struct kvt_source_config c = {.sink_epoch = 5, .xfer = 6, .nonce = 7, .message_count = 2};
        CALL(st, kvt_source_create(&c, &s));
        bool fired = tst_nomem_disarm();
        assert_int_equal(st, fired ? KVS_SELF_NOMEM : KVS_OK);
        kvt_source_destroy(s);
        assert_int_equal(tst_nomem_live(), live);
        if (!fired)
            break;
    }
    for (int64_t n = 0;; n++) {
        tst_nomem_arm(n);
        struct kvt_sink *s = make_sink(9);
        assert_true((s == NULL) == tst_nomem_disarm());
        kvt_sink_destroy(s);
        assert_int_equal(tst_nomem_live(), live);
        if (s != NULL)
            break;
    }
}

int main(int argc, char **argv)
{
    kvt_prepare_process(argc, argv);
    ours = true;
    tst_nomem_where(counts);
    for (uint32_t i = 0; i < BLOCKS; i++)
        pattern_fill(page[i], PAGE, 1, i, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_source_and_sink),
        cmocka_unit_test(test_port),
        cmocka_unit_test(test_loopback),
        cmocka_unit_test(test_ucx_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
