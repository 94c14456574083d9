/* ops_test.c - every op of every table against the reference, bit for bit, over random shapes: sizes that fill no register,
 * subnormals, huge values, NaN. The reference itself is held to double precision and to vectors of the gguf package.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/engine/opsrig.h"
#include "engine/ops/scalar.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct eng_ops *tables[2];
static uint32_t table_count;

#define PRODUCT_ERROR 3e-5 /* of the sum of magnitudes; a worst case of half a step of the activations everywhere */

static void test_products(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 11};
    for (uint32_t i = 0; i < 640; i++) {
        mdl_type type = ops_types[i % OPS_TYPES];
        uint32_t rows = 1 + (uint32_t)kvs_rng_below(&r, 50), n = 1 + (uint32_t)kvs_rng_below(&r, 15);
        uint32_t cols = 1 + (uint32_t)kvs_rng_below(&r, i % 112 < 16 ? 4500 : 200); /* beyond one run of k too */
        cols = (cols + eng_ops_multiple(type) - 1) / eng_ops_multiple(type) * eng_ops_multiple(type);
        size_t size, x_stride = cols + kvs_rng_below(&r, 20), y_count = (size_t)n * (rows + ENG_STRIP);
        uint8_t *bytes = ops_weight_bytes(&r, type, rows, cols, &size);
        float *x = calloc(n * x_stride, sizeof *x), *y[2];
        ops_fill(&r, x, n * x_stride, (kind)kvs_rng_below(&r, 4));
        for (uint32_t t = 0; t < table_count; t++) {
            struct eng_weight w = ops_pack(tables[t], type, rows, cols, bytes);
            y[t] = calloc(y_count, sizeof *y[t]);
            ops_product(tables[t], &w, x, x_stride, n, y[t]);
            if (memcmp(y[0], y[t], y_count * sizeof(float)) != 0) {
                fail_msg("%s differs: type %s, %u x %u, %u rows", tables[t]->name, mdl_type_name(type), rows, cols, n);
            }
            float *row[2] = {calloc(cols, 4), calloc(cols, 4)};
            struct eng_weight ref = ops_pack(tables[0], type, rows, cols, bytes);
            tables[0]->row(&ref, rows - 1, row[0]);
            tables[t]->row(&w, rows - 1, row[1]);
            assert_memory_equal(row[0], row[1], cols * 4);
            free(row[0]);
            free(row[1]);
            free(ref.data);
            free(w.data);
        }
        for (uint32_t t = 0; t < table_count; t++) {
            free(y[t]);
        }
        free(x);
        free(bytes);
    }
}

/* The reference product against double precision: what a wrong formula would miss by far. Error is measured against the sum
 * of magnitudes: an activation is off by at most 1/65534 of the largest of its block, and these are half as large on average. */
static void test_reference_product_is_right(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 5};
    for (uint32_t t = 0; t < OPS_TYPES; t++) {
        uint32_t rows = 50, cols = 768;
        size_t size;
        uint8_t *bytes = ops_weight_bytes(&r, ops_types[t], rows, cols, &size);
        struct eng_weight w = ops_pack(&eng_ops_ref, ops_types[t], rows, cols, bytes);
        float x[768], row[768], y[64];
        double worst = 0;
        ops_fill(&r, x, cols, KIND_PLAIN);
        ops_product(&eng_ops_ref, &w, x, cols, 1, y);
        for (uint32_t o = 0; o < rows; o++) {
            double exact = 0, size_of = 0;
            eng_ops_ref.row(&w, o, row);
            for (uint32_t k = 0; k < cols; k++) {
                exact += (double)row[k] * (double)x[k];
                size_of += fabs((double)row[k] * (double)x[k]);
            }
            double error = size_of > 0 ? fabs((double)y[o] - exact) / size_of : fabs((double)y[o]);
            worst = error > worst ? error : worst;
        }
        print_message("%s: largest product error %.2g of the sum of magnitudes\n", mdl_type_name(ops_types[t]), worst);
        assert_true(worst <= PRODUCT_ERROR);
        free(w.data);
        free(bytes);
    }
}

