/* loopback_test.c - two ports of one process: pages, logits, END before the pages, cancel, close with grants open, stale addresses,
 * and the checks, through the same commands and events that UCX serves.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "kvtransfer/core/source.h"
#include "sys/failpoint.h"
#include "tests/unit/kvtransfer/box.h"

enum {
    PAGE = 5000,
    LOGITS = 4 * 321,
    BLOCKS = 6,
    MESSAGES = 2 * BLOCKS + 1,
    EPOCH_A = 11,
    EPOCH_B = 22,
    PEER_A = 3,
    PEER_B = 7
};

/* A is the sink, B the source; A calls B its peer PEER_A, B calls A its peer PEER_B. */
struct pair {
    struct box a, b;
    uint8_t page[2][BLOCKS][PAGE]; /* [group] source */
    uint8_t logits[LOGITS];
    uint8_t dest[2][BLOCKS][PAGE];
    uint8_t dest_logits[LOGITS];
};

static void connect_pair(struct pair *p)
{
    box_check(kvt_peer_open(p->a.port, PEER_A, KVT_LANE_LOOPBACK), "open");
    box_check(kvt_peer_open(p->b.port, PEER_B, KVT_LANE_LOOPBACK), "open");
    struct kvt_event a = box_wait(&p->a, KVT_EV_ADDRESS, PEER_A), b = box_wait(&p->b, KVT_EV_ADDRESS, PEER_B);
    box_check(kvt_peer_connect(p->a.port, PEER_A, EPOCH_B, b.address, b.address_bytes), "connect");
    struct kvt_event e;
    assert_false(box_try(&p->a, KVT_EV_UP, PEER_A, 50000, &e)); /* one side is not enough */
    box_check(kvt_peer_connect(p->b.port, PEER_B, EPOCH_A, a.address, a.address_bytes), "connect");
    assert_string_equal(box_wait(&p->a, KVT_EV_UP, PEER_A).transport, "loopback");
    assert_string_equal(box_wait(&p->b, KVT_EV_UP, PEER_B).transport, "loopback");
}

static struct pair *new_pair(uint64_t xfer)
{
    struct pair *p = calloc(1, sizeof *p);
    assert_non_null(p);
    box_open(&p->a, "a", EPOCH_A, true);
    box_open(&p->b, "b", EPOCH_B, true);
    connect_pair(p);
    for (uint16_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < BLOCKS; i++)
            pattern_fill(p->page[g][i], PAGE, xfer, i, g);
    pattern_fill(p->logits, LOGITS, xfer, KVT_LOGITS_BLOCK, KVT_LOGITS_GROUP);
    return p;
}

static void free_pair(struct pair *p)
{
    box_close(&p->a);
    box_close(&p->b);
    free(p);
}

static struct kvt_sink *grant(struct pair *p, uint64_t xfer, uint64_t nonce)
{
    struct kvt_want wants[MESSAGES];
    uint32_t n = 0;
    for (uint16_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < BLOCKS; i++)
            wants[n++] = (struct kvt_want){.block = i, .group = g, .bytes = PAGE, .dest = p->dest[g][i]};
    wants[n++] = (struct kvt_want){
        .block = KVT_LOGITS_BLOCK, .group = KVT_LOGITS_GROUP, .bytes = LOGITS, .dest = p->dest_logits};
    struct kvt_sink *s;
    box_check(kvt_sink_create(&(struct kvt_sink_config){EPOCH_A, xfer, nonce, wants, n}, &s), "sink");
    box_check(kvt_grant(p->a.port, PEER_A, s), "grant");
    return s;
}

static void send_one(struct pair *p, struct kvt_source *s, uint16_t group, uint32_t block)
{
    struct kvt_header h;
    bool logits = group == KVT_LOGITS_GROUP;
    box_check(kvt_source_post(s, logits ? KVT_LOGITS : KVT_PAGE, block, group, 0, logits ? LOGITS : PAGE, &h), "post");
    box_check(kvt_send(p->b.port, PEER_B, &h, logits ? p->logits : p->page[group][block], block), "send");
}

static void send_all(struct pair *p, struct kvt_source *s)
{
    for (uint16_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < BLOCKS; i++)
            send_one(p, s, g, i);
    send_one(p, s, KVT_LOGITS_GROUP, KVT_LOGITS_BLOCK);
}

