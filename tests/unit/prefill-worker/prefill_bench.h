/* prefill_bench.h - what the tests of the prefill machine share: a machine with scheduler and fake device, and a sink played by hand (sent,
 * stream_event); sends are kept with what they read. Block size 4; layers 0-1 are group 0, layer 2 is group 1.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_PREFILL_BENCH_H
#define KVS_TESTS_PREFILL_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "prefill-worker/core/prefill.h"
#include "tests/unit/worker/fake_device.h"

#define CALLS 4
#define PEER 3
#define CONN 77

struct send {
    struct pfw_action a;
    bool done;
};
struct bench {
    struct kvc_layout l;
    struct wrk_sched *s;
    struct fake_kv kv;
    struct pfw *p;
    uint64_t now;
    struct wrk_result results[16];
    uint64_t rows[CALLS];
    struct send sends[256];
    uint32_t send_count, unsent_most;
    struct pfw_action ends[32];
    uint32_t end_count;
    uint32_t drops, closes;
    uint64_t dropped_xfer;
    uint32_t pages;
    int32_t ids[256];
    bool auto_send;
};

static inline uint32_t unsent(const struct bench *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->send_count; i++)
        n += !b->sends[i].done;
    return n;
}

static inline void check(struct bench *b)
{
    struct kvs_error err = {.text = ""};
    if (!wrk_sched_consistent(b->s, &err))
        fail_msg("%s", err.text);
}

static inline void step(struct bench *b, struct pfw_event ev);

static inline void drain(struct bench *b)
{
    struct pfw_action a[3];
    size_t n;
    fake_zero(&b->kv, b->s);
    while ((n = pfw_actions(b->p, a, 3)) > 0)
        for (size_t i = 0; i < n; i++) {
            if (a[i].kind == PFW_ACT_END) {
                assert_true(b->end_count < 32);
                b->ends[b->end_count++] = a[i];
                continue;
            }
            if (a[i].kind == PFW_ACT_PEER_CLOSE) {
                assert_int_equal(a[i].send.peer, PEER);
                b->closes++;
                continue;
            }
            if (a[i].kind == PFW_ACT_DROP) {
                assert_int_equal(a[i].send.peer, PEER);
                b->drops++;
                b->dropped_xfer = a[i].send.header.xfer;
                continue;
            }
            assert_true(b->send_count < 256);
            b->sends[b->send_count++].a = a[i];
        }
    if (unsent(b) > b->unsent_most)
        b->unsent_most = unsent(b);
    check(b);
}

static inline void sent(struct bench *b, uint32_t i, kvs_status status)
{
    b->sends[i].done = true;
    step(b, (struct pfw_event){.kind = PFW_EV_SENT, .sent = {.cookie = b->sends[i].a.send.cookie, .status = status}});
}

static inline void step(struct bench *b, struct pfw_event ev)
{
    pfw_step(b->p, &ev, ++b->now);
    drain(b);
    for (uint32_t i = 0; b->auto_send && i < b->send_count; i++)
        if (!b->sends[i].done)
            sent(b, i, KVS_OK);
}

static uint32_t tree_nodes; /* of the next bench */

static inline void bench_init(struct bench *b, uint32_t pages, uint32_t chunk, uint32_t window)
{
    memset(b, 0, sizeof *b);
    b->l = fake_layout(3, 4, 2);
    b->pages = pages;
    struct wrk_sched_config c = {.layout = &b->l,
                                 .pages = {pages, pages},
                                 .seqs_max = 8,
                                 .context = 64,
                                 .chunk_tokens = chunk,
                                 .tree_nodes = tree_nodes};
    assert_int_equal(wrk_sched_create(&c, &b->s, NULL), KVS_OK);
    fake_kv_init(&b->kv, &b->l, c.pages);
    struct pfw_config pc = {
        .sched = b->s, .calls_max = CALLS, .vocab = FAKE_VOCAB, .send_window = window, .queue_wait_us = 1000};
    assert_int_equal(pfw_create(&pc, &b->p, NULL), KVS_OK);
    struct kvs_rng rng = {11};
    fake_prompt(&rng, b->ids, 256);
    b->now = 100;
    step(b, (struct pfw_event){.kind = PFW_EV_PEER_UP, .peer = PEER});
}

