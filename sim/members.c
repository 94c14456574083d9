/* members.c - see members.h. A process' discovery runs on its timers and streams; what it tells goes into a view of ours, so that also its
 * words are checked: no member is gone while embedded discovery's own stream to it lives, nobody is told to be gone who was not told to be there.
 * With etcd a key may vanish though the process lives; then the streams decide (router.c).
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/seam.h"

#include "cluster/discovery.h"
#include "sim/env.h"
#include "sim/members.h"

#include <stdlib.h>
#include <string.h>

struct sim_members {
    struct sim_env env;
    struct cls_discovery *discovery;
    struct cls_registry *view;
    bool away;      /* its discovery's last word: there is nobody to ask */
    uint32_t gone; /* node + 1 of whom it was told gone meanwhile */
};

static uint32_t node_of(const struct sim *s, const char *id)
{
    for (uint32_t i = 0; i < s->node_count; i++)
        if (strcmp(s->node[i].id, id) == 0)
            return i;
    return SIM_NOBODY;
}

/* Does this router hear the process whose registration it ends? */
static void check_gone(struct sim *s, uint32_t node, const struct msg_member *m)
{
    for (uint32_t i = 0; i < s->conn_count && !s->set.etcd && sim_is_router(s, node); i++) {
        const struct sim_conn *c = s->conn[i];
        if (c->node[1] != node || c->over[1] || !c->up[1] || c->epoch[0] != m->card.epoch || s->node[c->node[0]].gone)
            continue;
        for (uint32_t k = 0; k < c->call_count; k++)
            if (c->call[k].method == MSG_REGISTER && c->call[k].callee == SIM_CALLEE_OPEN)
                sim_fail(s, "member %s is told to be gone while its stream lives", m->card.id);
    }
}

/* While there is nobody to ask nobody goes, except that a new life of his takes his place in the same breath. */
static void check_away(struct sim_members *x, const struct msg_member *m, uint32_t who)
{
    bool replaced = m->change == MSG_MEMBER_PUT && who + 1 == x->gone;
    if (x->gone != 0 && !replaced)
        sim_fail(x->env.s, "%s believes that %s is gone while there is nobody to ask", x->env.s->node[x->env.node].id,
                 x->env.s->node[x->gone - 1].id);
    x->gone = m->change == MSG_MEMBER_GONE && x->away ? who + 1 : 0;
}

static void on_member(void *user, const struct msg_member *m)
{
    struct sim_members *x = user;
    struct sim *s = x->env.s;
    struct kvs_error err = {0};
    uint32_t node = x->env.node;
    if (m->change == MSG_MEMBER_SNAPSHOT_END) {
        check_away(x, m, SIM_NOBODY);
        return;
    }
    bool put = m->change == MSG_MEMBER_PUT;
    uint32_t who = node_of(s, m->card.id);
    if (who == SIM_NOBODY) {
        sim_fail(s, "%s is told of \"%s\", who does not exist", s->node[node].id, m->card.id);
        return;
    }
    check_away(x, m, who);
    if (put && cls_registry_put(x->view, &m->card, s->now_us, &err) != KVS_OK)
        sim_fail(s, "%s cannot remember a member: %s", s->node[node].id, err.text);
    if (!put && !cls_registry_has(x->view, m->card.id, m->card.epoch))
        sim_fail(s, "%s is told that %s has gone, of whom it was not told", s->node[node].id, m->card.id);
    if (!put)
        cls_registry_leave(x->view, m->card.id, m->card.epoch, s->now_us);
    struct msg_member seen;
    while (cls_registry_next_change(x->view, &seen))
        ;
    if (who == node)
        return;
    sim_note(s, node, put ? "member %n is there" : "member %n is gone", who);
    if (sim_is_router(s, node))
        sim_count(s, put ? SIM_N_members : SIM_N_expired, 1);
    if (!put)
        check_gone(s, node, m);
    if (sim_is_router(s, node))
        sim_router_member(s, node, m);
    else
        sim_worker_member(s, node, m);
}

static void on_backend(void *user, bool up, const char *text)
{
    struct sim_members *x = user;
    (void)text;
    x->away = !up;
    sim_note(x->env.s, x->env.node, up ? "discovery is up%u" : "discovery is away%u", 0);
    sim_count(x->env.s, SIM_N_backend_lost, !up);
}

