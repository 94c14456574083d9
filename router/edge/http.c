/* http.c - see http.h.
 * The handler is called several times for a request: first with its head (strict checks), then with pieces of its body, then once without;
 * for a generation it is called once more when the loop has an answer (the connection was suspended until then).
 * A refusal on the first call says "Connection: close": where such a request ends is not known. All other errors leave the connection usable.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/orders.h"
#include "router/edge/http.h"

#include "net/http_gate.h"
#include "net/http_strict.h"
#include "net/ops_http.h"
#include "router/edge/http_reply.h"
#include "router/edge/prompt.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/secret.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CONNECTION_MEMORY = 32768, /* bounds the request's head too */
    HEAD_TIMEOUT_S = 20, /* nothing comes, until the body is there; the head is whole when a connection comes from the gate */
    IDLE_TIMEOUT_S = 120, /* not while a generation is answered: a client that does not take it is core/stall.h's */
    BODY_DROPPED_MAX = 64 << 20,
    BODY_US = 60000000,
};

struct rtr_http {
    struct MHD_Daemon *daemon;
    struct net_gate *gate;
    atomic_uint connections, answering;
    unsigned connections_max;
    uint64_t body_us;
    struct rtr_dispatch *dispatch;
    struct rtr_board *board;
    struct kvs_counter *invalid;
    char auth[KVS_SECRET_MAX];
};

/* ---- fixed pages ---- */

static enum MHD_Result page(struct MHD_Connection *c, struct http_req *q, unsigned status, const char *type, struct kvs_buf *b, kvs_status made)
{
    struct http_reply r = {.status = status, .type = type};
    struct rtr_fault f;
    if (made != KVS_OK) {
        kvs_buf_fini(b);
        (void)rtr_fail(&f, made, NULL, "this page could not be made: %s", kvs_status_name(made));
        f.retry_after_s = 0;
        return http_reply_fault(c, q, &f, NULL, false);
    }
    size_t n = 0;
    uint8_t *bytes = kvs_buf_take(b, &n);
    return http_reply_bytes(c, q, &r, bytes, n);
}

static enum MHD_Result get_live(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    struct kvs_buf b;
    (void)arg;
    kvs_buf_init(&b, 256);
    kvs_status s = kvs_buf_puts(&b, "{\"status\":\"live\"}\n");
    return page(c, q, 200, "application/json", &b, s);
}

static enum MHD_Result get_ready(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    char why[160];
    struct kvs_buf b;
    struct kvs_json j;
    (void)arg;
    bool ready = rtr_board_is_ready(q->http->board, why, sizeof(why));
    kvs_buf_init(&b, 1024);
    kvs_json_begin(&j, &b);
    kvs_json_object(&j);
    kvs_json_field_string(&j, "status", ready ? "ready" : "not ready");
    kvs_json_field_string(&j, "reason", why);
    kvs_json_object_end(&j);
    kvs_status s = kvs_json_end(&j);
    return page(c, q, ready ? 200 : 503, "application/json", &b, s);
}

static enum MHD_Result get_version(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    struct kvs_buf b;
    (void)arg;
    kvs_buf_init(&b, 256);
    kvs_status s = kvs_buf_puts(&b, "{\"version\":\"" KVASIR_VERSION "\",\"process\":\"kvasir-router\"}\n");
    return page(c, q, 200, "application/json", &b, s);
}

static enum MHD_Result get_metrics(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    struct kvs_buf b;
    (void)arg;
    kvs_buf_init(&b, RTR_PAGE_MAX);
    kvs_status s = rtr_board_write_metrics(q->http->board, &b);
    return page(c, q, 200, "text/plain; version=0.0.4; charset=utf-8", &b, s);
}

static enum MHD_Result get_status(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    struct kvs_buf b;
    (void)arg;
    kvs_buf_init(&b, RTR_PAGE_MAX);
    kvs_status s = rtr_board_write_status(q->http->board, &b);
    return page(c, q, 200, "application/json", &b, s);
}

