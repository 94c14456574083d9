/* keys.c - see keys.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/keys.h"

#include <inttypes.h>
#include <string.h>

bool mdl_str_is(struct mdl_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

kvs_status mdl_key_f64(const struct mdl_gguf *g, const char *key, bool *there, double *out, struct kvs_error *err)
{
    const char *kind = mdl_gguf_kind(g, key);
    *there = kind != NULL;
    if (kind == NULL || mdl_gguf_number(g, key, out))
        return KVS_OK;
    return kvs_fail(err, KVS_SELF_MODEL, "%s: its value of kind %s is no number that can be used here", key, kind);
}

kvs_status mdl_key_u64(const struct mdl_gguf *g, const char *key, bool *there, uint64_t *out, struct kvs_error *err)
{
    double v = 0;
    *there = true;
    if (mdl_gguf_u64(g, key, out))
        return KVS_OK;
    kvs_status s = mdl_key_f64(g, key, there, &v, err);
    if (s != KVS_OK || !*there)
        return s;
    if (!(v >= 0 && v <= 9007199254740992.0) || v != (double)(uint64_t)v)
        return kvs_fail(err, KVS_SELF_MODEL, "%s: its value of kind %s, %g, is not an unsigned integer", key,
                        mdl_gguf_kind(g, key), v);
    *out = (uint64_t)v;
    return KVS_OK;
}

kvs_status mdl_key_bool(const struct mdl_gguf *g, const char *key, bool *inout, struct kvs_error *err)
{
    double v = 0;
    bool there;
    if (mdl_gguf_bool(g, key, inout))
        return KVS_OK;
    kvs_status s = mdl_key_f64(g, key, &there, &v, err);
    if (s != KVS_OK || !there)
        return s;
    if (v != 0 && v != 1)
        return kvs_fail(err, KVS_SELF_MODEL, "%s: %g is neither true nor false", key, v);
    *inout = v == 1;
    return KVS_OK;
}

kvs_status mdl_key_str(const struct mdl_gguf *g, const char *key, struct mdl_str *out, struct kvs_error *err)
{
    const char *kind = mdl_gguf_kind(g, key);
    *out = (struct mdl_str){NULL, 0};
    if (kind == NULL || mdl_gguf_str(g, key, out))
        return KVS_OK;
    return kvs_fail(err, KVS_SELF_MODEL, "%s: its value of kind %s is not a string", key, kind);
}

kvs_status mdl_key_id(const struct mdl_gguf *g, const char *key, int32_t fallback, uint32_t vocab, int32_t *out,
                      struct kvs_error *err)
{
    uint64_t v = 0;
    double below = 0;
    bool there;
    *out = fallback >= 0 && (uint32_t)fallback < vocab ? fallback : -1;
    if (mdl_gguf_number(g, key, &below) && below == -1) {
        *out = -1;
        return KVS_OK;
    }
    kvs_status s = mdl_key_u64(g, key, &there, &v, err);
    if (s != KVS_OK || !there)
        return s;
    *out = -1;
    if (v == UINT32_MAX)
        return KVS_OK;
    if (v >= vocab)
        return kvs_fail(err, KVS_SELF_MODEL, "%s: %" PRIu64 " is outside the vocabulary of %" PRIu32, key, v, vocab);
    *out = (int32_t)v;
    return KVS_OK;
}
