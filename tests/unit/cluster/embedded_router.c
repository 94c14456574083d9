/* embedded_router.c - see embedded_router.h. A loop, control streams, the registry; it ends with the test (PR_SET_PDEATHSIG) or by a signal.
 * SPDX-License-Identifier: Apache-2.0 */
#include "embedded_router.h"

#include "cluster/discovery.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    struct kvs_loop *loop;
    struct net_rpc *rpc;
    struct cls_discovery *d;
} router;

static void on_call(void *user, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    (void)user;
    cls_embedded_server_call(router.d, conn, stream, call);
}

static void on_cancel(void *user, net_conn conn, uint32_t stream)
{
    (void)user;
    cls_embedded_server_cancel(router.d, conn, stream);
}

static void on_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    (void)user;
    (void)why;
    (void)text;
    cls_embedded_server_down(router.d, conn);
}

static kvs_status serve(const char *url, uint64_t epoch, struct kvs_error *err)
{
    const struct net_rpc_handlers h = {.on_call = on_call, .on_cancel = on_cancel, .on_down = on_down};
    const struct cls_events none = {0};
    const struct msg_hello hello = {
        .protocol_min = 1, .protocol_max = 1, .id = "router", .epoch = epoch, .role = MSG_ROLE_ROUTER};
    const struct msg_card card = {.id = "router", .role = MSG_ROLE_ROUTER, .epoch = epoch};
    char bound[128];
    kvs_status s = kvs_loop_create(&router.loop);
    if (s == KVS_OK) {
        s = net_rpc_create(router.loop, &hello, &h, &router.rpc, err);
    }
    if (s == KVS_OK) {
        s = cls_embedded_server_create(router.loop, router.rpc, &none, &router.d);
    }
    if (s == KVS_OK) {
        s = router.d->ops->join(router.d, &card);
    }
    return s == KVS_OK ? net_rpc_listen(router.rpc, url, bound, sizeof bound, err) : s;
}

int embedded_router_main(char **argv)
{
    struct kvs_error err = {0};
    kvs_status s = serve(argv[0], strtoull(argv[1], NULL, 10), &err);
    if (s != KVS_OK) {
        (void)fprintf(stderr, "the router does not serve: %s %s\n", kvs_status_name(s), err.text);
        return 1;
    }
    if (write((int)strtol(argv[2], NULL, 10), "x", 1) != 1) {
        return 1;
    }
    kvs_loop_run(router.loop);
    return 0;
}
