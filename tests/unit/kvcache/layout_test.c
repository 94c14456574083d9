/* layout_test.c - page sizes and offsets against arithmetic by hand (written in each comment), for the sample models
 * and block sizes 1 to 512; groups cover the layers; bad configurations are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "kvcache/block_table.h"
#include "kvcache/layout.h"

static struct kvc_layout build(struct kvc_layout_config c)
{
    struct kvc_layout l;
    struct kvs_error err;
    assert_int_equal(kvc_layout_build(&c, &l, &err), KVS_OK);
    return l;
}

static void test_smollm2_default_is_three_groups_of_ten_layers(void **state)
{
    (void)state;
    struct kvc_layout l = build(
        (struct kvc_layout_config){.layers = 30, .kv_heads = 3, .key_dim = 64, .value_dim = 64, .kv_type = KVC_F16});
    /* head: 64 tokens x 128 dims x 2 B = 16384; layer: x 3 = 49152; 0.5 MiB / 48 KiB = 10.7 layers; 10 divides 30: 480
     * KiB */
    assert_int_equal(l.block_tokens, 64);
    assert_int_equal(l.group_count, 3);
    for (uint32_t g = 0; g < 3; g++) {
        assert_int_equal(l.group[g].kind, KVC_FULL);
        assert_int_equal(l.group[g].first_layer, 10 * g);
        assert_int_equal(l.group[g].layers, 10);
        assert_int_equal(l.group[g].head_bytes, 16384);
        assert_int_equal(l.group[g].layer_bytes, 49152);
        assert_int_equal(l.group[g].page_bytes, 491520);
    }
    assert_int_equal(l.layer_group[0], 0);
    assert_int_equal(l.layer_group[9], 0);
    assert_int_equal(l.layer_group[10], 1);
    assert_int_equal(l.layer_group[29], 2);
    /* layer 12 is the third of group 1: 2 x 49152, head 2: + 2 x 16384 */
    assert_int_equal(kvc_head_offset(&l.group[1], 12, 2), 131072);
    assert_int_equal(kvc_blocks_for(&l, 0), 0);
    assert_int_equal(kvc_blocks_for(&l, 64), 1);
    assert_int_equal(kvc_blocks_for(&l, 65), 2);
}

static void test_stories_is_one_group_until_told_otherwise(void **state)
{
    (void)state;
    struct kvc_layout_config c = {.layers = 5, .kv_heads = 4, .key_dim = 8, .value_dim = 8, .kv_type = KVC_F32};
    struct kvc_layout l = build(c);
    /* 64 x 16 x 4 = 4096 a head, 16384 a layer, 81920 a page: under 0.25 MiB, so one group of all layers */
    assert_int_equal(l.group_count, 1);
    assert_int_equal(l.group[0].page_bytes, 81920);
    c.block_tokens = 16;
    c.group_layers = 1;
    l = build(c);
    assert_int_equal(l.group_count, 5);
    assert_int_equal(l.group[4].first_layer, 4);
    assert_int_equal(l.group[4].page_bytes, 4096);
    c.group_layers = 2; /* 2 + 2 + 1 */
    l = build(c);
    assert_int_equal(l.group_count, 3);
    assert_int_equal(l.group[0].layers, 2);
    assert_int_equal(l.group[2].layers, 1);
    assert_int_equal(l.group[2].first_layer, 4);
    assert_int_equal(l.group[2].page_bytes, 4096);
    assert_int_equal(l.layer_group[3], 1);
    assert_int_equal(l.layer_group[4], 2);
}

