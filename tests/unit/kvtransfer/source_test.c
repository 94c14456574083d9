/* source_test.c - the sending state machine: when END is due, what it says, and when pages may be unpinned; random orders against a
 * model of plain counters. KVASIR_TEST_SEED takes another seed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "base/rng.h"
#include "kvtransfer/core/source.h"

enum { EPOCH = 1, XFER = 2, NONCE = 3, DEADLINE = 1000 };

static struct kvt_source *create(uint32_t count)
{
    struct kvt_source *s;
    assert_int_equal(kvt_source_create(&(struct kvt_source_config){EPOCH, XFER, NONCE, count, DEADLINE}, &s), KVS_OK);
    return s;
}

static void post(struct kvt_source *s, uint32_t block)
{
    struct kvt_header h;
    assert_int_equal(kvt_source_post(s, KVT_PAGE, block, 4, 5, 600, &h), KVS_OK);
    assert_int_equal(h.version, 1);
    assert_int_equal(h.kind, 0);
    assert_int_equal(h.flags, 0);
    assert_int_equal(h.sink_epoch, EPOCH);
    assert_int_equal(h.xfer, XFER);
    assert_int_equal(h.nonce, NONCE);
    assert_int_equal(h.block, block);
    assert_int_equal(h.group, 4);
    assert_int_equal(h.shard, 5);
    assert_int_equal(h.bytes, 600);
}

static void test_end_follows_the_last_completion(void **state)
{
    (void)state;
    struct kvt_source *s = create(2);
    kvs_status status;
    uint32_t sent;
    post(s, 0);
    kvt_source_sent(s, KVS_OK);
    assert_false(kvt_source_take_end(s, &status, &sent)); /* one more is wanted */
    post(s, 1);
    assert_false(kvt_source_take_end(s, &status, &sent)); /* in flight */
    kvt_source_sent(s, KVS_OK);
    assert_true(kvt_source_take_end(s, &status, &sent));
    assert_int_equal(status, KVS_OK);
    assert_int_equal(sent, 2);
    assert_false(kvt_source_take_end(s, &status, &sent)); /* once */
    assert_false(kvt_source_released(s, DEADLINE - 1));   /* a completion is not delivery */
    kvt_source_close(s);                                  /* ACK */
    assert_true(kvt_source_released(s, 0));
    kvt_source_destroy(s);
    kvt_source_destroy(NULL);
}

static void test_stop_ends_after_what_is_in_flight(void **state)
{
    (void)state;
    struct kvt_source *s = create(5);
    struct kvt_header h;
    kvs_status status;
    uint32_t sent;
    post(s, 0);
    post(s, 1);
    kvt_source_stop(s, KVS_REQ_CANCELLED);
    kvt_source_stop(s, KVS_SELF_NUMERIC); /* the first cause stands */
    assert_int_equal(kvt_source_post(s, KVT_PAGE, 2, 0, 0, 1, &h), KVS_BUSY_AGAIN);
    kvt_source_sent(s, KVS_OK);
    assert_false(kvt_source_take_end(s, &status, &sent));
    kvt_source_sent(s, KVS_OK);
    assert_true(kvt_source_take_end(s, &status, &sent));
    assert_int_equal(status, KVS_REQ_CANCELLED);
    assert_int_equal(sent, 2);
    kvt_source_destroy(s);
}

static void test_pages_stay_pinned_while_in_flight(void **state)
{
    (void)state;
    struct kvt_source *s = create(1);
    kvs_status status;
    uint32_t sent;
    post(s, 0);
    kvt_source_close(s); /* the stream is lost; the transport still reads */
    assert_false(kvt_source_released(s, DEADLINE + 1));
    kvt_source_sent(s, KVS_PEER_LOST);
    assert_true(kvt_source_released(s, 0));
    assert_false(kvt_source_take_end(s, &status, &sent)); /* nobody to tell */
    kvt_source_destroy(s);
    s = create(1);
    assert_false(kvt_source_released(s, DEADLINE - 1));
    assert_true(kvt_source_released(s, DEADLINE));
    kvt_source_destroy(s);
    assert_int_equal(kvt_source_create(&(struct kvt_source_config){.message_count = 0}, &s), KVS_REQ_INVALID);
}

static void test_random_orders(void **state)
{
    (void)state;
    const char *text = getenv("KVASIR_TEST_SEED");
    struct kvs_rng r = {text != NULL ? strtoull(text, NULL, 10) : 20261130u};
    print_message("KVASIR_TEST_SEED=%llu\n", (unsigned long long)r.state);
    uint32_t ends = 0;
    for (int run = 0; run < 2000; run++) {
        uint32_t count = 1 + (uint32_t)kvs_rng_below(&r, 8), posted = 0, completed = 0;
        kvs_status why = KVS_OK;
        bool ended = false, closed = false;
        struct kvt_source *s = create(count);
        for (int i = 0; i < 60; i++) {
            struct kvt_header h;
            kvs_status status;
            uint32_t sent;
            uint64_t now = kvs_rng_below(&r, 2 * DEADLINE);
            switch (kvs_rng_below(&r, 20)) {
            case 0:
                kvt_source_stop(s, KVS_REQ_CANCELLED);
                why = why == KVS_OK ? KVS_REQ_CANCELLED : why;
                break;
            case 1:
                kvt_source_close(s);
                closed = true;
                break;
            case 2:
                if (posted > completed) {
                    kvt_source_sent(s, KVS_PEER_LOST);
                    completed++;
                    why = why == KVS_OK ? KVS_PEER_LOST : why;
                }
                break;
            default:
                if (kvs_rng_below(&r, 2) == 0 && posted > completed) {
                    kvt_source_sent(s, KVS_OK);
                    completed++;
                } else if (posted < count) {
                    kvs_status st = kvt_source_post(s, KVT_PAGE, posted, 0, 0, 1, &h);
                    assert_int_equal(st, why != KVS_OK || closed ? KVS_BUSY_AGAIN : KVS_OK);
                    posted += st == KVS_OK;
                }
                break;
            }
            bool due = !ended && !closed && posted == completed && (posted == count || why != KVS_OK);
            assert_int_equal(kvt_source_take_end(s, &status, &sent), due);
            if (due) {
                assert_int_equal(status, why);
                assert_int_equal(sent, posted);
                ended = true;
                ends++;
            }
            assert_int_equal(kvt_source_in_flight(s), posted - completed);
            assert_int_equal(kvt_source_released(s, now), posted == completed && (closed || now >= DEADLINE));
        }
        for (; completed < posted; completed++)
            kvt_source_sent(s, KVS_OK);
        kvt_source_destroy(s);
    }
    assert_true(ends > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_end_follows_the_last_completion),
        cmocka_unit_test(test_stop_ends_after_what_is_in_flight),
        cmocka_unit_test(test_pages_stay_pinned_while_in_flight),
        cmocka_unit_test(test_random_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
