/* conformance_test.c - what every discovery backend promises, whatever it is made of: join, leave, leases, epochs,
 * snapshot then watch; and what members see while the server is slow, hangs, dies, and comes back with or without what
 * it knew: everybody who lives is kept and told of the loss, and afterwards all see the same members, without flapping.
 * One program a backend: with CONFORM_ETCD the etcd one, which skips where there is no etcd.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "discovery_fixture.h"
#include "sys/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CONFORM_ETCD
#include "etcd_fixture.h"
#else
#include "embedded_router.h"
#endif

#define LONG_MS 30000u

static const struct fixture *fx;

static struct participant *join(const char *id, uint64_t epoch)
{
    struct msg_card c = card(id, MSG_ROLE_DECODE, epoch);
    return fx->join(&c);
}

static unsigned ttl_ms(unsigned halves)
{
    return (unsigned)(fx->ttl_us / 2000) * halves;
}

/* ---- promises ---- */

static void test_snapshot_then_watch(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, 5000);
    wait_known(b, "a", 1, 5000);
    assert_true(wait_until(has_snapshot, a, 2000));
    struct participant *late = join("late", 3);
    assert_true(wait_until(has_snapshot, late, 5000));
    assert_int_equal(epoch_known(late, "a"), 1); /* all of them before the snapshot's end */
    assert_int_equal(epoch_known(late, "b"), 2);
    assert_int_equal(epoch_known(late, "late"), 3);
    wait_known(a, "late", 3, 2000);
    assert_int_equal(count(a, "late", MSG_MEMBER_PUT), 1);
    assert_int_equal(a->backend_downs, 0);
    assert_true(wait_until(is_up, late, 5000));
    assert_true(a->backend_ups == 1 && late->backend_ups == 1);
    for (uint32_t i = 0; i < a->seen_count; i++) {
        assert_int_equal(a->seen[i].card.group[0].page_bytes, 1024);
    }
    fx->remove(a);
    fx->remove(b);
    fx->remove(late);
}

static void test_leave_is_seen_at_once(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, 5000);
    b->d->ops->leave(b->d);
    wait_known(a, "b", 0, ttl_ms(1));
    assert_int_equal(epoch_known(a, "a"), 1);
    struct msg_card again = card("b", MSG_ROLE_DECODE, 2);
    assert_int_equal(b->d->ops->join(b->d, &again), KVS_OK); /* and may come back */
    wait_known(a, "b", 2, 5000);
    fx->remove(a);
    fx->remove(b);
}

static void test_an_update_under_the_same_epoch(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, 5000);
    wait_known(b, "b", 2, 5000);
    struct msg_card c = card("b", MSG_ROLE_DECODE, 2);
    c.draining = true;
    assert_int_equal(b->d->ops->join(b->d, &c), KVS_OK);
    pass(500);
    assert_int_equal(count(a, "b", MSG_MEMBER_GONE), 0);
    assert_int_equal(count(a, "b", MSG_MEMBER_PUT), 2);
    assert_true(a->seen[a->seen_count - 1].card.draining);
    pass(ttl_ms(3)); /* and its lease goes on */
    assert_int_equal(epoch_known(a, "b"), 2);
    fx->remove(a);
    fx->remove(b);
}

static void test_a_dead_member_goes_when_its_lease_ends(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, 5000);
    uint64_t before = kvs_now_us();
    fx->cut(b);
    wait_known(a, "b", 0, ttl_ms(4) + 1000);
    assert_true(kvs_now_us() - before >= fx->ttl_us / 2); /* not at the first hiccup */
    assert_int_equal(epoch_known(a, "a"), 1);
    fx->remove(a);
    fx->remove(b);
}

static void test_a_glitch_changes_nothing(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, 5000);
    wait_known(b, "a", 1, 5000);
    assert_true(wait_until(is_up, b, 5000));
    uint32_t a_seen = a->seen_count, b_seen = b->seen_count;
    fx->glitch(b);
    assert_true(wait_until(was_told_off, b, 2000));
    pass(ttl_ms(3));
    assert_int_equal(a->seen_count, a_seen); /* same epoch: same member */
    assert_int_equal(b->seen_count, b_seen); /* and its own view has stayed */
    assert_int_equal(b->backend_ups, 2);
    fx->remove(a);
    fx->remove(b);
}

