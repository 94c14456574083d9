/* quantize_k.h - one block at a time of the types whose scales are searched for; quantize.c's other half.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_QUANTIZE_K_H
#define KVS_ENGINE_QUANTIZE_K_H

#include "model/gguf.h"

bool eng_quantize_searched(mdl_type type); /* Q2_K to Q6_K, IQ4_XS, IQ4_NL */
/* One block of such a type. False: a weight is NaN or infinite, or a scale is beyond f16. */
bool eng_quantize_search(mdl_type type, const float *x, uint8_t *out);

#endif
