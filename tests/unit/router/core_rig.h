/* core_rig.h - the router's core on a table: events written out by hand, the actions of the last step at hand.
 * Include the headers of cmocka first.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ROUTER_CORE_RIG_H
#define KVS_TESTS_ROUTER_CORE_RIG_H

#include <stdlib.h>
#include <string.h>

#include "router/core/router.h"

#define ACTS_MAX 64
struct bench {
    struct rtr *r;
    uint64_t now;
    struct rtr_action acts[ACTS_MAX];
    size_t n;
};

static const int32_t prompt[200] = {1, 2, 3};

static inline void setup(struct bench *b, void (*change)(struct rtr_config *))
{
    struct rtr_config c;
    rtr_config_default(&c);
    c.requests_max = 8;
    c.workers_max = 8;
    if (change)
        change(&c);
    memset(b, 0, sizeof(*b));
    b->now = 1000;
    assert_int_equal(rtr_create(&c, &b->r, NULL), KVS_OK);
}

static inline void step(struct bench *b, struct rtr_event ev)
{
    rtr_step(b->r, &ev, b->now);
    b->n = rtr_actions(b->r, b->acts, ACTS_MAX);
    struct rtr_action more;
    assert_int_equal(rtr_actions(b->r, &more, 1), 0);
}

static inline const struct rtr_action *act(const struct bench *b, size_t i, rtr_action_type type)
{
    assert_true(i < b->n);
    assert_int_equal(b->acts[i].type, type);
    return &b->acts[i];
}

static inline void up(struct bench *b, uint64_t key, const char *id, msg_role role)
{
    struct msg_card card;
    memset(&card, 0, sizeof(card));
    card.role = role;
    memcpy(card.id, id, strlen(id) + 1);
    step(b, (struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = key, .model = 7, .card = &card});
}

static inline void load(struct bench *b, uint64_t key, uint64_t outstanding, const char *peer)
{
    struct msg_load *l = calloc(1, sizeof(*l));
    l->outstanding_tokens = l->prefill_left = outstanding;
    if (peer) {
        l->peer_count = 1;
        memcpy(l->peers[0].id, peer, strlen(peer) + 1);
    }
    step(b, (struct rtr_event){.type = RTR_EV_LOAD, .worker = key, .load = l});
    free(l);
}

static inline struct rtr_request asking(uint64_t id, uint32_t tokens, uint32_t choices)
{
    struct rtr_request a;
    memset(&a, 0, sizeof(a));
    a.id = id;
    a.model = 7;
    a.choices = choices;
    a.tokens = prompt;
    a.token_count = tokens;
    a.max_tokens = 4;
    return a;
}

static inline void ask(struct bench *b, uint64_t id, uint32_t tokens, uint32_t choices)
{
    struct rtr_request a = asking(id, tokens, choices);
    step(b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
}

static inline void token(struct bench *b, uint64_t worker, uint64_t id, uint32_t attempt, uint32_t choice, uint32_t index, int32_t tok, msg_finish fin)
{
    struct msg_token t;
    memset(&t, 0, sizeof(t));
    t.request = id;
    t.attempt = attempt;
    t.choice = choice;
    t.index = index;
    t.id = tok;
    t.finish = fin;
    if (fin == MSG_FINISH_ERROR) {
        t.error = KVS_SELF_NUMERIC;
        memcpy(t.text, "NaN in layer 3", 15);
    }
    step(b, (struct rtr_event){.type = RTR_EV_TOKEN, .worker = worker, .token = &t});
}

static inline void end(struct bench *b, uint64_t worker, uint64_t id, uint32_t attempt, uint32_t choice, kvs_status s)
{
    step(b, (struct rtr_event){.type = RTR_EV_END, .worker = worker, .id = id, .attempt = attempt, .choice = choice, .status = s, .text = "why"});
}

static inline void idle_and_gone(struct bench *b)
{
    struct rtr_stats st;
    rtr_stats(b->r, &st);
    assert_int_equal(st.running + st.waiting, 0);
    assert_int_equal(st.outstanding_tokens, 0);
    assert_int_equal(st.sequences, 0);
    rtr_destroy(b->r);
}

static inline void down(struct bench *b, uint64_t key)
{
    step(b, (struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = key});
}

static inline void no_resume(struct rtr_config *c)
{
    c->resume = false;
}

static inline void tick_at(struct bench *b, uint64_t now)
{
    b->now = now;
    step(b, (struct rtr_event){.type = RTR_EV_TIMER});
}

static inline void life_up(struct bench *b, uint64_t key, const char *id, uint64_t epoch)
{
    struct msg_card card;
    memset(&card, 0, sizeof(card));
    card.role = MSG_ROLE_DECODE;
    card.epoch = epoch;
    memcpy(card.id, id, strlen(id) + 1);
    step(b, (struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = key, .model = 7, .card = &card});
}

#endif
