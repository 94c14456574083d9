/* rows.c - what is between the large blocks: embedding, products, norms with the pending addition, output, and the walk
 * over the layers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"
#include "engine/block/block.h"
#include <math.h>
#include <string.h>

bool eng_any_quantized(const struct eng_weight *const *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (eng_ops_quantized(w[i]->type)) {
            return true;
        }
    }
    return false;
}

void eng_quantize_row(struct eng_run *r, uint32_t row, const float *x, uint32_t n)
{
    struct eng_ctx *c = r->c;
    size_t blocks = n / ENG_BLOCK;
    eng_row_bad(c, row,
                r->ops->quantize(x, n, c->act_q + (size_t)row * n, c->act_dx + row * blocks, c->act_sx + row * blocks,
                                 c->act_sum + row * blocks));
}

void eng_products(struct eng_run *r, const struct eng_product *p, uint32_t count, const float *x, uint32_t x_stride,
                  uint32_t rows)
{
    struct eng_ctx *c = r->c;
    struct eng_acts a = {
        .x = x, .x_stride = x_stride, .q = c->act_q, .dx = c->act_dx, .sx = c->act_sx, .sum = c->act_sum};
    uint32_t strips = 0, run = rows < ENG_SPLIT_ROWS ? 4 : 1; /* few rows: strips are quick, take several at a time */
    for (uint32_t i = 0; i < count; i++) {
        strips += p[i].w->rows_padded / ENG_STRIP;
    }
    for (;;) {
        uint64_t s = (uint64_t)eng_team_ticket(r->self) * run;
        if (s >= strips) {
            return;
        }
        for (uint64_t end = s + run; s < end && s < strips; s++) {
            uint32_t strip = (uint32_t)s;
            const struct eng_product *q = p;
            while (strip >= q->w->rows_padded / ENG_STRIP) {
                strip -= q->w->rows_padded / ENG_STRIP;
                q++;
            }
            r->ops->matmul(q->w, strip, &a, rows, q->y + strip * ENG_STRIP, q->y_stride, r->scratch);
        }
    }
}

void eng_block_embed(struct eng_run *r)
{
    float scale = r->card->scale.embedding;
    ENG_OWN_ROWS (r, i) {
        float *x = eng_row_at(r->c->x, i, r->c->y_stride);
        r->ops->row(&r->m->embed, (uint32_t)r->c->row[i].id, x);
        if (scale != 1.0f) {
            r->ops->scale(x, scale, r->card->width);
        }
    }
    r->pending = false;
}

/* x of one row is whole after this. */
static void settle(struct eng_run *r, uint32_t row)
{
    if (r->pending) {
        float *x = eng_row_at(r->c->x, row, r->c->y_stride), *y = eng_row_at(r->c->y, row, r->c->y_stride);
        uint32_t width = r->card->width;
        if (r->pending_bias != NULL) {
            r->ops->add(y, r->pending_bias, width);
        }
        if (r->pending_norm != NULL) {
            eng_row_bad(r->c, row, r->ops->norm(y, r->pending_norm, width, r->card->norm_eps, y));
        }
        if (r->card->scale.residual != 1.0f) {
            r->ops->scale(y, r->card->scale.residual, width);
        }
        r->ops->add(x, y, width);
    }
}

void eng_block_norm(struct eng_run *r, const float *weight, bool quantize)
{
    struct eng_ctx *c = r->c;
    uint32_t width = r->card->width;
    ENG_OWN_ROWS (r, i) {
        float *h = eng_row_at(c->h, i, c->y_stride);
        settle(r, i);
        if (weight != NULL) {
            eng_row_bad(c, i, r->ops->norm(eng_row_at(c->x, i, c->y_stride), weight, width, r->card->norm_eps, h));
        }
        if (quantize) {
            eng_quantize_row(r, i, h, width);
        }
    }
    r->pending = false;
    r->pending_bias = r->pending_norm = NULL;
    eng_team_barrier(r->self);
}

void eng_block_requantize(struct eng_run *r)
{
    ENG_OWN_ROWS (r, i) {
        eng_quantize_row(r, i, eng_row_at(r->c->h, i, r->c->y_stride), r->card->width);
    }
    eng_team_barrier(r->self);
}

