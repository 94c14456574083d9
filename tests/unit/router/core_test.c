/* core_test.c - the router's core, rule by rule: placement, ends, attempts, deadlines, bounds. Events are written out by hand and every
 * step's actions are looked at; the random test beside it looks for what nobody thought of.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/router/core_rig.h"

static void test_a_request_runs_and_ends_once(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 1);
    const struct rtr_action *g = act(&b, 0, RTR_ACT_GENERATE);
    assert_int_equal(g->worker, 10);
    assert_int_equal(g->generate.token_count, 3);
    assert_int_equal(g->generate.tokens[2], 3);
    assert_int_equal(g->generate.max_tokens, 4);
    assert_int_equal(g->generate.placement, MSG_PLACE_LOCAL);
    assert_int_equal(g->remaining_ms, 600000);
    token(&b, 10, 1, 1, 0, 0, 50, MSG_RUNNING);
    assert_int_equal(act(&b, 0, RTR_ACT_TOKEN)->token->id, 50);
    assert_int_equal(b.n, 1);
    token(&b, 10, 1, 1, 0, 1, 51, MSG_FINISH_STOP);
    assert_int_equal(act(&b, 0, RTR_ACT_TOKEN)->token->finish, MSG_FINISH_STOP);
    assert_int_equal(act(&b, 1, RTR_ACT_FINISH)->status, KVS_OK);
    assert_int_equal(b.n, 2);
    end(&b, 10, 1, 1, 0, KVS_OK);
    assert_int_equal(b.n, 0);
    step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 1});
    assert_int_equal(b.n, 0);
    idle_and_gone(&b);
}

static void test_duplicates_and_late_attempts_are_dropped(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 2);
    assert_int_equal(b.n, 2);
    token(&b, 10, 1, 1, 0, 0, 50, MSG_RUNNING);
    token(&b, 10, 1, 1, 0, 0, 50, MSG_RUNNING);
    assert_int_equal(b.n, 0);
    token(&b, 10, 1, 0, 0, 1, 51, MSG_RUNNING); /* an attempt of before */
    assert_int_equal(b.n, 0);
    token(&b, 11, 1, 1, 0, 1, 51, MSG_RUNNING); /* a worker that was not asked */
    assert_int_equal(b.n, 0);
    token(&b, 10, 1, 1, 1, 0, 60, MSG_FINISH_LENGTH);
    assert_int_equal(b.n, 1);
    token(&b, 10, 1, 1, 1, 0, 60, MSG_FINISH_LENGTH);
    assert_int_equal(b.n, 0);
    struct rtr_stats st;
    rtr_stats(b.r, &st);
    assert_int_equal(st.duplicates, 2);
    assert_int_equal(st.late, 2);
    token(&b, 10, 1, 1, 0, 2, 52, MSG_RUNNING); /* a hole: 1 never came */
    act(&b, 0, RTR_ACT_ABORT);
    assert_int_equal(act(&b, 1, RTR_ACT_FINISH)->status, KVS_PEER_PROTOCOL);
    idle_and_gone(&b);
}

static void by_threshold(struct rtr_config *c)
{
    c->local_threshold = 64;
}

static void test_short_prompts_stay_long_ones_travel(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, by_threshold);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    up(&b, 20, "prefill-0", MSG_ROLE_PREFILL);
    ask(&b, 1, 100, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->generate.placement, MSG_PLACE_LOCAL); /* not linked */
    load(&b, 10, 0, "prefill-0");
    ask(&b, 2, 64, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->generate.placement, MSG_PLACE_LOCAL);
    ask(&b, 3, 65, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->generate.placement, MSG_PLACE_REMOTE);
    assert_string_equal(b.acts[0].generate.prefill_worker, "prefill-0");
    struct rtr_request a = asking(4, 10, 1);
    a.placement = MSG_PLACE_REMOTE;
    step(&b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->generate.placement, MSG_PLACE_REMOTE);
    a = asking(5, 100, 1);
    a.placement = MSG_PLACE_LOCAL;
    step(&b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->generate.placement, MSG_PLACE_LOCAL);
    step(&b, (struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = 20});
    assert_int_equal(b.n, 0); /* the decode worker sees to it */
    for (uint64_t id = 1; id <= 5; id++)
        token(&b, 10, id, 1, 0, 0, 9, MSG_FINISH_STOP);
    idle_and_gone(&b);
}

