/* answer_test.c - tokens to text to OpenAI's shapes: a stream joined equals the whole answer, characters are never split, no byte of a stop
 * string gets out, chunks come in the order and with the keys that clients expect. The vocabulary is the tiny test model's, where
 * token 3 + b is the byte b: any text can be made, cut anywhere. JSON is read back with jansson.
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

#include "base/rng.h"
#include "base/utf8.h"
#include "router/edge/answer.h"
#include "tests/support/gguf_writer.h"

#define EOS 2

static struct rtr_models *models;
static struct rtr_model *model;

static int make_model(void **state)
{
    (void)state;
    struct tst_llama_options o = {0};
    struct msg_card card;
    struct kvs_error e = {0};
    size_t n = 0;
    uint8_t *file = tst_llama_make(&o, &n);
    memset(&card, 0, sizeof(card));
    memcpy(card.model, "tiny", 5);
    card.context = 512;
    assert_int_equal(rtr_models_create(&models), KVS_OK);
    if (rtr_models_add(models, &card, file, n, &model, &e) != KVS_OK)
        fail_msg("%s", e.text);
    free(file);
    return 0;
}

static int drop_model(void **state)
{
    (void)state;
    rtr_models_destroy(models);
    return 0;
}

/* What a client puts together from a stream, or reads from a whole answer. */
struct seen {
    char text[RTR_CHOICES_MAX][4096];
    char finish[RTR_CHOICES_MAX][16];
    int32_t ids[RTR_CHOICES_MAX][512];
    size_t id_count[RTR_CHOICES_MAX], logit_count[RTR_CHOICES_MAX], roles[RTR_CHOICES_MAX], finishes[RTR_CHOICES_MAX];
    size_t chunks, usage_null, usage_full, prompt_ids;
    int64_t prompt_tokens, completion_tokens, total_tokens;
    bool done;
};

static void take_choice(struct seen *s, json_t *c, bool chat, bool stream)
{
    size_t i = (size_t)json_integer_value(json_object_get(c, "index")), k;
    json_t *holder = chat ? json_object_get(c, stream ? "delta" : "message") : c, *v;
    json_t *text = json_object_get(holder, chat ? "content" : "text");
    assert_int_equal(s->finishes[i], 0);
    if (json_is_string(text)) {
        assert_true(kvs_utf8_valid(json_string_value(text), json_string_length(text)));
        size_t had = strlen(s->text[i]);
        assert_true(had + json_string_length(text) < sizeof(s->text[i]));
        memcpy(s->text[i] + had, json_string_value(text), json_string_length(text) + 1);
    }
    if (chat && json_object_get(holder, "role")) {
        assert_true(!stream || s->text[i][0] == 0);
        s->roles[i]++;
    }
    assert_true(json_object_get(c, "logprobs") != NULL);
    v = json_object_get(c, "finish_reason");
    assert_true(v != NULL);
    if (json_is_string(v)) {
        snprintf(s->finish[i], sizeof(s->finish[i]), "%s", json_string_value(v));
        s->finishes[i]++;
    }
    json_t *ids = json_object_get(c, "token_ids");
    json_array_foreach(ids, k, v) s->ids[i][s->id_count[i]++] = (int32_t)json_integer_value(v);
    s->logit_count[i] += json_array_size(json_object_get(json_object_get(c, "kvasir"), "logits"));
    s->prompt_ids += json_object_get(c, "prompt_token_ids") != NULL;
}

static void take_object(struct seen *s, json_t *o, bool chat, bool stream)
{
    size_t i;
    json_t *c, *u = json_object_get(o, "usage");
    assert_string_equal(json_string_value(json_object_get(o, "object")),
                        !chat ? "text_completion" : stream ? "chat.completion.chunk" : "chat.completion");
    assert_string_equal(json_string_value(json_object_get(o, "model")), "tiny");
    assert_true(json_is_string(json_object_get(o, "id")) && json_is_integer(json_object_get(o, "created")));
    json_array_foreach(json_object_get(o, "choices"), i, c) take_choice(s, c, chat, stream);
    s->chunks++;
    s->usage_null += u && json_is_null(u);
    if (json_is_object(u)) {
        s->usage_full++;
        assert_true(!stream || json_array_size(json_object_get(o, "choices")) == 0);
        s->prompt_tokens = json_integer_value(json_object_get(u, "prompt_tokens"));
        s->completion_tokens = json_integer_value(json_object_get(u, "completion_tokens"));
        s->total_tokens = json_integer_value(json_object_get(u, "total_tokens"));
        assert_true(json_is_integer(json_object_get(json_object_get(u, "prompt_tokens_details"), "cached_tokens")));
    }
}

