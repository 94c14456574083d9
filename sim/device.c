/* device.c - KV memory and the device: what a step reads, writes and answers.
 * A cell is 8 bytes a token and cache: K and V of one f32 dim each, where the layout puts them (K: [dim][token], then V: [token][dim]).
 * When the last layer of a group is done, the step's entries read everything before them in that group (through a window: what it shows; a
 * state: the one page that has it) and write their own tokens. What is read is compared with what must stand there, so KV that is wrong, stale
 * or missing is told at the step that would have used it. Cells behind the tokens must be zero: kernels multiply masked positions with what
 * they find.
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

/* --- what the layers remember --- */

/* The caches of one layer: 0 full everywhere; 1 full and window by turns; 2 latent; 3 full and state by turns; 4 all four kinds, and layers
 * with two caches. */
static struct kvc_layer arrangement(const struct sim_settings *c, uint32_t layer)
{
    static const uint32_t kind_of[5][5] = {{KVC_FULL, KVC_FULL, KVC_FULL, KVC_FULL, KVC_FULL},
                                           {KVC_WINDOW, KVC_FULL, KVC_WINDOW, KVC_WINDOW, KVC_FULL},
                                           {KVC_LATENT, KVC_LATENT, KVC_LATENT, KVC_LATENT, KVC_LATENT},
                                           {KVC_STATE, KVC_FULL, KVC_STATE, KVC_STATE, KVC_FULL},
                                           {KVC_STATE, KVC_WINDOW, KVC_LATENT, KVC_FULL, KVC_STATE}};
    struct kvc_layer l = {.count = 1};
    for (uint32_t i = 0; i < 2; i++) {
        struct kvc_cache *x = &l.cache[i];
        x->kind = i == 0 ? (kvc_kind)kind_of[c->kinds % 5][layer % 5] : KVC_WINDOW;
        x->window = x->kind == KVC_WINDOW ? c->window : 0;
        x->kv_heads = x->kind == KVC_STATE ? 0 : 1;
        x->key_dim = x->kind == KVC_STATE ? 0 : x->kind == KVC_LATENT ? 2 : 1;
        x->value_dim = x->kind == KVC_FULL || x->kind == KVC_WINDOW ? 1 : 0;
        x->state_bytes = x->kind == KVC_STATE ? 8 : 0;
    }
    l.count += c->kinds == 4 && layer % 5 == 4; /* a state, and attention through a window */
    return l;
}

uint32_t sim_caches(const struct sim_settings *c)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < c->layers; l++)
        n += arrangement(c, l).count;
    return n;
}

/* Where 8 bytes stand for one token of one cache; a state: for all tokens so far. */
struct cell {
    uint8_t *at;
    size_t second; /* distance of the other half */
};

static struct cell cell_at(const struct sim_worker *w, const struct kvc_block_table *t, struct kvc_place place, uint32_t position)
{
    const struct kvc_group *g = &w->layout.group[place.group];
    uint32_t page = kvc_block_row(t, place.group)[position / w->layout.block_tokens], in = position % w->layout.block_tokens;
    uint8_t *base = sim_page(w, place.group, page) + kvc_head_offset(g, place.slot, 0);
    if (g->kind == KVC_STATE)
        return (struct cell){.at = base, .second = 4};
    if (g->kind == KVC_LATENT)
        return (struct cell){.at = base + in * (size_t)8, .second = 4};
    return (struct cell){.at = base + in * (size_t)4, .second = g->value_offset};
}

static uint64_t cell_get(struct cell c)
{
    uint32_t half[2];
    memcpy(&half[0], c.at, 4);
    memcpy(&half[1], c.at + c.second, 4);
    return (uint64_t)half[1] << 32 | half[0];
}

static void cell_put(struct cell c, uint64_t cell)
{
    uint32_t half[2] = {(uint32_t)cell, (uint32_t)(cell >> 32)};
    memcpy(c.at, &half[0], 4);
    memcpy(c.at + c.second, &half[1], 4);
}

