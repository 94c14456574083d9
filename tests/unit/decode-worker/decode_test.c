/* decode_test.c - the sink's machine on the good path and beside it: what a router is told, what a peer is asked, what is computed here when a
 * peer refuses, dies or sends rubbish. Expected tokens come from a naive loop (fake_answer), page counts from block size 4 and two groups.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/decode-worker/decode_bench.h"

static void test_local_answers_in_a_batch(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 3, 64};
    for (int k = 0; k < 3; k++) {
        struct bench b;
        bench_init(&b, 60, chunks[k]);
        generate(&b, 1, 9, 12, false);
        generate(&b, 2, 20, 5, false);
        generate(&b, 3, 1, 1, false);
        generate(&b, 4, 4, 2, false);
        generate(&b, 5, 5, 3, false);
        run_all(&b);
        const struct msg_token *e = expect_answer(&b, 1, 9, 0, 12, -1, MSG_FINISH_LENGTH);
        assert_int_equal(e->placed.mode, MSG_PLACE_LOCAL);
        assert_string_equal(e->placed.prefill_worker, "decode-0");
        assert_string_equal(e->placed.transport, "none");
        assert_int_equal(e->placed.local_prefill_tokens, 9);
        assert_int_equal(e->placed.bytes, 0);
        expect_answer(&b, 2, 20, 0, 5, -1, MSG_FINISH_LENGTH);
        expect_answer(&b, 3, 1, 0, 1, -1, MSG_FINISH_LENGTH);
        expect_answer(&b, 4, 4, 0, 2, -1, MSG_FINISH_LENGTH);
        expect_answer(&b, 5, 5, 0, 3, -1, MSG_FINISH_LENGTH);
        assert_int_equal(dcw_stats(b.d).local_prefill_tokens, 39);
        assert_int_equal(dcw_stats(b.d).local, 5);
        assert_int_equal(dcw_stats(b.d).tokens, 23);
        bench_fini(&b);
    }
}

static void test_remote_prefill(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 8);
    generate(&b, 1, 10, 4, true);
    assert_int_equal(b.want_count, 6);
    for (uint32_t i = 0; i < 6; i++) { /* by block, then group */
        assert_int_equal(b.wants[i].block, i / 2);
        assert_int_equal(b.wants[i].group, i % 2);
    }
    assert_int_equal(b.prefill_tokens, 10);
    assert_memory_equal(b.prefill_ids, b.ids + 1, 10 * sizeof(int32_t));
    assert_false(begin_step(&b)); /* nothing to compute here */
    land_all(&b);
    prefill_end(&b, KVS_OK);
    prefill_end(&b, KVS_OK); /* doubled */
    assert_int_equal(count_log(&b, DCW_ACT_GRANT_END), 1);
    assert_int_equal(count_log(&b, DCW_ACT_ACK), 0); /* not before the pages are verified */
    struct msg_peer_link link = {.id = "prefill-0"};
    assert_false(dcw_link(b.d, &link));
    b.now += 50000;
    granted(&b, KVS_OK, NULL, 0);
    assert_true(dcw_link(b.d, &link));
    assert_int_equal(link.samples, 1);
    double seconds = link.latency_s + 600 * link.byte_s; /* what was not the source's computing */
    assert_true(seconds > 0.049 && seconds < 0.051);
    struct msg_peer_link other = {.id = "prefill-1"};
    assert_false(dcw_link(b.d, &other));
    granted(&b, KVS_OK, NULL, 0);
    assert_int_equal(count_log(&b, DCW_ACT_ACK), 1);
    assert_int_equal(count_log(&b, DCW_ACT_SAMPLE), 1);
    assert_int_equal(b.sample_position, 10);
    assert_false(begin_step(&b));
    sampled(&b);
    sampled(&b);
    assert_int_equal(b.entry_count, 1);
    run_all(&b);
    const struct msg_token *e = expect_answer(&b, 1, 10, 0, 4, -1, MSG_FINISH_LENGTH);
    assert_int_equal(e->placed.mode, MSG_PLACE_REMOTE);
    assert_string_equal(e->placed.prefill_worker, "prefill-0");
    assert_string_equal(e->placed.transport, "shm");
    assert_int_equal(e->placed.local_prefill_tokens, 0);
    assert_int_equal(e->placed.pages, 6);
    assert_int_equal(e->placed.bytes, 600);
    assert_int_equal(dcw_stats(b.d).remote, 1);
    assert_int_equal(dcw_stats(b.d).fallbacks, 0);
    assert_int_equal(dcw_stats(b.d).local_prefill_tokens, 0);
    assert_int_equal(dcw_stats(b.d).kv_pages, 6);
    assert_int_equal(count_log(&b, DCW_ACT_NACK) + count_log(&b, DCW_ACT_CANCEL) + count_log(&b, DCW_ACT_GRANT_CANCEL),
                     0);
    bench_fini(&b);
}

