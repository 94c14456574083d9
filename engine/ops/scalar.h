/* scalar.h - the contract's scalar pieces, shared by all op tables: exponential, folding of 16 lanes, constants, the
 * value tables of 4-bit types (ggml's IQ4_NL and IQ4_XS; OCP microscaling's E2M1 in half units for MXFP4).
 * exp: Cephes' argument reduction (two-part ln 2) and degree-5 polynomial (Moshier, expf), every product fused; exact 1
 * at 0, +0 below -87 and for NaN, constant above 88. Vector forms repeat these steps lane by lane. fmaf must be
 * correctly rounded; the C library's is, and compilers turn it into one instruction where they may.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_SCALAR_H
#define KVS_ENGINE_OPS_SCALAR_H

#include "engine/ops/f16.h"
#include <math.h>

#define ENG_QUANT_MAX 32767.0f
#define ENG_QUANT_TINY 0x1p-100f

#define ENG_EXP_LOW -87.0f
#define ENG_EXP_HIGH 88.0f
#define ENG_EXP_LOG2E 1.44269504f
#define ENG_EXP_LN2_HIGH 0.693359375f
#define ENG_EXP_LN2_LOW -2.12194440e-4f
#define ENG_EXP_P0 1.9875691500e-4f
#define ENG_EXP_P1 1.3981999507e-3f
#define ENG_EXP_P2 8.3334519073e-3f
#define ENG_EXP_P3 4.1665795894e-2f
#define ENG_EXP_P4 1.6666665459e-1f
#define ENG_EXP_P5 5.0000001201e-1f

static const int8_t eng_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t eng_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* MXFP4's scale: 2^(e - 127), halved for the half units of the table. The two least are subnormal; no e is a NaN here. */
static inline float eng_e8m0_half(uint8_t e)
{
    return eng_f32_from_bits(e < 2 ? 0x00200000u << e : (e - 1u) << 23);
}

static inline float eng_exp(float x)
{
    if (!(x >= ENG_EXP_LOW)) {
        return 0.0f;
    }
    if (x > ENG_EXP_HIGH) {
        x = ENG_EXP_HIGH;
    }
    float n = rintf(x * ENG_EXP_LOG2E);
    float r = fmaf(n, -ENG_EXP_LN2_HIGH, x);
    r = fmaf(n, -ENG_EXP_LN2_LOW, r);
    float p = ENG_EXP_P0;
    p = fmaf(p, r, ENG_EXP_P1);
    p = fmaf(p, r, ENG_EXP_P2);
    p = fmaf(p, r, ENG_EXP_P3);
    p = fmaf(p, r, ENG_EXP_P4);
    p = fmaf(p, r, ENG_EXP_P5);
    float y = fmaf(p, r * r, r) + 1.0f;
    return y * eng_f32_from_bits((uint32_t)((int32_t)n + 127) << 23);
}

#define ENG_LOG_P0 7.0376836292e-2f
#define ENG_LOG_P1 -1.1514610310e-1f
#define ENG_LOG_P2 1.1676998740e-1f
#define ENG_LOG_P3 -1.2420140846e-1f
#define ENG_LOG_P4 1.4249322787e-1f
#define ENG_LOG_P5 -1.6668057665e-1f
#define ENG_LOG_P6 2.0000714765e-1f
#define ENG_LOG_P7 -2.4999993993e-1f
#define ENG_LOG_P8 3.3333331174e-1f
#define ENG_SQRT2 1.41421356f

/* log(1 + exp(x)): the larger of x and 0, plus log1p(u) with u = exp(-|x|). log1p takes w = 1 + u, which is in 1..2,
 * Cephes' logf of w (polynomial around 1, halved above sqrt 2), and gives back what the sum 1 + u lost. NaN stays NaN. */
static inline float eng_softplus(float x)
{
    float u = eng_exp(-fabsf(x)), w = 1.0f + u, lost = (u - (w - 1.0f)) / w;
    float e = w > ENG_SQRT2 ? 1.0f : 0.0f, f = (w > ENG_SQRT2 ? w * 0.5f : w) - 1.0f, z = f * f;
    float p = ENG_LOG_P0;
    p = fmaf(p, f, ENG_LOG_P1);
    p = fmaf(p, f, ENG_LOG_P2);
    p = fmaf(p, f, ENG_LOG_P3);
    p = fmaf(p, f, ENG_LOG_P4);
    p = fmaf(p, f, ENG_LOG_P5);
    p = fmaf(p, f, ENG_LOG_P6);
    p = fmaf(p, f, ENG_LOG_P7);
    p = fmaf(p, f, ENG_LOG_P8);
    float y = fmaf(e, ENG_EXP_LN2_LOW, (f * z) * p);
    y = f + fmaf(-0.5f, z, y);
    y = fmaf(e, ENG_EXP_LN2_HIGH, y) + lost;
    return (0.0f > x ? 0.0f : x) + y;
}

#define ENG_GELU_SLOPE 1.5957691216f /* 2 * sqrt(2 / pi) */
#define ENG_GELU_CUBE 0.044715f
#define ENG_SWIGLU_LIMIT 7.0f
#define ENG_SWIGLU_ALPHA 1.702f

static inline float eng_silu(float g)
{
    return g / (1.0f + eng_exp(-g));
}

/* 0.5 g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))), written as g times a logistic function. */
static inline float eng_gelu(float g)
{
    return g / (1.0f + eng_exp(-((g * ENG_GELU_SLOPE) * fmaf(ENG_GELU_CUBE, g * g, 1.0f))));
}

/* cap * tanh(x / cap), by u = exp(-2 |x / cap|) as (1 - u) / (1 + u); the sign is that of x. */
static inline float eng_softcap(float x, float cap)
{
    float u = eng_exp(fabsf(x / cap) * -2.0f);
    return copysignf(cap * ((1.0f - u) / (1.0f + u)), x);
}

static inline float eng_clamped_swiglu(float g, float u)
{
    g = g < ENG_SWIGLU_LIMIT ? g : ENG_SWIGLU_LIMIT;
    u = u < ENG_SWIGLU_LIMIT ? u : ENG_SWIGLU_LIMIT;
    u = u > -ENG_SWIGLU_LIMIT ? u : -ENG_SWIGLU_LIMIT;
    return (g / (1.0f + eng_exp(-(g * ENG_SWIGLU_ALPHA)))) * (u + 1.0f);
}

/* Sums 16 lanes in the order 8-4-2-1; the array is used up. */
static inline float eng_fold16(float lanes[16])
{
    for (int w = 8; w > 0; w /= 2) {
        for (int j = 0; j < w; j++) {
            lanes[j] = lanes[j] + lanes[j + w];
        }
    }
    return lanes[0];
}

#endif
