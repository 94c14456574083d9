/* parts_test.c - a split model is the model that was split: header, tensors, identity; and every way in which parts do not fit is an error that
 * says which part, why, and what to do. In memory, on exact-size copies, and on disk.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "model/card.h"
#include "model/model.h"
#include "tests/support/gguf_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTS 3
#define TENSORS 20u

static uint8_t *whole;
static size_t whole_size;
static struct mdl_gguf *whole_gguf;

/* A file whose data begins at multiples of `alignment`: its parts after the first have no key for it, and begin at multiples of 32. */
static struct mdl_gguf *other_alignment(uint8_t **bytes_out)
{
    static const uint8_t data[4096];
    const uint64_t shape[2] = {33, 5};
    struct kvs_error err;
    struct mdl_gguf *g;
    size_t size;
    struct tst_gguf *w = tst_gguf_create(3, 128);
    tst_gguf_str(w, "general.architecture", "none");
    for (char name[] = "a"; name[0] < 'h'; name[0]++)
        tst_gguf_tensor(w, name, MDL_F32, 2, shape, data, 660);
    *bytes_out = tst_gguf_finish(w, &size, NULL);
    assert_int_equal(mdl_gguf_parse(*bytes_out, size, false, &g, &err), KVS_OK);
    return g;
}

struct set {
    struct mdl_part part[PARTS];
    uint8_t *bytes[PARTS];
};

static struct set make(const struct mdl_gguf *g, const struct tst_part p[PARTS])
{
    static const char *const names[PARTS] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
    struct set s;
    for (uint32_t i = 0; i < PARTS; i++) {
        s.part[i].name = names[i];
        s.bytes[i] = tst_part_make(g, &p[i], &s.part[i].size);
        s.part[i].bytes = s.bytes[i];
    }
    return s;
}

static void drop(struct set *s)
{
    for (uint32_t i = 0; i < PARTS; i++)
        free(s->bytes[i]);
}

static void good(const struct mdl_gguf *g, bool first_empty, struct tst_part p[PARTS])
{
    for (uint16_t i = 0; i < PARTS; i++)
        p[i] = tst_part_of(g, i, PARTS, first_empty);
}

static void same_as_whole(const struct mdl_gguf *want, const uint8_t *want_bytes, const struct mdl_gguf *g, const uint8_t *header)
{
    struct mdl_fingerprint a, b;
    size_t n = (size_t)mdl_gguf_header_bytes(want);
    assert_int_equal(mdl_gguf_header_bytes(g), n);
    assert_memory_equal(header, want_bytes, n); /* byte for byte what it was before it was split */
    assert_int_equal(mdl_gguf_tensor_count(g), mdl_gguf_tensor_count(want));
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(g); i++) {
        const struct mdl_tensor *x = mdl_gguf_tensor_at(g, i), *y = mdl_gguf_tensor_at(want, i);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    assert_int_equal(mdl_fingerprint_file(g, header, n, &a), KVS_OK);
    assert_int_equal(mdl_fingerprint_file(want, want_bytes, n + 1, &b), KVS_OK);
    assert_memory_equal(a.bytes, b.bytes, sizeof a.bytes);
}

static void joins(const struct mdl_gguf *want, const uint8_t *want_bytes, bool first_empty)
{
    struct tst_part p[PARTS];
    struct kvs_error err = {0};
    struct mdl_gguf *g = NULL, *again;
    uint8_t *header = NULL;
    good(want, first_empty, p);
    struct set s = make(want, p);
    if (mdl_parts_join(s.part, PARTS, &header, &g, &err) != KVS_OK)
        fail_msg("%s", err.text);
    same_as_whole(want, want_bytes, g, header);
    /* A router reads the header alone. */
    assert_int_equal(mdl_gguf_parse(header, (size_t)mdl_gguf_header_bytes(g), true, &again, &err), KVS_OK);
    assert_null(mdl_gguf_kind(again, "split.count"));
    mdl_gguf_destroy(again);
    mdl_gguf_destroy(g);
    free(header);
    drop(&s);
}

