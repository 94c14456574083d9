/* policy_test.c - the cost model's arithmetic against sums done by hand, and the policy's choices in fleets of a few workers whose speeds are
 * round numbers: one millisecond a prompt token, blocks of 64 tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "router/core/place.h"

#define WORKERS 8
#define BLOCK 64u
#define BLOCK_BYTES 1000000u

struct bench {
    struct rtr_fleet f;
    struct rtr_policy *p;
    struct rtr_ask ask;
    struct rtr_place place;
    uint32_t cached[WORKERS];
};

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-9)
        fail_msg("%.12f is not %.12f", got, want);
}

static struct msg_card card_of(const char *id, msg_role role)
{
    struct msg_card c;
    memset(&c, 0, sizeof(c));
    c.role = role;
    memcpy(c.id, id, strlen(id) + 1);
    c.block_tokens = BLOCK;
    c.group_count = 2;
    c.group[0].page_bytes = BLOCK_BYTES / 4;
    c.group[1].page_bytes = BLOCK_BYTES / 4 * 3;
    return c;
}

static void up(struct bench *b, uint64_t key, const char *id, msg_role role)
{
    struct msg_card c = card_of(id, role);
    assert_int_equal(rtr_fleet_up(&b->f, key, 7, &c), KVS_OK);
}

struct told {
    uint32_t running, context, left;
    const char *peer[3];
    double byte_s, latency_s; /* of the links; 0, 0: not measured */
    double token_s;           /* 0: 1 ms */
    uint32_t samples;         /* of what is measured; 0: 100 */
};

static void load(struct bench *b, uint64_t key, struct told t, uint64_t now_us)
{
    struct msg_load *l = calloc(1, sizeof(*l));
    uint32_t often = t.samples ? t.samples : 100;
    l->prefill_left = t.left;
    l->decoding = t.running;
    l->context_tokens = t.context;
    l->chunk_tokens = 128;
    l->speed = (struct msg_speed){.prefill_fixed_s = 0, .prefill_token_s = t.token_s > 0 ? t.token_s : 1e-3, .step_fixed_s = 0.01,
                                  .step_sequence_s = 1e-3, .prefill_samples = often, .step_samples = often};
    for (uint32_t i = 0; i < 3 && t.peer[i]; i++) {
        struct msg_peer_link *p = &l->peers[l->peer_count++];
        memcpy(p->id, t.peer[i], strlen(t.peer[i]) + 1);
        p->byte_s = t.byte_s;
        p->latency_s = t.latency_s;
        p->samples = t.byte_s > 0 || t.latency_s > 0 ? often : 0;
    }
    rtr_fleet_load(&b->f, key, l, now_us);
    free(l);
}

static void setup(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    assert_int_equal(rtr_fleet_init(&b->f, WORKERS), KVS_OK);
    assert_int_equal(rtr_policy_create(WORKERS, &b->p), KVS_OK);
    b->ask = (struct rtr_ask){.model = 7, .prompt_tokens = 1000, .sequences = 1, .sequences_max = 16, .cached = b->cached,
                              .step_max_us = 100000, .queue_max_us = 1000000, .now_us = 1000000};
}

static void teardown(struct bench *b)
{
    rtr_fleet_fini(&b->f);
    rtr_policy_destroy(b->p);
}

static const struct rtr_option *choose(struct bench *b)
{
    assert_int_equal(rtr_policy_place(b->p, &b->f, &b->ask, &b->place), KVS_OK);
    assert_true(b->place.option_count > 0);
    assert_string_equal(b->place.option[0].decode, b->place.decode->id);
    return &b->place.option[0];
}

