/* q8.h - keys and values in 8 bits: one f16 scale for 32 dims of a token (numerics.md). What is written once is never
 * quantized again, so a page is the same however it came about.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_Q8_H
#define KVS_ENGINE_OPS_Q8_H

#include "engine/ops/ops.h"
#include "engine/ops/scalar.h"

#define ENG_Q8_MAX 127.0f

static inline uint32_t eng_q8_scales(uint32_t dims)
{
    return (dims + KVC_SCALE_DIMS - 1) / KVC_SCALE_DIMS;
}

/* One number by the inverse of its scale; a NaN becomes 127 (its row is void). */
static inline int8_t eng_q8_code(float x, float inverse)
{
    float v = x * inverse;
    v = v < ENG_Q8_MAX ? v : ENG_Q8_MAX;
    v = v > -ENG_Q8_MAX ? v : -ENG_Q8_MAX;
    return (int8_t)rintf(v);
}

/* n <= 32 numbers that share a scale: codes code_stride apart, the scale as f16 bits. */
static inline uint16_t eng_q8_quantize(const float *x, uint32_t n, uint8_t *codes, size_t code_stride)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    uint16_t half = eng_f16_from_f32(amax / ENG_Q8_MAX);
    float d = eng_f16_to_f32(half), inverse = d > 0.0f ? 1.0f / d : 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        codes[i * code_stride] = (uint8_t)eng_q8_code(x[i], inverse);
    }
    return half;
}

/* Both tables write alike; what differs is how they read. */
static inline void eng_q8_write(const struct eng_kv_view *kv, uint32_t pos, const float *k, const float *v)
{
    uint8_t *page = eng_kv_page(kv, pos >> kv->block_shift);
    uint32_t bt = kv->block_tokens, t = pos & (bt - 1), ks = eng_q8_scales(kv->key_dim),
             vs = eng_q8_scales(kv->value_dim);
    for (uint32_t g = 0; g < ks; g++) {
        uint32_t d = g * KVC_SCALE_DIMS, n = kv->key_dim - d < KVC_SCALE_DIMS ? kv->key_dim - d : KVC_SCALE_DIMS;
        uint8_t *codes = page + (kv->latent ? (size_t)t * kv->key_dim + d : (size_t)d * bt + t);
        uint16_t half = eng_q8_quantize(k + d, n, codes, kv->latent ? 1 : bt);
        memcpy(page + kv->key_scale_offset + 2 * (kv->latent ? (size_t)t * ks + g : (size_t)g * bt + t), &half, 2);
    }
    for (uint32_t g = 0; !kv->latent && g < vs; g++) {
        uint32_t d = g * KVC_SCALE_DIMS, n = kv->value_dim - d < KVC_SCALE_DIMS ? kv->value_dim - d : KVC_SCALE_DIMS;
        uint16_t half = eng_q8_quantize(v + d, n, page + kv->value_offset + (size_t)t * kv->value_dim + d, 1);
        memcpy(page + kv->value_scale_offset + 2 * ((size_t)t * vs + g), &half, 2);
    }
}

#endif
