/* quantize_test.c - blocks made of f32 weights, bit for bit those of the gguf package; what is refused; and that the engine's own
 * reading of them lands within half a step of the weights. Types with searched scales: no farther from the weights than the files
 * that llama.cpp made of the same ones, and the same bytes everywhere.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/quantize.h"
#include "tests/unit/engine/opsrig.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mdl_type types[] = {MDL_F16, MDL_BF16, MDL_Q8_0, MDL_Q4_0, MDL_Q4_1, MDL_Q5_0, MDL_Q5_1, MDL_MXFP4};
#define TYPES (sizeof types / sizeof types[0])

/* Types whose scales are searched for; the error of normal weights at most (root mean square, of that of the weights), and the bytes
 * that 4096 given weights become, hashed: the same from every compiler and on every machine. */
static const struct searched {
    mdl_type type;
    const char *file;
    double error;
    uint64_t hash;
} searched[] = {
    {MDL_Q2_K, "q2_k", 0.275, 0x2b69e68549cf5a8bu},     {MDL_Q3_K, "q3_k", 0.15, 0xe12c6e8d37af2e74u},
    {MDL_Q4_K, "q4_k", 0.073, 0x0074f3ba1c2aff29u},     {MDL_Q5_K, "q5_k", 0.036, 0xf23d2b8d5043a6deu},
    {MDL_Q6_K, "q6_k", 0.018, 0x95614a1546db1bdeu},     {MDL_IQ4_NL, "iq4_nl", 0.076, 0x1243e3ece9a28364u},
    {MDL_IQ4_XS, "iq4_xs", 0.077, 0x71c58f29f429282du},
};
#define SEARCHED (sizeof searched / sizeof searched[0])

static void from_hex(const char *hex, void *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        ((uint8_t *)out)[i] = (uint8_t)v;
    }
}

static void test_blocks_equal_gguf_package(void **state)
{
    (void)state;
    FILE *f = fopen(KVS_SOURCE_DIR "/tests/vectors/engine/quantize.txt", "r");
    char name[8], values[300], block[160];
    uint32_t seen = 0;
    assert_non_null(f);
    while (fscanf(f, "%7s %299s %159s", name, values, block) == 3) {
        float x[32];
        uint8_t want[64], got[64] = {0};
        mdl_type type = MDL_F32;
        for (size_t t = 0; t < TYPES; t++) {
            type = strcmp(mdl_type_name(types[t]), name) == 0 ? types[t] : type;
        }
        assert_true(eng_quantize_known(type));
        from_hex(values, x, sizeof x);
        from_hex(block, want, strlen(block) / 2);
        assert_true(eng_quantize(type, x, 32, got));
        if (memcmp(got, want, strlen(block) / 2) != 0) {
            fail_msg("a block of %s differs: %s", name, values);
        }
        seen++;
    }
    (void)fclose(f);
    assert_int_equal(seen, 17 * TYPES);
}

static void test_refusals(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t t = 0; t < TYPES; t++) {
        for (size_t i = 0; i < 3; i++) {
            float x[64] = {0};
            uint8_t out[256];
            assert_true(eng_quantize(types[t], x, 64, out));
            x[40] = bad[i];
            assert_false(eng_quantize(types[t], x, 64, out));
        }
    }
    float large[32] = {3e38f}, x[256] = {0};
    uint8_t out[256];
    assert_false(eng_quantize(MDL_F16, large, 32, out));
    assert_false(eng_quantize(MDL_Q8_0, large, 32, out)); /* its scale is beyond f16 */
    assert_true(eng_quantize(MDL_BF16, large, 32, out));
    for (size_t t = 0; t < SEARCHED; t++) {
        memset(x, 0, sizeof x);
        assert_true(eng_quantize(searched[t].type, x, 256, out));
        for (size_t i = 0; i < 3; i++) {
            x[200] = bad[i];
            assert_false(eng_quantize(searched[t].type, x, 256, out));
        }
        x[200] = 3e38f; /* scales are beyond f16 */
        assert_false(eng_quantize(searched[t].type, x, 256, out));
    }
    assert_false(eng_quantize_known((mdl_type)24) || eng_quantize((mdl_type)24, x, 256, out)); /* I8 */
    static const float odd[] = {0x1.fffffep+127f, -0.0f, 0x1p-149f};
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(eng_quantize(MDL_F32, &odd[i], 1, out));
        assert_memory_equal(out, &odd[i], 4);
        assert_false(eng_quantize(MDL_F32, &bad[i], 1, out));
    }
}

