/* prefix_test.c - reuse in the scheduler, case by case: what is shared, copied, computed, waited for, evicted, forgotten. Block size 4, two
 * groups; expected numbers are counted by hand. The device (fake_device.h) stops at KV that does not belong to the tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/worker/fake_device.h"

#define SEQS 8

struct bench {
    struct kvc_layout l;
    struct wrk_sched *s;
    struct fake_kv kv;
    uint32_t pages;
    int32_t ids[256];
};

static void bench_init(struct bench *b, uint32_t pages)
{
    memset(b, 0, sizeof *b);
    b->l = fake_layout(3, 4, 2);
    b->pages = pages;
    struct wrk_sched_config c = {.layout = &b->l,
                                 .pages = {pages, pages},
                                 .seqs_max = SEQS,
                                 .context = 200,
                                 .chunk_tokens = 64,
                                 .reserve_tokens = 1,
                                 .tree_nodes = 64,
                                 .tree_ttl_us = 5000000,
                                 .model = {.numerics = "n", .kv_types = "k=f32,v=f32", .rope = "r"}};
    assert_int_equal(wrk_sched_create(&c, &b->s, NULL), KVS_OK);
    fake_kv_init(&b->kv, &b->l, c.pages);
    struct kvs_rng rng = {3};
    fake_prompt(&rng, b->ids, 256);
}
static void check(struct bench *b)
{
    struct kvs_error err = {.text = ""};
    if (!wrk_sched_consistent(b->s, &err))
        fail_msg("%s", err.text);
}
static void bench_fini(struct bench *b)
{
    fake_zero(&b->kv, b->s);
    check(b);
    wrk_sched_destroy(b->s);
    fake_kv_fini(&b->kv);
}

static wrk_seq_id open_as(struct bench *b, const int32_t *ids, uint32_t n, bool hold, const char *tenant,
                          const char *salt, const char *adapter)
{
    struct wrk_seq_config c = {.owner = WRK_OWNER_DECODE,
                               .tokens = ids,
                               .token_count = n,
                               .tokens_max = n + 6,
                               .hold = hold,
                               .logits = WRK_LOGITS_SAMPLE,
                               .tenant = tenant,
                               .cache_salt = salt,
                               .adapter = adapter};
    wrk_seq_id id;
    assert_int_equal(wrk_seq_open(b->s, &c, &id, NULL), KVS_OK);
    wrk_sched_admit(b->s);
    check(b);
    return id;
}
static wrk_seq_id open_seq(struct bench *b, const int32_t *ids, uint32_t n)
{
    return open_as(b, ids, n, false, NULL, NULL, NULL);
}

/* Steps until nothing is to be computed; returns how many prompt tokens were. */
static uint32_t run(struct bench *b)
{
    struct wrk_result results[SEQS];
    uint64_t before = wrk_sched_stats(b->s).prefill_tokens + wrk_sched_stats(b->s).decode_tokens;
    const struct wrk_step *step;
    fake_zero(&b->kv, b->s);
    while ((step = wrk_sched_next_step(b->s)) != NULL) {
        fake_zero(&b->kv, b->s);
        fake_run(&b->kv, b->s, step, results, NULL);
        assert_true(wrk_sched_step_done(b->s, step->id, KVS_OK, results));
        wrk_sched_admit(b->s);
        check(b);
    }
    return (uint32_t)(wrk_sched_stats(b->s).prefill_tokens + wrk_sched_stats(b->s).decode_tokens - before);
}
static void compute(struct bench *b, const int32_t *ids, uint32_t n)
{
    wrk_seq_id id = open_seq(b, ids, n);
    (void)run(b);
    wrk_seq_close(b->s, id);
    check(b);
}

static void test_full_blocks_are_shared(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 20);
    compute(&b, b.ids, 11);
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 2); /* the third block is open */
    wrk_seq_id a = open_seq(&b, b.ids, 11), c = open_seq(&b, b.ids, 11);
    assert_int_equal(wrk_seq_look(b.s, a).cached, 8);
    assert_int_equal(wrk_seq_look(b.s, a).shared, 2);
    assert_int_equal(wrk_sched_pages(b.s, 1).held, 4); /* two shared, one each */
    assert_int_equal(wrk_sched_pages(b.s, 1).cached, 0);
    assert_int_equal(run(&b), 6);
    wrk_seq_close(b.s, a);
    wrk_seq_close(b.s, c);
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 2);
    assert_int_equal(wrk_sched_stats(b.s).cached_tokens, 16);
    bench_fini(&b);
}

