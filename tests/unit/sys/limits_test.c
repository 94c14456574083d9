/* limits_test.c - the soft limit of descriptors rises to the hard one, and is told when that is not enough; large blocks go back to the machine.
 * In children: a hard limit that was lowered stays so, and so does the way of malloc.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/limits.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define ANOTHER_MALLOC true
#else
#define ANOTHER_MALLOC false
#endif

/* Bits: 1 enough, 2 have is hard, 4 the soft limit is hard, 8 a descriptor beyond the old soft limit can be had. */
static int in_a_child(rlim_t soft, rlim_t hard, uint64_t needed)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit r = {.rlim_cur = soft, .rlim_max = hard}, now = {0};
        uint64_t have = 0;
        if (setrlimit(RLIMIT_NOFILE, &r) != 0)
            _exit(127);
        int seen = kvs_descriptors_raise(needed, &have);
        (void)getrlimit(RLIMIT_NOFILE, &now);
        seen |= (have == hard) << 1 | (now.rlim_cur == hard && now.rlim_max == hard) << 2 | (dup2(0, (int)soft) == (int)soft) << 3;
        _exit(seen);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_the_soft_limit_rises_to_the_hard_one(void **state)
{
    (void)state;
    assert_int_equal(in_a_child(64, 200, 150), 1 | 2 | 4 | 8);
    assert_int_equal(in_a_child(64, 200, 200), 1 | 2 | 4 | 8);
}

static void test_a_hard_limit_below_what_is_needed_is_told(void **state)
{
    (void)state;
    assert_int_equal(in_a_child(64, 200, 201), 2 | 4 | 8);
    assert_int_equal(in_a_child(200, 200, 201), 2 | 4); /* nothing to raise, nothing beyond */
}

/* Resident bytes. */
static long resident(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    (void)fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* A block whose every page is written; the compiler must not think that nobody looks. */
static char *touched(size_t n)
{
    volatile char *p = malloc(n);
    assert_non_null((void *)(uintptr_t)p);
    for (size_t i = 0; i < n; i += 4096) {
        p[i] = 1;
    }
    return (char *)(uintptr_t)p;
}

/* Large blocks with a small one behind each, then all large ones freed: how many bytes of them stay resident. The first one freed is the largest. */
static long stays(void)
{
    enum { N = 16, LARGE = 1 << 20, SMALL = 40 << 10 };
    char *large[N], *small[N];
    free(touched((size_t)4 * LARGE));
    long before = resident();
    for (int i = 0; i < N; i++) {
        large[i] = touched(LARGE);
        small[i] = touched(SMALL);
    }
    for (int i = 0; i < N; i++) {
        free(large[i]);
    }
    long left = resident() - before;
    for (int i = 0; i < N; i++) {
        free(small[i]);
    }
    return left;
}

static void test_large_blocks_go_back(void **state)
{
    (void)state;
    if (ANOTHER_MALLOC) {
        skip();
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        kvs_memory_give_back();
        _exit(stays() < 2 << 20 ? 0 : 1); /* the small ones are 640 KiB of it */
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_soft_limit_rises_to_the_hard_one),
        cmocka_unit_test(test_a_hard_limit_below_what_is_needed_is_told),
        cmocka_unit_test(test_large_blocks_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
