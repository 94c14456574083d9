/* engine_bench.c - prefill and decode speed of one model on this machine's engine, nothing else in the way.
 *
 *   engine_bench MODEL [--prompt N] [--decode N] [--chunk N] [--threads A,B,...] [--kv f32|f16|q8_0] [--isa NAME] [--repeat N] [--json]
 *
 *   engine_bench MODEL --depths A,B,... [--decode N] [--threads A,B,...] [--repeat N] [--json]
 *
 * For each thread count: the prompt in chunks, then single tokens behind it; the best of the repeats is printed, since other
 * work on the machine only ever makes a run slower. Ids are a fixed pattern: speed does not depend on them.
 * With --depths: single tokens at the end of so long a context, KV in f32, f16 and q8_0 beside each other; they take turns, so that a
 * busy minute hits all of them. The context is not computed: the pages of a short prompt are copied to all blocks.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"
#include "model/model.h"
#include "sys/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS_MAX 16u
#define KV_TYPES 3u
#define DEPTH_PROMPT 512u /* tokens whose pages fill a deep context */

struct options {
    const char *model, *isa;
    uint32_t prompt, decode, chunk, repeat;
    uint32_t threads[NUMBERS_MAX], thread_counts, depths[NUMBERS_MAX], depth_count;
    kvc_type kv;
    bool json;
};

/* KV memory of one type. */
struct cache {
    struct kvc_layout layout;
    struct eng_kv kv;
    struct kvc_block_table table;
};

struct bench {
    struct mdl_model file;
    struct mdl_card card;
    struct eng_model *model;
    struct cache cache[KV_TYPES]; /* by kvc_type */
    float *logits;
    int32_t *ids;
};

struct result {
    double prefill, decode; /* tokens a second */
};

static bool number(const char *text, uint32_t *out)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (end == text || *end != '\0' || v == 0 || v > 1000000) {
        return false;
    }
    *out = (uint32_t)v;
    return true;
}

static bool number_list(const char *text, unsigned long max, uint32_t out[NUMBERS_MAX], uint32_t *count_out)
{
    *count_out = 0;
    while (*text != '\0' && *count_out < NUMBERS_MAX) {
        char *end;
        unsigned long v = strtoul(text, &end, 10);
        if (end == text || v == 0 || v > max) {
            return false;
        }
        out[(*count_out)++] = (uint32_t)v;
        text = *end == ',' ? end + 1 : end;
    }
    return *count_out > 0 && *text == '\0';
}

static bool parse(int argc, char **argv, struct options *o)
{
    *o = (struct options){
        .prompt = 512, .decode = 64, .chunk = 128, .repeat = 3, .threads = {1, 2}, .thread_counts = 2, .kv = KVC_F16};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";
        bool ok = true;
        if (strcmp(a, "--json") == 0) {
            o->json = true;
            continue;
        }
        if (a[0] != '-') {
            o->model = a;
            continue;
        }
        i++;
        if (strcmp(a, "--prompt") == 0) {
            ok = number(v, &o->prompt);
        } else if (strcmp(a, "--decode") == 0) {
            ok = number(v, &o->decode);
        } else if (strcmp(a, "--chunk") == 0) {
            ok = number(v, &o->chunk);
        } else if (strcmp(a, "--repeat") == 0) {
            ok = number(v, &o->repeat);
        } else if (strcmp(a, "--threads") == 0) {
            ok = number_list(v, 256, o->threads, &o->thread_counts);
        } else if (strcmp(a, "--depths") == 0) {
            ok = number_list(v, 1000000, o->depths, &o->depth_count);
        } else if (strcmp(a, "--isa") == 0) {
            o->isa = v;
        } else if (strcmp(a, "--kv") == 0 &&
                   (strcmp(v, "f32") == 0 || strcmp(v, "f16") == 0 || strcmp(v, "q8_0") == 0)) {
            o->kv = v[0] == 'q' ? KVC_Q8_0 : strcmp(v, "f32") == 0 ? KVC_F32 : KVC_F16;
        } else {
            ok = false;
        }
        if (!ok) {
            return false;
        }
    }
    for (uint32_t i = 0; i < o->depth_count; i++) {
        if (o->depths[i] <= o->decode) {
            return false;
        }
    }
    return o->model != NULL;
}

/* Tokens of the longest context. */
static uint32_t context_of(const struct options *o)
{
    uint32_t most = o->depth_count == 0 ? o->prompt + o->decode : 0;
    for (uint32_t i = 0; i < o->depth_count; i++) {
        most = o->depths[i] > most ? o->depths[i] : most;
    }
    return most;
}

