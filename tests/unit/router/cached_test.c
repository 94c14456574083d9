/* cached_test.c - what the router makes of cache events: names of prompts, snapshots and holes, digests, workers of different kinds.
 * Names are computed here by the plain chain of kvcache/hash.h, which has vectors of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "router/core/cached.h"
#include "router/core/router.h"

enum { BLOCK = 4, TOKENS = 22, BLOCKS = TOKENS / BLOCK };

static int32_t prompt[TOKENS];

static struct msg_card card(const char *id, const char *kv_types)
{
    struct msg_card c = {.role = MSG_ROLE_DECODE, .block_tokens = BLOCK, .numerics = "a16", .rope = "r"};
    strncpy(c.id, id, sizeof(c.id) - 1);
    strncpy(c.kv_types, kv_types, sizeof(c.kv_types) - 1);
    memset(c.fingerprint, 7, sizeof(c.fingerprint));
    return c;
}

static struct kvc_bytes bytes(const char *t)
{
    return (struct kvc_bytes){t, strlen(t)};
}

static void names(const char *kv_types, const char *tenant, struct kvc_hash *out)
{
    uint8_t fingerprint[32];
    memset(fingerprint, 7, sizeof(fingerprint));
    struct kvc_root_fields f = {.fingerprint = {fingerprint, 32},
                                .numerics = bytes("a16"),
                                .tenant = bytes(tenant),
                                .kv_types = bytes(kv_types),
                                .rope = bytes("r"),
                                .block_tokens = BLOCK};
    struct kvc_hash h;
    assert_int_equal(kvc_hash_root(&f, &h), KVS_OK);
    for (int i = 0; i < BLOCKS; i++) {
        assert_int_equal(kvc_hash_block(&h, prompt + i * BLOCK, BLOCK, NULL, 0, &h), KVS_OK);
        out[i] = h;
    }
}

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < TOKENS; i++)
        prompt[i] = 100 + i;
    return 0;
}

static const uint32_t depths[BLOCKS + 1] = {1, 2, 3, 4, 5, 6}, gone[BLOCKS] = {0};

static struct msg_cache_events item(uint64_t first, const struct kvc_hash *h, uint32_t count)
{
    return (struct msg_cache_events){
        .first_sequence = first, .hashes = h ? h->bytes : NULL, .depths = depths, .count = count};
}

static struct msg_cache_events snapshot(uint64_t first, const struct kvc_hash *h, uint32_t count)
{
    struct msg_cache_events e = item(first, h, count);
    e.snapshot_begin = e.snapshot_end = true;
    return e;
}

static struct rtr_cached *made(void)
{
    struct rtr_cached *c = NULL;
    assert_int_equal(rtr_cached_create(4, 1 << 20, &c), KVS_OK);
    return c;
}

static uint32_t found(struct rtr_cached *c, uint32_t slot, uint32_t tokens, const char *tenant)
{
    struct rtr_chains chains = {0};
    struct rtr_named n = {.tokens = prompt, .token_count = tokens, .tenant = tenant, .cache_salt = "", .adapter = NULL};
    const uint32_t *blocks = rtr_cached_match(c, 1, &n, &chains);
    uint32_t r = blocks ? blocks[slot] : 0;
    if (blocks) { /* a second time, with the names that are there already */
        blocks = rtr_cached_match(c, 1, &n, &chains);
        assert_non_null(blocks);
        assert_int_equal(blocks[slot], r);
    }
    rtr_chains_fini(&chains);
    return r;
}

static void test_names_are_those_of_the_workers(void **state)
{
    (void)state;
    struct rtr_cached *c = made();
    struct kvc_hash f32[BLOCKS], f16[BLOCKS];
    struct msg_card a = card("a", "k=f32,v=f32"), b = card("b", "k=f16,v=f16");
    names("k=f32,v=f32", "", f32);
    names("k=f16,v=f16", "", f16);
    rtr_cached_up(c, 0, 1, &a);
    rtr_cached_up(c, 1, 1, &b);
    rtr_cached_up(c, 2, 2, &a); /* another model object */
    rtr_cached_up(c, 3, 1, &a);
    assert_int_equal(found(c, 0, TOKENS, ""), 0);
    struct msg_cache_events e = snapshot(0, f32, BLOCKS);
    assert_true(rtr_cached_events(c, 0, &e));
    e = snapshot(5, f16, 3);
    assert_true(rtr_cached_events(c, 1, &e));
    e = snapshot(1, f32, 2);
    assert_true(rtr_cached_events(c, 2, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), BLOCKS);
    assert_int_equal(found(c, 1, TOKENS, ""), 3);
    assert_int_equal(found(c, 2, TOKENS, ""), 0);
    assert_int_equal(found(c, 3, TOKENS, ""), 0);
    assert_int_equal(found(c, 0, BLOCKS * BLOCK, ""), BLOCKS - 1); /* the last token is computed in any case */
    assert_int_equal(found(c, 0, 1, ""), 0);
    assert_int_equal(found(c, 0, TOKENS, "tenant"), 0);
    names("k=f32,v=f32", "tenant", f32);
    e = item(0, f32, BLOCKS);
    assert_true(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, "tenant"), BLOCKS);
    rtr_cached_down(c, 0);
    assert_int_equal(found(c, 0, TOKENS, "tenant"), 0);
    assert_int_equal(found(c, 1, TOKENS, ""), 3);
    rtr_cached_destroy(c);
}

