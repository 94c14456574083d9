/* smollm2_test.c - the sample model against its exact answer (../shared/models/README.md, part real/): golden tokens forced, and
 * perplexity over four contexts of prose. These bounds are what 16-bit activations buy: 8-bit ones miss them by a factor of 100.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/files.h"
#include "tests/unit/engine/follow.h"
#include "tests/unit/engine/real.h"

#include <stdio.h>

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

static void test_perplexity(void **state)
{
    (void)state;
    real_perplexity(model, REAL ".ppl.json");
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
