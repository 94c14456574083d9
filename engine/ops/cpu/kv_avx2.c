/* kv_avx2.c - writing keys and values into pages, merging segments.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"
#include "engine/ops/q8.h"

static void write_f32(const struct eng_kv_view *kv, float *page, uint32_t t, const float *k, const float *v)
{
    for (uint32_t d = 0; d < kv->key_dim; d++) {
        page[(size_t)d * kv->block_tokens + t] = k[d];
    }
    memcpy(page + (size_t)kv->block_tokens * kv->key_dim + (size_t)t * kv->value_dim, v, kv->value_dim * sizeof *v);
}

static void narrow(const float *x, uint32_t n, uint16_t *out)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm_storeu_si128((__m128i *)(void *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; i++) {
        out[i] = eng_f16_from_f32(x[i]);
    }
}

static void write_f16(const struct eng_kv_view *kv, uint16_t *page, uint32_t t, const float *k, const float *v)
{
    uint16_t half[ENG_HEAD_DIM_MAX];
    narrow(k, kv->key_dim, half);
    for (uint32_t d = 0; d < kv->key_dim; d++) {
        page[(size_t)d * kv->block_tokens + t] = half[d];
    }
    narrow(v, kv->value_dim, page + (size_t)kv->block_tokens * kv->key_dim + (size_t)t * kv->value_dim);
}

void eng_avx2_kv_write(const struct eng_kv_view *kv, uint32_t pos, const float *k, const float *v)
{
    void *page = eng_kv_page(kv, pos >> kv->block_shift);
    uint32_t t = pos & (kv->block_tokens - 1);
    if (kv->type == KVC_Q8_0) {
        eng_q8_write(kv, pos, k, v);
    } else if (kv->latent && kv->type == KVC_F16) {
        narrow(k, kv->key_dim, (uint16_t *)page + (size_t)t * kv->key_dim);
    } else if (kv->latent) {
        memcpy((float *)page + (size_t)t * kv->key_dim, k, kv->key_dim * sizeof *k);
    } else if (kv->type == KVC_F16) {
        write_f16(kv, page, t, k, v);
    } else {
        write_f32(kv, page, t, k, v);
    }
}

void eng_avx2_merge(float *m_io, float *l_io, float *o_io, float m, float l, const float *o, uint32_t n)
{
    float top = m > *m_io ? m : *m_io, a = eng_exp(*m_io - top), b = eng_exp(m - top);
    *m_io = top;
    *l_io = fmaf(l, b, *l_io * a);
    __m256 va = _mm256_set1_ps(a), vb = _mm256_set1_ps(b);
    uint32_t d = 0;
    for (; d + 8 <= n; d += 8) {
        __m256 old = _mm256_mul_ps(_mm256_loadu_ps(o_io + d), va);
        _mm256_storeu_ps(o_io + d, _mm256_fmadd_ps(_mm256_loadu_ps(o + d), vb, old));
    }
    for (; d < n; d++) {
        o_io[d] = fmaf(o[d], b, o_io[d] * a);
    }
}

void eng_avx2_finish(float *out, const float *o, float l, uint32_t n)
{
    float inverse = 1.0f / l;
    __m256 vi = _mm256_set1_ps(inverse);
    uint32_t d = 0;
    for (; d + 8 <= n; d += 8) {
        _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(o + d), vi));
    }
    for (; d < n; d++) {
        out[d] = o[d] * inverse;
    }
}
