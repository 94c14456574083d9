/* nomem_test.c - every allocation of base fails in turn: an error comes back, nothing leaks (asan), content stays.
 * The linker puts the functions below in front of malloc, calloc and realloc of this program and the library.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/map.h"
#include "base/ring.h"
#include <stdlib.h>
#include <string.h>

static int fail_at = -1; /* this many allocations from now; -1: never */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static bool fails(void)
{
    return fail_at >= 0 && fail_at-- == 0;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

static void test_create_fails_at_each_allocation(void **state)
{
    (void)state;
    int failures = 0;
    for (int n = 0;; n++) {
        struct kvs_map *m = NULL;
        fail_at = n;
        kvs_status st = kvs_map_create(100, &m);
        fail_at = -1;
        kvs_map_destroy(m);
        if (st == KVS_OK) {
            break;
        }
        assert_int_equal(st, KVS_SELF_NOMEM);
        assert_null(m);
        failures++;
    }
    for (int n = 0;; n++) {
        struct kvs_ring *r = NULL;
        fail_at = n;
        kvs_status st = kvs_ring_create(8, 8, &r);
        fail_at = -1;
        kvs_ring_destroy(r);
        if (st == KVS_OK) {
            break;
        }
        assert_int_equal(st, KVS_SELF_NOMEM);
        assert_null(r);
        failures++;
    }
    assert_int_equal(failures, 3 + 2);
}

static void test_buffer_keeps_its_content(void **state)
{
    (void)state;
    struct kvs_buf b;
    char big[1000];
    memset(big, 'x', sizeof big);
    kvs_buf_init(&b, 10000);
    assert_int_equal(kvs_buf_puts(&b, "hello"), KVS_OK);
    fail_at = 0;
    assert_int_equal(kvs_buf_append(&b, big, sizeof big), KVS_SELF_NOMEM);
    fail_at = -1;
    assert_string_equal(kvs_buf_text(&b), "hello");
    assert_int_equal(kvs_buf_append(&b, big, sizeof big), KVS_OK);
    assert_int_equal(b.len, 1005);
    kvs_buf_fini(&b);
}

static void test_arena_goes_on_after_a_failure(void **state)
{
    (void)state;
    struct kvs_arena a;
    kvs_arena_init(&a, 1u << 20);
    fail_at = 0;
    assert_null(kvs_arena_alloc(&a, 10));
    fail_at = -1;
    assert_int_equal(a.used, 0);
    assert_non_null(kvs_arena_alloc(&a, 10));
    fail_at = 0;
    assert_null(kvs_arena_alloc(&a, 100000));
    fail_at = -1;
    assert_non_null(kvs_arena_alloc(&a, 100000));
    kvs_arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_fails_at_each_allocation),
        cmocka_unit_test(test_buffer_keeps_its_content),
        cmocka_unit_test(test_arena_goes_on_after_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
