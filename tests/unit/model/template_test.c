/* template_test.c - SmolLM2's chat template: every case renders to what Jinja2 makes of the template's own text.
 * tests/vectors/model/smollm2_chat.jsonl was made by the PyPI package jinja2 3.1.6 from smollm2_template.jinja.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/template.h"
#include "tests/support/files.h"
#include "tests/support/gguf_writer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A template made from a file that holds just this text; NULL text: none at all. */
static struct mdl_template *make(const void *text, size_t n)
{
    struct mdl_template *t;
    struct mdl_gguf *g;
    struct kvs_error err = {0};
    size_t size;
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_str(w, "general.architecture", "llama");
    if (text != NULL)
        tst_gguf_bytes(w, "tokenizer.chat_template", text, n);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_OK);
    assert_int_equal(mdl_template_create(g, &t, &err), KVS_OK);
    mdl_gguf_destroy(g);
    free(bytes);
    return t;
}

static struct mdl_str str_of(json_t *o, const char *key)
{
    json_t *s = json_object_get(o, key);
    return (struct mdl_str){json_string_value(s), json_string_length(s)};
}

static void check_case(const struct mdl_template *t, json_t *o)
{
    struct mdl_message messages[8];
    struct kvs_error err = {0};
    struct kvs_buf out;
    json_t *list = json_object_get(o, "messages");
    size_t n = json_array_size(list);
    assert_true(n <= 8);
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(list, i);
        messages[i] = (struct mdl_message){str_of(m, "role"), str_of(m, "content")};
    }
    struct mdl_str want = str_of(o, "text");
    kvs_buf_init(&out, 65536);
    assert_int_equal(
        mdl_template_render(t, messages, n, json_is_true(json_object_get(o, "add_generation_prompt")), &out, &err),
        KVS_OK);
    assert_int_equal(out.len, want.len);
    assert_string_equal(kvs_buf_text(&out), want.data);
    kvs_buf_fini(&out);
}

static void test_smollm2_equals_jinja2(void **state)
{
    (void)state;
    size_t size = 0, n = 0;
    int cases = 0;
    char why[200];
    char *text = (char *)tst_file_read(KVS_SOURCE_DIR "/tests/vectors/model/smollm2_template.jinja", 0, &size);
    char *lines = (char *)tst_file_read(KVS_SOURCE_DIR "/tests/vectors/model/smollm2_chat.jsonl", 0, &n);
    assert_non_null(text);
    assert_non_null(lines);
    struct mdl_template *t = make(text, size);
    assert_true(mdl_template_ready(t, why, sizeof why));
    for (char *line = lines; line < lines + n; cases++) {
        char *eol = memchr(line, '\n', (size_t)(lines + n - line));
        assert_non_null(eol);
        *eol = '\0';
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        check_case(t, o);
        json_decref(o);
        line = eol + 1;
    }
    assert_int_equal(cases, 28);
    /* A buffer that is too small is told, and left as it was. */
    struct mdl_message m = {{"user", 4}, {"hello", 5}};
    struct kvs_error err = {0};
    struct kvs_buf out;
    kvs_buf_init(&out, 100);
    assert_int_equal(kvs_buf_puts(&out, "x"), KVS_OK);
    assert_int_equal(mdl_template_render(t, &m, 1, true, &out, &err), KVS_REQ_TOO_LONG);
    assert_string_equal(kvs_buf_text(&out), "x");
    kvs_buf_fini(&out);
    mdl_template_destroy(t);
    free(text);
    free(lines);
}

static void test_absent_and_broken_templates_say_why(void **state)
{
    (void)state;
    struct kvs_error err = {0};
    struct kvs_buf out;
    char why[200];
    kvs_buf_init(&out, 1000);
    struct mdl_template *none = make(NULL, 0), *other = make("a\n{{ x ", 7);
    assert_false(mdl_template_ready(none, why, sizeof why));
    assert_non_null(strstr(why, "no chat template"));
    assert_int_equal(mdl_template_render(none, NULL, 0, true, &out, &err), KVS_REQ_INVALID);
    assert_string_equal(err.text, why);
    assert_false(mdl_template_ready(other, why, sizeof why));
    assert_non_null(strstr(why, "cannot be used (line 2: the template ends inside a tag)"));
    assert_int_equal(mdl_template_render(other, NULL, 0, true, &out, &err), KVS_REQ_INVALID);
    assert_int_equal(out.len, 0);
    mdl_template_destroy(none);
    mdl_template_destroy(other);
    mdl_template_destroy(NULL);
    kvs_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2_equals_jinja2),
        cmocka_unit_test(test_absent_and_broken_templates_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
