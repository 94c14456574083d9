/* twin_test.c - the same numbers written two ways give the same model: once all in F32, once with every matrix in Q8_0
 * blocks that hold these numbers exactly (gpt-oss's experts in MXFP4; deepseek2's key and value projections apart instead of
 * in one tensor). What is left between the two is the rounding of activations to 16 bits, some 1e-5; a product that reads another row's or
 * head's blocks is off by far more. Both op tables, several rows a step and single ones.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/model.h"
#include "engine/ops/ops.h"
#include "tests/support/gguf_writer.h"
#include "tests/unit/engine/rig.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 96u
#define WIDTH 64u
#define LAYERS 2u
#define TOKENS 41u
#define BOUND 0.004
#define CAP 1.5f

struct maker {
    struct tst_gguf *w;
    struct kvs_rng rng;
    const char *arch;
    bool quantized;
};

static void key(struct maker *m, const char *name, uint32_t v)
{
    char k[96];
    (void)snprintf(k, sizeof k, "%s.%s", m->arch, name);
    tst_gguf_u32(m->w, k, v);
}

static void key_f32(struct maker *m, const char *name, float v)
{
    char k[96];
    (void)snprintf(k, sizeof k, "%s.%s", m->arch, name);
    tst_gguf_f32(m->w, k, v);
}

/* Numbers that Q8_0 holds exactly: 32 whole multiples of 2^-10, one of them 127. */
static void exact(struct maker *m, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t code = (int32_t)kvs_rng_below(&m->rng, 255) - 127;
        x[i] = (float)(i % 32 == 0 ? 127 : code) * 0x1p-10f;
    }
}

static void put(struct maker *m, uint32_t layer, const char *name, bool block, uint32_t dims, const uint64_t *shape,
                const float *x, size_t n)
{
    char text[96];
    if (layer == UINT32_MAX) {
        (void)snprintf(text, sizeof text, "%s", name);
    } else {
        (void)snprintf(text, sizeof text, "blk.%u.%s", layer, name);
    }
    if (!block) {
        tst_gguf_tensor(m->w, text, MDL_F32, dims, shape, x, n * 4);
        return;
    }
    uint8_t *bytes = malloc(n * 2);
    tst_gguf_tensor(m->w, text, MDL_Q8_0, dims, shape, bytes, tst_quantize(MDL_Q8_0, x, n, bytes));
    free(bytes);
}

static void matrix(struct maker *m, uint32_t layer, const char *name, uint32_t cols, uint32_t rows, uint32_t planes)
{
    size_t n = (size_t)cols * rows * planes;
    float *x = calloc(n, sizeof *x);
    exact(m, x, n);
    put(m, layer, name, m->quantized && cols % 32 == 0, planes > 1 ? 3 : 2, (uint64_t[]){cols, rows, planes}, x, n);
    free(x);
}

/* Experts that MXFP4 holds exactly: per 32 a power of two times 0, 1, 2, 3, 4, 6, 8 or 12, of either sign. */
static void experts_mxfp4(struct maker *m, uint32_t layer, const char *name, uint32_t cols, uint32_t rows)
{
    static const int8_t value[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    size_t n = (size_t)cols * rows * 8;
    const uint64_t shape[3] = {cols, rows, 8};
    float *x = calloc(n, sizeof *x);
    uint8_t *bytes = calloc(n / 32, 17);
    char text[96];
    for (size_t b = 0; b < n / 32; b++) {
        uint8_t *block = bytes + b * 17;
        int e = 119 + (int)kvs_rng_below(&m->rng, 3); /* the scale is 2^(e - 127), and the values above are doubled */
        block[0] = (uint8_t)e;
        for (size_t i = 0; i < 32; i++) {
            uint32_t code = (uint32_t)kvs_rng_below(&m->rng, 16);
            block[1 + i % 16] |= (uint8_t)(i < 16 ? code : code << 4);
            x[b * 32 + i] = ldexpf((float)value[code], e - 128);
        }
    }
    (void)snprintf(text, sizeof text, "blk.%u.%s", layer, name);
    if (m->quantized) {
        tst_gguf_tensor(m->w, text, MDL_MXFP4, 3, shape, bytes, n / 32 * 17);
    } else {
        tst_gguf_tensor(m->w, text, MDL_F32, 3, shape, x, n * sizeof *x);
    }
    free(bytes);
    free(x);
}

/* Small floats around `middle`, in F32. */
static void floats(struct maker *m, uint32_t layer, const char *name, uint32_t cols, uint32_t rows, float middle,
                   float spread)
{
    size_t n = (size_t)cols * rows;
    float *x = calloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = middle + spread * ((float)kvs_rng_below(&m->rng, 2001) / 1000.0f - 1.0f);
    }
    put(m, layer, name, false, rows > 1 || cols == 1 ? 2 : 1, (uint64_t[]){cols, rows}, x, n);
    free(x);
}

