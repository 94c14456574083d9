/* fit.c - see fit.h. The sums are those of the normal equations, 3 by 3; with so few terms the best solution without negative ones is found by
 * trying every subset of terms, exactly. Terms come in sizes from 1 to 1e10 and are brought to about one before anything is summed.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/core/fit.h"

#include <string.h>

#define KEEP (1.0 - 1.0 / 256)
#define FLOOR_S 20e-6 /* a sample's error counts relative to its time and this: clocks are no better */
#define TERM_MAX 1e18
#define TINY 1e-12

/* Pulls terms that the samples do not determine to zero, the second one least: a wrong cost of pairs would make long prompts look endless. */
static const double ridge[WRK_FIT_TERMS] = {1e-3, 1e-6, 1e-3};

static bool usable(const double *x, double seconds)
{
    bool ok = seconds > 0 && seconds < 1e6;
    for (uint32_t i = 0; i < WRK_FIT_TERMS; i++)
        ok = ok && x[i] >= 0 && x[i] < TERM_MAX;
    return ok;
}

void wrk_fit_add(struct wrk_fit *f, const double x[WRK_FIT_TERMS], double seconds)
{
    if (!usable(x, seconds))
        return;
    double weight = 1 / ((seconds + FLOOR_S) * (seconds + FLOOR_S));
    for (uint32_t i = 0; i < WRK_FIT_TERMS; i++) {
        for (uint32_t k = 0; k < WRK_FIT_TERMS; k++)
            f->xx[i][k] = f->xx[i][k] * KEEP + weight * x[i] * x[k];
        f->xt[i] = f->xt[i] * KEEP + weight * x[i] * seconds;
    }
    if (f->samples < UINT32_MAX)
        f->samples++;
}

/* The terms of `set` alone: Gauss, with the largest of what is left as pivot. False: they are not independent. */
static bool solve_set(double a[WRK_FIT_TERMS][WRK_FIT_TERMS], const double *b, const uint32_t *set, uint32_t n, double *out)
{
    double m[WRK_FIT_TERMS][WRK_FIT_TERMS + 1];
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n; k++)
            m[i][k] = a[set[i]][set[k]];
        m[i][n] = b[set[i]];
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t best = i;
        for (uint32_t r = i + 1; r < n; r++)
            if (m[r][i] * m[r][i] > m[best][i] * m[best][i])
                best = r;
        if (m[best][i] * m[best][i] < TINY * TINY)
            return false;
        for (uint32_t k = 0; k <= n; k++) {
            double t = m[i][k];
            m[i][k] = m[best][k];
            m[best][k] = t;
        }
        for (uint32_t r = 0; r < n; r++) {
            double q = r == i ? 0 : m[r][i] / m[i][i];
            for (uint32_t k = i; k <= n; k++)
                m[r][k] -= q * m[i][k];
        }
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = m[i][n] / m[i][i];
    return true;
}

static double objective(double a[WRK_FIT_TERMS][WRK_FIT_TERMS], const double *b, const double *c)
{
    double sum = 0;
    for (uint32_t i = 0; i < WRK_FIT_TERMS; i++) {
        sum -= 2 * b[i] * c[i];
        for (uint32_t k = 0; k < WRK_FIT_TERMS; k++)
            sum += a[i][k] * c[i] * c[k];
    }
    return sum;
}

/* Newton's, enough for a scale. */
static double root(double x)
{
    double r = x > 1 ? x : 1;
    for (int i = 0; i < 128; i++)
        r = (r + x / r) / 2;
    return r;
}

