/* state.c - recurrent blocks: Mamba (a time step for every channel) and Mamba 2 (one for every head).
 *
 * Products see the rows of all sequences together. The convolution and the scan take one sequence's rows in order and
 * deal out channels: a task is a run of channels of one part of the batch. The state they carry lies in the page that the
 * part's block table names for its last token (kvcache/layout.h): the convolution's last inputs, then the scan's states.
 *
 *   Mamba     h -> in: x | z;  x -> conv -> x';  x' -> low: dt | B | C;  dt -> dt';  scan(x', dt', B, C) * silu(z) -> out
 *             (FalconMamba: dt, B and C normed before)
 *   Mamba 2   h -> in: z | x B C | dt;  x B C -> conv;  norm of groups(scan(x, dt, B, C) * silu(z)) -> out
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/block/block.h"
#include <math.h>
#include <string.h>

#define TASK_CHANNELS 64u

bool eng_state_quantized(const struct eng_layer *l)
{
    return eng_ops_quantized(l->state.in.type);
}

/* The layer's state of one part, f32. */
static float *state_of(const struct eng_run *r, uint32_t layer, const struct eng_span *part)
{
    const struct eng_ctx *c = r->c;
    struct kvc_place at = kvc_layer_place(&c->layout, layer, r->card->layer[layer] & MDL_LAYER_ATTENTION ? 1 : 0);
    const struct kvc_group *g = &c->layout.group[at.group];
    uint32_t end = c->row[part->row].pos + part->count;
    uint32_t page = kvc_block_row(c->row[part->row].table, at.group)[kvc_state_block(&c->layout, end)];
    return (float *)(void *)(c->kv.base[at.group] + page * g->page_bytes + kvc_head_offset(g, at.slot, 0));
}

/* Before the first token there is nothing: channels of `rows` rows of state are zero. */
static void begin(const struct eng_run *r, const struct eng_span *part, float *state, uint32_t rows, uint32_t channels,
                  uint32_t first, uint32_t count)
{
    for (uint32_t j = 0; r->c->row[part->row].pos == 0 && j < rows; j++) {
        memset(state + (size_t)j * channels + first, 0, count * sizeof *state);
    }
}

/* Task t of `parts` times `per_part` runs of `run` units, `units` in all. */
struct task {
    const struct eng_span *part;
    uint32_t first, count;
};
static bool next_task(struct eng_run *r, uint32_t units, uint32_t run, struct task *t)
{
    uint32_t per_part = (units + run - 1) / run, ticket = eng_team_ticket(r->self);
    if (ticket / per_part >= r->c->spans) {
        return false;
    }
    t->part = &r->c->span[ticket / per_part];
    t->first = ticket % per_part * run;
    t->count = units - t->first < run ? units - t->first : run;
    return true;
}

/* c->mid = conv of the in rows from column `from` on. */
static void convolve(struct eng_run *r, uint32_t layer, uint32_t from)
{
    struct eng_ctx *c = r->c;
    const struct eng_state_weights *w = &r->m->layer[layer].state;
    uint32_t channels = mdl_card_conv_channels(r->card), kernel = r->card->ssm.conv_kernel;
    for (struct task t; next_task(r, channels, TASK_CHANNELS, &t);) {
        struct eng_conv v = {.state = state_of(r, layer, t.part),
                             .weight = w->conv,
                             .bias = w->conv_bias,
                             .kernel = kernel,
                             .channels = channels,
                             .rows = t.part->count,
                             .x = eng_row_at(c->in, t.part->row, c->in_stride) + from,
                             .y = eng_row_at(c->mid, t.part->row, c->mid_stride),
                             .x_stride = c->in_stride,
                             .y_stride = c->mid_stride};
        begin(r, t.part, v.state, kernel - 1, channels, t.first, t.count);
        r->ops->conv1d(&v, t.first, t.count);
    }
    eng_team_barrier(r->self);
}

/* c->mid's x columns become y. dt, b and c of row 0 of the batch; softplus of dt happens here, unit by unit. */
static void scan(struct eng_run *r, uint32_t layer, float *dt, uint32_t dt_stride, const float *b, const float *cc,
                 uint32_t bc_stride)
{
    struct eng_ctx *c = r->c;
    const struct eng_state_weights *w = &r->m->layer[layer].state;
    uint32_t inner = r->card->ssm.inner, size = r->card->ssm.state_size, heads = r->card->ssm.heads;
    bool channels = r->card->ssm.per_channel;
    uint32_t dim = channels ? 1 : inner / heads, units = inner / dim;
    uint32_t run = dim >= TASK_CHANNELS ? 1 : TASK_CHANNELS / dim;
    for (struct task t; next_task(r, units, run, &t);) {
        size_t row = t.part->row;
        struct eng_scan s = {.state = state_of(r, layer, t.part) +
                                      (size_t)(r->card->ssm.conv_kernel - 1) * mdl_card_conv_channels(r->card),
                             .state_size = size,
                             .channels = inner,
                             .rows = t.part->count,
                             .head_dim = dim,
                             .heads_per_group = heads / r->card->ssm.groups,
                             .a = w->a,
                             .d = w->d,
                             .x = c->mid + row * c->mid_stride,
                             .dt = dt + row * dt_stride,
                             .b = b + row * bc_stride,
                             .c = cc + row * bc_stride,
                             .y = c->mid + row * c->mid_stride,
                             .x_stride = c->mid_stride,
                             .dt_stride = dt_stride,
                             .bc_stride = bc_stride,
                             .y_stride = c->mid_stride};
        for (uint32_t i = 0; i < t.part->count; i++) {
            r->ops->softplus(dt + (row + i) * dt_stride + t.first, w->dt_bias + t.first, t.count);
        }
        begin(r, t.part, s.state, size, inner, t.first * dim, t.count * dim);
        (channels ? r->ops->scan : r->ops->scan_heads)(&s, t.first, t.count);
    }
    eng_team_barrier(r->self);
}

