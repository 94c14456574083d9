/* worker.c - the worker daemon: puts loop, scheduler, device, transport, control streams and roles together.
 * After every round of events (on_idle) the scheduler is driven as worker/core/sched.h says: due ticks, next step, stop flag, timer.
 * Invariant: KV bytes are zeroed on the loop thread before an action or a step can expose their page.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/edge/worker.h"

#include "base/arena.h"
#include "cluster/core/registry.h"
#include "cluster/discovery.h"
#include "net/advertise.h"
#include "net/etcd.h"
#include "net/http_gate.h"
#include "net/ops_http.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/limits.h"
#include "sys/log.h"
#include "sys/secret.h"
#include "sys/thread.h"
#include "worker/core/sizes.h"
#include "worker/edge/cache.h"
#include "worker/edge/worker_impl.h"
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPORT_US 250000u
#define IDLE_TICKS_MAX 64
#define LEAVE_MS 1000u
#define DESCRIPTORS_NEEDED (NET_GATE_WAITING_MAX + 256u + KVS_DESCRIPTORS_OWN) /* heads and pages of HTTP, links to peers */

struct wrk_sched *wrk_worker_sched(struct wrk_worker *w) { return w->sched; }
struct wrk_device *wrk_worker_device(struct wrk_worker *w) { return w->device; }
struct wrk_peers *wrk_worker_peers(struct wrk_worker *w) { return w->peers; }
struct net_rpc *wrk_worker_rpc(struct wrk_worker *w) { return w->rpc; }
struct kvt_port *wrk_worker_port(struct wrk_worker *w) { return w->port; }
struct kvs_metrics *wrk_worker_metrics(struct wrk_worker *w) { return w->metrics; }
const struct wrk_speed *wrk_worker_speed(const struct wrk_worker *w) { return &w->speed; }
const struct wrk_config *wrk_worker_config(const struct wrk_worker *w) { return &w->config; }
const struct msg_card *wrk_worker_card(const struct wrk_worker *w) { return &w->loaded.member; }

void wrk_worker_link(struct wrk_worker *w, struct msg_peer_link *link)
{
    for (size_t i = 0; i < w->role_count; i++)
        if (w->role[i]->link != NULL && w->role[i]->link(w->self[i], link))
            return;
}

uint8_t *wrk_worker_page(struct wrk_worker *w, uint32_t group, uint32_t page)
{
    KVS_ASSERT(group < w->loaded.layout.group_count && page < w->kv.pages[group]);
    return w->kv.base[group] + (uint64_t)page * w->loaded.layout.group[group].page_bytes;
}

void wrk_worker_zero(struct wrk_worker *w)
{
    struct wrk_page page[64];
    size_t n;
    while ((n = wrk_sched_take_zeros(w->sched, page, sizeof page / sizeof page[0])) != 0)
        for (size_t i = 0; i < n; i++)
            memset(wrk_worker_page(w, page[i].group, page[i].page), 0, w->loaded.layout.group[page[i].group].page_bytes);
    struct wrk_copy copy;
    while (wrk_sched_take_copies(w->sched, &copy, 1) != 0)
        kvc_page_copy_head(&w->loaded.layout, copy.group, wrk_worker_page(w, copy.group, copy.from),
                           wrk_worker_page(w, copy.group, copy.to), copy.tokens);
}

/* --- device --- */

static void on_device(void *arg)
{
    struct wrk_worker *w = arg;
    uint64_t step;
    uint32_t layers;
    kvs_status status;
    const struct wrk_result *results;
    atomic_store(&w->device_posted, false);
    if (wrk_device_take_layers(w->device, &step, &layers))
        EACH_ROLE(w, layer, w->self[i_], step, layers)
    if (!wrk_device_take_done(w->device, &step, &status, &results))
        return;
    if (wrk_device_take_layers(w->device, &step, &layers) && status == KVS_OK)
        EACH_ROLE(w, layer, w->self[i_], step, layers)
    const struct wrk_step *done = wrk_sched_in_flight(w->sched);
    if (status == KVS_OK && done != NULL && done->id == step)
        wrk_speed_add(&w->speed, done, wrk_device_step_s(w->device));
    if (wrk_sched_step_done(w->sched, step, status, results))
        EACH_ROLE(w, step_done, w->self[i_])
}

