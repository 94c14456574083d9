/* blocks.c - blocks of the file into the codes and scales that the AVX2 table stores (form.h). Each weight is asked for
 * by its index: where a format puts weight k is one line of arithmetic, and wants no picture of its loops.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "engine/ops/cpu/form.h"
#include "engine/ops/scalar.h"

static const int8_t q3_values[16] = {-4, -3, -2, -1, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0};

const int8_t *eng_cpu_table(mdl_type type)
{
    switch (type) {
    case MDL_Q3_K: return q3_values;
    case MDL_IQ4_NL:
    case MDL_IQ4_XS: return eng_iq4_values;
    case MDL_MXFP4: return eng_mxfp4_values;
    default: return NULL;
    }
}

/* Weight k of 32 in 16 bytes of two. */
static uint32_t nibble(const uint8_t *p, uint32_t k)
{
    return p[k % 16] >> (k / 16 * 4) & 15u;
}

/* Weight k of 256 in 64 bytes of four. */
static uint32_t crumb(const uint8_t *p, uint32_t k)
{
    return p[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3u;
}

/* Weight k of 256 in 128 bytes of two, 64 weights to 32 bytes. */
static uint32_t nibble_k(const uint8_t *p, uint32_t k)
{
    return p[k / 64 * 32 + k % 32] >> (k % 64 / 32 * 4) & 15u;
}

/* Bit k of 256 in 32 bytes. */
static uint32_t bit_k(const uint8_t *p, uint32_t k)
{
    return p[k % 32] >> (k / 32) & 1u;
}

static void read_small(mdl_type type, const uint8_t *p, struct eng_cpu_block *b)
{
    if (type == MDL_MXFP4) {
        b->sub[0] = *p++;
    } else {
        b->d = kvs_load_u16(p);
        p += 2;
    }
    if (eng_form_of(type).with_min) {
        b->min = kvs_load_u16(p);
        p += 2;
    }
    if (type == MDL_Q8_0) {
        memcpy(b->codes, p, ENG_BLOCK);
        return;
    }
    bool five = type == MDL_Q5_0 || type == MDL_Q5_1;
    uint32_t high = five ? kvs_load_u32(p) : 0;
    p += five ? 4 : 0;
    for (uint32_t k = 0; k < ENG_BLOCK; k++) {
        b->codes[k] = (uint8_t)(nibble(p, k) | (high >> k & 1u) << 4);
    }
}

static void read_q2_k(const uint8_t *p, struct eng_cpu_block *b)
{
    for (uint32_t i = 0; i < 16; i++) {
        b->sub[i] = p[i] & 15;
        b->sub_min[i] = p[i] >> 4;
    }
    for (uint32_t k = 0; k < ENG_SUPER; k++) {
        b->codes[k] = (uint8_t)crumb(p + 16, k);
    }
    b->d = kvs_load_u16(p + 80);
    b->min = kvs_load_u16(p + 82) ^ 0x8000;
}

/* Six bits a scale: four in bytes 0 to 7, two in bytes 8 to 11. */
static void read_q3_k(const uint8_t *p, struct eng_cpu_block *b)
{
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t low = p[96 + i % 8] >> (i / 8 * 4) & 15u, high = p[104 + i % 4] >> (i / 4 * 2) & 3u;
        b->sub[i] = (uint8_t)((low | high << 4) - 32);
    }
    for (uint32_t k = 0; k < ENG_SUPER; k++) {
        b->codes[k] = (uint8_t)(crumb(p + 32, k) | bit_k(p, k) << 2);
    }
    b->d = kvs_load_u16(p + 108);
}

static void read_q4_k_q5_k(bool five, const uint8_t *p, struct eng_cpu_block *b)
{
    const uint8_t *s = p + 4, *codes = p + (five ? 48 : 16);
    for (uint32_t i = 0; i < 4; i++) {
        b->sub[i] = s[i] & 63;
        b->sub_min[i] = s[4 + i] & 63;
        b->sub[4 + i] = (uint8_t)((s[8 + i] & 15) | (s[i] >> 2 & 48));
        b->sub_min[4 + i] = (uint8_t)(s[8 + i] >> 4 | (s[4 + i] >> 2 & 48));
    }
    for (uint32_t k = 0; k < ENG_SUPER; k++) {
        b->codes[k] = (uint8_t)(nibble_k(codes, k) | (five ? bit_k(p + 16, k) << 4 : 0));
    }
    b->d = kvs_load_u16(p);
    b->min = kvs_load_u16(p + 2) ^ 0x8000;
}

static void read_q6_k(const uint8_t *p, struct eng_cpu_block *b)
{
    memcpy(b->sub, p + 192, 16);
    for (uint32_t k = 0; k < ENG_SUPER; k++) {
        uint32_t low = p[k / 128 * 64 + k % 64] >> (k % 128 / 64 * 4) & 15u;
        b->codes[k] = (uint8_t)(low | crumb(p + 128, k) << 4);
    }
    b->d = kvs_load_u16(p + 208);
}

static void read_iq4_xs(const uint8_t *p, struct eng_cpu_block *b)
{
    uint32_t high = kvs_load_u16(p + 2);
    for (uint32_t i = 0; i < 8; i++) {
        b->sub[i] = (uint8_t)((p[4 + i / 2] >> (i % 2 * 4) & 15u) + (high >> (2 * i) & 3u) * 16 - 32);
    }
    for (uint32_t k = 0; k < ENG_SUPER; k++) {
        b->codes[k] = (uint8_t)nibble(p + 8 + k / 32 * 16, k % 32);
    }
    b->d = kvs_load_u16(p);
}

void eng_cpu_block_read(mdl_type type, const uint8_t *p, struct eng_cpu_block *b)
{
    switch (type) {
    case MDL_Q2_K: read_q2_k(p, b); break;
    case MDL_Q3_K: read_q3_k(p, b); break;
    case MDL_Q4_K: read_q4_k_q5_k(false, p, b); break;
    case MDL_Q5_K: read_q4_k_q5_k(true, p, b); break;
    case MDL_Q6_K: read_q6_k(p, b); break;
    case MDL_IQ4_XS: read_iq4_xs(p, b); break;
    default: read_small(type, p, b); break;
    }
}
