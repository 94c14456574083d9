/* table.c - the AVX2 op table (with FMA and F16C: x86-64-v3).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/cpu.h"

const struct eng_ops eng_ops_avx2 = {
    .name = "avx2",
    .packed_bytes = eng_cpu_packed_bytes,
    .pack = eng_cpu_pack,
    .row = eng_cpu_row,
    .norm = eng_avx2_norm,
    .quantize = eng_avx2_quantize,
    .add = eng_avx2_add,
    .silu_mul = eng_avx2_silu_mul,
    .scale = eng_avx2_scale,
    .add_scaled = eng_avx2_add_scaled,
    .gelu_mul = eng_avx2_gelu_mul,
    .clamped_swiglu = eng_avx2_clamped_swiglu,
    .softcap = eng_avx2_softcap,
    .rope = eng_avx2_rope,
    .rope_neox = eng_avx2_rope_neox,
    .below = eng_avx2_below,
    .sum_exp = eng_avx2_sum_exp,
    .softplus = eng_avx2_softplus,
    .conv1d = eng_avx2_conv1d,
    .scan = eng_avx2_scan,
    .scan_heads = eng_avx2_scan_heads,
    .matmul = eng_avx2_matmul,
    .kv_write = eng_avx2_kv_write,
    .attend = eng_avx2_attend,
    .merge = eng_avx2_merge,
    .finish = eng_avx2_finish,
};
