/* matmul_avx2.c - products with quantized weights and 16-bit activations.
 *
 * Two ways to the same bits. Up to three input rows: straight from the packed codes, one group of 8 outputs at a time
 * (decode is bound by reading weights). More rows: the strip is unpacked once to 16-bit integers, 64 blocks of k at a
 * time, and six input rows share each load. Both multiply pairs of 16-bit integers into 32-bit sums (exact), then scale
 * once a block: acc = fma(dw * dx, (float)isum, acc), with a minimum acc = fma(m, sx, acc) Shape of the second kernel:
 * 6 rows x 16 outputs = 12 sums, 2 weight registers, 1 broadcast: 15 of 16 registers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"

#define FEW_ROWS 3u

/* One column set of activations: rows c = 0 .. n - 1 at strides. */
struct columns {
    const int16_t *q;
    const float *dx, *sx;
    const int32_t *sum;
    size_t q_stride, b_stride;
};

/* --- few rows: from the packed codes --- */

ENG_INLINE __m256i unit_q8(const uint8_t *codes, const int16_t *q, __m256i s)
{
    __m256i v = eng_load_int(codes);
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), odd = _mm256_srai_epi16(v, 8);
    s = _mm256_add_epi32(s, _mm256_madd_epi16(even, eng_pair(q)));
    return _mm256_add_epi32(s, _mm256_madd_epi16(odd, eng_pair(q + 2)));
}

ENG_INLINE __m256i unit_q4(const uint8_t *codes, const int16_t *q, __m256i s)
{
    const __m256i low = _mm256_set1_epi16(15);
    __m256i v = eng_load_int(codes);
    __m256i a = _mm256_madd_epi16(_mm256_and_si256(v, low), eng_pair(q));
    __m256i b = _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 4), low), eng_pair(q + 2));
    __m256i c = _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 8), low), eng_pair(q + 4));
    __m256i d = _mm256_madd_epi16(_mm256_srli_epi16(v, 12), eng_pair(q + 6));
    return _mm256_add_epi32(s, _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d)));
}

/* n is known where this is inlined. Q4_0 sums codes 0..15 and takes 8 * sum(q) off beforehand: the same integer. */
ENG_INLINE void few(const struct eng_cpu_quant *w, const struct columns *a, float *y, size_t y_stride,
                    const mdl_type type, const uint32_t n)
{
    __m256 acc[FEW_ROWS];
    const uint8_t *codes = w->codes;
    for (uint32_t c = 0; c < n; c++) {
        acc[c] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < w->blocks; b++, codes += w->code_bytes) {
        __m256i s[FEW_ROWS];
        for (uint32_t c = 0; c < n; c++) {
            s[c] = type == MDL_Q4_0 ? _mm256_set1_epi32(-8 * a->sum[c * a->b_stride + b]) : _mm256_setzero_si256();
        }
        if (type == MDL_Q8_0) {
#pragma GCC unroll 8
            for (uint32_t u = 0; u < 8; u++) {
#pragma GCC unroll 3
                for (uint32_t c = 0; c < n; c++) {
                    s[c] = unit_q8(codes + u * 32, a->q + c * a->q_stride + b * ENG_BLOCK + u * 4, s[c]);
                }
            }
        } else {
#pragma GCC unroll 4
            for (uint32_t u = 0; u < 4; u++) {
#pragma GCC unroll 3
                for (uint32_t c = 0; c < n; c++) {
                    s[c] = unit_q4(codes + u * 32, a->q + c * a->q_stride + b * ENG_BLOCK + u * 8, s[c]);
                }
            }
        }
        __m256 d = eng_load_f16(w->scale + b * ENG_GROUP);
        for (uint32_t c = 0; c < n; c++) {
            __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(a->dx[c * a->b_stride + b]));
            acc[c] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(s[c]), acc[c]);
            if (type == MDL_Q4_1) {
                acc[c] = _mm256_fmadd_ps(eng_load_f16(w->min + b * ENG_GROUP),
                                         _mm256_set1_ps(a->sx[c * a->b_stride + b]), acc[c]);
            }
        }
    }
    for (uint32_t c = 0; c < n; c++) {
        _mm256_storeu_ps(y + c * y_stride, acc[c]);
    }
}

#define FEW(type, n) few(&w, a, y, y_stride, type, n)
#define FEW_OF(name, type)                                                                                      \
    static void name(struct eng_cpu_quant w, const struct columns *a, uint32_t rows, float *y, size_t y_stride) \
    {                                                                                                           \
        switch (rows) {                                                                                         \
        case 1: FEW(type, 1); break;                                                                            \
        case 2: FEW(type, 2); break;                                                                            \
        default: FEW(type, 3); break;                                                                           \
        }                                                                                                       \
    }