static void wake_device(void *user)
{
    struct wrk_worker *w = user;
    if (!atomic_exchange(&w->device_posted, true) && kvs_loop_post(w->loop, on_device, w) != KVS_OK)
        atomic_store(&w->device_posted, false); /* the report timer looks again */
}

/* --- transport --- */

static void port_event(struct wrk_worker *w, const struct kvt_event *ev)
{
    if (ev->kind == KVT_EV_SENT || ev->kind == KVT_EV_GRANT) {
        ANY_ROLE(w, port_event, ev)
        kvt_sink_destroy(ev->kind == KVT_EV_GRANT ? ev->sink : NULL);
        return;
    }
    wrk_peers_port_event(w->peers, ev);
}

static void on_port(void *arg)
{
    struct wrk_worker *w = arg;
    struct kvt_event ev;
    atomic_store(&w->port_posted, false);
    while (kvt_port_next(w->port, &ev))
        port_event(w, &ev);
}

static void wake_port(void *user)
{
    struct wrk_worker *w = user;
    if (!atomic_exchange(&w->port_posted, true) && kvs_loop_post(w->loop, on_port, w) != KVS_OK)
        atomic_store(&w->port_posted, false);
}

static void on_peer_up(void *user, uint32_t peer, const char *id, uint64_t epoch, const char *transport)
{
    struct wrk_worker *w = user;
    (void)epoch;
    EACH_ROLE(w, peer_up, w->self[i_], peer, id, transport)
}

static void on_peer_down(void *user, uint32_t peer)
{
    struct wrk_worker *w = user;
    EACH_ROLE(w, peer_down, w->self[i_], peer)
}

static void on_peer_closed(void *user, uint32_t peer)
{
    struct wrk_worker *w = user;
    EACH_ROLE(w, peer_closed, w->self[i_], peer)
}

/* --- control streams --- */

static kvs_status check_hello(void *user, const struct msg_hello *hello, struct kvs_error *err)
{
    struct wrk_worker *w = user;
    if (hello->protocol_min > MSG_PROTOCOL_MAX || hello->protocol_max < MSG_PROTOCOL_MIN)
        return kvs_fail(err, KVS_PEER_MISMATCH, "protocol %u to %u is spoken there, %u to %u here: upgrade the older daemon", hello->protocol_min,
                        hello->protocol_max, MSG_PROTOCOL_MIN, MSG_PROTOCOL_MAX);
    if (hello->role == MSG_ROLE_ROUTER)
        return KVS_OK;
    if (hello->role == MSG_ROLE_CLIENT)
        return kvs_fail(err, KVS_PEER_REFUSED, "this is a worker: clients speak to the router");
    return wrk_peers_check(w->peers, hello, err);
}

static void on_up(void *user, net_conn conn, const struct msg_hello *hello, bool we_dialed, const char *url)
{
    struct wrk_worker *w = user;
    (void)url;
    if (hello->role != MSG_ROLE_ROUTER) {
        wrk_peers_conn_up(w->peers, conn, hello, we_dialed);
        return;
    }
    KVS_INFO("router connected", "router=%s", hello->id);
    if (we_dialed && !w->etcd) {
        w->router = conn;
        atomic_store(&w->registered, true);
        cls_embedded_client_up(w->discovery, conn);
    }
}

static void on_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    struct wrk_worker *w = user;
    if (wrk_peers_conn_down(w->peers, conn))
        return;
    KVS_WARN("control stream lost", "status=%s cause=\"%s\"", kvs_status_name(why), text);
    wrk_serve_conn_down(w->serve, conn);
    EACH_ROLE(w, conn_down, w->self[i_], conn)
    if (conn == w->router) {
        w->router = 0;
        atomic_store(&w->registered, false);
        cls_embedded_client_down(w->discovery, conn);
    }
}

static void on_dial_failed(void *user, const char *url, kvs_status why, const char *text)
{
    (void)user;
    KVS_DEBUG("dial failed", "url=%s status=%s cause=\"%s\"", url, kvs_status_name(why), text);
}

