/* fingerprint.c - the identity of a model's bytes: SHA-256 over the header, then over one XXH3-128 digest a tensor.
 * Two levels, because weights are hundreds of times larger than the header and XXH3 costs next to nothing while they are
 * packed; the cryptographic hash then covers header and digests. It tells models apart; it is no proof against somebody
 * who may write the weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/card.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <xxhash.h>

struct mdl_fingerprint_state {
    EVP_MD_CTX *sha;
};

void mdl_fingerprint_drop(struct mdl_fingerprint_state *s)
{
    if (s == NULL)
        return;
    EVP_MD_CTX_free(s->sha);
    free(s);
}

kvs_status mdl_fingerprint_begin(const uint8_t *header, size_t header_bytes, struct mdl_fingerprint_state **out)
{
    struct mdl_fingerprint_state *s = calloc(1, sizeof *s);
    if (s == NULL)
        return KVS_SELF_NOMEM;
    s->sha = EVP_MD_CTX_new();
    if (s->sha == NULL || EVP_DigestInit_ex(s->sha, EVP_sha256(), NULL) != 1 ||
        EVP_DigestUpdate(s->sha, header, header_bytes) != 1) {
        mdl_fingerprint_drop(s);
        return KVS_SELF_NOMEM;
    }
    *out = s;
    return KVS_OK;
}

kvs_status mdl_fingerprint_tensor(struct mdl_fingerprint_state *s, const uint8_t *bytes, size_t n)
{
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes, n));
    return EVP_DigestUpdate(s->sha, digest.digest, sizeof digest.digest) == 1 ? KVS_OK : KVS_SELF_INTERNAL;
}

kvs_status mdl_fingerprint_end(struct mdl_fingerprint_state *s, struct mdl_fingerprint *out)
{
    struct mdl_fingerprint f;
    unsigned int n = 0;
    _Static_assert(sizeof f.bytes == 32, "SHA-256");
    bool ok = EVP_DigestFinal_ex(s->sha, f.bytes, &n) == 1 && n == sizeof f.bytes;
    mdl_fingerprint_drop(s);
    if (!ok)
        return KVS_SELF_INTERNAL;
    *out = f;
    return KVS_OK;
}

kvs_status mdl_fingerprint_file(const struct mdl_gguf *g, const uint8_t *bytes, size_t size,
                                struct mdl_fingerprint *out)
{
    struct mdl_fingerprint_state *s;
    uint64_t header = mdl_gguf_header_bytes(g);
    if (header > size)
        return KVS_SELF_MODEL;
    kvs_status status = mdl_fingerprint_begin(bytes, (size_t)header, &s);
    if (status != KVS_OK)
        return status;
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(g); i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(g, i);
        status = t->data != NULL ? mdl_fingerprint_tensor(s, t->data, (size_t)t->bytes) : KVS_SELF_MODEL;
        if (status != KVS_OK) {
            mdl_fingerprint_drop(s);
            return status;
        }
    }
    return mdl_fingerprint_end(s, out);
}
