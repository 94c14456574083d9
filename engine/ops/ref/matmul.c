/* matmul.c - reference products, and rows of the embedding.
 * Weights stay as the file has them, row after row, so that this table shares no packing with the fast ones; blocks.c
 * takes quantized blocks apart.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/ref/ref.h"
#include "base/checked.h"
#include "engine/ops/scalar.h"

static uint64_t row_bytes(mdl_type type, uint32_t cols)
{
    if (!eng_ops_quantized(type)) {
        return (type == MDL_F32 ? 4ull : 2ull) * cols;
    }
    struct eng_ref_shape s = eng_ref_shape_of(type);
    return (uint64_t)(cols / s.weights) * s.bytes;
}

uint64_t eng_ref_packed_bytes(mdl_type type, uint32_t rows, uint32_t cols)
{
    return rows * row_bytes(type, cols);
}

void eng_ref_pack(struct eng_weight *w, const uint8_t *src)
{
    memcpy(w->data, src, w->bytes);
}

static float plain_weight(mdl_type type, const uint8_t *p, uint32_t k)
{
    switch (type) {
    case MDL_F16: return eng_f16_to_f32(kvs_load_u16(p + 2ull * k));
    case MDL_BF16: return eng_bf16_to_f32(kvs_load_u16(p + 2ull * k));
    default: return kvs_load_f32(p + 4ull * k);
    }
}

void eng_ref_row(const struct eng_weight *w, uint32_t row, float *x_out)
{
    const uint8_t *p = w->data + row * row_bytes(w->type, w->cols);
    if (!eng_ops_quantized(w->type)) {
        for (uint32_t k = 0; k < w->cols; k++) {
            x_out[k] = plain_weight(w->type, p, k);
        }
        return;
    }
    struct eng_ref_shape s = eng_ref_shape_of(w->type);
    for (uint32_t k = 0; k < w->cols; k += s.weights, p += s.bytes) {
        struct eng_ref_block b;
        eng_ref_block_read(w->type, p, &b);
        for (uint32_t i = 0; i < s.weights; i++) {
            float v = b.d[i / s.span] * (float)b.w[i];
            x_out[k + i] = s.with_min ? v + b.m[i / s.span] : v;
        }
    }
}

bool eng_ref_quantize(const float *x, uint32_t n, int16_t *q_out, float *dx_out, float *sx_out, int32_t *sum_out)
{
    bool finite = true;
    for (uint32_t b = 0; b < n / ENG_BLOCK; b++, x += ENG_BLOCK, q_out += ENG_BLOCK) {
        float amax = 0.0f;
        bool good = eng_ref_below(x, ENG_BLOCK, INFINITY);
        for (uint32_t i = 0; i < ENG_BLOCK; i++) {
            amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        }
        int32_t sum = 0;
        float dx = 0.0f;
        if (!good || amax < ENG_QUANT_TINY) {
            memset(q_out, 0, ENG_BLOCK * sizeof *q_out);
            finite = finite && good;
        } else {
            float inverse = ENG_QUANT_MAX / amax;
            dx = amax / ENG_QUANT_MAX;
            for (uint32_t i = 0; i < ENG_BLOCK; i++) {
                int32_t q = (int32_t)rintf(x[i] * inverse);
                q_out[i] = (int16_t)q;
                sum += q;
            }
        }
        dx_out[b] = dx;
        sum_out[b] = sum;
        sx_out[b] = dx * (float)sum;
    }
    return finite;
}

static float dot_plain(const struct eng_weight *w, const uint8_t *p, const float *x)
{
    float acc = 0.0f;
    for (uint32_t k = 0; k < w->cols; k++) {
        acc = fmaf(plain_weight(w->type, p, k), x[k], acc);
    }
    return acc;
}

/* One exact sum, one scaled step for every span of 16 or 32 weights; then its minimum times the sum of the inputs. */
static float dot_quantized(const struct eng_weight *w, const uint8_t *p, const int16_t *q, const float *dx)
{
    struct eng_ref_shape s = eng_ref_shape_of(w->type);
    float acc = 0.0f;
    for (uint32_t k = 0; k < w->cols; k += s.weights, p += s.bytes) {
        struct eng_ref_block b;
        eng_ref_block_read(w->type, p, &b);
        for (uint32_t i = 0; i < s.weights; i += s.span) {
            int32_t isum = 0, sum = 0;
            float d = dx[(k + i) / ENG_BLOCK];
            for (uint32_t j = i; j < i + s.span; j++) {
                isum += b.w[j] * q[k + j];
                sum += q[k + j];
            }
            acc = fmaf(b.d[i / s.span] * d, (float)isum, acc);
            if (s.with_min) {
                acc = fmaf(b.m[i / s.span], d * (float)sum, acc);
            }
        }
    }
    return acc;
}

void eng_ref_matmul(const struct eng_weight *w, uint32_t strip, const struct eng_acts *a, uint32_t rows, float *y,
                    size_t y_stride, struct eng_scratch *s)
{
    (void)s;
    size_t blocks = w->cols / ENG_BLOCK;
    for (uint32_t o = 0; o < ENG_STRIP; o++) {
        uint32_t out = strip * ENG_STRIP + o;
        const uint8_t *p = w->data + out * row_bytes(w->type, w->cols);
        for (uint32_t r = 0; r < rows; r++) {
            float v = 0.0f;
            if (out < w->rows && eng_ops_quantized(w->type)) {
                v = dot_quantized(w, p, a->q + (size_t)r * w->cols, a->dx + r * blocks);
            } else if (out < w->rows) {
                v = dot_plain(w, p, a->x + r * a->x_stride);
            }
            y[r * y_stride + o] = v;
        }
    }
}
