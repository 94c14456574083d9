/* memory_test.c - architectures that remember otherwise than by keys and values: recurrent states, latents, hybrids.
 * Goldens made by llama.cpp (../shared/models/README.md has the bounds), then bits: any chunking, thread count, block size,
 * op table and company in the batch gives the same logits and leaves the same pages.
 * tiny-deepseek2 with F16 pages: two of 173 steps are far off, since two choices of an expert are ties to 5e-5 and 1e-3; a float64
 * NumPy model with its latents rounded to F16 has the same two, off by the same 0.924.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/ops/ops.h"
#include "tests/support/files.h"
#include "tests/unit/engine/follow.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANDOM_MODELS KVS_SHARED_DIR "/models/random/"
#define TOKENS 150u
#define VOCAB 512u
static const struct {
    const char *name;
    double logit_f16; /* bound with F16 pages; 0: nothing of the cache has the KV type */
    double flips;     /* share of steps at which a 16-bit key may flip the choice of an expert */
} models[] = {{"tiny-mamba", 0, 0},
              {"tiny-mamba2", 0, 0},
              {"tiny-granitehybrid", 0.1, 0},
              {"tiny-falcon-h1", 0.1, 0},
              {"tiny-deepseek2", 0.1, 0.012}};
#define MODELS (sizeof models / sizeof models[0])
/* Of the logits of test_bits_depend_on_nothing_else by ops/ref; KV in f32, f16, q8_0. */
static const uint64_t digests[MODELS][3] = {{0x71977fbefca1f24e, 0x71977fbefca1f24e, 0x71977fbefca1f24e},
                                            {0xd8eeb46c13c6894f, 0xd8eeb46c13c6894f, 0xd8eeb46c13c6894f},
                                            {0xb503eef69b7fa88f, 0x5aaf4ec12474ef78, 0x8be5b1a568621144},
                                            {0x7bb09cfb2b08b625, 0x75a02bada2afefe5, 0x2af5080bc73d0fb6},
                                            {0x4892ad5435020962, 0x5cf3f421e0883b41, 0x6e68c67f26be227f}};
_Static_assert(KVC_F32 == 0 && KVC_F16 == 1 && KVC_Q8_0 == 2, "order of the digests");
static const char *paths[] = {"ref", "avx2"};
static uint32_t path_count = 1;

static void name_of(const char *model, const char *suffix, char out[512])
{
    (void)snprintf(out, 512, RANDOM_MODELS "%s%s", model, suffix);
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        char model[512], golden[512];
        name_of(models[i].name, ".gguf", model);
        name_of(models[i].name, ".golden.jsonl", golden);
        for (uint32_t p = 0; p < path_count; p++) {
            follow_file(model, golden, false, &(struct rig_options){.isa = paths[p], .kv = KVC_F32}, 0,
                        (struct bounds){.logit = 0.001, .margin = 0.005});
        }
        double bound = models[i].logit_f16 != 0 ? models[i].logit_f16 : 0.001;
        follow_file(model, golden, false, &(struct rig_options){.kv = KVC_F16, .threads = 3}, 37,
                    (struct bounds){.logit = bound,
                                    .margin = 2 * bound,
                                    .outliers = models[i].flips,
                                    .rms = 0.25 * bound,
                                    .median = 0.05 * bound});
        double wide = models[i].logit_f16 != 0 ? 5 * bound : bound; /* as archs_test.c has it */
        follow_file(model, golden, false, &(struct rig_options){.kv = KVC_Q8_0}, 37,
                    (struct bounds){.logit = wide,
                                    .margin = 2 * wide,
                                    .outliers = models[i].flips > 0 ? 0.05 : 0,
                                    .rms = (models[i].flips > 0 ? 0.9 : 0.5) * bound,
                                    .median = 0.25 * bound}); /* codes cut off instead of rounded pass these */
    }
}

/* Digest of every page that sequence seq holds. */
static uint64_t pages_of(const struct rig *r, uint32_t seq)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < r->layout.group_count; g++) {
        const struct kvc_group *kind = &r->layout.group[g];
        uint32_t blocks = kvc_blocks_for(&r->layout, TOKENS);
        for (uint32_t b = kind->kind == KVC_STATE ? blocks - 1 : 0; b < blocks; b++) {
            const uint8_t *page = r->kv.base[g] + kvc_block_row(&r->table[seq], g)[b] * kind->page_bytes;
            sum = sum * 31 + rig_digest(page, kind->page_bytes);
        }
    }
    return sum;
}

