/* kinds_test.c - window and state groups in the scheduler, by hand: how many pages a long sequence holds, where snapshots are made, what a second
 * prompt finds of them, and what a transfer is asked for. sched_random_test.c has the rest.
 *   layers: full, window of 6, state; blocks of 4 tokens; a snapshot every 2 blocks
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/worker/fake_device.h"

enum { FULL, WINDOW, STATE, N = 4 };

struct bench {
    struct kvc_layout l;
    struct wrk_sched *s;
    struct fake_kv kv;
    struct wrk_result results[8];
    int32_t ids[200];
    uint32_t pages[KVC_GROUPS_MAX];
};

static void open_bench(struct bench *b, uint32_t tree_nodes)
{
    struct kvc_layer y[3] = {
        {.count = 1, .cache = {{.kind = KVC_FULL, .kv_heads = 1, .key_dim = 4, .value_dim = 4}}},
        {.count = 1, .cache = {{.kind = KVC_WINDOW, .window = 6, .kv_heads = 1, .key_dim = 4, .value_dim = 4}}},
        {.count = 1, .cache = {{.kind = KVC_STATE, .state_bytes = 8}}}};
    *b = (struct bench){.pages = {60, 24, 12}};
    assert_int_equal(
        kvc_layout_build(&(struct kvc_layout_config){.layers = 3, .layer = y, .block_tokens = N}, &b->l, NULL), KVS_OK);
    struct wrk_sched_config c = {.layout = &b->l,
                                 .pages = {60, 24, 12},
                                 .seqs_max = 8,
                                 .context = 200,
                                 .chunk_tokens = 10,
                                 .reserve_tokens = 4,
                                 .tree_nodes = tree_nodes,
                                 .snapshot_blocks = 2};
    assert_int_equal(wrk_sched_create(&c, &b->s, NULL), KVS_OK);
    fake_kv_init(&b->kv, &b->l, b->pages);
    struct kvs_rng rng = {5};
    fake_prompt(&rng, b->ids, 200);
}

static void close_bench(struct bench *b)
{
    struct kvs_error err = {0};
    assert_true(wrk_sched_consistent(b->s, &err));
    (void)wrk_sched_flush(b->s);
    for (uint32_t g = 0; g < 3; g++)
        assert_int_equal(wrk_sched_pages(b->s, g).free, b->pages[g]);
    wrk_sched_destroy(b->s);
    fake_kv_fini(&b->kv);
}

static wrk_seq_id open_seq(struct bench *b, wrk_owner owner, uint32_t tokens, uint32_t max, bool hold)
{
    wrk_seq_id id;
    struct wrk_seq_config c = {.owner = owner,
                               .tokens = b->ids,
                               .token_count = tokens,
                               .tokens_max = max,
                               .hold = hold,
                               .logits = WRK_LOGITS_SAMPLE};
    assert_int_equal(wrk_seq_open(b->s, &c, &id, NULL), KVS_OK);
    wrk_sched_admit(b->s);
    fake_zero(&b->kv, b->s);
    return id;
}

/* One step; returns how many tokens it computed. */
static uint32_t step(struct bench *b)
{
    const struct wrk_step *st = wrk_sched_next_step(b->s);
    struct kvs_error err = {0};
    if (!st)
        return 0;
    assert_true(wrk_sched_consistent(b->s, &err));
    fake_zero(&b->kv, b->s);
    fake_run(&b->kv, b->s, st, b->results, NULL);
    uint32_t n = st->token_count;
    assert_true(wrk_sched_step_done(b->s, st->id, KVS_OK, b->results));
    return n;
}

static uint32_t held(const struct bench *b, uint32_t group)
{
    return wrk_sched_pages(b->s, group).held;
}

