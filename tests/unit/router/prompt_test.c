/* prompt_test.c - from a body to token ids, and from tokens to text, with the sample model: both held to the goldens of another engine
 * (prompt_ids, out, text). The lengths that the context allows are checked with the tiny model, which needs no data.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/edge/answer.h"
#include "router/edge/prompt.h"
#include "tests/support/files.h"
#include "tests/support/gguf_writer.h"

#define GOLDEN KVS_SHARED_DIR "/models/real/smollm2-135m-q4_1.golden.jsonl"

static struct rtr_models *models;
static struct rtr_model *sample, *tiny;

static struct rtr_model *add(const char *name, uint32_t context, uint8_t *file, size_t n)
{
    struct msg_card card;
    struct kvs_error e = {0};
    struct rtr_model *m = NULL;
    memset(&card, 0, sizeof(card));
    memcpy(card.model, name, strlen(name) + 1);
    card.context = context;
    if (rtr_models_add(models, &card, file, n, &m, &e) != KVS_OK)
        fail_msg("%s: %s", name, e.text);
    free(file); /* the model must not need the header any more */
    return m;
}

static int make_models(void **state)
{
    (void)state;
    char path[1024];
    size_t n = 0;
    struct tst_llama_options o = {0};
    assert_int_equal(rtr_models_create(&models), KVS_OK);
    uint8_t *file = tst_llama_make(&o, &n);
    tiny = add("tiny", 64, file, n);
    if (tst_smollm2_path(path, sizeof(path))) {
        file = tst_file_read(path, 16u << 20, &n); /* the header is at its front; the rest is not needed */
        assert_non_null(file);
        sample = add("smollm2", 8192, file, n);
    }
    return 0;
}

static int drop_models(void **state)
{
    (void)state;
    rtr_models_destroy(models);
    return 0;
}

static void check_ids(const struct mdl_ids *got, json_t *want)
{
    assert_int_equal(got->count, json_array_size(want));
    for (size_t i = 0; i < got->count; i++)
        assert_int_equal(got->ids[i], json_integer_value(json_array_get(want, i)));
}

static void check_answer(struct rtr_params *p, const struct mdl_ids *prompt, json_t *golden)
{
    json_t *out = json_object_get(golden, "out"), *doc, *c;
    struct rtr_answer *a;
    struct kvs_buf b;
    json_error_t e;
    bool stopped;
    bool eog = strcmp(json_string_value(json_object_get(golden, "stop")), "eog") == 0;
    kvs_buf_init(&b, 1u << 20);
    p->stream = false;
    assert_int_equal(rtr_answer_create(p, sample, 1, prompt, &a), KVS_OK);
    for (size_t i = 0; i < json_array_size(out); i++) {
        struct msg_token t;
        memset(&t, 0, sizeof(t));
        t.index = (uint32_t)i;
        t.id = (int32_t)json_integer_value(json_array_get(json_array_get(out, i), 0));
        if (i + 1 == json_array_size(out))
            t.finish = eog ? MSG_FINISH_STOP : MSG_FINISH_LENGTH;
        assert_int_equal(rtr_answer_token(a, &t, &b, &stopped), KVS_OK);
    }
    assert_int_equal(rtr_answer_done(a, &b), KVS_OK);
    doc = json_loadb(kvs_buf_text(&b), b.len, 0, &e);
    c = json_array_get(json_object_get(doc, "choices"), 0);
    const char *got = json_string_value(p->kind == RTR_CHAT ? json_object_get(json_object_get(c, "message"), "content") : json_object_get(c, "text"));
    const char *want = json_string_value(json_object_get(golden, "text"));
    size_t n = strlen(want);
    if (eog && n > 10 && strcmp(want + n - 10, "<|im_end|>") == 0)
        n -= 10; /* the golden shows the end token; an answer does not */
    assert_non_null(got);
    assert_int_equal(strlen(got), n);
    assert_memory_equal(got, want, n);
    json_decref(doc);
    rtr_answer_destroy(a);
    kvs_buf_fini(&b);
}

static void check_golden(json_t *golden)
{
    json_t *body = json_object(), *messages = json_object_get(golden, "messages");
    struct rtr_params p;
    struct rtr_fault f;
    struct mdl_ids ids;
    uint32_t max = 0;
    json_object_set_new(body, "model", json_string("smollm2"));
    json_object_set(body, messages ? "messages" : "prompt", messages ? messages : json_object_get(golden, "prompt"));
    char *text = json_dumps(body, 0);
    assert_int_equal(rtr_params_parse(messages ? RTR_CHAT : RTR_COMPLETION, text, strlen(text), &p, &f), KVS_OK);
    if (rtr_prompt(sample, &p, &ids, &max, &f) != KVS_OK)
        fail_msg("%s", f.text);
    check_ids(&ids, json_object_get(golden, "prompt_ids"));
    assert_int_equal(max, 8192 - ids.count);
    check_answer(&p, &ids, golden);
    mdl_ids_fini(&ids);
    rtr_params_fini(&p);
    free(text);
    json_decref(body);
}