static void test_remote_with_one_to_three_tokens(void **state)
{
    (void)state;
    for (uint32_t max = 1; max <= 3; max++) {
        struct bench b;
        bench_init(&b, 3, 8); /* just the prompt's pages: the last token needs no KV */
        generate(&b, 1, 12 - (max - 1), max, true);
        land_all(&b);
        prefill_end(&b, KVS_OK);
        granted(&b, KVS_OK, NULL, 0);
        sampled(&b);
        run_all(&b);
        expect_answer(&b, 1, 12 - (max - 1), 0, max, -1, MSG_FINISH_LENGTH);
        bench_fini(&b);
    }
}

static void test_missing_pages_are_refused_and_computed_here(void **state)
{
    (void)state;
    /* prompt 14: blocks 0..3 in two groups, slots 0..7, logits 8. {missing slots, tokens computed here} */
    static const struct {
        uint32_t missing[9], count, local;
    } cases[] = {{{8}, 1, 1}, {{7}, 1, 2}, {{5, 8}, 2, 6}, {{2}, 1, 10}, {{0, 7}, 2, 14}, {{7, 4, 3}, 3, 10}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct bench b;
        bench_init(&b, 60, 64);
        generate(&b, 1, 14, 6, true);
        for (uint32_t i = 0; i <= b.want_count; i++) {
            bool missing = false;
            for (uint32_t m = 0; m < cases[k].count; m++)
                missing = missing || cases[k].missing[m] == i;
            if (missing)
                spoil(&b, i);
            else
                land(&b, i);
        }
        prefill_end(&b, KVS_OK);
        granted(&b, KVS_PEER_CORRUPT, cases[k].missing, cases[k].count);
        assert_int_equal(count_log(&b, DCW_ACT_NACK), 1);
        assert_int_equal(count_log(&b, DCW_ACT_ACK), 0);
        assert_int_equal(b.nack_count, cases[k].count);
        if (cases[k].missing[0] == 8) {
            assert_int_equal(b.nack[0].block, KVT_LOGITS_BLOCK);
            assert_int_equal(b.nack[0].group, KVT_LOGITS_GROUP);
        } else {
            assert_int_equal(b.nack[0].block, cases[k].missing[0] / 2);
            assert_int_equal(b.nack[0].group, cases[k].missing[0] % 2);
        }
        run_all(&b);
        const struct msg_token *e = expect_answer(&b, 1, 14, 0, 6, -1, MSG_FINISH_LENGTH);
        assert_int_equal(e->placed.local_prefill_tokens, cases[k].local);
        assert_int_equal(e->placed.mode, cases[k].local == 14 ? MSG_PLACE_LOCAL : MSG_PLACE_REMOTE);
        assert_int_equal(dcw_stats(b.d).fallbacks, 1);
        bench_fini(&b);
    }
}

/* The source is done, or has it in its cache, and pages come too slowly: not before its time, what has landed is kept, and nobody writes there
 * when computing takes over. */
