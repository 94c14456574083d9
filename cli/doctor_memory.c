/* doctor_memory.c - `kvasir doctor`: what a worker of a model makes resident at most, from the file's header alone.
 *
 *   base       the program, its libraries (UCX among them), stacks, queues and buffers; measured once, the same for all models
 *   weights    packed; by the engine's own loading code, told to count                                 rotation, scratch: likewise
 *   loading    the most until all is packed: weights so far and the next tensor as the file has it. Over before a page of KV is touched
 *   KV pages   of each group: what a prompt of so many tokens and its answer hold, and what of it stays cached meanwhile
 *   books      of pools, prefix tree, tokens; rows: logits
 * The peak is base + header + the larger of loading and (weights + rotation + scratch + KV + books + rows). It holds for one prompt at a time:
 * later ones fill the pools up to --kv-memory with what they leave in the cache, which is said beside it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/doctor.h"
#include "engine/engine.h"
#include "proto/msg.h"
#include "sys/thread.h"
#include "worker/core/memory.h"

#include <stdio.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define BASE (26 * MIB)         /* measured: docs/MODELS.md */
#define THREAD_BASE (MIB / 4)   /* a stack and an arena */
#define DEFAULT_KV_MAX (2048 * MIB)

struct plan {
    struct kvc_layout layout;
    struct wrk_memory_config config;
    struct wrk_memory kv;
    struct eng_memory engine;
    uint64_t base, header, loading, peak, filled;
};

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static kvs_status make_plan(const struct cli_doctor_memory *c, const struct mdl_gguf *g, const struct mdl_card *card, struct plan *p,
                            struct kvs_error *err)
{
    uint32_t context = c->context ? c->context : card->context_length;
    context = context < MSG_TOKENS_MAX ? context : MSG_TOKENS_MAX;
    uint32_t prompt = c->prompt ? c->prompt : context, rest = prompt < context ? context - prompt : 0;
    /* as `kvasir up` shares the machine out */
    uint64_t share = kvs_memory_available() / (c->workers > 2 ? 2 * (uint64_t)c->workers : 4), memory = share < DEFAULT_KV_MAX ? share : DEFAULT_KV_MAX;
    uint32_t each = kvs_cpu_count() / c->workers, threads = c->threads ? c->threads : each > 0 ? each : 1;
    struct eng_load_options load = {.context = context};
    struct eng_ctx_options step = {
        .threads = threads, .batch_tokens = c->chunk_tokens + c->sequences, .batch_seqs = c->sequences};
    kvs_status st = eng_kv_layout(card, (kvc_type)c->kv_type, c->block_tokens, c->group_layers, &p->layout, err);
    p->config = (struct wrk_memory_config){.sizes = {.layout = &p->layout,
                                                     .memory = c->kv_memory ? c->kv_memory : memory,
                                                     .context = context,
                                                     .chunk_tokens = c->chunk_tokens,
                                                     .snapshot_blocks = c->snapshot_blocks,
                                                     .sequences = c->sequences},
                                           .prompt_tokens = prompt,
                                           .answer_tokens = rest < c->reserve_tokens ? rest : c->reserve_tokens,
                                           .vocab = card->vocab,
                                           .prefix_cache = c->prefix_cache};
    if (st == KVS_OK)
        st = eng_memory_predict(g, card, &load, &p->layout, &step, &p->engine, err);
    if (st == KVS_OK)
        st = wrk_memory_predict(&p->config, &p->kv, err);
    if (st != KVS_OK)
        return st;
    p->base = BASE + threads * THREAD_BASE;
    p->header = 2 * mdl_gguf_header_bytes(g);
    p->loading = p->engine.loading + mdl_gguf_header_bytes(g); /* and its mapping */
    uint64_t always = p->base + p->header;
    uint64_t serving = p->engine.weights + p->engine.tables + p->engine.scratch + p->kv.books + p->kv.rows;
    p->peak = always + larger(p->loading, serving + p->kv.kv_bytes);
    p->filled = always + larger(p->loading, serving + p->kv.all_kv_bytes);
    return KVS_OK;
}

static void part(const char *name, uint64_t bytes, const char *note)
{
    printf("         %-10s %12.3f MB   %s\n", name, (double)bytes / 1e6, note);
}

