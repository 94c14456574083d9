/* tokenizer_test.c - ids equal those of other implementations: the vectors in ../shared/vocab (made by the original
 * tokenizers) and the prompts of the goldens (made by llama.cpp); and byte-level BPE gives back whatever went in.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "model/tokenizer.h"
#include "model/tokenizer_int.h"
#include "tests/support/files.h"
#include "tests/support/gguf_writer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATOR "\n__ggml_vocab_test__\n"

static int tests_run; /* 0 at the end: everything was skipped, which ctest shall show */

/* Header only: this is what the router has. The bytes are freed at once, a tokenizer keeps none of them. */
static struct mdl_tokenizer *load_head(const char *path, size_t most)
{
    struct kvs_error err = {0};
    struct mdl_tokenizer *t = NULL;
    struct mdl_gguf *g;
    size_t size = 0;
    uint8_t *bytes = tst_file_read(path, most, &size);
    if (bytes == NULL) {
        print_message("skipped: %s is absent\n", path);
        return NULL;
    }
    if (mdl_gguf_parse(bytes, size, true, &g, &err) != KVS_OK || mdl_tokenizer_create(g, &t, &err) != KVS_OK)
        fail_msg("%s: %s", path, err.text);
    mdl_gguf_destroy(g);
    free(bytes);
    tests_run++;
    return t;
}

static struct mdl_tokenizer *load(const char *path)
{
    return load_head(path, (size_t)8 << 20);
}

static struct mdl_ids encode(const struct mdl_tokenizer *t, const char *text, size_t n, uint32_t flags)
{
    struct mdl_ids ids = {0};
    struct kvs_error err = {0};
    if (mdl_encode(t, text, n, flags, SIZE_MAX, &ids, &err) != KVS_OK)
        fail_msg("%s", err.text);
    return ids;
}

static int check_vector(const struct mdl_tokenizer *t, const char *text, size_t n, const char *want)
{
    struct mdl_ids ids = encode(t, text, n, 0);
    char *got = calloc(1, ids.count * 12 + 1), *at = got;
    for (size_t i = 0; i < ids.count; i++)
        at += snprintf(at, 12, "%s%d", i > 0 ? " " : "", (int)ids.ids[i]);
    while (*want == ' ')
        want++;
    int bad = strcmp(got, want) != 0;
    if (bad)
        print_error("text '%.*s'\n got  %s\n want %s\n", (int)n, text, got, want);
    free(got);
    mdl_ids_fini(&ids);
    return bad;
}

static void run_vectors(const char *name)
{
    char path[512];
    size_t in_size = 0, out_size = 0;
    int lines = 0, bad = 0;
    snprintf(path, sizeof path, "%s/vocab/ggml-vocab-%s.gguf", KVS_SHARED_DIR, name);
    struct mdl_tokenizer *t = load(path);
    if (t == NULL)
        skip();
    snprintf(path, sizeof path, "%s/vocab/ggml-vocab-%s.gguf.inp", KVS_SHARED_DIR, name);
    char *in = (char *)tst_file_read(path, 0, &in_size);
    snprintf(path, sizeof path, "%s/vocab/ggml-vocab-%s.gguf.out", KVS_SHARED_DIR, name);
    char *out = (char *)tst_file_read(path, 0, &out_size);
    assert_non_null(in);
    assert_non_null(out);
    const char *text = in;
    for (char *line = out; line < out + out_size; lines++) {
        const char *end = memmem(text, (size_t)(in + in_size - text), SEPARATOR, strlen(SEPARATOR));
        char *eol = memchr(line, '\n', (size_t)(out + out_size - line));
        assert_non_null(end);
        assert_non_null(eol);
        *eol = '\0';
        bad += check_vector(t, text, (size_t)(end - text), line);
        text = end + strlen(SEPARATOR);
        line = eol + 1;
    }
    print_message("%s: %d texts\n", name, lines);
    assert_int_equal(lines, 46);
    assert_int_equal(bad, 0);
    free(in);
    free(out);
    mdl_tokenizer_destroy(t);
}

static void test_vectors_gpt2(void **state)
{
    (void)state;
    run_vectors("gpt-2");
}

