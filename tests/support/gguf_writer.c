/* gguf_writer.c - see gguf_writer.h. Two growing buffers (keys, tensor entries) and one of data are put behind each other
 * at the end, because the counts stand first in the file.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gguf_writer.h"
#include "base/buf.h"
#include "base/checked.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITER_MAX ((size_t)1 << 30)

struct tst_gguf {
    uint32_t version, alignment;
    uint64_t key_count, tensor_count;
    struct kvs_buf keys, tensors, data;
};

static void need(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "gguf_writer: %s\n", what);
        abort();
    }
}

static void put(struct kvs_buf *b, const void *bytes, size_t n)
{
    need(kvs_buf_append(b, bytes, n) == KVS_OK, "no memory");
}

static void put_u32(struct kvs_buf *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static void put_u64(struct kvs_buf *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static void put_str(struct kvs_buf *b, const void *bytes, size_t n)
{
    put_u64(b, n);
    put(b, bytes, n);
}

static void put_key(struct tst_gguf *w, const char *key, uint32_t kind)
{
    put_str(&w->keys, key, strlen(key));
    put_u32(&w->keys, kind);
    w->key_count++;
}

struct tst_gguf *tst_gguf_create(uint32_t version, uint32_t alignment)
{
    struct tst_gguf *w = calloc(1, sizeof *w);
    need(w != NULL, "no memory");
    w->version = version;
    w->alignment = alignment != 0 ? alignment : 32;
    kvs_buf_init(&w->keys, WRITER_MAX);
    kvs_buf_init(&w->tensors, WRITER_MAX);
    kvs_buf_init(&w->data, WRITER_MAX);
    if (alignment != 0)
        tst_gguf_u32(w, "general.alignment", alignment);
    return w;
}

void tst_gguf_destroy(struct tst_gguf *w)
{
    if (w == NULL)
        return;
    kvs_buf_fini(&w->keys);
    kvs_buf_fini(&w->tensors);
    kvs_buf_fini(&w->data);
    free(w);
}

void tst_gguf_raw(struct tst_gguf *w, const char *key, uint32_t kind, const void *bytes, size_t n)
{
    put_key(w, key, kind);
    put(&w->keys, bytes, n);
}

void tst_gguf_u32(struct tst_gguf *w, const char *key, uint32_t v)
{
    tst_gguf_raw(w, key, 4, &v, sizeof v);
}

void tst_gguf_u64(struct tst_gguf *w, const char *key, uint64_t v)
{
    tst_gguf_raw(w, key, 10, &v, sizeof v);
}

void tst_gguf_f32(struct tst_gguf *w, const char *key, float v)
{
    tst_gguf_raw(w, key, 6, &v, sizeof v);
}

void tst_gguf_bool(struct tst_gguf *w, const char *key, bool v)
{
    uint8_t byte = v ? 1 : 0;
    tst_gguf_raw(w, key, 7, &byte, 1);
}

void tst_gguf_bytes(struct tst_gguf *w, const char *key, const void *v, size_t n)
{
    put_key(w, key, 8);
    put_str(&w->keys, v, n);
}

void tst_gguf_str(struct tst_gguf *w, const char *key, const char *v)
{
    tst_gguf_bytes(w, key, v, strlen(v));
}

static void put_array(struct tst_gguf *w, const char *key, uint32_t element, uint64_t count)
{
    put_key(w, key, 9);
    put_u32(&w->keys, element);
    put_u64(&w->keys, count);
}

void tst_gguf_strs(struct tst_gguf *w, const char *key, const struct mdl_str *v, uint64_t count)
{
    put_array(w, key, 8, count);
    for (uint64_t i = 0; i < count; i++)
        put_str(&w->keys, v[i].data, v[i].len);
}

void tst_gguf_f32s(struct tst_gguf *w, const char *key, const float *v, uint64_t count)
{
    put_array(w, key, 6, count);
    put(&w->keys, v, (size_t)count * sizeof *v);
}

void tst_gguf_i32s(struct tst_gguf *w, const char *key, const int32_t *v, uint64_t count)
{
    put_array(w, key, 5, count);
    put(&w->keys, v, (size_t)count * sizeof *v);
}

static void pad(struct kvs_buf *b, size_t before, uint32_t alignment)
{
    while ((before + b->len) % alignment != 0)
        put(b, "", 1);
}

void tst_gguf_tensor(struct tst_gguf *w, const char *name, uint32_t type, uint32_t dims, const uint64_t *shape,
                     const void *data, size_t n)
{
    pad(&w->data, 0, w->alignment);
    put_str(&w->tensors, name, strlen(name));
    put_u32(&w->tensors, dims);
    for (uint32_t i = 0; i < dims; i++)
        put_u64(&w->tensors, shape[i]);
    put_u32(&w->tensors, type);
    put_u64(&w->tensors, w->data.len);
    put(&w->data, data, n);
    w->tensor_count++;
}

uint8_t *tst_gguf_finish(struct tst_gguf *w, size_t *size_out, size_t *header_out)
{
    struct kvs_buf b;
    kvs_buf_init(&b, WRITER_MAX);
    put(&b, "GGUF", 4);
    put_u32(&b, w->version);
    put_u64(&b, w->tensor_count);
    put_u64(&b, w->key_count);
    put(&b, w->keys.data, w->keys.len);
    put(&b, w->tensors.data, w->tensors.len);
    pad(&b, 0, w->alignment);
    if (header_out != NULL)
        *header_out = b.len;
    put(&b, w->data.data, w->data.len);
    /* An exact copy: a buffer may hold more memory than bytes, and a sanitizer would not see reads past the end. */
    uint8_t *out = malloc(b.len);
    need(out != NULL, "no memory");
    memcpy(out, b.data, b.len);
    *size_out = b.len;
    kvs_buf_fini(&b);
    tst_gguf_destroy(w);
    return out;
}

