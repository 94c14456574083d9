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

#include <stdio.h>
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
        {"block_count", h->layers},         {"embedding_length", h->width},
        {"attention.head_count", h->heads}, {"attention.head_count_kv", h->kv_heads},
        {"feed_forward_length", h->ff},     {"context_length", h->context},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char key[96];
        (void)snprintf(key, sizeof key, "%s.%s", h->arch != NULL ? h->arch : "llama", keys[i].key);
        if (keys[i].v != 0)
            tst_gguf_u32(w, key, keys[i].v);
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

/* Kinds of values, as the format numbers them. */
enum { U8 = 0, I16 = 3, U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, U64 = 10, F64 = 12 };

/* A head of architecture `arch` with one more key, whose value is v as the kind has it. */
static struct tst_gguf *with(const char *arch, const char *key, uint32_t kind, double v)
{
    struct head h = plain;
    char whole[96];
    h.arch = arch;
    struct tst_gguf *w = begin(&h);
    (void)snprintf(whole, sizeof whole, "%s.%s", arch, key);
    if (strcmp(arch, "gemma3") == 0 && strcmp(key, "attention.sliding_window") != 0)
        tst_gguf_u32(w, "gemma3.attention.sliding_window", 16);
    const uint8_t u8 = (uint8_t)(kind == U8 || kind == BOOL ? v : 0);
    const int16_t i16 = (int16_t)(kind == I16 ? v : 0);
    const int32_t i32 = (int32_t)(kind == I32 ? v : 0);
    const uint32_t u32 = (uint32_t)(kind == U32 ? v : 0);
    const uint64_t u64 = (uint64_t)(kind == U64 ? v : 0);
    const float f32 = (float)v;
    switch (kind) {
    case U8:
    case BOOL: tst_gguf_raw(w, whole, kind, &u8, 1); break;
    case I16: tst_gguf_raw(w, whole, kind, &i16, 2); break;
    case I32: tst_gguf_raw(w, whole, kind, &i32, 4); break;
    case U32: tst_gguf_raw(w, whole, kind, &u32, 4); break;
    case U64: tst_gguf_raw(w, whole, kind, &u64, 8); break;
    case F32: tst_gguf_raw(w, whole, kind, &f32, 4); break;
    case F64: tst_gguf_raw(w, whole, kind, &v, 8); break;
    default: tst_gguf_str(w, whole, "12"); break;
    }
    return w;
}

static double scaled_by(const struct mdl_card *c)
{
    return (double)c->scale.embedding;
}
static double based_on(const struct mdl_card *c)
{
    return c->rope.base;
}
static double sized_by(const struct mdl_card *c)
{
    return c->key_dim;
}
static double seen_by(const struct mdl_card *c)
{
    return c->window.tokens;
}
static double fast_at(const struct mdl_card *c)
{
    return c->rope.beta_fast;
}

