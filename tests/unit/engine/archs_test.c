/* archs_test.c - every architecture against llama.cpp's answers: random weights, greedy tokens forced, F32 and F16 pages, every
 * op table, prompts whole and in chunks. Bounds: ../shared/models/README.md ("Hold an engine to").
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/ops/ops.h"
#include "tests/support/files.h"
#include "tests/unit/engine/follow.h"
#include <stdio.h>

#define RANDOM KVS_SHARED_DIR "/models/random/"

static const struct model {
    const char *file, *golden;
    uint32_t context;
    double f32, f32_margin, f16; /* largest differences; margin: F32 ids may part below it, F16 ones below 2 * f16 */
    bool experts;                /* a 16-bit key may flip a choice: one step in a hundred may be far off */
} models[] = {
    {"tiny-qwen2", "tiny-qwen2", 512, 0.001, 0.005, 0.1, false},
    {"tiny-qwen3", "tiny-qwen3", 512, 0.001, 0.005, 0.1, false},
    {"tiny-llama3rope", "tiny-llama3rope", 512, 0.001, 0.005, 0.1, false},
    {"tiny-llama-yarn", "tiny-llama-yarn", 256, 0.001, 0.005, 0.1, false},
    {"tiny-granite", "tiny-granite", 512, 0.001, 0.005, 0.5, false},
    {"tiny-phi3", "tiny-phi3", 512, 0.001, 0.005, 0.1, false},
    {"tiny-phi3", "tiny-phi3.short", 256, 0.001, 0.005, 0.1, false},
    {"tiny-mixtral", "tiny-mixtral", 512, 0.001, 0.005, 0.1, true},
    {"tiny-qwen2moe", "tiny-qwen2moe", 512, 0.001, 0.005, 0.1, true},
    {"tiny-qwen3moe", "tiny-qwen3moe", 512, 0.001, 0.005, 0.1, true},
    {"tiny-gpt-oss", "tiny-gpt-oss", 512, 0.001, 0.005, 0.1, true},
    {"tiny-gemma3", "tiny-gemma3", 512, 0.02, 0, 0.1, false},
};

static void follow_model(const struct model *m, const char *isa)
{
    char file[512], golden[512];
    (void)snprintf(file, sizeof file, RANDOM "%s.gguf", m->file);
    (void)snprintf(golden, sizeof golden, RANDOM "%s.golden.jsonl", m->golden);
    follow_file(file, golden, false, &(struct rig_options){.isa = isa, .kv = KVC_F32, .context = m->context}, 0,
                (struct bounds){.logit = m->f32, .margin = m->f32_margin});
    follow_file(file, golden, false,
                &(struct rig_options){.isa = isa, .kv = KVC_F32, .context = m->context, .block = 16, .threads = 2}, 9,
                (struct bounds){.logit = m->f32, .margin = m->f32_margin});
    follow_file(file, golden, false, &(struct rig_options){.isa = isa, .kv = KVC_F16, .context = m->context}, 0,
                (struct bounds){.logit = m->f16, .margin = 2 * m->f16, .outliers = m->experts ? 0.01 : 0});
}

static void test_architectures(void **state)
{
    (void)state;
    const char *best = eng_ops_best() != NULL ? eng_ops_best()->name : "ref";
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        follow_model(&models[i], best);
    }
}

static void test_architectures_by_the_reference(void **state)
{
    (void)state;
    if (eng_ops_best() == &eng_ops_ref) {
        skip(); /* was just done */
    }
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        follow_model(&models[i], "ref");
    }
}

int main(void)
{
    if (!tst_file_exists(RANDOM "tiny-qwen3.gguf")) {
        (void)printf("skipped: %s is not there\n", RANDOM);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_architectures_by_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
