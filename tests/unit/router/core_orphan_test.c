/* core_orphan_test.c - what becomes of requests whose worker is lost when nobody else can take them, or when it seems to have died under them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/router/core_rig.h"

static void test_without_resuming_a_loss_is_an_error_at_once(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, no_resume);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    ask(&b, 1, 3, 1);
    token(&b, 10, 1, 1, 0, 0, 5, MSG_RUNNING);
    up(&b, 11, "decode-1", MSG_ROLE_DECODE);
    down(&b, 10);
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->status, KVS_PEER_LOST);
    idle_and_gone(&b);
}

/* The error comes 2.5 s after a crash, and 0.8 s after a silence of 2 s: within 3 s of the last word, as promised. */
static void test_nowhere_to_go_on_is_an_error_in_time(void **state)
{
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        struct bench b;
        setup(&b, NULL);
        up(&b, 10, "decode-0", MSG_ROLE_DECODE);
        ask(&b, 1, 3, 1);
        token(&b, 10, 1, 1, 0, 0, 5, MSG_RUNNING);
        up(&b, 20, "prefill-0", MSG_ROLE_PREFILL);
        uint64_t at = b.now + (silent ? 833333 : 2500000);
        if (silent)
            end(&b, 10, 1, 1, 0, KVS_PEER_TIMEOUT);
        down(&b, 10);
        assert_int_equal(b.n, 0);
        assert_int_equal(rtr_deadline_us(b.r), at);
        tick_at(&b, at - 1);
        assert_int_equal(b.n, 0);
        tick_at(&b, at);
        assert_int_equal(b.n, 1);
        assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->status, silent ? KVS_PEER_TIMEOUT : KVS_PEER_LOST);
        assert_true(b.acts[0].text[0] != 0);
        idle_and_gone(&b);
    }
}

/* The only worker is started again, or was merely cut off: its streams go on there, also what had not begun. */
static void test_orphans_go_on_when_a_worker_comes(void **state)
{
    (void)state;
    for (uint64_t epoch = 500; epoch < 502; epoch++) {
        struct bench b;
        struct rtr_stats st;
        setup(&b, NULL);
        life_up(&b, 10, "decode-0", 500);
        ask(&b, 1, 3, 2);
        ask(&b, 2, 3, 1);
        token(&b, 10, 1, 1, 0, 0, 5, MSG_RUNNING);
        down(&b, 10);
        assert_int_equal(b.n, 0);
        rtr_stats(b.r, &st);
        assert_int_equal(st.waiting, 2);
        assert_int_equal(st.resumed + st.replaced, 0); /* nothing has gone on yet */
        b.now += 2000000;
        life_up(&b, 11, "decode-0", epoch);
        assert_int_equal(b.n, 3);
        const struct rtr_action *a = act(&b, 0, RTR_ACT_GENERATE);
        assert_int_equal(a->worker, 11);
        assert_int_equal(a->attempt, 2);
        assert_int_equal(a->generate.first_index, 1);
        assert_int_equal(act(&b, 2, RTR_ACT_GENERATE)->id, 2);
        rtr_stats(b.r, &st);
        assert_int_equal(st.resumed, 1);
        assert_int_equal(st.replaced, 1);
        tick_at(&b, b.now + 5000000); /* no orphans any more */
        assert_int_equal(b.n, 0);
        for (uint64_t id = 1; id < 3; id++)
            step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = id});
        idle_and_gone(&b);
    }
}

static void started_again(struct rtr_config *c)
{
    c->restart_us = 100000000;
}

/* Somebody starts workers again, which may take long: what had one that crashed waits that long, and so does what comes meanwhile. Nobody starts
 * one again that hangs, or that a request has killed before. */
static void test_a_worker_that_is_started_again_is_waited_for(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) { /* 0: it comes; 1: it does not; 2: it hangs; 3: it has crashed twice */
        struct bench b;
        setup(&b, started_again);
        life_up(&b, 10, "decode-0", 500);
        ask(&b, 1, 3, 1);
        token(&b, 10, 1, 1, 0, 0, 5, MSG_RUNNING);
        if (how == 2) {
            step(&b, (struct rtr_event){.type = RTR_EV_SUSPECT, .worker = 10, .flag = true});
            end(&b, 10, 1, 1, 0, KVS_PEER_TIMEOUT);
        } else {
            end(&b, 10, 1, 1, 0, KVS_PEER_LOST); /* as the daemon does: its calls first */
        }
        down(&b, 10);
        uint64_t lost = b.now;
        if (how == 3) {
            b.now += 1000000;
            life_up(&b, 11, "decode-0", 501);
            assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->attempt, 2);
            down(&b, 11);
            lost = b.now;
        }
        assert_int_equal(rtr_deadline_us(b.r), lost + (how == 2 ? 833333 : how == 3 ? 2500000 : 100000000));
        b.now += 500000;
        ask(&b, 2, 3, 1);
        assert_int_equal(b.n, 0);
        if (how == 0) {
            tick_at(&b, lost + 99000000);
            assert_int_equal(b.n, 0);
            life_up(&b, 12, "decode-0", 502);
            assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->generate.first_index, 1);
            assert_int_equal(act(&b, 1, RTR_ACT_GENERATE)->id, 2);
            for (uint64_t id = 1; id < 3; id++)
                step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = id});
        } else {
            tick_at(&b, lost + (how == 2 ? 833333 : how == 3 ? 2500000 : 100000000));
            assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->id, 1);
            tick_at(&b, lost + (how == 2 ? 2500000 : 100000000));
        }
        idle_and_gone(&b);
    }
}

