/* orders.c - see orders.h. Every call has a deadline of its own (net/rpc), so an order ends within that, whatever a worker does. One kind of
 * order is under way as long as a worker has not answered it: a drain or a role that was only sent may have reached nobody.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/orders.h"

#include "base/json.h"
#include "proto/wire.h"
#include "router/edge/dispatch_impl.h"
#include "sys/log.h"

#include <stdlib.h>
#include <string.h>

#define ORDER_MS 5000u
#define REPLY_MAX (256u << 10)

struct told {
    net_conn conn; /* 0: has answered */
    uint32_t stream;
    char worker[MSG_ID_MAX];
    struct msg_end end;
};
struct rtr_order {
    struct rtr_order *next;
    struct rtr_exchange *x;
    char worker[MSG_ID_MAX]; /* "": all */
    msg_method method;       /* MSG_CACHE_FLUSH, MSG_DRAIN, MSG_SET_ROLE */
    msg_role role;
    uint32_t count, waiting;
    struct told *told; /* owned */
};

static kvs_status write_reply(const struct rtr_order *f, struct kvs_buf *out)
{
    struct kvs_json j;
    uint64_t tokens = 0;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    kvs_json_key(&j, "workers");
    kvs_json_array(&j);
    for (uint32_t i = 0; i < f->count; i++) {
        const struct told *t = &f->told[i];
        bool good = t->end.status == KVS_OK;
        kvs_json_object(&j);
        kvs_json_field_string(&j, "id", t->worker);
        kvs_json_key(&j, good ? "tokens" : "error");
        if (good)
            kvs_json_u64(&j, t->end.cached_tokens);
        else
            kvs_json_string(&j, t->end.text[0] ? t->end.text : kvs_status_name(t->end.status));
        kvs_json_object_end(&j);
        tokens += good ? t->end.cached_tokens : 0;
    }
    kvs_json_array_end(&j);
    kvs_json_field_u64(&j, "tokens", tokens);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

static void reply_flushed(const struct rtr_order *f)
{
    struct kvs_buf body;
    kvs_buf_init(&body, REPLY_MAX);
    kvs_status s = write_reply(f, &body);
    struct rtr_fault fault = {.retry_after_s = 1};
    if (s != KVS_OK)
        (void)rtr_fail(&fault, s, NULL, "the caches were flushed, but the answer could not be written");
    if (s == KVS_OK)
        rtr_exchange_reply(f->x, kvs_buf_text(&body));
    else
        rtr_exchange_fault(f->x, &fault);
    kvs_buf_fini(&body);
}

/* A drain or a role: the one worker has taken the order, or it failed. */
static void reply_taken(const struct rtr_order *f)
{
    const struct msg_end *end = &f->told[0].end;
    struct rtr_fault fault = {0};
    char said[64];
    if (end->status != KVS_OK) {
        bool silent = end->status == KVS_PEER_LOST || end->status == KVS_PEER_TIMEOUT || end->status == KVS_REQ_DEADLINE;
        (void)rtr_fail(&fault, end->status, NULL, "worker %s %s: %s", f->worker,
                       silent ? "has not answered, so it may have taken the order or not" : "does not take the order",
                       end->text[0] ? end->text : kvs_status_name(end->status));
        rtr_exchange_fault(f->x, &fault);
        return;
    }
    if (f->method == MSG_SET_ROLE)
        kvs_format(said, sizeof(said), "{\"role\":\"%s\"}", msg_role_name(f->role));
    else
        kvs_format(said, sizeof(said), "{\"draining\":true}");
    rtr_exchange_reply(f->x, said);
}

static void finish(struct rtr_dispatch *d, struct rtr_order *f)
{
    if (f->method == MSG_CACHE_FLUSH)
        reply_flushed(f);
    else
        reply_taken(f);
    rtr_exchange_release(f->x);
    atomic_fetch_sub(&d->active, 1);
    free(f->told);
    free(f);
}

static void refuse(struct rtr_dispatch *d, struct rtr_order *f, kvs_status status, const char *text)
{
    struct rtr_fault fault = {0};
    (void)rtr_fail(&fault, status, NULL, "%s%s", text, f->worker);
    rtr_exchange_fault(f->x, &fault);
    rtr_exchange_release(f->x);
    atomic_fetch_sub(&d->active, 1);
    free(f->told);
    free(f);
}

/* Answers those orders that wait for nobody any more. */
static void settle(struct rtr_dispatch *d)
{
    for (struct rtr_order **at = &d->orders; *at;) {
        struct rtr_order *f = *at;
        if (f->waiting) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        finish(d, f);
    }
}

static void tell(struct rtr_dispatch *d, struct rtr_order *f, const struct rtr_peer *p)
{
    struct told *t = &f->told[f->count++];
    *t = (struct told){.conn = p->conn};
    struct msg_set_role m = {.role = f->role};
    kvs_format(t->worker, sizeof(t->worker), "%s", p->id);
    KVS_INFO("worker is given an order", "worker=%s order=%s", p->id, msg_method_name(f->method));
    kvs_buf_clear(&d->scratch);
    t->end.status = f->method == MSG_SET_ROLE ? msg_set_role_encode(&m, &d->scratch) : KVS_OK;
    if (t->end.status == KVS_OK)
        t->end.status = net_rpc_call(d->rpc, p->conn, f->method, ORDER_MS, "", d->scratch.data, d->scratch.len, &t->stream);
    if (t->end.status == KVS_OK)
        f->waiting++;
    else
        t->conn = 0;
}

struct submission {
    struct rtr_dispatch *d;
    struct rtr_order *f;
};

static void run(void *arg)
{
    struct submission *s = arg;
    struct rtr_dispatch *d = s->d;
    struct rtr_order *f = s->f;
    free(s);
    f->told = calloc(d->peer_count + 1, sizeof(*f->told));
    if (!f->told) {
        refuse(d, f, KVS_SELF_NOMEM, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < d->peer_count; i++)
        if (!f->worker[0] || strcmp(d->peers[i]->id, f->worker) == 0)
            tell(d, f, d->peers[i]);
    if (!f->count) {
        refuse(d, f, KVS_REQ_NOT_FOUND, f->worker[0] ? "kvasir status lists the workers that are connected; there is none of the name " : "no worker is connected");
        return;
    }
    f->next = d->orders;
    d->orders = f;
    settle(d);
}

kvs_status rtr_dispatch_order(struct rtr_dispatch *d, const char *worker, msg_method method, msg_role role, struct rtr_exchange *x)
{
    struct submission *s = calloc(1, sizeof(*s));
    struct rtr_order *f = calloc(1, sizeof(*f));
    kvs_status st = s && f ? KVS_OK : KVS_SELF_NOMEM;
    if (st == KVS_OK) {
        *s = (struct submission){.d = d, .f = f};
        f->x = x;
        f->method = method;
        f->role = role;
        kvs_format(f->worker, sizeof(f->worker), "%s", worker);
        atomic_fetch_add(&d->active, 1);
        st = atomic_load(&d->stopping) ? KVS_SELF_STOPPING : kvs_loop_post(d->loop, run, s);
        if (st == KVS_OK)
            return st;
        atomic_fetch_sub(&d->active, 1);
    }
    free(s);
    free(f);
    return st;
}

bool rtr_order_end(struct rtr_dispatch *d, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    for (struct rtr_order *f = d->orders; f; f = f->next) {
        for (uint32_t i = 0; i < f->count; i++) {
            struct told *t = &f->told[i];
            if (t->conn != conn || t->stream != stream)
                continue;
            t->end = *end;
            t->conn = 0;
            KVS_ASSERT(f->waiting > 0);
            f->waiting--;
            settle(d);
            return true;
        }
    }
    return false;
}

void rtr_order_down(struct rtr_dispatch *d, net_conn conn)
{
    for (struct rtr_order *f = d->orders; f; f = f->next) {
        for (uint32_t i = 0; i < f->count; i++) {
            if (f->told[i].conn != conn)
                continue;
            f->told[i].conn = 0;
            f->told[i].end.status = KVS_PEER_LOST;
            KVS_ASSERT(f->waiting > 0);
            f->waiting--;
        }
    }
    settle(d);
}

void rtr_orders_destroy(struct rtr_dispatch *d)
{
    for (struct rtr_order *f = d->orders; f; f = f->next)
        f->waiting = 0;
    settle(d);
}
