/* core_nomem_test.c - the router's core while one allocation fails, every one in turn: in its making, and in a story that touches everything
 * (two workers with links and cache events, a request of two choices that is resumed at the second worker). Whatever fails, the request ends
 * once, with its answer or with KVS_SELF_NOMEM; the next one is served; nothing stays charged to anybody, and no memory is left behind.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/nomem.h"
#include "tests/unit/router/core_rig.h"

#define CHOICES 2u
#define ANSWER 40u /* more than the first piece of memory for emitted ids */
#define DIES_AT 35u

struct story {
    struct bench b;
    uint64_t id, worker;
    uint32_t attempt, next[CHOICES], delivered[CHOICES];
    bool live[CHOICES];
    uint32_t ends, attempts;
    kvs_status status;
};

static int32_t token_of(uint32_t choice, uint32_t index)
{
    return (int32_t)(1000 * (choice + 1) + index);
}

static void take_generate(struct story *s, const struct rtr_action *a)
{
    const struct msg_generate *g = &a->generate;
    assert_true(g->choice < CHOICES);
    assert_int_equal(g->token_count, 20 + g->first_index);
    assert_memory_equal(g->tokens, prompt, 20 * sizeof(*prompt));
    for (uint32_t i = 0; i < g->first_index; i++)
        assert_int_equal(g->tokens[20 + i], token_of(g->choice, i));
    s->attempts += s->attempt != a->attempt;
    s->worker = a->worker;
    s->attempt = a->attempt;
    s->next[g->choice] = g->first_index;
    s->live[g->choice] = true;
}

static void feed(struct story *s, struct rtr_event ev)
{
    step(&s->b, ev);
    for (size_t i = 0; i < s->b.n; i++) {
        const struct rtr_action *a = &s->b.acts[i];
        if (a->type == RTR_ACT_GENERATE) {
            take_generate(s, a);
        } else if (a->type == RTR_ACT_TOKEN) {
            assert_int_equal(a->token->index, s->delivered[a->choice]++);
            assert_int_equal(a->token->id, token_of(a->choice, a->token->index));
        } else if (a->type == RTR_ACT_FINISH || a->type == RTR_ACT_REJECT) {
            s->ends++;
            s->status = a->status;
            assert_true(a->status == KVS_OK || strstr(a->text, "out of memory"));
        }
    }
}

static void speak(struct story *s, uint32_t choice)
{
    struct msg_token t = {.request = s->id, .attempt = s->attempt, .choice = choice, .index = s->next[choice]};
    t.id = token_of(choice, t.index);
    t.finish = t.index + 1 == ANSWER ? MSG_FINISH_LENGTH : MSG_RUNNING;
    s->next[choice]++;
    s->live[choice] = t.finish == MSG_RUNNING;
    feed(s, (struct rtr_event){.type = RTR_EV_TOKEN, .worker = s->worker, .token = &t});
}

static void speak_to(struct story *s, uint32_t index)
{
    for (uint32_t c = 0; c < CHOICES; c++)
        while (!s->ends && s->live[c] && s->next[c] < index)
            speak(s, c);
}

static void join(struct story *s, uint64_t key)
{
    static struct msg_card card;
    static struct msg_load l;
    static uint8_t hashes[2 * MSG_BLOCK_HASH_BYTES] = {1, [MSG_BLOCK_HASH_BYTES] = 2};
    uint32_t depths[2] = {1, 2};
    struct msg_cache_events all = {.snapshot_begin = true, .snapshot_end = true, .hashes = hashes, .depths = depths, .count = 2};
    memset(&card, 0, sizeof(card));
    card.role = MSG_ROLE_BOTH;
    card.epoch = key;
    card.block_tokens = 4;
    kvs_format(card.id, sizeof(card.id), "w%u", (unsigned)key);
    feed(s, (struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = key, .model = 7, .card = &card});
    l.peer_count = 3;
    for (uint32_t i = 0; i < l.peer_count; i++)
        kvs_format(l.peers[i].id, sizeof(l.peers[i].id), "w%u", (unsigned)(key + i + 1));
    feed(s, (struct rtr_event){.type = RTR_EV_LOAD, .worker = key, .load = &l});
    feed(s, (struct rtr_event){.type = RTR_EV_CACHE, .worker = key, .cache = &all});
}

