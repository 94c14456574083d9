/* card_test.c - what a card refuses and what it fills in, and what a tokenizer refuses, each with the key in the text.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/card.h"
#include "model/tokenizer.h"
#include "tests/support/gguf_writer.h"

#include <stdlib.h>
#include <string.h>

/* A llama header; the fields that a test wants different are 0 here and written by the test. */
struct head {
    uint32_t layers, width, heads, kv_heads, ff, context;
    const char *arch;
    uint64_t row, rows;
};
static const struct head plain = {2, 64, 4, 2, 96, 256, "llama", 64, 100};

static struct tst_gguf *begin(const struct head *h)
{
    struct tst_gguf *w = tst_gguf_create(3, 0);
    if (h->arch != NULL)
        tst_gguf_str(w, "general.architecture", h->arch);
    const struct {
        const char *key;
        uint32_t v;
    } keys[] = {
        {"llama.block_count", h->layers},         {"llama.embedding_length", h->width},
        {"llama.attention.head_count", h->heads}, {"llama.attention.head_count_kv", h->kv_heads},
        {"llama.feed_forward_length", h->ff},     {"llama.context_length", h->context},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i].v != 0)
            tst_gguf_u32(w, keys[i].key, keys[i].v);
    }
    if (h->row != 0) {
        const uint64_t shape[2] = {h->row, h->rows};
        void *data = calloc((size_t)(h->row * h->rows), 4);
        tst_gguf_tensor(w, "token_embd.weight", MDL_F32, 2, shape, data, (size_t)(h->row * h->rows) * 4);
        free(data);
    }
    return w;
}

static void refused(struct tst_gguf *w, const char *word)
{
    struct mdl_card c;
    struct kvs_error err = {0};
    kvs_status s = tst_card_read(w, &c, &err);
    if (s != KVS_SELF_MODEL || strstr(err.text, word) == NULL)
        fail_msg("expected '%s', got %d: %s", word, (int)s, err.text);
}

static struct mdl_card taken(struct tst_gguf *w)
{
    struct mdl_card c;
    struct kvs_error err = {0};
    if (tst_card_read(w, &c, &err) != KVS_OK)
        fail_msg("%s", err.text);
    return c;
}

static void test_defaults(void **state)
{
    (void)state;
    struct head h = plain;
    h.kv_heads = 0;
    struct mdl_card c = taken(begin(&h));
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.key_dim, 16);
    assert_int_equal(c.value_dim, 16);
    assert_int_equal(c.rope.dims, 16);
    assert_true(c.rope.base == 10000.0 && c.rope.factor == 1.0 && c.rope.attn_factor == 1.0);
    assert_int_equal(c.rope.scaling, MDL_ROPE_NONE);
    assert_true(c.norm_eps == 1e-5f);
    assert_int_equal(c.bos, -1); /* no tokenizer keys at all */
    assert_int_equal(c.eog_count, 0);
    assert_true(c.tied);
}