static void model_json(struct kvs_json *j, const struct rtr_model *m)
{
    kvs_json_object(j);
    kvs_json_field_string(j, "id", m->name);
    kvs_json_field_string(j, "object", "model");
    kvs_json_field_u64(j, "created", m->created);
    kvs_json_field_string(j, "owned_by", "kvasir");
    kvs_json_field_u64(j, "max_model_len", m->context);
    kvs_json_object_end(j);
}

static enum MHD_Result get_models(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    struct rtr_models *t = rtr_dispatch_models(q->dispatch);
    struct kvs_buf b;
    struct kvs_json j;
    struct rtr_model *m;
    (void)arg;
    kvs_buf_init(&b, 65536);
    kvs_json_begin(&j, &b);
    kvs_json_object(&j);
    kvs_json_field_string(&j, "object", "list");
    kvs_json_key(&j, "data");
    kvs_json_array(&j);
    for (size_t i = 0; (m = rtr_models_at(t, i)) != NULL; i++) {
        if (atomic_load(&m->ready))
            model_json(&j, m);
        rtr_model_release(m);
    }
    kvs_json_array_end(&j);
    kvs_json_object_end(&j);
    kvs_status s = kvs_json_end(&j);
    return page(c, q, 200, "application/json", &b, s);
}

/* A model whose workers are away for the moment does exist. */
static kvs_status unknown_model(struct http_req *q, const char *name, bool known, struct rtr_fault *f)
{
    char names[200];
    if (known) {
        f->retry_after_s = 2;
        return rtr_fail(f, KVS_BUSY_NO_WORKER, "model", "no worker of the model '%.100s' is ready; try again soon", name);
    }
    rtr_models_names(rtr_dispatch_models(q->dispatch), names, sizeof(names));
    if (!names[0]) {
        f->retry_after_s = 2;
        return rtr_fail(f, KVS_BUSY_NO_WORKER, "model", "no worker has joined yet, so no model is known; try again soon");
    }
    return rtr_fail(f, KVS_REQ_UNKNOWN_MODEL, "model", "the model '%.100s' does not exist here; there is: %s", name, names);
}

static enum MHD_Result get_model(struct MHD_Connection *c, struct http_req *q, const char *name)
{
    struct rtr_model *m = rtr_models_acquire(rtr_dispatch_models(q->dispatch), name);
    struct rtr_fault f = {0};
    struct kvs_buf b;
    struct kvs_json j;
    if (!m || !atomic_load(&m->ready)) {
        (void)unknown_model(q, name, m != NULL, &f);
        rtr_model_release(m);
        return http_reply_fault(c, q, &f, NULL, false);
    }
    kvs_buf_init(&b, 4096);
    kvs_json_begin(&j, &b);
    model_json(&j, m);
    rtr_model_release(m);
    kvs_status s = kvs_json_end(&j);
    return page(c, q, 200, "application/json", &b, s);
}

/* ---- generation ---- */

static void set_timeout(struct MHD_Connection *c, const struct http_req *q, unsigned seconds)
{
    if (MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, seconds) != MHD_YES)
        KVS_DEBUG("idle timeout not set", "request=%s", q->request_id);
}

static void watch_client(struct MHD_Connection *c, struct http_req *q)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info && rtr_gone_add(rtr_dispatch_gone(q->dispatch), info->connect_fd, q->id) == KVS_OK)
        q->fd = info->connect_fd;
    if (q->fd >= 0)
        set_timeout(c, q, 0);
}

static kvs_status prepare(struct http_req *q, struct rtr_submit *s, rtr_kind kind, struct rtr_fault *f)
{
    kvs_status st = rtr_params_parse(kind, q->body.data, q->body.len, &s->params, f);
    if (st != KVS_OK)
        return st;
    s->model = rtr_models_acquire(rtr_dispatch_models(q->dispatch), s->params.model);
    if (!s->model)
        return unknown_model(q, s->params.model, false, f);
    st = rtr_prompt(s->model, &s->params, &s->ids, &s->max_tokens, f);
    kvs_buf_fini(&q->body); /* the prompt is in s->ids; big bodies need not wait for the answer */
    return st;
}

