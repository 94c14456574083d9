/* engine_run.c - see engine_run.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/engine_run.h"

#include "cli/model_table.h"
#include "sys/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

kvs_status cli_engine_open(struct cli_engine *e, const struct cli_engine_config *c, struct kvs_error *err)
{
    *e = (struct cli_engine){0};
    char path[CLI_PATH_MAX];
    kvs_status s = cli_model_resolve(c->model, path, sizeof path, err);
    if (s == KVS_OK)
        s = mdl_model_open(path, &e->file, err);
    e->gguf = e->file.gguf;
    if (s == KVS_OK)
        s = mdl_card_read(e->gguf, &e->card, err);
    if (s == KVS_OK)
        s = mdl_tokenizer_create(e->gguf, &e->tokenizer, err);
    s = cli_model_fault(s, path, err);
    if (s != KVS_OK)
        return s;
    if (mdl_tokenizer_pre_guessed(e->tokenizer))
        fprintf(stderr, "kvasir: warning: %s\n", MDL_PRE_GUESSED_TEXT);
    e->context = c->context ? c->context : e->card.context_length;
    e->chunk_tokens = c->chunk_tokens;
    if (e->context > e->card.context_length)
        fprintf(stderr, "kvasir: warning: --context %u is more than the %u that this model was made for\n", e->context,
                e->card.context_length);
    kvs_fp_environment();
    struct eng_load_options o = {.context = e->context, .file_bytes = e->file.header, .file_size = e->file.header_bytes};
    return cli_model_fault(eng_model_load(e->gguf, &e->card, &o, &e->model, NULL, err), path, err);
}

/* One sequence, from its first token on: every block has its page, but a state has one page in all its entries. */
static kvs_status map_kv(struct cli_engine *e, uint32_t all_blocks, struct kvs_error *err)
{
    for (uint32_t g = 0; g < e->layout.group_count; g++) {
        uint32_t blocks = e->layout.group[g].kind == KVC_STATE ? 1 : all_blocks;
        kvs_status s = kvc_pool_create(blocks, &e->pool[g]);
        if (s != KVS_OK)
            return kvs_fail(err, s, "out of memory");
        size_t bytes = (size_t)e->layout.group[g].page_bytes * blocks;
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            return kvs_fail(err, KVS_SELF_NOMEM, "no memory for %zu bytes of KV cache (%s); lower --context", bytes,
                            strerror(errno));
        e->kv.base[g] = p;
        e->kv.pages[g] = blocks;
        e->kv_bytes[g] = bytes;
    }
    return KVS_OK;
}

kvs_status cli_engine_reserve(struct cli_engine *e, const struct cli_engine_config *c, uint64_t tokens, bool all_rows,
                              struct kvs_error *err)
{
    if (tokens == 0 || tokens > e->context)
        return kvs_fail(err, KVS_REQ_TOO_LONG, "%llu tokens do not fit a context of %u; raise --context or give less",
                        (unsigned long long)tokens, e->context);
    kvs_status s = eng_kv_layout(&e->card, (kvc_type)c->kv_type, c->block_tokens, c->group_layers, &e->layout, err);
    if (s != KVS_OK)
        return s;
    uint32_t blocks = kvc_blocks_for(&e->layout, (uint32_t)tokens);
    s = kvc_block_table_init(&e->table, e->layout.group_count, blocks);
    if (s != KVS_OK)
        return kvs_fail(err, s, "out of memory");
    s = map_kv(e, blocks, err);
    if (s != KVS_OK)
        return s;
    if (e->chunk_tokens > tokens)
        e->chunk_tokens = (uint32_t)tokens;
    uint32_t threads = c->threads ? c->threads : kvs_cpu_count();
    struct eng_ctx_options o = {.threads = threads, .batch_tokens = e->chunk_tokens, .batch_seqs = 1};
    s = eng_ctx_create(e->model, &e->layout, &e->kv, &o, &e->ctx, err);
    if (s != KVS_OK)
        return s;
    e->logits_rows = all_rows ? e->chunk_tokens : 1;
    e->logits = calloc(e->logits_rows * (size_t)e->card.vocab, sizeof *e->logits);
    return e->logits ? KVS_OK : kvs_fail(err, KVS_SELF_NOMEM, "no memory for the logits; lower --chunk-tokens");
}

/* Gives the table the blocks that cover the first `tokens` positions. */
static kvs_status grow_table(struct cli_engine *e, uint32_t tokens)
{
    uint32_t blocks = kvc_blocks_for(&e->layout, tokens);
    KVS_ASSERT(blocks <= e->table.block_cap);
    for (; e->table.block_count < blocks; e->table.block_count++) {
        for (uint32_t g = 0; g < e->layout.group_count; g++) {
            uint32_t *row = kvc_block_row(&e->table, g), at = e->table.block_count;
            if (at > 0 && e->layout.group[g].kind == KVC_STATE) {
                row[at] = row[0];
                continue;
            }
            kvs_status s = kvc_pool_acquire(e->pool[g], 1, &row[at]);
            if (s != KVS_OK)
                return s;
        }
    }
    return KVS_OK;
}

kvs_status cli_engine_step(struct cli_engine *e, const int32_t *ids, uint32_t count, uint32_t logits_from,
                           struct kvs_error *err)
{
    KVS_ASSERT(count > 0 && count <= e->chunk_tokens && count - logits_from <= e->logits_rows);
    kvs_status s = grow_table(e, e->length + count);
    if (s != KVS_OK)
        return kvs_fail(err, s, "out of KV pages");
    struct eng_part part = {
        .ids = ids, .count = count, .pos = e->length, .table = &e->table, .logits_from = logits_from};
    s = eng_forward(e->ctx, &part, 1, e->logits, NULL, NULL);
    if (s == KVS_OK)
        s = part.status;
    if (s == KVS_SELF_NUMERIC)
        return kvs_fail(
            err, s, "the model computed NaN or infinity after %u tokens; the file is damaged or needs another engine",
            e->length);
    if (s != KVS_OK)
        return kvs_fail(err, s, "the engine could not compute the step (%s)", kvs_status_name(s));
    e->length += count;
    return KVS_OK;
}

void cli_engine_close(struct cli_engine *e)
{
    free(e->logits);
    eng_ctx_destroy(e->ctx);
    for (uint32_t g = 0; g < KVC_GROUPS_MAX; g++) {
        if (e->kv.base[g])
            (void)munmap(e->kv.base[g], e->kv_bytes[g]);
        for (uint32_t b = 0; e->pool[g] && g < e->table.group_count && b < e->table.block_count; b++)
            if (b == 0 || e->layout.group[g].kind != KVC_STATE)
                kvc_pool_release(e->pool[g], kvc_block_row(&e->table, g)[b]);
        kvc_pool_destroy(e->pool[g]);
    }
    kvc_block_table_fini(&e->table);
    eng_model_destroy(e->model);
    mdl_tokenizer_destroy(e->tokenizer);
    mdl_model_close(&e->file);
    *e = (struct cli_engine){0};
}