/* A number of whatever kind is the number; what cannot be read is an error with the key and the kind, never passed over. */
static void test_kinds_of_values(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *key;
        uint32_t kind;
        double v;
        double (*got)(const struct mdl_card *); /* NULL: refused */
        const char *word;
    } cases[] = {
        {"qwen3", "rope.freq_base", U32, 1000000, based_on, ""},
        {"qwen3", "rope.freq_base", F64, 1000000, based_on, ""},
        {"qwen3", "rope.freq_base", U64, 5000000, based_on, ""},
        {"qwen3", "rope.freq_base", U64, 18014398509481984.0, NULL, "qwen3.rope.freq_base: its value of kind u64"},
        {"qwen3", "rope.freq_base", STRING, 0, NULL, "qwen3.rope.freq_base: its value of kind string"},
        {"qwen3", "rope.freq_base", BOOL, 1, NULL, "qwen3.rope.freq_base: its value of kind bool"},
        {"granite", "embedding_scale", U32, 12, scaled_by, ""},
        {"granite", "embedding_scale", I16, 12, scaled_by, ""},
        {"granite", "embedding_scale", I32, -12, NULL, "granite.embedding_scale: -12"},
        {"llama", "attention.key_length", F32, 24, sized_by, ""},
        {"llama", "attention.key_length", U8, 24, sized_by, ""},
        {"llama", "attention.key_length", F32, 24.5, NULL, "llama.attention.key_length: its value of kind f32, 24.5,"},
        {"llama", "attention.key_length", F64, -24, NULL, "llama.attention.key_length: its value of kind f64, -24,"},
        {"llama", "attention.key_length", STRING, 0, NULL, "llama.attention.key_length: its value of kind string"},
        {"llama", "rope.scaling.yarn_beta_fast", U32, 24, fast_at, ""},
        {"llama", "rope.scaling.yarn_beta_fast", STRING, 0, NULL, "llama.rope.scaling.yarn_beta_fast: its value of"},
        {"llama", "rope.scaling.type", U32, 1, NULL, "llama.rope.scaling.type: its value of kind u32 is not a string"},
        {"llama", "rope.scaling.factor", STRING, 0, NULL, "llama.rope.scaling.factor: its value of kind string"},
        {"llama", "expert_count", STRING, 0, NULL, "llama.expert_count: its value of kind string"},
        {"gemma3", "attention.sliding_window", F32, 24, seen_by, ""},
        {"gemma3", "attention.sliding_window_pattern", STRING, 0, NULL,
         "sliding_window_pattern: its value of kind string"},
        {"mamba", "feed_forward_length", STRING, 0, NULL, "mamba."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tst_gguf *w = with(cases[i].arch, cases[i].key, cases[i].kind, cases[i].v);
        if (cases[i].got == NULL) {
            refused(w, cases[i].word);
            continue;
        }
        struct mdl_card c = taken(w);
        if (cases[i].got(&c) != cases[i].v)
            fail_msg("%s.%s: %g, not %g", cases[i].arch, cases[i].key, cases[i].got(&c), cases[i].v);
    }
    struct tst_gguf *w = begin(&plain);
    tst_gguf_str(w, "tokenizer.ggml.eos_token_id", "two");
    refused(w, "tokenizer.ggml.eos_token_id: its value of kind string");
    w = begin(&plain);
    tst_gguf_raw(w, "tokenizer.ggml.padding_token_id", I32, &(int32_t){-1}, 4);
    assert_int_equal(taken(w).pad, -1);
}

static void small_vocab(struct tst_gguf *w)
{
    static const struct mdl_str tokens[] = {{"<unk>", 5}, {"<s>", 3}, {"</s>", 4}, {"a", 1}, {"\xe2\x96\x81", 3}};
    static const int32_t types[] = {2, 3, 3, 1, 1};
    static const float scores[5] = {0};
    tst_gguf_str(w, "tokenizer.ggml.model", "llama");
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, 5);
    tst_gguf_f32s(w, "tokenizer.ggml.scores", scores, 5);
    tst_gguf_i32s(w, "tokenizer.ggml.token_type", types, 5);
}

