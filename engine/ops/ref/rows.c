/* rows.c - reference row operations: norm, residual, gate, rotation, checks, softmax sum.
 * Reductions use 16 strided lanes folded 8-4-2-1 (numerics.md); rotation multiplies and adds without fusing.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/ref/ref.h"
#include "engine/ops/scalar.h"

bool eng_ref_norm(const float *x, const float *weight, uint32_t n, float eps, float *y_out)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lanes[i & 15u] = fmaf(x[i], x[i], lanes[i & 15u]);
    }
    float sum = eng_fold16(lanes);
    float s = 1.0f / sqrtf(sum / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        y_out[i] = weight != NULL ? (x[i] * s) * weight[i] : x[i] * s;
    }
    return sum < INFINITY;
}

void eng_ref_add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] + y[i];
    }
}

void eng_ref_silu_mul(float *g, const float *u, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        g[i] = eng_silu(g[i]) * u[i];
    }
}

void eng_ref_scale(float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] * s;
    }
}

void eng_ref_add_scaled(float *y, const float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = fmaf(s, x[i], y[i]);
    }
}

void eng_ref_gelu_mul(float *g, const float *u, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        g[i] = eng_gelu(g[i]) * u[i];
    }
}

void eng_ref_clamped_swiglu(float *g, const float *u, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        g[i] = eng_clamped_swiglu(g[i], u[i]);
    }
}

void eng_ref_softcap(float *x, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = eng_softcap(x[i], cap);
    }
}

void eng_ref_rope_neox(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                       const float *sines)
{
    uint32_t half = rope_dims / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            float a = x[i], b = x[i + half];
            float ac = a * cosines[i], bs = b * sines[i], as = a * sines[i], bc = b * cosines[i];
            x[i] = ac - bs;
            x[i + half] = as + bc;
        }
    }
}

void eng_ref_rope(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                  const float *sines)
{
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        for (uint32_t i = 0; i < rope_dims / 2; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            float ac = a * cosines[i], bs = b * sines[i], as = a * sines[i], bc = b * cosines[i];
            x[2 * i] = ac - bs;
            x[2 * i + 1] = as + bc;
        }
    }
}

bool eng_ref_below(const float *x, uint32_t n, float limit)
{
    bool good = true;
    for (uint32_t i = 0; i < n; i++) {
        good = good && fabsf(x[i]) < limit;
    }
    return good;
}

float eng_ref_sum_exp(const float *x, uint32_t n, float max, float divisor)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lanes[i & 15u] = lanes[i & 15u] + eng_exp((x[i] - max) / divisor);
    }
    return eng_fold16(lanes);
}