static void test_the_head_of_a_block_is_copied(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 20);
    compute(&b, b.ids, 12);
    int32_t other[13];
    memcpy(other, b.ids, 10 * sizeof *other);
    memcpy(other + 10, b.ids + 100, 3 * sizeof *other);
    wrk_seq_id a = open_seq(&b, other, 13);
    assert_int_equal(wrk_seq_look(b.s, a).cached, 10);
    assert_int_equal(wrk_seq_look(b.s, a).shared, 2);
    assert_int_equal(wrk_sched_pages(b.s, 0).held, 5); /* two shared, two own, and the source until it is copied */
    assert_int_equal(run(&b), 3);
    assert_int_equal(wrk_sched_pages(b.s, 0).held, 4);
    wrk_seq_close(b.s, a);
    /* a prompt that is there as a whole: all but its last token */
    a = open_seq(&b, b.ids, 8);
    assert_int_equal(wrk_seq_look(b.s, a).cached, 7);
    assert_int_equal(run(&b), 1);
    wrk_seq_close(b.s, a);
    /* pages that are lost before the copy was made: nothing is written into them */
    memcpy(other + 11, b.ids + 200, 2 * sizeof *other);
    a = open_seq(&b, other, 13);
    assert_int_equal(wrk_seq_look(b.s, a).cached, 11);
    wrk_seq_close(b.s, a);
    struct wrk_copy copy;
    assert_int_equal(wrk_sched_take_copies(b.s, &copy, 1), 0);
    bench_fini(&b);
}

static void test_names_keep_tenants_apart(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 30);
    const char *who[][3] = {
        {NULL, NULL, NULL}, {"ab", NULL, NULL}, {"a", "b", NULL}, {NULL, "ab", NULL}, {NULL, NULL, "ab"}};
    for (int twice = 0; twice < 2; twice++)
        for (size_t i = 0; i < sizeof who / sizeof who[0]; i++) {
            wrk_seq_id a = open_as(&b, b.ids, 9, false, who[i][0], who[i][1], who[i][2]);
            assert_int_equal(wrk_seq_look(b.s, a).cached, twice ? 8 : 0);
            assert_int_equal(run(&b), twice ? 1 : 9);
            wrk_seq_close(b.s, a);
        }
    bench_fini(&b);
}

static void test_who_comes_later_waits_for_the_prefix(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 30);
    wrk_seq_id a = open_seq(&b, b.ids, 11), c = open_seq(&b, b.ids, 11), other = open_seq(&b, b.ids + 50, 6);
    assert_int_equal(wrk_seq_look(b.s, c).state, WRK_SEQ_WAITING);
    assert_true(wrk_seq_look(b.s, c).deferred);
    assert_int_equal(wrk_seq_look(b.s, other).state, WRK_SEQ_READY); /* it waits for something else */
    assert_false(wrk_sched_can_admit(b.s));
    assert_int_equal(run(&b), 11 + 6 + 3);
    assert_int_equal(wrk_seq_look(b.s, c).cached, 8);
    wrk_seq_close(b.s, a);
    wrk_seq_close(b.s, c);
    wrk_seq_close(b.s, other);
    /* nobody waits for one that is paused, or that goes away */
    a = open_seq(&b, b.ids + 100, 11);
    c = open_seq(&b, b.ids + 100, 11);
    assert_true(wrk_seq_look(b.s, c).deferred);
    wrk_seq_pause(b.s, a, true);
    assert_true(wrk_sched_can_admit(b.s));
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, c).state, WRK_SEQ_READY);
    wrk_seq_id d = open_seq(&b, b.ids + 100, 11);
    assert_true(wrk_seq_look(b.s, d).deferred);
    wrk_seq_close(b.s, c);
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, d).state, WRK_SEQ_READY);
    bench_fini(&b);
}

/* Two workers of both roles, each with a prompt that the other one prefills, and both prompts begin alike: neither may wait for the other. */
static void test_who_prefills_for_others_waits_for_no_transfer(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 30);
    wrk_seq_id a = open_as(&b, b.ids, 18, true, NULL, NULL, NULL), p;
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_HELD); /* its KV comes from elsewhere */
    wrk_seq_id d = open_seq(&b, b.ids, 18);
    assert_true(wrk_seq_look(b.s, d).deferred);
    struct wrk_seq_config c = {.owner = WRK_OWNER_PREFILL, .tokens = b.ids, .token_count = 18, .tokens_max = 18, .logits = WRK_LOGITS_SHIP};
    assert_int_equal(wrk_seq_open(b.s, &c, &p, NULL), KVS_OK);
    wrk_sched_admit(b.s);
    check(&b);
    assert_int_equal(wrk_seq_look(b.s, p).state, WRK_SEQ_READY);
    wrk_seq_close(b.s, p);
    bench_fini(&b);
}

