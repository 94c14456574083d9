/* map_test.c - random operations against a plain array of values, with keys that collide and keys that are huge.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/map.h"
#include "base/rng.h"
#include <stdio.h>

enum { KEYS = 400, ENTRIES_MAX = 250 };

static void against_model(uint64_t seed, uint64_t key_step, uint64_t key_base)
{
    struct kvs_rng rng = {.state = seed};
    struct kvs_map *m = NULL;
    uint64_t value[KEYS] = {0};
    bool there[KEYS] = {false};
    size_t count = 0;
    bool met_full = false;
    assert_int_equal(kvs_map_create(ENTRIES_MAX, &m), KVS_OK);
    for (int step = 0; step < 60000; step++) {
        size_t k = (size_t)kvs_rng_below(&rng, KEYS);
        uint64_t key = key_base + k * key_step;
        /* Grow for a while, shrink for a while. */
        bool put = kvs_rng_below(&rng, 10) < (step / 5000 % 2 == 0 ? 8u : 3u);
        if (put) {
            uint64_t v = kvs_rng_next(&rng);
            kvs_status st = kvs_map_put(m, key, v);
            bool full = !there[k] && count == ENTRIES_MAX;
            assert_int_equal(st, full ? KVS_BUSY_FULL : KVS_OK);
            met_full |= full;
            if (!full) {
                count += there[k] ? 0 : 1;
                there[k] = true;
                value[k] = v;
            }
        } else {
            assert_int_equal(kvs_map_remove(m, key), there[k]);
            count -= there[k] ? 1 : 0;
            there[k] = false;
        }
        assert_int_equal(kvs_map_count(m), count);
        if (step % 97 == 0) {
            for (size_t i = 0; i < KEYS; i++) {
                uint64_t got = 0;
                assert_int_equal(kvs_map_get(m, key_base + i * key_step, &got), there[i]);
                assert_true(!there[i] || got == value[i]);
            }
        }
    }
    assert_true(met_full);
    kvs_map_destroy(m);
}

static void test_against_a_naive_model(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {1, 77, 0xDEADBEEF};
    for (size_t i = 0; i < 3; i++) {
        printf("seed %llu\n", (unsigned long long)seeds[i]);
        against_model(seeds[i], 1, 0);
        against_model(seeds[i], (uint64_t)1 << 55, 3);
        against_model(seeds[i], 4096, UINT64_MAX - KEYS * 4096);
    }
}

static void test_small_and_absurd_sizes(void **state)
{
    (void)state;
    struct kvs_map *m = NULL;
    assert_int_equal(kvs_map_create(SIZE_MAX, &m), KVS_SELF_NOMEM);
    assert_null(m);
    assert_int_equal(kvs_map_create(0, &m), KVS_OK);
    assert_int_equal(kvs_map_put(m, 1, 1), KVS_BUSY_FULL);
    assert_false(kvs_map_get(m, 1, NULL));
    kvs_map_destroy(m);
    kvs_map_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_naive_model),
        cmocka_unit_test(test_small_and_absurd_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
