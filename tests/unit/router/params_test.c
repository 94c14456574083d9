/* params_test.c - bodies that must be refused, each with the field at fault, and bodies that must be understood.
 * The error text must be valid UTF-8 whatever was sent.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "router/edge/params.h"

#include <jansson.h>

struct bad {
    rtr_kind kind;
    const char *body, *param;
    kvs_status status;
};
#define M "\"model\":\"m\","
#define MSG "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define CHAT(x) RTR_CHAT, "{" M MSG "," x "}"
#define COMP(x) RTR_COMPLETION, "{" M "\"prompt\":\"hi\"," x "}"
static const struct bad table[] = {
    {RTR_CHAT, "", "", KVS_REQ_INVALID},
    {RTR_CHAT, "{", "", KVS_REQ_INVALID},
    {RTR_CHAT, "[1,2]", "", KVS_REQ_INVALID},
    {RTR_CHAT, "\"text\"", "", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M MSG "} trailing", "", KVS_REQ_INVALID},
    {RTR_CHAT, "{\"messages\":[]}", "model", KVS_REQ_INVALID},
    {RTR_CHAT, "{\"model\":7," MSG "}", "model", KVS_REQ_INVALID},
    {RTR_CHAT, "{\"model\":\"m\"}", "messages", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[]}", "messages", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":\"hi\"}", "messages", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[7]}", "messages[0]", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":5,\"content\":\"x\"}]}", "messages[0].role", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "messages[0].role", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"content\":\"x\"}]}", "messages[0].role", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":null}]}", "messages[1].content",
     KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}", "messages[0].content",
     KVS_REQ_UNSUPPORTED},
    {CHAT("\"max_tokens\":\"7\""), "max_tokens", KVS_REQ_INVALID},
    {CHAT("\"max_tokens\":0"), "max_tokens", KVS_REQ_INVALID},
    {CHAT("\"max_tokens\":1.5"), "max_tokens", KVS_REQ_INVALID},
    {CHAT("\"max_completion_tokens\":-1"), "max_completion_tokens", KVS_REQ_INVALID},
    {CHAT("\"max_tokens\":3,\"max_tokens\":4"), "max_tokens", KVS_REQ_INVALID},
    {CHAT("\"temperature\":1e999"), "temperature", KVS_REQ_INVALID},
    {CHAT("\"temperature\":-0.1"), "temperature", KVS_REQ_INVALID},
    {CHAT("\"temperature\":\"hot\""), "temperature", KVS_REQ_INVALID},
    {CHAT("\"temperature\":true"), "temperature", KVS_REQ_INVALID},
    {CHAT("\"top_p\":1.01"), "top_p", KVS_REQ_INVALID},
    {CHAT("\"min_p\":2"), "min_p", KVS_REQ_INVALID},
    {CHAT("\"top_k\":-2"), "top_k", KVS_REQ_INVALID},
    {CHAT("\"top_k\":2.5"), "top_k", KVS_REQ_INVALID},
    {CHAT("\"seed\":\"a\""), "seed", KVS_REQ_INVALID},
    {CHAT("\"seed\":99999999999999999999"), "seed", KVS_REQ_INVALID},
    {CHAT("\"n\":0"), "n", KVS_REQ_INVALID},
    {CHAT("\"n\":9"), "n", KVS_REQ_INVALID},
    {CHAT("\"n\":\"2\""), "n", KVS_REQ_INVALID},
    {CHAT("\"stop\":7"), "stop", KVS_REQ_INVALID},
    {CHAT("\"stop\":[\"a\",7]"), "stop", KVS_REQ_INVALID},
    {CHAT("\"stop\":\"\""), "stop", KVS_REQ_INVALID},
    {CHAT("\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]"), "stop", KVS_REQ_INVALID},
    {CHAT("\"stream\":1"), "stream", KVS_REQ_INVALID},
    {CHAT("\"stream_options\":{\"include_usage\":true}"), "stream_options", KVS_REQ_INVALID},
    {CHAT("\"stream\":true,\"stream_options\":7"), "stream_options", KVS_REQ_INVALID},
    {CHAT("\"stream\":true,\"stream_options\":{\"include_usage\":1}"), "stream_options.include_usage", KVS_REQ_INVALID},
    {CHAT("\"cache_salt\":7"), "cache_salt", KVS_REQ_INVALID},
    {CHAT("\"cache_salt\":\"\""), "cache_salt", KVS_REQ_INVALID},
    {CHAT("\"kvasir\":7"), "kvasir", KVS_REQ_INVALID},
    {CHAT("\"kvasir\":{\"placement\":\"here\"}"), "kvasir.placement", KVS_REQ_INVALID},
    {CHAT("\"kvasir\":{\"placment\":\"remote\"}"), "kvasir", KVS_REQ_INVALID},
    {CHAT("\"kvasir\":{\"fetch\":1}"), "kvasir.fetch", KVS_REQ_INVALID},
    {CHAT("\"kvasir\":{\"logits\":1}"), "kvasir.logits", KVS_REQ_INVALID},
    {CHAT("\"return_token_ids\":\"yes\""), "return_token_ids", KVS_REQ_INVALID},
    {CHAT("\"logprobs\":true"), "logprobs", KVS_REQ_UNSUPPORTED},
    {CHAT("\"top_logprobs\":3"), "top_logprobs", KVS_REQ_UNSUPPORTED},
    {CHAT("\"logit_bias\":{\"5\":3}"), "logit_bias", KVS_REQ_UNSUPPORTED},
    {CHAT("\"tools\":[{}]"), "tools", KVS_REQ_UNSUPPORTED},
    {CHAT("\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"auto\""), "tools", KVS_REQ_UNSUPPORTED},
    {CHAT("\"tools\":[{}],\"tool_choice\":\"none\""), "tools", KVS_REQ_INVALID},
    {CHAT("\"tools\":7,\"tool_choice\":\"none\""), "tools", KVS_REQ_INVALID},
    {CHAT("\"chat_template_kwargs\":[]"), "chat_template_kwargs", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}]}", "messages[0].content", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":{}}]}", "messages[0].tool_calls",
     KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\"}]}]}", "messages[0].tool_calls", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1\"}}]}]}",
     "messages[0].tool_calls", KVS_REQ_INVALID},
    {CHAT("\"response_format\":{\"type\":\"json_object\"}"), "response_format", KVS_REQ_UNSUPPORTED},
    {CHAT("\"presence_penalty\":0.5"), "presence_penalty", KVS_REQ_UNSUPPORTED},
    {COMP("\"logprobs\":0"), "logprobs", KVS_REQ_UNSUPPORTED},
    {COMP("\"echo\":true"), "echo", KVS_REQ_UNSUPPORTED},
    {COMP("\"best_of\":2"), "best_of", KVS_REQ_UNSUPPORTED},
    {COMP("\"suffix\":\"x\""), "suffix", KVS_REQ_UNSUPPORTED},
    {RTR_COMPLETION, "{\"model\":\"m\"}", "prompt", KVS_REQ_INVALID},
    {RTR_COMPLETION, "{" M "\"prompt\":7}", "prompt", KVS_REQ_INVALID},
    {RTR_COMPLETION, "{" M "\"prompt\":[]}", "prompt", KVS_REQ_INVALID},
    {RTR_COMPLETION, "{" M "\"prompt\":[1,-2]}", "prompt", KVS_REQ_INVALID},
    {RTR_COMPLETION, "{" M "\"prompt\":[1,\"a\"]}", "prompt", KVS_REQ_INVALID},
    {RTR_COMPLETION, "{" M "\"prompt\":[1.5]}", "prompt", KVS_REQ_INVALID},
    {RTR_COMPLETION, "{" M "\"prompt\":[\"a\",\"b\"]}", "prompt", KVS_REQ_UNSUPPORTED},
    {RTR_COMPLETION, "{" M "\"prompt\":[[1],[2]]}", "prompt", KVS_REQ_UNSUPPORTED},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}", "", KVS_REQ_INVALID},
    {RTR_CHAT, "{" M "\"messages\":[{\"role\":\"user\",\"content\":\"\xc4\xe3\xba\xc3\"}]}", "", KVS_REQ_INVALID},
    {RTR_CHAT, "\xff\xfe{\0}\0", "", KVS_REQ_INVALID},
};

static void test_bad_bodies_name_the_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        const struct bad *b = &table[i];
        struct rtr_params p;
        struct rtr_fault f;
        size_t n = strlen(b->body);
        char *exact = malloc(n ? n : 1); /* no NUL after it: a sanitizer sees reads past the end */
        memcpy(exact, b->body, n);
        kvs_status s = rtr_params_parse(b->kind, exact, n, &p, &f);
        rtr_params_fini(&p);
        free(exact);
        if (s != b->status || strcmp(f.param, b->param) != 0)
            fail_msg("%s -> %d param '%s' text '%s'; wanted %d param '%s'", b->body, (int)s, f.param, f.text, (int)b->status, b->param);
        assert_true(f.text[0] != 0);
        assert_true(kvs_utf8_valid(f.text, strlen(f.text)));
        assert_int_equal(rtr_fault_http(s), 400);
    }
}

