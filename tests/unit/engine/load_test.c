/* load_test.c - what eng_model_load takes and refuses, with the words of the refusal; fingerprint, numerics class, layout.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/ops/ops.h"
#include "tests/support/gguf_writer.h"
#include "tests/unit/engine/rig.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define W 32u
#define V (TST_LLAMA_VOCAB + 5) /* no multiple of a strip */

struct tensor {
    const char *name;
    uint32_t type, rows, cols; /* rows 0: a vector */
};

/* A whole one-layer model; a test changes one line. */
static const struct tensor whole[] = {
    {"token_embd.weight", MDL_F32, V, W},         {"output_norm.weight", MDL_F32, 0, W},
    {"blk.0.attn_norm.weight", MDL_F32, 0, W},    {"blk.0.attn_q.weight", MDL_F32, W, W},
    {"blk.0.attn_k.weight", MDL_F32, W / 2, W},   {"blk.0.attn_v.weight", MDL_F32, W / 2, W},
    {"blk.0.attn_output.weight", MDL_F32, W, W},  {"blk.0.ffn_norm.weight", MDL_F32, 0, W},
    {"blk.0.ffn_gate.weight", MDL_F32, 2 * W, W}, {"blk.0.ffn_up.weight", MDL_F32, 2 * W, W},
    {"blk.0.ffn_down.weight", MDL_F32, W, 2 * W},
};
#define COUNT (sizeof whole / sizeof whole[0])

static uint8_t *make(const struct tensor *t, size_t count, size_t *size_out)
{
    struct tst_gguf *g = tst_gguf_create(3, 0);
    struct kvs_rng r = {.state = 8};
    tst_gguf_str(g, "general.architecture", "llama");
    tst_gguf_u32(g, "llama.block_count", 1);
    tst_gguf_u32(g, "llama.embedding_length", W);
    tst_gguf_u32(g, "llama.feed_forward_length", 2 * W);
    tst_gguf_u32(g, "llama.attention.head_count", 4);
    tst_gguf_u32(g, "llama.attention.head_count_kv", 2);
    tst_gguf_u32(g, "llama.context_length", 64);
    tst_llama_vocab(g);
    for (size_t i = 0; i < count; i++) {
        uint64_t shape[2] = {t[i].cols, t[i].rows}, n = (uint64_t)t[i].cols * (t[i].rows != 0 ? t[i].rows : 1);
        uint32_t weights, block;
        assert_true(mdl_type_block((mdl_type)t[i].type, &weights, &block));
        size_t bytes = (size_t)(n / weights * block);
        void *data = calloc(1, bytes + 1);
        if (t[i].type == MDL_F32) {
            for (size_t j = 0; j < n; j++) {
                ((float *)data)[j] = (float)((int32_t)kvs_rng_below(&r, 2000) - 1000) * 0.0005f;
            }
        }
        tst_gguf_tensor(g, t[i].name, t[i].type, t[i].rows != 0 ? 2 : 1, shape, data, bytes);
        free(data);
    }
    return tst_gguf_finish(g, size_out, NULL);
}

static kvs_status load(const struct tensor *t, size_t count, const char *isa, uint32_t context, struct kvs_error *err)
{
    size_t size;
    uint8_t *bytes = make(t, count, &size);
    struct mdl_gguf *g;
    struct mdl_card card;
    struct eng_model *m = NULL;
    assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, err), KVS_OK);
    assert_int_equal(mdl_card_read(g, &card, err), KVS_OK);
    struct eng_load_options o = {.isa_name = isa, .context = context};
    kvs_status s = eng_model_load(g, &card, &o, &m, NULL, err);
    eng_model_destroy(m);
    mdl_gguf_destroy(g);
    free(bytes);
    return s;
}

