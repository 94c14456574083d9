/* quantize.c - `kvasir quantize IN OUT TYPE`: a GGUF file with F32, F16 or BF16 weights into one of another type.
 *
 * Which tensor gets which type is quantize_mix.c's. Keys are copied byte for byte, but for general.file_type and
 * general.quantization_version. The file is written beside its name and renamed at the end, so that OUT is whole or not there.
 * Weights that are quantized already are refused: rounding twice loses more than the type says.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "cli/model_table.h"
#include "cli/quantize_mix.h"
#include "engine/ops/f16.h"
#include "engine/quantize.h"
#include "model/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_MAX ((size_t)1 << 30)
#define CHUNK 8192u /* weights at a time: a multiple of every block */

struct job {
    const struct mdl_gguf *g;
    const struct mdl_model *in;
    const struct cli_quant_target *to;
    uint64_t alignment;
    FILE *out;
    uint64_t changed, kept, fell_back, bytes;
};

static bool plain(mdl_type type)
{
    return type == MDL_F32 || type == MDL_F16 || type == MDL_BF16;
}

static mdl_type type_after(const struct job *j, const struct mdl_tensor *t)
{
    return cli_quant_choose(j->to, j->g, t).type;
}

static uint64_t bytes_of(const struct mdl_tensor *t, mdl_type type)
{
    uint32_t weights = 1, bytes = 0;
    (void)mdl_type_block(type, &weights, &bytes);
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3] / weights * bytes;
}

