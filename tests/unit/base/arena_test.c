/* arena_test.c - alignment, zeroes, bound, and that pieces do not overlap.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include <string.h>

static void test_pieces_are_zero_aligned_and_apart(void **state)
{
    (void)state;
    enum { N = 500 };
    struct kvs_arena a;
    kvs_arena_init(&a, 64u << 20);
    uint8_t *piece[N];
    for (size_t i = 0; i < N; i++) {
        size_t bytes = i * 7;
        piece[i] = kvs_arena_alloc(&a, bytes);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % 16, 0);
        for (size_t k = 0; k < bytes; k++) {
            assert_int_equal(piece[i][k], 0);
        }
        memset(piece[i], (int)(i & 255), bytes);
    }
    for (size_t i = 0; i < N; i++) {
        for (size_t k = 0; k < i * 7; k++) {
            assert_int_equal(piece[i][k], i & 255);
        }
    }
    kvs_arena_fini(&a);
    assert_int_equal(a.used, 0);
}

static void test_bound_holds(void **state)
{
    (void)state;
    struct kvs_arena a;
    kvs_arena_init(&a, 1024);
    assert_null(kvs_arena_alloc(&a, 1025));
    assert_non_null(kvs_arena_alloc(&a, 1000)); /* 1008 */
    assert_null(kvs_arena_alloc(&a, 17));
    assert_non_null(kvs_arena_alloc(&a, 16));
    assert_null(kvs_arena_alloc(&a, 0));
    assert_null(kvs_arena_alloc(&a, SIZE_MAX));
    assert_int_equal(a.used, 1024);
    kvs_arena_fini(&a);
    assert_non_null(kvs_arena_alloc(&a, 1024));
    kvs_arena_fini(&a);
}

static void test_array_product_is_checked(void **state)
{
    (void)state;
    struct kvs_arena a;
    kvs_arena_init(&a, SIZE_MAX);
    assert_null(kvs_arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(kvs_arena_array(&a, (size_t)1 << 33, (size_t)1 << 31)); /* wraps to 0 */
    assert_non_null(kvs_arena_array(&a, 10, 8));
    assert_int_equal(a.used, 80);
    kvs_arena_fini(&a);
}

static void test_dup_adds_a_nul(void **state)
{
    (void)state;
    struct kvs_arena a;
    kvs_arena_init(&a, 100);
    char *s = kvs_arena_dup(&a, "abcdef", 3);
    assert_string_equal(s, "abc");
    assert_string_equal(kvs_arena_dup(&a, NULL, 0), "");
    assert_null(kvs_arena_dup(&a, "x", SIZE_MAX));
    kvs_arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_zero_aligned_and_apart),
        cmocka_unit_test(test_bound_holds),
        cmocka_unit_test(test_array_product_is_checked),
        cmocka_unit_test(test_dup_adds_a_nul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
