/* opsrig.h - inputs and weights for tests of single ops: the same for every op table, from a seed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ENGINE_OPSRIG_H
#define KVS_TESTS_ENGINE_OPSRIG_H

#include "base/rng.h"
#include "engine/ops/ops.h"

/* Every weight type. The order is that of the digests in the tree: new ones go to the end. */
#define OPS_TYPES 16u
extern const mdl_type ops_types[OPS_TYPES];

/* The tables that this machine can run; ref first. */
uint32_t ops_tables(const struct eng_ops *out[2]);

/* Floats by integer arithmetic and one multiplication by a power of two: the same on every machine. */
typedef enum kind { KIND_PLAIN, KIND_WIDE, KIND_TINY, KIND_MIXED } kind;
void ops_fill(struct kvs_rng *r, float *x, size_t n, kind k);

/* A random matrix as the file would have it, extreme blocks among the others. free() it. */
uint8_t *ops_weight_bytes(struct kvs_rng *r, mdl_type type, uint32_t rows, uint32_t cols, size_t *size_out);
struct eng_weight ops_pack(const struct eng_ops *ops, mdl_type type, uint32_t rows, uint32_t cols, const uint8_t *src);

/* Product of all strips with n input rows; y is [n][rows_padded]. Quantizes with the table's own quantizer. */
void ops_product(const struct eng_ops *ops, const struct eng_weight *w, const float *x, size_t x_stride, uint32_t n,
                 float *y);

struct eng_scratch *ops_scratch(uint32_t key_dim, uint32_t value_dim);
void ops_scratch_free(struct eng_scratch *s);

/* Attention of `count` rows that end at position `last`, over pages written by the table's kv_write; out is
 * [count][value_dim]. Everything is derived from the seed. Also hands out the pages' bytes when pages_out is not NULL. */
struct attn_case {
    uint32_t key_dim, value_dim, block_tokens, last, count, heads;
    kvc_type type;
    bool shared; /* a value is the first value_dim numbers of its key; value_dim is at most key_dim */
    bool latent; /* the same, kept in a latent page */
    kind values;
    uint64_t seed;
    float cap;       /* 0: none */
    uint32_t window; /* 0: none; blocks that no row sees have no page */
};
void ops_attention(const struct eng_ops *ops, const struct attn_case *c, float *out, uint8_t **pages_out,
                   size_t *pages_bytes_out);

#endif
