/* engine_run.h - a model and one sequence in this process, without daemons: what `generate` and `score` run on.
 * The same engine, page pools and block table as a worker's; KV memory is an anonymous mapping, so pages are zero and cost nothing until used.
 * One thread (the caller's) drives it; the engine has its own team.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_ENGINE_RUN_H
#define KVS_CLI_ENGINE_RUN_H

#include "cli/cli.h"
#include "engine/engine.h"
#include "kvcache/pool.h"
#include "model/model.h"
#include "model/tokenizer.h"

/* Flags that both commands have; rows of their tables are made by CLI_ENGINE_ROWS. */
struct cli_engine_config {
    char model[CLI_PATH_MAX];
    uint32_t kv_type; /* kvc_type */
    uint32_t context, threads, chunk_tokens, block_tokens, group_layers;
};
#define CLI_ENGINE_ROWS(type, field)                                                           \
    {"model",                                                                                  \
     "model",                                                                                  \
     KVS_CFG_STRING,                                                                           \
     "smollm2",                                                                                \
     0,                                                                                        \
     CLI_PATH_MAX,                                                                             \
     NULL,                                                                                     \
     "GGUF file, or the name of one that was pulled",                                          \
     offsetof(type, field.model)},                                                             \
        {"kv.type",                                                                            \
         "kv-type",                                                                            \
         KVS_CFG_ENUM,                                                                         \
         "f16",                                                                                \
         0,                                                                                    \
         0,                                                                                    \
         "f32|f16|q8_0",                                                                       \
         "type of the KV cache",                                                               \
         offsetof(type, field.kv_type)},                                                       \
        {"context",                                                                            \
         "context",                                                                            \
         KVS_CFG_U32,                                                                          \
         "0",                                                                                  \
         0,                                                                                    \
         16777216,                                                                             \
         NULL,                                                                                 \
         "tokens a sequence may have; 0: the file's context_length",                           \
         offsetof(type, field.context)},                                                       \
        {"threads",                                                                            \
         "threads",                                                                            \
         KVS_CFG_U32,                                                                          \
         "0",                                                                                  \
         0,                                                                                    \
         1024,                                                                                 \
         NULL,                                                                                 \
         "threads that compute; 0: one a processor",                                           \
         offsetof(type, field.threads)},                                                       \
        {"chunk_tokens",                                                                       \
         "chunk-tokens",                                                                       \
         KVS_CFG_U32,                                                                          \
         "128",                                                                                \
         1,                                                                                    \
         8192,                                                                                 \
         NULL,                                                                                 \
         "prompt tokens computed in one step",                                                 \
         offsetof(type, field.chunk_tokens)},                                                  \
        {"kv.block_tokens",                                                                    \
         "block-tokens",                                                                       \
         KVS_CFG_U32,                                                                          \
         "0",                                                                                  \
         0,                                                                                    \
         512,                                                                                  \
         NULL,                                                                                 \
         "tokens of a KV block, a power of two; 0: 64",                                        \
         offsetof(type, field.block_tokens)},                                                  \
    {                                                                                          \
        "kv.group_layers", "group-layers", KVS_CFG_U32, "0", 0, 512, NULL,                     \
            "layers of a KV group; 0: chosen by page size", offsetof(type, field.group_layers) \
    }

struct cli_engine {
    struct mdl_model file;
    const struct mdl_gguf *gguf; /* file.gguf */
    struct mdl_card card;
    struct mdl_tokenizer *tokenizer;
    struct eng_model *model;
    struct eng_ctx *ctx;
    struct kvc_layout layout;
    struct kvc_pool *pool[KVC_GROUPS_MAX];
    struct kvc_block_table table;
    struct eng_kv kv;
    size_t kv_bytes[KVC_GROUPS_MAX];
    uint32_t context; /* tokens a sequence may have */
    uint32_t chunk_tokens;
    uint32_t length; /* tokens computed so far */
    float *logits;   /* chunk_tokens rows at most */
    size_t logits_rows;
};

/* Loads model and tokenizer; no KV memory yet. err names what is wrong with the file. */
KVS_MUST_CHECK kvs_status cli_engine_open(struct cli_engine *e, const struct cli_engine_config *c,
                                          struct kvs_error *err);
/* KV memory for a sequence of at most `tokens`, the step's scratch, and room for logits of all_rows ? a whole chunk : one row.
 * KVS_REQ_TOO_LONG when tokens pass the context. */
KVS_MUST_CHECK kvs_status cli_engine_reserve(struct cli_engine *e, const struct cli_engine_config *c, uint64_t tokens,
                                             bool all_rows, struct kvs_error *err);
/* Computes count more tokens (at most chunk_tokens) of the sequence; logits of rows from logits_from on are then in e->logits. */
KVS_MUST_CHECK kvs_status cli_engine_step(struct cli_engine *e, const int32_t *ids, uint32_t count,
                                          uint32_t logits_from, struct kvs_error *err);
void cli_engine_close(struct cli_engine *e);

#endif
