/* fast_path_test.c - the tokenizer's short cuts change nothing: with the cache of words, the cuts of SentencePiece text and the skipped passes of
 * the splitter ids are those without (MDL_ENCODE_PLAIN), on random text and a book, in every vocabulary at hand; and counters show that the short
 * cuts were taken. A vocabulary whose tokens span words is there too: where a token spans a place, no cut may be made.
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
#include "tests/support/gguf_writer.h"
#include "tests/support/pcre_split.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOOK_BYTES 200000u
#define PIECES_MAX 400000u
#define THREADS 7u /* more than there are caches */

static struct mdl_tokenizer *from_bytes(uint8_t *bytes, size_t size)
{
    struct kvs_error err = {0};
    struct mdl_gguf *g;
    struct mdl_tokenizer *t = NULL;
    if (mdl_gguf_parse(bytes, size, true, &g, &err) != KVS_OK || mdl_tokenizer_create(g, &t, &err) != KVS_OK)
        fail_msg("%s", err.text);
    mdl_gguf_destroy(g);
    free(bytes);
    return t;
}

static struct mdl_tokenizer *shared_vocab(const char *name)
{
    char path[512];
    size_t size = 0;
    snprintf(path, sizeof path, "%s/vocab/ggml-vocab-%s.gguf", KVS_SHARED_DIR, name);
    uint8_t *bytes = tst_file_read(path, 0, &size);
    if (bytes == NULL)
        print_message("skipped: %s is absent\n", path);
    return bytes != NULL ? from_bytes(bytes, size) : NULL;
}

/* A part of the book, from a place that the seed chooses; NULL when it is absent. To be freed. */
static char *book(uint64_t seed, size_t *n_out)
{
    size_t size = 0;
    uint8_t *all = tst_file_read(KVS_SHARED_DIR "/data/text/war-and-peace.txt", 0, &size);
    if (all == NULL)
        return NULL;
    struct kvs_rng rng = {seed};
    assert_true(size > BOOK_BYTES);
    memmove(all, all + kvs_rng_below(&rng, size - BOOK_BYTES), BOOK_BYTES);
    *n_out = BOOK_BYTES;
    return (char *)all;
}

static const char *const bits[] = {"a",
                                   "b",
                                   " a",
                                   "b ",
                                   " the",
                                   "The",
                                   " of",
                                   "ing",
                                   "\n",
                                   "\r\n",
                                   " ",
                                   "  ",
                                   "\t",
                                   "'s",
                                   "'LL",
                                   "7",
                                   "1234",
                                   "12 ",
                                   "!",
                                   ", ",
                                   "/",
                                   "$",
                                   "``",
                                   "\v",
                                   "_",
                                   "\x01",
                                   "\x7f",
                                   "\xc3\xa9",
                                   "\xcc\x81",
                                   "\xc2\xa0",
                                   "\xe3\x80\x80",
                                   "\xe2\x96\x81",
                                   "\xe2\x80\x9c",
                                   "\xc7\x85",
                                   "\xe6\x97\xa5\xe6\x9c\xac",
                                   "\xea\xb0\x80",
                                   "\xd9\xa1",
                                   "\xf0\x9f\xa6\x99",
                                   "\xc2\xbd",
                                   "\xe3\x80\x82"};

/* Bits of every kind, now and then any character or any byte; every fourth text is valid UTF-8 and ASCII only. */
static size_t random_text(struct kvs_rng *rng, char *out, size_t cap)
{
    size_t n = 0, want = (size_t)kvs_rng_below(rng, cap - 16);
    bool ascii = kvs_rng_below(rng, 4) == 0;
    while (n < want) {
        uint64_t kind = kvs_rng_below(rng, 40);
        const char *bit = bits[kvs_rng_below(rng, sizeof bits / sizeof bits[0])];
        if (ascii && (bit[0] & 0x80) != 0)
            continue;
        if (kind == 0 && !ascii)
            out[n++] = (char)kvs_rng_next(rng);
        else if (kind == 1 && !ascii)
            n += (size_t)kvs_utf8_encode((uint32_t)kvs_rng_below(rng, 0x20000), (uint8_t *)out + n);
        else {
            memcpy(out + n, bit, strlen(bit));
            n += strlen(bit);
        }
    }
    return n;
}

