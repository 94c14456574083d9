/* quantize_k.c - blocks whose scales are searched for: the six of 256 weights, and IQ4_NL.
 *
 * A run of 16 or 32 weights is tried with some twenty grids around the one that its largest weight suggests; for every choice of codes
 * weighted least squares gives the best scale (and minimum) in closed form, and the least error wins. The runs' scales are then made
 * small integers under one f16 scale; there each run looks at the neighbours of its integers, too, and the f16 scale is fitted once
 * more to all codes together. The better of the two rounds is written.
 * An error counts by the run's root mean square plus the weight's magnitude: large weights matter more, and none is let go. (The
 * field takes the square or the magnitude alone in some types; measured on the same weights, plain errors then come out larger.)
 * All work is on weights divided by the block's largest, so that no sum leaves f32's range. Same input, same bytes, on any machine.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/quantize_k.h"
#include "base/checked.h"
#include "engine/ops/scalar.h"

#include <string.h>

#define SUPER 256u
#define RUNS 16u /* at most: runs of 16 */

/* How a type is cut and what its codes stand for. */
struct grid {
    uint32_t n;            /* weights in the block */
    uint32_t run;          /* weights under one small scale */
    int32_t low, high;     /* codes; of a table: the values of its ends */
    int32_t s_low, s_high; /* small scales; 0, 0: none, the f16 scale is the only one */
    bool table;            /* codes are of eng_iq4_values */
    bool with_min;
    float first, step; /* grids to try: first, first + step, ... in units of codes beside the largest weight's */
    uint32_t tries;
};

static const struct grid grids[] = {
    {SUPER, 16, 0, 3, 0, 15, false, true, -0.5f, 0.1f, 16},         /* Q2_K */
    {SUPER, 16, -4, 3, -32, 31, false, false, -0.9f, 0.1f, 19},     /* Q3_K */
    {SUPER, 32, 0, 15, 0, 63, false, true, -1.0f, 0.1f, 21},        /* Q4_K */
    {SUPER, 32, 0, 31, 0, 63, false, true, -0.5f, 0.1f, 16},        /* Q5_K */
    {SUPER, 16, -32, 31, -128, 127, false, false, -0.9f, 0.1f, 19}, /* Q6_K */
    {SUPER, 32, -127, 113, -32, 31, true, false, -7.0f, 1.0f, 15},  /* IQ4_XS */
    {32, 32, -127, 113, 0, 0, true, false, -7.0f, 1.0f, 15},        /* IQ4_NL */
};

/* A block on its way: x and w by the caller, the rest is the answer. Scales are in units of `peak`. */
struct fit {
    float x[SUPER], w[SUPER];
    float peak;
    uint16_t d, dmin; /* f16, real units */
    int32_t scale[RUNS], min[RUNS];
    int8_t code[SUPER]; /* index into the table where there is one */
};

static const struct grid *grid_of(mdl_type type)
{
    switch (type) {
    case MDL_Q2_K: return &grids[0];
    case MDL_Q3_K: return &grids[1];
    case MDL_Q4_K: return &grids[2];
    case MDL_Q5_K: return &grids[3];
    case MDL_Q6_K: return &grids[4];
    case MDL_IQ4_XS: return &grids[5];
    case MDL_IQ4_NL: return &grids[6];
    default: return NULL;
    }
}

bool eng_quantize_searched(mdl_type type)
{
    return grid_of(type) != NULL;
}

/* Nearest integer inside low..high, which are within -128..127. */
static int32_t near(float v, int32_t low, int32_t high)
{
    v = v < (float)low ? (float)low : v > (float)high ? (float)high : v;
    return (int32_t)(v + 128.5f) - 128;
}

static int32_t code_for(const struct grid *g, float v)
{
    if (!g->table) {
        return near(v, g->low, g->high);
    }
    int32_t c = 0; /* halves between two values, found by halving */
    for (int32_t jump = 8; jump > 0; jump /= 2) {
        float middle = 0.5f * (float)(eng_iq4_values[c + jump - 1] + eng_iq4_values[c + jump]);
        c += v > middle ? jump : 0;
    }
    return c;
}

static float value_of(const struct grid *g, int32_t code)
{
    return g->table ? (float)eng_iq4_values[code] : (float)code;
}

static float inverse_of(float d)
{
    float i = d != 0.0f ? 1.0f / d : 0.0f;
    return isfinite(i) ? i : 0.0f;
}

