/* etcd_test.c - what only the etcd backend can meet: history compacted under a watch, leases that are revoked, keys that
 * others delete or fill with junk, watches that are dead and do not know, authentication, and three nodes whose leader is
 * lost. (A server that hangs, is slow, dies and comes back is conformance_test.c's.)
 * Times are generous: the machine may be crowded. What is asserted is who was believed gone, never how fast, except
 * where a bound is promised.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "etcd_fixture.h"
#include "net/etcd_codec.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "proto/wire.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TTL_US 3000000u
#define LONG_MS 30000u

static const struct fixture *const fx = &etcd_fixture;

static struct participant *join(const char *id, uint64_t epoch)
{
    struct msg_card c = card(id, MSG_ROLE_DECODE, epoch);
    return etcd_fixture_join(&c, etcd_fixture_servers.url, TTL_US);
}

static struct cls_etcd_stats stats(const struct participant *p)
{
    struct cls_etcd_stats s;
    cls_etcd_stats(p->d, &s);
    return s;
}

static bool watches_again(void *participant)
{
    return is_up(participant) && stats(participant).watches > 1;
}

/* Two members who know each other, both registered. */
static void pair(struct participant **a, struct participant **b)
{
    *a = join("a", 1);
    *b = join("b", 2);
    wait_known(*a, "b", 2, LONG_MS);
    wait_known(*b, "a", 1, LONG_MS);
    assert_true(wait_until(is_up, *a, LONG_MS) && wait_until(is_up, *b, LONG_MS));
}

static void nobody_vanished(const struct participant *p)
{
    assert_int_equal(count(p, "a", MSG_MEMBER_GONE), 0);
    assert_int_equal(count(p, "b", MSG_MEMBER_GONE), 0);
}

static void still_alive(struct participant *a, struct participant *b)
{
    struct participant *late = join("late", 9); /* news gets through to all */
    wait_known(a, "late", 9, LONG_MS);
    wait_known(b, "late", 9, LONG_MS);
    wait_known(late, "a", 1, LONG_MS);
    wait_known(late, "b", 2, LONG_MS);
    fx->remove(late);
}

/* POSTs to the server while the loop stands still. */
static void put_raw(const char *id, const char *value, size_t n)
{
    char key[128], out[1024];
    struct kvs_buf body;
    kvs_buf_init(&body, 65536);
    (void)snprintf(key, sizeof key, "%s%s/members/%s", CLS_ETCD_PREFIX, etcd_fixture_cluster, id);
    assert_int_equal(net_etcd_put_put(&body, key, value, n, 0), KVS_OK);
    assert_true(etcd_post(&etcd_fixture_servers, 0, "/v3/kv/put", kvs_buf_text(&body), out, sizeof out, 5000));
    kvs_buf_fini(&body);
}

static void delete_raw(const char *prefix_end)
{
    char prefix[128], out[1024];
    struct kvs_buf body;
    kvs_buf_init(&body, 65536);
    (void)snprintf(prefix, sizeof prefix, "%s%s/members/%s", CLS_ETCD_PREFIX, etcd_fixture_cluster, prefix_end);
    assert_int_equal(net_etcd_put_delete(&body, prefix), KVS_OK);
    assert_true(etcd_post(&etcd_fixture_servers, 0, "/v3/kv/deleterange", kvs_buf_text(&body), out, sizeof out, 5000));
    kvs_buf_fini(&body);
}

/* ---- one server ---- */

