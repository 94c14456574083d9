/* rope.h - rotation tables of a model, and the double-precision functions they need (no libm: the same bits
 * everywhere).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_ROPE_H
#define KVS_ENGINE_ROPE_H

#include "model/card.h"

double eng_log64(double x);                                /* x > 0, normal */
double eng_exp64(double x);                                /* |x| <= 700 */
void eng_sincos64(double x, double *sine, double *cosine); /* |x| <= 2^20 */

struct eng_rope_config {
    uint32_t dims; /* even */
    double base, factor, attn_factor, beta_fast, beta_slow;
    uint32_t original_context;
    mdl_rope_scaling scaling;
    const float *freq_factors; /* [dims / 2] or NULL */
};
/* Fills [context][dims / 2] of each. */
void eng_rope_tables(const struct eng_rope_config *c, uint32_t context, float *cosines, float *sines);

#endif
