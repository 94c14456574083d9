/* numpy_test.c - what no file of another engine's is at hand for, against computations in float64 by NumPy
 * (tests/vectors/engine/make_*.py, which say what each model has): the golden's own tokens one by one, the logits after the
 * prompt and at positions inside it, in one step, in odd pieces over short blocks and token by token, every op table.
 * The bound is half of what ../shared/models/README.md has for F32 (0.001); the ids must be the same.
 * With 16-bit pages a key may flip the choice of an expert: one step in a hundred may be far off in the mixtures.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/ops/ops.h"
#include "tests/support/files.h"
#include "tests/unit/engine/follow.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER KVS_SOURCE_DIR "/tests/vectors/engine/"
#define BOUND 0.0005
#define LINES 4u
#define STEPS (LINES * 64u)
#define VOCAB 64u
#define PROMPT_MAX 128u

static const char *const isas[] = {"ref", NULL};

static void names_of(const char *model, const char *golden, char file[512], char answers[512])
{
    (void)snprintf(file, 512, FOLDER "%s.gguf", model);
    (void)snprintf(answers, 512, FOLDER "%s.golden.jsonl", golden);
}

static void follow_tokens(const char *model, const char *golden, bool experts)
{
    char file[512], answers[512];
    names_of(model, golden, file, answers);
    for (int i = 0; i < 2; i++) {
        struct bounds near = {.logit = BOUND, .margin = 0};
        struct rig_options whole = {.isa = isas[i], .kv = KVC_F32},
                           pieces = {.isa = isas[i], .kv = KVC_F32, .block = 16},
                           half = {.isa = isas[i], .kv = KVC_F16};
        assert_int_equal(follow_file(file, answers, false, &whole, 0, near), STEPS);
        assert_int_equal(follow_file(file, answers, false, &pieces, 9, near), STEPS);
        double wide = experts ? 0.1 : 0.05;
        follow_file(
            file, answers, false, &half, 0,
            (struct bounds){
                .logit = wide, .margin = 2 * wide, .outliers = experts ? 0.01 : 0, .rms = 0.015, .median = 0.007});
    }
}

/* A line's prompt and the rows of logits it has inside it; returns how many rows were compared. */
static uint32_t compare_rows(struct rig *r, uint32_t chunk, json_t *line, double *worst)
{
    static float logits[PROMPT_MAX * VOCAB];
    int32_t ids[PROMPT_MAX];
    json_t *prompt = json_object_get(line, "prompt_ids"), *rows = json_object_get(line, "rows");
    uint32_t n = (uint32_t)json_array_size(prompt), count = (uint32_t)json_array_size(rows);
    assert_true(n > 0 && n <= PROMPT_MAX);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    }
    rig_feed(r, 1, ids, n, 0, chunk, true, logits);
    for (uint32_t i = 0; i < count; i++) {
        json_t *row = json_array_get(rows, i), *want = json_array_get(row, 1);
        uint32_t pos = (uint32_t)json_integer_value(json_array_get(row, 0));
        assert_true(pos < n && json_array_size(want) == VOCAB);
        for (uint32_t v = 0; v < VOCAB; v++) {
            double d = fabs((double)logits[pos * VOCAB + v] - json_number_value(json_array_get(want, v)));
            *worst = d > *worst ? d : *worst;
            if (!(d <= BOUND)) {
                fail_msg("prompt of %u, pieces of %u, position %u: logit of %u is off by %g", n, chunk, pos, v, d);
            }
        }
    }
    return count;
}

static void follow_prompts(const char *model, const char *golden)
{
    static const uint32_t chunks[] = {0, 7, 33};
    char file[512], answers[512], text[65536];
    size_t size;
    names_of(model, golden, file, answers);
    uint8_t *bytes = tst_file_read(file, 0, &size);
    assert_non_null(bytes);
    for (int i = 0; i < 2; i++) {
        struct rig r;
        uint32_t rows = 0;
        double worst = 0;
        FILE *f = fopen(answers, "r");
        assert_non_null(f);
        rig_open(&r, bytes, size,
                 &(struct rig_options){.isa = isas[i], .kv = KVC_F32, .block = 16, .threads = 1 + (uint32_t)i});
        assert_int_equal(r.card.vocab, VOCAB);
        while (fgets(text, sizeof text, f) != NULL) {
            json_t *line = json_loads(text, 0, NULL);
            assert_non_null(line);
            for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
                rows += compare_rows(&r, chunks[c], line, &worst);
            }
            json_decref(line);
        }
        (void)fclose(f);
        print_message("%s %s: %u rows inside prompts, largest difference %.6f\n", model, eng_model_isa(r.model), rows,
                      worst);
        rig_close(&r);
        assert_int_equal(rows, 3 * (8 + 12)); /* every sixth of 48 and 70 positions, in three cuttings */
    }
    free(bytes);
}

static void mixture(const char *model, const char *golden)
{
    follow_tokens(model, golden, true);
    follow_prompts(model, golden);
}