/* What the watches missed was compacted meanwhile. */
static void test_compaction_during_a_glitch(void **state)
{
    (void)state;
    struct participant *a, *b;
    pair(&a, &b);
    struct participant *c = join("c", 3);
    wait_known(a, "c", 3, LONG_MS);
    assert_true(wait_until(is_up, c, LONG_MS));
    for (int i = 0; i < 20; i++) {
        put_raw("junk", "x", 1);
    }
    delete_raw("c");
    etcd_compact(&etcd_fixture_servers, etcd_revision(&etcd_fixture_servers));
    fx->glitch(a); /* all watches end and begin anew */
    assert_true(wait_until(watches_again, a, LONG_MS) && wait_until(watches_again, b, LONG_MS));
    wait_known(a, "c", 3, LONG_MS); /* c has put itself again */
    assert_true(wait_until(is_up, c, LONG_MS));
    nobody_vanished(a);
    nobody_vanished(b);
    still_alive(a, b);
    fx->remove(a);
    fx->remove(b);
    fx->remove(c);
}

#ifdef KVASIR_FAILPOINTS
static bool five_watches(void *both)
{
    struct participant **p = both;
    return stats(p[0]).watches + stats(p[1]).watches == 5;
}
#endif

/* A watch that begins behind the compaction is told so on a stream that stays open. */
static void test_compaction_under_a_watch(void **state)
{
    (void)state;
#ifdef KVASIR_FAILPOINTS
    struct kvs_error err;
    struct participant *a, *b;
    pair(&a, &b);
    etcd_compact(&etcd_fixture_servers, etcd_revision(&etcd_fixture_servers));
    assert_int_equal(kvs_failpoint_set("etcd.watch_from_the_start=error@1", &err), KVS_OK);
    fx->glitch(a);
    assert_true(wait_until(watches_again, a, LONG_MS) && wait_until(watches_again, b, LONG_MS));
    /* one glitch each, and for one of the two a watch that was canceled: then two ranges and two watches, and no outage */
    struct participant *both[2] = {a, b};
    assert_true(wait_until(five_watches, both, LONG_MS));
    pass(500);
    assert_int_equal(kvs_failpoint_fired("etcd.watch_from_the_start"), 1);
    assert_int_equal(kvs_failpoint_set("", &err), KVS_OK);
    assert_int_equal(stats(a).watches + stats(b).watches, 5);
    assert_int_equal(stats(a).ranges + stats(b).ranges, 5);
    assert_true(is_up(a) && is_up(b));
    nobody_vanished(a);
    nobody_vanished(b);
    still_alive(a, b);
    fx->remove(a);
    fx->remove(b);
#else
    skip();
#endif
}

static bool registered_anew(void *participant)
{
    struct cls_etcd_stats s = stats(participant);
    return s.registered && s.leases > 1;
}

static void test_a_lease_that_is_revoked_is_granted_anew(void **state)
{
    (void)state;
    struct participant *a, *b;
    char out[65536], body[64];
    pair(&a, &b);
    assert_true(etcd_post(&etcd_fixture_servers, 0, "/v3/lease/leases", "{}", out, sizeof out, 5000));
    for (const char *at = out; (at = strstr(at, "\"ID\":\"")) != NULL; at += 6) { /* all of them */
        char ignored[1024];
        (void)snprintf(body, sizeof body, "{\"ID\":\"%.*s\"}", (int)strcspn(at + 6, "\""), at + 6);
        (void)etcd_post(&etcd_fixture_servers, 0, "/v3/lease/revoke", body, ignored, sizeof ignored, 5000);
    }
    assert_true(wait_until(registered_anew, a, LONG_MS) && wait_until(registered_anew, b, LONG_MS));
    wait_known(a, "b", 2, LONG_MS);
    wait_known(b, "a", 1, LONG_MS);
    pass(2 * TTL_US / 1000);
    assert_int_equal(epoch_known(a, "b"), 2);
    fx->remove(a);
    fx->remove(b);
}

static bool put_twice(void *participant)
{
    return count(participant, "b", MSG_MEMBER_PUT) >= 2;
}

static void test_a_deleted_key_comes_back(void **state)
{
    (void)state;
    struct participant *a, *b;
    pair(&a, &b);
    pass(100);
    delete_raw("b");
    assert_true(wait_until(put_twice, a, LONG_MS)); /* GONE, then PUT under the same epoch */
    assert_int_equal(count(a, "b", MSG_MEMBER_GONE), 1);
    assert_int_equal(epoch_known(a, "b"), 2);
    assert_int_equal(stats(b).leases, 1);
    fx->remove(a);
    fx->remove(b);
}

