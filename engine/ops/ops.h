/* ops.h - the op table: every step of a forward pass that touches numbers, over plain pointers and counts.
 *
 * One table per instruction set (ops/ref in plain C, ops/cpu with AVX2); all of them give the same bits (numerics.md),
 * so that choosing one is a matter of speed. The architecture files know this header only. A table owns the layout of
 * packed weights: `pack` makes it, `row` and `matmul` read it, nobody else looks inside.
 *
 * Shapes: activations are rows of f32. A product is cut into strips of 16 outputs; padding rows of a weight are zero.
 * Attention works on one KV head of one sequence, tiles of 64 keys counted from position 0, segments of 512 keys.
 * Functions that return bool say false when a NaN, an infinity or a value over the bound was met; that row's results
 * are void.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_OPS_OPS_H
#define KVS_ENGINE_OPS_OPS_H

#include "engine/ops/state.h"
#include "kvcache/layout.h"
#include "model/gguf.h"

#define ENG_STRIP 16u
#define ENG_TILE 64u
#define ENG_SEGMENT 512u
#define ENG_BLOCK 32u           /* activations that share one scale */
#define ENG_ATTN_ROWS 64u       /* most query rows of one attention task */
#define ENG_SCORE_LIMIT 0x1p56f /* |q| and |k| stay below, so that no score can overflow (key_dim <= 1024) */
#define ENG_Q8_LIMIT 8.0e6f     /* |k| and |v| in 8-bit pages stay below, so that their scale fits f16 */
#define ENG_HEAD_DIM_MAX 1024u

/* A matrix of `rows` outputs by `cols` inputs, packed. */
struct eng_weight {
    mdl_type type;
    uint32_t rows, cols, rows_padded; /* rows_padded: a multiple of ENG_STRIP */
    uint8_t *data;                    /* owned by the model, 64-byte aligned */
    uint64_t bytes;
};

/* Input rows of a product: f32 always, 16-bit blocks when some weight wants them (row stride cols and cols / 32). */
struct eng_acts {
    const float *x;
    size_t x_stride;
    const int16_t *q;
    const float *dx, *sx;
    const int32_t *sum;
};

/* Where the keys and values of one KV head of one layer of one sequence lie. */
struct eng_kv_view {
    uint8_t *base; /* pages of the group, at this head: page p begins at base + p * page_bytes */
    uint64_t page_bytes;
    const uint32_t *page;               /* block -> page */
    uint32_t block_tokens, block_shift; /* a power of two and its logarithm */
    uint32_t key_dim, value_dim;
    kvc_type type;
    uint64_t value_offset, key_scale_offset, value_scale_offset; /* Q8_0 only: as in kvc_group */
    bool latent; /* rows of key_dim elements, [token][key_dim]; the values are the first value_dim of them */
};

/* Query rows of one attention task: positions rise and lie in one tile. */
struct eng_attn_rows {
    const float *q[ENG_ATTN_ROWS];
    uint32_t pos[ENG_ATTN_ROWS];
    uint32_t count;
    float scale;
    float cap;       /* c: scores become c * tanh(score / c); 0: they stay */
    uint32_t window; /* keys that a row sees, its own included; 0: all. Blocks before all rows' windows are not read. */
};
static inline uint32_t eng_first_key(uint32_t pos, uint32_t window)
{
    return window != 0 && pos >= window ? pos + 1 - window : 0;
}

/* Scratch of one thread; `attend` leaves a segment's m, l (folded) and o of each row in it. Strides are key_stride and
 * value_stride. */
struct eng_scratch {
    float *m, *l;                 /* [ENG_ATTN_ROWS] */
    float *lanes;                 /* [ENG_ATTN_ROWS][16] */
    float *q, *o;                 /* [ENG_ATTN_ROWS][stride] */
    float *prob;                  /* [8][ENG_TILE] */
    float *k_tile, *v_tile;       /* [key_dim][ENG_TILE], [ENG_TILE][value_dim] */
    float *sum_m, *sum_l, *sum_o; /* merged state of the task, as m, l, o */
    uint32_t key_stride, value_stride;
    uint8_t *strip; /* ENG_STRIP_SCRATCH bytes, 64-byte aligned: a strip of weights unpacked */
};
#define ENG_STRIP_BLOCKS 64u /* blocks of k unpacked at a time */
#define ENG_STRIP_SCRATCH (ENG_STRIP_BLOCKS * (ENG_STRIP * ENG_BLOCK * 4u + ENG_STRIP * 8u))

