/* limits_test.c - the soft limit of descriptors rises to the hard one, and is told when that is not enough. In children: a hard limit that was
 * lowered stays so.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/limits.h"
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_soft_limit_rises_to_the_hard_one),
        cmocka_unit_test(test_a_hard_limit_below_what_is_needed_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
