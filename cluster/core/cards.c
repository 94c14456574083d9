/* cards.c - may two workers share KV? Everything that decides a page's bytes or its meaning must be the same on both.
 * Names, URLs, context length, capacity and roles may differ. The first difference is named with both values, as a
 * user would look for it: model file first, then how numbers are computed, then how pages lie.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/core/registry.h"
#include <string.h>

static kvs_status differ_text(const struct msg_card *a, const struct msg_card *b, const char *field, const char *va,
                              const char *vb, struct kvs_error *err)
{
    return kvs_fail(err, KVS_PEER_MISMATCH, "%s and %s differ in %s: %.60s and %.60s", a->id, b->id, field, va, vb);
}

static kvs_status differ_number(const struct msg_card *a, const struct msg_card *b, const char *field, uint64_t va,
                                uint64_t vb, struct kvs_error *err)
{
    return kvs_fail(err, KVS_PEER_MISMATCH, "%s and %s differ in %s: %llu and %llu", a->id, b->id, field,
                    (unsigned long long)va, (unsigned long long)vb);
}

static kvs_status same_fingerprint(const struct msg_card *a, const struct msg_card *b, struct kvs_error *err)
{
    char hex[2][24] = {"", ""};
    if (memcmp(a->fingerprint, b->fingerprint, sizeof a->fingerprint) == 0) {
        return KVS_OK;
    }
    for (size_t i = 0; i < 8; i++) {
        (void)kvs_format(hex[0] + 2 * i, 3, "%02x", a->fingerprint[i]);
        (void)kvs_format(hex[1] + 2 * i, 3, "%02x", b->fingerprint[i]);
    }
    return kvs_fail(err, KVS_PEER_MISMATCH,
                    "%s and %s have different model files (fingerprint): %s (%.40s) and %s (%.40s)", a->id, b->id,
                    hex[0], a->model, hex[1], b->model);
}

static kvs_status same_texts(const struct msg_card *a, const struct msg_card *b, struct kvs_error *err)
{
    if (strcmp(a->numerics, b->numerics) != 0) {
        return differ_text(a, b, "numerics class", a->numerics, b->numerics, err);
    }
    if (strcmp(a->kv_types, b->kv_types) != 0) {
        return differ_text(a, b, "KV types", a->kv_types, b->kv_types, err);
    }
    if (strcmp(a->rope, b->rope) != 0) {
        return differ_text(a, b, "rope settings", a->rope, b->rope, err);
    }
    return KVS_OK;
}

static kvs_status same_pages(const struct msg_card *a, const struct msg_card *b, struct kvs_error *err)
{
    if (a->block_tokens != b->block_tokens) {
        return differ_number(a, b, "block tokens", a->block_tokens, b->block_tokens, err);
    }
    if (a->vocab != b->vocab) {
        return differ_number(a, b, "vocabulary", a->vocab, b->vocab, err);
    }
    if (a->group_count != b->group_count) {
        return differ_number(a, b, "number of groups", a->group_count, b->group_count, err);
    }
    for (uint32_t g = 0; g < a->group_count; g++) {
        if (a->group[g].page_bytes != b->group[g].page_bytes) {
            return differ_number(a, b, "page bytes", a->group[g].page_bytes, b->group[g].page_bytes, err);
        }
    }
    if (strcmp(a->layout, b->layout) != 0) {
        return differ_text(a, b, "page layout", a->layout, b->layout, err);
    }
    return KVS_OK;
}

kvs_status cls_cards_compatible(const struct msg_card *a, const struct msg_card *b, struct kvs_error *err)
{
    if (a->protocol_min > b->protocol_max || b->protocol_min > a->protocol_max) {
        return kvs_fail(err, KVS_PEER_MISMATCH, "%s and %s have no protocol version in common: %u to %u and %u to %u",
                        a->id, b->id, a->protocol_min, a->protocol_max, b->protocol_min, b->protocol_max);
    }
    kvs_status s = same_fingerprint(a, b, err);
    if (s == KVS_OK) {
        s = same_texts(a, b, err);
    }
    return s == KVS_OK ? same_pages(a, b, err) : s;
}
