/* json.h - writes JSON into a kvs_buf; valid UTF-8 comes out whatever goes in (bad bytes become U+FFFD).
 * A writer keeps the first error and turns every later call into nothing, so that callers check once, in kvs_json_end().
 * Reading JSON is jansson's job, at the edges.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_JSON_H
#define KVS_BASE_JSON_H

#include "base/buf.h"

#define KVS_JSON_DEPTH_MAX 32

struct kvs_json {
    struct kvs_buf *out;
    kvs_status status;
    uint32_t depth;
    uint8_t comma[KVS_JSON_DEPTH_MAX + 1]; /* a comma is due before the next value of this level */
    bool after_key;
};

void kvs_json_begin(struct kvs_json *j, struct kvs_buf *out);
KVS_MUST_CHECK kvs_status kvs_json_end(struct kvs_json *j); /* asserts balance when no error happened */
void kvs_json_object(struct kvs_json *j);
void kvs_json_object_end(struct kvs_json *j);
void kvs_json_array(struct kvs_json *j);
void kvs_json_array_end(struct kvs_json *j);
void kvs_json_key(struct kvs_json *j, const char *key);
void kvs_json_string(struct kvs_json *j, const char *text);
void kvs_json_bytes(struct kvs_json *j, const void *text, size_t n); /* a string of n bytes */
void kvs_json_u64(struct kvs_json *j, uint64_t v);
void kvs_json_i64(struct kvs_json *j, int64_t v);
void kvs_json_f32(struct kvs_json *j, float v);  /* 9 significant digits: the exact float; null when not finite */
void kvs_json_f64(struct kvs_json *j, double v); /* 15 significant digits; null when not finite */
void kvs_json_bool(struct kvs_json *j, bool v);
void kvs_json_null(struct kvs_json *j);
/* Key and value in one call. */
void kvs_json_field_string(struct kvs_json *j, const char *key, const char *text);
void kvs_json_field_u64(struct kvs_json *j, const char *key, uint64_t v);
void kvs_json_field_f64(struct kvs_json *j, const char *key, double v);
void kvs_json_field_bool(struct kvs_json *j, const char *key, bool v);

#endif
