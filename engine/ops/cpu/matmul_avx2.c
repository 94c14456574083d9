/* matmul_avx2.c - products with quantized weights and 16-bit activations.
 *
 * Two ways to the same bits. Up to three input rows: straight from the packed codes, one group of 8 outputs at a time
 * (decode is bound by reading weights); compiled once for every form of codes and scales (form.h). More rows: the strip is
 * unpacked once to 16-bit integers and f32 scales, 64 blocks of k at a time, whatever its type was, and six input rows
 * share each load. Both multiply pairs of 16-bit integers into 32-bit sums (exact), then scale once a span of 32 or 16:
 * acc = fma(dw * dx, (float)isum, acc), with a minimum acc = fma(m, sx, acc).
 * Shape of the second kernel: 6 rows x 16 outputs = 12 sums, 2 weight registers, 1 broadcast: 15 of 16 registers.
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
    size_t sx_stride; /* of sx: b_stride, but where spans are halves of a block */
};

/* --- few rows: from the packed codes --- */

/* Codes are places in a table: two look-ups of bytes give four signed 16-bit values a lane. */
ENG_INLINE void table_values(__m256i v, __m256i table, __m256i out[4])
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i t = _mm256_shuffle_epi8(table, _mm256_and_si256(v, low));
    __m256i u = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), low));
    out[0] = _mm256_srai_epi16(_mm256_slli_epi16(t, 8), 8);
    out[1] = _mm256_srai_epi16(_mm256_slli_epi16(u, 8), 8);
    out[2] = _mm256_srai_epi16(t, 8);
    out[3] = _mm256_srai_epi16(u, 8);
}

/* Bits above bit 3 of nibble j of unit u, where they belong. */
ENG_INLINE __m256i plane_bits(const uint8_t *codes, uint32_t u, uint32_t j, const uint32_t high)
{
    const uint32_t at = high == 1 ? u * 4 + j : u % 2 * 8 + j * 2;
    __m256i p = eng_load_int(codes + ENG_NIBBLES + (high == 1 ? 0 : u / 2 * 32));
    p = at >= 4 ? _mm256_srli_epi16(p, (int)at - 4) : _mm256_slli_epi16(p, 4 - (int)at);
    return _mm256_and_si256(p, _mm256_set1_epi16(high == 1 ? 16 : 48));
}

/* Unit u of a block with 4-bit codes: four vectors of pairs of k. f and u are known where this is inlined into `few`. */
ENG_INLINE void unit_values(const uint8_t *codes, uint32_t u, __m256i table, const struct eng_form f, const int down,
                            __m256i out[4])
{
    const __m256i low = _mm256_set1_epi16(15);
    __m256i v = eng_load_int(codes + u * 32);
    if (f.table) {
        table_values(v, table, out);
        return;
    }
    out[0] = _mm256_and_si256(v, low);
    out[1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    out[2] = _mm256_and_si256(_mm256_srli_epi16(v, 8), low);
    out[3] = _mm256_srli_epi16(v, 12);
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
        if (f.high != 0) {
            out[j] = _mm256_or_si256(out[j], plane_bits(codes, u, j, f.high));
        }
        if (down != 0) {
            out[j] = _mm256_sub_epi16(out[j], _mm256_set1_epi16((int16_t)down));
        }
    }
}

ENG_INLINE __m256i load_table(const int8_t *table)
{
    return table == NULL ? _mm256_setzero_si256()
                         : _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
}

ENG_INLINE __m256 load_sub(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* eng_e8m0_half, eight at a time. */
ENG_INLINE __m256 load_e8m0(const uint8_t *p)
{
    const __m256i one = _mm256_set1_epi32(1);
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    __m256i least = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(least, normal, _mm256_cmpgt_epi32(e, one)));
}

