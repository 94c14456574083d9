/* failpoint_test.c - counting, actions, and text that is not understood. Skipped where failpoints are compiled out.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/failpoint.h"
#include <stdio.h>

#ifdef KVASIR_FAILPOINTS

#include "sys/clock.h"
#include "sys/log.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_kth_hit_and_onward(void **state)
{
    (void)state;
    struct kvs_error err;
    assert_int_equal(kvs_failpoint_set("a=error@3;b=error@2+;c=error;", &err), KVS_OK);
    bool a[5], b[5], c[5];
    for (int i = 0; i < 5; i++) {
        a[i] = KVS_FAILPOINT("a");
        b[i] = KVS_FAILPOINT("b");
        c[i] = KVS_FAILPOINT("c");
        assert_false(KVS_FAILPOINT("other"));
    }
    assert_true(!a[0] && !a[1] && a[2] && !a[3] && !a[4]);
    assert_true(!b[0] && b[1] && b[2] && b[3] && b[4]);
    assert_true(c[0] && !c[1] && !c[2] && !c[3] && !c[4]);
    assert_int_equal(kvs_failpoint_fired("a"), 1);
    assert_int_equal(kvs_failpoint_fired("b"), 4);
    assert_int_equal(kvs_failpoint_fired("other"), 0);
}

static void test_delay(void **state)
{
    (void)state;
    struct kvs_error err;
    assert_int_equal(kvs_failpoint_set("slow=delay:30", &err), KVS_OK);
    uint64_t before = kvs_now_us();
    assert_false(KVS_FAILPOINT("slow"));
    assert_true(kvs_now_us() - before >= 30000);
}

static void test_bad_text_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"a",         "=kill",     "a=",        "a=die",     "a=kill@",         "a=kill@0",
                                      "a=kill@x",  "a=delay",   "a=delay:",  "a=delay:x", "a=kill@99999999999", "a=kill@+",
                                      "a=kill@1x", "ok=error;a"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvs_error err = {0};
        assert_int_equal(kvs_failpoint_set(bad[i], &err), KVS_SELF_CONFIG);
        assert_non_null(strstr(err.text, "is not understood"));
        assert_false(KVS_FAILPOINT("a"));
        assert_false(KVS_FAILPOINT("ok"));
    }
}

static int child_status(const char *spec, bool use_environment)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct kvs_error err;
        if (!use_environment && kvs_failpoint_set(spec, &err) != KVS_OK) {
            _exit(1);
        }
        (void)KVS_FAILPOINT("p");
        (void)KVS_FAILPOINT("p");
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        int ignored;
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &ignored, 0), pid);
    }
    return status;
}

static void test_actions_on_the_process(void **state)
{
    (void)state;
    int killed = child_status("p=kill@2", false);
    assert_true(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL);
    int stopped = child_status("p=stop", false);
    assert_true(WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGSTOP);
    int left = child_status("p=exit", false);
    assert_true(WIFEXITED(left) && WEXITSTATUS(left) == 70);
    int unharmed = child_status("p=kill@3", false);
    assert_true(WIFEXITED(unharmed) && WEXITSTATUS(unharmed) == 0);
}

/* First in the run: the environment is read once. */
static void test_environment_is_read_at_the_first_hit(void **state)
{
    (void)state;
    setenv("KVASIR_FAILPOINTS_SET", "p=nonsense", 1);
    int refused = child_status(NULL, true);
    assert_true(WIFEXITED(refused) && WEXITSTATUS(refused) == 78);
    setenv("KVASIR_FAILPOINTS_SET", "p=exit@2", 1);
    int fired = child_status(NULL, true);
    assert_true(WIFEXITED(fired) && WEXITSTATUS(fired) == 70);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment_is_read_at_the_first_hit),
        cmocka_unit_test(test_kth_hit_and_onward),
        cmocka_unit_test(test_delay),
        cmocka_unit_test(test_bad_text_is_refused),
        cmocka_unit_test(test_actions_on_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    printf("skipped: failpoints are compiled out of this build\n");
    return KVS_FAILPOINT("any") ? 1 : 77;
}

#endif
