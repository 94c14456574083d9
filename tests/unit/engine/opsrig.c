/* opsrig.c - see opsrig.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/opsrig.h"
#include "engine/memory.h"
#include "engine/ops/scalar.h"
#include <stdlib.h>
#include <string.h>

const mdl_type ops_types[OPS_TYPES] = {MDL_F32,  MDL_F16,    MDL_BF16,   MDL_Q8_0, MDL_Q4_0, MDL_Q4_1,
                                       MDL_Q5_0, MDL_Q5_1,   MDL_Q2_K,   MDL_Q3_K, MDL_Q4_K, MDL_Q5_K,
                                       MDL_Q6_K, MDL_IQ4_NL, MDL_IQ4_XS, MDL_MXFP4};

uint32_t ops_tables(const struct eng_ops *out[2])
{
    const struct eng_ops *best = eng_ops_best();
    out[0] = &eng_ops_ref;
    out[1] = best;
    return best != NULL && best != &eng_ops_ref ? 2 : 1;
}

void ops_fill(struct kvs_rng *r, float *x, size_t n, kind k)
{
    for (size_t i = 0; i < n; i++) {
        int32_t v = (int32_t)kvs_rng_below(r, 1u << 24) - (1 << 23);
        kind one = k == KIND_MIXED ? (kind)kvs_rng_below(r, 3) : k;
        int32_t exponent = one == KIND_PLAIN  ? -22
                           : one == KIND_WIDE ? (int32_t)kvs_rng_below(r, 30) - 38
                                              : (int32_t)kvs_rng_below(r, 40) - 172;
        float scale = exponent >= -126 ? eng_f32_from_bits((uint32_t)(exponent + 127) << 23)
                                       : eng_f32_from_bits(1u << (149 + (exponent < -149 ? -149 : exponent)));
        x[i] = (float)v * scale;
        if (kvs_rng_below(r, 50) == 0) {
            x[i] = kvs_rng_below(r, 2) ? 0.0f : -0.0f;
        }
    }
}

static void put_half(struct kvs_rng *r, uint8_t *p)
{
    uint16_t h = (uint16_t)(kvs_rng_below(r, 8) == 0 ? kvs_rng_below(r, 0x7c00) : 0x1c00 + kvs_rng_below(r, 0x1800));
    h |= (uint16_t)(kvs_rng_below(r, 2) << 15);
    memcpy(p, &h, 2);
}

/* Types with more parts than a scale and codes: where their f16 values stand in a block. */
static const struct parts {
    mdl_type type;
    uint32_t halves, at[2];
} parts[] = {{MDL_Q5_0, 1, {0}},    {MDL_Q5_1, 2, {0, 2}}, {MDL_Q2_K, 2, {80, 82}}, {MDL_Q3_K, 1, {108}},
             {MDL_Q4_K, 2, {0, 2}}, {MDL_Q5_K, 2, {0, 2}}, {MDL_Q6_K, 1, {208}},    {MDL_IQ4_NL, 1, {0}},
             {MDL_IQ4_XS, 1, {0}},  {MDL_MXFP4, 0, {0}}};

static const struct parts *parts_of(mdl_type type)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].type == type) {
            return &parts[i];
        }
    }
    return NULL;
}

/* One block in twelve has all codes and inner scales at an end, one in twelve a zero for a scale. */
static uint8_t *parts_bytes(struct kvs_rng *r, const struct parts *p, size_t n, size_t *size_out)
{
    static const uint8_t fills[] = {0xff, 0x00, 0x80, 0x7f, 0x0f, 0xf0};
    uint32_t weights = 1, block = 1;
    (void)mdl_type_block(p->type, &weights, &block);
    *size_out = n / weights * block;
    uint8_t *bytes = malloc(*size_out);
    for (uint8_t *b = bytes; b < bytes + *size_out; b += block) {
        uint32_t what = (uint32_t)kvs_rng_below(r, 12);
        for (uint32_t i = 0; i < block; i++) {
            b[i] = (uint8_t)kvs_rng_next(r);
        }
        if (what == 0) {
            memset(b, fills[kvs_rng_below(r, sizeof fills)], block);
        }
        for (uint32_t i = 0; i < p->halves; i++) {
            put_half(r, b + p->at[i]);
        }
        if (what == 1 && p->halves > 0) {
            memset(b + p->at[kvs_rng_below(r, p->halves)], 0, 2);
        }
        if (p->type == MDL_MXFP4) {
            b[0] = (uint8_t)(what == 1 ? kvs_rng_below(r, 4) : 105 + kvs_rng_below(r, 30));
        }
    }
    return bytes;
}

