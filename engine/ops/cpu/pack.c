/* pack.c - weights into groups of 8 rows, and single rows back out for the embedding. Layouts: cpu.h.
 * Plain C: it runs once a load; nothing here is worth a vector register.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "engine/ops/cpu/cpu.h"
#include "engine/ops/scalar.h"

static uint32_t groups_of(uint32_t rows)
{
    return (rows + ENG_STRIP - 1) / ENG_STRIP * (ENG_STRIP / ENG_GROUP);
}

static uint32_t code_bytes(mdl_type type)
{
    struct eng_form f = eng_form_of(type);
    return ENG_GROUP * ENG_BLOCK * (f.bits + f.high) / 8;
}

/* Bytes of each part of one group, in the order in which the parts of all groups follow each other. */
struct parts {
    uint64_t codes, scale, min, sub, sub_min;
};

static struct parts parts_of(mdl_type type, uint32_t cols)
{
    struct eng_form f = eng_form_of(type);
    uint64_t blocks = cols / ENG_BLOCK;
    struct parts p = {.codes = blocks * code_bytes(type)};
    if (f.scale == ENG_SCALE_HALF) {
        p.scale = blocks * ENG_GROUP * 2;
    } else {
        p.sub = cols / f.span * ENG_GROUP;
        p.scale = f.scale == ENG_SCALE_SUPER ? cols / ENG_SUPER * ENG_GROUP * 2 : 0;
    }
    if (f.with_min) {
        p.min = p.scale;
        p.sub_min = p.sub;
    }
    return p;
}

static const uint8_t *part_at(const uint8_t **cursor, uint64_t bytes, uint32_t groups, uint32_t group)
{
    const uint8_t *at = *cursor + group * bytes;
    *cursor += groups * bytes;
    return bytes != 0 ? at : NULL;
}

struct eng_cpu_quant eng_cpu_quant_group(const struct eng_weight *w, uint32_t group)
{
    struct parts p = parts_of(w->type, w->cols);
    uint32_t n = groups_of(w->rows);
    const uint8_t *at = w->data;
    struct eng_cpu_quant q = {
        .blocks = w->cols / ENG_BLOCK, .code_bytes = code_bytes(w->type), .table = eng_cpu_table(w->type)};
    q.codes = part_at(&at, p.codes, n, group);
    q.scale = (const uint16_t *)(const void *)part_at(&at, p.scale, n, group);
    q.min = (const uint16_t *)(const void *)part_at(&at, p.min, n, group);
    q.sub = part_at(&at, p.sub, n, group);
    q.sub_min = part_at(&at, p.sub_min, n, group);
    return q;
}

