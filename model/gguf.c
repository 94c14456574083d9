/* gguf.c - the GGUF reader: one pass over the header with a cursor that asks before every read.
 *
 *   magic u32 | version u32 | tensor count u64 | key count u64
 *   keys:    key string, type u32, value            (string = u64 length + bytes; array = type u32, count u64, elements)
 *   tensors: name string, dims u32, shape u64 each, type u32, offset u64
 *   padding to general.alignment | tensor data, each tensor at its offset, a multiple of the alignment
 *
 * Nothing from the file is believed: a count is compared with the bytes that are left before anything is allocated for
 * it, sums and products are checked for wrapping, and tensors may not overlap or leave the file. Key and tensor names
 * are sorted once: duplicates are then neighbours, whatever names an attacker picks, and look-ups are binary searches.
 * Strings are borrowed from the bytes; only tables of offsets are allocated.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/gguf_int.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GGUF_MAGIC 0x46554747u
#define GGUF_KEYS_MAX 16384u
#define GGUF_TENSORS_MAX MDL_TENSORS_MAX
#define GGUF_NAME_MAX 256u  /* tensor names; the format says 64, some converters write more */
#define GGUF_KEY_MAX 65535u /* the format's own bound */
#define GGUF_DEPTH_MAX 4u   /* arrays of arrays */
#define GGUF_ALIGNMENT_MAX (1u << 20)
#define QUOTE_CAP MDL_QUOTE_CAP
#define quote mdl_quote

enum gguf_kind {
    KIND_U8,
    KIND_I8,
    KIND_U16,
    KIND_I16,
    KIND_U32,
    KIND_I32,
    KIND_F32,
    KIND_BOOL,
    KIND_STRING,
    KIND_ARRAY,
    KIND_U64,
    KIND_I64,
    KIND_F64,
    KIND_COUNT,
};

static const uint8_t kind_bytes[KIND_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct cursor {
    const uint8_t *at;
    uint64_t left;
};

static const struct {
    mdl_type type;
    const char *name;
    uint32_t weights, bytes;
} type_table[] = {
    {MDL_F32, "F32", 1, 4},       {MDL_F16, "F16", 1, 2},         {MDL_BF16, "BF16", 1, 2},
    {MDL_Q4_0, "Q4_0", 32, 18},   {MDL_Q4_1, "Q4_1", 32, 20},     {MDL_Q5_0, "Q5_0", 32, 22},
    {MDL_Q5_1, "Q5_1", 32, 24},   {MDL_Q8_0, "Q8_0", 32, 34},     {MDL_Q2_K, "Q2_K", 256, 84},
    {MDL_Q3_K, "Q3_K", 256, 110}, {MDL_Q4_K, "Q4_K", 256, 144},   {MDL_Q5_K, "Q5_K", 256, 176},
    {MDL_Q6_K, "Q6_K", 256, 210}, {MDL_IQ4_NL, "IQ4_NL", 32, 18}, {MDL_IQ4_XS, "IQ4_XS", 256, 136},
    {MDL_MXFP4, "MXFP4", 32, 17},
};
#define TYPE_COUNT (sizeof type_table / sizeof type_table[0])

bool mdl_type_block(mdl_type type, uint32_t *weights_out, uint32_t *bytes_out)
{
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        if (type_table[i].type == type) {
            *weights_out = type_table[i].weights;
            *bytes_out = type_table[i].bytes;
            return true;
        }
    }
    return false;
}

const char *mdl_type_name(mdl_type type)
{
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        if (type_table[i].type == type)
            return type_table[i].name;
    }
    return "unknown";
}

/* A name from the file as it may stand in an error text: printable ASCII, cut short. */
const char *mdl_quote(struct mdl_str s, char out[MDL_QUOTE_CAP])
{
    size_t n = s.len < QUOTE_CAP - 4 ? s.len : QUOTE_CAP - 4;
    for (size_t i = 0; i < n; i++)
        out[i] = s.data[i] >= 32 && s.data[i] < 127 ? s.data[i] : '?';
    if (n < s.len) {
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n] = '\0';
    return out;
}

static bool cursor_has(const struct cursor *c, uint64_t n)
{
    return n <= c->left;
}

static const uint8_t *cursor_take(struct cursor *c, uint64_t n)
{
    KVS_ASSERT(cursor_has(c, n));
    const uint8_t *p = c->at;
    c->at += n;
    c->left -= n;
    return p;
}