static void test_the_least_loaded_decode_worker_is_taken(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    up(&b, 11, "decode-1", MSG_ROLE_DECODE);
    ask(&b, 1, 60, 1);
    uint64_t first = act(&b, 0, RTR_ACT_GENERATE)->worker;
    ask(&b, 2, 10, 1);
    uint64_t second = act(&b, 0, RTR_ACT_GENERATE)->worker;
    assert_true(first != second);
    ask(&b, 3, 10, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->worker, second);
    load(&b, second, 1000, NULL); /* another router's work */
    ask(&b, 4, 10, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->worker, first);
    load(&b, second, 0, NULL);
    step(&b, (struct rtr_event){.type = RTR_EV_SUSPECT, .worker = second, .flag = true});
    ask(&b, 5, 10, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->worker, first);
    rtr_destroy(b.r);
}

static void test_loss_before_the_first_token_moves_once(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    up(&b, 11, "decode-1", MSG_ROLE_DECODE);
    up(&b, 12, "decode-2", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 2);
    uint64_t a = b.acts[0].worker;
    step(&b, (struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = a});
    assert_int_equal(b.n, 2);
    const struct rtr_action *g = act(&b, 1, RTR_ACT_GENERATE);
    assert_int_equal(g->generate.attempt, 2);
    uint64_t c = g->worker;
    assert_true(c != a);
    end(&b, c, 1, 2, 0, KVS_BUSY_PAGES); /* refused there as well: once is enough */
    assert_int_equal(act(&b, 0, RTR_ACT_ABORT)->worker, c);
    assert_int_equal(act(&b, 1, RTR_ACT_FINISH)->status, KVS_BUSY_PAGES);
    assert_true(b.acts[1].retry_after_s >= 1);
    idle_and_gone(&b);
}

static void test_loss_in_mid_stream_goes_on_at_the_next_token(void **state)
{
    (void)state;
    struct bench b;
    struct rtr_stats st;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 3);
    up(&b, 11, "decode-1", MSG_ROLE_DECODE);
    token(&b, 10, 1, 1, 0, 0, 50, MSG_RUNNING);
    token(&b, 10, 1, 1, 0, 1, 51, MSG_RUNNING);
    token(&b, 10, 1, 1, 1, 0, 60, MSG_FINISH_STOP);
    step(&b, (struct rtr_event){.type = RTR_EV_PAUSE, .id = 1, .flag = true});
    down(&b, 10);
    assert_int_equal(b.n, 3); /* choice 1 has its answer */
    const struct rtr_action *g = act(&b, 0, RTR_ACT_GENERATE);
    static const int32_t want[] = {1, 2, 3, 50, 51};
    assert_int_equal(g->worker, 11);
    assert_int_equal(g->choice, 0);
    assert_int_equal(g->generate.attempt, 2);
    assert_int_equal(g->generate.prompt_count, 3);
    assert_int_equal(g->generate.token_count, 5);
    assert_memory_equal(g->generate.tokens, want, sizeof(want));
    assert_int_equal(g->generate.first_index, 2);
    assert_int_equal(g->generate.max_tokens, 4);
    g = act(&b, 1, RTR_ACT_GENERATE);
    assert_int_equal(g->choice, 2);
    assert_int_equal(g->generate.token_count, 3);
    assert_int_equal(g->generate.first_index, 0);
    assert_true(act(&b, 2, RTR_ACT_PAUSE)->flag && b.acts[2].worker == 11);
    token(&b, 10, 1, 1, 0, 2, 52, MSG_RUNNING); /* of the dead */
    token(&b, 11, 1, 1, 0, 2, 52, MSG_RUNNING);
    assert_int_equal(b.n, 0);
    struct msg_token t = {.request = 1, .attempt = 2, .index = 2, .id = 52, .has_placed = true};
    step(&b, (struct rtr_event){.type = RTR_EV_TOKEN, .worker = 11, .token = &t});
    assert_false(act(&b, 0, RTR_ACT_TOKEN)->token->has_placed); /* that was told with the first token */
    t = (struct msg_token){.request = 1, .attempt = 2, .choice = 2, .id = 70, .finish = MSG_FINISH_STOP, .has_placed = true};
    step(&b, (struct rtr_event){.type = RTR_EV_TOKEN, .worker = 11, .token = &t});
    assert_true(act(&b, 0, RTR_ACT_TOKEN)->token->has_placed);
    token(&b, 11, 1, 2, 0, 3, 53, MSG_FINISH_LENGTH);
    assert_int_equal(act(&b, 1, RTR_ACT_FINISH)->status, KVS_OK);
    rtr_stats(b.r, &st);
    assert_int_equal(st.resumed, 1);
    assert_int_equal(st.replaced, 0);
    assert_int_equal(st.late, 2);
    idle_and_gone(&b);
}

