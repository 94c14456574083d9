/* quantize.h - f32 weights into blocks of the file, for `kvasir quantize`. F16, BF16, Q8_0, Q4_0, Q4_1,
 * Q5_0, Q5_1 and MXFP4: plain rounding, the bits of the Python package gguf (and of ggml's reference quantizers). Q2_K to Q6_K, IQ4_NL and
 * IQ4_XS: scales found by weighted least squares (quantize_k.c), at most as far from the weights as ggml's. No importance matrix.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_QUANTIZE_H
#define KVS_ENGINE_QUANTIZE_H

#include "model/gguf.h"

bool eng_quantize_known(mdl_type type); /* all but F32 */
/* n weights (a multiple of the type's block) into out. False: a weight is NaN, or a weight or scale is beyond f16. */
bool eng_quantize(mdl_type type, const float *x, size_t n, uint8_t *out);

#endif
