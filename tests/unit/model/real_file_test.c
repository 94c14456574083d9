/* real_file_test.c - the reader, the card and the fingerprint on files that other programs made.
 * Expected values come from the PyPI package gguf, hashlib and libxxhash, read by a script of their own.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/card.h"
#include "tests/support/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tests_run; /* 0 at the end: everything was skipped, which ctest shall show */

static void open_and_parse(const char *path, struct mdl_file *f, struct mdl_gguf **g)
{
    struct kvs_error err = {0};
    tests_run++;
    if (mdl_file_open(path, f, &err) != KVS_OK || mdl_gguf_parse(f->bytes, f->size, false, g, &err) != KVS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(mdl_file_check(f, &err), KVS_OK);
}

static void check_fingerprint(const struct mdl_gguf *g, const struct mdl_file *f, const char *want)
{
    struct mdl_fingerprint fp;
    char hex[65];
    assert_int_equal(mdl_fingerprint_file(g, f->bytes, f->size, &fp), KVS_OK);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", fp.bytes[i]);
    assert_string_equal(hex, want);
}

static void test_stories260k(void **state)
{
    (void)state;
    struct mdl_file f;
    struct mdl_gguf *g, *head;
    struct mdl_card c, c2;
    struct kvs_error err = {0};
    struct mdl_str s;
    uint64_t n;
    double score;
    if (!tst_file_exists(KVS_SHARED_DIR "/models/stories260K.gguf")) {
        print_message("skipped: ../shared/models/stories260K.gguf is absent\n");
        skip();
    }
    open_and_parse(KVS_SHARED_DIR "/models/stories260K.gguf", &f, &g);
    assert_int_equal(mdl_gguf_version(g), 3);
    assert_int_equal(mdl_gguf_header_bytes(g), 14176);
    assert_int_equal(mdl_gguf_tensor_count(g), 48);
    assert_true(mdl_gguf_array(g, "tokenizer.ggml.tokens", &n));
    assert_int_equal(n, 512);
    assert_true(mdl_gguf_array_str(g, "tokenizer.ggml.tokens", 261, &s));
    assert_true(mdl_gguf_array_f64(g, "tokenizer.ggml.scores", 261, &score));
    assert_false(mdl_gguf_array_str(g, "tokenizer.ggml.tokens", 512, &s));
    assert_int_equal(mdl_card_read(g, &c, &err), KVS_OK);
    assert_string_equal(c.arch, "llama");
    assert_int_equal(c.layers, 5);
    assert_int_equal(c.width, 64);
    assert_int_equal(c.heads, 8);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.key_dim, 8);
    assert_int_equal(c.value_dim, 8);
    assert_int_equal(c.ff, 172);
    assert_int_equal(c.vocab, 512);
    assert_int_equal(c.context_length, 128);
    assert_true(c.norm_eps == 9.999999747378752e-06f);
    assert_int_equal(c.rope.dims, 8);
    assert_true(c.rope.base == 10000.0);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.eos, 2);
    assert_int_equal(c.unk, 0);
    assert_int_equal(c.pad, -1); /* the file says 4294967295 */
    assert_int_equal(c.eog_count, 1);
    assert_int_equal(c.eog[0], 2);
    char text[128];
    mdl_card_rope_text(&c, 512, text, sizeof text);
    assert_string_equal(text, "base=10000,dims=8,scaling=none,context=512");
    check_fingerprint(g, &f, "67e8ad3538799f79b58fb32c25e52aa904fc51be09b4e5651ce068a7a1b1c820");
    /* The router sees the header only, and makes the same card of it. */
    assert_int_equal(mdl_gguf_parse(f.bytes, 14176, true, &head, &err), KVS_OK);
    assert_null(mdl_gguf_tensor_at(head, 0)->data);
    assert_int_equal(mdl_card_read(head, &c2, &err), KVS_OK);
    assert_memory_equal(&c, &c2, sizeof c);
    assert_int_equal(mdl_gguf_parse(f.bytes, 14175, true, &head, &err), KVS_SELF_MODEL);
    mdl_gguf_destroy(head);
    mdl_gguf_destroy(g);
    mdl_file_close(&f);
}

static void test_smollm2(void **state)
{
    (void)state;
    char path[512];
    struct mdl_file f;
    struct mdl_gguf *g;
    struct mdl_card c;
    struct kvs_error err = {0};
    if (!tst_smollm2_path(path, sizeof path)) {
        print_message("skipped: the sample model is absent (KVASIR_TEST_SMOLLM2)\n");
        skip();
    }
    open_and_parse(path, &f, &g);
    assert_int_equal(mdl_gguf_header_bytes(g), 1785664);
    assert_int_equal(mdl_gguf_tensor_count(g), 272);
    assert_int_equal(mdl_card_read(g, &c, &err), KVS_OK);
    assert_string_equal(c.name, "Smollm2 135M 8k Lc100K Mix1 Ep2");
    assert_int_equal(c.layers, 30);
    assert_int_equal(c.width, 576);
    assert_int_equal(c.heads, 9);
    assert_int_equal(c.kv_heads, 3);
    assert_int_equal(c.key_dim, 64);
    assert_int_equal(c.ff, 1536);
    assert_int_equal(c.vocab, 49152);
    assert_int_equal(c.context_length, 8192);
    assert_true(c.tied);
    assert_true(c.rope.base == 100000.0);
    assert_int_equal(c.rope.scaling, MDL_ROPE_NONE);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.eos, 2);
    assert_int_equal(c.eog_count, 2); /* <|im_end|> and <|endoftext|> */
    assert_int_equal(c.eog[0], 2);
    assert_int_equal(c.eog[1], 0);
    check_fingerprint(g, &f, "f9698a9d51630b82e8867a7df3737402f653649d0c5efa8157c74bbe5af19410");
    mdl_gguf_destroy(g);
    mdl_file_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stories260k),
        cmocka_unit_test(test_smollm2),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed == 0 && tests_run == 0 ? 77 : failed;
}