static void test_the_sums(void **state)
{
    (void)state;
    struct msg_speed s = {.prefill_fixed_s = 2e-3, .prefill_token_s = 1e-3, .prefill_pair_s = 1e-7,
                          .step_fixed_s = 5e-3, .step_sequence_s = 1e-3, .step_context_s = 1e-6};
    /* 300 tokens behind 100, 128 a step: 3 steps; 300 x 100 + 300 x 301 / 2 = 75150 pairs */
    near(rtr_cost_prefill_s(&s, 128, 300, 100, 0, 0), 3 * 0.002 + 0.3 + 0.007515);
    /* beside two sequences with 1000 tokens in all: 3 ms more a step */
    near(rtr_cost_prefill_s(&s, 128, 300, 100, 2, 1000), 3 * 0.005 + 0.3 + 0.007515);
    near(rtr_cost_prefill_s(&s, 128, 256, 0, 0, 0), 2 * 0.002 + 0.256 + 256.0 * 257 / 2 * 1e-7);
    near(rtr_cost_prefill_s(&s, 128, 0, 100, 2, 1000), 0);
    near(rtr_cost_step_s(&s, 3, 2000), 0.005 + 0.003 + 0.002);
    near(rtr_cost_step_s(&s, 0, 0), 0);
    struct rtr_link_cost l = {.latency_s = 0.002, .byte_s = 1e-9};
    near(rtr_cost_link_s(&l, 5e6), 0.007);
    near(rtr_cost_exposed_s(&l, 5e6, 1e6, 1), 0.003);     /* the last megabyte shows */
    near(rtr_cost_exposed_s(&l, 5e9, 1e6, 1), 0.002 + 4); /* the link is slower than the computing */
    near(rtr_cost_exposed_s(&l, 1e5, 1e6, 1), 0.0021);
}

static void test_nonsense_is_not_taken_for_a_measurement(void **state)
{
    (void)state;
    const double bad[] = {NAN, INFINITY, -1e-9, 1e9};
    for (size_t i = 0; i < 4; i++) {
        struct msg_speed told = {.prefill_token_s = bad[i], .prefill_samples = 3, .step_fixed_s = 0.5, .step_samples = 4}, got;
        rtr_cost_take_speed(&told, &got);
        assert_int_equal(got.prefill_samples, 0);
        near(got.prefill_token_s, 0);
        assert_int_equal(got.step_samples, 4);
        struct msg_peer_link link = {.byte_s = bad[i], .samples = 1};
        struct rtr_link_cost l;
        assert_false(rtr_cost_take_link(&link, &l));
        assert_true(l.byte_s > 0 && l.byte_s < 1e-6 && l.latency_s > 0);
    }
    struct msg_speed none = {.prefill_token_s = 0.25}, got;
    rtr_cost_take_speed(&none, &got);
    near(got.prefill_token_s, 0); /* no samples: nothing was measured */
}

static void test_the_longest_prefix_wins_until_its_queue_is_longer(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "a", MSG_ROLE_DECODE);
    up(&b, 11, "b", MSG_ROLE_DECODE);
    load(&b, 10, (struct told){0}, 1000000);
    load(&b, 11, (struct told){0}, 1000000);
    b.cached[b.f.workers[1].slot] = 10; /* 640 of 1000 tokens */
    const struct rtr_option *o = choose(&b);
    assert_string_equal(o->decode, "b");
    assert_int_equal(o->cached_tokens, 640);
    assert_int_equal(b.place.computed_tokens, 360);
    near(o->cost.prefill_s, 0.36);
    near(o->cost.ttft_s, 0.36);
    near(o->cost.step_s, 0.011);
    assert_int_equal(b.place.option_count, 2);
    near(b.place.option[1].cost.ttft_s, 1.0);
    load(&b, 11, (struct told){.left = 500}, 1000000); /* 0.5 + 0.36 < 1.0 */
    o = choose(&b);
    assert_string_equal(o->decode, "b");
    near(o->cost.queue_s, 0.5);
    load(&b, 11, (struct told){.left = 700}, 1000000);
    assert_string_equal(choose(&b)->decode, "a");
    b.ask.now_us += 250000; /* a quarter of a second later some of that is done */
    assert_string_equal(choose(&b)->decode, "b");
    near(b.place.option[0].cost.queue_s, 0.45);
    b.cached[b.f.workers[1].slot] = 1000; /* all of it, and more: the last token is computed anyway */
    choose(&b);
    assert_int_equal(b.place.computed_tokens, 1);
    teardown(&b);
}