static void test_events_follow_a_snapshot_without_a_hole(void **state)
{
    (void)state;
    struct rtr_cached *c = made();
    struct kvc_hash h[BLOCKS];
    struct msg_card a = card("a", "k=f32,v=f32");
    names("k=f32,v=f32", "", h);
    rtr_cached_up(c, 0, 1, &a);
    struct msg_cache_events e = item(0, h, 1);
    assert_false(rtr_cached_events(c, 0, &e)); /* nothing before a snapshot */
    assert_int_equal(found(c, 0, TOKENS, ""), 0);
    e = snapshot(7, h, 2);
    e.snapshot_end = false;
    assert_true(rtr_cached_events(c, 0, &e));
    e = item(7, h + 2, 1);
    e.snapshot_end = true;
    assert_true(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), 3);
    e = item(7, h + 3, 2);
    assert_true(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), 5);
    e = item(9, h + 3, 2);
    e.depths = gone;
    assert_true(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), 3);
    e = item(12, h + 3, 1); /* 11 is missing */
    assert_false(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), 3); /* what was known stands until the snapshot */
    e = item(11, h + 3, 1);
    assert_false(rtr_cached_events(c, 0, &e)); /* and only that mends it */
    e = snapshot(13, h, 1);
    assert_true(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), 1);
    e = item(12, h, 5); /* told twice */
    assert_false(rtr_cached_events(c, 0, &e));
    rtr_cached_destroy(c);
}

static void test_added_and_removed_in_one_item_keep_their_order(void **state)
{
    (void)state;
    struct rtr_cached *c = made();
    struct kvc_hash h[BLOCKS], run[6];
    static const uint32_t order[6] = {1, 2, 0, 2, 0, 2}; /* +0 +1 -1 +1 -1 +1, and the other way below */
    static const uint32_t back[6] = {1, 0, 2, 0, 0, 0};
    struct msg_card a = card("a", "k=f32,v=f32");
    names("k=f32,v=f32", "", h);
    for (int i = 0; i < 6; i++)
        run[i] = h[i ? 1 : 0];
    rtr_cached_up(c, 0, 1, &a);
    struct msg_cache_events e = snapshot(0, NULL, 0);
    assert_true(rtr_cached_events(c, 0, &e));
    e = item(0, run, 6);
    e.depths = order;
    assert_true(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), 2);
    e = item(6, run, 6);
    e.depths = back;
    assert_true(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), 1);
    rtr_cached_destroy(c);
}

static void test_a_digest_counts_until_the_worker_itself_has_spoken(void **state)
{
    (void)state;
    struct rtr_cached *c = made();
    struct kvc_hash h[BLOCKS];
    struct msg_card a = card("a", "k=f32,v=f32");
    names("k=f32,v=f32", "", h);
    struct msg_cache_digest d = {.epoch = 1, .hashes = h[4].bytes, .blocks = depths + 4, .count = 1};
    rtr_cached_digest(c, 0, &d); /* of nobody */
    rtr_cached_up(c, 0, 1, &a);
    assert_int_equal(found(c, 0, TOKENS, ""), 0);
    rtr_cached_digest(c, 0, &d);
    assert_int_equal(found(c, 0, TOKENS, ""), 5); /* its end alone says that all is there */
    struct msg_cache_events e = snapshot(0, h, 2);
    assert_true(rtr_cached_events(c, 0, &e));
    assert_int_equal(found(c, 0, TOKENS, ""), 2);
    rtr_cached_digest(c, 0, &d);
    assert_int_equal(found(c, 0, TOKENS, ""), 2);
    rtr_cached_up(c, 0, 1, &a); /* another life in the same place */
    assert_int_equal(found(c, 0, TOKENS, ""), 0);
    rtr_cached_destroy(c);
}

