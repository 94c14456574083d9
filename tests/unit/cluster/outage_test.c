/* outage_test.c - what members of every discovery backend see while its server is slow, hangs, dies, and comes back with
 * or without what it knew: everybody who lives is kept and told of the loss, and afterwards all see the same members,
 * without flapping; also who left, died, changed, was replaced or joined meanwhile. One program a backend (conformance.h).
 * Times are generous where somebody is waited for: the machine may be crowded.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "conformance.h"
#include <string.h>

static const char *const everybody[] = {"a", "b", "leaver", "dead", "moved", "old", "late"};

static void hang_begins(void)
{
    server_stop(fx);
}

static void hang_ends(void)
{
    server_continue(fx);
}

static void death(void)
{
    fx->server_kill();
}

static void back_with_data(void)
{
    fx->server_run(true);
}

static void back_without_data(void)
{
    fx->server_run(false);
}

static void knows_final_membership(struct participant *p)
{
    static const uint64_t epoch[] = {1, 2, 0, 0, 5, 66, 7};
    for (size_t i = 0; i < sizeof epoch / sizeof epoch[0]; i++) {
        wait_known(p, everybody[i], epoch[i], LONG_MS);
    }
}

/* Who was there all the time has not been gone for a moment, nor was it told anew. */
static void never_flapped(const struct participant *p)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(count(p, everybody[i], MSG_MEMBER_GONE), 0);
        assert_int_equal(count(p, everybody[i], MSG_MEMBER_PUT), 1);
    }
    assert_int_equal(count(p, "moved", MSG_MEMBER_GONE), 0);
}

static const struct msg_card *last_card(const struct participant *p, const char *id)
{
    for (uint32_t i = p->seen_count; i-- > 0;) {
        if (strcmp(p->seen[i].card.id, id) == 0) {
            return &p->seen[i].card;
        }
    }
    return NULL;
}

struct others {
    struct participant *leaver, *dead, *moved, *old, *new, *late;
};

/* While nobody can be told: one leaves, one dies, one changes its card, one is replaced by a new process, one joins. */
static void while_it_is_away(struct others *o)
{
    o->leaver->d->ops->leave(o->leaver->d);
    fx->cut(o->dead);
    struct msg_card c = card("moved", MSG_ROLE_DECODE, 5);
    c.draining = true;
    assert_int_equal(o->moved->d->ops->join(o->moved->d, &c), KVS_OK);
    fx->cut(o->old);
    o->new = join("old", 66);
    o->late = join("late", 7);
    assert_true(wait_until(was_told_off, o->late, LONG_MS));
    assert_int_equal(o->late->snapshots, 0);
}

static void outage(void (*begin)(void), void (*end)(void))
{
    struct participant *a = join("a", 1), *b = join("b", 2);
    struct others o = {
        .leaver = join("leaver", 3), .dead = join("dead", 4), .moved = join("moved", 5), .old = join("old", 6)};
    struct participant *first[] = {a, b, o.leaver, o.dead, o.moved, o.old};
    for (size_t i = 0; i < 6; i++) {
        assert_true(wait_until(is_up, first[i], LONG_MS));
        for (size_t k = 0; k < 6; k++) {
            wait_known(first[i], everybody[k], k + 1, LONG_MS);
        }
    }
    uint32_t a_seen = a->seen_count, b_seen = b->seen_count;
    begin();
    for (size_t i = 0; i < 6; i++) {
        assert_true(wait_until(is_down, first[i], LONG_MS));
    }
    while_it_is_away(&o);
    pass(ttl_ms(2) + 1000); /* longer than a lease lives */
    assert_int_equal(a->seen_count, a_seen);
    assert_int_equal(b->seen_count, b_seen);
    end();
    struct participant *last[] = {a, b, o.moved, o.new, o.late};
    for (size_t i = 0; i < 5; i++) {
        assert_true(wait_until(is_up, last[i], LONG_MS));
    }
    for (size_t i = 0; i < 5; i++) {
        knows_final_membership(last[i]);
    }
    pass(ttl_ms(1)); /* and it stays so */
    for (size_t i = 0; i < 5; i++) {
        knows_final_membership(last[i]);
        never_flapped(last[i]);
    }
    assert_true(last_card(a, "moved")->draining && last_card(o.late, "moved")->draining);
    assert_int_equal(count(a, "moved", MSG_MEMBER_PUT), 2);
    assert_int_equal(a->backend_ups, 2);
    struct participant *all[] = {a, b, o.leaver, o.dead, o.moved, o.old, o.new, o.late};
    for (size_t i = 0; i < 8; i++) {
        fx->remove(all[i]);
    }
}

