/* avx2.h - vector forms of the contract's pieces; included by the AVX2 sources only.
 * Each lane goes through the steps of its scalar twin in scalar.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_CPU_AVX2_H
#define KVS_ENGINE_OPS_CPU_AVX2_H

#include "engine/ops/scalar.h"
#include <immintrin.h>

#define ENG_INLINE static inline __attribute__((always_inline))
/* Keeps accumulators in registers: without it gcc 12 spills them (246 against 350 tok/s). */
#define ENG_PIN(a, b) __asm__ volatile("" : "+x"(a), "+x"(b))
/* The same number, but nobody knows: what was loaded by it is loaded again rather than kept in a register. */
#define ENG_HIDE(n) __asm__ volatile("" : "+r"(n))

/* F(0) .. F(n-1) for a count known when the kernel is written. */
#define ENG_EACH_1(F) F(0)
#define ENG_EACH_2(F) ENG_EACH_1(F) F(1)
#define ENG_EACH_3(F) ENG_EACH_2(F) F(2)
#define ENG_EACH_4(F) ENG_EACH_3(F) F(3)
#define ENG_EACH_5(F) ENG_EACH_4(F) F(4)
#define ENG_EACH_6(F) ENG_EACH_5(F) F(5)

ENG_INLINE __m256 eng_exp8(__m256 x)
{
    __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(ENG_EXP_LOW), _CMP_GE_OQ);
    x = _mm256_min_ps(x, _mm256_set1_ps(ENG_EXP_HIGH));
    __m256 n =
        _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(ENG_EXP_LOG2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-ENG_EXP_LN2_HIGH), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-ENG_EXP_LN2_LOW), r);
    __m256 p = _mm256_set1_ps(ENG_EXP_P0);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ENG_EXP_P1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ENG_EXP_P2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ENG_EXP_P3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ENG_EXP_P4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(ENG_EXP_P5));
    __m256 y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(e)), keep);
}

/* 16 lanes: a holds 0..7, b 8..15. */
ENG_INLINE float eng_fold16x(__m256 a, __m256 b)
{
    a = _mm256_add_ps(a, b);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}

ENG_INLINE float eng_max8(__m256 a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    s = _mm_max_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}

ENG_INLINE __m256 eng_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

ENG_INLINE __m256 eng_load_codes(const uint8_t *p) /* int8 */
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

ENG_INLINE __m256 eng_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}

ENG_INLINE __m256i eng_load_int(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Two neighbouring 16-bit activations in every 32-bit lane. */
ENG_INLINE __m256i eng_pair(const int16_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

#endif