static bool read_u32(struct cursor *c, uint32_t *out)
{
    if (!cursor_has(c, 4))
        return false;
    *out = kvs_load_u32(cursor_take(c, 4));
    return true;
}

static bool read_u64(struct cursor *c, uint64_t *out)
{
    if (!cursor_has(c, 8))
        return false;
    *out = kvs_load_u64(cursor_take(c, 8));
    return true;
}

static bool read_str(struct cursor *c, struct mdl_str *out)
{
    uint64_t len;
    if (!read_u64(c, &len) || !cursor_has(c, len))
        return false;
    out->data = (const char *)cursor_take(c, len);
    out->len = (size_t)len;
    return true;
}

static bool bools_valid(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] > 1)
            return false;
    }
    return true;
}

/* Steps over an array's elements. Depth is bounded, and every element takes at least a byte of what is left. */
static kvs_status skip_array(struct cursor *c, uint32_t element, uint64_t count, uint32_t depth, const char *key,
                             struct kvs_error *err)
{
    if (element >= KIND_COUNT)
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': array of unknown value type %" PRIu32, key, element);
    if (element == KIND_ARRAY) {
        if (depth >= GGUF_DEPTH_MAX)
            return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': arrays nested more than %u deep", key, GGUF_DEPTH_MAX);
        for (uint64_t i = 0; i < count; i++) {
            uint32_t inner;
            uint64_t inner_count;
            if (!read_u32(c, &inner) || !read_u64(c, &inner_count))
                return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': the file ends inside its array", key);
            kvs_status s = skip_array(c, inner, inner_count, depth + 1, key, err);
            if (s != KVS_OK)
                return s;
        }
        return KVS_OK;
    }
    if (element == KIND_STRING) {
        for (uint64_t i = 0; i < count; i++) {
            struct mdl_str s;
            if (!read_str(c, &s))
                return kvs_fail(err, KVS_SELF_MODEL,
                                "GGUF key '%s': the file ends inside string %" PRIu64 " of %" PRIu64, key, i, count);
        }
        return KVS_OK;
    }
    uint64_t bytes;
    if (!kvs_mul_u64(count, kind_bytes[element], &bytes) || !cursor_has(c, bytes))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': count %" PRIu64 " is more than the file holds", key,
                        count);
    const uint8_t *p = cursor_take(c, bytes);
    if (element == KIND_BOOL && !bools_valid(p, count))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': a bool that is neither 0 nor 1", key);
    return KVS_OK;
}

static kvs_status read_array(struct cursor *c, struct gguf_key *k, const char *key, struct kvs_error *err)
{
    if (!read_u32(c, &k->element) || !read_u64(c, &k->count))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': the file ends inside its value", key);
    /* A string takes 8 bytes at least, so the table below is never larger than what is left of the file. */
    uint64_t least = k->element == KIND_STRING ? 8 : k->element == KIND_ARRAY ? 12 : 1, bytes;
    if (!kvs_mul_u64(k->count, least, &bytes) || !cursor_has(c, bytes))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': count %" PRIu64 " is more than the file holds", key,
                        k->count);
    k->value = c->at;
    struct cursor first = *c;
    kvs_status s = skip_array(c, k->element, k->count, 1, key, err);
    if (s != KVS_OK || k->element != KIND_STRING || k->count == 0)
        return s;
    k->strings = malloc((size_t)k->count * sizeof *k->strings);
    if (k->strings == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "GGUF key '%s': no memory for %" PRIu64 " strings", key, k->count);
    for (uint64_t i = 0; i < k->count; i++) {
        struct mdl_str str;
        k->strings[i] = (uint64_t)(first.at - k->value);
        bool ok = read_str(&first, &str);
        KVS_ASSERT(ok);
    }
    return KVS_OK;
}

static kvs_status read_value(struct cursor *c, struct gguf_key *k, const char *key, struct kvs_error *err)
{
    if (k->kind >= KIND_COUNT)
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': unknown value type %" PRIu32, key, k->kind);
    if (k->kind == KIND_ARRAY)
        return read_array(c, k, key, err);
    k->value = c->at;
    if (k->kind == KIND_STRING) {
        struct mdl_str s;
        if (!read_str(c, &s))
            return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': its string is longer than the file", key);
        return KVS_OK;
    }
    if (!cursor_has(c, kind_bytes[k->kind]))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': the file ends inside its value", key);
    (void)cursor_take(c, kind_bytes[k->kind]);
    if (k->kind == KIND_BOOL && !bools_valid(k->value, 1))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': a bool that is neither 0 nor 1", key);
    return KVS_OK;
}

