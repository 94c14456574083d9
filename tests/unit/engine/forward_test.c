/* forward_test.c - what eng_forward refuses, reports and calls: hostile ids and tables, the layer callback, rows with NaN.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/ops/ops.h"
#include "sys/clock.h"
#include "tests/support/gguf_writer.h"
#include "tests/unit/engine/rig.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const isas[] = {"ref", "avx2"};
static uint32_t isa_count;

static uint8_t *file;
static size_t file_size;

/* The float at element `index` of a tensor, to be spoilt. */
static uint8_t *tensor_bytes(uint8_t *copy, const char *name)
{
    struct mdl_gguf *g;
    struct kvs_error err;
    assert_int_equal(mdl_gguf_parse(copy, file_size, false, &g, &err), KVS_OK);
    const struct mdl_tensor *t = mdl_gguf_tensor(g, name);
    assert_non_null(t);
    uint8_t *at = copy + (t->data - copy);
    mdl_gguf_destroy(g);
    return at;
}

static bool pages_are_zero(const struct rig *r)
{
    for (uint32_t g = 0; g < r->layout.group_count; g++) {
        for (size_t i = 0; i < (size_t)r->kv.pages[g] * r->layout.group[g].page_bytes; i++) {
            if (r->kv.base[g][i] != 0) {
                return false;
            }
        }
    }
    return true;
}

static void test_bad_input_changes_nothing(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, file, file_size,
             &(struct rig_options){.kv = KVC_F32, .context = 100, .block = 16, .batch_tokens = 32});
    int32_t good[64] = {1, 2, 3}, above[3] = {1, 2, (int32_t)TST_LLAMA_VOCAB}, below[3] = {-1, 2, 3},
            least[1] = {INT32_MIN};
    float *logits = calloc(64 * TST_LLAMA_VOCAB, sizeof *logits);
    struct kvc_block_table few = r.table[1], none = r.table[2], wild = r.table[3];
    few.block_count = 1;
    kvc_block_row(&none, 0)[0] = KVC_BLOCK_NONE;
    kvc_block_row(&wild, 0)[0] = r.kv.pages[0];
    const struct eng_part ok = {.ids = good, .count = 3, .table = &r.table[0]};
    struct eng_part bad[] = {
        {.ids = above, .count = 3, .table = &r.table[0]},
        {.ids = below, .count = 3, .table = &r.table[0]},
        {.ids = least, .count = 1, .table = &r.table[0]},
        {.ids = good, .count = 0, .table = &r.table[0]},
        {.ids = good, .count = 33, .table = &r.table[0]},
        {.ids = good, .count = 3, .pos = 98, .table = &r.table[0]},
        {.ids = good, .count = 3, .pos = UINT32_MAX - 1, .table = &r.table[0]},
        {.ids = good, .count = 3, .logits_from = 4, .table = &r.table[0]},
        {.ids = good, .count = 3, .pos = 14, .table = &few},
        {.ids = good, .count = 3, .table = &none},
        {.ids = good, .count = 3, .table = &wild},
        {.ids = good, .count = 3, .table = NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct eng_part parts[2] = {ok, bad[i]};
        assert_int_equal(eng_forward(r.ctx, parts, 2, logits, NULL, NULL), KVS_REQ_INVALID);
        assert_int_equal(eng_forward(r.ctx, &bad[i], 1, logits, NULL, NULL), KVS_REQ_INVALID);
    }
    struct eng_part many[RIG_SEQS + 1] = {ok, ok, ok, ok, ok};
    assert_int_equal(eng_forward(r.ctx, many, RIG_SEQS + 1, logits, NULL, NULL), KVS_REQ_INVALID);
    assert_int_equal(eng_forward(r.ctx, many, 0, logits, NULL, NULL), KVS_REQ_INVALID);
    assert_int_equal(eng_forward(r.ctx, many, 1, NULL, NULL, NULL), KVS_REQ_INVALID);
    assert_true(pages_are_zero(&r));
    many[0].logits_from = 3; /* no logits wanted: no place for them needed */
    assert_int_equal(eng_forward(r.ctx, many, 1, NULL, NULL, NULL), KVS_OK);
    assert_false(pages_are_zero(&r));
    rig_close(&r);
    free(logits);
}

struct calls {
    uint32_t seen[8], count, stop_at;
    const struct rig *r;
    bool written[8]; /* was the layer's first key there when it was called */
};

static bool on_layer(void *user, uint32_t layer)
{
    struct calls *c = user;
    struct kvc_place at = kvc_layer_place(&c->r->layout, layer, 0);
    uint32_t g = at.group;
    const struct kvc_group *group = &c->r->layout.group[g];
    const uint8_t *page = c->r->kv.base[g] + kvc_block_row(&c->r->table[0], g)[0] * group->page_bytes;
    float k;
    memcpy(&k, page + kvc_head_offset(group, at.slot, 0), 4);
    c->written[c->count] = k != 0.0f;
    c->seen[c->count++] = layer;
    return layer == c->stop_at;
}

