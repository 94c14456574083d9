/* etcd_port.c - the etcd client of a simulated process, as net/etcd.h offers it: calls that end exactly once, within a time limit, and one
 * watch, which ends when its connection does and when a call has found the server dead or hung. Bodies are plain structs (etcd.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/seam.h"

#include "net/etcd.h"
#include "sim/env.h"
#include "sim/etcd.h"

#include <stdlib.h>
#include <string.h>

struct call {
    uint64_t number; /* 0: free */
    net_etcd_done_fn done;
    void *user;
};

struct net_etcd {
    struct sim_env *env;
    struct net_etcd_events ev;
    uint32_t number;
    uint64_t next, watch; /* watch: its number; 0: none */
    struct call call[NET_ETCD_CALLS_MAX];
};

/* --- bodies --- */

static kvs_status put(struct kvs_buf *out, const struct sim_etcd_request *head, const char *key, const void *value, size_t n)
{
    struct sim_etcd_request r = *head;
    r.key_bytes = (uint32_t)strlen(key);
    r.value_bytes = (uint32_t)n;
    kvs_status st = kvs_buf_append(out, &r, sizeof r);
    if (st == KVS_OK)
        st = kvs_buf_append(out, key, r.key_bytes + (size_t)1);
    return st == KVS_OK && n != 0 ? kvs_buf_append(out, value, n) : st;
}

kvs_status net_etcd_put_grant(struct kvs_buf *out, int64_t ttl_s)
{
    return put(out, &(struct sim_etcd_request){.op = SIM_ETCD_GRANT, .ttl = ttl_s}, "", NULL, 0);
}

kvs_status net_etcd_put_lease(struct kvs_buf *out, int64_t lease)
{
    return put(out, &(struct sim_etcd_request){.op = SIM_ETCD_LEASE, .lease = lease}, "", NULL, 0);
}

kvs_status net_etcd_put_range(struct kvs_buf *out, const char *prefix, int64_t limit)
{
    return put(out, &(struct sim_etcd_request){.op = SIM_ETCD_RANGE, .limit = limit}, prefix, NULL, 0);
}

kvs_status net_etcd_put_put(struct kvs_buf *out, const char *key, const void *value, size_t n, int64_t lease)
{
    return put(out, &(struct sim_etcd_request){.op = SIM_ETCD_PUT, .lease = lease}, key, value, n);
}

kvs_status net_etcd_put_delete(struct kvs_buf *out, const char *prefix)
{
    return put(out, &(struct sim_etcd_request){.op = SIM_ETCD_DELETE}, prefix, NULL, 0);
}

kvs_status net_etcd_put_swap(struct kvs_buf *out, const char *key, int64_t mod_revision, const void *value, size_t n, int64_t lease)
{
    return put(out, &(struct sim_etcd_request){.op = SIM_ETCD_SWAP, .mod_revision = mod_revision, .lease = lease}, key, value, n);
}

/* --- life --- */

kvs_status net_etcd_create(struct kvs_loop *loop, const char *url, const struct net_etcd_events *ev, struct net_etcd **out, struct kvs_error *err)
{
    struct sim_env *env = (struct sim_env *)loop;
    struct sim *s = env->s;
    struct net_etcd *e = calloc(1, sizeof *e);
    KVS_ASSERT(e != NULL);
    (void)url, (void)err;
    if (s->etcd_client_count == s->etcd_client_cap) {
        s->etcd_client_cap = s->etcd_client_cap != 0 ? s->etcd_client_cap * 2 : 64;
        s->etcd_client = realloc(s->etcd_client, s->etcd_client_cap * sizeof(struct net_etcd *));
        KVS_ASSERT(s->etcd_client != NULL);
    }
    *e = (struct net_etcd){.env = env, .ev = *ev, .number = s->etcd_client_count};
    s->etcd_client[s->etcd_client_count++] = e;
    *out = e;
    return KVS_OK;
}

kvs_status net_etcd_login(struct net_etcd *e, const char *user, const char *password, struct kvs_error *err)
{
    (void)e, (void)user, (void)password, (void)err;
    return KVS_OK;
}

void net_etcd_destroy(struct net_etcd *e)
{
    if (e == NULL)
        return;
    sim_etcd_unwatch(e->env->s, e->number);
    e->env->s->etcd_client[e->number] = NULL;
    free(e);
}

struct sim_env *sim_etcd_port_env(struct sim *s, uint32_t client)
{
    return s->etcd_client[client] != NULL ? s->etcd_client[client]->env : NULL;
}

void sim_etcd_port_free(struct sim *s)
{
    free(s->etcd_client);
}

/* --- calls --- */

static void end_call(struct net_etcd *e, uint64_t number, kvs_status st, const char *text, const struct net_etcd_answer *answer)
{
    for (uint32_t i = 0; i < NET_ETCD_CALLS_MAX; i++) {
        struct call c = e->call[i];
        if (c.number != number || number == 0)
            continue;
        e->call[i].number = 0;
        c.done(c.user, st, text, answer);
        return;
    }
}

static void end_watch(struct net_etcd *e, kvs_status why, const char *text)
{
    if (e->watch == 0)
        return;
    e->watch = 0;
    sim_etcd_unwatch(e->env->s, e->number);
    e->ev.on_watch_end(e->ev.user, why, text);
}