static void test_a_fetch_where_it_is_cheaper(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "a", MSG_ROLE_DECODE);
    up(&b, 11, "b", MSG_ROLE_DECODE);
    b.cached[b.f.workers[0].slot] = 2;
    b.cached[b.f.workers[1].slot] = 10;
    load(&b, 11, (struct told){.left = 900}, 1000000);
    /* 8 blocks of a megabyte at 1 ns a byte and 2 ms, then 360 tokens: 0.37 against 0.872 without and 1.26 there */
    load(&b, 10, (struct told){.peer = {"b"}, .byte_s = 1e-9, .latency_s = 2e-3}, 1000000);
    const struct rtr_option *o = choose(&b);
    assert_string_equal(o->decode, "a");
    assert_string_equal(o->fetch, "b");
    assert_string_equal(o->prefill, "");
    assert_int_equal(o->fetch_tokens, 640);
    assert_int_equal(b.place.computed_tokens, 360);
    near(o->cost.fetch_s, 0.010);
    near(o->cost.ttft_s, 0.370);
    b.ask.no_fetch = true; /* the client has named somebody */
    o = choose(&b);
    assert_string_equal(o->decode, "a");
    assert_string_equal(o->fetch, "");
    near(o->cost.ttft_s, 0.872);
    b.ask.no_fetch = false;
    load(&b, 10, (struct told){.peer = {"b"}, .byte_s = 1e-7, .latency_s = 2e-3}, 1000000); /* 0.802 for the pages */
    assert_string_equal(choose(&b)->fetch, "");
    load(&b, 10, (struct told){0}, 1000000); /* nobody is linked */
    assert_string_equal(choose(&b)->fetch, "");
    b.ask.placement = MSG_PLACE_LOCAL;
    load(&b, 10, (struct told){.peer = {"b"}, .byte_s = 1e-9}, 1000000);
    assert_string_equal(choose(&b)->fetch, ""); /* who asks for a placement gets that and nothing else */
    teardown(&b);
}

static void test_prompts_leave_a_worker_that_has_streams(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "d", MSG_ROLE_DECODE);
    up(&b, 20, "p", MSG_ROLE_PREFILL);
    load(&b, 20, (struct told){0}, 1000000);
    load(&b, 10, (struct told){.peer = {"p"}, .byte_s = 1e-9, .latency_s = 2e-3}, 1000000);
    b.ask.prompt_tokens = 30; /* 0.030 against 0.033: more than 5 % and a millisecond */
    assert_null((choose(&b), b.place.prefill));
    b.ask.prompt_tokens = 1000; /* 1.000 against 1.005: as good, and the decode worker stays free */
    assert_string_equal(choose(&b)->prefill, "p");
    near(b.place.option[0].cost.exposed_s, 0.002 + 0.003); /* 128 tokens of the last chunk: at most 3 blocks */
    assert_string_equal(b.place.option[1].prefill, "");
    assert_false(b.place.option[1].slow);
    load(&b, 10, (struct told){.peer = {"p"}, .byte_s = 1e-9, .latency_s = 2e-3, .running = 1, .context = 500}, 1000000);
    b.ask.prompt_tokens = 200; /* 0.202 against 0.205, and a chunk of 128 tokens would hold up its stream for 0.128 s */
    assert_string_equal(choose(&b)->prefill, "p");
    b.ask.prompt_tokens = 1000;
    const struct rtr_option *o = choose(&b);
    assert_string_equal(o->prefill, "p");
    assert_false(o->slow);
    assert_true(b.place.option[1].slow);
    near(o->cost.ttft_s, 1.0 + 0.005);
    near(o->cost.step_s, 0.012);
    load(&b, 10, (struct told){.peer = {"p"}, .byte_s = 1e-9, .latency_s = 9e-3, .running = 1, .context = 500}, 1000000);
    b.ask.prompt_tokens = 30; /* 30 ms: short enough, and 0.031 against 0.040 */
    assert_null((choose(&b), b.place.prefill));
    b.ask.step_max_us = 0; /* no target: the stream may be held up */
    b.ask.prompt_tokens = 20;
    assert_null((choose(&b), b.place.prefill));
    b.ask.prompt_tokens = 200;
    b.f.workers[1].suspect = true;
    b.ask.step_max_us = 100000;
    assert_null((choose(&b), b.place.prefill));
    assert_true(b.place.option[0].slow);
    teardown(&b);
}

