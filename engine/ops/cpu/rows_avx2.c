/* rows_avx2.c - row operations, eight or sixteen lanes at a time; what is left of a row goes through the scalar twin.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"

bool eng_avx2_norm(const float *x, const float *weight, uint32_t n, float eps, float *y_out)
{
    __m256 a = _mm256_setzero_ps(), b = a;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 p = _mm256_loadu_ps(x + i), q = _mm256_loadu_ps(x + i + 8);
        a = _mm256_fmadd_ps(p, p, a);
        b = _mm256_fmadd_ps(q, q, b);
    }
    float lanes[16];
    _mm256_storeu_ps(lanes, a);
    _mm256_storeu_ps(lanes + 8, b);
    for (; i < n; i++) {
        lanes[i & 15u] = fmaf(x[i], x[i], lanes[i & 15u]);
    }
    float sum = eng_fold16(lanes), s = 1.0f / sqrtf(sum / (float)n + eps);
    __m256 vs = _mm256_set1_ps(s);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i), vs);
        _mm256_storeu_ps(y_out + i, weight != NULL ? _mm256_mul_ps(y, _mm256_loadu_ps(weight + i)) : y);
    }
    for (; i < n; i++) {
        y_out[i] = weight != NULL ? (x[i] * s) * weight[i] : x[i] * s;
    }
    return sum < INFINITY;
}

/* The largest magnitude of 32 floats as bits: for magnitudes integer order is float order, with NaN above infinity. */
ENG_INLINE int32_t amax_bits(const __m256 v[4])
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i a = _mm256_and_si256(_mm256_castps_si256(v[0]), magnitude);
    for (int i = 1; i < 4; i++) {
        a = _mm256_max_epi32(a, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

ENG_INLINE int32_t sum8(__m256i s)
{
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    return _mm_cvtsi128_si32(t);
}

ENG_INLINE void store16(int16_t *to, __m256i a, __m256i b)
{
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
}

bool eng_avx2_quantize(const float *x, uint32_t n, int16_t *q_out, float *dx_out, float *sx_out, int32_t *sum_out)
{
    bool finite = true;
    for (uint32_t b = 0; b < n / ENG_BLOCK; b++, x += ENG_BLOCK, q_out += ENG_BLOCK) {
        __m256 v[4];
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
        }
        float amax = eng_f32_from_bits((uint32_t)amax_bits(v)), inverse = 0.0f, dx = 0.0f;
        bool good = amax < INFINITY;
        if (!good) {
            finite = false;
            v[0] = v[1] = v[2] = v[3] = _mm256_setzero_ps();
        } else if (!(amax < ENG_QUANT_TINY)) {
            inverse = ENG_QUANT_MAX / amax;
            dx = amax / ENG_QUANT_MAX;
        }
        __m256 vi = _mm256_set1_ps(inverse);
        __m256i w[4];
        for (int i = 0; i < 4; i++) {
            w[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], vi));
        }
        store16(q_out, w[0], w[1]);
        store16(q_out + 16, w[2], w[3]);
        int32_t sum = sum8(_mm256_add_epi32(_mm256_add_epi32(w[0], w[1]), _mm256_add_epi32(w[2], w[3])));
        dx_out[b] = dx;
        sum_out[b] = sum;
        sx_out[b] = dx * (float)sum;
    }
    return finite;
}

void eng_avx2_add(float *x, const float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    }
    for (; i < n; i++) {
        x[i] = x[i] + y[i];
    }
}

void eng_avx2_silu_mul(float *g, const float *u, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(g + i), d = _mm256_add_ps(one, eng_exp8(_mm256_xor_ps(v, sign)));
        _mm256_storeu_ps(g + i, _mm256_mul_ps(_mm256_div_ps(v, d), _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) {
        g[i] = eng_silu(g[i]) * u[i];
    }
}

void eng_avx2_scale(float *x, float s, uint32_t n)
{
    const __m256 v = _mm256_set1_ps(s);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), v));
    }
    for (; i < n; i++) {
        x[i] = x[i] * s;
    }
}

void eng_avx2_add_scaled(float *y, const float *x, float s, uint32_t n)
{
    const __m256 v = _mm256_set1_ps(s);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(v, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    }
    for (; i < n; i++) {
        y[i] = fmaf(s, x[i], y[i]);
    }
}

/* g / (1 + exp(-z)) */
ENG_INLINE __m256 gated8(__m256 g, __m256 z)
{
    return _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), eng_exp8(_mm256_xor_ps(z, _mm256_set1_ps(-0.0f)))));
}