static kvs_status open_model(struct bench *b, const struct options *o, struct kvs_error *err)
{
    kvs_status s = mdl_model_open(o->model, &b->file, err);
    if (s == KVS_OK) {
        s = mdl_card_read(b->file.gguf, &b->card, err);
    }
    struct eng_load_options lo = {.isa_name = o->isa, .context = context_of(o)};
    if (s == KVS_OK) {
        s = eng_model_load(b->file.gguf, &b->card, &lo, &b->model, NULL, err);
    }
    if (s == KVS_OK) {
        b->logits = calloc(b->card.vocab, sizeof *b->logits);
        b->ids = calloc(context_of(o), sizeof *b->ids);
        if (b->logits == NULL || b->ids == NULL) {
            return kvs_fail(err, KVS_SELF_NOMEM, "no memory for tokens");
        }
        for (uint32_t i = 0; i < context_of(o); i++) {
            b->ids[i] = (int32_t)((i * 7919ull + 13) % b->card.vocab);
        }
    }
    return s;
}

static kvs_status open_cache(struct bench *b, const struct options *o, kvc_type type, struct kvs_error *err)
{
    struct cache *c = &b->cache[type];
    kvs_status s = eng_kv_layout(&b->card, type, 64, 0, &c->layout, err);
    if (s != KVS_OK) {
        return s;
    }
    uint32_t blocks = kvc_blocks_for(&c->layout, context_of(o));
    if (kvc_block_table_init(&c->table, c->layout.group_count, blocks) != KVS_OK) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for a block table");
    }
    c->table.block_count = blocks;
    for (uint32_t g = 0; g < c->layout.group_count; g++) {
        size_t bytes = (size_t)c->layout.group[g].page_bytes * blocks;
        c->kv.base[g] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (c->kv.base[g] == NULL) {
            return kvs_fail(err, KVS_SELF_NOMEM, "no memory for KV pages");
        }
        memset(c->kv.base[g], 0, bytes);
        c->kv.pages[g] = blocks;
        for (uint32_t i = 0; i < blocks; i++) {
            kvc_block_row(&c->table, g)[i] = blocks - 1 - i;
        }
    }
    return KVS_OK;
}

static kvs_status feed(struct bench *b, struct cache *cache, struct eng_ctx *c, uint32_t pos, uint32_t n,
                       uint32_t chunk)
{
    for (uint32_t i = 0; i < n; i += chunk) {
        uint32_t m = n - i < chunk ? n - i : chunk;
        struct eng_part p = {.ids = b->ids + pos + i, .count = m, .pos = pos + i, .table = &cache->table};
        p.logits_from = i + m == n || m == 1 ? m - 1 : m;
        kvs_status s = eng_forward(c, &p, 1, b->logits, NULL, NULL);
        if (s != KVS_OK || p.status != KVS_OK) {
            return s != KVS_OK ? s : p.status;
        }
    }
    return KVS_OK;
}

static kvs_status measure(struct bench *b, const struct options *o, uint32_t threads, struct result *out,
                          struct kvs_error *err)
{
    struct eng_ctx_options co = {.threads = threads, .batch_tokens = o->chunk, .batch_seqs = 1};
    struct eng_ctx *c = NULL;
    struct cache *cache = &b->cache[o->kv];
    kvs_status s = eng_ctx_create(b->model, &cache->layout, &cache->kv, &co, &c, err);
    *out = (struct result){0};
    for (uint32_t i = 0; i < o->repeat && s == KVS_OK; i++) {
        uint64_t t0 = kvs_now_ns();
        s = feed(b, cache, c, 0, o->prompt, o->chunk);
        uint64_t t1 = kvs_now_ns();
        if (s == KVS_OK) {
            s = feed(b, cache, c, o->prompt, o->decode, 1);
        }
        uint64_t t2 = kvs_now_ns();
        double prefill = o->prompt * 1e9 / (double)(t1 - t0), decode = o->decode * 1e9 / (double)(t2 - t1);
        out->prefill = prefill > out->prefill ? prefill : out->prefill;
        out->decode = decode > out->decode ? decode : out->decode;
        if (s != KVS_OK) {
            (void)kvs_fail(err, s, "a step failed: %s", kvs_status_name(s));
        }
    }
    if (c != NULL) {
        eng_ctx_destroy(c);
    }
    return s;
}

static void print(const struct options *o, const struct bench *b, uint32_t threads, const struct result *r)
{
    if (o->json) {
        (void)printf(
            "{\"isa\":\"%s\",\"kv\":\"%s\",\"threads\":%u,\"prompt\":%u,\"chunk\":%u,\"prefill_tokens_per_s\":%.1f,"
            "\"decode\":%u,\"decode_tokens_per_s\":%.1f}\n",
            eng_model_isa(b->model), kvc_type_name(o->kv), threads, o->prompt, o->chunk, r->prefill, o->decode,
            r->decode);
    } else {
        (void)printf(
            "%-5s kv %s  %2u threads  prefill %u in chunks of %u: %8.1f tok/s   decode at depth %u: %7.1f tok/s\n",
            eng_model_isa(b->model), kvc_type_name(o->kv), threads, o->prompt, o->chunk, r->prefill, o->prompt,
            r->decode);
    }
}

/* --- KV types beside each other --- */

