/* parts.c - see parts.h. Every part is a GGUF file of its own with keys
 *
 *   split.no             which part it is, from 0 on          split.count   how many there are
 *   split.tensors.count  tensors of all parts together
 *
 * and tensors at offsets within itself. All other keys stand in the first part; what a later part repeats must be the same, byte for byte.
 * (A part's general.alignment is only its own.) Each part is read by the reader of whole files, which checks all that one file can say; here
 * the parts are held against each other. Then the header of the whole is written, and read by the same reader once more: so the joined model
 * passes every check that a whole one passes, and routers get a header like any other.
 *
 * Whoever split a file kept the order of its tensors, and writers put tensors one behind the other; so this header is, byte for byte, that of the
 * file before it was split, and the model's identity is the same.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/parts.h"
#include "base/buf.h"
#include "base/checked.h"
#include "model/gguf_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OTHER_MODEL "it is of another model, or damaged: fetch all parts anew, from one place"
#define ENDING_LEN 20u /* -00001-of-00003.gguf */

struct join {
    const struct mdl_part *part;
    struct mdl_gguf **g; /* of each part */
    uint32_t count;
    uint64_t tensors;
    const uint8_t **data; /* of each tensor */
    struct kvs_buf header;
};

static bool count_of(const char *text, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < 5; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *out = *out * 10 + (uint32_t)(text[i] - '0');
    }
    return *out > 0;
}

bool mdl_part_name(const char *path, uint32_t *no_out, uint32_t *count_out, size_t *stem_out)
{
    size_t n = strlen(path);
    const char *end = path + n - ENDING_LEN;
    uint32_t no, count;
    if (n <= ENDING_LEN || end[-1] == '/' || end[0] != '-' || !count_of(end + 1, &no) || memcmp(end + 6, "-of-", 4) != 0 ||
        !count_of(end + 10, &count) || memcmp(end + 15, ".gguf", 5) != 0 || no > count)
        return false;
    if (no_out != NULL)
        *no_out = no;
    if (count_out != NULL)
        *count_out = count;
    if (stem_out != NULL)
        *stem_out = n - ENDING_LEN;
    return true;
}

void mdl_part_rename(char *path, uint32_t no)
{
    char digits[8];
    size_t stem;
    bool named = mdl_part_name(path, NULL, NULL, &stem);
    KVS_ASSERT(named && no <= 99999);
    (void)kvs_format(digits, sizeof digits, "%05" PRIu32, no);
    memcpy(path + stem + 1, digits, 5);
}

size_t mdl_stem(const char *name)
{
    size_t stem, n = strlen(name);
    if (mdl_part_name(name, NULL, NULL, &stem))
        return stem;
    if (n <= 5 || name[n - 5] != '.')
        return n;
    for (size_t i = 0; i < 4; i++) {
        if ((name[n - 4 + i] | 0x20) != "gguf"[i])
            return n;
    }
    return n - 5;
}

static kvs_status split_key(const struct mdl_gguf *g, const char *key, uint64_t *out, struct kvs_error *err)
{
    const char *kind = mdl_gguf_kind(g, key);
    if (kind == NULL)
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s' is missing; " OTHER_MODEL, key);
    if (!mdl_gguf_u64(g, key, out))
        return kvs_fail(err, KVS_SELF_MODEL, "GGUF key '%s' is no count (its kind is %s)", key, kind);
    return KVS_OK;
}

kvs_status mdl_parts_count(const struct mdl_gguf *g, uint32_t *count_out, struct kvs_error *err)
{
    uint64_t count = 0;
    if (mdl_gguf_kind(g, "split.count") != NULL) {
        kvs_status s = split_key(g, "split.count", &count, err);
        if (s != KVS_OK)
            return s;
    }
    if (count > MDL_PARTS_MAX)
        return kvs_fail(err, KVS_SELF_MODEL, "split.count is %" PRIu64 ": more than %u parts are not supported, merge them first", count,
                        MDL_PARTS_MAX);
    *count_out = count > 1 ? (uint32_t)count : 1; /* a file that was merged again says 0 */
    return KVS_OK;
}

/* Puts the part's name in front of the error. */
static kvs_status part_fault(const struct join *j, uint32_t p, kvs_status s, struct kvs_error *err)
{
    if (s == KVS_OK || err == NULL)
        return s;
    struct kvs_error cause = *err;
    return kvs_fail(err, s, "part %" PRIu32 " of %" PRIu32 ", '%.60s': %s", p + 1, j->count, j->part[p].name, cause.text);
}

