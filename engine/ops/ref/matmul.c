/* matmul.c - reference products and the weight formats they read.
 * Weights stay as the file has them, row after row, so that this table shares no packing with the fast ones: a mistake
 * in either shows as a difference. Block formats (ggml): Q8_0 = f16 d, 32 x i8; Q4_0 = f16 d, 16 bytes of two nibbles
 * (weight i in the low half of byte i, weight i + 16 in the high half), minus 8; Q4_1 = f16 d, f16 m, the nibbles as
 * they stand.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/ref/ref.h"
#include "base/checked.h"
#include "engine/ops/scalar.h"

/* One block of a quantized row taken apart. */
struct block {
    float d, m;
    int8_t w[ENG_BLOCK];
};

static uint32_t block_bytes(mdl_type type)
{
    switch (type) {
    case MDL_Q4_0: return 18;
    case MDL_Q4_1: return 20;
    case MDL_Q8_0: return 34;
    default: return 0;
    }
}

static uint64_t row_bytes(mdl_type type, uint32_t cols)
{
    switch (type) {
    case MDL_F32: return 4ull * cols;
    case MDL_F16:
    case MDL_BF16: return 2ull * cols;
    default: return (uint64_t)(cols / ENG_BLOCK) * block_bytes(type);
    }
}

uint64_t eng_ref_packed_bytes(mdl_type type, uint32_t rows, uint32_t cols)
{
    return rows * row_bytes(type, cols);
}

void eng_ref_pack(struct eng_weight *w, const uint8_t *src)
{
    memcpy(w->data, src, w->bytes);
}

static void block_read(mdl_type type, const uint8_t *p, struct block *b)
{
    b->d = eng_f16_to_f32(kvs_load_u16(p));
    b->m = 0.0f;
    p += 2;
    if (type == MDL_Q8_0) {
        memcpy(b->w, p, ENG_BLOCK);
        return;
    }
    int zero = 8;
    if (type == MDL_Q4_1) {
        b->m = eng_f16_to_f32(kvs_load_u16(p));
        p += 2;
        zero = 0;
    }
    for (uint32_t i = 0; i < ENG_BLOCK / 2; i++) {
        b->w[i] = (int8_t)((p[i] & 15) - zero);
        b->w[i + 16] = (int8_t)((p[i] >> 4) - zero);
    }
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
    for (uint32_t k = 0; k < w->cols; k += ENG_BLOCK, p += block_bytes(w->type)) {
        struct block b;
        block_read(w->type, p, &b);
        for (uint32_t i = 0; i < ENG_BLOCK; i++) {
            float v = b.d * (float)b.w[i];
            x_out[k + i] = w->type == MDL_Q4_1 ? v + b.m : v;
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

static float dot_quantized(const struct eng_weight *w, const uint8_t *p, const int16_t *q, const float *dx,
                           const float *sx)
{
    float acc = 0.0f;
    for (uint32_t b = 0; b < w->cols / ENG_BLOCK; b++, p += block_bytes(w->type), q += ENG_BLOCK) {
        struct block k;
        block_read(w->type, p, &k);
        int32_t sum = 0;
        for (uint32_t i = 0; i < ENG_BLOCK; i++) {
            sum += k.w[i] * q[i];
        }
        acc = fmaf(k.d * dx[b], (float)sum, acc);
        if (w->type == MDL_Q4_1) {
            acc = fmaf(k.m, sx[b], acc);
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
                v = dot_quantized(w, p, a->q + (size_t)r * w->cols, a->dx + r * blocks, a->sx + r * blocks);
            } else if (out < w->rows) {
                v = dot_plain(w, p, a->x + r * a->x_stride);
            }
            y[r * y_stride + o] = v;
        }
    }
}
