/* nomem_test.c - discovery with every allocation failing in turn: the pure cores, and embedded discovery with a router and two workers on one
 * loop, from creation over joining and a changed card to leaving. What fails says so or is made good by itself (dialed, registered anew); all
 * come to know each other all the same, nobody is ever told what is not so, and nothing is left over.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cluster/core/digest.h"
#include "cluster/core/registry.h"
#include "discovery_fixture.h"
#include "patience.h"
#include "sys/clock.h"
#include "tests/support/nomem.h"
#include <stdio.h>
#include <string.h>

/* ---- the cores ---- */

static kvs_status make_digest(void)
{
    struct cls_digest *d = NULL;
    kvs_status st = cls_digest_create(100, &d);
    assert_int_equal(st == KVS_OK, d != NULL);
    cls_digest_destroy(d);
    return st;
}

static kvs_status use_registry(void)
{
    struct cls_registry *r = NULL;
    struct msg_member m;
    struct kvs_error err = {0};
    kvs_status st = cls_registry_create(8, 1000, &r);
    assert_int_equal(st == KVS_OK, r != NULL);
    for (int i = 0; i < 8 && st == KVS_OK; i++) {
        char id[8] = {'w', (char)('0' + i)};
        struct msg_card c = card(id, MSG_ROLE_DECODE, 5);
        st = cls_registry_put(r, &c, 10, &err);
        if (st == KVS_OK) {
            assert_true(cls_registry_has(r, id, 5));
            assert_true(cls_registry_next_change(r, &m));
        } else {
            assert_true(err.text[0] != '\0' && !cls_registry_has(r, id, 5) && !cls_registry_next_change(r, &m));
        }
    }
    cls_registry_destroy(r);
    return st;
}

static void test_cores(void **state)
{
    static kvs_status (*const uses[])(void) = {make_digest, use_registry};
    (void)state;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        int64_t live = tst_nomem_live(), n = 0;
        for (bool fired = true; fired; n++) {
            tst_nomem_arm(n);
            kvs_status st = uses[i]();
            fired = tst_nomem_disarm();
            assert_int_equal(st, fired ? KVS_SELF_NOMEM : KVS_OK);
            assert_int_equal(tst_nomem_live(), live);
        }
        assert_true(n > 2);
    }
}

/* ---- embedded discovery ---- */

enum { ROUTER, WORKER_A, WORKER_B, MEMBERS, WAIT_MS = 60000 };

static struct {
    struct participant p;
    struct net_rpc *rpc;
    net_conn conn;
} member[MEMBERS];
static struct kvs_loop *loop;
static struct patience patience;

static void router_call(void *user, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    (void)user;
    cls_embedded_server_call(member[ROUTER].p.d, conn, stream, call);
}

static void router_cancel(void *user, net_conn conn, uint32_t stream)
{
    (void)user;
    cls_embedded_server_cancel(member[ROUTER].p.d, conn, stream);
}

static void router_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    (void)user;
    (void)why;
    (void)text;
    cls_embedded_server_down(member[ROUTER].p.d, conn);
}

static void worker_up(void *user, net_conn conn, const struct msg_hello *hello, bool we_dialed, const char *at)
{
    (void)hello;
    (void)we_dialed;
    (void)at;
    cls_embedded_client_up(((struct participant *)user)->d, conn);
}

static void worker_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    (void)why;
    (void)text;
    cls_embedded_client_down(((struct participant *)user)->d, conn);
}

static void worker_item(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    (void)cls_embedded_client_item(((struct participant *)user)->d, conn, stream, payload, n);
}

static void worker_end(void *user, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    (void)cls_embedded_client_end(((struct participant *)user)->d, conn, stream, end);
}

static struct msg_card card_of(int i)
{
    static const char *const id[] = {"router", "worker-a", "worker-b"};
    return card(id[i], i == ROUTER ? MSG_ROLE_ROUTER : MSG_ROLE_DECODE, 50 + (uint64_t)i);
}

