/* real_test.c - fetched models against their exact answers (../shared/models/README.md, part real/): golden tokens forced, and perplexity over
 * four contexts of prose, by our logits in double. These bounds are what 16-bit activations buy: 8-bit ones miss them by a factor of 100.
 * One of Gemma's prompts is longer than the window of its local layers. Built once for each model (REAL_SMOLLM2, REAL_GEMMA3), so that ctest
 * says of each whether it ran: a model that is absent skips its own entry.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/files.h"
#include "tests/unit/engine/follow.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define REAL KVS_SHARED_DIR "/models/real/"

struct real {
    const char *variable, *file, *pull; /* where it is looked for, and how it comes there */
    const char *golden, *perplexity;
    uint32_t steps; /* tokens of the golden file */
    struct bounds f32, f16;
};

#if defined(REAL_SMOLLM2)
static const struct real model = {"KVASIR_TEST_SMOLLM2",
                                  "SmolLM2-135M-Instruct.Q4_1.gguf",
                                  "smollm2",
                                  REAL "smollm2-135m-q4_1.golden.jsonl",
                                  REAL "smollm2-135m-q4_1.ppl.json",
                                  252,
                                  {.logit = 0.01, .margin = 0.02},
                                  {.logit = 0.06, .margin = 0.12}};
#elif defined(REAL_GEMMA3)
static const struct real model = {"KVASIR_TEST_GEMMA3",
                                  "gemma-3-270m-q4_k_m.gguf",
                                  "gemma3",
                                  REAL "gemma-3-270m-q4_k_m.golden.jsonl",
                                  REAL "gemma-3-270m-q4_k_m.ppl.json",
                                  288,
                                  {.logit = 0.05, .margin = 0.1},
                                  {.logit = 0.1, .margin = 0.2}};
#endif

static int tests_run; /* 0 at the end: everything was skipped, which ctest shall show */

/* The model's path; skips the running test, with the reason, when something is absent. */
static const char *path_of(const struct real *m)
{
    static char path[4096];
    if (!tst_model_path(m->variable, m->file, path, sizeof path) || !tst_file_exists(m->golden)) {
        print_message("skipped: %s (%s, or the cache: kvasir model pull %s) or %s is not there\n", m->file, m->variable, m->pull, m->golden);
        skip();
    }
    tests_run++;
    return path;
}

static void check_golden(const struct real *m)
{
    const char *path = path_of(m);
    struct rig_options o = {.kv = KVC_F32, .context = 1024, .threads = 2, .batch_tokens = 128};
    assert_int_equal(follow_file(path, m->golden, true, &o, 128, m->f32), m->steps);
    o.kv = KVC_F16;
    assert_int_equal(follow_file(path, m->golden, true, &o, 100, m->f16), m->steps);
}

/* Sum of negative log likelihoods of ids 1 .. n-1 given those before. */
static double nll(struct rig *r, const int32_t *ids, uint32_t n)
{
    double sum = 0;
    float *logits = calloc((size_t)n * r->card.vocab, sizeof *logits);
    rig_feed(r, 0, ids, n, 0, 128, true, logits);
    for (uint32_t i = 0; i + 1 < n; i++) {
        const float *row = logits + (size_t)i * r->card.vocab;
        double max = -INFINITY, z = 0;
        for (uint32_t v = 0; v < r->card.vocab; v++) {
            max = fmax(max, (double)row[v]);
        }
        for (uint32_t v = 0; v < r->card.vocab; v++) {
            z += exp((double)row[v] - max);
        }
        sum -= (double)row[ids[i + 1]] - max - log(z);
    }
    free(logits);
    return sum;
}

/* Mean negative log likelihood within 0.05 % of the exact one. */
static void check_perplexity(const struct real *m)
{
    const char *path = path_of(m);
    json_t *ppl = json_load_file(m->perplexity, 0, NULL);
    assert_non_null(ppl);
    json_t *contexts = json_object_get(ppl, "contexts");
    size_t size;
    uint8_t *file = tst_file_read(path, 0, &size);
    struct rig r;
    double total = 0, want = 0;
    rig_open(&r, file, size, &(struct rig_options){.kv = KVC_F16, .context = 512, .threads = 2, .batch_tokens = 128});
    for (size_t c = 0; c < json_array_size(contexts); c++) {
        int32_t ids[512];
        json_t *list = json_array_get(contexts, c);
        assert_int_equal(json_array_size(list), 512);
        for (size_t i = 0; i < 512; i++) {
            ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        }
        total += nll(&r, ids, 512);
        want += json_number_value(json_array_get(json_object_get(ppl, "nll_sums_exact"), c));
    }
    print_message("mean negative log likelihood %.6f, exact %.6f\n", total / 2044, want / 2044);
    assert_true(want > 0 && fabs(total - want) <= want * 0.0005);
    rig_close(&r);
    free(file);
    json_decref(ppl);
}

static void test_golden(void **state)
{
    (void)state;
    check_golden(&model);
}

static void test_perplexity(void **state)
{
    (void)state;
    check_perplexity(&model);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    (void)printf("skipped: over twenty minutes under the thread sanitizer; unit.engine.invariance has the threads, with small models\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_perplexity)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed == 0 && tests_run == 0 ? 77 : failed;
}
