/* cpu.h - functions of the AVX2 table and the layout of its packed weights.
 *
 * Rows are packed in groups of 8 (lanes are outputs), two groups a strip; padding rows are zero. [..8] are the rows.
 *   F32, F16, BF16   [group][k][8]
 *   8-bit codes      [group][block][8 units of 4 k][8][4 bytes: k0 k2 k1 k3]
 *   4-bit codes      [group][block][4 units of 8 k][8][2 x u16: nibble j of half h is k = 2j + h]
 *                    then their plane [8][2 x u16: bit 4u + j of half h belongs to nibble j of unit u], for two bits
 *                    [units 0 1, 2 3][8][2 x u16: bits 8(u % 2) + 2j and one above]
 * After the codes of all groups, in this order, what the form (form.h) has of:
 *   scales f16 [group][blocks of 32 or 256][8], minima f16 likewise, integer scales [group][span][8], integer minima.
 * The byte orders are what one shift and mask turn into pairs of 16-bit integers for a multiply-add of neighbours.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_CPU_CPU_H
#define KVS_ENGINE_OPS_CPU_CPU_H

#include "engine/ops/cpu/form.h"

#define ENG_GROUP 8u /* rows packed together: one AVX register of f32 */

/* A quantized weight's parts for one group. */
struct eng_cpu_quant {
    const uint8_t *codes;
    const uint16_t *scale, *min;  /* f16, [block or super-block][8]; NULL where the form has none */
    const uint8_t *sub, *sub_min; /* [span][8]; likewise */
    const int8_t *table;          /* values of 4-bit codes */
    uint32_t blocks;              /* of 32, per row */
    uint32_t code_bytes;          /* per block and group: 256, or 128 and the plane */
};
struct eng_cpu_quant eng_cpu_quant_group(const struct eng_weight *w, uint32_t group);

uint64_t eng_cpu_packed_bytes(mdl_type type, uint32_t rows, uint32_t cols);
void eng_cpu_pack(struct eng_weight *w, const uint8_t *src);
void eng_cpu_row(const struct eng_weight *w, uint32_t row, float *x_out);

bool eng_avx2_norm(const float *x, const float *weight, uint32_t n, float eps, float *y_out);
bool eng_avx2_quantize(const float *x, uint32_t n, int16_t *q_out, float *dx_out, float *sx_out, int32_t *sum_out);
void eng_avx2_add(float *x, const float *y, uint32_t n);
void eng_avx2_silu_mul(float *g, const float *u, uint32_t n);
void eng_avx2_rope(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                   const float *sines);
void eng_avx2_scale(float *x, float s, uint32_t n);
void eng_avx2_add_scaled(float *y, const float *x, float s, uint32_t n);
void eng_avx2_gelu_mul(float *g, const float *u, uint32_t n);
void eng_avx2_clamped_swiglu(float *g, const float *u, uint32_t n);
void eng_avx2_softcap(float *x, float cap, uint32_t n);
void eng_avx2_rope_neox(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                        const float *sines);
bool eng_avx2_below(const float *x, uint32_t n, float limit);
float eng_avx2_sum_exp(const float *x, uint32_t n, float max, float divisor);

void eng_avx2_matmul(const struct eng_weight *w, uint32_t strip, const struct eng_acts *a, uint32_t rows, float *y,
                     size_t y_stride, struct eng_scratch *s);
void eng_avx2_matmul_plain(const struct eng_weight *w, uint32_t strip, const struct eng_acts *a, uint32_t rows,
                           float *y, size_t y_stride, struct eng_scratch *s);

void eng_avx2_softplus(float *x, const float *bias, uint32_t n);
void eng_avx2_conv1d(const struct eng_conv *c, uint32_t first, uint32_t count);
void eng_avx2_scan(const struct eng_scan *s, uint32_t first, uint32_t count);
void eng_avx2_scan_heads(const struct eng_scan *s, uint32_t first, uint32_t count);

/* Latent keys t0 .. t0 + keys - 1 as k_tile[key_dim][ENG_TILE], zero past them; v_tile[keys][value_dim] when not NULL. */
void eng_avx2_latent_tile(const struct eng_kv_view *kv, uint32_t t0, uint32_t keys, float *k_tile, float *v_tile);
/* n tokens of an 8-bit page (not a latent one) from `inside` on: keys as [dim][ENG_TILE], values as [token][value_dim]. */
void eng_avx2_q8_run(const struct eng_kv_view *kv, const uint8_t *page, uint32_t inside, uint32_t n, float *k,
                     float *v);
void eng_avx2_kv_write(const struct eng_kv_view *kv, uint32_t pos, const float *k, const float *v);
void eng_avx2_attend(const struct eng_kv_view *kv, uint32_t first_key, const struct eng_attn_rows *r,
                     struct eng_scratch *s);
void eng_avx2_merge(float *m_io, float *l_io, float *o_io, float m, float l, const float *o, uint32_t n);
void eng_avx2_finish(float *out, const float *o, float l, uint32_t n);

#endif