static void test_joined_is_the_whole(void **state)
{
    (void)state;
    uint8_t *bytes;
    struct mdl_gguf *g = other_alignment(&bytes);
    joins(whole_gguf, whole, false);
    joins(whole_gguf, whole, true);
    joins(g, bytes, false);
    joins(g, bytes, true);
    mdl_gguf_destroy(g);
    free(bytes);
}

/* What is said of parts that do not fit. */
static void refused(const struct tst_part p[PARTS], const char *word, const char *word2)
{
    struct kvs_error err = {0};
    struct mdl_gguf *g = NULL;
    uint8_t *header = NULL;
    struct set s = make(whole_gguf, p);
    kvs_status st = mdl_parts_join(s.part, PARTS, &header, &g, &err);
    if (st != KVS_SELF_MODEL || strstr(err.text, word) == NULL || strstr(err.text, word2) == NULL || strstr(err.text, "anew") == NULL)
        fail_msg("expected '%s' and '%s', got %d: %s", word, word2, (int)st, err.text);
    drop(&s);
}

static void test_parts_that_do_not_fit(void **state)
{
    (void)state;
    struct tst_part p[PARTS], q[PARTS];
    good(whole_gguf, false, p);
    memcpy(q, p, sizeof p);
    q[1] = p[2]; /* copied over */
    refused(q, "part 2 of 3, 'm-00002-of-00003.gguf'", "split.no is 2, not 1");
    memcpy(q, p, sizeof p);
    q[2].of = 4;
    refused(q, "part 3 of 3", "split.count is 4, not 3");
    memcpy(q, p, sizeof p);
    q[0].no = 1;
    refused(q, "part 1 of 3", "split.no is 1, not 0");
    memcpy(q, p, sizeof p);
    q[1].tensors = (int32_t)TENSORS + 1;
    refused(q, "part 2 of 3", "split.tensors.count is 21, not 20");
    for (uint32_t i = 0; i < PARTS; i++)
        q[i].tensors = (int32_t)TENSORS + 1;
    refused(q, "hold 20 tensors", "says 21");
    for (uint32_t i = 0; i < PARTS; i++)
        q[i].tensors = (int32_t)TENSORS - 1;
    refused(q, "part 3 of 3", "there are 20, split.tensors.count says 19");
    for (uint32_t i = 0; i < PARTS; i++)
        q[i].tensors = INT32_MAX;
    refused(q, "part 1 of 3", "split.tensors.count is 2147483647, not 65536");
    memcpy(q, p, sizeof p);
    q[2].first--;
    refused(q, "part 3 of 3", "is in part 2, too");
    memcpy(q, p, sizeof p);
    q[2].key = "general.architecture";
    q[2].text = "qwen2";
    refused(q, "part 3 of 3", "key 'general.architecture' is not as in the first part");
    q[2].text = "llama"; /* what is the same may be there */
    struct kvs_error err = {0};
    struct mdl_gguf *g;
    uint8_t *header;
    struct set s = make(whole_gguf, q);
    assert_int_equal(mdl_parts_join(s.part, PARTS, &header, &g, &err), KVS_OK);
    same_as_whole(whole_gguf, whole, g, header);
    mdl_gguf_destroy(g);
    free(header);
    drop(&s);
}

static void test_negative_number_of_tensors(void **state)
{
    (void)state;
    struct tst_part p[PARTS];
    struct kvs_error err = {0};
    struct mdl_gguf *g;
    uint8_t *header;
    good(whole_gguf, false, p);
    p[0].tensors = -1;
    struct set s = make(whole_gguf, p);
    assert_int_equal(mdl_parts_join(s.part, PARTS, &header, &g, &err), KVS_SELF_MODEL);
    assert_non_null(strstr(err.text, "'split.tensors.count' is no count (its kind is i32)"));
    drop(&s);
}

/* A key's bytes found in a copy of a file, overwritten: kind, then value. */
static void overwrite(uint8_t *bytes, size_t size, const char *key, uint32_t kind, uint16_t value)
{
    size_t n = strlen(key);
    for (size_t i = 0; i + n + 6 <= size; i++) {
        if (memcmp(bytes + i, key, n) == 0) {
            memcpy(bytes + i + n, &kind, 4);
            memcpy(bytes + i + n + 4, &value, 2);
            return;
        }
    }
    fail();
}