static void test_what_was_asked_for_comes_first(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "d", MSG_ROLE_DECODE);
    up(&b, 11, "e", MSG_ROLE_DECODE);
    up(&b, 20, "p", MSG_ROLE_PREFILL);
    load(&b, 10, (struct told){0}, 1000000);
    load(&b, 11, (struct told){.peer = {"p"}}, 1000000);
    load(&b, 20, (struct told){.left = 900}, 1000000);
    b.ask.placement = MSG_PLACE_REMOTE;
    assert_string_equal(choose(&b)->prefill, "p");
    assert_string_equal(b.place.option[0].decode, "e");
    b.f.workers[1].suspect = true; /* a suspect worker with a link is no reason to leave a healthy one aside */
    assert_string_equal(choose(&b)->decode, "d");
    assert_true(b.place.option[0].unwanted);
    b.f.workers[1].suspect = false;
    b.ask.placement = MSG_PLACE_AUTO;
    b.ask.local_threshold = 1000;
    assert_string_equal(choose(&b)->prefill, "");
    b.ask.local_threshold = 999;
    assert_string_equal(choose(&b)->prefill, "p");
    b.ask.numerics = "other";
    b.ask.kv_types = "";
    assert_int_equal(rtr_policy_place(b.p, &b.f, &b.ask, &b.place), KVS_BUSY_NO_WORKER);
    teardown(&b);
}

static void test_long_queues_and_deadlines(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "d", MSG_ROLE_DECODE);
    load(&b, 10, (struct told){.left = 1001}, 1000000);
    assert_int_equal(rtr_policy_place(b.p, &b.f, &b.ask, &b.place), KVS_BUSY_QUEUE);
    near(b.place.late_s, 0);
    b.ask.urgent = true;
    choose(&b);
    b.ask.urgent = false;
    load(&b, 10, (struct told){.left = 500}, 1000000);
    b.ask.deadline_us = b.ask.now_us + 1600000; /* 0.5 + 1.0 */
    choose(&b);
    b.ask.ahead_tokens = 300;
    assert_int_equal(rtr_policy_place(b.p, &b.f, &b.ask, &b.place), KVS_BUSY_QUEUE);
    near(b.place.late_s, 0.2);
    b.ask.urgent = true;
    choose(&b);
    teardown(&b);
    setup(&b); /* what was not measured refuses nobody */
    up(&b, 10, "d", MSG_ROLE_DECODE);
    b.ask.deadline_us = b.ask.now_us + 1000;
    choose(&b);
    teardown(&b);
}

static void test_equals_take_turns(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "a", MSG_ROLE_DECODE);
    up(&b, 11, "b", MSG_ROLE_DECODE);
    load(&b, 10, (struct told){.token_s = 1.00e-3}, 1000000);
    load(&b, 11, (struct told){.token_s = 1.03e-3}, 1000000);
    b.f.workers[0].given = 1;
    assert_string_equal(choose(&b)->decode, "b"); /* 3 % slower: as good */
    b.f.workers[1].decode_tokens = 5;
    assert_string_equal(choose(&b)->decode, "a");
    load(&b, 10, (struct told){.running = 4, .context = 10}, 1000000);
    b.f.workers[1].decode_tokens = 500;
    b.ask.prompt_tokens = 10;
    assert_string_equal(choose(&b)->decode, "b"); /* the shorter step counts before the tokens to come */
    load(&b, 11, (struct told){.token_s = 1.5e-3}, 1000000);
    load(&b, 10, (struct told){0}, 1000000);
    b.ask.prompt_tokens = 1000;
    b.f.workers[1].decode_tokens = 0;
    b.f.workers[0].decode_tokens = 500;
    assert_string_equal(choose(&b)->decode, "a");
    teardown(&b);
}