static uint64_t aligned(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static kvs_status put_u32(struct kvs_buf *b, uint32_t v)
{
    return kvs_buf_append(b, &v, sizeof v);
}

static kvs_status put_u64(struct kvs_buf *b, uint64_t v)
{
    return kvs_buf_append(b, &v, sizeof v);
}

static kvs_status put_key(struct kvs_buf *b, const char *key, uint32_t v)
{
    kvs_status s = put_u64(b, strlen(key));
    s = s == KVS_OK ? kvs_buf_puts(b, key) : s;
    s = s == KVS_OK ? put_u32(b, 4) : s; /* u32 */
    return s == KVS_OK ? put_u32(b, v) : s;
}

/* The keys' bytes as they stand between the counts and the first tensor's entry; those in `set` get new values or are added. */
static kvs_status put_keys(const struct job *j, struct kvs_buf *b)
{
    const struct {
        const char *key;
        uint32_t value;
    } set[] = {{"general.file_type", j->to->file_type}, {"general.quantization_version", 2}};
    const uint8_t *begin = j->in->header + 24;
    const char *first_name = mdl_gguf_tensor_at(j->g, 0)->name.data;
    struct kvs_buf keys;
    struct mdl_str key;
    char text[8];
    uint64_t count = 0;
    kvs_buf_init(&keys, HEADER_MAX);
    kvs_status s = kvs_buf_append(&keys, begin, (size_t)((const uint8_t *)first_name - 8 - begin));
    bool seen[2] = {false, false};
    for (; s == KVS_OK && mdl_gguf_key_at(j->g, count, &key, text, sizeof text); count++) {
        size_t at = (size_t)((const uint8_t *)key.data + key.len - begin);
        for (size_t i = 0; i < 2; i++) {
            if (key.len == strlen(set[i].key) && memcmp(key.data, set[i].key, key.len) == 0 &&
                kvs_load_u32(begin + at) == 4) {
                kvs_store_u32(keys.data + at + 4, set[i].value);
                seen[i] = true;
            }
        }
    }
    uint64_t added = 0;
    for (size_t i = 0; i < 2 && s == KVS_OK; i++) {
        uint64_t have;
        if (!seen[i] && !mdl_gguf_u64(j->g, set[i].key, &have)) {
            s = put_key(&keys, set[i].key, set[i].value);
            added++;
        }
    }
    s = s == KVS_OK ? put_u64(b, count + added) : s;
    s = s == KVS_OK ? kvs_buf_append(b, keys.data, keys.len) : s;
    kvs_buf_fini(&keys);
    return s;
}

static kvs_status put_header(struct job *j, struct kvs_buf *b)
{
    uint64_t n = mdl_gguf_tensor_count(j->g), offset = 0;
    kvs_status s = kvs_buf_append(b, j->in->header, 8); /* magic and version */
    s = s == KVS_OK ? put_u64(b, n) : s;
    s = s == KVS_OK ? put_keys(j, b) : s;
    for (uint64_t i = 0; i < n && s == KVS_OK; i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(j->g, i);
        mdl_type type = type_after(j, t);
        s = put_u64(b, t->name.len);
        s = s == KVS_OK ? kvs_buf_append(b, t->name.data, t->name.len) : s;
        s = s == KVS_OK ? put_u32(b, t->dims) : s;
        for (uint32_t d = 0; d < t->dims && s == KVS_OK; d++)
            s = put_u64(b, t->shape[d]);
        s = s == KVS_OK ? put_u32(b, (uint32_t)type) : s;
        s = s == KVS_OK ? put_u64(b, offset) : s;
        offset = aligned(offset + bytes_of(t, type), j->alignment);
    }
    for (uint64_t end = aligned(b->len, j->alignment); s == KVS_OK && b->len < end;)
        s = kvs_buf_append(b, "", 1);
    return s;
}

static kvs_status put_bytes(struct job *j, const void *bytes, size_t n, struct kvs_error *err)
{
    j->bytes += n;
    if (fwrite(bytes, 1, n, j->out) != n)
        return kvs_fail(err, KVS_SELF_IO, "the new file cannot be written: %s", strerror(errno));
    return KVS_OK;
}

static float weight_at(const struct mdl_tensor *t, uint64_t i)
{
    switch (t->type) {
    case MDL_F16: return eng_f16_to_f32(kvs_load_u16(t->data + 2 * i));
    case MDL_BF16: return eng_bf16_to_f32(kvs_load_u16(t->data + 2 * i));
    default: return kvs_load_f32(t->data + 4 * i);
    }
}

static kvs_status convert(struct job *j, const struct mdl_tensor *t, mdl_type type, struct kvs_error *err)
{
    static float x[CHUNK];
    static uint8_t blocks[CHUNK * 2];
    uint32_t weights = 1, bytes = 0;
    uint64_t n = t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    (void)mdl_type_block(type, &weights, &bytes);
    for (uint64_t i = 0; i < n; i += CHUNK) {
        uint32_t m = n - i < CHUNK ? (uint32_t)(n - i) : CHUNK;
        for (uint32_t k = 0; k < m; k++)
            x[k] = weight_at(t, i + k);
        if (!eng_quantize(type, x, m, blocks))
            return kvs_fail(err, KVS_SELF_MODEL,
                            "tensor %.*s holds a weight that %s cannot hold (NaN, infinity or too large)",
                            (int)(t->name.len < 100 ? t->name.len : 100), t->name.data, mdl_type_name(type));
        kvs_status s = put_bytes(j, blocks, (size_t)m / weights * bytes, err);
        if (s != KVS_OK)
            return s;
    }
    return KVS_OK;
}

static kvs_status put_tensors(struct job *j, struct kvs_error *err)
{
    static const uint8_t zeros[64];
    uint64_t begin = j->bytes;
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(j->g); i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(j->g, i);
        struct cli_quant_choice to = cli_quant_choose(j->to, j->g, t);
        bool change = to.type != t->type;
        kvs_status s = change ? convert(j, t, to.type, err) : put_bytes(j, t->data, (size_t)t->bytes, err);
        j->changed += change ? 1 : 0;
        j->kept += change ? 0 : 1;
        j->fell_back += change && to.fell_back ? 1 : 0;
        for (uint64_t end = begin + aligned(j->bytes - begin, j->alignment); s == KVS_OK && j->bytes < end;)
            s = put_bytes(j, zeros, (size_t)(end - j->bytes < sizeof zeros ? end - j->bytes : sizeof zeros), err);
        if (s != KVS_OK)
            return s;
    }
    return KVS_OK;
}

/* What would be changed must be plain; said before anything is written. */
static kvs_status check_types(const struct job *j, struct kvs_error *err)
{
    if (mdl_gguf_tensor_count(j->g) == 0)
        return kvs_fail(err, KVS_SELF_MODEL, "the file has no tensors");
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(j->g); i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(j->g, i);
        if (type_after(j, t) != t->type && !plain(t->type))
            return kvs_fail(err, KVS_SELF_UNSUPPORTED,
                            "tensor %.*s has type %s; quantize from a file in F32, F16 or BF16",
                            (int)(t->name.len < 100 ? t->name.len : 100), t->name.data, mdl_type_name(t->type));
    }
    return KVS_OK;
}