static kvs_status read_keys(struct mdl_gguf *g, struct cursor *c, struct kvs_error *err)
{
    for (uint64_t i = 0; i < g->key_count; i++) {
        struct gguf_key *k = &g->keys[i];
        char text[QUOTE_CAP];
        if (!read_str(c, &k->name))
            return kvs_fail(err, KVS_SELF_MODEL,
                            "GGUF key %" PRIu64 " of %" PRIu64 ": its name is longer than the file", i, g->key_count);
        if (k->name.len == 0 || k->name.len > GGUF_KEY_MAX)
            return kvs_fail(err, KVS_SELF_MODEL, "GGUF key %" PRIu64 ": name length %zu is not between 1 and %u", i,
                            k->name.len, GGUF_KEY_MAX);
        quote(k->name, text);
        if (!read_u32(c, &k->kind))
            return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s': the file ends before its value type", text);
        kvs_status s = read_value(c, k, text, err);
        if (s != KVS_OK)
            return s;
    }
    g->keys_end = c->at;
    return KVS_OK;
}

static int compare_str(struct mdl_str a, struct mdl_str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int d = n > 0 ? memcmp(a.data, b.data, n) : 0;
    return d != 0 ? d : (a.len > b.len) - (a.len < b.len);
}

/* Heap sort of indices: no recursion, no worst case, and the comparison sees the table without a global. */
typedef bool (*before_fn)(const struct mdl_gguf *g, uint32_t a, uint32_t b);

static void sift_down(const struct mdl_gguf *g, uint32_t *v, uint64_t at, uint64_t n, before_fn before)
{
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= n)
            return;
        if (child + 1 < n && before(g, v[child], v[child + 1]))
            child++;
        if (!before(g, v[at], v[child]))
            return;
        uint32_t t = v[at];
        v[at] = v[child];
        v[child] = t;
        at = child;
    }
}

static void sort_indices(const struct mdl_gguf *g, uint32_t *v, uint64_t n, before_fn before)
{
    for (uint64_t i = 0; i < n; i++)
        v[i] = (uint32_t)i;
    for (uint64_t i = n / 2; i > 0; i--)
        sift_down(g, v, i - 1, n, before);
    for (uint64_t i = n; i > 1; i--) {
        uint32_t t = v[0];
        v[0] = v[i - 1];
        v[i - 1] = t;
        sift_down(g, v, 0, i - 1, before);
    }
}

static bool key_before(const struct mdl_gguf *g, uint32_t a, uint32_t b)
{
    return compare_str(g->keys[a].name, g->keys[b].name) < 0;
}

static bool tensor_before(const struct mdl_gguf *g, uint32_t a, uint32_t b)
{
    return compare_str(g->tensors[a].name, g->tensors[b].name) < 0;
}

static bool offset_before(const struct mdl_gguf *g, uint32_t a, uint32_t b)
{
    return g->tensors[a].offset < g->tensors[b].offset;
}

static kvs_status index_keys(struct mdl_gguf *g, struct kvs_error *err)
{
    sort_indices(g, g->keys_by_name, g->key_count, key_before);
    for (uint64_t i = 1; i < g->key_count; i++) {
        struct mdl_str a = g->keys[g->keys_by_name[i - 1]].name, b = g->keys[g->keys_by_name[i]].name;
        char text[QUOTE_CAP];
        if (compare_str(a, b) == 0)
            return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s' stands there twice", quote(a, text));
    }
    return KVS_OK;
}

