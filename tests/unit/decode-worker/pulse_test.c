/* pulse_test.c - intervals between tokens are measured again after the map was full and memory was short.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "decode-worker/edge/pulse.h"
#include "tests/support/nomem.h"

#define ROWS 8u /* 4 for each of 2 sequences */

static uint64_t measured(struct kvs_metrics *m)
{
    struct kvs_buf page;
    kvs_buf_init(&page, 65536);
    assert_int_equal(kvs_metrics_write(m, &page), KVS_OK);
    const char *at = strstr(kvs_buf_text(&page), "kvasir_ttft_seconds_count ");
    assert_non_null(at);
    uint64_t n = (uint64_t)(at[strlen("kvasir_ttft_seconds_count ")] - '0');
    kvs_buf_fini(&page);
    return n;
}

static void one(struct dcw_pulse *p, uint64_t request)
{
    struct msg_generate g = {.request = request};
    struct msg_token t = {.request = request, .id = 5, .has_placed = true, .finish = MSG_FINISH_STOP};
    dcw_pulse_call(p, &g, 1000);
    dcw_pulse_token(p, &t, 2000);
}

static void test_full_and_no_memory(void **state)
{
    struct dcw_pulse p;
    struct kvs_metrics *m;
    (void)state;
    int64_t before = tst_nomem_live();
    assert_int_equal(kvs_metrics_create(&m), KVS_OK);
    assert_int_equal(dcw_pulse_init(&p, m, ROWS / 4), KVS_OK);
    for (uint64_t r = 1; r <= ROWS; r++) /* calls that end without a word */
        dcw_pulse_call(&p, &(struct msg_generate){.request = r}, 1);
    for (int64_t n = 0; n < 3; n++) {
        tst_nomem_arm(n);
        one(&p, 100);
        assert_true(tst_nomem_disarm());
        assert_int_equal(measured(m), 0);
    }
    one(&p, 101);
    one(&p, 102);
    assert_int_equal(measured(m), 2);
    dcw_pulse_fini(&p);
    kvs_metrics_destroy(m);
    assert_int_equal(tst_nomem_live(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_and_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