/* Card and tokenizer read the same keys of a file; they must come to the same, whatever the kinds of the values. */
static void test_card_and_tokenizer_agree(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t kind, bytes;
        uint8_t value[8];
        int32_t bos; /* in front of a text; -1: none, -2: refused by the tokenizer, -3: by both */
        const char *word;
    } cases[] = {
        {"bos_token_id", U32, 4, {2}, 2, ""},
        {"bos_token_id", I32, 4, {2}, 2, ""},
        {"bos_token_id", U8, 1, {2}, 2, ""},
        {"bos_token_id", F32, 4, {0, 0, 0, 0x40}, 2, ""}, /* 2.0 */
        {"bos_token_id", I32, 4, {0xff, 0xff, 0xff, 0xff}, -1, ""},
        {"bos_token_id", U32, 4, {0xff, 0xff, 0xff, 0xff}, -1, ""},
        {"bos_token_id", F32, 4, {0, 0, 0x80, 0xbf}, -1, ""}, /* -1.0 */
        {"bos_token_id", F32, 4, {0, 0, 0x20, 0x40}, -3, "tokenizer.ggml.bos_token_id: its value of kind f32, 2.5"},
        {"bos_token_id", BOOL, 1, {1}, -3, "tokenizer.ggml.bos_token_id: its value of kind bool"},
        {"eos_token_id",
         I32,
         4,
         {0xfe, 0xff, 0xff, 0xff},
         -3,
         "tokenizer.ggml.eos_token_id: its value of kind i32, -2"},
        {"add_bos_token", BOOL, 1, {0}, -1, ""},
        {"add_bos_token", U8, 1, {0}, -1, ""},
        {"add_bos_token", U32, 4, {1}, 1, ""},
        {"add_bos_token", U8, 1, {2}, -2, "tokenizer.ggml.add_bos_token: 2 is neither"},
        {"add_eos_token",
         STRING,
         9,
         {1, 0, 0, 0, 0, 0, 0, 0},
         -2,
         "tokenizer.ggml.add_eos_token: its value of kind string"},
        {"add_space_prefix", STRING, 9, {1, 0, 0, 0, 0, 0, 0, 0}, -2, "tokenizer.ggml.add_space_prefix: its value of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char key[64];
        uint8_t value[9] = {0};
        size_t size, header;
        struct tst_gguf *w = begin(&plain);
        struct kvs_error err = {0}, err2 = {0};
        struct mdl_gguf *g;
        struct mdl_card c = {0};
        struct mdl_tokenizer *t = NULL;
        small_vocab(w);
        memcpy(value, cases[i].value, sizeof cases[i].value);
        (void)snprintf(key, sizeof key, "tokenizer.ggml.%s", cases[i].key);
        tst_gguf_raw(w, key, cases[i].kind, value, cases[i].bytes);
        uint8_t *bytes = tst_gguf_finish(w, &size, &header);
        assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_OK);
        kvs_status of_card = mdl_card_read(g, &c, &err), of_text = mdl_tokenizer_create(g, &t, &err2);
        if (of_card != (cases[i].bos == -3 ? KVS_SELF_MODEL : KVS_OK) ||
            of_text != (cases[i].bos <= -2 ? KVS_SELF_MODEL : KVS_OK) || strstr(err2.text, cases[i].word) == NULL)
            fail_msg("case %zu, %s: %d '%s', %d '%s'", i, key, (int)of_card, err.text, (int)of_text, err2.text);
        if (t != NULL) {
            struct mdl_ids ids = {0};
            assert_int_equal(mdl_encode(t, "a", 1, MDL_ADD_SPECIAL, 100, &ids, &err), KVS_OK);
            int32_t first = ids.count > 0 && (ids.ids[0] == 1 || ids.ids[0] == 2) ? ids.ids[0] : -1;
            if (first != cases[i].bos || (strncmp(cases[i].key, "bos", 3) == 0 && c.bos != first))
                fail_msg("case %zu, %s: the text begins with %d, the card has %d", i, key, (int)first, (int)c.bos);
            mdl_ids_fini(&ids);
            mdl_tokenizer_destroy(t);
        }
        mdl_gguf_destroy(g);
        free(bytes);
    }
}

/* Truth values may be written as 0 and 1. */
static void test_truth_values(void **state)
{
    (void)state;
    for (uint32_t kind = U8; kind <= BOOL; kind++) {
        for (int v = 0; v < 2; v++) {
            struct tst_gguf *w = with("llama", "expert_weights_norm", kind == 1 || kind == 2 ? U8 : kind, v);
            tst_gguf_u32(w, "llama.expert_count", 4);
            tst_gguf_u32(w, "llama.expert_used_count", 2);
            assert_int_equal(taken(w).experts.normalise, v);
        }
    }
    struct tst_gguf *w = with("llama", "expert_weights_norm", U32, 2);
    tst_gguf_u32(w, "llama.expert_count", 4);
    tst_gguf_u32(w, "llama.expert_used_count", 2);
    refused(w, "llama.expert_weights_norm: 2 is neither true nor false");
}