static void on_call(void *user, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    struct wrk_worker *w = user;
    uint64_t deadline_us = call->remaining_ms == 0 ? 0 : kvs_now_us() + (uint64_t)call->remaining_ms * 1000;
    if (wrk_peers_call(w->peers, conn, stream, call) || wrk_serve_call(w->serve, conn, stream, call))
        return;
    struct msg_end end = {.status = KVS_OK};
    if (wrk_orders_call(w, conn, stream, call))
        return;
    ANY_ROLE(w, call, conn, stream, call, deadline_us)
    end.status = KVS_REQ_UNSUPPORTED;
    kvs_format(end.text, sizeof end.text, "%s is not served by a %s worker", msg_method_name(call->method), msg_role_name(w->loaded.member.role));
    net_rpc_end(w->rpc, conn, stream, &end);
}

static void on_cancel(void *user, net_conn conn, uint32_t stream)
{
    struct wrk_worker *w = user;
    if (wrk_serve_cancel(w->serve, conn, stream))
        return;
    ANY_ROLE(w, cancel, conn, stream)
}

static void on_ack(void *user, net_conn conn, uint32_t stream)
{
    struct wrk_worker *w = user;
    ANY_ROLE(w, ack, conn, stream, false)
}

static void on_nack(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    struct wrk_worker *w = user;
    (void)payload;
    (void)n; /* the source unpins whatever is missing: the sink computes it */
    ANY_ROLE(w, ack, conn, stream, true)
}

static void on_item(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    struct wrk_worker *w = user;
    if (!wrk_peers_item(w->peers, conn, stream, payload, n) && !w->etcd)
        (void)cls_embedded_client_item(w->discovery, conn, stream, payload, n);
}

static void on_end(void *user, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    struct wrk_worker *w = user;
    if (wrk_peers_end(w->peers, conn, stream, end) || (!w->etcd && cls_embedded_client_end(w->discovery, conn, stream, end)))
        return;
    ANY_ROLE(w, end, conn, stream, end)
}

static void on_pause(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n, bool resume)
{
    struct wrk_worker *w = user;
    struct kvs_arena arena;
    struct msg_pause p;
    struct kvs_error err = {0};
    (void)stream;
    kvs_arena_init(&arena, 4096);
    kvs_status st = msg_pause_decode(payload, n, &arena, &p, &err);
    kvs_arena_fini(&arena);
    if (st != KVS_OK) {
        net_rpc_close(w->rpc, conn, st, err.text);
        return;
    }
    ANY_ROLE(w, pause, conn, p.request, resume)
}

/* --- discovery --- */

/* The first view of the cluster decides: a worker that cannot work with those who serve its model already is a mistake of its flags, and
 * says so at once. Later comers judge themselves the same way. */
static void judge_fit(struct wrk_worker *w, const struct msg_member *m)
{
    const struct msg_card *self = &w->loaded.member;
    struct kvs_error err = {0};
    if (w->joined)
        return;
    if (m->change == MSG_MEMBER_PUT && w->misfit[0] == 0 && strcmp(m->card.id, self->id) != 0 && strcmp(m->card.model, self->model) == 0 &&
        cls_cards_compatible(self, &m->card, &err) != KVS_OK)
        kvs_format(w->misfit, sizeof w->misfit, "%s", err.text);
    if (m->change != MSG_MEMBER_SNAPSHOT_END)
        return;
    w->joined = true;
    if (w->misfit[0] != 0)
        kvs_loop_stop(w->loop);
}

static void on_member(void *user, const struct msg_member *m)
{
    struct wrk_worker *w = user;
    judge_fit(w, m);
    wrk_peers_member(w->peers, m);
}

static void on_backend(void *user, bool up, const char *text)
{
    struct wrk_worker *w = user;
    kvs_gauge_set(w->discovery_up, up);
    if (up && w->etcd)
        atomic_store(&w->registered, true); /* and it stays so while etcd is away: those who know us go on */
    if (up)
        KVS_INFO("registered", "backend=\"%s\"", w->etcd ? text : "embedded");
    else
        KVS_WARN("discovery lost", "cause=\"%s\"", text);
}

/* --- the loop's own turns --- */

