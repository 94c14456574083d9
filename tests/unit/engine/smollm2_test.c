/* smollm2_test.c - the sample model against its exact answer (../shared/models/README.md, part real/): golden tokens forced, and
 * perplexity over four contexts of prose. These bounds are what 16-bit activations buy: 8-bit ones miss them by a factor of 100.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/sampler.h"
#include "tests/support/files.h"
#include "tests/unit/engine/follow.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define REAL KVS_SHARED_DIR "/models/real/smollm2-135m-q4_1"

static char model[4096];

static void test_golden(void **state)
{
    (void)state;
    follow_file(model, REAL ".golden.jsonl", true,
                &(struct rig_options){.kv = KVC_F32, .context = 1024, .threads = 2, .batch_tokens = 128}, 128,
                (struct bounds){.logit = 0.01, .margin = 0.02});
    follow_file(model, REAL ".golden.jsonl", true,
                &(struct rig_options){.kv = KVC_F16, .context = 1024, .threads = 2, .batch_tokens = 128}, 100,
                (struct bounds){.logit = 0.06, .margin = 0.12});
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

static void test_perplexity(void **state)
{
    (void)state;
    json_t *ppl = json_load_file(REAL ".ppl.json", 0, NULL);
    assert_non_null(ppl);
    json_t *contexts = json_object_get(ppl, "contexts");
    size_t size;
    uint8_t *file = tst_file_read(model, 0, &size);
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
    assert_true(fabs(total - want) <= want * 0.0005);
    rig_close(&r);
    free(file);
    json_decref(ppl);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__)
    (void)printf(
        "skipped: half an hour under the thread sanitizer; unit.engine.invariance covers threads with small models\n");
    return 77;
#endif
    if (!tst_smollm2_path(model, sizeof model) || !tst_file_exists(REAL ".golden.jsonl")) {
        (void)printf("skipped: the sample model (KVASIR_TEST_SMOLLM2 or the cache) or %s is not there\n",
                     REAL ".golden.jsonl");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_perplexity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
