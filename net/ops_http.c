/* ops_http.c - /metrics, /health/live, /health/ready and /version on a thread of libmicrohttpd's own.
 * Live says that this thread answers; ready asks the owner. Both callbacks run on the server's thread, so what they
 * read must be safe to read from there. A page is built whole before its head goes out: a failure is a 500, never
 * half a page.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/ops_http.h"
#include "net/http_gate.h"
#include "net/http_strict.h"
#include "base/json.h"
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAGE_BYTES_MAX (16u << 20)
#define CONNECTIONS_MAX 64
#define IDLE_SECONDS 10

struct net_ops {
    struct net_ops_config config;
    struct MHD_Daemon *daemon;
    struct net_gate *gate;
    atomic_uint connections;
};

/* From seven eighths of all connections on, answers close theirs: idle ones can never hold all places. */
static bool crowded(const struct net_ops *o)
{
    return atomic_load(&o->connections) > CONNECTIONS_MAX - CONNECTIONS_MAX / 8;
}

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type, struct kvs_buf *page,
                              bool close_after)
{
    size_t n = 0;
    uint8_t *bytes = kvs_buf_take(page, &n);
    struct MHD_Response *response = bytes != NULL ? MHD_create_response_from_buffer(n, bytes, MHD_RESPMEM_MUST_FREE)
                                                  : MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (response == NULL) {
        free(bytes);
        return MHD_NO;
    }
    enum MHD_Result ok = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (ok == MHD_YES && close_after) {
        ok = MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    if (ok == MHD_YES && code == MHD_HTTP_METHOD_NOT_ALLOWED) {
        ok = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    if (ok == MHD_YES) {
        ok = MHD_queue_response(connection, code, response);
    }
    MHD_destroy_response(response);
    return ok;
}

static enum MHD_Result answer_error(struct MHD_Connection *connection, unsigned code, const char *type,
                                    const char *text, bool close_after)
{
    struct kvs_buf page;
    struct kvs_json j;
    kvs_buf_init(&page, 4096);
    kvs_json_begin(&j, &page);
    kvs_json_object(&j);
    kvs_json_key(&j, "error");
    kvs_json_object(&j);
    kvs_json_field_string(&j, "message", text);
    kvs_json_field_string(&j, "type", type);
    kvs_json_object_end(&j);
    kvs_json_object_end(&j);
    bool made = kvs_json_end(&j) == KVS_OK; /* otherwise the connection ends: half a page, or none under a good status, says something else */
    enum MHD_Result ok = made ? answer(connection, code, "application/json", &page, close_after) : MHD_NO;
    kvs_buf_fini(&page);
    return ok;
}

static enum MHD_Result answer_text(const struct net_ops *o, struct MHD_Connection *connection, unsigned code, const char *text)
{
    struct kvs_buf page;
    kvs_buf_init(&page, 4096);
    bool made = kvs_buf_puts(&page, text) == KVS_OK;
    enum MHD_Result ok = made ? answer(connection, code, "text/plain; charset=utf-8", &page, crowded(o)) : MHD_NO;
    kvs_buf_fini(&page);
    return ok;
}

static enum MHD_Result answer_metrics(struct net_ops *o, struct MHD_Connection *connection)
{
    struct kvs_buf page;
    kvs_buf_init(&page, PAGE_BYTES_MAX);
    kvs_status s = o->config.metrics != NULL ? o->config.metrics(o->config.user, &page) : KVS_OK;
    enum MHD_Result ok =
        s == KVS_OK
            ? answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &page, crowded(o))
            : answer_error(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error", kvs_status_name(s), crowded(o));
    kvs_buf_fini(&page);
    return ok;
}

static enum MHD_Result answer_ready(struct net_ops *o, struct MHD_Connection *connection)
{
    char why[256] = "not ready";
    bool ready = o->config.ready == NULL || o->config.ready(o->config.user, why, sizeof why);
    return answer_text(o, connection, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, ready ? "ready\n" : why);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_bytes, void **state)
{
    struct net_ops *o = user;
    struct kvs_error err;
    (void)upload;
    if (*state == NULL) {
        *state = o; /* not NULL: the head has been judged */
        if (net_http_strict(connection, version, 0, NULL, &err) != KVS_OK) {
            return answer_error(connection, MHD_HTTP_BAD_REQUEST, "invalid_request_error", err.text, true);
        }
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        return MHD_NO; /* a chunked body that nobody asked for, and that need not end */
    }
    bool known = strcmp(url, "/metrics") == 0 || strcmp(url, "/health/live") == 0 ||
                 strcmp(url, "/health/ready") == 0 || strcmp(url, "/version") == 0;
    if (!known) {
        return answer_error(connection, MHD_HTTP_NOT_FOUND, "not_found_error",
                            "here are /metrics, /health/live, /health/ready and /version", crowded(o));
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        return answer_error(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "invalid_request_error", "only GET is served here",
                            crowded(o));
    }
    if (strcmp(url, "/metrics") == 0) {
        return answer_metrics(o, connection);
    }
    if (strcmp(url, "/health/ready") == 0) {
        return answer_ready(o, connection);
    }
    return answer_text(o, connection, MHD_HTTP_OK, strcmp(url, "/version") == 0 ? KVASIR_VERSION "\n" : "live\n");
}

/* ---- listening ---- */

static kvs_status resolve(const char *host, uint16_t port, struct sockaddr_storage *out, socklen_t *bytes_out,
                          struct kvs_error *err)
{
    char service[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;
    (void)kvs_format(service, sizeof service, "%u", (unsigned)port);
    int rv = getaddrinfo(host, service, &hints, &found);
    if (rv != 0 || found == NULL) {
        return kvs_fail(err, KVS_SELF_CONFIG, "the host \"%s\" to listen on is not known: %s", host, gai_strerror(rv));
    }
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *bytes_out = found->ai_addrlen;
    freeaddrinfo(found);
    return KVS_OK;
}

kvs_status net_listen_socket(const char *listen_text, int *fd_out, char *url_out, size_t url_cap, struct kvs_error *err)
{
    char host[256];
    uint16_t port;
    struct sockaddr_storage at = {0};
    socklen_t at_bytes;
    int one = 1;
    kvs_status s = net_parse_listen(listen_text, host, sizeof host, &port, err);
    if (s == KVS_OK) {
        s = resolve(host, port, &at, &at_bytes, err);
    }
    if (s != KVS_OK) {
        return s;
    }
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, (struct sockaddr *)&at, at_bytes) != 0 || listen(fd, 4096) != 0) {
        s = errno == EADDRINUSE
                ? kvs_fail(err, KVS_SELF_CONFIG,
                           "port %u on %s is in use: choose another one or stop the process that holds it", port, host)
                : kvs_fail(err, KVS_SELF_CONFIG, "cannot listen on %s: %s", listen_text, strerror(errno));
        if (fd >= 0) {
            (void)close(fd);
        }
        return s;
    }
    at_bytes = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &at_bytes) == 0) {
        port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                              : ((struct sockaddr_in *)&at)->sin_port);
    }
    bool v6 = strchr(host, ':') != NULL;
    (void)kvs_format(url_out, url_cap, "http://%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", (unsigned)port);
    *fd_out = fd;
    return KVS_OK;
}