static void update_metrics(struct wrk_worker *w)
{
    struct wrk_sched_stats st = wrk_sched_stats(w->sched);
    for (uint32_t g = 0; g < w->loaded.layout.group_count; g++) {
        struct kvc_pool_counts c = wrk_sched_pages(w->sched, g);
        kvs_gauge_set(w->pages[g][0], c.free);
        kvs_gauge_set(w->pages[g][1], c.cached);
        kvs_gauge_set(w->pages[g][2], c.held);
        kvs_gauge_set(w->pages[g][3], c.fenced);
    }
    wrk_follow(&w->prefill_tokens, st.prefill_tokens);
    wrk_follow(&w->decode_tokens, st.decode_tokens);
    wrk_follow(&w->steps, st.steps);
    wrk_follow(&w->chunks, st.chunks);
    wrk_follow(&w->preemptions, st.preemptions);
    wrk_follow(&w->cached_tokens, st.cached_tokens);
    wrk_follow(&w->evicted_blocks, st.evicted_blocks);
    struct cls_etcd_stats etcd = {0};
    if (w->etcd && w->discovery != NULL)
        cls_etcd_stats(w->discovery, &etcd);
    wrk_follow(&w->silent_watches, etcd.silent_watches);
    kvs_gauge_set(w->widest, st.widest_batch);
    kvs_gauge_set(w->running, st.active);
    kvs_gauge_set(w->waiting, st.waiting);
    EACH_ROLE(w, metrics, w->self[i_])
}

static uint64_t next_deadline(struct wrk_worker *w)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < w->role_count; i++) {
        uint64_t d = w->role[i]->deadline_us(w->self[i]);
        least = d < least ? d : least;
    }
    return least;
}

static void start_step(struct wrk_worker *w)
{
    if (w->stopping || wrk_sched_in_flight(w->sched) != NULL)
        return;
    uint64_t decoded = wrk_sched_stats(w->sched).decode_tokens;
    if (decoded != w->decoded && KVS_FAILPOINT("decode.preempt")) /* hit once after each step that wrote a token */
        (void)wrk_sched_preempt_newest(w->sched);
    w->decoded = decoded;
    const struct wrk_step *step = wrk_sched_next_step(w->sched);
    wrk_worker_zero(w);
    if (step != NULL)
        wrk_device_submit(w->device, step);
}

/* Routers were told of prompts to read, and the last of them has been read: until they hear of it they would send others elsewhere, or let
 * them wait. One such report at most for each regular one, since it tells of none. */
static void report_soon(struct wrk_worker *w, uint64_t now_us)
{
    if (wrk_serve_told(w->serve) > 0 && wrk_sched_stats(w->sched).prefill_left == 0)
        kvs_timer_set(w->report_timer, now_us);
}

static void on_idle(void *user, uint64_t now_us)
{
    struct wrk_worker *w = user;
    for (int i = 0; i < IDLE_TICKS_MAX && next_deadline(w) <= now_us; i++)
        EACH_ROLE(w, tick, w->self[i_])
    wrk_serve_pump(w->serve);
    start_step(w);
    wrk_device_stop_step(w->device, w->stopping || wrk_sched_stop_wanted(w->sched));
    update_metrics(w);
    kvs_timer_set(w->wake_timer, next_deadline(w));
    report_soon(w, now_us);
}

static void on_wake_timer(void *user, uint64_t now_us)
{
    (void)user; /* on_idle does the work */
    (void)now_us;
}

static void stop_now(struct wrk_worker *w)
{
    w->stopping = true;
    kvs_loop_stop(w->loop);
}

static void on_report_timer(void *user, uint64_t now_us)
{
    struct wrk_worker *w = user;
    on_device(w); /* also stands in for a wake-up that found the loop's queue full */
    on_port(w);
    wrk_serve_report(w->serve, atomic_load(&w->draining));
    kvs_timer_set(w->report_timer, now_us + REPORT_US);
    if (wrk_orders_watch(w, now_us))
        stop_now(w);
}

static void on_signal(void *user, int sig)
{
    struct wrk_worker *w = user;
    bool drain = sig == SIGTERM && !atomic_load(&w->draining);
    KVS_INFO(drain ? "draining" : "stopping", "signal=%d", sig);
    if (drain)
        wrk_orders_drain(w);
    else
        stop_now(w);
}

static kvs_status http_metrics(void *user, struct kvs_buf *out)
{
    struct wrk_worker *w = user;
    return kvs_metrics_write(w->metrics, out);
}

static bool http_ready(void *user, char *why_out, size_t cap)
{
    struct wrk_worker *w = user;
    if (atomic_load(&w->draining)) {
        kvs_format(why_out, cap, "draining");
        return false;
    }
    if (atomic_load(&w->registered))
        return true;
    kvs_format(why_out, cap, "not registered in the cluster");
    return false;
}