bool wrk_fit_solve(const struct wrk_fit *f, double c_out[WRK_FIT_TERMS])
{
    double a[WRK_FIT_TERMS][WRK_FIT_TERMS], b[WRK_FIT_TERMS], scale[WRK_FIT_TERMS], best = 0;
    memset(c_out, 0, WRK_FIT_TERMS * sizeof(*c_out));
    if (!f->samples)
        return false;
    for (uint32_t i = 0; i < WRK_FIT_TERMS; i++)
        scale[i] = f->xx[i][i] > 0 ? root(f->xx[i][i]) : 1;
    for (uint32_t i = 0; i < WRK_FIT_TERMS; i++) {
        for (uint32_t k = 0; k < WRK_FIT_TERMS; k++)
            a[i][k] = f->xx[i][k] / scale[i] / scale[k] + (i == k ? ridge[i] : 0);
        b[i] = f->xt[i] / scale[i];
    }
    for (uint32_t mask = 1; mask < 1u << WRK_FIT_TERMS; mask++) {
        uint32_t set[WRK_FIT_TERMS], n = 0;
        double got[WRK_FIT_TERMS], c[WRK_FIT_TERMS] = {0};
        for (uint32_t i = 0; i < WRK_FIT_TERMS; i++)
            if (mask >> i & 1)
                set[n++] = i;
        bool ok = solve_set(a, b, set, n, got);
        for (uint32_t i = 0; ok && i < n; i++) {
            ok = got[i] >= 0;
            c[set[i]] = got[i];
        }
        double at = ok ? objective(a, b, c) : 0;
        if (!ok || at >= best)
            continue;
        best = at;
        for (uint32_t i = 0; i < WRK_FIT_TERMS; i++)
            c_out[i] = c[i] / scale[i];
    }
    return true;
}

/* ---- steps ---- */

void wrk_speed_add(struct wrk_speed *s, const struct wrk_step *step, double seconds)
{
    double prefill[WRK_FIT_TERMS] = {1, 0, 0}, running[WRK_FIT_TERMS] = {1, 0, 0}, c[WRK_FIT_TERMS];
    for (uint32_t i = 0; i < step->entry_count; i++) {
        const struct wrk_step_entry *e = &step->entries[i];
        if (e->count == 1) {
            running[1] += 1;
            running[2] += (double)e->pos + 1;
            continue;
        }
        prefill[1] += e->count;
        prefill[2] += (double)e->count * e->pos + (double)e->count * (e->count + 1.0) / 2;
    }
    if (prefill[1] <= 0) {
        wrk_fit_add(&s->step, running, seconds);
        return;
    }
    if (running[1] > 0 && wrk_fit_solve(&s->step, c)) {
        double theirs = c[1] * running[1] + c[2] * running[2];
        seconds = theirs < 0.9 * seconds ? seconds - theirs : 0.1 * seconds;
    }
    wrk_fit_add(&s->prefill, prefill, seconds);
}

void wrk_speed_tell(const struct wrk_speed *s, struct msg_speed *out)
{
    double c[WRK_FIT_TERMS];
    (void)wrk_fit_solve(&s->prefill, c);
    *out = (struct msg_speed){.prefill_fixed_s = c[0], .prefill_token_s = c[1], .prefill_pair_s = c[2], .prefill_samples = s->prefill.samples};
    (void)wrk_fit_solve(&s->step, c);
    out->step_fixed_s = c[0];
    out->step_sequence_s = c[1];
    out->step_context_s = c[2];
    out->step_samples = s->step.samples;
}

/* ---- links ---- */

/* The other way round than steps: while all transfers have one size, all of it is latency. A byte that seems too cheap is found out by the first
 * large transfer; one that seems too dear would never be tried again. */
void wrk_link_add(struct wrk_fit *f, uint64_t bytes, double seconds)
{
    const double x[WRK_FIT_TERMS] = {(double)bytes, 1, 0};
    wrk_fit_add(f, x, seconds);
}

void wrk_link_tell(const struct wrk_fit *f, struct msg_peer_link *out)
{
    double c[WRK_FIT_TERMS];
    (void)wrk_fit_solve(f, c);
    out->latency_s = c[1];
    out->byte_s = c[0];
    out->samples = f->samples;
}
