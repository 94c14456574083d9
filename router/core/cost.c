/* cost.c - see cost.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/cost.h"

#define REASON_MAX 3600.0 /* no coefficient is larger: seconds a step, a token, a byte */

#define TRUSTED_SAMPLES 16.0 /* so many measurements are believed in full */
#define FADES_AFTER_US 30e6  /* so far behind the latest of its kind */

/* Slow on purpose: a thousand prompt tokens a second, a hundred steps a second. */
static const struct msg_speed default_speed = {.prefill_fixed_s = 1e-3,
                                               .prefill_token_s = 1e-3,
                                               .prefill_pair_s = 0,
                                               .step_fixed_s = 8e-3,
                                               .step_sequence_s = 1e-3,
                                               .step_context_s = 1e-7};
static const struct rtr_link_cost default_link = {.latency_s = 3e-3, .byte_s = 1e-9};

static bool sane(double x)
{
    return x >= 0 && x <= REASON_MAX; /* false for NaN */
}

void rtr_cost_default_speed(struct msg_speed *out)
{
    *out = default_speed;
}

void rtr_cost_take_speed(const struct msg_speed *told, struct msg_speed *out)
{
    *out = *told;
    if (!sane(told->prefill_fixed_s) || !sane(told->prefill_token_s) || !sane(told->prefill_pair_s) || !told->prefill_samples) {
        out->prefill_fixed_s = out->prefill_token_s = out->prefill_pair_s = 0;
        out->prefill_samples = 0;
    }
    if (!sane(told->step_fixed_s) || !sane(told->step_sequence_s) || !sane(told->step_context_s) || !told->step_samples) {
        out->step_fixed_s = out->step_sequence_s = out->step_context_s = 0;
        out->step_samples = 0;
    }
}

bool rtr_cost_take_link(const struct msg_peer_link *told, struct rtr_link_cost *out)
{
    *out = default_link;
    if (!told->samples || !sane(told->latency_s) || !sane(told->byte_s))
        return false;
    *out = (struct rtr_link_cost){.latency_s = told->latency_s, .byte_s = told->byte_s};
    return true;
}

void rtr_cost_note(struct rtr_measured *m, uint32_t samples, uint64_t now_us)
{
    if (samples != m->samples)
        *m = (struct rtr_measured){samples, now_us};
}

double rtr_cost_trust(const struct rtr_measured *m, uint64_t newest_us)
{
    double often = m->samples / TRUSTED_SAMPLES, behind_us = newest_us > m->at_us ? (double)(newest_us - m->at_us) : 0;
    return (often < 1 ? often : 1) * (behind_us > FADES_AFTER_US ? FADES_AFTER_US / behind_us : 1);
}

double rtr_cost_step_s(const struct msg_speed *s, double sequences, double contexts)
{
    KVS_ASSERT(sequences >= 0 && contexts >= 0);
    return sequences > 0 ? s->step_fixed_s + sequences * s->step_sequence_s + contexts * s->step_context_s : 0;
}

static double steps_of(double tokens, uint32_t chunk)
{
    double whole = (double)(uint64_t)(tokens / chunk);
    return whole * chunk < tokens ? whole + 1 : whole;
}

double rtr_cost_prefill_s(const struct msg_speed *s, uint32_t chunk, double tokens, double context, double running, double contexts)
{
    KVS_ASSERT(tokens >= 0 && tokens <= 1e15 && context >= 0);
    double steps = steps_of(tokens, chunk ? chunk : RTR_COST_CHUNK);
    double pairs = tokens * context + tokens * (tokens + 1) / 2;
    double others = running > 0 ? running * s->step_sequence_s + contexts * s->step_context_s : 0;
    return steps * (s->prefill_fixed_s + others) + tokens * s->prefill_token_s + pairs * s->prefill_pair_s;
}

double rtr_cost_link_s(const struct rtr_link_cost *l, double bytes)
{
    KVS_ASSERT(bytes >= 0);
    return l->latency_s + bytes * l->byte_s;
}

double rtr_cost_exposed_s(const struct rtr_link_cost *l, double bytes, double last_bytes, double prefill_s)
{
    KVS_ASSERT(bytes >= 0 && last_bytes >= 0);
    double behind = bytes * l->byte_s - prefill_s;
    double last = (last_bytes < bytes ? last_bytes : bytes) * l->byte_s;
    return l->latency_s + (behind > last ? behind : last);
}

void rtr_cost_sum(struct rtr_cost *c)
{
    c->ttft_s = c->queue_s + c->fetch_s + c->prefill_s + c->exposed_s;
}
