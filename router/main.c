/* main.c - kvasir-router: configuration, start, stop. Exits 0 on SIGTERM or SIGINT, and with one line of error when it cannot start.
 * SIGTERM drains: new requests are refused, running ones end by themselves within router.drain seconds. Then, or on SIGINT, what still runs ends
 * with an error that says so, the loop ends and the HTTP threads are joined (a suspended connection must be resumed before libmicrohttpd can
 * stop).
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/etcd.h"
#include "net/http_gate.h"
#include "router/edge/http.h"
#include "sys/clock.h"
#include "sys/config.h"
#include "sys/limits.h"
#include "sys/log.h"
#include "sys/secret.h"

#include <inttypes.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STOP_WAIT_US 2000000u
#define STOP_LOOK_US 5000u
#define DESCRIPTORS_BESIDE (NET_GATE_WAITING_MAX + 256u + KVS_DESCRIPTORS_OWN) /* --connections: heads that are awaited, workers */
#define LAST_BYTES_US 2000000u /* from the last answer to our end, where HTTP threads still write */

struct router_config {
    char name[MSG_ID_MAX], cluster[MSG_ID_MAX], listen[128], control[MSG_URL_MAX], discovery[MSG_URL_MAX], advertise[128];
    char etcd_user[256], etcd_password[256], auth_file[512];
    uint32_t placement, local_threshold, max_queue, max_requests, worker_sequences, http_threads, connections, deaths, log_level;
    uint64_t index_memory, deadline_us, drain_us, restart_wait_us, step_max_us, prefill_queue_us, client_stall_us, body_us;
    bool resume;
};

#define AT(field) offsetof(struct router_config, field)
static const struct kvs_config_row rows[] = {
    {"router.name", "name", KVS_CFG_NAME, NULL, 0, MSG_ID_MAX, NULL, "name of this process (default router-host-pid)", AT(name)},
    {"cluster.name", "cluster", KVS_CFG_NAME, "default", 0, MSG_ID_MAX, NULL, "name of the cluster", AT(cluster)},
    {"router.listen", "listen", KVS_CFG_STRING, "127.0.0.1:8080", 0, 128, NULL, "address of the HTTP API, metrics and health", AT(listen)},
    {"router.control", "control", KVS_CFG_STRING, NULL, 0, MSG_URL_MAX, NULL,
     "where workers and control clients dial: tcp://HOST:PORT or ipc:///PATH (default tcp://127.0.0.1:8081; with etcd any free port)",
     AT(control)},
    {"cluster.discovery", "discovery", KVS_CFG_STRING, "embedded", 0, MSG_URL_MAX, NULL,
     "embedded: this router keeps the registry; or etcd://HOST:PORT[,HOST:PORT]", AT(discovery)},
    {"router.advertise", "advertise", KVS_CFG_STRING, NULL, 0, 128, NULL, "host or address at which others reach this router", AT(advertise)},
    {"cluster.auth_file", "auth-file", KVS_CFG_STRING, NULL, 0, 512, NULL, "file with the cluster's shared key (or KVASIR_AUTH)", AT(auth_file)},
    {"etcd.user", NULL, KVS_CFG_STRING, NULL, 0, 256, NULL, "user of an etcd with authentication", AT(etcd_user)},
    {"etcd.password", NULL, KVS_CFG_STRING, NULL, 0, 256, NULL, "and that one's password", AT(etcd_password)},
    {"router.placement", "placement", KVS_CFG_ENUM, "auto", 0, 0, "auto|local|remote", "where prompts are read", AT(placement)},
    {"router.local_threshold", "local-threshold", KVS_CFG_U32, "0", 0, MSG_TOKENS_MAX, NULL,
     "prompts of up to so many tokens are read on the decode worker, longer ones elsewhere; 0: what takes less time by the cost model",
     AT(local_threshold)},
    {"router.tpot_target", "tpot-target", KVS_CFG_SECONDS, "0.1", 0, 3600, NULL,
     "time between two tokens of an answer that placing others should keep; 0: no target", AT(step_max_us)},
    {"router.prefill_queue", "prefill-queue", KVS_CFG_SECONDS, "1", 0, 86400, NULL,
     "requests wait in the router while the prefill queue that they would join is longer; 0: never", AT(prefill_queue_us)},
    {"router.deadline", "deadline", KVS_CFG_SECONDS, "600", 0.01, 86400, NULL, "seconds a request may take", AT(deadline_us)},
    {"router.client_stall", "client-stall", KVS_CFG_SECONDS, "30", 0, 86400, NULL,
     "seconds that a client may take nothing of what waits for it until it is cut; 0: it has until its request's deadline", AT(client_stall_us)},
    {"router.body", NULL, KVS_CFG_SECONDS, "60", 0.001, 86400, NULL, "seconds that a request's body has to arrive", AT(body_us)},
    {"router.max_queue", "max-queue", KVS_CFG_U32, "256", 0, 65536, NULL, "requests that may wait for a place", AT(max_queue)},
    {"router.max_requests", "max-requests", KVS_CFG_U32, "1024", 1, 65536, NULL, "requests at once, waiting ones included", AT(max_requests)},
    {"router.worker_sequences", "worker-sequences", KVS_CFG_U32, "128", 1, 65536, NULL, "sequences given to one decode worker at once",
     AT(worker_sequences)},
    {"router.drain", "drain", KVS_CFG_SECONDS, "30", 0, 86400, NULL, "seconds that running requests have to finish after SIGTERM", AT(drain_us)},
    {"router.resume", "resume", KVS_CFG_BOOL, "true", 0, 0, NULL,
     "answers under way go on at another decode worker when theirs is lost or drains", AT(resume)},
    {"router.restart_wait", "restart-wait", KVS_CFG_SECONDS, "0", 0, 86400, NULL,
     "seconds that requests wait for the last decode worker when it has crashed and is started again; shorter than 2.5: that long", AT(restart_wait_us)},
    {"router.deaths", "deaths", KVS_CFG_U32, "2", 1, 1000, NULL, "workers that may die under one request until it is given up", AT(deaths)},
    {"router.index_memory", "index-memory", KVS_CFG_SIZE, "64M", 65536, 17179869184.0, NULL,
     "most memory for what is known of the workers' prefix caches: 36 bytes a block and worker", AT(index_memory)},
    {"router.http_threads", "http-threads", KVS_CFG_U32, "2", 1, 16, NULL, "threads that read and write HTTP", AT(http_threads)},
    {"router.connections", "connections", KVS_CFG_U32, "2048", 8, 65536, NULL, "HTTP connections at once", AT(connections)},
    {"log.level", "log-level", KVS_CFG_ENUM, "info", 0, 0, "error|warn|info|debug|trace", "what is logged on stderr", AT(log_level)},
};
#define ROW_COUNT (sizeof(rows) / sizeof(*rows))

