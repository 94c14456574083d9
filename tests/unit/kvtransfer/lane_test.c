/* lane_test.c - which transport carries pages, from UCX's own description of an endpoint (texts taken from UCX 1.13.1).
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kvtransfer/ucx_lane.h"

#define HEAD "#\n# UCP endpoint \n#\n#               peer: <no debug data>\n"
#define TCP                                                                                                      \
    "#                 lane[0]:  1:tcp/lo.0 md[1]                -> md[1]/tcp/sysdev[255] am am_bw#0 keepalive " \
    "wireup\n"
#define CMA "#                 lane[1]:  2:cma/memory.0 md[2]            -> md[2]/cma/sysdev[255] rma_bw#0\n"
#define POSIX "#                 lane[0]:  3:posix/memory.0 md[3]          -> md[3]/posix/sysdev[255] am am_bw#0\n"
#define RC "#                 lane[2]:  5:rc_mlx5/mlx5_0:1.0 md[4]      -> md[4]/ib/sysdev[0] rma_bw#0\n"
#define TAIL                                                                                                       \
    "#\n#                 am_send: 0..<egr/short>..8185..<egr/zcopy>..8192..<rndv>..(inf)\n#\n#                  " \
    "rma_bw: mds [2] rndv_rkey_size 9\n"

static void test_rendezvous_lane_wins(void **state)
{
    (void)state;
    assert_string_equal(kvt_ucx_transport_of_text(HEAD TCP CMA TAIL), "cma");
    assert_string_equal(kvt_ucx_transport_of_text(HEAD TCP TAIL), "tcp");
    assert_string_equal(kvt_ucx_transport_of_text(HEAD POSIX TAIL), "posix");
    assert_string_equal(kvt_ucx_transport_of_text(HEAD POSIX CMA TAIL), "cma");
    assert_string_equal(kvt_ucx_transport_of_text(HEAD TCP RC TAIL), "rdma");
}

static void test_odd_texts_are_unknown(void **state)
{
    (void)state;
    assert_string_equal(kvt_ucx_transport_of_text(""), "unknown");
    assert_string_equal(kvt_ucx_transport_of_text("lane["), "unknown");
    assert_string_equal(kvt_ucx_transport_of_text("lane[0]: tcp"), "unknown");
    assert_string_equal(kvt_ucx_transport_of_text("lane[0]:\n 1:tcp rma_bw"), "unknown");
    assert_string_equal(kvt_ucx_transport_of_text("lane[0]:  1:warp/x am"), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rendezvous_lane_wins),
        cmocka_unit_test(test_odd_texts_are_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