static void print_parts(const struct plan *p)
{
    char text[200];
    part("base", p->base, "program, libraries, threads, buffers of streams and transfers");
    part("weights", p->engine.weights, "packed");
    part("rotation", p->engine.tables, "of every position of the context");
    part("header", p->header, "of the file, for routers; and what its tables leave behind");
    part("loading", p->loading, "at most, until all is packed: not beside the rest, but before it");
    (void)kvs_format(text, sizeof text, "of a step: chunks of %u tokens, %u sequences", p->config.sizes.chunk_tokens, p->config.sizes.sequences);
    part("scratch", p->engine.scratch, text);
    for (uint32_t g = 0; g < p->layout.group_count; g++) {
        const struct kvc_group *k = &p->layout.group[g];
        char name[24];
        (void)kvs_format(name, sizeof name, "KV %u", g);
        (void)kvs_format(text, sizeof text, "%s%s, layers %u to %u: %u pages held, %u touched, of %u", kvc_kind_name(k->kind),
                         k->kind == KVC_STATE ? " and snapshots" : "", k->first_layer, k->last_layer, p->kv.held[g], p->kv.pages[g],
                         p->kv.pools[g]);
        part(name, k->page_bytes * p->kv.pages[g], text);
    }
    part("KV", p->kv.kv_bytes, "all groups, in whole 2 MiB where the kernel gives such pages");
    part("books", p->kv.books, "pools, prefix tree, tokens of the prompt");
    part("rows", p->kv.rows, "logits");
    (void)kvs_format(text, sizeof text, "a worker, for a prompt of %u tokens; %.0f MB when later ones have filled --kv-memory", p->config.prompt_tokens,
                     (double)p->filled / 1e6);
    part("peak", p->peak, text);
}

/* An error when the prompt was asked about, a warning when it is only what the context allows. */
static void too_small(const struct cli_doctor_memory *c, const struct plan *p, const char *text)
{
    char remedy[200];
    (void)kvs_format(remedy, sizeof remedy, "give --kv-memory %lluM, a smaller --context, or --kv-type q8_0",
                     (unsigned long long)(wrk_memory_least(&p->config) / MIB));
    cli_doctor_say(c->prompt ? CLI_BAD : CLI_WARNING, "memory", text, remedy);
}

static void judge(const struct cli_doctor_memory *c, const struct plan *p)
{
    uint64_t free_bytes = kvs_memory_available();
    char text[240];
    (void)kvs_format(text, sizeof text, "%llu MB available, %u workers take at most %llu MB for a prompt of %u tokens",
                     (unsigned long long)(free_bytes / MIB), c->workers, (unsigned long long)(c->workers * p->peak / MIB),
                     p->config.prompt_tokens);
    if (!p->kv.fits) {
        (void)kvs_format(text, sizeof text, "a prompt of %u tokens does not fit into --kv-memory %lluM", p->config.prompt_tokens,
                         (unsigned long long)(p->config.sizes.memory / MIB));
        too_small(c, p, text);
        return;
    }
    if (c->workers * p->peak > free_bytes)
        cli_doctor_say(CLI_BAD, "memory", text, "free some, use a smaller model, --kv-type q8_0, or a smaller --context");
    else if (c->workers * p->filled > free_bytes)
        cli_doctor_say(CLI_WARNING, "memory", text, "more once the cache has filled --kv-memory: give a smaller one");
    else
        cli_doctor_say(CLI_GOOD, "memory", text, "");
}

void cli_doctor_memory(const struct cli_doctor_memory *c, const struct mdl_gguf *g, const struct mdl_card *card)
{
    struct kvs_error err = {0};
    static struct plan p; /* the layout is large */
    memset(&p, 0, sizeof p);
    kvs_status st = make_plan(c, g, card, &p, &err);
    if (st == KVS_SELF_CONFIG && p.engine.weights) { /* KV memory for not even a short one */
        too_small(c, &p, err.text);
        return;
    }
    if (st != KVS_OK) {
        cli_doctor_say(CLI_BAD, "memory", err.text, "");
        return;
    }
    print_parts(&p);
    judge(c, &p);
}