struct router {
    struct kvs_loop *loop;
    struct kvs_metrics *metrics;
    struct rtr_board *board;
    struct rtr_dispatch *dispatch;
    struct rtr_http *http;
    struct kvs_timer *stop_timer;
    uint64_t drain_us, drain_until_us, idle_since_us, stop_at_us; /* the last three 0: not yet */
    bool had_requests; /* when it was told to end */
};

static void stop_now(struct router *r, uint64_t now_us)
{
    r->stop_at_us = now_us + STOP_WAIT_US;
    rtr_dispatch_stop(r->dispatch);
}

static void look_whether_idle(void *user, uint64_t now_us)
{
    struct router *r = user;
    bool stopping = r->stop_at_us != 0;
    if (!(stopping ? rtr_dispatch_active(r->dispatch) == 0 : rtr_dispatch_idle(r->dispatch)))
        r->idle_since_us = 0;
    else if (!r->idle_since_us)
        r->idle_since_us = now_us;
    bool quiet = r->idle_since_us && (!rtr_http_answering(r->http) || now_us - r->idle_since_us >= LAST_BYTES_US);
    if (quiet || (stopping && now_us >= r->stop_at_us))
        kvs_loop_stop(r->loop);
    else if (!stopping && now_us >= r->drain_until_us)
        stop_now(r, now_us);
    kvs_timer_set(r->stop_timer, now_us + STOP_LOOK_US);
}

/* SIGTERM: what runs may end first. SIGINT, or a second signal: now, each with an error that says so; a third: without. */
static void on_signal(void *user, int signal)
{
    struct router *r = user;
    uint64_t now_us = kvs_now_us();
    if (r->stop_at_us) {
        kvs_loop_stop(r->loop);
        return;
    }
    r->had_requests |= !rtr_dispatch_idle(r->dispatch);
    bool drain = signal == SIGTERM && !r->drain_until_us && r->had_requests;
    KVS_INFO(drain ? "draining" : "stopping", "signal=%d", signal);
    if (drain) {
        r->drain_until_us = now_us + r->drain_us;
        rtr_dispatch_drain(r->dispatch);
    } else {
        stop_now(r, now_us);
    }
    kvs_timer_set(r->stop_timer, now_us);
}

/* What depends on the machine and on other settings. */
static kvs_status fill_in(struct router_config *c, struct kvs_error *err)
{
    bool etcd = net_etcd_is_url(c->discovery), own = strncmp(c->discovery, "tcp://", 6) == 0 || strncmp(c->discovery, "ipc://", 6) == 0;
    if (own && c->control[0] && strcmp(c->control, c->discovery) != 0)
        return kvs_fail(err, KVS_SELF_CONFIG, "--discovery %.80s is another router's address, and without etcd there is one router: give --control alone",
                        c->discovery);
    if (!etcd && !own && strcmp(c->discovery, "embedded") != 0)
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "--discovery %.80s: a router takes etcd://HOST:PORT, its own control URL, or the word embedded (it keeps the registry itself then)",
                        c->discovery);
    if (own) { /* what workers are given is understood here, too */
        kvs_format(c->control, sizeof(c->control), "%s", c->discovery);
        kvs_format(c->discovery, sizeof(c->discovery), "embedded");
    }
    if (!c->name[0]) {
        char host[32] = "host";
        (void)gethostname(host, sizeof(host) - 1);
        kvs_format(c->name, sizeof(c->name), "router-%s-%ld", host, (long)getpid());
    }
    if (!c->control[0])
        kvs_format(c->control, sizeof(c->control), "%s", etcd ? "tcp://127.0.0.1:0" : "tcp://127.0.0.1:8081");
    return KVS_OK;
}