static void test_missing_and_impossible_values(void **state)
{
    (void)state;
    struct head h;
    h = plain, h.arch = NULL;
    refused(begin(&h), "general.architecture: absent");
    h = plain, h.arch = "rwkv7";
    refused(begin(&h), "'rwkv7' is not supported by this build (supported: llama, qwen2,");
    h = plain, h.layers = 0;
    refused(begin(&h), "llama.block_count: absent");
    h = plain, h.layers = 100000;
    refused(begin(&h), "llama.block_count: 100000 is not between");
    h = plain, h.heads = 0;
    refused(begin(&h), "llama.attention.head_count: absent");
    h = plain, h.heads = 128; /* more heads than dimensions */
    refused(begin(&h), "llama.attention.head_count: heads of 0");
    h = plain, h.kv_heads = 3;
    refused(begin(&h), "head_count_kv: 3 does not divide");
    h = plain, h.ff = 0;
    refused(begin(&h), "llama.feed_forward_length: absent");
    h = plain, h.context = 0;
    refused(begin(&h), "llama.context_length: absent");
    h = plain, h.row = 0;
    refused(begin(&h), "token_embd.weight: absent");
    h = plain, h.row = 32;
    refused(begin(&h), "token_embd.weight: shape 32 x 100");
    struct tst_gguf *w = begin(&plain);
    tst_gguf_u32(w, "llama.expert_count", 8);
    refused(w, "llama.expert_used_count: absent");
    w = begin(&plain);
    tst_gguf_u32(w, "llama.rope.dimension_count", 15);
    refused(w, "llama.rope.dimension_count: 15");
    w = begin(&plain);
    tst_gguf_str(w, "llama.rope.scaling.type", "odd");
    refused(w, "llama.rope.scaling.type: 'odd'");
    w = begin(&plain);
    tst_gguf_f32(w, "llama.rope.freq_base", -1.0f);
    refused(w, "llama.rope.freq_base: -1");
    w = begin(&plain);
    tst_gguf_u32(w, "tokenizer.ggml.eos_token_id", 100);
    refused(w, "tokenizer.ggml.eos_token_id: 100 is outside");
}

static void test_values_by_layer_and_rope(void **state)
{
    (void)state;
    struct head h = plain;
    char text[200];
    h.kv_heads = h.ff = 0;
    const int32_t kv[] = {2, 2}, ff[] = {96, 96}, odd[] = {96, 64};
    struct tst_gguf *w = begin(&h);
    tst_gguf_i32s(w, "llama.attention.head_count_kv", kv, 2);
    tst_gguf_i32s(w, "llama.feed_forward_length", ff, 2);
    tst_gguf_str(w, "llama.rope.scaling.type", "linear");
    tst_gguf_f32(w, "llama.rope.scaling.factor", 4.0f);
    tst_gguf_f32(w, "llama.rope.freq_base", 500000.0f);
    tst_gguf_u32(w, "tokenizer.ggml.bos_token_id", UINT32_MAX);
    struct mdl_card c = taken(w);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.ff, 96);
    assert_int_equal(c.rope.scaling, MDL_ROPE_LINEAR);
    assert_int_equal(c.bos, -1);
    mdl_card_rope_text(&c, 512, text, sizeof text);
    assert_string_equal(text, "base=500000,dims=16,scaling=linear,factor=4,attn=1,original=256,context=512");
    w = begin(&h);
    tst_gguf_i32s(w, "llama.feed_forward_length", odd, 2);
    refused(w, "llama.feed_forward_length: layers that differ");
    w = begin(&h);
    tst_gguf_i32s(w, "llama.feed_forward_length", ff, 1);
    refused(w, "llama.feed_forward_length: not one");
}

/* What might change the result and is not known is refused by name; what asks for nothing is not. */
static void test_keys_that_change_the_result(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        float v;
        const char *word; /* NULL: taken */
    } cases[] = {
        {"llama.attn_logit_softcapping", 50, "llama.attn_logit_softcapping: 50"},
        {"llama.attn_logit_softcapping", 0, NULL},
        {"llama.final_logit_softcapping", 30, "llama.final_logit_softcapping: 30"},
        {"llama.residual_scale", 0.5f, "llama.residual_scale: 0.5"},
        {"llama.embedding_scale", 1, NULL},
        {"llama.attention.temperature_scale", 0.1f, "llama.attention.temperature_scale: 0.1"},
        {"llama.rope.scaling.yarn_ext_factor", 0.5f, "llama.rope.scaling.yarn_ext_factor: 0.5"},
        {"llama.ssm.state_size", 16, "llama.ssm.state_size: not known"},
        {"llama.some.new_thing", 1, "llama.some.new_thing: not known"},
        {"llama.rope.scaling.finetuned", 1, NULL},
        {"llamas.some.new_thing", 1, NULL}, /* another architecture's, or a tool's */
        {"general.some.new_thing", 1, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tst_gguf *w = begin(&plain);
        tst_gguf_f32(w, cases[i].key, cases[i].v);
        if (cases[i].word != NULL)
            refused(w, cases[i].word);
        else
            (void)taken(w);
    }
}