/* Scales and minima of span `span` of block `b`, for 8 outputs. */
ENG_INLINE __m256 scale_of(const struct eng_cpu_quant *w, size_t b, size_t span, const struct eng_form f)
{
    if (f.scale == ENG_SCALE_E8M0) {
        return load_e8m0(w->sub + span * ENG_GROUP);
    }
    if (f.scale == ENG_SCALE_HALF) {
        return eng_load_f16(w->scale + b * ENG_GROUP);
    }
    __m256 d = eng_load_f16(w->scale + b / (ENG_SUPER / ENG_BLOCK) * ENG_GROUP);
    return _mm256_mul_ps(d, load_sub(w->sub + span * ENG_GROUP));
}

ENG_INLINE __m256 min_of(const struct eng_cpu_quant *w, size_t b, size_t span, const struct eng_form f)
{
    if (f.scale == ENG_SCALE_HALF) {
        return eng_load_f16(w->min + b * ENG_GROUP);
    }
    __m256 d = eng_load_f16(w->min + b / (ENG_SUPER / ENG_BLOCK) * ENG_GROUP);
    return _mm256_mul_ps(d, load_sub(w->sub_min + span * ENG_GROUP));
}

/* dx times the sum of 16 inputs: the minimum's other factor where spans are halves of a block. */
ENG_INLINE float half_sx(const int16_t *q, float dx)
{
    __m256i p = _mm256_madd_epi16(eng_load_int(q), _mm256_set1_epi16(1));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    return dx * (float)_mm_cvtsi128_si32(t);
}

ENG_INLINE __m256i sum_of_pairs(const __m256i v[4], const int16_t *q, __m256i s)
{
    __m256i a = _mm256_madd_epi16(v[0], eng_pair(q)), b = _mm256_madd_epi16(v[1], eng_pair(q + 2));
    __m256i c = _mm256_madd_epi16(v[2], eng_pair(q + 4)), d = _mm256_madd_epi16(v[3], eng_pair(q + 6));
    return _mm256_add_epi32(s, _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d)));
}

/* One span of a block, from weight `first` of it on: sums of codes times inputs. */
ENG_INLINE void few_sums(const uint8_t *codes, const uint32_t first, const struct columns *a, size_t k, __m256i table,
                         __m256i *s, const struct eng_form f, const uint32_t n)
{
    const uint32_t step = f.bits == 8 ? 4 : 8, units = f.span / step;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < units; i++) {
        const uint32_t u = first / step + i;
        const int16_t *q = a->q + k + u * step;
        __m256i v[4];
        if (f.bits == 8) {
            v[0] = eng_load_int(codes + u * 32);
            v[1] = _mm256_srai_epi16(v[0], 8);
            v[0] = _mm256_srai_epi16(_mm256_slli_epi16(v[0], 8), 8);
        } else {
            unit_values(codes, u, table, f, f.span == ENG_BLOCK ? 0 : f.down, v);
        }
#pragma GCC unroll 3
        for (uint32_t c = 0; c < n; c++, q += a->q_stride) {
            if (f.bits == 8) {
                s[c] = _mm256_add_epi32(s[c], _mm256_madd_epi16(v[0], eng_pair(q)));
                s[c] = _mm256_add_epi32(s[c], _mm256_madd_epi16(v[1], eng_pair(q + 2)));
            } else {
                s[c] = sum_of_pairs(v, q, s[c]);
            }
        }
    }
}

/* f and n are known where this is inlined. Codes that are too large by `down` are summed as they are, and down * sum(q) is
 * taken off beforehand: the same integer. */
