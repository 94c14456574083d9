/* utf8_test.c - hand-written cases from the tables of RFC 3629 and Unicode, and a round trip over all characters.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/utf8.h"
#include <string.h>

static const struct {
    const char *bytes;
    int len; /* as kvs_utf8_decode returns it */
    uint32_t cp;
} cases[] = {
    {"A", 1, 0x41},
    {"\x7F", 1, 0x7F},
    {"\xC2\x80", 2, 0x80},
    {"\xDF\xBF", 2, 0x7FF},
    {"\xE0\xA0\x80", 3, 0x800},
    {"\xED\x9F\xBF", 3, 0xD7FF},
    {"\xEE\x80\x80", 3, 0xE000},
    {"\xEF\xBF\xBF", 3, 0xFFFF},
    {"\xF0\x90\x80\x80", 4, 0x10000},
    {"\xF4\x8F\xBF\xBF", 4, 0x10FFFF},
    {"\x80", 0, 0},                 /* continuation first */
    {"\xBF" "A", 0, 0},
    {"\xC0\x80", 0, 0},             /* overlong NUL */
    {"\xC1\xBF", 0, 0},             /* overlong DEL */
    {"\xE0\x9F\xBF", 0, 0},         /* overlong U+07FF */
    {"\xF0\x8F\xBF\xBF", 0, 0},     /* overlong U+FFFF */
    {"\xED\xA0\x80", 0, 0},         /* U+D800 */
    {"\xED\xBF\xBF", 0, 0},         /* U+DFFF */
    {"\xF4\x90\x80\x80", 0, 0},     /* U+110000 */
    {"\xF5\x80\x80\x80", 0, 0},
    {"\xFE", 0, 0},
    {"\xFF", 0, 0},
    {"\xC3" "A", 0, 0},              /* cut short by another character */
    {"\xE2\x82" "A", 0, 0},
    {"\xF0\x9F\x98" "A", 0, 0},
    {"\xC3", -1, 0},                /* cut short by the end */
    {"\xE2", -1, 0},
    {"\xE2\x82", -1, 0},
    {"\xF0", -1, 0},
    {"\xF0\x9F", -1, 0},
    {"\xF0\x9F\x98", -1, 0},
    {"\xE0\x9F", 0, 0},             /* cut short, but already wrong */
    {"\xED\xA0", 0, 0},
    {"\xF4\x90", 0, 0},
};

static void test_decode_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = strlen(cases[i].bytes);
        uint32_t cp = 0xABCDEF;
        int len = kvs_utf8_decode((const uint8_t *)cases[i].bytes, n, &cp);
        assert_int_equal(len, cases[i].len);
        assert_int_equal(cp, len > 0 ? cases[i].cp : 0xABCDEF);
        assert_int_equal(kvs_utf8_valid(cases[i].bytes, n), len > 0 && (size_t)len == n);
    }
    uint32_t cp;
    assert_int_equal(kvs_utf8_decode(NULL, 0, &cp), -1);
    assert_true(kvs_utf8_valid("", 0));
    assert_true(kvs_utf8_valid("\0a", 2));
}

static void test_every_character_round_trips(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110100; cp++) {
        uint8_t b[4];
        int n = kvs_utf8_encode(cp, b);
        bool is_char = cp <= 0x10FFFF && !(cp >= 0xD800 && cp <= 0xDFFF);
        assert_int_equal(n, !is_char ? 0 : cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4);
        if (n > 0) {
            uint32_t back = 0;
            assert_int_equal(kvs_utf8_decode(b, (size_t)n, &back), n);
            assert_int_equal(back, cp);
            for (int cut = 1; cut < n; cut++) {
                assert_int_equal(kvs_utf8_decode(b, (size_t)cut, &back), -1);
            }
        }
    }
}

static void test_whole_stops_before_an_unfinished_character(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t whole;
    } w[] = {
        {"", 0},           {"abc", 3},          {"a\xC3", 1},          {"a\xC3\xA9", 3},        {"a\xE2\x82", 1},
        {"a\xF0\x9F\x98", 1}, {"\xF0", 0},       {"a\x80", 2},          {"\x80\x80\x80\x80", 4}, {"a\xFF", 2},
        {"\xED\xA0", 2},   {"\xE2\xC3", 1},     {"\xF0\x9F\x98\x80", 4}, {"\xC3\xA9\xC3", 2},
    };
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++) {
        assert_int_equal(kvs_utf8_whole(w[i].bytes, strlen(w[i].bytes)), w[i].whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_table),
        cmocka_unit_test(test_every_character_round_trips),
        cmocka_unit_test(test_whole_stops_before_an_unfinished_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
