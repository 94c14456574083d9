/* nomem_test.c - every allocation of loading and encoding fails once: the status says so, nothing leaks (the address
 * sanitizer counts), and the same call works again afterwards.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/parts.h"
#include "model/template.h"
#include "model/tokenizer.h"
#include "tests/support/gguf_parts.h"

#include <stdlib.h>
#include <string.h>

static long countdown = -1; /* allocations until one fails; below 0: none does */

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_realloc(void *p, size_t n);

static bool fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t count, size_t n)
{
    return fails() ? NULL : __real_calloc(count, n);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

static kvs_status use(const uint8_t *bytes, size_t size)
{
    struct mdl_gguf *g = NULL;
    struct mdl_tokenizer *t = NULL;
    struct mdl_template *chat = NULL;
    struct mdl_ids ids = {0};
    struct kvs_error err;
    char text[300];
    memset(text, 't', sizeof text); /* one long piece: the heap too */
    kvs_status s = mdl_gguf_parse(bytes, size, true, &g, &err);
    if (s == KVS_OK)
        s = mdl_tokenizer_create(g, &t, &err);
    if (s == KVS_OK)
        s = mdl_template_create(g, &chat, &err);
    if (s == KVS_OK)
        s = mdl_encode(t, text, sizeof text, MDL_ADD_SPECIAL, 1000, &ids, &err);
    mdl_ids_fini(&ids);
    mdl_template_destroy(chat);
    mdl_tokenizer_destroy(t);
    mdl_gguf_destroy(g);
    return s;
}

static uint8_t *spm_file(size_t *size)
{
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_llama_vocab(w);
    return tst_gguf_finish(w, size, NULL);
}

/* A vocabulary of four letters whose merges name a text that is no token ("tt"). */
static uint8_t *bpe_file(size_t *size)
{
    const struct mdl_str tokens[] = {{"t", 1}, {"a", 1}, {"tttt", 4}, {"<|x|>", 5}};
    const struct mdl_str merges[] = {{"t t", 3}, {"tt tt", 5}};
    const int32_t types[] = {1, 1, 1, 3};
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_str(w, "tokenizer.ggml.model", "gpt2");
    tst_gguf_str(w, "tokenizer.ggml.pre", "smollm");
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, 4);
    tst_gguf_i32s(w, "tokenizer.ggml.token_type", types, 4);
    tst_gguf_strs(w, "tokenizer.ggml.merges", merges, 2);
    return tst_gguf_finish(w, size, NULL);
}

static void fail_each(uint8_t *bytes, size_t size)
{
    long n = 0;
    for (;; n++) {
        countdown = n;
        kvs_status s = use(bytes, size);
        bool reached = countdown < 0;
        countdown = -1;
        if (!reached) {
            assert_int_equal(s, KVS_OK);
            break;
        }
        assert_int_equal(s, KVS_SELF_NOMEM);
        assert_int_equal(use(bytes, size), KVS_OK);
    }
    print_message("%ld allocations\n", n);
    assert_true(n > 10);
    free(bytes);
}

static void test_spm(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = spm_file(&size);
    fail_each(bytes, size);
}

static void test_bpe(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = bpe_file(&size);
    fail_each(bytes, size);
}

/* What merging leaves as a text that is no token is written out byte by byte. */
static void test_merge_results_that_are_no_tokens(void **state)
{
    (void)state;
    struct mdl_gguf *g;
    struct mdl_tokenizer *t;
    struct mdl_ids ids = {0};
    struct kvs_error err = {0};
    size_t size;
    uint8_t *bytes = bpe_file(&size);
    assert_int_equal(mdl_gguf_parse(bytes, size, true, &g, &err), KVS_OK);
    assert_int_equal(mdl_tokenizer_create(g, &t, &err), KVS_OK);
    assert_int_equal(mdl_encode(t, "ttttttta", 8, 0, 100, &ids, &err), KVS_OK);
    const int32_t want[] = {2, 0, 0, 0, 1}; /* tttt, then tt as two t, t, a */
    assert_int_equal(ids.count, 5);
    assert_memory_equal(ids.ids, want, sizeof want);
    /* A byte that the vocabulary lacks is the client's fault, and named; nothing of the text stays. */
    assert_int_equal(mdl_encode(t, "tab", 3, 0, 100, &ids, &err), KVS_REQ_INVALID);
    assert_non_null(strstr(err.text, "0x62"));
    assert_int_equal(ids.count, 5);
    mdl_ids_fini(&ids);
    mdl_tokenizer_destroy(t);
    mdl_gguf_destroy(g);
    free(bytes);
}

