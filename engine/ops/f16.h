/* f16.h - half precision in integer code, the same bits as F16C: round to nearest even, NaN becomes quiet and keeps its
 * payload.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_F16_H
#define KVS_ENGINE_OPS_F16_H

#include <stdint.h>
#include <string.h>

static inline float eng_f32_from_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}

static inline uint32_t eng_f32_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

static inline float eng_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31) {
        return eng_f32_from_bits(sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u));
    }
    if (exponent != 0) {
        return eng_f32_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
    }
    /* Subnormal: mantissa * 2^-24 is exact in f32. */
    return eng_f32_from_bits(sign | eng_f32_bits((float)mantissa * 0x1p-24f));
}

static inline uint16_t eng_f16_from_f32(float f)
{
    uint32_t b = eng_f32_bits(f), sign = (b >> 16) & 0x8000u, a = b & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    }
    if (a >= 0x477ff000u) { /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (a >= 0x38800000u) { /* normal: 2^-14 and up */
        uint32_t r = a - 0x38000000u;
        return (uint16_t)(sign | ((r + 0xfffu + (r >> 13 & 1u)) >> 13));
    }
    if (a < 0x33000000u) { /* below half of the smallest subnormal */
        return (uint16_t)sign;
    }
    uint32_t mantissa = (a & 0x7fffffu) | 0x800000u, shift = 126u - (a >> 23); /* 14..24 */
    uint32_t half = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1), q = mantissa >> shift;
    if (rest > half || (rest == half && (q & 1u) != 0)) {
        q++;
    }
    return (uint16_t)(sign | q);
}

static inline float eng_bf16_to_f32(uint16_t h)
{
    return eng_f32_from_bits((uint32_t)h << 16);
}

#endif