static void test_the_least_recently_used_leaf_goes_before_anybody_waits(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 6);
    compute(&b, b.ids, 9);                      /* 2 blocks */
    compute(&b, b.ids + 100, 13);               /* 3 blocks, 1 free */
    wrk_seq_id a = open_seq(&b, b.ids + 50, 9); /* needs 3: the first one's two */
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_READY);
    assert_int_equal(wrk_sched_stats(b.s).evicted_blocks, 2);
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 3);
    wrk_seq_id big = open_seq(&b, b.ids + 150, 15); /* needs 4, 3 can be had */
    assert_int_equal(wrk_seq_look(b.s, big).state, WRK_SEQ_WAITING);
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 3); /* and none is given up in vain */
    assert_false(wrk_sched_can_admit(b.s));
    assert_int_equal(run(&b), 9);
    wrk_seq_close(b.s, a);
    assert_true(wrk_sched_can_admit(b.s));
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, big).state, WRK_SEQ_READY);
    bench_fini(&b);
}

static void test_flush_and_time(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 30);
    compute(&b, b.ids, 9);
    wrk_seq_id a = open_seq(&b, b.ids + 100, 9);
    (void)run(&b);
    assert_int_equal(wrk_sched_flush(b.s), 4);
    check(&b);
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 0);
    for (int32_t i = 0; i < 4; i++) { /* a block that is complete only now */
        wrk_seq_append(b.s, a, i);
        assert_int_equal(run(&b), 1);
    }
    wrk_seq_close(b.s, a);
    assert_int_equal(wrk_sched_pages(b.s, 0).free, 30);
    wrk_sched_tell_time(b.s, 10000000);
    compute(&b, b.ids, 9);
    wrk_sched_tell_time(b.s, 12000000);
    compute(&b, b.ids + 100, 9);
    wrk_sched_tell_time(b.s, 14999999);
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 4);
    wrk_sched_tell_time(b.s, 16000000); /* the first one's 5 s are over */
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 2);
    wrk_sched_tell_time(b.s, 18000000);
    assert_int_equal(wrk_sched_pages(b.s, 0).free, 30);
    bench_fini(&b);
}

static void test_a_transfer_brings_the_rest(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 30);
    compute(&b, b.ids, 10);
    int32_t other[20];
    memcpy(other, b.ids, sizeof other);
    wrk_seq_id a =
        open_as(&b, other, 18, true, NULL, NULL, NULL); /* 5 blocks: 2 found; no head, since block 2 travels */
    assert_int_equal(wrk_seq_look(b.s, a).cached, 8);
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_HELD);
    wrk_seq_fence(b.s, a);
    check(&b);
    assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 3);
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 2);
    wrk_seq_unfence(b.s, a);
    check(&b);
    a = open_as(&b, other, 18, true, NULL, NULL, NULL);
    fake_zero(&b.kv, b.s);
    const struct kvc_block_table *t = wrk_seq_look(b.s, a).table;
    for (uint32_t p = 8; p < 18; p++)
        for (uint32_t g = 0; g < 2; g++)
            *fake_cell(&b.kv, t, g, p) = fake_kv_value(fake_prefix(other, p + 1), g);
    wrk_seq_ready(b.s, a, 18, false);
    wrk_seq_id c = open_seq(&b, other, 18); /* what landed is offered at once */
    assert_int_equal(wrk_seq_look(b.s, c).cached, 16);
    assert_int_equal(run(&b), 2);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_blocks_are_shared),
        cmocka_unit_test(test_the_head_of_a_block_is_copied),
        cmocka_unit_test(test_names_keep_tenants_apart),
        cmocka_unit_test(test_who_comes_later_waits_for_the_prefix),
        cmocka_unit_test(test_who_prefills_for_others_waits_for_no_transfer),
        cmocka_unit_test(test_the_least_recently_used_leaf_goes_before_anybody_waits),
        cmocka_unit_test(test_flush_and_time),
        cmocka_unit_test(test_a_transfer_brings_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
