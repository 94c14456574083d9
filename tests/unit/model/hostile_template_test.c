/* hostile_template_test.c - templates and messages that mean harm: every rendering ends, within its bounds, with a cause.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "model/jinja/jinja.h"
#include "model/template.h"
#include "tests/support/files.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Parses and renders with the given names; err says why not. */
static kvs_status render(const char *text, size_t n, json_t *given, struct kvs_buf *out, struct kvs_error *err)
{
    struct jin_template *t;
    struct jin_run r;
    kvs_status s = jin_parse(text, n, &t, err);
    if (s != KVS_OK)
        return s;
    jin_run_init(&r, out, 0, err);
    struct jin_value names;
    bool ok = true;
    if (given != NULL) { /* strings are enough here */
        const char *key;
        json_t *v;
        json_object_foreach(given, key, v)
        {
            names = jin_str(json_string_value(v), json_string_length(v));
            ok = ok && jin_set_var(&r, &r.globals, (struct mdl_str){key, strlen(key)}, &names);
        }
    }
    assert_true(ok);
    s = jin_render(&r, t);
    assert_true(r.arena.used <= JIN_RUN_ARENA);
    assert_true(s == KVS_OK || r.status == s);
    jin_run_fini(&r);
    jin_template_destroy(t);
    return s;
}

struct hostile {
    const char *text, *cause;
};

