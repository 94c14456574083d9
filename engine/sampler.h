/* sampler.h - from one row of logits to one token: greedy, temperature, top-k, top-p, min-p. Pure function of its arguments.
 * Random numbers: kvs_rng_unit(seed, choice, position, 0), position = index of the new token in the sequence (prompt included).
 * Order of steps: logits -> temperature -> top-k -> softmax -> min-p -> top-p -> renormalise -> inverse CDF, candidates by falling logit,
 * ties by rising id. Sums follow the contract (16 strided lanes) where they run over the vocabulary.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ENGINE_SAMPLER_H
#define KVS_ENGINE_SAMPLER_H

#include "base/error.h"

struct eng_sampling {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint64_t seed;
};
struct eng_sample {
    int32_t id;
    float logit;   /* of the chosen token, before temperature */
    float margin;  /* best minus second best logit */
    float logprob; /* log softmax of the raw logits at id */
};
/* scratch: at least vocab * 8 bytes (unused when greedy). KVS_SELF_NUMERIC when a logit is NaN. */
KVS_MUST_CHECK kvs_status eng_sample_row(const float *logits, uint32_t vocab, const struct eng_sampling *p, uint32_t choice, uint32_t position,
                                         void *scratch, struct eng_sample *out);

#endif