static bool ignored_five(void *participant)
{
    return stats(participant).ignored >= 5;
}

static bool three_members(void *participant)
{
    return stats(participant).members == 3;
}

static void test_junk_under_the_prefix(void **state)
{
    (void)state;
    struct participant *a, *b;
    struct msg_card other = card("other", MSG_ROLE_DECODE, 7);
    struct kvs_buf bytes;
    pair(&a, &b);
    kvs_buf_init(&bytes, 65536);
    assert_int_equal(msg_card_encode(&other, &bytes), KVS_OK);
    put_raw("x", "", 0);
    put_raw("y", "not a card", 10);
    put_raw("z", (const char *)bytes.data, bytes.len); /* somebody else's card */
    put_raw("a/b", (const char *)bytes.data, bytes.len);
    put_raw("other", (const char *)bytes.data, bytes.len / 2);
    assert_true(wait_until(ignored_five, a, LONG_MS));
    still_alive(a, b);
    struct participant *late = join("late2", 8); /* the same in a range */
    assert_true(wait_until(is_up, late, LONG_MS));
    assert_int_equal(stats(late).ignored, 5);
    assert_true(wait_until(three_members, late, LONG_MS)); /* a, b, itself */
    kvs_buf_fini(&bytes);
    fx->remove(a);
    fx->remove(b);
    fx->remove(late);
}

#ifdef KVASIR_FAILPOINTS
static bool deaf_is_healed(void *both)
{
    struct participant **p = both;
    return stats(p[0]).silent_watches + stats(p[1]).silent_watches == 1 && epoch_known(p[0], "late") == 9 &&
           epoch_known(p[1], "late") == 9;
}
#endif

static void test_missed_beats_are_made_up_for(void **state)
{
    (void)state;
#ifdef KVASIR_FAILPOINTS
    struct kvs_error err;
    struct participant *a, *b;
    pair(&a, &b);
    assert_int_equal(kvs_failpoint_set("etcd.before_keepalive=error@1", &err), KVS_OK);
    pass(2 * TTL_US / 1000);
    assert_int_equal(kvs_failpoint_fired("etcd.before_keepalive"), 1);
    assert_int_equal(kvs_failpoint_set("", &err), KVS_OK);
    nobody_vanished(a);
    nobody_vanished(b);
    assert_int_equal(stats(a).leases + stats(b).leases, 2);
    fx->remove(a);
    fx->remove(b);
#else
    skip();
#endif
}

/* Whatever makes a watch dumb: what comes for it is thrown away here, and it is not told. */
static void test_a_watch_that_falls_silent_begins_anew(void **state)
{
    (void)state;
#ifdef KVASIR_FAILPOINTS
    struct kvs_error err;
    struct participant *a, *b;
    pair(&a, &b);
    assert_int_equal(kvs_failpoint_set("etcd.deaf_watch=error@1", &err), KVS_OK); /* the first one of the two that is looked at */
    pass(TTL_US / 1000);
    assert_int_equal(kvs_failpoint_fired("etcd.deaf_watch"), 1);
    struct participant *late = join("late", 9);
    assert_true(wait_until(is_up, late, LONG_MS));
    assert_true(wait_until(deaf_is_healed, (struct participant *[]){a, b}, 5 * TTL_US / 1000)); /* the next range is 30 s away or more */
    assert_int_equal(epoch_known(a, "late"), 9);
    assert_int_equal(epoch_known(b, "late"), 9);
    fx->remove(late);
    wait_known(a, "late", 0, LONG_MS);
    wait_known(b, "late", 0, LONG_MS);
    assert_true(wait_until(is_up, a, LONG_MS) && wait_until(is_up, b, LONG_MS));
    assert_int_equal(kvs_failpoint_set("", &err), KVS_OK);
    nobody_vanished(a);
    nobody_vanished(b);
    fx->remove(a);
    fx->remove(b);
#else
    skip();
#endif
}

