/* device.c - KV memory and the device: what a step reads, writes and answers.
 * A cell is 8 bytes a token and layer: K and V of one f32 dim each, where the layout puts them (K: [dim][token], then V: [token][dim]).
 * When the last layer of a group is done, the step's entries read everything before them in that group and write their own tokens. What
 * is read is compared with what must stand there, so KV that is wrong, stale or missing is told at the step that would have used it. Cells
 * behind the tokens must be zero: kernels multiply masked positions with what they find.
 * A page that somebody else reads (a send) or may write (a grant) must be left alone: the counts of both are looked at before each change.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/oracle.h"
#include "sim/worker.h"

#include <stdlib.h>
#include <string.h>

uint8_t *sim_page(const struct sim_worker *w, uint32_t group, uint32_t page)
{
    KVS_ASSERT(group < w->layout.group_count && page < w->s->set.pages);
    return w->slab[group] + (size_t)page * w->layout.group[group].page_bytes;
}

bool sim_page_of(const struct sim_worker *w, const void *address, struct wrk_page *out)
{
    const uint8_t *p = address;
    for (uint32_t g = 0; g < w->layout.group_count; g++) {
        uint64_t bytes = w->layout.group[g].page_bytes;
        if (p >= w->slab[g] && p < w->slab[g] + w->s->set.pages * bytes) {
            *out = (struct wrk_page){.group = g, .page = (uint32_t)((uint64_t)(p - w->slab[g]) / bytes)};
            return true;
        }
    }
    return false;
}

static uint8_t *cell_at(const struct sim_worker *w, const struct kvc_block_table *t, uint32_t group, uint32_t layer, uint32_t position)
{
    const struct kvc_group *g = &w->layout.group[group];
    uint32_t page = kvc_block_row(t, group)[position / w->layout.block_tokens];
    return sim_page(w, group, page) + kvc_head_offset(g, kvc_layer_place(&w->layout, layer, 0).slot, 0) + position % w->layout.block_tokens * (size_t)4;
}

static uint64_t cell_get(const struct sim_worker *w, const uint8_t *k)
{
    uint32_t half[2];
    memcpy(&half[0], k, 4);
    memcpy(&half[1], k + w->layout.block_tokens * (size_t)4, 4);
    return (uint64_t)half[1] << 32 | half[0];
}

static void cell_put(const struct sim_worker *w, uint8_t *k, uint64_t cell)
{
    uint32_t half[2] = {(uint32_t)cell, (uint32_t)(cell >> 32)};
    memcpy(k, &half[0], 4);
    memcpy(k + w->layout.block_tokens * (size_t)4, &half[1], 4);
}

void sim_device_create(struct sim_worker *w)
{
    const struct sim_settings *c = &w->s->set;
    struct kvc_layout_config lc = {.layers = c->layers, .kv_heads = 1, .key_dim = 1, .value_dim = 1, .kv_type = KVC_F32,
                                   .block_tokens = c->block_tokens, .group_layers = c->group_layers};
    struct kvs_error err = {0};
    kvs_status st = kvc_layout_build(&lc, &w->layout, &err);
    KVS_ASSERT(st == KVS_OK);
    for (uint32_t g = 0; g < w->layout.group_count; g++) {
        KVS_ASSERT(w->layout.group[g].head_bytes == (uint64_t)c->block_tokens * 8);
        w->slab[g] = malloc(c->pages * w->layout.group[g].page_bytes);
        w->reads[g] = calloc(c->pages, sizeof *w->reads[g]);
        w->recvs[g] = calloc(c->pages, sizeof *w->recvs[g]);
        KVS_ASSERT(w->slab[g] != NULL && w->reads[g] != NULL && w->recvs[g] != NULL);
        memset(w->slab[g], 0xa5, c->pages * w->layout.group[g].page_bytes); /* what was there before is nobody's zero */
    }
    w->row = calloc(c->prefill_calls, sizeof *w->row);
    KVS_ASSERT(w->row != NULL);
    for (uint32_t i = 0; i < c->prefill_calls; i++) {
        w->row[i].bytes = calloc(1, sim_logits_bytes(w));
        KVS_ASSERT(w->row[i].bytes != NULL);
    }
    w->result = calloc(c->batch, sizeof *w->result);
    w->read = calloc(c->batch, sizeof *w->read);
    KVS_ASSERT(w->result != NULL && w->read != NULL);
}

void sim_device_free(struct sim_worker *w)
{
    for (uint32_t g = 0; g < w->layout.group_count; g++) {
        free(w->slab[g]);
        free(w->reads[g]);
        free(w->recvs[g]);
    }
    for (uint32_t i = 0; w->row != NULL && i < w->s->scenario->settings.prefill_calls; i++)
        free(w->row[i].bytes);
    free(w->row);
    free(w->result);
    free(w->read);
}

