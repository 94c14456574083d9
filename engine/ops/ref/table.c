/* table.c - the reference op table: plain C, one obvious loop per function. Slow on purpose; it is what the others are
 * held to.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/ref/ref.h"

const struct eng_ops eng_ops_ref = {
    .name = "ref",
    .packed_bytes = eng_ref_packed_bytes,
    .pack = eng_ref_pack,
    .row = eng_ref_row,
    .norm = eng_ref_norm,
    .quantize = eng_ref_quantize,
    .add = eng_ref_add,
    .silu_mul = eng_ref_silu_mul,
    .scale = eng_ref_scale,
    .add_scaled = eng_ref_add_scaled,
    .gelu_mul = eng_ref_gelu_mul,
    .clamped_swiglu = eng_ref_clamped_swiglu,
    .softcap = eng_ref_softcap,
    .rope = eng_ref_rope,
    .rope_neox = eng_ref_rope_neox,
    .below = eng_ref_below,
    .sum_exp = eng_ref_sum_exp,
    .softplus = eng_ref_softplus,
    .conv1d = eng_ref_conv1d,
    .scan = eng_ref_scan,
    .scan_heads = eng_ref_scan_heads,
    .matmul = eng_ref_matmul,
    .kv_write = eng_ref_kv_write,
    .attend = eng_ref_attend,
    .merge = eng_ref_merge,
    .finish = eng_ref_finish,
};
