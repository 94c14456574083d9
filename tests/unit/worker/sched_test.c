/* sched_test.c - the scheduler: what a step is made of, who gets pages, what happens when they run out. The device is a fake whose KV and
 * tokens are hashes of the sequence (fake_device.h); expected numbers are counted by hand from prompt lengths and block size 4.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/worker/fake_device.h"

#define SEQS 16

struct bench {
    struct kvc_layout l;
    struct wrk_sched *s;
    struct fake_kv kv;
    struct wrk_result results[SEQS];
    struct kvs_rng rng;
};

static void bench_init(struct bench *b, uint32_t pages, uint32_t chunk, uint32_t reserve, uint32_t batch_seqs)
{
    struct wrk_sched_config c = {
        .seqs_max = SEQS, .batch_seqs = batch_seqs, .context = 512, .chunk_tokens = chunk, .reserve_tokens = reserve};
    struct kvs_error err;
    memset(b, 0, sizeof *b);
    b->l = fake_layout(3, 4, 2); /* two groups: layers 0-1 and 2 */
    assert_int_equal(b->l.group_count, 2);
    c.layout = &b->l;
    c.pages[0] = pages;
    c.pages[1] = pages + 3;
    b->rng.state = 42;
    assert_int_equal(wrk_sched_create(&c, &b->s, &err), KVS_OK);
    fake_kv_init(&b->kv, &b->l, c.pages);
}
static void bench_fini(struct bench *b)
{
    struct kvs_error err = {.text = ""};
    if (!wrk_sched_consistent(b->s, &err))
        fail_msg("%s", err.text);
    wrk_sched_destroy(b->s);
    fake_kv_fini(&b->kv);
}

static wrk_seq_id open_seq(struct bench *b, uint32_t tokens, uint32_t tokens_max, uint32_t user)
{
    int32_t ids[512];
    fake_prompt(&b->rng, ids, tokens);
    struct wrk_seq_config c = {.owner = WRK_OWNER_DECODE,
                               .user = user,
                               .tokens = ids,
                               .token_count = tokens,
                               .tokens_max = tokens_max,
                               .logits = WRK_LOGITS_SAMPLE,
                               .sampling = {.seed = 5}};
    wrk_seq_id id = WRK_SEQ_NONE;
    assert_int_equal(wrk_seq_open(b->s, &c, &id, NULL), KVS_OK);
    return id;
}

/* Runs the step in flight and appends what was sampled, as an owner does. Returns the number of tokens. */
static uint32_t finish_step(struct bench *b)
{
    const struct wrk_step *step = wrk_sched_in_flight(b->s);
    assert_non_null(step);
    fake_zero(&b->kv, b->s);
    fake_run(&b->kv, b->s, step, b->results, NULL);
    assert_true(wrk_sched_step_done(b->s, step->id, KVS_OK, b->results));
    uint32_t n, tokens = 0;
    const struct wrk_seq_result *r = wrk_sched_results(b->s, WRK_OWNER_DECODE, &n, NULL);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(r[i].r.status, KVS_OK);
        if (!r[i].last)
            continue;
        struct wrk_seq_view v = wrk_seq_look(b->s, r[i].seq);
        if (v.token_count < 500)
            wrk_seq_append(b->s, r[i].seq, r[i].r.token);
        tokens++;
    }
    wrk_sched_admit(b->s);
    return tokens;
}
static bool one_step(struct bench *b)
{
    if (!wrk_sched_next_step(b->s))
        return false;
    finish_step(b);
    return true;
}