static void test_who_was_not_measured_counts_as_the_others(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "a", MSG_ROLE_DECODE);
    up(&b, 11, "b", MSG_ROLE_DECODE);
    load(&b, 10, (struct told){.token_s = 0.25e-3}, 1000000);
    b.f.workers[0].given = 1;
    assert_string_equal(choose(&b)->decode, "b");
    near(b.place.option[0].cost.prefill_s, 0.25);
    teardown(&b);
}

/* What of the transfer of a prompt shows that the one reads for the other. */
static double exposed(const struct bench *b, const char *prefill, const char *decode)
{
    for (uint32_t i = 0; i < b->place.option_count; i++)
        if (!strcmp(b->place.option[i].prefill, prefill) && !strcmp(b->place.option[i].decode, decode))
            return b->place.option[i].cost.exposed_s;
    fail_msg("no offer of %s for %s", prefill, decode);
    return 0;
}

static void test_one_slow_transfer_puts_no_link_aside(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "a", MSG_ROLE_PREFILL);
    up(&b, 11, "b", MSG_ROLE_PREFILL);
    up(&b, 12, "c", MSG_ROLE_DECODE);
    up(&b, 13, "d", MSG_ROLE_DECODE);
    b.ask.placement = MSG_PLACE_REMOTE;
    for (uint64_t key = 10; key < 12; key++)
        load(&b, key, (struct told){0}, 1000000);
    /* d has often fetched from a at 2 ms; c has read from b once, at 34 ms: a sixteenth of 32 more than usual, and 1/256 of the usual itself */
    load(&b, 13, (struct told){.peer = {"a"}, .latency_s = 2e-3}, 1000000);
    load(&b, 12, (struct told){.peer = {"b"}, .latency_s = 34e-3, .samples = 1}, 1000000);
    choose(&b);
    double usual = (2e-3 + 34e-3 / 256) / (1 + 1.0 / 256);
    near(exposed(&b, "b", "c"), 34e-3 / 16 + usual * 15 / 16);
    /* sixteen times: that is what this link is like */
    load(&b, 12, (struct told){.peer = {"b"}, .latency_s = 34e-3, .samples = 16}, 1000000);
    choose(&b);
    near(exposed(&b, "b", "c"), 34e-3);
    /* while others are measured its word fades: after five minutes a tenth is left */
    load(&b, 13, (struct told){.peer = {"a"}, .latency_s = 2e-3, .samples = 101}, 301000000);
    load(&b, 12, (struct told){.peer = {"b"}, .latency_s = 34e-3, .samples = 16}, 301000000);
    b.ask.now_us = 301000000;
    choose(&b);
    near(exposed(&b, "b", "c"), 34e-3 / 10 + 18e-3 * 9 / 10);
    near(exposed(&b, "a", "d"), 2e-3);
    /* what is known of a link goes with its name, wherever that stands in the list: another one in front of it, and away again */
    load(&b, 12, (struct told){.peer = {"e", "b"}, .latency_s = 34e-3, .samples = 16}, 301000000);
    choose(&b);
    near(exposed(&b, "b", "c"), 34e-3 / 10 + (34e-3 + 34e-3 + 2e-3) / 3 * 9 / 10);
    load(&b, 12, (struct told){.peer = {"b"}, .latency_s = 34e-3, .samples = 16}, 301000000);
    choose(&b);
    near(exposed(&b, "b", "c"), 34e-3 / 10 + 18e-3 * 9 / 10);
    /* a night in which nobody was measured changes nothing */
    load(&b, 13, (struct told){.peer = {"a"}, .latency_s = 2e-3, .samples = 101}, 9000000000);
    b.ask.now_us = 9000000000;
    choose(&b);
    near(exposed(&b, "b", "c"), 34e-3 / 10 + 18e-3 * 9 / 10);
    /* measured once more, it is believed again */
    load(&b, 12, (struct told){.peer = {"b"}, .latency_s = 30e-3, .samples = 17}, 9000000000);
    load(&b, 13, (struct told){.peer = {"a"}, .latency_s = 2e-3, .samples = 102}, 9000000000);
    choose(&b);
    near(exposed(&b, "b", "c"), 30e-3);
    /* another worker of that name in its place: nothing is known of the link */
    load(&b, 12, (struct told){.peer = {"a"}, .latency_s = 30e-3, .samples = 1}, 9000000000);
    choose(&b);
    near(exposed(&b, "a", "c"), 2e-3 + (30e-3 - 2e-3) / 16 + (30e-3 - 2e-3) / 257 * 15 / 16);
    teardown(&b);
}

