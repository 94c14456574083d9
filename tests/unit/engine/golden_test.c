/* golden_test.c - greedy output of stories260K and random models against other engines' (llama2.c, llama.cpp;
 * ../shared/models/README.md says how they were made and which bounds hold). Ids must be equal, logits near.
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

#define SHARED_MODELS KVS_SHARED_DIR "/models/"
#define STORIES SHARED_MODELS "stories260K"
static const char *paths[] = {"ref", "avx2"};
static uint32_t path_count = 1;

static void test_stories(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < path_count; i++) {
        struct rig_options o = {.isa = paths[i], .kv = KVC_F32};
        struct bounds near = {.logit = 0.001, .margin = 0}, rounded = {.logit = 0.05, .margin = 0.03};
        assert_int_equal(follow_file(STORIES ".gguf", STORIES ".golden.jsonl", false, &o, 0, near), 2770);
        o.kv = KVC_F16;
        assert_int_equal(follow_file(STORIES ".gguf", STORIES ".golden.jsonl", false, &o, 0, rounded), 2770);
    }
}

/* Random weights: rope variants in F32, and one model in each weight type, held to the exact answer. */
static void test_random_models(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool exact;
        uint32_t context;
        struct bounds b;
    } models[] = {
        {"tiny-llama3rope", false, 512, {.logit = 0.001, .margin = 0.005}},
        {"tiny-llama-yarn", false, 256, {.logit = 0.001, .margin = 0.005}},
        {"tiny-wide-f32", true, 512, {.logit = 0.001, .margin = 0.002}},
        {"tiny-wide-f16", true, 512, {.logit = 0.001, .margin = 0.002}},
        {"tiny-wide-bf16", true, 512, {.logit = 0.001, .margin = 0.002}},
        {"tiny-wide-q8_0", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q4_0", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q4_1", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q5_0", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q5_1", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q2_k", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q3_k", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q4_k", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q5_k", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-q6_k", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-iq4_nl", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-iq4_xs", true, 512, {.logit = 0.01, .margin = 0.02}},
        {"tiny-wide-mxfp4", true, 512, {.logit = 0.01, .margin = 0.02}},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char model[512], golden[512];
        (void)snprintf(model, sizeof model, SHARED_MODELS "random/%s.gguf", models[i].name);
        (void)snprintf(golden, sizeof golden, SHARED_MODELS "random/%s.golden.jsonl", models[i].name);
        for (uint32_t p = 0; p < path_count; p++) {
            uint32_t steps = follow_file(model, golden, models[i].exact,
                                         &(struct rig_options){.isa = paths[p], .kv = KVC_F32, .context = models[i].context}, 0,
                                         models[i].b);
            assert_int_equal(steps, models[i].exact ? 128 : 256); /* four prompts of 32 or 64 tokens */
        }
    }
}

int main(void)
{
    if (!tst_file_exists(SHARED_MODELS "stories260K.gguf")) {
        (void)printf("skipped: %s is not there\n", SHARED_MODELS);
        return 77;
    }
#if defined(__SANITIZE_THREAD__)
    if (eng_ops_best() != NULL) { /* one thread, nothing to race with: once is enough here */
        paths[0] = eng_ops_best()->name;
        path_count = 1;
    }
#else
    path_count = eng_ops_best() != NULL && eng_ops_best() != &eng_ops_ref ? 2 : 1;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_random_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
