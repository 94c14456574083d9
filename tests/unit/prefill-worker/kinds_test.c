/* kinds_test.c - what a source may be asked for where windows and states are: pages that it will not have are refused at once, since nobody
 * could wait for them. Layers: full, window of 6, state; blocks of 4 tokens; a prompt of 30.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "prefill-worker/core/prefill.h"
#include "tests/unit/worker/fake_device.h"

enum { FULL, WINDOW, STATE, TOKENS = 30 };

struct bench {
    struct kvc_layout l;
    struct wrk_sched *s;
    struct pfw *p;
    int32_t ids[TOKENS];
    uint32_t calls;
};

static void open_bench(struct bench *b)
{
    struct kvc_layer y[3] = {
        {.count = 1, .cache = {{.kind = KVC_FULL, .kv_heads = 1, .key_dim = 4, .value_dim = 4}}},
        {.count = 1, .cache = {{.kind = KVC_WINDOW, .window = 6, .kv_heads = 1, .key_dim = 4, .value_dim = 4}}},
        {.count = 1, .cache = {{.kind = KVC_STATE, .state_bytes = 8}}}};
    struct kvs_rng rng = {1};
    *b = (struct bench){.calls = 0};
    fake_prompt(&rng, b->ids, TOKENS);
    assert_int_equal(
        kvc_layout_build(&(struct kvc_layout_config){.layers = 3, .layer = y, .block_tokens = 4}, &b->l, NULL), KVS_OK);
    struct wrk_sched_config sc = {
        .layout = &b->l, .pages = {40, 20, 12}, .seqs_max = 4, .context = 100, .chunk_tokens = 10, .tree_nodes = 40};
    assert_int_equal(wrk_sched_create(&sc, &b->s, NULL), KVS_OK);
    struct pfw_config pc = {.sched = b->s, .calls_max = 4, .vocab = FAKE_VOCAB};
    assert_int_equal(pfw_create(&pc, &b->p, NULL), KVS_OK);
    pfw_step(b->p, &(struct pfw_event){.kind = PFW_EV_PEER_UP, .peer = 1}, 1);
}

/* The status that a call for this one page ends with at once; KVS_OK: it was taken. */
static kvs_status ask(struct bench *b, bool fetch, uint32_t tokens, uint32_t group, uint32_t block)
{
    struct msg_want want = {.block = block, .group = group};
    struct msg_prefill m = {.xfer = 1, .tokens = b->ids, .token_count = tokens, .wants = &want, .want_count = 1};
    struct pfw_action a;
    struct pfw_event ev = {
        .kind = PFW_EV_CALL, .conn = 1, .stream = 1 + 2 * b->calls++, .peer = 1, .call = {.msg = &m, .fetch = fetch}};
    kvs_status st = KVS_OK;
    pfw_step(b->p, &ev, 2);
    while (pfw_actions(b->p, &a, 1) > 0)
        if (a.kind == PFW_ACT_END)
            st = a.end.end.status;
    ev.kind = PFW_EV_CANCEL;
    pfw_step(b->p, &ev, 3);
    while (pfw_actions(b->p, &a, 1) > 0) {
    }
    return st;
}

static void test_only_pages_that_will_be_there(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(ask(&b, false, TOKENS, FULL, i), KVS_OK);
        /* the last 6 tokens before 28 begin in block 5; states: after 28 tokens and after 30 */
        assert_int_equal(ask(&b, false, TOKENS, WINDOW, i), i >= 5 ? KVS_OK : KVS_REQ_INVALID);
        assert_int_equal(ask(&b, false, TOKENS, STATE, i), i >= 6 ? KVS_OK : KVS_REQ_INVALID);
    }
    assert_int_equal(ask(&b, false, 3, STATE, 0), KVS_OK); /* shorter than a block: its end alone */
    assert_int_equal(ask(&b, false, 3, WINDOW, 0), KVS_OK);
    /* a fetch of 28: nothing is cached, but what cannot be there is another error */
    assert_int_equal(ask(&b, true, 28, STATE, 6), KVS_REQ_NOT_FOUND);
    assert_int_equal(ask(&b, true, 28, STATE, 5), KVS_REQ_INVALID);
    assert_int_equal(ask(&b, true, 28, WINDOW, 5), KVS_REQ_NOT_FOUND);
    assert_int_equal(ask(&b, true, 28, WINDOW, 4), KVS_REQ_INVALID);
    pfw_destroy(b.p);
    wrk_sched_destroy(b.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_only_pages_that_will_be_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
