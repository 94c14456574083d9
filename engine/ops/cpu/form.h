/* form.h - how the AVX2 table stores each quantized type; included by pack.c and the kernels, which are compiled once for
 * every form (the functions below fold away where the type is known).
 *
 * Thirteen file formats become few kinds of codes and three kinds of scales:
 *   codes   8 bits, signed (Q8_0)
 *           4 bits (Q4_0, Q4_1, Q4_K as they stand; Q2_K widened; Q3_K, IQ4_NL, IQ4_XS, MXFP4 through a table of 16)
 *           4 bits and, after the block's 128 bytes of them, a plane of one (Q5_0, Q5_1, Q5_K) or two (Q6_K) bits more
 *   scales  HALF   f16 for every 32 weights, as the file has it
 *           SUPER  f16 for every 256 times an 8-bit integer for every span of 16 or 32, multiplied in the kernel
 *           E8M0   a byte of exponent for every 32 weights
 * Bits a weight in memory are those of the file within 0.15, but for Q2_K 5.13 (file 2.63) and Q3_K 4.56 (3.44).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_CPU_FORM_H
#define KVS_ENGINE_OPS_CPU_FORM_H

#include "engine/ops/ops.h"

#define ENG_SUPER 256u
#define ENG_NIBBLES 128u /* bytes of 4-bit codes of a block of 8 rows; the plane follows */

typedef enum eng_scale_kind { ENG_SCALE_HALF, ENG_SCALE_SUPER, ENG_SCALE_E8M0 } eng_scale_kind;

struct eng_form {
    uint32_t bits, span; /* 8 or 4; weights under one scale, 32 or 16 */
    eng_scale_kind scale;
    bool with_min;
    bool table;    /* 4-bit codes are places in a table of values */
    uint32_t high; /* bits of the plane */
    int down;      /* codes are so much too large */
};

static inline __attribute__((always_inline)) struct eng_form eng_form_of(const mdl_type type)
{
    bool five = type == MDL_Q5_0 || type == MDL_Q5_1 || type == MDL_Q5_K;
    bool super = type == MDL_Q2_K || type == MDL_Q3_K || type == MDL_Q4_K || type == MDL_Q5_K || type == MDL_Q6_K ||
                 type == MDL_IQ4_XS;
    return (struct eng_form){
        .bits = type == MDL_Q8_0 ? 8 : 4,
        .span = type == MDL_Q2_K || type == MDL_Q3_K || type == MDL_Q6_K ? 16 : 32,
        .scale = super               ? ENG_SCALE_SUPER
                 : type == MDL_MXFP4 ? ENG_SCALE_E8M0
                                     : ENG_SCALE_HALF,
        .with_min = type == MDL_Q4_1 || type == MDL_Q5_1 || type == MDL_Q2_K || type == MDL_Q4_K || type == MDL_Q5_K,
        .table = type == MDL_Q3_K || type == MDL_IQ4_NL || type == MDL_IQ4_XS || type == MDL_MXFP4,
        .high = five               ? 1
                : type == MDL_Q6_K ? 2
                                   : 0,
        .down = type == MDL_Q4_0   ? 8
                : type == MDL_Q5_0 ? 16
                : type == MDL_Q6_K ? 32
                                   : 0,
    };
}

/* A block of the file taken apart: codes as they will be stored, scales as they are. */
struct eng_cpu_block {
    uint16_t d, min; /* f16; min of SUPER is -dmin */
    uint8_t sub[16], sub_min[16];
    uint8_t codes[ENG_SUPER];
};
void eng_cpu_block_read(mdl_type type, const uint8_t *p, struct eng_cpu_block *b);
const int8_t *eng_cpu_table(mdl_type type); /* 16 values; NULL where codes are values */

#endif