static kvs_status check_numbers(const struct join *j, uint32_t p, struct kvs_error *err)
{
    const struct {
        const char *key;
        uint64_t want;
    } rows[] = {{"split.count", j->count}, {"split.no", p}, {"split.tensors.count", j->tensors}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t have;
        kvs_status s = split_key(j->g[p], rows[i].key, &have, err);
        if (s != KVS_OK)
            return s;
        if (have != rows[i].want || have > MDL_TENSORS_MAX)
            return kvs_fail(err, KVS_SELF_MODEL, "%s is %" PRIu64 ", not %" PRIu64 "; " OTHER_MODEL, rows[i].key, have,
                            rows[i].want < MDL_TENSORS_MAX ? rows[i].want : MDL_TENSORS_MAX);
    }
    return KVS_OK;
}

/* A key's kind and value, as they stand in the file. */
static const uint8_t *value_of(const struct mdl_gguf *g, const struct gguf_key *k, size_t *size_out)
{
    const uint8_t *begin = (const uint8_t *)k->name.data + k->name.len;
    bool last = k + 1 == g->keys + g->key_count;
    const uint8_t *end = last ? g->keys_end : (const uint8_t *)k[1].name.data - 8;
    *size_out = (size_t)(end - begin);
    return begin;
}

static bool named(struct mdl_str s, const char *name)
{
    return s.len == strlen(name) && memcmp(s.data, name, s.len) == 0;
}

static bool of_the_split(const struct gguf_key *k)
{
    return named(k->name, "split.no") || named(k->name, "split.count") || named(k->name, "split.tensors.count");
}

static kvs_status check_keys(const struct join *j, uint32_t p, struct kvs_error *err)
{
    const struct mdl_gguf *first = j->g[0], *g = j->g[p];
    for (uint64_t i = 0; i < g->key_count; i++) {
        const struct gguf_key *k = &g->keys[i], *other = mdl_gguf_key(first, k->name);
        char text[MDL_QUOTE_CAP];
        size_t n, m;
        if (other == NULL || of_the_split(k) || named(k->name, "general.alignment"))
            continue;
        const uint8_t *a = value_of(g, k, &n), *b = value_of(first, other, &m);
        if (n != m || memcmp(a, b, n) != 0)
            return kvs_fail(err, KVS_SELF_MODEL, "key '%s' is not as in the first part; " OTHER_MODEL, mdl_quote(k->name, text));
    }
    return KVS_OK;
}

static kvs_status check_doubles(const struct join *j, uint32_t p, struct kvs_error *err)
{
    for (uint64_t i = 0; i < j->g[p]->tensor_count; i++) {
        const struct mdl_tensor *t = &j->g[p]->tensors[i];
        char text[MDL_QUOTE_CAP];
        for (uint32_t q = 0; q < p; q++) {
            if (mdl_gguf_find_tensor(j->g[q], t->name) != NULL)
                return kvs_fail(err, KVS_SELF_MODEL, "tensor '%s' is in part %" PRIu32 ", too; " OTHER_MODEL, mdl_quote(t->name, text), q + 1);
        }
    }
    return KVS_OK;
}

static kvs_status read_parts(struct join *j, struct kvs_error *err)
{
    uint64_t tensors = 0;
    for (uint32_t p = 0; p < j->count; p++) {
        kvs_status s = mdl_gguf_read(j->part[p].bytes, j->part[p].size, false, &j->g[p], err);
        if (s == KVS_OK && p == 0)
            s = split_key(j->g[0], "split.tensors.count", &j->tensors, err);
        if (s == KVS_OK)
            s = check_numbers(j, p, err);
        if (s == KVS_OK && (tensors += j->g[p]->tensor_count) > j->tensors)
            s = kvs_fail(err, KVS_SELF_MODEL, "with its tensors there are %" PRIu64 ", split.tensors.count says %" PRIu64 "; " OTHER_MODEL, tensors,
                         j->tensors);
        if (s == KVS_OK && p > 0)
            s = check_keys(j, p, err);
        if (s == KVS_OK)
            s = check_doubles(j, p, err);
        if (s != KVS_OK)
            return part_fault(j, p, s, err);
    }
    if (tensors != j->tensors)
        return kvs_fail(err, KVS_SELF_MODEL,
                        "the parts of '%.60s' hold %" PRIu64 " tensors, split.tensors.count says %" PRIu64
                        ": one is of another model, or damaged; fetch all anew, from one place",
                        j->part[0].name, tensors, j->tensors);
    return KVS_OK;
}