static void norm(struct maker *m, uint32_t layer, const char *name, uint32_t n)
{
    floats(m, layer, name, n, 1, 1.0f, 0.2f);
}

static void common(struct maker *m)
{
    tst_gguf_str(m->w, "general.architecture", m->arch);
    key(m, "block_count", LAYERS);
    key(m, "context_length", 128);
    key(m, "embedding_length", WIDTH);
    key_f32(m, "attention.layer_norm_rms_epsilon", 1e-5f);
    matrix(m, UINT32_MAX, "token_embd.weight", WIDTH, VOCAB, 1);
    norm(m, UINT32_MAX, "output_norm.weight", WIDTH);
    matrix(m, UINT32_MAX, "output.weight", WIDTH, VOCAB, 1);
}

static void feed_forward(struct maker *m, uint32_t l, uint32_t ff)
{
    norm(m, l, strcmp(m->arch, "falcon-h1") == 0 ? "ffn_norm" : "ffn_norm.weight", WIDTH);
    matrix(m, l, "ffn_gate.weight", WIDTH, ff, 1);
    matrix(m, l, "ffn_up.weight", WIDTH, ff, 1);
    matrix(m, l, "ffn_down.weight", ff, WIDTH, 1);
}

static void attention(struct maker *m, uint32_t l)
{
    matrix(m, l, "attn_q.weight", WIDTH, 64, 1);
    matrix(m, l, "attn_k.weight", WIDTH, 32, 1);
    matrix(m, l, "attn_v.weight", WIDTH, 32, 1);
    matrix(m, l, "attn_output.weight", 64, WIDTH, 1);
}

#define INNER 96u
#define STATES 8u
static void state_layer(struct maker *m, uint32_t l, bool channels)
{
    uint32_t conv = channels ? INNER : INNER + 2 * 2 * STATES, units = channels ? INNER : 6;
    matrix(m, l, "ssm_in.weight", WIDTH, channels ? 2 * INNER : INNER + conv + 6, 1);
    floats(m, l, "ssm_conv1d.weight", 4, conv, 0, 0.5f);
    floats(m, l, "ssm_conv1d.bias", conv, 1, 0, 0.2f);
    floats(m, l, "ssm_dt.bias", units, 1, -1, 1);
    if (channels) {
        matrix(m, l, "ssm_x.weight", INNER, 32 + 2 * STATES, 1);
        matrix(m, l, "ssm_dt.weight", 32, INNER, 1);
        floats(m, l, "ssm_a", STATES, INNER, -2, 1.9f);
        floats(m, l, "ssm_d", INNER, 1, 1, 0.5f);
    } else {
        floats(m, l, "ssm_a", 1, 6, -2, 1.9f);
        floats(m, l, "ssm_d", 1, 6, 1, 0.5f);
        floats(m, l, "ssm_norm.weight", INNER / 2, 2, 1, 0.2f);
    }
    matrix(m, l, "ssm_out.weight", INNER, WIDTH, 1);
}

/* 8 experts of 32, and a shared one of 64. */
static void mixture(struct maker *m, uint32_t l)
{
    norm(m, l, "ffn_norm.weight", WIDTH);
    floats(m, l, "ffn_gate_inp.weight", WIDTH, 8, 0, 0.5f);
    matrix(m, l, "ffn_gate_exps.weight", WIDTH, 32, 8);
    matrix(m, l, "ffn_up_exps.weight", WIDTH, 32, 8);
    matrix(m, l, "ffn_down_exps.weight", 32, WIDTH, 8);
    matrix(m, l, "ffn_gate_shexp.weight", WIDTH, 64, 1);
    matrix(m, l, "ffn_up_shexp.weight", WIDTH, 64, 1);
    matrix(m, l, "ffn_down_shexp.weight", 64, WIDTH, 1);
}