static void test_refusals_name_the_tensor(void **state)
{
    (void)state;
    static const struct {
        size_t index; /* COUNT: one more tensor */
        struct tensor instead;
        kvs_status status;
        const char *text;
    } cases[] = {
        {COUNT, {"blk.0.attn_q_norm.weight", MDL_F32, 0, W}, KVS_SELF_UNSUPPORTED, "blk.0.attn_q_norm.weight"},
        {COUNT, {"blk.1.attn_q.weight", MDL_F32, W, W}, KVS_SELF_MODEL, "blk.1.attn_q.weight"},
        {COUNT, {"blk..attn_q.weight", MDL_F32, W, W}, KVS_SELF_UNSUPPORTED, "blk..attn_q.weight"},
        {COUNT,
         {"blk.99999999999.attn_q.weight", MDL_F32, W, W},
         KVS_SELF_UNSUPPORTED,
         "blk.99999999999.attn_q.weight"},
        {COUNT, {"mystery.weight", MDL_F32, W, W}, KVS_SELF_UNSUPPORTED, "mystery.weight"},
        {3, {"blk.0.attn_q.weight", MDL_F32, W + 1, W}, KVS_SELF_MODEL, "blk.0.attn_q.weight has shape"},
        {4, {"blk.0.attn_k.weight", MDL_Q5_0, W, W}, KVS_SELF_MODEL, "blk.0.attn_k.weight has shape"},
        {5, {"blk.0.attn_v.weight", MDL_Q6_K, W / 2, 256}, KVS_SELF_MODEL, "blk.0.attn_v.weight has shape"},
        {7,
         {"blk.0.ffn_norm.weight", MDL_Q8_0, 0, W},
         KVS_SELF_UNSUPPORTED,
         "ffn_norm.weight must be F32, F16 or BF16"},
        {COUNT, {"blk.0.attn_qkv.bias", MDL_F32, 0, W}, KVS_SELF_MODEL, "blk.0.attn_qkv.bias has shape"},
        {COUNT, {"blk.0.ffn_up.bias", MDL_F32, 0, W}, KVS_SELF_MODEL, "blk.0.ffn_up.bias has shape"},
        {10, {"blk.0.ffn_down.weight", MDL_F32, W, W}, KVS_SELF_MODEL, "blk.0.ffn_down.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tensor t[COUNT + 1];
        struct kvs_error err = {0};
        memcpy(t, whole, sizeof whole);
        t[cases[i].index] = cases[i].instead;
        assert_int_equal(load(t, cases[i].index == COUNT ? COUNT + 1 : COUNT, NULL, 64, &err), cases[i].status);
        if (strstr(err.text, cases[i].text) == NULL) {
            fail_msg("\"%s\" does not say %s", err.text, cases[i].text);
        }
    }
    for (size_t gone = 1; gone < COUNT; gone++) { /* without token_embd there is no card */
        struct tensor t[COUNT];
        struct kvs_error err = {0};
        size_t n = 0;
        for (size_t i = 0; i < COUNT; i++) {
            if (i != gone) {
                t[n++] = whole[i];
            }
        }
        assert_int_equal(load(t, n, NULL, 64, &err), KVS_SELF_MODEL);
        assert_non_null(strstr(err.text, whole[gone].name));
    }
}

/* longrope's two tensors: the one that the context asks for is named when it is not there, whatever the other one says. */
static void test_longrope_wants_the_table_of_its_context(void **state)
{
    (void)state;
    static const struct {
        const char *there, *gone; /* gone NULL: taken */
        uint32_t context;
    } cases[] = {
        {"rope_factors_short.weight", NULL, 64},
        {"rope_factors_short.weight", "tensor rope_factors_long.weight is missing", 128},
        {"rope_factors_long.weight", NULL, 128},
        {"rope_factors_long.weight", "tensor rope_factors_short.weight is missing", 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tensor t[COUNT + 1];
        struct kvs_error err = {0};
        memcpy(t, whole, sizeof whole);
        t[COUNT] = (struct tensor){cases[i].there, MDL_F32, 0, 4};
        kvs_status s = load(t, COUNT + 1, NULL, cases[i].context, &err);
        /* make() writes random factors, some of them below 0: what is there is then refused by its own name. */
        if (cases[i].gone == NULL) {
            assert_non_null(strstr(err.text, cases[i].there));
        } else if (s != KVS_SELF_MODEL || strstr(err.text, cases[i].gone) == NULL) {
            fail_msg("\"%s\" is not \"%s\"", err.text, cases[i].gone);
        }
    }
}

/* Matrices of all quantized types side by side in one file; rows that no block fits; a file that ends inside a block. */
static void test_types_and_their_sizes(void **state)
{
    (void)state;
    static const mdl_type small[] = {MDL_Q8_0, MDL_Q4_0, MDL_Q4_1, MDL_Q5_0, MDL_Q5_1, MDL_IQ4_NL, MDL_MXFP4};
    static const mdl_type large[] = {MDL_Q2_K, MDL_Q3_K, MDL_Q4_K, MDL_Q5_K, MDL_Q6_K, MDL_IQ4_XS};
    static const size_t matrix[] = {0, 3, 4, 5, 6, 8, 9};
    struct tensor t[COUNT];
    struct kvs_error err = {0};
    struct mdl_gguf *g;
    size_t size;
    memcpy(t, whole, sizeof whole);
    for (size_t i = 0; i < sizeof matrix / sizeof matrix[0]; i++) {
        t[matrix[i]].type = small[i];
    }
    assert_int_equal(load(t, COUNT, NULL, 64, &err), KVS_OK);
    assert_int_equal(load(t, COUNT, "ref", 64, &err), KVS_OK);
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        memcpy(t, whole, sizeof whole);
        t[3].type = large[i]; /* rows of 32 */
        uint8_t *bytes = make(t, COUNT, &size);
        assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_SELF_MODEL);
        assert_non_null(strstr(err.text, "blk.0.attn_q.weight"));
        assert_non_null(strstr(err.text, mdl_type_name(large[i])));
        free(bytes);
        t[3].type = MDL_F32;
        t[10] = (struct tensor){"blk.0.ffn_down.weight", large[i], W, 256}; /* the last in the file, one byte short */
        bytes = make(t, COUNT, &size);
        assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_OK);
        mdl_gguf_destroy(g);
        assert_int_equal(mdl_gguf_parse(bytes, size - 1, false, &g, &err), KVS_SELF_MODEL);
        assert_non_null(strstr(err.text, "blk.0.ffn_down.weight"));
        free(bytes);
    }
}

