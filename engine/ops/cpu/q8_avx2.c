/* q8_avx2.c - tiles of 8-bit keys and values as f32 in scratch, where the attention kernels read them. Eight tokens of a key
 * dim have eight scales side by side; 32 dims of a value share one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"
#include "engine/ops/q8.h"

ENG_INLINE __m256 codes8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

static float scale_at(const uint8_t *p, size_t index)
{
    uint16_t half;
    memcpy(&half, p + 2 * index, 2);
    return eng_f16_to_f32(half);
}

static void keys(const struct eng_kv_view *kv, const uint8_t *page, uint32_t inside, uint32_t n, float *k)
{
    size_t bt = kv->block_tokens;
    for (uint32_t d = 0; d < kv->key_dim; d++, k += ENG_TILE) {
        const uint8_t *code = page + d * bt + inside,
                      *scale = page + kv->key_scale_offset + 2 * (d / KVC_SCALE_DIMS * bt + inside);
        uint32_t t = 0;
        for (; t + 8 <= n; t += 8) {
            __m256 s = eng_load_f16((const uint16_t *)(const void *)(scale + 2 * (size_t)t));
            _mm256_storeu_ps(k + t, _mm256_mul_ps(s, codes8(code + t)));
        }
        for (; t < n; t++) {
            k[t] = scale_at(scale, t) * (float)(int8_t)code[t];
        }
    }
}

static void row(const uint8_t *code, float scale, uint32_t n, float *out)
{
    const __m256 s = _mm256_set1_ps(scale);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_mul_ps(s, codes8(code + i)));
    }
    for (; i < n; i++) {
        out[i] = scale * (float)(int8_t)code[i];
    }
}

/* dims of n tokens from `inside` on: codes [token][stride], scales [token][each]. */
static void rows(const uint8_t *codes, const uint8_t *scales, uint32_t stride, uint32_t inside, uint32_t n,
                 uint32_t dims, float *out)
{
    uint32_t each = eng_q8_scales(stride);
    for (uint32_t t = inside; t < inside + n; t++, out += dims) {
        for (uint32_t d = 0; d < dims; d += KVC_SCALE_DIMS) {
            row(codes + (size_t)t * stride + d, scale_at(scales, (size_t)t * each + d / KVC_SCALE_DIMS),
                dims - d < KVC_SCALE_DIMS ? dims - d : KVC_SCALE_DIMS, out + d);
        }
    }
}

void eng_avx2_q8_run(const struct eng_kv_view *kv, const uint8_t *page, uint32_t inside, uint32_t n, float *k, float *v)
{
    if (!kv->latent) {
        keys(kv, page, inside, n, k);
        rows(page + kv->value_offset, page + kv->value_scale_offset, kv->value_dim, inside, n, kv->value_dim, v);
        return;
    }
    uint32_t each = eng_q8_scales(kv->key_dim);
    rows(page, page + kv->key_scale_offset, kv->key_dim, inside, n, kv->value_dim, v);
    for (uint32_t d = 0; d < kv->key_dim; d++) {
        for (uint32_t t = 0; t < n; t++) {
            size_t at = inside + t;
            k[(size_t)d * ENG_TILE + t] = scale_at(page + kv->key_scale_offset, at * each + d / KVC_SCALE_DIMS) *
                                          (float)(int8_t)page[at * kv->key_dim + d];
        }
    }
}