static void test_quantize(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 21};
    for (uint32_t i = 0; i < 3000; i++) {
        float x[96];
        int16_t q[2][96];
        float dx[2][3], sx[2][3];
        int32_t sum[2][3];
        bool good[2] = {true, true};
        ops_fill(&r, x, 96, (kind)(i % 4));
        if (i % 7 == 0) {
            x[kvs_rng_below(&r, 96)] = i % 2 ? NAN : i % 3 ? INFINITY : -INFINITY;
        }
        if (i % 11 == 0) {
            x[kvs_rng_below(&r, 96)] = i % 2 ? 3.4e38f : 0x1p-100f;
        }
        for (uint32_t t = 0; t < table_count; t++) {
            good[t] = tables[t]->quantize(x, 96, q[t], dx[t], sx[t], sum[t]);
            assert_true(good[t] == good[0]);
            assert_memory_equal(q[t], q[0], sizeof q[0]);
            assert_memory_equal(dx[t], dx[0], sizeof dx[0]);
            assert_memory_equal(sx[t], sx[0], sizeof sx[0]);
            assert_memory_equal(sum[t], sum[0], sizeof sum[0]);
        }
        assert_true(good[0] == (i % 7 != 0));
        for (uint32_t b = 0; b < 3 && good[0]; b++) { /* half a step from the value, give or take rounding */
            for (uint32_t k = b * 32; k < b * 32 + 32 && dx[0][b] > 0; k++) {
                assert_true(fabs((double)x[k] - (double)dx[0][b] * q[0][k]) <= (double)dx[0][b] * 0.502);
            }
        }
    }
}

static void test_rows(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 31};
    for (uint32_t i = 0; i < 2000; i++) {
        uint32_t n = 1 + (uint32_t)kvs_rng_below(&r, 130);
        kind k = (kind)(i % 4);
        float x[130], w[130], y[2][130], g[2][130];
        bool good[2] = {false, false};
        ops_fill(&r, x, n, k);
        ops_fill(&r, w, n, KIND_PLAIN);
        if (i % 9 == 0) {
            x[kvs_rng_below(&r, n)] = i % 2 ? NAN : 3e38f;
        }
        float max = w[0];
        for (uint32_t j = 0; j < n; j++) {
            max = w[j] > max ? w[j] : max;
        }
        for (uint32_t t = 0; t < table_count; t++) {
            good[t] = tables[t]->norm(x, i % 5 == 0 ? NULL : w, n, 1e-5f, y[t]);
            assert_true(good[t] == good[0]);
            if (good[0]) {
                assert_memory_equal(y[t], y[0], n * 4);
            }
            memcpy(g[t], w, n * 4);
            tables[t]->add(g[t], w, n);
            if (i % 9 != 0) {
                tables[t]->add(g[t], x, n);
                tables[t]->silu_mul(g[t], x, n);
            }
            assert_memory_equal(g[t], g[0], n * 4);
            assert_true(tables[t]->below(x, n, 2.0f) == tables[0]->below(x, n, 2.0f));
            assert_true(tables[t]->below(x, n, INFINITY) == (i % 9 != 0 || i % 2 == 0));
            float a = tables[t]->sum_exp(w, n, max, 0.7f), b = tables[0]->sum_exp(w, n, max, 0.7f);
            assert_memory_equal(&a, &b, 4);
        }
        assert_true(good[0] == (i % 9 != 0));
    }
}

