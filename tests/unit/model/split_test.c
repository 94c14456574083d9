/* split_test.c - the hand-written splitter cuts where the published regular expressions cut, which PCRE2 runs beside it:
 * every character of Unicode in several surroundings, random texts of characters that the expressions tell apart, and a book.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "model/tokenizer_int.h"
#include "tests/support/files.h"
#include "tests/support/pcre_split.h"

#include <stdlib.h>
#include <string.h>

#define PIECES_MAX 4000000u
static size_t want[PIECES_MAX], got[PIECES_MAX], got_count;
static const uint8_t *subject;

static kvs_status take(void *user, const uint8_t *piece, size_t n)
{
    (void)user;
    assert_true(got_count < PIECES_MAX);
    got[got_count++] = (size_t)(piece + n - subject);
    return KVS_OK;
}

static void check(const char *name, const struct mdl_pretok *p, struct tst_split *oracle, const uint8_t *text, size_t n)
{
    size_t count = tst_split_run(oracle, text, n, want, PIECES_MAX);
    subject = text;
    got_count = 0;
    assert_int_equal(mdl_pretok_split(p, text, n, take, NULL), KVS_OK);
    for (size_t i = 0; i < count || i < got_count; i++) {
        if (i < count && i < got_count && want[i] == got[i])
            continue;
        size_t from = i > 0 ? want[i - 1] : 0, to = n - from > 40 ? from + 40 : n;
        print_error("%s: after byte %zu ours ends at %zu, the expression at %zu; the text from there:", name, from,
                    i < got_count ? got[i] : 0, i < count ? want[i] : 0);
        for (size_t k = from; k < to; k++)
            print_error(" %02x", text[k]);
        fail_msg("%s cuts elsewhere than its expression", name);
    }
}

static const struct mdl_pretok *find(const char *name)
{
    const struct mdl_pretok *p = NULL;
    struct kvs_error err = {0};
    if (mdl_pretok_find((struct mdl_str){name, strlen(name)}, &p, &err) != KVS_OK)
        fail_msg("%s", err.text);
    return p;
}

/* Every character: alone, and beside a letter, a number, a sign, a space, a line end, a capital, a mark. */
static void test_every_character(void **state)
{
    (void)state;
    static const char *const around[] = {"", "a", "1", "!", " ", "\n", "A", "\xcc\x81", "'"};
    uint8_t *text = malloc((size_t)0x110000 * 24);
    assert_non_null(text);
    for (size_t k = 0; k < tst_pretok_count; k++) {
        const struct mdl_pretok *p = find(tst_pretok_names[k]);
        struct tst_split *oracle = tst_split_create(tst_pretok_names[k]);
        for (size_t a = 0; a < sizeof around / sizeof around[0]; a++) {
            size_t n = 0, w = strlen(around[a]);
            for (uint32_t cp = 0; cp < 0x110000; cp += 1) {
                if (cp > 0x3134f && cp < 0xe0000) /* unassigned planes: their edges will do */
                    cp = 0xe0000;
                if (cp > 0xe01ff && cp < 0x10fff0)
                    cp = 0x10fff0;
                n += (size_t)kvs_utf8_encode(cp, text + n);
                memcpy(text + n, around[a], w);
                n += w;
            }
            check(tst_pretok_names[k], p, oracle, text, n);
        }
        tst_split_destroy(oracle);
    }
    free(text);
}