static struct tst_gguf *patterned(const char *arch, uint32_t element, const uint8_t *v, uint8_t count)
{
    struct head h = plain;
    char key[96];
    uint8_t bytes[12 + 8] = {(uint8_t)element, 0, 0, 0, count};
    h.arch = arch;
    h.layers = 4;
    struct tst_gguf *w = begin(&h);
    (void)snprintf(key, sizeof key, "%s.attention.sliding_window", arch);
    tst_gguf_u32(w, key, 16);
    (void)snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", arch);
    if (v != NULL) {
        memcpy(bytes + 12, v, count);
        tst_gguf_raw(w, key, ARRAY, bytes, 12u + count);
    }
    return w;
}

static uint32_t windowed(const struct mdl_card *c)
{
    uint32_t bits = 0;
    for (uint32_t l = 0; l < c->layers; l++)
        bits |= mdl_card_window(c, l) != 0 ? 1u << l : 0;
    return bits;
}

/* Which layers have a window: by the architecture's period, the file's, or an array with a truth value a layer. */
static void test_patterns_of_windows(void **state)
{
    (void)state;
    struct mdl_card c = taken(patterned("gemma3", BOOL, NULL, 0));
    assert_int_equal(windowed(&c), 15);
    struct tst_gguf *w = patterned("gemma3", BOOL, NULL, 0);
    tst_gguf_u32(w, "gemma3.attention.sliding_window_pattern", 2);
    c = taken(w);
    assert_int_equal(windowed(&c), 5);
    c = taken(patterned("gemma3", BOOL, (const uint8_t[]){0, 1, 1, 0}, 4));
    assert_int_equal(windowed(&c), 6);
    assert_int_equal(mdl_card_window(&c, 1), 16);
    c = taken(patterned("gemma3", U8, (const uint8_t[]){1, 0, 0, 1}, 4));
    assert_int_equal(windowed(&c), 9);
    refused(patterned("gemma3", BOOL, (const uint8_t[]){1, 0, 0}, 3), "pattern: 3 values for 4 layers");
    refused(patterned("gemma3", U8, (const uint8_t[]){1, 0, 0, 2}, 4), "pattern: not one truth value a layer");
    refused(with("llama", "attention.sliding_window_pattern", U32, 2), "not known to this build");
}

/* One of the tensors of divisors beside what the keys say. */
static struct tst_gguf *scaled(const char *tensor, const char *type, float factor)
{
    static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct tst_gguf *w = begin(&plain);
    if (tensor != NULL)
        tst_gguf_tensor(w, tensor, MDL_F32, 1, (const uint64_t[]){8}, ones, sizeof ones);
    if (type != NULL)
        tst_gguf_str(w, "llama.rope.scaling.type", type);
    if (factor != 0)
        tst_gguf_f32(w, "llama.rope.scaling.factor", factor);
    return w;
}