void sim_device_zero(struct sim_worker *w, uint32_t group, uint32_t page)
{
    sim_about_page(w->s, w->node, group, page);
    sim_note(w->s, w->node, "page %g is zeroed", SIM_PAGE(group, page));
    if (w->reads[group][page] != 0)
        sim_fail(w->s, "%s zeroes page %u of group %u while a send reads it", w->s->node[w->node].id, page, group);
    if (w->recvs[group][page] != 0)
        sim_fail(w->s, "%s zeroes page %u of group %u while a peer may write it", w->s->node[w->node].id, page, group);
    memset(sim_page(w, group, page), 0, w->layout.group[group].page_bytes);
}

void sim_device_copy(struct sim_worker *w, const struct wrk_copy *copy)
{
    const char *id = w->s->node[w->node].id;
    if (copy->tokens == 0 || copy->tokens > w->layout.block_tokens || copy->from == copy->to)
        sim_fail(w->s, "%s copies %u tokens from page %u to page %u", id, copy->tokens, copy->from, copy->to);
    if (w->recvs[copy->group][copy->from] != 0 || w->recvs[copy->group][copy->to] != 0 || w->reads[copy->group][copy->to] != 0)
        sim_fail(w->s, "%s copies a head from page %u to page %u of group %u, and a transfer still has one of them", id, copy->from, copy->to,
                 copy->group);
    sim_count(w->s, SIM_N_copies, 1);
    sim_note(w->s, w->node, "page %g gets the first %u tokens of page %g", SIM_PAGE(copy->group, copy->to), copy->tokens, SIM_PAGE(copy->group, copy->from));
    kvc_page_copy_head(&w->layout, copy->group, sim_page(w, copy->group, copy->from), sim_page(w, copy->group, copy->to), copy->tokens);
}

/* --- a step --- */

/* One layer of one entry: read everything before it, write its own tokens; `history` runs over the sequence's tokens. */
static void compute_layer(struct sim_worker *w, const struct wrk_step_entry *e, uint32_t group, uint32_t layer)
{
    struct wrk_seq_view v = wrk_seq_look(w->sched, e->seq);
    uint64_t h = SIM_HISTORY_0;
    uint32_t end = e->pos + e->count, whole = kvc_blocks_for(&w->layout, end) * w->layout.block_tokens;
    if (v.state == WRK_SEQ_GONE || e->table != v.table || end > v.token_count || kvc_blocks_for(&w->layout, end) > e->table->block_count) {
        sim_fail(w->s, "%s: the step in flight points to a sequence that has changed", w->s->node[w->node].id);
        return;
    }
    for (uint32_t p = 0; p < whole; p++) {
        uint8_t *at = cell_at(w, e->table, group, layer, p);
        uint64_t cell = cell_get(w, at);
        if (p < v.token_count)
            h = sim_history(h, v.tokens[p], p);
        uint64_t due = sim_cell(h, layer);
        if (p >= e->pos && p < end) {
            if (v.tokens[p] != e->ids[p - e->pos])
                sim_fail(w->s, "%s: a step's token ids are not the sequence's", w->s->node[w->node].id);
            cell_put(w, at, due);
        } else if (p < e->pos ? cell != due : cell != 0 && (p >= v.token_count || cell != due)) {
            sim_about_page(w->s, w->node, group, kvc_block_row(e->table, group)[p / w->layout.block_tokens]);
            sim_fail(w->s, "%s reads wrong KV: sequence %u (computed %u of %u), position %u, layer %u: %llx instead of %llx",
                     w->s->node[w->node].id, e->seq, e->pos, v.token_count, p, layer, (unsigned long long)cell,
                     p < e->pos ? (unsigned long long)due : 0);
            return;
        }
    }
}

static void compute_group(struct sim_worker *w, uint32_t group)
{
    const struct kvc_group *g = &w->layout.group[group];
    for (uint32_t i = 0; i < w->step->entry_count; i++) {
        const struct wrk_step_entry *e = &w->step->entries[i];
        for (uint32_t b = e->pos / w->layout.block_tokens; b < kvc_blocks_for(&w->layout, e->pos + e->count); b++) {
            uint32_t page = kvc_block_row(e->table, group)[b];
            sim_about_page(w->s, w->node, group, page);
            if (w->reads[group][page] != 0 || w->recvs[group][page] != 0)
                sim_fail(w->s, "%s computes into page %u of group %u that a transfer still has", w->s->node[w->node].id, page, group);
        }
        for (uint32_t l = g->first_layer; l <= g->last_layer; l++) {
            if (kvc_layer_place(&w->layout, l, 0).group != group)
                continue;
            compute_layer(w, e, group, l);
            w->read[i] = sim_read_cell(w->read[i], cell_get(w, cell_at(w, e->table, group, l, e->pos + e->count - 1)));
        }
    }
}

