/* json_test.c - what the writer puts out, compared with text written by hand; replacement of bad bytes as Python's
 * bytes.decode("utf-8", "replace") does it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include <math.h>
#include <string.h>

static struct kvs_buf out;
static struct kvs_json j;

static void start(size_t max)
{
    kvs_buf_init(&out, max);
    kvs_json_begin(&j, &out);
}

static void expect(const char *text)
{
    assert_int_equal(kvs_json_end(&j), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), text);
    kvs_buf_fini(&out);
}

static void test_nesting_and_commas(void **state)
{
    (void)state;
    start(1000);
    kvs_json_object(&j);
    kvs_json_key(&j, "a");
    kvs_json_array(&j);
    kvs_json_array_end(&j);
    kvs_json_key(&j, "b");
    kvs_json_array(&j);
    kvs_json_u64(&j, 1);
    kvs_json_object(&j);
    kvs_json_object_end(&j);
    kvs_json_bool(&j, false);
    kvs_json_null(&j);
    kvs_json_array_end(&j);
    kvs_json_key(&j, "c\"");
    kvs_json_bool(&j, true);
    kvs_json_object_end(&j);
    expect("{\"a\":[],\"b\":[1,{},false,null],\"c\\\"\":true}");
}

static void test_fields(void **state)
{
    (void)state;
    start(1000);
    kvs_json_object(&j);
    kvs_json_field_string(&j, "s", "x\n");
    kvs_json_field_u64(&j, "u", 7);
    kvs_json_field_f64(&j, "f", 0.5);
    kvs_json_field_bool(&j, "b", true);
    kvs_json_object_end(&j);
    expect("{\"s\":\"x\\n\",\"u\":7,\"f\":0.5,\"b\":true}");
}

static void test_numbers(void **state)
{
    (void)state;
    start(1000);
    kvs_json_array(&j);
    kvs_json_u64(&j, UINT64_MAX);
    kvs_json_i64(&j, INT64_MIN);
    kvs_json_i64(&j, -1);
    kvs_json_f32(&j, 0.1f);
    kvs_json_f32(&j, 16777216.0f);
    kvs_json_f32(&j, -0.0f);
    kvs_json_f32(&j, 3.4028234663852886e38f);
    kvs_json_f32(&j, 1.401298464e-45f);
    kvs_json_f32(&j, INFINITY);
    kvs_json_f32(&j, NAN);
    kvs_json_f64(&j, 0.1);
    kvs_json_f64(&j, 1e300);
    kvs_json_f64(&j, -HUGE_VAL);
    kvs_json_array_end(&j);
    expect("[18446744073709551615,-9223372036854775808,-1,0.100000001,16777216,-0,3.40282347e+38,1.40129846e-45,null,null,"
           "0.1,1e+300,null]");
}

static void test_escapes(void **state)
{
    (void)state;
    start(1000);
    kvs_json_bytes(&j, "\0\x01\b\t\n\f\r\x1f\x20\x7f/\"\\", 13);
    expect("\"\\u0000\\u0001\\b\\t\\n\\f\\r\\u001f \x7f/\\\"\\\\\"");
    start(1000);
    kvs_json_string(&j, "gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80");
    expect("\"gr\xC3\xBC\xC3\x9F \xF0\x9F\x98\x80\"");
}

#define R "\xEF\xBF\xBD"

static void test_bad_bytes_become_replacement_characters(void **state)
{
    (void)state;
    static const struct {
        const char *in, *want;
    } cases[] = {
        {"\x80", R},                              /* lone continuation */
        {"a\xFF" "b", "a" R "b"},                   /* never a byte of UTF-8 */
        {"\xE2\x82", R},                          /* truncated at the end */
        {"\xE2\x82" "A", R "A"},                   /* truncated in the middle: one for the part */
        {"\xF0\x9F\x98" "A", R "A"},
        {"\xC0\xAF", R R},                        /* overlong slash */
        {"\xE0\x80\xAF", R R R},                  /* overlong, three bytes */
        {"\xED\xA0\x80", R R R},                  /* surrogate */
        {"\xF4\x90\x80\x80", R R R R},            /* above U+10FFFF */
        {"\xE2\xE2\x82\xAC", R "\xE2\x82\xAC"},  /* a good one right after a broken one */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char want[64] = "\"";
        strncat(want, cases[i].want, 60);
        strncat(want, "\"", 2);
        start(1000);
        kvs_json_string(&j, cases[i].in);
        expect(want);
    }
}

static void test_full_buffer_is_reported_once_at_the_end(void **state)
{
    (void)state;
    for (size_t max = 0; max < 17; max++) {
        start(max);
        kvs_json_object(&j);
        kvs_json_key(&j, "key");
        kvs_json_string(&j, "value!");
        kvs_json_object_end(&j);
        assert_int_equal(kvs_json_end(&j), max < 16 ? KVS_BUSY_FULL : KVS_OK); /* {"key":"value!"} */
        assert_true(out.len <= max);
        kvs_buf_fini(&out);
    }
}

static void test_depth_is_bounded(void **state)
{
    (void)state;
    for (int depth = KVS_JSON_DEPTH_MAX; depth <= KVS_JSON_DEPTH_MAX + 1; depth++) {
        start(1000);
        for (int i = 0; i < depth; i++) {
            kvs_json_array(&j);
        }
        for (int i = 0; i < depth; i++) {
            kvs_json_array_end(&j);
        }
        assert_int_equal(kvs_json_end(&j), depth <= KVS_JSON_DEPTH_MAX ? KVS_OK : KVS_BUSY_FULL);
        kvs_buf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nesting_and_commas),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_bad_bytes_become_replacement_characters),
        cmocka_unit_test(test_full_buffer_is_reported_once_at_the_end),
        cmocka_unit_test(test_depth_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