/* On a copy of exactly n bytes, so that a sanitizer sees a read past the end. Statuses, ids and the error are the same. */
static void check_same(const struct mdl_tokenizer *t, const char *text, size_t n, uint32_t flags, size_t ids_max)
{
    struct mdl_ids fast = {0}, plain = {0};
    struct kvs_error a = {0}, b = {0};
    char *copy = malloc(n > 0 ? n : 1);
    memcpy(copy, text, n);
    kvs_status x = mdl_encode(t, copy, n, flags, ids_max, &fast, &a);
    kvs_status y = mdl_encode(t, copy, n, flags | MDL_ENCODE_PLAIN, ids_max, &plain, &b);
    assert_int_equal(x, y);
    assert_string_equal(a.text, b.text);
    for (size_t i = 0; i < fast.count && i < plain.count; i++) {
        if (fast.ids[i] != plain.ids[i])
            fail_msg("token %zu is %d by short cuts and %d without, of the text '%.*s'", i, (int)fast.ids[i],
                     (int)plain.ids[i], n < 400 ? (int)n : 400, text);
    }
    assert_int_equal(fast.count, plain.count);
    free(copy);
    mdl_ids_fini(&fast);
    mdl_ids_fini(&plain);
}

/* Bounds that the last tokens of the text miss by a few, which often fall within its last word. */
static void check_bounds(const struct mdl_tokenizer *t, const char *text, size_t n)
{
    struct mdl_ids ids = {0};
    struct kvs_error err;
    if (mdl_encode(t, text, n, MDL_ENCODE_PLAIN, SIZE_MAX, &ids, &err) == KVS_OK) {
        for (size_t less = 1; less <= 3 && less <= ids.count; less++)
            check_same(t, text, n, 0, ids.count - less);
    }
    mdl_ids_fini(&ids);
}

static void check_vocabulary(struct mdl_tokenizer *t, const char *name)
{
    struct kvs_rng rng = {20261130};
    uint64_t hits, misses;
    char text[700];
    for (int i = 0; i < 1500; i++) {
        size_t n = random_text(&rng, text, sizeof text);
        check_same(t, text, n, i % 2 == 0 ? MDL_ADD_SPECIAL : 0,
                   i % 5 == 0 ? (size_t)kvs_rng_below(&rng, 200) : SIZE_MAX);
        if (i % 10 == 1)
            check_bounds(t, text, n);
    }
    mdl_words_counts(t->words, &hits, &misses);
    assert_true(hits > 10000);
    assert_true(misses > 100);
    size_t n = 0;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        char *part = book(seed, &n);
        if (part == NULL)
            break;
        check_same(t, part, n, 0, SIZE_MAX);
        free(part);
    }
    uint64_t before = hits;
    mdl_words_counts(t->words, &hits, &misses);
    print_message("%s: %llu words from the cache, %llu not\n", name, (unsigned long long)hits,
                  (unsigned long long)misses);
    if (n > 0)
        assert_true(hits - before > 50000);
    mdl_tokenizer_destroy(t);
}

static void test_ids_in_shared_vocabularies(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2",          "starcoder", "falcon", "deepseek-llm",
                                        "deepseek-coder", "llama-spm", "phi-3"};
    size_t there = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct mdl_tokenizer *t = shared_vocab(names[i]);
        if (t == NULL)
            continue;
        check_vocabulary(t, names[i]);
        there++;
    }
    if (there == 0)
        skip();
}

static void test_ids_in_a_generated_vocabulary(void **state)
{
    (void)state;
    size_t size;
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_llama_vocab(w);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    check_vocabulary(from_bytes(bytes, size), "generated");
}

