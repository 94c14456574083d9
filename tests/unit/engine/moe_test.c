/* moe_test.c - mixtures with quantized experts, which no golden has: the same bits in every way, near the same model with its
 * weights written out in F32, and the same whether gate and up stand in two tensors or in one.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/ops/ops.h"
#include "engine/quantize.h"
#include "tests/support/gguf_writer.h"
#include "tests/unit/engine/opsrig.h"
#include "tests/unit/engine/rig.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPERTS 6u
#define TOKENS 60u

struct make {
    mdl_type type; /* of the experts */
    bool written;  /* in F32, with the values that `type` has */
    bool fused;    /* gate and up, and q, k and v, in one tensor */
    bool shared;   /* qwen2moe, with a shared expert */
    uint32_t width, ff;
};

/* n weights as blocks of the type, none large. */
static uint8_t *blocks_of(struct kvs_rng *r, mdl_type type, size_t n, size_t *bytes_out)
{
    uint32_t weights, block;
    assert_true(mdl_type_block(type, &weights, &block));
    uint8_t *out = calloc(n / weights, block);
    float *x = calloc(n, sizeof *x);
    *bytes_out = n / weights * block;
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)((int32_t)kvs_rng_below(r, 2001) - 1000) * 0.0002f;
    }
    if (type == MDL_F32) {
        memcpy(out, x, *bytes_out);
    } else if (eng_quantize_known(type)) {
        assert_true(eng_quantize(type, x, n, out));
    } else {
        for (size_t i = 0; i < *bytes_out; i++) {
            out[i] = (uint8_t)kvs_rng_next(r);
        }
        for (size_t b = 0; b < n / weights; b++) { /* MXFP4: the exponent; Q4_K: d and dmin */
            const uint8_t small[4] = {0, 0x08, 0, 0x04};
            memcpy(out + b * block, type == MDL_MXFP4 ? (const uint8_t[4]){121} : small, type == MDL_MXFP4 ? 1 : 4);
        }
    }
    free(x);
    return out;
}

/* Rows of a matrix (planes of them for experts); written: dequantized by the reference table. */
static void put(struct tst_gguf *g, const struct make *m, const char *name, mdl_type type, const uint8_t *src,
                uint32_t rows, uint32_t cols, uint32_t planes)
{
    const uint64_t shape[3] = {cols, rows, planes};
    uint32_t weights, block, all = rows * planes;
    assert_true(mdl_type_block(type, &weights, &block));
    if (!m->written) {
        tst_gguf_tensor(g, name, type, planes > 1 ? 3 : 2, shape, src, (size_t)all * cols / weights * block);
        return;
    }
    float *x = calloc((size_t)all * cols, sizeof *x);
    struct eng_weight w = ops_pack(&eng_ops_ref, type, all, cols, src);
    for (uint32_t i = 0; i < all; i++) {
        eng_ops_ref.row(&w, i, x + (size_t)i * cols);
    }
    tst_gguf_tensor(g, name, MDL_F32, planes > 1 ? 3 : 2, shape, x, (size_t)all * cols * sizeof *x);
    free(w.data);
    free(x);
}

static void put_random(struct tst_gguf *g, const struct make *m, struct kvs_rng *r, const char *name, uint32_t rows,
                       uint32_t cols, uint32_t planes)
{
    char whole[64];
    size_t n;
    (void)snprintf(whole, sizeof whole, "blk.0.%s", name);
    uint8_t *src = blocks_of(r, m->type, (size_t)rows * cols * planes, &n);
    put(g, m, whole, m->type, src, rows, cols, planes);
    free(src);
}

static void put_vector(struct tst_gguf *g, const char *name, uint32_t n, float v)
{
    const uint64_t shape[1] = {n};
    float *x = calloc(n, sizeof *x);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = v;
    }
    tst_gguf_tensor(g, name, MDL_F32, 1, shape, x, n * sizeof *x);
    free(x);
}

