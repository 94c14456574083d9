/* prefill_test.c - the source's machine: what leaves when, what END says, and that pages come back from every state by every way out.
 * Pages and counts are worked out by hand: block size 4, layers 0-1 are group 0, layer 2 is group 1. The device is fake_device.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/prefill-worker/prefill_bench.h"

static void test_pages_leave_by_group_while_the_step_runs(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 20, 4, 0);
    call(&b, 1, b.ids, 10, 0);
    assert_int_equal(held(&b), 3);
    for (uint32_t block = 0; block < 3; block++) {
        assert_true(begin_step(&b));
        uint32_t before = b.send_count;
        layer(&b, 1);
        assert_int_equal(b.send_count, before);
        layer(&b, 2);
        assert_int_equal(b.send_count, before + 1);
        expect_page(&b, before, block, 0);
        layer(&b, 2); /* once more */
        assert_int_equal(b.send_count, before + 1);
        layer(&b, 3);
        expect_page(&b, before + 1, block, 1);
        end_step(&b, KVS_OK);
        assert_int_equal(b.send_count, before + 2 + (block == 2));
        expect_content(&b, before, b.ids, 10);
        expect_content(&b, before + 1, b.ids, 10);
    }
    assert_int_equal(b.sends[6].a.kind, PFW_ACT_SEND_LOGITS);
    assert_int_equal(b.sends[6].a.send.header.block, KVT_LOGITS_BLOCK);
    assert_int_equal(b.sends[6].a.send.header.bytes, FAKE_VOCAB * 4);
    assert_int_equal(b.sends[6].a.send.header.xfer, 1001);
    assert_int_equal(b.sends[6].a.send.header.nonce, 6);
    assert_int_equal(b.sends[6].a.send.header.sink_epoch, 5);
    assert_int_equal(b.rows[b.sends[6].a.user], fake_prefix(b.ids, 10));
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(b.end_count, 0);
        sent(&b, i, KVS_OK);
    }
    assert_int_equal(b.end_count, 1);
    const struct msg_end *e = &b.ends[0].end.end;
    assert_int_equal(e->status, KVS_OK);
    assert_int_equal(e->pages_sent, 7);
    assert_int_equal(e->prefill_tokens, 10);
    assert_int_equal(e->chunks, 3);
    assert_int_equal(b.ends[0].end.conn, CONN);
    assert_int_equal(b.ends[0].end.stream, 1);
    assert_int_equal(held(&b), 3); /* pinned until ACK */
    stream_event(&b, PFW_EV_ACK, 1);
    assert_int_equal(held(&b), 0);
    stream_event(&b, PFW_EV_ACK, 1);
    stream_event(&b, PFW_EV_CANCEL, 1);
    assert_int_equal(b.end_count, 1);
    assert_int_equal(pfw_stats(b.p).acked, 1);
    bench_fini(&b);
}

static void test_every_chunk_size_ships_the_same(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 3, 7, 10, 30, 64}, chunks[] = {30, 10, 5, 3, 1, 1};
    for (size_t k = 0; k < 6; k++) {
        struct bench b;
        bench_init(&b, 20, sizes[k], 0);
        b.auto_send = true;
        call(&b, 1, b.ids, 30, 0);
        run_all(&b);
        assert_int_equal(b.send_count, 17); /* 8 blocks x 2 and the logits */
        uint8_t seen[8][2] = {{0}};
        for (uint32_t i = 0; i < 16; i++) {
            const struct kvt_header *h = &b.sends[i].a.send.header;
            assert_int_equal(seen[h->block][h->group]++, 0);
            expect_content(&b, i, b.ids, 30);
        }
        assert_int_equal(b.sends[16].a.kind, PFW_ACT_SEND_LOGITS);
        assert_int_equal(b.ends[0].end.end.chunks, chunks[k]);
        assert_int_equal(b.ends[0].end.end.prefill_tokens, 30);
        stream_event(&b, PFW_EV_NACK, 1);
        assert_int_equal(held(&b), 0);
        assert_int_equal(pfw_stats(b.p).nacked, 1);
        bench_fini(&b);
    }
}