/* SPM with tokens that span words (a_b), end in a space (b_) or hold a line end that is no token by itself. */
static struct mdl_tokenizer *spanning_vocab(void)
{
    static char text[300][8];
    struct mdl_str tokens[300];
    float scores[300];
    int32_t types[300];
    static const char *const pieces[] = {"_",   "a",  "b",  "c",  "_b", "a_b",  "b_", "c\n",
                                         "\nc", "cc", "_c", "_a", "__", "b__a", "_a_"};
    static const float score[] = {-90, -91, -92, -93, -2, -1, -5, -3, -4, -7, -6, -8, -9, -10, -11};
    uint32_t n = 259;
    for (uint32_t i = 0; i < n; i++) {
        types[i] = i == 0 ? 2 : i < 3 ? 3 : 6;
        scores[i] = 0;
        if (i < 3)
            snprintf(text[i], sizeof text[i], "%s", i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        else
            snprintf(text[i], sizeof text[i], "<0x%02X>", (unsigned)(i - 3));
        tokens[i] = (struct mdl_str){text[i], strlen(text[i])};
    }
    for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++, n++) { /* a space means what U+2581 means */
        for (size_t i = 0; i <= strlen(pieces[k]); i++)
            text[n][i] = pieces[k][i] == '_' ? ' ' : pieces[k][i];
        types[n] = 1;
        scores[n] = score[k];
        tokens[n] = (struct mdl_str){text[n], strlen(text[n])};
    }
    struct tst_gguf *w = tst_gguf_create(3, 0);
    size_t size;
    tst_gguf_str(w, "tokenizer.ggml.model", "llama");
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, n);
    tst_gguf_f32s(w, "tokenizer.ggml.scores", scores, n);
    tst_gguf_i32s(w, "tokenizer.ggml.token_type", types, n);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    return from_bytes(bytes, size);
}

static void test_no_cut_where_a_token_spans(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = spanning_vocab();
    struct mdl_ids ids = {0};
    struct kvs_error err = {0};
    /* By hand: " a b": "_b" (-2) comes before "_a" (-8), then "a_b" (-1) joins the two words: "_", "a_b". */
    const int32_t want[] = {259, 264};
    assert_int_equal(mdl_encode(t, "a b", 3, 0, 10, &ids, &err), KVS_OK);
    assert_int_equal(ids.count, 2);
    assert_memory_equal(ids.ids, want, sizeof want);
    mdl_ids_fini(&ids);
    assert_true(mdl_joined(t, 'a', ' ') && mdl_joined(t, 'b', ' ') && mdl_joined(t, 'c', '\n'));
    assert_false(mdl_joined(t, 'c', ' ') || mdl_joined(t, 'a', 'b') || mdl_joined(t, '\n', '\n'));
    assert_true(mdl_joined(t, 'a', 0x80) && mdl_joined(t, 0xe2, 0xbf)); /* never within a character */
    struct kvs_rng rng = {7};
    char text[400];
    for (int i = 0; i < 20000; i++) {
        size_t n = (size_t)kvs_rng_below(&rng, i % 10 == 0 ? sizeof text : 24);
        for (size_t k = 0; k < n; k++)
            text[k] = i % 7 == 0 ? (char)kvs_rng_next(&rng) : "aabbcc  \nx"[kvs_rng_below(&rng, 10)];
        check_same(t, text, n, 0, SIZE_MAX);
    }
    uint64_t hits, misses;
    mdl_words_counts(t->words, &hits, &misses);
    assert_true(hits > 10000);
    mdl_tokenizer_destroy(t);
}

struct ends {
    const uint8_t *text;
    size_t count, end[PIECES_MAX];
};

static kvs_status take(void *user, const uint8_t *piece, size_t n)
{
    struct ends *e = user;
    assert_true(e->count < PIECES_MAX);
    e->end[e->count++] = (size_t)(piece + n - e->text);
    return KVS_OK;
}

static void check_cuts(const struct mdl_pretok *p, const char *name, const char *text, size_t n, size_t *short_cuts)
{
    static struct ends fast, plain;
    size_t none = 0;
    fast.text = plain.text = (const uint8_t *)text;
    fast.count = plain.count = 0;
    assert_int_equal(mdl_pretok_split_how(p, fast.text, n, false, short_cuts, take, &fast), KVS_OK);
    assert_int_equal(mdl_pretok_split_how(p, fast.text, n, true, &none, take, &plain), KVS_OK);
    assert_int_equal(none, 0);
    if (fast.count != plain.count || memcmp(fast.end, plain.end, fast.count * sizeof fast.end[0]) != 0)
        fail_msg("%s: short cuts cut elsewhere, in the text '%.*s'", name, n < 400 ? (int)n : 400, text);
}

