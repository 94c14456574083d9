/* decode_bench.h - what the tests of the decode machine share: a machine with scheduler and fake device, a router that keeps all entries and
 * ENDs, and a peer played by hand (land, prefill_end, granted, sampled). Block size 4; layers 0-1 are group 0, layer 2 is group 1.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_DECODE_BENCH_H
#define KVS_TESTS_DECODE_BENCH_H

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
    bool fetch; /* the last call's method */
    uint64_t row; /* the logits that landed */
};

static inline void check(struct bench *b)
{
    struct kvs_error err = {.text = ""};
    if (!wrk_sched_consistent(b->s, &err))
        fail_msg("%s", err.text);
}

static inline void take(struct bench *b, const struct dcw_action *a)
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
        b->fetch = a->grant.logits_bytes == 0;
        assert_true(b->fetch || a->grant.logits_bytes == FAKE_VOCAB * 4);
        break;
    case DCW_ACT_CALL_PREFILL:
        assert_int_equal(b->log[b->log_count - 2], DCW_ACT_GRANT); /* the grant stands before anybody is called */
        assert_int_equal(a->xfer, b->xfer);
        assert_int_equal(a->prefill.msg.xfer, b->xfer);
        assert_int_equal(a->prefill.msg.nonce, b->nonce);
        assert_int_equal(a->prefill.msg.sink_epoch, EPOCH);
        assert_int_equal(a->prefill.msg.want_count, b->want_count);
        assert_int_equal(a->prefill.fetch, b->fetch);
        assert_int_equal(a->prefill.msg.logits, !b->fetch);
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

static inline void step(struct bench *b, struct dcw_event ev)
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

static inline void bench_init_tree(struct bench *b, uint32_t pages, uint32_t chunk, uint32_t tree_nodes)
{
    memset(b, 0, sizeof *b);
    b->l = fake_layout(3, 4, 2);
    b->pages = pages;
    struct wrk_sched_config c = {.layout = &b->l,
                                 .pages = {pages, pages},
                                 .seqs_max = 8,
                                 .context = CONTEXT,
                                 .chunk_tokens = chunk,
                                 .reserve_tokens = 8,
                                 .tree_nodes = tree_nodes};
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
static inline void bench_init(struct bench *b, uint32_t pages, uint32_t chunk)
{
    bench_init_tree(b, pages, chunk, 0);
}
static inline void bench_fini(struct bench *b)
{
    (void)wrk_sched_flush(b->s);
    assert_int_equal(b->forgets, b->grants); /* each transfer is forgotten once */
    for (uint32_t g = 0; g < b->l.group_count; g++)
        assert_int_equal(wrk_sched_pages(b->s, g).free, b->pages);
    assert_int_equal(dcw_stats(b->d).calls, 0);
    dcw_destroy(b->d);
    wrk_sched_destroy(b->s);
    fake_kv_fini(&b->kv);
}

static inline struct msg_generate request(struct bench *b, uint64_t id, uint32_t tokens, uint32_t max_tokens,
                                          bool remote)
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
        kvs_format(m.prefill_worker, sizeof m.prefill_worker, "prefill-0");
    return m;
}
static inline void generate_msg(struct bench *b, const struct msg_generate *m, uint64_t deadline)
{
    step(b, (struct dcw_event){.kind = DCW_EV_GENERATE,
                               .conn = CONN,
                               .stream = 10 + (uint32_t)m->request,
                               .generate = {.msg = m, .deadline_us = deadline}});
}
static inline void generate(struct bench *b, uint64_t id, uint32_t tokens, uint32_t max_tokens, bool remote)
{
    struct msg_generate m = request(b, id, tokens, max_tokens, remote);
    generate_msg(b, &m, 0);
}

static inline bool begin_step(struct bench *b)
{
    bool any = wrk_sched_next_step(b->s) != NULL;
    fake_zero(&b->kv, b->s);
    if (any)
        fake_run(&b->kv, b->s, wrk_sched_in_flight(b->s), b->results, NULL);
    return any;
}
static inline void end_step(struct bench *b, kvs_status status)
{
    const struct wrk_step *st = wrk_sched_in_flight(b->s);
    assert_true(wrk_sched_step_done(b->s, st->id, status, status == KVS_OK ? b->results : NULL));
    step(b, (struct dcw_event){.kind = DCW_EV_STEP_DONE});
}
static inline void run_all(struct bench *b)
{
    for (int i = 0; begin_step(b); i++) {
        assert_true(i < 500);
        end_step(b, KVS_OK);
    }
}

/* --- the peer --- */

static inline void land(struct bench *b, uint32_t slot)
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
static inline void land_all(struct bench *b)
{
    for (uint32_t i = 0; i <= b->want_count; i++)
        land(b, i);
}
static inline void spoil(struct bench *b, uint32_t slot) /* a broken receive */
{
    for (uint32_t t = 0; t < 4 && slot < b->want_count; t++)
        *fake_cell(&b->kv, b->table, b->wants[slot].group, b->wants[slot].block * 4 + t) = FAKE_GARBAGE;
}
static inline void prefill_end(struct bench *b, kvs_status status)
{
    struct msg_end e = {.status = status, .pages_sent = b->want_count + 1, .prefill_us = 10};
    step(b, (struct dcw_event){.kind = DCW_EV_PREFILL_END, .xfer = b->xfer, .prefill_end = &e});
}
static inline void granted(struct bench *b, kvs_status status, const uint32_t *missing, uint32_t n)
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
static inline void sampled(struct bench *b)
{
    struct wrk_result r = {.token = fake_sample(b->row, SEED, 0, b->sample_position), .logit = 2, .logprob = -1};
    step(b, (struct dcw_event){.kind = DCW_EV_SAMPLED, .call = b->call, .sampled = r});
}

static inline uint32_t count_log(const struct bench *b, dcw_action_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->log_count; i++)
        n += b->log[i] == kind;
    return n;
}

/* --- what the router was told --- */

static inline const struct msg_token *expect_answer(struct bench *b, uint64_t id, uint32_t prompt, uint32_t first,
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

static inline void expect_error(struct bench *b, uint64_t id, kvs_status status)
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

#endif