static void test_tokens_come_first_then_chunks_oldest_first(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 100, 10, 8, 0);
    wrk_seq_id a = open_seq(&b, 4, 100, 0);
    wrk_sched_admit(b.s);
    assert_true(one_step(&b)); /* a is running now */
    wrk_seq_id p = open_seq(&b, 25, 100, 1), q = open_seq(&b, 7, 100, 2);
    wrk_sched_admit(b.s);
    static const uint32_t want[4][3][2] = {/* {user, count}: a's token, then 10 tokens of prompts */
                                           {{0, 1}, {1, 10}, {9, 0}},
                                           {{0, 1}, {1, 10}, {9, 0}},
                                           {{0, 1}, {1, 5}, {2, 5}},
                                           {{0, 1}, {1, 1}, {2, 2}}}; /* p has become a running sequence */
    struct wrk_sched_stats before = wrk_sched_stats(b.s); /* a has the KV of 4 tokens, and one without */
    assert_int_equal(before.decoding, 1);
    assert_int_equal(before.context_tokens, 4);
    assert_int_equal(before.prefill_left, 25 + 7);
    for (int i = 0; i < 4; i++) {
        const struct wrk_step *step = wrk_sched_next_step(b.s);
        uint32_t n = want[i][2][1] ? 3 : 2, tokens = 0;
        assert_non_null(step);
        assert_int_equal(step->entry_count, n);
        for (uint32_t e = 0; e < n; e++) {
            assert_int_equal(step->entries[e].user, want[i][e][0]);
            assert_int_equal(step->entries[e].count, want[i][e][1]);
            tokens += step->entries[e].count;
        }
        assert_int_equal(step->token_count, tokens);
        assert_int_equal(step->entries[1].last, i >= 2);
        assert_int_equal(step->entries[1].logits, i >= 2 ? WRK_LOGITS_SAMPLE : WRK_LOGITS_NONE);
        assert_int_equal(step->logits_count, i < 2 ? 1 : i == 2 ? 2 : 3);
        assert_null(wrk_sched_next_step(b.s)); /* one at a time */
        finish_step(&b);
    }
    assert_int_equal(wrk_seq_look(b.s, p).chunks, 3);
    assert_int_equal(wrk_seq_look(b.s, q).chunks, 2);
    assert_int_equal(wrk_seq_look(b.s, p).prefilled, 25);
    struct wrk_sched_stats st = wrk_sched_stats(b.s);
    assert_int_equal(st.steps, 5);
    assert_int_equal(st.prefill_tokens, 4 + 25 + 7);
    assert_int_equal(st.decode_tokens, 4 + 1);
    assert_int_equal(st.widest_batch, 3);
    assert_int_equal(st.decoding, 3);
    assert_int_equal(st.context_tokens, 4 + 4 + 26 + 7);
    assert_int_equal(st.prefill_left, 0);
    assert_int_equal(wrk_seq_look(b.s, a).token_count, 4 + 5);
    bench_fini(&b);
}

static void test_long_prompt_does_not_starve_writers(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 300, 8, 8, 0);
    wrk_seq_id a = open_seq(&b, 3, 200, 0);
    wrk_sched_admit(b.s);
    one_step(&b);
    wrk_seq_id p = open_seq(&b, 400, 500, 1);
    wrk_sched_admit(b.s);
    uint32_t steps = 0;
    while (wrk_seq_look(b.s, p).computed < 400) {
        uint32_t before = wrk_seq_look(b.s, a).token_count;
        const struct wrk_step *step = wrk_sched_next_step(b.s);
        assert_true(step->token_count <= wrk_sched_batch_tokens(b.s));
        assert_int_equal(step->entries[0].user, 0);
        finish_step(&b);
        assert_int_equal(wrk_seq_look(b.s, a).token_count, before + 1);
        steps++;
    }
    assert_int_equal(steps, 50);
    bench_fini(&b);
}

static void test_more_writers_than_places_take_turns(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 300, 64, 8, 3);
    wrk_seq_id id[5];
    for (uint32_t i = 0; i < 5; i++)
        id[i] = open_seq(&b, 2 + i, 100, i);
    wrk_sched_admit(b.s);
    while (wrk_seq_look(b.s, id[4]).token_count == 6)
        assert_true(one_step(&b));
    uint32_t start[5];
    for (int i = 0; i < 5; i++)
        start[i] = wrk_seq_look(b.s, id[i]).token_count;
    for (int i = 0; i < 20; i++) {
        const struct wrk_step *step = wrk_sched_next_step(b.s);
        assert_int_equal(step->entry_count, 3);
        finish_step(&b);
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(wrk_seq_look(b.s, id[i]).token_count - start[i], 12); /* 60 places, 5 sequences */
    /* a new prompt gets a place although the writers fill the batch */
    wrk_seq_id p = open_seq(&b, 30, 40, 9);
    wrk_sched_admit(b.s);
    one_step(&b);
    assert_int_equal(wrk_seq_look(b.s, p).computed, 30);
    bench_fini(&b);
}

