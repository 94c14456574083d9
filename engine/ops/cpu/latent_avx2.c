/* latent_avx2.c - latent pages ([token][dim]) for the attention kernels, which want keys as [dim][token]: a tile is turned
 * on its side, eight tokens by eight dims at a time. All query heads of a position share it, so this is a small part of
 * the work. The values are the first dims of the same rows; they are copied only where they cannot be read in place.
 * Of 8-bit pages the scales of eight tokens are widened first.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"
#include "engine/ops/q8.h"

#define GROUPS_MAX (ENG_HEAD_DIM_MAX / KVC_SCALE_DIMS)

/* Up to eight tokens, as they lie, and what their codes are to be multiplied with. */
struct run {
    const void *page;
    size_t stride; /* elements of a token */
    float scale[8][GROUPS_MAX];
};

ENG_INLINE float one(const struct run *r, size_t t, size_t d, const kvc_type type)
{
    size_t at = t * r->stride + d;
    return type == KVC_Q8_0  ? r->scale[t][d / KVC_SCALE_DIMS] * (float)((const int8_t *)r->page)[at]
           : type == KVC_F16 ? eng_f16_to_f32(((const uint16_t *)r->page)[at])
                             : ((const float *)r->page)[at];
}

ENG_INLINE __m256 eight(const struct run *r, size_t t, size_t d, const kvc_type type)
{
    size_t at = t * r->stride + d;
    if (type == KVC_Q8_0) {
        return _mm256_mul_ps(eng_load_codes((const uint8_t *)r->page + at),
                             _mm256_broadcast_ss(&r->scale[t][d / KVC_SCALE_DIMS]));
    }
    return type == KVC_F16 ? eng_load_f16((const uint16_t *)r->page + at)
                           : _mm256_loadu_ps((const float *)r->page + at);
}

/* Tokens 0 .. 7 of a run, dims d .. d + 7, into k[dim][ENG_TILE]. */
ENG_INLINE void turn(const struct run *run, size_t d, float *k, const kvc_type type)
{
    __m256 r[8], t[8];
    for (size_t i = 0; i < 8; i++) {
        r[i] = eight(run, i, d, type);
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

/* n <= 8 tokens: keys on their side, values (when v is not NULL) as they are. */
ENG_INLINE void copy_run(const struct run *r, uint32_t n, float *k, float *v, uint32_t value_dim, const kvc_type type)
{
    size_t d = 0;
    for (; n == 8 && d + 8 <= r->stride; d += 8) {
        turn(r, d, k, type);
    }
    for (; d < r->stride; d++) {
        for (uint32_t i = 0; i < n; i++) {
            k[d * ENG_TILE + i] = one(r, i, d, type);
        }
    }
    for (uint32_t t = 0; v != NULL && t < n; t++, v += value_dim) {
        for (d = 0; d + 8 <= value_dim; d += 8) {
            _mm256_storeu_ps(v + d, eight(r, t, d, type));
        }
        for (; d < value_dim; d++) {
            v[d] = one(r, t, d, type);
        }
    }
}

static void read_scales(const struct eng_kv_view *kv, const uint8_t *page, uint32_t first, uint32_t n, struct run *out)
{
    uint32_t groups = eng_q8_scales(kv->key_dim);
    const uint8_t *from = page + kv->key_scale_offset + 2 * (size_t)first * groups;
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t g = 0; g < groups; g++, from += 2) {
            uint16_t half;
            memcpy(&half, from, 2);
            out->scale[t][g] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
        }
    }
}

void eng_avx2_latent_tile(const struct eng_kv_view *kv, uint32_t t0, uint32_t keys, float *k_tile, float *v_tile)
{
    struct run r;
    size_t es = kv->type == KVC_F32 ? 4 : kv->type == KVC_F16 ? 2 : 1;
    r.stride = kv->key_dim;
    if (keys < ENG_TILE) { /* lanes past the keys are computed, then masked */
        memset(k_tile, 0, (size_t)kv->key_dim * ENG_TILE * sizeof *k_tile);
    }
    for (uint32_t t = 0, n; t < keys; t += n) {
        uint32_t inside = (t0 + t) & (kv->block_tokens - 1);
        n = kv->block_tokens - inside < keys - t ? kv->block_tokens - inside : keys - t;
        n = n < 8 ? n : 8;
        const uint8_t *page = eng_kv_page(kv, (t0 + t) >> kv->block_shift);
        float *v = v_tile != NULL ? v_tile + (size_t)t * kv->value_dim : NULL;
        r.page = page + (size_t)inside * kv->key_dim * es;
        switch (kv->type) {
        case KVC_F32: copy_run(&r, n, k_tile + t, v, kv->value_dim, KVC_F32); break;
        case KVC_F16: copy_run(&r, n, k_tile + t, v, kv->value_dim, KVC_F16); break;
        default: read_scales(kv, page, inside, n, &r); copy_run(&r, n, k_tile + t, v, kv->value_dim, KVC_Q8_0);
        }
    }
}
