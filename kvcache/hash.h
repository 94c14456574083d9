/* hash.h - names of prefixes: a chain of SHA-256, one link a block (design: section 5).
 *   root  = SHA-256("kvasir-root-1", then for each field: u32 length LE, bytes), first 16 bytes; fields in order: model fingerprint
 *           (32 raw bytes), numerics class, tenant, cache_salt, KV types "k=f32,v=f32", rope text, adapter, block_tokens (u32 LE)
 *   block = SHA-256(parent 16 bytes, u32 n, n x u32 ids, u32 extra length, extra), first 16 bytes
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVCACHE_HASH_H
#define KVS_KVCACHE_HASH_H

#include "base/error.h"

struct kvc_hash {
    uint8_t bytes[16];
};
struct kvc_bytes {
    const void *data;
    size_t len;
};
struct kvc_root_fields {
    struct kvc_bytes fingerprint, numerics, tenant, cache_salt, kv_types, rope, adapter;
    uint32_t block_tokens;
};

KVS_MUST_CHECK kvs_status kvc_hash_root(const struct kvc_root_fields *f, struct kvc_hash *out);
KVS_MUST_CHECK kvs_status kvc_hash_block(const struct kvc_hash *parent, const int32_t *ids, uint32_t n, const void *extra, uint32_t extra_len,
                                         struct kvc_hash *out);
static inline bool kvc_hash_equal(const struct kvc_hash *a, const struct kvc_hash *b)
{
    uint8_t d = 0;
    for (int i = 0; i < 16; i++)
        d |= (uint8_t)(a->bytes[i] ^ b->bytes[i]);
    return d == 0;
}

#endif
