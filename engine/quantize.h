/* quantize.h - f32 weights into blocks of the file, for `kvasir quantize`. Plain rounding, the bits of the Python package gguf
 * (and of ggml's reference quantizers); no search for better scales, no importance matrix.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_QUANTIZE_H
#define KVS_ENGINE_QUANTIZE_H

#include "model/gguf.h"

bool eng_quantize_known(mdl_type type); /* F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 */
/* n weights (a multiple of the type's block) into out. False: a weight is NaN, or a weight or scale is beyond f16. */
bool eng_quantize(mdl_type type, const float *x, size_t n, uint8_t *out);

#endif