static void test_layer_callback(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct rig r;
        rig_open(&r, file, file_size, &(struct rig_options){.kv = KVC_F32, .threads = threads, .group_layers = 1});
        int32_t ids[5] = {7, 8, 9, 10, 11};
        float *logits = calloc(TST_LLAMA_VOCAB, sizeof *logits), want[TST_LLAMA_VOCAB];
        struct eng_part p = {.ids = ids, .count = 5, .table = &r.table[0], .logits_from = 4};
        struct calls c = {.stop_at = 99, .r = &r};
        assert_int_equal(eng_forward(r.ctx, &p, 1, logits, on_layer, &c), KVS_OK);
        assert_int_equal(c.count, 3);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(c.seen[i], i);
            assert_true(c.written[i]);
        }
        memcpy(want, logits, sizeof want);
        for (uint32_t stop = 0; stop < 3; stop++) {
            c = (struct calls){.stop_at = stop, .r = &r};
            memset(logits, 0, sizeof want);
            assert_int_equal(eng_forward(r.ctx, &p, 1, logits, on_layer, &c), KVS_REQ_CANCELLED);
            assert_int_equal(c.count, stop + 1);
            assert_true(logits[0] == 0.0f);
        }
        assert_int_equal(eng_forward(r.ctx, &p, 1, logits, NULL, NULL), KVS_OK); /* a stopped step leaves no trace */
        assert_memory_equal(logits, want, sizeof want);
        rig_close(&r);
        free(logits);
    }
}

/* Token 5's embedding is spoilt: the sequences that read it fail, the others give the bits they give alone. */
static void spoilt_row(float value, kvc_type kv)
{
    uint8_t *copy = malloc(file_size);
    memcpy(copy, file, file_size);
    memcpy(tensor_bytes(copy, "token_embd.weight") + (5 * 64 + 3) * sizeof value, &value, sizeof value);
    for (uint32_t i = 0; i < isa_count; i++) {
        struct rig r;
        int32_t clean[4] = {1, 2, 3, 4}, bad[4] = {1, 5, 3, 4};
        float *alone = calloc(TST_LLAMA_VOCAB, sizeof *alone), *rows = calloc(3 * TST_LLAMA_VOCAB, sizeof *rows);
        rig_open(&r, copy, file_size, &(struct rig_options){.isa = isas[i], .kv = kv, .threads = 2});
        rig_feed(&r, 0, clean, 4, 0, 0, false, alone);
        struct eng_part parts[3] = {{.ids = clean, .count = 4, .table = &r.table[1], .logits_from = 3},
                                    {.ids = bad, .count = 4, .table = &r.table[2], .logits_from = 3},
                                    {.ids = clean, .count = 4, .table = &r.table[3], .logits_from = 3}};
        assert_int_equal(eng_forward(r.ctx, parts, 3, rows, NULL, NULL), KVS_OK);
        assert_int_equal(parts[0].status, KVS_OK);
        assert_int_equal(parts[1].status, KVS_SELF_NUMERIC);
        assert_int_equal(parts[2].status, KVS_OK);
        assert_memory_equal(rows, alone, TST_LLAMA_VOCAB * sizeof *rows);
        assert_memory_equal(rows + 2 * TST_LLAMA_VOCAB, alone, TST_LLAMA_VOCAB * sizeof *rows);
        rig_close(&r);
        free(alone);
        free(rows);
    }
    free(copy);
}

static void test_nan_ends_its_sequence_only(void **state)
{
    (void)state;
    spoilt_row(NAN, KVC_F32);
    spoilt_row(INFINITY, KVC_F16);
    spoilt_row(3e30f, KVC_F32); /* its square overflows */
}

/* Keys that do not fit half precision: an error with F16 pages, an ordinary number with F32 ones. */
static void test_overflow_of_half_pages(void **state)
{
    (void)state;
    uint8_t *copy = malloc(file_size);
    memcpy(copy, file, file_size);
    uint8_t *k = tensor_bytes(copy, "blk.1.attn_k.weight");
    for (uint32_t i = 0; i < 64; i++) {
        float v = 1e6f * (i % 2 ? 1.0f : -1.0f);
        memcpy(k + i * sizeof v, &v, sizeof v);
    }
    for (uint32_t i = 0; i < isa_count; i++) {
        for (int kv = 0; kv < 2; kv++) {
            struct rig r;
            int32_t ids[2] = {9, 10};
            rig_open(&r, copy, file_size, &(struct rig_options){.isa = isas[i], .kv = kv ? KVC_F16 : KVC_F32});
            struct eng_part p = {.ids = ids, .count = 2, .table = &r.table[0], .logits_from = 2};
            assert_int_equal(eng_forward(r.ctx, &p, 1, NULL, NULL, NULL), KVS_OK);
            assert_int_equal(p.status, kv ? KVS_SELF_NUMERIC : KVS_OK);
            rig_close(&r);
        }
    }
    free(copy);
}

/* Members of the team sleep between steps: a worker without requests must not burn a core. */
static void test_idle_team_sleeps(void **state)
{
    (void)state;
    struct rig r;
    int32_t ids[3] = {1, 2, 3};
    float *logits = calloc(TST_LLAMA_VOCAB, sizeof *logits);
    rig_open(&r, file, file_size, &(struct rig_options){.kv = KVC_F16, .threads = 4});
    rig_feed(&r, 0, ids, 3, 0, 1, false, logits);
    clock_t before = clock();
    kvs_sleep_us(300000);
    double busy = (double)(clock() - before) / CLOCKS_PER_SEC;
    print_message("process time of 4 threads in 0.3 s of idling: %.4f s\n", busy);
    assert_true(busy < 0.1);
    rig_feed(&r, 0, ids, 3, 3, 1, false, logits); /* and wake up again */
    rig_close(&r);
    free(logits);
}

int main(void)
{
    isa_count = eng_ops_best() != NULL && eng_ops_best() != &eng_ops_ref ? 2 : 1;
    file = tst_llama_make(&(struct tst_llama_options){.layers = 3, .untied = true, .seed = 12}, &file_size);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_input_changes_nothing),  cmocka_unit_test(test_layer_callback),
        cmocka_unit_test(test_nan_ends_its_sequence_only), cmocka_unit_test(test_overflow_of_half_pages),
        cmocka_unit_test(test_idle_team_sleeps),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(file);
    return failed;
}