static void class_up(struct bench *b, uint64_t key, const char *id, const char *numerics)
{
    struct msg_card card;
    memset(&card, 0, sizeof(card));
    card.role = MSG_ROLE_DECODE;
    memcpy(card.id, id, strlen(id) + 1);
    memcpy(card.numerics, numerics, strlen(numerics) + 1);
    step(b, (struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = key, .model = 7, .card = &card});
}

static void test_what_has_begun_stays_in_its_numerics_class(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    class_up(&b, 10, "decode-0", "a16 f16");
    ask(&b, 1, 3, 1);
    ask(&b, 2, 3, 1);
    class_up(&b, 11, "decode-1", "a16 f32");
    token(&b, 10, 1, 1, 0, 0, 5, MSG_RUNNING);
    down(&b, 10);
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->id, 2); /* has not begun */
    class_up(&b, 12, "decode-2", "a16 f32");
    tick_at(&b, b.now + 2500000);
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->id, 1); /* none of its class came */
    token(&b, 11, 2, 2, 0, 0, 5, MSG_RUNNING);
    ask(&b, 3, 3, 1);
    rtr_destroy(b.r);
}

static void narrow(struct rtr_config *c)
{
    c->worker_sequences_max = 1;
    c->queue_max = 1;
}

static void test_what_has_begun_waits_before_all_others(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, narrow);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    up(&b, 11, "decode-1", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 1);
    uint64_t lost = b.acts[0].worker;
    ask(&b, 2, 3, 1);
    uint64_t other = b.acts[0].worker;
    ask(&b, 3, 3, 1); /* waits, and the queue is full */
    assert_int_equal(b.n, 0);
    token(&b, lost, 1, 1, 0, 0, 5, MSG_RUNNING);
    down(&b, lost);
    assert_int_equal(b.n, 0); /* waits as well */
    token(&b, other, 2, 1, 0, 0, 9, MSG_FINISH_STOP);
    assert_int_equal(b.n, 3);
    assert_int_equal(act(&b, 2, RTR_ACT_GENERATE)->id, 1);
    assert_int_equal(b.acts[2].generate.first_index, 1);
    step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 1});
    assert_int_equal(b.n, 3); /* ABORT, FINISH, and request 3 has its turn */
    assert_int_equal(act(&b, 2, RTR_ACT_GENERATE)->id, 3);
    step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 3});
    idle_and_gone(&b);
}

static void drains(struct bench *b, uint64_t key)
{
    struct msg_load *l = calloc(1, sizeof(*l));
    l->draining = true;
    step(b, (struct rtr_event){.type = RTR_EV_LOAD, .worker = key, .load = l});
    free(l);
}

