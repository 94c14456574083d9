/* nomem_test.c - every allocation of the worker cores fails in turn: machines are not created and leak nothing (asan), a call ends with
 * KVS_SELF_NOMEM, a transfer that cannot be written down becomes a local prefill.
 * SPDX-License-Identifier: Apache-2.0 */
#include "prefill-worker/core/prefill.h"
#include "tests/unit/decode-worker/decode_bench.h"

static int fail_at = -1; /* this many allocations from now; -1: never */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);

static bool fails(void)
{
    return fail_at >= 0 && fail_at-- == 0;
}
void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

static void test_machines_are_created_whole_or_not_at_all(void **state)
{
    (void)state;
    struct kvc_layout l = fake_layout(3, 4, 2);
    struct wrk_sched_config c = {.layout = &l, .pages = {8, 8}, .seqs_max = 4, .context = 64, .tree_nodes = 8};
    struct wrk_sched *s = NULL;
    struct dcw *d = NULL;
    struct pfw *p = NULL;
    struct kvs_error err;
    int n = 0;
    for (;; n++) {
        fail_at = n;
        kvs_status st = wrk_sched_create(&c, &s, &err);
        bool reached = fail_at < 0;
        fail_at = -1;
        assert_int_equal(st, reached ? KVS_SELF_NOMEM : KVS_OK);
        if (!reached)
            break;
    }
    assert_true(n > 8);
    struct dcw_config dc = {.sched = s, .id = "d", .calls_max = 2, .vocab = 10};
    for (n = 0;; n++) {
        fail_at = n;
        kvs_status st = dcw_create(&dc, &d, &err);
        bool reached = fail_at < 0;
        fail_at = -1;
        assert_int_equal(st, reached ? KVS_SELF_NOMEM : KVS_OK);
        if (!reached)
            break;
    }
    assert_true(n > 4);
    struct pfw_config pc = {.sched = s, .calls_max = 2, .vocab = 10};
    for (n = 0;; n++) {
        fail_at = n;
        kvs_status st = pfw_create(&pc, &p, &err);
        bool reached = fail_at < 0;
        fail_at = -1;
        assert_int_equal(st, reached ? KVS_SELF_NOMEM : KVS_OK);
        if (!reached)
            break;
    }
    assert_true(n > 1);
    dcw_destroy(d);
    pfw_destroy(p);
    wrk_sched_destroy(s);
}

static void test_generate_without_memory(void **state)
{
    (void)state;
    uint32_t refused_calls = 0, local = 0;
    for (int n = 0;; n++) {
        struct bench b;
        bench_init(&b, 60, 8);
        fail_at = n;
        generate(&b, 1, 10, 4, true);
        bool reached = fail_at < 0;
        fail_at = -1;
        if (!reached) {
            granted(&b, KVS_PEER_LOST, NULL, 0);
            prefill_end(&b, KVS_PEER_LOST);
        }
        if (reached && b.end_count > 0) {
            assert_int_equal(b.ends[0].end.end.status, KVS_SELF_NOMEM);
            assert_int_equal(b.entry_count, 0);
            refused_calls++;
        } else {
            local += reached;
            run_all(&b);
            expect_answer(&b, 1, 10, 0, 4, -1, MSG_FINISH_LENGTH);
        }
        bench_fini(&b);
        if (!reached)
            break;
    }
    assert_int_equal(refused_calls, 2); /* tokens, block table */
    assert_int_equal(local, 2);         /* wants, missing */
}

static void test_prefill_call_without_memory(void **state)
{
    (void)state;
    struct kvc_layout l = fake_layout(3, 4, 2);
    struct wrk_sched_config c = {.layout = &l, .pages = {8, 8}, .seqs_max = 4, .context = 64};
    struct wrk_sched *s = NULL;
    struct pfw *p = NULL;
    assert_int_equal(wrk_sched_create(&c, &s, NULL), KVS_OK);
    struct pfw_config pc = {.sched = s, .calls_max = 2, .vocab = 10};
    assert_int_equal(pfw_create(&pc, &p, NULL), KVS_OK);
    int32_t ids[6] = {1, 2, 3, 4, 5, 6};
    struct msg_want want = {0, 0};
    struct msg_prefill m = {.tokens = ids, .token_count = 6, .wants = &want, .want_count = 1};
    struct pfw_event up = {.kind = PFW_EV_PEER_UP}, call = {.kind = PFW_EV_CALL, .stream = 1, .call = {.msg = &m}};
    struct pfw_action a[4];
    pfw_step(p, &up, 1);
    uint32_t ends = 0;
    for (int n = 0;; n++) {
        fail_at = n;
        pfw_step(p, &call, 2);
        bool reached = fail_at < 0;
        fail_at = -1;
        size_t got = pfw_actions(p, a, 4);
        if (!reached) {
            assert_int_equal(got, 0);
            break;
        }
        assert_int_equal(got, 1);
        assert_int_equal(a[0].kind, PFW_ACT_END);
        assert_int_equal(a[0].end.end.status, KVS_SELF_NOMEM);
        assert_int_equal(wrk_sched_pages(s, 0).free, 8);
        ends++;
    }
    assert_true(ends >= 5);
    pfw_destroy(p);
    wrk_sched_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machines_are_created_whole_or_not_at_all),
        cmocka_unit_test(test_generate_without_memory),
        cmocka_unit_test(test_prefill_call_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
