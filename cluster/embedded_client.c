/* embedded_client.c - a worker's side of embedded discovery: its registration with the router, and its view of the
 * others.
 * The view outlives the stream: while the router is away nothing is removed. After reconnecting the router tells
 * its view anew; members that it does not name are believed gone only after a grace period, since a restarted
 * router learns of its workers one by one. Should the router go away before that, the period begins anew on its return.
 * A registration that ends by itself is begun again after two seconds, except when the router has refused us: then
 * only a new connection (another router, another process behind the name) is reason to ask again.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/core/registry.h"
#include "cluster/discovery.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include <stdlib.h>
#include <string.h>

#define RETRY_US 2000000
#define SILENT_US 3000000 /* a router that starts at the same time as its workers answers sooner */

/* Owner thread: the loop's. */
struct client {
    struct cls_discovery base; /* first */
    struct net_rpc *rpc;
    struct cls_events ev;
    struct kvs_timer *timer;
    struct cls_registry *view;
    struct msg_card card;
    bool joined, backend_up;
    net_conn conn;   /* to the router; 0: none */
    uint32_t stream; /* our MSG_REGISTER call; 0: none */
    uint64_t retry_us;
    uint64_t silent_us; /* when to say that no router has answered yet; UINT64_MAX: it has, or it was said */
};

static void tell(struct client *c, const struct msg_member *m)
{
    if (c->ev.on_member != NULL) {
        c->ev.on_member(c->ev.user, m);
    }
}

static void drain(struct client *c)
{
    struct msg_member m;
    while (cls_registry_next_change(c->view, &m)) {
        tell(c, &m);
    }
}

static void backend(struct client *c, bool up, const char *text)
{
    if (c->backend_up != up || !up) {
        c->backend_up = up;
        if (c->ev.on_backend != NULL) {
            c->ev.on_backend(c->ev.user, up, text);
        }
    }
}

static void set_timer(struct client *c)
{
    uint64_t at = c->backend_up ? cls_registry_deadline_us(c->view) : UINT64_MAX;
    if (c->retry_us < at) {
        at = c->retry_us;
    }
    kvs_timer_set(c->timer, c->silent_us < at ? c->silent_us : at);
}

static void register_now(struct client *c)
{
    struct kvs_buf body;
    uint32_t old = c->stream;
    kvs_buf_init(&body, 65536);
    c->retry_us = UINT64_MAX;
    kvs_status s = msg_card_encode(&c->card, &body);
    if (s == KVS_OK) {
        s = net_rpc_call(c->rpc, c->conn, MSG_REGISTER, 0, "", body.data, body.len, &c->stream);
    }
    kvs_buf_fini(&body);
    if (s != KVS_OK) {
        c->retry_us = kvs_now_us() + RETRY_US;
        return;
    }
    cls_registry_mark_all(c->view);
    if (old != 0) {
        net_rpc_cancel(c->rpc, c->conn,
                       old); /* after the new one: the router has moved our registration over by then */
    }
}

static void client_timer(void *user, uint64_t now_us)
{
    struct client *c = user;
    if (c->retry_us <= now_us && c->joined && c->conn != 0) {
        register_now(c);
    } else if (c->retry_us <= now_us) {
        c->retry_us = UINT64_MAX;
    }
    if (c->silent_us <= now_us) {
        c->silent_us = UINT64_MAX;
        backend(c, false, "no router answers there yet; start it, or correct --discovery");
    }
    if (c->backend_up) {
        cls_registry_tick(c->view, now_us);
    }
    drain(c);
    set_timer(c);
}

void cls_embedded_client_up(struct cls_discovery *d, net_conn router_conn)
{
    struct client *c = (struct client *)d;
    c->silent_us = UINT64_MAX;
    if (c->conn != router_conn) {
        c->conn = router_conn;
        c->stream = 0;
    }
    if (c->joined) {
        register_now(c);
        set_timer(c);
    }
}

void cls_embedded_client_down(struct cls_discovery *d, net_conn router_conn)
{
    struct client *c = (struct client *)d;
    if (c->conn == router_conn && router_conn != 0) {
        c->conn = 0;
        c->stream = 0;
        c->retry_us = UINT64_MAX;
        set_timer(c);
        backend(c, false, "the router is away");
    }
}