static void state_model(struct maker *m, bool experts)
{
    bool channels = strcmp(m->arch, "mamba") == 0, falcon = strcmp(m->arch, "falcon-h1") == 0,
         granite = strcmp(m->arch, "granitehybrid") == 0;
    char text[64];
    common(m);
    key(m, "ssm.conv_kernel", 4);
    key(m, "ssm.inner_size", INNER);
    key(m, "ssm.state_size", STATES);
    key(m, "ssm.time_step_rank", channels ? 32 : 6);
    if (!channels) {
        key(m, "ssm.group_count", 2);
    }
    if (falcon || granite) {
        key(m, "attention.head_count", 4);
        key(m, "feed_forward_length", experts ? 32 : 96);
    }
    if (experts) {
        key(m, "expert_count", 8);
        key(m, "expert_used_count", 3);
        key(m, "expert_shared_feed_forward_length", 64);
    }
    if (falcon) {
        key(m, "attention.head_count_kv", 2);
    }
    if (granite) {
        (void)snprintf(text, sizeof text, "%s.attention.head_count_kv", m->arch);
        tst_gguf_i32s(m->w, text, (const int32_t[]){0, 2}, 2);
        key_f32(m, "residual_scale", 0.5f);
        key_f32(m, "embedding_scale", 4.0f);
        key_f32(m, "logit_scale", 2.0f);
        key_f32(m, "attention.scale", 0.2f);
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        norm(m, l, "attn_norm.weight", WIDTH);
        if (falcon || (granite && l == 1)) {
            attention(m, l);
        }
        if (!granite || l == 0) {
            state_layer(m, l, channels);
        }
        if (experts) {
            mixture(m, l);
        } else if (falcon || granite) {
            feed_forward(m, l, 96);
        }
    }
}

#define HEADS 3u
#define RANK 32u
#define ROPE 16u
#define NOPE 32u
#define VALUE 32u
/* attn_k_b [heads][rank][nope] and attn_v_b [heads][value][rank]; or one attn_kv_b [heads][nope + value][rank]. */
static void key_value_projections(struct maker *m, uint32_t l)
{
    static float k[HEADS * RANK * NOPE], v[HEADS * VALUE * RANK], both[HEADS * (NOPE + VALUE) * RANK];
    exact(m, k, sizeof k / sizeof k[0]);
    exact(m, v, sizeof v / sizeof v[0]);
    if (m->quantized) {
        put(m, l, "attn_k_b.weight", true, 3, (uint64_t[]){NOPE, RANK, HEADS}, k, sizeof k / sizeof k[0]);
        put(m, l, "attn_v_b.weight", true, 3, (uint64_t[]){RANK, VALUE, HEADS}, v, sizeof v / sizeof v[0]);
        return;
    }
    for (uint32_t h = 0; h < HEADS; h++) {
        float *to = both + h * (NOPE + VALUE) * RANK;
        for (uint32_t i = 0; i < NOPE * RANK; i++) {
            to[i] = k[h * RANK * NOPE + i % RANK * NOPE + i / RANK];
        }
        memcpy(to + NOPE * RANK, v + h * VALUE * RANK, VALUE * RANK * sizeof *to);
    }
    put(m, l, "attn_kv_b.weight", false, 2, (uint64_t[]){RANK, HEADS * (NOPE + VALUE)}, both,
        sizeof both / sizeof both[0]);
}

static void latent_model(struct maker *m, bool lite)
{
    common(m);
    key(m, "attention.head_count", HEADS);
    key(m, "attention.head_count_kv", m->quantized ? 1 : HEADS);
    key(m, "attention.key_length", m->quantized ? RANK + ROPE : NOPE + ROPE);
    key(m, "attention.value_length", m->quantized ? RANK : VALUE);
    if (m->quantized) {
        key(m, "attention.key_length_mla", NOPE + ROPE);
        key(m, "attention.value_length_mla", VALUE);
    }
    key(m, "attention.kv_lora_rank", RANK);
    key(m, "rope.dimension_count", ROPE);
    key(m, "feed_forward_length", 96);
    key(m, "leading_dense_block_count", 1);
    key(m, "expert_count", 8);
    key(m, "expert_used_count", 2);
    key(m, "expert_feed_forward_length", 32);
    key(m, "expert_shared_count", 2);
    key_f32(m, "expert_weights_scale", 2.5f);
    if (!lite) {
        key(m, "attention.q_lora_rank", 32);
        key(m, "expert_gating_func", 2);
        key(m, "expert_group_count", 4);
        key(m, "expert_group_used_count", 2);
        tst_gguf_bool(m->w, "deepseek2.expert_weights_norm", true);
        tst_gguf_str(m->w, "deepseek2.rope.scaling.type", "yarn");
        key_f32(m, "rope.scaling.factor", 4);
        key(m, "rope.scaling.original_context_length", 32);
        key_f32(m, "rope.scaling.yarn_log_multiplier", 0.1f);
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        norm(m, l, "attn_norm.weight", WIDTH);
        if (lite) {
            matrix(m, l, "attn_q.weight", WIDTH, HEADS * (NOPE + ROPE), 1);
        } else {
            matrix(m, l, "attn_q_a.weight", WIDTH, 32, 1);
            norm(m, l, "attn_q_a_norm.weight", 32);
            matrix(m, l, "attn_q_b.weight", 32, HEADS * (NOPE + ROPE), 1);
        }
        matrix(m, l, "attn_kv_a_mqa.weight", WIDTH, RANK + ROPE, 1);
        norm(m, l, "attn_kv_a_norm.weight", RANK);
        key_value_projections(m, l);
        matrix(m, l, "attn_output.weight", HEADS * VALUE, WIDTH, 1);
        if (l == 0) {
            feed_forward(m, l, 96);
            continue;
        }
        mixture(m, l);
        if (!lite) {
            floats(m, l, "exp_probs_b.bias", 8, 1, 0, 0.1f);
        }
    }
}

