/* progress_test.c - the bar at its ends and in the middle.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_bar_at_each_end_and_between(void **state)
{
    (void)state;
    char line[160];
    cli_progress_line("m", 0, 2000000, line, sizeof line);
    assert_string_equal(line, "m [..............................]   0 %  0.0 of 2.0 MB");
    cli_progress_line("m", 1000000, 2000000, line, sizeof line);
    assert_string_equal(line, "m [###############...............]  50 %  1.0 of 2.0 MB");
    cli_progress_line("m", 3000000, 2000000, line, sizeof line);
    assert_string_equal(line, "m [##############################] 100 %  2.0 of 2.0 MB");
    cli_progress_line("m", 0, 0, line, sizeof line);
    assert_string_equal(line, "m [..............................]   0 %  0.0 of 0.0 MB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bar_at_each_end_and_between)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
