/* attention_avx2.c - one segment of attention for up to 64 query rows of one KV head.
 *
 * Lanes are keys when scores are computed (K lies as [dim][token]) and dims when values are summed (V as [token][dim]),
 * so every sum is one sequential chain per lane, as the contract wants. Query rows go through in sixes: a tile of keys
 * and values is read from cache for the second six on. The kernel is the same for both halves: C[row][lane] (+)= sum
 * over i of A[i][lane] * B[row][i]      scores: A = K, i = dims; values: A = V, i = keys with 2 registers of lanes for
 * 4 to 6 rows, 4 for 1 to 3. F16 and 8-bit tiles are read where they lie: a number becomes f32 in a register, 8-bit ones as
 * code * scale (11 bits by 8: exact), so a long context costs the bytes of its pages and nothing is written. Of 8-bit tiles
 * only the scales are widened, once a tile, into the scratch that a widened tile would take. A tile that spans several
 * blocks (blocks below 64 tokens) is gathered into scratch first; F16 and 8-bit tiles are widened there when many
 * rows read them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cpu/avx2.h"
#include "engine/ops/cpu/cpu.h"
#include "engine/ops/q8.h"

#define SIX 6u
#define MANY 18u /* rows: with more of them a widened tile is paid for */

/* How the kernels read A. Keys in 8 bits: lanes have a scale each, the same for 32 steps; values: a step has one for all lanes. */
typedef enum form { FORM_F32, FORM_F16, FORM_KEYS8, FORM_VALUES8 } form;

/* 64 keys and values, where they lie or gathered. */
struct tile {
    const void *k, *v;
    size_t k_stride, v_stride;      /* elements between dims, between tokens */
    const float *k_scale, *v_scale; /* 8 bits: [group of dims][ENG_TILE], [token][group] */
    size_t groups;                  /* of value dims */
    form k_form, v_form;
    size_t step; /* bytes of a page for 32 lanes: how fast a kernel walks through what it fetches ahead */
};

/* A of a kernel: steps of lanes from `at` on. */
struct source {
    const void *p;
    size_t at, stride;
    const float *scale; /* of the first lane, or of the first step */
    size_t scale_stride;
};

/* Eight lanes of step i, the first of them `lane`. */
ENG_INLINE __m256 load(const struct source *a, size_t i, size_t lane, const form f)
{
    size_t at = a->at + i * a->stride + lane;
    switch (f) {
    case FORM_F32: return _mm256_loadu_ps((const float *)a->p + at);
    case FORM_F16: return eng_load_f16((const uint16_t *)a->p + at);
    case FORM_KEYS8: return _mm256_mul_ps(eng_load_codes((const uint8_t *)a->p + at), _mm256_loadu_ps(a->scale + lane));
    default:
        return _mm256_mul_ps(eng_load_codes((const uint8_t *)a->p + at),
                             _mm256_broadcast_ss(a->scale + i * a->scale_stride));
    }
}

/* --- kernels --- */

#define C_LOAD2(r)                                                                 \
    const float *b_##r = b + r * b_stride;                                         \
    __m256 c0_##r = sum ? _mm256_loadu_ps(c + r * c_stride) : _mm256_setzero_ps(); \
    __m256 c1_##r = sum ? _mm256_loadu_ps(c + r * c_stride + 8) : _mm256_setzero_ps();
