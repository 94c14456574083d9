/* core_place_test.c - placing as the whole core does it: waiting while prefill is behind, refusing what cannot be in time, fetching from whom the
 * cache events name. The sums behind it are tested in policy_test.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kvcache/hash.h"
#include "router/core/policy.h"
#include "tests/unit/router/core_rig.h"

/* A report of a worker that was measured: a millisecond a prompt token. */
static void measured_load(struct bench *b, uint64_t key, uint64_t left, const char *peer)
{
    struct msg_load *l = calloc(1, sizeof(*l));
    l->prefill_left = left;
    l->speed = (struct msg_speed){.prefill_token_s = 1e-3, .step_fixed_s = 0.01, .prefill_samples = 5, .step_samples = 5};
    if (peer) {
        l->peer_count = 1;
        memcpy(l->peers[0].id, peer, strlen(peer) + 1);
    }
    step(b, (struct rtr_event){.type = RTR_EV_LOAD, .worker = key, .load = l});
    free(l);
}

static void test_requests_wait_while_prefill_is_behind(void **state)
{
    (void)state;
    struct bench b;
    struct rtr_stats st;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    measured_load(&b, 10, 1100, NULL);
    ask(&b, 1, 100, 1);
    assert_int_equal(b.n, 0); /* 1.1 s of prompts are ahead: it waits here, without pages there */
    rtr_stats(b.r, &st);
    assert_int_equal(st.waiting, 1);
    b.now += 250000;
    measured_load(&b, 10, 900, NULL);
    const struct rtr_action *g = act(&b, 0, RTR_ACT_GENERATE);
    assert_int_equal(g->option_count, 1);
    assert_string_equal(g->options[0].decode, "decode-0");
    assert_true(g->options[0].cost.queue_s > 0.89 && g->options[0].cost.queue_s < 0.91);
    assert_true(g->options[0].cost.prefill_s > 0.099 && g->options[0].cost.prefill_s < 0.101);
    ask(&b, 2, 60, 1); /* behind 0.9 s and the 0.1 s that was just given: not over a second */
    act(&b, 0, RTR_ACT_GENERATE);
    ask(&b, 3, 10, 1); /* but now */
    assert_int_equal(b.n, 0);
    token(&b, 10, 1, 1, 0, 0, 50, MSG_RUNNING); /* that prompt is read */
    assert_int_equal(act(&b, 1, RTR_ACT_GENERATE)->id, 3);
    rtr_destroy(b.r);
}