static enum MHD_Result refuse(struct MHD_Connection *c, struct http_req *q, const struct rtr_fault *f)
{
    kvs_counter_add(q->http->invalid, kvs_is_req(f->status));
    return http_reply_fault(c, q, f, NULL, false);
}

/* Perhaps there is enough for saying so. */
static enum MHD_Result no_memory(struct MHD_Connection *c, struct http_req *q)
{
    struct rtr_fault f = {.retry_after_s = 1};
    (void)rtr_fail(&f, KVS_SELF_NOMEM, NULL, "the router is out of memory; try again later");
    return http_reply_fault(c, q, &f, NULL, false);
}

static enum MHD_Result answer(struct MHD_Connection *c, struct http_req *q)
{
    struct rtr_head head;
    size_t n = 0;
    switch (rtr_exchange_wait(q->x, &head)) {
    case RTR_WAIT_SUSPENDED: return MHD_YES;
    case RTR_WAIT_DROPPED: return MHD_NO;
    case RTR_WAIT_HEAD: break;
    }
    if (head.stream)
        return http_reply_stream(c, q, &head);
    uint8_t *bytes = rtr_exchange_take(q->x, &n);
    struct http_reply r = {.status = head.http, .type = "application/json", .head = &head};
    return http_reply_bytes(c, q, &r, bytes, n);
}

static enum MHD_Result generate(struct MHD_Connection *c, struct http_req *q, rtr_kind kind)
{
    struct rtr_fault f = {0};
    struct rtr_submit *s = calloc(1, sizeof(*s));
    if (!s)
        return no_memory(c, q);
    s->arrived_us = kvs_now_us();
    s->d = q->dispatch;
    s->id = q->id = rtr_dispatch_next_id(q->dispatch);
    kvs_format(s->trace, sizeof(s->trace), "%s", q->request_id);
    if (prepare(q, s, kind, &f) != KVS_OK) {
        rtr_submit_destroy(s);
        return refuse(c, q, &f);
    }
    if (rtr_exchange_create(c, &q->x) != KVS_OK) {
        rtr_submit_destroy(s);
        return no_memory(c, q);
    }
    rtr_exchange_hold(q->x);
    s->x = q->x;
    watch_client(c, q);
    kvs_status st = rtr_dispatch_submit(q->dispatch, s);
    if (st != KVS_OK) {
        rtr_submit_destroy(s);
        rtr_exchange_release(q->x);
        q->x = NULL;
        f.retry_after_s = 1;
        (void)rtr_fail(&f, st, NULL, st == KVS_SELF_STOPPING ? "this router is stopping; try another one" : "the router's queue is full");
        return http_reply_fault(c, q, &f, NULL, false);
    }
    return answer(c, q);
}

static enum MHD_Result post_chat(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    (void)arg;
    return generate(c, q, RTR_CHAT);
}

static enum MHD_Result post_completion(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    (void)arg;
    return generate(c, q, RTR_COMPLETION);
}

/* An order to workers: the loop answers when they have, through an exchange; what cannot be given is a fault at once. */
static kvs_status begin_order(struct MHD_Connection *c, struct http_req *q)
{
    kvs_status st = rtr_exchange_create(c, &q->x);
    if (st == KVS_OK)
        rtr_exchange_hold(q->x);
    return st;
}

static enum MHD_Result end_order(struct MHD_Connection *c, struct http_req *q, kvs_status given)
{
    struct rtr_fault f = {.retry_after_s = 1};
    if (given == KVS_OK)
        return answer(c, q);
    rtr_exchange_release(q->x);
    rtr_exchange_release(q->x);
    q->x = NULL;
    (void)rtr_fail(&f, given, NULL, "the order could not be given: %s", kvs_status_name(given));
    return http_reply_fault(c, q, &f, NULL, false);
}

static enum MHD_Result give_order(struct MHD_Connection *c, struct http_req *q, const char *worker, msg_method method, msg_role role)
{
    if (begin_order(c, q) != KVS_OK)
        return no_memory(c, q);
    return end_order(c, q, strlen(worker) < MSG_ID_MAX ? rtr_dispatch_order(q->dispatch, worker, method, role, q->x) : KVS_REQ_NOT_FOUND);
}

