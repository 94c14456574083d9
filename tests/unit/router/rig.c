/* rig.c - the router of rig.h, and plain HTTP over a socket.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/router/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/clock.h"
#include "sys/thread.h"

struct rig_router {
    struct kvs_loop *loop;
    struct kvs_metrics *metrics;
    struct rtr_board *board;
    struct rtr_dispatch *dispatch;
    struct rtr_http *http;
    struct kvs_thread *thread;
    char control[MSG_URL_MAX], url[MSG_URL_MAX];
    _Atomic bool stopping;
};

static void run(void *arg)
{
    kvs_loop_run(((struct rig_router *)arg)->loop);
}

struct rig_router *rig_router_start(const struct rig_options *o)
{
    struct rig_router *r = calloc(1, sizeof(*r));
    struct kvs_error e = {0};
    assert_non_null(r);
    assert_int_equal(kvs_loop_create(&r->loop), KVS_OK);
    assert_int_equal(kvs_metrics_create(&r->metrics), KVS_OK);
    assert_int_equal(rtr_board_create(r->metrics, "router", &r->board), KVS_OK);
    struct rtr_dispatch_config d = {.loop = r->loop, .name = "router", .control_url = "tcp://127.0.0.1:0", .board = r->board};
    rtr_config_default(&d.core);
    if (o) {
        d.core = o->core;
        d.head_after_us = o->head_after_us;
        d.comment_every_us = o->comment_every_us;
        d.client_stall_us = o->client_stall_us;
    }
    if (rtr_dispatch_create(&d, &r->dispatch, r->control, sizeof(r->control), &e) != KVS_OK)
        fail_msg("%s", e.text);
    struct rtr_http_config h = {.listen = "127.0.0.1:0", .dispatch = r->dispatch, .board = r->board, .threads = 2, .connections_max = 512};
    if (rtr_http_start(&h, &r->http, r->url, sizeof(r->url), &e) != KVS_OK)
        fail_msg("%s", e.text);
    assert_int_equal(kvs_thread_start("rig-router", run, r, &r->thread), KVS_OK);
    return r;
}

static void stop_dispatch(void *arg)
{
    struct rig_router *r = arg;
    rtr_dispatch_stop(r->dispatch);
    r->stopping = true;
}

static bool idle(void *arg)
{
    struct rig_router *r = arg;
    return r->stopping && rtr_dispatch_active(r->dispatch) == 0;
}

static bool written(void *arg)
{
    return !rtr_http_answering(((struct rig_router *)arg)->http);
}

void rig_router_stop(struct rig_router *r)
{
    assert_int_equal(kvs_loop_post(r->loop, stop_dispatch, r), KVS_OK);
    assert_true(rig_wait(idle, r, 20000));
    (void)rig_wait(written, r, 2000); /* as the program waits; some clients never read */
    kvs_loop_stop(r->loop);
    kvs_thread_join(r->thread);
    rtr_http_stop(r->http);
    rtr_dispatch_destroy(r->dispatch);
    rtr_board_destroy(r->board);
    kvs_metrics_destroy(r->metrics);
    kvs_loop_destroy(r->loop);
    free(r);
}

const char *rig_http_host_port(const struct rig_router *r)
{
    return r->url + strlen("http://");
}

const char *rig_control_url(const struct rig_router *r)
{
    return r->control;
}

bool rig_wait(bool (*cond)(void *), void *arg, int timeout_ms)
{
    for (int i = 0; i < timeout_ms; i++) {
        if (cond(arg))
            return true;
        kvs_sleep_us(1000);
    }
    return cond(arg);
}

int rig_connect(const struct rig_router *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const char *colon = strrchr(r->url, ':');
    a.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

void rig_send(int fd, const char *text)
{
    size_t n = strlen(text), at = 0;
    while (at < n) {
        ssize_t k = send(fd, text + at, n - at, MSG_NOSIGNAL);
        if (k <= 0)
            return;
        at += (size_t)k;
    }
}

bool rig_read(int fd, struct kvs_buf *out, const char *until, int timeout_ms)
{
    uint64_t end = kvs_now_us() + (uint64_t)timeout_ms * 1000;
    char piece[65536];
    while (!until || !strstr(kvs_buf_text(out), until)) {
        uint64_t now = kvs_now_us();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= end || poll(&p, 1, (int)((end - now) / 1000) + 1) <= 0)
            return false;
        ssize_t n = recv(fd, piece, sizeof(piece), 0);
        if (n <= 0)
            return until == NULL;
        assert_int_equal(kvs_buf_append(out, piece, (size_t)n), KVS_OK);
    }
    return true;
}