static bool waits(const struct net_etcd *e, uint64_t number)
{
    for (uint32_t i = 0; i < NET_ETCD_CALLS_MAX; i++)
        if (e->call[i].number == number)
            return true;
    return false;
}

static void too_late(struct sim *s, struct sim_event *ev)
{
    struct net_etcd *e = s->etcd_client[ev->id];
    if (e == NULL || !waits(e, ev->a))
        return;
    sim_count(s, SIM_N_etcd_timeouts, 1);
    end_call(e, ev->a, KVS_PEER_TIMEOUT, "no answer from etcd within 1.5 s", NULL);
    end_watch(e, KVS_PEER_TIMEOUT, "etcd does not answer");
}

void sim_etcd_port_answer(struct sim *s, struct sim_event *ev)
{
    struct net_etcd *e = s->etcd_client[ev->id];
    const struct sim_etcd_reply *r = ev->ptr;
    if (e != NULL)
        end_call(e, r->call, r->status, r->text, &r->answer);
}

void sim_etcd_port_line(struct sim *s, struct sim_event *ev)
{
    struct net_etcd *e = s->etcd_client[ev->id];
    const struct sim_etcd_line *l = ev->ptr;
    if (e != NULL && e->watch == ev->a)
        e->ev.on_line(e->ev.user, &l->line);
}

void sim_etcd_port_reset(struct sim *s, struct sim_event *ev)
{
    struct net_etcd *e = s->etcd_client[ev->id];
    if (e == NULL)
        return;
    for (uint32_t i = 0; i < NET_ETCD_CALLS_MAX && ev->a == 0; i++)
        if (ev->b == 0 || ev->b == e->call[i].number)
            end_call(e, e->call[i].number, KVS_PEER_LOST, "etcd is away", NULL);
    if (ev->a == 0 || ev->a == e->watch)
        end_watch(e, KVS_PEER_LOST, "etcd is away");
}

static void ask(struct net_etcd *e, const struct sim_etcd_request *head, size_t bytes, sim_etcd_op op, uint64_t number)
{
    struct sim_etcd_request *r = malloc(bytes);
    KVS_ASSERT(r != NULL);
    memcpy(r, head, bytes);
    r->op = op;
    r->node = e->env->node;
    r->client = e->number;
    r->call = number;
    sim_etcd_ask(e->env->s, r);
}

static sim_etcd_op op_of(net_etcd_op op)
{
    switch (op) {
    case NET_ETCD_GRANT: return SIM_ETCD_GRANT;
    case NET_ETCD_KEEPALIVE: return SIM_ETCD_KEEPALIVE;
    case NET_ETCD_REVOKE: return SIM_ETCD_REVOKE;
    case NET_ETCD_RANGE: return SIM_ETCD_RANGE;
    case NET_ETCD_PUT: return SIM_ETCD_PUT;
    case NET_ETCD_DELETE: return SIM_ETCD_DELETE;
    case NET_ETCD_TXN:
    case NET_ETCD_AUTH: break;
    }
    return SIM_ETCD_SWAP;
}

kvs_status net_etcd_call(struct net_etcd *e, net_etcd_op op, const struct kvs_buf *body, net_etcd_done_fn done, void *user)
{
    struct sim *s = e->env->s;
    for (uint32_t i = 0; i < NET_ETCD_CALLS_MAX; i++) {
        if (e->call[i].number != 0)
            continue;
        e->call[i] = (struct call){.number = ++e->next, .done = done, .user = user};
        struct sim_event late = {.run = too_late, .node = e->env->node, .life = e->env->life, .id = e->number, .a = e->next};
        sim_post(s, sim_in(s, NET_ETCD_TRY_MS * 1000, NET_ETCD_TRY_MS * 1000 + 5000), &late);
        ask(e, (const struct sim_etcd_request *)(const void *)body->data, body->len, op_of(op), e->next);
        return KVS_OK;
    }
    return KVS_BUSY_QUEUE;
}

kvs_status net_etcd_watch(struct net_etcd *e, const char *prefix, int64_t start_revision)
{
    struct kvs_buf body;
    kvs_buf_init(&body, 4096);
    kvs_status st = put(&body, &(struct sim_etcd_request){.from = start_revision}, prefix, NULL, 0);
    KVS_ASSERT(st == KVS_OK);
    sim_etcd_unwatch(e->env->s, e->number);
    e->watch = ++e->next;
    ask(e, (const struct sim_etcd_request *)(const void *)body.data, body.len, SIM_ETCD_WATCH, e->watch);
    kvs_buf_fini(&body);
    sim_count(e->env->s, SIM_N_etcd_watches, 1);
    return KVS_OK;
}

void net_etcd_unwatch(struct net_etcd *e)
{
    e->watch = 0;
    sim_etcd_unwatch(e->env->s, e->number);
}

void net_etcd_revoke_now(struct net_etcd *e, int64_t lease, uint32_t limit_ms)
{
    (void)limit_ms;
    if (sim_etcd_reachable(e->env->s, e->env->node))
        sim_etcd_revoke(e->env->s, lease);
}
