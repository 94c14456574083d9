/* moe.c - mixture of experts: a router chooses a few experts for each row, which is then the weighted sum of theirs.
 *
 * The rows of a step are dealt into lists by expert (gathered, so that each expert's weights are read once for all of its
 * rows), go through gate, up, activation and down there, and are summed row by row: the chosen experts in the order of
 * their rank, then the shared expert. Which rows share a list changes no sum.
 *
 *   h -> router -> [choose] -> [deal] -> gate up of each list -> [activate] -> down of each list -> [sum] -> y
 *
 * Rank: greater value first, the lower expert first among equals. With groups, only experts of the groups whose two best
 * values have the greatest sum can be chosen.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/block/block.h"
#include "engine/ops/scalar.h"
#include <string.h>

#define WEIGHT_SUM_MIN 6.103515625e-5f /* 2^-14 */

bool eng_moe_quantized(const struct eng_layer *l)
{
    return eng_any_quantized((const struct eng_weight *const[]){&l->router, l->gate_experts, l->up_experts}, 3) ||
           (l->shared_gate.data != NULL &&
            eng_any_quantized((const struct eng_weight *const[]){&l->shared_gate, &l->shared_up}, 2)) ||
           (l->shared_router.data != NULL && eng_ops_quantized(l->shared_router.type));
}

/* --- choice --- */

