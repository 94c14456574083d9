/* conformance_test.c - what every discovery backend promises, whatever it is made of: join, leave, leases, epochs,
 * snapshot then watch. One program a backend (conformance.h); what happens to the server is outage_test.c's.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "conformance.h"
#include "sys/clock.h"
#include <string.h>

static void test_snapshot_then_watch(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, LONG_MS);
    wait_known(b, "a", 1, LONG_MS);
    assert_true(wait_until(has_snapshot, a, LONG_MS));
    struct participant *late = join("late", 3);
    assert_true(wait_until(has_snapshot, late, LONG_MS));
    assert_int_equal(epoch_known(late, "a"), 1); /* all of them before the snapshot's end */
    assert_int_equal(epoch_known(late, "b"), 2);
    assert_int_equal(epoch_known(late, "late"), 3);
    wait_known(a, "late", 3, LONG_MS);
    assert_int_equal(count(a, "late", MSG_MEMBER_PUT), 1);
    assert_int_equal(a->backend_downs, 0);
    assert_true(wait_until(is_up, late, LONG_MS));
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
    wait_known(a, "b", 2, LONG_MS);
    b->d->ops->leave(b->d);
    wait_known(a, "b", 0, LONG_MS);
    assert_int_equal(epoch_known(a, "a"), 1);
    struct msg_card again = card("b", MSG_ROLE_DECODE, 2);
    assert_int_equal(b->d->ops->join(b->d, &again), KVS_OK); /* and may come back */
    wait_known(a, "b", 2, LONG_MS);
    fx->remove(a);
    fx->remove(b);
}

static bool was_told_twice(void *arg)
{
    return count(arg, "b", MSG_MEMBER_PUT) >= 2;
}

static void test_an_update_under_the_same_epoch(void **state)
{
    (void)state;
    struct participant *a = join("a", 1), *b = join("b", 2);
    wait_known(a, "b", 2, LONG_MS);
    wait_known(b, "b", 2, LONG_MS);
    struct msg_card c = card("b", MSG_ROLE_DECODE, 2);
    c.draining = true;
    assert_int_equal(b->d->ops->join(b->d, &c), KVS_OK);
    assert_true(wait_until(was_told_twice, a, LONG_MS));
    pass(300); /* and not more often */
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
    wait_known(a, "b", 2, LONG_MS);
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
    wait_known(a, "b", 2, LONG_MS);
    wait_known(b, "a", 1, LONG_MS);
    assert_true(wait_until(is_up, b, LONG_MS));
    uint32_t a_seen = a->seen_count, b_seen = b->seen_count;
    fx->glitch(b);
    assert_true(wait_until(was_told_off, b, LONG_MS));
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
    wait_known(a, "b", 2, LONG_MS);
    wait_known(b, "a", 1, LONG_MS);
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
    wait_known(a, "b", 2, LONG_MS);
    struct participant *new = join("b", 99);
    wait_known(a, "b", 99, LONG_MS); /* epoch_known checks that GONE of 2 came first */
    assert_true(wait_until(was_told_off, old, LONG_MS));
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
    wait_known(a, "a", 1, LONG_MS);
    struct msg_card c = card("router-2", MSG_ROLE_ROUTER, 7);
    struct participant *second = fx->join_router(&c);
    if (fx->many_routers) {
        assert_true(wait_until(has_snapshot, second, LONG_MS));
        assert_int_equal(epoch_known(second, "a"), 1);
        assert_int_equal(second->backend_downs, 0);
        fx->remove(second);
        fx->remove(a);
        return;
    }
    assert_true(wait_until(was_told_off, second, LONG_MS));
    assert_non_null(strstr(second->backend_text, "router"));
    assert_int_equal(second->snapshots, 0);
    fx->remove(second);
    fx->remove(a);
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
        wait_known(p[0], id[i], (uint64_t)i + 1, LONG_MS);
        wait_known(p[39], id[i], (uint64_t)i + 1, LONG_MS);
    }
    for (int i = 0; i < 40; i++) {
        fx->remove(p[i]);
    }
}

/* ---- */

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CONFORMANCE_TEST(test_snapshot_then_watch),
        CONFORMANCE_TEST(test_leave_is_seen_at_once),
        CONFORMANCE_TEST(test_an_update_under_the_same_epoch),
        CONFORMANCE_TEST(test_a_dead_member_goes_when_its_lease_ends),
        CONFORMANCE_TEST(test_a_glitch_changes_nothing),
        CONFORMANCE_TEST(test_a_stall_of_our_own),
        CONFORMANCE_TEST(test_a_new_process_replaces_the_old_one),
        CONFORMANCE_TEST(test_a_second_router),
        CONFORMANCE_TEST(test_many_members),
    };
    int code;
    if (!conformance_begin(argc, argv, &code)) {
        return code;
    }
    code = cmocka_run_group_tests_name(fx->name, tests, NULL, NULL);
    conformance_end();
    return code;
}