/* The scale that suits a run best; the largest weight takes the code at the negative end in the middle one of the grids. */
static float fit_scale(const struct grid *g, const float *x, const float *w)
{
    float peak = x[0], best = 0.0f, scale = 0.0f;
    for (uint32_t i = 1; i < g->run; i++) {
        peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
    }
    for (uint32_t t = 0; t < g->tries; t++) {
        float inverse = ((float)g->low + g->first + g->step * (float)t) * inverse_of(peak), up = 0.0f, down = 0.0f;
        for (uint32_t i = 0; i < g->run; i++) {
            float v = value_of(g, code_for(g, x[i] * inverse));
            up += w[i] * x[i] * v;
            down += w[i] * v * v;
        }
        if (down > 0.0f && up * up > best * down) {
            best = up * up / down;
            scale = up / down;
        }
    }
    return scale;
}

struct line {
    float scale, min;
};

/* x is about scale * code - min: both from the codes that a grid gives, min never negative. */
static struct line line_through(const float *x, const float *w, const int32_t *code, uint32_t n)
{
    float sw = 0.0f, sx = 0.0f, sc = 0.0f, scc = 0.0f, sxc = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        float c = (float)code[i], wc = w[i] * c;
        sw += w[i];
        sx += w[i] * x[i];
        sc += wc;
        scc += wc * c;
        sxc += wc * x[i];
    }
    float det = sw * scc - sc * sc;
    struct line l = {0.0f, 0.0f};
    if (det > 1e-6f * sw * scc) {
        l.scale = (sw * sxc - sx * sc) / det;
        l.min = -(scc * sx - sc * sxc) / det;
    }
    if (l.min <= 0.0f || det <= 1e-6f * sw * scc) {
        l.min = 0.0f;
        l.scale = scc > 0.0f ? sxc / scc : 0.0f;
    }
    l.scale = l.scale > 0.0f ? l.scale : 0.0f;
    return l;
}

static float line_error(const float *x, const float *w, const int32_t *code, uint32_t n, struct line l)
{
    float e = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        float r = l.scale * (float)code[i] - l.min - x[i];
        e += w[i] * r * r;
    }
    return e;
}