static void test_a_deadline_that_cannot_be_met_is_said_at_once(void **state)
{
    (void)state;
    struct bench b;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    struct rtr_request a = asking(1, 200, 1);
    a.deadline_us = b.now + 100000;
    step(&b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
    act(&b, 0, RTR_ACT_GENERATE); /* nothing is measured: nobody is refused */
    token(&b, 10, 1, 1, 0, 0, 5, MSG_FINISH_STOP);
    measured_load(&b, 10, 950, NULL);
    a = asking(2, 200, 1);
    a.deadline_us = b.now + 100000; /* the first token would come after 1.15 s */
    step(&b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
    assert_int_equal(b.n, 1);
    assert_int_equal(act(&b, 0, RTR_ACT_REJECT)->status, KVS_BUSY_QUEUE);
    assert_int_equal(b.acts[0].retry_after_s, 2);
    assert_non_null(strstr(b.acts[0].text, "deadline"));
    a.id = 3;
    a.deadline_us = b.now + 1200000;
    step(&b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
    act(&b, 0, RTR_ACT_GENERATE);
    rtr_destroy(b.r);
}

/* Reports are 250 ms old at most. In that time a chat's next turn comes: the stream that has just ended must not count as one that would be held
 * up, or the turn is read away from its own cache. */
static void test_a_stream_that_ended_since_the_report_is_not_running(void **state)
{
    (void)state;
    struct bench b;
    struct rtr_stats st;
    setup(&b, NULL);
    up(&b, 10, "decode-0", MSG_ROLE_DECODE);
    struct msg_load *l = calloc(1, sizeof(*l));
    l->speed = (struct msg_speed){.prefill_token_s = 1e-3, .step_fixed_s = 0.01, .step_sequence_s = 0.05, .step_context_s = 1e-4, .prefill_samples = 99,
                                  .step_samples = 99};
    ask(&b, 1, 100, 1);
    token(&b, 10, 1, 1, 0, 0, 50, MSG_RUNNING);
    ask(&b, 2, 100, 1);
    token(&b, 10, 2, 1, 0, 0, 50, MSG_RUNNING);
    l->decoding = 3; /* one of another router */
    l->context_tokens = 101 + 101 + 300;
    step(&b, (struct rtr_event){.type = RTR_EV_LOAD, .worker = 10, .load = l});
    token(&b, 10, 1, 1, 0, 1, 51, MSG_FINISH_STOP);
    ask(&b, 3, 100, 1);
    /* it joins request 2 and the stranger: 100 tokens, in their one step 50 ms a sequence and contexts of 502 - 102 */
    const struct rtr_action *g = act(&b, 0, RTR_ACT_GENERATE);
    double want = 0.1 + 2 * 0.05 + 400 * 1e-4;
    assert_true(g->options[0].cost.prefill_s > want - 1e-9 && g->options[0].cost.prefill_s < want + 1e-9);
    /* one that no report has counted takes nobody else out of it when it ends */
    token(&b, 10, 3, 1, 0, 0, 50, MSG_FINISH_STOP);
    ask(&b, 4, 100, 1);
    g = act(&b, 0, RTR_ACT_GENERATE);
    assert_true(g->options[0].cost.prefill_s > want - 1e-9 && g->options[0].cost.prefill_s < want + 1e-9);
    free(l);
    rtr_stats(b.r, &st);
    assert_int_equal(st.running, 2);
    rtr_destroy(b.r);
}

static void card_up(struct bench *b, uint64_t key, const char *id)
{
    struct msg_card card;
    memset(&card, 0, sizeof(card));
    card.role = MSG_ROLE_DECODE;
    memcpy(card.id, id, strlen(id) + 1);
    card.block_tokens = 16;
    card.group_count = 1;
    card.group[0].page_bytes = 1000;
    step(b, (struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = key, .model = 7, .card = &card});
}

static void test_cached_blocks_are_fetched_from_a_busy_owner(void **state)
{
    (void)state;
    struct bench b;
    struct kvc_hash root, chain[10];
    static const uint8_t fingerprint[32];
    static const uint32_t lengths[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    setup(&b, NULL);
    card_up(&b, 10, "decode-0");
    card_up(&b, 11, "decode-1");
    struct kvc_root_fields fields = {.fingerprint = {fingerprint, 32}, .block_tokens = 16};
    assert_int_equal(kvc_hash_root(&fields, &root), KVS_OK);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(kvc_hash_block(i ? &chain[i - 1] : &root, prompt + i * 16, 16, NULL, 0, &chain[i]), KVS_OK);
    struct msg_cache_digest d = {.hashes = chain[0].bytes, .blocks = lengths, .count = 10};
    step(&b, (struct rtr_event){.type = RTR_EV_CACHE, .worker = 11, .digest = &d});
    measured_load(&b, 10, 0, "decode-1");
    measured_load(&b, 11, 0, "decode-0");
    ask(&b, 1, 200, 1);
    const struct rtr_action *g = act(&b, 0, RTR_ACT_GENERATE);
    assert_int_equal(g->worker, 11); /* who has it computes the rest */
    assert_string_equal(g->generate.fetch_worker, "");
    assert_int_equal(g->options[0].cached_tokens, 160);
    token(&b, 11, 1, 1, 0, 0, 5, MSG_FINISH_STOP);
    measured_load(&b, 11, 900, "decode-0");
    ask(&b, 2, 200, 1);
    g = act(&b, 0, RTR_ACT_GENERATE);
    assert_int_equal(g->worker, 10); /* it is busy: the pages come over */
    assert_string_equal(g->generate.fetch_worker, "decode-1");
    assert_int_equal(g->generate.fetch_tokens, 160);
    assert_int_equal(g->generate.placement, MSG_PLACE_LOCAL);
    struct rtr_request a = asking(3, 200, 1);
    memcpy(a.cache_salt, "x", 2); /* another salt: other blocks */
    step(&b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
    g = act(&b, 0, RTR_ACT_GENERATE);
    assert_string_equal(g->generate.fetch_worker, "");
    assert_int_equal(g->options[0].cached_tokens, 0);
    a = asking(4, 200, 1);
    memcpy(a.fetch_worker, "decode-1", 9); /* a client that says whom to ask is believed: no other knowledge counts */
    step(&b, (struct rtr_event){.type = RTR_EV_REQUEST, .request = &a});
    g = act(&b, 0, RTR_ACT_GENERATE);
    assert_string_equal(g->generate.fetch_worker, "decode-1");
    assert_int_equal(g->generate.fetch_tokens, 200);
    assert_int_equal(g->options[0].cached_tokens, 0);
    rtr_destroy(b.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_wait_while_prefill_is_behind),
        cmocka_unit_test(test_a_deadline_that_cannot_be_met_is_said_at_once),
        cmocka_unit_test(test_a_stream_that_ended_since_the_report_is_not_running),
        cmocka_unit_test(test_cached_blocks_are_fetched_from_a_busy_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