/* Chunks end at every second block and at the prompt's last full one: 8, 8, 8, then 24 to 28 (27 = (30 - 1) / 4 blocks), then the rest. */
static void test_chunks_end_where_snapshots_are_wanted(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, 40);
    wrk_seq_id id = open_seq(&b, WRK_OWNER_DECODE, 30, 100, false);
    const uint32_t want[] = {8, 8, 8, 4, 2};
    for (int i = 0; i < 5; i++)
        assert_int_equal(step(&b), want[i]);
    assert_int_equal(held(&b, STATE), 1);
    assert_int_equal(wrk_sched_pages(b.s, STATE).cached, 4); /* after 8, 16, 24 and 28 tokens */
    /* positions 24 .. 29 are visible from 30 on, in blocks 6 and 7; the step over 28 and 29 saw 23 on, block 5 */
    assert_int_equal(held(&b, WINDOW), 3);
    assert_int_equal(wrk_sched_pages(b.s, WINDOW).cached, 5);
    wrk_seq_close(b.s, id);
    /* the same prompt again: all but its last block; a longer one that differs early: the snapshot after 16 */
    id = open_seq(&b, WRK_OWNER_DECODE, 30, 100, false);
    assert_int_equal(wrk_seq_look(b.s, id).cached, 28);
    wrk_seq_close(b.s, id);
    b.ids[22]++;
    id = open_seq(&b, WRK_OWNER_DECODE, 30, 100, false);
    assert_int_equal(wrk_seq_look(b.s, id).cached, 16);
    while (step(&b) > 0) {
    }
    wrk_seq_close(b.s, id);
    close_bench(&b);
}

static void test_a_long_answer_holds_few_pages(void **state)
{
    (void)state;
    for (uint32_t nodes = 0; nodes <= 100; nodes += 100) {
        struct bench b;
        open_bench(&b, nodes);
        wrk_seq_id id = open_seq(&b, WRK_OWNER_DECODE, 5, 180, false);
        while (step(&b) > 0) {
            struct wrk_seq_view v = wrk_seq_look(b.s, id);
            assert_true(held(&b, WINDOW) <= 4);
            assert_true(held(&b, STATE) <= 2);
            assert_int_equal(held(&b, FULL), v.table->block_count);
            if (v.computed == v.token_count && v.token_count < 170)
                wrk_seq_append(b.s, id, b.ids[v.token_count]);
        }
        assert_int_equal(wrk_seq_look(b.s, id).computed, 170);
        assert_true(nodes > 0 ? wrk_sched_pages(b.s, STATE).cached > 5 : wrk_sched_pages(b.s, STATE).cached == 0);
        wrk_seq_close(b.s, id);
        close_bench(&b);
    }
}

/* Twelve state pages are quotas for six sequences (running and a snapshot each): the seventh waits, and nobody is preempted. */
static void test_quotas_limit_how_many_run(void **state)
{
    (void)state;
    struct bench b;
    wrk_seq_id id[7];
    open_bench(&b, 40);
    b.ids[0] = 900; /* all different */
    for (int i = 0; i < 7; i++) {
        b.ids[0]++;
        id[i] = open_seq(&b, WRK_OWNER_DECODE, 3, 8, false);
        assert_int_equal(wrk_seq_look(b.s, id[i]).state, i < 6 ? WRK_SEQ_READY : WRK_SEQ_WAITING);
    }
    wrk_seq_close(b.s, id[2]);
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, id[6]).state, WRK_SEQ_READY);
    assert_int_equal(wrk_sched_stats(b.s).preemptions, 0);
    for (int i = 0; i < 7; i++)
        if (i != 2)
            wrk_seq_close(b.s, id[i]);
    struct kvs_error err = {0};
    wrk_seq_id none;
    struct wrk_seq_config c = {.owner = WRK_OWNER_DECODE, .tokens = b.ids, .token_count = 3, .tokens_max = 201};
    assert_int_equal(wrk_seq_open(b.s, &c, &none, &err), KVS_OK); /* 10 + 6 tokens of window: never more than seven pages */
    wrk_seq_close(b.s, none);
    close_bench(&b);
}

