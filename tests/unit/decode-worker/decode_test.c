/* decode_test.c - the sink's machine: what a router is told, what a peer is asked, and that from every state every way out ends the call once
 * and brings the pages back. Expected tokens come from a naive loop (fake_answer), page counts from block size 4 and two groups.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "decode-worker/core/decode.h"
#include "tests/unit/worker/fake_device.h"

#define CALLS 6
#define PEER 2
#define CONN 500
#define TOKENS_STREAM 1
#define CONTEXT 64
#define SEED 33
#define EPOCH 99

struct bench {
    struct kvc_layout l;
    struct wrk_sched *s;
    struct fake_kv kv;
    struct dcw *d;
    uint64_t now;
    struct wrk_result results[16];
    uint32_t pages;
    int32_t ids[256];
    /* what came out */
    struct msg_token entries[512];
    uint32_t entry_count;
    struct dcw_action ends[64];
    uint32_t end_count;
    dcw_action_kind log[1024];
    uint32_t log_count;
    /* the transfer that was granted last */
    uint64_t xfer, nonce, call;
    uint32_t want_count, nack_count, sample_position, forgets, grants;
    struct msg_want wants[128], nack[128];
    const struct kvc_block_table *table;
    int32_t prefill_ids[CONTEXT];
    uint32_t prefill_tokens;
    uint64_t row; /* the logits that landed */
};

static void check(struct bench *b)
{
    struct kvs_error err = {.text = ""};
    if (!wrk_sched_consistent(b->s, &err))
        fail_msg("%s", err.text);
}

static void take(struct bench *b, const struct dcw_action *a)
{
    assert_true(b->log_count < 1024);
    b->log[b->log_count++] = a->kind;
    switch (a->kind) {
    case DCW_ACT_GRANT:
        b->grants++;
        b->xfer = a->xfer;
        b->nonce = a->grant.nonce;
        b->call = a->call;
        b->want_count = a->grant.want_count;
        assert_true(b->want_count <= 128);
        memcpy(b->wants, a->grant.wants, b->want_count * sizeof *b->wants);
        b->table = a->grant.table;
        assert_int_equal(a->peer, PEER);
        assert_int_equal(a->grant.sink_epoch, EPOCH);
        assert_int_equal(a->grant.logits_bytes, FAKE_VOCAB * 4);
        break;
    case DCW_ACT_CALL_PREFILL:
        assert_int_equal(b->log[b->log_count - 2], DCW_ACT_GRANT); /* the grant stands before anybody is called */
        assert_int_equal(a->xfer, b->xfer);
        assert_int_equal(a->prefill.msg.xfer, b->xfer);
        assert_int_equal(a->prefill.msg.nonce, b->nonce);
        assert_int_equal(a->prefill.msg.sink_epoch, EPOCH);
        assert_int_equal(a->prefill.msg.want_count, b->want_count);
        assert_true(a->prefill.msg.logits);
        b->prefill_tokens = a->prefill.msg.token_count;
        memcpy(b->prefill_ids, a->prefill.msg.tokens, b->prefill_tokens * sizeof(int32_t));
        break;
    case DCW_ACT_NACK:
        b->nack_count = a->nack.count;
        memcpy(b->nack, a->nack.missing, a->nack.count * sizeof *b->nack);
        break;
    case DCW_ACT_SAMPLE:
        b->sample_position = a->sample.position;
        assert_int_equal(a->call, b->call);
        break;
    case DCW_ACT_FORGET: b->forgets++; break;
    case DCW_ACT_TOKENS:
        assert_int_equal(a->tokens.conn, CONN);
        assert_int_equal(a->tokens.stream, TOKENS_STREAM);
        for (uint32_t i = 0; i < a->tokens.count; i++) {
            assert_true(b->entry_count < 512);
            b->entries[b->entry_count++] = a->tokens.entries[i];
        }
        break;
    case DCW_ACT_END:
        assert_true(b->end_count < 64);
        b->ends[b->end_count++] = *a;
        break;
    default: break;
    }
}

static void step(struct bench *b, struct dcw_event ev)
{
    struct dcw_action a[2];
    size_t n;
    dcw_step(b->d, &ev, ++b->now);
    fake_zero(&b->kv, b->s);
    while ((n = dcw_actions(b->d, a, 2)) > 0)
        for (size_t i = 0; i < n; i++)
            take(b, &a[i]);
    check(b);
}