/* Every way of cutting; those of several passes must have left some out. */
static void test_cuts(void **state)
{
    (void)state;
    static const char *const several[] = {"smollm",      "deepseek-llm", "deepseek-coder",
                                          "deepseek-v3", "falcon",       "default"};
    size_t counted = 0, n = 0;
    char text[700], *part = book(3, &n);
    for (size_t k = 0; k < tst_pretok_count; k++) {
        const struct mdl_pretok *p = NULL;
        struct kvs_error err = {0};
        size_t short_cuts = 0;
        struct kvs_rng rng = {k};
        assert_int_equal(mdl_pretok_find((struct mdl_str){tst_pretok_names[k], strlen(tst_pretok_names[k])}, &p, &err),
                         KVS_OK);
        for (int i = 0; i < 4000; i++)
            check_cuts(p, tst_pretok_names[k], text, random_text(&rng, text, sizeof text), &short_cuts);
        if (part != NULL)
            check_cuts(p, tst_pretok_names[k], part, n, &short_cuts);
        for (size_t i = 0; i < sizeof several / sizeof several[0]; i++) {
            if (strcmp(several[i], tst_pretok_names[k]) == 0) {
                assert_true(short_cuts > 10000);
                counted++;
            }
        }
    }
    assert_int_equal(counted, sizeof several / sizeof several[0]);
    free(part);
}

/* The key is the word's bytes and zeros, wherever the readable bytes end; words that differ in one bit, in length or in the mark are
 * different words. */
static void test_words_are_told_apart(void **state)
{
    (void)state;
    struct kvs_rng rng = {5};
    uint8_t text[2 * MDL_LONG_BYTES];
    for (int i = 0; i < 40000; i++) {
        bool is_short = i % 2 == 0;
        size_t n = 1 + (size_t)kvs_rng_below(&rng, is_short ? MDL_SHORT_BYTES : MDL_LONG_BYTES),
               bit = (size_t)kvs_rng_below(&rng, 8 * n);
        struct mdl_short_word s = {.count = 1};
        struct mdl_long_word l = {.len = (uint8_t)n, .count = 1};
        uint64_t key[6];
        for (size_t k = 0; k < sizeof text; k++)
            text[k] = (uint8_t)kvs_rng_next(&rng);
        memcpy(s.key, text, is_short ? n : 0);
        ((uint8_t *)s.key)[15] = (uint8_t)n;
        memcpy(l.key, text, n);
        uint8_t *copy = malloc(n); /* nothing behind it may be read */
        memcpy(copy, text, n);
        for (int there = 0; there < 2; there++) {
            const uint8_t *at = there == 0 ? copy : text, *limit = there == 0 ? copy + n : text + sizeof text;
            mdl_word_load(at, n, limit, key, 6);
            assert_true(mdl_long_is(&l, key, n, 0));
            assert_false(mdl_long_is(&l, key, n + 1, 0) || mdl_long_is(&l, key, n, MDL_WORD_PART));
            if (!is_short)
                continue;
            mdl_short_key(at, n, MDL_WORD_PART, limit, key);
            assert_false(mdl_short_is(&s, key));
            mdl_short_key(at, n, 0, limit, key);
            assert_true(mdl_short_is(&s, key));
        }
        free(copy);
        text[bit / 8] ^= (uint8_t)(1u << bit % 8);
        mdl_word_load(text, n, text + sizeof text, key, 6);
        assert_false(mdl_long_is(&l, key, n, 0));
        if (is_short) {
            mdl_short_key(text, n, 0, text + sizeof text, key);
            assert_false(mdl_short_is(&s, key));
        }
    }
}