static void read_back(const struct kvs_buf *b, bool chat, bool stream, struct seen *s)
{
    const char *p = kvs_buf_text(b), *end;
    json_error_t e;
    memset(s, 0, sizeof(*s));
    if (!stream) {
        json_t *o = json_loadb(p, b->len, JSON_REJECT_DUPLICATES, &e);
        assert_non_null(o);
        take_object(s, o, chat, false);
        json_decref(o);
        return;
    }
    for (; *p; p = end + 2) {
        assert_false(s->done);
        end = strstr(p, "\n\n");
        assert_non_null(end);
        assert_memory_equal(p, "data: ", 6);
        if (strncmp(p + 6, "[DONE]", 6) == 0) {
            s->done = true;
            continue;
        }
        json_t *o = json_loadb(p + 6, (size_t)(end - p - 6), JSON_REJECT_DUPLICATES, &e);
        assert_non_null(o);
        take_object(s, o, chat, true);
        json_decref(o);
    }
}

/* Feeds ids to each choice in turn until it is over; the last token carries `last`. */
static void play(struct rtr_params *p, const int32_t *ids, size_t n, msg_finish last, struct seen *s)
{
    struct rtr_answer *a;
    struct kvs_buf out;
    int32_t prompt[] = {5, 6, 7};
    struct mdl_ids pr = {prompt, 3, 3};
    bool over[RTR_CHOICES_MAX] = {false};
    kvs_buf_init(&out, 16u << 20);
    assert_int_equal(rtr_answer_create(p, model, 77, &pr, &a), KVS_OK);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t c = 0; c < p->choices; c++) {
            struct msg_token t;
            bool stopped = false;
            memset(&t, 0, sizeof(t));
            t.choice = c;
            t.index = (uint32_t)i;
            t.id = ids[i];
            t.logit = 1.25f;
            t.finish = i + 1 == n ? last : MSG_RUNNING;
            if (over[c])
                continue;
            assert_int_equal(rtr_answer_token(a, &t, &out, &stopped), KVS_OK);
            over[c] = stopped;
        }
    }
    assert_int_equal(rtr_answer_done(a, &out), KVS_OK);
    rtr_answer_destroy(a);
    read_back(&out, p->kind == RTR_CHAT, p->stream, s);
    assert_true(!p->stream || s->done);
    kvs_buf_fini(&out);
}

static void bytes_to_ids(const char *text, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = 3 + (uint8_t)text[i];
}

static struct rtr_params params(rtr_kind kind, bool stream)
{
    struct rtr_params p;
    memset(&p, 0, sizeof(p));
    p.kind = kind;
    p.stream = stream;
    p.choices = 1;
    return p;
}

static void add_stop(struct rtr_params *p, const char *text)
{
    p->stop.len[p->stop.count] = (uint32_t)strlen(text);
    memcpy(p->stop.text[p->stop.count++], text, strlen(text));
}

static void test_a_character_of_many_tokens_comes_once_and_whole(void **state)
{
    (void)state;
    const char *emoji = "a\xf0\x9f\x98\x80z";
    int32_t ids[8];
    struct seen s;
    bytes_to_ids(emoji, 6, ids);
    for (int stream = 0; stream < 2; stream++) {
        struct rtr_params p = params(RTR_CHAT, stream == 1);
        play(&p, ids, 6, MSG_FINISH_LENGTH, &s);
        assert_string_equal(s.text[0], emoji);
        assert_string_equal(s.finish[0], "length");
        play(&p, ids, 3, MSG_FINISH_LENGTH, &s); /* cut after two of four bytes */
        assert_string_equal(s.text[0], "a\xef\xbf\xbd");
        assert_string_equal(s.finish[0], "length");
    }
}

static void test_nothing_of_a_stop_string_gets_out(void **state)
{
    (void)state;
    const char *text = "The end? Yes.";
    int32_t ids[16];
    struct seen s;
    bytes_to_ids(text, strlen(text), ids);
    for (int stream = 0; stream < 2; stream++) {
        struct rtr_params p = params(RTR_COMPLETION, stream == 1);
        add_stop(&p, "end? N");
        add_stop(&p, "d? Y");
        p.return_ids = true;
        play(&p, ids, strlen(text), MSG_FINISH_LENGTH, &s);
        assert_string_equal(s.text[0], "The en");
        assert_string_equal(s.finish[0], "stop");
        assert_int_equal(s.id_count[0], 10); /* up to the token that completed it */
        p = params(RTR_COMPLETION, stream == 1);
        add_stop(&p, "Yes.x");
        play(&p, ids, strlen(text), MSG_FINISH_LENGTH, &s); /* a near miss */
        assert_string_equal(s.text[0], text);
        assert_string_equal(s.finish[0], "length");
    }
}