static enum MHD_Result post_drain(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    return give_order(c, q, arg, MSG_DRAIN, 0);
}

/* arg: WORKER/ROLE */
static enum MHD_Result post_role(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    static const msg_role roles[] = {MSG_ROLE_PREFILL, MSG_ROLE_DECODE, MSG_ROLE_BOTH};
    struct rtr_fault f = {0};
    char worker[MSG_ID_MAX];
    const char *slash = strchr(arg, '/');
    for (size_t i = 0; slash && i < sizeof(roles) / sizeof(*roles); i++) {
        if (strcmp(slash + 1, msg_role_name(roles[i])) != 0 || (size_t)(slash - arg) >= sizeof(worker))
            continue;
        kvs_format(worker, sizeof(worker), "%.*s", (int)(slash - arg), arg);
        return give_order(c, q, worker, MSG_SET_ROLE, roles[i]);
    }
    (void)rtr_fail(&f, KVS_REQ_INVALID, NULL, "say /kvasir/role/WORKER/ROLE; a worker's role is prefill, decode or both");
    return http_reply_fault(c, q, &f, NULL, false);
}

static bool is_loopback(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (a && a->sa_family == AF_INET) {
        memcpy(&v4, a, sizeof(v4));
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    if (!a || a->sa_family != AF_INET6)
        return false;
    memcpy(&v6, a, sizeof(v6));
    const uint8_t *b = v6.sin6_addr.s6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) || (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && b[12] == 127);
}

/* Orders to workers come from who has the cluster's key; where there is none, from this machine, and from no web page on it. */
static kvs_status may_order(struct MHD_Connection *c, const struct http_req *q, struct rtr_fault *f)
{
    static const char bearer[] = "Bearer ";
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "authorization");
    if (q->http->auth[0]) {
        bool good = given && strncmp(given, bearer, sizeof(bearer) - 1) == 0 && kvs_secret_equal(given + sizeof(bearer) - 1, q->http->auth);
        return good ? KVS_OK : rtr_fail(f, KVS_REQ_DENIED, NULL, "this needs the cluster's key: say --auth-file FILE, or Authorization: Bearer KEY");
    }
    if (!is_loopback(c) || MHD_lookup_connection_value(c, MHD_HEADER_KIND, "origin"))
        return rtr_fail(f, KVS_REQ_DENIED, NULL, "a router without a key (--auth-file) takes orders from its own machine only, and not from web pages");
    return KVS_OK;
}

/* arg: a worker, or nothing for all */
static enum MHD_Result post_flush(struct MHD_Connection *c, struct http_req *q, const char *arg)
{
    if (begin_order(c, q) != KVS_OK)
        return no_memory(c, q);
    return end_order(c, q, strlen(arg) < MSG_ID_MAX ? rtr_dispatch_order(q->dispatch, arg, MSG_CACHE_FLUSH, 0, q->x) : KVS_REQ_NOT_FOUND);
}

/* ---- routes ---- */

struct route {
    const char *method, *path; /* a path that ends in '/' takes one more part, which is the argument */
    enum MHD_Result (*run)(struct MHD_Connection *c, struct http_req *q, const char *arg);
    bool order; /* changes what the cluster does: may_order */
};
static const struct route routes[] = {
    {"POST", "/v1/chat/completions", post_chat, false},
    {"POST", "/v1/completions", post_completion, false},
    {"GET", "/v1/models", get_models, false},
    {"GET", "/v1/models/", get_model, false},
    {"GET", "/health", get_ready, false},
    {"GET", "/health/ready", get_ready, false},
    {"GET", "/health/live", get_live, false},
    {"GET", "/metrics", get_metrics, false},
    {"GET", "/version", get_version, false},
    {"GET", "/kvasir/status", get_status, false},
    {"POST", "/kvasir/drain/", post_drain, true},
    {"POST", "/kvasir/role/", post_role, true},
    {"POST", "/kvasir/cache/flush", post_flush, true},
    {"POST", "/kvasir/cache/flush/", post_flush, true},
};