void eng_avx2_gelu_mul(float *g, const float *u, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f), slope = _mm256_set1_ps(ENG_GELU_SLOPE),
                 cube = _mm256_set1_ps(ENG_GELU_CUBE);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(g + i);
        __m256 z = _mm256_mul_ps(_mm256_mul_ps(v, slope), _mm256_fmadd_ps(cube, _mm256_mul_ps(v, v), one));
        _mm256_storeu_ps(g + i, _mm256_mul_ps(gated8(v, z), _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) {
        g[i] = eng_gelu(g[i]) * u[i];
    }
}

void eng_avx2_clamped_swiglu(float *g, const float *u, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f), top = _mm256_set1_ps(ENG_SWIGLU_LIMIT),
                 bottom = _mm256_set1_ps(-ENG_SWIGLU_LIMIT), alpha = _mm256_set1_ps(ENG_SWIGLU_ALPHA);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) { /* min and max give their second operand for a NaN, as the scalar form does */
        __m256 a = _mm256_min_ps(_mm256_loadu_ps(g + i), top), b = _mm256_min_ps(_mm256_loadu_ps(u + i), top);
        b = _mm256_max_ps(b, bottom);
        _mm256_storeu_ps(g + i, _mm256_mul_ps(gated8(a, _mm256_mul_ps(a, alpha)), _mm256_add_ps(b, one)));
    }
    for (; i < n; i++) {
        g[i] = eng_clamped_swiglu(g[i], u[i]);
    }
}

void eng_avx2_softcap(float *x, float cap, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f), twice = _mm256_set1_ps(-2.0f),
                 c = _mm256_set1_ps(cap);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m256 u = eng_exp8(_mm256_mul_ps(_mm256_andnot_ps(sign, _mm256_div_ps(v, c)), twice));
        __m256 y = _mm256_mul_ps(c, _mm256_div_ps(_mm256_sub_ps(one, u), _mm256_add_ps(one, u)));
        _mm256_storeu_ps(x + i, _mm256_or_ps(_mm256_andnot_ps(sign, y), _mm256_and_ps(sign, v)));
    }
    for (; i < n; i++) {
        x[i] = eng_softcap(x[i], cap);
    }
}

void eng_avx2_rope_neox(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                        const float *sines)
{
    uint32_t half = rope_dims / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        uint32_t i = 0;
        for (; i + 8 <= half; i += 8) {
            __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
            __m256 c = _mm256_loadu_ps(cosines + i), s = _mm256_loadu_ps(sines + i);
            _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
        }
        for (; i < half; i++) {
            float a = x[i], b = x[i + half];
            float ac = a * cosines[i], bs = b * sines[i], as = a * sines[i], bc = b * cosines[i];
            x[i] = ac - bs;
            x[i + half] = as + bc;
        }
    }
}

void eng_avx2_rope(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                   const float *sines)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    uint32_t half = rope_dims / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        uint32_t i = 0;
        for (; i + 4 <= half; i += 4) {
            __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cosines + i)), twice);
            __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sines + i)), twice);
            __m256 v = _mm256_loadu_ps(x + 2 * i), swapped = _mm256_permute_ps(v, 0xb1);
            _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, c), _mm256_mul_ps(swapped, s)));
        }
        for (; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            float ac = a * cosines[i], bs = b * sines[i], as = a * sines[i], bc = b * cosines[i];
            x[2 * i] = ac - bs;
            x[2 * i + 1] = as + bc;
        }
    }
}

bool eng_avx2_below(const float *x, uint32_t n, float limit)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), vl = _mm256_set1_ps(limit);
    __m256 good = _mm256_cmp_ps(sign, sign, _CMP_EQ_OQ);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        good = _mm256_and_ps(good, _mm256_cmp_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), vl, _CMP_LT_OQ));
    }
    bool all = _mm256_movemask_ps(good) == 0xff;
    for (; i < n; i++) {
        all = all && fabsf(x[i]) < limit;
    }
    return all;
}

float eng_avx2_sum_exp(const float *x, uint32_t n, float max, float divisor)
{
    const __m256 vm = _mm256_set1_ps(max), vd = _mm256_set1_ps(divisor);
    __m256 a = _mm256_setzero_ps(), b = a;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        a = _mm256_add_ps(a, eng_exp8(_mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), vm), vd)));
        b = _mm256_add_ps(b, eng_exp8(_mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), vm), vd)));
    }
    float lanes[16];
    _mm256_storeu_ps(lanes, a);
    _mm256_storeu_ps(lanes + 8, b);
    for (; i < n; i++) {
        lanes[i & 15u] = lanes[i & 15u] + eng_exp((x[i] - max) / divisor);
    }
    return eng_fold16(lanes);
}
