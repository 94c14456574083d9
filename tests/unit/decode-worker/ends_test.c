/* ends_test.c - how calls of the sink's machine end: from every state by every way out once, with the pages back; refusals, bounds,
 * preemption, running out of pages.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/decode-worker/decode_bench.h"

/* --- every state by every way out --- */

enum stage {
    WAIT_LOCAL,
    WAIT_REMOTE,
    READY,
    PREFILLING,
    WRITING,
    IN_STEP,
    TRANSFER,
    PAGES_UNDER_WAY,
    END_SEEN,
    FIRST,
    STAGES
};

static void reach(struct bench *b, enum stage stage, uint64_t deadline)
{
    bench_init(b, 8, 4);
    if (stage <= WAIT_REMOTE)
        generate(b, 30, 30, 3, false); /* has all the pages */
    bool remote = stage == WAIT_REMOTE || stage >= TRANSFER;
    struct msg_generate m = request(b, 1, 10, 20, remote);
    generate_msg(b, &m, deadline);
    if (stage == PREFILLING)
        begin_step(b);
    if (stage == WRITING || stage == IN_STEP) {
        for (int i = 0; i < 4; i++) {
            begin_step(b);
            end_step(b, KVS_OK);
        }
        assert_int_equal(b->entry_count, 2);
    }
    if (stage == IN_STEP)
        begin_step(b);
    if (stage == PAGES_UNDER_WAY)
        land(b, 0);
    if (stage >= END_SEEN) {
        land_all(b);
        prefill_end(b, KVS_OK);
    }
    if (stage == FIRST)
        granted(b, KVS_OK, NULL, 0);
}

static uint32_t ends_of(const struct bench *b, uint64_t id, kvs_status *status)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->end_count; i++)
        if (b->ends[i].request == id && b->ends[i].end.stream == 10 + id) {
            n++;
            *status = b->ends[i].end.end.status;
        }
    return n;
}

enum way { BY_ABORT, BY_CANCEL, BY_DEADLINE, BY_HAND_BACK, BY_ROUTER_DOWN, BY_TOKENS_CANCEL, WAYS };

static void leave(struct bench *b, enum way way)
{
    switch (way) {
    case BY_ABORT:
        step(b, (struct dcw_event){
                    .kind = DCW_EV_ABORT, .conn = CONN, .stream = 900, .request = 1, .abort = {.attempt = 1}});
        assert_int_equal(b->ends[b->end_count > 1 && b->ends[b->end_count - 1].end.stream != 900 ? b->end_count - 2
                                                                                                 : b->end_count - 1]
                             .end.end.status,
                         KVS_OK);
        break;
    case BY_CANCEL: step(b, (struct dcw_event){.kind = DCW_EV_CANCEL, .conn = CONN, .stream = 11}); break;
    case BY_DEADLINE:
        assert_true(dcw_deadline_us(b->d) <= 5000);
        b->now = 5000;
        step(b, (struct dcw_event){.kind = DCW_EV_TICK});
        break;
    case BY_HAND_BACK: step(b, (struct dcw_event){.kind = DCW_EV_HAND_BACK}); break;
    case BY_ROUTER_DOWN: step(b, (struct dcw_event){.kind = DCW_EV_ROUTER_DOWN, .conn = CONN}); break;
    default: step(b, (struct dcw_event){.kind = DCW_EV_CANCEL, .conn = CONN, .stream = TOKENS_STREAM}); break;
    }
}