static void test_an_ending_eos_is_told_but_not_shown(void **state)
{
    (void)state;
    const int32_t ids[] = {3 + 'h', 3 + 'i', EOS};
    struct seen s;
    for (int k = 0; k < 4; k++) {
        struct rtr_params p = params(k & 1 ? RTR_CHAT : RTR_COMPLETION, k & 2);
        p.return_ids = p.logits = true;
        p.include_usage = p.stream;
        play(&p, ids, 3, MSG_FINISH_STOP, &s);
        assert_string_equal(s.text[0], "hi");
        assert_string_equal(s.finish[0], "stop");
        assert_int_equal(s.id_count[0], 3);
        assert_int_equal(s.logit_count[0], 3);
        assert_int_equal(s.ids[0][2], EOS);
        assert_int_equal(s.prompt_ids, 1);
        assert_int_equal(s.completion_tokens, 3);
        assert_int_equal(s.prompt_tokens, 3);
        assert_int_equal(s.total_tokens, 6);
        assert_int_equal(s.usage_full, 1);
    }
}

static void test_order_and_usage_of_a_stream(void **state)
{
    (void)state;
    const int32_t ids[] = {3 + 'h', 3 + 'i', 3 + '!'};
    struct seen s;
    struct rtr_params p = params(RTR_CHAT, true);
    p.choices = 3;
    p.include_usage = true;
    play(&p, ids, 3, MSG_FINISH_LENGTH, &s);
    for (int c = 0; c < 3; c++) {
        assert_string_equal(s.text[c], "hi!");
        assert_int_equal(s.roles[c], 1);
        assert_int_equal(s.finishes[c], 1);
    }
    assert_int_equal(s.completion_tokens, 9);
    assert_int_equal(s.prompt_tokens, 3);
    assert_int_equal(s.usage_full, 1);
    assert_int_equal(s.usage_null, s.chunks - 1);
    p.include_usage = false;
    play(&p, ids, 3, MSG_FINISH_LENGTH, &s);
    assert_int_equal(s.usage_full + s.usage_null, 0);
    p.stream = false;
    play(&p, ids, 3, MSG_FINISH_LENGTH, &s);
    assert_int_equal(s.completion_tokens, 9);
    assert_string_equal(s.text[2], "hi!");
}

static void test_an_end_without_a_token(void **state)
{
    (void)state;
    const int32_t ids[] = {-1};
    struct seen s;
    for (int stream = 0; stream < 2; stream++) {
        struct rtr_params p = params(RTR_CHAT, stream == 1);
        p.return_ids = true;
        play(&p, ids, 1, MSG_FINISH_LENGTH, &s);
        assert_string_equal(s.text[0], "");
        assert_string_equal(s.finish[0], "length");
        assert_int_equal(s.roles[0], 1);
        assert_int_equal(s.id_count[0], 0);
    }
}

/* Random bytes and stop strings: however it ends, a stream joined is the whole answer, valid UTF-8, and holds no stop string. */
static void test_stream_equals_whole(void **state)
{
    (void)state;
    struct kvs_rng r = {4711};
    static const char *const stops[] = {"ab", "b\xc3\xa4", "\n", "abc", "\xf0\x9f\x98\x80"};
    static const char pieces[][5] = {"a", "b", "c", "\xc3\xa4", "\xf0\x9f\x98\x80", "\n", "\xff", "\xed\xa0\x80", "\xc0\xaf"};
    printf("seed %llu\n", (unsigned long long)r.state);
    for (int round = 0; round < 600; round++) {
        int32_t ids[400];
        struct seen a, b;
        size_t n = 0, want = 1 + (size_t)kvs_rng_below(&r, 64);
        while (n < want) {
            const char *piece = pieces[kvs_rng_below(&r, sizeof(pieces) / sizeof(*pieces))];
            bytes_to_ids(piece, strlen(piece), ids + n);
            n += strlen(piece);
        }
        n = want; /* possibly in the middle of a character */
        struct rtr_params p = params(round % 2 ? RTR_CHAT : RTR_COMPLETION, true);
        p.return_ids = round % 3 == 0;
        for (uint64_t k = kvs_rng_below(&r, 3); k > 0; k--)
            add_stop(&p, stops[kvs_rng_below(&r, sizeof(stops) / sizeof(*stops))]);
        play(&p, ids, n, MSG_FINISH_LENGTH, &a);
        p.stream = false;
        play(&p, ids, n, MSG_FINISH_LENGTH, &b);
        assert_string_equal(a.text[0], b.text[0]);
        assert_string_equal(a.finish[0], b.finish[0]);
        assert_int_equal(a.id_count[0], b.id_count[0]);
        for (uint32_t i = 0; i < p.stop.count; i++)
            assert_null(strstr(b.text[0], p.stop.text[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_character_of_many_tokens_comes_once_and_whole),
        cmocka_unit_test(test_nothing_of_a_stop_string_gets_out),
        cmocka_unit_test(test_an_ending_eos_is_told_but_not_shown),
        cmocka_unit_test(test_order_and_usage_of_a_stream),
        cmocka_unit_test(test_an_end_without_a_token),
        cmocka_unit_test(test_stream_equals_whole),
    };
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
