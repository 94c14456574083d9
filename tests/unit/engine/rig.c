/* rig.c - see rig.h. Pages of all sequences are dealt out in a scattered order, so that a table is really looked up.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/rig.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void need(kvs_status s, const struct kvs_error *err, const char *what)
{
    if (s != KVS_OK) {
        (void)fprintf(stderr, "%s: %s\n", what, err->text);
        abort();
    }
}

void rig_open(struct rig *r, const uint8_t *file, size_t size, const struct rig_options *o)
{
    struct kvs_error err = {0};
    memset(r, 0, sizeof *r);
    need(mdl_gguf_parse(file, size, false, &r->gguf, &err), &err, "parse");
    need(mdl_card_read(r->gguf, &r->card, &err), &err, "card");
    uint32_t context = o->context != 0 ? o->context : 512, block = o->block != 0 ? o->block : 64;
    struct eng_load_options lo = {.isa_name = o->isa, .context = context, .file_bytes = file, .file_size = size};
    need(eng_model_load(r->gguf, &r->card, &lo, &r->model, &r->fingerprint, &err), &err, "load");
    need(eng_kv_layout(&r->card, o->kv, block, o->group_layers, &r->layout, &err), &err, "layout");
    uint32_t blocks = (context + block - 1) / block, pages = blocks * RIG_SEQS, step = pages / 2 + 1;
    while (true) { /* a step without a common divisor visits every page */
        uint32_t a = pages, b = step;
        while (b != 0) {
            uint32_t t = a % b;
            a = b;
            b = t;
        }
        if (a == 1) {
            break;
        }
        step++;
    }
    for (uint32_t g = 0; g < r->layout.group_count; g++) {
        size_t bytes = (size_t)r->layout.group[g].page_bytes * pages;
        r->kv.base[g] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        memset(r->kv.base[g], 0, bytes);
        r->kv.pages[g] = pages;
    }
    r->blocks = blocks;
    r->pages = pages;
    r->step = step;
    for (uint32_t s = 0; s < RIG_SEQS; s++) {
        need(kvc_block_table_init(&r->table[s], r->layout.group_count, blocks), &err, "table");
        r->table[s].block_count = blocks;
        rig_table(r, s, 0);
    }
    struct eng_ctx_options co = {
        .threads = o->threads, .batch_tokens = o->batch_tokens != 0 ? o->batch_tokens : 512, .batch_seqs = RIG_SEQS};
    need(eng_ctx_create(r->model, &r->layout, &r->kv, &co, &r->ctx, &err), &err, "context");
}

void rig_table(struct rig *r, uint32_t seq, uint32_t pos)
{
    for (uint32_t g = 0; g < r->layout.group_count; g++) {
        const struct kvc_group *group = &r->layout.group[g];
        uint32_t gone = kvc_first_visible(&r->layout, group, pos);
        for (uint32_t b = 0; b < r->blocks; b++) { /* a state stays in one page, whichever block is the last */
            uint64_t n = seq * r->blocks + (group->kind == KVC_STATE ? 0 : b);
            kvc_block_row(&r->table[seq], g)[b] = b < gone ? KVC_BLOCK_NONE : (uint32_t)((n * r->step + g) % r->pages);
        }
    }
}

void rig_close(struct rig *r)
{
    eng_ctx_destroy(r->ctx);
    eng_model_destroy(r->model);
    mdl_gguf_destroy(r->gguf);
    for (uint32_t g = 0; g < r->layout.group_count; g++) {
        free(r->kv.base[g]);
    }
    for (uint32_t s = 0; s < RIG_SEQS; s++) {
        kvc_block_table_fini(&r->table[s]);
    }
    memset(r, 0, sizeof *r);
}

void rig_feed(struct rig *r, uint32_t seq, const int32_t *ids, uint32_t n, uint32_t pos, uint32_t chunk, bool all,
              float *logits)
{
    chunk = chunk == 0 ? n : chunk;
    for (uint32_t i = 0; i < n; i += chunk) {
        uint32_t m = n - i < chunk ? n - i : chunk;
        struct eng_part p = {.ids = ids + i, .count = m, .pos = pos + i, .table = &r->table[seq]};
        rig_table(r, seq, pos + i);
        p.logits_from = all ? 0 : i + m == n ? m - 1 : m;
        kvs_status s = eng_forward(r->ctx, &p, 1, all ? logits + (size_t)i * r->card.vocab : logits, NULL, NULL);
        if (s != KVS_OK || p.status != KVS_OK) {
            (void)fprintf(stderr, "forward: %s, %s\n", kvs_status_name(s), kvs_status_name(p.status));
            abort();
        }
    }
}

uint64_t rig_digest(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

static void read_tops(struct golden *g, json_t *line, bool exact)
{
    json_t *top = json_object_get(line, exact ? "top10_exact" : "top10");
    json_t *all = json_object_get(line, exact ? "logits0_exact" : "logits0");
    g->top_count = (uint32_t)(top != NULL ? json_array_size(top) : json_array_size(all));
    g->top_id = calloc(g->top_count + 1, sizeof *g->top_id);
    g->top_logit = calloc(g->top_count + 1, sizeof *g->top_logit);
    for (uint32_t i = 0; i < g->top_count; i++) {
        json_t *pair = json_array_get(top, i);
        g->top_id[i] = top != NULL ? (int32_t)json_integer_value(json_array_get(pair, 0)) : (int32_t)i;
        g->top_logit[i] = json_number_value(top != NULL ? json_array_get(pair, 1) : json_array_get(all, i));
    }
}

static void read_line(struct golden *g, json_t *line, bool exact)
{
    json_t *prompt = json_object_get(line, "prompt_ids"), *out = json_object_get(line, exact ? "out_exact" : "out");
    g->prompt = (uint32_t)json_array_size(prompt);
    g->out = (uint32_t)json_array_size(out);
    g->ids = calloc(g->prompt + g->out + 1, sizeof *g->ids);
    g->logit = calloc(g->out + 1, sizeof *g->logit);
    g->margin = calloc(g->out + 1, sizeof *g->margin);
    for (uint32_t i = 0; i < g->prompt; i++) {
        g->ids[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    }
    for (uint32_t i = 0; i < g->out; i++) {
        json_t *step = json_array_get(out, i);
        g->ids[g->prompt + i] = (int32_t)json_integer_value(json_array_get(step, 0));
        g->logit[i] = json_number_value(json_array_get(step, 1));
        g->margin[i] = json_number_value(json_array_get(step, 2));
    }
    read_tops(g, line, exact);
}

struct golden *golden_read(const char *path, bool exact, uint32_t *count_out)
{
    FILE *f = fopen(path, "r");
    struct golden *list = NULL;
    char *text = NULL;
    size_t cap = 0;
    *count_out = 0;
    if (f == NULL) {
        return NULL;
    }
    while (getline(&text, &cap, f) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        if (line == NULL) {
            (void)fprintf(stderr, "%s: bad JSON line\n", path);
            abort();
        }
        list = realloc(list, (*count_out + 1) * sizeof *list);
        memset(&list[*count_out], 0, sizeof *list);
        read_line(&list[(*count_out)++], line, exact);
        json_decref(line);
    }
    free(text);
    (void)fclose(f);
    return list;
}

void golden_free(struct golden *g, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free(g[i].ids);
        free(g[i].logit);
        free(g[i].margin);
        free(g[i].top_id);
        free(g[i].top_logit);
    }
    free(g);
}