static uint32_t wait_sent(struct pair *p, struct kvt_source *s)
{
    kvs_status status;
    uint32_t sent = 0;
    while (!kvt_source_take_end(s, &status, &sent)) {
        struct kvt_event e = box_wait(&p->b, KVT_EV_SENT, PEER_B);
        kvt_source_sent(s, e.status);
    }
    assert_int_equal(status, KVS_OK);
    return sent;
}

static struct kvt_source *new_source(uint64_t xfer, uint64_t nonce)
{
    struct kvt_source *s;
    box_check(kvt_source_create(&(struct kvt_source_config){EPOCH_A, xfer, nonce, MESSAGES, 1000}, &s), "source");
    return s;
}

static struct kvt_event wait_grant(struct pair *p)
{
    return box_wait(&p->a, KVT_EV_GRANT, PEER_A);
}

static void test_pages_and_logits_arrive(void **state)
{
    (void)state;
    struct pair *p = new_pair(5);
    struct kvt_sink *sink = grant(p, 5, 99);
    struct kvt_source *s = new_source(5, 99);
    send_all(p, s);
    uint32_t sent = wait_sent(p, s);
    assert_int_equal(sent, MESSAGES);
    box_check(kvt_grant_end(p->a.port, 5, KVS_OK, sent), "end");
    struct kvt_event e = wait_grant(p);
    assert_ptr_equal(e.sink, sink);
    assert_int_equal(e.status, KVS_OK);
    assert_int_equal(e.pages, 2 * BLOCKS);
    assert_int_equal(e.bytes, 2 * BLOCKS * PAGE); /* the logits are left out */
    assert_string_equal(e.transport, "loopback");
    for (uint16_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < BLOCKS; i++)
            assert_true(pattern_is(p->dest[g][i], PAGE, 5, i, g));
    assert_true(pattern_is(p->dest_logits, LOGITS, 5, KVT_LOGITS_BLOCK, KVT_LOGITS_GROUP));
    kvt_sink_destroy(e.sink);
    kvt_source_destroy(s);
    free_pair(p);
}

static void test_end_with_nothing_under_way_is_a_failure(void **state)
{
    (void)state;
    struct pair *p = new_pair(6);
    grant(p, 6, 1);
    box_check(kvt_grant_end(p->a.port, 6, KVS_OK, MESSAGES),
              "end"); /* nothing landed, nothing on its way: NACK at once */
    struct kvt_event e = wait_grant(p);
    assert_int_equal(e.status, KVS_PEER_PROTOCOL);
    uint32_t missing[MESSAGES];
    assert_int_equal(kvt_sink_missing(e.sink, missing, MESSAGES), MESSAGES);
    kvt_sink_destroy(e.sink);
    struct kvt_source *s = new_source(6, 1); /* the pages come late: declined, and the sends complete all the same */
    send_all(p, s);
    wait_sent(p, s);
    assert_int_equal(kvt_port_declined(p->a.port, KVT_DECLINE_XFER), MESSAGES);
    kvt_source_destroy(s);
    free_pair(p);
}

static void test_failed_end_carries_its_status(void **state)
{
    (void)state;
    struct pair *p = new_pair(6);
    grant(p, 6, 1);
    box_check(kvt_grant_end(p->a.port, 6, KVS_SELF_NUMERIC, 0), "end");
    struct kvt_event e = wait_grant(p);
    assert_int_equal(e.status, KVS_SELF_NUMERIC);
    kvt_sink_destroy(e.sink);
    free_pair(p);
}

static void test_cancel_ends_the_grant_and_declines_the_rest(void **state)
{
    (void)state;
    struct pair *p = new_pair(7);
    grant(p, 7, 1);
    struct kvt_source *s = new_source(7, 1);
    send_one(p, s, 0, 0);
    kvt_source_sent(s, box_wait(&p->b, KVT_EV_SENT, PEER_B).status);
    box_check(kvt_grant_cancel(p->a.port, 7), "cancel");
    struct kvt_event e = wait_grant(p);
    assert_int_equal(e.status, KVS_REQ_CANCELLED);
    assert_int_equal(e.pages, 1);
    kvt_sink_destroy(e.sink);
    memset(p->dest, 0x55, sizeof p->dest); /* the pages are somebody else's now */
    send_one(p, s, 0, 1);
    kvt_source_sent(s, box_wait(&p->b, KVT_EV_SENT, PEER_B).status);
    for (size_t i = 0; i < sizeof p->dest; i++)
        assert_int_equal(((uint8_t *)p->dest)[i], 0x55);
    assert_int_equal(kvt_port_declined(p->a.port, KVT_DECLINE_XFER), 1);
    box_check(kvt_grant_cancel(p->a.port, 7), "cancel twice is harmless");
    kvt_source_destroy(s);
    free_pair(p);
}

