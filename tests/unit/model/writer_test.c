/* writer_test.c - the generated model is one that the reader takes, the same bytes for the same seed, and its blocks hold
 * what was put in.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/checked.h"
#include "model/card.h"
#include "tests/support/gguf_writer.h"

#include <stdlib.h>
#include <string.h>

static void test_generated_model_is_read_back(void **state)
{
    (void)state;
    const mdl_type types[] = {MDL_F32, MDL_F16, MDL_BF16, MDL_Q8_0, MDL_Q4_0, MDL_Q4_1};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct tst_llama_options o = {.layers = 3, .type = types[i], .untied = i % 2 == 1, .seed = 7};
        struct mdl_gguf *g;
        struct mdl_card c;
        struct kvs_error err = {0};
        size_t size, size2;
        uint8_t *bytes = tst_llama_make(&o, &size), *again = tst_llama_make(&o, &size2);
        assert_int_equal(size, size2);
        assert_memory_equal(bytes, again, size);
        if (mdl_gguf_parse(bytes, size, false, &g, &err) != KVS_OK || mdl_card_read(g, &c, &err) != KVS_OK)
            fail_msg("%s", err.text);
        assert_int_equal(c.layers, 3);
        assert_int_equal(c.width, 64);
        assert_int_equal(c.vocab, TST_LLAMA_VOCAB);
        assert_int_equal(c.tied, !o.untied);
        assert_int_equal(mdl_gguf_tensor(g, "blk.2.ffn_down.weight")->type, types[i]);
        mdl_gguf_destroy(g);
        free(bytes);
        free(again);
    }
}

/* Expected bits: numpy.float16 of the same numbers. */
static void test_rounding_to_16_bits(void **state)
{
    (void)state;
    const float x[] = {1.0f, -2.5f, 65504.0f, 65520.0f, 6.1e-5f, 5.9604645e-8f, 1e-9f, 0.333333343f, 2049.0f, 2051.0f};
    const uint16_t f16[] = {0x3c00, 0xc100, 0x7bff, 0x7c00, 0x03ff, 0x0001, 0x0000, 0x3555, 0x6800, 0x6802};
    uint8_t out[2 * sizeof f16 / sizeof f16[0]];
    tst_quantize(MDL_F16, x, sizeof f16 / sizeof f16[0], out);
    for (size_t i = 0; i < sizeof f16 / sizeof f16[0]; i++)
        assert_int_equal(kvs_load_u16(out + 2 * i), f16[i]);
}

static void test_blocks_hold_what_was_put_in(void **state)
{
    (void)state;
    float x[32];
    uint8_t out[34];
    for (int i = 0; i < 32; i++)
        x[i] = (float)(i - 8) * 0.25f; /* -2 .. 5.75 */
    assert_int_equal(tst_quantize(MDL_Q8_0, x, 32, out), 34);
    assert_int_equal((int8_t)out[2 + 31], 127);
    assert_int_equal((int8_t)out[2 + 8], 0);
    assert_int_equal((int8_t)out[2 + 0], -44); /* -2 / (5.75 / 127) = -44.17 */
    assert_int_equal(tst_quantize(MDL_Q4_1, x, 32, out), 20);
    assert_int_equal(kvs_load_u16(out + 2), 0xc000); /* minimum -2 */
    assert_int_equal(out[4 + 15] >> 4, 15);          /* the largest */
    assert_int_equal(out[4] & 15, 0);                /* the smallest */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated_model_is_read_back),
        cmocka_unit_test(test_rounding_to_16_bits),
        cmocka_unit_test(test_blocks_hold_what_was_put_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