static void test_reservation_is_prompt_and_bounded_room(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 100, 64, 10, 0);
    /* blocks of 4: prompt 9 + room 10 = 19 -> 5; prompt 9, may write 3 (the last without KV) -> 11 -> 3; prompt 8, writes 1 -> 8 -> 2 */
    wrk_seq_id a = open_seq(&b, 9, 100, 0), c = open_seq(&b, 9, 12, 1), e = open_seq(&b, 8, 9, 2);
    assert_int_equal(wrk_sched_pages(b.s, 0).held, 0);
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, a).table->block_count, 5);
    assert_int_equal(wrk_seq_look(b.s, c).table->block_count, 3);
    assert_int_equal(wrk_seq_look(b.s, e).table->block_count, 2);
    assert_int_equal(wrk_sched_pages(b.s, 0).held, 10);
    assert_int_equal(wrk_sched_pages(b.s, 1).held, 10);
    assert_int_equal(wrk_sched_pages(b.s, 1).free, 93);
    wrk_seq_close(b.s, a);
    wrk_seq_close(b.s, c);
    wrk_seq_close(b.s, e);
    assert_int_equal(wrk_sched_pages(b.s, 0).free, 100);
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_GONE);
    bench_fini(&b);
}

static void test_admission_never_passes_the_oldest(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 10, 64, 1, 0);
    wrk_seq_id a = open_seq(&b, 24, 25, 0); /* 6 blocks of 10 */
    wrk_seq_id big = open_seq(&b, 20, 21, 1), small = open_seq(&b, 4, 5, 2);
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_READY);
    assert_int_equal(wrk_seq_look(b.s, big).state, WRK_SEQ_WAITING);
    assert_int_equal(wrk_seq_look(b.s, small).state, WRK_SEQ_WAITING); /* it would fit, but waits its turn */
    assert_false(wrk_sched_can_admit(b.s));
    assert_int_equal(wrk_sched_pages(b.s, 0).held, 6);
    wrk_seq_close(b.s, a);
    assert_true(wrk_sched_can_admit(b.s));
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, big).state, WRK_SEQ_READY);
    assert_int_equal(wrk_seq_look(b.s, small).state, WRK_SEQ_READY);
    bench_fini(&b);
}

static void test_refused_at_the_door(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 10, 64, 1, 0);
    int32_t ids[600] = {0};
    struct wrk_seq_config c = {.tokens = ids, .token_count = 41, .tokens_max = 50};
    wrk_seq_id id;
    struct kvs_error err;
    assert_int_equal(wrk_seq_open(b.s, &c, &id, &err), KVS_BUSY_PAGES); /* 11 blocks, 10 pages */
    assert_non_null(strstr(err.text, "11"));
    c.token_count = 514;
    c.tokens_max = 514;
    assert_int_equal(wrk_seq_open(b.s, &c, &id, &err), KVS_REQ_TOO_LONG);
    c.token_count = 40;
    c.tokens_max = 513;
    for (int i = 0; i < SEQS; i++)
        assert_int_equal(wrk_seq_open(b.s, &c, &id, &err), KVS_OK);
    assert_int_equal(wrk_seq_open(b.s, &c, &id, &err), KVS_BUSY_FULL);
    bench_fini(&b);
}

static void check_answer(struct bench *b, wrk_seq_id id, uint32_t prompt)
{
    struct wrk_seq_view v = wrk_seq_look(b->s, id);
    int32_t out[512];
    uint32_t n = fake_answer(v.tokens, prompt, 5, 0, v.token_count - prompt, 512, -1, out);
    assert_int_equal(n, v.token_count - prompt);
    assert_memory_equal(out, v.tokens + prompt, n * sizeof *out);
}

