/* latent_avx2.c - latent pages ([token][dim]) for the attention kernels, which want keys as [dim][token]: a tile is turned
 * on its side, eight tokens by eight dims at a time. All query heads of a position share it, so this is a small part of
 * the work. The values are the first dims of the same rows; they are copied only where they cannot be read in place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"

ENG_INLINE float one(const void *page, size_t at, const bool half)
{
    return half ? eng_f16_to_f32(((const uint16_t *)page)[at]) : ((const float *)page)[at];
}

ENG_INLINE __m256 eight(const void *page, size_t at, const bool half)
{
    return half ? eng_load_f16((const uint16_t *)page + at) : _mm256_loadu_ps((const float *)page + at);
}

/* Tokens 0 .. 7 at `page`, `stride` elements apart, dims d .. d + 7, into k[dim][ENG_TILE]. */
ENG_INLINE void turn(const void *page, size_t stride, size_t d, float *k, const bool half)
{
    __m256 r[8], t[8];
    for (size_t i = 0; i < 8; i++) {
        r[i] = eight(page, i * stride + d, half);
    }
    for (size_t i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (size_t i = 0; i < 4; i++) {
        _mm256_storeu_ps(k + (d + i) * ENG_TILE, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(k + (d + i + 4) * ENG_TILE, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

ENG_INLINE void keys_any(const struct eng_kv_view *kv, const void *page, uint32_t n, float *k, const bool half)
{
    size_t stride = kv->key_dim, es = half ? 2 : 4;
    uint32_t t = 0;
    for (; t + 8 <= n; t += 8) {
        const void *from = (const uint8_t *)page + t * stride * es;
        size_t d = 0;
        for (; d + 8 <= stride; d += 8) {
            turn(from, stride, d, k + t, half);
        }
        for (; d < stride; d++) {
            for (uint32_t i = 0; i < 8; i++) {
                k[d * ENG_TILE + t + i] = one(from, i * stride + d, half);
            }
        }
    }
    for (; t < n; t++) {
        for (size_t d = 0; d < stride; d++) {
            k[d * ENG_TILE + t] = one(page, t * stride + d, half);
        }
    }
}

ENG_INLINE void values_any(const struct eng_kv_view *kv, const void *page, uint32_t n, float *v, const bool half)
{
    for (uint32_t t = 0; t < n; t++, v += kv->value_dim) {
        size_t row = (size_t)t * kv->key_dim;
        uint32_t d = 0;
        for (; d + 8 <= kv->value_dim; d += 8) {
            _mm256_storeu_ps(v + d, eight(page, row + d, half));
        }
        for (; d < kv->value_dim; d++) {
            v[d] = one(page, row + d, half);
        }
    }
}

void eng_avx2_latent_tile(const struct eng_kv_view *kv, uint32_t t0, uint32_t keys, float *k_tile, float *v_tile)
{
    bool half = kv->type == KVC_F16;
    if (keys < ENG_TILE) { /* lanes past the keys are computed, then masked */
        memset(k_tile, 0, (size_t)kv->key_dim * ENG_TILE * sizeof *k_tile);
    }
    for (uint32_t t = 0, n; t < keys; t += n) {
        uint32_t inside = (t0 + t) & (kv->block_tokens - 1);
        n = kv->block_tokens - inside < keys - t ? kv->block_tokens - inside : keys - t;
        const uint8_t *page =
            eng_kv_page(kv, (t0 + t) >> kv->block_shift) + (size_t)inside * kv->key_dim * (half ? 2 : 4);
        if (half) {
            keys_any(kv, page, n, k_tile + t, true);
        } else {
            keys_any(kv, page, n, k_tile + t, false);
        }
        if (v_tile != NULL && half) {
            values_any(kv, page, n, v_tile + (size_t)t * kv->value_dim, true);
        } else if (v_tile != NULL) {
            values_any(kv, page, n, v_tile + (size_t)t * kv->value_dim, false);
        }
    }
}