static void test_one_slow_step_puts_no_worker_aside(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "a", MSG_ROLE_DECODE);
    up(&b, 11, "b", MSG_ROLE_DECODE);
    load(&b, 10, (struct told){0}, 1000000);
    load(&b, 11, (struct told){.token_s = 0.1, .samples = 1}, 1000000);
    choose(&b);
    double usual = (1e-3 + 0.1 / 256) / (1 + 1.0 / 256);
    assert_string_equal(b.place.option[1].decode, "b");
    near(b.place.option[1].cost.prefill_s, 1000 * (0.1 / 16 + usual * 15 / 16));
    load(&b, 11, (struct told){.token_s = 0.1, .samples = 16}, 1000000);
    choose(&b);
    near(b.place.option[1].cost.prefill_s, 100);
    load(&b, 10, (struct told){.samples = 101}, 61000000); /* half of its word is left */
    choose(&b);
    near(b.place.option[1].cost.prefill_s, 50 + 50.5 / 2);
    teardown(&b);
}

static void test_the_backlog_counts_what_reports_cannot_know_yet(void **state)
{
    (void)state;
    struct bench b;
    setup(&b);
    up(&b, 10, "a", MSG_ROLE_DECODE);
    struct rtr_worker *w = &b.f.workers[0];
    rtr_worker_give(w, 300);
    assert_int_equal(rtr_worker_backlog(w), 300);
    load(&b, 10, (struct told){.left = 0}, 1000000); /* left before the prompt came */
    assert_int_equal(rtr_worker_backlog(w), 300);
    rtr_worker_give(w, 100);
    load(&b, 10, (struct told){.left = 350}, 1250000);
    assert_int_equal(rtr_worker_backlog(w), 350);
    rtr_worker_give(w, 50);
    assert_int_equal(rtr_worker_backlog(w), 400);
    rtr_worker_computed(w, 100);
    rtr_worker_computed(w, 1000);
    assert_int_equal(rtr_worker_backlog(w), 350);
    teardown(&b);
}

/* ---- random fleets ---- */

struct plain { /* what a worker of the random fleets is like, and nothing else about it matters */
    uint32_t left, cached;
    double token_s;
    bool decodes, prefills, linked[WORKERS];
};

static double plain_read(const struct plain *w, uint32_t prompt, uint32_t cached)
{
    uint32_t n = cached < prompt ? cached : prompt - 1;
    return (w->left + (prompt - n)) * w->token_s;
}

/* The least time to first token there is, by trying everything: links take 4 ms and 1 ns a byte, blocks have a megabyte. */
static double least_of(const struct plain *w, uint32_t prompt)
{
    double least = 1e9;
    for (uint32_t d = 0; d < WORKERS; d++) {
        if (!w[d].decodes)
            continue;
        double local = plain_read(&w[d], prompt, w[d].cached * BLOCK);
        least = local < least ? local : least;
        for (uint32_t p = 0; p < WORKERS; p++) {
            if (p == d || (!w[d].linked[p] && !w[p].linked[d]))
                continue;
            uint32_t have = w[p].cached * BLOCK < prompt ? w[p].cached * BLOCK : prompt - 1, here = w[d].cached * BLOCK < prompt ? w[d].cached * BLOCK : prompt - 1;
            double fetch = 0.004 + (have / BLOCK - here / BLOCK) * 1e-3 + (w[d].left + prompt - have / BLOCK * BLOCK) * w[d].token_s;
            if (have / BLOCK * BLOCK > here && fetch < least)
                least = fetch;
            uint32_t left = prompt - have, last = (left < 128 ? left : 128) / BLOCK + 1, all = (prompt + BLOCK - 1) / BLOCK - here / BLOCK;
            double busy = left * w[p].token_s, behind = all * 1e-3 - busy, shows = (last < all ? last : all) * 1e-3;
            double remote = (w[p].left + left) * w[p].token_s + 0.004 + (behind > shows ? behind : shows);
            if (w[p].prefills && remote < least)
                least = remote;
        }
    }
    return least;
}