static void one_way_out(enum stage stage, enum way way)
{
    struct bench b;
    kvs_status status = KVS_OK;
    reach(&b, stage, 5000);
    uint32_t entries = b.entry_count;
    bool in_step = stage == PREFILLING || stage == IN_STEP, port_has_it = stage >= TRANSFER && stage <= END_SEEN;
    leave(&b, way);
    leave(&b, way == BY_DEADLINE ? BY_CANCEL : way); /* once more */
    bool other = stage <= WAIT_REMOTE; /* there is another call, that HAND_BACK ends too */
    uint32_t want_entries = entries + (way == BY_DEADLINE) + (way == BY_HAND_BACK ? 1 + other : 0);
    assert_int_equal(b.entry_count, want_entries);
    if (in_step) {
        assert_int_equal(ends_of(&b, 1, &status), 0); /* the device still reads the pages */
        assert_true(wrk_sched_stop_wanted(b.s));
        end_step(&b, stage == IN_STEP ? KVS_OK : KVS_REQ_CANCELLED);
    }
    if (port_has_it) {
        assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 5); /* 10 + 8 in reserve = 18 tokens */
        assert_int_equal(wrk_sched_pages(b.s, 0).held, 0);
        assert_int_equal(count_log(&b, DCW_ACT_GRANT_CANCEL), 1);
        assert_int_equal(count_log(&b, DCW_ACT_CANCEL), 1);
        assert_int_equal(b.forgets, 0);
    }
    assert_int_equal(ends_of(&b, 1, &status), way == BY_ROUTER_DOWN ? 0 : 1);
    if (way != BY_ROUTER_DOWN)
        assert_int_equal(status, way == BY_DEADLINE    ? KVS_REQ_DEADLINE
                                 : way == BY_HAND_BACK ? KVS_SELF_STOPPING
                                                       : KVS_REQ_CANCELLED);
    if (port_has_it) {
        prefill_end(&b, KVS_OK);
        granted(&b, KVS_REQ_CANCELLED, NULL, 0);
        assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 0);
        granted(&b, KVS_REQ_CANCELLED, NULL, 0);
    }
    if (stage == FIRST)
        sampled(&b); /* late */
    if (other && way <= BY_DEADLINE) {
        run_all(&b);
        expect_answer(&b, 30, 30, 0, 3, -1, MSG_FINISH_LENGTH); /* the other one is untouched */
        want_entries += 3;
    }
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    assert_int_equal(b.entry_count, want_entries);
    assert_int_equal(ends_of(&b, 1, &status), way == BY_ROUTER_DOWN ? 0 : 1);
    assert_null(wrk_sched_next_step(b.s));
    bench_fini(&b);
}

static void test_every_state_by_every_way_out(void **state)
{
    (void)state;
    for (int stage = 0; stage < STAGES; stage++)
        for (int way = 0; way < WAYS; way++)
            one_way_out((enum stage)stage, (enum way)way);
}

static void test_fenced_until_the_peer_is_closed(void **state)
{
    (void)state;
    struct bench b;
    reach(&b, PAGES_UNDER_WAY, 0);
    leave(&b, BY_ABORT);
    step(&b, (struct dcw_event){.kind = DCW_EV_PEER_DOWN, .peer = PEER});
    assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 5);
    step(&b, (struct dcw_event){.kind = DCW_EV_PEER_CLOSED, .peer = PEER});
    assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 0);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