static inline void bench_fini(struct bench *b)
{
    pfw_destroy(b->p);
    check(b);
    (void)wrk_sched_flush(b->s);
    for (uint32_t g = 0; g < b->l.group_count; g++)
        assert_int_equal(wrk_sched_pages(b->s, g).free, b->pages);
    wrk_sched_destroy(b->s);
    fake_kv_fini(&b->kv);
}

/* Blocks first .. end - 1 of both groups are wanted; with logits: PREFILL, without: FETCH. */
static inline void call_for(struct bench *b, uint32_t stream, const int32_t *ids, uint32_t tokens, uint32_t first, uint32_t end,
                            bool logits, uint64_t deadline)
{
    struct msg_want wants[128];
    uint32_t n = 0;
    for (uint32_t i = first; i < end; i++)
        for (uint32_t g = 0; g < 2; g++)
            wants[n++] = (struct msg_want){i, g};
    struct msg_prefill m = {.request = stream,
                            .xfer = 1000 + stream,
                            .sink_epoch = 5,
                            .nonce = 6,
                            .tokens = ids,
                            .token_count = tokens,
                            .wants = wants,
                            .want_count = n,
                            .logits = logits};
    step(b, (struct pfw_event){.kind = PFW_EV_CALL,
                               .conn = CONN,
                               .stream = stream,
                               .peer = PEER,
                               .call = {.msg = &m, .fetch = !logits, .deadline_us = deadline}});
}

static inline void call(struct bench *b, uint32_t stream, const int32_t *ids, uint32_t tokens, uint64_t deadline)
{
    call_for(b, stream, ids, tokens, 0, (tokens + 3) / 4, true, deadline);
}

static inline void stream_event(struct bench *b, pfw_event_kind kind, uint32_t stream)
{
    step(b, (struct pfw_event){.kind = kind, .conn = CONN, .stream = stream});
}

static inline bool begin_step(struct bench *b)
{
    bool any = wrk_sched_next_step(b->s) != NULL;
    fake_zero(&b->kv, b->s);
    if (any)
        fake_run(&b->kv, b->s, wrk_sched_in_flight(b->s), b->results, b->rows);
    return any;
}

static inline void layer(struct bench *b, uint32_t layers)
{
    const struct wrk_step *st = wrk_sched_in_flight(b->s);
    step(b, (struct pfw_event){.kind = PFW_EV_LAYER, .layer = {.step = st ? st->id : 0, .layers = layers}});
}

static inline void end_step(struct bench *b, kvs_status status)
{
    const struct wrk_step *st = wrk_sched_in_flight(b->s);
    assert_true(wrk_sched_step_done(b->s, st->id, status, status == KVS_OK ? b->results : NULL));
    step(b, (struct pfw_event){.kind = PFW_EV_STEP_DONE});
}

static inline void run_all(struct bench *b)
{
    for (int i = 0; begin_step(b); i++) {
        assert_true(i < 300);
        end_step(b, KVS_OK);
    }
}

static inline uint32_t held(const struct bench *b)
{
    return wrk_sched_pages(b->s, 0).held;
}

static inline void expect_page(const struct bench *b, uint32_t i, uint32_t block, uint32_t group)
{
    assert_true(i < b->send_count);
    const struct pfw_action *a = &b->sends[i].a;
    assert_int_equal(a->kind, PFW_ACT_SEND_PAGE);
    assert_int_equal(a->send.header.block, block);
    assert_int_equal(a->send.header.group, group);
    assert_int_equal(a->send.group, group);
    assert_int_equal(a->send.header.bytes, b->l.group[group].page_bytes);
    assert_int_equal(a->send.peer, PEER);
}

/* What the page holds now is what a plain pass over the prompt puts there. */
static inline void expect_content(struct bench *b, uint32_t i, const int32_t *ids, uint32_t tokens)
{
    const struct pfw_action *a = &b->sends[i].a;
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t p = a->send.header.block * 4 + t;
        uint64_t want = p < tokens ? fake_kv_value(fake_prefix(ids, p + 1), a->send.group) : 0;
        assert_int_equal(fake_page(&b->kv, a->send.group, a->send.page)[t], want);
    }
}

#endif