static bool matches(const struct route *r, const char *url, const char **arg)
{
    size_t n = strlen(r->path);
    bool prefix = r->path[n - 1] == '/';
    *arg = url + n;
    return prefix ? strncmp(url, r->path, n) == 0 && url[n] != 0 : strcmp(url, r->path) == 0;
}

static enum MHD_Result route(struct MHD_Connection *c, struct http_req *q, const char *method, const char *url)
{
    struct rtr_fault f = {0};
    const char *allow = NULL, *arg = "";
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    for (size_t i = 0; i < sizeof(routes) / sizeof(*routes); i++) {
        if (!matches(&routes[i], url, &arg))
            continue;
        if (strcmp(get ? "GET" : method, routes[i].method) == 0) {
            bool may = !routes[i].order || may_order(c, q, &f) == KVS_OK;
            return may ? routes[i].run(c, q, arg) : http_reply_fault(c, q, &f, NULL, false);
        }
        allow = routes[i].method;
    }
    if (allow)
        (void)rtr_fail(&f, KVS_REQ_METHOD, NULL, "%.20s is not allowed for %.100s; use %s", method, url, allow);
    else
        (void)rtr_fail(&f, KVS_REQ_NOT_FOUND, NULL, "there is nothing at %.200s", url);
    kvs_counter_add(q->http->invalid, 1);
    return http_reply_fault(c, q, &f, allow, false);
}

/* ---- the handler ---- */

static void pick_request_id(struct MHD_Connection *c, struct http_req *q)
{
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-request-id");
    size_t n = given ? strlen(given) : 0;
    bool good = n > 0 && n < MSG_ID_MAX;
    for (size_t i = 0; good && i < n; i++)
        good = given[i] > 0x20 && given[i] < 0x7f;
    if (good)
        kvs_format(q->request_id, sizeof(q->request_id), "%s", given);
    else
        kvs_format(q->request_id, sizeof(q->request_id), "req-%016" PRIx64, kvs_random_u64());
}

static enum MHD_Result first_call(struct rtr_http *h, struct MHD_Connection *c, const char *version, void **con_cls)
{
    struct kvs_error e = {0};
    struct rtr_fault f = {0};
    struct http_req *q = calloc(1, sizeof(*q));
    if (!q)
        return MHD_NO;
    q->http = h;
    q->dispatch = h->dispatch;
    q->fd = -1;
    kvs_buf_init(&q->body, RTR_BODY_MAX);
    *con_cls = q;
    pick_request_id(c, q);
    q->begun_us = kvs_now_us();
    set_timeout(c, q, HEAD_TIMEOUT_S);
    kvs_status s = net_http_strict(c, version, RTR_BODY_MAX, NULL, &e);
    if (s == KVS_OK)
        return MHD_YES;
    (void)rtr_fail(&f, s, NULL, "%s", e.text);
    kvs_counter_add(h->invalid, 1);
    return http_reply_fault(c, q, &f, NULL, true);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *upload_size, void **con_cls)
{
    struct http_req *q = *con_cls;
    if (!q)
        return first_call(cls, c, version, con_cls);
    if (*upload_size) {
        if (kvs_now_us() - q->begun_us > q->http->body_us) {
            kvs_counter_add(q->http->invalid, 1);
            return MHD_NO; /* libmicrohttpd takes no answer in the middle of a body */
        }
        if (!q->dropped)
            q->dropped_why = kvs_buf_append(&q->body, upload, *upload_size);
        if (q->dropped_why != KVS_OK)
            q->dropped += *upload_size; /* read on, so that the client sees the answer */
        *upload_size = 0;
        return q->dropped > BODY_DROPPED_MAX ? MHD_NO : MHD_YES;
    }
    if (q->x)
        return answer(c, q);
    atomic_fetch_add(&q->http->answering, !q->whole);
    q->whole = true;
    set_timeout(c, q, IDLE_TIMEOUT_S);
    if (q->dropped_why == KVS_SELF_NOMEM)
        return no_memory(c, q);
    if (q->dropped) {
        struct rtr_fault f = {0};
        (void)rtr_fail(&f, KVS_REQ_TOO_LARGE, NULL, "the body is larger than %u bytes", RTR_BODY_MAX);
        return refuse(c, q, &f);
    }
    return route(c, q, method, url);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls, enum MHD_RequestTerminationCode why)
{
    struct http_req *q = *con_cls;
    (void)cls;
    if (!q)
        return;
    if (q->fd >= 0) {
        rtr_gone_remove(rtr_dispatch_gone(q->dispatch), q->fd);
        if (why == MHD_REQUEST_TERMINATED_COMPLETED_OK) /* until the next head on this connection */
            set_timeout(c, q, IDLE_TIMEOUT_S);
    }
    if (q->x) {
        rtr_exchange_completed(q->x);
        if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK)
            rtr_dispatch_left(q->dispatch, q->id);
        rtr_exchange_release(q->x);
    }
    atomic_fetch_sub(&q->http->answering, q->whole);
    kvs_buf_fini(&q->body);
    free(q);
    *con_cls = NULL;
}

