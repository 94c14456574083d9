/* engine.h - one model on one device: the forward pass over paged KV, after the arithmetic contract (numerics.md).
 * A result depends on weights, input row and position only: not on batch, chunking, threads or instruction set.
 * The engine owns weights and scratch, no pool and no tree: KV memory is lent to it as base addresses and strides.
 * Threads: an eng_model is immutable and shared; an eng_ctx belongs to the device thread and drives its own team of threads.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_ENGINE_H
#define KVS_ENGINE_ENGINE_H

#include "base/error.h"
#include "kvcache/block_table.h"
#include "kvcache/layout.h"
#include "model/card.h"
#include "model/gguf.h"

struct eng_model;
struct eng_ctx;

/* Packs the weights for this machine. isa_name: NULL or "" = KVASIR_ISA or the best there is; "ref", "avx2" force one.
 * context selects rope tables (tokens a sequence may have). The GGUF's bytes are needed only during the call.
 * Takes the fingerprint while repacking when fingerprint_out is not NULL. Refuses CPUs without FMA, unknown tensors and types by name. */
struct eng_load_options {
    const char *isa_name;
    uint32_t context;
    const uint8_t *file_bytes; /* the file as far as its header goes, for the fingerprint */
    size_t file_size;
    /* Told, in file order, of bytes of the file that will not be read again, so that their mapping need not stay resident; or NULL. */
    void (*file_done)(void *user, const uint8_t *bytes, size_t count);
    void *user;
};
KVS_MUST_CHECK kvs_status eng_model_load(const struct mdl_gguf *g, const struct mdl_card *card, const struct eng_load_options *o,
                                         struct eng_model **out, struct mdl_fingerprint *fingerprint_out, struct kvs_error *err);
void eng_model_destroy(struct eng_model *m);
const char *eng_model_isa(const struct eng_model *m);     /* the path in use: "ref", "avx2" */
uint64_t eng_model_bytes(const struct eng_model *m);      /* memory of the packed weights */
/* Numerics class for card and hash root, e.g. "kvasir-1,a16,cpu-fma,tp1,k=f16,v=f16". Returns the length. */
size_t eng_numerics_class(kvc_type kv_type, char *out, size_t cap);
/* KV layout of this model (kinds by layer); block_tokens and group_layers as in kvc_layout_config. */
KVS_MUST_CHECK kvs_status eng_kv_layout(const struct mdl_card *card, kvc_type kv_type, uint32_t block_tokens, uint32_t group_layers,
                                        struct kvc_layout *out, struct kvs_error *err);

/* Where KV lives: page p of group g is at base[g] + p * page_bytes(g). 64-byte aligned. */
struct eng_kv {
    uint8_t *base[KVC_GROUPS_MAX];
    uint32_t pages[KVC_GROUPS_MAX]; /* bound for checks */
};

struct eng_ctx_options {
    uint32_t threads;      /* 0: 1 */
    uint32_t batch_tokens; /* most tokens in one step */
    uint32_t batch_seqs;   /* most sequences in one step */
};
KVS_MUST_CHECK kvs_status eng_ctx_create(const struct eng_model *m, const struct kvc_layout *layout, const struct eng_kv *kv,
                                         const struct eng_ctx_options *o, struct eng_ctx **out, struct kvs_error *err);
void eng_ctx_destroy(struct eng_ctx *c);

/* One sequence's part of a ragged batch: tokens at positions pos .. pos+count-1. Blocks covering 0 .. pos+count-1 are in the table
 * (window groups: those still visible). K and V of these tokens are written into the pages, then read back as stored. */
struct eng_part {
    const int32_t *ids;
    uint32_t count;
    uint32_t pos;
    const struct kvc_block_table *table;
    uint32_t logits_from; /* rows logits_from .. count-1 of this part get logits; = count: none */
    kvs_status status;    /* out: KVS_OK, or KVS_SELF_NUMERIC when NaN or infinity appeared in this sequence's rows */
};
/* What a model and one context of it make resident, from the file's header alone (mdl_gguf_parse with header_only will do): by the same code
 * that loads and creates, told to count. What the options say of the file is not looked at. Refuses shapes, kinds and sizes that a load refuses; what
 * it does not look at is checked by load and create alone: tensors' values, missing tensors and those that are there twice (or as one and in
 * parts), rotation out of its range, and bounds of a batch. */
struct eng_memory {
    uint64_t weights;   /* packed, as they stay */
    uint64_t tables;    /* rotation of every position of the context */
    uint64_t scratch;   /* of a step */
    uint64_t loading;   /* most at a time until all is packed: the weights so far, the next tensor as the file has it, what is made of it in between */
};
KVS_MUST_CHECK kvs_status eng_memory_predict(const struct mdl_gguf *g, const struct mdl_card *card, const struct eng_load_options *o,
                                             const struct kvc_layout *layout, const struct eng_ctx_options *c, struct eng_memory *out,
                                             struct kvs_error *err);

/* Called on the device thread after each layer (0 based) is complete for the whole batch. true: stop the step now (its results are void). */
typedef bool (*eng_layer_fn)(void *user, uint32_t layer);

/* logits: rows in order of parts and rows, row stride = vocab floats; room for all asked rows. Returns KVS_REQ_CANCELLED when the layer
 * callback stopped it. A token id outside the vocabulary or more than the batch bounds is KVS_REQ_INVALID before anything is written. */
KVS_MUST_CHECK kvs_status eng_forward(struct eng_ctx *c, struct eng_part *parts, uint32_t part_count, float *logits, eng_layer_fn layer_done, void *user);

#endif
