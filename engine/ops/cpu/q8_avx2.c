/* q8_avx2.c - tiles of 8-bit keys and values as f32 in scratch, for blocks below a tile and for many rows (a few read the codes
 * where they lie, attention_avx2.c). Eight tokens of a key dim have eight scales side by side; 32 dims of a value share one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"
#include "engine/ops/q8.h"

static float scale_at(const uint8_t *p, size_t index)
{
    uint16_t half;
    memcpy(&half, p + 2 * index, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

/* Dims that share their scales: codes [dim][stride] of n tokens. */
static void key_group(const uint8_t *code, const uint8_t *scale, size_t stride, uint32_t dims, uint32_t n, float *k)
{
    uint32_t t = 0;
    for (; t + 8 <= n; t += 8) {
        const __m256 s = eng_load_f16((const uint16_t *)(const void *)(scale + 2 * (size_t)t));
        for (size_t d = 0; d < dims; d++) {
            _mm256_storeu_ps(k + d * ENG_TILE + t, _mm256_mul_ps(s, eng_load_codes(code + d * stride + t)));
        }
    }
    for (; t < n; t++) {
        float s = scale_at(scale, t);
        for (size_t d = 0; d < dims; d++) {
            k[d * ENG_TILE + t] = s * (float)(int8_t)code[d * stride + t];
        }
    }
}

static void row(const uint8_t *code, float scale, uint32_t n, float *out)
{
    const __m256 s = _mm256_set1_ps(scale);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_mul_ps(s, eng_load_codes(code + i)));
    }
    for (; i < n; i++) {
        out[i] = scale * (float)(int8_t)code[i];
    }
}

void eng_avx2_q8_run(const struct eng_kv_view *kv, const uint8_t *page, uint32_t inside, uint32_t n, float *k, float *v)
{
    size_t bt = kv->block_tokens, groups = eng_q8_scales(kv->value_dim);
    for (size_t d = 0; d < kv->key_dim; d += KVC_SCALE_DIMS) {
        uint32_t dims = kv->key_dim - (uint32_t)d < KVC_SCALE_DIMS ? kv->key_dim - (uint32_t)d : KVC_SCALE_DIMS;
        key_group(page + d * bt + inside, page + kv->key_scale_offset + 2 * (d / KVC_SCALE_DIMS * bt + inside), bt,
                  dims, n, k + d * ENG_TILE);
    }
    for (size_t t = inside; t < inside + n; t++, v += kv->value_dim) {
        const uint8_t *codes = page + kv->value_offset + t * kv->value_dim;
        for (uint32_t d = 0; d < kv->value_dim; d += KVC_SCALE_DIMS) {
            row(codes + d, scale_at(page + kv->value_scale_offset, t * groups + d / KVC_SCALE_DIMS),
                kv->value_dim - d < KVC_SCALE_DIMS ? kv->value_dim - d : KVC_SCALE_DIMS, v + d);
        }
    }
}