ENG_INLINE void few(const struct eng_cpu_quant *w, const struct columns *a, float *y, size_t y_stride,
                    const struct eng_form f, const uint32_t n)
{
    const uint32_t halves = ENG_BLOCK / f.span;
    const __m256i table = load_table(w->table);
    __m256 acc[FEW_ROWS];
    const uint8_t *codes = w->codes;
    for (uint32_t c = 0; c < n; c++) {
        acc[c] = _mm256_setzero_ps();
    }
    for (size_t b = 0; b < w->blocks; b++, codes += w->code_bytes) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < halves; h++) {
            __m256i s[FEW_ROWS];
            size_t k = b * ENG_BLOCK + h * f.span;
            for (uint32_t c = 0; c < n; c++) {
                s[c] = f.down != 0 && halves == 1 ? _mm256_set1_epi32(-f.down * a->sum[c * a->b_stride + b])
                                                  : _mm256_setzero_si256();
            }
            few_sums(codes, h * f.span, a, b * ENG_BLOCK, table, s, f, n);
            __m256 d = scale_of(w, b, b * halves + h, f);
            for (uint32_t c = 0; c < n; c++) {
                float dx = a->dx[c * a->b_stride + b];
                acc[c] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(s[c]), acc[c]);
                if (f.with_min) {
                    float sx = halves == 1 ? a->sx[c * a->b_stride + b] : half_sx(a->q + c * a->q_stride + k, dx);
                    acc[c] = _mm256_fmadd_ps(min_of(w, b, b * halves + h, f), _mm256_set1_ps(sx), acc[c]);
                }
            }
        }
    }
    for (uint32_t c = 0; c < n; c++) {
        _mm256_storeu_ps(y + c * y_stride, acc[c]);
    }
}

#define FEW(type, n) few(&w, a, y, y_stride, eng_form_of(type), n)
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
FEW_OF(few_q5_0, MDL_Q5_0)
FEW_OF(few_q5_1, MDL_Q5_1)
FEW_OF(few_q8_0, MDL_Q8_0)
FEW_OF(few_q2_k, MDL_Q2_K)
FEW_OF(few_q3_k, MDL_Q3_K)
FEW_OF(few_q4_k, MDL_Q4_K)
FEW_OF(few_q5_k, MDL_Q5_K)
FEW_OF(few_q6_k, MDL_Q6_K)
FEW_OF(few_iq4_nl, MDL_IQ4_NL)
FEW_OF(few_iq4_xs, MDL_IQ4_XS)
FEW_OF(few_mxfp4, MDL_MXFP4)

typedef void (*few_fn)(struct eng_cpu_quant, const struct columns *, uint32_t, float *, size_t);

static few_fn few_for(mdl_type type)
{
    switch (type) {
    case MDL_Q4_0: return few_q4_0;
    case MDL_Q4_1: return few_q4_1;
    case MDL_Q5_0: return few_q5_0;
    case MDL_Q5_1: return few_q5_1;
    case MDL_Q2_K: return few_q2_k;
    case MDL_Q3_K: return few_q3_k;
    case MDL_Q4_K: return few_q4_k;
    case MDL_Q5_K: return few_q5_k;
    case MDL_Q6_K: return few_q6_k;
    case MDL_IQ4_NL: return few_iq4_nl;
    case MDL_IQ4_XS: return few_iq4_xs;
    case MDL_MXFP4: return few_mxfp4;
    default: return few_q8_0;
    }
}

static void strip_few(const struct eng_weight *w, uint32_t strip, const struct columns *a, uint32_t rows, float *y,
                      size_t y_stride)
{
    few_fn f = few_for(w->type);
    for (uint32_t h = 0; h < ENG_STRIP / ENG_GROUP; h++) {
        f(eng_cpu_quant_group(w, strip * (ENG_STRIP / ENG_GROUP) + h), a, rows, y + h * ENG_GROUP, y_stride);
    }
}

/* --- many rows: from an unpacked strip --- */

/* weights [block][16 pairs of k][16 outputs][2], scale and min [span][16 outputs]. */
struct strip_view {
    __m256i *weights;
    float *scale, *min;
    uint32_t span;
};

ENG_INLINE void unpack_4_bit(const uint8_t *codes, __m256i table, const struct eng_form f, __m256i *o)
{
#pragma GCC unroll 4
    for (uint32_t u = 0; u < 4; u++) {
        __m256i v[4];
        unit_values(codes, u, table, f, f.down, v);
        for (uint32_t i = 0; i < 4; i++) {
            o[8 * u + 2 * i] = v[i];
        }
    }
}

