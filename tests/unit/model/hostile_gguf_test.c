/* hostile_gguf_test.c - files that are cut short or lie: an error that names the field, little memory, and no read outside
 * of the bytes. Every try is a heap copy of exactly its size, so that the address sanitizer sees one byte too many.
 * The allocator is wrapped: what the library holds at its peak is compared with the size of the file.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/checked.h"
#include "base/rng.h"
#include "model/card.h"
#include "model/template.h"
#include "model/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/gguf_writer.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that our code holds now, and the most since `peak` was last set. */
static size_t held, peak;

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

static void *count_in(void *p)
{
    held += p != NULL ? malloc_usable_size(p) : 0;
    peak = held > peak ? held : peak;
    return p;
}

static void count_out(void *p)
{
    size_t n = p != NULL ? malloc_usable_size(p) : 0;
    held = n < held ? held - n : 0;
}

void *__wrap_malloc(size_t n)
{
    return count_in(__real_malloc(n));
}

void *__wrap_calloc(size_t count, size_t n)
{
    return count_in(__real_calloc(count, n));
}

void *__wrap_realloc(void *p, size_t n)
{
    count_out(p);
    return count_in(__real_realloc(p, n));
}

void __wrap_free(void *p)
{
    count_out(p);
    __real_free(p);
}

/* Everything that is ever made of a file, as far as it gets. The first failure is returned. */
static kvs_status load_all(const uint8_t *bytes, size_t size, bool header_only, struct kvs_error *err)
{
    struct mdl_gguf *g = NULL;
    struct mdl_card card;
    struct mdl_tokenizer *t = NULL;
    struct mdl_template *chat = NULL;
    struct mdl_fingerprint fp;
    struct mdl_str key;
    char text[100];
    kvs_status s = mdl_gguf_parse(bytes, size, header_only, &g, err);
    if (s != KVS_OK)
        return s;
    for (uint64_t i = 0; mdl_gguf_key_at(g, i, &key, text, sizeof text); i++)
        assert_true(key.len > 0);
    kvs_status s2 = mdl_card_read(g, &card, err);
    s = mdl_tokenizer_create(g, &t, err);
    if (s == KVS_OK)
        s = mdl_template_create(g, &chat, err);
    if (!header_only && mdl_fingerprint_file(g, bytes, size, &fp) != KVS_OK)
        fail();
    mdl_template_destroy(chat);
    mdl_tokenizer_destroy(t);
    mdl_gguf_destroy(g);
    return s2 != KVS_OK ? s2 : s;
}

/* On a copy of exactly size bytes; the bound on memory is checked for each. */
static kvs_status try_bytes(const uint8_t *bytes, size_t size, bool header_only, struct kvs_error *err)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (size > 0)
        memcpy(copy, bytes, size);
    size_t before = peak = held;
    kvs_status s = load_all(copy, size, header_only, err);
    assert_true(peak - before <= size + ((size_t)20 << 20)); /* 16 MiB of it are caches of words: resident as far as they were used */
    assert_int_equal(held, before);
    assert_true(s == KVS_OK || s == KVS_SELF_MODEL);
    free(copy);
    return s;
}

static uint8_t *tiny(size_t *size)
{
    const struct tst_llama_options o = {
        .layers = 1, .width = 32, .heads = 2, .kv_heads = 1, .ff = 32, .type = MDL_Q8_0, .seed = 1};
    return tst_llama_make(&o, size);
}

static size_t header_of(const uint8_t *bytes, size_t size)
{
    struct mdl_gguf *g;
    struct kvs_error err = {0};
    assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_OK);
    size_t n = (size_t)mdl_gguf_header_bytes(g);
    mdl_gguf_destroy(g);
    return n;
}

/* Every byte; but the thread sanitizer has nothing to find in a quarter of an hour of one thread, and the address sanitizer takes milliseconds
 * for each tokenizer's caches of words (fuzzing goes everywhere under it). */
#if defined(__SANITIZE_THREAD__)
#define STEP 61
#elif defined(__SANITIZE_ADDRESS__)
#define STEP 13
#else
#define STEP 1
#endif