static void test_large_layers_and_prime_counts(void **state)
{
    (void)state;
    /* 8 heads x 64 x 256 x 2 = 262144 a layer; 2 layers = 0.5 MiB */
    struct kvc_layout l = build(
        (struct kvc_layout_config){.layers = 32, .kv_heads = 8, .key_dim = 128, .value_dim = 128, .kv_type = KVC_F16});
    assert_int_equal(l.group_count, 16);
    assert_int_equal(l.group[15].page_bytes, 524288);
    /* 31 layers of 49152: no divisor fits; 11 a group would be 3 groups: 11, 10, 10 */
    l = build(
        (struct kvc_layout_config){.layers = 31, .kv_heads = 3, .key_dim = 64, .value_dim = 64, .kv_type = KVC_F16});
    assert_int_equal(l.group_count, 3);
    assert_int_equal(l.group[0].layers, 11);
    assert_int_equal(l.group[1].layers, 10);
    assert_int_equal(l.group[2].layers, 10);
    assert_int_equal(l.group[2].first_layer, 21);
    /* 64 heads x 512 tokens x 256 x 4 = 32 MiB a layer: one layer a group */
    l = build(
        (struct kvc_layout_config){.layers = 4, .kv_heads = 64, .key_dim = 128, .value_dim = 128, .block_tokens = 512});
    assert_int_equal(l.group_count, 4);
    assert_int_equal(l.group[0].page_bytes, 33554432);
    /* the same, 126 layers: at most 64 groups, so two layers each */
    l = build((struct kvc_layout_config){
        .layers = 126, .kv_heads = 64, .key_dim = 128, .value_dim = 128, .block_tokens = 512});
    assert_int_equal(l.group_count, 63);
}

static void test_every_block_size_covers_all_layers(void **state)
{
    (void)state;
    for (uint32_t b = 1; b <= 512; b *= 2)
        for (uint32_t layers = 1; layers <= 80; layers++) {
            struct kvc_layout l = build((struct kvc_layout_config){.layers = layers,
                                                                   .kv_heads = 3,
                                                                   .key_dim = 64,
                                                                   .value_dim = 32,
                                                                   .kv_type = KVC_F16,
                                                                   .block_tokens = b});
            uint32_t next = 0, least = UINT32_MAX, most = 0;
            for (uint32_t g = 0; g < l.group_count; g++) {
                const struct kvc_group *k = &l.group[g];
                assert_int_equal(k->first_layer, next);
                assert_int_equal(k->head_bytes, b * 96 * 2);
                assert_int_equal(k->page_bytes, (uint64_t)k->layers * 3 * b * 96 * 2);
                for (uint32_t i = next; i < next + k->layers; i++)
                    assert_int_equal(l.layer_group[i], g);
                next += k->layers;
                least = k->layers < least ? k->layers : least;
                most = k->layers > most ? k->layers : most;
            }
            assert_int_equal(next, layers);
            assert_true(most - least <= 1);
            if ((uint64_t)layers * 3 * b * 96 * 2 >= 262144)
                assert_true(l.group[0].page_bytes >= 262144);
            if (3u * b * 96 * 2 <= 262144)
                assert_true(l.group[0].page_bytes <= 2097152);
        }
}

static void test_bad_configurations_are_refused(void **state)
{
    (void)state;
    const struct kvc_layout_config good = {.layers = 4, .kv_heads = 2, .key_dim = 8, .value_dim = 8};
    struct kvc_layout_config bad[10];
    for (int i = 0; i < 10; i++)
        bad[i] = good;
    bad[0].layers = 0;
    bad[1].layers = 513;
    bad[2].kv_heads = 0;
    bad[3].key_dim = 0;
    bad[4].value_dim = UINT32_MAX;
    bad[5].block_tokens = 48;
    bad[6].block_tokens = 1024;
    bad[7].group_layers = 5;
    bad[8].layers = 100, bad[8].group_layers = 1;
    bad[9].kv_heads = 65536, bad[9].key_dim = 65536, bad[9].value_dim = 65536, bad[9].block_tokens = 512;
    for (int i = 0; i < 10; i++) {
        struct kvc_layout l;
        struct kvs_error err = {0};
        memset(&l, 0xee, sizeof l);
        assert_int_equal(kvc_layout_build(&bad[i], &l, &err), KVS_SELF_CONFIG);
        assert_true(strlen(err.text) > 10);
        assert_int_equal(l.block_tokens, 0xeeeeeeee); /* outputs are set on success only */
    }
}