static void test_more_kinds_than_chains_count_as_unknown(void **state)
{
    (void)state;
    struct rtr_cached *c = NULL;
    enum { KINDS = RTR_CHAINS_MAX + 1 };
    struct rtr_chains chains = {0};
    struct rtr_named n = {.tokens = prompt, .token_count = TOKENS, .tenant = "", .cache_salt = "", .adapter = ""};
    assert_int_equal(rtr_cached_create(KINDS, 1 << 20, &c), KVS_OK);
    for (uint32_t i = 0; i < KINDS; i++) {
        char types[2] = {(char)('a' + i), 0};
        struct msg_card a = card("w", types);
        struct kvc_hash h[BLOCKS];
        names(types, "", h);
        rtr_cached_up(c, i, 1, &a);
        struct msg_cache_events e = snapshot(0, h, i + 1);
        assert_true(rtr_cached_events(c, i, &e));
    }
    const uint32_t *blocks = rtr_cached_match(c, 1, &n, &chains);
    assert_non_null(blocks);
    for (uint32_t i = 0; i < RTR_CHAINS_MAX; i++)
        assert_int_equal(blocks[i], i + 1);
    assert_int_equal(blocks[RTR_CHAINS_MAX], 0);
    rtr_cached_down(c, 0); /* a kind that is gone makes room */
    blocks = rtr_cached_match(c, 1, &n, &chains);
    assert_non_null(blocks);
    assert_int_equal(blocks[0], 0);
    assert_int_equal(blocks[RTR_CHAINS_MAX], RTR_CHAINS_MAX + 1);
    rtr_chains_fini(&chains);
    rtr_cached_destroy(c);
}

/* ---- through the router's core ---- */

static size_t step(struct rtr *r, const struct rtr_event *ev, struct rtr_action *out, size_t cap)
{
    static uint64_t now;
    rtr_step(r, ev, ++now);
    size_t n = rtr_actions(r, out, cap);
    return n;
}

static void test_the_core_asks_for_a_snapshot_after_a_hole(void **state)
{
    (void)state;
    struct rtr_config config;
    struct rtr *r = NULL;
    struct rtr_action a[4];
    struct rtr_stats st;
    struct kvc_hash h[BLOCKS];
    struct msg_card w = card("a", "k=f32,v=f32");
    names("k=f32,v=f32", "", h);
    rtr_config_default(&config);
    assert_int_equal(rtr_create(&config, &r, NULL), KVS_OK);
    struct msg_cache_events e = snapshot(0, h, 2);
    struct rtr_event cache = {.type = RTR_EV_CACHE, .worker = 5, .cache = &e};
    assert_int_equal(step(r, &cache, a, 4), 0); /* nobody of that key */
    assert_int_equal(step(r, &(struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = 5, .model = 1, .card = &w}, a, 4),
                     0);
    assert_int_equal(step(r, &cache, a, 4), 0);
    rtr_stats(r, &st);
    assert_int_equal(st.index_blocks, 2);
    e = item(1, h, 3);
    assert_int_equal(step(r, &cache, a, 4), 1);
    assert_int_equal(a[0].type, RTR_ACT_SNAPSHOT);
    assert_int_equal(a[0].worker, 5);
    struct msg_cache_digest d = {.epoch = 1, .hashes = h[4].bytes, .blocks = depths + 4, .count = 1};
    assert_int_equal(step(r, &(struct rtr_event){.type = RTR_EV_CACHE, .worker = 5, .digest = &d}, a, 4), 0);
    rtr_stats(r, &st);
    assert_int_equal(st.cache_gaps, 1);
    assert_int_equal(st.index_blocks, 2); /* the worker has spoken: a digest tells nothing new */
    assert_int_equal(step(r, &(struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = 5}, a, 4), 0);
    rtr_stats(r, &st);
    assert_int_equal(st.index_blocks, 0);
    rtr_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_those_of_the_workers),
        cmocka_unit_test(test_events_follow_a_snapshot_without_a_hole),
        cmocka_unit_test(test_added_and_removed_in_one_item_keep_their_order),
        cmocka_unit_test(test_a_digest_counts_until_the_worker_itself_has_spoken),
        cmocka_unit_test(test_more_kinds_than_chains_count_as_unknown),
        cmocka_unit_test(test_the_core_asks_for_a_snapshot_after_a_hole),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