static void test_a_hung_server(void **state)
{
    (void)state;
    outage(hang_begins, hang_ends);
}

static void test_a_restart_with_data(void **state)
{
    (void)state;
    outage(death, back_with_data);
}

static void test_a_restart_without_data(void **state)
{
    (void)state;
    outage(death, back_without_data);
}

/* Who died in one outage is missing when the server is back, which is away again before that is believed: while there is
 * nobody to ask, nobody is removed. Only a server that stays can tell. */
static void test_a_server_that_comes_and_goes(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2), *dead = join("dead", 4);
    wait_known(a, "b", 2, LONG_MS);
    wait_known(a, "dead", 4, LONG_MS);
    wait_known(b, "a", 1, LONG_MS);
    assert_true(wait_until(is_up, a, LONG_MS) && wait_until(is_up, b, LONG_MS));
    fx->server_kill();
    fx->cut(dead);
    for (int i = 0; i < 2; i++) {
        assert_true(wait_until(is_down, a, LONG_MS) && wait_until(is_down, b, LONG_MS));
        fx->server_run(false);
        assert_true(wait_until(is_up, a, LONG_MS));
        fx->server_kill();
        assert_true(wait_until(is_down, a, LONG_MS));
        uint32_t seen = a->seen_count;
        pass(4000);
        assert_int_equal(a->seen_count, seen);
    }
    fx->server_run(false);
    assert_true(wait_until(is_up, a, LONG_MS) && wait_until(is_up, b, LONG_MS));
    wait_known(a, "dead", 0, LONG_MS);
    wait_known(b, "dead", 0, LONG_MS);
    never_flapped(a);
    never_flapped(b);
    fx->remove(a);
    fx->remove(b);
    fx->remove(dead);
}

/* Stopped for 0.4 s of every 0.5 s: below what anybody takes for a loss (etcd: 1.5 s a call; a stream: 2 s of silence). */
static void test_a_slow_server(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, LONG_MS);
    wait_known(b, "a", 1, LONG_MS);
    assert_true(wait_until(is_up, a, LONG_MS) && wait_until(is_up, b, LONG_MS));
    server_slow(fx, 400);
    pass(ttl_ms(3));
    struct participant *late = join("late", 7);
    wait_known(a, "late", 7, LONG_MS); /* news gets through all the same */
    wait_known(late, "b", 2, LONG_MS);
    pass(ttl_ms(2));
    server_slow(fx, 0);
    assert_true(is_up(a) && is_up(b));
    assert_int_equal(a->backend_downs + b->backend_downs, 0);
    never_flapped(a);
    never_flapped(b);
    fx->remove(late);
    fx->remove(a);
    fx->remove(b);
}

/* Stopped again and again for nearly as long as a lease lives (all of them end when it goes on), or longer than streams and calls wait for:
 * people are told, but nobody is taken for gone. */
static void test_a_server_that_is_hardly_there(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, LONG_MS);
    wait_known(b, "a", 1, LONG_MS);
    assert_true(wait_until(is_up, a, LONG_MS) && wait_until(is_up, b, LONG_MS));
    server_slow(fx, 1900);
    pass(4000);
    server_slow(fx, 2500);
    pass(4000);
    server_slow(fx, 0);
    assert_true(wait_until(is_up, a, LONG_MS) && wait_until(is_up, b, LONG_MS));
    pass(ttl_ms(2) + 500);
    never_flapped(a);
    never_flapped(b);
    fx->remove(a);
    fx->remove(b);
}

/* ---- */

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CONFORMANCE_TEST(test_a_slow_server),          CONFORMANCE_TEST(test_a_server_that_is_hardly_there),
        CONFORMANCE_TEST(test_a_hung_server),          CONFORMANCE_TEST(test_a_restart_with_data),
        CONFORMANCE_TEST(test_a_restart_without_data), CONFORMANCE_TEST(test_a_server_that_comes_and_goes),
    };
    int code;
    if (!conformance_begin(argc, argv, &code)) {
        return code;
    }
    code = cmocka_run_group_tests_name(fx->name, tests, NULL, NULL);
    conformance_end();
    return code;
}