static void cut_everywhere(const uint8_t *bytes, size_t size)
{
    struct kvs_error err;
    size_t header = header_of(bytes, size);
    for (size_t n = 0; n < size; n += n < 65536 ? STEP : 4096) {
        assert_int_equal(try_bytes(bytes, n, false, &err), KVS_SELF_MODEL);
        assert_true(strlen(err.text) > 20);
        assert_int_equal(try_bytes(bytes, n, true, &err), n < header ? KVS_SELF_MODEL : KVS_OK);
    }
    assert_int_equal(try_bytes(bytes, size, false, &err), KVS_OK);
}

static void test_cut_at_every_byte(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = tiny(&size);
    cut_everywhere(bytes, size);
    free(bytes);
}

static void test_cut_at_every_byte_of_a_real_file(void **state)
{
    (void)state;
    size_t size = 0;
    uint8_t *bytes = tst_file_read(KVS_SHARED_DIR "/models/stories260K.gguf", 0, &size);
    if (bytes == NULL) {
        print_message("skipped: ../shared/models/stories260K.gguf is absent\n");
        skip();
    }
    struct kvs_error err;
    for (size_t n = 0; n < size; n += n < 65536 ? STEP : 4096)
        assert_int_equal(try_bytes(bytes, n, false, &err), KVS_SELF_MODEL);
    free(bytes);
}

/* Every length, count, type and offset is hit by writing each value at each byte of the header. */
static void test_every_field_takes_every_bad_value(void **state)
{
    (void)state;
    static const uint64_t values[] = {
        0, 1, (uint64_t)1 << 31, UINT32_MAX, (uint64_t)1 << 63, UINT64_MAX, ((uint64_t)1 << 42) + 1};
    struct kvs_error err;
    size_t size, refused = 0, taken = 0;
    uint8_t *bytes = tiny(&size);
    size_t header = header_of(bytes, size);
    for (size_t at = 4; at + 8 <= header; at += STEP) {
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            for (size_t width = 4; width <= 8; width += 4) {
                uint8_t saved[8];
                memcpy(saved, bytes + at, 8);
                memcpy(bytes + at, &values[i], width);
                /* The vocabulary is large and its texts are many: a sample of the offsets goes through everything. */
                kvs_status s = try_bytes(bytes, at % 7 == 0 ? size : header, at % 7 != 0, &err);
                refused += s != KVS_OK;
                taken += s == KVS_OK;
                memcpy(bytes + at, saved, 8);
            }
        }
    }
    print_message("%zu refused, %zu taken (a changed text or score is no fault)\n", refused, taken);
    assert_true(refused > 1000);
    free(bytes);
}

static void test_random_damage(void **state)
{
    (void)state;
    struct kvs_error err;
    struct kvs_rng rng = {99};
    size_t size;
    uint8_t *bytes = tiny(&size);
    size_t header = header_of(bytes, size);
    uint8_t *copy = malloc(size);
    for (int i = 0; i < 4000; i++) {
        memcpy(copy, bytes, size);
        for (uint64_t k = 1 + kvs_rng_below(&rng, 8); k > 0; k--)
            copy[kvs_rng_below(&rng, header)] = (uint8_t)kvs_rng_next(&rng);
        (void)try_bytes(copy, size, false, &err);
    }
    free(copy);
    free(bytes);
}

/* The cases by name: what is wrong is said. */

static void refused(struct tst_gguf *w, const char *word)
{
    struct kvs_error err = {0};
    struct mdl_gguf *g = NULL;
    size_t size;
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    kvs_status s = mdl_gguf_parse(bytes, size, false, &g, &err);
    if (s != KVS_SELF_MODEL || strstr(err.text, word) == NULL)
        fail_msg("expected '%s', got %d: %s", word, (int)s, err.text);
    free(bytes);
}

static struct tst_gguf *with_tensor(uint32_t type, uint32_t dims, uint64_t a, uint64_t b)
{
    const uint64_t shape[4] = {a, b, 1, 1};
    static const uint8_t data[4096];
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_tensor(w, "weights", type, dims, shape, data, sizeof data);
    return w;
}