static void test_smollm3(void **state)
{
    (void)state;
    follow_tokens("tiny-smollm3", "tiny-smollm3", false);
}

/* llama with all the biases that it may have, the one of q, k and v in one tensor, and norms in F16. */
static void test_biases(void **state)
{
    (void)state;
    follow_tokens("tiny-biased", "tiny-biased", false);
}

/* gemma3 with soft caps of scores and logits, a window of its own period, a linear factor where there is none. */
static void test_gemma3_caps(void **state)
{
    (void)state;
    follow_tokens("tiny-gemma3-caps", "tiny-gemma3-caps", false);
    follow_prompts("tiny-gemma3-caps", "tiny-gemma3-caps");
}

/* mamba as FalconMamba has it. */
static void test_normed_steps(void **state)
{
    (void)state;
    follow_tokens("tiny-falcon-mamba", "tiny-falcon-mamba", false);
    follow_prompts("tiny-falcon-mamba", "tiny-falcon-mamba");
}

static void test_deepseek2_lite(void **state)
{
    (void)state;
    mixture("tiny-deepseek2-lite", "tiny-deepseek2-lite");
}

static void test_deepseek2_v3(void **state)
{
    (void)state;
    mixture("tiny-deepseek2-v3", "tiny-deepseek2-v3");
}

static void test_deepseek2_stretched(void **state)
{
    (void)state;
    mixture("tiny-deepseek2-yarn", "tiny-deepseek2-yarn");
}

/* The older form of the same weights: the same answers. */
static void test_deepseek2_kv_b(void **state)
{
    (void)state;
    mixture("tiny-deepseek2-kvb", "tiny-deepseek2-v3");
}

static void test_granitehybrid_mixture(void **state)
{
    (void)state;
    mixture("tiny-granitehybrid-moe", "tiny-granitehybrid-moe");
}

/* Of the logits of 90 positions in pieces of 33, by ops/ref; KV in f32, f16, q8_0. What is found here belongs into the table
 * only when the arithmetic was meant to change. */
static void test_digests(void **state)
{
    (void)state;
    enum { TOKENS = 90 };
    static const struct {
        const char *name;
        uint64_t digest[3];
    } models[] = {{"tiny-smollm3", {0xa30e2d5ee41bce4f, 0xc053860b0e04886e, 0x194f77f48ecfaa44}},
                  {"tiny-biased", {0x1325c151e6e5fa2d, 0x617d9b2b6ff1f16d, 0x23f3fbad6c7b2670}},
                  {"tiny-gemma3-caps", {0xf6ff4fef3fe57103, 0x3667b6113157487d, 0xdf6fa9b58dfa5eec}},
                  {"tiny-falcon-mamba", {0x9aa28b4a939fba56, 0x9aa28b4a939fba56, 0x9aa28b4a939fba56}},
                  {"tiny-deepseek2-lite", {0xa149fccd1d4c45f3, 0x30fbd4ba89f7a350, 0x53b14dc7aa57bfe3}},
                  {"tiny-deepseek2-v3", {0xac0cb79bfee57f9c, 0xab45cef009699f6b, 0x6af1b9d46c692e9a}},
                  {"tiny-deepseek2-yarn", {0xd07e0b11e5710633, 0x14ff6d2c115d7008, 0xa719dd3e3b6bdfa3}},
                  {"tiny-granitehybrid-moe", {0x6aa430a324639c63, 0xfbd83c55632efd9f, 0xca648f20b3a6ca1c}}};
    static float logits[TOKENS * VOCAB];
    int32_t ids[TOKENS];
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)((i * i * 7 + i * 29) % VOCAB);
    }
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char file[512], answers[512];
        size_t size;
        names_of(models[i].name, models[i].name, file, answers);
        uint8_t *bytes = tst_file_read(file, 0, &size);
        assert_non_null(bytes);
        for (uint32_t way = 0; way < 6; way++) {
            struct rig r;
            kvc_type kv = (kvc_type)(way % 3);
            rig_open(&r, bytes, size, &(struct rig_options){.isa = isas[way / 3], .kv = kv, .context = 256});
            rig_feed(&r, 0, ids, TOKENS, 0, 33, true, logits);
            uint64_t d = rig_digest(logits, sizeof logits);
            if (d != models[i].digest[kv]) {
                print_message("%s %s kv %s: %016llx\n", models[i].name, eng_model_isa(r.model), kvc_type_name(kv),
                              (unsigned long long)d);
                wrong++;
            }
            rig_close(&r);
        }
        free(bytes);
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm3),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_gemma3_caps),
        cmocka_unit_test(test_normed_steps),
        cmocka_unit_test(test_deepseek2_lite),
        cmocka_unit_test(test_deepseek2_v3),
        cmocka_unit_test(test_deepseek2_stretched),
        cmocka_unit_test(test_deepseek2_kv_b),
        cmocka_unit_test(test_granitehybrid_mixture),
        cmocka_unit_test(test_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