static kvs_status apply(struct client *c, const struct msg_members *list, struct kvs_error *err)
{
    uint64_t now = kvs_now_us();
    for (uint32_t i = 0; i < list->count; i++) {
        const struct msg_member *m = &list->members[i];
        kvs_status s = KVS_OK;
        switch (m->change) {
        case MSG_MEMBER_PUT: s = cls_registry_put(c->view, &m->card, now, err); break;
        case MSG_MEMBER_GONE: cls_registry_leave(c->view, m->card.id, m->card.epoch, now); break;
        case MSG_MEMBER_SNAPSHOT_END:
            cls_registry_hold(c->view, now + CLS_EMBEDDED_GRACE_US);
            cls_registry_lease_marked(c->view, now + CLS_EMBEDDED_GRACE_US);
            drain(c);
            tell(c, m);
            backend(c, true, "");
            break;
        }
        if (s != KVS_OK) {
            return s;
        }
    }
    return KVS_OK;
}

bool cls_embedded_client_item(struct cls_discovery *d, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    struct client *c = (struct client *)d;
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_members list;
    if (stream == 0 || conn != c->conn || stream != c->stream) {
        return false;
    }
    kvs_arena_init(&arena, MSG_ARENA_BYTES);
    kvs_status s = msg_members_decode(payload, n, &arena, &list, &err);
    if (s == KVS_OK) {
        s = apply(c, &list, &err);
    }
    kvs_arena_fini(&arena);
    drain(c);
    set_timer(c);
    if (s != KVS_OK) { /* a view with a hole is worse than none: start over */
        net_rpc_close(c->rpc, conn, s, err.text);
    }
    return true;
}

bool cls_embedded_client_end(struct cls_discovery *d, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    struct client *c = (struct client *)d;
    if (stream == 0 || conn != c->conn || stream != c->stream) {
        return false;
    }
    c->stream = 0;
    bool again =
        end->status != KVS_PEER_REFUSED && end->status != KVS_REQ_UNSUPPORTED && end->status != KVS_REQ_INVALID;
    c->retry_us = c->joined && again ? kvs_now_us() + RETRY_US : UINT64_MAX;
    set_timer(c);
    backend(c, false, end->text[0] != '\0' ? end->text : kvs_status_name(end->status));
    return true;
}

/* ---- ops ---- */

static kvs_status client_join(struct cls_discovery *d, const struct msg_card *card)
{
    struct client *c = (struct client *)d;
    if (card->id[0] == '\0' || card->group_count > MSG_GROUPS_MAX) {
        return KVS_REQ_INVALID;
    }
    c->card = *card;
    c->joined = true;
    if (c->conn != 0) {
        register_now(c);
    } else {
        c->silent_us = kvs_now_us() + SILENT_US;
    }
    set_timer(c);
    return KVS_OK;
}

static void client_leave(struct cls_discovery *d)
{
    struct client *c = (struct client *)d;
    c->joined = false;
    c->retry_us = c->silent_us = UINT64_MAX;
    if (c->stream != 0) {
        net_rpc_cancel(c->rpc, c->conn, c->stream);
        c->stream = 0;
    }
    set_timer(c);
}

static void client_destroy(struct cls_discovery *d)
{
    struct client *c = (struct client *)d;
    if (c != NULL) {
        kvs_timer_destroy(c->timer);
        cls_registry_destroy(c->view);
        free(c);
    }
}

static const struct cls_ops client_ops = {"embedded", client_join, client_leave, client_destroy};

kvs_status cls_embedded_client_create(struct kvs_loop *loop, struct net_rpc *rpc, const struct cls_events *ev,
                                      struct cls_discovery **out)
{
    struct client *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return KVS_SELF_NOMEM;
    }
    c->base.ops = &client_ops;
    c->rpc = rpc;
    c->ev = *ev;
    c->retry_us = c->silent_us = UINT64_MAX;
    kvs_status s = cls_registry_create(CLS_EMBEDDED_MEMBERS_MAX, CLS_FOREVER, &c->view);
    if (s == KVS_OK) {
        s = kvs_timer_create(loop, client_timer, c, &c->timer);
    }
    if (s != KVS_OK) {
        client_destroy(&c->base);
        return s;
    }
    *out = &c->base;
    return KVS_OK;
}