static void random_ids(uint64_t seed, int32_t *ids, uint32_t n)
{
    struct kvs_rng r = {.state = seed};
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)kvs_rng_below(&r, VOCAB);
    }
}

/* Two sequences in one step each time, in pieces of different sizes. */
static void feed_together(struct rig *r, const int32_t *a, const int32_t *b, float *logits)
{
    static float both[2 * TOKENS * VOCAB];
    for (uint32_t i = 0, j = 0; i < TOKENS;) {
        uint32_t n = TOKENS - i < 11 ? TOKENS - i : 11, m = j >= TOKENS ? 0 : TOKENS - j < 29 ? TOKENS - j : 29;
        struct eng_part p[2] = {{.ids = b + j, .count = m, .pos = j, .table = &r->table[3]},
                                {.ids = a + i, .count = n, .pos = i, .table = &r->table[1]}};
        assert_int_equal(eng_forward(r->ctx, m != 0 ? p : p + 1, m != 0 ? 2 : 1, both, NULL, NULL), KVS_OK);
        assert_true(p[0].status == KVS_OK && p[1].status == KVS_OK);
        memcpy(logits + (size_t)i * VOCAB, both + (size_t)m * VOCAB, (size_t)n * VOCAB * sizeof *logits);
        i += n;
        j += m;
    }
}

static void same(const float *got, const float *want, uint64_t pages, uint64_t pages_want, const char *model,
                 const char *how)
{
    if (memcmp(got, want, TOKENS * VOCAB * sizeof *got) != 0 || pages != pages_want) {
        fail_msg("%s: %s gives other %s", model, how, pages != pages_want ? "pages" : "logits");
    }
}

static void test_bits_depend_on_nothing_else(void **state)
{
    (void)state;
    static const struct way {
        const char *how;
        uint32_t chunk, threads, block, group_layers;
    } ways[] = {{"one token at a time", 1, 2, 64, 0},
                {"pieces of 7 on 4 threads", 7, 4, 64, 0},
                {"one piece on 3 threads", 0, 3, 64, 0},
                {"blocks of 4", 33, 1, 4, 1},
                {"blocks of 128", 50, 1, 128, 2}};
    static float want[TOKENS * VOCAB], got[TOKENS * VOCAB];
    int32_t ids[TOKENS], other[TOKENS];
    random_ids(3, ids, TOKENS);
    random_ids(4, other, TOKENS);
    for (size_t i = 0; i < MODELS; i++) {
        for (int k = 0; k < 3; k++) {
            char path[512];
            size_t size;
            struct rig r;
            name_of(models[i].name, ".gguf", path);
            uint8_t *file = tst_file_read(path, 0, &size);
            kvc_type kv = (kvc_type)k;
            rig_open(&r, file, size, &(struct rig_options){.isa = "ref", .kv = kv, .context = 256});
            rig_feed(&r, 0, ids, TOKENS, 0, 0, true, want);
            uint64_t pages = pages_of(&r, 0), digest = rig_digest(want, sizeof want);
            rig_close(&r);
            if (digest != digests[i][k]) {
                fail_msg("%s kv %s: ref gives %016llx", models[i].name, kvc_type_name(kv), (unsigned long long)digest);
            }
            for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
                rig_open(&r, file, size,
                         &(struct rig_options){.isa = paths[path_count - 1],
                                               .kv = kv,
                                               .context = 256,
                                               .threads = ways[w].threads,
                                               .block = ways[w].block,
                                               .group_layers = ways[w].group_layers});
                rig_feed(&r, 2, ids, TOKENS, 0, ways[w].chunk, true, got);
                same(got, want, ways[w].block == 64 ? pages_of(&r, 2) : pages, pages, models[i].name, ways[w].how);
                if (w == 0) { /* the same memory once more, by company of another sequence */
                    feed_together(&r, ids, other, got);
                    same(got, want, pages_of(&r, 1), pages, models[i].name, "a batch of two");
                    rig_feed(&r, 2, ids, TOKENS, 0, 64, true, got);
                    same(got, want, pages_of(&r, 2), pages, models[i].name, "used memory");
                }
                rig_close(&r);
            }
            free(file);
        }
    }
}

int main(void)
{
    if (!tst_file_exists(RANDOM_MODELS "tiny-mamba.gguf")) {
        (void)printf("skipped: %s is not there\n", RANDOM_MODELS "tiny-mamba.gguf");
        return 77;
    }
    path_count = eng_ops_best() != NULL && eng_ops_best() != &eng_ops_ref ? 2 : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_bits_depend_on_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
