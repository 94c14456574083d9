/* admission_test.c - the hint when to come back: measured while there was work, not while nobody asked.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "router/core/admission.h"

#define SECOND_US 1000000u

static struct rtr_admission a;

static int setup(void **state)
{
    (void)state;
    return rtr_admission_init(&a, 16, 8, 1000) == KVS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    rtr_admission_fini(&a);
    return 0;
}

/* n requests come at at_us and end one after the other, each_us apart; when the last is over. */
static uint64_t served(uint32_t n, uint64_t at_us, uint64_t each_us)
{
    for (uint32_t i = 0; i < n; i++)
        rtr_admission_enter(&a, 1, at_us);
    for (uint32_t i = 0; i < n; i++)
        rtr_admission_leave(&a, 1, at_us += each_us);
    return at_us;
}

static void test_the_hint_is_the_queue_at_the_pace_of_ends(void **state)
{
    (void)state;
    assert_int_equal(rtr_admission_retry_s(&a), 1); /* nothing measured yet */
    served(16, SECOND_US, 2 * SECOND_US);
    for (uint32_t i = 0; i < 4; i++)
        rtr_admission_wait(&a, i);
    assert_int_equal(rtr_admission_retry_s(&a), 10); /* four wait, and oneself: 5 times 2 s */
}

static void test_times_without_requests_do_not_count(void **state)
{
    (void)state;
    uint64_t now = served(16, SECOND_US, SECOND_US / 100);
    now = served(1, now + 3600ull * SECOND_US, SECOND_US / 100); /* the first after an hour */
    for (uint32_t i = 0; i < 4; i++)
        rtr_admission_wait(&a, i);
    assert_int_equal(rtr_admission_retry_s(&a), 1);
    served(16, now + 3600ull * SECOND_US, SECOND_US / 100);
    assert_int_equal(rtr_admission_retry_s(&a), 1);
}

static void test_the_hint_is_bounded(void **state)
{
    (void)state;
    served(16, SECOND_US, 3600ull * SECOND_US);
    assert_int_equal(rtr_admission_retry_s(&a), 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_hint_is_the_queue_at_the_pace_of_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_times_without_requests_do_not_count, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_hint_is_bounded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