static void test_divisors_and_scaling(void **state)
{
    (void)state;
    static const char freqs[] = "rope_freqs.weight", long_[] = "rope_factors_long.weight",
                      short_[] = "rope_factors_short.weight";
    static const struct {
        const char *tensor, *type;
        float factor;
        const char *text; /* of the settings up to the context; "!": refused with what follows */
    } cases[] = {
        {NULL, NULL, 0, "none"},
        {NULL, NULL, 4, "linear,factor=4,attn=1,original=256"},
        {NULL, "none", 4, "none"},
        {freqs, NULL, 0, "factors"},
        {freqs, "none", 4, "factors"},
        {freqs, "linear", 1, "factors"},
        {freqs, "linear", 4, "linear,factor=4,attn=1,original=256,divided"},
        {freqs, NULL, 4, "linear,factor=4,attn=1,original=256,divided"},
        {freqs, "yarn", 4, "yarn,factor=4,attn=1,original=256,divided"},
        {freqs, "longrope", 0, "!rope_freqs.weight: beside longrope"},
        {long_, NULL, 0, "longrope,factor=1,attn=1,original=256"},
        {short_, NULL, 0, "longrope,factor=1,attn=1,original=256"},
        {short_, "longrope", 0, "longrope,factor=1,attn=1,original=256"},
        {long_, "yarn", 4, "!llama.rope.scaling.type: 'yarn' beside rope_factors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[200], want[200];
        struct tst_gguf *w = scaled(cases[i].tensor, cases[i].type, cases[i].factor);
        if (cases[i].text[0] == '!') {
            refused(w, cases[i].text + 1);
            continue;
        }
        struct mdl_card c = taken(w);
        (void)mdl_card_rope_text(&c, 256, text, sizeof text);
        (void)snprintf(want, sizeof want, "base=10000,dims=16,scaling=%s,context=256", cases[i].text);
        assert_string_equal(text, want);
        assert_int_equal(c.rope.divided, cases[i].tensor == freqs);
    }
}

/* What only one architecture may have, and what says nothing about text. */
static void test_keys_of_one_architecture(void **state)
{
    (void)state;
    struct mdl_card c = taken(with("gemma3", "final_logit_softcapping", F32, 30));
    assert_true(c.scale.softcap == 30.0f);
    assert_true(taken(with("gemma3", "mm.tokens_per_image", U32, 256)).scale.softcap == 0.0f);
    c = taken(with("gemma3", "attn_logit_softcapping", F32, 50));
    assert_true(c.scale.score_cap == 50.0f && c.scale.softcap == 0.0f);
    refused(with("gemma3", "attn_logit_softcapping", F32, -1), "gemma3.attn_logit_softcapping: -1 is not between");
    refused(with("llama", "attn_logit_softcapping", F32, 50), "llama.attn_logit_softcapping: 50 is not supported");
    refused(with("llama", "final_logit_softcapping", F32, 30), "llama.final_logit_softcapping: 30 is not supported");
    refused(with("llama", "mm.tokens_per_image", U32, 256), "llama.mm.tokens_per_image: not known");
    refused(with("gemma3", "final_logit_softcapping", STRING, 0), "final_logit_softcapping: its value of kind string");
    refused(with("mamba2", "ssm.dt_b_c_rms", BOOL, 1), "mamba2.ssm.dt_b_c_rms: true is not supported");
    refused(with("mamba", "ssm.dt_b_c_rms", BOOL, 1), "mamba.ssm.conv_kernel: absent"); /* taken; numpy_test.c has a whole one */
    refused(with("deepseek2", "nextn_predict_layers", U32, 1), "deepseek2.nextn_predict_layers: 1 is not supported");
    refused(with("deepseek2", "nextn_predict_layers", U32, 0), "deepseek2.attention.kv_lora_rank: absent");
    refused(with("deepseek2", "rope.scaling.attn_factor", F32, 1.5), "deepseek2.rope.scaling.attn_factor: 1.5 is not supported");
    refused(with("deepseek2", "rope.scaling.attn_factor", F32, 1), "deepseek2.attention.kv_lora_rank: absent");
}

/* Only the largest Gemma 3 divides scores by what heads of equal parts of the width would have; it is known by its 62 layers. */
static void test_scale_of_scores_in_gemma(void **state)
{
    (void)state;
    for (uint32_t layers = 61; layers <= 62; layers++) {
        struct head h = {layers, 64, 4, 2, 96, 256, "gemma3", 64, 100};
        struct tst_gguf *w = begin(&h);
        tst_gguf_u32(w, "gemma3.attention.sliding_window", 16);
        tst_gguf_u32(w, "gemma3.attention.key_length", 24);
        tst_gguf_u32(w, "gemma3.attention.value_length", 24);
        struct mdl_card c = taken(w);
        assert_int_equal(c.key_dim, 24);
        assert_true(c.scale.attention == (layers == 62 ? 0.25f : 0.0f)); /* 0: 1 / sqrt(24) */
        assert_true(c.scale.embedding == 8.0f);
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
    tokenizer_refused("gpt2", NULL, false, "tokenizer.ggml.merges: absent"); /* no .pre: a warning, no error */
    tokenizer_refused("gpt2", "gpt-2", false, "tokenizer.ggml.merges: absent");
    tokenizer_refused("gpt2", "gpt-2", true, "tokenizer.ggml.merges: entry 0");
    tokenizer_refused("llama", NULL, false, "tokenizer.ggml.scores: absent");
}

/* Which of a few texts end an answer: what llama.cpp (llama-cpp-python 0.3.36) says of the same vocabulary. */
static void test_texts_that_end_an_answer(void **state)
{
    (void)state;
    static const struct {
        const char *texts[4];
        int32_t type;
        bool ends[4];
    } cases[] = {
        {{"<|end|>", "<|endoftext|>", "<|user|>", "<|im_end|>"}, 3, {true, true, false, true}},
        {{"<|end|>", "<|return|>", "<|call|>", "<|channel|>"},
         3,
         {false, true, true, false}}, /* the answer goes on after a thought */
        {{"<|end|>", "<|calls|>", "<|flush|>", "<|message|>"}, 3, {false, true, true, false}},
        {{"<|end|>", "<|return|>", "<|start|>", "<|channel|>"}, 3, {true, true, false, false}},
        {{"<|end|>", "<|call|>", "<EOT>", "_<EOT>"}, 3, {true, true, true, true}},
        {{"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|eom_id|>"},
         4,
         {true, true, true, true}}, /* files that took them for text */
        {{"<|im_end|>", "<|end_of_text|>", "<end_of_utterance>", "<turn|>"}, 1, {true, true, true, true}},
        {{"</s>", "<eos>", "[EOS]",
          "<\xef\xbd\x9c"
          "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"},
         3,
         {true, true, true, true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tst_gguf *w = begin(&plain);
        struct mdl_str tokens[4];
        int32_t types[4];
        for (size_t k = 0; k < 4; k++) {
            tokens[k] = (struct mdl_str){cases[i].texts[k], strlen(cases[i].texts[k])};
            types[k] = cases[i].type;
        }
        tst_gguf_str(w, "tokenizer.ggml.model", "gpt2");
        tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, 4);
        tst_gguf_i32s(w, "tokenizer.ggml.token_type", types, 4);
        struct mdl_card c = taken(w);
        for (int32_t k = 0; k < 4; k++) {
            bool ends = false;
            for (uint32_t e = 0; e < c.eog_count; e++)
                ends = ends || c.eog[e] == k;
            if (ends != cases[i].ends[k])
                fail_msg("case %zu: %s", i, cases[i].texts[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_missing_and_impossible_values),
        cmocka_unit_test(test_values_by_layer_and_rope),
        cmocka_unit_test(test_keys_that_change_the_result),
        cmocka_unit_test(test_kinds_of_values),
        cmocka_unit_test(test_card_and_tokenizer_agree),
        cmocka_unit_test(test_truth_values),
        cmocka_unit_test(test_patterns_of_windows),
        cmocka_unit_test(test_divisors_and_scaling),
        cmocka_unit_test(test_keys_of_one_architecture),
        cmocka_unit_test(test_scale_of_scores_in_gemma),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_texts_that_end_an_answer),
        cmocka_unit_test(test_tokenizers_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