static void test_experts(void **state)
{
    (void)state;
    struct tst_gguf *w = begin(&plain);
    tst_gguf_u32(w, "llama.expert_count", 0);
    tst_gguf_u32(w, "llama.expert_used_count", 0);
    assert_int_equal(taken(w).experts.count, 0);
    w = begin(&plain);
    tst_gguf_u32(w, "llama.expert_count", 8);
    tst_gguf_u32(w, "llama.expert_used_count", 2);
    struct mdl_card c = taken(w);
    assert_int_equal(c.experts.count, 8);
    assert_int_equal(c.experts.used, 2);
    assert_int_equal(c.experts.ff, 96);
    assert_int_equal(c.experts.ff_shared, 0);
    assert_true(c.experts.normalise && c.experts.scale == 1.0f && c.experts.gating == MDL_GATE_SOFTMAX);
    w = begin(&plain);
    tst_gguf_u32(w, "llama.expert_count", 8);
    tst_gguf_u32(w, "llama.expert_used_count", 9);
    refused(w, "llama.expert_used_count: 9 of 8");
    w = begin(&plain);
    tst_gguf_u32(w, "llama.expert_count", 8);
    tst_gguf_u32(w, "llama.expert_used_count", 4);
    tst_gguf_u32(w, "llama.expert_group_count", 4);
    tst_gguf_u32(w, "llama.expert_group_used_count", 1);
    refused(w, "llama.expert_group_count: 4 groups, 1 used");
    w = begin(&plain);
    tst_gguf_u32(w, "llama.expert_count", 8);
    tst_gguf_u32(w, "llama.expert_used_count", 2);
    tst_gguf_u32(w, "llama.expert_gating_func", 4);
    refused(w, "llama.expert_gating_func: 4");
}

static void tokenizer_refused(const char *model, const char *pre, bool merges, const char *word)
{
    struct mdl_str tokens[2] = {{"a", 1}, {"b", 1}}, merge = {"a", 1};
    struct tst_gguf *w = tst_gguf_create(3, 0);
    struct kvs_error err = {0};
    struct mdl_tokenizer *t;
    struct mdl_gguf *g;
    size_t size;
    if (model != NULL)
        tst_gguf_str(w, "tokenizer.ggml.model", model);
    if (pre != NULL)
        tst_gguf_str(w, "tokenizer.ggml.pre", pre);
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, 2);
    if (merges)
        tst_gguf_strs(w, "tokenizer.ggml.merges", &merge, 1);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_OK);
    kvs_status s = mdl_tokenizer_create(g, &t, &err);
    if (s != KVS_SELF_MODEL || strstr(err.text, word) == NULL)
        fail_msg("expected '%s', got %d: %s", word, (int)s, err.text);
    mdl_gguf_destroy(g);
    free(bytes);
}

static void test_tokenizers_that_are_not_there(void **state)
{
    (void)state;
    tokenizer_refused(NULL, NULL, false, "tokenizer.ggml.model: absent");
    tokenizer_refused("bert", NULL, false, "tokenizer.ggml.model: 'bert' is not supported");
    tokenizer_refused("gpt2", "qwen99", false, "tokenizer.ggml.pre: 'qwen99' is none of the");
    tokenizer_refused("gpt2", NULL, false, "tokenizer.ggml.pre: '(absent)'");
    tokenizer_refused("gpt2", "gpt-2", false, "tokenizer.ggml.merges: absent");
    tokenizer_refused("gpt2", "gpt-2", true, "tokenizer.ggml.merges: entry 0");
    tokenizer_refused("llama", NULL, false, "tokenizer.ggml.scores: absent");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_missing_and_impossible_values),
        cmocka_unit_test(test_values_by_layer_and_rope),
        cmocka_unit_test(test_keys_that_change_the_result),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_tokenizers_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
