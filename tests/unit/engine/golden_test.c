/* golden_test.c - greedy output of real and random models against other engines' (llama2.c, llama.cpp;
 * ../shared/models/README.md says how they were made and which bounds hold). Ids must be equal, logits near.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/ops/ops.h"
#include "tests/support/files.h"
#include "tests/unit/engine/rig.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bounds {
    double logit;  /* largest difference allowed */
    double margin; /* another best token is allowed where the golden's margin is below this */
};

static int32_t best(const float *logits, uint32_t n)
{
    uint32_t b = 0;
    for (uint32_t i = 1; i < n; i++) {
        b = logits[i] > logits[b] ? i : b;
    }
    return (int32_t)b;
}

struct tally {
    double worst;
    uint32_t steps, flips;
};

static void check_row(const float *row, uint32_t vocab, const struct golden *g, uint32_t step, const struct bounds *b,
                      struct tally *t)
{
    int32_t want = g->ids[g->prompt + step], got = best(row, vocab);
    double d = fabs((double)row[want] - g->logit[step]);
    t->worst = d > t->worst ? d : t->worst;
    t->steps++;
    if (got != want) {
        t->flips++;
        assert_true(g->margin[step] < b->margin);
    }
    assert_true(d <= b->logit);
}

/* Prompt in chunks, then the golden's own tokens one by one (forced: a near tie must not derail the rest). */
static void follow(struct rig *r, const struct golden *g, uint32_t chunk, const struct bounds *b, struct tally *t)
{
    float *row = malloc(r->card.vocab * sizeof *row);
    rig_feed(r, 0, g->ids, g->prompt, 0, chunk, false, row);
    for (uint32_t i = 0; i < g->top_count; i++) {
        double d = fabs((double)row[g->top_id[i]] - g->top_logit[i]);
        t->worst = d > t->worst ? d : t->worst;
        assert_true(d <= b->logit);
    }
    for (uint32_t step = 0; step < g->out; step++) {
        check_row(row, r->card.vocab, g, step, b, t);
        if (step + 1 < g->out) {
            rig_feed(r, 0, g->ids + g->prompt + step, 1, g->prompt + step, 0, false, row);
        }
    }
    free(row);
}

static void run(const char *model, const char *golden, bool exact, const struct rig_options *o, uint32_t chunk,
                struct bounds b)
{
    size_t size;
    uint32_t count;
    uint8_t *file = tst_file_read(model, 0, &size);
    struct golden *g = golden_read(golden, exact, &count);
    assert_non_null(file);
    assert_non_null(g);
    assert_true(count > 0);
    struct rig r;
    struct tally t = {0};
    rig_open(&r, file, size, o);
    for (uint32_t i = 0; i < count; i++) {
        follow(&r, &g[i], chunk, &b, &t);
    }
    print_message("%s %s kv %s: %u steps, largest difference %.6f, other best tokens %u\n", strrchr(model, '/') + 1,
                  eng_model_isa(r.model), kvc_type_name(o->kv), t.steps, t.worst, t.flips);
    rig_close(&r);
    golden_free(g, count);
    free(file);
}

#define SHARED_MODELS KVS_SHARED_DIR "/models/"
static const char *const paths[] = {"ref", "avx2"};
static uint32_t path_count;

static void test_stories(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < path_count; i++) {
        run(SHARED_MODELS "stories260K.gguf", SHARED_MODELS "stories260K.golden.jsonl", false,
            &(struct rig_options){.isa = paths[i], .kv = KVC_F32}, 0, (struct bounds){.logit = 0.001, .margin = 0});
        run(SHARED_MODELS "stories260K.gguf", SHARED_MODELS "stories260K.golden.jsonl", false,
            &(struct rig_options){.isa = paths[i], .kv = KVC_F16}, 0, (struct bounds){.logit = 0.05, .margin = 0.03});
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
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char model[512], golden[512];
        (void)snprintf(model, sizeof model, SHARED_MODELS "random/%s.gguf", models[i].name);
        (void)snprintf(golden, sizeof golden, SHARED_MODELS "random/%s.golden.jsonl", models[i].name);
        for (uint32_t p = 0; p < path_count; p++) {
            run(model, golden, models[i].exact,
                &(struct rig_options){.isa = paths[p], .kv = KVC_F32, .context = models[i].context}, 0, models[i].b);
        }
    }
}

int main(void)
{
    if (!tst_file_exists(SHARED_MODELS "stories260K.gguf")) {
        (void)printf("skipped: %s is not there\n", SHARED_MODELS);
        return 77;
    }
    path_count = eng_ops_best() != NULL && eng_ops_best() != &eng_ops_ref ? 2 : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_random_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
