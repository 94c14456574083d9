/* embedded_test.c - what only embedded discovery can meet: members live by their streams, so after an outage of the router it matters how late
 * somebody dials again. Pacing lets that be up to two seconds and some; the grace that is stated (discovery.h) is three.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "embedded_fixture.h"
#include "embedded_router.h"
#include "sys/clock.h"
#include <string.h>

#define LONG_MS 30000u
#define LATE_MS 2200u /* more than a lease, less than the grace */

static const struct fixture *const fx = &embedded_fixture;

static struct participant *join(const char *id, uint64_t epoch)
{
    struct msg_card c = card(id, MSG_ROLE_DECODE, epoch);
    return fx->join(&c);
}

static void hang(void)
{
    server_stop(fx);
}

static void go_on(void)
{
    server_continue(fx);
}

static void die(void)
{
    fx->server_kill();
}

static void start_anew(void)
{
    fx->server_run(false);
}

/* b comes back late, c never. */
static void late_return(void (*begin)(void), void (*end)(void))
{
    struct participant *a = join("a", 1), *b = join("b", 2), *c = join("c", 3);
    struct participant *all[] = {a, b, c};
    for (int i = 0; i < 3; i++) {
        wait_known(all[i], "a", 1, LONG_MS);
        wait_known(all[i], "b", 2, LONG_MS);
        wait_known(all[i], "c", 3, LONG_MS);
        assert_true(wait_until(is_up, all[i], LONG_MS));
    }
    begin();
    for (int i = 0; i < 3; i++) {
        assert_true(wait_until(is_down, all[i], LONG_MS));
    }
    embedded_fixture_stay_away(b);
    embedded_fixture_stay_away(c);
    end();
    assert_true(wait_until(is_up, a, LONG_MS));
    uint64_t back_us = kvs_now_us();
    pass(LATE_MS);
    embedded_fixture_come_back(b);
    assert_true(wait_until(is_up, b, LONG_MS));
    bool in_time = kvs_now_us() - back_us < CLS_EMBEDDED_GRACE_US;
    wait_known(a, "c", 0, LONG_MS);
    wait_known(b, "c", 0, LONG_MS);
    assert_int_equal(epoch_known(a, "b"), 2);
    if (in_time) { /* else this machine was too crowded for a promise about time */
        assert_int_equal(count(a, "b", MSG_MEMBER_GONE), 0);
        assert_int_equal(count(a, "b", MSG_MEMBER_PUT), 1);
    }
    assert_int_equal(count(b, "a", MSG_MEMBER_GONE), 0);
    for (int i = 0; i < 3; i++) {
        fx->remove(all[i]);
    }
}

static void test_who_comes_back_late_after_a_hang(void **state)
{
    (void)state;
    late_return(hang, go_on);
}

static void test_who_comes_back_late_after_a_restart(void **state)
{
    (void)state;
    late_return(die, start_anew);
}

static int setup(void **state)
{
    (void)state;
    if (kvs_loop_create(&fixture_loop) != KVS_OK) {
        return -1;
    }
    fx->start(fixture_loop);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fx->stop();
    kvs_loop_destroy(fixture_loop);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], embedded_router_word) == 0) {
        return embedded_router_main(argv + 2);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_comes_back_late_after_a_hang, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_comes_back_late_after_a_restart, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