static void test_out_of_pages_preempts_the_newest_and_loses_nothing(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 12, 8, 4, 0);
    wrk_seq_id id[3];
    uint32_t left = 3, paid[3] = {0};
    for (uint32_t i = 0; i < 3; i++)
        id[i] = open_seq(&b, 8, 40, i);
    wrk_sched_admit(b.s);
    for (int i = 0; i < 400 && left > 0; i++) {
        struct kvs_error err;
        assert_true(one_step(&b));
        assert_true(wrk_sched_consistent(b.s, &err));
        for (int k = 0; k < 3; k++) {
            struct wrk_seq_view v = wrk_seq_look(b.s, id[k]);
            if (v.state == WRK_SEQ_GONE || v.token_count < 40)
                continue;
            check_answer(&b, id[k], 8);
            paid[k] = v.preemptions;
            wrk_seq_close(b.s, id[k]);
            wrk_sched_admit(b.s);
            left--;
        }
    }
    assert_int_equal(left, 0);
    assert_int_equal(paid[0], 0); /* the oldest never pays */
    assert_true(paid[2] >= 1);
    assert_true(wrk_sched_stats(b.s).preemptions >= 2);
    bench_fini(&b);
}

static void test_forced_preemption_goes_on_with_the_same_tokens(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 8, 4, 0);
    wrk_seq_id a = open_seq(&b, 11, 60, 0), c = open_seq(&b, 5, 60, 1);
    wrk_sched_admit(b.s);
    for (int i = 0; i < 30; i++) {
        if (i % 7 == 5) {
            wrk_seq_id newest = c;
            uint32_t tokens = wrk_seq_look(b.s, newest).token_count;
            assert_true(wrk_sched_preempt_newest(b.s));
            struct wrk_seq_view v = wrk_seq_look(b.s, newest);
            assert_int_equal(v.state, WRK_SEQ_WAITING);
            assert_int_equal(v.table->block_count, 0);
            assert_int_equal(v.token_count, tokens);
            assert_int_equal(v.computed, 0);
            wrk_sched_admit(b.s);
        }
        assert_true(one_step(&b));
    }
    assert_non_null(wrk_sched_next_step(b.s));
    assert_false(wrk_sched_preempt_newest(b.s)); /* not while a step reads its pages */
    finish_step(&b);
    check_answer(&b, a, 11);
    check_answer(&b, c, 5);
    assert_int_equal(wrk_seq_look(b.s, c).preemptions, 4);
    bench_fini(&b);
}

static void test_alone_and_too_big_fails_instead_of_waiting_for_ever(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 5, 8, 4, 0);
    wrk_seq_id a = open_seq(&b, 8, 100, 0);
    wrk_sched_admit(b.s);
    int i = 0;
    while (one_step(&b))
        assert_true(++i < 100);
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_FAILED);
    assert_int_equal(wrk_seq_look(b.s, a).token_count,
                     21); /* 5 blocks hold 20 tokens; the 21st was sampled and cannot be computed */
    assert_int_equal(wrk_sched_pages(b.s, 0).free, 5);
    wrk_seq_close(b.s, a);
    bench_fini(&b);
}

static void test_close_in_flight_waits_for_the_step(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 50, 8, 4, 0);
    wrk_seq_id a = open_seq(&b, 6, 20, 0), c = open_seq(&b, 6, 20, 1);
    wrk_sched_admit(b.s);
    const struct wrk_step *step = wrk_sched_next_step(b.s);
    assert_int_equal(step->entry_count, 2);
    uint32_t held = wrk_sched_pages(b.s, 0).held;
    wrk_seq_close(b.s, a);
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_CLOSING);
    assert_int_equal(wrk_sched_pages(b.s, 0).held, held);
    assert_false(wrk_sched_stop_wanted(b.s)); /* the other one wants its step */
    wrk_seq_close(b.s, a);                    /* once more changes nothing */
    wrk_seq_stop(b.s, c);
    assert_true(wrk_sched_stop_wanted(b.s));
    assert_true(wrk_sched_step_done(b.s, step->id, KVS_REQ_CANCELLED, NULL));
    assert_false(wrk_sched_step_done(b.s, 1, KVS_REQ_CANCELLED, NULL)); /* late double */
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_GONE);
    assert_int_equal(wrk_seq_look(b.s, c).state, WRK_SEQ_STOPPED);
    assert_int_equal(wrk_sched_pages(b.s, 0).held, held / 2);
    assert_null(wrk_sched_next_step(b.s));
    wrk_seq_close(b.s, c);
    assert_int_equal(wrk_sched_pages(b.s, 0).held, 0);
    bench_fini(&b);
}

