/* ffn.c - the dense feed-forward block: gate and up from h, activation, down.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/arch/arch.h"
#include "engine/block/block.h"

bool eng_ffn_quantized(const struct eng_layer *l)
{
    return eng_any_quantized((const struct eng_weight *const[]){&l->gate, &l->up}, 2);
}

void eng_activate(const struct eng_run *r, float *g, const float *u, uint32_t n)
{
    switch (r->m->arch->activation) {
    case ENG_SILU: r->ops->silu_mul(g, u, n); break;
    case ENG_GELU: r->ops->gelu_mul(g, u, n); break;
    case ENG_CLAMPED_SWIGLU: r->ops->clamped_swiglu(g, u, n); break;
    }
}

void eng_block_ffn(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct eng_layer *l = &r->m->layer[layer];
    eng_products(r, (struct eng_product[]){{&l->gate, c->g, c->g_stride}, {&l->up, c->u, c->g_stride}}, 2, c->h,
                 c->y_stride, c->rows);
    eng_team_barrier(r->self);
    ENG_OWN_ROWS (r, i) {
        float *g = eng_row_at(c->g, i, c->g_stride);
        float *u = eng_row_at(c->u, i, c->g_stride);
        if (l->gate_bias != NULL) {
            r->ops->add(g, l->gate_bias, l->down.cols);
        }
        if (l->up_bias != NULL) {
            r->ops->add(u, l->up_bias, l->down.cols);
        }
        eng_activate(r, g, u, l->down.cols);
        if (eng_ops_quantized(l->down.type)) {
            eng_quantize_row(r, i, g, l->down.cols);
        }
    }
    eng_team_barrier(r->self);
    eng_products(r, &(struct eng_product){&l->down, c->y, c->y_stride}, 1, c->g, c->g_stride, c->rows);
    eng_team_barrier(r->self);
    r->pending = true;
    r->pending_bias = l->down_bias;
    r->pending_norm = l->ffn_post_norm;
}