/* --- start and stop --- */

static kvs_status create_metrics(struct wrk_worker *w)
{
    static const char *const state[4] = {"free", "cached", "held", "fenced"};
    kvs_status st = kvs_metrics_create(&w->metrics);
    if (st != KVS_OK)
        return st;
    char labels[64];
    for (uint32_t g = 0; g < w->loaded.layout.group_count; g++)
        for (int i = 0; i < 4; i++) {
            kvs_format(labels, sizeof labels, "group=\"%u\",state=\"%s\"", g, state[i]);
            w->pages[g][i] = kvs_gauge(w->metrics, "kvasir_kv_pages", labels, "KV pages by group and state");
        }
    w->discovery_up = kvs_gauge(w->metrics, "kvasir_discovery_up", net_etcd_is_url(w->config.discovery) ? "backend=\"etcd\"" : "backend=\"embedded\"",
                                "1 while registered and watching.");
    w->silent_watches.counter = kvs_counter(w->metrics, CLS_SILENT_WATCHES, "", CLS_SILENT_WATCHES_HELP);
    w->prefill_tokens.counter = kvs_counter(w->metrics, "kvasir_prefill_tokens_total", "", "Prompt tokens computed here");
    w->decode_tokens.counter = kvs_counter(w->metrics, "kvasir_decode_tokens_total", "", "Tokens computed one at a time here");
    w->steps.counter = kvs_counter(w->metrics, "kvasir_steps_total", "", "Forward passes");
    w->chunks.counter = kvs_counter(w->metrics, "kvasir_prefill_chunks_total", "", "Prompt chunks in forward passes");
    w->preemptions.counter = kvs_counter(w->metrics, "kvasir_preemptions_total", "", "Sequences whose pages were taken back");
    w->widest = kvs_gauge(w->metrics, "kvasir_batch_sequences_max", "", "Most sequences in one forward pass so far");
    w->running = kvs_gauge(w->metrics, "kvasir_sequences", "state=\"running\"", "Sequences by state");
    w->waiting = kvs_gauge(w->metrics, "kvasir_sequences", "state=\"waiting\"", "Sequences by state");
    w->cached_tokens.counter = kvs_counter(w->metrics, "kvasir_prefix_cached_tokens_total", "", "Tokens whose KV was found in the prefix cache here");
    w->evicted_blocks.counter = kvs_counter(w->metrics, "kvasir_prefix_evicted_blocks_total", "", "Cached blocks given up because pages ran out");
    wrk_orders_build_info(w);
    return KVS_OK;
}

static void fill_hello(struct wrk_worker *w, msg_role role)
{
    struct msg_hello *h = &w->hello;
    struct kvt_probe probe;
    kvt_probe_self(&probe);
    memset(h, 0, sizeof *h);
    h->protocol_min = MSG_PROTOCOL_MIN;
    h->protocol_max = MSG_PROTOCOL_MAX;
    memcpy(h->id, w->loaded.member.id, sizeof h->id);
    h->epoch = w->loaded.member.epoch;
    h->role = role;
    memcpy(h->fingerprint, w->loaded.member.fingerprint, sizeof h->fingerprint);
    memcpy(h->numerics, w->loaded.member.numerics, sizeof h->numerics);
    memcpy(h->boot_id, probe.boot_id, sizeof h->boot_id);
    h->pid_namespace = probe.pid_namespace;
    h->uid = probe.uid;
    h->pid = probe.pid;
    h->probe_address = probe.address;
    h->probe_value = probe.value;
}

static kvs_status create_memory(struct wrk_worker *w, struct kvs_error *err)
{
    struct kvt_port_config pc = {.epoch = w->loaded.member.epoch, .id = w->loaded.member.id, .window = w->config.window, .wake = wake_port, .wake_user = w};
    kvs_status st = kvt_port_create(&pc, &w->port, err);
    if (st != KVS_OK)
        return st;
    st = kvt_region_create(w->port, w->loaded.kv_bytes, &w->region);
    if (st != KVS_OK)
        return kvs_fail(err, st, "--kv-memory: %llu bytes of KV memory could not be had", (unsigned long long)w->loaded.kv_bytes);
    for (uint32_t g = 0; g < w->loaded.layout.group_count; g++) {
        w->kv.base[g] = w->region.base + w->loaded.slab[g];
        w->kv.pages[g] = w->loaded.pages[g];
    }
    return KVS_OK;
}