/* in rows from column z on: silu(z) * y, normed by group where the layer has that, then the output product. */
static void finish(struct eng_run *r, uint32_t layer, uint32_t z)
{
    struct eng_ctx *c = r->c;
    const struct eng_state_weights *w = &r->m->layer[layer].state;
    uint32_t inner = r->card->ssm.inner, width = inner / r->card->ssm.groups;
    ENG_OWN_ROWS (r, i) {
        float *g = eng_row_at(c->in, i, c->in_stride) + z;
        r->ops->silu_mul(g, eng_row_at(c->mid, i, c->mid_stride), inner);
        for (uint32_t at = 0; w->norm != NULL && at < inner; at += width) {
            eng_row_bad(c, i, r->ops->norm(g + at, w->norm + at, width, r->card->norm_eps, g + at));
        }
        eng_row_bad(c, i, r->ops->below(g, inner, INFINITY));
        if (eng_ops_quantized(w->out.type)) {
            eng_quantize_row(r, i, g, inner);
        }
    }
    eng_team_barrier(r->self);
    eng_products(r, &(struct eng_product){&w->out, c->y, c->y_stride}, 1, c->in + z, c->in_stride, c->rows);
    eng_team_barrier(r->self);
}

/* One product of rows that no other product reads, with 16-bit blocks made first where it wants them. */
static void project(struct eng_run *r, const struct eng_weight *w, const float *x, uint32_t x_stride, float *y,
                    uint32_t y_stride)
{
    if (eng_ops_quantized(w->type)) {
        ENG_OWN_ROWS (r, i) {
            eng_quantize_row(r, i, x + (size_t)i * x_stride, w->cols);
        }
        eng_team_barrier(r->self);
    }
    eng_products(r, &(struct eng_product){w, y, y_stride}, 1, x, x_stride, r->c->rows);
    eng_team_barrier(r->self);
}

/* The time step's low form, B and C, each by itself. */
static void norm_steps(struct eng_run *r, uint32_t rank, uint32_t size)
{
    struct eng_ctx *c = r->c;
    ENG_OWN_ROWS (r, i) {
        float *low = eng_row_at(c->low, i, c->low_stride);
        float *const part[3] = {low, low + rank, low + rank + size};
        for (int p = 0; p < 3; p++) {
            eng_row_bad(c, i, r->ops->norm(part[p], NULL, p == 0 ? rank : size, r->card->norm_eps, part[p]));
        }
    }
    eng_team_barrier(r->self);
}

static void mamba(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    const struct eng_state_weights *w = &r->m->layer[layer].state;
    uint32_t rank = r->card->ssm.heads, size = r->card->ssm.state_size;
    convolve(r, layer, 0);
    project(r, &w->x, c->mid, c->mid_stride, c->low, c->low_stride);
    if (r->card->ssm.normed_steps) {
        norm_steps(r, rank, size);
    }
    project(r, &w->dt, c->low, c->low_stride, c->dt, c->dt_stride);
    scan(r, layer, c->dt, c->dt_stride, c->low + rank, c->low + rank + size, c->low_stride);
    finish(r, layer, r->card->ssm.inner);
}

static void mamba2(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    uint32_t inner = r->card->ssm.inner, bc = r->card->ssm.groups * r->card->ssm.state_size;
    convolve(r, layer, inner);
    scan(r, layer, c->in + inner + mdl_card_conv_channels(r->card), c->in_stride, c->mid + inner, c->mid + inner + bc,
         c->mid_stride);
    finish(r, layer, 0);
}

void eng_block_state(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    eng_products(r, &(struct eng_product){&r->m->layer[layer].state.in, c->in, c->in_stride}, 1, c->h, c->y_stride,
                 c->rows);
    eng_team_barrier(r->self);
    if (r->card->ssm.per_channel) {
        mamba(r, layer);
    } else {
        mamba2(r, layer);
    }
    r->pending = true;
}
