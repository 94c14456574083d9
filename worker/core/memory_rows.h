/* memory_rows.h - the flags on which a worker's memory depends, for the worker's own table and for `kvasir doctor`, which predicts it: one set of
 * names, defaults and bounds, so that a configuration file or environment means the same to both. Rows of struct kvs_config_row; AT(field) gives
 * the field's offset. Threads are not here: a worker has one unless told, doctor shares the processors out as `kvasir up` does.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_MEMORY_ROWS_H
#define KVS_WORKER_CORE_MEMORY_ROWS_H

#define WRK_MEMORY_ROWS(AT)                                                                                                                           \
    {"kv.type", "kv-type", KVS_CFG_ENUM, "f16", 0, 0, "f32|f16|q8_0", "element type of the KV cache", AT(kv_type)},                                   \
    {"kv.memory", "kv-memory", KVS_CFG_SIZE, "0", 0, 0x1p52, NULL, "bytes for KV pages (0: a quarter of free memory, at most 2G)", AT(kv_memory)},    \
    {"kv.block_tokens", "block-tokens", KVS_CFG_U32, "64", 1, 512, NULL, "tokens in a block (a power of two)", AT(block_tokens)},                     \
    {"kv.group_layers", "group-layers", KVS_CFG_U32, "0", 0, 512, NULL, "layers in a group (0: as many as make pages of 0.25 to 2 MiB)",              \
     AT(group_layers)},                                                                                                                               \
    {"sched.chunk_tokens", "chunk-tokens", KVS_CFG_U32, "128", 1, 8192, NULL, "prompt tokens computed in one step", AT(chunk_tokens)},                \
    {"model.context", "context", KVS_CFG_U32, "0", 0, MSG_TOKENS_MAX, NULL, "tokens a sequence may have (0: what the file says)", AT(context)},       \
    {"kv.reserve_tokens", "reserve-tokens", KVS_CFG_U32, "512", 0, 65536, NULL, "pages reserved for an answer beyond its prompt, in tokens",          \
     AT(reserve_tokens)},                                                                                                                             \
    {"sched.sequences", "sequences", KVS_CFG_U32, "64", 1, 4096, NULL, "sequences computed at once", AT(sequences)},                                  \
    {"kv.prefix_cache", "prefix-cache", KVS_CFG_BOOL, "true", 0, 0, NULL, "keep the KV of prompts and answers for later requests", AT(prefix_cache)}, \
    {"kv.snapshot_blocks", "snapshot-blocks", KVS_CFG_U32, "16", 1, 65536, NULL, "recurrent models: blocks between two snapshots kept for reuse",     \
     AT(snapshot_blocks)}

#endif