/* Half a step and the rounding of the scale: what a type costs, seen through the op tables' own reading. */
static void test_error_is_half_a_step(void **state)
{
    (void)state;
    static const double steps[] = {0.0005,   0.004,    1.0 / 127, 1.0 / 7,
                                   2.0 / 15, 1.0 / 15, 2.0 / 31,  0.5}; /* of the largest */
    struct kvs_rng r = {.state = 77};
    for (size_t t = 0; t < TYPES; t++) {
        float x[512], y[512];
        uint8_t blocks[1024];
        ops_fill(&r, x, 512, KIND_PLAIN);
        assert_true(eng_quantize(types[t], x, 512, blocks));
        struct eng_weight w = ops_pack(&eng_ops_ref, types[t], 1, 512, blocks);
        eng_ops_ref.row(&w, 0, y);
        double worst = 0;
        for (uint32_t i = 0; i < 512; i++) {
            double e = fabs((double)x[i] - (double)y[i]);
            worst = e > worst ? e : worst;
        }
        print_message("%s: largest error %.5f for weights within 2\n", mdl_type_name(types[t]), worst);
        assert_true(worst > 0 && worst <= 2 * steps[t] * (types[t] == MDL_Q4_0 || types[t] == MDL_Q5_0 ? 1.01 : 0.51));
        free(w.data);
    }
}

static double squared_error(mdl_type type, const float *x, uint32_t rows, uint32_t cols, const uint8_t *blocks)
{
    struct eng_weight w = ops_pack(&eng_ops_ref, type, rows, cols, blocks);
    float *y = malloc(cols * sizeof *y);
    double e = 0;
    assert_non_null(y);
    for (uint32_t r = 0; r < rows; r++) {
        eng_ops_ref.row(&w, r, y);
        for (uint32_t i = 0; i < cols; i++) {
            double d = (double)y[i] - (double)x[(size_t)r * cols + i];
            assert_true(isfinite(y[i]));
            e += d * d;
        }
    }
    free(y);
    free(w.data);
    return e;
}

/* Sums of twelve even draws: near enough to the weights of a trained matrix, and integer arithmetic makes them. */
static void test_searched_blocks_of_normal_weights(void **state)
{
    (void)state;
    static float x[4096], part[4096];
    static uint8_t blocks[8192];
    struct kvs_rng r = {.state = 99};
    bool same = true;
    double power = 0;
    for (uint32_t k = 0; k < 12; k++) {
        ops_fill(&r, part, 4096, KIND_PLAIN);
        for (uint32_t i = 0; i < 4096; i++) {
            x[i] += part[i] * 0.0078125f;
        }
    }
    for (uint32_t i = 0; i < 4096; i++) {
        power += (double)x[i] * (double)x[i];
    }
    for (size_t t = 0; t < SEARCHED; t++) {
        uint32_t weights = 1, bytes = 0;
        uint64_t hash = 14695981039346656037u;
        assert_true(mdl_type_block(searched[t].type, &weights, &bytes));
        assert_true(eng_quantize(searched[t].type, x, 4096, blocks));
        for (uint32_t i = 0; i < 4096 / weights * bytes; i++) {
            hash = (hash ^ blocks[i]) * 1099511628211u;
        }
        double error = sqrt(squared_error(searched[t].type, x, 8, 512, blocks) / power);
        print_message("%s: error %.5f of the weights, blocks 0x%016llx\n", searched[t].file, error,
                      (unsigned long long)hash);
        assert_true(error > 0.01 && error < searched[t].error);
        same = same && hash == searched[t].hash;
    }
    assert_true(same);
}