static void test_a_nul_is_refused_in_words_of_ours(void **state)
{
    (void)state;
    const char *body = "{\"model\":\"m\",\"prompt\":\"a\\u0000b\"}";
    struct rtr_params p;
    struct rtr_fault f;
    assert_int_equal(rtr_params_parse(RTR_COMPLETION, body, strlen(body), &p, &f), KVS_REQ_INVALID);
    assert_non_null(strstr(f.text, "\\u0000; leave it out"));
    assert_string_equal(f.param, "prompt");
    rtr_params_fini(&p);
}

static void test_deep_nesting_is_an_error(void **state)
{
    (void)state;
    size_t n = 10000;
    char *deep = malloc(n * 2 + 2);
    struct rtr_params p;
    struct rtr_fault f;
    memset(deep, '[', n);
    memset(deep + n, ']', n);
    assert_int_equal(rtr_params_parse(RTR_CHAT, deep, n * 2, &p, &f), KVS_REQ_INVALID);
    rtr_params_fini(&p);
    memset(deep, '{', 1);
    memcpy(deep, "{\"a\":", 5);
    memset(deep + 5, '[', n);
    assert_int_equal(rtr_params_parse(RTR_CHAT, deep, n + 5, &p, &f), KVS_REQ_INVALID);
    rtr_params_fini(&p);
    free(deep);
}