static void test_text_names_every_field_that_matters(void **state)
{
    (void)state;
    char a[512], b[512];
    struct kvc_layout_config c = {
        .layers = 5, .kv_heads = 4, .key_dim = 8, .value_dim = 6, .block_tokens = 16, .group_layers = 2};
    struct kvc_layout l = build(c);
    size_t n = kvc_layout_text(&l, a, sizeof a);
    assert_int_equal(n, strlen(a));
    assert_string_equal(a, "kv1,type=f32,block=16,layers=5,k=dt,v=td,2xfull:l2:h4:d8+6,1xfull:l1:h4:d8+6");
    struct kvc_layout_config d[6];
    for (int i = 0; i < 6; i++)
        d[i] = c;
    d[0].layers = 6;
    d[1].kv_heads = 5;
    d[2].key_dim = 6;
    d[3].kv_type = KVC_F16;
    d[4].block_tokens = 32;
    d[5].group_layers = 1;
    for (int i = 0; i < 6; i++) {
        l = build(d[i]);
        assert_true(kvc_layout_text(&l, b, sizeof b) < sizeof b);
        assert_string_not_equal(a, b);
    }
}

static void test_block_table_begins_empty(void **state)
{
    (void)state;
    struct kvc_block_table t;
    assert_int_equal(kvc_block_table_init(&t, 3, 7), KVS_OK);
    for (uint32_t g = 0; g < 3; g++)
        for (uint32_t i = 0; i < 7; i++) {
            assert_int_equal(kvc_block_row(&t, g)[i], KVC_BLOCK_NONE);
            kvc_block_row(&t, g)[i] = g * 7 + i;
        }
    for (uint32_t i = 0; i < 21; i++)
        assert_int_equal(t.page[i], i); /* rows lie one after the other */
    kvc_block_table_fini(&t);
    assert_null(t.page);
    kvc_block_table_fini(&t);
    kvc_block_table_fini(NULL);
}

/* Every element of the target page by its index: K [dim][token] and V [token][dim] of each layer and head, tokens below the head only. */
static void test_a_head_is_copied_and_nothing_else(void **state)
{
    (void)state;
    struct kvc_layout_config c = {.layers = 3,
                                  .kv_heads = 2,
                                  .key_dim = 5,
                                  .value_dim = 3,
                                  .kv_type = KVC_F16,
                                  .block_tokens = 8,
                                  .group_layers = 2};
    struct kvc_layout l;
    assert_int_equal(kvc_layout_build(&c, &l, NULL), KVS_OK);
    for (uint32_t g = 0; g < l.group_count; g++)
        for (uint32_t head = 0; head <= 8; head++) {
            size_t n = l.group[g].page_bytes / 2;
            uint16_t *from = calloc(n, 2), *to = calloc(n, 2);
            for (size_t i = 0; i < n; i++)
                from[i] = (uint16_t)(i + 1);
            kvc_page_copy_head(&l, g, (const uint8_t *)from, (uint8_t *)to, head);
            for (size_t i = 0; i < n; i++) {
                size_t at = i % (8 * (5 + 3)), token = at < 8 * 5 ? at % 8 : (at - 8 * 5) / 3;
                assert_int_equal(to[i], token < head ? from[i] : 0);
            }
            free(from);
            free(to);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_head_is_copied_and_nothing_else),
        cmocka_unit_test(test_smollm2_default_is_three_groups_of_ten_layers),
        cmocka_unit_test(test_stories_is_one_group_until_told_otherwise),
        cmocka_unit_test(test_large_layers_and_prime_counts),
        cmocka_unit_test(test_every_block_size_covers_all_layers),
        cmocka_unit_test(test_bad_configurations_are_refused),
        cmocka_unit_test(test_text_names_every_field_that_matters),
        cmocka_unit_test(test_block_table_begins_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
