/* metrics_test.c - the exact text of a small registry, and counts that survive four threads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/metrics.h"
#include <math.h>
#include <pthread.h>
#include <string.h>

static void test_the_text(void **state)
{
    (void)state;
    struct kvs_metrics *m = NULL;
    struct kvs_buf out;
    const double bounds[] = {0.001, 0.25, 10};
    assert_int_equal(kvs_metrics_create(&m), KVS_OK);
    struct kvs_gauge *free_pages = kvs_gauge(m, "kvasir_kv_pages", "group=\"0\",state=\"free\"", "KV pages by state");
    struct kvs_counter *requests = kvs_counter(m, "kvasir_requests_total", "outcome=\"ok\"", "Requests that ended");
    struct kvs_gauge *held = kvs_gauge(m, "kvasir_kv_pages", "group=\"0\",state=\"held\"", "KV pages by state");
    struct kvs_histogram *h = kvs_histogram(m, "kvasir_ttft_seconds", "", "A \\ and a\nline end", bounds, 3);
    struct kvs_histogram *h2 = kvs_histogram(m, "kvasir_ttft_seconds", "mode=\"remote\"", "", bounds, 3);
    kvs_gauge_set(free_pages, 64);
    kvs_gauge_set(held, 0.1);
    kvs_counter_add(requests, 3);
    kvs_histogram_observe(h, 0.001); /* on the edge: inside */
    kvs_histogram_observe(h, 0.0011);
    kvs_histogram_observe(h, 5);
    kvs_histogram_observe(h, 11);
    kvs_histogram_observe(h, (double)NAN);
    kvs_histogram_observe(h2, 0.5);
    kvs_buf_init(&out, 1 << 16);
    assert_int_equal(kvs_metrics_write(m, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "# HELP kvasir_kv_pages KV pages by state\n"
                                            "# TYPE kvasir_kv_pages gauge\n"
                                            "kvasir_kv_pages{group=\"0\",state=\"free\"} 64\n"
                                            "kvasir_kv_pages{group=\"0\",state=\"held\"} 0.1\n"
                                            "# HELP kvasir_requests_total Requests that ended\n"
                                            "# TYPE kvasir_requests_total counter\n"
                                            "kvasir_requests_total{outcome=\"ok\"} 3\n"
                                            "# HELP kvasir_ttft_seconds A \\\\ and a\\nline end\n"
                                            "# TYPE kvasir_ttft_seconds histogram\n"
                                            "kvasir_ttft_seconds_bucket{le=\"0.001\"} 1\n"
                                            "kvasir_ttft_seconds_bucket{le=\"0.25\"} 2\n"
                                            "kvasir_ttft_seconds_bucket{le=\"10\"} 3\n"
                                            "kvasir_ttft_seconds_bucket{le=\"+Inf\"} 4\n"
                                            "kvasir_ttft_seconds_sum 16.0021\n"
                                            "kvasir_ttft_seconds_count 4\n"
                                            "kvasir_ttft_seconds_bucket{mode=\"remote\",le=\"0.001\"} 0\n"
                                            "kvasir_ttft_seconds_bucket{mode=\"remote\",le=\"0.25\"} 0\n"
                                            "kvasir_ttft_seconds_bucket{mode=\"remote\",le=\"10\"} 1\n"
                                            "kvasir_ttft_seconds_bucket{mode=\"remote\",le=\"+Inf\"} 1\n"
                                            "kvasir_ttft_seconds_sum{mode=\"remote\"} 0.5\n"
                                            "kvasir_ttft_seconds_count{mode=\"remote\"} 1\n");
    kvs_buf_fini(&out);
    kvs_metrics_destroy(m);
    kvs_metrics_destroy(NULL);
}