static void test_a_trickle_is_given_up(void **state)
{
    (void)state;
    struct bench b;
    static const uint32_t missing[] = {4, 5, 6, 7, 8};
    uint64_t bytes = 0;
    struct msg_peer_link link = {.id = "prefill-0"};
    bench_init(&b, 60, 64);
    generate(&b, 2, 14, 1, true); /* the link was a good one */
    land_all(&b);
    prefill_end(&b, KVS_OK);
    b.now += 50000;
    granted(&b, KVS_OK, NULL, 0);
    sampled(&b);
    run_all(&b);
    assert_true(dcw_link(b.d, &link) && link.samples == 1 && link.latency_s + 800 * link.byte_s < 0.1);
    b.entry_count = 0;
    generate(&b, 1, 14, 6, true);
    for (uint32_t g = 0; g < 2; g++)
        bytes += 4 * wrk_sched_layout(b.s)->group[g].page_bytes;
    for (uint32_t i = 0; i < 4; i++)
        land(&b, i);
    b.now += 50000000; /* the source computes for as long as it needs */
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    assert_int_equal(count_log(&b, DCW_ACT_GRANT_CANCEL), 0);
    prefill_end(&b, KVS_OK);
    uint64_t due = b.now + 5000000 + bytes * 1000000 / 4000000;
    assert_int_equal(dcw_deadline_us(b.d), due);
    b.now = due - 2; /* the next step is one later */
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    assert_int_equal(count_log(&b, DCW_ACT_GRANT_CANCEL), 0);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    assert_int_equal(count_log(&b, DCW_ACT_GRANT_CANCEL), 1);
    assert_true(dcw_deadline_us(b.d) > due); /* said once */
    assert_false(begin_step(&b));            /* the pages are not ours yet */
    for (uint32_t i = 4; i <= 8; i++)
        spoil(&b, i);
    granted(&b, KVS_REQ_CANCELLED, missing, 5);
    run_all(&b);
    const struct msg_token *e = expect_answer(&b, 1, 14, 0, 6, -1, MSG_FINISH_LENGTH);
    assert_int_equal(e->placed.local_prefill_tokens, 14 - 8);
    assert_int_equal(dcw_stats(b.d).stalled, 1);
    assert_int_equal(dcw_stats(b.d).fallbacks, 1);
    /* what it was like is forgotten: routers hear of a link that has been measured once, and took seconds */
    assert_true(dcw_link(b.d, &link) && link.samples == 1);
    assert_true(link.latency_s + 400 * link.byte_s > 5);
    bench_fini(&b);
}

/* Given up, and messages are under way that never arrive: by a stall, by their source's error, by the caller. The link is closed in the end, once;
 * with it pages come back. */
static void test_what_never_arrives_closes_the_link(void **state)
{
    (void)state;
    for (int why = 0; why < 3; why++) {
        struct bench b;
        uint64_t bytes = 0;
        bench_init(&b, 60, 8);
        generate(&b, 1, 14, 6, true);
        for (uint32_t g = 0; g < 2; g++)
            bytes += 4 * wrk_sched_layout(b.s)->group[g].page_bytes;
        uint64_t patience = 5000000 + bytes * 1000000 / 4000000;
        if (why == 0) {
            prefill_end(&b, KVS_OK);
            b.now = dcw_deadline_us(b.d);
            step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
        } else if (why == 1) {
            prefill_end(&b, KVS_PEER_TIMEOUT);
        } else {
            step(&b, (struct dcw_event){.kind = DCW_EV_CANCEL, .conn = CONN, .stream = 11});
        }
        uint64_t due = dcw_deadline_us(b.d);
        assert_int_equal(due, b.now + patience);
        b.now = due - 2; /* the next step is one later */
        step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
        assert_int_equal(count_log(&b, DCW_ACT_PEER_CLOSE), 0);
        step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
        step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
        assert_int_equal(count_log(&b, DCW_ACT_PEER_CLOSE), 1);
        assert_true(dcw_deadline_us(b.d) > due);
        assert_false(begin_step(&b)); /* the pages are not ours before the link is gone */
        step(&b, (struct dcw_event){.kind = DCW_EV_PEER_DOWN, .peer = PEER});
        step(&b, (struct dcw_event){.kind = DCW_EV_PEER_CLOSED, .peer = PEER});
        run_all(&b);
        assert_int_equal(count_log(&b, DCW_ACT_PEER_CLOSE), 1);
        if (why < 2)
            assert_int_equal(expect_answer(&b, 1, 14, 0, 6, -1, MSG_FINISH_LENGTH)->placed.local_prefill_tokens, 14);
        assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 0);
        bench_fini(&b);
    }
}

static void test_refusing_source_means_local(void **state)
{
    (void)state;
    for (int order = 0; order < 3; order++) {
        struct bench b;
        bench_init(&b, 60, 8);
        generate(&b, 1, 10, 4, true);
        if (order == 0) { /* END first, as usual */
            prefill_end(&b, KVS_BUSY_QUEUE);
            assert_int_equal(count_log(&b, DCW_ACT_GRANT_END), 1);
            granted(&b, KVS_BUSY_QUEUE, NULL, 0);
            prefill_end(&b, KVS_OK); /* late */
        } else if (order == 1) {     /* the edge could not even grant */
            granted(&b, KVS_BUSY_QUEUE, NULL, 0);
            prefill_end(&b, KVS_PEER_LOST);
        } else { /* a port that tells of the failed transfer itself */
            granted(&b, KVS_PEER_LOST, NULL, 0);
            assert_int_equal(count_log(&b, DCW_ACT_CANCEL), 1);
        }
        assert_int_equal(count_log(&b, DCW_ACT_NACK) + count_log(&b, DCW_ACT_ACK), 0);
        run_all(&b);
        const struct msg_token *e = expect_answer(&b, 1, 10, 0, 4, -1, MSG_FINISH_LENGTH);
        assert_int_equal(e->placed.mode, MSG_PLACE_LOCAL);
        assert_int_equal(e->placed.local_prefill_tokens, 10);
        bench_fini(&b);
    }
}

