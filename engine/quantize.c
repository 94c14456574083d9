/* quantize.c - see quantize.h. A block's scale is rounded to f16 after its codes were chosen with the unrounded one, as the
 * reference does; what the codes then stand for is off by that rounding, which is small against half a step. Types with two levels
 * of scales, and IQ4_NL, are searched for: quantize_k.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/quantize.h"
#include "base/checked.h"
#include "engine/ops/ops.h"
#include "engine/ops/scalar.h"
#include "engine/quantize_k.h"

bool eng_quantize_known(mdl_type type)
{
    switch (type) {
    case MDL_F32:
    case MDL_F16:
    case MDL_BF16:
    case MDL_Q8_0:
    case MDL_Q4_0:
    case MDL_Q4_1:
    case MDL_Q5_0:
    case MDL_Q5_1:
    case MDL_MXFP4: return true;
    default: return eng_quantize_searched(type);
    }
}

/* False where a finite number turns into infinity, and for what was not finite before. */
static bool put_half(float x, uint8_t *out)
{
    uint16_t h = eng_f16_from_f32(x);
    kvs_store_u16(out, h);
    return (h & 0x7c00u) != 0x7c00u;
}

static bool put_bf16(float x, uint8_t *out)
{
    uint32_t b = eng_f32_bits(x);
    b = (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
    kvs_store_u16(out, (uint16_t)b);
    return isfinite(x) && (b & 0x7f80u) != 0x7f80u;
}

static bool put_full(float x, uint8_t *out)
{
    kvs_store_u32(out, eng_f32_bits(x));
    return isfinite(x);
}

/* 1 / d; 0 where that is no number to work with (an empty block, or one so small that its f16 scale is 0 anyway). */
static float inverse_of(float d)
{
    float i = d != 0.0f ? 1.0f / d : 0.0f;
    return isfinite(i) ? i : 0.0f;
}

static bool quantize_q8_0(const float *x, uint8_t *out)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < ENG_BLOCK; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    float d = amax / 127.0f, inverse = inverse_of(d);
    for (uint32_t i = 0; i < ENG_BLOCK; i++) {
        float v = x[i] * inverse, a = fabsf(v), whole = floorf(a);
        int32_t q = (int32_t)(whole + floorf(2.0f * (a - whole))); /* halves go away from zero */
        out[2 + i] = (uint8_t)(v < 0.0f ? -q : q);
    }
    return put_half(d, out);
}

static uint32_t code_of(float v, uint32_t most)
{
    return v <= 0.0f ? 0 : v >= (float)most ? most : (uint32_t)v;
}

/* Codes of 4 or 5 bits: low halves in pairs of weights i and i + 16, fifth bits in a word before them. */
static void put_codes(const uint32_t code[ENG_BLOCK], bool five, uint8_t *out)
{
    uint32_t high = 0;
    for (uint32_t i = 0; i < ENG_BLOCK; i++) {
        high |= (code[i] >> 4) << i;
    }
    if (five) {
        kvs_store_u32(out, high);
        out += 4;
    }
    for (uint32_t i = 0; i < ENG_BLOCK / 2; i++) {
        out[i] = (uint8_t)((code[i] & 15u) | (code[i + 16] & 15u) << 4);
    }
}

/* Q4_0, Q5_0: the weight of the largest magnitude becomes the code at the negative end, so that all codes are used. */
static bool quantize_even(const float *x, bool five, uint8_t *out)
{
    float peak = x[0];
    uint32_t code[ENG_BLOCK];
    for (uint32_t i = 1; i < ENG_BLOCK; i++) {
        peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
    }
    float d = peak / (five ? -16.0f : -8.0f), inverse = inverse_of(d), middle = five ? 16.5f : 8.5f;
    for (uint32_t i = 0; i < ENG_BLOCK; i++) {
        code[i] = code_of(x[i] * inverse + middle, five ? 31 : 15);
    }
    put_codes(code, five, out + 2);
    return put_half(d, out);
}

/* Q4_1, Q5_1: from the least weight to the largest. */
static bool quantize_range(const float *x, bool five, uint8_t *out)
{
    float low = x[0], high = x[0];
    uint32_t code[ENG_BLOCK];
    for (uint32_t i = 1; i < ENG_BLOCK; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float d = (high - low) / (five ? 31.0f : 15.0f), inverse = inverse_of(d);
    for (uint32_t i = 0; i < ENG_BLOCK; i++) {
        code[i] = code_of((x[i] - low) * inverse + 0.5f, five ? 31 : 15);
    }
    put_codes(code, five, out + 4);
    bool good = put_half(d, out);
    return put_half(low, out + 2) && good;
}

/* The exponent under which the largest weight lies between 4 and 8 (6 is the largest code), each code the nearest one. */
static bool quantize_mxfp4(const float *x, uint8_t *out)
{
    float amax = 0.0f;
    uint32_t code[ENG_BLOCK];
    for (uint32_t i = 0; i < ENG_BLOCK; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    uint32_t exponent = eng_f32_bits(amax) >> 23;
    out[0] = (uint8_t)(exponent > 2 ? exponent - 2 : 0);
    float d = eng_e8m0_half(out[0]);
    for (uint32_t i = 0; i < ENG_BLOCK; i++) {
        float least = INFINITY;
        code[i] = 0;
        for (uint32_t c = 0; c < 16; c++) {
            float e = fabsf(d * (float)eng_mxfp4_values[c] - x[i]);
            code[i] = e < least ? c : code[i];
            least = e < least ? e : least;
        }
    }
    put_codes(code, false, out + 1);
    return true;
}

static bool quantize_block(mdl_type type, const float *x, uint8_t *out)
{
    if (eng_quantize_searched(type)) {
        return eng_quantize_search(type, x, out);
    }
    for (uint32_t i = 0; i < ENG_BLOCK; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    switch (type) {
    case MDL_Q4_0: return quantize_even(x, false, out);
    case MDL_Q5_0: return quantize_even(x, true, out);
    case MDL_Q4_1: return quantize_range(x, false, out);
    case MDL_Q5_1: return quantize_range(x, true, out);
    case MDL_MXFP4: return quantize_mxfp4(x, out);
    default: return quantize_q8_0(x, out);
    }
}

bool eng_quantize(mdl_type type, const float *x, size_t n, uint8_t *out)
{
    bool good = true;
    if (type == MDL_F32) {
        for (size_t i = 0; i < n; i++) {
            good = put_full(x[i], out + 4 * i) && good;
        }
        return good;
    }
    if (type == MDL_F16 || type == MDL_BF16) {
        for (size_t i = 0; i < n; i++) {
            good = (type == MDL_F16 ? put_half(x[i], out + 2 * i) : put_bf16(x[i], out + 2 * i)) && good;
        }
        return good;
    }
    uint32_t weights = ENG_BLOCK, bytes = 0;
    good = eng_quantize_known(type) && mdl_type_block(type, &weights, &bytes);
    for (size_t i = 0; good && i < n; i += weights, out += bytes) {
        good = quantize_block(type, x + i, out);
    }
    return good;
}