static void test_isa_and_context(void **state)
{
    (void)state;
    struct kvs_error err = {0};
    assert_int_equal(load(whole, COUNT, NULL, 64, &err), KVS_OK);
    assert_int_equal(load(whole, COUNT, "ref", 0, &err), KVS_OK);
    assert_int_equal(load(whole, COUNT, "avx512", 64, &err), KVS_SELF_UNSUPPORTED);
    assert_non_null(strstr(err.text, "avx512"));
    assert_int_equal(load(whole, COUNT, "fast", 64, &err), KVS_SELF_UNSUPPORTED);
    assert_int_equal(load(whole, COUNT, NULL, UINT32_MAX, &err), KVS_SELF_CONFIG);
    assert_int_equal(setenv("KVASIR_ISA", "avx512", 1), 0);
    assert_int_equal(load(whole, COUNT, NULL, 64, &err), KVS_SELF_UNSUPPORTED);
    assert_int_equal(load(whole, COUNT, "ref", 64, &err), KVS_OK);
    assert_int_equal(unsetenv("KVASIR_ISA"), 0);
}

static void test_identity(void **state)
{
    (void)state;
    size_t size;
    uint8_t *file = tst_llama_make(&(struct tst_llama_options){.type = MDL_Q4_0, .seed = 3}, &size);
    struct rig r;
    struct mdl_fingerprint want;
    char text[128];
    rig_open(&r, file, size, &(struct rig_options){.kv = KVC_F16, .block = 32, .group_layers = 1});
    assert_int_equal(mdl_fingerprint_file(r.gguf, file, size, &want), KVS_OK);
    assert_memory_equal(r.fingerprint.bytes, want.bytes, sizeof want.bytes);
    size_t n = eng_numerics_class(KVC_F16, text, sizeof text);
    assert_int_equal(n, strlen(text));
    assert_string_equal(text, "kvasir-1,a16,cpu-fma,tp1,k=f16,v=f16");
    (void)eng_numerics_class(KVC_Q8_0, text, sizeof text);
    assert_string_equal(text, "kvasir-1,a16,cpu-fma,tp1,k=q8_0,v=q8_0");
    (void)eng_numerics_class(KVC_F32, text, sizeof text);
    assert_string_equal(text, "kvasir-1,a16,cpu-fma,tp1,k=f32,v=f32");
    assert_int_equal(r.layout.group_count, 2);
    assert_int_equal(r.layout.block_tokens, 32);
    assert_int_equal(r.layout.group[0].page_bytes, (uint64_t)32 * 2 * (16 + 16) * 2);
    assert_true(eng_model_bytes(r.model) > 0);
    rig_close(&r);
    free(file);
}

/* A vocabulary that is no multiple of a strip: the last logits land where they belong and not beyond. */
static void test_logits_stay_in_their_rows(void **state)
{
    (void)state;
    size_t size, n = 6 * (size_t)V;
    uint8_t *file = make(whole, COUNT, &size);
    int32_t ids[6] = {1, 2, 3, 4, 5, (int32_t)V - 1};
    float *want = calloc(n, sizeof *want), *logits = calloc(n, sizeof *logits); /* exact: a sanitizer watches the end */
    float *one = calloc(V, sizeof *one);
    struct rig r;
    rig_open(&r, file, size, &(struct rig_options){.isa = "ref", .kv = KVC_F32, .context = 64});
    rig_feed(&r, 0, ids, 6, 0, 0, true, want);
    rig_close(&r);
    rig_open(&r, file, size, &(struct rig_options){.kv = KVC_F32, .context = 64});
    rig_feed(&r, 0, ids, 6, 0, 0, true, logits);
    assert_memory_equal(logits, want, n * sizeof *want);
    assert_true(want[V - 1] != 0.0f);
    for (uint32_t i = 0; i < 6; i++) {
        rig_feed(&r, 1, ids + i, 1, i, 0, false, one);
        assert_memory_equal(one, want + (size_t)i * V, V * sizeof *one);
    }
    rig_close(&r);
    free(want);
    free(logits);
    free(one);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals_name_the_tensor),
        cmocka_unit_test(test_longrope_wants_the_table_of_its_context),
        cmocka_unit_test(test_types_and_their_sizes),
        cmocka_unit_test(test_isa_and_context),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_logits_stay_in_their_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