static void test_searched_extremes(void **state)
{
    (void)state;
    for (size_t t = 0; t < SEARCHED; t++) {
        for (uint32_t k = 0; k < 8; k++) {
            float x[256] = {0};
            uint8_t blocks[512];
            double power = 0;
            for (uint32_t i = 0; i < 256; i++) {
                static const float same[] = {0.0f, 1.25f, -1.25f, 1e-30f, 1e-42f, 60000.0f};
                x[i] = k < 6 ? same[k] : i != 77 ? 0.0f : k == 6 ? 3.0f : -3.0f; /* alike, or one alone */
                power += (double)x[i] * (double)x[i];
            }
            assert_true(eng_quantize(searched[t].type, x, 256, blocks));
            double e = squared_error(searched[t].type, x, 1, 256, blocks);
            bool lost = k == 3 || k == 4; /* below every f16 scale */
            bool no_zero = searched[t].type == MDL_IQ4_NL ||
                           searched[t].type == MDL_IQ4_XS; /* the least code stands for 1 of 127 */
            if (!(e <= power * (lost ? 1.001 : no_zero ? 0.0025 : 0.0005))) {
                fail_msg("%s, case %u: error %g of %g", searched[t].file, k, e, power);
            }
        }
    }
}

struct opened {
    struct mdl_file f;
    struct mdl_gguf *g;
};

static bool open_wide(const char *type, struct opened *o)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/models/random/tiny-wide-%s.gguf", KVS_SHARED_DIR, type);
    struct kvs_error err = {0};
    return mdl_file_open(path, &o->f, &err) == KVS_OK &&
           mdl_gguf_parse(o->f.bytes, o->f.size, false, &o->g, &err) == KVS_OK;
}

static void close_wide(struct opened *o)
{
    mdl_gguf_destroy(o->g);
    mdl_file_close(&o->f);
}

/* The same f32 model, quantized by llama_model_quantize and here: root mean square errors side by side, all matrices together. */
static void test_searched_blocks_beside_llama_cpp(void **state)
{
    (void)state;
    struct opened plain = {0};
    if (!open_wide("f32", &plain)) {
        print_message("skipped: shared models are not there\n");
        close_wide(&plain);
        return;
    }
    for (size_t s = 0; s < SEARCHED; s++) {
        struct opened theirs = {0};
        double ours = 0, other = 0;
        assert_true(open_wide(searched[s].file, &theirs));
        for (uint64_t i = 0; i < mdl_gguf_tensor_count(theirs.g); i++) {
            const struct mdl_tensor *t = mdl_gguf_tensor_at(theirs.g, i);
            if (t->type != searched[s].type) {
                continue;
            }
            char name[64];
            (void)snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.data);
            const struct mdl_tensor *from = mdl_gguf_tensor(plain.g, name);
            assert_non_null(from);
            uint32_t cols = (uint32_t)t->shape[0], rows = (uint32_t)t->shape[1];
            size_t n = (size_t)rows * cols;
            float *x = malloc(n * sizeof *x);
            uint8_t *blocks = malloc((size_t)t->bytes);
            assert_true(x && blocks && from->type == MDL_F32 && from->shape[0] == cols && from->shape[1] == rows);
            memcpy(x, from->data, n * sizeof *x);
            assert_true(eng_quantize(t->type, x, n, blocks));
            ours += squared_error(t->type, x, rows, cols, blocks);
            other += squared_error(t->type, x, rows, cols, t->data);
            free(x);
            free(blocks);
        }
        print_message("%s: error %.4f times llama.cpp's\n", searched[s].file, sqrt(ours / other));
        assert_true(other > 0 && sqrt(ours / other) < 1.005);
        close_wide(&theirs);
    }
    close_wide(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_equal_gguf_package), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_error_is_half_a_step),      cmocka_unit_test(test_searched_blocks_of_normal_weights),
        cmocka_unit_test(test_searched_extremes),         cmocka_unit_test(test_searched_blocks_beside_llama_cpp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
