/* etcd_codec.c - see etcd_codec.h. Written with the tree's own JSON writer, read with jansson.
 * A range over a prefix ends before the prefix with its last byte raised by one; our prefixes end in '/', so that
 * byte exists. Text of errors goes through the JSON parser too, so it is UTF-8 and bounded before anybody sees it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/etcd_codec.h"
#include "base/json.h"
#include "net/json_load.h"
#include <string.h>

#define SCRATCH_MAX ((size_t)4 << 20) /* base64 of one value; etcd takes 1.5 MiB */

/* ---- base64 ---- */

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

kvs_status net_base64_append(struct kvs_buf *out, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    uint8_t *to;
    if (n > SIZE_MAX / 4) {
        return KVS_BUSY_FULL;
    }
    size_t len = (n + 2) / 3 * 4;
    kvs_status s = kvs_buf_reserve(out, len, &to);
    if (s != KVS_OK) {
        return s;
    }
    for (size_t i = 0; i < n; i += 3, to += 4) {
        size_t left = n - i;
        uint32_t v = (uint32_t)b[i] << 16 | (left > 1 ? (uint32_t)b[i + 1] << 8 : 0) | (left > 2 ? b[i + 2] : 0);
        to[0] = (uint8_t)alphabet[v >> 18];
        to[1] = (uint8_t)alphabet[v >> 12 & 63];
        to[2] = (uint8_t)(left > 1 ? alphabet[v >> 6 & 63] : '=');
        to[3] = (uint8_t)(left > 2 ? alphabet[v & 63] : '=');
    }
    kvs_buf_commit(out, len);
    return KVS_OK;
}

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

kvs_status net_base64_decode(const char *text, size_t n, struct kvs_arena *a, uint8_t **out, size_t *bytes_out)
{
    if (n % 4 != 0) {
        return KVS_PEER_PROTOCOL;
    }
    size_t pad = n == 0 ? 0 : (size_t)(text[n - 1] == '=') + (size_t)(text[n - 1] == '=' && text[n - 2] == '=');
    size_t bytes = n / 4 * 3 - pad, at = 0;
    uint8_t *to = kvs_arena_alloc(a, bytes + 1); /* and a NUL */
    if (to == NULL) {
        return KVS_SELF_NOMEM;
    }
    for (size_t i = 0; i < n; i += 4) {
        size_t here = i + 4 == n ? 4 - pad : 4; /* digits of this quartet */
        uint32_t v = 0;
        for (size_t k = 0; k < 4; k++) {
            int d = k < here ? digit(text[i + k]) : 0;
            if (d < 0) {
                return KVS_PEER_PROTOCOL;
            }
            v = v << 6 | (uint32_t)d;
        }
        for (size_t k = 0; k < 3; k++) {
            uint8_t byte = (uint8_t)(v >> (16 - 8 * k));
            if (at < bytes) {
                to[at++] = byte;
            } else if (byte != 0) {
                return KVS_PEER_PROTOCOL; /* bits that belong to no byte */
            }
        }
    }
    *out = to;
    *bytes_out = bytes;
    return KVS_OK;
}

/* ---- requests ---- */

static void put_i64(struct kvs_json *j, const char *name, int64_t v)
{
    char text[24];
    kvs_format(text, sizeof text, "%lld", (long long)v);
    kvs_json_field_string(j, name, text);
}

static void put_bytes(struct kvs_json *j, const char *name, const void *bytes, size_t n)
{
    struct kvs_buf b;
    kvs_buf_init(&b, SCRATCH_MAX);
    kvs_json_key(j, name);
    kvs_status s = net_base64_append(&b, bytes, n);
    if (s != KVS_OK && j->status == KVS_OK) { /* the writer keeps the first error */
        j->status = s == KVS_BUSY_FULL ? KVS_REQ_TOO_LARGE : s;
    } else if (s == KVS_OK) {
        kvs_json_bytes(j, b.data, b.len);
    }
    kvs_buf_fini(&b);
}