static struct line fit_line(const struct grid *g, const float *x, const float *w)
{
    float low = 0.0f, high = x[0], best = INFINITY;
    struct line won = {0.0f, 0.0f};
    for (uint32_t i = 0; i < g->run; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    for (uint32_t t = 0; t < g->tries; t++) {
        float inverse = ((float)g->high + g->first + g->step * (float)t) * inverse_of(high - low);
        int32_t code[32];
        for (uint32_t i = 0; i < g->run; i++) {
            code[i] = near((x[i] - low) * inverse, g->low, g->high);
        }
        struct line l = line_through(x, w, code, g->run);
        float e = line_error(x, w, code, g->run, l);
        if (e < best) {
            best = e;
            won = l;
        }
    }
    if (!(high > low)) { /* all weights alike, and not positive */
        won = (struct line){0.0f, -low};
    }
    return won;
}

/* Codes of one run under given scales, and their weighted error. */
static float assign(const struct grid *g, const float *x, const float *w, struct line l, int8_t *code)
{
    float inverse = inverse_of(l.scale), e = 0.0f;
    for (uint32_t i = 0; i < g->run; i++) {
        int32_t c = code_for(g, (x[i] + l.min) * inverse);
        float r = l.scale * value_of(g, c) - l.min - x[i];
        code[i] = (int8_t)c;
        e += w[i] * r * r;
    }
    return e;
}

/* Small scales near the wanted ones: the neighbours are tried, since what rounds best need not fit best. */
static float choose_run(const struct grid *g, struct fit *f, uint32_t run, float d, float dmin, struct line want)
{
    const float *x = f->x + run * g->run, *w = f->w + run * g->run;
    int32_t s = near(want.scale * inverse_of(d), g->s_low, g->s_high);
    int32_t m = g->with_min ? near(want.min * inverse_of(dmin), g->s_low, g->s_high) : 0;
    float best = INFINITY;
    for (int32_t i = s - 1; i <= s + 1; i++) {
        for (int32_t k = m - 1; k <= m + 1; k++) {
            int8_t code[32];
            if (i < g->s_low || i > g->s_high || (!g->with_min && k != 0) ||
                (g->with_min && (k < 0 || k > g->s_high))) {
                continue;
            }
            float e = assign(g, x, w, (struct line){d * (float)i, dmin * (float)k}, code);
            if (e < best) {
                best = e;
                f->scale[run] = i;
                f->min[run] = k;
                memcpy(f->code + run * g->run, code, g->run);
            }
        }
    }
    return best;
}

static float choose_all(const struct grid *g, struct fit *f, const struct line *want)
{
    float d = eng_f16_to_f32(f->d) / f->peak, dmin = eng_f16_to_f32(f->dmin) / f->peak, e = 0.0f;
    for (uint32_t run = 0; run < g->n / g->run; run++) {
        if (g->s_low == 0 && g->s_high == 0) {
            f->scale[run] = 1;
            e += assign(g, f->x, f->w, (struct line){d, 0.0f}, f->code);
        } else {
            e += choose_run(g, f, run, d, dmin, want[run]);
        }
    }
    return e;
}

/* The f16 scales that suit all codes and small scales together. */
static void refit(const struct grid *g, struct fit *f)
{
    float aa = 0.0f, am = 0.0f, mm = 0.0f, xa = 0.0f, xm = 0.0f;
    for (uint32_t i = 0; i < g->n; i++) {
        float a = (float)f->scale[i / g->run] * value_of(g, f->code[i]), m = -(float)f->min[i / g->run];
        aa += f->w[i] * a * a;
        am += f->w[i] * a * m;
        mm += f->w[i] * m * m;
        xa += f->w[i] * a * f->x[i];
        xm += f->w[i] * m * f->x[i];
    }
    float det = aa * mm - am * am, d = 0.0f, dmin = 0.0f;
    if (g->with_min && det > 1e-6f * aa * mm) {
        d = (xa * mm - xm * am) / det;
        dmin = (xm * aa - xa * am) / det;
    } else if (aa > 0.0f) {
        d = xa / aa;
    }
    if (g->with_min && (!(d > 0.0f) || dmin < 0.0f)) {
        return;
    }
    if (d != 0.0f) {
        f->d = eng_f16_from_f32(d * f->peak);
        f->dmin = g->with_min && dmin > 0.0f ? eng_f16_from_f32(dmin * f->peak) : f->dmin;
    }
}

/* What the runs would like, and the f16 scales under which the largest of them still fits. */
static void first_scales(const struct grid *g, struct fit *f, struct line *want)
{
    float most = 0.0f, most_min = 0.0f;
    for (uint32_t run = 0; run < g->n / g->run; run++) {
        const float *x = f->x + run * g->run, *w = f->w + run * g->run;
        want[run] = g->with_min ? fit_line(g, x, w) : (struct line){fit_scale(g, x, w), 0.0f};
        most = fabsf(want[run].scale) > fabsf(most) ? want[run].scale : most;
        most_min = want[run].min > most_min ? want[run].min : most_min;
    }
    int32_t end = g->with_min ? g->s_high : g->s_low != 0 ? g->s_low : 1;
    f->d = eng_f16_from_f32(most / (float)end * f->peak);
    f->dmin = g->with_min ? eng_f16_from_f32(most_min / (float)end * f->peak) : 0;
}

static void weigh(const struct grid *g, struct fit *f)
{
    for (uint32_t i = 0; i < g->n; i += g->run) {
        float squares = 0.0f;
        for (uint32_t k = i; k < i + g->run; k++) {
            squares += f->x[k] * f->x[k];
        }
        float rms = sqrtf(squares / (float)g->run);
        for (uint32_t k = i; k < i + g->run; k++) {
            f->w[k] = rms + fabsf(f->x[k]);
        }
    }
}

static void search(const struct grid *g, struct fit *f)
{
    struct line want[RUNS];
    struct fit second;
    weigh(g, f);
    first_scales(g, f, want);
    float e = choose_all(g, f, want);
    second = *f;
    refit(g, &second);
    if (choose_all(g, &second, want) < e) {
        *f = second;
    }
}

/* 256 two-bit codes: each run of 32 bytes holds four runs of 32 weights. */
static void put_crumbs(const struct fit *f, int32_t plus, uint8_t *out)
{
    memset(out, 0, 64);
    for (uint32_t i = 0; i < SUPER; i++) {
        out[i / 128 * 32 + i % 32] |= (uint8_t)((((uint32_t)(f->code[i] + plus)) & 3u) << (i % 128 / 32 * 2));
    }
}

static void put_q2_k(const struct fit *f, uint8_t *out)
{
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = (uint8_t)(f->scale[i] | f->min[i] << 4);
    }
    put_crumbs(f, 0, out + 16);
    kvs_store_u16(out + 80, f->d);
    kvs_store_u16(out + 82, f->dmin);
}

