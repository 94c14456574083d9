/* echo_test.c - when a watch is tried and when it is given up: by hand, and many members of one cluster against a store that is busy elsewhere.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cluster/core/echo.h"

enum { TTL = 9000, BEAT = TTL / 3 };

static void look_is(const struct cls_echo *e, int64_t revision, uint64_t now, cls_echo_verdict want)
{
    assert_int_equal(cls_echo_look(e, revision, now, TTL), want);
}

static void test_a_store_that_rests(void **state)
{
    struct cls_echo e;
    (void)state;
    cls_echo_start(&e, 7, 1000);
    look_is(&e, 7, 1000 + 100 * TTL, CLS_ECHO_FINE);
    look_is(&e, 0, 1000 + 100 * TTL, CLS_ECHO_FINE); /* an answer that does not tell */
    look_is(&e, 6, 1000 + 100 * TTL, CLS_ECHO_FINE); /* a node that is behind */
}

static void test_a_store_that_has_moved_on(void **state)
{
    struct cls_echo e;
    (void)state;
    cls_echo_start(&e, 7, 1000);
    look_is(&e, 8, 1000 + TTL / 2, CLS_ECHO_FINE);
    look_is(&e, 8, 1001 + TTL / 2, CLS_ECHO_ASK);
    cls_echo_heard(&e, 0, 6000); /* a line without events */
    look_is(&e, 8, 6000 + TTL / 2, CLS_ECHO_FINE);
    look_is(&e, 8, 6001 + TTL / 2, CLS_ECHO_ASK);
    cls_echo_heard(&e, 8, 11000);
    look_is(&e, 8, 11000 + 9 * TTL, CLS_ECHO_FINE);
    look_is(&e, 9, 11000 + 9 * TTL, CLS_ECHO_ASK);
}

static void test_what_is_owed(void **state)
{
    struct cls_echo e;
    (void)state;
    cls_echo_start(&e, 7, 1000);
    cls_echo_owed(&e, 7, 2000); /* it began behind that one */
    look_is(&e, 7, 2001 + TTL, CLS_ECHO_FINE);
    cls_echo_owed(&e, 9, 20000);
    look_is(&e, 9, 20000 + TTL, CLS_ECHO_FINE);
    look_is(&e, 9, 20001 + TTL, CLS_ECHO_DEAD);
    cls_echo_owed(&e, 12, 25000); /* and another one: the first counts */
    look_is(&e, 12, 20001 + TTL, CLS_ECHO_DEAD);
    cls_echo_heard(&e, 9, 26000); /* it lives, but has not told all */
    assert_int_equal(e.told, 9);
    look_is(&e, 12, 26000 + TTL / 2, CLS_ECHO_FINE);
    look_is(&e, 12, 26001 + TTL / 2, CLS_ECHO_ASK);
    cls_echo_owed(&e, 12, 40000);
    cls_echo_owed(&e, 10, 41000); /* answers come in any order */
    cls_echo_heard(&e, 11, 42000);
    look_is(&e, 12, 42001 + TTL, CLS_ECHO_ASK);
    cls_echo_heard(&e, 13, 60000);
    look_is(&e, 13, 60000 + 9 * TTL, CLS_ECHO_FINE);
}

static void test_late_is_not_dead(void **state)
{
    struct cls_echo e;
    (void)state;
    cls_echo_start(&e, 7, 0);
    cls_echo_owed(&e, 100, 10);
    for (int64_t r = 8; r < 90; r++) { /* far behind, and going on */
        uint64_t now = (uint64_t)(r - 7) * (TTL - 1);
        look_is(&e, 200, now, CLS_ECHO_FINE);
        cls_echo_heard(&e, r, now);
    }
    look_is(&e, 200, 82 * (TTL - 1) + TTL + 1, CLS_ECHO_DEAD);
    cls_echo_start(&e, 200, 1);
    look_is(&e, 200, 0, CLS_ECHO_FINE); /* clocks of two calls */
}

/* A whole cluster: beats at times of their own, foreign keys all the time, lines take up to 50 ms. One watch falls dead. */
static void test_a_cluster(void **state)
{
    enum { N = 40, UNTIL = 60 * TTL, CUT = 30 * TTL, DEAF = 13 };
    struct cls_echo e[N];
    uint64_t beat[N], arrives[N] = {0}, dead_at = 0;
    int64_t revision = 1, says[N] = {0};
    uint32_t puts = 0;
    struct kvs_rng rng = {.state = 5};
    (void)state;
    for (int i = 0; i < N; i++) {
        beat[i] = 1 + kvs_rng_next(&rng) % BEAT;
        cls_echo_start(&e[i], revision, 0);
    }
    for (uint64_t now = 1; now < UNTIL; now++) {
        revision += now % 10 == 0;
        for (int i = 0; i < N; i++) {
            if (arrives[i] == now && (i != DEAF || now < CUT)) {
                cls_echo_heard(&e[i], says[i], now);
            }
        }
        for (int i = 0; i < N; i++) {
            if (beat[i] != now) {
                continue;
            }
            beat[i] += BEAT;
            cls_echo_verdict v = cls_echo_look(&e[i], revision, now, TTL);
            if (v == CLS_ECHO_DEAD) {
                assert_int_equal(i, DEAF);
                dead_at = dead_at != 0 ? dead_at : now;
            } else if (v == CLS_ECHO_ASK) {
                puts++;
                cls_echo_owed(&e[i], ++revision, now);
                for (int k = 0; k < N; k++) {
                    says[k] = revision;
                    arrives[k] = now + 1 + kvs_rng_next(&rng) % 50;
                }
            }
        }
    }
    assert_in_range(dead_at, CUT + TTL, CUT + 2 * TTL + BEAT);
    assert_in_range(puts, 60, 200); /* some one in half a TTL for all, not for each of the 40 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_store_that_rests), cmocka_unit_test(test_a_store_that_has_moved_on),
        cmocka_unit_test(test_what_is_owed),       cmocka_unit_test(test_late_is_not_dead),
        cmocka_unit_test(test_a_cluster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