static void test_hostile_values(void **state)
{
    (void)state;
    static const char *const keys[] = {"split.no", "split.count"};
    static const uint16_t values[] = {0, 1, 2, 3, 4, 255, 256, 257, 32767, 32768, 65535};
    static const uint32_t kinds[] = {2, 3};
    struct tst_part p[PARTS];
    good(whole_gguf, false, p);
    struct set s = make(whole_gguf, p);
    unsigned taken = 0;
    for (size_t i = 0; i < PARTS * 2 * 11 * 2; i++) {
        const char *key = keys[i / 11 % 2];
        uint32_t at = (uint32_t)(i / 44), kind = kinds[i / 22 % 2];
        uint16_t value = values[i % 11], want = key == keys[0] ? (uint16_t)at : PARTS;
        struct kvs_error err = {0};
        struct mdl_gguf *g = NULL;
        uint8_t *header = NULL;
        overwrite(s.bytes[at], s.part[at].size, key, kind, value);
        kvs_status st = mdl_parts_join(s.part, PARTS, &header, &g, &err);
        assert_int_equal(st, value == want ? KVS_OK : KVS_SELF_MODEL);
        assert_true(st == KVS_OK || strlen(err.text) > 20);
        taken += st == KVS_OK;
        mdl_gguf_destroy(g);
        free(header);
        /* Alone it is never a model, unless it says that it is whole. */
        st = mdl_gguf_parse(s.bytes[at], s.part[at].size, false, &g, &err);
        assert_int_equal(st, key == keys[1] && value < 2 ? KVS_OK : KVS_SELF_MODEL);
        if (st == KVS_OK)
            mdl_gguf_destroy(g);
        overwrite(s.bytes[at], s.part[at].size, key, 2, want);
    }
    assert_int_equal(taken, 2 * 2 * PARTS);
    drop(&s);
}

static void test_damaged_headers(void **state)
{
    (void)state;
    struct tst_part p[PARTS];
    struct kvs_rng rng = {7};
    unsigned taken = 0;
    good(whole_gguf, false, p);
    struct set s = make(whole_gguf, p);
    for (int i = 0; i < 3000; i++) {
        struct kvs_error err = {0};
        struct mdl_part damaged[PARTS];
        struct mdl_gguf *g = NULL;
        uint8_t *header = NULL;
        uint32_t at = (uint32_t)kvs_rng_below(&rng, PARTS);
        size_t n = s.part[at].size, near = at == 0 ? 9000 : 900, cut = kvs_rng_below(&rng, 4) == 0 ? (size_t)kvs_rng_below(&rng, n) : n;
        memcpy(damaged, s.part, sizeof damaged);
        uint8_t *copy = malloc(cut > 0 ? cut : 1);
        memcpy(copy, s.bytes[at], cut);
        for (uint64_t k = kvs_rng_below(&rng, 5); cut > near && k > 0; k--)
            copy[kvs_rng_below(&rng, near)] = (uint8_t)kvs_rng_next(&rng);
        damaged[at] = (struct mdl_part){.bytes = copy, .size = cut, .name = "x"};
        kvs_status st = mdl_parts_join(damaged, PARTS, &header, &g, &err);
        assert_true(st == KVS_OK || st == KVS_SELF_MODEL);
        for (uint64_t t = 0; st == KVS_OK && t < mdl_gguf_tensor_count(g); t++) {
            const struct mdl_tensor *x = mdl_gguf_tensor_at(g, t);
            volatile uint8_t last = x->data[x->bytes - 1];
            (void)last;
        }
        taken += st == KVS_OK;
        mdl_gguf_destroy(g);
        free(header);
        free(copy);
    }
    assert_in_range(taken, 100, 2900);
    drop(&s);
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        uint32_t no, count; /* 0: no part */
        size_t stem;
    } rows[] = {
        {"/a/b-00002-of-00003.gguf", 2, 3, 4}, {"b-00001-of-99999.gguf", 1, 99999, 1},     {"b-00004-of-00003.gguf", 0, 0, 16},
        {"b-00000-of-00003.gguf", 0, 0, 16},   {"/a/-00001-of-00003.gguf", 0, 0, 18},      {"-00001-of-00003.gguf", 0, 0, 15},
        {"b-0001-of-00003.gguf", 0, 0, 15},    {"b-00001-of-00003.GGUF", 0, 0, 16},        {"b-00001-of-0000x.gguf", 0, 0, 16},
        {"b-00001_of-00003.gguf", 0, 0, 16},   {"b.gguf", 0, 0, 1},                        {".gguf", 0, 0, 5},
        {"", 0, 0, 0},                         {"b-00001-of-00003.gguf.part", 0, 0, 26},   {"b.GgUf", 0, 0, 1},
        {"b-+0001-of-00003.gguf", 0, 0, 16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t no = 0, count = 0;
        size_t stem = 0;
        assert_int_equal(mdl_part_name(rows[i].path, &no, &count, &stem), rows[i].no > 0);
        assert_int_equal(no * (rows[i].no > 0), rows[i].no);
        assert_int_equal(count * (rows[i].no > 0), rows[i].count);
        assert_int_equal(mdl_stem(rows[i].path), rows[i].stem);
    }
    char path[] = "/a/b-00002-of-00123.gguf";
    mdl_part_rename(path, 123);
    assert_string_equal(path, "/a/b-00123-of-00123.gguf");
}