static void put_q3_k(const struct fit *f, uint8_t *out)
{
    memset(out, 0, 110);
    for (uint32_t i = 0; i < SUPER; i++) {
        out[i % 32] |= (uint8_t)((uint32_t)(f->code[i] >= 0) << (i / 32));
    }
    put_crumbs(f, 4, out + 32);
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t s = (uint32_t)(f->scale[i] + 32);
        out[96 + i % 8] |= (uint8_t)((s & 15u) << (i / 8 * 4));
        out[104 + i % 4] |= (uint8_t)((s >> 4) << (i / 4 * 2));
    }
    kvs_store_u16(out + 108, f->d);
}

static void put_q4_k_q5_k(const struct fit *f, bool five, uint8_t *out)
{
    kvs_store_u16(out, f->d);
    kvs_store_u16(out + 2, f->dmin);
    memset(out + 4, 0, five ? 172 : 140);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t s = (uint32_t)f->scale[i + 4], m = (uint32_t)f->min[i + 4];
        out[4 + i] = (uint8_t)((uint32_t)f->scale[i] | (s >> 4) << 6);
        out[8 + i] = (uint8_t)((uint32_t)f->min[i] | (m >> 4) << 6);
        out[12 + i] = (uint8_t)((s & 15u) | (m & 15u) << 4);
    }
    uint8_t *low = out + (five ? 48 : 16);
    for (uint32_t i = 0; i < SUPER; i++) {
        uint32_t c = (uint32_t)f->code[i];
        low[i / 64 * 32 + i % 32] |= (uint8_t)((c & 15u) << (i / 32 % 2 * 4));
        if (five) {
            out[16 + i % 32] |= (uint8_t)((c >> 4) << (i / 32));
        }
    }
}

static void put_q6_k(const struct fit *f, uint8_t *out)
{
    memset(out, 0, 192);
    for (uint32_t i = 0; i < SUPER; i++) {
        uint32_t c = (uint32_t)(f->code[i] + 32), half = i / 128, at = i % 128;
        out[half * 64 + at % 64] |= (uint8_t)((c & 15u) << (at / 64 * 4));
        out[128 + half * 32 + at % 32] |= (uint8_t)((c >> 4) << (at / 32 * 2));
    }
    for (uint32_t i = 0; i < 16; i++) {
        out[192 + i] = (uint8_t)f->scale[i];
    }
    kvs_store_u16(out + 208, f->d);
}

static void put_nibbles(const int8_t *code, uint8_t *out)
{
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = (uint8_t)(code[i] | code[i + 16] << 4);
    }
}

static void put_iq4_xs(const struct fit *f, uint8_t *out)
{
    uint32_t high = 0;
    memset(out + 4, 0, 4);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t s = (uint32_t)(f->scale[i] + 32);
        out[4 + i / 2] |= (uint8_t)((s & 15u) << (i % 2 * 4));
        high |= (s >> 4) << (2 * i);
        put_nibbles(f->code + 32 * i, out + 8 + 16 * i);
    }
    kvs_store_u16(out, f->d);
    kvs_store_u16(out + 2, (uint16_t)high);
}

static void put_block(mdl_type type, const struct fit *f, uint8_t *out)
{
    switch (type) {
    case MDL_Q2_K: put_q2_k(f, out); break;
    case MDL_Q3_K: put_q3_k(f, out); break;
    case MDL_Q4_K:
    case MDL_Q5_K: put_q4_k_q5_k(f, type == MDL_Q5_K, out); break;
    case MDL_Q6_K: put_q6_k(f, out); break;
    case MDL_IQ4_XS: put_iq4_xs(f, out); break;
    default:
        kvs_store_u16(out, f->d);
        put_nibbles(f->code, out + 2);
        break;
    }
}

bool eng_quantize_search(mdl_type type, const float *x, uint8_t *out)
{
    const struct grid *g = grid_of(type);
    struct fit f = {.peak = 0.0f};
    for (uint32_t i = 0; i < g->n; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
        f.peak = fabsf(x[i]) > f.peak ? fabsf(x[i]) : f.peak;
    }
    /* Below this f16 has no scale but 0; a division by it would not be safe either. */
    if (f.peak < 0x1p-60f) {
        f.peak = 1.0f;
    } else {
        for (uint32_t i = 0; i < g->n; i++) {
            f.x[i] = x[i] / f.peak;
        }
    }
    search(g, &f);
    put_block(type, &f, out);
    return ((uint32_t)f.d & 0x7c00u) != 0x7c00u && ((uint32_t)f.dmin & 0x7c00u) != 0x7c00u;
}