static void test_rope(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 41};
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t heads = 1 + (uint32_t)kvs_rng_below(&r, 4), dim = 2 + (uint32_t)kvs_rng_below(&r, 40);
        uint32_t dims = 2 * (1 + (uint32_t)kvs_rng_below(&r, dim / 2));
        float x[2][168], c[21], s[21];
        ops_fill(&r, x[0], heads * dim, KIND_PLAIN);
        ops_fill(&r, c, 21, KIND_PLAIN);
        ops_fill(&r, s, 21, KIND_PLAIN);
        memcpy(x[1], x[0], sizeof x[0]);
        for (uint32_t t = 0; t < table_count; t++) {
            tables[t]->rope(x[t], heads, dim, dims, c, s);
            assert_memory_equal(x[t], x[0], heads * dim * 4);
        }
        float pairs[2][168], halves[2][168]; /* the same rotation with its numbers in another order */
        for (uint32_t t = 0; t < table_count; t++) {
            memcpy(pairs[t], x[0], sizeof pairs[t]);
            memcpy(halves[t], x[0], sizeof halves[t]);
            for (uint32_t h = 0; h < heads; h++) {
                for (uint32_t j = 0; j < dims / 2; j++) {
                    halves[t][h * dim + j] = pairs[t][h * dim + 2 * j];
                    halves[t][h * dim + dims / 2 + j] = pairs[t][h * dim + 2 * j + 1];
                }
            }
            tables[0]->rope(pairs[t], heads, dim, dims, c, s);
            tables[t]->rope_neox(halves[t], heads, dim, dims, c, s);
            for (uint32_t h = 0; h < heads; h++) {
                for (uint32_t j = 0; j < dims / 2; j++) {
                    assert_memory_equal(&halves[t][h * dim + j], &pairs[t][h * dim + 2 * j], 4);
                    assert_memory_equal(&halves[t][h * dim + dims / 2 + j], &pairs[t][h * dim + 2 * j + 1], 4);
                }
            }
        }
    }
}

static void test_exp(void **state)
{
    (void)state;
    assert_true(eng_exp(0.0f) == 1.0f && eng_exp(-0.0f) == 1.0f);
    assert_true(eng_exp(-87.1f) == 0.0f && eng_exp(-INFINITY) == 0.0f && eng_exp(NAN) == 0.0f);
    assert_true(eng_exp(89.0f) == eng_exp(88.0f));
    for (float x = -87.0f; x < 88.0f; x += 0.00371f) {
        double want = exp((double)x);
        assert_true(fabs((double)eng_exp(x) - want) <= want * 2.5e-7);
        for (uint32_t t = 0; t < table_count; t++) {
            float a = tables[t]->sum_exp((float[16]){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}, 16, 0.0f, 1.0f);
            float b = 16.0f * eng_exp(x);
            assert_memory_equal(&a, &b, 4);
        }
    }
}

static void test_attention(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 51};
    static const uint32_t lasts[] = {0, 1, 15, 16, 31, 40, 62, 63, 64, 100, 127, 128, 500, 511, 512, 600, 1030};
    static const uint32_t dims[] = {1, 4, 8, 16, 20, 24, 32, 33, 64, 72, 128};
    for (uint32_t i = 0; i < 700; i++) {
        struct attn_case c = {.key_dim = dims[kvs_rng_below(&r, 11)],
                              .value_dim = dims[kvs_rng_below(&r, 11)],
                              .block_tokens = 1u << kvs_rng_below(&r, 10),
                              .last = lasts[kvs_rng_below(&r, 17)],
                              .count = 1 + (uint32_t)kvs_rng_below(&r, i % 3 == 0 ? 64 : 9),
                              .heads = 1 + (uint32_t)kvs_rng_below(&r, 5),
                              .type = (kvc_type)(i % 3),
                              .values = i % 5 == 0 ? KIND_WIDE : KIND_PLAIN,
                              .seed = kvs_rng_next(&r)};
        if (i >= 300 && i < 400) { /* rows of one latent, 576 as large models have it once */
            c.latent = true;
            c.key_dim = i == 300 ? 576 : c.key_dim;
            c.value_dim = i == 300 ? 512 : c.value_dim < c.key_dim ? c.value_dim : c.key_dim;
        }
        c.cap = i % 7 == 3 ? 0.5f + (float)(i % 50) : 0.0f;
        if (i >= 400) {
            c.window = 1 + (uint32_t)kvs_rng_below(&r, i % 2 ? 70 : 600);
        }
        size_t n = (size_t)c.count * c.value_dim, page_bytes[2];
        float *out[2] = {calloc(n, 4), calloc(n, 4)};
        uint8_t *pages[2];
        for (uint32_t t = 0; t < table_count; t++) {
            ops_attention(tables[t], &c, out[t], &pages[t], &page_bytes[t]);
            assert_memory_equal(pages[t], pages[0], page_bytes[0]);
            if (memcmp(out[t], out[0], n * 4) != 0) {
                fail_msg("%s differs: %s dims %u %u, block %u, last %u, rows %u, window %u, %s", tables[t]->name,
                         c.latent ? "latent" : "", c.key_dim, c.value_dim, c.block_tokens, c.last, c.count, c.window,
                         kvc_type_name(c.type));
            }
        }
        for (uint32_t t = 0; t < table_count; t++) {
            free(pages[t]);
        }
        free(out[0]);
        free(out[1]);
    }
}