static void gemma_model(struct maker *m, float cap)
{
    common(m);
    key(m, "attention.head_count", 4);
    key(m, "attention.head_count_kv", 2);
    key(m, "attention.key_length", 16);
    key(m, "attention.value_length", 16);
    key(m, "attention.sliding_window", 8);
    key(m, "feed_forward_length", 96);
    key(m, "mm.tokens_per_image", 256);
    if (cap != 0) {
        key_f32(m, "final_logit_softcapping", cap);
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        norm(m, l, "attn_norm.weight", WIDTH);
        matrix(m, l, "attn_q.weight", WIDTH, 64, 1);
        matrix(m, l, "attn_k.weight", WIDTH, 32, 1);
        matrix(m, l, "attn_v.weight", WIDTH, 32, 1);
        norm(m, l, "attn_q_norm.weight", 16);
        norm(m, l, "attn_k_norm.weight", 16);
        matrix(m, l, "attn_output.weight", 64, WIDTH, 1);
        norm(m, l, "post_attention_norm.weight", WIDTH);
        feed_forward(m, l, 96);
        norm(m, l, "post_ffw_norm.weight", WIDTH);
    }
}

/* Sinks, biases on everything, a window on the first layer, experts as its files have them. */
static void sinks_model(struct maker *m)
{
    common(m);
    key(m, "attention.head_count", 4);
    key(m, "attention.head_count_kv", 2);
    key(m, "attention.key_length", 16);
    key(m, "attention.value_length", 16);
    key(m, "attention.sliding_window", 16);
    key(m, "feed_forward_length", 32);
    key(m, "expert_count", 8);
    key(m, "expert_used_count", 2);
    key(m, "expert_feed_forward_length", 32);
    for (uint32_t l = 0; l < LAYERS; l++) {
        norm(m, l, "attn_norm.weight", WIDTH);
        attention(m, l);
        floats(m, l, "attn_q.bias", 64, 1, 0, 0.3f);
        floats(m, l, "attn_k.bias", 32, 1, 0, 0.3f);
        floats(m, l, "attn_v.bias", 32, 1, 0, 0.3f);
        floats(m, l, "attn_output.bias", WIDTH, 1, 0, 0.3f);
        floats(m, l, "attn_sinks.weight", 4, 1, 0, 1);
        norm(m, l, "post_attention_norm.weight", WIDTH);
        floats(m, l, "ffn_gate_inp.weight", WIDTH, 8, 0, 0.5f);
        floats(m, l, "ffn_gate_inp.bias", 8, 1, 0, 0.5f);
        experts_mxfp4(m, l, "ffn_gate_exps.weight", WIDTH, 32);
        experts_mxfp4(m, l, "ffn_up_exps.weight", WIDTH, 32);
        experts_mxfp4(m, l, "ffn_down_exps.weight", 32, WIDTH);
        floats(m, l, "ffn_gate_exps.bias", 32, 8, 0, 0.5f);
        floats(m, l, "ffn_up_exps.bias", 32, 8, 0, 0.5f);
        floats(m, l, "ffn_down_exps.bias", WIDTH, 8, 0, 0.5f);
    }
}

static uint8_t *file_of(const char *model, bool quantized, size_t *size_out)
{
    bool latent = strncmp(model, "deepseek2", 9) == 0;
    struct maker m = {.w = tst_gguf_create(3, 0),
                      .rng = {.state = 77},
                      .arch = latent                                     ? "deepseek2"
                              : strncmp(model, "granitehybrid", 13) == 0 ? "granitehybrid"
                                                                         : model,
                      .quantized = quantized};
    if (strncmp(model, "gemma3", 6) == 0) {
        m.arch = "gemma3";
        gemma_model(&m, strcmp(model, "gemma3 capped") == 0 ? CAP : 0);
    } else if (strcmp(model, "gpt-oss") == 0) {
        sinks_model(&m);
    } else if (latent) {
        latent_model(&m, strcmp(model, "deepseek2 lite") == 0);
    } else {
        state_model(&m, strcmp(model, "granitehybrid mixture") == 0);
    }
    return tst_gguf_finish(m.w, size_out, NULL);
}

