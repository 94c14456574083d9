/* flush.c - see flush.h. Every call has a deadline of its own (net/rpc), so an order ends within that, whatever a worker does.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/flush.h"

#include "base/json.h"
#include "router/edge/dispatch_impl.h"
#include "sys/log.h"

#include <stdlib.h>
#include <string.h>

#define FLUSH_MS 5000u
#define REPLY_MAX (256u << 10)

struct told {
    net_conn conn; /* 0: has answered */
    uint32_t stream;
    char worker[MSG_ID_MAX];
    struct msg_end end;
};
struct rtr_flush {
    struct rtr_flush *next;
    struct rtr_exchange *x;
    char worker[MSG_ID_MAX]; /* "": all */
    uint32_t count, waiting;
    struct told *told; /* owned */
};

static kvs_status write_reply(const struct rtr_flush *f, struct kvs_buf *out)
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

static void finish(struct rtr_dispatch *d, struct rtr_flush *f)
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
    rtr_exchange_release(f->x);
    atomic_fetch_sub(&d->active, 1);
    free(f->told);
    free(f);
}

static void refuse(struct rtr_dispatch *d, struct rtr_flush *f, kvs_status status, const char *text)
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
    for (struct rtr_flush **at = &d->flushes; *at;) {
        struct rtr_flush *f = *at;
        if (f->waiting) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        finish(d, f);
    }
}

static void tell(struct rtr_dispatch *d, struct rtr_flush *f, const struct rtr_peer *p)
{
    struct told *t = &f->told[f->count++];
    *t = (struct told){.conn = p->conn};
    kvs_format(t->worker, sizeof(t->worker), "%s", p->id);
    t->end.status = net_rpc_call(d->rpc, p->conn, MSG_CACHE_FLUSH, FLUSH_MS, "", NULL, 0, &t->stream);
    if (t->end.status == KVS_OK)
        f->waiting++;
    else
        t->conn = 0;
}

struct submission {
    struct rtr_dispatch *d;
    struct rtr_flush *f;
};

static void run(void *arg)
{
    struct submission *s = arg;
    struct rtr_dispatch *d = s->d;
    struct rtr_flush *f = s->f;
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
    KVS_INFO("caches are flushed", "workers=%u", f->count);
    f->next = d->flushes;
    d->flushes = f;
    settle(d);
}

kvs_status rtr_dispatch_flush(struct rtr_dispatch *d, const char *worker, struct rtr_exchange *x)
{
    struct submission *s = calloc(1, sizeof(*s));
    struct rtr_flush *f = calloc(1, sizeof(*f));
    kvs_status st = s && f ? KVS_OK : KVS_SELF_NOMEM;
    if (st == KVS_OK) {
        *s = (struct submission){.d = d, .f = f};
        f->x = x;
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

bool rtr_flush_end(struct rtr_dispatch *d, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    for (struct rtr_flush *f = d->flushes; f; f = f->next) {
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

void rtr_flush_down(struct rtr_dispatch *d, net_conn conn)
{
    for (struct rtr_flush *f = d->flushes; f; f = f->next) {
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

void rtr_flushes_destroy(struct rtr_dispatch *d)
{
    for (struct rtr_flush *f = d->flushes; f; f = f->next)
        f->waiting = 0;
    settle(d);
}