static void test_window_bounds_what_is_handed_out(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 20, 64, 2);
    call(&b, 1, b.ids, 32, 0);
    run_all(&b);
    for (uint32_t i = 0; i < 17; i++) {
        assert_int_equal(unsent(&b), i < 16 ? 2 : 1);
        sent(&b, i, KVS_OK);
        sent(&b, i, KVS_OK); /* a double completes nothing */
    }
    assert_int_equal(b.unsent_most, 2);
    assert_int_equal(b.send_count, 17);
    assert_int_equal(b.ends[0].end.end.pages_sent, 17);
    bench_fini(&b);
}

/* The ways a call can stand when something befalls it. */
enum stage { QUEUED, ADMITTED, IN_STEP, PAGES_OUT, ALL_OUT, ENDED, STAGES };

static void reach(struct bench *b, enum stage stage, uint64_t deadline)
{
    bench_init(b, 8, 4, 0);
    if (stage == QUEUED) { /* another call has the pages */
        call(b, 9, b->ids + 50, 24, 0);
        call(b, 1, b->ids, 12, deadline);
        assert_int_equal(pfw_stats(b->p).queued, 1);
        return;
    }
    call(b, 1, b->ids, 12, deadline);
    if (stage == ADMITTED)
        return;
    begin_step(b);
    if (stage == IN_STEP)
        return;
    layer(b, 3);
    assert_int_equal(b->send_count, 2);
    if (stage == PAGES_OUT)
        return;
    end_step(b, KVS_OK);
    run_all(b);
    assert_int_equal(b->send_count, 7);
    if (stage == ALL_OUT)
        return;
    for (uint32_t i = 0; i < 7; i++)
        sent(b, i, KVS_OK);
    assert_int_equal(b->end_count, 1);
}

static void finish_blocker(struct bench *b)
{
    b->auto_send = true;
    step(b, (struct pfw_event){.kind = PFW_EV_TICK});
    run_all(b);
    stream_event(b, PFW_EV_ACK, 9);
}

/* Everything of call 1 is over: END `status` once (0: none), all pages free. */
static void expect_over(struct bench *b, enum stage stage, uint32_t ends, kvs_status status)
{
    if (stage == IN_STEP || stage == PAGES_OUT) {
        assert_true(wrk_sched_stop_wanted(b->s)); /* nobody else is in this step */
        end_step(b, KVS_REQ_CANCELLED);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->end_count; i++) {
        if (b->ends[i].end.stream != 1)
            continue;
        n++;
        if (stage != ENDED)
            assert_int_equal(b->ends[i].end.end.status, status);
    }
    assert_int_equal(n, ends);
    if (stage == QUEUED)
        finish_blocker(b);
    assert_int_equal(held(b), 0);
    assert_int_equal(wrk_sched_pages(b->s, 1).free, b->pages);
    assert_null(wrk_sched_next_step(b->s));
    bench_fini(b);
}

static void complete_sends(struct bench *b)
{
    for (uint32_t i = 0; i < b->send_count; i++)
        if (!b->sends[i].done)
            sent(b, i, KVS_OK);
}

static void test_cancel_in_every_state(void **state)
{
    (void)state;
    for (int st = 0; st < STAGES; st++) {
        struct bench b;
        reach(&b, (enum stage)st, 0);
        uint32_t pinned = held(&b), sends = b.send_count, drops = unsent(&b) > 0;
        stream_event(&b, PFW_EV_CANCEL, 1);
        assert_int_equal(b.drops, drops); /* once, and only when something may still be in line */
        if (drops)
            assert_int_equal(b.dropped_xfer, 1001);
        if (unsent(&b) > 0) { /* the transport still reads the pages: neither END nor unpinning yet */
            assert_int_equal(b.end_count, 0);
            assert_int_equal(held(&b), pinned);
        }
        stream_event(&b, PFW_EV_CANCEL, 1);
        complete_sends(&b);
        assert_int_equal(b.send_count, sends); /* nothing is handed out any more */
        expect_over(&b, (enum stage)st, 1, KVS_REQ_CANCELLED);
    }
}