/* A row of logits from which any sampler gets the same: its first 8 bytes say what was read, the rest follows from them. */
static void make_row(const struct sim_worker *w, uint64_t read, uint8_t *row)
{
    for (uint64_t i = 0; i + 8 <= sim_logits_bytes(w); i += 8) {
        uint64_t word = i == 0 ? read : sim_mix(read, i);
        memcpy(row + i, &word, 8);
    }
}

kvs_status sim_device_sample(struct sim_worker *w, const uint8_t *row, const struct msg_sampling *sampling, uint32_t choice, uint32_t position,
                             struct wrk_result *out)
{
    uint64_t read, word;
    memcpy(&read, row, 8);
    for (uint64_t i = 8; i + 8 <= sim_logits_bytes(w); i += 8) {
        memcpy(&word, row + i, 8);
        if (word != sim_mix(read, i))
            sim_fail(w->s, "%s samples from logits that are not those of one row", w->s->node[w->node].id);
    }
    *out = (struct wrk_result){.token = sim_pick(read, sampling, choice, position, w->s->set.vocab)};
    return KVS_OK;
}

static void finish_entry(struct sim_worker *w, uint32_t i)
{
    const struct wrk_step_entry *e = &w->step->entries[i];
    struct wrk_result *r = &w->result[i];
    *r = (struct wrk_result){.status = KVS_OK, .token = -1};
    if (sim_chance(w->s, w->s->set.numeric)) {
        sim_fault(w->s, SIM_N_numerics);
        r->status = KVS_SELF_NUMERIC;
        return;
    }
    if (e->logits == WRK_LOGITS_SAMPLE)
        r->token = sim_pick(w->read[i], &e->sampling, e->choice, e->position, w->s->set.vocab);
    if (e->logits != WRK_LOGITS_SHIP)
        return;
    KVS_ASSERT(e->user < w->s->set.prefill_calls);
    if (w->row[e->user].readers != 0)
        sim_fail(w->s, "%s overwrites a logits row that a send still reads", w->s->node[w->node].id);
    make_row(w, w->read[i], w->row[e->user].bytes);
}

static void step_done(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    kvs_status st = (kvs_status)e->a;
    uint64_t id = w->step->id;
    if (st == KVS_OK)
        wrk_speed_add(&w->speed, w->step, (double)(s->now_us - w->step_begun_us) * 1e-6);
    sim_note(s, w->node, "step %u done: %s", id, st);
    w->step = NULL;
    if (!wrk_sched_step_done(w->sched, id, st, w->result))
        sim_fail(s, "%s: the scheduler does not know the step that the device finished", s->node[w->node].id);
    uint32_t times = sim_chance(s, s->set.doubled) ? 2 : 1;
    if (times == 2)
        sim_fault(s, SIM_N_doubled_events);
    while (times-- > 0) {
        sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_STEP_DONE});
        sim_sink_feed(w, &(struct dcw_event){.kind = DCW_EV_STEP_DONE});
    }
    sim_worker_turn(w);
}

static void layer(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    uint32_t layers = w->layout.layer_count, group = kvc_layer_place(&w->layout, w->layers_done, 0).group;
    if (w->stop_step) {
        sim_count(s, SIM_N_stopped_steps, 1);
        sim_worker_post(w, sim_in(s, 1, 100), step_done, 0, KVS_REQ_CANCELLED, 0, NULL);
        return;
    }
    w->layers_done++;
    if (w->layers_done == w->layout.group[group].last_layer + 1)
        compute_group(w, group);
    if (sim_chance(s, 700)) { /* the loop may see several layers at once */
        sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_LAYER, .layer = {.step = w->step->id, .layers = w->layers_done}});
        sim_worker_turn(w);
    }
    if (w->layers_done < layers) {
        uint64_t us = s->set.step_us + (uint64_t)s->set.token_us * w->step->token_count;
        sim_worker_post(w, s->now_us + us / layers + 1, layer, 0, 0, 0, NULL);
        return;
    }
    for (uint32_t i = 0; i < w->step->entry_count; i++)
        finish_entry(w, i);
    sim_worker_post(w, sim_in(s, 1, 100), step_done, 0, KVS_OK, 0, NULL);
}

void sim_device_submit(struct sim_worker *w, const struct wrk_step *step)
{
    KVS_ASSERT(w->step == NULL);
    w->step = step;
    w->layers_done = 0;
    w->step_begun_us = w->s->now_us;
    w->stop_step = false;
    for (uint32_t i = 0; i < step->entry_count; i++)
        w->read[i] = sim_read_begin();
    sim_count(w->s, SIM_N_steps, 1);
    sim_note(w->s, w->node, "step %u: %u entries, %u tokens", step->id, step->entry_count, step->token_count);
    uint64_t us = w->s->set.step_us + (uint64_t)w->s->set.token_us * step->token_count;
    sim_worker_post(w, w->s->now_us + us / w->layout.layer_count + 1, layer, 0, 0, 0, NULL);
}