/* Creating and rendering a chat template; what was rendered before stays. */
static kvs_status use_template(const struct mdl_gguf *g)
{
    const struct mdl_message m = {{"user", 4}, {"hi", 2}};
    struct mdl_template *t = NULL;
    struct kvs_error err = {0};
    struct kvs_buf out;
    char why[200];
    kvs_buf_init(&out, 100000);
    kvs_status s = mdl_template_create(g, &t, &err);
    if (s == KVS_OK) {
        assert_true(mdl_template_ready(t, why, sizeof why));
        s = mdl_template_render(t, &m, 1, true, &out, &err);
    }
    assert_true(s == KVS_OK ? out.len > 4000 : out.len == 0 && err.code == s);
    kvs_buf_fini(&out);
    mdl_template_destroy(t);
    return s;
}

static void test_template(void **state)
{
    (void)state;
    static const char text[] = "{% macro m(a) %}{% for i in range(99) %}{{ a|upper ~ [i] }}{% endfor %}{% endmacro %}"
                               "{% for i in [1, 2, 3] %}{{ bos_token + m(messages[0].content * 5)|tojson }}{% endfor %}";
    const struct mdl_str tokens[] = {{"<s>", 3}};
    struct mdl_gguf *g;
    struct kvs_error err = {0};
    size_t size;
    long n = 0;
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_gguf_bytes(w, "tokenizer.chat_template", text, sizeof text - 1);
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, 1);
    tst_gguf_u32(w, "tokenizer.ggml.bos_token_id", 0);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    assert_int_equal(mdl_gguf_parse(bytes, size, true, &g, &err), KVS_OK);
    for (bool reached = true; reached; n++) {
        countdown = n;
        kvs_status s = use_template(g);
        reached = countdown < 0;
        countdown = -1;
        assert_int_equal(s, reached ? KVS_SELF_NOMEM : KVS_OK);
    }
    print_message("%ld allocations\n", n - 1);
    assert_true(n > 8);
    mdl_gguf_destroy(g);
    free(bytes);
}

/* Joining three parts; the header and the model are there or nothing is. */
static void test_parts(void **state)
{
    (void)state;
    struct mdl_part part[3];
    uint8_t *made[3];
    struct mdl_gguf *whole, *g;
    struct kvs_error err = {0};
    size_t size;
    long n = 0;
    uint8_t *bytes = tst_llama_make(&(struct tst_llama_options){.layers = 1}, &size), *header;
    assert_int_equal(mdl_gguf_parse(bytes, size, false, &whole, &err), KVS_OK);
    for (uint16_t i = 0; i < 3; i++) {
        const struct tst_part p = tst_part_of(whole, i, 3, false);
        made[i] = tst_part_make(whole, &p, &part[i].size);
        part[i] = (struct mdl_part){.bytes = made[i], .size = part[i].size, .name = "x"};
    }
    for (bool reached = true; reached; n++) {
        header = NULL;
        g = NULL;
        countdown = n;
        kvs_status s = mdl_parts_join(part, 3, &header, &g, &err);
        reached = countdown < 0;
        countdown = -1;
        assert_int_equal(s, reached ? KVS_SELF_NOMEM : KVS_OK);
        assert_true(s == KVS_OK ? g != NULL && header != NULL : g == NULL && header == NULL && err.code == s);
        mdl_gguf_destroy(g);
        free(header);
    }
    print_message("%ld allocations\n", n - 1);
    assert_true(n > 20);
    for (int i = 0; i < 3; i++)
        free(made[i]);
    mdl_gguf_destroy(whole);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_merge_results_that_are_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
