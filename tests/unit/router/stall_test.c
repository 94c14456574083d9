/* stall_test.c - who counts as a client that does not read, in virtual time: exact bounds, slow ones that move, our own standstill, and random
 * histories against a plain second form of the rule.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/rng.h"
#include "router/core/stall.h"

#define S 1000000u
#define LIMIT (30u * S)

static void test_a_client_that_takes_nothing(void **state)
{
    (void)state;
    struct rtr_stall s = {0};
    uint64_t now = 77 * S;
    assert_false(rtr_stall_look(&s, 100, false, LIMIT, now)); /* nothing waits, for however long */
    now += 1000ull * S;
    assert_false(rtr_stall_look(&s, 100, false, LIMIT, now));
    now += S;
    assert_false(rtr_stall_look(&s, 100, true, LIMIT, now)); /* from here on it does */
    for (int i = 1; i < 30; i++)
        assert_false(rtr_stall_look(&s, 100, true, LIMIT, now + (uint64_t)i * S));
    assert_false(rtr_stall_look(&s, 100, true, LIMIT, now + LIMIT - 1));
    assert_true(rtr_stall_look(&s, 100, true, LIMIT, now + LIMIT));
    assert_true(rtr_stall_look(&s, 100, true, LIMIT, now + LIMIT + S)); /* and stays so */
}

static void test_one_byte_begins_the_time_anew(void **state)
{
    (void)state;
    struct rtr_stall s = {0};
    uint64_t now = 0;
    for (uint64_t taken = 0; taken < 50; taken++) /* a byte every 29 s, for 24 minutes */
        for (int i = 0; i < 29; i++)
            assert_false(rtr_stall_look(&s, taken, true, LIMIT, now += S));
    for (int i = 0; i < 28; i++) /* the last one came 28 s ago: two more, then it is over */
        (void)rtr_stall_look(&s, 50, true, LIMIT, now += S);
    assert_false(rtr_stall_look(&s, 50, true, LIMIT, now += S));
    assert_false(rtr_stall_look(&s, 50, true, LIMIT, now += S));
    assert_true(rtr_stall_look(&s, 50, true, LIMIT, now += S));
}

static void test_all_taken_begins_it_anew(void **state)
{
    (void)state;
    struct rtr_stall s = {0};
    uint64_t now = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i <= 29; i++)
            assert_false(rtr_stall_look(&s, 5, true, LIMIT, now += S));
        assert_false(rtr_stall_look(&s, 5, false, LIMIT, now += S)); /* the count has wrapped, or what waited was taken back */
        now += 500ull * S; /* the next bytes come at the end of a long silence: that was not waiting */
    }
}

static void test_our_own_standstill_is_not_the_clients(void **state)
{
    (void)state;
    struct rtr_stall s = {0};
    assert_false(rtr_stall_look(&s, 5, true, LIMIT, S));
    assert_false(rtr_stall_look(&s, 5, true, LIMIT, 3600ull * S)); /* stopped for an hour: it counts as one step */
    for (uint64_t i = 1; i < 28; i++)
        assert_false(rtr_stall_look(&s, 5, true, LIMIT, (3600 + i) * S));
    assert_true(rtr_stall_look(&s, 5, true, LIMIT, (3600 + 28) * S));
}

/* The plain form: all looks are kept; stalled is when the looks since the last movement, all of them with something waiting, span the limit. */
static void test_random_histories(void **state)
{
    (void)state;
    uint64_t stalls = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct kvs_rng r = {seed};
        struct rtr_stall s = {0};
        uint64_t now = 0, taken = 0, begin = 0, limit = 2 * S;
        bool have_begin = false;
        for (int i = 0; i < 400; i++) {
            now += 1 + kvs_rng_below(&r, S / 2);
            bool waiting = kvs_rng_below(&r, 16) != 0, moved = kvs_rng_below(&r, 12) == 0;
            taken += moved;
            if (!waiting)
                have_begin = false;
            else if (moved || !have_begin) {
                have_begin = true;
                begin = now;
            }
            bool want = have_begin && now - begin >= limit;
            if (rtr_stall_look(&s, taken, waiting, limit, now) != want)
                fail_msg("seed %llu, look %d", (unsigned long long)seed, i);
            stalls += want;
        }
    }
    printf("%llu looks found a stalled client\n", (unsigned long long)stalls);
    assert_in_range(stalls, 1000, 110000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_client_that_takes_nothing),          cmocka_unit_test(test_one_byte_begins_the_time_anew),
        cmocka_unit_test(test_all_taken_begins_it_anew),             cmocka_unit_test(test_our_own_standstill_is_not_the_clients),
        cmocka_unit_test(test_random_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
