/* nomem_test.c - FETCH and PREFILL calls while one allocation fails, every one in turn, with a cache behind them: the call ends with
 * KVS_SELF_NOMEM and all pages are where they were, or goes on; the machine serves the next call; no memory is left behind.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "prefill-worker/core/prefill.h"
#include "tests/support/nomem.h"
#include "tests/unit/worker/fake_device.h"

#define PAGES 20u
#define TOKENS 12u

struct bench {
    struct kvc_layout l;
    struct wrk_sched *s;
    struct fake_kv kv;
    struct pfw *p;
    int32_t ids[64];
};

static void check(const struct bench *b)
{
    struct kvs_error err = {.text = ""};
    if (!wrk_sched_consistent(b->s, &err))
        fail_msg("%s", err.text);
}

/* Twelve tokens, three blocks, are computed and stay in the cache. */
static void bench_init(struct bench *b)
{
    struct kvs_rng rng = {3};
    struct wrk_result results[8];
    const struct wrk_step *step;
    wrk_seq_id id;
    memset(b, 0, sizeof *b);
    b->l = fake_layout(3, 4, 2);
    struct wrk_sched_config c = {.layout = &b->l, .pages = {PAGES, PAGES}, .seqs_max = 4, .context = 60, .chunk_tokens = 16, .tree_nodes = 32,
                                 .model = {.numerics = "n", .kv_types = "k=f32,v=f32", .rope = "r"}};
    assert_int_equal(wrk_sched_create(&c, &b->s, NULL), KVS_OK);
    fake_kv_init(&b->kv, &b->l, c.pages);
    fake_prompt(&rng, b->ids, 64);
    struct wrk_seq_config q = {.owner = WRK_OWNER_DECODE, .tokens = b->ids, .token_count = TOKENS, .tokens_max = TOKENS + 1, .logits = WRK_LOGITS_SAMPLE};
    assert_int_equal(wrk_seq_open(b->s, &q, &id, NULL), KVS_OK);
    wrk_sched_admit(b->s);
    while ((step = wrk_sched_next_step(b->s)) != NULL) {
        fake_zero(&b->kv, b->s);
        fake_run(&b->kv, b->s, step, results, NULL);
        assert_true(wrk_sched_step_done(b->s, step->id, KVS_OK, results));
    }
    wrk_seq_close(b->s, id);
    assert_int_equal(wrk_sched_pages(b->s, 0).cached, 3);
    struct pfw_config pc = {.sched = b->s, .calls_max = 2, .vocab = FAKE_VOCAB};
    assert_int_equal(pfw_create(&pc, &b->p, NULL), KVS_OK);
    pfw_step(b->p, &(struct pfw_event){.kind = PFW_EV_PEER_UP}, 1);
}

static void bench_fini(struct bench *b)
{
    pfw_destroy(b->p);
    check(b);
    wrk_sched_destroy(b->s);
    fake_kv_fini(&b->kv);
}

static void fail_each(bool fetch, uint32_t least, size_t actions, uint32_t held)
{
    struct bench b;
    struct pfw_action a[8];
    const struct msg_want wants[] = {{0, 0}, {1, 0}, {1, 1}};
    int64_t before = tst_nomem_live();
    bench_init(&b);
    struct msg_prefill m = {.tokens = b.ids, .token_count = TOKENS, .wants = wants, .want_count = 3, .logits = !fetch};
    struct pfw_event call = {.kind = PFW_EV_CALL, .stream = 1, .call = {.msg = &m, .fetch = fetch}};
    int64_t idle = tst_nomem_live();
    uint32_t ends = 0;
    for (int64_t n = 0;; n++) {
        tst_nomem_arm(n);
        pfw_step(b.p, &call, 2);
        bool reached = tst_nomem_disarm();
        size_t got = pfw_actions(b.p, a, 8);
        check(&b);
        if (!reached) {
            assert_int_equal(got, actions);
            assert_int_equal(wrk_sched_pages(b.s, 0).held, held);
            break;
        }
        assert_int_equal(got, 1);
        assert_int_equal(a[0].kind, PFW_ACT_END);
        assert_int_equal(a[0].end.end.status, KVS_SELF_NOMEM);
        assert_true(a[0].end.end.text[0] != 0);
        assert_int_equal(wrk_sched_pages(b.s, 0).held, 0);
        assert_int_equal(wrk_sched_pages(b.s, 0).cached, 3);
        assert_int_equal(tst_nomem_live(), idle);
        ends++;
    }
    assert_int_equal(ends, least);
    bench_fini(&b);
    assert_int_equal(tst_nomem_live(), before);
}

static void test_fetch(void **state)
{
    (void)state;
    fail_each(true, 7, 3, 3); /* wanted, outgoing, unsent; tokens, names, table; the source. Then three pages leave */
}

static void test_prefill(void **state)
{
    (void)state;
    fail_each(false, 7, 3, 4); /* the same, what is cached leaves at once; held: two shared, one own, and the one whose head is copied into it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fetch), cmocka_unit_test(test_prefill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
