/* rpc_failpoint_test.c - the two faults that later tests inject into daemons: a lost frame, and a process that has
 * stopped.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rpc_harness.h"
#include "sys/failpoint.h"
#include <stdio.h>
#include <string.h>

#ifdef KVASIR_FAILPOINTS
static struct endpoint a, b;
static net_conn at_a, at_b;

static void arm(const char *spec)
{
    struct kvs_error err = {0};
    if (kvs_failpoint_set(spec, &err) != KVS_OK) {
        fail_msg("%s: %s", spec, err.text);
    }
}

static int setup(void **state)
{
    (void)state;
    connect_pair(&a, &b, "tcp://127.0.0.1:0", &at_a, &at_b);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arm("");
    endpoint_stop(&a);
    endpoint_stop(&b);
    return 0;
}

/* In one go on a's loop: a PING of b's that is dropped instead comes to the same, but then the call is already made. */
static void arm_and_call(void *arg)
{
    uint32_t *stream = arg;
    arm("rpc.drop_frame=error");
    if (net_rpc_call(a.rpc, at_a, MSG_GENERATE, 0, "trace", "", 0, stream) != KVS_OK) {
        *stream = 0;
    }
}

static void test_a_dropped_frame_ends_the_stream_and_the_call(void **state)
{
    (void)state;
    uint32_t s = 0;
    on_loop(&a, arm_and_call, &s);
    assert_int_not_equal(s, 0);
    struct event end = expect(&a, EV_END, 2000);
    assert_int_equal(end.stream, s);
    assert_int_equal(end.status, KVS_PEER_LOST);
    assert_int_equal(expect(&a, EV_DOWN, 2000).status, KVS_PEER_LOST);
    assert_int_equal(expect(&b, EV_DOWN, 2000).status, KVS_PEER_LOST);
    expect(&a, EV_UP, 3000);
    assert_int_equal(kvs_failpoint_fired("rpc.drop_frame"), 1);
}

static void test_a_frozen_peer_is_found_out(void **state)
{
    (void)state;
    arm("rpc.freeze=error"); /* whoever receives next freezes; the other one finds it silent and hangs up */
    kvs_status at_a_end = expect(&a, EV_DOWN, 20000).status, at_b_end = expect(&b, EV_DOWN, 20000).status;
    assert_true(at_a_end == KVS_PEER_TIMEOUT || at_b_end == KVS_PEER_TIMEOUT);
    assert_true(at_a_end == KVS_PEER_LOST || at_b_end == KVS_PEER_LOST); /* which the frozen one's kernel tells it */
    assert_int_equal(kvs_failpoint_fired("rpc.freeze"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_dropped_frame_ends_the_stream_and_the_call, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_frozen_peer_is_found_out, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    (void)printf("skipped: this build has no failpoints\n");
    return 77;
}
#endif