uint8_t *ops_weight_bytes(struct kvs_rng *r, mdl_type type, uint32_t rows, uint32_t cols, size_t *size_out)
{
    if (parts_of(type) != NULL) {
        return parts_bytes(r, parts_of(type), (size_t)rows * cols, size_out);
    }
    size_t n = (size_t)rows * cols, size = type == MDL_F32 ? 4 * n : 2 * n;
    uint32_t block = type == MDL_Q8_0 ? 34 : type == MDL_Q4_0 ? 18 : 20;
    if (eng_ops_quantized(type)) {
        size = n / ENG_BLOCK * block;
    }
    uint8_t *bytes = malloc(size);
    *size_out = size;
    if (type == MDL_F32) {
        ops_fill(r, (float *)(void *)bytes, n, KIND_WIDE);
        return bytes;
    }
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)kvs_rng_next(r);
    }
    for (size_t i = 0; i < n && type == MDL_F16; i++) {
        put_half(r, bytes + 2 * i);
    }
    for (size_t i = 0; i < n && type == MDL_BF16; i++) {
        bytes[2 * i + 1] = (uint8_t)((bytes[2 * i + 1] & 0x80) | (0x37 + kvs_rng_below(r, 9)));
    }
    for (size_t b = 0; eng_ops_quantized(type) && b < n / ENG_BLOCK; b++) {
        put_half(r, bytes + b * block);
        if (type == MDL_Q4_1) {
            put_half(r, bytes + b * block + 2);
        }
    }
    return bytes;
}

struct eng_weight ops_pack(const struct eng_ops *ops, mdl_type type, uint32_t rows, uint32_t cols, const uint8_t *src)
{
    struct eng_weight w = {
        .type = type, .rows = rows, .cols = cols, .rows_padded = (rows + ENG_STRIP - 1) / ENG_STRIP * ENG_STRIP};
    w.bytes = ops->packed_bytes(type, rows, cols);
    w.data = eng_alloc(w.bytes);
    ops->pack(&w, src);
    return w;
}

void ops_product(const struct eng_ops *ops, const struct eng_weight *w, const float *x, size_t x_stride, uint32_t n,
                 float *y)
{
    uint32_t blocks = w->cols / ENG_BLOCK + 1;
    int16_t *q = calloc((size_t)n * w->cols + 1, sizeof *q);
    float *dx = calloc((size_t)n * blocks, sizeof *dx), *sx = calloc((size_t)n * blocks, sizeof *sx);
    int32_t *sum = calloc((size_t)n * blocks, sizeof *sum);
    struct eng_scratch *s = ops_scratch(8, 8);
    blocks = w->cols / ENG_BLOCK;
    for (uint32_t i = 0; i < n && eng_ops_quantized(w->type); i++) {
        (void)ops->quantize(x + i * x_stride, w->cols, q + (size_t)i * w->cols, dx + i * blocks, sx + i * blocks,
                            sum + i * blocks);
    }
    struct eng_acts a = {.x = x, .x_stride = x_stride, .q = q, .dx = dx, .sx = sx, .sum = sum};
    for (uint32_t strip = 0; strip < w->rows_padded / ENG_STRIP; strip++) {
        ops->matmul(w, strip, &a, n, y + strip * ENG_STRIP, w->rows_padded, s);
    }
    ops_scratch_free(s);
    free(q);
    free(dx);
    free(sx);
    free(sum);
}

struct eng_scratch *ops_scratch(uint32_t key_dim, uint32_t value_dim)
{
    struct eng_scratch *s = calloc(1, sizeof *s);
    uint32_t ks = (key_dim + 15) / 16 * 16, vs = (value_dim + 15) / 16 * 16, n = ENG_ATTN_ROWS;
    s->key_stride = ks;
    s->value_stride = vs;
    s->m = eng_alloc(4 * n);
    s->l = eng_alloc(4 * n);
    s->lanes = eng_alloc(64 * n);
    s->q = eng_alloc(4 * n * ks);
    s->o = eng_alloc(4 * n * vs);
    s->prob = eng_alloc(4 * 8 * ENG_TILE);
    s->k_tile = eng_alloc(4 * ks * ENG_TILE);
    s->v_tile = eng_alloc(4 * vs * ENG_TILE);
    s->sum_m = eng_alloc(4 * n);
    s->sum_l = eng_alloc(4 * n);
    s->sum_o = eng_alloc(4 * n * vs);
    s->strip = eng_alloc(ENG_STRIP_SCRATCH);
    return s;
}

void ops_scratch_free(struct eng_scratch *s)
{
    void *owned[] = {s->m,      s->l,      s->lanes, s->q,     s->o,     s->prob,
                     s->k_tile, s->v_tile, s->sum_m, s->sum_l, s->sum_o, s->strip};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        free(owned[i]);
    }
    free(s);
}

