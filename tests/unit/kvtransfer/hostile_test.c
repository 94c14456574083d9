/* hostile_test.c - a sender that knows the transfer (its number, nonce and epoch) and abuses it: everything is declined and counted by
 * reason, nothing lands, memory outside the pages is untouched, an honest peer's transfer meanwhile is whole, and afterwards even the
 * hostile one may send its pages.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "sys/clock.h"
#include "tests/unit/kvtransfer/box.h"
#include "tests/unit/kvtransfer/peer_helper.h"

enum { EPOCH = 77, BLOCKS = 6, PAGE = 65536, RANDOM = 100 };

static struct box box;
static volatile uint64_t victim = 0x1111111111111111;
static uint8_t dest[2][BLOCKS][PAGE];

static void come_up(struct helper *h, uint32_t peer, const char *program, bool near)
{
    struct helper_hello mine = {.epoch = EPOCH, .victim = (uint64_t)(uintptr_t)&victim, .near = near};
    helper_start(h, program, near ? "near" : "tcp", "");
    box_check(kvt_peer_open(box.port, peer, near ? KVT_LANE_NEAR : KVT_LANE_TCP), "open");
    struct kvt_event e = box_wait(&box, KVT_EV_ADDRESS, peer);
    memcpy(mine.address, e.address, e.address_bytes);
    mine.address_bytes = e.address_bytes;
    kvt_probe_self(&mine.probe);
    assert_true(helper_read(h, &h->hello, sizeof h->hello));
    helper_write(h, &mine, sizeof mine);
    box_check(kvt_peer_connect(box.port, peer, h->hello.epoch, h->hello.address, h->hello.address_bytes), "connect");
    assert_string_equal(box_wait(&box, KVT_EV_UP, peer).transport, near ? "cma" : "tcp");
}

static struct helper_order grant(uint32_t peer, uint64_t xfer, uint32_t hostile)
{
    struct helper_order o = {EPOCH, xfer, kvs_random_u64(), PAGE, BLOCKS, 1, 0, hostile};
    struct kvt_want wants[BLOCKS];
    struct kvt_sink *s;
    memset(dest[peer], 0xa5, sizeof dest[peer]);
    for (uint32_t i = 0; i < BLOCKS; i++)
        wants[i] = (struct kvt_want){.block = i, .bytes = PAGE, .dest = dest[peer][i]};
    box_check(kvt_sink_create(&(struct kvt_sink_config){EPOCH, xfer, o.nonce, wants, BLOCKS}, &s), "sink");
    box_check(kvt_grant(box.port, peer, s), "grant");
    return o;
}

static void finish(const struct helper *h, uint32_t peer, struct helper_done *done)
{
    assert_true(helper_read(h, done, sizeof *done));
    assert_int_equal(done->pages_sent, BLOCKS);
    box_check(kvt_grant_end(box.port, done->xfer, KVS_OK, BLOCKS), "end");
    struct kvt_event e = box_wait(&box, KVT_EV_GRANT, peer);
    assert_int_equal(e.status, KVS_OK);
    assert_int_equal(e.pages, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        assert_true(pattern_is(dest[peer][i], PAGE, done->xfer, i, 0));
    kvt_sink_destroy(e.sink);
}

static uint64_t declined_before[KVT_VERDICTS];
static struct kvt_port_counters counters_before;

static void remember(void)
{
    for (int v = 0; v < KVT_VERDICTS; v++)
        declined_before[v] = v == KVT_ACCEPT ? 0 : kvt_port_declined(box.port, (kvt_verdict)v);
    kvt_port_counters(box.port, &counters_before);
}

static uint64_t declined(int verdict)
{
    return kvt_port_declined(box.port, (kvt_verdict)verdict) - declined_before[verdict];
}

static void hostile_sender(bool near)
{
    struct helper hostile, honest;
    struct helper_done done;
    remember();
    come_up(&hostile, 0, "test_kvtransfer_hostile_helper", near);
    come_up(&honest, 1, "test_kvtransfer_peer_helper", near);
    struct helper_order o = grant(0, 500, 1), p = grant(1, 600, 0);
    helper_write(&hostile, &o, sizeof o);
    helper_write(&honest, &p, sizeof p);
    finish(&honest, 1, &done);
    finish(&hostile, 0, &done); /* the good pages after the burst */
    uint64_t all = 0;
    for (int v = KVT_ACCEPT + 1; v < KVT_VERDICTS; v++) {
        all += declined(v);
        print_message("declined %s over %s: %llu\n", kvt_verdict_name((kvt_verdict)v), near ? "cma" : "tcp",
                      (unsigned long long)declined(v));
    }
    /* What was posted: the burst twice (rendezvous and eager), ids without a use, the doubled pages. Random headers fail at
     * their version. */
    assert_true(done.status > 200);
    assert_int_equal(all, done.status + BLOCKS);
    assert_int_equal(declined(KVT_DECLINE_VERSION), 2 * (3 + RANDOM));
    assert_int_equal(declined(KVT_DECLINE_EPOCH), 2);
    assert_int_equal(declined(KVT_DECLINE_XFER), 2);
    assert_int_equal(declined(KVT_DECLINE_NONCE), 2);
    assert_int_equal(declined(KVT_DECLINE_INDEX), 2 * 3);
    assert_int_equal(declined(KVT_DECLINE_LENGTH), 2 * (6 + 1));
    assert_int_equal(declined(KVT_DECLINE_DOUBLE), BLOCKS);
    assert_true(declined(KVT_DECLINE_HEADER) >= 2 * 6 + 70);
    assert_int_equal(declined(KVT_DECLINE_CHECKSUM), 0);
    struct kvt_port_counters after;
    kvt_port_counters(box.port, &after);
    assert_int_equal(after.eager - counters_before.eager, BLOCKS / 2);
    assert_true(victim == 0x1111111111111111);
    o = grant(0, 501, 0);
    helper_write(&hostile, &o, sizeof o);
    finish(&hostile, 0, &done);
    box_check(kvt_peer_close(box.port, 0), "close");
    box_check(kvt_peer_close(box.port, 1), "close");
    box_wait(&box, KVT_EV_CLOSED, 0);
    box_wait(&box, KVT_EV_CLOSED, 1);
    helper_reap(&hostile);
    helper_reap(&honest);
}