/* Some text of the vocabulary lies over the place in front of text[at]: asked of all that could, one by one. */
static bool some_text_spans(const struct mdl_tokenizer *t, const uint8_t *text, size_t n, size_t at)
{
    for (size_t from = at > t->longest ? at - t->longest : 0; from < at; from++) {
        for (size_t to = at + 1; to <= n && to - from <= t->longest; to++) {
            if (mdl_text_find(t, text + from, to - from) != MDL_NO_ID)
                return true;
        }
    }
    return false;
}

/* Text put together from the vocabulary's own texts that are not ASCII, and now and then a byte or a character of any kind. */
static size_t wide_text(const struct mdl_tokenizer *t, struct kvs_rng *rng, char *out, size_t cap)
{
    size_t n = 0, want = (size_t)kvs_rng_below(rng, cap - 80);
    while (n < want) {
        struct mdl_str s = mdl_text(t, (int32_t)kvs_rng_below(rng, t->text_count));
        bool wide = false;
        for (size_t i = 0; i < s.len; i++)
            wide |= (s.data[i] & 0x80) != 0;
        uint64_t kind = kvs_rng_below(rng, 64);
        if (kind == 0)
            out[n++] = (char)kvs_rng_next(rng);
        else if (kind < 4)
            n += (size_t)kvs_utf8_encode(0x3040 + (uint32_t)kvs_rng_below(rng, 0x6000), (uint8_t *)out + n);
        else if (s.len <= 64 && (wide || kind == 4)) {
            memcpy(out + n, s.data, s.len);
            n += s.len;
        }
    }
    return n;
}

/* No text spans a cut, and nearly all places that none spans are cuts: too few would be slow, and nothing else would show it. */
static void check_places(struct mdl_tokenizer *t, const char *name)
{
    struct kvs_rng rng = {31};
    char text[500];
    size_t free_places = 0, cuts = 0;
    for (int i = 0; i < 300; i++) {
        size_t n = wide_text(t, &rng, text, sizeof text), from = 0;
        const uint8_t *bytes = (const uint8_t *)text;
        for (int k = 0; k < 2; k++)
            check_same(t, text, n, 0, SIZE_MAX);
        for (size_t at = 1; i < 20 && at < n; at++) {
            bool cut = from + mdl_cut_end(t->cuts, bytes + from, n - from) == at;
            bool free_here = (bytes[at] & 0xc0) != 0x80 && ((bytes[at] | bytes[at - 1]) & 0x80) != 0 &&
                             !some_text_spans(t, bytes, n, at);
            if (cut && !free_here)
                fail_msg("%s: a text spans the cut at %zu of '%.*s'", name, at, (int)n, text);
            from = cut ? at : from;
            free_places += free_here;
            cuts += cut;
        }
    }
    print_message("%s: %zu cuts at %zu places that no text spans\n", name, cuts, free_places);
    assert_true(free_places > 200);
    assert_true(cuts * 10 > free_places * 9);
    mdl_tokenizer_destroy(t);
}

static void test_cuts_of_wide_text(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2", "starcoder", "deepseek-llm", "falcon", "llama-spm"};
    size_t there = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct mdl_tokenizer *t = shared_vocab(names[i]);
        if (t == NULL)
            continue;
        check_places(t, names[i]);
        there++;
    }
    if (there == 0)
        skip();
}

/* GPT-2's letters for bytes: those that print stand for themselves, the others for U+0100 and on. */
static size_t letters(const char *bytes, char *out)
{
    size_t n = 0;
    for (; *bytes != '\0'; bytes++) {
        uint32_t byte = (uint8_t)*bytes, others = 0;
        for (uint32_t b = 0; b < byte; b++)
            others += b < '!' || (b > '~' && b < 0xa1) || b == 0xad;
        bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
        n += (size_t)kvs_utf8_encode(prints ? byte : 256 + others, (uint8_t *)out + n);
    }
    return n;
}

/* In the llama-bpe family a piece that is a token is that token, though no merge makes it; a part of a piece is not. The bytes are the same, the cache
 * must not mix them up. By hand: 256 tokens of a byte each, token 256 is U+65E5 U+672C, and a merge that is of no use. */