/* Everybody on this loop is stopped for longer than a lease: the members are those of before. */
static void test_a_stall_of_our_own(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, 5000);
    wait_known(b, "a", 1, 5000);
    kvs_sleep_us(fx->ttl_us + 400000);
    pass(ttl_ms(2));
    wait_known(a, "b", 2, LONG_MS);
    wait_known(b, "a", 1, LONG_MS);
    fx->remove(a);
    fx->remove(b);
}

static void test_a_new_process_replaces_the_old_one(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *old = join("b", 2);
    wait_known(a, "b", 2, 5000);
    struct participant *new = join("b", 99);
    wait_known(a, "b", 99, 5000); /* epoch_known checks that GONE of 2 came first */
    assert_true(wait_until(was_told_off, old, 3000));
    pass(ttl_ms(3));
    assert_int_equal(epoch_known(a, "b"), 99); /* the old lease's end takes nothing away */
    fx->remove(old);
    pass(ttl_ms(3));
    assert_int_equal(epoch_known(a, "b"), 99);
    fx->remove(a);
    fx->remove(new);
}

static void test_a_second_router(void **state)
{
    (void)state;
    struct participant *a = join("a", 1);
    wait_known(a, "a", 1, 5000);
    struct msg_card c = card("router-2", MSG_ROLE_ROUTER, 7);
    struct participant *second = fx->join_router(&c);
    if (fx->many_routers) {
        assert_true(wait_until(has_snapshot, second, 5000));
        assert_int_equal(epoch_known(second, "a"), 1);
        assert_int_equal(second->backend_downs, 0);
        fx->remove(second);
        fx->remove(a);
        return;
    }
    assert_true(wait_until(was_told_off, second, 5000));
    assert_non_null(strstr(second->backend_text, "router"));
    assert_int_equal(second->snapshots, 0);
    fx->remove(second);
    fx->remove(a);
}

/* ---- what happens to the server ---- */

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
    pass(ttl_ms(2) + 1000); /* and it stays so */
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

static void test_many_members(void **state)
{
    (void)state;
    struct participant *p[40];
    char id[40][16];
    for (int i = 0; i < 40; i++) {
        (void)kvs_format(id[i], sizeof id[i], "m-%d", i);
        p[i] = join(id[i], (uint64_t)i + 1);
    }
    for (int i = 0; i < 40; i++) {
        wait_known(p[0], id[i], (uint64_t)i + 1, 10000);
        wait_known(p[39], id[i], (uint64_t)i + 1, 10000);
    }
    for (int i = 0; i < 40; i++) {
        fx->remove(p[i]);
    }
}

/* ---- every backend ---- */

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

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(test_snapshot_then_watch),
        T(test_leave_is_seen_at_once),
        T(test_an_update_under_the_same_epoch),
        T(test_a_dead_member_goes_when_its_lease_ends),
        T(test_a_glitch_changes_nothing),
        T(test_a_stall_of_our_own),
        T(test_a_new_process_replaces_the_old_one),
        T(test_a_second_router),
        T(test_a_slow_server),
        T(test_a_hung_server),
        T(test_a_restart_with_data),
        T(test_a_restart_without_data),
        T(test_many_members),
    };
#ifdef CONFORM_ETCD
    (void)argc;
    (void)argv;
    if (!etcd_is_there()) {
        puts("skipped: the program etcd is not installed (package etcd-server)");
        return 77;
    }
    fx = &etcd_fixture;
#else
    if (argc == 5 && strcmp(argv[1], embedded_router_word) == 0) {
        return embedded_router_main(argv + 2);
    }
    fx = &embedded_fixture;
#endif
    cmocka_set_test_filter(getenv("KVASIR_TEST_FILTER"));
    int failed = cmocka_run_group_tests_name(fx->name, tests, NULL, NULL);
#ifdef CONFORM_ETCD
    etcd_fixture_end();
#endif
    return failed;
}
