/* digest_test.c - the bits of every op and of whole models, as digests kept in the tree.
 * tests/vectors/engine_digests.txt was written by ops/ref (this program with --write prints it); every op table of every machine
 * must give the same lines. A change of a line is a change of the arithmetic contract: a new numerics class.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/ops/scalar.h"
#include "engine/rope.h"
#include "tests/support/gguf_writer.h"
#include "tests/unit/engine/opsrig.h"
#include "tests/unit/engine/rig.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGESTS KVS_SOURCE_DIR "/tests/vectors/engine_digests.txt"
#define LINES_MAX 128u

struct line {
    char name[48];
    uint64_t digest;
};
struct lines {
    struct line line[LINES_MAX];
    uint32_t count;
};

static void add(struct lines *l, const char *what, const char *of, const void *bytes, size_t n)
{
    assert_true(l->count < LINES_MAX);
    struct line *to = &l->line[l->count++];
    (void)snprintf(to->name, sizeof to->name, "%s%s%s", what, of[0] != '\0' ? "-" : "", of);
    to->digest = rig_digest(bytes, n);
}

static void add_products(struct lines *l, const struct eng_ops *ops)
{
    for (size_t t = 0; t < OPS_TYPES; t++) {
        struct kvs_rng r = {.state = 100 + t};
        size_t size;
        uint32_t rows = 70, cols = eng_ops_multiple(ops_types[t]) > ENG_BLOCK ? 2304 : 2208, n = 7;
        uint8_t *bytes = ops_weight_bytes(&r, ops_types[t], rows, cols, &size);
        struct eng_weight w = ops_pack(ops, ops_types[t], rows, cols, bytes);
        float *x = calloc((size_t)n * cols, sizeof *x), *y = calloc((size_t)n * w.rows_padded, sizeof *y),
              *row = calloc(cols, sizeof *row);
        ops_fill(&r, x, (size_t)n * cols, KIND_MIXED);
        ops_product(ops, &w, x, cols, n, y);
        add(l, "matmul", mdl_type_name(ops_types[t]), y, (size_t)n * w.rows_padded * sizeof *y);
        ops->row(&w, 69, row);
        add(l, "row", mdl_type_name(ops_types[t]), row, cols * sizeof *row);
        free(x);
        free(y);
        free(row);
        free(w.data);
        free(bytes);
    }
}

static void add_rows(struct lines *l, const struct eng_ops *ops)
{
    struct kvs_rng r = {.state = 9};
    static float x[4096], w[4096], y[4096], co[64], si[64];
    static int16_t q[4096];
    static float dx[128], sx[128];
    static int32_t sum[128];
    ops_fill(&r, x, 4096, KIND_MIXED);
    ops_fill(&r, w, 4096, KIND_PLAIN);
    ops_fill(&r, co, 64, KIND_PLAIN);
    ops_fill(&r, si, 64, KIND_PLAIN);
    (void)ops->norm(x, w, 4091, 1e-5f, y);
    add(l, "norm", "", y, 4091 * 4);
    (void)ops->quantize(x, 4096, q, dx, sx, sum);
    add(l, "quantize-q", "", q, sizeof q);
    add(l, "quantize-dx", "", dx, sizeof dx);
    add(l, "quantize-sx", "", sx, sizeof sx);
    memcpy(y, w, sizeof y);
    ops->add(y, x, 4096);
    add(l, "add", "", y, sizeof y);
    ops->silu_mul(y, w, 4096);
    add(l, "silu_mul", "", y, sizeof y);
    ops->rope(y, 32, 128, 126, co, si);
    add(l, "rope", "", y, sizeof y);
    float e = ops->sum_exp(w, 4093, 1.0f, 0.3f);
    add(l, "sum_exp", "", &e, sizeof e);
    for (uint32_t i = 0; i < 4096; i++) {
        y[i] = eng_exp(-88.5f + (float)i * 0.0433f);
    }
    add(l, "exp", "", y, sizeof y);
}

static void add_tables(struct lines *l)
{
    static float co[1000 * 32], si[1000 * 32];
    struct eng_rope_config c = {.dims = 64,
                                .base = 100000,
                                .scaling = MDL_ROPE_YARN,
                                .factor = 4,
                                .attn_factor = 1,
                                .beta_fast = 32,
                                .beta_slow = 1,
                                .original_context = 256};
    eng_rope_tables(&c, 1000, co, si);
    add(l, "rope-tables-yarn", "cos", co, sizeof co);
    add(l, "rope-tables-yarn", "sin", si, sizeof si);
    c.scaling = MDL_ROPE_NONE;
    eng_rope_tables(&c, 1000, co, si);
    add(l, "rope-tables", "cos", co, sizeof co);
    add(l, "rope-tables", "sin", si, sizeof si);
}

static void add_attention(struct lines *l, const struct eng_ops *ops)
{
    for (int half = 0; half < 2; half++) {
        struct attn_case c = {.key_dim = 24,
                              .value_dim = 40,
                              .block_tokens = 64,
                              .last = 1077,
                              .count = 20,
                              .heads = 3,
                              .type = half ? KVC_F16 : KVC_F32,
                              .values = KIND_PLAIN,
                              .seed = 17};
        static float out[20 * 40];
        uint8_t *pages;
        size_t bytes;
        ops_attention(ops, &c, out, &pages, &bytes);
        add(l, "attention", half ? "f16" : "f32", out, sizeof out);
        add(l, "pages", half ? "f16" : "f32", pages, bytes);
        free(pages);
    }
}

static void add_models(struct lines *l, const struct eng_ops *ops)
{
    for (size_t t = 0; t < OPS_TYPES; t++) {
        for (int half = 0; half < 2; half++) {
            size_t size;
            bool wide = eng_ops_multiple(ops_types[t]) > ENG_BLOCK;
            uint8_t *file = tst_llama_make(&(struct tst_llama_options){.type = ops_types[t],
                                                                       .untied = t % 2 == 1,
                                                                       .seed = 40 + t,
                                                                       .width = wide ? 256 : 0,
                                                                       .ff = wide ? 256 : 0},
                                           &size);
            struct rig r;
            struct kvs_rng rng = {.state = 2};
            int32_t ids[80];
            float *logits = calloc((size_t)80 * TST_LLAMA_VOCAB, sizeof *logits);
            for (uint32_t i = 0; i < 80; i++) {
                ids[i] = (int32_t)kvs_rng_below(&rng, TST_LLAMA_VOCAB);
            }
            rig_open(&r, file, size,
                     &(struct rig_options){.isa = ops->name, .kv = half ? KVC_F16 : KVC_F32, .context = 128});
            rig_feed(&r, 0, ids, 80, 0, 33, true, logits);
            char of[24];
            (void)snprintf(of, sizeof of, "%s-kv-%s", mdl_type_name(ops_types[t]), half ? "f16" : "f32");
            add(l, "logits", of, logits, (size_t)80 * TST_LLAMA_VOCAB * sizeof *logits);
            rig_close(&r);
            free(logits);
            free(file);
        }
    }
}

/* Gates of other architectures, the other rotation, windows. */
static void add_gates_and_windows(struct lines *l, const struct eng_ops *ops)
{
    struct kvs_rng r = {.state = 19};
    static float x[4096], u[4096], y[4096], co[64], si[64];
    ops_fill(&r, x, 4096, KIND_MIXED);
    ops_fill(&r, u, 4096, KIND_PLAIN);
    ops_fill(&r, co, 64, KIND_PLAIN);
    ops_fill(&r, si, 64, KIND_PLAIN);
    memcpy(y, u, sizeof y);
    ops->gelu_mul(y, u, 4093);
    add(l, "gelu_mul", "", y, sizeof y);
    memcpy(y, x, sizeof y);
    ops->clamped_swiglu(y, u, 4093);
    add(l, "clamped_swiglu", "", y, sizeof y);
    ops->rope_neox(y, 32, 128, 126, co, si);
    add(l, "rope_neox", "", y, sizeof y);
    ops->scale(y, 0.37f, 4093);
    ops->add_scaled(y, u, -1.7f, 4093);
    add(l, "scaled", "", y, sizeof y);
    for (int half = 0; half < 2; half++) {
        struct attn_case c = {.key_dim = 24,
                              .value_dim = 40,
                              .block_tokens = 16,
                              .last = 1077,
                              .count = 20,
                              .heads = 3,
                              .type = half ? KVC_F16 : KVC_F32,
                              .values = KIND_PLAIN,
                              .seed = 18,
                              .window = 600};
        static float out[20 * 40];
        ops_attention(ops, &c, out, NULL, NULL);
        add(l, "attention-window", half ? "f16" : "f32", out, sizeof out);
    }
    for (int latent = 0; latent < 2; latent++) {
        struct attn_case c = {.key_dim = 72,
                              .value_dim = 40,
                              .block_tokens = 64,
                              .last = 700,
                              .count = 20,
                              .heads = 3,
                              .type = KVC_Q8_0,
                              .latent = latent != 0,
                              .values = KIND_PLAIN,
                              .seed = 20};
        static float out[20 * 40];
        uint8_t *pages;
        size_t bytes;
        ops_attention(ops, &c, out, &pages, &bytes);
        add(l, latent ? "attention-latent" : "attention", "q8_0", out, sizeof out);
        add(l, latent ? "pages-latent" : "pages", "q8_0", pages, bytes);
        free(pages);
    }
}