static void test_stopped_step_is_done_again_for_who_still_wants_it(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 50, 8, 4, 0);
    wrk_seq_id a = open_seq(&b, 6, 20, 0);
    wrk_sched_admit(b.s);
    const struct wrk_step *step = wrk_sched_next_step(b.s);
    uint64_t id = step->id;
    fake_zero(&b.kv, b.s);
    assert_true(wrk_sched_step_done(b.s, id, KVS_REQ_CANCELLED, NULL));
    uint32_t n;
    (void)wrk_sched_results(b.s, WRK_OWNER_DECODE, &n, NULL);
    assert_int_equal(n, 0);
    step = wrk_sched_next_step(b.s);
    assert_int_equal(step->id, id + 1);
    assert_int_equal(step->entries[0].pos, 0);
    assert_int_equal(step->entries[0].count, 6);
    finish_step(&b);
    check_answer(&b, a, 6);
    bench_fini(&b);
}

static void test_failed_step_tells_every_owner(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 50, 8, 4, 0);
    wrk_seq_id a = open_seq(&b, 6, 20, 7);
    wrk_sched_admit(b.s);
    const struct wrk_step *step = wrk_sched_next_step(b.s);
    assert_true(wrk_sched_step_done(b.s, step->id, KVS_SELF_INTERNAL, NULL));
    uint32_t n;
    uint64_t id;
    const struct wrk_seq_result *r = wrk_sched_results(b.s, WRK_OWNER_DECODE, &n, &id);
    assert_int_equal(n, 1);
    assert_int_equal(id, step->id);
    assert_int_equal(r->user, 7);
    assert_int_equal(r->r.status, KVS_SELF_INTERNAL);
    assert_int_equal(wrk_seq_look(b.s, a).computed, 0);
    (void)wrk_sched_results(b.s, WRK_OWNER_PREFILL, &n, NULL);
    assert_int_equal(n, 0);
    bench_fini(&b);
}

static void test_held_pages_are_filled_by_others_and_fenced(void **state)
{
    (void)state;
    struct bench b;
    int32_t ids[10] = {1, 2, 3, 4, 5, 6, 8, 9, 10, 11};
    bench_init(&b, 20, 8, 4, 0);
    struct wrk_seq_config c = {.owner = WRK_OWNER_DECODE,
                               .tokens = ids,
                               .token_count = 10,
                               .tokens_max = 11,
                               .hold = true,
                               .logits = WRK_LOGITS_SAMPLE};
    wrk_seq_id a, f;
    assert_int_equal(wrk_seq_open(b.s, &c, &a, NULL), KVS_OK);
    assert_int_equal(wrk_seq_open(b.s, &c, &f, NULL), KVS_OK);
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_HELD);
    assert_null(wrk_sched_next_step(b.s));
    assert_false(wrk_sched_preempt_newest(b.s)); /* a peer may be writing there */
    fake_zero(&b.kv, b.s);
    for (uint32_t g = 0; g < 2; g++) /* the first block landed, the second is rubbish */
        for (uint32_t p = 0; p < 8; p++)
            *fake_cell(&b.kv, wrk_seq_look(b.s, a).table, g, p) =
                p < 4 ? fake_kv_value(fake_prefix(ids, p + 1), g) : FAKE_GARBAGE;
    wrk_seq_ready(b.s, a, 4, true);
    const struct wrk_step *step = wrk_sched_next_step(b.s);
    assert_int_equal(step->entries[0].pos, 4);
    assert_int_equal(step->entries[0].count, 6);
    finish_step(&b); /* the fake device looks at every cell */
    wrk_seq_fence(b.s, f);
    assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 3);
    assert_int_equal(wrk_sched_pages(b.s, 1).fenced, 3);
    assert_int_equal(wrk_sched_stats(b.s).fenced, 1);
    struct kvs_error err;
    assert_true(wrk_sched_consistent(b.s, &err));
    wrk_seq_unfence(b.s, f);
    assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 0);
    assert_int_equal(wrk_seq_look(b.s, f).state, WRK_SEQ_GONE);
    bench_fini(&b);
}

