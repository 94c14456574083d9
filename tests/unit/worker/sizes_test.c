/* sizes_test.c - KV memory cut into pools: never more than there is, nothing wasted, and what a scheduler needs to run its sequences.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "tests/unit/worker/fake_device.h"
#include "worker/core/sizes.h"

static uint64_t bytes_of(const struct kvc_layout *l, const struct wrk_sizes *s)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < l->group_count; g++)
        sum += s->pages[g] * l->group[g].page_bytes;
    return sum;
}

static void test_full_groups_get_equal_numbers(void **state)
{
    (void)state;
    struct kvc_layout l = fake_layout(5, 4, 2);
    uint64_t block = 0;
    for (uint32_t g = 0; g < l.group_count; g++)
        block += l.group[g].page_bytes;
    struct wrk_sizes s;
    struct wrk_sizes_config c = {
        .layout = &l, .memory = block * 37 + block - 1, .context = 64, .chunk_tokens = 8, .snapshot_blocks = 4, .sequences = 9};
    assert_int_equal(wrk_sizes_choose(&c, &s, NULL), KVS_OK);
    assert_int_equal(s.blocks, 37);
    for (uint32_t g = 0; g < l.group_count; g++)
        assert_int_equal(s.pages[g], 37);
    struct kvs_error err = {0};
    c.memory = block * 2 - 1;
    assert_int_equal(wrk_sizes_choose(&c, &s, &err), KVS_SELF_CONFIG);
    assert_non_null(strstr(err.text, "--kv-memory"));
}

/* gemma3's kind of model: 1 full layer of 6, a window of 512; 4,096 tokens cost the window layers a small part of what full ones would take. */
static void test_windows_cost_what_they_show(void **state)
{
    (void)state;
    struct kvc_layer y[6];
    for (uint32_t i = 0; i < 6; i++)
        y[i] = (struct kvc_layer){.count = 1,
                                  .cache = {{.kind = i == 5 ? KVC_FULL : KVC_WINDOW,
                                             .window = i == 5 ? 0 : 512,
                                             .kv_heads = 1,
                                             .key_dim = 256,
                                             .value_dim = 256}}};
    struct kvc_layout l;
    assert_int_equal(
        kvc_layout_build(&(struct kvc_layout_config){.layers = 6, .layer = y, .kv_type = KVC_F16}, &l, NULL), KVS_OK);
    struct wrk_sizes_config c = {
        .layout = &l, .memory = 256u << 20, .context = 32768, .chunk_tokens = 128, .snapshot_blocks = 16, .sequences = 4};
    struct wrk_sizes s;
    assert_int_equal(wrk_sizes_choose(&c, &s, NULL), KVS_OK);
    assert_true(bytes_of(&l, &s) <= c.memory);
    for (uint32_t g = 0; g < l.group_count; g++)
        if (l.group[g].kind == KVC_WINDOW)
            assert_int_equal(s.pages[g], 4 * ((512 + 128 + 64) / 64 + 2 + 512 / 64 + 1));
    /* all six as full layers: 256 MiB / (6 x 64 x 512 x 2 bytes) */
    assert_true(s.blocks > 3 * (256u << 20) / (6 * 64 * 512 * 2));
}

/* Whatever the layout and the memory: inside it, one block more would not fit, and a scheduler on it opens and runs a long sequence. */
static void test_random_layouts(void **state)
{
    (void)state;
    struct kvs_rng rng = {3};
    uint32_t refused = 0;
    for (int i = 0; i < 400; i++) {
        uint32_t layers = 1 + (uint32_t)kvs_rng_below(&rng, 8), n = 1u << kvs_rng_below(&rng, 6);
        struct kvc_layout l = fake_layout_kinds(&rng, layers, n, 1 + (uint32_t)kvs_rng_below(&rng, layers));
        struct wrk_sizes_config c = {.layout = &l,
                                     .memory = 1u << (8 + kvs_rng_below(&rng, 14)),
                                     .context = 1 + (uint32_t)kvs_rng_below(&rng, 5000),
                                     .chunk_tokens = 1 + (uint32_t)kvs_rng_below(&rng, 200),
                                     .snapshot_blocks = 1 + (uint32_t)kvs_rng_below(&rng, 20),
                                     .sequences = 2 + (uint32_t)kvs_rng_below(&rng, 30)};
        struct wrk_sizes s;
        if (wrk_sizes_choose(&c, &s, NULL) != KVS_OK) {
            refused++;
            continue;
        }
        assert_true(bytes_of(&l, &s) <= c.memory);
        struct wrk_sched_config sc = {
            .layout = &l, .seqs_max = 4, .context = c.context, .chunk_tokens = c.chunk_tokens, .tree_nodes = 10};
        memcpy(sc.pages, s.pages, sizeof sc.pages);
        struct wrk_sched *sched;
        assert_int_equal(wrk_sched_create(&sc, &sched, NULL), KVS_OK);
        uint32_t tokens = s.blocks * n < c.context ? s.blocks * n : c.context;
        int32_t *ids = calloc(tokens, sizeof *ids);
        wrk_seq_id id[2];
        for (int q = 0; q < 2; q++) {
            struct wrk_seq_config qc = {.owner = q ? WRK_OWNER_PREFILL : WRK_OWNER_DECODE,
                                        .tokens = ids,
                                        .token_count = q ? 1 : tokens,
                                        .tokens_max = q ? 2 : tokens + 1};
            assert_int_equal(wrk_seq_open(sched, &qc, &id[q], NULL), KVS_OK);
        }
        wrk_sched_admit(sched);
        assert_int_equal(wrk_seq_look(sched, id[0]).state, WRK_SEQ_READY);
        wrk_seq_close(sched, id[0]);
        wrk_seq_close(sched, id[1]);
        wrk_sched_destroy(sched);
        free(ids);
    }
    assert_in_range(refused, 10, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_groups_get_equal_numbers),
        cmocka_unit_test(test_windows_cost_what_they_show),
        cmocka_unit_test(test_random_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
