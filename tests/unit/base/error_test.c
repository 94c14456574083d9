/* error_test.c - status names, error text and bounded formatting.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/utf8.h"
#include <string.h>

static void test_every_status_has_its_own_name(void **state)
{
    (void)state;
    const char *seen[64];
    size_t n = 0;
    for (int code = 0; code < 500; code++) {
        const char *name = kvs_status_name((kvs_status)code);
        if (strcmp(name, "unknown") == 0) {
            continue;
        }
        const char *prefix = code == 0 ? "ok" : code < 200 ? "req_" : code < 300 ? "busy_" : code < 400 ? "peer_" : "self_";
        assert_int_equal(strncmp(name, prefix, strlen(prefix)), 0);
        for (size_t i = 0; i < n; i++) {
            assert_string_not_equal(name, seen[i]);
        }
        assert_true(n < 64);
        seen[n++] = name;
    }
    assert_int_equal(n, 1 + 10 + 5 + 6 + 8); /* as counted in status.h */
    assert_string_equal(kvs_status_name(KVS_BUSY_PAGES), "busy_pages");
    assert_string_equal(kvs_status_name(KVS_SELF_INTERNAL), "self_internal");
    assert_string_equal(kvs_status_name((kvs_status)999), "unknown");
}

static void test_ranges_say_who_acts(void **state)
{
    (void)state;
    assert_true(kvs_is_req(KVS_REQ_DENIED) && !kvs_is_busy(KVS_REQ_DENIED));
    assert_true(kvs_is_busy(KVS_BUSY_PAGES) && !kvs_is_peer(KVS_BUSY_PAGES));
    assert_true(kvs_is_peer(KVS_PEER_CORRUPT) && !kvs_is_self(KVS_PEER_CORRUPT));
    assert_true(kvs_is_self(KVS_SELF_IO) && !kvs_is_req(KVS_SELF_IO));
    assert_false(kvs_is_req(KVS_OK));
}

static void test_fail_fills_and_returns(void **state)
{
    (void)state;
    struct kvs_error err;
    assert_int_equal(kvs_fail(&err, KVS_REQ_INVALID, "max_tokens is %d, give 1 to %d", 0, 8), KVS_REQ_INVALID);
    assert_int_equal(err.code, KVS_REQ_INVALID);
    assert_string_equal(err.text, "max_tokens is 0, give 1 to 8");
    assert_int_equal(kvs_fail(NULL, KVS_SELF_IO, "nobody listens"), KVS_SELF_IO);
}

static void test_text_is_one_clean_line(void **state)
{
    (void)state;
    struct kvs_error err;
    kvs_fail(&err, KVS_REQ_INVALID, "%s", "a\nb\tc\x80" "d\xC3\xA9" "\xC2\x85");
    assert_string_equal(err.text, "a?b?c?d\xC3\xA9" "??");
}

static void test_long_text_is_cut_at_a_character(void **state)
{
    (void)state;
    struct kvs_error err;
    char text[600];
    for (size_t i = 0; i < 199; i++) {
        memcpy(text + i * 3, "\xE2\x82\xAC", 3); /* 255 is a multiple of 3, 254 is not */
    }
    text[597] = '\0';
    kvs_fail(&err, KVS_REQ_INVALID, "%s", text);
    assert_int_equal(strlen(err.text), 255);
    kvs_fail(&err, KVS_REQ_INVALID, "x%s", text);
    assert_int_equal(strlen(err.text), 253);
    assert_true(kvs_utf8_valid(err.text, 253));
    assert_null(strchr(err.text, '?'));
}

static void test_format_is_bounded(void **state)
{
    (void)state;
    char out[8] = "zzzzzzz";
    assert_int_equal(kvs_format(out, sizeof out, "%d", 42), 2);
    assert_string_equal(out, "42");
    assert_int_equal(kvs_format(out, sizeof out, "%s", "12345678"), 7);
    assert_string_equal(out, "1234567");
    assert_int_equal(kvs_format(out, 0, "%s", "x"), 0);
    assert_int_equal(out[0], '1');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_status_has_its_own_name), cmocka_unit_test(test_ranges_say_who_acts),
        cmocka_unit_test(test_fail_fills_and_returns),        cmocka_unit_test(test_text_is_one_clean_line),
        cmocka_unit_test(test_long_text_is_cut_at_a_character), cmocka_unit_test(test_format_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
