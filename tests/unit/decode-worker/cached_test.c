/* cached_test.c - the decode machine with a prefix tree: it asks a peer only for blocks that it lacks, says what was found and by whom, and
 * falls back to what it has. Block size 4, two groups; request 1 has left 12 tokens of its prompt (and nothing else) in the tree.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/decode-worker/decode_bench.h"

static void bench_with_cache(struct bench *b)
{
    bench_init_tree(b, 60, 3, 60); /* small chunks: what a broken receive left behind the computed tokens is seen */
    generate(b, 1, 14, 1, false);
    run_all(b);
    assert_int_equal(expect_answer(b, 1, 14, 0, 1, -1, MSG_FINISH_LENGTH)->placed.cached_tokens, 0);
    assert_int_equal(wrk_sched_pages(b->s, 0).cached, 3);
    memcpy(b->ids + 100, b->ids + 1,
           9 * sizeof *b->ids); /* request 100: 9 tokens in common, that is two blocks and one */
    memcpy(b->ids + 150, b->ids + 1, 14 * sizeof *b->ids);
}

static void end_with(struct bench *b, uint32_t cached)
{
    struct msg_end e = {
        .pages_sent = b->want_count + 1, .prefill_us = 10, .cached_tokens = cached, .prefill_tokens = 18 - cached};
    step(b, (struct dcw_event){.kind = DCW_EV_PREFILL_END, .xfer = b->xfer, .prefill_end = &e});
}

static void test_only_what_is_lacking_is_wanted(void **state)
{
    (void)state;
    struct bench b;
    bench_with_cache(&b);
    generate(&b, 100, 18, 4, true);
    assert_int_equal(b.want_count, 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(b.wants[i].block, 2 + i / 2);
        assert_int_equal(b.wants[i].group, i % 2);
    }
    assert_int_equal(b.prefill_tokens, 18);
    land_all(&b);
    end_with(&b, 5);
    granted(&b, KVS_OK, NULL, 0);
    sampled(&b);
    run_all(&b);
    const struct msg_token *e = expect_answer(&b, 100, 18, 0, 4, -1, MSG_FINISH_LENGTH);
    assert_int_equal(e->placed.mode, MSG_PLACE_REMOTE);
    assert_int_equal(e->placed.pages, 6);
    assert_int_equal(e->placed.cached_tokens, 5); /* the peer computed 13, also some that were here */
    assert_int_equal(e->placed.local_prefill_tokens, 0);
    bench_fini(&b);
}

static void test_broken_pages_leave_what_was_found(void **state)
{
    (void)state;
    /* slots: 0, 1 are block 2; 2, 3 block 3; 4, 5 block 4; 6 the logits. {missing, computed here, remote} */
    static const uint32_t cases[][3] = {{0, 10, 0}, {3, 6, 1}, {4, 2, 1}, {6, 1, 1}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct bench b;
        bench_with_cache(&b);
        generate(&b, 100, 18, 4, true);
        for (uint32_t i = 0; i <= b.want_count; i++)
            if (i == cases[k][0])
                spoil(&b, i);
            else
                land(&b, i);
        end_with(&b, 5);
        granted(&b, KVS_PEER_CORRUPT, &cases[k][0], 1);
        run_all(&b);
        const struct msg_token *e = expect_answer(&b, 100, 18, 0, 4, -1, MSG_FINISH_LENGTH);
        assert_int_equal(e->placed.local_prefill_tokens, cases[k][1]);
        assert_int_equal(e->placed.mode, cases[k][2] ? MSG_PLACE_REMOTE : MSG_PLACE_LOCAL);
        assert_int_equal(e->placed.cached_tokens, 8);
        bench_fini(&b);
    }
}

static void test_nearly_all_is_here(void **state)
{
    (void)state;
    struct bench b;
    bench_with_cache(&b);
    generate(&b, 150, 14, 4, true);
    assert_int_equal(b.grants, 0);
    run_all(&b);
    const struct msg_token *e = expect_answer(&b, 150, 14, 0, 4, -1, MSG_FINISH_LENGTH);
    assert_int_equal(e->placed.mode, MSG_PLACE_LOCAL);
    assert_int_equal(e->placed.cached_tokens, 12);
    assert_int_equal(e->placed.local_prefill_tokens, 2);
    assert_int_equal(dcw_stats(b.d).fallbacks, 0);
    assert_int_equal(dcw_stats(b.d).local, 2);
    bench_fini(&b);
}

static void test_shared_pages_are_not_fenced(void **state)
{
    (void)state;
    struct bench b;
    bench_with_cache(&b);
    generate(&b, 100, 18, 4, true);
    step(&b, (struct dcw_event){.kind = DCW_EV_CANCEL, .conn = CONN, .stream = 110});
    assert_int_equal(wrk_sched_pages(b.s, 0).fenced, kvc_blocks_for(&b.l, 18 + 3) - 2);
    assert_int_equal(wrk_sched_pages(b.s, 0).cached, 3);
    assert_int_equal(wrk_sched_pages(b.s, 0).held, 0);
    granted(&b, KVS_REQ_CANCELLED, NULL, 0);
    assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 0);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

static void generate_fetch(struct bench *b, uint32_t hint, bool remote)
{
    struct msg_generate m = request(b, 100, 18, 4, remote);
    kvs_format(m.fetch_worker, sizeof m.fetch_worker, "prefill-0");
    m.fetch_tokens = hint;
    generate_msg(b, &m, 0);
}