static void test_nothing_better_is_passed_over(void **state)
{
    (void)state;
    static const char *const names[WORKERS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    uint32_t fetches = 0, remotes = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        struct kvs_rng rng = {.state = seed};
        struct plain w[WORKERS] = {{0}};
        struct bench b;
        setup(&b);
        for (uint32_t i = 0; i < WORKERS; i++) {
            msg_role role = (msg_role)(MSG_ROLE_PREFILL + kvs_rng_below(&rng, 3));
            w[i] = (struct plain){.left = kvs_rng_below(&rng, 3) ? 0 : (uint32_t)kvs_rng_below(&rng, 500), .cached = (uint32_t)kvs_rng_below(&rng, 12),
                                  .token_s = 1e-3 + 1e-5 * (double)kvs_rng_below(&rng, 30), .decodes = i == 0 || role != MSG_ROLE_PREFILL,
                                  .prefills = i > 0 && role != MSG_ROLE_DECODE};
            up(&b, 10 + i, names[i], i == 0 ? MSG_ROLE_DECODE : role);
            b.cached[i] = w[i].cached;
        }
        for (uint32_t i = 0; i < WORKERS; i++) {
            struct told t = {.left = w[i].left, .token_s = w[i].token_s, .byte_s = 1e-9, .latency_s = 4e-3};
            for (uint32_t k = 0; k < 3; k++) {
                uint32_t peer = (uint32_t)kvs_rng_below(&rng, WORKERS);
                if (peer == i || w[i].linked[peer])
                    break;
                t.peer[k] = names[peer];
                w[i].linked[peer] = true;
            }
            load(&b, 10 + i, t, 1000000);
        }
        b.ask.prompt_tokens = 1 + (uint32_t)kvs_rng_below(&rng, 1500);
        b.ask.step_max_us = b.ask.queue_max_us = 0;
        const struct rtr_option *o = choose(&b);
        double least = least_of(w, b.ask.prompt_tokens);
        if (o->cost.ttft_s > least * 1.05 + 1e-3 + 1e-9 || o->cost.ttft_s < least - 1e-9)
            fail_msg("seed %u: %.6f s was chosen, %.6f is possible", (unsigned)seed, o->cost.ttft_s, least);
        fetches += o->fetch[0] != 0;
        remotes += o->prefill[0] != 0;
        teardown(&b);
    }
    assert_true(fetches > 100 && remotes > 100);
}

/* ---- names ---- */