static void unchunk(const char *p, const char *end, struct kvs_buf *out)
{
    while (p < end) {
        char *after;
        unsigned long n = strtoul(p, &after, 16);
        const char *data = strstr(after, "\r\n");
        assert_non_null(data);
        data += 2;
        if (n == 0)
            return;
        assert_true(data + n <= end);
        assert_int_equal(kvs_buf_append(out, data, n), KVS_OK);
        p = data + n + 2;
    }
    fail_msg("a chunked body without its end");
}

void rig_request(const struct rig_router *r, const char *method, const char *path, const char *body, struct rig_reply *out)
{
    int fd = rig_connect(r);
    struct kvs_buf req, raw;
    kvs_buf_init(&req, 64u << 20);
    kvs_buf_init(&raw, 64u << 20);
    kvs_buf_init(&out->body, 64u << 20);
    assert_int_equal(kvs_buf_printf(&req, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-request-id: test-1\r\n", method, path), KVS_OK);
    if (body)
        assert_int_equal(kvs_buf_printf(&req, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body)), KVS_OK);
    assert_int_equal(kvs_buf_puts(&req, "\r\n"), KVS_OK);
    if (body)
        assert_int_equal(kvs_buf_puts(&req, body), KVS_OK);
    rig_send(fd, kvs_buf_text(&req));
    if (!rig_read(fd, &raw, NULL, 20000))
        fail_msg("no whole answer to %s %s within 20 s; so far: %.300s", method, path, kvs_buf_text(&raw));
    close(fd);
    const char *text = kvs_buf_text(&raw), *blank = strstr(text, "\r\n\r\n");
    assert_non_null(blank);
    assert_true((size_t)(blank - text) < sizeof(out->head));
    memcpy(out->head, text, (size_t)(blank - text) + 2);
    out->head[blank - text + 2] = 0;
    out->status = (int)strtol(text + strlen("HTTP/1.1 "), NULL, 10);
    if (strstr(out->head, "Transfer-Encoding: chunked"))
        unchunk(blank + 4, text + raw.len, &out->body);
    else
        assert_int_equal(kvs_buf_puts(&out->body, blank + 4), KVS_OK);
    kvs_buf_fini(&req);
    kvs_buf_fini(&raw);
}

void rig_reply_fini(struct rig_reply *p)
{
    kvs_buf_fini(&p->body);
}

static bool ready(void *arg)
{
    struct rig_reply p;
    rig_request(arg, "GET", "/health/ready", NULL, &p);
    bool yes = p.status == 200;
    rig_reply_fini(&p);
    return yes;
}

void rig_wait_ready(const struct rig_router *r)
{
    assert_true(rig_wait(ready, (void *)(uintptr_t)r, 20000));
}

void rig_join_stream(const struct kvs_buf *body, char *text_out, size_t cap, bool *done_out, bool *error_out)
{
    const char *p = kvs_buf_text(body), *end;
    size_t at = 0;
    *done_out = *error_out = false;
    text_out[0] = 0;
    for (; *p; p = end + 2) {
        json_error_t e;
        end = strstr(p, "\n\n");
        assert_non_null(end);
        assert_false(*done_out);
        if (*p == ':')
            continue;
        assert_memory_equal(p, "data: ", 6);
        if (strncmp(p + 6, "[DONE]", 6) == 0) {
            *done_out = true;
            continue;
        }
        json_t *o = json_loadb(p + 6, (size_t)(end - p - 6), 0, &e), *c = json_array_get(json_object_get(o, "choices"), 0);
        assert_non_null(o);
        *error_out |= json_object_get(o, "error") != NULL;
        json_t *t = json_object_get(c, "text");
        t = t ? t : json_object_get(json_object_get(c, "delta"), "content");
        if (json_is_string(t)) {
            assert_true(at + json_string_length(t) < cap);
            memcpy(text_out + at, json_string_value(t), json_string_length(t) + 1);
            at += json_string_length(t);
        }
        json_decref(o);
    }
}