static void bench_init(struct bench *b, uint32_t pages, uint32_t chunk)
{
    memset(b, 0, sizeof *b);
    b->l = fake_layout(3, 4, 2);
    b->pages = pages;
    struct wrk_sched_config c = {.layout = &b->l,
                                 .pages = {pages, pages},
                                 .seqs_max = 8,
                                 .context = CONTEXT,
                                 .chunk_tokens = chunk,
                                 .reserve_tokens = 8};
    assert_int_equal(wrk_sched_create(&c, &b->s, NULL), KVS_OK);
    fake_kv_init(&b->kv, &b->l, c.pages);
    struct dcw_config dc = {
        .sched = b->s, .id = "decode-0", .epoch = EPOCH, .seed = 4711, .calls_max = CALLS, .vocab = FAKE_VOCAB};
    assert_int_equal(dcw_create(&dc, &b->d, NULL), KVS_OK);
    struct kvs_rng rng = {17};
    fake_prompt(&rng, b->ids, 256);
    b->now = 100;
    step(b, (struct dcw_event){.kind = DCW_EV_TOKENS_OPEN, .conn = CONN, .stream = TOKENS_STREAM});
    step(b,
         (struct dcw_event){.kind = DCW_EV_PEER_UP, .peer = PEER, .peer_up = {.id = "prefill-0", .transport = "shm"}});
}
static void bench_fini(struct bench *b)
{
    assert_int_equal(b->forgets, b->grants); /* each transfer is forgotten once */
    for (uint32_t g = 0; g < b->l.group_count; g++)
        assert_int_equal(wrk_sched_pages(b->s, g).free, b->pages);
    assert_int_equal(dcw_stats(b->d).calls, 0);
    dcw_destroy(b->d);
    wrk_sched_destroy(b->s);
    fake_kv_fini(&b->kv);
}

static struct msg_generate request(struct bench *b, uint64_t id, uint32_t tokens, uint32_t max_tokens, bool remote)
{
    struct msg_generate m = {.request = id,
                             .attempt = 1,
                             .tokens = b->ids + id,
                             .token_count = tokens,
                             .prompt_count = tokens,
                             .max_tokens = max_tokens,
                             .sampling = {.temperature = 1, .top_p = 1, .seed = SEED},
                             .logits = true,
                             .placement = remote ? MSG_PLACE_REMOTE : MSG_PLACE_LOCAL};
    if (remote)
        strcat(m.prefill_worker, "prefill-0");
    return m;
}
static void generate_msg(struct bench *b, const struct msg_generate *m, uint64_t deadline)
{
    step(b, (struct dcw_event){.kind = DCW_EV_GENERATE,
                               .conn = CONN,
                               .stream = 10 + (uint32_t)m->request,
                               .generate = {.msg = m, .deadline_us = deadline}});
}
static void generate(struct bench *b, uint64_t id, uint32_t tokens, uint32_t max_tokens, bool remote)
{
    struct msg_generate m = request(b, id, tokens, max_tokens, remote);
    generate_msg(b, &m, 0);
}

static bool begin_step(struct bench *b)
{
    bool any = wrk_sched_next_step(b->s) != NULL;
    fake_zero(&b->kv, b->s);
    if (any)
        fake_run(&b->kv, b->s, wrk_sched_in_flight(b->s), b->results, NULL);
    return any;
}
static void end_step(struct bench *b, kvs_status status)
{
    const struct wrk_step *st = wrk_sched_in_flight(b->s);
    assert_true(wrk_sched_step_done(b->s, st->id, status, status == KVS_OK ? b->results : NULL));
    step(b, (struct dcw_event){.kind = DCW_EV_STEP_DONE});
}
static void run_all(struct bench *b)
{
    for (int i = 0; begin_step(b); i++) {
        assert_true(i < 500);
        end_step(b, KVS_OK);
    }
}

/* --- the peer --- */

static void land(struct bench *b, uint32_t slot)
{
    if (slot == b->want_count) {
        b->row = fake_prefix(b->prefill_ids, b->prefill_tokens);
        return;
    }
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t p = b->wants[slot].block * 4 + t, g = b->wants[slot].group;
        *fake_cell(&b->kv, b->table, g, p) =
            p < b->prefill_tokens ? fake_kv_value(fake_prefix(b->prefill_ids, p + 1), g) : 0;
    }
}
static void land_all(struct bench *b)
{
    for (uint32_t i = 0; i <= b->want_count; i++)
        land(b, i);
}
static void spoil(struct bench *b, uint32_t slot) /* a broken receive */
{
    for (uint32_t t = 0; t < 4 && slot < b->want_count; t++)
        *fake_cell(&b->kv, b->table, b->wants[slot].group, b->wants[slot].block * 4 + t) = FAKE_GARBAGE;
}
static void prefill_end(struct bench *b, kvs_status status)
{
    struct msg_end e = {.status = status, .pages_sent = b->want_count + 1, .prefill_us = 10};
    step(b, (struct dcw_event){.kind = DCW_EV_PREFILL_END, .xfer = b->xfer, .prefill_end = &e});
}
static void granted(struct bench *b, kvs_status status, const uint32_t *missing, uint32_t n)
{
    uint32_t landed = 0, logits = 0;
    for (uint32_t i = 0; i < n; i++)
        logits += missing[i] == b->want_count;
    landed = b->want_count + 1 - n - (1 - logits);
    if (status != KVS_OK && n == 0)
        landed = 0;
    step(b, (struct dcw_event){.kind = DCW_EV_GRANT,
                               .xfer = b->xfer,
                               .grant = {.status = status,
                                         .missing = missing,
                                         .missing_count = n,
                                         .pages = landed,
                                         .bytes = landed * 100ull,
                                         .elapsed_us = 5}});
}
static void sampled(struct bench *b)
{
    struct wrk_result r = {.token = fake_sample(b->row, SEED, 0, b->sample_position), .logit = 2, .logprob = -1};
    step(b, (struct dcw_event){.kind = DCW_EV_SAMPLED, .call = b->call, .sampled = r});
}