static void build_layout(struct sim_worker *w)
{
    const struct sim_settings *c = &w->s->set;
    static struct kvc_layer layer[KVC_LAYERS_MAX];
    uint32_t cell = 0;
    KVS_ASSERT(c->layers <= KVC_LAYERS_MAX);
    for (uint32_t l = 0; l < c->layers; l++) {
        layer[l] = arrangement(c, l);
        w->first_cell[l] = cell;
        cell += layer[l].count;
    }
    struct kvc_layout_config lc = {.layers = c->layers, .layer = layer, .kv_type = KVC_F32, .block_tokens = c->block_tokens, .group_layers = c->group_layers};
    struct kvs_error err = {0};
    kvs_status st = kvc_layout_build(&lc, &w->layout, &err);
    KVS_ASSERT(st == KVS_OK);
}

void sim_device_create(struct sim_worker *w)
{
    const struct sim_settings *c = &w->s->set;
    build_layout(w);
    for (uint32_t g = 0; g < w->layout.group_count; g++) {
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

static void wrong(struct sim_worker *w, const struct wrk_step_entry *e, uint32_t group, uint32_t layer, uint32_t p, uint64_t found, uint64_t due)
{
    sim_about_page(w->s, w->node, group, kvc_block_row(e->table, group)[p / w->layout.block_tokens]);
    sim_fail(w->s, "%s reads wrong KV: sequence %u (computed %u), position %u, layer %u (%s): %llx instead of %llx", w->s->node[w->node].id, e->seq,
             e->pos, p, layer, kvc_kind_name(w->layout.group[group].kind), (unsigned long long)found, (unsigned long long)due);
}

static bool has_page(struct sim_worker *w, const struct wrk_step_entry *e, uint32_t group, uint32_t p)
{
    if (kvc_block_row(e->table, group)[p / w->layout.block_tokens] != KVC_BLOCK_NONE)
        return true;
    sim_fail(w->s, "%s: a step over [%u, %u) finds no page for position %u in group %u (%s)", w->s->node[w->node].id, e->pos, e->pos + e->count, p,
             group, kvc_kind_name(w->layout.group[group].kind));
    return false;
}

/* A recurrent state: found as it was after the tokens before, left as it is after the entry's. */
static uint64_t compute_state(struct sim_worker *w, const struct wrk_step_entry *e, struct kvc_place place, uint32_t layer, uint32_t cell,
                              const struct wrk_seq_view *v)
{
    uint64_t h = SIM_HISTORY_0, before = 0;
    uint32_t end = e->pos + e->count;
    for (uint32_t p = 0; p < end; p++) {
        before = p == e->pos ? h : before;
        h = sim_history(h, v->tokens[p], p);
    }
    if (!has_page(w, e, place.group, end - 1))
        return 0;
    struct cell c = cell_at(w, e->table, place, end - 1);
    uint64_t due = e->pos == 0 ? 0 : sim_cell(before, cell);
    if (cell_get(c) != due)
        wrong(w, e, place.group, layer, end - 1, cell_get(c), due);
    cell_put(c, sim_cell(h, cell));
    return sim_cell(h, cell);
}

/* Attention: read everything before it that can be seen, write the entry's own tokens; `h` runs over the sequence's tokens. Returns the newest
 * cell as it stands in memory. */
static uint64_t compute_attention(struct sim_worker *w, const struct wrk_step_entry *e, struct kvc_place place, uint32_t layer, uint32_t cell,
                                  const struct wrk_seq_view *v)
{
    const struct kvc_group *g = &w->layout.group[place.group];
    uint32_t end = e->pos + e->count, whole = kvc_blocks_for(&w->layout, end) * w->layout.block_tokens;
    uint32_t first = g->kind == KVC_WINDOW && e->pos + 1 > g->window ? e->pos + 1 - g->window : 0;
    uint64_t h = SIM_HISTORY_0;
    for (uint32_t p = 0; p < whole; p++) {
        if (p < v->token_count)
            h = sim_history(h, v->tokens[p], p);
        if (p < first)
            continue;
        if (!has_page(w, e, place.group, p))
            return 0;
        struct cell c = cell_at(w, e->table, place, p);
        uint64_t found = cell_get(c), due = sim_cell(h, cell);
        if (p >= e->pos && p < end) {
            cell_put(c, due);
        } else if (p < e->pos ? found != due : found != 0 && (p >= v->token_count || found != due)) {
            wrong(w, e, place.group, layer, p, found, p < e->pos ? due : 0);
            return 0;
        }
    }
    return cell_get(cell_at(w, e->table, place, end - 1));
}

static bool still_valid(struct sim_worker *w, const struct wrk_step_entry *e, const struct wrk_seq_view *v)
{
    uint32_t end = e->pos + e->count;
    bool same = v->state != WRK_SEQ_GONE && e->table == v->table && end <= v->token_count && kvc_blocks_for(&w->layout, end) <= e->table->block_count;
    for (uint32_t p = e->pos; same && p < end; p++)
        same = v->tokens[p] == e->ids[p - e->pos];
    if (!same)
        sim_fail(w->s, "%s: the step in flight points to a sequence that has changed", w->s->node[w->node].id);
    return same;
}

/* Pages that the entry writes must be nobody else's. */
static void check_own(struct sim_worker *w, const struct wrk_step_entry *e, uint32_t group)
{
    uint32_t end = kvc_blocks_for(&w->layout, e->pos + e->count), first = e->pos / w->layout.block_tokens;
    if (w->layout.group[group].kind == KVC_STATE)
        first = end - 1;
    for (uint32_t b = first; b < end; b++) {
        uint32_t page = kvc_block_row(e->table, group)[b];
        if (page == KVC_BLOCK_NONE)
            continue; /* compute says so */
        sim_about_page(w->s, w->node, group, page);
        if (w->reads[group][page] != 0 || w->recvs[group][page] != 0)
            sim_fail(w->s, "%s computes into page %u of group %u that a transfer still has", w->s->node[w->node].id, page, group);
    }
}

static void compute_group(struct sim_worker *w, uint32_t group)
{
    const struct kvc_group *g = &w->layout.group[group];
    for (uint32_t i = 0; i < w->step->entry_count && !w->s->failed; i++) {
        const struct wrk_step_entry *e = &w->step->entries[i];
        struct wrk_seq_view v = wrk_seq_look(w->sched, e->seq);
        check_own(w, e, group);
        if (!still_valid(w, e, &v))
            return;
        for (uint32_t l = g->first_layer; l <= g->last_layer && !w->s->failed; l++)
            for (uint32_t k = 0; k < KVC_LAYER_CACHES_MAX; k++) {
                struct kvc_place place = kvc_layer_place(&w->layout, l, k);
                if (place.group != group)
                    continue;
                uint64_t cell = g->kind == KVC_STATE ? compute_state(w, e, place, l, w->first_cell[l] + k, &v)
                                                     : compute_attention(w, e, place, l, w->first_cell[l] + k, &v);
                w->read[i] = sim_read_cell(w->read[i], cell);
            }
    }
}

/* Groups whose last layer this one is. */
static void compute_layer(struct sim_worker *w, uint32_t layer)
{
    for (uint32_t g = 0; g < w->layout.group_count; g++)
        if (w->layout.group[g].last_layer == layer)
            compute_group(w, g);
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

static uint64_t step_time(const struct sim_worker *w, const struct wrk_step *step)
{
    const struct sim_settings *c = &w->s->set;
    uint64_t us = c->step_us + (uint64_t)c->token_us * step->token_count;
    return w->s->node[w->node].slow_until_us > w->s->now_us ? us * c->slow_factor : us;
}

static void layer(struct sim *s, struct sim_event *e)
{
    struct sim_worker *w = s->node[e->node].worker;
    uint32_t layers = w->layout.layer_count;
    if (w->stop_step) {
        sim_count(s, SIM_N_stopped_steps, 1);
        sim_worker_post(w, sim_in(s, 1, 100), step_done, 0, KVS_REQ_CANCELLED, 0, NULL);
        return;
    }
    compute_layer(w, w->layers_done++);
    if (sim_chance(s, 700)) { /* the loop may see several layers at once */
        sim_source_feed(w, &(struct pfw_event){.kind = PFW_EV_LAYER, .layer = {.step = w->step->id, .layers = w->layers_done}});
        sim_worker_turn(w);
    }
    if (w->layers_done < layers) {
        uint64_t us = step_time(w, w->step);
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
    uint64_t us = step_time(w, step);
    sim_worker_post(w, w->s->now_us + us / w->layout.layer_count + 1, layer, 0, 0, 0, NULL);
}