static void test_prompts_and_answers_of_the_sample_model(void **state)
{
    (void)state;
    size_t n = 0, lines = 0;
    uint8_t *file = tst_file_read(GOLDEN, 0, &n);
    if (!sample || !file) {
        printf("skipped: %s is not here\n", sample ? "the golden file" : "the sample model (set KVASIR_TEST_SMOLLM2)");
        free(file);
        skip();
    }
    for (size_t at = 0; at < n;) {
        const uint8_t *nl = memchr(file + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - file) - at : n - at;
        json_error_t e;
        json_t *golden = json_loadb((const char *)file + at, len, 0, &e);
        assert_non_null(golden);
        check_golden(golden);
        json_decref(golden);
        lines++;
        at += len + 1;
    }
    printf("%zu goldens\n", lines);
    assert_true(lines >= 8);
    free(file);
}

static kvs_status ask_tiny(const char *body, uint32_t *max_out, size_t *count_out, struct rtr_fault *f)
{
    struct rtr_params p;
    struct mdl_ids ids = {0};
    assert_int_equal(rtr_params_parse(RTR_COMPLETION, body, strlen(body), &p, f), KVS_OK);
    kvs_status s = rtr_prompt(tiny, &p, &ids, max_out, f);
    *count_out = ids.count;
    mdl_ids_fini(&ids);
    rtr_params_fini(&p);
    return s;
}

/* The tiny model's context is 64 here. */
static void test_what_the_context_allows(void **state)
{
    (void)state;
    char body[1024];
    struct rtr_fault f;
    uint32_t max = 0;
    size_t count = 0;
    for (uint32_t tokens = 1; tokens <= 70; tokens++) {
        size_t at = (size_t)snprintf(body, sizeof(body), "{\"model\":\"tiny\",\"max_tokens\":8,\"prompt\":[5");
        for (uint32_t i = 1; i < tokens; i++)
            at += (size_t)snprintf(body + at, sizeof(body) - at, ",5");
        snprintf(body + at, sizeof(body) - at, "]}");
        kvs_status s = ask_tiny(body, &max, &count, &f);
        if (tokens < 64) {
            assert_int_equal(s, KVS_OK);
            assert_int_equal(max, 64 - tokens < 8 ? 64 - tokens : 8);
            continue;
        }
        char number[16];
        assert_int_equal(s, KVS_REQ_TOO_LONG);
        snprintf(number, sizeof(number), " %u ", tokens);
        assert_non_null(strstr(f.text, number));
        assert_non_null(strstr(f.text, " 63"));
        assert_string_equal(f.param, "prompt");
    }
    assert_int_equal(ask_tiny("{\"model\":\"tiny\",\"prompt\":[319]}", &max, &count, &f), KVS_OK);
    assert_int_equal(max, 63);
    assert_int_equal(ask_tiny("{\"model\":\"tiny\",\"prompt\":[320]}", &max, &count, &f), KVS_REQ_INVALID);
    assert_int_equal(ask_tiny("{\"model\":\"tiny\",\"prompt\":\"\"}", &max, &count, &f), KVS_OK); /* its start token */
    assert_int_equal(count, 1);
}

static void test_a_model_without_a_template_cannot_chat(void **state)
{
    (void)state;
    const char *body = "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    struct rtr_params p;
    struct rtr_fault f;
    struct mdl_ids ids;
    uint32_t max;
    assert_int_equal(rtr_params_parse(RTR_CHAT, body, strlen(body), &p, &f), KVS_OK);
    assert_int_equal(rtr_prompt(tiny, &p, &ids, &max, &f), KVS_REQ_INVALID);
    const char *remedy = strstr(f.text, "use /v1/completions");
    assert_non_null(remedy);
    assert_null(strstr(remedy + 1, "use /v1/completions")); /* said once */
    mdl_ids_fini(&ids);
    rtr_params_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_and_answers_of_the_sample_model),
        cmocka_unit_test(test_what_the_context_allows),
        cmocka_unit_test(test_a_model_without_a_template_cannot_chat),
    };
    return cmocka_run_group_tests(tests, make_models, drop_models);
}