static uint32_t count_log(const struct bench *b, dcw_action_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->log_count; i++)
        n += b->log[i] == kind;
    return n;
}

/* --- what the router was told --- */

static const struct msg_token *expect_answer(struct bench *b, uint64_t id, uint32_t prompt, uint32_t first,
                                             uint32_t max, int32_t stop, msg_finish finish)
{
    int32_t want[CONTEXT];
    uint32_t total = fake_answer(b->ids + id, prompt, SEED, 0, max, CONTEXT, stop, want), n = first;
    const struct msg_token *first_entry = NULL;
    for (uint32_t i = 0; i < b->entry_count; i++) {
        const struct msg_token *e = &b->entries[i];
        if (e->request != id)
            continue;
        assert_int_equal(e->has_placed, first_entry == NULL);
        if (!first_entry)
            first_entry = e;
        assert_true(n < total);
        assert_int_equal(e->index, n);
        assert_int_equal(e->id, want[n]);
        n++;
        assert_int_equal(e->finish, n == total ? finish : MSG_RUNNING);
        assert_int_equal(e->attempt, 1);
    }
    assert_int_equal(n, total);
    uint32_t ends = 0;
    for (uint32_t i = 0; i < b->end_count; i++)
        if (b->ends[i].request == id) {
            ends++;
            assert_int_equal(b->ends[i].end.end.status, KVS_OK);
            assert_int_equal(b->ends[i].end.stream, 10 + id);
            assert_int_equal(b->ends[i].end.conn, CONN);
        }
    assert_int_equal(ends, 1);
    return first_entry;
}

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
    granted(&b, KVS_OK, NULL, 0);
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

static void expect_error(struct bench *b, uint64_t id, kvs_status status)
{
    const struct msg_token *e = &b->entries[b->entry_count - 1];
    assert_int_equal(e->request, id);
    assert_int_equal(e->finish, MSG_FINISH_ERROR);
    assert_int_equal(e->error, status);
    assert_int_equal(e->id, -1);
    assert_true(e->text[0] != 0);
    assert_int_equal(b->ends[b->end_count - 1].request, id);
    assert_int_equal(b->ends[b->end_count - 1].end.end.status, status);
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

enum way { BY_ABORT, BY_CANCEL, BY_DEADLINE, BY_ROUTER_DOWN, BY_TOKENS_CANCEL, WAYS };

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
    uint32_t want_entries = entries + (way == BY_DEADLINE);
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
        assert_int_equal(status, way == BY_DEADLINE ? KVS_REQ_DEADLINE : KVS_REQ_CANCELLED);
    if (port_has_it) {
        prefill_end(&b, KVS_OK);
        granted(&b, KVS_REQ_CANCELLED, NULL, 0);
        assert_int_equal(wrk_sched_pages(b.s, 0).fenced, 0);
        granted(&b, KVS_REQ_CANCELLED, NULL, 0);
    }
    if (stage == FIRST)
        sampled(&b); /* late */
    if (stage <= WAIT_REMOTE && way <= BY_DEADLINE) {
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
        cmocka_unit_test(test_local_answers_in_a_batch),
        cmocka_unit_test(test_remote_prefill),
        cmocka_unit_test(test_remote_with_one_to_three_tokens),
        cmocka_unit_test(test_missing_pages_are_refused_and_computed_here),
        cmocka_unit_test(test_refusing_source_means_local),
        cmocka_unit_test(test_no_such_peer_means_local),
        cmocka_unit_test(test_peer_dies_at_every_point),
        cmocka_unit_test(test_stop_id_first_and_later),
        cmocka_unit_test(test_context_end_is_length),
        cmocka_unit_test(test_resume_writes_exactly_what_is_missing),
        cmocka_unit_test(test_nothing_left_to_write),
        cmocka_unit_test(test_bad_number_is_an_error_entry),
        cmocka_unit_test(test_every_state_by_every_way_out),
        cmocka_unit_test(test_fenced_until_the_peer_is_closed),
        cmocka_unit_test(test_abort_means_this_attempt_and_earlier_ones),
        cmocka_unit_test(test_preempted_sequence_loses_and_doubles_nothing),
        cmocka_unit_test(test_all_waiting_for_pages_still_end),
        cmocka_unit_test(test_outgrowing_the_memory_is_an_error),
        cmocka_unit_test(test_pause_and_resume),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_failed_step_ends_the_call_with_its_cause),
        cmocka_unit_test(test_xfer_ids_and_nonces_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