static kvs_status put_u64(struct kvs_buf *b, uint64_t v)
{
    return kvs_buf_append(b, &v, sizeof v);
}

static kvs_status put_keys(struct join *j)
{
    const struct mdl_gguf *g = j->g[0];
    uint64_t count = 0;
    for (uint64_t i = 0; i < g->key_count; i++)
        count += of_the_split(&g->keys[i]) ? 0 : 1;
    kvs_status s = put_u64(&j->header, j->tensors);
    s = s == KVS_OK ? put_u64(&j->header, count) : s;
    for (uint64_t i = 0; s == KVS_OK && i < g->key_count; i++) {
        const struct gguf_key *k = &g->keys[i];
        size_t n;
        const uint8_t *value = value_of(g, k, &n);
        if (!of_the_split(k))
            s = kvs_buf_append(&j->header, k->name.data - 8, (size_t)(value + n - (const uint8_t *)k->name.data) + 8);
    }
    return s;
}

/* The entries are copied as they stand, but for the offset, which comes last in each. */
static kvs_status put_tensors(struct join *j, uint64_t alignment)
{
    uint64_t offset = 0, at = 0;
    for (uint32_t p = 0; p < j->count; p++) {
        for (uint64_t i = 0; i < j->g[p]->tensor_count; i++, at++) {
            const struct mdl_tensor *t = &j->g[p]->tensors[i];
            size_t n = 8 + t->name.len + 4 + 8 * (size_t)t->dims + 4;
            kvs_status s = kvs_buf_append(&j->header, t->name.data - 8, n);
            s = s == KVS_OK ? put_u64(&j->header, offset) : s;
            if (s != KVS_OK)
                return s;
            j->data[at] = t->data;
            /* All of it is in memory, so the sum does not wrap. */
            offset = (offset + t->bytes + alignment - 1) / alignment * alignment;
        }
    }
    while (j->header.len % alignment != 0) {
        kvs_status s = kvs_buf_append(&j->header, "", 1);
        if (s != KVS_OK)
            return s;
    }
    return KVS_OK;
}

static kvs_status write_header(struct join *j, struct kvs_error *err)
{
    uint64_t alignment = 32, most = 0;
    uint8_t *room;
    (void)mdl_gguf_u64(j->g[0], "general.alignment", &alignment);
    for (uint32_t p = 0; p < j->count; p++)
        most += j->g[p]->header_bytes;
    most += alignment;
    kvs_buf_init(&j->header, (size_t)most);
    kvs_status s = kvs_buf_reserve(&j->header, (size_t)most, &room); /* at once: growing would hold it twice */
    s = s == KVS_OK ? kvs_buf_append(&j->header, j->part[0].bytes, 8) : s; /* magic and version */
    s = s == KVS_OK ? put_keys(j) : s;
    s = s == KVS_OK ? put_tensors(j, alignment) : s;
    return s == KVS_OK ? s : kvs_fail(err, s, "no memory for the header of all parts");
}

static void drop_parts(struct join *j)
{
    for (uint32_t p = 0; j->g != NULL && p < j->count; p++)
        mdl_gguf_destroy(j->g[p]);
    free(j->g);
    j->g = NULL;
}

static kvs_status join(struct join *j, uint8_t **header_out, struct mdl_gguf **out, struct kvs_error *err)
{
    struct mdl_gguf *g;
    j->g = calloc(j->count, sizeof(*j->g));
    if (j->g == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the parts of the model");
    kvs_status s = read_parts(j, err);
    if (s != KVS_OK)
        return s;
    j->data = calloc((size_t)j->tensors + 1, sizeof(*j->data));
    if (j->data == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the tensors of all parts");
    s = write_header(j, err);
    if (s != KVS_OK)
        return s;
    drop_parts(j);
    s = mdl_gguf_read(j->header.data, j->header.len, true, &g, err);
    if (s != KVS_OK)
        return s;
    for (uint64_t i = 0; i < j->tensors; i++)
        g->tensors[i].data = j->data[i];
    size_t n;
    *header_out = kvs_buf_take(&j->header, &n);
    *out = g;
    return KVS_OK;
}

kvs_status mdl_parts_join(const struct mdl_part *parts, uint32_t count, uint8_t **header_out, struct mdl_gguf **out, struct kvs_error *err)
{
    KVS_ASSERT(count >= 1 && count <= MDL_PARTS_MAX);
    struct join j = {.part = parts, .count = count};
    kvs_status s = join(&j, header_out, out, err);
    drop_parts(&j);
    free(j.data);
    kvs_buf_fini(&j.header);
    return s;
}