/* It crashed once, came back, and then left by its own will: nobody is missed any more, however long one would be waited for. */
static void test_one_that_came_back_and_left_is_not_missed(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        struct bench b;
        setup(&b, started_again);
        life_up(&b, 10, "decode-0", 500);
        life_up(&b, 11, "decode-1", 600);
        down(&b, 10);
        down(&b, 11);
        b.now += 1000000;
        life_up(&b, 12, same ? "decode-1" : "decode-7", 700);
        struct msg_card leaving = {.role = MSG_ROLE_DECODE, .epoch = 700, .draining = true};
        step(&b, (struct rtr_event){.type = RTR_EV_WORKER_CARD, .worker = 12, .card = &leaving});
        down(&b, 12);
        ask(&b, 1, 3, 1);
        assert_int_equal(b.n, 0); /* one of the two is still waited for */
        life_up(&b, 13, "decode-0", 501);
        assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->id, 1);
        step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 1});
        leaving.epoch = 501;
        step(&b, (struct rtr_event){.type = RTR_EV_WORKER_CARD, .worker = 13, .card = &leaving});
        down(&b, 13);
        ask(&b, 2, 3, 1);
        assert_int_equal(act(&b, 0, RTR_ACT_REJECT)->status, KVS_BUSY_NO_WORKER);
        idle_and_gone(&b);
    }
}

/* What has not begun may move to another numerics class, but nothing of what was computed for it: that one would not be fetched from. */
static void test_nothing_is_taken_along_to_another_class(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        struct bench b;
        setup(&b, NULL);
        struct msg_card card = {.role = MSG_ROLE_DECODE, .id = "decode-0", .numerics = "a16", .epoch = 500};
        step(&b, (struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = 10, .model = 7, .card = &card});
        ask(&b, 1, 3, 1);
        struct msg_card other = {.role = MSG_ROLE_DECODE, .id = "decode-1", .epoch = 501};
        kvs_format(other.numerics, sizeof(other.numerics), "%s", same ? "a16" : "a8");
        step(&b, (struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = 11, .model = 7, .card = &other});
        card.draining = true;
        step(&b, (struct rtr_event){.type = RTR_EV_WORKER_CARD, .worker = 10, .card = &card});
        assert_true(act(&b, 0, RTR_ACT_ABORT)->flag); /* keep; then, when it is of no use, the word that this is over */
        size_t at = same ? 1 : 2;
        assert_false(!same && act(&b, 1, RTR_ACT_ABORT)->flag);
        assert_int_equal(act(&b, at, RTR_ACT_GENERATE)->worker, 11);
        assert_string_equal(b.acts[at].generate.fetch_worker, same ? "decode-0" : "");
        step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 1});
        idle_and_gone(&b);
    }
}

/* The router itself was stopped: all streams are found closed, one after the other, and what moved from the first to the second is lost again.
 * Nobody has died: all come back as they were, and so do the requests. */
static void test_streams_lost_together_kill_nobody(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    life_up(&b, 10, "a", 500);
    life_up(&b, 11, "b", 501);
    life_up(&b, 12, "c", 502);
    ask(&b, 1, 3, 1);
    uint64_t first = b.acts[0].worker;
    token(&b, first, 1, 1, 0, 0, 5, MSG_RUNNING);
    end(&b, first, 1, 1, 0, KVS_PEER_LOST);
    uint64_t second = act(&b, 0, RTR_ACT_GENERATE)->worker;
    end(&b, second, 1, 2, 0, KVS_PEER_LOST);
    assert_int_equal(b.n, 0); /* two deaths: not a third worker, and no end yet */
    for (uint64_t k = 10; k < 13; k++)
        down(&b, k);
    assert_int_equal(b.n, 0);
    b.now += 40000;
    uint64_t third = first == 12 || second == 12 ? (first == 11 || second == 11 ? 10 : 11) : 12;
    life_up(&b, 100, "of which it knows nothing", 490 + third);
    assert_int_equal(b.n, 0);
    life_up(&b, 101, "the second", 490 + second);
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->id, 1);
    assert_int_equal(b.acts[0].generate.first_index, 1);
    step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 1});
    idle_and_gone(&b);
}