const struct gguf_key *mdl_gguf_key(const struct mdl_gguf *g, struct mdl_str want)
{
    uint64_t lo = 0, hi = g->key_count;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const struct gguf_key *k = &g->keys[g->keys_by_name[mid]];
        int d = compare_str(k->name, want);
        if (d == 0)
            return k;
        if (d < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

static const struct gguf_key *find_key(const struct mdl_gguf *g, const char *name)
{
    return mdl_gguf_key(g, (struct mdl_str){name, strlen(name)});
}

static kvs_status read_alignment(const struct mdl_gguf *g, uint64_t *out, struct kvs_error *err)
{
    *out = 32;
    if (find_key(g, "general.alignment") == NULL)
        return KVS_OK;
    uint64_t a;
    if (!mdl_gguf_u64(g, "general.alignment", &a))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key 'general.alignment' is not an unsigned integer");
    if (a < 8 || a > GGUF_ALIGNMENT_MAX || (a & (a - 1)) != 0)
        return kvs_fail(err, KVS_SELF_MODEL,
                        "GGUF key 'general.alignment': %" PRIu64 " is not a power of two from 8 to %u", a,
                        GGUF_ALIGNMENT_MAX);
    *out = a;
    return KVS_OK;
}

static kvs_status size_tensor(struct mdl_tensor *t, uint32_t type, const char *name, struct kvs_error *err)
{
    uint32_t weights, bytes;
    if (!mdl_type_block((mdl_type)type, &weights, &bytes))
        return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': type %" PRIu32 " is not known", name, type);
    t->type = (mdl_type)type;
    uint64_t n = 1;
    for (uint32_t d = 0; d < t->dims; d++) {
        if (t->shape[d] == 0)
            return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': dimension %" PRIu32 " is 0", name, d);
        if (!kvs_mul_u64(n, t->shape[d], &n) || n > INT64_MAX)
            return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': the product of its dimensions is too large", name);
    }
    if (t->shape[0] % weights != 0)
        return kvs_fail(err, KVS_SELF_MODEL,
                        "tensor '%s': row length %" PRIu64 " is no multiple of the block of %s (%" PRIu32 ")", name,
                        t->shape[0], mdl_type_name(t->type), weights);
    if (!kvs_mul_u64(n / weights, bytes, &t->bytes) || t->bytes > INT64_MAX)
        return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': its byte count is too large", name);
    return KVS_OK;
}

static kvs_status read_tensors(struct mdl_gguf *g, struct cursor *c, uint64_t alignment, struct kvs_error *err)
{
    for (uint64_t i = 0; i < g->tensor_count; i++) {
        struct mdl_tensor *t = &g->tensors[i];
        char name[QUOTE_CAP];
        uint32_t type;
        if (!read_str(c, &t->name))
            return kvs_fail(err, KVS_SELF_MODEL, "tensor %" PRIu64 " of %" PRIu64 ": its name is longer than the file",
                            i, g->tensor_count);
        if (t->name.len == 0 || t->name.len > GGUF_NAME_MAX)
            return kvs_fail(err, KVS_SELF_MODEL, "tensor %" PRIu64 ": name length %zu is not between 1 and %u", i,
                            t->name.len, GGUF_NAME_MAX);
        quote(t->name, name);
        if (!read_u32(c, &t->dims))
            return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': the file ends before its dimensions", name);
        if (t->dims < 1 || t->dims > 4)
            return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': %" PRIu32 " dimensions, not 1 to 4", name, t->dims);
        t->shape[0] = t->shape[1] = t->shape[2] = t->shape[3] = 1;
        for (uint32_t d = 0; d < t->dims; d++) {
            if (!read_u64(c, &t->shape[d]))
                return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': the file ends inside its dimensions", name);
        }
        if (!read_u32(c, &type) || !read_u64(c, &t->offset))
            return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': the file ends before its type and offset", name);
        kvs_status s = size_tensor(t, type, name, err);
        if (s != KVS_OK)
            return s;
        uint64_t end;
        if (t->offset % alignment != 0)
            return kvs_fail(err, KVS_SELF_MODEL,
                            "tensor '%s': offset %" PRIu64 " is no multiple of the alignment %" PRIu64, name, t->offset,
                            alignment);
        if (!kvs_add_u64(t->offset, t->bytes, &end) || end > INT64_MAX)
            return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s': offset %" PRIu64 " is too large", name, t->offset);
    }
    return KVS_OK;
}

static kvs_status check_overlap(struct mdl_gguf *g, struct kvs_error *err)
{
    /* The index of names is not needed yet: its memory serves for the order by offset. */
    uint32_t *order = g->tensors_by_name;
    char name[QUOTE_CAP], other[QUOTE_CAP];
    sort_indices(g, order, g->tensor_count, offset_before);
    for (uint64_t i = 1; i < g->tensor_count; i++) {
        const struct mdl_tensor *a = &g->tensors[order[i - 1]], *b = &g->tensors[order[i]];
        if (a->offset + a->bytes > b->offset)
            return kvs_fail(err, KVS_SELF_MODEL, "tensors '%s' and '%s' overlap", quote(a->name, name),
                            quote(b->name, other));
    }
    sort_indices(g, order, g->tensor_count, tensor_before);
    for (uint64_t i = 1; i < g->tensor_count; i++) {
        const struct mdl_tensor *a = &g->tensors[order[i - 1]], *b = &g->tensors[order[i]];
        if (compare_str(a->name, b->name) == 0)
            return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s' stands there twice", quote(a->name, name));
    }
    return KVS_OK;
}

/* Where tensor data begins, and that all of it is there. */
static kvs_status place_data(struct mdl_gguf *g, const uint8_t *bytes, size_t size, uint64_t end, uint64_t alignment,
                             bool header_only, struct kvs_error *err)
{
    uint64_t start;
    if (!kvs_add_u64(end, alignment - 1, &start))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF header is too large");
    start &= ~(alignment - 1);
    if (g->tensor_count == 0 && start > size)
        start = size; /* vocabulary-only files end without padding */
    g->header_bytes = start;
    if (start > size)
        return kvs_fail(err, KVS_SELF_MODEL,
                        "GGUF file ends inside its header: %zu bytes, tensor data starts at %" PRIu64, size, start);
    if (header_only)
        return KVS_OK;
    for (uint64_t i = 0; i < g->tensor_count; i++) {
        struct mdl_tensor *t = &g->tensors[i];
        char name[QUOTE_CAP];
        if (t->offset + t->bytes > size - start)
            return kvs_fail(err, KVS_SELF_MODEL,
                            "tensor '%s' ends at byte %" PRIu64
                            " but the file has %zu: it is cut short, fetch it again",
                            quote(t->name, name), start + t->offset + t->bytes, size);
        t->data = bytes + start + t->offset;
    }
    return KVS_OK;
}

static kvs_status read_counts(struct mdl_gguf *g, struct cursor *c, struct kvs_error *err)
{
    uint32_t magic, version;
    if (!read_u32(c, &magic) || magic != GGUF_MAGIC)
        return kvs_fail(err, KVS_SELF_MODEL, "not a GGUF file: it does not begin with the letters GGUF");
    if (!read_u32(c, &version))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF file ends before its version");
    if (version != 2 && version != 3)
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF version %" PRIu32 " is not supported (2 and 3 are%s)", version,
                        (version & 0xffff) == 0 && version != 0 ? "; this file is big-endian" : "");
    g->version = version;
    if (!read_u64(c, &g->tensor_count) || !read_u64(c, &g->key_count)) {
        g->tensor_count = g->key_count = 0;
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF file ends before its tensor and key counts");
    }
    uint64_t tensors = g->tensor_count, keys = g->key_count;
    g->tensor_count = g->key_count = 0; /* until their tables exist */
    /* 33 and 14 bytes: the shortest tensor entry and the shortest key with its value. */
    if (tensors > GGUF_TENSORS_MAX || tensors > c->left / 33)
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF tensor count %" PRIu64 " is more than the file can hold (or %u)",
                        tensors, GGUF_TENSORS_MAX);
    if (keys > GGUF_KEYS_MAX || keys > c->left / 14)
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key count %" PRIu64 " is more than the file can hold (or %u)", keys,
                        GGUF_KEYS_MAX);
    g->keys = calloc((size_t)keys + 1, sizeof *g->keys);
    g->keys_by_name = calloc((size_t)keys + 1, sizeof *g->keys_by_name);
    g->tensors = calloc((size_t)tensors + 1, sizeof *g->tensors);
    g->tensors_by_name = calloc((size_t)tensors + 1, sizeof *g->tensors_by_name);
    if (g->keys == NULL || g->keys_by_name == NULL || g->tensors == NULL || g->tensors_by_name == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the GGUF header");
    g->tensor_count = tensors;
    g->key_count = keys;
    return KVS_OK;
}

