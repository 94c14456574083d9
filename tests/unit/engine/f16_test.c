/* f16_test.c - half precision in integer code against the processor's own conversion: all 65,536 halves, and floats of every
 * exponent around every rounding edge.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/ops/f16.h"
#include "tests/unit/engine/f16_cpu.h"
#include <stdio.h>

#if defined(ENG_HAVE_AVX2)
static void test_every_half(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        assert_int_equal(eng_f32_bits(eng_f16_to_f32((uint16_t)h)), f16_cpu_widen((uint16_t)h));
    }
}

static void test_floats(void **state)
{
    (void)state;
    struct kvs_rng r = {.state = 3};
    for (uint32_t h = 0; h < 65536; h++) { /* each half, each midpoint to the next, and their neighbours */
        uint32_t at = f16_cpu_widen((uint16_t)h), mid = at + 0x1000;
        for (uint32_t d = 0; d < 3; d++) {
            assert_int_equal(eng_f16_from_f32(eng_f32_from_bits(at + d - 1)), f16_cpu_narrow(at + d - 1));
            assert_int_equal(eng_f16_from_f32(eng_f32_from_bits(mid + d - 1)), f16_cpu_narrow(mid + d - 1));
        }
    }
    for (uint32_t i = 0; i < 4000000; i++) {
        uint32_t bits = (uint32_t)kvs_rng_next(&r);
        if (i % 2 == 0) { /* subnormal halves */
            bits = (bits & 0x80ffffffu) | 0x33000000u;
        }
        if (eng_f16_from_f32(eng_f32_from_bits(bits)) != f16_cpu_narrow(bits)) {
            fail_msg("%08x: %04x, the processor says %04x", bits, eng_f16_from_f32(eng_f32_from_bits(bits)),
                     f16_cpu_narrow(bits));
        }
    }
}

int main(void)
{
    if (!__builtin_cpu_supports("f16c")) {
        (void)printf("skipped: this CPU has no F16C to compare with\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_half), cmocka_unit_test(test_floats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    (void)printf("skipped: no F16C on this kind of machine\n");
    return 77;
}
#endif