static void test_vectors_starcoder(void **state)
{
    (void)state;
    run_vectors("starcoder");
}

static void test_vectors_falcon(void **state)
{
    (void)state;
    run_vectors("falcon");
}

static void test_vectors_deepseek_llm(void **state)
{
    (void)state;
    run_vectors("deepseek-llm");
}

static void test_vectors_deepseek_coder(void **state)
{
    (void)state;
    run_vectors("deepseek-coder");
}

static void test_vectors_llama_spm(void **state)
{
    (void)state;
    run_vectors("llama-spm");
}

static void test_vectors_phi3(void **state)
{
    (void)state;
    run_vectors("phi-3");
}

static void check_golden_line(const struct mdl_tokenizer *t, const char *line, uint32_t flags)
{
    json_t *o = json_loads(line, 0, NULL);
    assert_non_null(o);
    bool chat = json_object_get(o, "messages") != NULL;
    json_t *prompt = json_object_get(o, "prompt"), *want = json_object_get(o, "prompt_ids");
    struct mdl_ids ids =
        encode(t, json_string_value(prompt), json_string_length(prompt), flags | (chat ? MDL_PARSE_SPECIAL : 0));
    assert_int_equal(ids.count, json_array_size(want));
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.ids[i], json_integer_value(json_array_get(want, i)));
    mdl_ids_fini(&ids);
    json_decref(o);
}

static int check_goldens(const struct mdl_tokenizer *t, const char *path, uint32_t flags)
{
    size_t size = 0;
    int lines = 0;
    char *text = (char *)tst_file_read(path, 0, &size);
    if (text == NULL) {
        print_message("skipped: %s is absent\n", path);
        return -1;
    }
    for (char *line = text; line < text + size; lines++) {
        char *eol = memchr(line, '\n', (size_t)(text + size - line));
        assert_non_null(eol);
        *eol = '\0';
        check_golden_line(t, line, flags);
        line = eol + 1;
    }
    free(text);
    return lines;
}

/* The contexts that perplexity is measured over are this text's ids, one after another; each begins with BOS where the file names one. */
static void check_contexts(const struct mdl_tokenizer *t, const char *path)
{
    enum { TEXT = 16384, IDS = 512 };
    size_t size;
    uint8_t *text = tst_file_read(KVS_SHARED_DIR "/data/text/war-and-peace.txt", TEXT, &size);
    json_t *ppl = json_load_file(path, 0, NULL), *contexts = json_object_get(ppl, "contexts"), *context;
    if (text == NULL || ppl == NULL) {
        print_message("skipped: the text or %s is absent\n", path);
        skip();
    }
    assert_int_equal(size, TEXT);
    assert_int_equal(json_array_size(contexts), 4);
    struct mdl_ids ids = encode(t, (const char *)text, size, 0);
    size_t i, at = 0, bos = json_is_integer(json_object_get(ppl, "bos")) ? 1 : 0;
    json_array_foreach(contexts, i, context)
    {
        assert_int_equal(json_array_size(context), IDS);
        for (size_t k = bos; k < IDS; k++, at++) {
            assert_true(at < ids.count);
            assert_int_equal(ids.ids[at], json_integer_value(json_array_get(context, k)));
        }
    }
    mdl_ids_fini(&ids);
    json_decref(ppl);
    free(text);
}

static void test_golden_prompts_stories260k(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = load(KVS_SHARED_DIR "/models/stories260K.gguf");
    if (t == NULL)
        skip();
    assert_int_equal(check_goldens(t, KVS_SHARED_DIR "/models/stories260K.golden.jsonl", MDL_ADD_SPECIAL), 14);
    mdl_tokenizer_destroy(t);
}

static void test_golden_prompts_smollm2(void **state)
{
    (void)state;
    char path[512];
    struct mdl_tokenizer *t = tst_smollm2_path(path, sizeof path) ? load(path) : NULL;
    if (t == NULL)
        skip();
    int lines = check_goldens(t, KVS_SHARED_DIR "/models/real/smollm2-135m-q4_1.golden.jsonl", MDL_ADD_SPECIAL);
    check_contexts(t, KVS_SHARED_DIR "/models/real/smollm2-135m-q4_1.ppl.json");
    mdl_tokenizer_destroy(t);
    if (lines < 0)
        skip();
    assert_int_equal(lines, 8);
}

