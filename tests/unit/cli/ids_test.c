/* ids_test.c - token ids as users write them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/ids.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void test_list_is_read_in_order(void **state)
{
    (void)state;
    struct mdl_ids v = {0};
    struct kvs_error err = {0};
    assert_int_equal(cli_ids_parse(" 1, 2,511 ", 512, &v, &err), KVS_OK);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.ids[0], 1);
    assert_int_equal(v.ids[1], 2);
    assert_int_equal(v.ids[2], 511);
    mdl_ids_fini(&v);
}

static void test_bad_lists_are_refused_with_a_cause(void **state)
{
    (void)state;
    static const char *const bad[] = {"", ",", "1,", "1,,2", "x", "-1", "1 2", "512", "99999999999999999999", "1;2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct mdl_ids v = {0};
        struct kvs_error err = {0};
        assert_int_equal(cli_ids_parse(bad[i], 512, &v, &err), KVS_SELF_CONFIG);
        assert_non_null(strstr(err.text, "--ids"));
        mdl_ids_fini(&v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_is_read_in_order),
        cmocka_unit_test(test_bad_lists_are_refused_with_a_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