static void test_no_such_peer_means_local(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 8);
    step(&b, (struct dcw_event){.kind = DCW_EV_PEER_DOWN, .peer = PEER});
    step(&b, (struct dcw_event){.kind = DCW_EV_PEER_CLOSED, .peer = PEER});
    generate(&b, 1, 10, 4, true);
    assert_int_equal(b.grants, 0);
    run_all(&b);
    assert_int_equal(expect_answer(&b, 1, 10, 0, 4, -1, MSG_FINISH_LENGTH)->placed.local_prefill_tokens, 10);
    bench_fini(&b);
}

/* Where a peer can die: after the call, with pages under way, after END, after ACK. */
static void test_peer_dies_at_every_point(void **state)
{
    (void)state;
    for (int point = 0; point < 4; point++)
        for (int word = 0; word < 2; word++) { /* the port says what landed, or only CLOSED comes */
            struct bench b;
            uint32_t missing[9], n = 0;
            bench_init(&b, 60, 8);
            generate(&b, 1, 14, 5, true);
            for (uint32_t i = 0; i <= 8; i++) {
                bool landed = point >= 2 || (point == 1 && i < 4);
                if (landed)
                    land(&b, i);
                else
                    missing[n++] = i;
                if (point == 1 && i == 4)
                    spoil(&b, i);
            }
            if (point >= 2)
                prefill_end(&b, KVS_OK);
            if (point == 3) {
                granted(&b, KVS_OK, NULL, 0);
                sampled(&b);
            }
            uint32_t acks = count_log(&b, DCW_ACT_ACK);
            step(&b, (struct dcw_event){.kind = DCW_EV_PEER_DOWN, .peer = PEER});
            step(&b, (struct dcw_event){.kind = DCW_EV_PEER_DOWN, .peer = PEER});
            if (point < 3) {
                assert_int_equal(count_log(&b, DCW_ACT_GRANT_CANCEL), 1);
                assert_false(begin_step(&b)); /* the pages are not ours yet */
                prefill_end(&b, KVS_PEER_LOST);
                if (word == 0)
                    granted(&b, point == 2 ? KVS_OK : KVS_REQ_CANCELLED, missing, n);
            }
            step(&b, (struct dcw_event){.kind = DCW_EV_PEER_CLOSED, .peer = PEER});
            granted(&b, KVS_REQ_CANCELLED, missing, n); /* late */
            if (point == 2 && word == 0)
                sampled(&b);
            run_all(&b);
            assert_int_equal(count_log(&b, DCW_ACT_ACK), acks); /* nobody is there to be told */
            assert_int_equal(count_log(&b, DCW_ACT_NACK) + count_log(&b, DCW_ACT_CANCEL), 0);
            const struct msg_token *e = expect_answer(&b, 1, 14, 0, 5, -1, MSG_FINISH_LENGTH);
            uint32_t local = point == 3 || (point == 2 && word == 0) ? 0 : point == 1 && word == 0 ? 14 - 8 : 14;
            assert_int_equal(e->placed.local_prefill_tokens, local);
            bench_fini(&b);
        }
}

static void test_stop_id_first_and_later(void **state)
{
    (void)state;
    for (uint32_t at = 0; at < 3; at++)
        for (int remote = 0; remote < 2; remote++) {
            struct bench b;
            int32_t answer[8];
            bench_init(&b, 60, 8);
            assert_int_equal(fake_answer(b.ids + 1, 10, SEED, 0, 8, CONTEXT, -1, answer), 8);
            struct msg_generate m = request(&b, 1, 10, 8, remote);
            int32_t stops[2] = {-5, answer[at]};
            m.stop_ids = stops;
            m.stop_id_count = 2;
            generate_msg(&b, &m, 0);
            if (remote) {
                land_all(&b);
                prefill_end(&b, KVS_OK);
                granted(&b, KVS_OK, NULL, 0);
                sampled(&b);
            }
            run_all(&b);
            expect_answer(&b, 1, 10, 0, 8, answer[at], MSG_FINISH_STOP);
            bench_fini(&b);
            bench_init(&b, 60, 8);
            m.ignore_eos = true;
            m.placement = MSG_PLACE_LOCAL;
            generate_msg(&b, &m, 0);
            run_all(&b);
            expect_answer(&b, 1, 10, 0, 8, -1, MSG_FINISH_LENGTH);
            bench_fini(&b);
        }
}

