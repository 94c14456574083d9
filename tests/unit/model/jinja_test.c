/* jinja_test.c - the interpreter against what Jinja2 3.1.6 made: 156 renderings of twelve models' templates (skipped when the
 * shared data is absent) and a table of small templates (tests/vectors/model/make_jinja_cases.py), byte for byte.
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

#define NOON 1736942400 /* 2025-01-15 12:00 UTC */

static struct mdl_template *make(const char *text, size_t n, const char *bos, const char *eos)
{
    const struct mdl_str tokens[] = {{bos, strlen(bos)}, {eos, strlen(eos)}};
    struct mdl_template *t;
    struct mdl_gguf *g;
    struct kvs_error err = {0};
    size_t size;
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_str(w, "general.architecture", "llama");
    tst_gguf_bytes(w, "tokenizer.chat_template", text, n);
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, 2);
    tst_gguf_u32(w, "tokenizer.ggml.bos_token_id", 0);
    tst_gguf_u32(w, "tokenizer.ggml.eos_token_id", 1);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_OK);
    assert_int_equal(mdl_template_create(g, &t, &err), KVS_OK);
    mdl_gguf_destroy(g);
    free(bytes);
    return t;
}

/* The next line of a JSONL text; NULL at the end. */
static json_t *next_line(char **at, const char *end)
{
    if (*at >= end)
        return NULL;
    char *eol = memchr(*at, '\n', (size_t)(end - *at));
    assert_non_null(eol);
    json_t *o = json_loadb(*at, (size_t)(eol - *at), JSON_ALLOW_NUL, NULL);
    assert_non_null(o);
    *at = eol + 1;
    return o;
}

/* Renders and compares; false: it differs, and how is printed. */
static bool check(const struct mdl_template *t, const struct mdl_chat *chat, json_t *want, const char *name)
{
    struct kvs_error err = {0};
    struct kvs_buf out;
    kvs_buf_init(&out, 1 << 20);
    assert_int_equal(kvs_buf_puts(&out, "before"), KVS_OK);
    kvs_status s = mdl_template_render_chat(t, chat, &out, &err);
    bool ok;
    if (want == NULL) {
        ok = s == KVS_REQ_INVALID && out.len == 6 && err.text[0] != '\0';
        if (!ok)
            print_error("%s: rendered, where Jinja2 raises\n", name);
    } else {
        ok = s == KVS_OK && out.len == 6 + json_string_length(want) &&
             memcmp(out.data + 6, json_string_value(want), out.len - 6) == 0;
        if (!ok)
            print_error("%s: got '%s' %s\n  want '%s'\n", name, kvs_buf_text(&out) + 6, s != KVS_OK ? err.text : "",
                        json_string_value(want));
    }
    kvs_buf_fini(&out);
    return ok;
}

static void test_templates_of_real_models(void **state)
{
    (void)state;
    size_t n = 0;
    int cases = 0, wrong = 0, refused = 0;
    char *lines = (char *)tst_file_read(KVS_SHARED_DIR "/data/templates/rendered.jsonl", 0, &n), *at = lines;
    if (lines == NULL) {
        print_message("skipped: %s is absent\n", KVS_SHARED_DIR "/data/templates/rendered.jsonl");
        skip();
    }
    for (json_t *o; (o = next_line(&at, lines + n)) != NULL; cases++) {
        char path[600];
        size_t size = 0;
        const char *name = json_string_value(json_object_get(o, "template"));
        snprintf(path, sizeof path, KVS_SHARED_DIR "/data/templates/%s.jinja", name);
        char *text = (char *)tst_file_read(path, 0, &size);
        assert_non_null(text);
        struct mdl_template *t = make(text, size, json_string_value(json_object_get(o, "bos_token")),
                                      json_string_value(json_object_get(o, "eos_token")));
        const struct mdl_chat chat = {
            .messages = json_object_get(o, "messages"),
            .tools = json_object_get(o, "tools"),
            .add_generation_prompt = json_is_true(json_object_get(o, "add_generation_prompt")),
            .now_s = NOON,
        };
        json_t *want = json_object_get(o, "expected");
        wrong += !check(t, &chat, want, name);
        if (want == NULL) { /* the client reads the template's own words */
            struct kvs_error err = {0};
            struct kvs_buf out;
            kvs_buf_init(&out, 1 << 20);
            assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_REQ_INVALID);
            const char *words = strchr(json_string_value(json_object_get(o, "error")), ' ');
            assert_non_null(words);
            assert_string_equal(err.text, words + 1);
            kvs_buf_fini(&out);
            refused++;
        }
        mdl_template_destroy(t);
        free(text);
        json_decref(o);
    }
    free(lines);
    assert_int_equal(wrong, 0);
    assert_int_equal(cases, 156);
    assert_int_equal(refused, 1);
}