/* The worker lives, but each time the request reaches it the stream breaks: that is not to go on for ever. */
static void test_a_request_that_breaks_its_streams_is_given_up(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    uint64_t key = 10;
    life_up(&b, key, "a", 500);
    ask(&b, 1, 3, 1);
    uint32_t attempts = 1;
    for (; attempts < 100; attempts++) {
        down(&b, key);
        assert_int_equal(b.n, 0);
        life_up(&b, ++key, "a", 500);
        if (b.n == 0)
            break;
        assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->attempt, attempts + 1);
    }
    assert_in_range(attempts, 2, 10);
    tick_at(&b, b.now + 2500000);
    assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->status, KVS_PEER_LOST);
    idle_and_gone(&b);
}

static void test_a_request_that_kills_its_workers_is_given_up(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    for (uint64_t k = 10; k < 13; k++)
        life_up(&b, k, k == 10 ? "a" : k == 11 ? "b" : "c", 490 + k);
    ask(&b, 1, 3, 1);
    uint64_t first = b.acts[0].worker;
    token(&b, first, 1, 1, 0, 0, 5, MSG_RUNNING);
    down(&b, first);
    uint64_t second = act(&b, 0, RTR_ACT_GENERATE)->worker;
    assert_true(second != first);
    token(&b, second, 1, 2, 0, 1, 6, MSG_RUNNING);
    down(&b, second);
    assert_int_equal(b.n, 0);
    life_up(&b, 20, "a", 700); /* they are started again: new lives, so the old ones have ended */
    life_up(&b, 21, "b", 701);
    assert_int_equal(b.n, 0);
    ask(&b, 2, 3, 1); /* nobody waits behind it */
    assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->id, 2);
    tick_at(&b, b.now + 2500000);
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->status, KVS_PEER_LOST);
    assert_int_equal(b.acts[0].id, 1);
    step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 2});
    idle_and_gone(&b);
}

/* Those that come while the only worker is away wait as long as those that it had; a worker that left on purpose is not waited for. */
static void test_requests_that_come_a_moment_after_the_loss(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct bench b;
        setup(&b, NULL);
        life_up(&b, 10, "decode-0", 500);
        if (how == 2)
            step(&b, (struct rtr_event){.type = RTR_EV_WORKER_CARD, .worker = 10,
                                        .card = &(struct msg_card){.role = MSG_ROLE_DECODE, .epoch = 500, .draining = true}});
        down(&b, 10);
        uint64_t lost = b.now;
        b.now += 1000000;
        ask(&b, 1, 3, 1);
        if (how == 2) {
            assert_int_equal(act(&b, 0, RTR_ACT_REJECT)->status, KVS_BUSY_NO_WORKER);
            rtr_destroy(b.r);
            continue;
        }
        assert_int_equal(b.n, 0);
        assert_int_equal(rtr_deadline_us(b.r), lost + 2500000);
        if (how == 0) {
            life_up(&b, 11, "decode-0", 501);
            assert_int_equal(act(&b, 0, RTR_ACT_GENERATE)->worker, 11);
            step(&b, (struct rtr_event){.type = RTR_EV_GONE, .id = 1});
        } else {
            tick_at(&b, lost + 2500000);
            assert_int_equal(act(&b, 0, RTR_ACT_FINISH)->status, KVS_BUSY_NO_WORKER);
            assert_true(b.acts[0].retry_after_s >= 1);
            ask(&b, 2, 3, 1); /* nobody hopes any more */
            assert_int_equal(act(&b, 0, RTR_ACT_REJECT)->status, KVS_BUSY_NO_WORKER);
        }
        idle_and_gone(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_resuming_a_loss_is_an_error_at_once),
        cmocka_unit_test(test_nowhere_to_go_on_is_an_error_in_time),
        cmocka_unit_test(test_orphans_go_on_when_a_worker_comes),
        cmocka_unit_test(test_a_worker_that_is_started_again_is_waited_for),
        cmocka_unit_test(test_one_that_came_back_and_left_is_not_missed),
        cmocka_unit_test(test_nothing_is_taken_along_to_another_class),
        cmocka_unit_test(test_streams_lost_together_kill_nobody),
        cmocka_unit_test(test_requests_that_come_a_moment_after_the_loss),
        cmocka_unit_test(test_a_request_that_breaks_its_streams_is_given_up),
        cmocka_unit_test(test_a_request_that_kills_its_workers_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