/* On disk. */

static char dir[] = "/tmp/kvasir-parts-test-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[4][300];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void write_file(const char *name, const uint8_t *bytes, size_t n)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_parts(void)
{
    struct tst_part p[PARTS];
    good(whole_gguf, false, p);
    struct set s = make(whole_gguf, p);
    for (uint32_t i = 0; i < PARTS; i++)
        write_file(s.part[i].name, s.bytes[i], s.part[i].size);
    drop(&s);
}

static void not_opened(const char *name, const char *word, const char *word2)
{
    struct mdl_model m = {0};
    struct kvs_error err = {0};
    kvs_status st = mdl_model_open(path_of(name), &m, &err);
    if (st != KVS_SELF_MODEL || strstr(err.text, word) == NULL || strstr(err.text, word2) == NULL)
        fail_msg("expected '%s' and '%s', got %d: %s", word, word2, (int)st, err.text);
    mdl_model_close(&m);
}

static void test_open(void **state)
{
    (void)state;
    struct mdl_model m;
    struct kvs_error err = {0};
    write_parts();
    if (mdl_model_open(path_of("m-00001-of-00003.gguf"), &m, &err) != KVS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(m.part_count, 3);
    assert_int_equal(m.bytes, m.part[0].size + m.part[1].size + m.part[2].size);
    assert_int_equal(m.header_bytes, mdl_gguf_header_bytes(m.gguf));
    same_as_whole(whole_gguf, whole, m.gguf, m.header);
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(m.gguf); i++) {
        const struct mdl_tensor *t = mdl_gguf_tensor_at(m.gguf, i);
        mdl_model_done(&m, t->data, (size_t)t->bytes);
    }
    same_as_whole(whole_gguf, whole, m.gguf, m.header); /* and is read anew */
    assert_int_equal(mdl_model_check(&m, &err), KVS_OK);
    /* The header outlives the model. */
    size_t n = m.header_bytes;
    uint8_t *header = mdl_model_take_header(&m);
    mdl_model_close(&m);
    mdl_model_close(&m);
    assert_memory_equal(header, whole, n);
    free(header);
    /* A whole one in its own file. */
    write_file("whole.gguf", whole, whole_size);
    assert_int_equal(mdl_model_open(path_of("whole.gguf"), &m, &err), KVS_OK);
    assert_int_equal(m.part_count, 1);
    same_as_whole(whole_gguf, whole, m.gguf, m.header);
    header = mdl_model_take_header(&m);
    mdl_model_close(&m);
    assert_memory_equal(header, whole, n);
    free(header);
}