void eng_layer_feed_forward(struct eng_run *r, uint32_t layer)
{
    const struct eng_layer *l = &r->m->layer[layer];
    if (l->router.data != NULL) {
        eng_block_norm(r, l->ffn_norm, eng_moe_quantized(l));
        eng_block_moe(r, layer);
    } else {
        eng_block_norm(r, l->ffn_norm, eng_ffn_quantized(l));
        eng_block_ffn(r, layer);
    }
}

void eng_layer_transformer(struct eng_run *r, uint32_t layer)
{
    const struct eng_layer *l = &r->m->layer[layer];
    eng_block_norm(r, l->attn_norm, eng_attention_quantized(l));
    eng_block_attention(r, layer);
    eng_layer_feed_forward(r, layer);
}

void eng_layer_state(struct eng_run *r, uint32_t layer)
{
    const struct eng_layer *l = &r->m->layer[layer];
    eng_block_norm(r, l->attn_norm, eng_state_quantized(l));
    eng_block_state(r, layer);
}

/* --- output --- */

/* Strip s of the logits; the last one may have no room in the caller's rows and goes through a side buffer. */
static void head_strip(struct eng_run *r, uint32_t s)
{
    struct eng_ctx *c = r->c;
    const struct eng_weight *w = r->m->head;
    struct eng_acts a = {
        .x = c->h, .x_stride = c->y_stride, .q = c->act_q, .dx = c->act_dx, .sx = c->act_sx, .sum = c->act_sum};
    uint32_t first = s * ENG_STRIP, valid = w->rows - first < ENG_STRIP ? w->rows - first : ENG_STRIP;
    float *y = c->logits + first;
    size_t stride = w->rows;
    if (valid < ENG_STRIP) {
        y = c->head_tail;
        stride = ENG_STRIP;
    }
    r->ops->matmul(w, s, &a, c->logit_rows, y, stride, r->scratch);
    for (uint32_t i = 0; i < c->logit_rows; i++) {
        float *to = c->logits + (size_t)i * w->rows + first;
        if (valid < ENG_STRIP) {
            memcpy(to, y + i * stride, valid * sizeof *to);
        }
        if (r->card->scale.logit != 1.0f) {
            r->ops->scale(to, 1.0f / r->card->scale.logit, valid);
        }
        eng_row_bad(c, c->logit_row[i], r->ops->below(to, valid, INFINITY));
        if (r->card->scale.softcap != 0.0f) {
            r->ops->softcap(to, r->card->scale.softcap, valid);
        }
    }
}

void eng_block_head(struct eng_run *r)
{
    struct eng_ctx *c = r->c;
    const struct eng_weight *w = r->m->head;
    uint32_t width = r->card->width;
    for (uint32_t i = r->first; i < c->logit_rows; i += r->step) {
        uint32_t row = c->logit_row[i];
        float *h = eng_row_at(c->h, i, c->y_stride);
        settle(r, row);
        eng_row_bad(c, row,
                    r->ops->norm(eng_row_at(c->x, row, c->y_stride), r->m->output_norm, width, r->card->norm_eps, h));
        if (eng_ops_quantized(w->type)) {
            size_t blocks = width / ENG_BLOCK;
            eng_row_bad(c, row,
                        r->ops->quantize(h, width, c->act_q + (size_t)i * width, c->act_dx + i * blocks,
                                         c->act_sx + i * blocks, c->act_sum + i * blocks));
        }
    }
    eng_team_barrier(r->self);
    uint32_t strips = w->rows_padded / ENG_STRIP, run = 8;
    for (uint64_t s; (s = (uint64_t)eng_team_ticket(r->self) * run) < strips;) {
        for (uint64_t end = s + run; s < end && s < strips; s++) {
            head_strip(r, (uint32_t)s);
        }
    }
}

void eng_forward_member(struct eng_ctx *c, struct eng_member *self)
{
    struct eng_run r = {.c = c,
                        .self = self,
                        .ops = c->m->ops,
                        .m = c->m,
                        .card = &c->m->card,
                        .first = self->index,
                        .step = eng_team_threads(self->team),
                        .scratch = &c->scratch[self->index]};
    eng_block_embed(&r);
    for (uint32_t l = 0; l < r.card->layers; l++) {
        c->m->arch->layer(&r, l);
        if (self->index == 0 && c->layer_done != NULL && c->layer_done(c->user, l)) {
            c->stop = true;
        }
        if (c->layer_done != NULL) {
            eng_team_barrier(self); /* all see the same answer */
            if (c->stop) {
                return;
            }
        }
    }
    if (c->logit_rows != 0) {
        eng_block_head(&r);
    }
}