static void write_keys(const struct eng_ops *ops, const struct eng_kv_view *kv, const struct attn_case *c,
                       struct kvs_rng *r)
{
    float k[ENG_HEAD_DIM_MAX], v[ENG_HEAD_DIM_MAX];
    for (uint32_t p = 0; p <= c->last; p++) {
        ops_fill(r, k, c->key_dim, c->values);
        if (c->latent || c->shared) {
            memcpy(v, k, c->value_dim * sizeof *v);
        } else {
            ops_fill(r, v, c->value_dim, c->values);
        }
        ops->kv_write(kv, p, k, v);
    }
}

/* Positions of the rows: `heads` rows each, rising to `last`, inside one tile. */
static void set_rows(const struct attn_case *c, struct eng_attn_rows *rows, float *q, struct kvs_rng *r)
{
    ops_fill(r, q, (size_t)c->count * c->key_dim, KIND_PLAIN);
    rows->count = c->count;
    rows->scale = 1.0f / sqrtf((float)c->key_dim);
    rows->cap = c->cap;
    rows->window = c->window;
    uint32_t tile = c->last / ENG_TILE * ENG_TILE;
    for (uint32_t i = 0; i < c->count; i++) {
        uint32_t back = (c->count - 1 - i) / c->heads;
        rows->q[i] = q + (size_t)i * c->key_dim;
        rows->pos[i] = c->last - tile >= back ? c->last - back : tile;
    }
}

void ops_attention(const struct eng_ops *ops, const struct attn_case *c, float *out, uint8_t **pages_out,
                   size_t *pages_bytes_out)
{
    struct kvs_rng r = {.state = c->seed};
    uint32_t blocks = c->last / c->block_tokens + 1, shift = 0;
    uint32_t value_dim = c->latent ? 0 : c->value_dim;
    size_t page_bytes = (size_t)c->block_tokens * (c->key_dim + value_dim) * kvc_element_bytes(c->type);
    size_t key_scales = (page_bytes + 1) / 2 * 2,
           value_scales = key_scales + 2 * c->block_tokens * ((c->key_dim + 31) / 32);
    if (c->type == KVC_Q8_0) {
        page_bytes = value_scales + 2 * c->block_tokens * ((value_dim + 31) / 32);
    }
    uint8_t *pages = calloc(blocks, page_bytes); /* exactly as long as needed: a sanitizer sees a step beyond */
    uint32_t *table = calloc(blocks, sizeof *table);
    while (1u << shift < c->block_tokens) {
        shift++;
    }
    for (uint32_t b = 0; b < blocks; b++) {
        table[b] = blocks - 1 - b;
    }
    struct eng_kv_view kv = {.base = pages,
                             .page_bytes = page_bytes,
                             .page = table,
                             .block_tokens = c->block_tokens,
                             .block_shift = shift,
                             .key_dim = c->key_dim,
                             .value_dim = c->value_dim,
                             .type = c->type,
                             .value_offset = (uint64_t)c->block_tokens * c->key_dim,
                             .key_scale_offset = key_scales,
                             .value_scale_offset = value_scales,
                             .latent = c->latent};
    float *q = calloc((size_t)c->count * c->key_dim, sizeof *q);
    struct eng_attn_rows rows;
    struct eng_scratch *s = ops_scratch(c->key_dim, c->value_dim);
    write_keys(ops, &kv, c, &r);
    set_rows(c, &rows, q, &r);
    for (uint32_t b = 0; b < eng_first_key(rows.pos[0], c->window) / c->block_tokens; b++) {
        table[b] = KVC_BLOCK_NONE; /* to be read by nobody */
    }
    for (uint32_t i = 0; i < c->count; i++) {
        s->sum_m[i] = -INFINITY;
    }
    for (uint32_t first = 0; first <= c->last; first += ENG_SEGMENT) {
        ops->attend(&kv, first, &rows, s);
        for (uint32_t i = 0; i < c->count; i++) {
            size_t at = (size_t)i * s->value_stride;
            ops->merge(&s->sum_m[i], &s->sum_l[i], s->sum_o + at, s->m[i], s->l[i], s->o + at, c->value_dim);
        }
    }
    for (uint32_t i = 0; i < c->count; i++) {
        ops->finish(out + (size_t)i * c->value_dim, s->sum_o + (size_t)i * s->value_stride, s->sum_l[i], c->value_dim);
    }
    ops_scratch_free(s);
    free(q);
    free(table);
    if (pages_out != NULL) {
        *pages_out = pages;
        *pages_bytes_out = page_bytes * blocks;
    } else {
        free(pages);
    }
}