static void put_prefix(struct kvs_json *j, const char *prefix)
{
    char end[NET_ETCD_KEY_MAX];
    size_t n = strlen(prefix);
    KVS_ASSERT(n > 0 && n < sizeof end && (uint8_t)prefix[n - 1] < 0xff);
    memcpy(end, prefix, n);
    end[n - 1]++;
    put_bytes(j, "key", prefix, n);
    put_bytes(j, "range_end", end, n);
}

static void put_op(struct kvs_json *j, const char *key, const void *value, size_t n, int64_t lease)
{
    put_bytes(j, "key", key, strlen(key));
    put_bytes(j, "value", value, n);
    if (lease != 0) {
        put_i64(j, "lease", lease);
    }
}

kvs_status net_etcd_put_grant(struct kvs_buf *out, int64_t ttl_s)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    put_i64(&j, "TTL", ttl_s);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

kvs_status net_etcd_put_lease(struct kvs_buf *out, int64_t lease)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    put_i64(&j, "ID", lease);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

kvs_status net_etcd_put_range(struct kvs_buf *out, const char *prefix, int64_t limit)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    put_prefix(&j, prefix);
    if (limit != 0) {
        put_i64(&j, "limit", limit);
    }
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

kvs_status net_etcd_put_put(struct kvs_buf *out, const char *key, const void *value, size_t n, int64_t lease)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    put_op(&j, key, value, n, lease);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

kvs_status net_etcd_put_delete(struct kvs_buf *out, const char *prefix)
{
    return net_etcd_put_range(out, prefix, 0);
}

kvs_status net_etcd_put_swap(struct kvs_buf *out, const char *key, int64_t mod_revision, const void *value, size_t n,
                             int64_t lease)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    kvs_json_key(&j, "compare");
    kvs_json_array(&j);
    kvs_json_object(&j);
    put_bytes(&j, "key", key, strlen(key));
    kvs_json_field_string(&j, "result", "EQUAL");
    kvs_json_field_string(&j, "target", "MOD");
    put_i64(&j, "mod_revision", mod_revision);
    kvs_json_object_end(&j);
    kvs_json_array_end(&j);
    kvs_json_key(&j, "success");
    kvs_json_array(&j);
    kvs_json_object(&j);
    kvs_json_key(&j, "request_put");
    kvs_json_object(&j);
    put_op(&j, key, value, n, lease);
    kvs_json_object_end(&j);
    kvs_json_object_end(&j);
    kvs_json_array_end(&j);
    kvs_json_key(&j, "failure");
    kvs_json_array(&j);
    kvs_json_object(&j);
    kvs_json_key(&j, "request_range");
    kvs_json_object(&j);
    put_bytes(&j, "key", key, strlen(key));
    kvs_json_object_end(&j);
    kvs_json_object_end(&j);
    kvs_json_array_end(&j);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

kvs_status net_etcd_put_watch(struct kvs_buf *out, const char *prefix, int64_t start_revision)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    kvs_json_key(&j, "create_request");
    kvs_json_object(&j);
    put_prefix(&j, prefix);
    put_i64(&j, "start_revision", start_revision);
    kvs_json_object_end(&j);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

kvs_status net_etcd_put_login(struct kvs_buf *out, const char *user, const char *password)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    kvs_json_field_string(&j, "name", user);
    kvs_json_field_string(&j, "password", password);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

/* ---- answers ---- */

/* A field that is absent is 0; one that is there must be a whole number, as a string or bare. */
static bool read_i64(const json_t *object, const char *name, int64_t *out)
{
    const json_t *v = json_object_get(object, name);
    *out = 0;
    if (v == NULL) {
        return true;
    }
    if (json_is_integer(v)) {
        *out = (int64_t)json_integer_value(v);
        return true;
    }
    const char *s = json_string_value(v);
    size_t n = s != NULL ? json_string_length(v) : 0, i = 0;
    bool negative = n > 0 && s[0] == '-';
    uint64_t sum = 0;
    for (i = negative; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || sum > (UINT64_MAX - 9) / 10) {
            return false;
        }
        sum = sum * 10 + (uint64_t)(s[i] - '0');
    }
    if (n == (size_t)negative || sum > (uint64_t)INT64_MAX + negative) {
        return false;
    }
    *out = negative ? (int64_t)(0 - sum) : (int64_t)sum;
    return true;
}