static void test_abort_means_this_attempt_and_earlier_ones(void **state)
{
    (void)state;
    struct bench b;
    kvs_status status;
    bench_init(&b, 60, 8);
    struct msg_generate m = request(&b, 1, 5, 4, false);
    m.attempt = 3;
    generate_msg(&b, &m, 0);
    step(&b,
         (struct dcw_event){.kind = DCW_EV_ABORT, .conn = CONN, .stream = 900, .request = 1, .abort = {.attempt = 2}});
    step(&b, (struct dcw_event){
                 .kind = DCW_EV_ABORT, .conn = CONN + 1, .stream = 900, .request = 1, .abort = {.attempt = 9}});
    assert_int_equal(ends_of(&b, 1, &status), 0);
    assert_int_equal(b.end_count, 2); /* ABORT itself is always answered */
    step(&b,
         (struct dcw_event){.kind = DCW_EV_ABORT, .conn = CONN, .stream = 901, .request = 1, .abort = {.attempt = 3}});
    assert_int_equal(ends_of(&b, 1, &status), 1);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

static void test_preempted_sequence_loses_and_doubles_nothing(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 8);
    generate(&b, 1, 10, 20, true);
    land_all(&b);
    prefill_end(&b, KVS_OK);
    granted(&b, KVS_OK, NULL, 0);
    sampled(&b);
    generate(&b, 2, 6, 20, false);
    for (int i = 0; begin_step(&b); i++) {
        end_step(&b, KVS_OK);
        if (i == 3 || i == 9 || i == 10)
            assert_true(wrk_sched_preempt_newest(b.s));
        if (i == 14)
            while (wrk_sched_preempt_newest(b.s))
                ;
        step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    }
    assert_int_equal(expect_answer(&b, 1, 10, 0, 20, -1, MSG_FINISH_LENGTH)->placed.local_prefill_tokens, 0);
    expect_answer(&b, 2, 6, 0, 20, -1, MSG_FINISH_LENGTH);
    assert_true(wrk_sched_stats(b.s).preemptions >= 5);
    assert_int_equal(b.grants, 1); /* the second time it is computed here */
    bench_fini(&b);
}

static void test_all_waiting_for_pages_still_end(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 9, 8); /* 36 tokens; each wants 8 + 40 */
    for (uint64_t id = 1; id <= CALLS; id++)
        generate(&b, id, 8, 28, false);
    for (int i = 0; b.end_count < CALLS; i++) {
        assert_true(i < 2000);
        if (begin_step(&b))
            end_step(&b, KVS_OK);
        else
            assert_true(dcw_deadline_us(b.d) == 0);
    }
    for (uint64_t id = 1; id <= CALLS; id++)
        expect_answer(&b, id, 8, 0, 28, -1, MSG_FINISH_LENGTH);
    assert_true(wrk_sched_stats(b.s).preemptions > 0);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

static void test_outgrowing_the_memory_is_an_error(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 5, 8);
    generate(&b, 1, 8, 40, false);
    run_all(&b);
    assert_int_equal(dcw_deadline_us(b.d), 0); /* the scheduler has found out */
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    expect_error(&b, 1, KVS_BUSY_PAGES);
    assert_int_equal(b.entry_count, 21 - 8 + 1);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

static void test_pause_and_resume(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 8);
    generate(&b, 1, 6, 10, false);
    begin_step(&b);
    end_step(&b, KVS_OK);
    step(&b, (struct dcw_event){.kind = DCW_EV_PAUSE, .conn = CONN + 1, .request = 1}); /* somebody else's */
    assert_true(begin_step(&b));
    step(&b, (struct dcw_event){.kind = DCW_EV_PAUSE, .conn = CONN, .request = 1});
    end_step(&b, KVS_OK);
    assert_false(begin_step(&b));
    assert_true(wrk_sched_pages(b.s, 0).held > 0);
    step(&b, (struct dcw_event){.kind = DCW_EV_RESUME, .conn = CONN, .request = 1});
    run_all(&b);
    expect_answer(&b, 1, 6, 0, 10, -1, MSG_FINISH_LENGTH);
    bench_fini(&b);
}

static void refused(struct bench *b, const struct msg_generate *m, uint64_t conn, kvs_status status)
{
    uint32_t n = b->end_count, entries = b->entry_count;
    step(b, (struct dcw_event){.kind = DCW_EV_GENERATE, .conn = conn, .stream = 300 + n, .generate = {.msg = m}});
    assert_int_equal(b->end_count, n + 1);
    assert_int_equal(b->ends[n].end.end.status, status);
    assert_int_equal(b->ends[n].end.stream, 300 + n);
    assert_true(b->ends[n].end.end.text[0] != 0);
    assert_int_equal(b->entry_count, entries);
}

