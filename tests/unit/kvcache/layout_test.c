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
    assert_int_equal(kvc_layer_place(&l, 0, 0).group, 0);
    assert_int_equal(kvc_layer_place(&l, 9, 0).group, 0);
    assert_int_equal(kvc_layer_place(&l, 10, 0).group, 1);
    assert_int_equal(kvc_layer_place(&l, 29, 0).group, 2);
    /* layer 12 is the third of group 1: 2 x 49152, head 2: + 2 x 16384 */
    assert_int_equal(kvc_head_offset(&l.group[1], kvc_layer_place(&l, 12, 0).slot, 2), 131072);
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
    assert_int_equal(kvc_layer_place(&l, 3, 0).group, 1);
    assert_int_equal(kvc_layer_place(&l, 4, 0).group, 2);
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
                    assert_int_equal(kvc_layer_place(&l, i, 0).group, g);
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

/* gemma3's shape: every sixth layer is full, the others see 8 keys. */
static void gemma_layers(struct kvc_layer *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = (struct kvc_layer){.count = 1,
                                  .cache = {{.kind = i % 6 == 5 ? KVC_FULL : KVC_WINDOW,
                                             .window = i % 6 == 5 ? 0 : 8,
                                             .kv_heads = 2,
                                             .key_dim = 4,
                                             .value_dim = 4}}};
}

static void test_alternating_kinds_share_pages_by_kind(void **state)
{
    (void)state;
    struct kvc_layer y[13];
    gemma_layers(y, 13);
    struct kvc_layout_config c = {.layers = 13, .layer = y, .block_tokens = 4, .group_layers = 4};
    struct kvc_layout l = build(c);
    /* windows 0-3, full 5 11, windows 4 6 7 8, windows 9 10 12, in the order of their first layers */
    assert_int_equal(l.group_count, 4);
    const struct {
        kvc_kind kind;
        uint32_t layers, first, last;
    } want[] = {{KVC_WINDOW, 4, 0, 3}, {KVC_WINDOW, 4, 4, 8}, {KVC_FULL, 2, 5, 11}, {KVC_WINDOW, 3, 9, 12}};
    for (uint32_t g = 0; g < 4; g++) {
        assert_int_equal(l.group[g].kind, want[g].kind);
        assert_int_equal(l.group[g].layers, want[g].layers);
        assert_int_equal(l.group[g].first_layer, want[g].first);
        assert_int_equal(l.group[g].last_layer, want[g].last);
        assert_int_equal(l.group[g].page_bytes, want[g].layers * 2 * 4 * 8 * 4);
    }
    assert_int_equal(kvc_layer_place(&l, 6, 0).group, 1);
    assert_int_equal(kvc_layer_place(&l, 6, 0).slot, 1); /* layer 5 is another group's */
    assert_int_equal(kvc_layer_place(&l, 11, 0).group, 2);
    assert_int_equal(kvc_layer_place(&l, 11, 0).slot, 1);
    assert_int_equal(kvc_layer_place(&l, 11, 1).group, KVC_NO_GROUP);
    char text[KVC_LAYOUT_TEXT_MAX];
    (void)kvc_layout_text(&l, text, sizeof text);
    assert_string_equal(text, "kv2,type=f32,block=4,layers=13,k=dt,v=td,of=5ab,2xwindow:l4:h2:d4+4:w8,1xfull:l2:h2:d4+4,"
                              "1xwindow:l3:h2:d4+4:w8");
    assert_true(kvc_layout_is_mixed(&l));
    /* what a position can see: the 8 keys up to itself, in blocks of 4 */
    assert_int_equal(kvc_first_visible(&l, &l.group[0], 7), 0);
    assert_int_equal(kvc_first_visible(&l, &l.group[0], 10), 0);
    assert_int_equal(kvc_first_visible(&l, &l.group[0], 11), 1);
    assert_int_equal(kvc_first_visible(&l, &l.group[2], 1000), 0);
}

