/* state_avx2.c - recurrences with eight channels a register, up to four registers side by side: a channel's sum over its
 * state is one chain, so four chains hide the latency of one. What is left of a range goes through the reference's steps.
 *
 * A wide model's states lie a power of two apart and would all meet in the same cache sets, row after row. So a step of
 * several rows copies its channels' states into a small tile, scans there and copies them back; one row reads each
 * state once and works in place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"
#include "engine/ops/ref/ref.h"

ENG_INLINE __m256 softplus8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f), root = _mm256_set1_ps(ENG_SQRT2), sign = _mm256_set1_ps(-0.0f);
    __m256 u = eng_exp8(_mm256_or_ps(x, sign)), w = _mm256_add_ps(one, u);
    __m256 lost = _mm256_div_ps(_mm256_sub_ps(u, _mm256_sub_ps(w, one)), w);
    __m256 large = _mm256_cmp_ps(w, root, _CMP_GT_OQ), e = _mm256_and_ps(large, one);
    __m256 f = _mm256_sub_ps(_mm256_blendv_ps(w, _mm256_mul_ps(w, _mm256_set1_ps(0.5f)), large), one);
    __m256 z = _mm256_mul_ps(f, f), p = _mm256_set1_ps(ENG_LOG_P0);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ENG_LOG_P1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ENG_LOG_P2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ENG_LOG_P3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ENG_LOG_P4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ENG_LOG_P5));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ENG_LOG_P6));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ENG_LOG_P7));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ENG_LOG_P8));
    __m256 y = _mm256_fmadd_ps(e, _mm256_set1_ps(ENG_EXP_LN2_LOW), _mm256_mul_ps(_mm256_mul_ps(f, z), p));
    y = _mm256_add_ps(f, _mm256_fmadd_ps(_mm256_set1_ps(-0.5f), z, y));
    y = _mm256_add_ps(_mm256_fmadd_ps(e, _mm256_set1_ps(ENG_EXP_LN2_HIGH), y), lost);
    return _mm256_add_ps(_mm256_max_ps(_mm256_setzero_ps(), x), y); /* max(0, NaN) is NaN in this order */
}

void eng_avx2_softplus(float *x, const float *bias, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(x + i, softplus8(_mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(bias + i))));
    }
    for (; i < n; i++) {
        x[i] = eng_softplus(x[i] + bias[i]);
    }
}

/* --- convolution --- */

static void conv_lanes(const struct eng_conv *c, uint32_t ch)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    uint32_t past = c->kernel - 1;
    __m256 seen[ENG_CONV_MAX], weight[ENG_CONV_MAX];
    for (uint32_t j = 0; j < ENG_CONV_MAX; j++) {
        weight[j] = seen[j] = _mm256_setzero_ps();
    }
    for (uint32_t j = 0; j < c->kernel; j++) {
        weight[j] = _mm256_loadu_ps(c->weight + (size_t)j * c->channels + ch);
    }
    for (uint32_t j = 0; j < past; j++) {
        seen[j] = _mm256_loadu_ps(c->state + (size_t)j * c->channels + ch);
    }
    for (uint32_t row = 0; row < c->rows; row++) {
        seen[past] = _mm256_loadu_ps(c->x + row * c->x_stride + ch);
        __m256 acc = _mm256_setzero_ps();
        for (uint32_t j = 0; j < past; j++) {
            acc = _mm256_fmadd_ps(weight[j], seen[j], acc);
            seen[j] = seen[j + 1];
        }
        acc = _mm256_fmadd_ps(weight[past], seen[past], acc);
        acc = c->bias != NULL ? _mm256_add_ps(acc, _mm256_loadu_ps(c->bias + ch)) : acc;
        _mm256_storeu_ps(c->y + row * c->y_stride + ch,
                         _mm256_div_ps(acc, _mm256_add_ps(one, eng_exp8(_mm256_xor_ps(acc, sign)))));
    }
    for (uint32_t j = 0; j < past; j++) {
        _mm256_storeu_ps(c->state + (size_t)j * c->channels + ch, seen[j]);
    }
}

void eng_avx2_conv1d(const struct eng_conv *c, uint32_t first, uint32_t count)
{
    uint32_t end = first + count;
    for (; first + 8 <= end; first += 8) {
        conv_lanes(c, first);
    }
    if (first < end) {
        eng_ref_conv1d(c, first, end - first);
    }
}

/* --- scans --- */

/* A run of channels' states: where they lie and how far apart. */
struct lanes {
    float *p;
    size_t stride;
};

static struct lanes tile_in(const struct eng_scan *s, uint32_t ch, uint32_t count, float *tile)
{
    if (s->rows == 1) {
        return (struct lanes){.p = s->state + ch, .stride = s->channels};
    }
    for (uint32_t n = 0; n < s->state_size; n++) {
        memcpy(tile + (size_t)n * count, s->state + (size_t)n * s->channels + ch, count * sizeof *tile);
    }
    return (struct lanes){.p = tile, .stride = count};
}

static void tile_out(const struct eng_scan *s, uint32_t ch, uint32_t count, const float *tile)
{
    for (uint32_t n = 0; s->rows != 1 && n < s->state_size; n++) {
        memcpy(s->state + (size_t)n * s->channels + ch, tile + (size_t)n * count, count * sizeof *tile);
    }
}

/* One row of 8 * R channels that share dt, a and d. */
#define HEAD_BEGIN(r)                                                             \
    __m256 x_##r = _mm256_loadu_ps(x + 8 * r), u_##r = _mm256_mul_ps(x_##r, vdt); \
    __m256 y_##r = _mm256_setzero_ps();