static void test_deadline_in_every_state(void **state)
{
    (void)state;
    for (int st = 0; st < STAGES; st++) {
        struct bench b;
        reach(&b, (enum stage)st, 900);
        assert_true(pfw_deadline_us(b.p) <= 900);
        b.now = 900;
        step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
        complete_sends(&b);
        assert_int_equal(pfw_stats(b.p).expired, 1);
        expect_over(&b, (enum stage)st, 1, KVS_REQ_DEADLINE);
    }
}

static void test_peer_down_in_every_state(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++)
        for (int st = 1; st < STAGES; st++) {
            struct bench b;
            reach(&b, (enum stage)st, 0);
            uint32_t before = b.end_count;
            step(&b, (struct pfw_event){.kind = PFW_EV_PEER_DOWN, .peer = PEER});
            if (how == 0)
                complete_sends(&b);
            else if (unsent(&b))
                assert_true(held(&b) > 0);
            step(&b, (struct pfw_event){.kind = PFW_EV_PEER_CLOSED, .peer = PEER});
            complete_sends(&b); /* late */
            assert_int_equal(b.end_count, before);
            assert_int_equal(pfw_stats(b.p).lost, 1);
            expect_over(&b, (enum stage)st, st == ENDED, KVS_OK);
        }
}

static void test_queue_wait_is_bounded(void **state)
{
    (void)state;
    struct bench b;
    reach(&b, QUEUED, 0);
    uint64_t due = pfw_deadline_us(b.p);
    assert_int_equal(due, b.now + 1000);
    b.now = due - 2;
    step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
    assert_int_equal(b.end_count, 0);
    step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
    assert_int_equal(b.end_count, 1);
    expect_over(&b, QUEUED, 1, KVS_BUSY_PAGES);
}

static void test_queued_call_runs_when_pages_come_back(void **state)
{
    (void)state;
    struct bench b;
    reach(&b, QUEUED, 0);
    finish_blocker(&b);
    assert_int_equal(pfw_stats(b.p).queued, 0);
    run_all(&b);
    assert_int_equal(b.end_count, 2);
    assert_int_equal(b.ends[1].end.stream, 1);
    assert_int_equal(b.ends[1].end.end.status, KVS_OK);
    stream_event(&b, PFW_EV_ACK, 1);
    assert_int_equal(held(&b), 0);
    bench_fini(&b);
}

static void test_ack_before_end_is_a_breach(void **state)
{
    (void)state;
    struct bench b;
    reach(&b, PAGES_OUT, 0);
    stream_event(&b, PFW_EV_ACK, 1);
    complete_sends(&b);
    expect_over(&b, PAGES_OUT, 1, KVS_PEER_PROTOCOL);
}

static void test_bad_number_ends_the_call(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 20, 4, 0);
    b.ids[5] = FAKE_BAD;
    call(&b, 1, b.ids, 12, 0);
    begin_step(&b);
    end_step(&b, KVS_OK);
    assert_int_equal(b.send_count, 2);
    begin_step(&b);
    end_step(&b, KVS_OK);
    assert_int_equal(b.end_count, 0); /* two sends are in flight */
    complete_sends(&b);
    assert_int_equal(b.end_count, 1);
    assert_int_equal(b.ends[0].end.end.status, KVS_SELF_NUMERIC);
    assert_int_equal(b.ends[0].end.end.pages_sent, 2);
    assert_int_equal(b.send_count, 2);
    assert_null(wrk_sched_next_step(b.s));
    assert_int_equal(held(&b), 0);
    bench_fini(&b);
}