/* a and b, each of `planes` planes, plane by plane in one; or apart. */
static void put_pair(struct tst_gguf *g, const struct make *m, struct kvs_rng *r, uint32_t rows, uint32_t cols,
                     uint32_t planes)
{
    size_t n, each;
    uint8_t *a = blocks_of(r, m->type, (size_t)rows * cols * planes, &n),
            *b = blocks_of(r, m->type, (size_t)rows * cols * planes, &n);
    each = n / planes;
    if (!m->fused) {
        put(g, m, "blk.0.ffn_gate_exps.weight", m->type, a, rows, cols, planes);
        put(g, m, "blk.0.ffn_up_exps.weight", m->type, b, rows, cols, planes);
    } else {
        uint8_t *both = malloc(2 * n);
        for (uint32_t p = 0; p < planes; p++) {
            memcpy(both + 2 * p * each, a + p * each, each);
            memcpy(both + (2 * p + 1) * each, b + p * each, each);
        }
        put(g, m, "blk.0.ffn_gate_up_exps.weight", m->type, both, 2 * rows, cols, planes);
        free(both);
    }
    free(a);
    free(b);
}

static void put_attention(struct tst_gguf *g, const struct make *m, struct kvs_rng *r)
{
    uint32_t w = m->width;
    size_t n;
    uint8_t *qkv = blocks_of(r, m->type, (size_t)2 * w * w, &n);
    if (m->fused) {
        put(g, m, "blk.0.attn_qkv.weight", m->type, qkv, 2 * w, w, 1);
    } else {
        put(g, m, "blk.0.attn_q.weight", m->type, qkv, w, w, 1);
        put(g, m, "blk.0.attn_k.weight", m->type, qkv + n / 2, w / 2, w, 1);
        put(g, m, "blk.0.attn_v.weight", m->type, qkv + n / 4 * 3, w / 2, w, 1);
    }
    free(qkv);
    put_random(g, m, r, "attn_output.weight", w, w, 1);
}

static uint8_t *make(const struct make *m, size_t *size_out)
{
    const char *arch = m->shared ? "qwen2moe" : "llama";
    struct tst_gguf *g = tst_gguf_create(3, 0);
    struct kvs_rng r = {.state = 70 + (uint64_t)m->type};
    const struct {
        const char *name;
        uint32_t v;
    } keys[] = {{"block_count", 1},
                {"embedding_length", m->width},
                {"feed_forward_length", m->ff},
                {"context_length", 128},
                {"attention.head_count", 4},
                {"attention.head_count_kv", 2},
                {"expert_count", EXPERTS},
                {"expert_used_count", 2},
                {"expert_feed_forward_length", m->ff},
                {"expert_shared_feed_forward_length", m->shared ? m->ff : 0}};
    char key[64];
    tst_gguf_str(g, "general.architecture", arch);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        (void)snprintf(key, sizeof key, "%s.%s", arch, keys[i].name);
        tst_gguf_u32(g, key, keys[i].v);
    }
    tst_llama_vocab(g);
    const uint64_t embd[2] = {m->width, TST_LLAMA_VOCAB}, router[2] = {m->width, EXPERTS};
    size_t n;
    uint8_t *src = blocks_of(&r, MDL_F32, (size_t)m->width * TST_LLAMA_VOCAB, &n);
    tst_gguf_tensor(g, "token_embd.weight", MDL_F32, 2, embd, src, n);
    free(src);
    src = blocks_of(&r, MDL_F32, (size_t)m->width * EXPERTS, &n);
    tst_gguf_tensor(g, "blk.0.ffn_gate_inp.weight", MDL_F32, 2, router, src, n);
    free(src);
    put_vector(g, "output_norm.weight", m->width, 1.5f);
    put_vector(g, "blk.0.attn_norm.weight", m->width, 1.0f);
    put_vector(g, "blk.0.ffn_norm.weight", m->width, 1.0f);
    put_attention(g, m, &r);
    put_pair(g, m, &r, m->ff, m->width, EXPERTS);
    put_random(g, m, &r, "ffn_down_exps.weight", m->width, m->ff, EXPERTS);
    if (m->shared) {
        put_vector(g, "blk.0.attn_q.bias", m->width, 0.1f);
        put_vector(g, "blk.0.attn_k.bias", m->width / 2, 0.1f);
        put_vector(g, "blk.0.attn_v.bias", m->width / 2, 0.1f);
        put_vector(g, "blk.0.ffn_gate_inp_shexp.weight", m->width, 0.01f);
        put_random(g, m, &r, "ffn_gate_shexp.weight", m->ff, m->width, 1);
        put_random(g, m, &r, "ffn_up_shexp.weight", m->ff, m->width, 1);
        put_random(g, m, &r, "ffn_down_shexp.weight", m->width, m->ff, 1);
    }
    return tst_gguf_finish(g, size_out, NULL);
}

