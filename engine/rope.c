/* rope.c - cosines and sines of position times frequency, in double, rounded once to f32.
 *
 * angle(pos, i) = pos * base^(-2i / dims) / f_i, then by scaling:
 *   linear   divided by the factor
 *   yarn     a ramp over i mixes the plain and the divided angle; both tables times 1 + 0.1 ln factor
 * and both tables times attn_factor.
 * log: atanh series after taking the exponent off. exp: two-part ln 2, Taylor to r^13. sin, cos: three-part pi/2
 * (fdlibm's constants: 33 bits each, so that n * part is exact up to n = 2^20), then Taylor on +-pi/4. All are within
 * some 1e-15 of the truth, far below the f32 that is kept. No fused operations (-ffp-contract=off).
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/rope.h"
#include <string.h>

#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define INVERSE_LN2 1.44269504088896338700e+00
#define TWO_OVER_PI 6.36619772367581382433e-01
#define PIO2_1 1.57079632673412561417e+00
#define PIO2_2 6.07710050630396597660e-11
#define PIO2_3 2.02226624871116645580e-21
#define TWO_PI 6.28318530717958647693e+00

static uint64_t bits_of(double x)
{
    uint64_t b;
    memcpy(&b, &x, 8);
    return b;
}

static double from_bits(uint64_t b)
{
    double x;
    memcpy(&x, &b, 8);
    return x;
}

static int64_t nearest(double x)
{
    return (int64_t)(x < 0 ? x - 0.5 : x + 0.5);
}

double eng_log64(double x)
{
    uint64_t b = bits_of(x);
    int64_t exponent = (int64_t)(b >> 52 & 0x7ff) - 1023;
    double m = from_bits((b & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.41421356237309504880) {
        m = m * 0.5;
        exponent++;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int k = 23; k >= 1; k -= 2) {
        sum = sum * z + 1.0 / (double)k;
    }
    return (double)exponent * LN2_HIGH + ((double)exponent * LN2_LOW + 2.0 * s * sum);
}

double eng_exp64(double x)
{
    int64_t n = nearest(x * INVERSE_LN2);
    double r = (x - (double)n * LN2_HIGH) - (double)n * LN2_LOW, sum = 1.0;
    for (int k = 13; k >= 1; k--) {
        sum = 1.0 + sum * (r / (double)k);
    }
    return sum * from_bits((uint64_t)(n + 1023) << 52);
}

void eng_sincos64(double x, double *sine, double *cosine)
{
    int64_t n = nearest(x * TWO_OVER_PI);
    double r = ((x - (double)n * PIO2_1) - (double)n * PIO2_2) - (double)n * PIO2_3;
    double z = r * r, s = 1.0, c = 1.0;
    for (int k = 8; k >= 1; k--) {
        s = 1.0 - s * (z / (double)(2 * k * (2 * k + 1)));
        c = 1.0 - c * (z / (double)(2 * k * (2 * k - 1)));
    }
    s = s * r;
    switch ((uint64_t)n & 3u) {
    case 0:
        *sine = s;
        *cosine = c;
        break;
    case 1:
        *sine = c;
        *cosine = -s;
        break;
    case 2:
        *sine = -s;
        *cosine = -c;
        break;
    default:
        *sine = -c;
        *cosine = s;
        break;
    }
}

/* The pair index at which a wave makes `turns` turns within the original context. */
static double yarn_index(const struct eng_rope_config *c, double turns)
{
    return (double)c->dims * eng_log64((double)c->original_context / (TWO_PI * turns)) / (2.0 * eng_log64(c->base));
}

static double floor64(double x)
{
    double t = (double)(int64_t)x;
    return t > x ? t - 1.0 : t;
}

/* Share of the plain (not divided) angle at pair i. */
static double yarn_ramp(const struct eng_rope_config *c, uint32_t i)
{
    double low = floor64(yarn_index(c, c->beta_fast)), high = -floor64(-yarn_index(c, c->beta_slow));
    low = low < 0.0 ? 0.0 : low;
    high = high > (double)(c->dims - 1) ? (double)(c->dims - 1) : high;
    double width = high - low < 0.001 ? 0.001 : high - low, t = ((double)i - low) / width;
    return 1.0 - (t < 0.0 ? 0.0 : t > 1.0 ? 1.0 : t);
}

void eng_rope_tables(const struct eng_rope_config *c, uint32_t context, float *cosines, float *sines)
{
    uint32_t half = c->dims / 2;
    double magnitude = c->attn_factor != 0.0 ? c->attn_factor : 1.0;
    if (c->scaling == MDL_ROPE_YARN) {
        magnitude = magnitude * (1.0 + 0.1 * eng_log64(c->factor));
    }
    for (uint32_t i = 0; i < half; i++) {
        double step = eng_exp64(-2.0 * (double)i / (double)c->dims * eng_log64(c->base));
        if (c->freq_factors != NULL) {
            step = step / (double)c->freq_factors[i];
        }
        if (c->scaling == MDL_ROPE_LINEAR) {
            step = step / c->factor;
        } else if (c->scaling == MDL_ROPE_YARN) {
            double ramp = yarn_ramp(c, i);
            step = ramp * step + (1.0 - ramp) * step / c->factor;
        }
        for (uint32_t p = 0; p < context; p++) {
            double s, co;
            eng_sincos64((double)p * step, &s, &co);
            cosines[(size_t)p * half + i] = (float)(co * magnitude);
            sines[(size_t)p * half + i] = (float)(s * magnitude);
        }
    }
}