/* Keys of others come and go all the time: no watch is given up for it, nothing is read afresh, and members hardly write. */
static void test_a_store_that_is_busy_elsewhere(void **state)
{
    (void)state;
    struct participant *a, *b;
    char out[1024];
    pair(&a, &b);
    long before = etcd_revision(&etcd_fixture_servers), foreign = 0;
    for (uint64_t end = kvs_now_us() + 5 * TTL_US; kvs_now_us() < end; foreign++) {
        assert_true(etcd_post(&etcd_fixture_servers, 0, "/v3/kv/put", "{\"key\":\"cHJvYmU=\",\"value\":\"eA==\"}", out, sizeof out, 5000));
        pass(50);
    }
    long ours = etcd_revision(&etcd_fixture_servers) - before - foreign;
    print_message("%ld keys of others were written, %ld of ours\n", foreign, ours);
    assert_in_range(ours, 1, 2 * 5 * 2 + 2); /* at most one in half a TTL for each */
    assert_int_equal(stats(a).silent_watches + stats(b).silent_watches, 0);
    assert_int_equal(stats(a).watches + stats(b).watches, 2);
    assert_int_equal(stats(a).ranges + stats(b).ranges, 2);
    assert_int_equal(count(a, "a", MSG_MEMBER_PUT) + count(a, "b", MSG_MEMBER_PUT), 2); /* a card put as it was is no news */
    before = etcd_revision(&etcd_fixture_servers);
    pass(3 * TTL_US / 1000);
    assert_in_range(etcd_revision(&etcd_fixture_servers) - before, 0, 2); /* nothing, now that nothing happens */
    nobody_vanished(a);
    nobody_vanished(b);
    fx->remove(a);
    fx->remove(b);
}

static void test_two_clusters_in_one_etcd(void **state)
{
    (void)state;
    struct participant *a, *b;
    pair(&a, &b);
    char first[32];
    memcpy(first, etcd_fixture_cluster, sizeof first);
    (void)snprintf(etcd_fixture_cluster, sizeof etcd_fixture_cluster, "%.20s-other", first);
    struct participant *c = join("a", 77); /* the same name */
    assert_true(wait_until(is_up, c, LONG_MS));
    pass(500);
    assert_int_equal(stats(c).members, 1);
    assert_int_equal(epoch_known(a, "a"), 1);
    fx->remove(a);
    fx->remove(b);
    fx->remove(c);
}

static void test_leaving_at_the_end_of_a_process(void **state)
{
    (void)state;
    struct participant *a, *b;
    pair(&a, &b);
    cls_etcd_leave_now(b->d, 5000); /* the loop does not turn meanwhile */
    fx->cut(b);
    wait_known(a, "b", 0, TTL_US / 2000);
    fx->remove(a);
    fx->remove(b);
}

/* ---- authentication ---- */

static bool post(const char *path, const char *body)
{
    char out[1024];
    return etcd_post(&etcd_fixture_servers, 0, path, body, out, sizeof out, 10000);
}

static bool was_denied(void *participant)
{
    return strstr(((struct participant *)participant)->backend_text, "authentication failed") != NULL;
}