static void test_hostile_sender_is_declined_over_cma(void **state)
{
    (void)state;
    hostile_sender(true);
}

static void test_hostile_sender_is_declined_over_tcp(void **state)
{
    (void)state;
    hostile_sender(false);
}

static void thief_comes(bool near)
{
    struct helper thief, owner;
    struct helper_done done;
    uint64_t before = kvt_port_declined(box.port, KVT_DECLINE_XFER);
    come_up(&thief, 0, "test_kvtransfer_hostile_helper", near);
    come_up(&owner, 1, "test_kvtransfer_peer_helper", near);
    struct helper_order o = grant(1, 700, 0);
    helper_write(&thief, &o, sizeof o); /* it knows number and nonce, but comes by another peer's worker */
    assert_true(helper_read(&thief, &done, sizeof done));
    for (int i = 0; i < 3000 && kvt_port_declined(box.port, KVT_DECLINE_XFER) < before + BLOCKS; i++)
        kvs_sleep_us(10000);
    assert_int_equal(kvt_port_declined(box.port, KVT_DECLINE_XFER), before + BLOCKS);
    box_check(kvt_grant_cancel(box.port, 700), "cancel"); /* the memory is ours again: look at it */
    kvt_sink_destroy(box_wait(&box, KVT_EV_GRANT, 1).sink);
    for (size_t i = 0; i < sizeof dest[1]; i++)
        assert_int_equal(((uint8_t *)dest[1])[i], 0xa5);
    o = grant(1, 701, 0);
    helper_write(&owner, &o, sizeof o);
    finish(&owner, 1, &done);
    box_check(kvt_peer_close(box.port, 0), "close");
    box_check(kvt_peer_close(box.port, 1), "close");
    box_wait(&box, KVT_EV_CLOSED, 0);
    box_wait(&box, KVT_EV_CLOSED, 1);
    helper_reap(&thief);
    helper_reap(&owner);
}

static void test_another_peers_transfer_is_out_of_reach(void **state)
{
    (void)state;
    thief_comes(true);
    thief_comes(false);
}

int main(int argc, char **argv)
{
    kvt_prepare_process(argc, argv);
    box_open(&box, "test", EPOCH, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_sender_is_declined_over_cma),
        cmocka_unit_test(test_hostile_sender_is_declined_over_tcp),
        cmocka_unit_test(test_another_peers_transfer_is_out_of_reach),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    box_close(&box);
    return failed;
}
