/* predict_test.c - memory predicted from a header alone against what is really allocated: each aligned block that loading and creating a context
 * asks for is counted by an allocator of the test's own, and so is what is given back. All of ../shared/models/random.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "engine/memory.h"
#include "tests/support/files.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANDOM_MODELS KVS_SHARED_DIR "/models/random/"
static const char *const names[] = {"tiny-llama3rope", "tiny-phi3",      "tiny-gemma3", "tiny-gpt-oss", "tiny-qwen3moe",     "tiny-deepseek2",
                                    "tiny-mamba",      "tiny-falcon-h1", "tiny-mamba2", "tiny-granitehybrid", "tiny-wide-q4_k", "tiny-wide-mxfp4"};
#define BLOCKS 8192u
static struct {
    void *p;
    uint64_t bytes;
} block[BLOCKS];
static uint64_t live; /* bytes of aligned blocks that are not freed */
static uint32_t blocks;

void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    void *p = __real_aligned_alloc(align, n);
    assert_true(blocks < BLOCKS);
    block[blocks].p = p;
    block[blocks++].bytes = n;
    live += n;
    return p;
}

void __wrap_free(void *p)
{
    for (uint32_t i = 0; p != NULL && i < blocks; i++) {
        if (block[i].p == p) {
            live -= block[i].bytes;
            block[i] = block[--blocks];
            break;
        }
    }
    __real_free(p);
}

static uint64_t done_bytes;

static void file_done(void *user, const uint8_t *bytes, size_t count)
{
    assert_non_null(bytes);
    assert_ptr_equal(user, &done_bytes);
    done_bytes += count;
}

struct seen {
    uint64_t model, ctx, largest;
    uint32_t model_blocks, ctx_blocks;
};

static void really(const struct mdl_gguf *g, const struct mdl_card *card, const struct kvc_layout *l, const struct eng_load_options *o,
                   const struct eng_ctx_options *step, struct seen *out)
{
    static uint8_t kv_bytes[64] __attribute__((aligned(64)));
    struct eng_kv kv = {.base = {NULL}};
    struct eng_model *m;
    struct eng_ctx *c;
    struct kvs_error err = {0};
    uint32_t blocks_before = blocks;
    uint64_t before = live, tensors = 0;
    done_bytes = 0;
    if (eng_model_load(g, card, o, &m, NULL, &err) != KVS_OK) {
        fail_msg("%s", err.text);
    }
    out->model = live - before;
    out->model_blocks = blocks - blocks_before;
    for (uint32_t i = 0; i < l->group_count; i++) {
        kv.base[i] = kv_bytes;
    }
    assert_int_equal(eng_ctx_create(m, l, &kv, step, &c, &err), KVS_OK);
    out->ctx = live - before - out->model;
    out->ctx_blocks = blocks - blocks_before - out->model_blocks;
    eng_ctx_destroy(c);
    eng_model_destroy(m);
    assert_int_equal(live, before);
    out->largest = 0;
    for (uint64_t i = 0; i < mdl_gguf_tensor_count(g); i++) {
        uint64_t n = mdl_gguf_tensor_at(g, i)->bytes;
        tensors += n;
        out->largest = n > out->largest ? n : out->largest;
    }
    assert_int_equal(done_bytes, tensors); /* each told once */
}

/* The prediction adds at most the allocator's own header to each block: 128 bytes, or two pages where it is mapped. */
static void near(uint64_t predicted, uint64_t seen, uint32_t count, const char *what)
{
    uint64_t most = seen + count * UINT64_C(8192);
    if (predicted < seen + count * 128 || predicted > most) {
        fail_msg("%s: %llu bytes predicted, %llu in %u blocks seen", what, (unsigned long long)predicted, (unsigned long long)seen, count);
    }
}