/* Values become probabilities in place. */
static void softmax(float *v, uint32_t n)
{
    float top = v[0], sum = 0.0f;
    for (uint32_t i = 1; i < n; i++) {
        top = v[i] > top ? v[i] : top;
    }
    for (uint32_t i = 0; i < n; i++) {
        v[i] = eng_exp(v[i] - top);
        sum = sum + v[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        v[i] = v[i] / sum;
    }
}

/* The best of those that are not taken yet; -infinity marks the taken. */
static uint32_t best(const float *v, uint32_t n)
{
    uint32_t b = 0;
    for (uint32_t i = 1; i < n; i++) {
        b = v[i] > v[b] ? i : b;
    }
    return b;
}

static float two_best(const float *v, uint32_t n)
{
    float a = v[0], b = -INFINITY;
    for (uint32_t i = 1; i < n; i++) {
        if (v[i] > a) {
            b = a;
            a = v[i];
        } else if (v[i] > b) {
            b = v[i];
        }
    }
    return n > 1 ? a + b : a;
}

/* Leaves the experts of the best groups only; group: scratch of groups floats. */
static void keep_groups(const struct mdl_card *c, float *choice, float *group)
{
    uint32_t groups = c->experts.groups, each = c->experts.count / groups;
    for (uint32_t g = 0; g < groups; g++) {
        group[g] = two_best(choice + (size_t)g * each, each);
    }
    for (uint32_t i = 0; i < c->experts.groups_used; i++) {
        group[best(group, groups)] = -INFINITY;
    }
    uint32_t kept = 0;
    for (uint32_t g = 0; g < groups; g++) {
        bool keep = group[g] == -INFINITY && kept < c->experts.groups_used;
        kept += keep;
        for (uint32_t i = 0; !keep && i < each; i++) {
            choice[(size_t)g * each + i] = -INFINITY;
        }
    }
}

/* Experts and weights of one row from its router values; choice: scratch of two times count floats. */
static void choose(const struct mdl_card *c, const struct eng_layer *l, float *value, float *choice, uint32_t *expert,
                   float *weight)
{
    uint32_t n = c->experts.count, used = c->experts.used;
    if (c->experts.gating == MDL_GATE_SOFTMAX) {
        softmax(value, n);
    } else if (c->experts.gating == MDL_GATE_SIGMOID) {
        for (uint32_t i = 0; i < n; i++) {
            value[i] = 1.0f / (1.0f + eng_exp(-value[i]));
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        choice[i] = l->router_choice_bias != NULL ? value[i] + l->router_choice_bias[i] : value[i];
    }
    if (c->experts.groups > 1) {
        keep_groups(c, choice, choice + n);
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < used; i++) {
        expert[i] = best(choice, n);
        choice[expert[i]] = -INFINITY;
        weight[i] = value[expert[i]];
        sum = sum + weight[i];
    }
    if (c->experts.gating == MDL_GATE_SOFTMAX_CHOSEN) {
        softmax(weight, used);
    } else if (c->experts.normalise) {
        sum = sum > WEIGHT_SUM_MIN ? sum : WEIGHT_SUM_MIN;
        for (uint32_t i = 0; i < used; i++) {
            weight[i] = weight[i] / sum;
        }
    }
    for (uint32_t i = 0; i < used; i++) {
        weight[i] = weight[i] * c->experts.scale;
    }
}

static void choose_rows(struct eng_run *r, const struct eng_layer *l)
{
    struct eng_moe *e = &r->c->moe;
    uint32_t n = r->card->experts.count, used = r->card->experts.used;
    ENG_OWN_ROWS (r, i) {
        float *value = eng_row_at(e->value, i, e->value_stride);
        if (l->router_bias != NULL) {
            r->ops->add(value, l->router_bias, n);
        }
        eng_row_bad(r->c, i, r->ops->below(value, n, INFINITY));
        choose(r->card, l, value, e->choice + (size_t)r->self->index * 2 * n, e->expert + (size_t)i * used,
               e->weight + (size_t)i * used);
    }
}

/* --- lists --- */

/* Where each row's experts find it: entries of the same expert lie side by side, rows ascending. Member 0 alone. */
static void deal(struct eng_run *r)
{
    struct eng_ctx *c = r->c;
    struct eng_moe *e = &c->moe;
    uint32_t n = r->card->experts.count, used = r->card->experts.used, at = 0;
    memset(e->first, 0, (n + 1) * sizeof *e->first);
    for (uint32_t i = 0; i < c->rows * used; i++) {
        e->first[e->expert[i] + 1]++;
    }
    e->active_count = 0;
    for (uint32_t x = 0; x < n; x++) {
        uint32_t count = e->first[x + 1];
        if (count > 0) {
            e->active[e->active_count++] = x;
        }
        e->next[x] = at;
        e->first[x] = at;
        at += count;
    }
    e->first[n] = at;
    for (uint32_t i = 0; i < c->rows * used; i++) {
        uint32_t entry = e->next[e->expert[i]]++;
        e->entry[i] = entry;
        e->row[entry] = i / used;
    }
}

static void gather(struct eng_run *r, bool plain, bool quantized)
{
    struct eng_ctx *c = r->c;
    struct eng_moe *e = &c->moe;
    uint32_t width = r->card->width, entries = c->rows * r->card->experts.used;
    size_t blocks = width / ENG_BLOCK;
    for (uint32_t i = r->first; i < entries; i += r->step) {
        size_t row = e->row[i];
        if (plain) {
            memcpy(e->x + (size_t)i * e->x_stride, eng_row_at(c->h, (uint32_t)row, c->y_stride), width * sizeof *e->x);
        }
        if (quantized) {
            memcpy(e->q + (size_t)i * width, c->act_q + row * width, width * sizeof *e->q);
            memcpy(e->dx + i * blocks, c->act_dx + row * blocks, blocks * sizeof *e->dx);
            memcpy(e->sx + i * blocks, c->act_sx + row * blocks, blocks * sizeof *e->sx);
            memcpy(e->sum + i * blocks, c->act_sum + row * blocks, blocks * sizeof *e->sum);
        }
    }
}

/* Products of every list with its own expert's matrix of one or two kinds that read the same input. */
struct list_product {
    const struct eng_weight *w; /* [experts] */
    float *y;
};
static void list_products(struct eng_run *r, const struct list_product *p, uint32_t count, uint32_t y_stride,
                          const float *x, uint32_t x_stride)
{
    struct eng_moe *e = &r->c->moe;
    uint32_t strips = p[0].w->rows_padded / ENG_STRIP, per_list = strips * count;
    uint64_t tasks = (uint64_t)e->active_count * per_list;
    for (uint64_t t; (t = eng_team_ticket(r->self)) < tasks;) {
        uint32_t expert = e->active[t / per_list], which = (uint32_t)(t % per_list) / strips,
                 strip = (uint32_t)(t % per_list) % strips, first = e->first[expert];
        const struct eng_weight *w = &p[which].w[expert];
        size_t blocks = w->cols / ENG_BLOCK;
        struct eng_acts a = {.x = x + (size_t)first * x_stride,
                             .x_stride = x_stride,
                             .q = e->q + (size_t)first * w->cols,
                             .dx = e->dx + first * blocks,
                             .sx = e->sx + first * blocks,
                             .sum = e->sum + first * blocks};
        r->ops->matmul(w, strip, &a, e->first[expert + 1] - first,
                       p[which].y + (size_t)first * y_stride + strip * ENG_STRIP, y_stride, r->scratch);
    }
}

static void activate_lists(struct eng_run *r, const struct eng_layer *l)
{
    struct eng_ctx *c = r->c;
    struct eng_moe *e = &c->moe;
    uint32_t ff = r->card->experts.ff, used = r->card->experts.used, entries = c->rows * used;
    size_t blocks = ff / ENG_BLOCK;
    for (uint32_t i = r->first; i < entries; i += r->step) { /* i: in order of rows; lists know no expert of an entry */
        uint32_t at = e->entry[i], expert = e->expert[i];
        float *g = eng_row_at(e->g, at, e->g_stride), *u = eng_row_at(e->u, at, e->g_stride);
        if (l->gate_expert_bias != NULL) {
            r->ops->add(g, l->gate_expert_bias + (size_t)expert * ff, ff);
            r->ops->add(u, l->up_expert_bias + (size_t)expert * ff, ff);
        }
        eng_activate(r, g, u, ff);
        if (eng_ops_quantized(l->down_experts->type)) {
            eng_row_bad(c, i / used,
                        r->ops->quantize(g, ff, e->q + (size_t)at * ff, e->dx + at * blocks, e->sx + at * blocks,
                                         e->sum + at * blocks));
        }
    }
}

/* --- shared expert --- */

static void shared_in(struct eng_run *r, const struct eng_layer *l)
{
    struct eng_ctx *c = r->c;
    struct eng_product p[3] = {{&l->shared_gate, c->g, c->g_stride},
                               {&l->shared_up, c->u, c->g_stride},
                               {&l->shared_router, c->moe.shared, ENG_STRIP}};
    eng_products(r, p, l->shared_router.data != NULL ? 3 : 2, c->h, c->y_stride, c->rows);
}

static void shared_activate(struct eng_run *r, const struct eng_layer *l)
{
    struct eng_ctx *c = r->c;
    ENG_OWN_ROWS (r, i) {
        float *g = eng_row_at(c->g, i, c->g_stride);
        eng_activate(r, g, eng_row_at(c->u, i, c->g_stride), l->shared_down.cols);
        if (eng_ops_quantized(l->shared_down.type)) {
            eng_quantize_row(r, i, g, l->shared_down.cols);
        }
    }
}

/* --- the block --- */

/* y = sum of weight times expert by rank, then plus the shared expert, which is in y already. */
static void sum_rows(struct eng_run *r, const struct eng_layer *l)
{
    struct eng_ctx *c = r->c;
    struct eng_moe *e = &c->moe;
    uint32_t width = r->card->width, used = r->card->experts.used;
    ENG_OWN_ROWS (r, i) {
        float *y = eng_row_at(c->y, i, c->y_stride), *total = NULL;
        for (uint32_t k = 0; k < used; k++) {
            size_t pair = (size_t)i * used + k;
            float *part = eng_row_at(e->x, e->entry[pair], e->x_stride);
            if (l->down_expert_bias != NULL) {
                r->ops->add(part, l->down_expert_bias + (size_t)e->expert[pair] * width, width);
            }
            if (k == 0) {
                total = part;
                r->ops->scale(total, e->weight[pair], width);
            } else {
                r->ops->add_scaled(total, part, e->weight[pair], width);
            }
        }
        if (l->shared_down.data == NULL) {
            memcpy(y, total, width * sizeof *y);
            continue;
        }
        if (l->shared_router.data != NULL) {
            float g = e->shared[(size_t)i * ENG_STRIP];
            eng_row_bad(c, i, r->ops->below(&g, 1, INFINITY));
            r->ops->scale(y, 1.0f / (1.0f + eng_exp(-g)), width);
        }
        r->ops->add(y, total, width);
    }
}

void eng_block_moe(struct eng_run *r, uint32_t layer)
{
    struct eng_ctx *c = r->c;
    struct eng_moe *e = &c->moe;
    const struct eng_layer *l = &r->m->layer[layer];
    bool shared = l->shared_down.data != NULL;
    bool gate_q = eng_ops_quantized(l->gate_experts->type), up_q = eng_ops_quantized(l->up_experts->type);
    eng_products(r, &(struct eng_product){&l->router, e->value, e->value_stride}, 1, c->h, c->y_stride, c->rows);
    eng_team_barrier(r->self);
    choose_rows(r, l);
    eng_team_barrier(r->self);
    if (r->self->index == 0) {
        deal(r);
    }
    eng_team_barrier(r->self);
    gather(r, !gate_q || !up_q, gate_q || up_q);
    if (shared) {
        shared_in(r, l);
    }
    eng_team_barrier(r->self);
    list_products(r, (struct list_product[]){{l->gate_experts, e->g}, {l->up_experts, e->u}}, 2, e->g_stride, e->x,
                  e->x_stride);
    eng_team_barrier(r->self);
    activate_lists(r, l);
    if (shared) {
        shared_activate(r, l);
    }
    eng_team_barrier(r->self);
    if (shared) {
        eng_products(r, &(struct eng_product){&l->shared_down, c->y, c->y_stride}, 1, c->g, c->g_stride, c->rows);
        eng_team_barrier(r->self);
    }
    list_products(r, &(struct list_product){l->down_experts, e->x}, 1, e->x_stride, e->g, e->g_stride);
    eng_team_barrier(r->self);
    sum_rows(r, l);
    eng_team_barrier(r->self);
    r->pending = true;
    r->pending_norm = l->ffn_post_norm;
}