static void test_a_prompt_is_found_by_its_names(void **state)
{
    (void)state;
    struct rtr_fleet f;
    struct rtr_policy *p;
    struct rtr_cached *cached;
    struct rtr_config c;
    struct rtr_place place;
    int32_t tokens[200];
    for (int32_t i = 0; i < 200; i++)
        tokens[i] = i * 7;
    rtr_config_default(&c);
    assert_int_equal(rtr_fleet_init(&f, 4), KVS_OK);
    assert_int_equal(rtr_policy_create(4, &p), KVS_OK);
    assert_int_equal(rtr_cached_create(4, 1u << 20, &cached), KVS_OK);
    struct msg_card a = card_of("a", MSG_ROLE_DECODE), b = card_of("b", MSG_ROLE_DECODE);
    memcpy(a.numerics, "a16", 4);
    memcpy(a.kv_types, "k=f32,v=f32", 12);
    memcpy(a.rope, "r1", 3);
    memset(a.fingerprint, 9, sizeof(a.fingerprint));
    memcpy(b.numerics, a.numerics, sizeof(a.numerics));
    memcpy(b.kv_types, a.kv_types, sizeof(a.kv_types));
    memcpy(b.rope, a.rope, sizeof(a.rope));
    memcpy(b.fingerprint, a.fingerprint, sizeof(a.fingerprint));
    assert_int_equal(rtr_fleet_up(&f, 10, 7, &a), KVS_OK);
    assert_int_equal(rtr_fleet_up(&f, 11, 7, &b), KVS_OK);
    rtr_cached_up(cached, f.workers[0].slot, 7, &a);
    rtr_cached_up(cached, f.workers[1].slot, 7, &b);
    struct kvc_root_fields fields = {.fingerprint = {a.fingerprint, 32}, .numerics = {"a16", 3}, .cache_salt = {"salt", 4},
                                     .kv_types = {"k=f32,v=f32", 11}, .rope = {"r1", 2}, .block_tokens = BLOCK};
    struct kvc_hash root, chain[3];
    assert_int_equal(kvc_hash_root(&fields, &root), KVS_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(kvc_hash_block(i ? &chain[i - 1] : &root, tokens + i * BLOCK, BLOCK, NULL, 0, &chain[i]), KVS_OK);
    struct msg_cache_digest told = {.hashes = chain[0].bytes, .count = 2};
    rtr_cached_digest(cached, f.workers[1].slot, &told);
    struct rtr_request ask = {.id = 1, .model = 7, .choices = 1, .tokens = tokens, .token_count = 200, .max_tokens = 4, .cache_salt = "salt"};
    struct rtr_req q = {0};
    struct rtr_placing how = {.config = &c, .now_us = 5};
    assert_int_equal(rtr_req_init(&q, &ask, 1000), KVS_OK);
    f.workers[1].given = 1; /* it is not its turn */
    assert_int_equal(rtr_placer_choose(p, cached, &f, &q, &how, &place), KVS_OK);
    assert_ptr_equal(place.decode, &f.workers[1]);
    assert_int_equal(place.option[0].cached_tokens, 2 * BLOCK);
    rtr_placer_give(&q, &place);
    assert_int_equal(rtr_worker_backlog(&f.workers[1]), 200 - 2 * BLOCK);
    rtr_placer_take_back(&q, &f);
    rtr_placer_take_back(&q, &f);
    assert_int_equal(rtr_worker_backlog(&f.workers[1]), 0);
    rtr_req_fini(&q);
    memcpy(ask.cache_salt, "tlas", 5); /* another salt: other names */
    assert_int_equal(rtr_req_init(&q, &ask, 1000), KVS_OK);
    assert_int_equal(rtr_placer_choose(p, cached, &f, &q, &how, &place), KVS_OK);
    assert_ptr_equal(place.decode, &f.workers[0]);
    assert_int_equal(place.option[0].cached_tokens, 0);
    rtr_req_fini(&q);
    rtr_policy_destroy(p);
    rtr_cached_destroy(cached);
    rtr_fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_sums),
        cmocka_unit_test(test_nonsense_is_not_taken_for_a_measurement),
        cmocka_unit_test(test_the_longest_prefix_wins_until_its_queue_is_longer),
        cmocka_unit_test(test_a_fetch_where_it_is_cheaper),
        cmocka_unit_test(test_prompts_leave_a_worker_that_has_streams),
        cmocka_unit_test(test_what_was_asked_for_comes_first),
        cmocka_unit_test(test_long_queues_and_deadlines),
        cmocka_unit_test(test_equals_take_turns),
        cmocka_unit_test(test_who_was_not_measured_counts_as_the_others),
        cmocka_unit_test(test_one_slow_transfer_puts_no_link_aside),
        cmocka_unit_test(test_one_slow_step_puts_no_worker_aside),
        cmocka_unit_test(test_the_backlog_counts_what_reports_cannot_know_yet),
        cmocka_unit_test(test_nothing_better_is_passed_over),
        cmocka_unit_test(test_a_prompt_is_found_by_its_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