/* Logits of all positions. */
static void logits_of(const struct make *m, const char *isa, uint32_t threads, uint32_t chunk, float *out)
{
    size_t size;
    struct rig r;
    struct kvs_rng rng = {.state = 3};
    int32_t ids[TOKENS];
    uint8_t *file = make(m, &size);
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)kvs_rng_below(&rng, TST_LLAMA_VOCAB);
    }
    rig_open(&r, file, size,
             &(struct rig_options){.isa = isa, .kv = KVC_F32, .context = 64, .block = 16, .threads = threads});
    rig_feed(&r, 0, ids, TOKENS, 0, chunk, true, out);
    rig_close(&r);
    free(file);
}

#define FLOATS ((size_t)TOKENS * TST_LLAMA_VOCAB)
static float want[FLOATS], got[FLOATS];

static void check(const struct make *m)
{
    logits_of(m, "ref", 1, 0, want);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        for (uint32_t chunk = 0; chunk <= 14; chunk += 7) {
            logits_of(m, NULL, threads, chunk == 14 ? 1 : chunk, got);
            assert_memory_equal(got, want, sizeof got);
        }
    }
    struct make other = *m;
    other.fused = true;
    logits_of(&other, NULL, 1, 0, got);
    assert_memory_equal(got, want, sizeof got);
    other = *m;
    other.written = true;
    logits_of(&other, NULL, 1, 0, got);
    uint32_t far = 0;
    double worst = 0, largest = 0;
    for (uint32_t row = 0; row < TOKENS; row++) {
        double d = 0;
        for (uint32_t i = 0; i < TST_LLAMA_VOCAB; i++) {
            size_t at = (size_t)row * TST_LLAMA_VOCAB + i;
            d = fmax(d, fabs((double)got[at] - (double)want[at]));
            largest = fmax(largest, fabs((double)want[at]));
        }
        far += d > 0.01; /* a near tie between experts may fall the other way */
        worst = d > 0.01 ? worst : fmax(worst, d);
    }
    print_message("%s%s: logits to %.2f, within %.6f of the weights in F32, %u of %u rows farther\n",
                  mdl_type_name(m->type), m->shared ? " with a shared expert" : "", largest, worst, far, TOKENS);
    assert_true(far <= 2 && largest > 0.1);
}

static void test_quantized_experts(void **state)
{
    (void)state;
    static const mdl_type types[] = {MDL_F32, MDL_F16, MDL_Q8_0, MDL_Q4_0, MDL_Q5_1, MDL_MXFP4, MDL_Q4_K};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        uint32_t wide = types[i] == MDL_Q4_K ? 256 : 64;
        check(&(struct make){.type = types[i], .width = wide, .ff = types[i] == MDL_Q4_K ? 256 : 96});
        check(&(struct make){.type = types[i], .width = wide, .ff = wide, .shared = true});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quantized_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