static void test_small_templates(void **state)
{
    (void)state;
    size_t n = 0;
    int cases = 0, wrong = 0, refused = 0;
    char *lines = (char *)tst_file_read(KVS_SOURCE_DIR "/tests/vectors/model/jinja_cases.jsonl", 0, &n), *at = lines;
    assert_non_null(lines);
    json_t *given = next_line(&at, lines + n);
    const struct mdl_chat chat = {
        .messages = json_object_get(given, "messages"),
        .extra = json_object_get(given, "extra"),
        .add_generation_prompt = true,
        .now_s = NOON,
    };
    for (json_t *o; (o = next_line(&at, lines + n)) != NULL; cases++) {
        json_t *text = json_object_get(o, "template"), *want = json_object_get(o, "out");
        assert_int_equal(want == NULL, json_is_true(json_object_get(o, "error")));
        struct mdl_template *t = make(json_string_value(text), json_string_length(text), "<s>", "</s>");
        wrong += !check(t, &chat, want, json_string_value(text));
        refused += want == NULL;
        mdl_template_destroy(t);
        json_decref(o);
    }
    json_decref(given);
    free(lines);
    print_message("%d small templates, %d of them refused\n", cases, refused);
    assert_int_equal(wrong, 0);
    assert_true(cases > 700 && refused > 100);
}

/* What a client may add, and what not. */
static void test_further_names(void **state)
{
    (void)state;
    static const char text[] = "{{ 'on' if enable_thinking else 'off' }}{{ documents }}{{ tools }}";
    static const char *const refused[] = {"messages",  "tools", "add_generation_prompt", "bos_token",
                                          "pad_token", "range", "raise_exception",       "namespace",
                                          "loop",      "caller"};
    struct mdl_template *t = make(text, sizeof text - 1, "<s>", "</s>");
    struct kvs_error err = {0};
    struct kvs_buf out;
    json_t *messages = json_array(), *extra = json_pack("{s:b,s:[s]}", "enable_thinking", 1, "documents", "d");
    struct mdl_chat chat = {.messages = messages, .extra = extra, .now_s = NOON};
    kvs_buf_init(&out, 1000);
    assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "on['d']None");
    kvs_buf_clear(&out);
    chat.extra = NULL;
    assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "offNoneNone");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        json_t *bad = json_pack("{s:i}", refused[i], 1);
        chat.extra = bad;
        assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_REQ_INVALID);
        assert_non_null(strstr(err.text, refused[i]));
        json_decref(bad);
    }
    chat.extra = messages; /* an array */
    assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_REQ_INVALID);
    chat.extra = NULL;
    chat.messages = extra; /* an object */
    assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_REQ_INVALID);
    kvs_buf_fini(&out);
    json_decref(messages);
    json_decref(extra);
    mdl_template_destroy(t);
}

struct clock {
    int looks, expires_at;
};

static bool clock_expired(void *user)
{
    struct clock *c = user;
    return ++c->looks == c->expires_at;
}

/* A template without end is looked at throughout, and ends when the time is up; with time enough the steps end it. */
static void test_the_time_of_a_rendering_is_bounded(void **state)
{
    (void)state;
    static const char text[] = "{% set l = range(1000)|list %}{% for i in range(90000) %}{% if -1 in l %}{% endif %}{% endfor %}";
    struct mdl_template *t = make(text, sizeof text - 1, "<s>", "</s>");
    struct kvs_error err = {0};
    struct kvs_buf out;
    struct clock clock = {.expires_at = 3};
    json_t *messages = json_array();
    struct mdl_chat chat = {.messages = messages, .now_s = NOON, .expired = clock_expired, .expired_user = &clock};
    kvs_buf_init(&out, 1000);
    assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_REQ_DEADLINE);
    assert_string_equal(err.text, "chat template: time limit reached (line 1)");
    assert_int_equal(clock.looks, 3);
    assert_int_equal(out.len, 0);
    clock = (struct clock){0};
    assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_REQ_INVALID);
    assert_string_equal(err.text, "chat template: step limit reached (line 1)");
    assert_true(clock.looks > 300 && clock.looks < 500); /* 20 million steps in slices of 50,000 */
    chat.expired = NULL;
    assert_int_equal(mdl_template_render_chat(t, &chat, &out, &err), KVS_REQ_INVALID);
    assert_string_equal(err.text, "chat template: step limit reached (line 1)");
    kvs_buf_fini(&out);
    json_decref(messages);
    mdl_template_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates_of_real_models),
        cmocka_unit_test(test_small_templates),
        cmocka_unit_test(test_further_names),
        cmocka_unit_test(test_the_time_of_a_rendering_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