/* ---- life ---- */

/* A place is held from the hand-over on, not from when libmicrohttpd begins with the connection: what a burst has put in its line would else
 * go uncounted, and libmicrohttpd 0.9.75 locks itself up for ever when it finds more in its line than its own limit allows. */
static bool has_place(void *user)
{
    struct net_ops *o = user;
    return atomic_load(&o->connections) < CONNECTIONS_MAX;
}

static void take(void *user, int fd, const struct sockaddr *addr, uint32_t addr_bytes)
{
    struct net_ops *o = user;
    atomic_fetch_add(&o->connections, 1);
    if (MHD_add_connection(o->daemon, fd, addr, addr_bytes) != MHD_YES) { /* it has closed fd */
        atomic_fetch_sub(&o->connections, 1);
    }
}

static void on_connection(void *user, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode what)
{
    struct net_ops *o = user;
    (void)connection;
    (void)state;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        atomic_fetch_sub(&o->connections, 1);
    }
}

kvs_status net_ops_start(const struct net_ops_config *c, struct net_ops **out, char *url_out, size_t url_cap,
                         struct kvs_error *err)
{
    struct net_ops *o = calloc(1, sizeof *o);
    int fd;
    if (o == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the HTTP server");
    }
    o->config = *c;
    o->config.listen = NULL; /* not ours to keep */
    kvs_status s = net_listen_socket(c->listen, &fd, url_out, url_cap, err);
    if (s != KVS_OK) {
        free(o);
        return s;
    }
    struct net_gate_config gate = {.listen_fd = fd, .user = o, .has_place = has_place, .take = take};
    o->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, on_request, o,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, o, MHD_OPTION_CONNECTION_LIMIT, 2u * CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32768,
        MHD_OPTION_END);
    s = o->daemon != NULL ? net_gate_start(&gate, &o->gate) : KVS_SELF_IO;
    if (s != KVS_OK) {
        (void)close(fd);
        net_ops_stop(o);
        return kvs_fail(err, s, "the HTTP server did not start on %s: %s", c->listen, kvs_status_name(s));
    }
    *out = o;
    return KVS_OK;
}

void net_ops_stop(struct net_ops *o)
{
    if (o == NULL) {
        return;
    }
    net_gate_stop(o->gate);
    if (o->daemon != NULL) {
        MHD_stop_daemon(o->daemon);
    }
    free(o);
}
