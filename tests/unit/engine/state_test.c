/* state_test.c - softplus, convolution and scans: the reference against NumPy's closed forms (tests/vectors/engine/state.txt),
 * every op table against the reference bit for bit, any cutting of rows or dealing of channels against one call, and
 * digests of the bits.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/ops/scalar.h"
#include "tests/unit/engine/opsrig.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define VECTORS KVS_SOURCE_DIR "/tests/vectors/engine/state.txt"
#define CHANNELS 200u
#define ROWS 12u
#define SIZE 20u
static const struct eng_ops *tables[2];
static uint32_t table_count;

static void numbers(FILE *f, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(fscanf(f, "%f", &out[i]), 1);
    }
}

static void near(const float *got, const float *want, size_t n, double bound)
{
    for (size_t i = 0; i < n; i++) {
        double size = fabs((double)want[i]) > 1 ? fabs((double)want[i]) : 1;
        if (!(fabs((double)got[i] - (double)want[i]) <= bound * size)) {
            fail_msg("value %zu is %.9g where %.9g is expected", i, (double)got[i], (double)want[i]);
        }
    }
}

static void check_softplus(FILE *f)
{
    uint32_t n;
    float x[64], bias[64], want[64];
    assert_int_equal(fscanf(f, "%u", &n), 1);
    assert_true(n <= 64);
    numbers(f, x, n);
    numbers(f, bias, n);
    numbers(f, want, n);
    eng_ops_ref.softplus(x, bias, n);
    near(x, want, n, 3e-7);
    for (uint32_t i = 0; i < n; i++) { /* small values keep their digits too */
        if (want[i] > 1e-30f) {
            assert_true(fabs((double)x[i] - (double)want[i]) <= (double)want[i] * 3e-5);
        }
    }
}

static void check_conv(FILE *f)
{
    uint32_t k, n, rows, with_bias;
    float state[64], x[64], w[64], bias[16], want[64], left[64], y[64];
    assert_int_equal(fscanf(f, "%u %u %u %u", &k, &n, &rows, &with_bias), 4);
    numbers(f, state, (size_t)(k - 1) * n);
    numbers(f, x, (size_t)rows * n);
    numbers(f, w, (size_t)k * n);
    numbers(f, bias, n);
    numbers(f, want, (size_t)rows * n);
    numbers(f, left, (size_t)(k - 1) * n);
    struct eng_conv c = {.state = state,
                         .weight = w,
                         .bias = with_bias ? bias : NULL,
                         .kernel = k,
                         .channels = n,
                         .rows = rows,
                         .x = x,
                         .y = y,
                         .x_stride = n,
                         .y_stride = n};
    eng_ops_ref.conv1d(&c, 0, n);
    near(y, want, (size_t)rows * n, 1e-6);
    near(state, left, (size_t)(k - 1) * n, 0);
}

static void check_scan(FILE *f, bool heads)
{
    uint32_t count = 0, dim = 1, share = 1, size, rows;
    float state[256], x[256], dt[64], a[64], d[64], b[64], c[64], want[256], left[256];
    if (heads) {
        assert_int_equal(fscanf(f, "%u %u %u %u %u", &count, &dim, &share, &size, &rows), 5);
    } else {
        assert_int_equal(fscanf(f, "%u %u %u", &count, &size, &rows), 3);
    }
    size_t n = (size_t)count * dim, groups = heads ? count / share : 1;
    numbers(f, state, size * n);
    numbers(f, x, rows * n);
    numbers(f, dt, (size_t)rows * count);
    numbers(f, a, heads ? count : size * n);
    numbers(f, d, count);
    numbers(f, b, rows * groups * size);
    numbers(f, c, rows * groups * size);
    numbers(f, want, rows * n);
    numbers(f, left, size * n);
    struct eng_scan s = {.state = state,
                         .state_size = size,
                         .channels = (uint32_t)n,
                         .rows = rows,
                         .head_dim = dim,
                         .heads_per_group = share,
                         .a = a,
                         .d = d,
                         .x = x,
                         .dt = dt,
                         .b = b,
                         .c = c,
                         .y = x,
                         .x_stride = n,
                         .dt_stride = count,
                         .bc_stride = groups * size,
                         .y_stride = n};
    (heads ? eng_ops_ref.scan_heads : eng_ops_ref.scan)(&s, 0, count);
    near(x, want, rows * n, 3e-6);
    near(state, left, size * n, 3e-6);
}