static void one(const char *name, uint32_t context, const struct eng_ctx_options *step)
{
    char path[512];
    uint8_t *file;
    size_t size;
    struct mdl_gguf *g, *header;
    struct mdl_card card;
    struct kvc_layout l;
    struct kvs_error err = {0};
    (void)snprintf(path, sizeof path, RANDOM_MODELS "%s.gguf", name);
    file = tst_file_read(path, 0, &size);
    assert_non_null(file);
    assert_int_equal(mdl_gguf_parse(file, size, false, &g, &err), KVS_OK);
    uint64_t n = mdl_gguf_header_bytes(g);
    uint8_t *head = malloc(n);
    assert_non_null(head);
    memcpy(head, file, n);
    assert_int_equal(mdl_gguf_parse(head, n, true, &header, &err), KVS_OK);
    assert_int_equal(mdl_card_read(header, &card, &err), KVS_OK);
    assert_int_equal(eng_kv_layout(&card, KVC_F16, 64, 0, &l, &err), KVS_OK);
    struct eng_load_options o = {.isa_name = "ref", .context = context, .file_done = file_done, .user = &done_bytes};
    struct eng_memory p;
    uint64_t before = live;
    if (eng_memory_predict(header, &card, &o, &l, step, &p, &err) != KVS_OK) {
        fail_msg("%s: %s", name, err.text);
    }
    assert_int_equal(live, before);
    struct seen seen;
    really(g, &card, &l, &o, step, &seen);
    near(p.weights + p.tables, seen.model, seen.model_blocks, name);
    near(p.scratch, seen.ctx, seen.ctx_blocks, name);
    assert_true(p.loading >= seen.largest && p.loading <= p.weights + seen.largest + 4096);
    assert_true(p.tables >= (card.rope.dims / 2) * 8ull * context);
    mdl_gguf_destroy(header);
    mdl_gguf_destroy(g);
    free(head);
    free(file);
}

static void test_what_is_allocated_was_predicted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        one(names[i], 200, &(struct eng_ctx_options){.threads = 1, .batch_tokens = 16, .batch_seqs = 2});
        one(names[i], 32784, &(struct eng_ctx_options){.threads = 3, .batch_tokens = 192, .batch_seqs = 64});
    }
}

static void test_unknown_tensors_are_refused(void **state)
{
    (void)state;
    char path[512];
    uint8_t *file;
    size_t size;
    struct mdl_gguf *g;
    struct mdl_card card;
    struct kvc_layout l;
    struct kvs_error err = {0};
    struct eng_memory p;
    (void)snprintf(path, sizeof path, RANDOM_MODELS "%s.gguf", names[0]);
    file = tst_file_read(path, 0, &size);
    assert_non_null(file);
    for (size_t i = 0; i + 12 < size; i++) { /* blk.0.attn_q.weight -> blk.0.attm_q.weight */
        if (memcmp(file + i, "attn_q.weigh", 12) == 0) {
            file[i + 3] = 'm';
            break;
        }
    }
    assert_int_equal(mdl_gguf_parse(file, size, true, &g, &err), KVS_OK);
    assert_int_equal(mdl_card_read(g, &card, &err), KVS_OK);
    assert_int_equal(eng_kv_layout(&card, KVC_F16, 64, 0, &l, &err), KVS_OK);
    struct eng_load_options o = {.isa_name = "ref", .context = 200};
    struct eng_ctx_options step = {.threads = 1, .batch_tokens = 16, .batch_seqs = 2};
    assert_int_equal(eng_memory_predict(g, &card, &o, &l, &step, &p, &err), KVS_SELF_UNSUPPORTED);
    assert_non_null(strstr(err.text, "attm_q"));
    mdl_gguf_destroy(g);
    free(file);
}

int main(void)
{
    if (!tst_file_exists(RANDOM_MODELS "tiny-phi3.gguf")) {
        puts("skipped: ../shared/models/random is absent");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_allocated_was_predicted),
                                       cmocka_unit_test(test_unknown_tensors_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