static void test_failed_send_stops_the_transfer(void **state)
{
    (void)state;
    struct bench b;
    reach(&b, PAGES_OUT, 0);
    sent(&b, 0, KVS_PEER_LOST);
    sent(&b, 1, KVS_OK);
    assert_int_equal(b.end_count, 1);
    expect_over(&b, PAGES_OUT, 1, KVS_PEER_LOST);
}

/* All is computed and the link trickles: what is in line is dropped once its time is up, and the sink hears that it has to compute. */
static void test_sending_has_its_time(void **state)
{
    (void)state;
    struct bench b;
    reach(&b, ALL_OUT, 0);
    uint64_t due = pfw_deadline_us(b.p), bytes = 0;
    for (uint32_t g = 0; g < 2; g++) /* three blocks */
        bytes += 3 * wrk_sched_layout(b.s)->group[g].page_bytes;
    assert_in_range(due, b.now + 4999000 + bytes / 4, b.now + 5000000 + bytes / 4); /* since the step's end, some events ago */
    b.now = due - 2; /* the next event is one later */
    step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
    assert_int_equal(b.drops, 0);
    step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
    assert_int_equal(b.drops, 1);
    assert_int_equal(b.end_count, 0); /* not before the sends under way are over: they read the pages */
    complete_sends(&b);
    expect_over(&b, ALL_OUT, 1, KVS_PEER_TIMEOUT);
}

/* Given up, and sends are under way that never end: after a stall, and after the caller's word. The link is closed in the end, once; with it pages
 * come back. */
static void test_sends_that_never_end_close_the_link(void **state)
{
    (void)state;
    for (int why = 0; why < 2; why++) {
        struct bench b;
        uint64_t page = 0;
        reach(&b, ALL_OUT, 0);
        if (why == 0) {
            b.now = pfw_deadline_us(b.p);
            step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
        } else {
            stream_event(&b, PFW_EV_CANCEL, 1);
        }
        for (uint32_t g = 0; g < 2; g++)
            page = wrk_sched_layout(b.s)->group[g].page_bytes > page ? wrk_sched_layout(b.s)->group[g].page_bytes : page;
        uint64_t due = pfw_deadline_us(b.p);
        assert_int_equal(due, b.now + 5000000 + unsent(&b) * page * 1000000 / 4000000);
        b.now = due - 2;
        step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
        assert_int_equal(b.closes, 0);
        step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
        step(&b, (struct pfw_event){.kind = PFW_EV_TICK});
        assert_int_equal(b.closes, 1);
        assert_true(pfw_deadline_us(b.p) > due);
        assert_true(wrk_sched_pages(b.s, 0).held > 0); /* they are read until the link is gone */
        step(&b, (struct pfw_event){.kind = PFW_EV_PEER_DOWN, .peer = PEER});
        step(&b, (struct pfw_event){.kind = PFW_EV_PEER_CLOSED, .peer = PEER});
        assert_int_equal(wrk_sched_pages(b.s, 0).held, 0);
        assert_int_equal(pfw_stats(b.p).running, 0);
        assert_int_equal(b.closes, 1);
        bench_fini(&b);
    }
}

static void test_late_events_of_a_past_call_touch_nothing(void **state)
{
    (void)state;
    struct bench b;
    reach(&b, ENDED, 0);
    stream_event(&b, PFW_EV_ACK, 1);
    call(&b, 2, b.ids + 20, 12, 0); /* the same slot */
    run_all(&b);
    uint32_t n = b.send_count;
    assert_int_equal(n, 14);
    for (uint32_t i = 0; i < 7; i++)
        sent(&b, i, KVS_PEER_LOST);
    stream_event(&b, PFW_EV_CANCEL, 1);
    step(&b, (struct pfw_event){.kind = PFW_EV_LAYER, .layer = {.step = 1, .layers = 3}});
    step(&b, (struct pfw_event){.kind = PFW_EV_STEP_DONE});
    step(&b, (struct pfw_event){.kind = PFW_EV_SENT, .sent = {.cookie = UINT64_MAX, .status = KVS_OK}});
    complete_sends(&b);
    assert_int_equal(b.end_count, 2);
    assert_int_equal(b.ends[1].end.end.status, KVS_OK);
    stream_event(&b, PFW_EV_ACK, 2);
    assert_int_equal(held(&b), 0);
    bench_fini(&b);
}