static void test_refusals(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 6, 8);
    int32_t stops[DCW_STOP_IDS_MAX + 1] = {0};
    struct msg_generate ok = request(&b, 1, 6, 10, false), m = ok;
    refused(&b, &m, CONN + 1, KVS_REQ_INVALID); /* no Tokens call there */
    m.adapter[0] = 'x';
    refused(&b, &m, CONN, KVS_REQ_UNSUPPORTED);
    m = ok;
    m.token_count = 0;
    refused(&b, &m, CONN, KVS_REQ_INVALID);
    m = ok;
    m.prompt_count = 7;
    refused(&b, &m, CONN, KVS_REQ_INVALID);
    m = ok;
    m.first_index = 1;
    refused(&b, &m, CONN, KVS_REQ_INVALID);
    m = request(&b, 1, CONTEXT, 10, false);
    refused(&b, &m, CONN, KVS_REQ_TOO_LONG);
    m = request(&b, 1, 25, 10, false); /* 7 blocks, 6 pages */
    refused(&b, &m, CONN, KVS_BUSY_PAGES);
    m = ok;
    m.stop_ids = stops;
    m.stop_id_count = DCW_STOP_IDS_MAX + 1;
    refused(&b, &m, CONN, KVS_REQ_INVALID);
    m = ok;
    int32_t id = b.ids[3];
    b.ids[3] = FAKE_VOCAB;
    refused(&b, &m, CONN, KVS_REQ_INVALID);
    b.ids[3] = -2;
    refused(&b, &m, CONN, KVS_REQ_INVALID);
    b.ids[3] = id;
    for (uint64_t i = 1; i <= CALLS; i++)
        generate(&b, i, 4, 2, false);
    generate(&b, 1, 4, 2, false); /* the same call once more: nothing */
    m = request(&b, 40, 4, 2, false);
    refused(&b, &m, CONN, KVS_BUSY_QUEUE);
    m = request(&b, 1, 4, 2, false); /* the same attempt on another stream */
    refused(&b, &m, CONN, KVS_REQ_INVALID);
    step(&b, (struct dcw_event){.kind = DCW_EV_DRAIN});
    run_all(&b); /* what is there is finished */
    for (uint64_t i = 2; i <= CALLS; i++)
        expect_answer(&b, i, 4, 0, 2, -1, MSG_FINISH_LENGTH);
    m = request(&b, 41, 4, 2, false);
    refused(&b, &m, CONN, KVS_SELF_STOPPING);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

static void abort_keeping(struct bench *b, uint64_t conn, uint64_t request, uint32_t attempt, bool keep)
{
    step(b, (struct dcw_event){.kind = DCW_EV_ABORT, .conn = conn, .stream = 900, .request = request, .abort = {.attempt = attempt, .keep = keep}});
}

/* What moved away is kept until its router says that it was fetched, is lost, or the time is over; twice the same counts once. */
static void test_kept_until_it_was_fetched(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 40, 8);
    generate(&b, 1, 6, 10, false);
    begin_step(&b);
    end_step(&b, KVS_OK);
    abort_keeping(&b, CONN, 1, 1, true);
    assert_int_equal(dcw_stats(b.d).calls, 0);
    assert_int_equal(dcw_stats(b.d).kept, 1);
    abort_keeping(&b, CONN, 1, 2, true);
    assert_int_equal(dcw_stats(b.d).kept, 1);
    abort_keeping(&b, CONN, 1, 1, false); /* an earlier attempt's word */
    abort_keeping(&b, CONN + 1, 1, 2, false); /* and another router's */
    assert_int_equal(dcw_stats(b.d).kept, 1);
    abort_keeping(&b, CONN, 1, 2, false);
    assert_int_equal(dcw_stats(b.d).kept, 0);
    abort_keeping(&b, CONN, 2, 1, true);
    uint64_t begun = b.now;
    assert_true(dcw_deadline_us(b.d) == begun + 30000000);
    b.now += 1000000;
    abort_keeping(&b, CONN, 3, 1, true);
    b.now = begun + 30000000;
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    assert_int_equal(dcw_stats(b.d).kept, 1);
    for (uint64_t i = 0; i < 2 * CALLS; i++) /* bounded: what is over the bound is not kept */
        abort_keeping(&b, CONN, 10 + i, 1, true);
    assert_int_equal(dcw_stats(b.d).kept, CALLS);
    step(&b, (struct dcw_event){.kind = DCW_EV_ROUTER_DOWN, .conn = CONN});
    assert_int_equal(dcw_stats(b.d).kept, 0);
    assert_true(dcw_deadline_us(b.d) == UINT64_MAX);
    bench_fini(&b);
}