static void come(int i, const char *url)
{
    struct participant *p = &member[i].p;
    struct msg_card c = card_of(i);
    struct msg_hello hello = {.protocol_min = 1, .protocol_max = 1, .epoch = c.epoch, .role = c.role};
    const struct net_rpc_handlers serve = {.on_call = router_call, .on_cancel = router_cancel, .on_down = router_down};
    const struct net_rpc_handlers work = {
        .user = p, .on_up = worker_up, .on_down = worker_down, .on_item = worker_item, .on_end = worker_end};
    struct cls_events ev;
    struct kvs_error err = {0};
    memset(&member[i], 0, sizeof member[i]);
    memcpy(hello.id, c.id, sizeof hello.id);
    participant_events(p, &ev);
    TST_NOMEM_TWICE(net_rpc_create(loop, &hello, i == ROUTER ? &serve : &work, &member[i].rpc, &err));
    if (i == ROUTER) {
        TST_NOMEM_TWICE(cls_embedded_server_create(loop, member[i].rpc, &ev, &p->d));
    } else {
        TST_NOMEM_TWICE(cls_embedded_client_create(loop, member[i].rpc, &ev, &p->d));
    }
    TST_NOMEM_TWICE(p->d->ops->join(p->d, &c));
    if (i != ROUTER) {
        TST_NOMEM_TWICE(net_rpc_dial(member[i].rpc, url));
    }
}

static bool knows(int i, const char *id, uint64_t epoch)
{
    return epoch_known(&member[i].p, id) == epoch;
}

static bool all_know_all(void)
{
    for (int i = 0; i < MEMBERS; i++) {
        if (!member[i].p.up || !knows(i, "worker-a", 51) || !knows(i, "worker-b", 52)) {
            return false;
        }
    }
    return true;
}

static bool b_is_gone(void)
{
    return knows(ROUTER, "worker-b", 0) && knows(WORKER_A, "worker-b", 0) && knows(WORKER_A, "worker-a", 51);
}

static bool a_drains(void)
{
    for (int i = 0; i < MEMBERS; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < member[i].p.seen_count; k++) {
            const struct msg_member *m = &member[i].p.seen[k];
            seen |= m->change == MSG_MEMBER_PUT && m->card.draining && strcmp(m->card.id, "worker-a") == 0;
        }
        if (!seen) {
            return false;
        }
    }
    return true;
}

static void whole(int64_t n)
{
    char url[128];
    struct kvs_error err = {0};
    struct msg_card changed = card_of(WORKER_A);
    come(ROUTER, NULL);
    TST_NOMEM_TWICE(net_rpc_listen(member[ROUTER].rpc, "tcp://127.0.0.1:0", url, sizeof url, &err));
    come(WORKER_A, url);
    come(WORKER_B, url);
    if (!comes_true(&patience, all_know_all, WAIT_MS)) {
        fail_msg("allocation %lld: they do not know each other", (long long)n);
    }
    changed.draining = true;
    TST_NOMEM_TWICE(member[WORKER_A].p.d->ops->join(member[WORKER_A].p.d, &changed));
    if (!comes_true(&patience, a_drains, WAIT_MS)) {
        fail_msg("allocation %lld: a changed card is not told", (long long)n);
    }
    member[WORKER_B].p.d->ops->leave(member[WORKER_B].p.d);
    if (!comes_true(&patience, b_is_gone, WAIT_MS)) {
        fail_msg("allocation %lld: one that left is still there", (long long)n);
    }
    for (int i = MEMBERS; i-- > 0;) {
        net_rpc_destroy(member[i].rpc);
        member[i].p.d->ops->destroy(member[i].p.d);
    }
}

static void test_embedded(void **state)
{
    (void)state;
    int64_t live = tst_nomem_live(), n = 0, calls = 0;
    for (bool fired = true; fired; n++) {
        assert_int_equal(kvs_loop_create(&loop), KVS_OK);
        patience_open(&patience, loop);
        tst_nomem_arm(n);
        whole(n);
        calls = tst_nomem_seen();
        fired = tst_nomem_disarm();
        patience_close(&patience);
        kvs_loop_destroy(loop);
        for (int i = 0; i < 30000 && tst_nomem_live() != live; i++) {
            kvs_sleep_us(1000); /* threads of the streams may be at their last words */
        }
        if (tst_nomem_live() != live) {
            fail_msg("allocation %lld: %lld are left over", (long long)n, (long long)(tst_nomem_live() - live));
        }
    }
    printf("%lld allocations, %lld tried\n", (long long)calls, (long long)n - 1);
    assert_true(n > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cores), cmocka_unit_test(test_embedded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