kvs_status mdl_gguf_read(const uint8_t *bytes, size_t size, bool header_only, struct mdl_gguf **out,
                         struct kvs_error *err)
{
    struct cursor c = {bytes, size};
    uint64_t alignment = 0;
    struct mdl_gguf *g = calloc(1, sizeof *g);
    if (g == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the GGUF header");
    kvs_status s = read_counts(g, &c, err);
    if (s == KVS_OK)
        s = read_keys(g, &c, err);
    if (s == KVS_OK)
        s = index_keys(g, err);
    if (s == KVS_OK)
        s = read_alignment(g, &alignment, err);
    if (s == KVS_OK)
        s = read_tensors(g, &c, alignment, err);
    if (s == KVS_OK)
        s = check_overlap(g, err);
    if (s == KVS_OK)
        s = place_data(g, bytes, size, size - c.left, alignment, header_only, err);
    if (s != KVS_OK) {
        mdl_gguf_destroy(g);
        return s;
    }
    *out = g;
    return KVS_OK;
}

kvs_status mdl_gguf_parse(const uint8_t *bytes, size_t size, bool header_only, struct mdl_gguf **out,
                          struct kvs_error *err)
{
    uint32_t parts;
    struct mdl_gguf *g;
    kvs_status s = mdl_gguf_read(bytes, size, header_only, &g, err);
    if (s == KVS_OK)
        s = mdl_parts_count(g, &parts, err);
    else
        return s;
    if (s == KVS_OK && parts > 1)
        s = kvs_fail(err, KVS_SELF_MODEL, "split.count is %" PRIu32 ": this is a part of a model, all parts are needed",
                     parts);
    if (s != KVS_OK)
        mdl_gguf_destroy(g);
    else
        *out = g;
    return s;
}

void mdl_gguf_destroy(struct mdl_gguf *g)
{
    if (g == NULL)
        return;
    for (uint64_t i = 0; i < g->key_count; i++)
        free(g->keys[i].strings);
    free(g->keys);
    free(g->keys_by_name);
    free(g->tensors);
    free(g->tensors_by_name);
    free(g);
}

uint64_t mdl_gguf_header_bytes(const struct mdl_gguf *g)
{
    return g->header_bytes;
}

uint32_t mdl_gguf_version(const struct mdl_gguf *g)
{
    return g->version;
}

/* Scalars, of a key or of an array's element. */

static bool load_i64(uint32_t kind, const uint8_t *p, int64_t *out)
{
    switch (kind) {
    case KIND_U8:
    case KIND_BOOL: *out = p[0]; return true;
    case KIND_I8: *out = (int8_t)p[0]; return true;
    case KIND_U16: *out = kvs_load_u16(p); return true;
    case KIND_I16: *out = (int16_t)kvs_load_u16(p); return true;
    case KIND_U32: *out = kvs_load_u32(p); return true;
    case KIND_I32: *out = (int32_t)kvs_load_u32(p); return true;
    case KIND_I64: *out = (int64_t)kvs_load_u64(p); return true;
    case KIND_U64: {
        uint64_t v = kvs_load_u64(p);
        *out = (int64_t)v;
        return v <= INT64_MAX;
    }
    default: return false;
    }
}

static bool load_f64(uint32_t kind, const uint8_t *p, double *out)
{
    if (kind == KIND_F32) {
        *out = (double)kvs_load_f32(p);
        return true;
    }
    if (kind != KIND_F64)
        return false;
    memcpy(out, p, sizeof *out);
    return true;
}

bool mdl_gguf_u64(const struct mdl_gguf *g, const char *key, uint64_t *out)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL || k->kind == KIND_BOOL)
        return false;
    if (k->kind == KIND_U64) {
        *out = kvs_load_u64(k->value);
        return true;
    }
    int64_t v;
    if (!load_i64(k->kind, k->value, &v) || v < 0)
        return false;
    *out = (uint64_t)v;
    return true;
}