/* ---- start and stop ---- */

/* A place is held from the hand-over on, not from when libmicrohttpd begins with the connection: what a burst has put in its line would else
 * go uncounted, and libmicrohttpd 0.9.75 locks itself up for ever when it finds more in a thread's line than that thread's own limit allows. */
static bool has_place(void *user)
{
    struct rtr_http *h = user;
    return atomic_load(&h->connections) < h->connections_max;
}

bool http_crowded(const struct rtr_http *h)
{
    return atomic_load(&h->connections) > h->connections_max - h->connections_max / 8;
}

static void take(void *user, int fd, const struct sockaddr *addr, uint32_t addr_bytes)
{
    struct rtr_http *h = user;
    atomic_fetch_add(&h->connections, 1);
    if (MHD_add_connection(h->daemon, fd, addr, addr_bytes) != MHD_YES) /* it has closed fd */
        atomic_fetch_sub(&h->connections, 1);
}

static void on_connection(void *user, struct MHD_Connection *c, void **state, enum MHD_ConnectionNotificationCode what)
{
    struct rtr_http *h = user;
    (void)c;
    (void)state;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED)
        atomic_fetch_sub(&h->connections, 1);
}

kvs_status rtr_http_start(const struct rtr_http_config *cfg, struct rtr_http **out, char *url_out, size_t url_cap, struct kvs_error *err)
{
    int fd;
    kvs_status s = net_listen_socket(cfg->listen, &fd, url_out, url_cap, err);
    if (s != KVS_OK)
        return s;
    struct rtr_http *h = calloc(1, sizeof(*h));
    if (!h) {
        close(fd);
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    }
    kvs_format(h->auth, sizeof(h->auth), "%s", cfg->auth ? cfg->auth : "");
    h->dispatch = cfg->dispatch;
    h->board = cfg->board;
    h->connections_max = cfg->connections_max;
    h->body_us = cfg->body_us ? cfg->body_us : BODY_US;
    h->invalid = kvs_counter(rtr_board_metrics(cfg->board), "kvasir_requests_total", "outcome=\"invalid\"", RTR_REQUESTS_HELP);
    unsigned limit = (cfg->connections_max + 1) * (cfg->threads > 1 ? cfg->threads : 1); /* each thread's share: all; see take */
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET;
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
                                 on_connection, h, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_LIMIT,
                                 limit, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)HEAD_TIMEOUT_S,
                                 MHD_OPTION_THREAD_POOL_SIZE, (unsigned)(cfg->threads > 1 ? cfg->threads : 0), MHD_OPTION_END);
    struct net_gate_config gate = {.listen_fd = fd, .user = h, .has_place = has_place, .take = take};
    if (!h->daemon || net_gate_start(&gate, &h->gate) != KVS_OK) {
        int e = errno;
        close(fd);
        rtr_http_stop(h);
        return kvs_fail(err, KVS_SELF_CONFIG, "the HTTP server did not start on %.80s: %s", cfg->listen, strerror(e));
    }
    *out = h;
    return KVS_OK;
}

bool rtr_http_answering(const struct rtr_http *h)
{
    return atomic_load(&h->answering) > 0;
}

void rtr_http_stop(struct rtr_http *h)
{
    if (!h)
        return;
    net_gate_stop(h->gate);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    free(h);
}