static kvs_status create_compute(struct wrk_worker *w, struct kvs_error *err)
{
    struct wrk_sched_config sc = {.layout = &w->loaded.layout, .seqs_max = w->config.sequences + w->config.queue, .batch_seqs = w->config.sequences,
                                  .context = w->loaded.context, .chunk_tokens = w->config.chunk_tokens, .reserve_tokens = w->config.reserve_tokens};
    if (sc.seqs_max > 4096)
        sc.seqs_max = 4096;
    memcpy(sc.pages, w->loaded.pages, sizeof sc.pages);
    sc.tree_nodes = w->config.prefix_cache ? wrk_sizes_nodes(w->loaded.blocks) : 0;
    sc.snapshot_blocks = w->config.snapshot_blocks;
    sc.tree_ttl_us = w->config.kv_ttl_us;
    sc.model = (struct wrk_model_id){.numerics = w->loaded.member.numerics, .kv_types = w->loaded.member.kv_types, .rope = w->loaded.member.rope};
    memcpy(sc.model.fingerprint, w->loaded.member.fingerprint, sizeof sc.model.fingerprint);
    kvs_status st = wrk_sched_create(&sc, &w->sched, err);
    if (st != KVS_OK)
        return st;
    struct wrk_device_config dc = {.model = w->loaded.model, .layout = &w->loaded.layout, .kv = &w->kv, .vocab = w->loaded.card.vocab,
                                   .wake = wake_device, .wake_user = w};
    dc.options.threads = w->config.threads;
    dc.options.batch_tokens = wrk_sched_batch_tokens(w->sched);
    dc.options.batch_seqs = wrk_sched_batch_seqs(w->sched);
    for (size_t i = 0; i < w->role_count; i++)
        dc.ship_rows = w->role[i]->ship_rows > dc.ship_rows ? w->role[i]->ship_rows : dc.ship_rows;
    return wrk_device_create(&dc, &w->device, err);
}

static kvs_status create_network(struct wrk_worker *w, struct kvs_error *err)
{
    struct net_rpc_handlers h = {.user = w, .check_hello = check_hello, .on_up = on_up, .on_down = on_down, .on_dial_failed = on_dial_failed,
                                 .on_call = on_call, .on_cancel = on_cancel, .on_ack = on_ack, .on_nack = on_nack, .on_item = on_item,
                                 .on_end = on_end, .on_pause = on_pause};
    struct cls_events ce = {.user = w, .on_member = on_member, .on_backend = on_backend};
    struct wrk_peers_events pe = {.user = w, .up = on_peer_up, .down = on_peer_down, .closed = on_peer_closed};
    struct net_ops_config oc = {.listen = w->config.listen, .metrics = http_metrics, .ready = http_ready, .user = w};
    struct msg_card *card = &w->loaded.member;
    w->etcd = net_etcd_is_url(w->config.discovery);
    /* Members read our URLs on their own hosts, unless the router's is a socket of this one. */
    bool outside = w->etcd || w->config.advertise[0] != 0 || strncmp(w->config.discovery, "tcp://", 6) == 0;
    kvs_status st = net_rpc_create(w->loop, &w->hello, &h, &w->rpc, err);
    if (st == KVS_OK)
        st = net_rpc_listen(w->rpc, w->config.control, card->control_url, sizeof card->control_url, err);
    if (st == KVS_OK)
        st = net_ops_start(&oc, &w->ops, card->http_url, sizeof card->http_url, err);
    if (st == KVS_OK && outside)
        st = net_advertise(w->config.advertise, card->control_url, sizeof card->control_url, err);
    if (st == KVS_OK && outside)
        st = net_advertise(w->config.advertise, card->http_url, sizeof card->http_url, err);
    if (st != KVS_OK)
        return st;
    st = wrk_peers_create(w->loop, w->rpc, w->port, card, &w->hello, (wrk_transport)w->config.transport, w->config.discovery, &pe, &w->peers);
    if (st == KVS_OK)
        st = wrk_serve_create(w, &w->loaded, &w->serve);
    const struct cls_etcd_config etcd = {.url = w->config.discovery,
                                         .cluster = w->config.cluster,
                                         .ttl_us = w->config.lease_ttl_us,
                                         .user = w->config.etcd_user,
                                         .password = w->config.etcd_password};
    if (st == KVS_OK && w->etcd) {
        st = cls_etcd_create(w->loop, &etcd, &ce, &w->discovery, err);
        return st == KVS_OK ? wrk_cache_publish(wrk_serve_cache(w->serve), w->loop, &etcd, w->discovery, err) : st;
    }
    if (st == KVS_OK)
        st = cls_embedded_client_create(w->loop, w->rpc, &ce, &w->discovery);
    return st == KVS_OK ? st : kvs_fail(err, st, "out of memory");
}