static bool read_bool(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}

static kvs_status malformed(struct kvs_error *err, const char *what)
{
    return kvs_fail(err, KVS_PEER_PROTOCOL, "etcd's answer is not understood: %s", what);
}

static kvs_status read_bytes(const json_t *object, const char *name, struct kvs_arena *a, uint8_t **out, size_t *n_out,
                             struct kvs_error *err)
{
    const json_t *v = json_object_get(object, name);
    if (v != NULL && !json_is_string(v)) {
        return malformed(err, name);
    }
    kvs_status s =
        net_base64_decode(v != NULL ? json_string_value(v) : "", v != NULL ? json_string_length(v) : 0, a, out, n_out);
    return s == KVS_PEER_PROTOCOL ? malformed(err, "base64") : s != KVS_OK ? kvs_fail(err, s, "out of memory") : s;
}

/* skip_out: the key is none of ours (too long, or a NUL inside). */
static kvs_status read_kv(const json_t *object, struct kvs_arena *a, struct net_etcd_kv *out, bool *skip_out,
                          struct kvs_error *err)
{
    uint8_t *key, *value;
    size_t key_bytes, value_bytes;
    if (!json_is_object(object)) {
        return malformed(err, "kv");
    }
    kvs_status s = read_bytes(object, "key", a, &key, &key_bytes, err);
    if (s == KVS_OK) {
        s = read_bytes(object, "value", a, &value, &value_bytes, err);
    }
    if (s != KVS_OK) {
        return s;
    }
    if (!read_i64(object, "mod_revision", &out->mod_revision) || !read_i64(object, "lease", &out->lease)) {
        return malformed(err, "number in a kv");
    }
    *skip_out = key_bytes == 0 || key_bytes >= NET_ETCD_KEY_MAX || memchr(key, 0, key_bytes) != NULL;
    out->key = (const char *)key;
    out->value = value;
    out->value_bytes = value_bytes;
    return KVS_OK;
}

static kvs_status read_kvs(const json_t *range, struct kvs_arena *a, struct net_etcd_answer *out, struct kvs_error *err)
{
    const json_t *list = json_object_get(range, "kvs");
    size_t n = json_array_size(list);
    if ((list != NULL && !json_is_array(list)) || n > NET_ETCD_KVS_MAX) {
        return malformed(err, "kvs");
    }
    struct net_etcd_kv *kvs = kvs_arena_array(a, n + 1, sizeof *kvs);
    if (kvs == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        bool skip;
        kvs_status s = read_kv(json_array_get(list, i), a, &kvs[out->kv_count], &skip, err);
        if (s != KVS_OK) {
            return s;
        }
        out->kv_count += !skip;
    }
    out->kvs = kvs;
    out->more = read_bool(range, "more");
    return KVS_OK;
}

static kvs_status read_answer(const json_t *root, struct kvs_arena *a, struct net_etcd_answer *out,
                              struct kvs_error *err)
{
    const json_t *result = json_object_get(root, "result"); /* of what streams */
    const json_t *o = result != NULL ? result : root;
    const json_t *responses = json_object_get(o, "responses"), *range = o;
    if (!json_is_object(o) || json_object_get(root, "error") != NULL) {
        return malformed(err, "not an object");
    }
    if (!read_i64(json_object_get(o, "header"), "revision", &out->revision) || !read_i64(o, "ID", &out->lease) ||
        !read_i64(o, "TTL", &out->ttl)) {
        return malformed(err, "number");
    }
    out->succeeded = read_bool(o, "succeeded");
    const char *token = json_string_value(json_object_get(o, "token"));
    out->token = kvs_arena_dup(a, token != NULL ? token : "", token != NULL ? strlen(token) : 0);
    if (out->token == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < json_array_size(responses); i++) {
        const json_t *r = json_object_get(json_array_get(responses, i), "response_range");
        if (r != NULL) {
            range = r;
            break;
        }
    }
    return read_kvs(range, a, out, err);
}