static void test_tensors_that_lie(void **state)
{
    (void)state;
    refused(with_tensor(MDL_F32, 2, ((uint64_t)1 << 42) + 1, (uint64_t)1 << 22),
            "'weights': the product of its dimensions");
    refused(with_tensor(MDL_F32, 2, (uint64_t)1 << 62, 1), "'weights': its byte count");
    refused(with_tensor(MDL_F32, 2, UINT64_MAX, UINT64_MAX), "'weights': the product");
    refused(with_tensor(MDL_F32, 2, 32, 0), "'weights': dimension 1 is 0");
    refused(with_tensor(MDL_F32, 2, 32, 33), "'weights' ends at byte");
    refused(with_tensor(MDL_Q4_0, 2, 33, 1), "'weights': row length 33");
    refused(with_tensor(4, 1, 32, 1), "'weights': type 4 is not known"); /* Q4_2, removed: block size 0 in old tables */
    refused(with_tensor(99, 1, 32, 1), "'weights': type 99 is not known");
    refused(with_tensor(UINT32_MAX, 1, 32, 1), "'weights': type 4294967295 is not known");
    const uint64_t one = 1;
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_tensor(w, "twin", MDL_F32, 1, &one, "abcd", 4);
    tst_gguf_tensor(w, "other", MDL_F32, 1, &one, "abcd", 4);
    tst_gguf_tensor(w, "twin", MDL_F32, 1, &one, "abcd", 4);
    refused(w, "tensor 'twin' stands there twice");
    w = tst_gguf_create(3, 0);
    tst_gguf_tensor(w, "", MDL_F32, 1, &one, "abcd", 4);
    refused(w, "name length 0");
}

/* Offsets are the writer's business, so these are patched in the finished bytes. */
static void test_offsets_that_lie(void **state)
{
    (void)state;
    static const struct {
        uint64_t offset;
        const char *word;
    } cases[] = {
        {32, "overlap"},
        {1, "no multiple"},
        {UINT64_MAX - 31, "too large"},
        {4096, "cut short"},
        {(uint64_t)1 << 62, "cut short"},
    };
    const uint64_t shape = 16;
    static const uint8_t data[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tst_gguf *w = tst_gguf_create(3, 0);
        struct kvs_error err = {0};
        struct mdl_gguf *g;
        size_t size;
        tst_gguf_tensor(w, "a", MDL_F32, 1, &shape, data, sizeof data);
        tst_gguf_tensor(w, "b", MDL_F32, 1, &shape, data, sizeof data);
        uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
        /* magic, version, counts; entry a; then b up to its offset: 8 + 1 + 4 + 8 + 4 bytes. */
        size_t at = 24 + 33 + 25;
        assert_int_equal(kvs_load_u64(bytes + at), 64);
        kvs_store_u64(bytes + at, cases[i].offset);
        kvs_status s = mdl_gguf_parse(bytes, size, false, &g, &err);
        if (s != KVS_SELF_MODEL || strstr(err.text, cases[i].word) == NULL)
            fail_msg("expected '%s', got %d: %s", cases[i].word, (int)s, err.text);
        free(bytes);
    }
}