static void test_the_text_tells_where_layers_lie(void **state)
{
    (void)state;
    struct kvc_layer y[12];
    char a[KVC_LAYOUT_TEXT_MAX], b[KVC_LAYOUT_TEXT_MAX];
    gemma_layers(y, 12);
    struct kvc_layout_config c = {.layers = 12, .layer = y, .block_tokens = 4, .group_layers = 12};
    struct kvc_layout l = build(c);
    (void)kvc_layout_text(&l, a, sizeof a);
    struct kvc_layer other = y[5]; /* the same groups, two layers exchanged */
    y[5] = y[6];
    y[6] = other;
    l = build(c);
    (void)kvc_layout_text(&l, b, sizeof b);
    assert_string_not_equal(a, b);
    assert_non_null(strstr(b, "of=6ab4ab,"));
    y[6].cache[0].window = 16;
    y[6].cache[0].kind = KVC_WINDOW;
    y[3].count = 0;
    l = build(c);
    (void)kvc_layout_text(&l, b, sizeof b);
    assert_non_null(strstr(b, "of=3a-2ab4ac,"));
}

static void test_a_hybrid_layer_has_two_caches(void **state)
{
    (void)state;
    struct kvc_layer y[4];
    for (uint32_t i = 0; i < 4; i++)
        y[i] = (struct kvc_layer){
            .count = 2,
            .cache = {{.kind = KVC_FULL, .kv_heads = 1, .key_dim = 8, .value_dim = 8}, {.kind = KVC_STATE, .state_bytes = 100}}};
    struct kvc_layout l = build((struct kvc_layout_config){.layers = 4, .layer = y, .block_tokens = 2, .group_layers = 3});
    assert_int_equal(l.group_count, 4);
    assert_int_equal(l.group[1].kind, KVC_STATE);
    assert_int_equal(l.group[1].layer_bytes, 128); /* a layer's state begins on a cache line */
    assert_int_equal(l.group[1].page_bytes, 384);
    assert_int_equal(kvc_layer_place(&l, 3, 1).group, 3);
    assert_int_equal(kvc_head_offset(&l.group[1], kvc_layer_place(&l, 2, 1).slot, 0), 256);
    assert_int_equal(kvc_state_block(&l, 1), 0);
    assert_int_equal(kvc_state_block(&l, 2), 0);
    assert_int_equal(kvc_state_block(&l, 3), 1);
    char text[KVC_LAYOUT_TEXT_MAX];
    (void)kvc_layout_text(&l, text, sizeof text);
    assert_string_equal(text, "kv2,type=f32,block=2,layers=4,k=dt,v=td,of=[ab],1xfull:l3:h1:d8+8,1xstate:l3:s100,"
                              "1xfull:l1:h1:d8+8,1xstate:l1:s100");
    y[1].cache[1] = y[1].cache[0];
    struct kvs_error err = {0};
    assert_int_equal(kvc_layout_build(&(struct kvc_layout_config){.layers = 4, .layer = y}, &l, &err), KVS_SELF_CONFIG);
    y[1].count = 0, y[1].cache[1] = (struct kvc_cache){.kind = KVC_STATE, .state_bytes = 6};
    assert_int_equal(kvc_layout_build(&(struct kvc_layout_config){.layers = 4, .layer = y}, &l, &err), KVS_OK);
    y[1].count = 2; /* no whole number of floats */
    assert_int_equal(kvc_layout_build(&(struct kvc_layout_config){.layers = 4, .layer = y}, &l, &err), KVS_SELF_CONFIG);
}

/* 61 layers of 576 latent dims, as DeepSeek V3 has them. */
static void test_latent_pages(void **state)
{
    (void)state;
    struct kvc_layer y[61];
    for (uint32_t i = 0; i < 61; i++)
        y[i] = (struct kvc_layer){.count = 1, .cache = {{.kind = KVC_LATENT, .kv_heads = 1, .key_dim = 576}}};
    struct kvc_layout l = build((struct kvc_layout_config){.layers = 61, .layer = y, .kv_type = KVC_F16});
    assert_int_equal(l.group[0].layer_bytes, 64 * 576 * 2);
    assert_in_range(l.group[0].page_bytes, 256 << 10, 2 << 20);
    assert_false(kvc_layout_is_mixed(&l));
    char text[KVC_LAYOUT_TEXT_MAX];
    (void)kvc_layout_text(&l, text, sizeof text);
    assert_string_equal(text, "kv1,type=f16,block=64,layers=61,k=dt,v=td,7xlatent:l7:h1:d576+0,2xlatent:l6:h1:d576+0");
}