static void test_part_of_a_piece_is_no_piece(void **state)
{
    (void)state;
    static char text[257][16];
    struct mdl_str tokens[257], merge = {"a b", 3};
    for (uint32_t b = 0; b < 257; b++) {
        char byte[2] = {(char)b, '\0'};
        tokens[b] = (struct mdl_str){text[b], b == 0     ? (size_t)kvs_utf8_encode(256, (uint8_t *)text[b])
                                              : b == 256 ? letters("\xe6\x97\xa5\xe6\x9c\xac", text[b])
                                                         : letters(byte, text[b])};
    }
    struct tst_gguf *w = tst_gguf_create(3, 0);
    size_t size;
    tst_gguf_str(w, "tokenizer.ggml.model", "gpt2");
    tst_gguf_str(w, "tokenizer.ggml.pre", "llama-bpe");
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, 257);
    tst_gguf_strs(w, "tokenizer.ggml.merges", &merge, 1);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    struct mdl_tokenizer *t = from_bytes(bytes, size);
    struct mdl_ids ids = {0};
    struct kvs_error err = {0};
    static const char sentence[] =
        "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe8\xaa\x9e\xe8\xaa\x9e\xe8\xaa\x9e\xe8\xaa\x9e";
    for (int round = 0; round < 3; round++) {
        assert_int_equal(mdl_encode(t, sentence, 6, 0, 100, &ids, &err), KVS_OK);
        assert_int_equal(ids.count, 1);
        assert_int_equal(ids.ids[0], 256);
        ids.count = 0;
        assert_int_equal(mdl_encode(t, sentence, sizeof sentence - 1, 0, 100, &ids, &err), KVS_OK);
        assert_int_equal(ids.count, sizeof sentence - 1);
        for (size_t i = 0; i < ids.count; i++)
            assert_int_equal(ids.ids[i], (uint8_t)sentence[i]);
        ids.count = 0;
    }
    mdl_ids_fini(&ids);
    mdl_tokenizer_destroy(t);
}

struct job {
    const struct mdl_tokenizer *t;
    const struct mdl_ids *want;
    const char *text;
    size_t n, wrong;
};

static void *encode_often(void *arg)
{
    struct job *j = arg;
    struct kvs_error err;
    for (int i = 0; i < 200; i++) {
        struct mdl_ids ids = {0};
        if (mdl_encode(j->t, j->text, j->n, 0, SIZE_MAX, &ids, &err) != KVS_OK || ids.count != j->want->count ||
            memcmp(ids.ids, j->want->ids, ids.count * sizeof *ids.ids) != 0)
            j->wrong++;
        mdl_ids_fini(&ids);
    }
    return NULL;
}

/* More threads at once than there are caches: each has one for itself or none. */
static void test_many_threads(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = spanning_vocab();
    struct mdl_words *held[MDL_WORD_CACHES];
    struct mdl_ids want = {0};
    struct kvs_error err = {0};
    struct kvs_rng rng = {11};
    char text[2000];
    size_t n = random_text(&rng, text, sizeof text);
    assert_int_equal(mdl_encode(t, text, n, MDL_ENCODE_PLAIN, SIZE_MAX, &want, &err), KVS_OK);
    struct job job[THREADS];
    pthread_t thread[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        job[i] = (struct job){.t = t, .want = &want, .text = text, .n = n};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, &job[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_int_equal(job[i].wrong, 0);
    }
    for (size_t i = 0; i < MDL_WORD_CACHES; i++) { /* all were given back; with all gone it works as well */
        held[i] = mdl_words_acquire(t->words);
        assert_non_null(held[i]);
    }
    assert_null(mdl_words_acquire(t->words));
    check_same(t, text, n, 0, SIZE_MAX);
    for (size_t i = 0; i < MDL_WORD_CACHES; i++)
        mdl_words_release(t->words, held[i]);
    mdl_ids_fini(&want);
    mdl_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_cut_where_a_token_spans),  cmocka_unit_test(test_ids_in_a_generated_vocabulary),
        cmocka_unit_test(test_ids_in_shared_vocabularies),  cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_words_are_told_apart),        cmocka_unit_test(test_cuts_of_wide_text),
        cmocka_unit_test(test_part_of_a_piece_is_no_piece), cmocka_unit_test(test_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