static kvs_status create_loop(struct wrk_worker *w, struct kvs_error *err)
{
    static const int signals[] = {SIGTERM, SIGINT};
    kvs_status st = kvs_loop_create(&w->loop);
    if (st == KVS_OK)
        st = kvs_loop_signals(w->loop, signals, 2, on_signal, w);
    if (st == KVS_OK)
        st = kvs_timer_create(w->loop, on_wake_timer, w, &w->wake_timer);
    if (st == KVS_OK)
        st = kvs_timer_create(w->loop, on_report_timer, w, &w->report_timer);
    return st == KVS_OK ? st : kvs_fail(err, st, "the event loop could not be set up");
}

/* Loading takes as long as the file is large, and nothing is begun yet that would have to be ended: nobody knows of this worker. */
static void end_at_once(int sig)
{
    static const char said[] = "stopped while the model was being loaded\n";
    (void)sig;
    (void)!write(STDERR_FILENO, said, sizeof said - 1);
    _exit(0);
}

static kvs_status load_model(struct wrk_worker *w, msg_role role, struct kvs_error *err)
{
    struct sigaction at_once = {.sa_handler = end_at_once};
    (void)sigaction(SIGTERM, &at_once, NULL);
    (void)sigaction(SIGINT, &at_once, NULL);
    (void)KVS_FAILPOINT("worker.load");
    return wrk_load(&w->config, role, &w->loaded, err);
}

static kvs_status start(struct wrk_worker *w, msg_role role, struct kvs_error *err)
{
    kvs_status st = load_model(w, role, err);
    if (st == KVS_OK)
        st = create_loop(w, err); /* from here on signals are the loop's: blocked before any thread of ours or of a library starts */
    if (st != KVS_OK)
        return st;
    w->loaded.member.epoch = kvs_random_u64();
    w->loaded.member.pid = 0;
    fill_hello(w, role);
    st = kvs_secret_load(w->config.auth_file, w->hello.auth, err);
    if (st != KVS_OK)
        return st;
    w->loaded.member.pid = w->hello.pid;
    st = create_metrics(w);
    if (st != KVS_OK)
        return kvs_fail(err, st, "out of memory for metrics");
    st = create_memory(w, err);
    if (st == KVS_OK)
        st = create_compute(w, err);
    if (st == KVS_OK)
        st = create_network(w, err);
    for (size_t i = 0; st == KVS_OK && i < w->role_count; i++)
        st = w->role[i]->create(w, &w->self[i], err);
    if (st != KVS_OK)
        return st;
    kvs_loop_on_idle(w->loop, on_idle, w);
    kvs_timer_set(w->report_timer, kvs_now_us() + REPORT_US);
    st = w->discovery->ops->join(w->discovery, &w->loaded.member);
    if (st == KVS_OK && !w->etcd)
        st = net_rpc_dial(w->rpc, w->config.discovery);
    if (st == KVS_SELF_NOMEM)
        return kvs_fail(err, st, "out of memory");
    return st == KVS_OK ? st : kvs_fail(err, st, "--discovery %s: not a control URL (tcp://HOST:PORT or ipc://PATH) nor etcd://HOST:PORT", w->config.discovery);
}

