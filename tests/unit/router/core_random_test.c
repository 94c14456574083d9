/* core_random_test.c - the router's core under random events: workers that come, refuse, repeat themselves and die; clients that leave, pause
 * and stop; time that jumps. A naive record of each request says what may be delivered: every request ends exactly once, tokens come in
 * order without a hole, a later attempt begins where the client is, nothing comes after the end, and at rest no worker's account holds anything. Seeds are printed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "router/core/router.h"

#define REQUESTS 1000
#define CALLS_MAX 4096
#define WORKERS 6

struct call {
    bool open;
    uint64_t worker, id;
    uint32_t attempt, choice, next, max;
};
struct record {
    bool asked, ended, resumed;
    uint32_t choices, delivered[RTR_CHOICES_MAX];
    bool choice_over[RTR_CHOICES_MAX];
};
struct world {
    struct rtr *r;
    struct kvs_rng rng;
    uint64_t now, next_key;
    uint64_t worker[WORKERS]; /* key, 0: down */
    struct call calls[CALLS_MAX];
    uint32_t call_count;
    struct record rec[REQUESTS + 1];
    uint32_t asked, ends, tokens, generates, resumed_ok;
};

static int32_t token_value(uint64_t id, uint32_t choice, uint32_t index)
{
    return (int32_t)(id * 1000 + choice * 100 + index);
}

static void take(struct world *w, const struct rtr_action *a)
{
    struct record *q = a->id ? &w->rec[a->id] : NULL;
    struct call *c;
    switch (a->type) {
    case RTR_ACT_GENERATE:
        assert_true(w->call_count < CALLS_MAX);
        assert_false(q->ended);
        c = &w->calls[w->call_count++];
        *c = (struct call){true, a->worker, a->id, a->generate.attempt, a->choice, a->generate.first_index, a->generate.max_tokens};
        assert_int_equal(a->generate.first_index, q->delivered[a->choice]);
        assert_int_equal(a->generate.token_count, a->generate.prompt_count + a->generate.first_index);
        for (uint32_t i = 0; i < a->generate.first_index; i++)
            assert_int_equal(a->generate.tokens[a->generate.prompt_count + i], token_value(a->id, a->choice, i));
        assert_false(q->choice_over[a->choice]);
        q->resumed |= a->generate.first_index > 0;
        w->generates++;
        break;
    case RTR_ACT_ABORT:
        for (uint32_t i = 0; i < w->call_count; i++)
            if (w->calls[i].worker == a->worker && w->calls[i].id == a->id && w->calls[i].attempt <= a->attempt)
                w->calls[i].open = kvs_rng_below(&w->rng, 4) == 0; /* some go on for a while: entries that come too late */
        break;
    case RTR_ACT_CANCEL:
    case RTR_ACT_PAUSE: break;
    case RTR_ACT_SNAPSHOT: fail_msg("a snapshot, though no cache event came"); break;
    case RTR_ACT_TOKEN:
        assert_true(q->asked);
        assert_false(q->ended);
        assert_false(q->choice_over[a->choice]);
        if (a->token->id >= 0) {
            assert_int_equal(a->token->index, q->delivered[a->choice]);
            assert_int_equal(a->token->id, token_value(a->id, a->choice, q->delivered[a->choice]));
            q->delivered[a->choice]++;
            w->tokens++;
        }
        if (a->token->finish != MSG_RUNNING)
            q->choice_over[a->choice] = true;
        break;
    case RTR_ACT_FINISH:
    case RTR_ACT_REJECT:
        assert_true(q->asked);
        assert_false(q->ended);
        q->ended = true;
        w->ends++;
        w->resumed_ok += q->resumed && a->status == KVS_OK;
        if (a->status == KVS_OK)
            for (uint32_t i = 0; i < q->choices; i++)
                assert_true(q->choice_over[i]);
        break;
    }
}

static void step(struct world *w, const struct rtr_event *ev)
{
    struct rtr_action a[3];
    size_t n;
    rtr_step(w->r, ev, w->now);
    while ((n = rtr_actions(w->r, a, 3)) > 0)
        for (size_t i = 0; i < n; i++)
            take(w, &a[i]);
}