static void refuse_all(const struct hostile *h, size_t count, kvs_status want)
{
    for (size_t i = 0; i < count; i++) {
        struct kvs_error err = {0};
        struct kvs_buf out;
        struct timespec a, b;
        kvs_buf_init(&out, 1 << 20);
        clock_gettime(CLOCK_MONOTONIC, &a);
        kvs_status s = render(h[i].text, strlen(h[i].text), NULL, &out, &err);
        clock_gettime(CLOCK_MONOTONIC, &b);
        print_message("%.60s: %s (%ld ms)\n", h[i].text, err.text,
                      (long)((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000));
        assert_int_equal(s, want);
        assert_int_equal(out.len, 0);
        if (strstr(err.text, h[i].cause) == NULL)
            fail_msg("'%s' gives '%s', not '%s'", h[i].text, err.text, h[i].cause);
        kvs_buf_fini(&out);
    }
}

#define R5 "range(100000)"

static void test_work_without_end(void **state)
{
    (void)state;
    static const struct hostile all[] = {
        {"{% for a in " R5 " %}{% for b in [1]*1000 %}{% set x = a * b %}{% endfor %}{% endfor %}", "limit reached"},
        {"{% for a in 'x'*1000 %}{% for b in 'x'*1000 %}{% if false %}{% endif %}{% for c in 'x'*1000 %}{% endfor %}{% "
         "endfor %}"
         "{% endfor %}",
         "limit reached"},
        {"{% set l = " R5 "|list %}{% for a in l %}{% if -1 in l %}{% endif %}{% endfor %}",
         "chat template: step limit reached"},
        {"{% set s = ('x'*1000)*9000 %}{% for a in " R5 " %}{% if 'y' in s %}{% endif %}{% endfor %}",
         "step limit reached"},
        {"{% set s = ('x'*1000)*9000 %}{% for a in " R5 " %}{{ s|length }}{% endfor %}", "step limit reached"},
        {"{% set s = ('x'*1000)*9000 %}{{ s.rfind('x'*4000000 ~ 'y') }}", "step limit reached"},
        {"{% set s = ('x'*1000)*9000 %}{{ s.lstrip('y'*1000000 ~ 'x') }}", "step limit reached"},
        {"{% set l = " R5 "|list %}{{ (l|map('string')|list)|unique|list|length }}", "step limit reached"},
        {"{% set ns = namespace(n=0) %}{% macro m() %}{% for i in [1,1,1,1,1,1,1,1] %}{{ caller() }}{% endfor %}{% "
         "endmacro %}"
         "{% call m() %}{% call m() %}{% call m() %}{% call m() %}{% call m() %}{% call m() %}{% call m() %}{% call "
         "m() %}"
         "{% set ns.n = ns.n + 1 %}{% endcall %}{% endcall %}{% endcall %}{% endcall %}{% endcall %}{% endcall %}{% "
         "endcall %}"
         "{% endcall %}",
         "limit reached"},
        {"{% set s = 'aaaaaaaa'*100000 %}{% for a in " R5 " %}{% set x = s.upper() %}{% endfor %}", "limit reached"},
        {"{% set d = dict(range(9)|list|map('string')|map('list')) %}", "pairs"},
    };
    refuse_all(all, sizeof all / sizeof all[0], KVS_REQ_INVALID);
}

static void test_memory_without_end(void **state)
{
    (void)state;
    static const struct hostile all[] = {
        {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
         "memory limit reached"},
        {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
         "memory limit reached"},
        {"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
         "memory limit reached"},
        {"{{ 'x' * 9223372036854775807 }}", "memory limit reached"},
        {"{{ [1] * 4611686018427387904 }}", "memory limit reached"},
        {"{{ ('x' * 1000000)|list|length * 50 }}{{ ('x' * 9000000)|list }}", "memory limit reached"},
        {"{{ 'abc'|replace('', 'x'*1000000)|replace('x','xxxx')|length }}", "the rendered chat is longer"},
        {"{% set x %}{% for i in " R5 " %}0123456789abcdef{% endfor %}{% endset %}", "the rendered chat is longer"},
        {"{{ 'x'.center(99999999) }}", "the rendered chat is longer"},
    };
    refuse_all(all, 6, KVS_REQ_INVALID);
    refuse_all(all + 6, 3, KVS_REQ_TOO_LONG);
}

static void test_depth_without_end(void **state)
{
    (void)state;
    static const struct hostile all[] = {
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself without end"},
        {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{% if true %}{{ a()|upper ~ a() }}{% endif %}{% "
         "endmacro %}{{ a() }}",
         "calls itself without end"},
        {"{% macro m(x) %}{% call m(1) %}{{ caller() }}{% endcall %}{% endmacro %}{{ m(1) }}",
         "calls itself without end"},
        {"{% macro m(x=m()) %}{% endmacro %}{{ m() }}", "calls itself without end"},
        {"{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
         "nested too deeply"},
        {"{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|tojson }}",
         "nested too deeply"},
        {"{% set a = namespace(s=[]) %}{% set b = namespace(s=[]) %}{% for i in range(5000) %}{% set a.s = [a.s] %}"
         "{% set b.s = [b.s] %}{% endfor %}{{ a.s == b.s }}",
         "nested too deeply"},
        {"{% set a = namespace(s=[]) %}{% set b = namespace(s=[]) %}{% for i in range(5000) %}{% set a.s = [a.s] %}"
         "{% set b.s = [b.s] %}{% endfor %}{{ a.s < b.s }}",
         "nested too deeply"},
        {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "nested too deeply"},
        {"{{ raise_exception(nobody) }}", "raised an exception without a message"},
    };
    refuse_all(all, sizeof all / sizeof all[0], KVS_REQ_INVALID);
}

/* On a thread with a small stack: the bounds on depth have to hold there too. */
static void *on_small_stack(void *arg)
{
    test_depth_without_end(arg);
    return NULL;
}

static void test_small_stack(void **state)
{
    (void)state;
    pthread_attr_t attr;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, (size_t)2 << 20), 0);
    assert_int_equal(pthread_create(&thread, &attr, on_small_stack, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

/* 10,000 times the same thing inside itself. */
static void test_nested_text(void **state)
{
    (void)state;
    static const char *const parts[][3] = {
        {"{{ ", "(", " }}"},
        {"{{ ", "[", " }}"},
        {"{{ ", "{1:", " }}"},
        {"{{ ", "-", "1 }}"},
        {"{{ ", "not ", "1 }}"},
        {"{{ x", ".a", " }}"},
        {"{{ x", "[0]", " }}"},
        {"{{ x", "()", " }}"},
        {"{{ x", "|e", " }}"},
        {"{{ 1", " if 1 else 1", " }}"},
        {"{{ 1", " - 1", " }}"},
        {"{{ 1", " ** 1", " }}"},
        {"{{ 1", " * 1", " }}"},
        {"", "{% if 1 %}", ""},
        {"", "{% for a in b %}", ""},
        {"", "{% macro a() %}", ""},
        {"", "{% call a() %}", ""},
        {"", "{% with %}", ""},
        {"{{ 1", " is x is", " }}"},
        {"{{ f(", "f(", " }}"},
        {"{{ 1", " if 1", " }}"},
        {"{{ x[", "x[", " }}"},
        {"{{ 1 is in ", "[1 is in ", " }}"},
        {"{{ 1 ", "< 1 + ", " }}"},
    };
    char *text = malloc(200100);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct kvs_error err = {0};
        struct kvs_buf out;
        size_t n = strlen(parts[i][0]), part = strlen(parts[i][1]);
        kvs_buf_init(&out, 1 << 20);
        memcpy(text, parts[i][0], n);
        for (int k = 0; k < 10000; k++, n += part)
            memcpy(text + n, parts[i][1], part);
        memcpy(text + n, parts[i][2], strlen(parts[i][2]));
        n += strlen(parts[i][2]);
        assert_int_equal(render(text, n, NULL, &out, &err), KVS_SELF_MODEL);
        assert_non_null(strstr(err.text, "line 1: "));
        kvs_buf_fini(&out);
    }
    /* Long chains that are no nesting are fine. */
    static const char *const flat[] = {"+1", "~1", " and 1", " or 0", "==1", " 1"};
    for (size_t i = 0; i < sizeof flat / sizeof flat[0]; i++) {
        struct kvs_error err = {0};
        struct kvs_buf out;
        size_t n = 4, part = strlen(flat[i]);
        kvs_buf_init(&out, 1 << 20);
        memcpy(text, i < 5 ? "{{ 1" : "{{1}", 4);
        for (int k = 0; k < 10000; k++, n += part)
            memcpy(text + n, flat[i], part);
        memcpy(text + n, i < 5 ? " }}" : "   ", 3);
        kvs_status s = render(text, n + 3, NULL, &out, &err);
        assert_int_equal(s, i < 5 ? KVS_OK : KVS_SELF_MODEL);
        kvs_buf_fini(&out);
    }
    free(text);
}

static const char mixed[] = "{#- head -#}\n{%- macro m(a, b=[1, 2.5e3], *c) %}{% endmacro %}\n";

static const char whole[] =
    "{#- head -#}\n{%- macro m(a, b=[1, 2.5e3]) -%}\n  {{ a.b['c'][0:-1:2]|join(', ') ~ b|tojson(indent=2) }}\n{%- "
    "endmacro %}\n"
    "{% set ns = namespace(i=0, s='\\u00e9\\n\\x41') %}{% for k, v in {'a': (1, none), \"b\": [true]}|dictsort if v is "
    "not none %}"
    "{% set ns.i = ns.i + loop.index0 %}{% if ns.i > 3 and not k in ['x'] or k == 'z' %}{% break %}{% elif k is "
    "defined %}"
    "{{- loop.cycle(1, 2) if loop.first else loop.previtem }}{% else %}{% continue %}{% endif %}{% else %}none{% "
    "endfor %}"
    "{% raw %}{{ raw }}{% endraw %}{% set x | upper %}t{{ ns.s }}{% endset %}{{ x[::-1].strip('\\n') }}{% call(q) m(1) "
    "%}{{ q }}"
    "{% endcall %}{% filter trim %} a {% endfilter %}{% with a = -1 ** 2 %}{{ a // 2 % 3 }}{% endwith %}"
    "{% generation %}{{ '%s' % 1 }}{% endgeneration %}{{ m(1) }}";

/* Cut at every byte, and with single bytes changed: it parses or says why, and what parses can be run. */
static void test_damaged_text(void **state)
{
    (void)state;
    struct kvs_rng rng = {20250115};
    static const char letters[] = "{}%#-+|.()[]'\"\\ \n,:=~*/<>!abi0123_\xc3\xa9\x80\xff";
    size_t n = sizeof whole - 1;
    struct kvs_buf out;
    struct kvs_error err = {0};
    kvs_buf_init(&out, 1 << 16);
    assert_int_equal(render(mixed, sizeof mixed - 1, NULL, &out, &err), KVS_SELF_MODEL);
    for (size_t cut = 0; cut <= n; cut++) {
        char *exact = malloc(cut > 0 ? cut : 1);
        memcpy(exact, whole, cut);
        kvs_buf_clear(&out);
        kvs_status s = render(exact, cut, NULL, &out, &err);
        assert_true(s == KVS_OK || s == KVS_SELF_MODEL || s == KVS_REQ_INVALID);
        free(exact);
    }
    print_message("seed %llu\n", (unsigned long long)rng.state);
    for (int i = 0; i < 20000; i++) {
        char *copy = malloc(n);
        memcpy(copy, whole, n);
        for (uint64_t k = 1 + kvs_rng_below(&rng, 4); k > 0; k--)
            copy[kvs_rng_below(&rng, n)] = letters[kvs_rng_below(&rng, sizeof letters - 1)];
        kvs_buf_clear(&out);
        kvs_status s = render(copy, n, NULL, &out, &err);
        assert_true(s == KVS_OK || s == KVS_SELF_MODEL || s == KVS_REQ_INVALID || s == KVS_REQ_TOO_LONG);
        free(copy);
    }
    kvs_buf_fini(&out);
}

/* Texts that are no UTF-8 reach a template only through mdl_message; they come out as they went in. */
static void test_bad_utf8_in_strings(void **state)
{
    (void)state;
    static const char text[] =
        "{{ s }}|{{ s|length }}|{{ s[::-1] }}|{{ s[1:3] }}|{{ s|upper }}|{{ s.strip() }}|{{ s|tojson }}|{{ [s] }}";
    struct kvs_rng rng = {7};
    struct kvs_error err = {0};
    struct kvs_buf out;
    kvs_buf_init(&out, 1 << 16);
    for (int i = 0; i < 3000; i++) {
        char bytes[16];
        struct jin_template *t;
        struct jin_run r;
        size_t n = kvs_rng_below(&rng, sizeof bytes);
        for (size_t k = 0; k < n; k++)
            bytes[k] = (char)(kvs_rng_below(&rng, 3) == 0 ? 'a' : 0x80 + kvs_rng_below(&rng, 128));
        char *exact = malloc(n + 1);
        memcpy(exact, bytes, n);
        exact = realloc(exact, n > 0 ? n : 1);
        assert_int_equal(jin_parse(text, sizeof text - 1, &t, &err), KVS_OK);
        jin_run_init(&r, &out, 0, &err);
        struct jin_value v = jin_str(exact, n);
        assert_true(jin_set_var(&r, &r.globals, (struct mdl_str){"s", 1}, &v));
        kvs_buf_clear(&out);
        assert_int_equal(jin_render(&r, t), KVS_OK);
        assert_true(out.len >= n && (n == 0 || memcmp(out.data, bytes, n) == 0));
        jin_run_fini(&r);
        jin_template_destroy(t);
        free(exact);
    }
    kvs_buf_fini(&out);
}

static void test_too_large(void **state)
{
    (void)state;
    struct kvs_error err = {0};
    struct jin_template *t;
    size_t n = JIN_TEXT_MAX + 1;
    char *text = malloc(n);
    memset(text, 'x', n);
    assert_int_equal(jin_parse(text, n, &t, &err), KVS_SELF_MODEL);
    assert_int_equal(jin_parse(text, n - 1, &t, &err), KVS_OK);
    jin_template_destroy(t);
    for (size_t i = 0; i + 5 < n; i += 5)
        memcpy(text + i, "{{1}}", 5);
    assert_int_equal(jin_parse(text, n - 10, &t, &err), KVS_SELF_MODEL);
    assert_non_null(strstr(err.text, "too large"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_without_end),    cmocka_unit_test(test_memory_without_end),
        cmocka_unit_test(test_depth_without_end),   cmocka_unit_test(test_small_stack),
        cmocka_unit_test(test_nested_text),         cmocka_unit_test(test_damaged_text),
        cmocka_unit_test(test_bad_utf8_in_strings), cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
