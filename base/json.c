/* json.c - JSON out: answers, stream events, status pages.
 * Output is always one valid document: text that is not UTF-8 has each bad part replaced by U+FFFD, numbers that JSON cannot
 * say become null, control characters are escaped (so a document never contains a line end: one event, one line).
 * What a level expects is kept in two bits of comma[level]: a comma is due, and "this level is an object". Wrong nesting is
 * our own bug and asserts; a full buffer is not, and makes the writer silent until kvs_json_end() reports it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "base/utf8.h"
#include <math.h>
#include <string.h>

enum { COMMA = 1, OBJECT = 2 };

static void put(struct kvs_json *j, const void *bytes, size_t n)
{
    if (j->status == KVS_OK) {
        j->status = kvs_buf_append(j->out, bytes, n);
    }
}

/* Before any value: comma and place in the document. */
static void value(struct kvs_json *j)
{
    if (j->status != KVS_OK) {
        return;
    }
    uint8_t *level = &j->comma[j->depth];
    KVS_ASSERT(((*level & OBJECT) != 0) == j->after_key); /* a key before each value of an object, and nowhere else */
    KVS_ASSERT(j->depth > 0 || (*level & COMMA) == 0);    /* one document, one value */
    if (j->after_key) {
        j->after_key = false;
    } else {
        if ((*level & COMMA) != 0) {
            put(j, ",", 1);
        }
        *level |= COMMA;
    }
}

static void open_level(struct kvs_json *j, const char *bracket, uint8_t bits)
{
    value(j);
    if (j->status != KVS_OK) {
        return;
    }
    if (j->depth == KVS_JSON_DEPTH_MAX) {
        j->status = KVS_BUSY_FULL;
        return;
    }
    put(j, bracket, 1);
    j->comma[++j->depth] = bits;
}

static void close_level(struct kvs_json *j, const char *bracket, uint8_t bits)
{
    if (j->status != KVS_OK) {
        return;
    }
    KVS_ASSERT(j->depth > 0 && (j->comma[j->depth] & OBJECT) == bits && !j->after_key);
    j->depth--;
    put(j, bracket, 1);
}

void kvs_json_begin(struct kvs_json *j, struct kvs_buf *out)
{
    *j = (struct kvs_json){.out = out, .status = KVS_OK};
}

kvs_status kvs_json_end(struct kvs_json *j)
{
    KVS_ASSERT(j->status != KVS_OK || (j->depth == 0 && !j->after_key));
    return j->status;
}

void kvs_json_object(struct kvs_json *j)
{
    open_level(j, "{", OBJECT);
}
void kvs_json_object_end(struct kvs_json *j)
{
    close_level(j, "}", OBJECT);
}
void kvs_json_array(struct kvs_json *j)
{
    open_level(j, "[", 0);
}
void kvs_json_array_end(struct kvs_json *j)
{
    close_level(j, "]", 0);
}

static void escape(struct kvs_json *j, uint8_t c)
{
    static const char *const hex = "0123456789abcdef";
    char two[2] = {'\\', 0};
    switch (c) {
    case '"':
    case '\\': two[1] = (char)c; break;
    case '\b': two[1] = 'b'; break;
    case '\f': two[1] = 'f'; break;
    case '\n': two[1] = 'n'; break;
    case '\r': two[1] = 'r'; break;
    case '\t': two[1] = 't'; break;
    default: {
        const char six[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        put(j, six, sizeof six);
        return;
    }
    }
    put(j, two, sizeof two);
}

static void quoted(struct kvs_json *j, const uint8_t *p, size_t n)
{
    put(j, "\"", 1);
    size_t done = 0; /* everything before it is written */
    size_t i = 0;
    while (i < n && j->status == KVS_OK) {
        uint32_t cp;
        int len = kvs_utf8_decode(p + i, n - i, &cp);
        if (len > 0 && cp >= 0x20 && cp != '"' && cp != '\\') {
            i += (size_t)len;
            continue;
        }
        put(j, p + done, i - done);
        if (len <= 0) {
            put(j, "\xEF\xBF\xBD", 3);
            i += kvs_utf8_bad_len(p + i, n - i);
        } else {
            escape(j, p[i]);
            i++;
        }
        done = i;
    }
    put(j, p + done, i - done);
    put(j, "\"", 1);
}

void kvs_json_key(struct kvs_json *j, const char *key)
{
    if (j->status != KVS_OK) {
        return;
    }
    KVS_ASSERT((j->comma[j->depth] & OBJECT) != 0 && !j->after_key);
    if ((j->comma[j->depth] & COMMA) != 0) {
        put(j, ",", 1);
    }
    j->comma[j->depth] |= COMMA;
    quoted(j, (const uint8_t *)key, strlen(key));
    put(j, ":", 1);
    j->after_key = true;
}

void kvs_json_bytes(struct kvs_json *j, const void *text, size_t n)
{
    value(j);
    quoted(j, text, n);
}

void kvs_json_string(struct kvs_json *j, const char *text)
{
    kvs_json_bytes(j, text, strlen(text));
}

void kvs_json_u64(struct kvs_json *j, uint64_t v)
{
    char text[32];
    value(j);
    put(j, text, kvs_format(text, sizeof text, "%llu", (unsigned long long)v));
}

void kvs_json_i64(struct kvs_json *j, int64_t v)
{
    char text[32];
    value(j);
    put(j, text, kvs_format(text, sizeof text, "%lld", (long long)v));
}

void kvs_json_f32(struct kvs_json *j, float v)
{
    char text[40];
    if (!isfinite(v)) {
        kvs_json_null(j);
        return;
    }
    value(j);
    put(j, text, kvs_format(text, sizeof text, "%.9g", (double)v));
}

void kvs_json_f64(struct kvs_json *j, double v)
{
    char text[40];
    if (!isfinite(v)) {
        kvs_json_null(j);
        return;
    }
    value(j);
    put(j, text, kvs_format(text, sizeof text, "%.15g", v));
}

void kvs_json_bool(struct kvs_json *j, bool v)
{
    value(j);
    put(j, v ? "true" : "false", v ? 4 : 5);
}

void kvs_json_null(struct kvs_json *j)
{
    value(j);
    put(j, "null", 4);
}

void kvs_json_field_string(struct kvs_json *j, const char *key, const char *text)
{
    kvs_json_key(j, key);
    kvs_json_string(j, text);
}

void kvs_json_field_u64(struct kvs_json *j, const char *key, uint64_t v)
{
    kvs_json_key(j, key);
    kvs_json_u64(j, v);
}

void kvs_json_field_f64(struct kvs_json *j, const char *key, double v)
{
    kvs_json_key(j, key);
    kvs_json_f64(j, v);
}

void kvs_json_field_bool(struct kvs_json *j, const char *key, bool v)
{
    kvs_json_key(j, key);
    kvs_json_bool(j, v);
}