static kvs_status start(struct router *r, const struct router_config *c, struct kvs_error *err)
{
    static const int signals[] = {SIGTERM, SIGINT};
    char control_url[MSG_URL_MAX], http_url[MSG_URL_MAX], auth[KVS_SECRET_MAX];
    struct rtr_dispatch_config d = {.name = c->name, .control_url = c->control, .discovery = c->discovery, .cluster = c->cluster,
                                    .advertise = c->advertise, .etcd_user = c->etcd_user, .etcd_password = c->etcd_password, .auth = auth};
    kvs_status s = kvs_secret_load(c->auth_file, auth, err);
    if (s != KVS_OK)
        return s;
    rtr_config_default(&d.core);
    d.core.requests_max = c->max_requests;
    d.core.queue_max = c->max_queue;
    d.core.worker_sequences_max = c->worker_sequences;
    d.core.deadline_us = c->deadline_us;
    d.client_stall_us = c->client_stall_us;
    d.core.local_threshold = c->local_threshold;
    d.core.step_max_us = c->step_max_us;
    d.core.prefill_queue_us = c->prefill_queue_us;
    d.core.placement = (msg_placement)c->placement;
    d.core.index_bytes = c->index_memory;
    d.core.resume = c->resume;
    d.core.deaths_max = c->deaths;
    d.core.restart_us = c->restart_wait_us;
    if (kvs_loop_create(&r->loop) != KVS_OK || kvs_metrics_create(&r->metrics) != KVS_OK ||
        rtr_board_create(r->metrics, c->name, &r->board) != KVS_OK || kvs_timer_create(r->loop, look_whether_idle, r, &r->stop_timer) != KVS_OK ||
        kvs_loop_signals(r->loop, signals, 2, on_signal, r) != KVS_OK)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory or descriptors");
    r->drain_us = c->drain_us;
    d.loop = r->loop;
    d.board = r->board;
    s = rtr_dispatch_create(&d, &r->dispatch, control_url, sizeof(control_url), err);
    struct rtr_http_config h = {.listen = c->listen,
                                .dispatch = r->dispatch,
                                .board = r->board,
                                .auth = auth,
                                .threads = c->http_threads,
                                .connections_max = c->connections,
                                .body_us = c->body_us};
    if (s == KVS_OK)
        s = rtr_http_start(&h, &r->http, http_url, sizeof(http_url), err);
    if (s == KVS_OK)
        s = rtr_dispatch_announce(r->dispatch, http_url, err);
    if (s == KVS_OK)
        KVS_INFO("router listening", "http=%s control=%s", http_url, control_url);
    return s;
}

static int print_help(void)
{
    struct kvs_buf b;
    kvs_buf_init(&b, 65536);
    kvs_status s = kvs_config_help(rows, ROW_COUNT, "kvasir-router [flags]: the HTTP front of a Kvasir cluster", &b);
    if (s == KVS_OK)
        fputs(kvs_buf_text(&b), stdout);
    kvs_buf_fini(&b);
    return s == KVS_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct router_config c = {0};
    struct router r = {0};
    struct kvs_error err = {0};
    bool help = false;
    kvs_status s = kvs_config_load(rows, ROW_COUNT, &c, argc, argv, NULL, &help, &err);
    if (s == KVS_OK && help)
        return print_help();
    if (s == KVS_OK)
        s = fill_in(&c, &err);
    if (s == KVS_OK) {
        kvs_log_init(c.name, (kvs_log_level)c.log_level);
        kvs_memory_give_back();
        kvs_descriptors_check(c.connections + (uint64_t)DESCRIPTORS_BESIDE, "--connections");
        signal(SIGPIPE, SIG_IGN);
        s = start(&r, &c, &err);
    }
    if (s == KVS_OK)
        kvs_loop_run(r.loop);
    rtr_http_stop(r.http);
    rtr_dispatch_destroy(r.dispatch);
    rtr_board_destroy(r.board);
    kvs_metrics_destroy(r.metrics);
    if (r.stop_timer)
        kvs_timer_destroy(r.stop_timer);
    kvs_loop_destroy(r.loop);
    if (s != KVS_OK)
        fprintf(stderr, "kvasir-router: %s\n", err.text);
    return s == KVS_OK ? 0 : 1;
}