/* A short prompt, computed; its whole blocks are copied over all others. */
static kvs_status fill(struct bench *b, struct cache *cache, struct eng_ctx *c, const struct options *o)
{
    uint32_t n = context_of(o) < DEPTH_PROMPT ? context_of(o) : DEPTH_PROMPT;
    kvs_status s = feed(b, cache, c, 0, n, o->chunk);
    uint32_t whole = n / cache->layout.block_tokens;
    for (uint32_t g = 0; g < cache->layout.group_count && whole > 0; g++) {
        size_t bytes = cache->layout.group[g].page_bytes;
        const uint32_t *page = kvc_block_row(&cache->table, g);
        for (uint32_t i = whole; i < cache->table.block_count; i++) {
            memcpy(cache->kv.base[g] + page[i] * bytes, cache->kv.base[g] + page[i % whole] * bytes, bytes);
        }
    }
    return s;
}

static void print_depth(const struct options *o, const struct bench *b, uint32_t threads, uint32_t depth,
                        const double best[KV_TYPES])
{
    (void)printf(o->json ? "{\"isa\":\"%s\",\"threads\":%u,\"depth\":%u" : "%-5s %2u threads  decode at depth %5u:",
                 eng_model_isa(b->model), threads, depth);
    for (uint32_t t = 0; t < KV_TYPES; t++) {
        (void)printf(o->json ? ",\"%s_tokens_per_s\":%.1f" : "   kv %s %7.1f tok/s", kvc_type_name((kvc_type)t),
                     best[t]);
    }
    (void)printf(o->json ? "}\n" : "\n");
}

static kvs_status compare(struct bench *b, const struct options *o, uint32_t threads, struct kvs_error *err)
{
    struct eng_ctx_options co = {.threads = threads, .batch_tokens = o->chunk, .batch_seqs = 1};
    struct eng_ctx *c[KV_TYPES] = {NULL};
    double best[NUMBERS_MAX][KV_TYPES] = {{0}};
    kvs_status s = KVS_OK;
    for (uint32_t t = 0; t < KV_TYPES && s == KVS_OK; t++) {
        s = eng_ctx_create(b->model, &b->cache[t].layout, &b->cache[t].kv, &co, &c[t], err);
        if (s == KVS_OK && (s = fill(b, &b->cache[t], c[t], o)) != KVS_OK) {
            (void)kvs_fail(err, s, "a step failed: %s", kvs_status_name(s));
        }
    }
    for (uint32_t i = 0; i < o->repeat * o->depth_count * KV_TYPES && s == KVS_OK; i++) {
        uint32_t t = i % KV_TYPES, d = i / KV_TYPES % o->depth_count;
        uint64_t t0 = kvs_now_ns();
        s = feed(b, &b->cache[t], c[t], o->depths[d] - o->decode, o->decode, 1);
        double speed = o->decode * 1e9 / (double)(kvs_now_ns() - t0);
        best[d][t] = speed > best[d][t] ? speed : best[d][t];
        if (s != KVS_OK) {
            (void)kvs_fail(err, s, "a step failed: %s", kvs_status_name(s));
        }
    }
    for (uint32_t d = 0; d < o->depth_count && s == KVS_OK; d++) {
        print_depth(o, b, threads, o->depths[d], best[d]);
    }
    for (uint32_t t = 0; t < KV_TYPES; t++) {
        if (c[t] != NULL) {
            eng_ctx_destroy(c[t]);
        }
    }
    return s;
}

static void close_all(struct bench *b)
{
    for (uint32_t t = 0; t < KV_TYPES; t++) {
        for (uint32_t g = 0; g < KVC_GROUPS_MAX; g++) {
            free(b->cache[t].kv.base[g]);
        }
        kvc_block_table_fini(&b->cache[t].table);
    }
    free(b->logits);
    free(b->ids);
    eng_model_destroy(b->model);
    mdl_model_close(&b->file);
}

int main(int argc, char **argv)
{
    struct options o;
    if (!parse(argc, argv, &o)) {
        (void)fprintf(
            stderr,
            "usage: engine_bench MODEL [--prompt N] [--decode N] [--chunk N] [--threads A,B] [--kv f32|f16|q8_0] "
            "[--isa NAME] [--repeat N] [--json]\n"
            "       engine_bench MODEL --depths A,B [--decode N, less than a depth] ...: f32, f16 and q8_0 side by "
            "side\n");
        return 2;
    }
    struct bench b = {0};
    struct kvs_error err = {0};
    kvs_status s = open_model(&b, &o, &err);
    for (uint32_t t = 0; t < KV_TYPES && s == KVS_OK; t++) {
        if (o.depth_count > 0 || t == (uint32_t)o.kv) {
            s = open_cache(&b, &o, (kvc_type)t, &err);
        }
    }
    for (uint32_t i = 0; i < o.thread_counts && s == KVS_OK; i++) {
        struct result r;
        if (o.depth_count > 0) {
            s = compare(&b, &o, o.threads[i], &err);
            continue;
        }
        s = measure(&b, &o, o.threads[i], &r, &err);
        if (s == KVS_OK) {
            print(&o, &b, o.threads[i], &r);
        }
    }
    if (s != KVS_OK) {
        (void)fprintf(stderr, "engine_bench: %s\n", err.text);
    }
    close_all(&b);
    return s == KVS_OK ? 0 : 1;
}