static void test_paused_sequence_keeps_its_pages_and_its_place(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 50, 8, 4, 0);
    wrk_seq_id a = open_seq(&b, 6, 20, 0);
    wrk_sched_admit(b.s);
    one_step(&b);
    wrk_seq_pause(b.s, a, true);
    assert_null(wrk_sched_next_step(b.s));
    assert_true(wrk_sched_pages(b.s, 0).held > 0);
    wrk_seq_pause(b.s, a, false);
    assert_true(one_step(&b));
    check_answer(&b, a, 6);
    bench_fini(&b);
}

static void test_page_is_zeroed_once_and_again_when_it_changes_hands(void **state)
{
    (void)state;
    struct bench b;
    struct wrk_page list[64];
    bench_init(&b, 4, 8, 4, 0);
    wrk_seq_id a = open_seq(&b, 8, 9, 0); /* 2 blocks x 2 groups */
    wrk_sched_admit(b.s);
    wrk_seq_close(b.s, a);
    a = open_seq(&b, 16, 17, 0);
    wrk_sched_admit(b.s);
    size_t n = wrk_sched_take_zeros(b.s, list, 64);
    assert_true(n >= 8 && n <= 12); /* group 0 has 4 pages, all in use; group 1 has 7 */
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            assert_false(list[i].group == list[k].group && list[i].page == list[k].page);
    assert_int_equal(wrk_sched_take_zeros(b.s, list, 64), 0);
    wrk_seq_close(b.s, a);
    a = open_seq(&b, 16, 17, 0);
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_sched_take_zeros(b.s, list, 64), 8);
    bench_fini(&b);
}

static struct wrk_seq_config held_config(const int32_t *ids, uint32_t count)
{
    return (struct wrk_seq_config){
        .owner = WRK_OWNER_DECODE, .tokens = ids, .token_count = count, .tokens_max = count + 9, .hold = true, .logits = WRK_LOGITS_SAMPLE};
}

/* What a transfer overwrites whole is not zeroed first; what it may have left half written is. */
static void test_pages_that_a_transfer_fills_are_not_zeroed(void **state)
{
    (void)state;
    struct bench b;
    struct wrk_page list[64];
    int32_t ids[10] = {1, 2, 3, 4, 5, 6, 8, 9, 10, 11};
    bench_init(&b, 20, 8, 4, 8);
    struct wrk_seq_config c = held_config(ids, 10);
    wrk_seq_id a, f;
    assert_int_equal(wrk_seq_open(b.s, &c, &f, NULL), KVS_OK);
    assert_int_equal(wrk_seq_open(b.s, &c, &a, NULL), KVS_OK);
    wrk_sched_admit(b.s);
    uint32_t blocks = wrk_seq_look(b.s, a).table->block_count;
    assert_true(blocks > 3);       /* 10 tokens are 3 blocks; the rest is room for the answer */
    wrk_seq_land(b.s, a, 8);       /* a fetch of the first two */
    size_t n = wrk_sched_take_zeros(b.s, list, 64);
    assert_int_equal(n, 2 * blocks + 2 * (blocks - 2)); /* all of f's, in order, and the others of a's; 2 groups */
    const struct kvc_block_table *t = wrk_seq_look(b.s, a).table;
    for (size_t i = 0; i < n; i++) {
        assert_int_not_equal(list[i].page, kvc_block_row(t, list[i].group)[0]);
        assert_int_not_equal(list[i].page, kvc_block_row(t, list[i].group)[1]);
    }
    wrk_seq_ready(b.s, a, 4, true); /* only the first one came */
    n = wrk_sched_take_zeros(b.s, list, 64);
    assert_int_equal(n, 2 * (blocks - 1));
    assert_int_equal(list[0].page, kvc_block_row(t, list[0].group)[1]);
    wrk_seq_land(b.s, f, 10); /* a prompt that is computed elsewhere; its pages were zeroed before */
    assert_int_equal(wrk_sched_take_zeros(b.s, list, 64), 0);
    bench_fini(&b);
}