/* 8-bit pages for every number of rows, since few read the codes and many a widened tile: heads whose last scale has fewer than
 * 32 dims or whose lanes end odd, tiles inside longer blocks, shorter blocks, tiles that are not full, windows, latents. */
static void test_attention_over_eight_bits(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 97};
    static const uint32_t dims[] = {1, 7, 31, 32, 33, 40, 63, 64, 65, 80, 96, 100, 128, 200};
    for (uint32_t i = 0; i < 512; i++) {
        struct attn_case c = {.key_dim = dims[kvs_rng_below(&r, 14)],
                              .value_dim = dims[kvs_rng_below(&r, 14)],
                              .block_tokens = 1u << (i % 4 == 3 ? kvs_rng_below(&r, 6) : 6 + kvs_rng_below(&r, 4)),
                              .last = (uint32_t)kvs_rng_below(&r, i % 5 == 0 ? 1100 : 200),
                              .count = 1 + i % 64,
                              .heads = 1 + (uint32_t)kvs_rng_below(&r, 9),
                              .type = KVC_Q8_0,
                              .values = i % 6 == 0 ? KIND_WIDE : KIND_PLAIN,
                              .cap = i % 5 == 2 ? 1.5f : 0.0f,
                              .window = i % 3 == 0 ? 1 + (uint32_t)kvs_rng_below(&r, 150) : 0,
                              .latent = i % 8 == 5,
                              .seed = kvs_rng_next(&r)};
        if (c.latent && c.value_dim > c.key_dim) {
            c.value_dim = c.key_dim;
        }
        size_t n = (size_t)c.count * c.value_dim;
        float *out[2] = {calloc(n, 4), calloc(n, 4)};
        for (uint32_t t = 0; t < table_count; t++) {
            ops_attention(tables[t], &c, out[t], NULL, NULL);
            if (memcmp(out[t], out[0], n * 4) != 0) {
                fail_msg("%s differs: %s dims %u %u, block %u, last %u, rows %u, window %u", tables[t]->name,
                         c.latent ? "latent" : "", c.key_dim, c.value_dim, c.block_tokens, c.last, c.count, c.window);
            }
        }
        free(out[0]);
        free(out[1]);
    }
}

