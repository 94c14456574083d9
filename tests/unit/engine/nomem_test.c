/* nomem_test.c - every allocation behind loading a model and creating a context fails in turn: an error comes back, nothing
 * leaks (asan), and the first run without a failure works.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "tests/support/files.h"
#include "tests/support/gguf_writer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail_at = -1; /* this many allocations from now; -1: never */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t n);

static bool fails(void)
{
    return fail_at >= 0 && fail_at-- == 0;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : __real_aligned_alloc(align, n);
}

static struct mdl_gguf *gguf;
static struct mdl_card card;
static uint8_t *file;
static size_t size;

static kvs_status load(struct eng_model **out, struct kvs_error *err)
{
    struct mdl_fingerprint f;
    struct eng_load_options o = {.isa_name = "ref", .context = 128, .file_bytes = file, .file_size = size};
    return eng_model_load(gguf, &card, &o, out, &f, err);
}

static void test_load(void **state)
{
    (void)state;
    int n = 0;
    for (bool done = false; !done; n++) {
        struct eng_model *m = NULL;
        struct kvs_error err = {0};
        fail_at = n;
        kvs_status s = load(&m, &err);
        done = fail_at >= 0; /* nothing failed any more */
        fail_at = -1;
        assert_int_equal(s, done ? KVS_OK : KVS_SELF_NOMEM);
        assert_true(done || err.text[0] != '\0');
        eng_model_destroy(m);
    }
    assert_true(n > 15);
}

static void test_context(void **state)
{
    (void)state;
    struct eng_model *m;
    struct kvs_error err = {0};
    struct kvc_layout layout;
    struct eng_kv kv = {0};
    int n = 0;
    assert_int_equal(load(&m, &err), KVS_OK);
    assert_int_equal(eng_kv_layout(&card, KVC_F16, 64, 0, &layout, &err), KVS_OK);
    for (uint32_t g = 0; g < layout.group_count; g++) {
        kv.base[g] = aligned_alloc(64, layout.group[g].page_bytes);
        kv.pages[g] = 1;
        memset(kv.base[g], 0, layout.group[g].page_bytes);
    }
    for (bool done = false; !done; n++) {
        struct eng_ctx *c = NULL;
        struct eng_ctx_options o = {.threads = 2, .batch_tokens = 8, .batch_seqs = 2};
        fail_at = n;
        kvs_status s = eng_ctx_create(m, &layout, &kv, &o, &c, &err);
        done = fail_at >= 0;
        fail_at = -1;
        assert_int_equal(s, done ? KVS_OK : KVS_SELF_NOMEM);
        if (done) {
            struct kvc_block_table t;
            int32_t id = 5;
            float logits[512];
            assert_int_equal(kvc_block_table_init(&t, layout.group_count, 1), KVS_OK);
            t.block_count = 1;
            for (uint32_t g = 0; g < layout.group_count; g++) {
                kvc_block_row(&t, g)[0] = 0;
            }
            struct eng_part p = {.ids = &id, .count = 1, .table = &t};
            assert_int_equal(eng_forward(c, &p, 1, logits, NULL, NULL), KVS_OK);
            kvc_block_table_fini(&t);
        }
        eng_ctx_destroy(c);
    }
    assert_true(n > 20);
    for (uint32_t g = 0; g < layout.group_count; g++) {
        free(kv.base[g]);
    }
    eng_model_destroy(m);
}

/* Takes the file over. */
static int tests_of(uint8_t *bytes)
{
    struct kvs_error err;
    file = bytes;
    if (file == NULL || mdl_gguf_parse(file, size, false, &gguf, &err) != KVS_OK ||
        mdl_card_read(gguf, &card, &err) != KVS_OK) {
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load), cmocka_unit_test(test_context)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mdl_gguf_destroy(gguf);
    free(file);
    return failed;
}

int main(void)
{
    static const char *const others[] = {"qwen2moe", "gpt-oss", "deepseek2",
                                         "falcon-h1"}; /* a mixture, windows, a latent, states */
    int failed = tests_of(tst_llama_make(&(struct tst_llama_options){.layers = 1, .seed = 1}, &size));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char path[512];
        (void)snprintf(path, sizeof path, KVS_SHARED_DIR "/models/random/tiny-%s.gguf", others[i]);
        if (tst_file_exists(path)) {
            print_message("%s\n", others[i]);
            failed += tests_of(tst_file_read(path, 0, &size));
        }
    }
    return failed;
}
