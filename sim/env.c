/* env.c - see env.h. Each setting of a timer is an event with a serial: the ones that were set again, and those of destroyed timers, find
 * another serial or no timer. Numbers of timers are not reused.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/seam.h"

#include "net/rpc.h"
#include "proto/frame.h"
#include "sim/env.h"
#include "sim/net.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/log.h"

#include <stdlib.h>

struct kvs_timer {
    struct sim_env *env;
    kvs_timer_fn fn;
    void *user;
    uint64_t number, serial, at_us;
};

static struct sim *sim; /* the run in progress: one at a time in a process */

void sim_env_begin(struct sim *s)
{
    sim = s;
}

void sim_env_end(struct sim *s)
{
    free(s->timer);
    sim = NULL;
}

uint64_t kvs_now_us(void)
{
    return sim->now_us;
}

uint64_t kvs_random_u64(void)
{
    return kvs_rng_next(&sim->rng);
}

bool kvs_log_enabled(kvs_log_level level)
{
    (void)level;
    return false;
}

void kvs_log(kvs_log_level level, const char *words, const char *fmt, ...)
{
    (void)level, (void)words, (void)fmt;
}

#ifdef KVASIR_FAILPOINTS
bool kvs_failpoint_hit(const char *name)
{
    (void)name;
    return false;
}
#endif

/* --- timers --- */

kvs_status kvs_timer_create(struct kvs_loop *l, kvs_timer_fn fn, void *user, struct kvs_timer **out)
{
    struct sim_env *env = (struct sim_env *)l;
    struct sim *s = env->s;
    struct kvs_timer *t = calloc(1, sizeof *t);
    KVS_ASSERT(t != NULL);
    if (s->timer_count == s->timer_cap) {
        s->timer_cap = s->timer_cap != 0 ? s->timer_cap * 2 : 64;
        s->timer = realloc(s->timer, s->timer_cap * sizeof(struct kvs_timer *));
        KVS_ASSERT(s->timer != NULL);
    }
    *t = (struct kvs_timer){.env = env, .fn = fn, .user = user, .number = s->timer_count, .at_us = SIM_FOREVER};
    s->timer[s->timer_count++] = t;
    *out = t;
    return KVS_OK;
}

static void fire(struct sim *s, struct sim_event *e)
{
    struct kvs_timer *t = s->timer[e->id];
    if (t == NULL || t->serial != e->a)
        return;
    t->at_us = SIM_FOREVER;
    t->serial++;
    t->fn(t->user, s->now_us);
}

void kvs_timer_set(struct kvs_timer *t, uint64_t at_us)
{
    struct sim *s = t->env->s;
    uint64_t at = at_us > s->now_us ? at_us : s->now_us;
    if (at == t->at_us)
        return;
    t->serial++;
    t->at_us = at;
    if (at_us != SIM_FOREVER)
        sim_post(s, at, &(struct sim_event){.run = fire, .node = t->env->node, .life = t->env->life, .id = t->number, .a = t->serial});
}

void kvs_timer_destroy(struct kvs_timer *t)
{
    if (t == NULL)
        return;
    t->env->s->timer[t->number] = NULL;
    free(t);
}

/* --- streams --- */

static struct kvs_buf view_of(const void *body, size_t n)
{
    struct kvs_buf b;
    kvs_buf_init(&b, MSG_PAYLOAD_MAX);
    kvs_status st = n != 0 ? kvs_buf_append(&b, body, n) : KVS_OK;
    KVS_ASSERT(st == KVS_OK);
    return b;
}

kvs_status net_rpc_call(struct net_rpc *r, net_conn conn, msg_method method, uint32_t remaining_ms, const char *trace, const void *body, size_t n,
                        uint32_t *stream_out)
{
    const struct sim_env *e = (const struct sim_env *)r;
    struct kvs_buf b = view_of(body, n);
    (void)trace;
    *stream_out = sim_rpc_call(e->s, e->node, conn, method, remaining_ms, &b, &(struct sim_call){0});
    kvs_buf_fini(&b);
    return *stream_out != 0 ? KVS_OK : KVS_PEER_LOST;
}

void net_rpc_cancel(struct net_rpc *r, net_conn conn, uint32_t stream)
{
    const struct sim_env *e = (const struct sim_env *)r;
    sim_rpc_cancel(e->s, e->node, conn, stream);
}

kvs_status net_rpc_item(struct net_rpc *r, net_conn conn, uint32_t stream, const void *payload, size_t n)
{
    const struct sim_env *e = (const struct sim_env *)r;
    struct kvs_buf b = view_of(payload, n);
    bool alive = sim_rpc_alive(e->s, e->node, conn);
    sim_rpc_item(e->s, e->node, conn, stream, &b);
    kvs_buf_fini(&b);
    return alive ? KVS_OK : KVS_PEER_LOST;
}

void net_rpc_end(struct net_rpc *r, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    const struct sim_env *e = (const struct sim_env *)r;
    sim_rpc_end(e->s, e->node, conn, stream, end);
}

void net_rpc_close(struct net_rpc *r, net_conn conn, kvs_status why, const char *text)
{
    const struct sim_env *e = (const struct sim_env *)r;
    (void)why, (void)text;
    sim_conn_close(e->s, e->node, conn);
}
