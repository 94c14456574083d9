/* ucx_test.c - the transport over UCX between processes: this one is the sink, helper programs are sources.
 * Both lanes, each asserted; a source killed in mid-transfer and during wire-up while another one's transfer goes on, its parent not
 * reaping it; cancel; corrupt and lost pages; closing and opening again.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "sys/clock.h"
#include "tests/unit/kvtransfer/box.h"
#include "tests/unit/kvtransfer/peer_helper.h"

enum { EPOCH = 77, LOGITS = 4 * 49152 };

#define HELPER "test_kvtransfer_peer_helper"

struct wanted { /* one transfer at the sink */
    struct helper_order order;
    uint8_t *bytes;
};

static struct box box;

static int setup(void **state)
{
    (void)state;
    box_open(&box, "test", EPOCH, false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    box_close(&box);
    return 0;
}

static void say_hello(struct helper *h, uint32_t peer, bool near)
{
    struct helper_hello mine = {.epoch = EPOCH, .near = near};
    box_check(kvt_peer_open(box.port, peer, near ? KVT_LANE_NEAR : KVT_LANE_TCP), "open");
    struct kvt_event e = box_wait(&box, KVT_EV_ADDRESS, peer);
    memcpy(mine.address, e.address, e.address_bytes);
    mine.address_bytes = e.address_bytes;
    kvt_probe_self(&mine.probe);
    assert_true(helper_read(h, &h->hello, sizeof h->hello));
    assert_true(kvt_probe_try(&h->hello.probe));
    helper_write(h, &mine, sizeof mine);
    box_check(kvt_peer_connect(box.port, peer, h->hello.epoch, h->hello.address, h->hello.address_bytes), "connect");
}

static void start(struct helper *h, uint32_t peer, bool near, const char *faults)
{
    helper_start(h, HELPER, near ? "near" : "tcp", faults);
    say_hello(h, peer, near);
    struct kvt_event e = box_wait(&box, KVT_EV_UP, peer);
    assert_string_equal(e.transport, near ? "cma" : "tcp");
}

static void stop(struct helper *h, uint32_t peer)
{
    box_check(kvt_peer_close(box.port, peer), "close");
    box_wait(&box, KVT_EV_CLOSED, peer);
    int status = helper_reap(h);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static struct wanted want(uint32_t peer, uint64_t xfer, uint32_t blocks, uint32_t groups, uint64_t page,
                          uint64_t logits)
{
    struct wanted w = {.order = {EPOCH, xfer, kvs_random_u64(), page, blocks, groups, logits, 0}};
    struct kvt_want *wants = calloc(blocks * groups + 1, sizeof *wants);
    w.bytes = calloc(1, (size_t)(blocks * groups * page + logits));
    assert_true(wants != NULL && w.bytes != NULL);
    uint32_t n = 0;
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t i = 0; i < blocks; i++, n++)
            wants[n] = (struct kvt_want){.block = i, .group = (uint16_t)g, .bytes = page, .dest = w.bytes + n * page};
    if (logits > 0)
        wants[n] = (struct kvt_want){
            .block = KVT_LOGITS_BLOCK, .group = KVT_LOGITS_GROUP, .bytes = logits, .dest = w.bytes + n * page};
    struct kvt_sink *s;
    const struct kvt_sink_config c = {EPOCH, xfer, w.order.nonce, wants, n + (logits > 0)};
    box_check(kvt_sink_create(&c, &s), "sink");
    free(wants);
    box_check(kvt_grant(box.port, peer, s), "grant");
    return w;
}

static void order(const struct helper *h, const struct wanted *w)
{
    helper_write(h, &w->order, sizeof w->order);
}

static void wait_end(const struct helper *h)
{
    struct helper_done done;
    assert_true(helper_read(h, &done, sizeof done));
    box_check(kvt_grant_end(box.port, done.xfer, (kvs_status)done.status, done.pages_sent), "end");
}

static void assert_whole(const struct wanted *w)
{
    const struct helper_order *o = &w->order;
    uint32_t n = 0;
    for (uint32_t g = 0; g < o->groups; g++)
        for (uint32_t i = 0; i < o->blocks; i++, n++)
            assert_true(pattern_is(w->bytes + n * o->page_bytes, (size_t)o->page_bytes, o->xfer, i, (uint16_t)g));
    if (o->logits_bytes > 0)
        assert_true(pattern_is(w->bytes + n * o->page_bytes, (size_t)o->logits_bytes, o->xfer, KVT_LOGITS_BLOCK,
                               KVT_LOGITS_GROUP));
}

static void finish(struct wanted *w, uint32_t peer, kvs_status status)
{
    struct kvt_event e = box_wait(&box, KVT_EV_GRANT, peer);
    assert_int_equal(e.status, status);
    assert_int_equal(kvt_sink_xfer(e.sink), w->order.xfer);
    if (status == KVS_OK) {
        assert_int_equal(e.pages, w->order.blocks * w->order.groups);
        assert_int_equal(e.bytes, w->order.blocks * w->order.groups * w->order.page_bytes);
        assert_true(e.elapsed_us > 0);
        assert_whole(w);
    }
    kvt_sink_destroy(e.sink);
    free(w->bytes);
}

static void whole_transfers(bool near)
{
    struct helper h;
    start(&h, 0, near, "");
    const uint64_t page[] = {1, 100, 4096, 81920, 491520, 1048576, 2097152};
    for (uint32_t i = 0; i < sizeof page / sizeof *page; i++) {
        struct wanted w = want(0, i + 1, 5, 3, page[i], LOGITS);
        order(&h, &w);
        wait_end(&h);
        finish(&w, 0, KVS_OK);
    }
    struct kvt_port_counters c;
    kvt_port_counters(box.port, &c);
    assert_int_equal(c.eager, 0); /* rendezvous holds down to one byte */
    assert_int_equal(c.cut_receives, 0);
    stop(&h, 0);
}

static void test_pages_over_cma(void **state)
{
    (void)state;
    whole_transfers(true);
}

static void test_pages_over_tcp(void **state)
{
    (void)state;
    whole_transfers(false);
}

static void test_messages_may_be_sent_before_up(void **state)
{
    (void)state;
    struct helper h; /* the order is in its pipe before the two ends are up, and the grant stands before connect */
    helper_start(&h, HELPER, "tcp", "");
    say_hello(&h, 0, false);
    struct wanted w = want(0, 1, 4, 1, 65536, 0);
    order(&h, &w);
    wait_end(&h);
    finish(&w, 0, KVS_OK);
    box_wait(&box, KVT_EV_UP, 0);
    stop(&h, 0);
}

#ifdef KVASIR_FAILPOINTS
/* One source dies after it posted page k; another one's transfers go on meanwhile. Nobody reaps the dead one. */
static void kill_source_at(bool near, int k)
{
    struct helper victim, other;
    char fault[64];
    snprintf(fault, sizeof fault, "kvt.before_send=kill@%d", k);
    start(&victim, 0, near, fault);
    start(&other, 1, near, "");
    struct wanted w = want(0, 100, 24, 2, 262144, 0), v = want(1, 200, 64, 2, 262144, LOGITS);
    order(&other, &v);
    order(&victim, &w);
    struct helper_done done;
    assert_false(helper_read(&victim, &done, sizeof done)); /* it is gone, as the control stream would tell */
    uint64_t begin_us = kvs_now_us();
    box_check(kvt_peer_close(box.port, 0), "close");
    finish(&w, 0, KVS_PEER_LOST);
    box_wait(&box, KVT_EV_CLOSED, 0);
    uint64_t took_us = kvs_now_us() - begin_us;
    print_message("killed before message %d over %s: closed in %llu us\n", k, near ? "cma" : "tcp",
                  (unsigned long long)took_us);
    assert_true(took_us < 10000000); /* ten times what is promised: the machine may be crowded */
    wait_end(&other);
    finish(&v, 1, KVS_OK);
    struct wanted again = want(1, 201, 8, 2, 262144, 0);
    order(&other, &again);
    wait_end(&other);
    finish(&again, 1, KVS_OK);
    stop(&other, 1);
    int status = helper_reap(&victim);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void test_source_killed_in_mid_transfer(void **state)
{
    (void)state;
    for (int near = 0; near <= 1; near++) {
        kill_source_at(near, 1);
        kill_source_at(near, 7);
        kill_source_at(near, 30);
    }
}

static void test_source_killed_during_wireup(void **state)
{
    (void)state;
    for (int near = 0; near <= 1; near++) {
        struct helper victim, other;
        start(&other, 1, near, "");
        struct wanted v = want(1, 300, 64, 2, 262144, 0);
        order(&other, &v);
        helper_start(&victim, HELPER, near ? "near" : "tcp", "kvt.wireup=kill");
        say_hello(&victim, 0, near);
        struct helper_done done;
        assert_false(helper_read(&victim, &done, sizeof done));
        struct kvt_event e;
        assert_false(box_try(&box, KVT_EV_UP, 0, 200000, &e));
        box_check(kvt_peer_close(box.port, 0), "close");
        box_wait(&box, KVT_EV_CLOSED, 0);
        wait_end(&other);
        finish(&v, 1, KVS_OK);
        stop(&other, 1);
        helper_reap(&victim);
        struct helper again; /* the number is free, and a new life of the worker comes up */
        start(&again, 0, near, "");
        struct wanted w = want(0, 301, 4, 1, 262144, 0);
        order(&again, &w);
        wait_end(&again);
        finish(&w, 0, KVS_OK);
        stop(&again, 0);
        while (box_try(&box, KVT_EV_ERROR, 0, 0, &e)) /* UCX may have noticed by itself, before the close */
            assert_int_equal(e.status, KVS_PEER_LOST);
    }
}

static void test_corrupt_and_lost_pages_fail_the_transfer(void **state)
{
    (void)state;
    for (int near = 0; near <= 1; near++) {
        struct helper h;
        uint64_t before = kvt_port_declined(box.port, KVT_DECLINE_CHECKSUM);
        start(&h, 0, near, "kvt.corrupt_page=error@3;kvt.drop_send=error@20");
        struct wanted w = want(0, 1, 12, 1, 100000, 0);
        order(&h, &w);
        wait_end(&h);
        finish(&w, 0, KVS_PEER_CORRUPT);
        assert_int_equal(kvt_port_declined(box.port, KVT_DECLINE_CHECKSUM), before + 1);
        w = want(0, 2, 12, 1, 100000, 0);
        order(&h, &w);
        wait_end(&h);
        finish(&w, 0, KVS_PEER_PROTOCOL);
        w = want(0, 3, 12, 1, 100000, 0);
        order(&h, &w);
        wait_end(&h);
        finish(&w, 0, KVS_OK);
        stop(&h, 0);
    }
}

static void test_stopped_source_is_closed_in_time(void **state)
{
    (void)state;
    for (int near = 0; near <= 1; near++) {
        struct helper h;
        start(&h, 0, near, "kvt.before_send=stop@5");
        struct wanted w = want(0, 1, 16, 2, 1048576, 0);
        order(&h, &w);
        struct kvt_event e;
        assert_false(
            box_try(&box, KVT_EV_GRANT, 0, 100000, &e)); /* a hung peer says nothing: the heartbeat has to tell */
        uint64_t begin_us = kvs_now_us();
        box_check(kvt_peer_close(box.port, 0), "close");
        finish(&w, 0, KVS_PEER_LOST);
        box_wait(&box, KVT_EV_CLOSED, 0);
        assert_true(kvs_now_us() - begin_us < 10000000);
        helper_kill(&h);
        helper_reap(&h);
    }
}
#endif

static void test_cancelled_pages_are_never_written_later(void **state)
{
    (void)state;
    for (int near = 0; near <= 1; near++)
        for (uint32_t round = 0; round < 4; round++) {
            struct helper h;
            start(&h, 0, near, "");
            struct wanted w = want(0, 1, 128, 1, 262144, 0);
            order(&h, &w);
            kvs_sleep_us(round * 5000);
            box_check(kvt_grant_cancel(box.port, 1), "cancel");
            struct kvt_event e = box_wait(&box, KVT_EV_GRANT, 0);
            assert_int_equal(e.status, KVS_REQ_CANCELLED);
            kvt_sink_destroy(e.sink);
            size_t n = 128u * 262144u;
            memset(w.bytes, 0x5a, n); /* reused at once */
            struct helper_done done;
            assert_true(helper_read(&h, &done, sizeof done)); /* all its sends are through: declined or dropped */
            struct wanted next = want(0, 2, 4, 1, 262144, 0);
            order(&h, &next);
            wait_end(&h);
            finish(&next, 0, KVS_OK);
            for (size_t i = 0; i < n; i++)
                if (w.bytes[i] != 0x5a)
                    fail_msg("byte %zu was written after the cancel had ended", i);
            free(w.bytes);
            stop(&h, 0);
        }
}

static void test_garbage_addresses_are_refused(void **state)
{
    (void)state;
    uint8_t big[KVT_ADDRESS_MAX + 1] = {0};
    assert_int_equal(kvt_peer_connect(box.port, 0, 1, big, sizeof big), KVS_PEER_PROTOCOL);
    assert_int_equal(kvt_peer_connect(box.port, 0, 1, big, 0), KVS_PEER_PROTOCOL);
}

static void test_probe_reads_only_its_own_kind(void **state)
{
    (void)state;
    struct kvt_probe p;
    kvt_probe_self(&p);
    assert_true(kvt_probe_try(&p));
    struct kvt_probe q[6];
    for (int i = 0; i < 6; i++)
        q[i] = p;
    q[0].boot_id[3] ^= 1;
    q[1].pid_namespace++;
    q[2].uid++;
    q[3].pid = 1u << 30;
    q[4].value ^= 2;
    q[5].address = 8;
    for (int i = 0; i < 6; i++)
        assert_false(kvt_probe_try(&q[i]));
}

int main(int argc, char **argv)
{
    kvt_prepare_process(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pages_over_cma, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages_over_tcp, setup, teardown),
        cmocka_unit_test_setup_teardown(test_messages_may_be_sent_before_up, setup, teardown),
#ifdef KVASIR_FAILPOINTS
        cmocka_unit_test_setup_teardown(test_source_killed_in_mid_transfer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_source_killed_during_wireup, setup, teardown),
        cmocka_unit_test_setup_teardown(test_corrupt_and_lost_pages_fail_the_transfer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stopped_source_is_closed_in_time, setup, teardown),
#endif
        cmocka_unit_test_setup_teardown(test_cancelled_pages_are_never_written_later, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbage_addresses_are_refused, setup, teardown),
        cmocka_unit_test(test_probe_reads_only_its_own_kind),
    };
    cmocka_set_test_filter(getenv("KVASIR_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