static void ask(struct world *w)
{
    static const int32_t prompt[100] = {4, 5, 6};
    if (w->asked == REQUESTS)
        return;
    struct rtr_request q;
    memset(&q, 0, sizeof(q));
    q.id = ++w->asked;
    q.model = 1;
    q.choices = 1 + (uint32_t)kvs_rng_below(&w->rng, 3);
    q.tokens = prompt;
    q.token_count = 1 + (uint32_t)kvs_rng_below(&w->rng, 100);
    q.max_tokens = 1 + (uint32_t)kvs_rng_below(&w->rng, 90);
    w->rec[q.id] = (struct record){.asked = true, .choices = q.choices};
    step(w, &(struct rtr_event){.type = RTR_EV_REQUEST, .request = &q});
}

/* One entry from a random open call: mostly the next token, sometimes one that was sent before, sometimes the last one. */
static void speak(struct world *w)
{
    if (!w->call_count)
        return;
    struct call *c = &w->calls[kvs_rng_below(&w->rng, w->call_count)];
    bool alive = false;
    for (uint32_t i = 0; i < WORKERS; i++)
        alive |= w->worker[i] == c->worker;
    if (!c->open || !alive) {
        *c = w->calls[--w->call_count];
        return;
    }
    struct msg_token t;
    memset(&t, 0, sizeof(t));
    t.request = c->id;
    t.attempt = c->attempt;
    t.choice = c->choice;
    uint64_t dice = kvs_rng_below(&w->rng, 100);
    t.index = c->next && dice < 10 ? (uint32_t)kvs_rng_below(&w->rng, c->next) : c->next++;
    t.id = token_value(c->id, c->choice, t.index);
    if (t.index + 1 == c->max)
        t.finish = MSG_FINISH_LENGTH;
    else if (t.index + 1 == c->next && dice > 95)
        t.finish = dice == 99 ? MSG_FINISH_ERROR : MSG_FINISH_STOP;
    if (t.finish == MSG_FINISH_ERROR)
        t.error = kvs_rng_below(&w->rng, 2) ? KVS_BUSY_PAGES : KVS_SELF_STOPPING;
    if (dice == 98 && t.finish == MSG_FINISH_STOP) {
        t.id = -1;
        c->next--;
    }
    uint64_t worker = c->worker, id = c->id;
    uint32_t attempt = c->attempt, choice = c->choice;
    if (t.finish != MSG_RUNNING && t.index + 1 >= c->next)
        c->open = false;
    bool over = !c->open;
    step(w, &(struct rtr_event){.type = RTR_EV_TOKEN, .worker = worker, .token = &t});
    if (over)
        step(w, &(struct rtr_event){.type = RTR_EV_END, .worker = worker, .id = id, .attempt = attempt, .choice = choice});
}

static void refuse(struct world *w)
{
    if (!w->call_count)
        return;
    struct call *c = &w->calls[kvs_rng_below(&w->rng, w->call_count)];
    if (!c->open)
        return;
    c->open = false;
    kvs_status s = kvs_rng_below(&w->rng, 2) ? KVS_BUSY_QUEUE : KVS_OK;
    step(w, &(struct rtr_event){.type = RTR_EV_END, .worker = c->worker, .id = c->id, .attempt = c->attempt, .choice = c->choice, .status = s});
}

static void worker_changes(struct world *w, uint32_t i, bool up)
{
    if (up && !w->worker[i]) {
        struct msg_card card;
        memset(&card, 0, sizeof(card));
        card.role = i < 2 ? MSG_ROLE_PREFILL : i < 5 ? MSG_ROLE_DECODE : MSG_ROLE_BOTH;
        card.id[0] = (char)('a' + i);
        w->worker[i] = ++w->next_key;
        step(w, &(struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = w->worker[i], .model = 1, .card = &card});
        struct msg_load *l = calloc(1, sizeof(*l));
        l->peer_count = 2;
        l->peers[0].id[0] = 'a';
        l->peers[1].id[0] = 'b';
        step(w, &(struct rtr_event){.type = RTR_EV_LOAD, .worker = w->worker[i], .load = l});
        free(l);
    } else if (!up && w->worker[i]) {
        uint64_t key = w->worker[i];
        w->worker[i] = 0;
        step(w, &(struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = key});
    }
}