/* Another role: nothing new, what runs goes on until it is handed back; and back again. */
static void test_a_role_that_does_not_decode(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 40, 8);
    generate(&b, 1, 6, 10, false);
    step(&b, (struct dcw_event){.kind = DCW_EV_ROLE, .role = {.decodes = false}});
    generate(&b, 2, 6, 10, false);
    assert_int_equal(b.ends[b.end_count - 1].end.end.status, KVS_SELF_STOPPING);
    assert_int_equal(dcw_stats(b.d).calls, 1);
    begin_step(&b);
    end_step(&b, KVS_OK);
    assert_int_equal(b.entries[b.entry_count - 1].request, 1);
    assert_true(b.entries[b.entry_count - 1].id >= 0);
    step(&b, (struct dcw_event){.kind = DCW_EV_HAND_BACK});
    expect_error(&b, 1, KVS_SELF_STOPPING);
    step(&b, (struct dcw_event){.kind = DCW_EV_ROLE, .role = {.decodes = true}});
    generate(&b, 3, 6, 1, false);
    run_all(&b);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    assert_int_equal(b.entries[b.entry_count - 1].request, 3);
    assert_int_equal(b.entries[b.entry_count - 1].finish, MSG_FINISH_LENGTH);
    bench_fini(&b);
}

static void test_failed_step_ends_the_call_with_its_cause(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 60, 8);
    generate(&b, 1, 6, 10, false);
    begin_step(&b);
    end_step(&b, KVS_SELF_INTERNAL);
    expect_error(&b, 1, KVS_SELF_INTERNAL);
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

static void test_xfer_ids_and_nonces_differ(void **state)
{
    (void)state;
    uint64_t seen[40][2];
    struct bench b;
    bench_init(&b, 60, 8);
    for (uint32_t i = 0; i < 40; i++) {
        generate(&b, i, 4, 1, true);
        seen[i][0] = b.xfer;
        seen[i][1] = b.nonce;
        assert_true(b.xfer != 0 && b.nonce != b.xfer);
        for (uint32_t k = 0; k < i; k++)
            assert_true(seen[k][0] != b.xfer && seen[k][1] != b.nonce);
        land_all(&b);
        prefill_end(&b, KVS_OK);
        granted(&b, KVS_OK, NULL, 0);
        sampled(&b);
    }
    step(&b, (struct dcw_event){.kind = DCW_EV_TICK});
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_state_by_every_way_out),
        cmocka_unit_test(test_fenced_until_the_peer_is_closed),
        cmocka_unit_test(test_abort_means_this_attempt_and_earlier_ones),
        cmocka_unit_test(test_preempted_sequence_loses_and_doubles_nothing),
        cmocka_unit_test(test_all_waiting_for_pages_still_end),
        cmocka_unit_test(test_outgrowing_the_memory_is_an_error),
        cmocka_unit_test(test_pause_and_resume),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_kept_until_it_was_fetched),
        cmocka_unit_test(test_a_role_that_does_not_decode),
        cmocka_unit_test(test_failed_step_ends_the_call_with_its_cause),
        cmocka_unit_test(test_xfer_ids_and_nonces_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