static void test_context_end_is_length(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 64);
    generate(&b, 1, CONTEXT - 5, 1000, false);
    generate(&b, 2, CONTEXT - 1, 1000, false);
    run_all(&b);
    expect_answer(&b, 1, CONTEXT - 5, 0, 5, -1, MSG_FINISH_LENGTH);
    expect_answer(&b, 2, CONTEXT - 1, 0, 1, -1, MSG_FINISH_LENGTH);
    bench_fini(&b);
}

static void test_resume_writes_exactly_what_is_missing(void **state)
{
    (void)state;
    for (uint32_t first = 0; first <= 7; first++)
        for (int remote = 0; remote < 2; remote++) {
            struct bench b;
            bench_init(&b, 60, 8);
            int32_t all[30];
            memcpy(all, b.ids + 1, 10 * sizeof *all);
            assert_int_equal(fake_answer(all, 10, SEED, 0, 8, CONTEXT, -1, all + 10), 8);
            struct msg_generate m = request(&b, 1, 10, 8, remote);
            m.tokens = all;
            m.token_count = 10 + first;
            m.first_index = first;
            generate_msg(&b, &m, 0);
            if (remote) {
                assert_int_equal(b.prefill_tokens, 10 + first);
                land_all(&b);
                prefill_end(&b, KVS_OK);
                granted(&b, KVS_OK, NULL, 0);
                sampled(&b);
            }
            run_all(&b);
            expect_answer(&b, 1, 10, first, 8, -1, MSG_FINISH_LENGTH);
            bench_fini(&b);
        }
}

static void test_nothing_left_to_write(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 8);
    struct msg_generate m = request(&b, 1, 10, 4, false);
    m.prompt_count = 6;
    m.first_index = 4;
    generate_msg(&b, &m, 0);
    assert_int_equal(b.entry_count, 1);
    assert_int_equal(b.entries[0].id, -1);
    assert_int_equal(b.entries[0].index, 4);
    assert_int_equal(b.entries[0].finish, MSG_FINISH_LENGTH);
    assert_int_equal(b.end_count, 1);
    assert_int_equal(b.ends[0].end.end.status, KVS_OK);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

static void test_bad_number_is_an_error_entry(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 8);
    b.ids[6] = FAKE_BAD; /* in requests 1 (5th) and 2, not in 20 */
    generate(&b, 1, 9, 5, false);
    generate(&b, 20, 9, 5, false);
    run_all(&b);
    expect_answer(&b, 20, 9, 0, 5, -1, MSG_FINISH_LENGTH);
    for (uint32_t i = 0; i < b.entry_count; i++)
        if (b.entries[i].request == 1)
            assert_int_equal(b.entries[i].error, KVS_SELF_NUMERIC);
    generate(&b, 2, 9, 5, true); /* at the source */
    prefill_end(&b, KVS_SELF_NUMERIC);
    granted(&b, KVS_SELF_NUMERIC, NULL, 0);
    expect_error(&b, 2, KVS_SELF_NUMERIC);
    generate(&b, 21, 9, 5, true); /* in the logits that landed */
    land_all(&b);
    prefill_end(&b, KVS_OK);
    granted(&b, KVS_OK, NULL, 0);
    step(&b, (struct dcw_event){.kind = DCW_EV_SAMPLED, .call = b.call, .sampled = {.status = KVS_SELF_NUMERIC}});
    expect_error(&b, 21, KVS_SELF_NUMERIC);
    assert_int_equal(dcw_stats(b.d).ended[MSG_FINISH_ERROR], 3);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_answers_in_a_batch),
        cmocka_unit_test(test_remote_prefill),
        cmocka_unit_test(test_remote_with_one_to_three_tokens),
        cmocka_unit_test(test_missing_pages_are_refused_and_computed_here),
        cmocka_unit_test(test_a_trickle_is_given_up),
        cmocka_unit_test(test_what_never_arrives_closes_the_link),
        cmocka_unit_test(test_refusing_source_means_local),
        cmocka_unit_test(test_no_such_peer_means_local),
        cmocka_unit_test(test_peer_dies_at_every_point),
        cmocka_unit_test(test_stop_id_first_and_later),
        cmocka_unit_test(test_context_end_is_length),
        cmocka_unit_test(test_resume_writes_exactly_what_is_missing),
        cmocka_unit_test(test_nothing_left_to_write),
        cmocka_unit_test(test_bad_number_is_an_error_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