/* A q8_0 head by hand, 4 tokens, 40 key and 33 value dims: 160 + 132 codes, then K scales [2][4], V scales [4][2], 2 bytes each. */
static void test_q8_0_heads_and_their_scales(void **state)
{
    (void)state;
    struct kvc_layout l = build((struct kvc_layout_config){
        .layers = 2, .kv_heads = 2, .key_dim = 40, .value_dim = 33, .kv_type = KVC_Q8_0, .block_tokens = 4});
    const struct kvc_group *g = &l.group[0];
    assert_int_equal(g->value_offset, 160);
    assert_int_equal(g->key_scale_offset, 292);
    assert_int_equal(g->value_scale_offset, 308);
    assert_int_equal(g->head_bytes, 324);
    assert_int_equal(g->page_bytes, 324 * 4);
    uint8_t from[324 * 4], to[324 * 4];
    for (uint32_t head = 0; head <= 4; head++) {
        memset(from, 0xff, sizeof from);
        memset(to, 0, sizeof to);
        kvc_page_copy_head(&l, 0, from, to, head);
        for (uint32_t i = 0; i < sizeof to; i++) {
            uint32_t at = i % 324, token;
            if (at < 160)
                token = at % 4;
            else if (at < 292)
                token = (at - 160) / 33;
            else if (at < 308)
                token = (at - 292) / 2 % 4;
            else
                token = (at - 308) / 4;
            assert_int_equal(to[i], token < head ? 0xff : 0);
        }
    }
    l = build((struct kvc_layout_config){
        .layers = 1, .kv_heads = 1, .key_dim = 3, .value_dim = 2, .kv_type = KVC_Q8_0, .block_tokens = 1});
    assert_int_equal(l.group[0].key_scale_offset, 6); /* on an even byte */
}

static void test_latent_and_state_pages_are_copied_by_their_own_rules(void **state)
{
    (void)state;
    struct kvc_layer y[2] = {{.count = 1, .cache = {{.kind = KVC_LATENT, .kv_heads = 1, .key_dim = 34}}},
                             {.count = 1, .cache = {{.kind = KVC_STATE, .state_bytes = 8}}}};
    struct kvc_layout l =
        build((struct kvc_layout_config){.layers = 2, .layer = y, .kv_type = KVC_Q8_0, .block_tokens = 4});
    uint8_t from[152], to[152]; /* 4 x 34 codes, 4 x 2 scales */
    assert_int_equal(l.group[0].page_bytes, sizeof from);
    memset(from, 0xff, sizeof from);
    memset(to, 0, sizeof to);
    kvc_page_copy_head(&l, 0, from, to, 3);
    for (uint32_t i = 0; i < sizeof to; i++)
        assert_int_equal(to[i], (i < 136 ? i / 34 : (i - 136) / 4) < 3 ? 0xff : 0);
    assert_int_equal(l.group[1].page_bytes, 64);
    kvc_page_copy_head(&l, 1, from, to + 3, 4);
    for (uint32_t i = 3; i < 67; i++)
        assert_int_equal(to[i], 0xff);
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
        cmocka_unit_test(test_alternating_kinds_share_pages_by_kind),
        cmocka_unit_test(test_the_text_tells_where_layers_lie),
        cmocka_unit_test(test_a_hybrid_layer_has_two_caches),
        cmocka_unit_test(test_latent_pages),
        cmocka_unit_test(test_q8_0_heads_and_their_scales),
        cmocka_unit_test(test_latent_and_state_pages_are_copied_by_their_own_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
