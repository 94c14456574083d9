/* engine_bench.c - prefill and decode speed of one model on this machine's engine, nothing else in the way.
 *
 *   engine_bench MODEL [--prompt N] [--decode N] [--chunk N] [--threads A,B,...] [--kv f32|f16|q8_0] [--isa NAME] [--repeat N] [--json]
 *
 * For each thread count: the prompt in chunks, then single tokens behind it; the best of the repeats is printed, since other
 * work on the machine only ever makes a run slower. Ids are a fixed pattern: speed does not depend on them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"
#include "sys/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREAD_COUNTS_MAX 16u

struct options {
    const char *model, *isa;
    uint32_t prompt, decode, chunk, repeat;
    uint32_t threads[THREAD_COUNTS_MAX], thread_counts;
    kvc_type kv;
    bool json;
};

struct bench {
    struct mdl_file file;
    struct mdl_gguf *gguf;
    struct mdl_card card;
    struct eng_model *model;
    struct kvc_layout layout;
    struct eng_kv kv;
    struct kvc_block_table table;
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

static bool thread_list(const char *text, struct options *o)
{
    o->thread_counts = 0;
    while (*text != '\0' && o->thread_counts < THREAD_COUNTS_MAX) {
        char *end;
        unsigned long v = strtoul(text, &end, 10);
        if (end == text || v == 0 || v > 256) {
            return false;
        }
        o->threads[o->thread_counts++] = (uint32_t)v;
        text = *end == ',' ? end + 1 : end;
    }
    return o->thread_counts > 0 && *text == '\0';
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
            ok = thread_list(v, o);
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
    return o->model != NULL;
}

static kvs_status open_model(struct bench *b, const struct options *o, struct kvs_error *err)
{
    uint32_t context = o->prompt + o->decode;
    kvs_status s = mdl_file_open(o->model, &b->file, err);
    if (s == KVS_OK) {
        s = mdl_gguf_parse(b->file.bytes, b->file.size, false, &b->gguf, err);
    }
    if (s == KVS_OK) {
        s = mdl_card_read(b->gguf, &b->card, err);
    }
    struct eng_load_options lo = {.isa_name = o->isa, .context = context};
    if (s == KVS_OK) {
        s = eng_model_load(b->gguf, &b->card, &lo, &b->model, NULL, err);
    }
    if (s == KVS_OK) {
        s = eng_kv_layout(&b->card, o->kv, 64, 0, &b->layout, err);
    }
    return s;
}

static kvs_status open_memory(struct bench *b, const struct options *o, struct kvs_error *err)
{
    uint32_t tokens = o->prompt + o->decode, blocks = kvc_blocks_for(&b->layout, tokens);
    if (kvc_block_table_init(&b->table, b->layout.group_count, blocks) != KVS_OK) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for a block table");
    }
    b->table.block_count = blocks;
    for (uint32_t g = 0; g < b->layout.group_count; g++) {
        size_t bytes = (size_t)b->layout.group[g].page_bytes * blocks;
        b->kv.base[g] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (b->kv.base[g] == NULL) {
            return kvs_fail(err, KVS_SELF_NOMEM, "no memory for KV pages");
        }
        memset(b->kv.base[g], 0, bytes);
        b->kv.pages[g] = blocks;
        for (uint32_t i = 0; i < blocks; i++) {
            kvc_block_row(&b->table, g)[i] = blocks - 1 - i;
        }
    }
    b->logits = calloc(b->card.vocab, sizeof *b->logits);
    b->ids = calloc(tokens, sizeof *b->ids);
    if (b->logits == NULL || b->ids == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for tokens");
    }
    for (uint32_t i = 0; i < tokens; i++) {
        b->ids[i] = (int32_t)((i * 7919ull + 13) % b->card.vocab);
    }
    return KVS_OK;
}

static kvs_status feed(struct bench *b, struct eng_ctx *c, uint32_t pos, uint32_t n, uint32_t chunk)
{
    for (uint32_t i = 0; i < n; i += chunk) {
        uint32_t m = n - i < chunk ? n - i : chunk;
        struct eng_part p = {.ids = b->ids + pos + i, .count = m, .pos = pos + i, .table = &b->table};
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
    kvs_status s = eng_ctx_create(b->model, &b->layout, &b->kv, &co, &c, err);
    *out = (struct result){0};
    for (uint32_t i = 0; i < o->repeat && s == KVS_OK; i++) {
        uint64_t t0 = kvs_now_ns();
        s = feed(b, c, 0, o->prompt, o->chunk);
        uint64_t t1 = kvs_now_ns();
        if (s == KVS_OK) {
            s = feed(b, c, o->prompt, o->decode, 1);
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

static void close_all(struct bench *b)
{
    for (uint32_t g = 0; g < KVC_GROUPS_MAX; g++) {
        free(b->kv.base[g]);
    }
    kvc_block_table_fini(&b->table);
    free(b->logits);
    free(b->ids);
    eng_model_destroy(b->model);
    mdl_gguf_destroy(b->gguf);
    mdl_file_close(&b->file);
}

int main(int argc, char **argv)
{
    struct options o;
    if (!parse(argc, argv, &o)) {
        (void)fprintf(
            stderr,
            "usage: engine_bench MODEL [--prompt N] [--decode N] [--chunk N] [--threads A,B] [--kv f32|f16|q8_0] "
            "[--isa NAME] [--repeat N] [--json]\n");
        return 2;
    }
    struct bench b = {0};
    struct kvs_error err = {0};
    kvs_status s = open_model(&b, &o, &err);
    if (s == KVS_OK) {
        s = open_memory(&b, &o, &err);
    }
    for (uint32_t i = 0; i < o.thread_counts && s == KVS_OK; i++) {
        struct result r;
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
