/* attention.c - reference attention over paged KV, one query row at a time, one key at a time.
 * Each key and value is fetched by its absolute position through the block table, so nothing here knows how blocks and
 * tiles relate; the tile and segment boundaries of the contract are applied to positions alone.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/ref/ref.h"
#include "engine/ops/q8.h"
#include "engine/ops/scalar.h"

/* The f16 scale of a code, times the code. */
static float scaled(const uint8_t *p, uint64_t scale_offset, uint64_t scale_index, uint64_t code_offset)
{
    uint16_t h;
    memcpy(&h, p + scale_offset + 2 * scale_index, 2);
    return eng_f16_to_f32(h) * (float)(int8_t)p[code_offset];
}

static float element(const uint8_t *p, kvc_type type, uint64_t index)
{
    if (type == KVC_F16) {
        uint16_t h;
        memcpy(&h, p + 2 * index, 2);
        return eng_f16_to_f32(h);
    }
    float f;
    memcpy(&f, p + 4 * index, 4);
    return f;
}

static void element_set(uint8_t *p, kvc_type type, uint64_t index, float v)
{
    if (type == KVC_F16) {
        uint16_t h = eng_f16_from_f32(v);
        memcpy(p + 2 * index, &h, 2);
    } else {
        memcpy(p + 4 * index, &v, 4);
    }
}

static uint64_t key_index(const struct eng_kv_view *kv, uint32_t pos, uint32_t dim)
{
    return kv->latent ? (uint64_t)(pos % kv->block_tokens) * kv->key_dim + dim
                      : (uint64_t)dim * kv->block_tokens + pos % kv->block_tokens;
}

static uint64_t value_index(const struct eng_kv_view *kv, uint32_t pos, uint32_t dim)
{
    return kv->latent
               ? key_index(kv, pos, dim)
               : (uint64_t)kv->block_tokens * kv->key_dim + (uint64_t)(pos % kv->block_tokens) * kv->value_dim + dim;
}

static float key_at(const struct eng_kv_view *kv, const uint8_t *p, uint32_t pos, uint32_t dim)
{
    uint64_t t = pos % kv->block_tokens, group = dim / KVC_SCALE_DIMS;
    if (kv->type != KVC_Q8_0) {
        return element(p, kv->type, key_index(kv, pos, dim));
    }
    return scaled(p, kv->key_scale_offset,
                  kv->latent ? t * eng_q8_scales(kv->key_dim) + group : group * kv->block_tokens + t,
                  key_index(kv, pos, dim));
}

static float value_at(const struct eng_kv_view *kv, const uint8_t *p, uint32_t pos, uint32_t dim)
{
    uint64_t t = pos % kv->block_tokens;
    if (kv->type != KVC_Q8_0) {
        return element(p, kv->type, value_index(kv, pos, dim));
    }
    if (kv->latent) {
        return key_at(kv, p, pos, dim);
    }
    return scaled(p, kv->value_scale_offset, t * eng_q8_scales(kv->value_dim) + dim / KVC_SCALE_DIMS,
                  kv->value_offset + t * kv->value_dim + dim);
}

void eng_ref_kv_write(const struct eng_kv_view *kv, uint32_t pos, const float *k, const float *v)
{
    uint8_t *p = eng_kv_page(kv, pos / kv->block_tokens);
    if (kv->type == KVC_Q8_0) {
        eng_q8_write(kv, pos, k, v);
        return;
    }
    for (uint32_t d = 0; d < kv->key_dim; d++) {
        element_set(p, kv->type, key_index(kv, pos, d), k[d]);
    }
    for (uint32_t d = 0; !kv->latent && d < kv->value_dim; d++) {
        element_set(p, kv->type, value_index(kv, pos, d), v[d]);
    }
}

/* One tile of one row: keys t0 + first .. t0 + n - 1, n <= 64. */
static void tile(const struct eng_kv_view *kv, uint32_t t0, uint32_t first, uint32_t n, const float *q,
                 const struct eng_attn_rows *r, float *m_io, float lanes[16], float *o)
{
    float score[ENG_TILE], tile_max = -INFINITY;
    for (uint32_t j = first; j < n; j++) {
        const uint8_t *p = eng_kv_page(kv, (t0 + j) / kv->block_tokens);
        float acc = 0.0f;
        for (uint32_t d = 0; d < kv->key_dim; d++) {
            acc = fmaf(key_at(kv, p, t0 + j, d), q[d], acc);
        }
        score[j] = acc * r->scale;
        if (r->cap != 0.0f) {
            score[j] = eng_softcap(score[j], r->cap);
        }
        tile_max = score[j] > tile_max ? score[j] : tile_max;
    }
    float m = tile_max > *m_io ? tile_max : *m_io, c = eng_exp(*m_io - m);
    *m_io = m;
    for (uint32_t j = 0; j < 16; j++) {
        lanes[j] = lanes[j] * c;
    }
    for (uint32_t d = 0; d < kv->value_dim; d++) {
        o[d] = o[d] * c;
    }
    for (uint32_t j = first; j < n; j++) {
        const uint8_t *p = eng_kv_page(kv, (t0 + j) / kv->block_tokens);
        float e = eng_exp(score[j] - m);
        lanes[j & 15u] = lanes[j & 15u] + e;
        for (uint32_t d = 0; d < kv->value_dim; d++) {
            o[d] = fmaf(e, value_at(kv, p, t0 + j, d), o[d]);
        }
    }
}

void eng_ref_attend(const struct eng_kv_view *kv, uint32_t first_key, const struct eng_attn_rows *r,
                    struct eng_scratch *s)
{
    for (uint32_t i = 0; i < r->count; i++) {
        float lanes[16] = {0}, *o = s->o + (size_t)i * s->value_stride;
        memset(o, 0, kv->value_dim * sizeof *o);
        s->m[i] = -INFINITY;
        for (uint32_t t0 = first_key; t0 < first_key + ENG_SEGMENT && t0 <= r->pos[i]; t0 += ENG_TILE) {
            uint32_t n = r->pos[i] + 1 - t0, from = eng_first_key(r->pos[i], r->window);
            if (from < t0 + ENG_TILE) {
                tile(kv, t0, from > t0 ? from - t0 : 0, n < ENG_TILE ? n : ENG_TILE, r->q[i], r, &s->m[i], lanes, o);
            }
        }
        s->l[i] = eng_fold16(lanes);
    }
}

void eng_ref_merge(float *m_io, float *l_io, float *o_io, float m, float l, const float *o, uint32_t n)
{
    float top = m > *m_io ? m : *m_io, a = eng_exp(*m_io - top), b = eng_exp(m - top);
    *m_io = top;
    *l_io = fmaf(l, b, *l_io * a);
    for (uint32_t d = 0; d < n; d++) {
        o_io[d] = fmaf(o[d], b, o_io[d] * a);
    }
}

void eng_ref_finish(float *out, const float *o, float l, uint32_t n)
{
    float inverse = 1.0f / l;
    for (uint32_t d = 0; d < n; d++) {
        out[d] = o[d] * inverse;
    }
}
