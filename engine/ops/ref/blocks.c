/* blocks.c - quantized blocks of the file taken apart, for the reference table: integers, and a scale and a minimum for
 * every 16 or 32 of them. Written from the formats' own description (ggml's block structs), loops in file order; the
 * fast tables have their own code, so that a mistake in either shows as a difference.
 *
 * 32 weights: Q4_0 f16 d, 16 bytes (weight i in the low half of byte i, i + 16 in the high half), minus 8; Q4_1 f16 d, f16 m,
 * the nibbles as they stand; Q5_0, Q5_1 the same with 32 fifth bits after the scales, minus 16 for Q5_0; Q8_0 f16 d, 32 x i8;
 * IQ4_NL as Q4_0 through a table; MXFP4 a byte of exponent, then the same.
 * 256 weights: sub-blocks of 16 (Q2_K, Q3_K, Q6_K) or 32 with small integer scales under one f16 d (and dmin).
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "engine/ops/ref/ref.h"
#include "engine/ops/scalar.h"

static float half_at(const uint8_t *p)
{
    return eng_f16_to_f32(kvs_load_u16(p));
}

struct eng_ref_shape eng_ref_shape_of(mdl_type type)
{
    struct eng_ref_shape s = {.span = 32};
    (void)mdl_type_block(type, &s.weights, &s.bytes);
    s.span = type == MDL_Q2_K || type == MDL_Q3_K || type == MDL_Q6_K ? 16 : 32;
    s.with_min = type == MDL_Q4_1 || type == MDL_Q5_1 || type == MDL_Q2_K || type == MDL_Q4_K || type == MDL_Q5_K;
    return s;
}

/* 16 bytes: weight i low, weight i + 16 high. */
static void nibbles(const uint8_t *p, int8_t *w)
{
    for (uint32_t i = 0; i < 16; i++) {
        w[i] = (int8_t)(p[i] & 15);
        w[i + 16] = (int8_t)(p[i] >> 4);
    }
}

static void shift_down(int8_t *w, uint32_t n, int8_t by)
{
    for (uint32_t i = 0; i < n; i++) {
        w[i] = (int8_t)(w[i] - by);
    }
}

static void look_up(int8_t *w, uint32_t n, const int8_t *table)
{
    for (uint32_t i = 0; i < n; i++) {
        w[i] = table[w[i]];
    }
}

static void fifth_bits(const uint8_t *p, int8_t *w)
{
    uint32_t bits = kvs_load_u32(p);
    for (uint32_t i = 0; i < 32; i++) {
        w[i] = (int8_t)(w[i] | (bits >> i & 1u) << 4);
    }
}

static void read_small(mdl_type type, const uint8_t *p, struct eng_ref_block *b)
{
    b->d[0] = type == MDL_MXFP4 ? eng_e8m0_half(p[0]) : half_at(p);
    p += type == MDL_MXFP4 ? 1 : 2;
    if (type == MDL_Q4_1 || type == MDL_Q5_1) {
        b->m[0] = half_at(p);
        p += 2;
    }
    switch (type) {
    case MDL_Q8_0: memcpy(b->w, p, ENG_BLOCK); break;
    case MDL_Q4_1: nibbles(p, b->w); break;
    case MDL_Q5_0:
    case MDL_Q5_1:
        nibbles(p + 4, b->w);
        fifth_bits(p, b->w);
        shift_down(b->w, ENG_BLOCK, type == MDL_Q5_0 ? 16 : 0);
        break;
    case MDL_IQ4_NL:
        nibbles(p, b->w);
        look_up(b->w, ENG_BLOCK, eng_iq4_values);
        break;
    case MDL_MXFP4:
        nibbles(p, b->w);
        look_up(b->w, ENG_BLOCK, eng_mxfp4_values);
        break;
    default: /* Q4_0 */
        nibbles(p, b->w);
        shift_down(b->w, ENG_BLOCK, 8);
        break;
    }
}

/* 64 bytes of four 2-bit codes: each run of 32 bytes holds four runs of 32 weights. */
static void crumbs(const uint8_t *p, int8_t *w)
{
    for (uint32_t n = 0; n < 2; n++, p += 32) {
        for (uint32_t shift = 0; shift < 8; shift += 2) {
            for (uint32_t l = 0; l < 32; l++) {
                *w++ = (int8_t)(p[l] >> shift & 3);
            }
        }
    }
}

/* scales[16] (low half scale, high half minimum), 64 bytes of codes, d, dmin. */
static void read_q2_k(const uint8_t *p, struct eng_ref_block *b)
{
    float d = half_at(p + 80), dmin = half_at(p + 82);
    for (uint32_t i = 0; i < 16; i++) {
        b->d[i] = d * (float)(p[i] & 15);
        b->m[i] = -(dmin * (float)(p[i] >> 4));
    }
    crumbs(p + 16, b->w);
}

