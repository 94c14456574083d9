/* rope_test.c - our double-precision functions and rotation tables against the C library's.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/rope.h"
#include <math.h>
#include <stdlib.h>

static void test_functions(void **state)
{
    (void)state;
    for (double x = 1e-9; x < 1e12; x *= 1.0137) {
        assert_true(fabs(eng_log64(x) - log(x)) <= 4e-16 * fabs(log(x)) + 3e-16);
    }
    for (double x = -60; x < 60; x += 0.0173) {
        assert_true(fabs(eng_exp64(x) / exp(x) - 1.0) <= 2e-15);
    }
    for (double x = 0; x < 1048576; x = x * 1.0003 + 0.00931) {
        double s, c;
        eng_sincos64(x, &s, &c);
        assert_true(fabs(s - sin(x)) <= 4e-16 && fabs(c - cos(x)) <= 4e-16);
    }
}

static void test_plain_tables(void **state)
{
    (void)state;
    const struct eng_rope_config configs[] = {
        {.dims = 64, .base = 10000, .scaling = MDL_ROPE_NONE},
        {.dims = 128, .base = 500000, .scaling = MDL_ROPE_LINEAR, .factor = 4},
    };
    for (size_t k = 0; k < 2; k++) {
        const struct eng_rope_config *c = &configs[k];
        uint32_t half = c->dims / 2, context = 9000;
        float *co = calloc((size_t)context * half, 4), *si = calloc((size_t)context * half, 4);
        eng_rope_tables(c, context, co, si);
        for (uint32_t p = 0; p < context; p += 37) {
            for (uint32_t i = 0; i < half; i++) {
                double angle = p * pow(c->base, -2.0 * i / c->dims) / (k == 1 ? 4.0 : 1.0);
                assert_true(fabs((double)co[p * half + i] - cos(angle)) <= 6.1e-8);
                assert_true(fabs((double)si[p * half + i] - sin(angle)) <= 6.1e-8);
            }
        }
        free(co);
        free(si);
    }
}

/* Divisors of the frequencies together with a linear factor, and with YaRN's ramp: the divided frequency is what is scaled. */
static void test_divisors_before_scaling(void **state)
{
    (void)state;
    enum { DIMS = 32, HALF = DIMS / 2, CONTEXT = 600 };
    static float divisors[HALF], co[CONTEXT * HALF], si[CONTEXT * HALF];
    const double pi = 3.14159265358979323846, base = 10000, factor = 4, original = 128;
    for (int i = 0; i < HALF; i++) {
        divisors[i] = 1.0f + 0.5f * (float)i;
    }
    double low = floor(DIMS * log(original / (2 * pi * 32)) / (2 * log(base))),
           high = ceil(DIMS * log(original / (2 * pi)) / (2 * log(base)));
    low = low < 0 ? 0 : low;
    for (int yarn = 0; yarn < 2; yarn++) {
        struct eng_rope_config c = {.dims = DIMS,
                                    .base = base,
                                    .factor = factor,
                                    .beta_fast = 32,
                                    .beta_slow = 1,
                                    .original_context = (uint32_t)original,
                                    .scaling = yarn ? MDL_ROPE_YARN : MDL_ROPE_LINEAR,
                                    .freq_factors = divisors};
        eng_rope_tables(&c, CONTEXT, co, si);
        for (uint32_t p = 0; p < CONTEXT; p += 7) {
            for (int i = 0; i < HALF; i++) {
                double t = (i - low) / (high - low), ramp = yarn ? 1 - (t < 0 ? 0 : t > 1 ? 1 : t) : 0;
                double angle = p * pow(base, -2.0 * i / DIMS) / (double)divisors[i];
                angle = ramp * angle + (1 - ramp) * angle / factor;
                double m = yarn ? 1 + 0.1 * log(factor) : 1;
                assert_true(fabs((double)co[p * HALF + (uint32_t)i] - m * cos(angle)) <= 1e-7);
                assert_true(fabs((double)si[p * HALF + (uint32_t)i] - m * sin(angle)) <= 1e-7);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_functions), cmocka_unit_test(test_plain_tables),
                                       cmocka_unit_test(test_divisors_before_scaling)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