static void test_keys_that_lie(void **state)
{
    (void)state;
    static const uint32_t bad_alignments[] = {0, 1, 3, 4, 24, (uint32_t)1 << 31};
    struct tst_gguf *w;
    for (size_t i = 0; i < sizeof bad_alignments / sizeof bad_alignments[0]; i++) {
        w = tst_gguf_create(3, 0);
        tst_gguf_u32(w, "general.alignment", bad_alignments[i]);
        refused(w, "'general.alignment'");
    }
    w = tst_gguf_create(3, 0);
    tst_gguf_str(w, "general.alignment", "32");
    refused(w, "'general.alignment' is not an unsigned integer");
    w = tst_gguf_create(3, 0);
    tst_gguf_u32(w, "", 1);
    refused(w, "name length 0");
    w = tst_gguf_create(3, 0);
    tst_gguf_u32(w, "a.key", 1);
    tst_gguf_u32(w, "b.key", 1);
    tst_gguf_str(w, "a.key", "x");
    refused(w, "'a.key' stands there twice");
    w = tst_gguf_create(3, 0);
    tst_gguf_raw(w, "odd", 13, "\0\0\0\0\0\0\0\0", 8);
    refused(w, "'odd': unknown value type 13");
    w = tst_gguf_create(3, 0);
    tst_gguf_raw(w, "flag", 7, "\2", 1);
    tst_gguf_u64(w, "more", 1);
    refused(w, "'flag': a bool");
    w = tst_gguf_create(3, 0);
    tst_gguf_raw(w, "list", 9, "\4\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f", 12);
    refused(w, "'list': count 9223372036854775807");
    w = tst_gguf_create(3, 0);
    tst_gguf_u32(w, "split.count", 3);
    refused(w, "split.count is 3: this is a part of a model, all parts are needed");
    w = tst_gguf_create(3, 0);
    tst_gguf_u64(w, "split.count", UINT64_MAX);
    refused(w, "split.count is 18446744073709551615: more than 256 parts");
    w = tst_gguf_create(3, 0);
    tst_gguf_raw(w, "split.count", 5, "\xff\xff\xff\xff", 4);
    refused(w, "'split.count' is no count (its kind is i32)");
    w = tst_gguf_create(3, 0);
    tst_gguf_str(w, "split.count", "3");
    refused(w, "'split.count' is no count (its kind is string)");
    w = tst_gguf_create(3, 0);
    tst_gguf_u32(w, "bad\xff\n\x1b[31mname", 1);
    tst_gguf_u32(w, "bad\xff\n\x1b[31mname", 1);
    refused(w, "'bad???[31mname' stands there twice"); /* the text is safe to print */
}

static void test_nested_arrays(void **state)
{
    (void)state;
    /* Each level: an array of one array. 1,000 deep at the most, and as deep as is allowed. */
    for (uint32_t depth = 1; depth <= 1000; depth = depth < 8 ? depth + 1 : depth * 5) {
        uint8_t raw[12 * 1001];
        size_t n = 0;
        for (uint32_t i = 0; i < depth; i++, n += 12) {
            kvs_store_u32(raw + n, i + 1 < depth ? 9 : 4);
            kvs_store_u64(raw + n + 4, 1);
        }
        kvs_store_u32(raw + n, 7);
        struct tst_gguf *w = tst_gguf_create(3, 0);
        tst_gguf_raw(w, "nest", 9, raw, n + 4);
        tst_gguf_u32(w, "after", 5);
        if (depth > 4) {
            refused(w, "'nest': arrays nested more than 4 deep");
            continue;
        }
        struct mdl_gguf *g;
        struct kvs_error err = {0};
        size_t size;
        uint64_t v;
        uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
        assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_OK);
        assert_true(mdl_gguf_u64(g, "after", &v));
        assert_int_equal(v, 5);
        mdl_gguf_destroy(g);
        free(bytes);
    }
}

static void test_versions_and_magic(void **state)
{
    (void)state;
    struct kvs_error err = {0};
    struct mdl_gguf *g;
    refused(tst_gguf_create(1, 0), "version 1");
    refused(tst_gguf_create(4, 0), "version 4");
    refused(tst_gguf_create(0x03000000, 0), "big-endian");
    assert_int_equal(mdl_gguf_parse((const uint8_t *)"GGML............................", 32, false, &g, &err),
                     KVS_SELF_MODEL);
    assert_non_null(strstr(err.text, "not a GGUF file"));
    size_t size;
    struct tst_gguf *w = tst_gguf_create(2, 64);
    tst_gguf_u64(w, "x", 3);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    assert_int_equal(mdl_gguf_parse(bytes, size, false, &g, &err), KVS_OK);
    assert_int_equal(mdl_gguf_version(g), 2);
    mdl_gguf_destroy(g);
    free(bytes);
}

int main(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 128 << 10); /* or calloc clears a tokenizer's caches of words by hand, 16 MiB a try */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_cut_at_every_byte_of_a_real_file),
        cmocka_unit_test(test_every_field_takes_every_bad_value),
        cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_tensors_that_lie),
        cmocka_unit_test(test_offsets_that_lie),
        cmocka_unit_test(test_keys_that_lie),
        cmocka_unit_test(test_nested_arrays),
        cmocka_unit_test(test_versions_and_magic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
