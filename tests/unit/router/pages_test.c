/* pages_test.c - metrics pages put together: families once, workers' samples labelled.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "router/edge/board.h"

static void test_pages_become_one(void **state)
{
    (void)state;
    struct kvs_buf pages[3], out;
    const char *labels[3] = {"", "prefill-0", "decode-0"};
    const char *texts[3] = {"# HELP k_total Requests.\n# TYPE k_total counter\nk_total{outcome=\"ok\"} 3\n# HELP own Own.\n# TYPE own gauge\nown 1\n",
                            "# HELP k_total Requests there.\n# TYPE k_total counter\nk_total 5\n"
                            "# HELP own Own.\n# TYPE own gauge\nown 4\n"
                            "# HELP t_seconds T.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"1\"} 2\nt_seconds_sum 1.5\nt_seconds_count 2\n",
                            "junk line\n# HELP t_seconds T.\n# TYPE t_seconds histogram\nt_seconds_count{} 7\nother 9"};
    for (int i = 0; i < 3; i++) {
        kvs_buf_init(&pages[i], 4096);
        assert_int_equal(kvs_buf_puts(&pages[i], texts[i]), KVS_OK);
    }
    kvs_buf_init(&out, 8192);
    assert_int_equal(rtr_pages_merge(labels, pages, 3, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "# HELP k_total Requests.\n# TYPE k_total counter\n"
                                            "k_total{outcome=\"ok\"} 3\n"
                                            "# HELP own Own.\n# TYPE own gauge\nown 1\nown{worker=\"prefill-0\"} 4\n"
                                            "# HELP worker_k_total Requests there.\n# TYPE worker_k_total counter\n"
                                            "worker_k_total{worker=\"prefill-0\"} 5\n"
                                            "# HELP t_seconds T.\n# TYPE t_seconds histogram\n"
                                            "t_seconds_bucket{worker=\"prefill-0\",le=\"1\"} 2\nt_seconds_sum{worker=\"prefill-0\"} 1.5\n"
                                            "t_seconds_count{worker=\"prefill-0\"} 2\nt_seconds_count{worker=\"decode-0\"} 7\n");
    for (int i = 0; i < 3; i++)
        kvs_buf_fini(&pages[i]);
    kvs_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages_become_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
