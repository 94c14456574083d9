/* pace_test.c - when a child that died is started again.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_pauses_double_up_to_the_bound(void **state)
{
    (void)state;
    static const uint64_t pauses[] = {100000, 200000, 400000, 800000, 1600000, 3200000, 5000000, 5000000};
    struct cli_pace p = {0};
    uint64_t now = 1000;
    for (size_t i = 0; i < sizeof pauses / sizeof pauses[0]; i++) {
        cli_pace_started(&p, now);
        now += 10;
        assert_int_equal(cli_pace_next_us(&p, now), now + pauses[i]);
        now += pauses[i];
    }
}

static void test_sound_life_starts_anew(void **state)
{
    (void)state;
    struct cli_pace p = {0};
    cli_pace_started(&p, 0);
    (void)cli_pace_next_us(&p, 1);
    (void)cli_pace_next_us(&p, 2);
    cli_pace_started(&p, 1000);
    assert_int_equal(cli_pace_next_us(&p, 1000 + CLI_PACE_SOUND_US), 1000 + CLI_PACE_SOUND_US + CLI_PACE_FIRST_US);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pauses_double_up_to_the_bound),
        cmocka_unit_test(test_sound_life_starts_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
