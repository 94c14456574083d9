/* pack.c - weights into groups of 8 rows, and single rows back out for the embedding. Layouts: cpu.h.
 * Plain C: it runs once a load; nothing here is worth a vector register.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "engine/ops/cpu/cpu.h"
#include "engine/ops/f16.h"

static uint32_t groups_of(uint32_t rows)
{
    return (rows + ENG_STRIP - 1) / ENG_STRIP * (ENG_STRIP / ENG_GROUP);
}

static uint32_t code_bytes(mdl_type type)
{
    return ENG_GROUP * (type == MDL_Q8_0 ? 32u : 16u);
}

struct eng_cpu_quant eng_cpu_quant_group(const struct eng_weight *w, uint32_t group)
{
    struct eng_cpu_quant q = {.blocks = w->cols / ENG_BLOCK, .code_bytes = code_bytes(w->type)};
    uint64_t all = (uint64_t)groups_of(w->rows) * q.blocks, at = (uint64_t)group * q.blocks;
    const uint8_t *scales = w->data + all * q.code_bytes;
    q.codes = w->data + at * q.code_bytes;
    q.scale = (const uint16_t *)(const void *)scales + at * ENG_GROUP;
    if (w->type == MDL_Q4_1) {
        q.min = (const uint16_t *)(const void *)scales + (all + at) * ENG_GROUP;
    }
    return q;
}

uint64_t eng_cpu_packed_bytes(mdl_type type, uint32_t rows, uint32_t cols)
{
    uint64_t groups = groups_of(rows), blocks = cols / ENG_BLOCK;
    if (!eng_ops_quantized(type)) {
        return groups * ENG_GROUP * cols * (type == MDL_F32 ? 4 : 2);
    }
    return groups * blocks * (code_bytes(type) + ENG_GROUP * (type == MDL_Q4_1 ? 4u : 2u));
}

static void pack_plain(struct eng_weight *w, const uint8_t *src)
{
    size_t es = w->type == MDL_F32 ? 4 : 2;
    for (uint32_t r = 0; r < w->rows; r++) {
        uint8_t *to = w->data + ((size_t)(r / ENG_GROUP) * w->cols * ENG_GROUP + r % ENG_GROUP) * es;
        const uint8_t *from = src + (size_t)r * w->cols * es;
        for (uint32_t k = 0; k < w->cols; k++) {
            memcpy(to + (size_t)k * ENG_GROUP * es, from + k * es, es);
        }
    }
}

/* Where byte k of a Q8_0 block goes, and back. */
static uint32_t byte_place(uint32_t k, uint32_t lane)
{
    uint32_t unit = k / 4, j = k % 4;
    return unit * 32 + lane * 4 + (j & 1u) * 2 + (j >> 1);
}

/* The u16 of a 4-bit block that holds weight k, and the shift of its nibble there. */
static uint32_t nibble_place(uint32_t k, uint32_t lane, uint32_t *shift_out)
{
    *shift_out = 4 * (k % 8 / 2);
    return (k / 8 * 8 + lane) * 2 + (k & 1u);
}

static void pack_block(mdl_type type, const uint8_t *p, uint8_t *codes, uint32_t lane)
{
    if (type == MDL_Q8_0) {
        for (uint32_t k = 0; k < ENG_BLOCK; k++) {
            codes[byte_place(k, lane)] = p[k];
        }
        return;
    }
    for (uint32_t k = 0; k < ENG_BLOCK; k++) {
        uint32_t shift, at = 2 * nibble_place(k, lane, &shift);
        uint32_t code = k < 16 ? p[k] & 15u : p[k - 16] >> 4;
        kvs_store_u16(codes + at, (uint16_t)(kvs_load_u16(codes + at) | code << shift));
    }
}

void eng_cpu_pack(struct eng_weight *w, const uint8_t *src)
{
    if (!eng_ops_quantized(w->type)) {
        pack_plain(w, src);
        return;
    }
    for (uint32_t r = 0; r < w->rows; r++) {
        struct eng_cpu_quant q = eng_cpu_quant_group(w, r / ENG_GROUP);
        uint8_t *base = w->data;
        for (uint32_t b = 0; b < q.blocks; b++) {
            uint32_t lane = r % ENG_GROUP;
            size_t at = ((size_t)b * ENG_GROUP + lane) * 2;
            memcpy(base + ((const uint8_t *)q.scale - base) + at, src, 2);
            src += 2;
            if (q.min != NULL) {
                memcpy(base + ((const uint8_t *)q.min - base) + at, src, 2);
                src += 2;
            }
            pack_block(w->type, src, base + (q.codes - base) + (size_t)b * q.code_bytes, lane);
            src += w->type == MDL_Q8_0 ? 32 : 16;
        }
    }
}

static int32_t code_at(mdl_type type, const uint8_t *codes, uint32_t k, uint32_t lane)
{
    if (type == MDL_Q8_0) {
        return (int8_t)codes[byte_place(k, lane)];
    }
    uint32_t shift, at = 2 * nibble_place(k, lane, &shift);
    int32_t code = kvs_load_u16(codes + at) >> shift & 15;
    return type == MDL_Q4_0 ? code - 8 : code;
}

void eng_cpu_row(const struct eng_weight *w, uint32_t row, float *x_out)
{
    uint32_t lane = row % ENG_GROUP;
    if (!eng_ops_quantized(w->type)) {
        size_t es = w->type == MDL_F32 ? 4 : 2;
        const uint8_t *p = w->data + ((size_t)(row / ENG_GROUP) * w->cols * ENG_GROUP + lane) * es;
        for (uint32_t k = 0; k < w->cols; k++, p += ENG_GROUP * es) {
            x_out[k] = w->type == MDL_F32   ? kvs_load_f32(p)
                       : w->type == MDL_F16 ? eng_f16_to_f32(kvs_load_u16(p))
                                            : eng_bf16_to_f32(kvs_load_u16(p));
        }
        return;
    }
    struct eng_cpu_quant q = eng_cpu_quant_group(w, row / ENG_GROUP);
    for (uint32_t b = 0; b < q.blocks; b++) {
        float d = eng_f16_to_f32(q.scale[b * ENG_GROUP + lane]);
        float m = q.min != NULL ? eng_f16_to_f32(q.min[b * ENG_GROUP + lane]) : 0.0f;
        for (uint32_t k = 0; k < ENG_BLOCK; k++) {
            float v = d * (float)code_at(w->type, q.codes + (size_t)b * q.code_bytes, k, lane);
            x_out[b * ENG_BLOCK + k] = q.min != NULL ? v + m : v;
        }
    }
}