/* 8-bit pages as layout.h describes them: each number is half a step off at most, and the largest of 32 sets the step. */
static void test_eight_bit_pages(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 59};
    for (uint32_t i = 0; i < 60; i++) {
        enum { KEY = 72, VALUE = 40, TOKENS = 16, KEY_SCALES = TOKENS * (KEY + VALUE) };
        enum { VALUE_SCALES = KEY_SCALES + 2 * TOKENS * 3, BYTES = VALUE_SCALES + 2 * TOKENS * 2 };
        static uint8_t page[2][(BYTES + 63) / 64 * 64];
        const uint32_t zero = 0;
        float k[KEY], v[VALUE];
        uint32_t at = (uint32_t)kvs_rng_below(&r, TOKENS);
        ops_fill(&r, k, KEY, (kind)(i % 3));
        ops_fill(&r, v, VALUE, (kind)(i % 3));
        memset(page, 0, sizeof page);
        for (uint32_t t = 0; t < table_count; t++) {
            struct eng_kv_view view = {.base = page[t],
                                       .page = &zero,
                                       .block_tokens = TOKENS,
                                       .block_shift = 4,
                                       .key_dim = KEY,
                                       .value_dim = VALUE,
                                       .type = KVC_Q8_0,
                                       .value_offset = TOKENS * KEY,
                                       .key_scale_offset = KEY_SCALES,
                                       .value_scale_offset = VALUE_SCALES};
            tables[t]->kv_write(&view, at, k, v);
            assert_memory_equal(page[t], page[0], BYTES);
        }
        for (uint32_t d = 0; d < KEY + VALUE; d++) {
            bool key = d < KEY;
            uint32_t e = key ? d : d - KEY, first = e / 32 * 32, end = key ? KEY : VALUE;
            size_t scale = key ? KEY_SCALES + 2 * (e / 32 * TOKENS + at) : VALUE_SCALES + 2 * (at * 2 + e / 32);
            int8_t code = (int8_t)page[0][key ? d * TOKENS + at : TOKENS * KEY + at * VALUE + e];
            const float *x = key ? k : v;
            uint16_t half;
            double most = 0;
            memcpy(&half, page[0] + scale, 2);
            for (uint32_t j = first; j < first + 32 && j < end; j++) {
                most = fmax(most, fabs((double)x[j]));
            }
            double step = (double)eng_f16_to_f32(half), tiny = 0x1p-25; /* half of f16's least step */
            assert_true(fabs(step - most / 127) <= most / 127 * 0x1p-11 + tiny);
            assert_true(fabs((double)x[e] - step * code) <= step * 0.5 + most * 0x1p-10 + 127 * tiny);
        }
    }
}

/* A window is a mask: the same numbers as softmax over the keys that are left, in double. */
static void test_window_is_right(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 57};
    for (uint32_t i = 0; i < 40; i++) {
        enum { DIM = 8, COUNT = 6 };
        struct attn_case c = {.key_dim = DIM,
                              .value_dim = DIM,
                              .block_tokens = 1u << kvs_rng_below(&r, 8),
                              .last = 5 + (uint32_t)kvs_rng_below(&r, 700),
                              .count = COUNT,
                              .heads = 1,
                              .type = KVC_F32,
                              .values = KIND_PLAIN,
                              .seed = kvs_rng_next(&r),
                              .window = 1 + (uint32_t)kvs_rng_below(&r, 90)};
        struct kvs_rng again = {.state = c.seed};
        static float k[720][DIM], v[720][DIM], q[COUNT][DIM], out[COUNT * DIM];
        for (uint32_t p = 0; p <= c.last; p++) {
            ops_fill(&again, k[p], DIM, KIND_PLAIN);
            ops_fill(&again, v[p], DIM, KIND_PLAIN);
        }
        ops_fill(&again, &q[0][0], (size_t)COUNT * DIM, KIND_PLAIN);
        for (uint32_t t = 0; t < table_count; t++) {
            ops_attention(tables[t], &c, out, NULL, NULL);
            for (uint32_t row = 0; row < COUNT; row++) {
                uint32_t tile = c.last / ENG_TILE * ENG_TILE, back = COUNT - 1 - row;
                uint32_t pos = c.last - tile >= back ? c.last - back : tile;
                double sum = 0, o[DIM] = {0};
                for (uint32_t p = pos + 1 > c.window ? pos + 1 - c.window : 0; p <= pos; p++) {
                    double s = 0;
                    for (uint32_t d = 0; d < DIM; d++) {
                        s += (double)k[p][d] * (double)q[row][d];
                    }
                    s = exp(s / sqrt(DIM));
                    sum += s;
                    for (uint32_t d = 0; d < DIM; d++) {
                        o[d] += s * (double)v[p][d];
                    }
                }
                for (uint32_t d = 0; d < DIM; d++) {
                    assert_true(fabs((double)out[row * DIM + d] - o[d] / sum) < 1e-4);
                }
            }
        }
    }
}

