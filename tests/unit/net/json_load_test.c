/* json_load_test.c - JSON read while one allocation fails, every one in turn: it is out of memory then, never another document, and nothing
 * is left behind. The texts are such as jansson's scanner asserts on, or shortens, when it goes on without memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/json_load.h"
#include "tests/support/nomem.h"

#include <stdio.h>
#include <string.h>

static char text[20000];

/* Long strings with escapes, deep and wide values, many keys. */
static void write_text(void)
{
    size_t at = 0;
    at += (size_t)snprintf(text + at, sizeof text - at, "{\"long\":\"");
    for (int i = 0; i < 900; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s", i % 7 == 0 ? "\\n" : i % 11 == 0 ? "\\u00e9" : "ab");
    at += (size_t)snprintf(text + at, sizeof text - at, "\",\"deep\":[[[{\"x\":[1,2.5,true,null]}]]]");
    for (int i = 0; i < 60; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, ",\"key%d\":\"value \\\"%d\\\"\"", i, i);
    (void)snprintf(text + at, sizeof text - at, "}");
}

static void test_each_allocation(void **state)
{
    (void)state;
    json_t *whole = NULL;
    write_text();
    assert_int_equal(net_json_load(text, strlen(text), JSON_REJECT_DUPLICATES, NULL, &whole), KVS_OK);
    int64_t before = tst_nomem_live(), n = 0;
    for (bool reached = true; reached; n++) {
        json_t *o = NULL;
        json_error_t e;
        tst_nomem_arm(n);
        kvs_status s = net_json_load(text, strlen(text), JSON_REJECT_DUPLICATES, &e, &o);
        reached = tst_nomem_disarm();
        assert_int_equal(s, reached ? KVS_SELF_NOMEM : KVS_OK);
        assert_true(reached ? o == NULL : json_equal(o, whole));
        json_decref(o);
        assert_int_equal(tst_nomem_live(), before);
    }
    print_message("%lld allocations\n", (long long)n - 1);
    assert_true(n > 200);
    json_decref(whole);
}

static void test_what_is_no_json(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "{", "[1,]", "\"abc", "{\"a\":1,\"a\":2}", "{\"a\":\"\\u0000\"}"};
    int64_t before = tst_nomem_live();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *o = NULL;
        json_error_t e = {0};
        assert_int_equal(net_json_load(bad[i], strlen(bad[i]), JSON_REJECT_DUPLICATES, &e, &o), KVS_REQ_INVALID);
        assert_null(o);
        assert_true(e.text[0] != 0);
        assert_int_equal(tst_nomem_live(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation), cmocka_unit_test(test_what_is_no_json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