FEW_OF(few_q4_0, MDL_Q4_0)
FEW_OF(few_q4_1, MDL_Q4_1)
FEW_OF(few_q8_0, MDL_Q8_0)

static void strip_few(const struct eng_weight *w, uint32_t strip, const struct columns *a, uint32_t rows, float *y,
                      size_t y_stride)
{
    for (uint32_t h = 0; h < ENG_STRIP / ENG_GROUP; h++) {
        struct eng_cpu_quant q = eng_cpu_quant_group(w, strip * (ENG_STRIP / ENG_GROUP) + h);
        float *to = y + h * ENG_GROUP;
        switch (w->type) {
        case MDL_Q8_0: few_q8_0(q, a, rows, to, y_stride); break;
        case MDL_Q4_0: few_q4_0(q, a, rows, to, y_stride); break;
        default: few_q4_1(q, a, rows, to, y_stride); break;
        }
    }
}

/* --- many rows: from an unpacked strip --- */

/* weights [block][16 pairs of k][16 outputs][2], scale and min [block][16 outputs]. */
struct strip_view {
    __m256i *weights;
    float *scale, *min;
};

static void unpack_codes(mdl_type type, const uint8_t *codes, __m256i *o)
{
    const __m256i low = _mm256_set1_epi16(15), eight = _mm256_set1_epi16(type == MDL_Q4_0 ? 8 : 0);
    if (type == MDL_Q8_0) {
        for (uint32_t u = 0; u < 8; u++) {
            __m256i v = eng_load_int(codes + u * 32);
            o[4 * u] = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
            o[4 * u + 2] = _mm256_srai_epi16(v, 8);
        }
        return;
    }
    for (uint32_t u = 0; u < 4; u++) {
        __m256i v = eng_load_int(codes + u * 32);
        o[8 * u] = _mm256_sub_epi16(_mm256_and_si256(v, low), eight);
        o[8 * u + 2] = _mm256_sub_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 4), low), eight);
        o[8 * u + 4] = _mm256_sub_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 8), low), eight);
        o[8 * u + 6] = _mm256_sub_epi16(_mm256_srli_epi16(v, 12), eight);
    }
}

static void unpack(const struct eng_weight *w, uint32_t strip, uint32_t first, uint32_t blocks,
                   const struct strip_view *s)
{
    for (uint32_t h = 0; h < ENG_STRIP / ENG_GROUP; h++) {
        struct eng_cpu_quant q = eng_cpu_quant_group(w, strip * (ENG_STRIP / ENG_GROUP) + h);
        for (uint32_t b = 0; b < blocks; b++) {
            size_t at = first + b;
            unpack_codes(w->type, q.codes + at * q.code_bytes, s->weights + b * 32 + h);
            _mm256_store_ps(s->scale + b * ENG_STRIP + h * ENG_GROUP, eng_load_f16(q.scale + at * ENG_GROUP));
            if (q.min != NULL) {
                _mm256_store_ps(s->min + b * ENG_STRIP + h * ENG_GROUP, eng_load_f16(q.min + at * ENG_GROUP));
            }
        }
    }
}