bool mdl_gguf_f64(const struct mdl_gguf *g, const char *key, double *out)
{
    const struct gguf_key *k = find_key(g, key);
    return k != NULL && load_f64(k->kind, k->value, out);
}

bool mdl_gguf_bool(const struct mdl_gguf *g, const char *key, bool *out)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL || k->kind != KIND_BOOL)
        return false;
    *out = k->value[0] != 0;
    return true;
}

bool mdl_gguf_number(const struct mdl_gguf *g, const char *key, double *out)
{
    const uint64_t exact = 1ull << 53; /* above it a double skips integers */
    const struct gguf_key *k = find_key(g, key);
    int64_t v;
    if (k == NULL || k->kind == KIND_BOOL)
        return false;
    if (load_f64(k->kind, k->value, out))
        return true;
    if (!load_i64(k->kind, k->value, &v) || v > (int64_t)exact || v < -(int64_t)exact)
        return false;
    *out = (double)v;
    return true;
}

static const char *const kind_names[KIND_COUNT] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                   "bool", "string", "array", "u64", "i64", "f64"};

const char *mdl_gguf_kind(const struct mdl_gguf *g, const char *key)
{
    const struct gguf_key *k = find_key(g, key);
    return k != NULL ? kind_names[k->kind] : NULL;
}

