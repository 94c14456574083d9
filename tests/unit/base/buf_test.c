/* buf_test.c - growth, bounds and the NUL that always follows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/rng.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_full_leaves_the_content(void **state)
{
    (void)state;
    struct kvs_buf b;
    kvs_buf_init(&b, 10);
    assert_string_equal(kvs_buf_text(&b), "");
    assert_int_equal(kvs_buf_puts(&b, "0123456789"), KVS_OK);
    assert_int_equal(kvs_buf_puts(&b, ""), KVS_OK);
    assert_int_equal(kvs_buf_puts(&b, "x"), KVS_BUSY_FULL);
    assert_int_equal(kvs_buf_printf(&b, "%d", 7), KVS_BUSY_FULL);
    uint8_t *to = NULL;
    assert_int_equal(kvs_buf_reserve(&b, 1, &to), KVS_BUSY_FULL);
    assert_int_equal(kvs_buf_reserve(&b, SIZE_MAX, &to), KVS_BUSY_FULL);
    assert_null(to);
    assert_string_equal(kvs_buf_text(&b), "0123456789");
    assert_int_equal(b.len, 10);
    kvs_buf_consume(&b, 4);
    assert_string_equal(kvs_buf_text(&b), "456789");
    assert_int_equal(kvs_buf_printf(&b, "%04d", 12), KVS_OK);
    assert_string_equal(kvs_buf_text(&b), "4567890012");
    kvs_buf_fini(&b);
    assert_int_equal(kvs_buf_puts(&b, "again"), KVS_OK);
    assert_string_equal(kvs_buf_text(&b), "again");
    kvs_buf_fini(&b);
}

static void test_max_zero_holds_nothing(void **state)
{
    (void)state;
    struct kvs_buf b;
    kvs_buf_init(&b, 0);
    assert_int_equal(kvs_buf_append(&b, "", 0), KVS_OK);
    assert_int_equal(kvs_buf_puts(&b, "a"), KVS_BUSY_FULL);
    assert_int_equal(kvs_buf_printf(&b, "%s", ""), KVS_OK);
    assert_string_equal(kvs_buf_text(&b), "");
    kvs_buf_fini(&b);
}

static void test_take_hands_over(void **state)
{
    (void)state;
    struct kvs_buf b;
    size_t n = 99;
    kvs_buf_init(&b, 100);
    assert_null(kvs_buf_take(&b, &n));
    assert_int_equal(n, 0);
    assert_int_equal(kvs_buf_puts(&b, "mine"), KVS_OK);
    uint8_t *p = kvs_buf_take(&b, &n);
    assert_int_equal(n, 4);
    assert_string_equal((char *)p, "mine");
    assert_int_equal(b.len, 0);
    assert_int_equal(b.max, 100);
    free(p);
    kvs_buf_fini(&b);
}

static void test_random_operations_against_a_plain_array(void **state)
{
    (void)state;
    enum { MAX = 5000 };
    struct kvs_rng rng = {.state = 20261129};
    printf("seed %llu\n", (unsigned long long)rng.state);
    static uint8_t model[MAX];
    size_t len = 0;
    struct kvs_buf b;
    kvs_buf_init(&b, MAX);
    for (int step = 0; step < 20000; step++) {
        size_t n = (size_t)kvs_rng_below(&rng, 300);
        uint8_t bytes[300];
        for (size_t i = 0; i < n; i++) {
            bytes[i] = (uint8_t)kvs_rng_next(&rng);
        }
        uint64_t what = kvs_rng_below(&rng, 5);
        if (what < 2) {
            kvs_status st = kvs_buf_append(&b, bytes, n);
            assert_int_equal(st, len + n > MAX ? KVS_BUSY_FULL : KVS_OK);
            if (st == KVS_OK) {
                memcpy(model + len, bytes, n);
                len += n;
            }
        } else if (what == 2) {
            uint8_t *to;
            if (kvs_buf_reserve(&b, n, &to) == KVS_OK) {
                size_t some = (size_t)kvs_rng_below(&rng, n + 1);
                memcpy(to, bytes, some);
                memcpy(model + len, bytes, some);
                kvs_buf_commit(&b, some);
                len += some;
            } else {
                assert_true(len + n > MAX);
            }
        } else {
            size_t drop = n * 2 > len ? len : n * 2;
            kvs_buf_consume(&b, drop);
            memmove(model, model + drop, len - drop);
            len -= drop;
        }
        assert_int_equal(b.len, len);
        assert_true(b.cap <= MAX);
        if (len > 0) {
            assert_memory_equal(b.data, model, len);
        }
        assert_true(b.data == NULL || b.data[b.len] == 0);
    }
    kvs_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_leaves_the_content),
        cmocka_unit_test(test_max_zero_holds_nothing),
        cmocka_unit_test(test_take_hands_over),
        cmocka_unit_test(test_random_operations_against_a_plain_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