/* hmask[32], 64 bytes of codes, 12 bytes of 6-bit scales, d. A clear mask bit takes 4 off. */
static void read_q3_k(const uint8_t *p, struct eng_ref_block *b)
{
    const uint8_t *packed = p + 96;
    float d = half_at(p + 108);
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t low = i < 8 ? packed[i] & 15u : packed[i - 8] >> 4, high = packed[8 + i % 4] >> (2 * (i / 4)) & 3u;
        b->d[i] = d * (float)((int32_t)(low | high << 4) - 32);
    }
    crumbs(p + 32, b->w);
    for (uint32_t i = 0; i < 256; i++) {
        b->w[i] = (int8_t)(b->w[i] - ((p[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4));
    }
}

/* 12 bytes: eight 6-bit scales and eight 6-bit minima. */
static void scales_and_minima(const uint8_t *p, float d, float dmin, struct eng_ref_block *b)
{
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t scale, min;
        if (i < 4) {
            scale = p[i] & 63u;
            min = p[i + 4] & 63u;
        } else {
            scale = (p[i + 4] & 15u) | (uint32_t)(p[i - 4] >> 6) << 4;
            min = (uint32_t)(p[i + 4] >> 4) | (uint32_t)(p[i] >> 6) << 4;
        }
        b->d[i] = d * (float)scale;
        b->m[i] = -(dmin * (float)min);
    }
}

/* 128 bytes: each run of 32 bytes holds 32 weights in its low halves, then 32 in its high halves. */
static void nibble_runs(const uint8_t *p, int8_t *w)
{
    for (uint32_t n = 0; n < 4; n++, p += 32, w += 64) {
        for (uint32_t l = 0; l < 32; l++) {
            w[l] = (int8_t)(p[l] & 15);
            w[l + 32] = (int8_t)(p[l] >> 4);
        }
    }
}

/* d, dmin, 12 bytes of scales, [Q5_K: 32 bytes of fifth bits,] 128 bytes of codes. */
static void read_q4_k_q5_k(mdl_type type, const uint8_t *p, struct eng_ref_block *b)
{
    scales_and_minima(p + 4, half_at(p), half_at(p + 2), b);
    nibble_runs(p + (type == MDL_Q5_K ? 48 : 16), b->w);
    for (uint32_t i = 0; type == MDL_Q5_K && i < 256; i++) {
        b->w[i] = (int8_t)(b->w[i] | (p[16 + i % 32] >> (i / 32) & 1) << 4);
    }
}

/* 128 bytes of low halves, 64 bytes of high pairs of bits, 16 signed scales, d. */
static void read_q6_k(const uint8_t *p, struct eng_ref_block *b)
{
    const uint8_t *high = p + 128;
    float d = half_at(p + 208);
    for (uint32_t i = 0; i < 16; i++) {
        b->d[i] = d * (float)(int8_t)p[192 + i];
    }
    for (uint32_t n = 0; n < 2; n++, p += 64, high += 32) {
        int8_t *w = b->w + n * 128;
        for (uint32_t l = 0; l < 32; l++) {
            w[l] = (int8_t)((p[l] & 15) | (high[l] & 3) << 4);
            w[l + 32] = (int8_t)((p[l + 32] & 15) | (high[l] >> 2 & 3) << 4);
            w[l + 64] = (int8_t)(p[l] >> 4 | (high[l] >> 4 & 3) << 4);
            w[l + 96] = (int8_t)(p[l + 32] >> 4 | (high[l] >> 6) << 4);
        }
    }
    shift_down(b->w, 256, 32);
}

/* d, 16 bits of high scale bits, 4 bytes of low ones, eight times 16 bytes as in IQ4_NL. */
static void read_iq4_xs(const uint8_t *p, struct eng_ref_block *b)
{
    float d = half_at(p);
    uint32_t high = kvs_load_u16(p + 2);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t low = i % 2 == 0 ? p[4 + i / 2] & 15u : p[4 + i / 2] >> 4;
        b->d[i] = d * (float)((int32_t)(low | (high >> (2 * i) & 3u) << 4) - 32);
        nibbles(p + 8 + i * 16, b->w + i * 32);
    }
    look_up(b->w, 256, eng_iq4_values);
}

void eng_ref_block_read(mdl_type type, const uint8_t *p, struct eng_ref_block *b)
{
    switch (type) {
    case MDL_Q2_K: read_q2_k(p, b); break;
    case MDL_Q3_K: read_q3_k(p, b); break;
    case MDL_Q4_K:
    case MDL_Q5_K: read_q4_k_q5_k(type, p, b); break;
    case MDL_Q6_K: read_q6_k(p, b); break;
    case MDL_IQ4_XS: read_iq4_xs(p, b); break;
    default: read_small(type, p, b); break;
    }
}