/* A prompt that a transfer brings is nothing that later ones would wait for. */
static void test_what_a_transfer_brings_is_not_left_to_compute(void **state)
{
    (void)state;
    struct bench b;
    int32_t ids[10] = {1, 2, 3, 4, 5, 6, 8, 9, 10, 11};
    bench_init(&b, 20, 8, 4, 0);
    struct wrk_seq_config c = held_config(ids, 10);
    wrk_seq_id a;
    assert_int_equal(wrk_seq_open(b.s, &c, &a, NULL), KVS_OK);
    assert_int_equal(wrk_sched_stats(b.s).prefill_left, 0); /* it waits for pages */
    wrk_sched_admit(b.s);
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_HELD);
    assert_int_equal(wrk_sched_stats(b.s).prefill_left, 0);
    wrk_seq_ready(b.s, a, 4, true); /* not all of it came */
    assert_int_equal(wrk_sched_stats(b.s).prefill_left, 6);
    bench_fini(&b);
}

static void test_blocks_an_entry_completes(void **state)
{
    (void)state;
    struct kvc_layout l = fake_layout(1, 4, 1);
    static const struct {
        uint32_t pos, count;
        bool end;
        uint32_t first, blocks;
    } want[] = {{0, 3, false, 0, 0}, {0, 4, false, 0, 1}, {0, 3, true, 0, 1}, {2, 2, false, 0, 1},
                {2, 7, false, 0, 2}, {4, 4, false, 1, 1}, {4, 5, true, 1, 2}, {8, 1, false, 2, 0},
                {8, 1, true, 2, 1},  {7, 1, false, 1, 1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct wrk_blocks b = wrk_entry_blocks(&l, want[i].pos, want[i].count, want[i].end);
        assert_int_equal(b.count, want[i].blocks);
        if (b.count)
            assert_int_equal(b.first, want[i].first);
    }
}

static void test_stale_id_names_nothing(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 50, 8, 4, 0);
    wrk_seq_id a = open_seq(&b, 6, 20, 0);
    wrk_seq_close(b.s, a);
    wrk_seq_id c = open_seq(&b, 6, 20, 0);
    assert_int_not_equal(a, c); /* the same slot, another life */
    assert_int_equal(wrk_seq_look(b.s, a).state, WRK_SEQ_GONE);
    assert_int_equal(wrk_seq_look(b.s, WRK_SEQ_NONE).state, WRK_SEQ_GONE);
    assert_int_equal(wrk_seq_look(b.s, 0xffffffffu).state, WRK_SEQ_GONE);
    assert_int_equal(wrk_seq_look(b.s, c).state, WRK_SEQ_WAITING);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_come_first_then_chunks_oldest_first),
        cmocka_unit_test(test_long_prompt_does_not_starve_writers),
        cmocka_unit_test(test_more_writers_than_places_take_turns),
        cmocka_unit_test(test_reservation_is_prompt_and_bounded_room),
        cmocka_unit_test(test_admission_never_passes_the_oldest),
        cmocka_unit_test(test_refused_at_the_door),
        cmocka_unit_test(test_out_of_pages_preempts_the_newest_and_loses_nothing),
        cmocka_unit_test(test_forced_preemption_goes_on_with_the_same_tokens),
        cmocka_unit_test(test_alone_and_too_big_fails_instead_of_waiting_for_ever),
        cmocka_unit_test(test_close_in_flight_waits_for_the_step),
        cmocka_unit_test(test_stopped_step_is_done_again_for_who_still_wants_it),
        cmocka_unit_test(test_failed_step_tells_every_owner),
        cmocka_unit_test(test_held_pages_are_filled_by_others_and_fenced),
        cmocka_unit_test(test_paused_sequence_keeps_its_pages_and_its_place),
        cmocka_unit_test(test_page_is_zeroed_once_and_again_when_it_changes_hands),
        cmocka_unit_test(test_pages_that_a_transfer_fills_are_not_zeroed),
        cmocka_unit_test(test_what_a_transfer_brings_is_not_left_to_compute),
        cmocka_unit_test(test_blocks_an_entry_completes),
        cmocka_unit_test(test_stale_id_names_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