static void refused(struct bench *b, struct msg_prefill *m, uint32_t peer, kvs_status status)
{
    uint32_t n = b->end_count;
    step(b, (struct pfw_event){.kind = PFW_EV_CALL, .conn = CONN, .stream = 100 + n, .peer = peer, .call = {.msg = m}});
    assert_int_equal(b->end_count, n + 1);
    assert_int_equal(b->ends[n].end.end.status, status);
    assert_int_equal(b->ends[n].end.stream, 100 + n);
    assert_true(b->ends[n].end.end.text[0] != 0);
    assert_int_equal(held(b), 0);
}

static void test_refusals(void **state)
{
    (void)state;
    struct bench b;
    struct msg_want twice[2] = {{1, 1}, {1, 1}}, outside = {3, 0}, group = {0, 2}, good = {0, 0};
    bench_init(&b, 4, 8, 0);
    struct msg_prefill ok = {.tokens = b.ids, .token_count = 12, .wants = &good, .want_count = 1}, m = ok;
    refused(&b, &m, PEER + 1, KVS_PEER_REFUSED);
    refused(&b, &m, PFW_PEERS_MAX, KVS_PEER_REFUSED);
    m.token_count = 0;
    refused(&b, &m, PEER, KVS_REQ_INVALID);
    m.token_count = 65;
    refused(&b, &m, PEER, KVS_REQ_TOO_LONG);
    m.token_count = 20; /* 5 blocks, 4 pages */
    refused(&b, &m, PEER, KVS_BUSY_PAGES);
    m = ok;
    m.want_count = 0;
    refused(&b, &m, PEER, KVS_REQ_INVALID);
    m.want_count = MSG_WANTS_MAX + 1;
    refused(&b, &m, PEER, KVS_REQ_INVALID);
    m.want_count = 2;
    m.wants = twice;
    refused(&b, &m, PEER, KVS_REQ_INVALID);
    m.want_count = 1;
    m.wants = &outside;
    refused(&b, &m, PEER, KVS_REQ_INVALID);
    m.wants = &group;
    refused(&b, &m, PEER, KVS_REQ_INVALID);
    m = ok;
    m.adapter[0] = 'x';
    refused(&b, &m, PEER, KVS_REQ_UNSUPPORTED);
    m = ok;
    int32_t bad = b.ids[3];
    b.ids[3] = -1;
    refused(&b, &m, PEER, KVS_REQ_INVALID);
    b.ids[3] = FAKE_VOCAB;
    refused(&b, &m, PEER, KVS_REQ_INVALID);
    b.ids[3] = bad;
    uint64_t taken = pfw_stats(b.p).calls;
    step(&b, (struct pfw_event){.kind = PFW_EV_ROLE, .role = {.prefills = false}});
    refused(&b, &m, PEER, KVS_SELF_STOPPING);
    step(&b, (struct pfw_event){.kind = PFW_EV_ROLE, .role = {.prefills = true}});
    call(&b, 60, b.ids, 8, 0);
    assert_int_equal(pfw_stats(b.p).calls, taken + 1);
    stream_event(&b, PFW_EV_CANCEL, 60);
    uint32_t ended = b.end_count - (uint32_t)pfw_stats(b.p).refused;
    step(&b, (struct pfw_event){.kind = PFW_EV_DRAIN});
    refused(&b, &m, PEER, KVS_SELF_STOPPING);
    assert_int_equal(pfw_stats(b.p).refused + ended, b.end_count);
    bench_fini(&b);
}