static void parse(rtr_kind kind, const char *body, struct rtr_params *p)
{
    struct rtr_fault f;
    if (rtr_params_parse(kind, body, strlen(body), p, &f) != KVS_OK)
        fail_msg("%s: %s", body, f.text);
}

static void test_good_bodies_are_understood(void **state)
{
    (void)state;
    struct rtr_params p;
    parse(RTR_CHAT,
          "{\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"n\":3,\"max_tokens\":5,\"max_completion_tokens\":9,"
          "\"temperature\":0,\"top_p\":0.5,\"top_k\":40,\"min_p\":0.1,\"seed\":-1,\"stop\":[\"a\",\"bc\"],\"return_token_ids\":true,"
          "\"cache_salt\":\"s\",\"kvasir\":{\"placement\":\"remote\",\"logits\":true},\"user\":\"x\",\"metadata\":{\"k\":1},\"logit_bias\":{},\"tools\":[],"
          "\"response_format\":{\"type\":\"text\"},\"presence_penalty\":0,\"logprobs\":false,\"store\":null,\"nobody_knows\":[[]],"
          "\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
          "{\"type\":\"text\",\"text\":\"b\"}]}]}",
          &p);
    assert_true(p.stream && p.include_usage && p.return_ids && p.logits && p.seed_given);
    assert_int_equal(p.choices, 3);
    assert_int_equal(p.max_tokens, 9);
    assert_true(p.sampling.temperature == 0.0f && p.sampling.top_p == 0.5f && p.sampling.top_k == 40);
    assert_int_equal(p.sampling.seed, UINT64_MAX);
    assert_int_equal(p.placement, MSG_PLACE_REMOTE);
    assert_string_equal(p.cache_salt, "s");
    assert_int_equal(p.stop.count, 2);
    assert_int_equal(p.stop.len[1], 2);
    assert_int_equal(json_array_size(p.messages), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(p.messages, 0), "role")), "system");
    assert_string_equal(json_string_value(json_object_get(json_array_get(p.messages, 1), "content")), "ab");
    assert_true(p.tools == NULL && p.extra == NULL);
    rtr_params_fini(&p);
    parse(RTR_CHAT,
          "{\"model\":\"m\",\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
          "\"chat_template_kwargs\":{\"enable_thinking\":false},\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":\"bob\"},"
          "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
          "\"arguments\":\"{\\\"a\\\": [1]}\"}},{\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},{\"role\":\"tool\",\"content\":\"7\","
          "\"tool_call_id\":\"1\"}]}",
          &p);
    char *shape = json_dumps(p.messages, JSON_COMPACT);
    assert_string_equal(shape, "[{\"role\":\"user\",\"content\":\"x\",\"name\":\"bob\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":"
                               "[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1]}}},"
                               "{\"function\":{\"name\":\"g\",\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"7\",\"tool_call_id\":\"1\"}]");
    free(shape);
    assert_int_equal(json_array_size(p.tools), 1);
    assert_true(json_is_false(json_object_get(p.extra, "enable_thinking")));
    rtr_params_fini(&p);
    parse(RTR_COMPLETION, "{\"model\":\"m\",\"prompt\":[[5,6,7]],\"stop\":null,\"max_tokens\":null}", &p);
    assert_int_equal(p.ids.count, 3);
    assert_int_equal(p.ids.ids[2], 7);
    assert_int_equal(p.max_tokens, 0);
    assert_int_equal(p.choices, 1);
    assert_true(p.sampling.temperature == 1.0f && p.sampling.top_p == 1.0f && !p.seed_given);
    rtr_params_fini(&p);
    parse(RTR_COMPLETION, "{\"model\":\"m\",\"prompt\":[\"one\"],\"echo\":false,\"best_of\":1,\"suffix\":null,\"logprobs\":null}", &p);
    assert_int_equal(p.text_len, 3);
    rtr_params_fini(&p);
    parse(RTR_COMPLETION, "{\"model\":\"m\",\"prompt\":\"\",\"stop\":\"end\"}", &p);
    assert_int_equal(p.text_len, 0);
    assert_int_equal(p.stop.count, 1);
    rtr_params_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_bodies_name_the_field),
        cmocka_unit_test(test_a_nul_is_refused_in_words_of_ours),
        cmocka_unit_test(test_deep_nesting_is_an_error),
        cmocka_unit_test(test_good_bodies_are_understood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
