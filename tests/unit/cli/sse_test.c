/* sse_test.c - the event stream parser: the same events however the bytes are cut, and bounds.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static char seen[256];
static uint32_t stop_after;

static bool on_data(void *user, const char *data, size_t n)
{
    (void)user;
    assert_int_equal(strlen(data), n);
    strncat(seen, data, sizeof seen - strlen(seen) - 1);
    strncat(seen, "|", sizeof seen - strlen(seen) - 1);
    return stop_after == 0 || --stop_after > 0;
}

static void test_events_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    static const char stream[] =
        ": ping\n\ndata: one\n\nevent: x\ndata:two\ndata: three\r\n\r\nid: 4\n\ndata:\n\ndata: half";
    for (size_t piece = 1; piece <= sizeof stream; piece++) {
        struct cli_sse p;
        cli_sse_init(&p, on_data, NULL);
        seen[0] = '\0';
        for (size_t at = 0; at < sizeof stream - 1; at += piece) {
            size_t n = sizeof stream - 1 - at < piece ? sizeof stream - 1 - at : piece;
            assert_int_equal(cli_sse_feed(&p, stream + at, n), KVS_OK);
        }
        assert_string_equal(seen, "one|two\nthree||");
        cli_sse_fini(&p);
    }
}

static void test_receiver_can_stop(void **state)
{
    (void)state;
    struct cli_sse p;
    cli_sse_init(&p, on_data, NULL);
    seen[0] = '\0';
    stop_after = 1;
    static const char stream[] = "data: a\n\ndata: b\n\n";
    assert_int_equal(cli_sse_feed(&p, stream, sizeof stream - 1), KVS_REQ_CANCELLED);
    assert_string_equal(seen, "a|");
    stop_after = 0;
    cli_sse_fini(&p);
}

static void test_endless_line_is_refused(void **state)
{
    (void)state;
    struct cli_sse p;
    cli_sse_init(&p, on_data, NULL);
    size_t n = (1u << 20) + 1;
    char *line = malloc(n);
    assert_non_null(line);
    memset(line, 'x', n);
    assert_int_equal(cli_sse_feed(&p, line, n), KVS_BUSY_FULL);
    free(line);
    cli_sse_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_do_not_depend_on_the_cut),
        cmocka_unit_test(test_receiver_can_stop),
        cmocka_unit_test(test_endless_line_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