/* Characters of every kind that some expression tells apart. */
static const char *const bits[] = {
    "a",
    "z",
    "S",
    "LL",
    "d",
    "re",
    "'",
    "'s",
    "'ll",
    "'RE",
    "'\xc5\xbf",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\xc2\xa0",
    "\xe3\x80\x80",
    "\xe1\xa0\x8e",
    "0",
    "12",
    "345",
    "\xc2\xbd",
    "\xd9\xa1",
    "!",
    "/",
    "`",
    "$",
    "+",
    "_",
    "\xe2\x80\x99",
    "\xe3\x80\x82",
    "\xef\xbc\x81",
    "\xe2\x82\xac",
    "\xc3\xa9",
    "\xc3\x89",
    "\xc7\x85" /* titlecase */,
    "\xca\xb0" /* modifier */,
    "\xc2\xaa",
    "\xe6\x97\xa5",
    "\xe3\x81\x82",
    "\xea\xb0\x80",
    "\xe0\xa4\x85",
    "\xcc\x81",
    "\xe2\x83\x9d",
    "\xf0\x9f\xa6\x99",
    "\xf0\x90\x90\x80",
    "\xe2\x80\x8d",
    "\x01",
    "\x7f",
    "\xef\xbf\xbf",
};

static size_t random_text(struct kvs_rng *rng, uint8_t *out, size_t cap)
{
    size_t n = 0, pieces = 1 + (size_t)kvs_rng_below(rng, 24), count = sizeof bits / sizeof bits[0];
    uint64_t few = 2 + kvs_rng_below(rng, 8), kind = kvs_rng_below(rng, 4), first = kvs_rng_next(rng);
    for (size_t i = 0; i < pieces && n + 8 < cap; i++) {
        if (kind == 0) {
            n += (size_t)kvs_utf8_encode((uint32_t)kvs_rng_below(rng, 0x3000), out + n);
            continue;
        }
        uint64_t r = kind == 1 ? kvs_rng_below(rng, count) : (first + kvs_rng_below(rng, few) * 7919) % count;
        size_t w = strlen(bits[r]);
        memcpy(out + n, bits[r], w);
        n += w;
    }
    return n;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS 6000
#else
#define ROUNDS 60000
#endif

static void test_random_texts(void **state)
{
    (void)state;
    struct kvs_rng rng = {20261130};
    for (size_t k = 0; k < tst_pretok_count; k++) {
        const struct mdl_pretok *p = find(tst_pretok_names[k]);
        struct tst_split *oracle = tst_split_create(tst_pretok_names[k]);
        for (int i = 0; i < ROUNDS; i++) {
            uint8_t text[256], *exact;
            size_t n = random_text(&rng, text, sizeof text);
            exact = malloc(n + 1); /* an exact copy: reading past the end is seen */
            assert_non_null(exact);
            memcpy(exact + 1, text, n);
            check(tst_pretok_names[k], p, oracle, exact + 1, n);
            free(exact);
        }
        tst_split_destroy(oracle);
    }
}

static void test_a_book(void **state)
{
    (void)state;
    size_t n = 0;
    uint8_t *text = tst_file_read(KVS_SHARED_DIR "/data/text/war-and-peace.txt", 0, &n);
    if (text == NULL) {
        print_message("skipped: %s is absent\n", KVS_SHARED_DIR "/data/text/war-and-peace.txt");
        skip();
    }
    for (size_t k = 0; k < tst_pretok_count; k++) {
        struct tst_split *oracle = tst_split_create(tst_pretok_names[k]);
        check(tst_pretok_names[k], find(tst_pretok_names[k]), oracle, text, n);
        assert_true(got_count > n / 8);
        tst_split_destroy(oracle);
    }
    free(text);
}

/* Bytes that are no UTF-8 stand alone, and what is around them is split as if the text ended there. */
static void test_invalid_bytes(void **state)
{
    (void)state;
    static const uint8_t text[] = "ab \xff\xe3\x81 cd\xf0\x9f";
    static const size_t ends[] = {2, 3, 4, 5, 6, 9, 10, 11};
    subject = text;
    got_count = 0;
    assert_int_equal(mdl_pretok_split(find("qwen2"), text, sizeof text - 1, take, NULL), KVS_OK);
    assert_int_equal(got_count, sizeof ends / sizeof ends[0]);
    for (size_t i = 0; i < got_count; i++)
        assert_int_equal(got[i], ends[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_character),
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_a_book),
        cmocka_unit_test(test_invalid_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