static void test_not_opened(void **state)
{
    (void)state;
    write_parts();
    not_opened("m-00002-of-00003.gguf", "is part 2 of 3", "give the first, 'm-00001-of-00003.gguf'");
    assert_int_equal(rename(path_of("m-00002-of-00003.gguf"), path_of("other.gguf")), 0);
    not_opened("m-00001-of-00003.gguf", "part 2 of 3 is needed beside the first", "m-00002-of-00003.gguf: No such file");
    not_opened("other.gguf", "'other.gguf' is part 2 of 3", "whose name ends in -00001-of-00003.gguf");
    write_file("m-00002-of-00003.gguf", (const uint8_t *)"", 0);
    not_opened("m-00001-of-00003.gguf", "part 2 of 3", "is empty");
    write_file("m-00002-of-00003.gguf", whole, whole_size); /* of another model, whole */
    not_opened("m-00001-of-00003.gguf", "part 2 of 3, 'm-00002-of-00003.gguf'", "'split.count' is missing");
    write_parts();
    assert_int_equal(truncate(path_of("m-00003-of-00003.gguf"), 2000), 0);
    not_opened("m-00001-of-00003.gguf", "part 3 of 3, 'm-00003-of-00003.gguf'", "cut short, fetch it again");
    write_parts();
    assert_int_equal(rename(path_of("m-00001-of-00003.gguf"), path_of("other.gguf")), 0);
    not_opened("other.gguf", "'other.gguf' is part 1 of 3", "whose name ends in -00001-of-00003.gguf");
    assert_int_equal(rename(path_of("other.gguf"), path_of("m-00001-of-00004.gguf")), 0);
    not_opened("m-00001-of-00004.gguf", "is part 1 of 3", "whose name ends in -00001-of-00003.gguf");
    (void)unlink(path_of("m-00001-of-00004.gguf"));
}

static void test_changed_while_open(void **state)
{
    (void)state;
    struct mdl_model m;
    struct kvs_error err = {0};
    write_parts();
    assert_int_equal(mdl_model_open(path_of("m-00001-of-00003.gguf"), &m, &err), KVS_OK);
    assert_int_equal(truncate(path_of("m-00003-of-00003.gguf"), 100), 0);
    assert_int_equal(mdl_model_check(&m, &err), KVS_SELF_MODEL);
    assert_non_null(strstr(err.text, "part 3 of 3: the model file was changed"));
    mdl_model_close(&m);
}

/* More parts than fit into the table of open files, or than are supported, leave nothing open. */
static void test_too_many(void **state)
{
    (void)state;
    struct tst_part p[PARTS];
    size_t size;
    good(whole_gguf, false, p);
    p[0].of = MDL_PARTS_MAX + 1;
    uint8_t *bytes = tst_part_make(whole_gguf, &p[0], &size);
    write_file("n-00001-of-00257.gguf", bytes, size);
    free(bytes);
    not_opened("n-00001-of-00257.gguf", "split.count is 257", "more than 256 parts are not supported, merge them first");
    (void)unlink(path_of("n-00001-of-00257.gguf"));
    write_parts();
    for (int i = 0; i < 300; i++) {
        struct mdl_model m;
        struct kvs_error err = {0};
        assert_int_equal(mdl_model_open(path_of("m-00001-of-00003.gguf"), &m, &err), KVS_OK);
        mdl_model_close(&m);
        not_opened("m-00002-of-00003.gguf", "part 2 of 3", "");
    }
}

static int begin(void **state)
{
    (void)state;
    const struct tst_llama_options o = {.layers = 2, .width = 32, .heads = 2, .kv_heads = 1, .ff = 32, .type = MDL_Q8_0, .seed = 5};
    struct kvs_error err;
    whole = tst_llama_make(&o, &whole_size);
    return mkdtemp(dir) == NULL || mdl_gguf_parse(whole, whole_size, false, &whole_gguf, &err) != KVS_OK ||
           mdl_gguf_tensor_count(whole_gguf) != TENSORS;
}

static int end(void **state)
{
    (void)state;
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf", "whole.gguf", "other.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unlink(path_of(names[i]));
    mdl_gguf_destroy(whole_gguf);
    free(whole);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_is_the_whole), cmocka_unit_test(test_parts_that_do_not_fit),
        cmocka_unit_test(test_negative_number_of_tensors), cmocka_unit_test(test_hostile_values),
        cmocka_unit_test(test_damaged_headers),     cmocka_unit_test(test_names),
        cmocka_unit_test(test_open),                cmocka_unit_test(test_not_opened),
        cmocka_unit_test(test_changed_while_open),  cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
