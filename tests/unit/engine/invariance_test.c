/* invariance_test.c - the promise of numerics.md on whole models: the logits of every position are the same bits whatever the
 * instruction set, chunk size, block size, layers a group, thread count and company in the batch. For F32 and F16 pages.
 * A small generated model keeps this tested without shared data; stories260K is added where it is.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/ops/ops.h"
#include "tests/support/files.h"
#include "tests/support/gguf_writer.h"
#include "tests/unit/engine/rig.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sample {
    const uint8_t *file;
    size_t size;
    int32_t *ids; /* [RIG_SEQS][tokens] */
    uint32_t tokens, vocab, context;
};

static struct sample sample_open(const uint8_t *file, size_t size, uint32_t tokens, uint32_t vocab, uint64_t seed)
{
    struct kvs_rng r = {.state = seed};
    struct sample s = {
        .file = file, .size = size, .tokens = tokens, .vocab = vocab, .context = (tokens + 63) / 64 * 64};
    s.ids = calloc((size_t)tokens * RIG_SEQS, sizeof *s.ids);
    for (size_t i = 0; i < (size_t)tokens * RIG_SEQS; i++) {
        s.ids[i] = (int32_t)kvs_rng_below(&r, vocab);
    }
    return s;
}

/* Digest of the logits of all positions of sequence 0, alone, in chunks. */
static uint64_t alone(const struct sample *s, const struct rig_options *o, uint32_t chunk)
{
    struct rig r;
    struct rig_options with = *o;
    with.context = s->context;
    with.batch_tokens = s->tokens;
    float *logits = calloc((size_t)s->tokens * s->vocab, sizeof *logits);
    rig_open(&r, s->file, s->size, &with);
    rig_feed(&r, 0, s->ids, s->tokens, 0, chunk, true, logits);
    uint64_t d = rig_digest(logits, (size_t)s->tokens * s->vocab * sizeof *logits);
    rig_close(&r);
    free(logits);
    return d;
}

static void step(struct rig *r, struct eng_part *parts, uint32_t n, float *logits)
{
    kvs_status s = eng_forward(r->ctx, parts, n, logits, NULL, NULL);
    assert_int_equal(s, KVS_OK);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(parts[i].status, KVS_OK);
    }
}

/* The same, in a ragged batch: chunks and single tokens of four sequences in each step, sequence 0 anywhere among them. */
static uint64_t in_company(const struct sample *s, const struct rig_options *o, uint64_t seed)
{
    struct rig r;
    struct kvs_rng rng = {.state = seed};
    struct rig_options with = *o;
    with.context = s->context;
    with.batch_tokens = 160;
    float *logits = calloc((size_t)s->tokens * s->vocab, sizeof *logits),
          *rows = calloc((size_t)160 * s->vocab, sizeof *rows);
    uint32_t done[RIG_SEQS] = {0};
    rig_open(&r, s->file, s->size, &with);
    while (done[0] < s->tokens) {
        struct eng_part parts[RIG_SEQS];
        uint32_t n = 0, row = 0, first = (uint32_t)kvs_rng_below(&rng, RIG_SEQS), zero_row = 0;
        for (uint32_t i = 0; i < RIG_SEQS; i++) {
            uint32_t q = (first + i) % RIG_SEQS, left = s->tokens - done[q];
            uint32_t want = kvs_rng_below(&rng, 2) ? 1 : 1 + (uint32_t)kvs_rng_below(&rng, 40);
            uint32_t count = left < want ? left : want;
            if (count == 0 || (q != 0 && kvs_rng_below(&rng, 4) == 0)) {
                continue;
            }
            zero_row = q == 0 ? row : zero_row;
            parts[n] = (struct eng_part){
                .ids = s->ids + (size_t)q * s->tokens + done[q], .count = count, .pos = done[q], .table = &r.table[q]};
            rig_table(&r, q, done[q]);
            parts[n].logits_from = q == 0 ? 0 : count - (uint32_t)kvs_rng_below(&rng, 2);
            row += count - parts[n].logits_from;
            n++;
        }
        step(&r, parts, n, rows);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t q = parts[i].table == &r.table[0] ? 0 : 1;
            if (q == 0) {
                memcpy(logits + (size_t)done[0] * s->vocab, rows + (size_t)zero_row * s->vocab,
                       (size_t)parts[i].count * s->vocab * sizeof *rows);
            }
            done[(uint32_t)(parts[i].table - r.table)] += parts[i].count;
        }
    }
    uint64_t d = rig_digest(logits, (size_t)s->tokens * s->vocab * sizeof *logits);
    rig_close(&r);
    free(rows);
    free(logits);
    return d;
}

static const struct {
    const char *isa;
    uint32_t block, group_layers, threads, chunk;
} ways[] = {
    {"ref", 64, 0, 1, 0},  {"ref", 16, 1, 1, 7},   {"avx2", 64, 0, 1, 0},    {"avx2", 64, 0, 1, 1},
    {"avx2", 64, 0, 1, 7}, {"avx2", 64, 0, 1, 64}, {"avx2", 16, 1, 1, 0},    {"avx2", 16, 1, 1, 1},
    {"avx2", 1, 0, 1, 13}, {"avx2", 128, 1, 1, 5}, {"avx2", 512, 0, 1, 100}, {"avx2", 64, 1, 2, 0},
    {"avx2", 16, 1, 2, 3}, {"avx2", 64, 0, 3, 1},  {"ref", 32, 1, 2, 50},
};