static void aborts(const struct bench *b, size_t i, uint64_t worker, uint32_t attempt, bool keep)
{
    const struct rtr_action *a = act(b, i, RTR_ACT_ABORT);
    assert_int_equal(a->worker, worker);
    assert_int_equal(a->attempt, attempt);
    assert_int_equal(a->flag, keep);
}

static void fetches(const struct bench *b, size_t i, const char *from, uint32_t tokens)
{
    assert_string_equal(act(b, i, RTR_ACT_GENERATE)->generate.fetch_worker, from);
    assert_int_equal(b->acts[i].generate.fetch_tokens, tokens);
}

static void test_a_draining_worker_hands_its_sequences_over(void **state)
{
    (void)state;
    struct bench b;
    struct rtr_stats st;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 1);
    token(&b, 10, 1, 1, 0, 0, 5, MSG_RUNNING);
    drains(&b, 10);
    assert_int_equal(b.n, 0); /* nowhere else: it may finish there */
    token(&b, 10, 1, 1, 0, 1, 6, MSG_RUNNING);
    assert_int_equal(b.n, 1);
    up(&b, 11, "decode-1", MSG_ROLE_DECODE);
    drains(&b, 10);
    aborts(&b, 0, 10, 1, true);
    assert_int_equal(act(&b, 1, RTR_ACT_GENERATE)->worker, 11);
    assert_int_equal(b.acts[1].generate.first_index, 2);
    fetches(&b, 1, "decode-0", 5);
    up(&b, 12, "decode-2", MSG_ROLE_DECODE);
    end(&b, 11, 1, 2, 0, KVS_SELF_STOPPING); /* refused: drains as well, and its report was not here yet */
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->worker, 12);
    fetches(&b, 0, "decode-0", 5); /* which still has all of it */
    token(&b, 12, 1, 3, 0, 2, 7, MSG_RUNNING);
    aborts(&b, 0, 10, 1, false); /* fetched: it may go */
    assert_int_equal(b.n, 2);
    struct msg_token t = {.request = 1, .attempt = 3, .index = 3, .id = -1, .finish = MSG_FINISH_ERROR, .error = KVS_SELF_STOPPING};
    step(&b, (struct rtr_event){.type = RTR_EV_TOKEN, .worker = 12, .token = &t}); /* handed back */
    aborts(&b, 0, 12, 3, true);
    uint64_t last = act(&b, 1, RTR_ACT_GENERATE)->worker;
    assert_int_equal(last, 11);
    fetches(&b, 1, "decode-2", 6);
    token(&b, 11, 1, 4, 0, 3, 8, MSG_FINISH_LENGTH);
    aborts(&b, 0, 12, 3, false);
    assert_int_equal(act(&b, 2, RTR_ACT_FINISH)->status, KVS_OK);
    rtr_stats(b.r, &st);
    assert_int_equal(st.moved, 1);
    assert_int_equal(st.resumed, 2);
    idle_and_gone(&b);
}

static void becomes(struct bench *b, uint64_t key, msg_role role)
{
    struct msg_card card;
    memset(&card, 0, sizeof(card));
    card.role = role;
    step(b, (struct rtr_event){.type = RTR_EV_WORKER_CARD, .worker = key, .card = &card});
}

