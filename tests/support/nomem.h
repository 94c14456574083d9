/* nomem.h - an allocator that fails where a test says, and counts. A test program that uses it is linked with
 *   -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free,--wrap=strdup,--wrap=aligned_alloc
 * (tst_nomem in CMake), which puts it in front of everything that is linked into the program, not in front of what shared libraries do.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_NOMEM_H
#define KVS_TESTS_NOMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The n-th allocation from now on (0: the next) fails, that one only; of threads for which `here` says true (tst_nomem_where). */
void tst_nomem_arm(int64_t n);
/* Nothing fails any more. True: one has failed since tst_nomem_arm. */
bool tst_nomem_disarm(void);
bool tst_nomem_fired(void);
/* Allocations that were asked for since tst_nomem_arm, by the threads that count. */
int64_t tst_nomem_seen(void);
/* Allocations that were not given back. */
int64_t tst_nomem_live(void);
/* NULL: all threads. Set before any other thread runs. */
void tst_nomem_where(bool (*here)(void));

/* A call that returns a kvs_status: once more when memory was lacking; the second time nothing fails. (cmocka's assertions) */
#define TST_NOMEM_TWICE(call) \
    do { \
        kvs_status st_ = (call); \
        if (st_ != KVS_OK) { \
            assert_int_equal(st_, KVS_SELF_NOMEM); \
            assert_true(tst_nomem_fired()); \
            st_ = (call); \
        } \
        assert_int_equal(st_, KVS_OK); \
    } while (0)

/* For the allocation hooks of a library that keeps some memory for itself: they fail like all others, and are not counted as live. */
void *tst_nomem_hook_malloc(size_t n);
void *tst_nomem_hook_realloc(void *p, size_t n);
void tst_nomem_hook_free(void *p);

#endif