static void test_calls_are_bounded_and_ignored_when_doubled(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 30, 4, 0);
    for (uint32_t i = 0; i < CALLS; i++)
        call(&b, i, b.ids + i, 8, 0);
    call(&b, 0, b.ids, 8, 0); /* the same call once more */
    assert_int_equal(b.end_count, 0);
    call(&b, 50, b.ids, 8, 0);
    assert_int_equal(b.end_count, 1);
    assert_int_equal(b.ends[0].end.end.status, KVS_BUSY_QUEUE);
    b.auto_send = true;
    run_all(&b);
    assert_int_equal(b.end_count, 1 + CALLS);
    for (uint32_t i = 0; i < b.send_count; i++)
        if (b.sends[i].a.kind == PFW_ACT_SEND_PAGE)
            expect_content(&b, i, b.ids + b.sends[i].a.request, 8);
    for (uint32_t i = 0; i < CALLS; i++)
        stream_event(&b, PFW_EV_ACK, i);
    assert_int_equal(held(&b), 0);
    bench_fini(&b);
}

static void test_only_wanted_pages_leave(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b, 30, 64, 0);
    b.auto_send = true;
    struct msg_want wants[2] = {{0, 1}, {2, 0}};
    struct msg_prefill m = {.tokens = b.ids, .token_count = 12, .wants = wants, .want_count = 2};
    step(&b, (struct pfw_event){.kind = PFW_EV_CALL, .conn = CONN, .stream = 1, .peer = PEER, .call = {.msg = &m}});
    assert_true(begin_step(&b));
    assert_int_equal(wrk_sched_in_flight(b.s)->logits_count, 0);
    end_step(&b, KVS_OK);
    assert_int_equal(b.send_count, 2);
    expect_page(&b, 0, 2, 0);
    expect_page(&b, 1, 0, 1);
    assert_int_equal(b.end_count, 1);
    assert_int_equal(b.ends[0].end.end.pages_sent, 2);
    bench_fini(&b);
}

/* 12 tokens are known of the 18 that come: three blocks leave at once, in the order of the wants; two are computed. */
static void test_found_pages_leave_at_admission(void **state)
{
    (void)state;
    struct bench b;
    tree_nodes = 20;
    bench_init(&b, 20, 64, 0);
    tree_nodes = 0;
    b.auto_send = true;
    call(&b, 1, b.ids, 13, 0);
    run_all(&b);
    stream_event(&b, PFW_EV_ACK, 1);
    assert_int_equal(b.ends[0].end.end.cached_tokens, 0);
    assert_int_equal(held(&b), 0);
    assert_int_equal(wrk_sched_pages(b.s, 1).cached, 3);
    int32_t ids[18];
    memcpy(ids, b.ids, 12 * sizeof *ids);
    memcpy(ids + 12, b.ids + 50, 6 * sizeof *ids);
    b.auto_send = false;
    b.send_count = 0;
    memset(b.sends, 0, sizeof b.sends);
    call(&b, 2, ids, 18, 0);
    assert_int_equal(b.send_count, 6);
    for (uint32_t i = 0; i < 6; i++) {
        expect_page(&b, i, i / 2, i % 2);
        expect_content(&b, i, ids, 18);
    }
    b.auto_send = true;
    run_all(&b);
    assert_int_equal(b.send_count, 6 + 4 + 1);
    for (uint32_t i = 6; i < 10; i++)
        expect_content(&b, i, ids, 18);
    assert_int_equal(b.rows[b.sends[10].a.user], fake_prefix(ids, 18));
    assert_int_equal(b.end_count, 2);
    const struct msg_end *e = &b.ends[1].end.end;
    assert_int_equal(e->pages_sent, 11);
    assert_int_equal(e->cached_tokens, 12);
    assert_int_equal(e->prefill_tokens, 6);
    assert_int_equal(e->chunks, 1);
    stream_event(&b, PFW_EV_ACK, 2);
    bench_fini(&b);
}

