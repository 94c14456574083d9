/* conformance.c - see conformance.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "conformance.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CONFORM_ETCD
#include "etcd_fixture.h"
#else
#include "embedded_router.h"
#endif

const struct fixture *fx;

struct participant *join(const char *id, uint64_t epoch)
{
    struct msg_card c = card(id, MSG_ROLE_DECODE, epoch);
    return fx->join(&c);
}

unsigned ttl_ms(unsigned halves)
{
    return (unsigned)(fx->ttl_us / 2000) * halves;
}

int conformance_setup(void **state)
{
    (void)state;
    if (kvs_loop_create(&fixture_loop) != KVS_OK) {
        return -1;
    }
    fx->start(fixture_loop);
    return 0;
}

int conformance_teardown(void **state)
{
    (void)state;
    fx->stop();
    kvs_loop_destroy(fixture_loop);
    return 0;
}

bool conformance_begin(int argc, char **argv, int *exit_code)
{
#ifdef CONFORM_ETCD
    (void)argc;
    (void)argv;
    if (!etcd_is_there()) {
        puts("skipped: the program etcd is not installed (package etcd-server)");
        *exit_code = 77;
        return false;
    }
    fx = &etcd_fixture;
#else
    if (argc == 5 && strcmp(argv[1], embedded_router_word) == 0) {
        *exit_code = embedded_router_main(argv + 2);
        return false;
    }
    fx = &embedded_fixture;
#endif
    cmocka_set_test_filter(getenv("KVASIR_TEST_FILTER"));
    return true;
}

void conformance_end(void)
{
#ifdef CONFORM_ETCD
    etcd_fixture_end();
#endif
}