static void logits_of(const char *model, bool quantized, const char *isa, uint32_t chunk, float *out)
{
    size_t size;
    struct rig r;
    int32_t ids[TOKENS];
    uint8_t *file = file_of(model, quantized, &size);
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)(i * 37 % VOCAB);
    }
    rig_open(&r, file, size,
             &(struct rig_options){.isa = isa, .kv = KVC_F32, .context = 128, .block = 16, .threads = 2});
    rig_feed(&r, 1, ids, TOKENS, 0, chunk, true, out);
    rig_close(&r);
    free(file);
}

static void test_twins(void **state)
{
    (void)state;
    static const char *const names[] = {"mamba",     "mamba2",    "granitehybrid",  "granitehybrid mixture",
                                        "falcon-h1", "deepseek2", "deepseek2 lite", "gpt-oss"};
    static float plain[TOKENS * VOCAB], blocks[TOKENS * VOCAB], other[TOKENS * VOCAB];
    bool fast = eng_ops_best() != NULL && eng_ops_best() != &eng_ops_ref;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        double worst = 0, largest = 0;
        logits_of(names[i], false, "ref", 0, plain);
        logits_of(names[i], true, "ref", 0, blocks);
        for (uint32_t j = 0; j < TOKENS * VOCAB; j++) {
            worst = fmax(worst, fabs((double)plain[j] - (double)blocks[j]));
            largest = fmax(largest, fabs((double)plain[j]));
        }
        print_message("%s: largest logit %.2f, largest difference %.6f\n", names[i], largest, worst);
        assert_true(largest > 1);
        assert_true(worst <= BOUND);
        logits_of(names[i], true, fast ? "avx2" : "ref", 3, other);
        assert_memory_equal(other, blocks, sizeof other);
        logits_of(names[i], false, fast ? "avx2" : "ref", 1, other);
        assert_memory_equal(other, plain, sizeof other);
    }
}

/* YaRN in deepseek2: rotations keep their length, the magnitude (1 + multiplier * ln factor) is squared in the scores' scale. */
static void test_stretched_context(void **state)
{
    (void)state;
    size_t size;
    struct rig r;
    uint8_t *file = file_of("deepseek2", true, &size);
    rig_open(&r, file, size, &(struct rig_options){.kv = KVC_F32, .context = 128});
    double magnitude = 1.0 + 0.1 * log(4.0), scale = magnitude * magnitude / sqrt(NOPE + ROPE);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_true(fabs((double)r.model->layer[l].attention.scale - scale) < 1e-6);
    }
    const struct eng_rotation *t = &r.model->rotation[0];
    for (uint32_t i = 0; i < 128 * ROPE / 2; i++) {
        double c = (double)t->cosines[i], s = (double)t->sines[i];
        assert_true(fabs(c * c + s * s - 1.0) < 1e-6);
    }
    /* The slowest pair turns by the fourth part of its angle, the fastest by all of it. */
    uint32_t slow = 127 * ROPE / 2 + ROPE / 2 - 1, fast = 127 * ROPE / 2;
    assert_true(fabs((double)t->sines[slow] - sin(127.0 * pow(10000.0, -14.0 / 16.0) / 4.0)) < 1e-6);
    assert_true(fabs((double)t->sines[fast] - sin(127.0)) < 1e-6);
    rig_close(&r);
    free(file);
}

/* A model's logits with a soft cap are its logits without one, capped; on every path. */
static void test_capped_logits(void **state)
{
    (void)state;
    static float plain[TOKENS * VOCAB], capped[TOKENS * VOCAB], other[TOKENS * VOCAB];
    double largest = 0;
    logits_of("gemma3", false, "ref", 0, plain);
    logits_of("gemma3 capped", false, "ref", 0, capped);
    logits_of("gemma3 capped", false, NULL, 3, other);
    assert_memory_equal(other, capped, sizeof other);
    for (uint32_t i = 0; i < TOKENS * VOCAB; i++) {
        double want = (double)CAP * tanh((double)plain[i] / (double)CAP);
        largest = fmax(largest, fabs((double)plain[i]));
        assert_true(fabs((double)capped[i] - want) <= 1e-6);
    }
    assert_true(largest > (double)CAP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_twins), cmocka_unit_test(test_capped_logits),
                                       cmocka_unit_test(test_stretched_context)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