void sim_members_start(struct sim *s, uint32_t node)
{
    struct sim_members *x = calloc(1, sizeof *x);
    KVS_ASSERT(x != NULL && s->node[node].members == NULL);
    x->env = (struct sim_env){.s = s, .node = node, .life = s->node[node].life};
    s->node[node].members = x;
    struct cls_events ev = {.user = x, .on_member = on_member, .on_backend = on_backend};
    struct cls_etcd_config etcd = {.url = "etcd://model", .cluster = "default", .ttl_us = s->set.lease_us};
    kvs_status st = cls_registry_create(SIM_NODES_MAX * 2, CLS_FOREVER, &x->view);
    KVS_ASSERT(st == KVS_OK);
    if (s->set.etcd)
        st = cls_etcd_create(sim_env_loop(&x->env), &etcd, &ev, &x->discovery, NULL);
    else if (sim_is_router(s, node))
        st = cls_embedded_server_create(sim_env_loop(&x->env), sim_env_rpc(&x->env), &ev, &x->discovery);
    else
        st = cls_embedded_client_create(sim_env_loop(&x->env), sim_env_rpc(&x->env), &ev, &x->discovery);
    KVS_ASSERT(st == KVS_OK);
    sim_members_update(s, node);
    sim_digests_start(s, node);
}

struct cls_discovery *sim_members_discovery(struct sim *s, uint32_t node)
{
    return s->node[node].members->discovery;
}

void sim_members_update(struct sim *s, uint32_t node)
{
    struct cls_discovery *d = s->node[node].members->discovery;
    kvs_status st = d->ops->join(d, &s->node[node].card);
    KVS_ASSERT(st == KVS_OK);
}

void sim_members_stop(struct sim *s, uint32_t node, bool leave)
{
    struct sim_members *x = s->node[node].members;
    if (x == NULL)
        return;
    sim_digests_stop(s, node);
    if (leave && s->set.etcd)
        cls_etcd_leave_now(x->discovery, 1000);
    else if (leave)
        x->discovery->ops->leave(x->discovery);
    x->discovery->ops->destroy(x->discovery);
    cls_registry_destroy(x->view);
    free(x);
    s->node[node].members = NULL;
}

/* --- streams --- */

void sim_members_conn_up(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node)
{
    if (!s->set.etcd && sim_is_router(s, peer_node))
        cls_embedded_client_up(s->node[node].members->discovery, conn);
}

void sim_members_conn_down(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node)
{
    struct cls_discovery *d = s->node[node].members->discovery;
    if (s->set.etcd)
        return;
    if (sim_is_router(s, node))
        cls_embedded_server_down(d, conn);
    else if (sim_is_router(s, peer_node))
        cls_embedded_client_down(d, conn);
}

bool sim_members_call(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    if (call->method != MSG_REGISTER || s->set.etcd)
        return false;
    struct msg_call m = {.method = MSG_REGISTER, .body = body, .body_bytes = (uint32_t)n};
    cls_embedded_server_call(s->node[node].members->discovery, conn, call->stream, &m);
    return true;
}

void sim_members_cancel(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream)
{
    if (!s->set.etcd && sim_is_router(s, node))
        cls_embedded_server_cancel(s->node[node].members->discovery, conn, stream);
}

bool sim_members_item(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n)
{
    return !s->set.etcd && !sim_is_router(s, node) &&
           cls_embedded_client_item(s->node[node].members->discovery, conn, call->stream, body, n);
}

bool sim_members_end(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const struct msg_end *end)
{
    return !s->set.etcd && !sim_is_router(s, node) && cls_embedded_client_end(s->node[node].members->discovery, conn, call->stream, end);
}

/* --- the view --- */

const struct msg_card *sim_members_find(struct sim *s, uint32_t node, const char *id)
{
    return cls_registry_find(s->node[node].members->view, id);
}

static bool all_there(const struct sim *s, const struct cls_registry *r)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < s->node_count; i++) {
        if (!s->node[i].alive)
            continue;
        live++;
        if (!cls_registry_has(r, s->node[i].id, s->node[i].epoch))
            return false;
    }
    return cls_registry_count(r) == live;
}

const char *sim_members_rest(struct sim *s, uint32_t *node_out)
{
    for (uint32_t i = 0; i < s->node_count; i++)
        if (s->node[i].alive && !all_there(s, s->node[i].members->view)) {
            *node_out = i;
            return "its view of the cluster does not hold exactly those who run";
        }
    return NULL;
}
