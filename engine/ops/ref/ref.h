/* ref.h - functions of the reference table, one translation unit per subject.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_REF_REF_H
#define KVS_ENGINE_OPS_REF_REF_H

#include "engine/ops/ops.h"

/* A quantized type: weights and bytes of a block of the file, weights under one scale, and whether there is a minimum. */
struct eng_ref_shape {
    uint32_t weights, bytes, span;
    bool with_min;
};
struct eng_ref_shape eng_ref_shape_of(mdl_type type);

/* Weight i is d[i / span] * w[i] + m[i / span]; m only where the type has a minimum. */
struct eng_ref_block {
    float d[16], m[16];
    int8_t w[256];
};
void eng_ref_block_read(mdl_type type, const uint8_t *p, struct eng_ref_block *b);

uint64_t eng_ref_packed_bytes(mdl_type type, uint32_t rows, uint32_t cols);
void eng_ref_pack(struct eng_weight *w, const uint8_t *src);
void eng_ref_row(const struct eng_weight *w, uint32_t row, float *x_out);
bool eng_ref_quantize(const float *x, uint32_t n, int16_t *q_out, float *dx_out, float *sx_out, int32_t *sum_out);
void eng_ref_matmul(const struct eng_weight *w, uint32_t strip, const struct eng_acts *a, uint32_t rows, float *y,
                    size_t y_stride, struct eng_scratch *s);

bool eng_ref_norm(const float *x, const float *weight, uint32_t n, float eps, float *y_out);
void eng_ref_add(float *x, const float *y, uint32_t n);
void eng_ref_silu_mul(float *g, const float *u, uint32_t n);
void eng_ref_rope(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                  const float *sines);
void eng_ref_scale(float *x, float s, uint32_t n);
void eng_ref_add_scaled(float *y, const float *x, float s, uint32_t n);
void eng_ref_gelu_mul(float *g, const float *u, uint32_t n);
void eng_ref_clamped_swiglu(float *g, const float *u, uint32_t n);
void eng_ref_softcap(float *x, float cap, uint32_t n);
void eng_ref_rope_neox(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                       const float *sines);
bool eng_ref_below(const float *x, uint32_t n, float limit);
float eng_ref_sum_exp(const float *x, uint32_t n, float max, float divisor);

void eng_ref_softplus(float *x, const float *bias, uint32_t n);
void eng_ref_conv1d(const struct eng_conv *c, uint32_t first, uint32_t count);
void eng_ref_scan(const struct eng_scan *s, uint32_t first, uint32_t count);
void eng_ref_scan_heads(const struct eng_scan *s, uint32_t first, uint32_t count);

void eng_ref_kv_write(const struct eng_kv_view *kv, uint32_t pos, const float *k, const float *v);
void eng_ref_attend(const struct eng_kv_view *kv, uint32_t first_key, const struct eng_attn_rows *r,
                    struct eng_scratch *s);
void eng_ref_merge(float *m_io, float *l_io, float *o_io, float m, float l, const float *o, uint32_t n);
void eng_ref_finish(float *out, const float *o, float l, uint32_t n);

#endif
