/* thread_test.c - a started thread: name, signal mask, floating-point environment; what the machine offers.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/thread.h"
#include <float.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

struct seen {
    char name[16];
    int blocked, rounding;
    float subnormal;
};

static void look(void *arg)
{
    struct seen *s = arg;
    sigset_t set;
    pthread_getname_np(pthread_self(), s->name, sizeof s->name);
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    s->blocked = sigismember(&set, SIGTERM) && sigismember(&set, SIGINT) && sigismember(&set, SIGUSR1);
    s->rounding = fegetround();
    volatile float tiny = FLT_MIN;
    s->subnormal = tiny / 4;
}

static void test_a_thread_is_set_up(void **state)
{
    (void)state;
    struct kvs_thread *t = NULL;
    struct seen s = {.subnormal = 0};
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
#ifdef __x86_64__
    unsigned csr = _mm_getcsr();
    _mm_setcsr(csr | 0x8040 | 0x6000); /* flush to zero, denormals are zero, round to zero: inherited unless reset */
#endif
    assert_int_equal(kvs_thread_start("a-name-too-long-for-linux", look, &s, &t), KVS_OK);
    kvs_thread_join(t);
#ifdef __x86_64__
    kvs_fp_environment();
    assert_int_equal(_mm_getcsr() & 0xFFC0, 0x1F80);
    _mm_setcsr(csr);
#endif
    assert_string_equal(s.name, "a-name-too-long");
    assert_true(s.blocked);
    assert_int_equal(s.rounding, FE_TONEAREST);
    assert_true(s.subnormal == FLT_MIN / 4 && s.subnormal > 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
    kvs_thread_join(NULL);
}

static void test_the_machine_has_something(void **state)
{
    (void)state;
    assert_in_range(kvs_cpu_count(), 1, 100000);
    uint64_t bytes = kvs_memory_available();
    assert_true(bytes > (uint64_t)1 << 20 && bytes < (uint64_t)1 << 50);
    assert_true(kvs_memory_total() >= bytes && kvs_memory_total() < (uint64_t)1 << 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_is_set_up),
        cmocka_unit_test(test_the_machine_has_something),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
