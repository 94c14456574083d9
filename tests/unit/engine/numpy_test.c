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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm3),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_deepseek2_lite),
        cmocka_unit_test(test_deepseek2_v3),
        cmocka_unit_test(test_deepseek2_stretched),
        cmocka_unit_test(test_deepseek2_kv_b),
        cmocka_unit_test(test_granitehybrid_mixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