#define C_STEP2(r)                                 \
    {                                              \
        __m256 x = _mm256_broadcast_ss(b_##r + i); \
        c0_##r = _mm256_fmadd_ps(a0, x, c0_##r);   \
        c1_##r = _mm256_fmadd_ps(a1, x, c1_##r);   \
        ENG_PIN(c0_##r, c1_##r);                   \
    }
#define C_STORE2(r)                             \
    _mm256_storeu_ps(c + r * c_stride, c0_##r); \
    _mm256_storeu_ps(c + r * c_stride + 8, c1_##r);
#define C_LOAD4(r)                                                                      \
    C_LOAD2(r)                                                                          \
    __m256 c2_##r = sum ? _mm256_loadu_ps(c + r * c_stride + 16) : _mm256_setzero_ps(); \
    __m256 c3_##r = sum ? _mm256_loadu_ps(c + r * c_stride + 24) : _mm256_setzero_ps();
#define C_STEP4(r)                                     \
    {                                                  \
        __m256 x = _mm256_broadcast_ss(b_##r + again); \
        c2_##r = _mm256_fmadd_ps(a2, x, c2_##r);       \
        c3_##r = _mm256_fmadd_ps(a3, x, c3_##r);       \
        ENG_PIN(c2_##r, c3_##r);                       \
    }
#define C_STORE4(r)                                  \
    C_STORE2(r)                                      \
    _mm256_storeu_ps(c + r * c_stride + 16, c2_##r); \
    _mm256_storeu_ps(c + r * c_stride + 24, c3_##r);

/* n steps of a; `ahead` is fetched into the cache while we are here (the next tile to be read). */
#define KERNEL2(rows)                                                                                            \
    ENG_INLINE void kernel_##rows(const struct source *a, const float *b, size_t b_stride, uint32_t n, float *c, \
                                  size_t c_stride, const bool sum, const form f, const char *ahead, size_t step) \
    {                                                                                                            \
        ENG_EACH_##rows(C_LOAD2) for (size_t i = 0; i < n; i++)                                                  \
        {                                                                                                        \
            _mm_prefetch(ahead + i * (step / 2), _MM_HINT_T0);                                                   \
            __m256 a0 = load(a, i, 0, f), a1 = load(a, i, 8, f);                                                 \
            ENG_EACH_##rows(C_STEP2)                                                                             \
        }                                                                                                        \
        ENG_EACH_##rows(C_STORE2)                                                                                \
    }
#define KERNEL4(rows)                                                                                            \
    ENG_INLINE void kernel_##rows(const struct source *a, const float *b, size_t b_stride, uint32_t n, float *c, \
                                  size_t c_stride, const bool sum, const form f, const char *ahead, size_t step) \
    {                                                                                                            \
        ENG_EACH_##rows(C_LOAD4) for (size_t i = 0; i < n; i++)                                                  \
        {                                                                                                        \
            _mm_prefetch(ahead + i * step, _MM_HINT_T0);                                                         \
            if (f == FORM_F32) {                                                                                 \
                _mm_prefetch(ahead + i * step + 64, _MM_HINT_T0);                                                \
            }                                                                                                    \
            __m256 a0 = load(a, i, 0, f), a1 = load(a, i, 8, f);                                                 \
            ENG_EACH_##rows(C_STEP2) size_t again = i; /* or the compiler keeps all x and spills sums */         \
            ENG_HIDE(again);                                                                                     \
            __m256 a2 = load(a, again, 16, f), a3 = load(a, again, 24, f);                                       \
            ENG_EACH_##rows(C_STEP4)                                                                             \
        }                                                                                                        \
        ENG_EACH_##rows(C_STORE4)                                                                                \
    }
KERNEL4(1)
KERNEL4(2)
KERNEL4(3)
KERNEL2(4)
KERNEL2(5)
KERNEL2(6)

/* 8 lanes of any number of rows, adding to c: what is left of a head whose size is no multiple of 16 or 32. */
ENG_INLINE void narrow_lanes(const struct source *a, const float *b, size_t b_stride, uint32_t n, float *c,
                             size_t c_stride, uint32_t rows, const form f)
{
    for (uint32_t r = 0; r < rows; r++) {
        __m256 s = _mm256_loadu_ps(c + r * c_stride);
        for (size_t i = 0; i < n; i++) {
            s = _mm256_fmadd_ps(load(a, i, 0, f), _mm256_broadcast_ss(b + r * b_stride + i), s);
        }
        _mm256_storeu_ps(c + r * c_stride, s);
    }
}

static float value_at(const struct tile *t, uint32_t key, uint32_t d)
{
    size_t at = key * t->v_stride + d;
    switch (t->v_form) {
    case FORM_F32: return ((const float *)t->v)[at];
    case FORM_F16: return eng_f16_to_f32(((const uint16_t *)t->v)[at]);
    default: return t->v_scale[key * t->groups + d / KVC_SCALE_DIMS] * (float)(int8_t)((const uint8_t *)t->v)[at];
    }
}

/* The last value_dim % 8 lanes, one by one. */
static void last_lanes(const struct tile *t, uint32_t from, uint32_t to, const float *p, uint32_t keys, float *o,
                       size_t o_stride, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t d = from; d < to; d++) {
            float s = o[r * o_stride + d];
            for (uint32_t i = 0; i < keys; i++) {
                s = fmaf(p[r * ENG_TILE + i], value_at(t, i, d), s);
            }
            o[r * o_stride + d] = s;
        }
    }
}

/* Scores of n dims from `dim` on, which share their scales; those before are in p already. */
#define SCORES(rows, lanes)                                                                   \
    for (uint32_t j = 0; j < keys; j += lanes) {                                              \
        struct source a = {t->k, j + dim * t->k_stride, t->k_stride, scale + j, 0};           \
        kernel_##rows(&a, q + dim, q_stride, n, p + j, ENG_TILE, sum, f,                      \
                      ahead + (size_t)j * walk / 32 + dim * (t->step * lanes / 32), t->step); \
    }                                                                                         \
    break;
ENG_INLINE void scores_any(const struct tile *t, size_t dim, uint32_t n, uint32_t keys, const float *q, size_t q_stride,
                           float *p, uint32_t rows, const char *ahead, size_t walk, const bool sum, const form f)
{
    const float *scale = f == FORM_KEYS8 ? t->k_scale + dim / KVC_SCALE_DIMS * ENG_TILE : q;
    switch (rows) {
    case 1: SCORES(1, 32)
    case 2: SCORES(2, 32)
    case 3: SCORES(3, 32)
    case 4: SCORES(4, 16)
    case 5: SCORES(5, 16)
    default: SCORES(6, 16)
    }
}

#define VALUES(rows, lanes)                                                                                     \
    for (; d + lanes <= dim; d += lanes) {                                                                      \
        struct source a = values_at(t, d, f);                                                                   \
        kernel_##rows(&a, p, ENG_TILE, keys, o + d, o_stride, true, f, ahead + (size_t)d * walk / 32, t->step); \
    }                                                                                                           \
    break;
ENG_INLINE struct source values_at(const struct tile *t, size_t d, const form f)
{
    return (struct source){t->v, d, t->v_stride, f == FORM_VALUES8 ? t->v_scale + d / KVC_SCALE_DIMS : NULL, t->groups};
}

ENG_INLINE void values_any(const struct tile *t, uint32_t dim, uint32_t keys, const float *p, float *o, size_t o_stride,
                           uint32_t rows, const char *ahead, const form f)
{
    uint32_t d = 0;
    size_t walk = ENG_TILE * t->step;
    switch (rows) {
    case 1: VALUES(1, 32)
    case 2: VALUES(2, 32)
    case 3: VALUES(3, 32)
    case 4: VALUES(4, 16)
    case 5: VALUES(5, 16)
    default: VALUES(6, 16)
    }
    for (; d + 8 <= dim; d += 8) {
        struct source a = values_at(t, d, f);
        narrow_lanes(&a, p, ENG_TILE, keys, o + d, o_stride, rows, f);
    }
    if (d < dim) {
        last_lanes(t, d, dim, p, keys, o, o_stride, rows);
    }
}

static __attribute__((noinline)) void scores(const struct tile *t, uint32_t dim, uint32_t keys, const float *q,
                                             size_t q_stride, float *p, uint32_t rows, const char *ahead)
{
    size_t walk = dim * t->step;
    switch (t->k_form) {
    case FORM_F32: scores_any(t, 0, dim, keys, q, q_stride, p, rows, ahead, walk, false, FORM_F32); break;
    case FORM_F16: scores_any(t, 0, dim, keys, q, q_stride, p, rows, ahead, walk, false, FORM_F16); break;
    default:
        for (uint32_t d = 0; d < dim; d += KVC_SCALE_DIMS) {
            uint32_t n = dim - d < KVC_SCALE_DIMS ? dim - d : KVC_SCALE_DIMS;
            scores_any(t, d, n, keys, q, q_stride, p, rows, ahead, walk, d > 0, FORM_KEYS8);
        }
    }
}

static __attribute__((noinline)) void values(const struct tile *t, uint32_t dim, uint32_t keys, const float *p,
                                             float *o, size_t o_stride, uint32_t rows, const char *ahead)
{
    switch (t->v_form) {
    case FORM_F32: values_any(t, dim, keys, p, o, o_stride, rows, ahead, FORM_F32); break;
    case FORM_F16: values_any(t, dim, keys, p, o, o_stride, rows, ahead, FORM_F16); break;
    default: values_any(t, dim, keys, p, o, o_stride, rows, ahead, FORM_VALUES8);
    }
}

/* --- tiles --- */

/* `rows` runs of n 16-bit numbers. */
static void widen(const uint16_t *from, size_t stride, uint32_t rows, size_t n, float *to, size_t to_stride)
{
    for (uint32_t r = 0; r < rows; r++, from += stride, to += to_stride) {
        size_t i = 0;
        for (; i + 8 <= n; i += 8) {
            _mm256_storeu_ps(to + i, eng_load_f16(from + i));
        }
        for (; i < n; i++) {
            to[i] = eng_f16_to_f32(from[i]);
        }
    }
}

/* The whole of a block, its keys side by side with those of others. */
static void copy_block(const struct eng_kv_view *kv, const uint8_t *page, float *k, float *v)
{
    uint32_t bt = kv->block_tokens, kd = kv->key_dim;
    size_t values = (size_t)bt * kv->value_dim;
    if (kv->type == KVC_Q8_0) {
        eng_avx2_q8_run(kv, page, 0, bt, k, v);
    } else if (kv->type == KVC_F16) {
        const uint16_t *half = (const uint16_t *)(const void *)page;
        widen(half, bt, kd, bt, k, ENG_TILE);
        widen(half + (size_t)bt * kd, 0, 1, values, v, 0);
    } else {
        const float *full = (const float *)(const void *)page;
        for (size_t d = 0; d < kd; d++) {
            memcpy(k + d * ENG_TILE, full + d * bt, bt * sizeof(float));
        }
        memcpy(v, full + (size_t)bt * kd, values * sizeof(float));
    }
}

static struct tile in_scratch(const struct eng_kv_view *kv, const struct eng_scratch *s)
{
    return (struct tile){.k = s->k_tile,
                         .v = s->v_tile,
                         .k_stride = ENG_TILE,
                         .v_stride = kv->value_dim,
                         .step = kv->type == KVC_F32   ? 128
                                 : kv->type == KVC_F16 ? 64
                                                       : 32};
}

/* Blocks below 64 tokens: those that hold keys t0 + first .. t0 + keys - 1, side by side; lanes outside them are zero. */
static void tile_gather(const struct eng_kv_view *kv, uint32_t t0, uint32_t first, uint32_t keys, struct eng_scratch *s)
{
    first = first / kv->block_tokens * kv->block_tokens;
    if (keys < ENG_TILE || first > 0) {
        memset(s->k_tile, 0, (size_t)kv->key_dim * ENG_TILE * sizeof(float));
        memset(s->v_tile, 0, (size_t)kv->value_dim * first * sizeof(float));
    }
    for (uint32_t t = first; t < keys; t += kv->block_tokens) {
        copy_block(kv, eng_kv_page(kv, (t0 + t) >> kv->block_shift), s->k_tile + t, s->v_tile + (size_t)t * kv->value_dim);
    }
}

static struct tile tile_latent(const struct eng_kv_view *kv, uint32_t t0, uint32_t keys, struct eng_scratch *s)
{
    bool in_place = kv->type == KVC_F32 && kv->block_tokens >= ENG_TILE;
    struct tile t = in_scratch(kv, s);
    eng_avx2_latent_tile(kv, t0, keys, s->k_tile, in_place ? NULL : s->v_tile);
    if (in_place) {
        t.v = eng_kv_page(kv, t0 >> kv->block_shift) + (size_t)(t0 & (kv->block_tokens - 1)) * kv->key_dim * 4;
        t.v_stride = kv->key_dim;
    }
    return t;
}

/* A tile of an 8-bit page where it lies: only its scales become f32. */
static void tile_codes(const struct eng_kv_view *kv, const uint8_t *page, size_t inside, const struct eng_scratch *s,
                       struct tile *out)
{
    size_t groups = eng_q8_scales(kv->value_dim), bt = kv->block_tokens;
    const uint8_t *k_scale = page + kv->key_scale_offset + 2 * inside,
                  *v_scale = page + kv->value_scale_offset + 2 * inside * groups;
    widen((const uint16_t *)(const void *)k_scale, bt, eng_q8_scales(kv->key_dim), ENG_TILE, s->k_tile, ENG_TILE);
    widen((const uint16_t *)(const void *)v_scale, 0, 1, ENG_TILE * groups, s->v_tile, 0);
    out->k = page + inside;
    out->v = page + kv->value_offset + inside * kv->value_dim;
    out->k_stride = bt;
    out->k_scale = s->k_tile;
    out->v_scale = s->v_tile;
    out->groups = groups;
    out->k_form = FORM_KEYS8;
    out->v_form = FORM_VALUES8;
}

/* Keys t0 .. t0 + keys - 1, of which those before t0 + first need not be there. */
static struct tile tile_of(const struct eng_kv_view *kv, uint32_t t0, uint32_t first, uint32_t keys, uint32_t rows,
                           struct eng_scratch *s)
{
    struct tile t = in_scratch(kv, s);
    if (kv->latent) {
        return tile_latent(kv, t0, keys, s);
    }
    if (kv->block_tokens < ENG_TILE) {
        tile_gather(kv, t0, first, keys, s);
        return t;
    }
    size_t es = kv->type == KVC_F16 ? 2 : 4, inside = t0 & (kv->block_tokens - 1), kd = kv->key_dim, vd = kv->value_dim;
    const uint8_t *page = eng_kv_page(kv, t0 >> kv->block_shift), *k = page + inside * es,
                  *v = page + (kv->block_tokens * kd + inside * vd) * es;
    if (kv->type == KVC_Q8_0 && rows > MANY) {
        eng_avx2_q8_run(kv, page, (uint32_t)inside, ENG_TILE, s->k_tile, s->v_tile);
    } else if (kv->type == KVC_Q8_0) {
        tile_codes(kv, page, inside, s, &t);
    } else if (kv->type == KVC_F16 && rows > MANY) {
        widen((const uint16_t *)(const void *)k, kv->block_tokens, kv->key_dim, ENG_TILE, s->k_tile, ENG_TILE);
        widen((const uint16_t *)(const void *)v, 0, 1, (size_t)ENG_TILE * kv->value_dim, s->v_tile, 0);
    } else {
        t.k = k;
        t.v = v;
        t.k_stride = kv->block_tokens;
        t.k_form = t.v_form = kv->type == KVC_F16 ? FORM_F16 : FORM_F32;
    }
    return t;
}

/* --- one tile --- */

/* Scores of one row become probabilities; its running m, lanes and o follow. Keys first .. keys - 1 are seen; lanes: a
 * multiple of 32 that holds keys. Capped scores are scaled before the mask, which no cap may touch. */
static void softmax_row(float *p, uint32_t first, uint32_t keys, uint32_t lanes, const struct eng_attn_rows *r,
                        float *m_io, float *lane, float *o, uint32_t dim)
{
    const bool capped = r->cap != 0.0f;
    const __m256 vs = _mm256_set1_ps(capped ? 1.0f : r->scale), none = _mm256_set1_ps(-INFINITY);
    __m256 top = none;
    if (capped) {
        eng_avx2_scale(p, r->scale, lanes);
        eng_avx2_softcap(p, r->cap, lanes);
    }
    for (uint32_t j = 0; j < first; j++) {
        p[j] = -INFINITY;
    }
    for (uint32_t j = keys; j < lanes; j++) {
        p[j] = -INFINITY;
    }
    for (uint32_t j = 0; j < lanes; j += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(p + j), vs);
        top = _mm256_max_ps(top, v);
        _mm256_storeu_ps(p + j, v);
    }
    float tile_max = eng_max8(top), m = tile_max > *m_io ? tile_max : *m_io;
    __m256 c = eng_exp8(_mm256_set1_ps(*m_io - m)), vm = _mm256_set1_ps(m);
    *m_io = m;
    __m256 l0 = _mm256_mul_ps(_mm256_loadu_ps(lane), c), l1 = _mm256_mul_ps(_mm256_loadu_ps(lane + 8), c);
    for (uint32_t j = 0; j < lanes; j += 16) {
        __m256 e0 = eng_exp8(_mm256_sub_ps(_mm256_loadu_ps(p + j), vm)),
               e1 = eng_exp8(_mm256_sub_ps(_mm256_loadu_ps(p + j + 8), vm));
        _mm256_storeu_ps(p + j, e0);
        _mm256_storeu_ps(p + j + 8, e1);
        l0 = _mm256_add_ps(l0, e0);
        l1 = _mm256_add_ps(l1, e1);
    }
    _mm256_storeu_ps(lane, l0);
    _mm256_storeu_ps(lane + 8, l1);
    for (uint32_t d = 0; d < dim; d += 8) { /* rows of o are padded to 16 */
        _mm256_storeu_ps(o + d, _mm256_mul_ps(_mm256_loadu_ps(o + d), c));
    }
}

/* Rows first .. first + n - 1 against one tile that begins at key t0. */
static void tile_rows(const struct eng_kv_view *kv, const struct tile *t, const char *ahead, uint32_t t0,
                      const struct eng_attn_rows *r, uint32_t first, uint32_t n, struct eng_scratch *s)
{
    uint32_t keys = r->pos[first + n - 1] + 1 - t0;
    keys = keys < ENG_TILE ? keys : ENG_TILE;
    uint32_t lanes = (keys + 31) / 32 * 32;
    float *o = s->o + (size_t)first * s->value_stride;
    scores(t, kv->key_dim, lanes, s->q + (size_t)first * s->key_stride, s->key_stride, s->prob, n, t->v);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t visible = r->pos[first + i] + 1 - t0, from = eng_first_key(r->pos[first + i], r->window);
        from = from <= t0 ? 0 : from - t0 < lanes ? from - t0 : lanes;
        softmax_row(s->prob + i * ENG_TILE, from, visible < lanes ? visible : lanes, lanes, r, &s->m[first + i],
                    s->lanes + (first + i) * 16, o + (size_t)i * s->value_stride, kv->value_dim);
    }
    values(t, kv->value_dim, keys, s->prob, o, s->value_stride, n, ahead);
}

/* The scales of the page to come; its codes are fetched by the kernels. */
static void fetch_scales(const struct eng_kv_view *kv, const char *page)
{
    size_t end =
        kv->value_scale_offset + (kv->latent ? 0 : 2 * (size_t)kv->block_tokens * eng_q8_scales(kv->value_dim));
    for (size_t at = kv->key_scale_offset; at < end && kv->block_tokens == ENG_TILE; at += 64) {
        _mm_prefetch(page + at, _MM_HINT_T0);
    }
}

void eng_avx2_attend(const struct eng_kv_view *kv, uint32_t first_key, const struct eng_attn_rows *r,
                     struct eng_scratch *s)
{
    uint32_t last = r->pos[r->count - 1], from = eng_first_key(r->pos[0], r->window);
    for (uint32_t i = 0; i < r->count; i++) {
        s->m[i] = -INFINITY;
        memcpy(s->q + (size_t)i * s->key_stride, r->q[i], kv->key_dim * sizeof(float));
        memset(s->lanes + i * 16, 0, 16 * sizeof(float));
        memset(s->o + (size_t)i * s->value_stride, 0, s->value_stride * sizeof(float));
    }
    for (uint32_t t0 = first_key; t0 < first_key + ENG_SEGMENT && t0 <= last; t0 += ENG_TILE) {
        if (from >= t0 + ENG_TILE) {
            continue; /* no row sees it, and its page may be gone */
        }
        struct tile t = tile_of(kv, t0, from > t0 ? from - t0 : 0, last + 1 - t0 < ENG_TILE ? last + 1 - t0 : ENG_TILE,
                                r->count, s);
        bool more = t0 + ENG_TILE <= last && kv->block_tokens >= ENG_TILE;
        const char *ahead =
            more ? (const char *)eng_kv_page(kv, (t0 + ENG_TILE) >> kv->block_shift) : (const char *)t.v;
        if (more && kv->type == KVC_Q8_0) {
            fetch_scales(kv, ahead);
        }
        for (uint32_t i = 0; i < r->count; i += SIX) {
            tile_rows(kv, &t, ahead, t0, r, i, r->count - i < SIX ? r->count - i : SIX, s);
        }
    }
    for (uint32_t i = 0; i < r->count; i++) {
        s->l[i] = eng_fold16x(_mm256_loadu_ps(s->lanes + i * 16), _mm256_loadu_ps(s->lanes + i * 16 + 8));
    }
}
