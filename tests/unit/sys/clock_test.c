/* clock_test.c - time goes on, sleeps last, random numbers differ.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/clock.h"
#include <time.h>

static void test_time_goes_on(void **state)
{
    (void)state;
    uint64_t a = kvs_now_us();
    kvs_sleep_us(20000);
    uint64_t b = kvs_now_us();
    assert_true(b - a >= 20000);
    assert_true(b - a < 20000000);
    uint64_t ns = kvs_now_ns();
    assert_true(ns / 1000 >= b && ns / 1000 - b < 5000000);
    uint64_t wall = kvs_wall_s();
    uint64_t wanted = (uint64_t)time(NULL);
    assert_true(wanted - wall <= 2);
}

static void test_random_numbers_differ(void **state)
{
    (void)state;
    uint64_t any = 0, all = UINT64_MAX;
    for (int i = 0; i < 64; i++) {
        uint64_t v = kvs_random_u64();
        any |= v;
        all &= v;
    }
    assert_true(any == UINT64_MAX); /* each bit was once 1 and once 0: fails by chance once in 2^57 runs */
    assert_true(all == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_time_goes_on), cmocka_unit_test(test_random_numbers_differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
