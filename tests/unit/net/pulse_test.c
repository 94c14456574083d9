/* pulse_test.c - the rule of heartbeats in made-up time: the numbers are the design's (PING twice a second, suspect after 1 s of silence, lost
 * after 2 s, noticed within 3 s, our own absence is nobody's silence), written out here once more.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "net/core/pulse.h"

#define S UINT64_C(1000000)
#define BEGIN (7 * S)

static void test_silence_step_by_step(void **state)
{
    (void)state;
    struct net_pulse p;
    net_pulse_start(&p, BEGIN);
    net_pulse_verdict v = net_pulse_look(&p, BEGIN);
    assert_true(v.ping && !v.suspect && !v.lost); /* who is new gets a PING at once */
    v = net_pulse_look(&p, BEGIN + S);
    assert_true(!v.suspect && !v.lost); /* for more than a second, not for one */
    v = net_pulse_look(&p, BEGIN + S + 1);
    assert_true(v.suspect && !v.lost && p.suspect);
    v = net_pulse_look(&p, BEGIN + S + 2);
    assert_true(!v.suspect && p.suspect); /* told once */
    v = net_pulse_look(&p, BEGIN + 2 * S);
    assert_true(!v.lost && v.ping); /* a suspect is still asked */
    v = net_pulse_look(&p, BEGIN + 2 * S + 1);
    assert_true(v.lost && !v.ping && !v.suspect);
}

static void test_who_is_heard_is_believed_again(void **state)
{
    (void)state;
    struct net_pulse p;
    net_pulse_start(&p, BEGIN);
    assert_false(net_pulse_heard(&p, BEGIN + S));
    assert_true(net_pulse_look(&p, BEGIN + 5 * S / 2).suspect);
    assert_true(net_pulse_heard(&p, BEGIN + 14 * S / 5));
    assert_false(p.suspect);
    assert_false(net_pulse_heard(&p, BEGIN + 14 * S / 5));
    net_pulse_verdict v = net_pulse_look(&p, BEGIN + 18 * S / 5);
    assert_true(!v.suspect && !v.lost); /* 0.8 s since */
    v = net_pulse_look(&p, BEGIN + 21 * S / 5);
    assert_true(v.suspect && !v.lost); /* and again, when it falls silent again */
    v = net_pulse_look(&p, BEGIN + 5 * S);
    assert_true(v.lost); /* 2.2 s */
}

static void test_pings_are_twice_a_second(void **state)
{
    (void)state;
    struct net_pulse p;
    uint32_t pings = 0;
    net_pulse_start(&p, BEGIN);
    for (uint64_t t = BEGIN; t < BEGIN + 10 * S; t += NET_PULSE_LOOK_US) {
        (void)net_pulse_heard(&p, t); /* being heard is no reason to be silent: the peer lives by ours */
        pings += net_pulse_look(&p, t).ping;
    }
    assert_int_equal(pings, 20);
}

static void test_clocks_of_two_calls(void **state)
{
    (void)state;
    struct net_pulse p;
    net_pulse_start(&p, BEGIN);
    (void)net_pulse_heard(&p, BEGIN + 50);
    (void)net_pulse_heard(&p, BEGIN + 40); /* an older stamp takes nothing back */
    assert_int_equal(p.heard_us, BEGIN + 50);
    net_pulse_verdict v = net_pulse_look(&p, BEGIN + 30);
    assert_true(!v.lost && !v.suspect);
    net_pulse_forgive(&p, BEGIN + 45);
    assert_int_equal(p.heard_us, BEGIN + 50);
}

/* A process that was stopped for ten seconds, and its peers with it: nobody is blamed, and the time starts anew. */
static void test_our_own_absence(void **state)
{
    (void)state;
    struct net_pulse p;
    uint64_t looked = BEGIN;
    net_pulse_start(&p, BEGIN);
    assert_false(net_pulse_we_were_away(&looked, BEGIN + S));
    assert_true(net_pulse_we_were_away(&looked, BEGIN + 11 * S));
    net_pulse_forgive(&p, BEGIN + 11 * S);
    net_pulse_verdict v = net_pulse_look(&p, BEGIN + 11 * S);
    assert_true(!v.lost && !v.suspect && v.ping);
    assert_false(net_pulse_we_were_away(&looked, BEGIN + 11 * S + NET_PULSE_LOOK_US));
    assert_true(net_pulse_look(&p, BEGIN + 131 * S / 10).lost); /* but who says nothing then is lost as anybody */
}

static void test_an_absence_does_not_clear_a_suspect(void **state)
{
    (void)state;
    struct net_pulse p;
    net_pulse_start(&p, BEGIN);
    assert_true(net_pulse_look(&p, BEGIN + 3 * S / 2).suspect);
    net_pulse_forgive(&p, BEGIN + 9 * S);
    assert_true(p.suspect && !net_pulse_look(&p, BEGIN + 9 * S).lost);
    assert_true(net_pulse_heard(&p, BEGIN + 9 * S)); /* the word of the peer does */
}

/* Two ends, looks at any phase, any delay up to 200 ms: never a false alarm; and once the wire is cut both know between 1.3 s (the last thing
 * heard may be a PING's pace and a delay old) and 3 s later. */
static void test_two_ends(void **state)
{
    (void)state;
    struct kvs_rng rng = {.state = 42};
    for (uint32_t run = 0; run < 300; run++) {
        struct net_pulse p[2];
        uint64_t look_at[2], arrives[2] = {0, 0}, lost[2] = {0, 0}, suspect[2] = {0, 0}, looked[2];
        uint64_t cut = BEGIN + 3 * S + kvs_rng_below(&rng, S), delay = kvs_rng_below(&rng, 200000);
        for (uint32_t i = 0; i < 2; i++) {
            net_pulse_start(&p[i], BEGIN);
            looked[i] = BEGIN;
            look_at[i] = BEGIN + kvs_rng_below(&rng, NET_PULSE_LOOK_US);
        }
        for (uint64_t t = BEGIN; t < cut + 4 * S; t += 1000) {
            for (uint32_t i = 0; i < 2; i++) {
                if (arrives[i] != 0 && t >= arrives[i]) {
                    (void)net_pulse_heard(&p[i], t);
                    arrives[i] = 0;
                }
                if (t < look_at[i] || lost[i] != 0) {
                    continue;
                }
                look_at[i] = t + NET_PULSE_LOOK_US;
                assert_false(net_pulse_we_were_away(&looked[i], t));
                net_pulse_verdict v = net_pulse_look(&p[i], t);
                lost[i] = v.lost ? t : 0;
                suspect[i] = v.suspect && suspect[i] == 0 ? t : suspect[i];
                if (v.ping && t < cut && arrives[!i] == 0) {
                    arrives[!i] = t + delay;
                }
            }
        }
        for (uint32_t i = 0; i < 2; i++) {
            assert_in_range(suspect[i], cut + 200000, cut + 3 * S / 2);
            assert_in_range(lost[i], cut + 13 * S / 10, cut + 3 * S);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silence_step_by_step),
        cmocka_unit_test(test_who_is_heard_is_believed_again),
        cmocka_unit_test(test_pings_are_twice_a_second),
        cmocka_unit_test(test_clocks_of_two_calls),
        cmocka_unit_test(test_our_own_absence),
        cmocka_unit_test(test_an_absence_does_not_clear_a_suspect),
        cmocka_unit_test(test_two_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