static void test_values_are_exact(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *text;
    } cases[] = {
        {0, "0"},        {-0.0, "0"},       {1, "1"},           {-2, "-2"},          {1e14, "100000000000000"},
        {0.3, "0.3"},    {1.0 / 3, "0.3333333333333333"},       {1e300, "1e+300"},   {0.1 + 0.2, "0.30000000000000004"},
        {HUGE_VAL, "+Inf"}, {-HUGE_VAL, "-Inf"}, {(double)NAN, "NaN"}, {1764457810.125, "1764457810.125"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvs_metrics *m = NULL;
        struct kvs_buf out;
        char want[128];
        assert_int_equal(kvs_metrics_create(&m), KVS_OK);
        kvs_gauge_set(kvs_gauge(m, "g", "", "h"), cases[i].v);
        kvs_buf_init(&out, 1000);
        assert_int_equal(kvs_metrics_write(m, &out), KVS_OK);
        kvs_format(want, sizeof want, "# HELP g h\n# TYPE g gauge\ng %s\n", cases[i].text);
        assert_string_equal(kvs_buf_text(&out), want);
        kvs_buf_fini(&out);
        kvs_metrics_destroy(m);
    }
    struct kvs_metrics *m = NULL;
    struct kvs_buf out;
    assert_int_equal(kvs_metrics_create(&m), KVS_OK);
    kvs_counter_add(kvs_counter(m, "c_total", "", "h"), UINT64_MAX);
    kvs_buf_init(&out, 1000);
    assert_int_equal(kvs_metrics_write(m, &out), KVS_OK);
    assert_non_null(strstr(kvs_buf_text(&out), "c_total 18446744073709551615\n"));
    kvs_buf_fini(&out);
    kvs_metrics_destroy(m);
}

static void test_same_name_and_labels_is_the_same_series(void **state)
{
    (void)state;
    struct kvs_metrics *m = NULL;
    assert_int_equal(kvs_metrics_create(&m), KVS_OK);
    struct kvs_counter *a = kvs_counter(m, "a_total", "x=\"1\"", "h");
    assert_non_null(a);
    assert_ptr_equal(kvs_counter(m, "a_total", "x=\"1\"", "h"), a);
    assert_ptr_not_equal(kvs_counter(m, "a_total", "x=\"2\"", "h"), a);
    kvs_counter_add(NULL, 1);
    kvs_gauge_set(NULL, 1);
    kvs_histogram_observe(NULL, 1);
    assert_int_equal(kvs_counter_value(NULL), 0);
    struct kvs_buf out;
    kvs_buf_init(&out, 10);
    assert_int_equal(kvs_metrics_write(m, &out), KVS_BUSY_FULL);
    kvs_buf_fini(&out);
    kvs_metrics_destroy(m);
}

struct shared {
    struct kvs_counter *c;
    struct kvs_histogram *h;
};

static void *hammer(void *arg)
{
    struct shared *s = arg;
    for (int i = 0; i < 20000; i++) {
        kvs_counter_add(s->c, 2);
        kvs_histogram_observe(s->h, 0.5);
    }
    return NULL;
}

static void test_updates_from_four_threads_all_count(void **state)
{
    (void)state;
    struct kvs_metrics *m = NULL;
    struct kvs_buf out;
    pthread_t t[4];
    assert_int_equal(kvs_metrics_create(&m), KVS_OK);
    struct shared s = {
        .c = kvs_counter(m, "c_total", "", "h"),
        .h = kvs_histogram(m, "h_seconds", "", "h", kvs_latency_bounds, kvs_latency_bound_count),
    };
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, hammer, &s), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(t[i], NULL), 0);
    }
    assert_int_equal(kvs_counter_value(s.c), 160000);
    kvs_buf_init(&out, 1 << 16);
    assert_int_equal(kvs_metrics_write(m, &out), KVS_OK);
    assert_non_null(strstr(kvs_buf_text(&out), "h_seconds_sum 40000\nh_seconds_count 80000\n"));
    kvs_buf_fini(&out);
    kvs_metrics_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_text),
        cmocka_unit_test(test_values_are_exact),
        cmocka_unit_test(test_same_name_and_labels_is_the_same_series),
        cmocka_unit_test(test_updates_from_four_threads_all_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