static void test_closed_forms(void **unused)
{
    (void)unused;
    char word[16];
    uint32_t lines = 0;
    FILE *f = fopen(VECTORS, "r");
    assert_non_null(f);
    while (fscanf(f, "%15s", word) == 1) {
        if (strcmp(word, "softplus") == 0) {
            check_softplus(f);
        } else if (strcmp(word, "conv") == 0) {
            check_conv(f);
        } else {
            assert_true(strcmp(word, "scan") == 0 || strcmp(word, "heads") == 0);
            check_scan(f, strcmp(word, "heads") == 0);
        }
        lines++;
    }
    (void)fclose(f);
    assert_int_equal(lines, 7);
}

/* A random case: shapes, inputs, and what a run leaves. */
struct work {
    struct eng_conv conv;
    struct eng_scan scan;
    uint32_t units; /* channels, or heads */
    float state[SIZE * CHANNELS], past[ENG_CONV_MAX * CHANNELS], y[ROWS * (CHANNELS + 3)];
};
static float in_x[ROWS * (CHANNELS + 3)], in_dt[ROWS * CHANNELS], in_a[SIZE * CHANNELS], in_d[CHANNELS],
    in_b[ROWS * SIZE * CHANNELS], in_c[ROWS * SIZE * CHANNELS], in_w[ENG_CONV_MAX * CHANNELS],
    in_state[SIZE * CHANNELS];

static void make(struct kvs_rng *r, struct work *w, bool heads)
{
    uint32_t dim = heads ? 1 + (uint32_t)kvs_rng_below(r, 70) : 1, most = CHANNELS / dim;
    uint32_t share = heads ? 1 + (uint32_t)kvs_rng_below(r, 3) : 1;
    uint32_t units = 1 + (uint32_t)kvs_rng_below(r, heads && most > 7 ? 7 : most);
    uint32_t n = units * dim, rows = 1 + (uint32_t)kvs_rng_below(r, ROWS), size = 1 + (uint32_t)kvs_rng_below(r, SIZE);
    size_t bc = (size_t)((units + share - 1) / share) * size;
    kind k = (kind)kvs_rng_below(r, 4);
    ops_fill(r, in_x, ROWS * (CHANNELS + 3), k);
    ops_fill(r, in_dt, ROWS * CHANNELS, KIND_PLAIN);
    for (uint32_t i = 0; i < ROWS * CHANNELS; i++) {
        in_dt[i] = fabsf(in_dt[i]);
    }
    ops_fill(r, in_a, SIZE * CHANNELS, kvs_rng_below(r, 2) ? KIND_PLAIN : KIND_WIDE);
    for (uint32_t i = 0; i < SIZE * CHANNELS; i++) {
        in_a[i] = -20 * fabsf(in_a[i]);
    }
    ops_fill(r, in_d, CHANNELS, KIND_PLAIN);
    ops_fill(r, in_b, ROWS * bc, KIND_PLAIN);
    ops_fill(r, in_c, ROWS * bc, KIND_PLAIN);
    ops_fill(r, in_w, ENG_CONV_MAX * CHANNELS, KIND_PLAIN);
    ops_fill(r, in_state, SIZE * CHANNELS, k);
    *w = (struct work){.units = units};
    w->conv = (struct eng_conv){.weight = in_w,
                                .bias = kvs_rng_below(r, 2) ? in_d : NULL,
                                .kernel = 1 + (uint32_t)kvs_rng_below(r, ENG_CONV_MAX),
                                .channels = n,
                                .rows = rows,
                                .x = in_x,
                                .x_stride = n + 3,
                                .y_stride = n + 1};
    w->scan = (struct eng_scan){.state_size = size,
                                .channels = n,
                                .rows = rows,
                                .head_dim = dim,
                                .heads_per_group = share,
                                .a = in_a,
                                .d = in_d,
                                .x = in_x,
                                .dt = in_dt,
                                .b = in_b,
                                .c = in_c,
                                .x_stride = n + 3,
                                .dt_stride = units,
                                .bc_stride = bc,
                                .y_stride = n + 1};
}

typedef enum op_kind { CONV, SCAN, HEADS, KINDS } op_kind;

/* Rows from .. to - 1 of units first .. first + count - 1. */
static void run(const struct eng_ops *ops, struct work *w, op_kind k, uint32_t from, uint32_t to, uint32_t first,
                uint32_t count)
{
    if (k == CONV) {
        struct eng_conv c = w->conv;
        c.state = w->past;
        c.x += from * c.x_stride;
        c.y = w->y + from * c.y_stride;
        c.rows = to - from;
        ops->conv1d(&c, first, count);
        return;
    }
    struct eng_scan s = w->scan;
    s.state = w->state;
    s.x += from * s.x_stride;
    s.dt += from * s.dt_stride;
    s.b += from * s.bc_stride;
    s.c += from * s.bc_stride;
    s.y = w->y + from * s.y_stride;
    s.rows = to - from;
    (k == SCAN ? ops->scan : ops->scan_heads)(&s, first, count);
}