static void worker_drains(struct world *w, uint32_t i)
{
    struct msg_load *l = calloc(1, sizeof(*l));
    l->draining = true;
    if (w->worker[i])
        step(w, &(struct rtr_event){.type = RTR_EV_LOAD, .worker = w->worker[i], .load = l});
    free(l);
}

static void client_acts(struct world *w, uint64_t dice)
{
    if (!w->asked)
        return;
    uint64_t id = 1 + kvs_rng_below(&w->rng, w->asked);
    if (dice < 2) {
        step(w, &(struct rtr_event){.type = RTR_EV_GONE, .id = id});
    } else if (dice < 4) {
        uint32_t choice = (uint32_t)kvs_rng_below(&w->rng, w->rec[id].choices);
        if (!w->rec[id].ended)
            w->rec[id].choice_over[choice] = true; /* from now on nothing of it may be delivered */
        step(w, &(struct rtr_event){.type = RTR_EV_CHOICE_STOP, .id = id, .choice = choice});
    } else {
        step(w, &(struct rtr_event){.type = RTR_EV_PAUSE, .id = id, .flag = dice == 4});
    }
}

static void run(uint64_t seed, bool resume)
{
    struct world *w = calloc(1, sizeof(*w));
    w->rng.state = seed;
    struct rtr_config c;
    rtr_config_default(&c);
    c.requests_max = 24;
    c.queue_max = 8;
    c.workers_max = WORKERS;
    c.worker_sequences_max = 6;
    c.deadline_us = 300000;
    c.resume = resume;
    c.deaths_max = 3;
    c.orphan_us = seed % 3 * 2000;
    assert_int_equal(rtr_create(&c, &w->r, NULL), KVS_OK);
    for (uint32_t round = 0; round < 20000; round++) {
        uint64_t dice = kvs_rng_below(&w->rng, 1000);
        w->now += kvs_rng_below(&w->rng, 200);
        if (dice < 40)
            ask(w);
        else if (dice < 55)
            client_acts(w, kvs_rng_below(&w->rng, 6));
        else if (dice < 62)
            refuse(w);
        else if (dice < 80)
            worker_changes(w, (uint32_t)kvs_rng_below(&w->rng, WORKERS), kvs_rng_below(&w->rng, 3) > 0);
        else if (dice < 82)
            worker_drains(w, (uint32_t)kvs_rng_below(&w->rng, WORKERS));
        else if (dice < 100)
            step(w, &(struct rtr_event){.type = RTR_EV_TIMER});
        else
            speak(w);
        uint64_t at = rtr_deadline_us(w->r);
        assert_true(at == RTR_NEVER || at + 300001 > w->now);
    }
    for (uint32_t i = 0; i < WORKERS; i++)
        worker_changes(w, i, false);
    w->now += c.orphan_us;
    step(w, &(struct rtr_event){.type = RTR_EV_TIMER}); /* nobody came back for the orphans */
    struct rtr_stats st;
    rtr_stats(w->r, &st);
    printf("seed %llu: %u asked, %u ended, %u tokens, %llu ok (%u resumed), %llu replaced, %llu resumed, %llu moved, %llu late, %llu duplicates\n",
           (unsigned long long)seed, w->asked, w->ends, w->tokens, (unsigned long long)st.finished_ok, w->resumed_ok,
           (unsigned long long)st.replaced, (unsigned long long)st.resumed, (unsigned long long)st.moved, (unsigned long long)st.late,
           (unsigned long long)st.duplicates);
    assert_int_equal(w->ends, w->asked);
    assert_int_equal(st.running + st.waiting, 0);
    assert_int_equal(st.outstanding_tokens, 0);
    assert_int_equal(st.sequences, 0);
    assert_true(w->asked > 100 && w->tokens > 1000 && st.finished_ok > 10 && st.replaced > 0 && st.late > 0 && st.duplicates > 0);
    assert_int_equal(st.resumed > 0 && st.moved > 0 && w->resumed_ok > 0, resume);
    rtr_destroy(w->r);
    free(w);
}

static void test_every_request_ends_once_under_random_events(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++)
        run(seed, true);
}

static void test_without_resuming_nothing_goes_on_elsewhere(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++)
        run(seed, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_request_ends_once_under_random_events),
                                       cmocka_unit_test(test_without_resuming_nothing_goes_on_elsewhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