static kvs_status parse(const void *json, size_t n, json_t **out, struct kvs_error *err)
{
    kvs_status s = net_json_load(json, n, JSON_REJECT_DUPLICATES, NULL, out);
    return s == KVS_OK ? s : s == KVS_SELF_NOMEM ? kvs_fail(err, s, "out of memory") : malformed(err, "not JSON");
}

kvs_status net_etcd_answer_decode(const void *json, size_t n, struct kvs_arena *a, struct net_etcd_answer *out,
                                  struct kvs_error *err)
{
    json_t *root;
    kvs_status s = parse(json, n, &root, err);
    memset(out, 0, sizeof *out);
    if (s == KVS_OK) {
        s = read_answer(root, a, out, err);
    }
    json_decref(root);
    return s;
}

static kvs_status read_events(const json_t *list, struct kvs_arena *a, struct net_etcd_watch_line *out,
                              struct kvs_error *err)
{
    size_t n = json_array_size(list);
    if ((list != NULL && !json_is_array(list)) || n > NET_ETCD_KVS_MAX) {
        return malformed(err, "events");
    }
    struct net_etcd_event *events = kvs_arena_array(a, n + 1, sizeof *events);
    if (events == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(list, i), *type = json_object_get(e, "type");
        bool skip;
        if (type != NULL && !json_is_string(type)) {
            return malformed(err, "type of an event");
        }
        struct net_etcd_event *to = &events[out->event_count];
        to->deleted = type != NULL && strcmp(json_string_value(type), "DELETE") == 0;
        if (type != NULL && !to->deleted && strcmp(json_string_value(type), "PUT") != 0) {
            return malformed(err, "type of an event");
        }
        kvs_status s = read_kv(json_object_get(e, "kv"), a, &to->kv, &skip, err);
        if (s != KVS_OK) {
            return s;
        }
        out->event_count += !skip;
    }
    out->events = events;
    return KVS_OK;
}

static kvs_status read_watch(const json_t *root, struct kvs_arena *a, struct net_etcd_watch_line *out,
                             struct kvs_error *err)
{
    const json_t *o = json_object_get(root, "result");
    if (!json_is_object(o)) { /* the stream's end: no leader, no permission */
        const json_t *e = json_object_get(root, "error");
        const char *text = json_string_value(json_object_get(e, "message"));
        if (!json_is_object(e)) {
            return malformed(err, "neither result nor error");
        }
        out->canceled = true;
        kvs_format(out->reason, sizeof out->reason, "%s", text != NULL ? text : "watch ended with an error");
        return KVS_OK;
    }
    const char *reason = json_string_value(json_object_get(o, "cancel_reason"));
    out->created = read_bool(o, "created");
    out->canceled = read_bool(o, "canceled");
    kvs_format(out->reason, sizeof out->reason, "%s", reason != NULL ? reason : "");
    if (!read_i64(json_object_get(o, "header"), "revision", &out->revision) ||
        !read_i64(o, "compact_revision", &out->compact_revision)) {
        return malformed(err, "number");
    }
    return read_events(json_object_get(o, "events"), a, out, err);
}

kvs_status net_etcd_watch_decode(const void *json, size_t n, struct kvs_arena *a, struct net_etcd_watch_line *out,
                                 struct kvs_error *err)
{
    json_t *root;
    kvs_status s = parse(json, n, &root, err);
    memset(out, 0, sizeof *out);
    if (s == KVS_OK) {
        s = read_watch(root, a, out, err);
    }
    json_decref(root);
    return s;
}

int net_etcd_error_decode(const void *json, size_t n, char *text_out, size_t cap)
{
    struct kvs_error ignored = {0};
    json_t *root;
    (void)parse(json, n, &root, &ignored);
    const json_t *inner = json_object_get(root, "error");
    const json_t *o = json_is_object(inner) ? inner : root; /* streams nest it */
    const char *text = json_string_value(json_object_get(o, "message"));
    int64_t code = 0;
    bool read = read_i64(o, json_object_get(o, "code") != NULL ? "code" : "grpc_code", &code);
    if (text == NULL) {
        text = json_string_value(inner);
    }
    kvs_format(text_out, cap, "%s", text != NULL ? text : "no error text");
    json_decref(root);
    return read && code > 0 && code < 1000 ? (int)code : 0;
}