/* 18 tokens, two blocks are here: at most blocks 2 and 3 can be fetched, since the last token is computed. */
static void test_a_fetch_brings_blocks_in_front(void **state)
{
    (void)state;
    static const uint32_t missing[] = {2, 3};
    for (int half = 0; half < 2; half++) {
        struct bench b;
        bench_with_cache(&b);
        generate_fetch(&b, 200, half);
        assert_true(b.fetch);
        assert_int_equal(b.prefill_tokens, 16);
        assert_int_equal(b.want_count, 4);
        assert_int_equal(b.wants[0].block, 2);
        for (uint32_t i = 0; i < 4; i++)
            if (half && i >= 2)
                spoil(&b, i);
            else
                land(&b, i);
        prefill_end(&b, half ? KVS_REQ_NOT_FOUND : KVS_OK);
        granted(&b, half ? KVS_REQ_NOT_FOUND : KVS_OK, missing, half ? 2 : 0);
        assert_int_equal(count_log(&b, DCW_ACT_ACK), !half);
        assert_int_equal(count_log(&b, DCW_ACT_SAMPLE), 0);
        run_all(&b);
        const struct msg_token *e = expect_answer(&b, 100, 18, 0, 4, -1, MSG_FINISH_LENGTH);
        assert_int_equal(e->placed.mode, MSG_PLACE_LOCAL);
        assert_int_equal(e->placed.cached_tokens, half ? 12 : 16);
        assert_int_equal(e->placed.local_prefill_tokens, half ? 6 : 2);
        assert_int_equal(dcw_stats(b.d).fetched_tokens, half ? 4 : 8);
        assert_int_equal(dcw_stats(b.d).fallbacks, 0);
        bench_fini(&b);
    }
}

static void not_found(struct bench *b, uint32_t there)
{
    struct msg_end e = {.status = KVS_REQ_NOT_FOUND, .cached_tokens = there};
    step(b, (struct dcw_event){.kind = DCW_EV_PREFILL_END, .xfer = b->xfer, .prefill_end = &e});
    granted(b, KVS_REQ_NOT_FOUND, NULL, 0);
    step(b, (struct dcw_event){.kind = DCW_EV_TICK});
}

/* Nothing landed, and the peer says that it has less: that is fetched, once. */
static void test_a_fetch_of_too_much_is_tried_with_less(void **state)
{
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        struct bench b;
        bench_with_cache(&b);
        generate_fetch(&b, 200, false);
        uint64_t first = b.xfer;
        assert_int_equal(b.prefill_tokens, 16);
        not_found(&b, 12);
        assert_true(b.fetch && b.xfer != first);
        assert_int_equal(b.prefill_tokens, 12);
        assert_int_equal(b.want_count, 2);
        uint64_t second = b.xfer;
        if (twice) {
            not_found(&b, 8);
            assert_true(b.xfer == second);
        } else {
            land_all(&b);
            prefill_end(&b, KVS_OK);
            granted(&b, KVS_OK, NULL, 0);
        }
        run_all(&b);
        const struct msg_token *e = expect_answer(&b, 100, 18, 0, 4, -1, MSG_FINISH_LENGTH);
        assert_int_equal(e->placed.cached_tokens, twice ? 8 : 12);
        assert_int_equal(dcw_stats(b.d).fetched_tokens, twice ? 0 : 4);
        assert_int_equal(dcw_stats(b.d).fetches, 2);
        bench_fini(&b);
    }
}

static void test_a_fetch_in_vain_goes_on_as_if_nobody_had_been_named(void **state)
{
    (void)state;
    for (int remote = 0; remote < 2; remote++) {
        struct bench b;
        bench_with_cache(&b);
        generate_fetch(&b, 200, remote);
        uint64_t first = b.xfer;
        for (uint32_t i = 0; i < 4; i++)
            spoil(&b, i);
        prefill_end(&b, KVS_REQ_NOT_FOUND);
        granted(&b, KVS_REQ_NOT_FOUND, NULL, 0);
        assert_int_equal(dcw_deadline_us(b.d), 0);
        step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
        if (remote) {
            assert_true(b.xfer != first && !b.fetch);
            assert_int_equal(b.want_count, 6);
            land_all(&b);
            end_with(&b, 9);
            granted(&b, KVS_OK, NULL, 0);
            sampled(&b);
        }
        run_all(&b);
        const struct msg_token *e = expect_answer(&b, 100, 18, 0, 4, -1, MSG_FINISH_LENGTH);
        assert_int_equal(e->placed.mode, remote ? MSG_PLACE_REMOTE : MSG_PLACE_LOCAL);
        assert_int_equal(e->placed.cached_tokens, remote ? 9 : 8);
        assert_int_equal(e->placed.local_prefill_tokens, remote ? 0 : 10);
        bench_fini(&b);
    }
    struct bench b; /* a hint of nothing new: no call */
    bench_with_cache(&b);
    generate_fetch(&b, 11, false);
    assert_int_equal(b.grants, 0);
    run_all(&b);
    assert_int_equal(expect_answer(&b, 100, 18, 0, 4, -1, MSG_FINISH_LENGTH)->placed.cached_tokens, 8);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_what_is_lacking_is_wanted),
        cmocka_unit_test(test_broken_pages_leave_what_was_found),
        cmocka_unit_test(test_nearly_all_is_here),
        cmocka_unit_test(test_shared_pages_are_not_fenced),
        cmocka_unit_test(test_a_fetch_brings_blocks_in_front),
        cmocka_unit_test(test_a_fetch_of_too_much_is_tried_with_less),
        cmocka_unit_test(test_a_fetch_in_vain_goes_on_as_if_nobody_had_been_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