/* A prompt of 30 comes whole: of 8 blocks the window wants 5 to 7 (the last 6 tokens before 28, and what follows), the state its end and 28. */
static void test_what_a_transfer_is_asked_for(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, 40);
    wrk_seq_id id = open_seq(&b, WRK_OWNER_DECODE, 30, 100, true);
    const struct wrk_seq_view v = wrk_seq_look(b.s, id);
    wrk_seq_land(b.s, id, 30);
    for (uint32_t i = 0; i < 8; i++) {
        assert_true(kvc_block_row(v.table, FULL)[i] != KVC_BLOCK_NONE);
        assert_int_equal(kvc_block_row(v.table, WINDOW)[i] != KVC_BLOCK_NONE, i >= 5);
        assert_int_equal(kvc_block_row(v.table, STATE)[i] != KVC_BLOCK_NONE, i >= 6);
        assert_int_equal(wrk_page_lands(&b.l, WINDOW, i, 30, false), i >= 5);
        assert_int_equal(wrk_page_lands(&b.l, STATE, i, 30, false), i >= 6);
        assert_int_equal(wrk_page_lands(&b.l, STATE, i, 28, true), i == 6); /* a fetch of 28 */
        assert_int_equal(wrk_page_lands(&b.l, WINDOW, i, 28, true), i == 5 || i == 6);
    }
    fake_zero(&b.kv, b.s);
    for (uint32_t g = 0; g < 3; g++)
        for (uint32_t i = 0; i < 8; i++)
            if (kvc_block_row(v.table, g)[i] != KVC_BLOCK_NONE)
                fake_land(&b.kv, v.table, g, i, b.ids, 30);
    wrk_seq_ready(b.s, id, 30, false);
    assert_int_equal(held(&b, STATE), 1);
    assert_int_equal(wrk_sched_pages(b.s, STATE).cached, 1); /* after 28 */
    wrk_seq_append(b.s, id, b.ids[30]);
    assert_int_equal(step(&b), 1);
    wrk_seq_close(b.s, id);
    id = open_seq(&b, WRK_OWNER_DECODE, 30, 100, false); /* what came serves the next one here */
    assert_int_equal(wrk_seq_look(b.s, id).cached, 28);
    wrk_seq_close(b.s, id);
    close_bench(&b);
}

/* Half of a transfer is nothing where windows and states are: the sequence begins anew, from what the tree still has. */
static void test_a_broken_transfer_begins_anew(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, 40);
    wrk_seq_id id = open_seq(&b, WRK_OWNER_DECODE, 18, 20, false);
    while (step(&b) > 0) {
    }
    wrk_seq_close(b.s, id);
    id = open_seq(&b, WRK_OWNER_DECODE, 40, 60, true);
    assert_int_equal(wrk_seq_look(b.s, id).computed, 16);
    wrk_seq_land(b.s, id, 40);
    wrk_seq_ready(b.s, id, 16, true);
    assert_int_equal(wrk_seq_look(b.s, id).state, WRK_SEQ_WAITING);
    assert_int_equal(held(&b, FULL) + held(&b, WINDOW) + held(&b, STATE), 0);
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, id).state, WRK_SEQ_READY);
    assert_int_equal(wrk_seq_look(b.s, id).cached, 16);
    fake_zero(&b.kv, b.s);
    while (step(&b) > 0) {
    }
    assert_int_equal(wrk_seq_look(b.s, id).computed, 40);
    wrk_seq_close(b.s, id);
    close_bench(&b);
}

/* A stopped step has spoilt the state: the decode sequence starts again; a source's owner is told. */
static void test_a_stopped_step_spoils_states(void **state)
{
    (void)state;
    struct bench b;
    uint32_t n;
    open_bench(&b, 40);
    wrk_seq_id id = open_seq(&b, WRK_OWNER_DECODE, 12, 20, false);
    b.ids[0] = 950;
    wrk_seq_id source = open_seq(&b, WRK_OWNER_PREFILL, 12, 13, false);
    const struct wrk_step *st = wrk_sched_next_step(b.s);
    assert_int_equal(st->entry_count, 2);
    fake_zero(&b.kv, b.s);
    fake_spoil(&b.kv, st);
    assert_true(wrk_sched_step_done(b.s, st->id, KVS_REQ_CANCELLED, NULL));
    assert_int_equal(wrk_seq_look(b.s, id).state, WRK_SEQ_WAITING);
    const struct wrk_seq_result *r = wrk_sched_results(b.s, WRK_OWNER_PREFILL, &n, NULL);
    assert_int_equal(n, 1);
    assert_int_equal(r->r.status, KVS_REQ_CANCELLED);
    wrk_seq_close(b.s, source);
    wrk_sched_admit(b.s);
    fake_zero(&b.kv, b.s);
    while (step(&b) > 0) {
    }
    assert_int_equal(wrk_seq_look(b.s, id).computed, 12);
    wrk_seq_close(b.s, id);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_end_where_snapshots_are_wanted),
        cmocka_unit_test(test_a_long_answer_holds_few_pages),
        cmocka_unit_test(test_quotas_limit_how_many_run),
        cmocka_unit_test(test_what_a_transfer_is_asked_for),
        cmocka_unit_test(test_a_broken_transfer_begins_anew),
        cmocka_unit_test(test_a_stopped_step_spoils_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
