/* state.c - reference recurrences: one channel, one row, one state dim at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/ref/ref.h"
#include "engine/ops/scalar.h"

void eng_ref_softplus(float *x, const float *bias, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = eng_softplus(x[i] + bias[i]);
    }
}

/* Input j rows back from `row`: an earlier row of this step, or what the state kept. */
void eng_ref_conv1d(const struct eng_conv *c, uint32_t first, uint32_t count)
{
    uint32_t past = c->kernel - 1;
    for (uint32_t ch = first; ch < first + count; ch++) {
        float seen[ENG_CONV_MAX];
        for (uint32_t j = 0; j < past; j++) {
            seen[j] = c->state[(size_t)j * c->channels + ch];
        }
        for (uint32_t row = 0; row < c->rows; row++) {
            seen[past] = c->x[row * c->x_stride + ch];
            float acc = 0.0f;
            for (uint32_t j = 0; j < c->kernel; j++) {
                acc = fmaf(c->weight[(size_t)j * c->channels + ch], seen[j], acc);
            }
            acc = c->bias != NULL ? acc + c->bias[ch] : acc;
            c->y[row * c->y_stride + ch] = acc / (1.0f + eng_exp(-acc));
            for (uint32_t j = 0; j < past; j++) {
                seen[j] = seen[j + 1];
            }
        }
        for (uint32_t j = 0; j < past; j++) {
            c->state[(size_t)j * c->channels + ch] = seen[j];
        }
    }
}

void eng_ref_scan(const struct eng_scan *s, uint32_t first, uint32_t count)
{
    for (uint32_t ch = first; ch < first + count; ch++) {
        for (uint32_t row = 0; row < s->rows; row++) {
            float x = s->x[row * s->x_stride + ch], dt = s->dt[row * s->dt_stride + ch], u = x * dt, acc = 0.0f;
            const float *b = s->b + row * s->bc_stride, *c = s->c + row * s->bc_stride;
            for (uint32_t n = 0; n < s->state_size; n++) {
                size_t at = (size_t)n * s->channels + ch;
                s->state[at] = fmaf(s->state[at], eng_exp(dt * s->a[at]), b[n] * u);
                acc = fmaf(s->state[at], c[n], acc);
            }
            s->y[row * s->y_stride + ch] = fmaf(s->d[ch], x, acc);
        }
    }
}

void eng_ref_scan_heads(const struct eng_scan *s, uint32_t first, uint32_t count)
{
    for (uint32_t h = first; h < first + count; h++) {
        size_t group = (size_t)(h / s->heads_per_group) * s->state_size;
        for (uint32_t row = 0; row < s->rows; row++) {
            float dt = s->dt[row * s->dt_stride + h], decay = eng_exp(dt * s->a[h]);
            const float *b = s->b + row * s->bc_stride + group, *c = s->c + row * s->bc_stride + group;
            for (uint32_t ch = h * s->head_dim; ch < (h + 1) * s->head_dim; ch++) {
                float x = s->x[row * s->x_stride + ch], u = x * dt, acc = 0.0f;
                for (uint32_t n = 0; n < s->state_size; n++) {
                    size_t at = (size_t)n * s->channels + ch;
                    s->state[at] = fmaf(s->state[at], decay, b[n] * u);
                    acc = fmaf(s->state[at], c[n], acc);
                }
                s->y[row * s->y_stride + ch] = fmaf(s->d[h], x, acc);
            }
        }
    }
}
