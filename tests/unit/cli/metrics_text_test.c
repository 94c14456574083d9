/* metrics_text_test.c - what is read out of a router's metrics page.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/metrics_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char page[] = "# HELP kvasir_kv_transfer_bytes_total x\n"
                           "# TYPE kvasir_kv_transfer_bytes_total counter\n"
                           "kvasir_kv_transfer_bytes_total 7\n"
                           "kvasir_kv_transfer_bytes_total{transport=\"tcp\",worker=\"decode-0\"} 100\n"
                           "kvasir_kv_transfer_bytes_total{transport=\"shm\",worker=\"decode-1\"} 300\n"
                           "kvasir_kv_transfer_bytes_total_other{worker=\"decode-1\"} 5\n"
                           "kvasir_kv_transfer_pages_total{worker=\"decode-0\",transport=\"tcp\"} 2\n"
                           "kvasir_kv_transfer_pages_total{otherworker=\"x\"} 50\n"
                           "kvasir_kv_exposed_seconds_sum{worker=\"decode-0\"} 0.25\n"
                           "kvasir_kv_transfer_seconds_sum{worker=\"decode-0\"} 0.5";

static void test_workers_are_summed(void **state)
{
    (void)state;
    struct cli_transfer t;
    cli_transfer_parse(page, &t);
    assert_true(t.bytes == 400);
    assert_true(t.pages == 2);
    assert_true(t.seconds == 0.5);
    assert_true(t.exposed == 0.25);
    assert_string_equal(t.transport, "shm");
}

static void test_empty_and_broken_pages_give_zero(void **state)
{
    (void)state;
    static const char *const pages[] = {"", "\n\n", "kvasir_kv_transfer_bytes_total{",
                                        "kvasir_kv_transfer_bytes_total{worker=\"", "kvasir_kv_transfer_bytes_total"};
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        struct cli_transfer t;
        cli_transfer_parse(pages[i], &t);
        assert_true(t.bytes == 0);
        assert_string_equal(t.transport, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers_are_summed),
        cmocka_unit_test(test_empty_and_broken_pages_give_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