static void fetch(struct bench *b, uint32_t stream, const int32_t *ids, uint32_t tokens, uint32_t first_block)
{
    call_for(b, stream, ids, tokens, first_block, tokens / 4, false, 0);
}

static void test_fetch_sends_what_is_there_and_computes_nothing(void **state)
{
    (void)state;
    struct bench b;
    tree_nodes = 20;
    bench_init(&b, 20, 64, 0);
    tree_nodes = 0;
    b.auto_send = true;
    call(&b, 1, b.ids, 13, 0);
    run_all(&b);
    stream_event(&b, PFW_EV_ACK, 1);
    step(&b, (struct pfw_event){.kind = PFW_EV_ROLE, .role = {.prefills = false}});
    step(&b, (struct pfw_event){.kind = PFW_EV_DRAIN}); /* it is served all the same */
    b.send_count = 0;
    memset(b.sends, 0, sizeof b.sends);
    fetch(&b, 2, b.ids, 12, 1); /* blocks 1 and 2 */
    assert_int_equal(b.send_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        expect_page(&b, i, 1 + i / 2, i % 2);
        expect_content(&b, i, b.ids, 12);
    }
    assert_false(begin_step(&b));
    assert_int_equal(b.end_count, 2);
    assert_int_equal(b.ends[1].end.end.status, KVS_OK);
    assert_int_equal(b.ends[1].end.end.pages_sent, 4);
    assert_int_equal(b.ends[1].end.end.cached_tokens, 12);
    assert_int_equal(b.ends[1].end.end.prefill_tokens, 0);
    assert_int_equal(held(&b), 3); /* pinned until ACK */
    stream_event(&b, PFW_EV_ACK, 2);
    assert_int_equal(held(&b), 0);
    /* more than there is: what is there, and the truth */
    fetch(&b, 3, b.ids, 20, 2);
    assert_int_equal(b.send_count, 6);
    expect_page(&b, 4, 2, 0);
    assert_int_equal(b.ends[2].end.end.status, KVS_REQ_NOT_FOUND);
    assert_int_equal(b.ends[2].end.end.pages_sent, 2);
    assert_int_equal(held(&b), 0);
    /* nothing of what is wanted, nothing at all */
    fetch(&b, 4, b.ids, 20, 3);
    assert_int_equal(b.ends[3].end.end.status, KVS_REQ_NOT_FOUND);
    assert_int_equal(b.ends[3].end.end.cached_tokens, 12); /* which may be asked for */
    fetch(&b, 5, b.ids + 100, 20, 0);
    assert_int_equal(b.ends[4].end.end.status, KVS_REQ_NOT_FOUND);
    assert_int_equal(b.ends[4].end.end.cached_tokens, 0);
    assert_int_equal(b.send_count, 6);
    assert_int_equal(held(&b), 0);
    bench_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_leave_by_group_while_the_step_runs),
        cmocka_unit_test(test_every_chunk_size_ships_the_same),
        cmocka_unit_test(test_window_bounds_what_is_handed_out),
        cmocka_unit_test(test_cancel_in_every_state),
        cmocka_unit_test(test_deadline_in_every_state),
        cmocka_unit_test(test_peer_down_in_every_state),
        cmocka_unit_test(test_queue_wait_is_bounded),
        cmocka_unit_test(test_queued_call_runs_when_pages_come_back),
        cmocka_unit_test(test_ack_before_end_is_a_breach),
        cmocka_unit_test(test_bad_number_ends_the_call),
        cmocka_unit_test(test_failed_send_stops_the_transfer),
        cmocka_unit_test(test_sending_has_its_time),
        cmocka_unit_test(test_sends_that_never_end_close_the_link),
        cmocka_unit_test(test_late_events_of_a_past_call_touch_nothing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_calls_are_bounded_and_ignored_when_doubled),
        cmocka_unit_test(test_only_wanted_pages_leave),
        cmocka_unit_test(test_found_pages_leave_at_admission),
        cmocka_unit_test(test_fetch_sends_what_is_there_and_computes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