uint64_t eng_cpu_packed_bytes(mdl_type type, uint32_t rows, uint32_t cols)
{
    uint64_t groups = groups_of(rows);
    if (!eng_ops_quantized(type)) {
        return groups * ENG_GROUP * cols * (type == MDL_F32 ? 4 : 2);
    }
    struct parts p = parts_of(type, cols);
    return groups * (p.codes + p.scale + p.min + p.sub + p.sub_min);
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

/* Where 8-bit code k of a block goes. */
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

/* The u16 of the plane after those nibbles that holds what is above bit 3 of weight k, and the shift there. */
static uint32_t plane_place(uint32_t high, uint32_t k, uint32_t lane, uint32_t *shift_out)
{
    uint32_t unit = k / 8, j = k % 8 / 2;
    *shift_out = high == 1 ? unit * 4 + j : unit % 2 * 8 + j * 2;
    return (high == 1 ? 0 : unit / 2 * 16) + lane * 2 + (k & 1u);
}

static void or_u16(uint8_t *p, uint32_t bits)
{
    kvs_store_u16(p, (uint16_t)(kvs_load_u16(p) | bits));
}

static void pack_codes(const struct eng_form *f, const uint8_t *from, uint8_t *codes, uint32_t lane)
{
    uint32_t shift;
    if (f->bits == 8) {
        for (uint32_t k = 0; k < ENG_BLOCK; k++) {
            codes[byte_place(k, lane)] = from[k];
        }
        return;
    }
    for (uint32_t k = 0; k < ENG_BLOCK; k++) {
        uint32_t at = 2 * nibble_place(k, lane, &shift);
        or_u16(codes + at, (from[k] & 15u) << shift);
    }
    for (uint32_t k = 0; k < ENG_BLOCK && f->high != 0; k++) {
        uint32_t at = ENG_NIBBLES + 2 * plane_place(f->high, k, lane, &shift);
        or_u16(codes + at, (uint32_t)(from[k] >> 4) << shift);
    }
}

/* The parts are written through the weight's own pointer; what a group's view gives is for reading. */
static void put(uint8_t *base, const void *part, size_t at, const void *bytes, size_t n)
{
    if (part != NULL) {
        memcpy(base + ((const uint8_t *)part - base) + at, bytes, n);
    }
}

void eng_cpu_pack(struct eng_weight *w, const uint8_t *src)
{
    if (!eng_ops_quantized(w->type)) {
        pack_plain(w, src);
        return;
    }
    struct eng_form f = eng_form_of(w->type);
    uint32_t weights = ENG_BLOCK, bytes = 0;
    (void)mdl_type_block(w->type, &weights, &bytes);
    for (uint32_t r = 0; r < w->rows; r++) {
        struct eng_cpu_quant q = eng_cpu_quant_group(w, r / ENG_GROUP);
        uint32_t lane = r % ENG_GROUP;
        uint8_t *codes = w->data + (q.codes - w->data);
        for (uint32_t i = 0; i < w->cols / weights; i++, src += bytes) {
            struct eng_cpu_block b;
            eng_cpu_block_read(w->type, src, &b);
            put(w->data, q.scale, ((size_t)i * ENG_GROUP + lane) * 2, &b.d, 2);
            put(w->data, q.min, ((size_t)i * ENG_GROUP + lane) * 2, &b.min, 2);
            for (uint32_t j = 0; j < weights / f.span; j++) {
                size_t at = ((size_t)i * (weights / f.span) + j) * ENG_GROUP + lane;
                put(w->data, q.sub, at, &b.sub[j], 1);
                put(w->data, q.sub_min, at, &b.sub_min[j], 1);
            }
            for (uint32_t j = 0; j < weights / ENG_BLOCK; j++, codes += q.code_bytes) {
                pack_codes(&f, b.codes + (size_t)j * ENG_BLOCK, codes, lane);
            }
        }
    }
}

static int32_t value_at(const struct eng_form *f, const struct eng_cpu_quant *q, const uint8_t *codes, uint32_t k,
                        uint32_t lane)
{
    if (f->bits == 8) {
        return (int8_t)codes[byte_place(k, lane)];
    }
    uint32_t shift, at = 2 * nibble_place(k, lane, &shift);
    int32_t code = kvs_load_u16(codes + at) >> shift & 15;
    if (f->high != 0) {
        at = ENG_NIBBLES + 2 * plane_place(f->high, k, lane, &shift);
        code |= (kvs_load_u16(codes + at) >> shift & (f->high == 1 ? 1 : 3)) << 4;
    }
    return f->table ? q->table[code] : code - f->down;
}

/* Scale and minimum of the span that begins at weight k. */
static float scale_at(const struct eng_form *f, const struct eng_cpu_quant *q, uint32_t k, uint32_t lane,
                      float *min_out)
{
    size_t block = (size_t)k / (f->scale == ENG_SCALE_SUPER ? ENG_SUPER : ENG_BLOCK) * ENG_GROUP + lane;
    size_t span = (size_t)k / f->span * ENG_GROUP + lane;
    if (f->scale == ENG_SCALE_E8M0) {
        return eng_e8m0_half(q->sub[span]);
    }
    float d = eng_f16_to_f32(q->scale[block]), m = f->with_min ? eng_f16_to_f32(q->min[block]) : 0.0f;
    if (f->scale == ENG_SCALE_SUPER) {
        d = d * (float)(int8_t)q->sub[span];
        m = f->with_min ? m * (float)(int8_t)q->sub_min[span] : 0.0f;
    }
    *min_out = m;
    return d;
}

static void row_quantized(const struct eng_weight *w, uint32_t row, float *x_out)
{
    struct eng_form f = eng_form_of(w->type);
    struct eng_cpu_quant q = eng_cpu_quant_group(w, row / ENG_GROUP);
    float d = 0.0f, m = 0.0f;
    for (uint32_t k = 0; k < w->cols; k++) {
        if (k % f.span == 0) {
            d = scale_at(&f, &q, k, row % ENG_GROUP, &m);
        }
        const uint8_t *codes = q.codes + (size_t)(k / ENG_BLOCK) * q.code_bytes;
        float v = d * (float)value_at(&f, &q, codes, k % ENG_BLOCK, row % ENG_GROUP);
        x_out[k] = f.with_min ? v + m : v;
    }
}

void eng_cpu_row(const struct eng_weight *w, uint32_t row, float *x_out)
{
    if (eng_ops_quantized(w->type)) {
        row_quantized(w, row, x_out);
        return;
    }
    size_t es = w->type == MDL_F32 ? 4 : 2;
    const uint8_t *p = w->data + ((size_t)(row / ENG_GROUP) * w->cols * ENG_GROUP + row % ENG_GROUP) * es;
    for (uint32_t k = 0; k < w->cols; k++, p += ENG_GROUP * es) {
        x_out[k] = w->type == MDL_F32   ? kvs_load_f32(p)
                   : w->type == MDL_F16 ? eng_f16_to_f32(kvs_load_u16(p))
                                        : eng_bf16_to_f32(kvs_load_u16(p));
    }
}