static void test_an_etcd_with_authentication(void **state)
{
    (void)state;
    etcd_fixture_end();
    etcd_start(&etcd_fixture_servers, 1);
    assert_true(post("/v3/auth/user/add", "{\"name\":\"root\",\"password\":\"a \\\"word\"}"));
    assert_true(post("/v3/auth/role/add", "{\"name\":\"root\"}"));
    assert_true(post("/v3/auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}"));
    assert_true(post("/v3/auth/enable", "{}"));
    struct participant *nobody = join("nobody", 5);
    assert_true(wait_until(was_told_off, nobody, LONG_MS));
    etcd_fixture_user = "root";
    etcd_fixture_password = "wrong";
    struct participant *wrong = join("wrong", 6);
    assert_true(wait_until(was_denied, wrong, LONG_MS)); /* which takes etcd long: at first it may count as silent */
    etcd_fixture_password = "a \"word";
    struct participant *a, *b;
    pair(&a, &b);
    assert_int_equal(nobody->snapshots + wrong->snapshots, 0);
    etcd_kill(&etcd_fixture_servers, 0); /* its tokens die with it */
    assert_true(wait_until(is_down, a, LONG_MS) && wait_until(is_down, b, LONG_MS));
    etcd_run(&etcd_fixture_servers, 0);
    assert_true(wait_until(is_up, a, 2 * LONG_MS) && wait_until(is_up, b, 2 * LONG_MS));
    still_alive(a, b);
    nobody_vanished(a);
    nobody_vanished(b);
    fx->remove(a);
    fx->remove(b);
    fx->remove(nobody);
    fx->remove(wrong);
    etcd_fixture_user = etcd_fixture_password = NULL;
    etcd_stop(&etcd_fixture_servers);
}

/* ---- three servers ---- */

static void test_three_nodes_lose_their_leader(void **state)
{
    (void)state;
    struct etcd_servers *s = &etcd_fixture_servers;
    etcd_fixture_end();
    etcd_start(s, 3);
    struct participant *a, *b;
    pair(&a, &b);
    int leader = -1;
    for (int i = 0; i < 100 && leader < 0; i++) {
        leader = etcd_leader(s);
        pass(100);
    }
    assert_true(leader >= 0);
    etcd_kill(s, leader);
    uint64_t before = kvs_now_us();
    still_alive(a, b); /* two of three go on */
    print_message("news went through %llu ms after the loss of the leader\n",
                  (unsigned long long)((kvs_now_us() - before) / 1000));
    nobody_vanished(a);
    nobody_vanished(b);
    etcd_run(s, leader);
    etcd_signal(s, (leader + 1) % 3, SIGSTOP); /* another hangs while the first one comes back */
    still_alive(a, b);
    etcd_signal(s, (leader + 1) % 3, SIGCONT);
    pass(2 * TTL_US / 1000);
    assert_int_equal(epoch_known(a, "b"), 2);
    assert_int_equal(epoch_known(b, "a"), 1);
    etcd_kill(s, 0);
    etcd_kill(s, 1); /* no majority: nobody vanishes, everybody is told */
    assert_true(wait_until(is_down, a, LONG_MS) && wait_until(is_down, b, LONG_MS));
    pass(2 * TTL_US / 1000);
    assert_int_equal(epoch_known(a, "b"), 2);
    assert_int_equal(epoch_known(b, "a"), 1);
    etcd_run(s, 0);
    etcd_run(s, 1);
    assert_true(wait_until(is_up, a, 2 * LONG_MS) && wait_until(is_up, b, 2 * LONG_MS));
    still_alive(a, b);
    fx->remove(a);
    fx->remove(b);
    etcd_stop(s);
}

/* ---- */

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
    kvs_loop_destroy(fixture_loop);
    return 0;
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_compaction_during_a_glitch),
        T(test_compaction_under_a_watch),
        T(test_a_lease_that_is_revoked_is_granted_anew),
        T(test_a_deleted_key_comes_back),
        T(test_junk_under_the_prefix),
        T(test_missed_beats_are_made_up_for),
        T(test_a_watch_that_falls_silent_begins_anew),
        T(test_a_store_that_is_busy_elsewhere),
        T(test_two_clusters_in_one_etcd),
        T(test_leaving_at_the_end_of_a_process),
        T(test_an_etcd_with_authentication),
        T(test_three_nodes_lose_their_leader),
    };
    if (!etcd_is_there()) {
        puts("skipped: the program etcd is not installed (package etcd-server)");
        return 77;
    }
    cmocka_set_test_filter(getenv("KVASIR_TEST_FILTER"));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    etcd_fixture_end();
    return failed;
}
