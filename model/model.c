/* model.c - see model.h. The first file says whether it is whole; if not, the others are opened by their names and joined (parts.c).
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"
#include "model/gguf_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Is this the first of `count` parts, by its name and by its own word? */
static kvs_status check_first(const struct mdl_gguf *g, const char *path, uint32_t count, struct kvs_error *err)
{
    const char *base = base_name(path);
    uint32_t no = 0, of = 0;
    uint64_t place = 0;
    size_t stem = 0;
    bool named = mdl_part_name(base, &no, &of, &stem) && of == count;
    (void)mdl_gguf_u64(g, "split.no", &place);
    if (named && (no > 1 || place > 0))
        return kvs_fail(err, KVS_SELF_MODEL, "'%.70s' is part %" PRIu64 " of %" PRIu32 " of a model: give the first, '%.*s-00001-of-%05" PRIu32 ".gguf'",
                        base, place + 1, count, (int)(stem < 70 ? stem : 70), base, count);
    if (!named)
        return kvs_fail(err, KVS_SELF_MODEL,
                        "'%.70s' is part %" PRIu64 " of %" PRIu32 " of a model, which are found by their names: give the first, whose name ends in -00001-of-%05" PRIu32 ".gguf",
                        base, place + 1, count, count);
    return KVS_OK;
}

static kvs_status join_parts(struct mdl_model *m, const char *path, uint32_t count, struct kvs_error *err)
{
    size_t n = strlen(path) + 1;
    struct mdl_part *part = calloc(count, sizeof *part);
    struct mdl_file *files = realloc(m->part, count * sizeof *files);
    m->part = files != NULL ? files : m->part;
    char *names = malloc(count * n);
    kvs_status s = part != NULL && files != NULL && names != NULL ? KVS_OK : kvs_fail(err, KVS_SELF_NOMEM, "no memory for the parts of the model");
    for (uint32_t p = 0; s == KVS_OK && p < count; p++) {
        char *name = names + p * n;
        memcpy(name, path, n);
        mdl_part_rename(name, p + 1);
        if (p > 0)
            s = mdl_file_open(name, &files[p], err);
        if (s != KVS_OK) {
            struct kvs_error cause = err != NULL ? *err : (struct kvs_error){0};
            s = kvs_fail(err, s, "part %" PRIu32 " of %" PRIu32 " is needed beside the first: %s", p + 1, count, cause.text);
            break;
        }
        m->part_count = p + 1;
        m->bytes += p > 0 ? files[p].size : 0;
        part[p] = (struct mdl_part){.bytes = files[p].bytes, .size = files[p].size, .name = base_name(name)};
    }
    if (s == KVS_OK)
        s = mdl_parts_join(part, count, &m->made, &m->gguf, err);
    free(part);
    free(names);
    return s;
}

static kvs_status open_all(struct mdl_model *m, const char *path, struct kvs_error *err)
{
    uint32_t count;
    m->part = calloc(1, sizeof *m->part);
    if (m->part == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the model");
    kvs_status s = mdl_file_open(path, m->part, err);
    if (s != KVS_OK)
        return s;
    m->part_count = 1;
    m->bytes = m->part->size;
    s = mdl_gguf_read(m->part->bytes, m->part->size, false, &m->gguf, err);
    if (s == KVS_OK)
        s = mdl_parts_count(m->gguf, &count, err);
    if (s == KVS_OK && count > 1) {
        s = check_first(m->gguf, path, count, err);
        mdl_gguf_destroy(m->gguf);
        m->gguf = NULL;
        s = s == KVS_OK ? join_parts(m, path, count, err) : s;
    }
    if (s != KVS_OK)
        return s;
    m->header = m->made != NULL ? m->made : m->part->bytes;
    m->header_bytes = (size_t)mdl_gguf_header_bytes(m->gguf);
    return KVS_OK;
}

kvs_status mdl_model_open(const char *path, struct mdl_model *out, struct kvs_error *err)
{
    struct mdl_model m = {0};
    kvs_status s = open_all(&m, path, err);
    if (s == KVS_OK)
        *out = m;
    else
        mdl_model_close(&m);
    return s;
}

kvs_status mdl_model_check(const struct mdl_model *m, struct kvs_error *err)
{
    for (uint32_t p = 0; p < m->part_count; p++) {
        kvs_status s = mdl_file_check(&m->part[p], err);
        if (s == KVS_OK)
            continue;
        struct kvs_error cause = err != NULL ? *err : (struct kvs_error){0};
        return m->part_count == 1 ? s : kvs_fail(err, s, "part %" PRIu32 " of %" PRIu32 ": %s", p + 1, m->part_count, cause.text);
    }
    return KVS_OK;
}

void mdl_model_done(const struct mdl_model *m, const uint8_t *bytes, size_t count)
{
    for (uint32_t p = 0; p < m->part_count; p++) {
        uintptr_t begin = (uintptr_t)m->part[p].bytes, at = (uintptr_t)bytes;
        if (at >= begin && at < begin + m->part[p].size) {
            mdl_file_done(&m->part[p], bytes, count);
            return;
        }
    }
    KVS_ASSERT(count == 0);
}

uint8_t *mdl_model_take_header(struct mdl_model *m)
{
    uint8_t *out = m->made;
    m->made = NULL;
    if (out == NULL) {
        out = malloc(m->header_bytes);
        if (out != NULL)
            memcpy(out, m->header, m->header_bytes);
    }
    return out;
}

void mdl_model_close(struct mdl_model *m)
{
    mdl_gguf_destroy(m->gguf);
    free(m->made);
    for (uint32_t p = 0; p < m->part_count; p++)
        mdl_file_close(&m->part[p]);
    free(m->part);
    memset(m, 0, sizeof *m);
}