/* 262,144 tokens: a long head. The prompts are raw and begin with BOS, as the file asks. */
static void test_golden_prompts_gemma3(void **state)
{
    (void)state;
    char path[512];
    struct mdl_tokenizer *t = NULL;
    if (tst_model_path("KVASIR_TEST_GEMMA3", "gemma-3-270m-q4_k_m.gguf", path, sizeof path))
        t = load_head(path, (size_t)32 << 20);
    else
        print_message("skipped: the model is absent (kvasir model pull gemma3)\n");
    if (t == NULL)
        skip();
    int lines = check_goldens(t, KVS_SHARED_DIR "/models/real/gemma-3-270m-q4_k_m.golden.jsonl", MDL_ADD_SPECIAL);
    check_contexts(t, KVS_SHARED_DIR "/models/real/gemma-3-270m-q4_k_m.ppl.json");
    mdl_tokenizer_destroy(t);
    if (lines < 0)
        skip();
    assert_int_equal(lines, 6);
}

static void append_bytes(const struct mdl_tokenizer *t, const struct mdl_ids *ids, struct kvs_buf *out)
{
    for (size_t i = 0; i < ids->count; i++) {
        struct mdl_str s = mdl_token_bytes(t, ids->ids[i]);
        assert_int_equal(kvs_buf_append(out, s.data, s.len), KVS_OK);
    }
}

/* Bytes of four kinds: anything, ASCII, UTF-8 of odd characters, long runs. */
static size_t random_text(struct kvs_rng *rng, char *out, size_t cap)
{
    static const char *const bits[] = {
        "\xc3\xa9", "\xe2\x80\x83", "\xf0\x9f\xa6\x99", "\xe6\x97\xa5", " ", "\n", "  ", "'s", "'LL",
        "12345",    "the",          "\xcc\x81",         "\t",           "!?"};
    size_t n = 0, want = (size_t)kvs_rng_below(rng, cap - 8);
    uint64_t kind = kvs_rng_below(rng, 4);
    char run = (char)kvs_rng_next(rng);
    while (n < want) {
        const char *bit = bits[kvs_rng_below(rng, sizeof bits / sizeof bits[0])];
        if (kind == 2) {
            memcpy(out + n, bit, strlen(bit));
            n += strlen(bit);
        } else {
            out[n++] = kind == 0 ? (char)kvs_rng_next(rng) : kind == 1 ? (char)kvs_rng_below(rng, 128) : run;
        }
    }
    return n;
}

static void test_random_bytes_come_back(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = load(KVS_SHARED_DIR "/vocab/ggml-vocab-gpt-2.gguf");
    if (t == NULL)
        skip();
    struct kvs_rng rng = {20261129};
    char text[600];
    for (int i = 0; i < 3000; i++) {
        struct kvs_buf back;
        size_t n = random_text(&rng, text, sizeof text);
        struct mdl_ids ids = encode(t, text, n, 0);
        kvs_buf_init(&back, 4096);
        append_bytes(t, &ids, &back);
        assert_int_equal(back.len, n);
        if (n > 0)
            assert_memory_equal(back.data, text, n);
        kvs_buf_fini(&back);
        mdl_ids_fini(&ids);
    }
    mdl_tokenizer_destroy(t);
}

static void test_bounds_and_special_text(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = load(KVS_SHARED_DIR "/vocab/ggml-vocab-gpt-2.gguf");
    struct kvs_error err = {0};
    struct mdl_ids ids = {0};
    if (t == NULL)
        skip();
    const char *text = "a <|endoftext|> b";
    assert_int_equal(mdl_encode(t, text, strlen(text), MDL_PARSE_SPECIAL, 5, &ids, &err), KVS_OK);
    assert_int_equal(ids.count, 4); /* "a", " ", 50256, " b" */
    assert_int_equal(ids.ids[2], 50256);
    assert_true(mdl_is_control(t, 50256));
    /* Without the flag it stays text, and nothing of a text that is too long is left behind. */
    assert_int_equal(mdl_encode(t, text, strlen(text), 0, 5, &ids, &err), KVS_REQ_TOO_LONG);
    assert_int_equal(ids.count, 4);
    ids.count = 0;
    assert_int_equal(mdl_encode(t, text, strlen(text), 0, 100, &ids, &err), KVS_OK);
    for (size_t i = 0; i < ids.count; i++)
        assert_int_not_equal(ids.ids[i], 50256);
    mdl_ids_fini(&ids);
    mdl_tokenizer_destroy(t);
}