/* Gates and small row operations: every table gives the reference's bits, and those are near the formula in double. */
static void test_gates(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 61};
    for (uint32_t i = 0; i < 600; i++) {
        uint32_t n = 1 + (uint32_t)kvs_rng_below(&r, 70);
        float g[70], u[70], y[2][3][70];
        ops_fill(&r, g, n, (kind)(i % 4));
        ops_fill(&r, u, n, (kind)(i / 4 % 4));
        if (i % 7 == 0) {
            g[kvs_rng_below(&r, n)] = i % 2 ? 3e38f : -3e38f;
            u[kvs_rng_below(&r, n)] = i % 2 ? -INFINITY : NAN;
        }
        for (uint32_t t = 0; t < table_count; t++) {
            for (uint32_t j = 0; j < 3; j++) {
                memcpy(y[t][j], g, sizeof g);
            }
            tables[t]->clamped_swiglu(y[t][0], u, n);
            if (i % 7 != 0) {
                tables[t]->gelu_mul(y[t][1], u, n);
                tables[t]->scale(y[t][2], 0.37f, n);
                tables[t]->add_scaled(y[t][2], u, -1.7f, n);
            }
            for (uint32_t j = 0; j < 3; j++) {
                assert_memory_equal(y[t][j], y[0][j], n * 4);
            }
        }
        for (uint32_t j = 0; j < n && i % 4 == 0 && i % 7 != 0; j++) {
            double x = (double)g[j], top = x < 7 ? x : 7, up = (double)u[j];
            up = up > 7 ? 7 : up < -7 ? -7 : up;
            double gelu = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x))) * (double)u[j];
            double swiglu = top / (1 + exp(-1.702 * top)) * (up + 1);
            assert_true(fabs((double)y[0][0][j] - swiglu) <= 1e-6 * (1 + fabs(swiglu)));
            assert_true(fabs((double)y[0][1][j] - gelu) <= 1e-6 * (1 + fabs(gelu)));
        }
    }
}

/* A soft cap: the tables agree on every bit, the C library's tanh is near, and nothing gets beyond the cap. */
static void test_softcap(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 67};
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t n = 1 + (uint32_t)kvs_rng_below(&r, 70);
        float cap = i % 3 == 0 ? 30.0f : 0.5f * (float)(1 + kvs_rng_below(&r, 200)), x[70], y[2][70];
        ops_fill(&r, x, n, (kind)(i % 4));
        if (i % 5 == 0) {
            x[0] = i % 2 ? 3e38f : -0.0f;
        }
        for (uint32_t t = 0; t < table_count; t++) {
            memcpy(y[t], x, sizeof x);
            tables[t]->softcap(y[t], cap, n);
            assert_memory_equal(y[t], y[0], n * 4);
        }
        for (uint32_t j = 0; j < n; j++) {
            assert_true(fabs((double)y[0][j] - (double)cap * tanh((double)x[j] / (double)cap)) <= 3e-7 * (double)cap);
            assert_true(fabsf(y[0][j]) <= cap && signbit(y[0][j]) == signbit(x[j]));
        }
    }
}