/* The cases differ by what makes a loop of its own: the table, the plane. */
static void unpack_codes(const struct eng_form *f, const uint8_t *codes, __m256i table, __m256i *o)
{
    if (f->bits == 8) {
        for (uint32_t u = 0; u < 8; u++) {
            __m256i v = eng_load_int(codes + u * 32);
            o[4 * u] = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
            o[4 * u + 2] = _mm256_srai_epi16(v, 8);
        }
    } else if (f->table) {
        unpack_4_bit(codes, table, (struct eng_form){.table = true}, o);
    } else if (f->high == 0) {
        unpack_4_bit(codes, table, (struct eng_form){.down = f->down}, o);
    } else if (f->high == 1) {
        unpack_4_bit(codes, table, (struct eng_form){.high = 1, .down = f->down}, o);
    } else {
        unpack_4_bit(codes, table, (struct eng_form){.high = 2, .down = f->down}, o);
    }
}

static void unpack(const struct eng_weight *w, uint32_t strip, uint32_t first, uint32_t blocks,
                   const struct strip_view *s)
{
    const struct eng_form f = eng_form_of(w->type);
    const uint32_t halves = ENG_BLOCK / f.span;
    for (uint32_t h = 0; h < ENG_STRIP / ENG_GROUP; h++) {
        struct eng_cpu_quant q = eng_cpu_quant_group(w, strip * (ENG_STRIP / ENG_GROUP) + h);
        __m256i table = load_table(q.table);
        for (size_t b = 0; b < blocks; b++) {
            size_t at = first + b;
            unpack_codes(&f, q.codes + at * q.code_bytes, table, s->weights + b * 32 + h);
            for (uint32_t i = 0; i < halves; i++) {
                size_t to = (b * halves + i) * ENG_STRIP + h * ENG_GROUP;
                _mm256_store_ps(s->scale + to, scale_of(&q, at, at * halves + i, f));
                if (s->min != NULL) {
                    _mm256_store_ps(s->min + to, min_of(&q, at, at * halves + i, f));
                }
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
        __m256 d = _mm256_set1_ps(a->dx[c * a->b_stride + t * span / ENG_BLOCK]);               \
        __m256 r0 = _mm256_mul_ps(_mm256_load_ps(s->scale + t * 16), d);                        \
        __m256 r1 = _mm256_mul_ps(_mm256_load_ps(s->scale + t * 16 + 8), d);                    \
        r0 = _mm256_fmadd_ps(r0, _mm256_cvtepi32_ps(s0_##c), _mm256_load_ps(acc + c * 16));     \
        r1 = _mm256_fmadd_ps(r1, _mm256_cvtepi32_ps(s1_##c), _mm256_load_ps(acc + c * 16 + 8)); \
        if (with_min) {                                                                         \
            __m256 sx = _mm256_set1_ps(a->sx[c * a->sx_stride + t]);                            \
            r0 = _mm256_fmadd_ps(_mm256_load_ps(s->min + t * 16), sx, r0);                      \
            r1 = _mm256_fmadd_ps(_mm256_load_ps(s->min + t * 16 + 8), sx, r1);                  \
        }                                                                                       \
        _mm256_store_ps(acc + c * 16, r0);                                                      \
        _mm256_store_ps(acc + c * 16 + 8, r1);                                                  \
    }
/* n input rows against `blocks` blocks of the strip; y holds the accumulators of the blocks before (resume). */
#define MANY(n)                                                                                                     \
    ENG_INLINE void many_any_##n(const struct strip_view *s, uint32_t blocks, const struct columns *a, float *y,    \
                                 size_t y_stride, bool resume, const bool with_min, const uint32_t span)            \
    {                                                                                                               \
        _Alignas(32) float acc[n * 16];                                                                             \
        for (uint32_t c = 0; c < n; c++) {                                                                          \
            for (uint32_t i = 0; i < 16; i++) {                                                                     \
                acc[c * 16 + i] = resume ? y[c * y_stride + i] : 0.0f;                                              \
            }                                                                                                       \
        }                                                                                                           \
        for (uint32_t t = 0; t < blocks * (ENG_BLOCK / span); t++) {                                                \
            const __m256i *w = s->weights + t * span;                                                               \
            const int16_t *q = a->q + t * span;                                                                     \
            ENG_EACH_##n(SUM_ZERO) _Pragma("GCC unroll 4") for (uint32_t p = 0; p < span / 2; p++)                  \
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
        if (s->span == ENG_BLOCK && s->min == NULL) {                                                               \
            many_any_##n(s, blocks, a, y, y_stride, resume, false, ENG_BLOCK);                                      \
        } else if (s->span == ENG_BLOCK) {                                                                          \
            many_any_##n(s, blocks, a, y, y_stride, resume, true, ENG_BLOCK);                                       \
        } else if (s->min == NULL) {                                                                                \
            many_any_##n(s, blocks, a, y, y_stride, resume, false, ENG_BLOCK / 2);                                  \
        } else {                                                                                                    \
            many_any_##n(s, blocks, a, y, y_stride, resume, true, ENG_BLOCK / 2);                                   \
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

/* Where spans are halves of a block: their sx, for the rows of one call of the kernel. */
static void half_sums(const struct columns *a, uint32_t rows, uint32_t blocks, float *to)
{
    for (uint32_t c = 0; c < rows; c++) {
        for (uint32_t t = 0; t < 2 * blocks; t++) {
            to[c * 2 * ENG_STRIP_BLOCKS + t] =
                half_sx(a->q + c * a->q_stride + t * (ENG_BLOCK / 2), a->dx[c * a->b_stride + t / 2]);
        }
    }
}

static void strip_many(const struct eng_weight *w, uint32_t strip, const struct columns *a, uint32_t rows, float *y,
                       size_t y_stride, uint8_t *scratch)
{
    const struct eng_form f = eng_form_of(w->type);
    uint32_t blocks = w->cols / ENG_BLOCK;
    float *scales = (float *)(void *)(scratch + (size_t)ENG_STRIP_BLOCKS * ENG_STRIP * ENG_BLOCK * 2);
    float halves[6 * 2 * ENG_STRIP_BLOCKS];
    struct strip_view s = {.weights = (__m256i *)(void *)scratch,
                           .scale = scales,
                           .min = f.with_min ? scales + 2 * ENG_STRIP_BLOCKS * ENG_STRIP : NULL,
                           .span = f.span};
    for (uint32_t b = 0; b < blocks; b += ENG_STRIP_BLOCKS) {
        uint32_t n = blocks - b < ENG_STRIP_BLOCKS ? blocks - b : ENG_STRIP_BLOCKS;
        unpack(w, strip, b, n, &s);
        for (uint32_t i = 0, m; i < rows; i += m) {
            m = rows - i < 6 ? rows - i : 6;
            struct columns part = *a;
            part.q += i * a->q_stride + b * ENG_BLOCK;
            part.dx += i * a->b_stride + b;
            part.sx += i * a->b_stride + b;
            if (f.with_min && f.span != ENG_BLOCK) {
                half_sums(&part, m, n, halves);
                part.sx = halves;
                part.sx_stride = (size_t)2 * ENG_STRIP_BLOCKS;
            }
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
    size_t blocks = w->cols / ENG_BLOCK;
    struct columns c = {.q = a->q,
                        .dx = a->dx,
                        .sx = a->sx,
                        .sum = a->sum,
                        .q_stride = w->cols,
                        .b_stride = blocks,
                        .sx_stride = blocks};
    if (rows <= FEW_ROWS) {
        strip_few(w, strip, &c, rows, y, y_stride);
    } else {
        strip_many(w, strip, &c, rows, y, y_stride, s->strip);
    }
}