/* Two choices move when their worker becomes a prefill worker; it is let go when both have spoken again, not before. */
static void test_a_role_that_changes_moves_its_sequences(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    up(&b, 11, "prefill-0", MSG_ROLE_PREFILL);
    ask(&b, 1, 3, 2);
    token(&b, 10, 1, 1, 0, 0, 5, MSG_RUNNING);
    token(&b, 10, 1, 1, 1, 0, 6, MSG_RUNNING);
    becomes(&b, 10, MSG_ROLE_PREFILL);
    assert_int_equal(b.n, 0); /* nobody else decodes */
    becomes(&b, 11, MSG_ROLE_BOTH);
    assert_int_equal(b.n, 0); /* the one that leaves is looked at with its next report */
    load(&b, 10, 0, NULL);
    aborts(&b, 0, 10, 1, true);
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(act(&b, i, RTR_ACT_GENERATE)->worker, 11);
        fetches(&b, i, "decode-0", 4);
    }
    token(&b, 11, 1, 2, 1, 1, 7, MSG_RUNNING);
    assert_int_equal(b.n, 1);
    token(&b, 11, 1, 2, 0, 1, 8, MSG_RUNNING);
    aborts(&b, 0, 10, 1, false);
    assert_int_equal(b.n, 2);
    becomes(&b, 10, MSG_ROLE_DECODE);
    becomes(&b, 11, MSG_ROLE_PREFILL);
    aborts(&b, 0, 11, 2, true);
    fetches(&b, 1, "prefill-0", 5);
    step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 1}); /* the client leaves: both are told */
    aborts(&b, 0, 11, 2, false);
    aborts(&b, 1, 10, 3, false);
    act(&b, 2, RTR_ACT_FINISH);
    ask(&b, 2, 3, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->worker, 10);
    token(&b, 10, 2, 1, 0, 0, 5, MSG_RUNNING);
    up(&b, 12, "decode-1", MSG_ROLE_DECODE);
    drains(&b, 10);
    aborts(&b, 0, 10, 1, true);
    step(&b, (struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = 10}); /* died meanwhile: nobody is told */
    token(&b, 12, 2, 2, 0, 1, 5, MSG_FINISH_LENGTH);
    act(&b, 0, RTR_ACT_TOKEN);
    act(&b, 1, RTR_ACT_FINISH);
    struct rtr_stats st;
    rtr_stats(b.r, &st);
    assert_int_equal(st.moved, 3);
    idle_and_gone(&b);
}

static void test_a_refusal_that_is_the_requests_fault_is_final(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    up(&b, 11, "decode-1", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 1);
    end(&b, b.acts[0].worker, 1, 1, 0, KVS_REQ_TOO_LONG);
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->status, KVS_REQ_TOO_LONG);
    assert_string_equal(b.acts[0].text, "why");
    ask(&b, 2, 3, 1);
    token(&b, b.acts[0].worker, 2, 1, 0, 0, -1, MSG_FINISH_ERROR);
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->status, KVS_SELF_NUMERIC);
    assert_string_equal(b.acts[0].text, "NaN in layer 3");
    idle_and_gone(&b);
}

static void test_deadline_ends_running_and_waiting(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    assert_int_equal(rtr_deadline_us(b.r), RTR_NEVER);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    struct rtr_request a = asking(1, 3, 1);
    a.deadline_us = b.now + 5000;
    step(&b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
    assert_int_equal(b.acts[0].remaining_ms, 5);
    assert_int_equal(rtr_deadline_us(b.r), b.now + 5000);
    b.now += 4999;
    step(&b, (struct rtr_event){.type = RTR_EV_TIMER});
    assert_int_equal(b.n, 0);
    b.now += 1;
    step(&b, (struct rtr_event){.type = RTR_EV_TIMER});
    act(&b, 0, RTR_ACT_ABORT);
    assert_int_equal(act(&b, 1, RTR_ACT_FINISH)->status, KVS_REQ_DEADLINE);
    assert_int_equal(rtr_deadline_us(b.r), RTR_NEVER);
    idle_and_gone(&b);
}

static void tight(struct rtr_config *c)
{
    c->worker_sequences_max = 2;
    c->queue_max = 2;
    c->tokens_max = 500;
}

static void test_bounds_and_the_queue(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, tight);
    ask(&b, 1, 3, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_REJECT)->status, KVS_BUSY_NO_WORKER);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    ask(&b, 2, 3, 1);
    ask(&b, 3, 3, 1);
    ask(&b, 4, 3, 2); /* waits: needs two places */
    assert_int_equal(b.n, 0);
    ask(&b, 5, 3, 1);
    assert_int_equal(b.n, 0);
    ask(&b, 6, 3, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_REJECT)->status, KVS_BUSY_QUEUE);
    assert_true(b.acts[0].retry_after_s >= 1);
    token(&b, 10, 2, 1, 0, 0, 9, MSG_FINISH_STOP);
    assert_int_equal(b.n, 2); /* 4 is first and does not fit: 5 must not overtake it */
    token(&b, 10, 3, 1, 0, 0, 9, MSG_FINISH_STOP);
    assert_int_equal(b.n, 4);
    assert_int_equal(act(&b, 2, RTR_ACT_GENERATE)->id, 4);
    assert_int_equal(act(&b, 3, RTR_ACT_GENERATE)->id, 4);
    step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 5});
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->status, KVS_REQ_CANCELLED);
    step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 4});
    act(&b, 0, RTR_ACT_ABORT);
    assert_int_equal(act(&b, 1, RTR_ACT_FINISH)->status, KVS_REQ_CANCELLED);
    ask(&b, 7, 200, 1);
    ask(&b, 8, 200, 1);
    ask(&b, 9, 101, 1); /* prompt tokens over the bound */
    assert_int_equal(act(&b, 0, RTR_ACT_REJECT)->status, KVS_BUSY_QUEUE);
    step(&b, (struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = 10});
    tick_at(&b, b.now + 2500000);
    assert_int_equal(b.n, 2);
    idle_and_gone(&b);
}

