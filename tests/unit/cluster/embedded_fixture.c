/* embedded_fixture.c - a router and workers on one loop, connected over ipc, for the conformance test.
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
#include <unistd.h>

/* ---- the router ---- */

static struct {
    struct net_rpc *rpc;
    struct cls_discovery *d;
    uint64_t epoch;
} router;
static char dir[64], url[128];

static void router_call(void *user, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    (void)user;
    assert_int_equal(call->method, MSG_REGISTER);
    cls_embedded_server_call(router.d, conn, stream, call);
}

static void router_cancel(void *user, net_conn conn, uint32_t stream)
{
    (void)user;
    cls_embedded_server_cancel(router.d, conn, stream);
}

static void router_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    (void)user;
    (void)why;
    (void)text;
    cls_embedded_server_down(router.d, conn);
}

static void router_start(void)
{
    const struct net_rpc_handlers h = {.on_call = router_call, .on_cancel = router_cancel, .on_down = router_down};
    const struct cls_events none = {0};
    struct msg_hello hello = {
        .protocol_min = 1, .protocol_max = 1, .id = "router", .epoch = ++router.epoch, .role = MSG_ROLE_ROUTER};
    struct msg_card card = {.id = "router", .role = MSG_ROLE_ROUTER, .epoch = router.epoch};
    struct kvs_error err;
    char bound[128];
    assert_int_equal(net_rpc_create(fixture_loop, &hello, &h, &router.rpc, &err), KVS_OK);
    assert_int_equal(cls_embedded_server_create(fixture_loop, router.rpc, &none, &router.d), KVS_OK);
    assert_int_equal(router.d->ops->join(router.d, &card), KVS_OK);
    assert_int_equal(net_rpc_listen(router.rpc, url, bound, sizeof bound, &err), KVS_OK);
}

static void router_stop(void)
{
    net_rpc_destroy(router.rpc);
    router.d->ops->destroy(router.d);
}

static void embedded_start(struct kvs_loop *loop)
{
    fixture_loop = loop;
    (void)snprintf(dir, sizeof dir, "/tmp/kvs-cls-XXXXXX");
    assert_non_null(mkdtemp(dir));
    (void)snprintf(url, sizeof url, "ipc://%s/router.sock", dir);
    router_start();
}

static void embedded_stop(void)
{
    router_stop();
    (void)unlink(url + 6);
    (void)rmdir(dir);
}

static void embedded_restart(void)
{
    router_stop();
    router_start();
}

/* ---- workers ---- */

struct worker {
    struct net_rpc *rpc;
    net_conn conn;
};

static void worker_up(void *user, net_conn conn, const struct msg_hello *hello, bool we_dialed, const char *at)
{
    struct participant *p = user;
    (void)hello;
    (void)we_dialed;
    (void)at;
    ((struct worker *)p->backend)->conn = conn;
    cls_embedded_client_up(p->d, conn);
}

static void worker_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    struct participant *p = user;
    (void)why;
    (void)text;
    ((struct worker *)p->backend)->conn = 0;
    cls_embedded_client_down(p->d, conn);
}

static void worker_item(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    (void)cls_embedded_client_item(((struct participant *)user)->d, conn, stream, payload, n);
}

static void worker_end(void *user, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    (void)cls_embedded_client_end(((struct participant *)user)->d, conn, stream, end);
}

static struct participant *embedded_join(const struct msg_card *card)
{
    struct participant *p = calloc(1, sizeof *p);
    struct worker *w = calloc(1, sizeof *w);
    struct net_rpc_handlers h = {
        .user = p, .on_up = worker_up, .on_down = worker_down, .on_item = worker_item, .on_end = worker_end};
    struct msg_hello hello = {.protocol_min = 1, .protocol_max = 1, .epoch = card->epoch, .role = card->role};
    struct cls_events ev;
    struct kvs_error err;
    assert_true(p != NULL && w != NULL);
    memcpy(hello.id, card->id, sizeof hello.id);
    p->backend = w;
    participant_events(p, &ev);
    assert_int_equal(net_rpc_create(fixture_loop, &hello, &h, &w->rpc, &err), KVS_OK);
    assert_int_equal(cls_embedded_client_create(fixture_loop, w->rpc, &ev, &p->d), KVS_OK);
    assert_int_equal(p->d->ops->join(p->d, card), KVS_OK);
    assert_int_equal(net_rpc_dial(w->rpc, url), KVS_OK);
    return p;
}

static void embedded_cut(struct participant *p)
{
    struct worker *w = p->backend;
    net_rpc_destroy(w->rpc);
    w->rpc = NULL;
}

static void embedded_glitch(struct participant *p)
{
    struct worker *w = p->backend;
    assert_int_not_equal(w->conn, 0);
    net_rpc_close(w->rpc, w->conn, KVS_PEER_LOST, "glitch");
}

static void embedded_remove(struct participant *p)
{
    struct worker *w = p->backend;
    net_rpc_destroy(w->rpc);
    p->d->ops->destroy(p->d);
    free(w);
    free(p);
}

const struct fixture embedded_fixture = {
    "embedded",    CLS_EMBEDDED_TTL_US, embedded_start, embedded_stop,   embedded_restart,
    embedded_join, embedded_join,       embedded_cut,   embedded_glitch, embedded_remove, false,
};