/* A latent page is another place for the same numbers. */
static void test_latent_equals_shared_keys(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 53};
    for (uint32_t i = 0; i < 60; i++) {
        float out[2][9 * 40];
        struct attn_case c = {.key_dim = 40 + (uint32_t)kvs_rng_below(&r, 30),
                              .value_dim = 1 + (uint32_t)kvs_rng_below(&r, 40),
                              .block_tokens = 1u << kvs_rng_below(&r, 10),
                              .last = (uint32_t)kvs_rng_below(&r, 700),
                              .count = 9,
                              .heads = 3,
                              .type = i % 2 ? KVC_F16
                                            : KVC_F32, /* 8 bits: the last value dims share their scale with fewer */
                              .values = KIND_PLAIN,
                              .seed = kvs_rng_next(&r),
                              .shared = true};
        for (uint32_t t = 0; t < table_count; t++) {
            c.latent = false;
            ops_attention(tables[t], &c, out[0], NULL, NULL);
            c.latent = true;
            ops_attention(tables[t], &c, out[1], NULL, NULL);
            assert_memory_equal(out[0], out[1], (size_t)c.count * c.value_dim * 4);
        }
    }
}

/* DeepSeek's sizes: a latent of 512 beside 64 rotated numbers, 16 heads and more of one sequence; in several tiles and segments, against a
 * softmax in double over the same numbers. */
static void test_large_latents_are_right(void **state)
{
    (void)state;
    enum { KEY = 576, VALUE = 512, LAST = 1090, MOST = 48 };
    float *k = calloc((size_t)(LAST + 1) * KEY, sizeof *k), *q = calloc((size_t)MOST * KEY, sizeof *q);
    float *out[2] = {calloc((size_t)MOST * VALUE, sizeof(float)), calloc((size_t)MOST * VALUE, sizeof(float))};
    static double score[LAST + 1];
    for (uint32_t i = 0; i < 3; i++) {
        struct attn_case c = {.key_dim = KEY,
                              .value_dim = VALUE,
                              .block_tokens = 16u << i,
                              .last = i == 0 ? 70 : LAST,
                              .heads = 16,
                              .count = i == 2 ? MOST : 16,
                              .type = KVC_F32,
                              .values = KIND_PLAIN,
                              .seed = 11 + i,
                              .latent = true};
        struct kvs_rng r = {.state = c.seed};
        for (uint32_t p = 0; p <= c.last; p++) {
            ops_fill(&r, k + (size_t)p * KEY, KEY, c.values);
        }
        ops_fill(&r, q, (size_t)c.count * KEY, KIND_PLAIN);
        for (uint32_t t = 0; t < table_count; t++) {
            ops_attention(tables[t], &c, out[t], NULL, NULL);
            assert_memory_equal(out[t], out[0], (size_t)c.count * VALUE * 4);
        }
        for (uint32_t row = 0; row < c.count; row += 5) {
            uint32_t pos = c.last - (c.count - 1 - row) / c.heads;
            double max = -INFINITY, sum = 0, worst = 0;
            for (uint32_t p = 0; p <= pos; p++) {
                score[p] = 0;
                for (uint32_t d = 0; d < KEY; d++) {
                    score[p] += (double)q[(size_t)row * KEY + d] * (double)k[(size_t)p * KEY + d];
                }
                score[p] /= sqrt(KEY);
                max = fmax(max, score[p]);
            }
            for (uint32_t p = 0; p <= pos; p++) {
                sum += score[p] = exp(score[p] - max);
            }
            for (uint32_t d = 0; d < VALUE; d++) {
                double want = 0;
                for (uint32_t p = 0; p <= pos; p++) {
                    want += score[p] / sum * (double)k[(size_t)p * KEY + d];
                }
                worst = fmax(worst, fabs(want - (double)out[0][(size_t)row * VALUE + d]));
            }
            assert_true(worst < 2e-5);
        }
    }
    free(k);
    free(q);
    free(out[0]);
    free(out[1]);
}