struct eng_ops {
    const char *name;

    /* Weights. src: rows as the file has them. */
    uint64_t (*packed_bytes)(mdl_type type, uint32_t rows, uint32_t cols);
    void (*pack)(struct eng_weight *w, const uint8_t *src); /* w->data is zero-filled, w->bytes long */
    void (*row)(const struct eng_weight *w, uint32_t row, float *x_out);

    /* Rows. */
    bool (*norm)(const float *x, const float *weight, uint32_t n, float eps, float *y_out); /* weight NULL: all 1 */
    bool (*quantize)(const float *x, uint32_t n, int16_t *q_out, float *dx_out, float *sx_out, int32_t *sum_out);
    void (*add)(float *x, const float *y, uint32_t n);
    void (*scale)(float *x, float s, uint32_t n);
    void (*add_scaled)(float *y, const float *x, float s, uint32_t n); /* y = fma(s, x, y) */
    void (*silu_mul)(float *g, const float *u, uint32_t n);            /* g = silu(g) * u */
    void (*gelu_mul)(float *g, const float *u, uint32_t n);            /* GELU by its tanh form */
    void (*clamped_swiglu)(float *g, const float *u, uint32_t n);      /* numerics.md, "gates" */
    void (*softcap)(float *x, float cap, uint32_t n);                  /* x = cap * tanh(x / cap) */
    /* Rotated pairs are (2i, 2i + 1), or with neox (i, i + rope_dims / 2). */
    void (*rope)(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                 const float *sines);
    void (*rope_neox)(float *x, uint32_t heads, uint32_t head_dim, uint32_t rope_dims, const float *cosines,
                      const float *sines);
    bool (*below)(const float *x, uint32_t n, float limit); /* every |x| < limit */
    float (*sum_exp)(const float *x, uint32_t n, float max,
                     float divisor); /* sum of exp((x - max) / divisor), 16 lanes */

    void (*softplus)(float *x, const float *bias, uint32_t n); /* x = log(1 + exp(x + bias)) */

    /* Recurrences over the rows of one sequence (state.h): channels or heads first .. first + count - 1. */
    void (*conv1d)(const struct eng_conv *c, uint32_t first, uint32_t count);
    void (*scan)(const struct eng_scan *s, uint32_t first, uint32_t count);
    void (*scan_heads)(const struct eng_scan *s, uint32_t first, uint32_t count);

    /* y[row][0..15] = strip `strip` of w times input row; y_stride in floats. */
    void (*matmul)(const struct eng_weight *w, uint32_t strip, const struct eng_acts *a, uint32_t rows, float *y,
                   size_t y_stride, struct eng_scratch *s);

    /* Attention. k and v hold one head's values (latent: v is not looked at); attend: keys first_key .. min(first_key + 511, pos) of each row,
     * of those the ones in its window. */
    void (*kv_write)(const struct eng_kv_view *kv, uint32_t pos, const float *k, const float *v);
    void (*attend)(const struct eng_kv_view *kv, uint32_t first_key, const struct eng_attn_rows *r,
                   struct eng_scratch *s);
    void (*merge)(float *m_io, float *l_io, float *o_io, float m, float l, const float *o, uint32_t n);
    void (*finish)(float *out, const float *o, float l, uint32_t n); /* out = o * (1 / l) */
};

extern const struct eng_ops eng_ops_ref;
#if defined(ENG_HAVE_AVX2)
extern const struct eng_ops eng_ops_avx2;
#endif

bool eng_ops_type_known(mdl_type type);   /* weights that the tables can multiply with */
bool eng_ops_quantized(mdl_type type);    /* those that want 16-bit activations */
uint32_t eng_ops_multiple(mdl_type type); /* rows must be a multiple of it: 1, 32 or 256 */
const struct eng_ops *eng_ops_best(void); /* for this CPU; NULL: none but ref, which must be asked for */

static inline uint8_t *eng_kv_page(const struct eng_kv_view *kv, uint32_t block)
{
    return kv->base + (uint64_t)kv->page[block] * kv->page_bytes;
}

#endif
