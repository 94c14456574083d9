/* ops.c - which weight types there are and which op table suits this CPU.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/ops.h"

#if defined(__clang__) && __clang_major__ < 17
#define HAS_F16C true /* it has no name for this; every processor with AVX2 has it */
#else
#define HAS_F16C __builtin_cpu_supports("f16c")
#endif

bool eng_ops_type_known(mdl_type type)
{
    return type == MDL_F32 || type == MDL_F16 || type == MDL_BF16 || eng_ops_quantized(type);
}

bool eng_ops_quantized(mdl_type type)
{
    switch (type) {
    case MDL_Q4_0:
    case MDL_Q4_1:
    case MDL_Q5_0:
    case MDL_Q5_1:
    case MDL_Q8_0:
    case MDL_Q2_K:
    case MDL_Q3_K:
    case MDL_Q4_K:
    case MDL_Q5_K:
    case MDL_Q6_K:
    case MDL_IQ4_NL:
    case MDL_IQ4_XS:
    case MDL_MXFP4: return true;
    default: return false;
    }
}

uint32_t eng_ops_multiple(mdl_type type)
{
    uint32_t weights, bytes;
    return eng_ops_quantized(type) && mdl_type_block(type, &weights, &bytes) ? weights : 1;
}

const struct eng_ops *eng_ops_best(void)
{
#if defined(ENG_HAVE_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HAS_F16C) {
        return &eng_ops_avx2;
    }
    return NULL;
#else
    return &eng_ops_ref; /* no kernels for this kind of machine yet */
#endif
}