static void test_control_text_never_merges_into_a_control_token(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = load(KVS_SHARED_DIR "/vocab/ggml-vocab-llama-spm.gguf");
    if (t == NULL)
        skip();
    struct mdl_ids ids = encode(t, "<s></s><unk><0x41>", 18, MDL_ADD_SPECIAL);
    assert_int_equal(ids.ids[0], 1);
    for (size_t i = 1; i < ids.count; i++)
        assert_true(ids.ids[i] > 258); /* no control, no byte token */
    mdl_ids_fini(&ids);
    ids = encode(t, "<s>x</s>", 8, MDL_PARSE_SPECIAL);
    assert_int_equal(ids.count, 3);
    assert_int_equal(ids.ids[0], 1);
    assert_int_equal(ids.ids[2], 2);
    mdl_ids_fini(&ids);
    mdl_tokenizer_destroy(t);
}

/* Phi-3's special tokens take the white space behind them along, but for three (ids by llama.cpp, and by the original's tokenizer.json). */
static void test_special_tokens_of_phi3_strip(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t want[13];
        size_t count;
    } cases[] = {
        {"<|user|>\nHello <|end|> \t\n<|assistant|>\n", {1, 32010, 15043, 29871, 32007, 32001}, 6},
        {"<s> a<|endoftext|>\nb</s>\n c<unk> d",
         {1, 1, 29871, 263, 32000, 29871, 13, 29890, 2, 274, 0, 29871, 270},
         13},
        {"<|user|>\xc2\xa0x", {1, 32010, 20246, 29916}, 4},
    };
    struct mdl_tokenizer *t = load(KVS_SHARED_DIR "/vocab/ggml-vocab-phi-3.gguf");
    if (t == NULL)
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mdl_ids ids = encode(t, cases[i].text, strlen(cases[i].text), MDL_ADD_SPECIAL | MDL_PARSE_SPECIAL);
        assert_int_equal(ids.count, cases[i].count);
        assert_memory_equal(ids.ids, cases[i].want, ids.count * sizeof *ids.ids);
        mdl_ids_fini(&ids);
    }
    mdl_tokenizer_destroy(t);
}