/* Weights. */

static uint16_t f16_from_f32(float x)
{
    uint32_t u = kvs_load_u32(&x), sign = (u >> 16) & 0x8000;
    int32_t e = (int32_t)((u >> 23) & 0xff) - 127 + 15;
    uint32_t m = u & 0x7fffff;
    if (e >= 31)
        return (uint16_t)(sign | 0x7c00); /* infinity; NaN is not asked for here */
    if (e <= 0) {
        if (e < -10)
            return (uint16_t)sign;
        m |= 0x800000;
        uint32_t shift = (uint32_t)(14 - e), half = 1u << (shift - 1), rest = m & ((1u << shift) - 1), q = m >> shift;
        return (uint16_t)(sign | (q + (rest > half || (rest == half && (q & 1)))));
    }
    uint32_t q = ((uint32_t)e << 10) | (m >> 13), rest = m & 0x1fff;
    return (uint16_t)(sign | (q + (rest > 0x1000 || (rest == 0x1000 && (q & 1)))));
}

static uint8_t code_of(float v, int lo, int hi)
{
    long q = lroundf(v);
    return (uint8_t)(int8_t)(q < lo ? lo : q > hi ? hi : q);
}

static void quantize_q8_0(const float *x, uint8_t *out)
{
    float amax = 0;
    for (int i = 0; i < 32; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    float d = amax / 127;
    kvs_store_u16(out, f16_from_f32(d));
    for (int i = 0; i < 32; i++)
        out[2 + i] = code_of(d != 0 ? x[i] / d : 0, -127, 127);
}

static void quantize_q4(const float *x, bool with_min, uint8_t *out)
{
    float lo = x[0], hi = x[0], peak = 0;
    for (int i = 0; i < 32; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
        peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
    }
    float d = with_min ? (hi - lo) / 15 : peak / -8, base = with_min ? -lo : 0;
    kvs_store_u16(out, f16_from_f32(d));
    if (with_min)
        kvs_store_u16(out + 2, f16_from_f32(lo));
    uint8_t *q = out + (with_min ? 4 : 2);
    for (int i = 0; i < 16; i++) {
        float a = d != 0 ? (x[i] + base) / d : 0, b = d != 0 ? (x[i + 16] + base) / d : 0, shift = with_min ? 0 : 8;
        q[i] = (uint8_t)(code_of(a + shift, 0, 15) | code_of(b + shift, 0, 15) << 4);
    }
}

size_t tst_quantize(mdl_type type, const float *x, size_t n, uint8_t *out)
{
    uint32_t weights, bytes;
    need(mdl_type_block(type, &weights, &bytes) && n % weights == 0, "row length does not fit the type");
    for (size_t i = 0; i < n; i += weights, out += bytes) {
        uint32_t u = kvs_load_u32(&x[i]);
        switch (type) {
        case MDL_F32: kvs_store_u32(out, u); break;
        case MDL_F16: kvs_store_u16(out, f16_from_f32(x[i])); break;
        case MDL_BF16: kvs_store_u16(out, (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16)); break;
        case MDL_Q8_0: quantize_q8_0(x + i, out); break;
        case MDL_Q4_0: quantize_q4(x + i, false, out); break;
        case MDL_Q4_1: quantize_q4(x + i, true, out); break;
        default: need(false, "no quantizer for this type");
        }
    }
    return n / weights * bytes;
}

/* Types without a quantizer here: random codes and inner scales, under a scale that spreads the values as wide as asked and
 * (where there is a minimum) about zero. */
static const struct random_form {
    mdl_type type;
    float reach, middle; /* largest value, and the mean, for a scale of 1 */
    uint32_t d, min;     /* where f16 scale and minimum stand; the same place: no minimum */
    bool min_is_added;
} random_forms[] = {
    {MDL_Q5_0, 16, 0, 0, 0, false},
    {MDL_Q5_1, 16, 15.5f, 0, 2, true},
    {MDL_Q2_K, 1.5f * 15, 1.5f, 80, 82, false},
    {MDL_Q3_K, 4 * 32, 0, 108, 108, false},
    {MDL_Q4_K, 7.5f * 63, 7.5f, 0, 2, false},
    {MDL_Q5_K, 15.5f * 63, 15.5f, 0, 2, false},
    {MDL_Q6_K, 32 * 128, 0, 208, 208, false},
    {MDL_IQ4_NL, 127, 0, 0, 0, false},
    {MDL_IQ4_XS, 127 * 32, 0, 0, 0, false},
    {MDL_MXFP4, 0, 0, 0, 0, false},
};

static const struct random_form *random_form_of(mdl_type type)
{
    for (size_t i = 0; i < sizeof random_forms / sizeof random_forms[0]; i++) {
        if (random_forms[i].type == type)
            return &random_forms[i];
    }
    return NULL;
}

static size_t random_blocks(struct kvs_rng *rng, const struct random_form *f, size_t n, float spread, uint8_t *out)
{
    uint32_t weights, bytes;
    need(mdl_type_block(f->type, &weights, &bytes) && n % weights == 0, "row length does not fit the type");
    for (size_t i = 0; i < n; i += weights, out += bytes) {
        for (uint32_t j = 0; j < bytes; j++)
            out[j] = (uint8_t)(kvs_rng_next(rng) >> 32);
        if (f->type == MDL_MXFP4) {
            int e = 0;
            (void)frexpf(spread / 12, &e);
            out[0] = (uint8_t)(127 + e);
            continue;
        }
        float d = spread / f->reach, m = d * f->middle;
        if (f->min != f->d)
            kvs_store_u16(out + f->min, f16_from_f32(f->min_is_added ? -m : m));
        kvs_store_u16(out + f->d, f16_from_f32(d));
    }
    return n / weights * bytes;
}

static void random_tensor(struct tst_gguf *w, struct kvs_rng *rng, const char *name, mdl_type type, uint64_t row,
                          uint64_t rows, float centre, float spread)
{
    uint64_t shape[2] = {row, rows};
    size_t n = (size_t)(row * rows);
    float *x = malloc(n * sizeof *x);
    uint8_t *out = malloc(n * sizeof *x);
    need(x != NULL && out != NULL, "no memory");
    const struct random_form *f = random_form_of(type);
    for (size_t i = 0; i < n && f == NULL; i++)
        x[i] = centre + spread * ((float)(kvs_rng_next(rng) >> 40) * 0x1p-23f - 1.0f);
    size_t bytes = f != NULL ? random_blocks(rng, f, n, spread, out) : tst_quantize(type, x, n, out);
    tst_gguf_tensor(w, name, type, rows > 1 ? 2 : 1, shape, out, bytes);
    free(x);
    free(out);
}

/* The vocabulary. */

static const char *const merged[] = {
    "th",  "he",  "in", "er", "an", "re", "nd", "on", "ou", "it", "is", "at",  "or",   "en",   "es",  "ed",  "ar",
    "ing", "and", "ll", "om", "_t", "_a", "_w", "_s", "_b", "_h", "_c", "_to", "_the", "_and", "_in", "_is", "ere",
};
_Static_assert(sizeof merged / sizeof merged[0] == TST_LLAMA_VOCAB - 3 - 256 - 1 - 26, "the vocabulary's size");

void tst_llama_vocab(struct tst_gguf *w)
{
    static char text[TST_LLAMA_VOCAB][16];
    struct mdl_str tokens[TST_LLAMA_VOCAB];
    float scores[TST_LLAMA_VOCAB];
    int32_t types[TST_LLAMA_VOCAB];
    for (uint32_t i = 0; i < TST_LLAMA_VOCAB; i++) {
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        scores[i] = i < 259 ? 0 : i < 286 ? -1000.0f - (float)i : -(float)(i - 286);
        if (i < 3)
            snprintf(text[i], sizeof text[i], "%s", i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        else if (i < 259)
            snprintf(text[i], sizeof text[i], "<0x%02X>", (unsigned)(i - 3));
        else if (i == 259)
            snprintf(text[i], sizeof text[i], "\xe2\x96\x81");
        else if (i < 286)
            snprintf(text[i], sizeof text[i], "%c", (char)('a' + (i - 260)));
        else if (merged[i - 286][0] == '_')
            snprintf(text[i], sizeof text[i], "\xe2\x96\x81%s", merged[i - 286] + 1);
        else
            snprintf(text[i], sizeof text[i], "%s", merged[i - 286]);
        tokens[i] = (struct mdl_str){text[i], strlen(text[i])};
    }
    tst_gguf_str(w, "tokenizer.ggml.model", "llama");
    tst_gguf_str(w, "tokenizer.ggml.pre", "default");
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, TST_LLAMA_VOCAB);
    tst_gguf_f32s(w, "tokenizer.ggml.scores", scores, TST_LLAMA_VOCAB);
    tst_gguf_i32s(w, "tokenizer.ggml.token_type", types, TST_LLAMA_VOCAB);
    tst_gguf_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    tst_gguf_u32(w, "tokenizer.ggml.bos_token_id", 1);
    tst_gguf_u32(w, "tokenizer.ggml.eos_token_id", 2);
    tst_gguf_u32(w, "tokenizer.ggml.padding_token_id", UINT32_MAX);
}

/* The type of the n-th matrix: 7 a layer, then the output's; the embedding's is the last of all. */
static mdl_type matrix_type(const struct tst_llama_options *o, uint32_t n)
{
    static const mdl_type all[] = {MDL_Q4_K, MDL_F32,  MDL_Q6_K, MDL_Q5_0, MDL_MXFP4, MDL_Q2_K, MDL_BF16,   MDL_IQ4_XS,
                                   MDL_Q3_K, MDL_Q8_0, MDL_Q5_K, MDL_F16,  MDL_Q4_0,  MDL_Q5_1, MDL_IQ4_NL, MDL_Q4_1};
    return o->mixed ? all[n % (sizeof all / sizeof all[0])] : o->type;
}

static void llama_layer(struct tst_gguf *w, struct kvs_rng *rng, const struct tst_llama_options *o, uint32_t layer)
{
    const struct {
        const char *name;
        uint32_t row, rows;
    } parts[] = {
        {"attn_q", o->width, o->heads * o->key_dim},
        {"attn_k", o->width, o->kv_heads * o->key_dim},
        {"attn_v", o->width, o->kv_heads * o->key_dim},
        {"attn_output", o->heads * o->key_dim, o->width},
        {"ffn_gate", o->width, o->ff},
        {"ffn_up", o->width, o->ff},
        {"ffn_down", o->ff, o->width},
    };
    char name[64];
    snprintf(name, sizeof name, "blk.%u.attn_norm.weight", layer);
    random_tensor(w, rng, name, MDL_F32, o->width, 1, 1.0f, 0.25f);
    snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", layer);
    random_tensor(w, rng, name, MDL_F32, o->width, 1, 1.0f, 0.25f);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", layer, parts[i].name);
        random_tensor(w, rng, name, matrix_type(o, layer * 7 + (uint32_t)i), parts[i].row, parts[i].rows, 0.0f,
                      3.0f / sqrtf((float)parts[i].row));
    }
}