static void collect(struct lines *l, const struct eng_ops *ops)
{
    l->count = 0;
    add_tables(l);
    add_rows(l, ops);
    add_products(l, ops);
    add_attention(l, ops);
    add_models(l, ops);
    add_gates_and_windows(l, ops);
}

static void test_digests(void **state)
{
    (void)state;
    const struct eng_ops *tables[2];
    uint32_t count = ops_tables(tables);
    for (uint32_t t = 0; t < count; t++) {
        struct lines l;
        char name[48];
        unsigned long long want;
        uint32_t seen = 0;
        FILE *f = fopen(DIGESTS, "r");
        assert_non_null(f);
        collect(&l, tables[t]);
        while (fscanf(f, "%47s %16llx", name, &want) == 2) {
            assert_true(seen < l.count);
            assert_string_equal(name, l.line[seen].name);
            if (l.line[seen].digest != want) {
                fail_msg("%s: %s has digest %016llx, the file says %016llx", tables[t]->name, name,
                         (unsigned long long)l.line[seen].digest, want);
            }
            seen++;
        }
        (void)fclose(f);
        assert_int_equal(seen, l.count);
        print_message("%s: %u digests agree\n", tables[t]->name, seen);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--write") == 0) {
        struct lines l;
        collect(&l, &eng_ops_ref);
        for (uint32_t i = 0; i < l.count; i++) {
            (void)printf("%s %016llx\n", l.line[i].name, (unsigned long long)l.line[i].digest);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_digests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