static void test_checks_are_the_sinks(void **state)
{
    (void)state;
    struct pair *p = new_pair(8);
    grant(p, 8, 123);
    const struct kvt_header good = {
        .version = 1, .sink_epoch = EPOCH_A, .xfer = 8, .nonce = 123, .block = 1, .bytes = PAGE};
    struct kvt_header bad[8];
    const kvt_verdict why[8] = {KVT_DECLINE_VERSION, KVT_DECLINE_VERSION, KVT_DECLINE_EPOCH,  KVT_DECLINE_XFER,
                                KVT_DECLINE_NONCE,   KVT_DECLINE_INDEX,   KVT_DECLINE_LENGTH, KVT_DECLINE_DOUBLE};
    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].version = 2;
    bad[1].flags = 1;
    bad[2].sink_epoch++;
    bad[3].xfer++;
    bad[4].nonce++;
    bad[5].block = BLOCKS;
    bad[6].bytes--;
    for (int i = 0; i < 8; i++) {
        if (i == 7) { /* the first one is good, the second a double */
            box_check(kvt_send(p->b.port, PEER_B, &good, p->page[0][1], 0), "send");
            box_wait(&p->b, KVT_EV_SENT, PEER_B);
        }
        uint64_t before = kvt_port_declined(p->a.port, why[i]);
        box_check(kvt_send(p->b.port, PEER_B, &bad[i], p->page[0][1], 0), "send");
        assert_int_equal(box_wait(&p->b, KVT_EV_SENT, PEER_B).status, KVS_OK);
        assert_int_equal(kvt_port_declined(p->a.port, why[i]), before + 1);
    }
    box_check(kvt_grant_cancel(p->a.port, 8), "cancel");
    struct kvt_event e = wait_grant(p);
    assert_int_equal(e.pages, 1);
    kvt_sink_destroy(e.sink);
    free_pair(p);
}

static void test_close_with_grant_and_sends_open(void **state)
{
    (void)state;
    struct pair *p = new_pair(9);
    grant(p, 9, 1);
    box_check(kvt_peer_close(p->a.port, PEER_A), "close");
    struct kvt_event e = wait_grant(p);
    assert_int_equal(e.status, KVS_PEER_LOST);
    kvt_sink_destroy(e.sink);
    box_wait(&p->a, KVT_EV_CLOSED, PEER_A);
    assert_int_equal(box_wait(&p->b, KVT_EV_ERROR, PEER_B).status, KVS_PEER_LOST); /* the other side learns of it */
    struct kvt_source *s = new_source(9, 1);
    send_one(p, s, 0, 0);
    box_check(kvt_peer_close(p->b.port, PEER_B), "close");
    assert_int_equal(box_wait(&p->b, KVT_EV_SENT, PEER_B).status, KVS_PEER_LOST);
    kvt_source_sent(s, KVS_PEER_LOST);
    assert_int_equal(kvt_source_in_flight(s), 0);
    kvt_source_destroy(s);
    box_wait(&p->b, KVT_EV_CLOSED, PEER_B);
    connect_pair(p); /* the numbers may be used again */
    grant(p, 9, 1);
    s = new_source(9, 1);
    send_all(p, s);
    wait_sent(p, s);
    box_check(kvt_grant_end(p->a.port, 9, KVS_OK, MESSAGES), "end");
    e = wait_grant(p);
    assert_int_equal(e.status, KVS_OK);
    kvt_sink_destroy(e.sink);
    kvt_source_destroy(s);
    grant(p, 10, 1); /* destroying the port destroys the sink that it still holds */
    free_pair(p);
}