/* The block size changes where keys lie and nothing else. */
static void test_attention_ignores_block_size(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < table_count; t++) {
        float first[12 * 24], out[12 * 24];
        for (uint32_t shift = 0; shift <= 9; shift++) {
            struct attn_case c = {.key_dim = 16,
                                  .value_dim = 24,
                                  .block_tokens = 1u << shift,
                                  .last = 583,
                                  .count = 12,
                                  .heads = 3,
                                  .type = KVC_F16,
                                  .values = KIND_PLAIN,
                                  .seed = 99};
            ops_attention(tables[t], &c, shift == 0 ? first : out, NULL, NULL);
            if (shift > 0) {
                assert_memory_equal(out, first, sizeof out);
            }
        }
    }
}

static void from_hex(const char *hex, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (uint8_t)v;
    }
}

/* CRC-32 as zlib has it. */
static uint32_t crc_of(const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint32_t c = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++) {
            c = (c & 1) != 0 ? c >> 1 ^ 0xedb88320u : c >> 1;
        }
    }
    return ~c;
}

/* One line of the vectors by every op table; values: hex, or "crc:" and the CRC-32 of what the hex would be. */
static void check_block(const char *name, mdl_type type, const char *block, const char *values)
{
    static uint8_t bytes[256], want[1024];
    uint32_t weights = 1, size = 1;
    size_t n = strlen(block) / 2;
    assert_true(mdl_type_block(type, &weights, &size));
    uint32_t count = (uint32_t)n / size * weights;
    bool whole = strncmp(values, "crc:", 4) != 0;
    assert_true(n <= sizeof bytes && count > 0 && count <= 256 && strlen(values) == (whole ? 8 * count : 12));
    from_hex(block, bytes, n);
    if (whole) {
        from_hex(values, want, 4 * count);
    }
    for (uint32_t t = 0; t < table_count; t++) {
        float x[256];
        struct eng_weight w = ops_pack(tables[t], type, 1, count, bytes);
        tables[t]->row(&w, 0, x);
        free(w.data);
        for (uint32_t i = 0; i < count; i++) {
            x[i] = x[i] != x[i] ? eng_f32_from_bits(0x7fc00000) : x[i]; /* any NaN is as good as another */
        }
        if (whole ? memcmp(x, want, 4 * count) != 0 : crc_of(x, 4 * count) != (uint32_t)strtoul(values + 4, NULL, 16)) {
            fail_msg("%s: a block of %s differs: %s", tables[t]->name, name, block);
        }
    }
}

static void test_blocks_equal_gguf_package(void **state)
{
    (void)state;
    FILE *f = fopen(KVS_SOURCE_DIR "/tests/vectors/engine/dequant.txt", "r");
    static char name[8], block[512], values[2100];
    uint32_t seen[OPS_TYPES] = {0};
    assert_non_null(f);
    while (fscanf(f, "%7s %511s %2099s", name, block, values) == 3) {
        uint32_t at = 0;
        while (at < OPS_TYPES && strcmp(mdl_type_name(ops_types[at]), name) != 0) {
            at++;
        }
        assert_true(at < OPS_TYPES);
        check_block(name, ops_types[at], block, values);
        seen[at]++;
    }
    (void)fclose(f);
    for (uint32_t t = 0; t < OPS_TYPES; t++) {
        assert_true(ops_types[t] == MDL_F32 || seen[t] >= 64);
    }
}

int main(void)
{
    table_count = ops_tables(tables);
    for (uint32_t t = 0; t < table_count; t++) {
        print_message("op table: %s\n", tables[t]->name);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_reference_product_is_right),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_over_eight_bits),
        cmocka_unit_test(test_window_is_right),
        cmocka_unit_test(test_eight_bit_pages),
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_latent_equals_shared_keys),
        cmocka_unit_test(test_large_latents_are_right),
        cmocka_unit_test(test_attention_ignores_block_size),
        cmocka_unit_test(test_blocks_equal_gguf_package),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