static void begin(struct story *s, uint64_t id)
{
    struct rtr_request a = asking(id, 20, CHOICES);
    struct bench b = s->b;
    *s = (struct story){.b = b, .id = id};
    a.max_tokens = ANSWER;
    a.placement = MSG_PLACE_LOCAL;
    feed(s, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
}

/* One request, from the making of the fleet to its end; the worker that has it goes away in the middle. */
static void tell(struct story *s)
{
    join(s, 1);
    join(s, 2);
    begin(s, 10);
    speak_to(s, DIES_AT);
    uint64_t dead = s->worker;
    if (!s->ends && dead)
        feed(s, (struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = dead});
    speak_to(s, ANSWER);
}

static void check_idle(const struct story *s)
{
    struct rtr_stats st;
    rtr_stats(s->b.r, &st);
    assert_int_equal(st.running + st.waiting, 0);
    assert_int_equal(st.outstanding_tokens, 0);
    assert_int_equal(st.sequences, 0);
    assert_int_equal(st.accepted, st.finished_ok + st.failed);
}

static void test_story(void **state)
{
    (void)state;
    uint32_t failed = 0, went_on = 0;
    int64_t before = tst_nomem_live();
    for (int64_t n = 0;; n++) {
        static struct story s;
        memset(&s, 0, sizeof(s));
        setup(&s.b, NULL);
        tst_nomem_arm(n);
        tell(&s);
        bool reached = tst_nomem_disarm();
        assert_int_equal(s.ends, 1);
        assert_true(s.status == KVS_OK || (reached && s.status == KVS_SELF_NOMEM));
        assert_true(s.status != KVS_OK || (s.delivered[0] == ANSWER && s.delivered[1] == ANSWER && s.attempts == 2));
        failed += reached && s.status != KVS_OK;
        went_on += reached && s.status == KVS_OK;
        check_idle(&s);
        join(&s, 3);
        begin(&s, 11);
        speak_to(&s, ANSWER);
        assert_int_equal(s.ends, 1);
        assert_int_equal(s.status, KVS_OK);
        assert_int_equal(s.delivered[0] + s.delivered[1], 2 * ANSWER);
        check_idle(&s);
        rtr_destroy(s.b.r);
        assert_int_equal(tst_nomem_live(), before);
        if (!reached)
            break;
    }
    assert_int_equal(failed, 1 + 2 * 2 + 2); /* the prompt's copy; the first and the second piece of each answer; prompt and answer joined */
    assert_int_equal(went_on, 2 + 1);        /* each worker's list of links; the names of the prompt's blocks */
}

static void test_create(void **state)
{
    (void)state;
    struct rtr_config c;
    rtr_config_default(&c);
    c.requests_max = c.workers_max = 4;
    c.index_bytes = 65536;
    int64_t before = tst_nomem_live(), n = 0;
    for (bool reached = true; reached; n++) {
        struct rtr *r = NULL;
        struct kvs_error e = {0};
        tst_nomem_arm(n);
        kvs_status s = rtr_create(&c, &r, &e);
        reached = tst_nomem_disarm();
        assert_int_equal(s, reached ? KVS_SELF_NOMEM : KVS_OK);
        assert_true(reached ? r == NULL && strstr(e.text, "out of memory") : r != NULL);
        rtr_destroy(r);
        assert_int_equal(tst_nomem_live(), before);
    }
    assert_true(n > 15);
    /* What is too small is not out of memory. */
    struct rtr *r = NULL;
    struct kvs_error e = {0};
    c.index_bytes = 300;
    assert_int_equal(rtr_create(&c, &r, &e), KVS_SELF_CONFIG);
    assert_non_null(strstr(e.text, "index"));
    assert_int_equal(tst_nomem_live(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_create), cmocka_unit_test(test_story)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