static void or_default(uint32_t *field, uint32_t value)
{
    if (*field == 0)
        *field = value;
}

uint8_t *tst_llama_make(const struct tst_llama_options *options, size_t *size_out)
{
    struct tst_llama_options o = *options;
    struct kvs_rng rng = {o.seed};
    or_default(&o.layers, 2);
    or_default(&o.width, 64);
    or_default(&o.heads, 4);
    or_default(&o.kv_heads, 2);
    or_default(&o.ff, 96);
    or_default(&o.context, 512);
    or_default(&o.key_dim, o.width / o.heads);
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_str(w, "general.architecture", "llama");
    tst_gguf_str(w, "general.name", "tiny random llama");
    tst_gguf_u32(w, "llama.block_count", o.layers);
    tst_gguf_u32(w, "llama.context_length", o.context);
    tst_gguf_u32(w, "llama.embedding_length", o.width);
    tst_gguf_u32(w, "llama.feed_forward_length", o.ff);
    tst_gguf_u32(w, "llama.attention.head_count", o.heads);
    tst_gguf_u32(w, "llama.attention.head_count_kv", o.kv_heads);
    tst_gguf_u32(w, "llama.attention.key_length", o.key_dim);
    tst_gguf_u32(w, "llama.attention.value_length", o.key_dim);
    tst_gguf_u32(w, "llama.rope.dimension_count", o.key_dim);
    tst_gguf_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    tst_llama_vocab(w);
    random_tensor(w, &rng, "token_embd.weight", matrix_type(&o, 15), o.width, TST_LLAMA_VOCAB, 0.0f, 1.0f);
    for (uint32_t i = 0; i < o.layers; i++)
        llama_layer(w, &rng, &o, i);
    random_tensor(w, &rng, "output_norm.weight", MDL_F32, o.width, 1, 1.0f, 0.25f);
    if (o.untied)
        random_tensor(w, &rng, "output.weight", matrix_type(&o, 14), o.width, TST_LLAMA_VOCAB, 0.0f, 1.0f);
    return tst_gguf_finish(w, size_out, NULL);
}

kvs_status tst_card_read(struct tst_gguf *w, struct mdl_card *c, struct kvs_error *err)
{
    struct mdl_gguf *g = NULL;
    size_t size;
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    kvs_status s = mdl_gguf_parse(bytes, size, false, &g, err);
    if (s == KVS_OK)
        s = mdl_card_read(g, c, err);
    mdl_gguf_destroy(g);
    free(bytes);
    return s;
}
