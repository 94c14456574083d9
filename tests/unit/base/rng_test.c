/* rng_test.c - Philox4x32-10 against the known-answer vectors of Random123 (kat_vectors); splitmix64 against the values of
 * its reference C program for seed 1234567.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"

static void test_philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
        uint32_t out[4];
        kvs_philox4x32(kat[i].counter, kat[i].key, out);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(out[k], kat[i].out[k]);
        }
    }
}

static void test_unit_is_the_top_24_bits(void **state)
{
    (void)state;
    assert_true(kvs_rng_unit(0, 0, 0, 0) == (float)0x6627e8 / 16777216.0f);
    const uint32_t counter[4] = {3, 5, 7, 0}, key[2] = {0x89abcdef, 0x01234567};
    uint32_t out[4];
    kvs_philox4x32(counter, key, out);
    assert_true(kvs_rng_unit(0x0123456789abcdefu, 3, 5, 7) == (float)(out[0] >> 8) / 16777216.0f);
    double sum = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        float u = kvs_rng_unit(42, 0, i, 0);
        assert_true(u >= 0.0f && u < 1.0f);
        sum += (double)u;
    }
    assert_true(sum / 100000 > 0.495 && sum / 100000 < 0.505); /* five standard deviations */
}

static void test_splitmix_reference(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 1234567};
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                    4593380528125082431u, 16408922859458223821u};
    for (size_t i = 0; i < 5; i++) {
        assert_true(kvs_rng_next(&r) == want[i]);
    }
}

static void test_below_is_even(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 1};
    uint32_t seen[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint64_t v = kvs_rng_below(&r, 7);
        assert_true(v < 7);
        seen[v]++;
    }
    for (int i = 0; i < 7; i++) {
        assert_in_range(seen[i], 9500, 10500);
    }
    for (int i = 0; i < 100; i++) {
        assert_int_equal(kvs_rng_below(&r, 1), 0);
        assert_true(kvs_rng_below(&r, UINT64_MAX) < UINT64_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_unit_is_the_top_24_bits),
        cmocka_unit_test(test_splitmix_reference),
        cmocka_unit_test(test_below_is_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
