/* hash.c - the chain of SHA-256 that names prefixes, through OpenSSL's EVP (which uses the processor's SHA
 * instructions). Every field is preceded by its length, so that no two different sets of fields give the same bytes:
 * the tenant's salt cannot be shifted into another field. Absent fields have length 0. Numbers are little-endian. The
 * first 16 bytes of the digest are the name.
 *
 * The digest context is created per call: EVP keeps no state between calls and a block costs well under a microsecond
 * beside the 64 tokens it names. Failure of OpenSSL (out of memory, or SHA-256 forbidden by a provider) is a status,
 * never a weak hash.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvcache/hash.h"

#include "base/checked.h"
#include <openssl/evp.h>
#include <string.h>

#define ROOT_TAG "kvasir-root-1"
#define DIGEST_BYTES 32

static bool put_bytes(EVP_MD_CTX *c, const void *data, size_t n)
{
    return n == 0 || EVP_DigestUpdate(c, data, n) == 1;
}

static bool put_u32(EVP_MD_CTX *c, uint32_t v)
{
    uint8_t b[4];
    kvs_store_u32(b, v);
    return put_bytes(c, b, sizeof b);
}

static bool put_field(EVP_MD_CTX *c, const void *data, size_t n)
{
    KVS_ASSERT(n <= UINT32_MAX && (data != NULL || n == 0));
    return put_u32(c, (uint32_t)n) && put_bytes(c, data, n);
}

static bool finish(EVP_MD_CTX *c, struct kvc_hash *out)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_DigestFinal_ex(c, digest, &n) != 1 || n != DIGEST_BYTES)
        return false;
    memcpy(out->bytes, digest, sizeof out->bytes);
    return true;
}

kvs_status kvc_hash_root(const struct kvc_root_fields *f, struct kvc_hash *out)
{
    KVS_ASSERT(f != NULL && out != NULL);
    KVS_ASSERT(f->fingerprint.len == 32); /* raw bytes, not hex */
    const struct kvc_bytes *field[] = {&f->fingerprint, &f->numerics, &f->tenant, &f->cache_salt,
                                       &f->kv_types,    &f->rope,     &f->adapter};
    uint8_t block_tokens[4];
    kvs_store_u32(block_tokens, f->block_tokens);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    bool ok = c != NULL && EVP_DigestInit_ex(c, EVP_sha256(), NULL) == 1 && put_bytes(c, ROOT_TAG, strlen(ROOT_TAG));
    for (size_t i = 0; ok && i < sizeof field / sizeof *field; i++)
        ok = put_field(c, field[i]->data, field[i]->len);
    ok = ok && put_field(c, block_tokens, sizeof block_tokens) && finish(c, out);
    EVP_MD_CTX_free(c);
    return ok ? KVS_OK : KVS_SELF_INTERNAL;
}

kvs_status kvc_hash_block(const struct kvc_hash *parent, const int32_t *ids, uint32_t n, const void *extra,
                          uint32_t extra_len, struct kvc_hash *out)
{
    KVS_ASSERT(parent != NULL && out != NULL);
    KVS_ASSERT((ids != NULL || n == 0) && n <= UINT32_MAX / 4);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    bool ok = c != NULL && EVP_DigestInit_ex(c, EVP_sha256(), NULL) == 1 &&
              put_bytes(c, parent->bytes, sizeof parent->bytes) && put_u32(c, n) && put_bytes(c, ids, (size_t)n * 4) &&
              put_field(c, extra, extra_len) && finish(c, out);
    EVP_MD_CTX_free(c);
    return ok ? KVS_OK : KVS_SELF_INTERNAL;
}