#define HEAD_STEP(r)                                                                              \
    {                                                                                             \
        __m256 t = _mm256_fmadd_ps(_mm256_loadu_ps(st + 8 * r), decay, _mm256_mul_ps(vb, u_##r)); \
        _mm256_storeu_ps(st + 8 * r, t);                                                          \
        y_##r = _mm256_fmadd_ps(t, vc, y_##r);                                                    \
    }
#define HEAD_END(r) _mm256_storeu_ps(y + 8 * r, _mm256_fmadd_ps(vd, x_##r, y_##r));
#define HEAD_ROW(R)                                                                                               \
    static void head_row_##R(struct lanes l, uint32_t size, const float *x, float *y, float dt, float a, float d, \
                             const float *b, const float *c)                                                      \
    {                                                                                                             \
        const __m256 vdt = _mm256_set1_ps(dt), decay = _mm256_set1_ps(eng_exp(dt * a)), vd = _mm256_set1_ps(d);   \
        ENG_EACH_##R(HEAD_BEGIN) float *st = l.p;                                                                 \
        for (uint32_t n = 0; n < size; n++, st += l.stride) {                                                     \
            const __m256 vb = _mm256_broadcast_ss(b + n), vc = _mm256_broadcast_ss(c + n);                        \
            ENG_EACH_##R(HEAD_STEP)                                                                               \
        }                                                                                                         \
        ENG_EACH_##R(HEAD_END)                                                                                    \
    }
HEAD_ROW(1)
HEAD_ROW(4)

/* Channels ch .. ch + count - 1 of head h; count 8 or 32. */
static void head_lanes(const struct eng_scan *s, uint32_t h, uint32_t ch, uint32_t count)
{
    float tile[ENG_STATE_MAX * 32];
    struct lanes l = tile_in(s, ch, count, tile);
    size_t group = (size_t)(h / s->heads_per_group) * s->state_size;
    for (uint32_t row = 0; row < s->rows; row++) {
        const float *x = s->x + row * s->x_stride + ch, *b = s->b + row * s->bc_stride + group,
                    *c = s->c + row * s->bc_stride + group;
        float *y = s->y + row * s->y_stride + ch, dt = s->dt[row * s->dt_stride + h];
        (count == 32 ? head_row_4 : head_row_1)(l, s->state_size, x, y, dt, s->a[h], s->d[h], b, c);
    }
    tile_out(s, ch, count, tile);
}

/* What is left of a head: fewer than 8 channels, one by one. */
static void head_rest(const struct eng_scan *s, uint32_t h, uint32_t ch, uint32_t end)
{
    size_t group = (size_t)(h / s->heads_per_group) * s->state_size;
    for (; ch < end; ch++) {
        for (uint32_t row = 0; row < s->rows; row++) {
            float x = s->x[row * s->x_stride + ch], dt = s->dt[row * s->dt_stride + h], u = x * dt, acc = 0.0f;
            float decay = eng_exp(dt * s->a[h]), *st = s->state + ch;
            const float *b = s->b + row * s->bc_stride + group, *c = s->c + row * s->bc_stride + group;
            for (uint32_t n = 0; n < s->state_size; n++, st += s->channels) {
                *st = fmaf(*st, decay, b[n] * u);
                acc = fmaf(*st, c[n], acc);
            }
            s->y[row * s->y_stride + ch] = fmaf(s->d[h], x, acc);
        }
    }
}

void eng_avx2_scan_heads(const struct eng_scan *s, uint32_t first, uint32_t count)
{
    for (uint32_t h = first; h < first + count; h++) {
        uint32_t ch = h * s->head_dim, end = ch + s->head_dim;
        for (; ch + 32 <= end; ch += 32) {
            head_lanes(s, h, ch, 32);
        }
        for (; ch + 8 <= end; ch += 8) {
            head_lanes(s, h, ch, 8);
        }
        head_rest(s, h, ch, end);
    }
}

/* 8 channels, each with its own dt, a and d: the exponentials fill the pipes, one register is enough. */
static void scan_lanes(const struct eng_scan *s, uint32_t ch)
{
    float tile[ENG_STATE_MAX * 8];
    struct lanes l = tile_in(s, ch, 8, tile);
    const __m256 d = _mm256_loadu_ps(s->d + ch);
    for (uint32_t row = 0; row < s->rows; row++) {
        const float *b = s->b + row * s->bc_stride, *c = s->c + row * s->bc_stride, *a = s->a + ch;
        const __m256 x = _mm256_loadu_ps(s->x + row * s->x_stride + ch);
        const __m256 dt = _mm256_loadu_ps(s->dt + row * s->dt_stride + ch), u = _mm256_mul_ps(x, dt);
        __m256 y = _mm256_setzero_ps();
        float *st = l.p;
        for (uint32_t n = 0; n < s->state_size; n++, st += l.stride, a += s->channels) {
            __m256 decay = eng_exp8(_mm256_mul_ps(dt, _mm256_loadu_ps(a)));
            __m256 t = _mm256_fmadd_ps(_mm256_loadu_ps(st), decay, _mm256_mul_ps(_mm256_broadcast_ss(b + n), u));
            _mm256_storeu_ps(st, t);
            y = _mm256_fmadd_ps(t, _mm256_broadcast_ss(c + n), y);
        }
        _mm256_storeu_ps(s->y + row * s->y_stride + ch, _mm256_fmadd_ps(d, x, y));
    }
    tile_out(s, ch, 8, tile);
}

void eng_avx2_scan(const struct eng_scan *s, uint32_t first, uint32_t count)
{
    uint32_t end = first + count;
    for (; first + 8 <= end; first += 8) {
        scan_lanes(s, first);
    }
    if (first < end) {
        eng_ref_scan(s, first, end - first);
    }
}