static void test_queued_messages_can_be_dropped(void **state)
{
    (void)state;
    struct pair *p = calloc(1, sizeof *p);
    assert_non_null(p);
    box_open(&p->a, "a", EPOCH_A, true);
    box_check(kvt_peer_open(p->a.port, PEER_A, KVT_LANE_LOOPBACK), "open"); /* not connected: messages wait */
    for (uint64_t i = 0; i < 4; i++) {
        const struct kvt_header h = {.version = 1, .xfer = i % 2, .bytes = PAGE};
        box_check(kvt_send(p->a.port, PEER_A, &h, p->page[0][0], i), "send");
    }
    box_check(kvt_send_drop(p->a.port, PEER_A, 1), "drop");
    for (uint64_t i = 1; i < 4; i += 2) {
        struct kvt_event e = box_wait(&p->a, KVT_EV_SENT, PEER_A);
        assert_int_equal(e.status, KVS_REQ_CANCELLED);
        assert_int_equal(e.cookie, i);
    }
    struct kvt_event e;
    assert_false(box_try(&p->a, KVT_EV_SENT, PEER_A, 20000, &e)); /* the other transfer's wait on */
    box_check(kvt_peer_close(p->a.port, PEER_A), "close");
    for (uint64_t i = 0; i < 4; i += 2) {
        e = box_wait(&p->a, KVT_EV_SENT, PEER_A);
        assert_int_equal(e.status, KVS_PEER_LOST);
        assert_int_equal(e.cookie, i);
    }
    box_wait(&p->a, KVT_EV_CLOSED, PEER_A);
    box_close(&p->a);
    free(p);
}

#ifdef KVASIR_FAILPOINTS
static kvs_status transfer_with_fault(const char *fault, const char *name, kvt_verdict why, uint32_t *missing_out)
{
    struct pair *p = new_pair(12);
    struct kvs_error err;
    uint32_t missing[MESSAGES];
    box_check(kvs_failpoint_set(fault, &err), "failpoint");
    grant(p, 12, 1);
    struct kvt_source *s = new_source(12, 1);
    send_all(p, s);
    wait_sent(p, s);
    box_check(kvt_grant_end(p->a.port, 12, KVS_OK, MESSAGES), "end");
    struct kvt_event e = wait_grant(p);
    assert_int_equal(kvs_failpoint_fired(name), 1);
    if (why != KVT_ACCEPT)
        assert_int_equal(kvt_port_declined(p->a.port, why), 1);
    *missing_out = kvt_sink_missing(e.sink, missing, MESSAGES);
    assert_int_equal(missing[0], 2);
    box_check(kvs_failpoint_set("", &err), "failpoint");
    kvt_sink_destroy(e.sink);
    kvt_source_destroy(s);
    free_pair(p);
    return e.status;
}

static void test_corrupt_and_lost_pages_are_seen(void **state)
{
    (void)state;
    uint32_t missing;
    assert_int_equal(
        transfer_with_fault("kvt.corrupt_page=error@3", "kvt.corrupt_page", KVT_DECLINE_CHECKSUM, &missing),
        KVS_PEER_CORRUPT);
    assert_int_equal(missing, 1);
    assert_int_equal(transfer_with_fault("kvt.drop_send=error@3", "kvt.drop_send", KVT_ACCEPT, &missing),
                     KVS_PEER_PROTOCOL);
    assert_int_equal(missing, 1);
}
#endif

static void test_sends_are_bounded(void **state)
{
    (void)state;
    struct box a;
    box_open(&a, "a", EPOCH_A, true);
    const struct kvt_header h = {.version = 1, .bytes = 1};
    for (uint32_t i = 0; i < KVT_SENDS_MAX; i++) /* no such peer: each ends at once, but its event is not read */
        box_check(kvt_send(a.port, PEER_A, &h, "x", i), "send");
    assert_int_equal(kvt_send(a.port, PEER_A, &h, "x", 0), KVS_BUSY_QUEUE);
    struct kvt_event e;
    for (uint32_t i = 0; i < KVT_SENDS_MAX; i++) {
        while (!kvt_port_next(a.port, &e))
            ;
        assert_int_equal(e.kind, KVT_EV_SENT);
        assert_int_equal(e.status, KVS_PEER_LOST);
        assert_int_equal(e.cookie, i);
    }
    box_check(kvt_send(a.port, PEER_A, &h, "x", 0), "room again");
    box_check(kvt_peer_close(a.port, 200), "closing nobody");
    assert_int_equal(box_wait(&a, KVT_EV_CLOSED, 200).status, KVS_OK);
    box_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_and_logits_arrive),
        cmocka_unit_test(test_end_with_nothing_under_way_is_a_failure),
        cmocka_unit_test(test_failed_end_carries_its_status),
        cmocka_unit_test(test_cancel_ends_the_grant_and_declines_the_rest),
        cmocka_unit_test(test_checks_are_the_sinks),
        cmocka_unit_test(test_close_with_grant_and_sends_open),
        cmocka_unit_test(test_queued_messages_can_be_dropped),
        cmocka_unit_test(test_sends_are_bounded),
#ifdef KVASIR_FAILPOINTS
        cmocka_unit_test(test_corrupt_and_lost_pages_are_seen),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