static bool can_run(const char *isa)
{
    return strcmp(isa, "ref") == 0 || (eng_ops_best() != NULL && strcmp(eng_ops_best()->name, isa) == 0);
}

static void check_sample(const char *name, const struct sample *s)
{
    for (kvc_type kv = KVC_F32; kv <= KVC_Q8_0; kv++) {
        uint64_t want = 0;
        uint32_t runs = 0;
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            if (!can_run(ways[i].isa)) {
                continue;
            }
            struct rig_options o = {.isa = ways[i].isa,
                                    .kv = kv,
                                    .block = ways[i].block,
                                    .group_layers = ways[i].group_layers,
                                    .threads = ways[i].threads};
            uint64_t got = alone(s, &o, ways[i].chunk);
            want = runs++ == 0 ? got : want;
            if (got != want) {
                fail_msg("%s: %s, block %u, group layers %u, %u threads, chunk %u differs", name, ways[i].isa,
                         ways[i].block, ways[i].group_layers, ways[i].threads, ways[i].chunk);
            }
            got = i % 3 == 2 ? in_company(s, &o, 1000 + i) : want;
            if (got != want) {
                fail_msg("%s: %s in a batch with others (seed %zu) differs", name, ways[i].isa, 1000 + i);
            }
        }
        print_message("%s kv %s: %u ways, digest %016llx\n", name, kvc_type_name(kv), runs, (unsigned long long)want);
    }
}

static void check_generated(const char *name, const struct tst_llama_options *o, uint32_t tokens)
{
    size_t size;
    uint8_t *file = tst_llama_make(o, &size);
    struct sample s = sample_open(file, size, tokens, TST_LLAMA_VOCAB, 77);
    check_sample(name, &s);
    free(s.ids);
    free(file);
}

static void test_generated_models(void **state)
{
    (void)state;
    check_generated("generated f32",
                    &(struct tst_llama_options){
                        .layers = 2, .width = 48, .heads = 6, .kv_heads = 2, .ff = 70, .key_dim = 10, .seed = 1},
                    90);
    check_generated("generated q8_0", &(struct tst_llama_options){.layers = 3, .type = MDL_Q8_0, .seed = 2}, 70);
    check_generated("generated q4_1", &(struct tst_llama_options){.type = MDL_Q4_1, .untied = true, .seed = 3}, 70);
    check_generated("generated with all weight types",
                    &(struct tst_llama_options){.mixed = true, .width = 256, .ff = 256, .untied = true, .seed = 6}, 40);
}

#if defined(__SANITIZE_THREAD__)
#define LONG_TOKENS 540u /* two segments; minutes shorter */
#define STORY_TOKENS 40u
#define ARCH_TOKENS 30u
#else
#define LONG_TOKENS 1100u
#define STORY_TOKENS 150u
#define ARCH_TOKENS 70u
#endif

/* Past 512 keys: several segments, split over the threads when single tokens are decoded. */
static void test_long_context(void **state)
{
    (void)state;
    check_generated("long f16",
                    &(struct tst_llama_options){
                        .layers = 1, .width = 32, .heads = 2, .kv_heads = 1, .ff = 32, .type = MDL_F16, .seed = 4},
                    LONG_TOKENS);
}

static void test_stories(void **state)
{
    (void)state;
    size_t size;
    uint8_t *file = tst_file_read(KVS_SHARED_DIR "/models/stories260K.gguf", 0, &size);
    if (file == NULL) {
        print_message("skipped: ../shared/models/stories260K.gguf is not there\n");
        skip();
    }
    struct sample s = sample_open(file, size, STORY_TOKENS, 512, 5);
    check_sample("stories260K", &s);
    free(s.ids);
    free(file);
}

/* Architectures with random weights: windows that pass, sinks, mixtures, rotations of all kinds. */
static void test_architectures(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2",   "qwen3",    "granite",  "phi3",    "llama-yarn",
                                        "mixtral", "qwen2moe", "qwen3moe", "gpt-oss", "gemma3"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        size_t size;
        (void)snprintf(path, sizeof path, KVS_SHARED_DIR "/models/random/tiny-%s.gguf", names[i]);
        uint8_t *file = tst_file_read(path, 0, &size);
        if (file == NULL) {
            print_message("skipped: %s is not there\n", path);
            skip();
        }
        struct sample s = sample_open(file, size, ARCH_TOKENS, 512, 50 + i);
        check_sample(names[i], &s);
        free(s.ids);
        free(file);
    }
}

/* Those whose files stand in this tree: no model of theirs is among the shared ones. */
static void test_architectures_of_this_tree(void **state)
{
    (void)state;
    static const char *const names[] = {"smollm3", "gemma3-caps", "falcon-mamba", "deepseek2-lite", "deepseek2-v3",
                                        "granitehybrid-moe"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        size_t size;
        (void)snprintf(path, sizeof path, KVS_SOURCE_DIR "/tests/vectors/engine/tiny-%s.gguf", names[i]);
        uint8_t *file = tst_file_read(path, 0, &size);
        assert_non_null(file);
        struct sample s = sample_open(file, size, ARCH_TOKENS, 64, 80 + i);
        check_sample(names[i], &s);
        free(s.ids);
        free(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated_models),
        cmocka_unit_test(test_long_context),
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_architectures_of_this_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
