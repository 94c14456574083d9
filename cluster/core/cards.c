/* cards.c - may two workers share KV? Everything that decides a page's bytes or its meaning must be the same on both.
 * Names, URLs, context length, capacity and roles may differ. The first difference is named with both values, as a
 * user would look for it: model file first, then how numbers are computed, then how pages lie.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/core/registry.h"
#include <string.h>

static bool differ_text(const char *field, const char *va, const char *vb, struct cls_difference *out)
{
    if (strcmp(va, vb) == 0) {
        return false;
    }
    out->field = field;
    (void)kvs_format(out->a, sizeof out->a, "%s", va);
    (void)kvs_format(out->b, sizeof out->b, "%s", vb);
    return true;
}

static bool differ_number(const char *field, uint64_t va, uint64_t vb, struct cls_difference *out)
{
    if (va == vb) {
        return false;
    }
    out->field = field;
    (void)kvs_format(out->a, sizeof out->a, "%llu", (unsigned long long)va);
    (void)kvs_format(out->b, sizeof out->b, "%llu", (unsigned long long)vb);
    return true;
}

/* The model's name stands beside the first bytes: they are what a user can tell apart. */
static void fingerprint_text(const struct msg_card *c, char *out, size_t cap)
{
    char hex[24] = "";
    for (size_t i = 0; i < 8; i++) {
        (void)kvs_format(hex + 2 * i, 3, "%02x", c->fingerprint[i]);
    }
    (void)kvs_format(out, cap, "%s (%.40s)", hex, c->model);
}

static bool differ_fingerprint(const struct msg_card *a, const struct msg_card *b, struct cls_difference *out)
{
    if (memcmp(a->fingerprint, b->fingerprint, sizeof a->fingerprint) == 0) {
        return false;
    }
    out->field = "model file (fingerprint)";
    fingerprint_text(a, out->a, sizeof out->a);
    fingerprint_text(b, out->b, sizeof out->b);
    return true;
}

static bool differ_protocol(const struct msg_card *a, const struct msg_card *b, struct cls_difference *out)
{
    if (a->protocol_min <= b->protocol_max && b->protocol_min <= a->protocol_max) {
        return false;
    }
    out->field = "protocol versions";
    (void)kvs_format(out->a, sizeof out->a, "%u to %u", a->protocol_min, a->protocol_max);
    (void)kvs_format(out->b, sizeof out->b, "%u to %u", b->protocol_min, b->protocol_max);
    return true;
}

static bool differ_pages(const struct msg_card *a, const struct msg_card *b, struct cls_difference *out)
{
    if (differ_number("block tokens", a->block_tokens, b->block_tokens, out) ||
        differ_number("vocabulary", a->vocab, b->vocab, out) ||
        differ_number("number of groups", a->group_count, b->group_count, out)) {
        return true;
    }
    for (uint32_t g = 0; g < a->group_count; g++) {
        if (differ_number("page bytes", a->group[g].page_bytes, b->group[g].page_bytes, out)) {
            return true;
        }
    }
    return differ_text("page layout", a->layout, b->layout, out);
}

bool cls_cards_differ(const struct msg_card *a, const struct msg_card *b, struct cls_difference *out)
{
    return differ_protocol(a, b, out) || differ_fingerprint(a, b, out) ||
           differ_text("numerics class", a->numerics, b->numerics, out) ||
           differ_text("KV types", a->kv_types, b->kv_types, out) || differ_text("rope settings", a->rope, b->rope, out) ||
           differ_pages(a, b, out);
}

kvs_status cls_cards_compatible(const struct msg_card *a, const struct msg_card *b, struct kvs_error *err)
{
    struct cls_difference d;
    if (!cls_cards_differ(a, b, &d)) {
        return KVS_OK;
    }
    return kvs_fail(err, KVS_PEER_MISMATCH, "%s and %s differ in %s: %.60s and %.60s", a->id, b->id, d.field, d.a, d.b);
}