static void begin(struct work *w)
{
    memset(w->y, 0, sizeof w->y);
    memcpy(w->state, in_state, sizeof w->state);
    memcpy(w->past, in_state, sizeof w->past);
}

static void same(const struct work *a, const struct work *b, const char *table, op_kind k, uint32_t i)
{
    if (memcmp(a->y, b->y, sizeof a->y) != 0 || memcmp(a->state, b->state, sizeof a->state) != 0 ||
        memcmp(a->past, b->past, sizeof a->past) != 0) {
        fail_msg("%s differs: op %d, case %u, %u channels, %u rows, heads of %u", table, (int)k, i, a->scan.channels,
                 a->scan.rows, a->scan.head_dim);
    }
}

static void test_tables_and_cuts_agree(void **unused)
{
    (void)unused;
    static struct work whole, cut;
    struct kvs_rng r = {.state = 61};
    _Static_assert(ENG_CONV_MAX <= SIZE, "in_state also feeds the convolution");
    for (uint32_t i = 0; i < 1500; i++) {
        op_kind k = (op_kind)(i % KINDS);
        make(&r, &whole, k == HEADS);
        cut = whole;
        uint32_t rows = whole.scan.rows, units = k == CONV ? whole.conv.channels : whole.units;
        begin(&whole);
        run(&eng_ops_ref, &whole, k, 0, rows, 0, units);
        for (uint32_t t = 0; t < table_count; t++) {
            begin(&cut);
            run(tables[t], &cut, k, 0, rows, 0, units);
            same(&whole, &cut, tables[t]->name, k, i);
            begin(&cut);
            for (uint32_t from = 0, to; from < rows; from = to) {
                to = from + 1 + (uint32_t)kvs_rng_below(&r, rows - from);
                for (uint32_t first = 0, n; first < units; first += n) {
                    n = 1 + (uint32_t)kvs_rng_below(&r, units - first);
                    run(tables[t], &cut, k, from, to, first, n);
                }
            }
            same(&whole, &cut, tables[t]->name, k, i);
        }
    }
}

static void test_softplus(void **unused)
{
    (void)unused;
    const float zero[11] = {0};
    for (float x = -100.0f; x < 100.0f; x += 0.0137f) {
        float y[2][11];
        for (uint32_t t = 0; t < table_count; t++) {
            for (uint32_t i = 0; i < 11; i++) {
                y[t][i] = x + 0.0011f * (float)i;
            }
            tables[t]->softplus(y[t], zero, 11);
            assert_memory_equal(y[t], y[0], sizeof y[0]);
        }
        double want = x > 0 ? (double)x + log1p(exp(-(double)x)) : log1p(exp((double)x));
        assert_true(fabs((double)y[0][0] - want) <= want * 3e-7 + 1e-37);
    }
    for (uint32_t t = 0; t < table_count; t++) {
        float y[9] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 88, -88, 1e30f, NAN};
        tables[t]->softplus(y, zero, 9);
        assert_true(isnan(y[0]) && isnan(y[8]) && isinf(y[1]) && y[2] == 0 && y[3] == y[4] && y[7] == 1e30f);
    }
}

/* The bits of one case of each op, made by ops/ref. */
static void test_digests(void **unused)
{
    (void)unused;
    static const uint64_t want[KINDS + 1] = {0x218e042b3e01112b, 0x46c686da8bd656cb, 0x9c9b109e7d80f7d0,
                                             0xba620bbc783a3e53};
    static struct work w;
    for (uint32_t t = 0; t < table_count; t++) {
        struct kvs_rng r = {.state = 71};
        for (op_kind k = CONV; k <= KINDS; k++) {
            make(&r, &w, k == HEADS);
            begin(&w);
            if (k < KINDS) {
                run(tables[t], &w, k, 0, w.scan.rows, 0, k == CONV ? w.conv.channels : w.units);
            } else {
                memcpy(w.y, in_a, sizeof(float) * CHANNELS);
                tables[t]->softplus(w.y, in_d, CHANNELS);
            }
            uint64_t got = XXH3_64bits(w.y, sizeof w.y) ^ XXH3_64bits(w.state, sizeof w.state) * 3 ^
                           XXH3_64bits(w.past, sizeof w.past) * 5;
            if (got != want[k]) {
                fail_msg("%s: op %d has digest %016llx", tables[t]->name, (int)k, (unsigned long long)got);
            }
        }
    }
}

int main(void)
{
    table_count = ops_tables(tables);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closed_forms),
        cmocka_unit_test(test_softplus),
        cmocka_unit_test(test_tables_and_cuts_agree),
        cmocka_unit_test(test_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
