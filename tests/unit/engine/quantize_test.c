/* quantize_test.c - blocks made of f32 weights, bit for bit those of the gguf package; what is refused; and that the engine's own
 * reading of them lands within half a step of the weights.
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

static const mdl_type types[] = {MDL_F16, MDL_BF16, MDL_Q8_0, MDL_Q4_0, MDL_Q4_1, MDL_Q5_0, MDL_Q5_1};
#define TYPES (sizeof types / sizeof types[0])

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
    assert_false(eng_quantize(MDL_Q4_K, x, 256, out));
    assert_false(eng_quantize_known(MDL_Q4_K) || eng_quantize_known(MDL_F32));
}

/* Half a step and the rounding of the scale: what a type costs, seen through the op tables' own reading. */
static void test_error_is_half_a_step(void **state)
{
    (void)state;
    static const double steps[] = {0.0005,   0.004,    1.0 / 127, 1.0 / 7,
                                   2.0 / 15, 1.0 / 15, 2.0 / 31}; /* of the largest */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_equal_gguf_package),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_error_is_half_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