static kvs_status write_all(struct job *j, struct kvs_error *err)
{
    struct kvs_buf header;
    kvs_buf_init(&header, HEADER_MAX);
    kvs_status s = put_header(j, &header);
    if (s != KVS_OK)
        s = kvs_fail(err, s, "no memory for the new file's header");
    if (s == KVS_OK)
        s = put_bytes(j, header.data, header.len, err);
    kvs_buf_fini(&header);
    if (s == KVS_OK)
        s = put_tensors(j, err);
    if (s == KVS_OK)
        s = mdl_model_check(j->in, err);
    if (s == KVS_OK && (fflush(j->out) != 0 || fsync(fileno(j->out)) != 0))
        s = kvs_fail(err, KVS_SELF_IO, "the new file cannot be written: %s", strerror(errno));
    return s;
}

static kvs_status write_file(struct job *j, const char *path, struct kvs_error *err)
{
    char part[CLI_PATH_MAX + 32];
    (void)kvs_format(part, sizeof part, "%s.%ld.part", path, (long)getpid());
    if (access(path, F_OK) == 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "'%.160s' is there already; remove it or give another name", path);
    j->out = fopen(part, "wbxe");
    if (!j->out)
        return kvs_fail(err, KVS_SELF_IO, "'%.160s' cannot be made: %s", part, strerror(errno));
    kvs_status s = write_all(j, err);
    bool closed = fclose(j->out) == 0;
    if (s == KVS_OK && (!closed || rename(part, path) != 0))
        s = kvs_fail(err, KVS_SELF_IO, "'%.160s' cannot be written: %s", path, strerror(errno));
    if (s != KVS_OK)
        (void)unlink(part);
    return s;
}

static kvs_status quantize(const char *in, const char *out, const char *type, struct kvs_error *err)
{
    struct job j = {.to = cli_quant_target(type), .alignment = 32};
    struct mdl_model m = {0};
    if (!j.to)
        return kvs_fail(err, KVS_SELF_CONFIG, "type '%.20s' is not one of " CLI_QUANT_NAMES, type);
    if (strlen(out) >= CLI_PATH_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "the name of the new file is too long");
    kvs_status s = cli_model_fault(mdl_model_open(in, &m, err), in, err);
    if (s == KVS_OK) {
        j.g = m.gguf;
        j.in = &m;
        (void)mdl_gguf_u64(m.gguf, "general.alignment", &j.alignment);
        s = check_types(&j, err);
    }
    if (s == KVS_OK)
        s = write_file(&j, out, err);
    if (s == KVS_OK)
        printf("%s: %llu tensors to %s, %llu kept, %.1f MB -> %.1f MB\n", out, (unsigned long long)j.changed,
               j.to->name, (unsigned long long)j.kept, (double)m.bytes / 1e6, (double)j.bytes / 1e6);
    if (s == KVS_OK && j.fell_back > 0)
        printf("%llu of them have rows that are no multiple of 256 and got a type of 32-blocks (%s)\n",
               (unsigned long long)j.fell_back,
               "iq4_nl for q2_k, q3_k, iq4_xs; q5_0 for q4_k; q5_1 for q5_k; q8_0 for q6_k");
    mdl_model_close(&m);
    return s;
}

int cli_quantize(int argc, char **argv)
{
    static const struct cli_usage usage = {
        .text = "usage: kvasir quantize IN OUT TYPE\n"
                "IN is a GGUF file (or the first part of a split one) with F32, F16 or BF16 weights; TYPE is\n" CLI_QUANT_NAMES ".",
        .positionals_max = 3,
    };
    static const struct kvs_config_row none[1];
    struct kvs_error err = {0};
    char config[8];
    int rest, code = cli_flags(none, 0, config, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    if (argc - rest != 3) {
        (void)kvs_fail(&err, KVS_SELF_CONFIG, "quantize needs IN, OUT and TYPE; kvasir quantize --help says more");
        return cli_failed(&err);
    }
    return quantize(argv[rest], argv[rest + 1], argv[rest + 2], &err) == KVS_OK ? 0 : cli_failed(&err);
}
