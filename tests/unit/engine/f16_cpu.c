/* f16_cpu.c - see f16_cpu.h; compiled with F16C, so a file of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/f16_cpu.h"
#include <immintrin.h>

uint32_t f16_cpu_widen(uint16_t h)
{
    return (uint32_t)_mm_cvtsi128_si32(_mm_castps_si128(_mm_cvtph_ps(_mm_cvtsi32_si128(h))));
}

uint16_t f16_cpu_narrow(uint32_t bits)
{
    __m128 v = _mm_castsi128_ps(_mm_cvtsi32_si128((int32_t)bits));
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
