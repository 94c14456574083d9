/* rig.h - a model on an engine with pages made by hand, for tests: block tables that scatter, several sequences,
 * goldens.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ENGINE_RIG_H
#define KVS_TESTS_ENGINE_RIG_H

#include "engine/engine.h"

#define RIG_SEQS 4u

struct rig_options {
    const char *isa; /* NULL: best */
    kvc_type kv;
    uint32_t context, block, group_layers, threads; /* zeros: 512, 64, 0, 1 */
    uint32_t batch_tokens;                          /* 0: 512 */
};

struct rig {
    uint8_t *file; /* not owned */
    struct mdl_gguf *gguf;
    struct mdl_card card;
    struct eng_model *model;
    struct mdl_fingerprint fingerprint;
    struct kvc_layout layout;
    struct eng_kv kv;
    struct eng_ctx *ctx;
    struct kvc_block_table table[RIG_SEQS];
    uint32_t blocks, pages, step; /* how pages are dealt out */
};

/* Ends the program with the error when something fails. */
void rig_open(struct rig *r, const uint8_t *file, size_t size, const struct rig_options *o);
void rig_close(struct rig *r);
/* The table of sequence seq for a step at pos: blocks that no window sees any more are NONE, all others are there. */
void rig_table(struct rig *r, uint32_t seq, uint32_t pos);
/* Runs ids at pos.. of sequence seq in steps of at most chunk tokens (0: one step); logits of the last row, or of all
 * rows. */
void rig_feed(struct rig *r, uint32_t seq, const int32_t *ids, uint32_t n, uint32_t pos, uint32_t chunk, bool all,
              float *logits);
uint64_t rig_digest(const void *bytes, size_t n); /* XXH3-64 */

/* A golden line: prompt, then output steps [id, logit, margin]. */
struct golden {
    int32_t *ids; /* prompt, then outputs */
    uint32_t prompt, out;
    double *logit, *margin; /* [out] */
    uint32_t top_count;
    int32_t *top_id; /* logits after the prompt that the file lists */
    double *top_logit;
};
/* Lines of a golden file; exact: out_exact and top10_exact or logits0_exact. NULL when the file is absent. */
struct golden *golden_read(const char *path, bool exact, uint32_t *count_out);
void golden_free(struct golden *g, uint32_t count);

#endif