static struct mdl_str str_at(const uint8_t *p)
{
    return (struct mdl_str){(const char *)p + 8, (size_t)kvs_load_u64(p)};
}

bool mdl_gguf_str(const struct mdl_gguf *g, const char *key, struct mdl_str *out)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL || k->kind != KIND_STRING)
        return false;
    *out = str_at(k->value);
    return true;
}

bool mdl_gguf_array(const struct mdl_gguf *g, const char *key, uint64_t *count_out)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL || k->kind != KIND_ARRAY)
        return false;
    *count_out = k->count;
    return true;
}

static const struct gguf_key *find_element(const struct mdl_gguf *g, const char *key, uint64_t index)
{
    const struct gguf_key *k = find_key(g, key);
    return k != NULL && k->kind == KIND_ARRAY && index < k->count ? k : NULL;
}

bool mdl_gguf_array_str(const struct mdl_gguf *g, const char *key, uint64_t index, struct mdl_str *out)
{
    const struct gguf_key *k = find_element(g, key, index);
    if (k == NULL || k->element != KIND_STRING)
        return false;
    *out = str_at(k->value + k->strings[index]);
    return true;
}

bool mdl_gguf_array_f64(const struct mdl_gguf *g, const char *key, uint64_t index, double *out)
{
    const struct gguf_key *k = find_element(g, key, index);
    return k != NULL && load_f64(k->element, k->value + index * kind_bytes[k->element], out);
}

bool mdl_gguf_array_i64(const struct mdl_gguf *g, const char *key, uint64_t index, int64_t *out)
{
    const struct gguf_key *k = find_element(g, key, index);
    return k != NULL && k->element != KIND_STRING && k->element != KIND_ARRAY &&
           load_i64(k->element, k->value + index * kind_bytes[k->element], out);
}

bool mdl_gguf_key_at(const struct mdl_gguf *g, uint64_t index, struct mdl_str *key_out, char *text_out, size_t text_cap)
{
    if (index >= g->key_count)
        return false;
    const struct gguf_key *k = &g->keys[index];
    int64_t i;
    double f;
    *key_out = k->name;
    if (k->kind == KIND_ARRAY) {
        kvs_format(text_out, text_cap, "array of %" PRIu64 " %s", k->count, kind_names[k->element]);
    } else if (k->kind == KIND_STRING) {
        char text[QUOTE_CAP];
        kvs_format(text_out, text_cap, "%s", quote(str_at(k->value), text));
    } else if (k->kind == KIND_BOOL) {
        kvs_format(text_out, text_cap, "%s", k->value[0] != 0 ? "true" : "false");
    } else if (load_f64(k->kind, k->value, &f)) {
        kvs_format(text_out, text_cap, "%.9g", f);
    } else if (load_i64(k->kind, k->value, &i)) {
        kvs_format(text_out, text_cap, "%" PRId64, i);
    } else {
        kvs_format(text_out, text_cap, "%" PRIu64, kvs_load_u64(k->value));
    }
    return true;
}

uint64_t mdl_gguf_tensor_count(const struct mdl_gguf *g)
{
    return g->tensor_count;
}

const struct mdl_tensor *mdl_gguf_tensor_at(const struct mdl_gguf *g, uint64_t index)
{
    return index < g->tensor_count ? &g->tensors[index] : NULL;
}

const struct mdl_tensor *mdl_gguf_tensor(const struct mdl_gguf *g, const char *name)
{
    return mdl_gguf_find_tensor(g, (struct mdl_str){name, strlen(name)});
}

const struct mdl_tensor *mdl_gguf_find_tensor(const struct mdl_gguf *g, struct mdl_str want)
{
    uint64_t lo = 0, hi = g->tensor_count;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const struct mdl_tensor *t = &g->tensors[g->tensors_by_name[mid]];
        int d = compare_str(t->name, want);
        if (d == 0)
            return t;
        if (d < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}
