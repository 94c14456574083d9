/* orders.c - a worker is told to go (SIGTERM, DRAIN) or to be another (ROLE).
 * Both begin alike: what it shall not do any more is refused with SELF_STOPPING from now on, card and load reports say so, and routers move
 * away what it decodes, each with its pages: the next worker fetches what is complete here. What nobody could take in worker.drain seconds is
 * handed back. Prefills for others that run come to their end.
 * A worker that drains stays until what went away has been fetched (the routers say so, or 30 s are over), and ends. One that has another
 * role keeps its cache and its epoch.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/edge/worker_impl.h"

#include "base/arena.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/log.h"

#define HAND_BACK_US 2000000u /* for the last words of what is handed back */
#define FETCH_US 30000000u    /* and for those who fetch what it had computed */

static bool decodes(msg_role role)
{
    return role == MSG_ROLE_DECODE || role == MSG_ROLE_BOTH;
}

static void announce(struct wrk_worker *w)
{
    if (w->discovery->ops->join(w->discovery, &w->loaded.member) != KVS_OK)
        KVS_WARN("a change could not be announced", "cause=\"load reports say it\"");
    wrk_serve_report(w->serve, atomic_load(&w->draining));
}

void wrk_orders_drain(struct wrk_worker *w)
{
    if (atomic_exchange(&w->draining, true))
        return;
    w->drain_until_us = kvs_now_us() + w->config.drain_us;
    EACH_ROLE(w, drain, w->self[i_])
    w->loaded.member.draining = true;
    announce(w);
}

static kvs_status change_role(struct wrk_worker *w, msg_role role, struct kvs_error *err)
{
    msg_role old = w->loaded.member.role;
    if (atomic_load(&w->draining))
        return kvs_fail(err, KVS_SELF_STOPPING, "%s drains: it takes no other role", w->loaded.member.id);
    if (role == old)
        return KVS_OK;
    KVS_INFO("role changes", "from=%s to=%s", msg_role_name(old), msg_role_name(role));
    w->loaded.member.role = role;
    w->yield_until_us = decodes(role) ? 0 : decodes(old) ? kvs_now_us() + w->config.drain_us : w->yield_until_us;
    EACH_ROLE(w, set_role, w->self[i_], role)
    wrk_orders_build_info(w);
    announce(w);
    return KVS_OK;
}

bool wrk_orders_call(struct wrk_worker *w, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    struct msg_end end = {.status = KVS_OK};
    struct kvs_error err = {0};
    struct kvs_arena arena;
    struct msg_set_role m;
    bool order = call->method == MSG_DRAIN || call->method == MSG_SET_ROLE || call->method == MSG_CACHE_FLUSH;
    if (!order || wrk_peers_is_peer(w->peers, conn))
        return false; /* of workers, none gives another orders */
    if (call->method == MSG_DRAIN) {
        wrk_orders_drain(w);
    } else if (call->method == MSG_CACHE_FLUSH) {
        end.cached_tokens = wrk_sched_flush(w->sched) * w->loaded.layout.block_tokens;
        KVS_INFO("cache flushed", "tokens=%u", end.cached_tokens);
    } else {
        kvs_arena_init(&arena, 4096);
        end.status = msg_set_role_decode(call->body, call->body_bytes, &arena, &m, &err);
        if (end.status == KVS_OK)
            end.status = change_role(w, m.role, &err);
        kvs_format(end.text, sizeof end.text, "%s", err.text);
        kvs_arena_fini(&arena);
    }
    net_rpc_end(w->rpc, conn, stream, &end);
    return true;
}

/* Calls that are not over. */
static uint32_t busy(const struct wrk_worker *w)
{
    uint32_t n = 0;
    for (size_t i = 0; i < w->role_count; i++)
        n += w->role[i]->busy != NULL ? w->role[i]->busy(w->self[i]) : 0;
    return n;
}

/* Requests that went on elsewhere and whose KV is still to be fetched. */
static uint32_t kept(const struct wrk_worker *w)
{
    uint32_t n = 0;
    for (size_t i = 0; i < w->role_count; i++)
        n += w->role[i]->kept != NULL ? w->role[i]->kept(w->self[i]) : 0;
    return n;
}

static void hand_back(struct wrk_worker *w, uint32_t calls)
{
    KVS_INFO("handing back", "calls=%u", calls);
    EACH_ROLE(w, hand_back, w->self[i_])
}

/* Two quiet reports in a row: what the last call had to say is sent, and routers have known for a while. */
static bool watch_drain(struct wrk_worker *w, uint64_t now_us)
{
    uint32_t calls = busy(w), wanted = kept(w);
    w->quiet_reports = calls || wanted ? 0 : w->quiet_reports + 1;
    if (calls && now_us >= w->drain_until_us)
        hand_back(w, calls);
    uint64_t latest = w->drain_until_us + HAND_BACK_US + (wanted ? FETCH_US : 0);
    if (w->quiet_reports < 2 && now_us < latest)
        return false;
    KVS_INFO("drained", "calls=%u kept=%u", calls, wanted);
    return true;
}

bool wrk_orders_watch(struct wrk_worker *w, uint64_t now_us)
{
    if (w->yield_until_us && now_us >= w->yield_until_us) { /* prefills of others are no concern of a hand-back */
        hand_back(w, busy(w));
        w->yield_until_us = 0;
    }
    return atomic_load(&w->draining) && watch_drain(w, now_us);
}

void wrk_orders_build_info(struct wrk_worker *w)
{
    char info[160];
    kvs_format(info, sizeof info, "version=\"%s\",isa=\"%s\",role=\"%s\"", KVASIR_VERSION, eng_model_isa(w->loaded.model),
               msg_role_name(w->loaded.member.role));
    struct kvs_gauge *now = kvs_gauge(w->metrics, "kvasir_build_info", info, "Version, instruction set in use and role");
    if (w->build_info != NULL && w->build_info != now)
        kvs_gauge_set(w->build_info, 0);
    w->build_info = now;
    kvs_gauge_set(now, 1);
}
