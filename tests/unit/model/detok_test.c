/* detok_test.c - the streaming detokenizer on a vocabulary of our own making.
 * Expected text: bytes.decode("utf-8", errors="replace") of Python gives the same, one U+FFFD a wrong beginning.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "model/tokenizer.h"
#include "tests/support/gguf_writer.h"

#include <stdlib.h>
#include <string.h>

#define FFFD "\xef\xbf\xbd"
#define BYTE(b) (3 + (b)) /* ids of the generated vocabulary */

static struct mdl_tokenizer *make(void)
{
    struct mdl_tokenizer *t;
    struct mdl_gguf *g;
    struct kvs_error err = {0};
    size_t size;
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_llama_vocab(w);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    if (mdl_gguf_parse(bytes, size, true, &g, &err) != KVS_OK || mdl_tokenizer_create(g, &t, &err) != KVS_OK)
        fail_msg("%s", err.text);
    mdl_gguf_destroy(g);
    free(bytes);
    return t;
}

static void check(const struct mdl_tokenizer *t, const char *bytes, const char *want)
{
    struct mdl_detok d;
    struct kvs_buf out;
    kvs_buf_init(&out, 4096);
    mdl_detok_init(&d, t, false, false);
    for (size_t i = 0; bytes[i] != '\0'; i++) {
        assert_int_equal(mdl_detok_push(&d, BYTE((uint8_t)bytes[i]), &out), KVS_OK);
        assert_true(kvs_utf8_valid(out.data, out.len));
    }
    assert_int_equal(mdl_detok_flush(&d, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), want);
    kvs_buf_fini(&out);
}

static void test_characters_are_never_split(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = make();
    check(t, "abc", "abc");
    check(t, "\xc3\xa9\xe6\x97\xa5\xf0\x9f\xa6\x99!", "\xc3\xa9\xe6\x97\xa5\xf0\x9f\xa6\x99!");
    check(t, "\xff", FFFD);
    check(t, "\xf0\x9f\xa6", FFFD); /* cut at the end: one */
    check(t,
          "\xe2\x82"
          "A",
          FFFD "A"); /* a wrong third byte that is a character itself */
    check(t, "\xe2\x82\xe2\x82\xac", FFFD "\xe2\x82\xac");
    check(t, "\xf0\x80\x80\x41", FFFD FFFD FFFD "A"); /* overlong: no beginning of anything */
    check(t, "\xed\xa0\x80", FFFD FFFD FFFD);         /* a surrogate */
    check(t, "\xc3\xc3\xa9", FFFD "\xc3\xa9");
    check(t, "\xf4\x90", FFFD FFFD);
    /* Held back until it is certain. */
    struct mdl_detok d;
    struct kvs_buf out;
    kvs_buf_init(&out, 100);
    mdl_detok_init(&d, t, false, false);
    assert_int_equal(mdl_detok_push(&d, BYTE(0xf0), &out), KVS_OK);
    assert_int_equal(mdl_detok_push(&d, BYTE(0x9f), &out), KVS_OK);
    assert_int_equal(mdl_detok_push(&d, BYTE(0xa6), &out), KVS_OK);
    assert_int_equal(out.len, 0);
    assert_int_equal(mdl_detok_push(&d, BYTE(0x99), &out), KVS_OK);
    assert_int_equal(out.len, 4);
    kvs_buf_fini(&out);
    mdl_tokenizer_destroy(t);
}

static struct mdl_ids encode(const struct mdl_tokenizer *t, const char *text, uint32_t flags)
{
    struct mdl_ids ids = {0};
    struct kvs_error err = {0};
    assert_int_equal(mdl_encode(t, text, strlen(text), flags, 1000, &ids, &err), KVS_OK);
    return ids;
}

static void decode(const struct mdl_tokenizer *t, const struct mdl_ids *ids, bool special, bool start, const char *want)
{
    struct mdl_detok d;
    struct kvs_buf out;
    kvs_buf_init(&out, 4096);
    mdl_detok_init(&d, t, special, start);
    for (size_t i = 0; i < ids->count; i++)
        assert_int_equal(mdl_detok_push(&d, ids->ids[i], &out), KVS_OK);
    assert_int_equal(mdl_detok_flush(&d, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), want);
    kvs_buf_fini(&out);
}

static void test_prefix_space_and_control_tokens(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = make();
    struct mdl_ids ids = encode(t, "the cat", MDL_ADD_SPECIAL);
    assert_int_equal(ids.ids[0], 1);
    decode(t, &ids, false, true, "the cat");
    decode(t, &ids, false, false, " the cat");
    decode(t, &ids, true, false, "<s> the cat");
    mdl_ids_fini(&ids);
    ids = encode(t, "  x", 0);
    decode(t, &ids, false, true, "  x"); /* only the one that was put there goes */
    mdl_ids_fini(&ids);
    assert_true(mdl_is_control(t, 0));
    assert_true(mdl_is_control(t, 2));
    assert_false(mdl_is_control(t, 3));
    assert_false(mdl_is_control(t, -1));
    assert_int_equal(mdl_token_bytes(t, (int32_t)TST_LLAMA_VOCAB).len, 0);
    assert_int_equal(mdl_token_bytes(t, INT32_MIN).len, 0);
    assert_int_equal(mdl_vocab_size(t), TST_LLAMA_VOCAB);
    mdl_tokenizer_destroy(t);
}

/* SPM with all byte tokens gives back any text that has no U+2581 in it, however it is cut into tokens. */
static void test_random_text_comes_back(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = make();
    struct kvs_rng rng = {7};
    for (int i = 0; i < 2000; i++) {
        char text[200];
        size_t n = 0, want = (size_t)kvs_rng_below(&rng, 40);
        for (size_t k = 0; k < want; k++) {
            uint32_t cp = kvs_rng_below(&rng, 2) ? (uint32_t)(1 + kvs_rng_below(&rng, 127))
                                                 : (uint32_t)kvs_rng_below(&rng, 0x110000);
            uint8_t c[4];
            int len = cp == 0 || cp == 0x2581 ? 0 : kvs_utf8_encode(cp, c);
            memcpy(text + n, c, (size_t)len);
            n += (size_t)len;
        }
        text[n] = '\0';
        struct mdl_ids ids = encode(t, text, 0);
        decode(t, &ids, false, true, text);
        mdl_ids_fini(&ids);
    }
    mdl_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters_are_never_split),
        cmocka_unit_test(test_prefix_space_and_control_tokens),
        cmocka_unit_test(test_random_text_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