/* A template that writes BOS itself, as most do, does not get a second one from a file that asks for BOS; whoever only parses does. */
static void test_a_chat_has_one_bos(void **state)
{
    (void)state;
    struct mdl_tokenizer *t = load(KVS_SHARED_DIR "/vocab/ggml-vocab-llama-spm.gguf");
    struct kvs_error err = {0};
    if (t == NULL)
        skip();
    static const struct {
        const char *text;
        int32_t want[3];
        size_t count;
    } cases[] = {{"<s>", {1}, 1}, {"", {1}, 1}, {"</s>", {1, 2}, 2}, {"<s></s>", {1, 2}, 2}, {"</s><s>", {1, 2, 1}, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mdl_ids ids = {0};
        assert_int_equal(mdl_ids_push(&ids, 1), KVS_OK); /* what stands before is not looked at */
        assert_int_equal(mdl_encode_chat(t, cases[i].text, strlen(cases[i].text), 100, &ids, &err), KVS_OK);
        assert_int_equal(ids.count, 1 + cases[i].count);
        assert_memory_equal(ids.ids + 1, cases[i].want, cases[i].count * sizeof *ids.ids);
        mdl_ids_fini(&ids);
    }
    mdl_tokenizer_destroy(t);
}

/* A byte-level vocabulary in which "abc" is a token that its merges never reach: "ab" forms first. */
static struct mdl_tokenizer *small_bpe(const char *pre)
{
    static const struct mdl_str tokens[] = {{"a", 1}, {"b", 1}, {"c", 1}, {"ab", 2}, {"bc", 2}, {"abc", 3}, {"<s>", 3}};
    static const struct mdl_str merges[] = {{"a b", 3}, {"a bc", 4}, {"b c", 3}};
    static const int32_t types[] = {1, 1, 1, 1, 1, 1, 3};
    struct tst_gguf *w = tst_gguf_create(3, 0);
    struct mdl_tokenizer *t = NULL;
    struct mdl_gguf *g = NULL;
    struct kvs_error err = {0};
    size_t size;
    tst_gguf_str(w, "tokenizer.ggml.model", "gpt2");
    if (pre != NULL)
        tst_gguf_str(w, "tokenizer.ggml.pre", pre);
    tst_gguf_strs(w, "tokenizer.ggml.tokens", tokens, 7);
    tst_gguf_strs(w, "tokenizer.ggml.merges", merges, 3);
    tst_gguf_i32s(w, "tokenizer.ggml.token_type", types, 7);
    tst_gguf_u32(w, "tokenizer.ggml.bos_token_id", 6);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    if (mdl_gguf_parse(bytes, size, true, &g, &err) != KVS_OK || mdl_tokenizer_create(g, &t, &err) != KVS_OK)
        fail_msg("%s", err.text);
    mdl_gguf_destroy(g);
    free(bytes);
    tests_run++;
    return t;
}

/* A file that does not say how text is cut is read as "default", and says that it is. */
static void test_a_missing_name_means_default_and_is_told(void **state)
{
    (void)state;
    const char *const names[] = {"default", "gpt-2"};
    struct mdl_tokenizer *silent = small_bpe(NULL);
    assert_true(mdl_tokenizer_pre_guessed(silent));
    for (int i = 0; i < 2; i++) {
        struct mdl_tokenizer *t = small_bpe(names[i]);
        assert_false(mdl_tokenizer_pre_guessed(t));
        assert_int_equal(t->pretok == silent->pretok, i == 0);
        mdl_tokenizer_destroy(t);
    }
    mdl_tokenizer_destroy(silent);
}

/* What the families differ in beside their cuts (Hugging Face's ignore_merges; add_bos where the file does not say):
 * llama-bpe and tekken take a piece that is a token whole and begin with BOS, the others do neither. */
static void test_whole_pieces_and_bos_go_by_the_family(void **state)
{
    (void)state;
    static const struct {
        const char *pre;
        bool whole;
    } families[] = {{"gpt-2", false}, {"smollm", false},   {"qwen2", false},    {"gpt-4o", false},
                    {"dbrx", false},  {"llama-bpe", true}, {"falcon-h1", true}, {"tekken", true}};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        struct mdl_tokenizer *t = small_bpe(families[i].pre);
        struct mdl_ids ids = encode(t, "abc", 3, MDL_ADD_SPECIAL);
        static const int32_t whole[] = {6, 5}, merged[] = {3, 2};
        assert_int_equal(ids.count, 2);
        assert_memory_equal(ids.ids, families[i].whole ? whole : merged, sizeof whole);
        mdl_ids_fini(&ids);
        mdl_tokenizer_destroy(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_pieces_and_bos_go_by_the_family),
        cmocka_unit_test(test_a_missing_name_means_default_and_is_told),
        cmocka_unit_test(test_vectors_gpt2),
        cmocka_unit_test(test_vectors_starcoder),
        cmocka_unit_test(test_vectors_falcon),
        cmocka_unit_test(test_vectors_deepseek_llm),
        cmocka_unit_test(test_vectors_deepseek_coder),
        cmocka_unit_test(test_vectors_llama_spm),
        cmocka_unit_test(test_vectors_phi3),
        cmocka_unit_test(test_special_tokens_of_phi3_strip),
        cmocka_unit_test(test_a_chat_has_one_bos),
        cmocka_unit_test(test_golden_prompts_stories260k),
        cmocka_unit_test(test_golden_prompts_smollm2),
        cmocka_unit_test(test_golden_prompts_gemma3),
        cmocka_unit_test(test_random_bytes_come_back),
        cmocka_unit_test(test_bounds_and_special_text),
        cmocka_unit_test(test_control_text_never_merges_into_a_control_token),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed == 0 && tests_run == 0 ? 77 : failed;
}