static void test_a_stop_string_ends_one_choice_or_the_request(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 2);
    token(&b, 10, 1, 1, 0, 0, 5, MSG_RUNNING);
    step(&b, (struct rtr_event){.type = RTR_EV_CHOICE_STOP, .id = 1, .choice = 0});
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_CANCEL)->choice, 0);
    token(&b, 10, 1, 1, 0, 1, 6, MSG_RUNNING); /* was on its way */
    assert_int_equal(b.n, 0);
    end(&b, 10, 1, 1, 0, KVS_REQ_CANCELLED);
    assert_int_equal(b.n, 0);
    step(&b, (struct rtr_event){.type = RTR_EV_CHOICE_STOP, .id = 1, .choice = 1});
    act(&b, 0, RTR_ACT_ABORT);
    assert_int_equal(act(&b, 1, RTR_ACT_FINISH)->status, KVS_OK);
    idle_and_gone(&b);
}

static void test_draining_workers_get_nothing_new(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    assert_true(rtr_model_ready(b.r, 7, NULL));
    assert_false(rtr_model_ready(b.r, 8, NULL));
    struct msg_card card;
    memset(&card, 0, sizeof(card));
    card.role = MSG_ROLE_DECODE;
    card.draining = true;
    step(&b, (struct rtr_event){.type = RTR_EV_WORKER_CARD, .worker = 10, .card = &card});
    assert_false(rtr_model_ready(b.r, 7, NULL));
    ask(&b, 1, 3, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_REJECT)->status, KVS_BUSY_NO_WORKER);
    idle_and_gone(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_runs_and_ends_once),
        cmocka_unit_test(test_duplicates_and_late_attempts_are_dropped),
        cmocka_unit_test(test_short_prompts_stay_long_ones_travel),
        cmocka_unit_test(test_the_least_loaded_decode_worker_is_taken),
        cmocka_unit_test(test_loss_before_the_first_token_moves_once),
        cmocka_unit_test(test_loss_in_mid_stream_goes_on_at_the_next_token),
        cmocka_unit_test(test_what_has_begun_stays_in_its_numerics_class),
        cmocka_unit_test(test_what_has_begun_waits_before_all_others),
        cmocka_unit_test(test_a_draining_worker_hands_its_sequences_over),
        cmocka_unit_test(test_a_role_that_changes_moves_its_sequences),
        cmocka_unit_test(test_a_refusal_that_is_the_requests_fault_is_final),
        cmocka_unit_test(test_deadline_ends_running_and_waiting),
        cmocka_unit_test(test_bounds_and_the_queue),
        cmocka_unit_test(test_a_stop_string_ends_one_choice_or_the_request),
        cmocka_unit_test(test_draining_workers_get_nothing_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