#define SUM_ZERO(c) __m256i s0_##c = _mm256_setzero_si256(), s1_##c = _mm256_setzero_si256();
#define SUM_PAIR(c)                                                  \
    {                                                                \
        __m256i x = eng_pair(q + c * a->q_stride + p * 2);           \
        s0_##c = _mm256_add_epi32(s0_##c, _mm256_madd_epi16(w0, x)); \
        s1_##c = _mm256_add_epi32(s1_##c, _mm256_madd_epi16(w1, x)); \
        ENG_PIN(s0_##c, s1_##c);                                     \
    }
#define SUM_SCALE(c)                                                                            \
    {                                                                                           \
        __m256 d = _mm256_set1_ps(a->dx[c * a->b_stride + b]);                                  \
        __m256 r0 = _mm256_mul_ps(_mm256_load_ps(s->scale + b * 16), d);                        \
        __m256 r1 = _mm256_mul_ps(_mm256_load_ps(s->scale + b * 16 + 8), d);                    \
        r0 = _mm256_fmadd_ps(r0, _mm256_cvtepi32_ps(s0_##c), _mm256_load_ps(acc + c * 16));     \
        r1 = _mm256_fmadd_ps(r1, _mm256_cvtepi32_ps(s1_##c), _mm256_load_ps(acc + c * 16 + 8)); \
        if (with_min) {                                                                         \
            __m256 sx = _mm256_set1_ps(a->sx[c * a->b_stride + b]);                             \
            r0 = _mm256_fmadd_ps(_mm256_load_ps(s->min + b * 16), sx, r0);                      \
            r1 = _mm256_fmadd_ps(_mm256_load_ps(s->min + b * 16 + 8), sx, r1);                  \
        }                                                                                       \
        _mm256_store_ps(acc + c * 16, r0);                                                      \
        _mm256_store_ps(acc + c * 16 + 8, r1);                                                  \
    }
/* n input rows against `blocks` blocks of the strip; y holds the accumulators of the blocks before (resume). */
#define MANY(n)                                                                                                     \
    ENG_INLINE void many_any_##n(const struct strip_view *s, uint32_t blocks, const struct columns *a, float *y,    \
                                 size_t y_stride, bool resume, const bool with_min)                                 \
    {                                                                                                               \
        _Alignas(32) float acc[n * 16];                                                                             \
        for (uint32_t c = 0; c < n; c++) {                                                                          \
            for (uint32_t i = 0; i < 16; i++) {                                                                     \
                acc[c * 16 + i] = resume ? y[c * y_stride + i] : 0.0f;                                              \
            }                                                                                                       \
        }                                                                                                           \
        for (uint32_t b = 0; b < blocks; b++) {                                                                     \
            const __m256i *w = s->weights + b * 32;                                                                 \
            const int16_t *q = a->q + b * ENG_BLOCK;                                                                \
            ENG_EACH_##n(SUM_ZERO) _Pragma("GCC unroll 4") for (uint32_t p = 0; p < 16; p++)                        \
            {                                                                                                       \
                __m256i w0 = w[p * 2], w1 = w[p * 2 + 1];                                                           \
                ENG_EACH_##n(SUM_PAIR)                                                                              \
            }                                                                                                       \
            ENG_EACH_##n(SUM_SCALE)                                                                                 \
        }                                                                                                           \
        for (uint32_t c = 0; c < n; c++) {                                                                          \
            memcpy(y + c * y_stride, acc + c * 16, 64);                                                             \
        }                                                                                                           \
    }                                                                                                               \
    static __attribute__((noinline)) void many_##n(const struct strip_view *s, uint32_t blocks,                     \
                                                   const struct columns *a, float *y, size_t y_stride, bool resume) \
    {                                                                                                               \
        if (s->min != NULL) {                                                                                       \
            many_any_##n(s, blocks, a, y, y_stride, resume, true);                                                  \
        } else {                                                                                                    \
            many_any_##n(s, blocks, a, y, y_stride, resume, false);                                                 \
        }                                                                                                           \
    }
MANY(1)
MANY(2)
MANY(3)
MANY(4)
MANY(5)
MANY(6)

typedef void (*many_fn)(const struct strip_view *, uint32_t, const struct columns *, float *, size_t, bool);
static const many_fn many[] = {NULL, many_1, many_2, many_3, many_4, many_5, many_6};

static void strip_many(const struct eng_weight *w, uint32_t strip, const struct columns *a, uint32_t rows, float *y,
                       size_t y_stride, uint8_t *scratch)
{
    uint32_t blocks = w->cols / ENG_BLOCK;
    float *scales = (float *)(void *)(scratch + (size_t)ENG_STRIP_BLOCKS * ENG_STRIP * ENG_BLOCK * 2);
    struct strip_view s = {.weights = (__m256i *)(void *)scratch,
                           .scale = scales,
                           .min = w->type == MDL_Q4_1 ? scales + ENG_STRIP_BLOCKS * ENG_STRIP : NULL};
    for (uint32_t b = 0; b < blocks; b += ENG_STRIP_BLOCKS) {
        uint32_t n = blocks - b < ENG_STRIP_BLOCKS ? blocks - b : ENG_STRIP_BLOCKS;
        unpack(w, strip, b, n, &s);
        for (uint32_t i = 0, m; i < rows; i += m) {
            m = rows - i < 6 ? rows - i : 6;
            struct columns part = *a;
            part.q += i * a->q_stride + b * ENG_BLOCK;
            part.dx += i * a->b_stride + b;
            part.sx += i * a->b_stride + b;
            many[m](&s, n, &part, y + i * y_stride, y_stride, b != 0);
        }
    }
}

void eng_avx2_matmul(const struct eng_weight *w, uint32_t strip, const struct eng_acts *a, uint32_t rows, float *y,
                     size_t y_stride, struct eng_scratch *s)
{
    if (!eng_ops_quantized(w->type)) {
        eng_avx2_matmul_plain(w, strip, a, rows, y, y_stride, s);
        return;
    }
    struct columns c = {
        .q = a->q, .dx = a->dx, .sx = a->sx, .sum = a->sum, .q_stride = w->cols, .b_stride = w->cols / ENG_BLOCK};
    if (rows <= FEW_ROWS) {
        strip_few(w, strip, &c, rows, y, y_stride);
    } else {
        strip_many(w, strip, &c, rows, y, y_stride, s->strip);
    }
}
