/* plain_avx2.c - products with F32, F16 and BF16 weights: one fused multiply-add chain an output, k ascending.
 * Six input rows share each load of 16 weights; the accumulators are stored and reloaded between runs of k. F16 and
 * BF16 are widened in the kernel for few rows, once per strip and run of k for many.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"

#define RUN (ENG_STRIP_BLOCKS * ENG_BLOCK) /* values of k at a time: a strip of them fits the scratch as f32 */

/* A strip's two groups at value k0: elements [k][8]. */
struct plain_view {
    const void *w0, *w1;
    mdl_type type;
};

ENG_INLINE __m256 load(const void *p, size_t i, const mdl_type type)
{
    return type == MDL_F32   ? _mm256_loadu_ps((const float *)p + i)
           : type == MDL_F16 ? eng_load_f16((const uint16_t *)p + i)
                             : eng_load_bf16((const uint16_t *)p + i);
}

#define ACC_LOAD(c)                                                                   \
    __m256 a0_##c = resume ? _mm256_loadu_ps(y + c * y_stride) : _mm256_setzero_ps(); \
    __m256 a1_##c = resume ? _mm256_loadu_ps(y + c * y_stride + 8) : _mm256_setzero_ps();
#define ACC_STEP(c)                                           \
    {                                                         \
        __m256 v = _mm256_broadcast_ss(x + c * x_stride + k); \
        a0_##c = _mm256_fmadd_ps(w0, v, a0_##c);              \
        a1_##c = _mm256_fmadd_ps(w1, v, a1_##c);              \
        ENG_PIN(a0_##c, a1_##c);                              \
    }
#define ACC_STORE(c)                            \
    _mm256_storeu_ps(y + c * y_stride, a0_##c); \
    _mm256_storeu_ps(y + c * y_stride + 8, a1_##c);
#define PLAIN(n)                                                                                                \
    ENG_INLINE void plain_any_##n(const struct plain_view *w, uint32_t count, const float *x, size_t x_stride,  \
                                  float *y, size_t y_stride, bool resume, const mdl_type type)                  \
    {                                                                                                           \
        const void *p0 = w->w0, *p1 = w->w1;                                                                    \
        ENG_EACH_##n(ACC_LOAD) for (size_t k = 0; k < count; k++)                                               \
        {                                                                                                       \
            __m256 w0 = load(p0, k * ENG_GROUP, type), w1 = load(p1, k * ENG_GROUP, type);                      \
            ENG_EACH_##n(ACC_STEP)                                                                              \
        }                                                                                                       \
        ENG_EACH_##n(ACC_STORE)                                                                                 \
    }                                                                                                           \
    static __attribute__((noinline)) void plain_##n(const struct plain_view *w, uint32_t count, const float *x, \
                                                    size_t x_stride, float *y, size_t y_stride, bool resume)    \
    {                                                                                                           \
        switch (w->type) {                                                                                      \
        case MDL_F32: plain_any_##n(w, count, x, x_stride, y, y_stride, resume, MDL_F32); break;                \
        case MDL_F16: plain_any_##n(w, count, x, x_stride, y, y_stride, resume, MDL_F16); break;                \
        default: plain_any_##n(w, count, x, x_stride, y, y_stride, resume, MDL_BF16); break;                    \
        }                                                                                                       \
    }
PLAIN(1)
PLAIN(2)
PLAIN(3)
PLAIN(4)
PLAIN(5)
PLAIN(6)

typedef void (*plain_fn)(const struct plain_view *, uint32_t, const float *, size_t, float *, size_t, bool);
static const plain_fn plain[] = {NULL, plain_1, plain_2, plain_3, plain_4, plain_5, plain_6};

static void widen(const void *from, mdl_type type, uint32_t count, float *to)
{
    for (size_t i = 0; i < (size_t)count * ENG_GROUP; i += ENG_GROUP) {
        _mm256_store_ps(to + i, load(from, i, type));
    }
}

void eng_avx2_matmul_plain(const struct eng_weight *w, uint32_t strip, const struct eng_acts *a, uint32_t rows,
                           float *y, size_t y_stride, struct eng_scratch *s)
{
    size_t es = w->type == MDL_F32 ? 4 : 2, group_bytes = (size_t)w->cols * ENG_GROUP * es;
    const uint8_t *base = w->data + strip * (ENG_STRIP / ENG_GROUP) * group_bytes;
    for (uint32_t k = 0; k < w->cols; k += RUN) {
        uint32_t count = w->cols - k < RUN ? w->cols - k : RUN;
        struct plain_view v = {.w0 = base + (size_t)k * ENG_GROUP * es, .type = w->type};
        v.w1 = base + group_bytes + (size_t)k * ENG_GROUP * es;
        if (rows > 6 && w->type != MDL_F32) {
            float *f = (float *)(void *)s->strip;
            widen(v.w0, w->type, count, f);
            widen(v.w1, w->type, count, f + (size_t)count * ENG_GROUP);
            v = (struct plain_view){.w0 = f, .w1 = f + (size_t)count * ENG_GROUP, .type = MDL_F32};
        }
        for (uint32_t i = 0, m; i < rows; i += m) {
            m = rows - i < 6 ? rows - i : 6;
            plain[m](&v, count, a->x + i * a->x_stride + k, a->x_stride, y + i * y_stride, y_stride, k != 0);
        }
    }
}