static void stop(struct wrk_worker *w)
{
    if (w->discovery != NULL && w->etcd)
        cls_etcd_leave_now(w->discovery, LEAVE_MS);
    else if (w->discovery != NULL)
        w->discovery->ops->leave(w->discovery);
    wrk_device_destroy(w->device); /* the step in flight ends at its next layer */
    const struct wrk_step *step = w->sched != NULL ? wrk_sched_in_flight(w->sched) : NULL;
    if (step != NULL)
        (void)wrk_sched_step_done(w->sched, step->id, KVS_REQ_CANCELLED, NULL);
    kvt_port_destroy(w->port); /* from here on nothing reads or writes KV memory */
    kvt_region_destroy(NULL, &w->region);
    for (size_t i = 0; i < w->role_count; i++)
        if (w->self[i] != NULL)
            w->role[i]->destroy(w->self[i]);
    net_ops_stop(w->ops);
    if (w->discovery != NULL)
        w->discovery->ops->destroy(w->discovery);
    wrk_serve_destroy(w->serve);
    wrk_peers_destroy(w->peers);
    net_rpc_destroy(w->rpc);
    wrk_sched_destroy(w->sched);
    kvs_metrics_destroy(w->metrics);
    wrk_unload(&w->loaded);
    kvs_timer_destroy(w->wake_timer);
    kvs_timer_destroy(w->report_timer);
    kvs_loop_destroy(w->loop);
}

static const char *program_name(msg_role role)
{
    return role == MSG_ROLE_BOTH ? "kvasir worker" : role == MSG_ROLE_PREFILL ? "kvasir-prefill-worker" : "kvasir-decode-worker";
}

static int print_help(msg_role role)
{
    struct kvs_buf text;
    kvs_buf_init(&text, 1 << 16);
    char usage[96];
    kvs_format(usage, sizeof usage, "%s --model FILE --discovery URL [options]", program_name(role));
    kvs_status st = kvs_config_help(wrk_config_rows, wrk_config_row_count, usage, &text);
    if (st == KVS_OK)
        fputs(kvs_buf_text(&text), stdout);
    kvs_buf_fini(&text);
    return st == KVS_OK ? 0 : 1;
}

int wrk_main(int argc, char **argv, msg_role role, const struct wrk_role_ops *const *roles, size_t role_count)
{
    struct kvs_error err = {0};
    bool help = false;
    kvs_log_level level = KVS_LOG_INFO;
    kvt_prepare_process(argc, argv);
    struct wrk_worker *w = calloc(1, sizeof *w);
    KVS_ASSERT(role_count >= 1 && role_count <= WRK_ROLES_MAX);
    if (w == NULL) {
        fputs("kvasir: out of memory\n", stderr);
        return 1;
    }
    kvs_status st = wrk_config_load(argc, argv, role, &w->config, &help, &err);
    if (st == KVS_OK && help) {
        free(w);
        return print_help(role);
    }
    if (st == KVS_OK && !kvs_log_level_parse(w->config.log_level, &level))
        st = kvs_fail(&err, KVS_SELF_CONFIG, "--log-level \"%s\": use error, warn, info, debug or trace", w->config.log_level);
    if (st != KVS_OK) {
        fprintf(stderr, "%s: %s\n", program_name(role), err.text);
        free(w);
        return 2;
    }
    kvs_log_init(w->config.name, level);
    kvs_memory_give_back();
    kvs_descriptors_check(DESCRIPTORS_NEEDED, "the number of workers in the cluster");
    uint64_t room = kvs_memory_available();
    if (room > 0 && w->config.kv_memory > room)
        KVS_WARN("kv memory is larger than what is free now", "kv_memory=%" PRIu64 " free=%" PRIu64, w->config.kv_memory, room);
    for (size_t i = 0; i < role_count; i++)
        w->role[i] = roles[i];
    w->role_count = role_count;
    st = start(w, role, &err);
    if (st == KVS_OK) {
        KVS_INFO("ready", "model=%s isa=%s context=%u blocks=%u groups=%u control=%s http=%s", w->loaded.member.model, eng_model_isa(w->loaded.model),
                 w->loaded.context, w->loaded.blocks, w->loaded.layout.group_count, w->loaded.member.control_url, w->loaded.member.http_url);
        kvs_loop_run(w->loop);
        KVS_INFO("stopped", "steps=%llu", (unsigned long long)wrk_sched_stats(w->sched).steps);
        if (w->misfit[0] != 0)
            st = kvs_fail(&err, KVS_PEER_MISMATCH, "does not fit the cluster: %s; use its settings, or another --model-name", w->misfit);
    }
    if (st != KVS_OK) {
        fprintf(stderr, "%s: %s\n", program_name(role), err.text);
    }
    stop(w);
    free(w);
    return st == KVS_OK ? 0 : 1;
}
