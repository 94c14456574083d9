/* rpc_harness.c - see rpc_harness.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rpc_harness.h"
#include "sys/clock.h"
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

char test_dir[64];

void test_dir_make(void)
{
    (void)snprintf(test_dir, sizeof test_dir, "/tmp/kvs-net-XXXXXX");
    if (mkdtemp(test_dir) == NULL) {
        abort();
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void test_dir_remove(void)
{
    (void)nftw(test_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- handlers: write everything down ---- */

static void note(struct endpoint *e, event_kind kind, net_conn conn, uint32_t stream, kvs_status status,
                 uint32_t number, const char *text)
{
    pthread_mutex_lock(&e->lock);
    if (e->event_count < EVENTS_MAX) {
        struct event *ev = &e->events[e->event_count++];
        *ev = (struct event){
            .kind = kind, .conn = conn, .stream = stream, .status = status, .number = number, .at_us = kvs_now_us()};
        (void)snprintf(ev->text, sizeof ev->text, "%s", text);
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static kvs_status check_hello(void *user, const struct msg_hello *hello, struct kvs_error *err)
{
    struct endpoint *e = user;
    (void)hello;
    pthread_mutex_lock(&e->lock);
    kvs_status s = e->refuse[0] != '\0' ? kvs_fail(err, KVS_REQ_DENIED, "%s", e->refuse) : KVS_OK;
    pthread_mutex_unlock(&e->lock);
    return s;
}

void refuse_with(struct endpoint *e, const char *text)
{
    pthread_mutex_lock(&e->lock);
    (void)snprintf(e->refuse, sizeof e->refuse, "%s", text);
    pthread_mutex_unlock(&e->lock);
}

static void on_up(void *user, net_conn conn, const struct msg_hello *hello, bool we_dialed, const char *url)
{
    (void)url;
    note(user, EV_UP, conn, 0, KVS_OK, we_dialed, hello->id);
}

static void on_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    note(user, EV_DOWN, conn, 0, why, 0, text);
}

static void on_dial_failed(void *user, const char *url, kvs_status why, const char *text)
{
    (void)url;
    note(user, EV_DIAL_FAILED, 0, 0, why, 0, text);
}

static void on_suspect(void *user, net_conn conn, bool suspect)
{
    note(user, EV_SUSPECT, conn, 0, KVS_OK, suspect, "");
}

static void on_call(void *user, net_conn conn, uint32_t stream, const struct msg_call *c)
{
    struct endpoint *e = user;
    char text[256] = "";
    size_t n = c->body_bytes < 200 ? c->body_bytes : 200;
    if (n > 0) {
        memcpy(text, c->body, n);
    }
    note(e, EV_CALL, conn, stream, (kvs_status)c->method, c->remaining_ms, text);
    if (e->serve != NULL) {
        e->serve(e, conn, stream, c);
    }
}

static void on_cancel(void *user, net_conn conn, uint32_t stream)
{
    note(user, EV_CANCEL, conn, stream, KVS_OK, 0, "");
}

static void on_ack(void *user, net_conn conn, uint32_t stream)
{
    note(user, EV_ACK, conn, stream, KVS_OK, 0, "");
}

static void on_nack(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    (void)payload;
    note(user, EV_NACK, conn, stream, KVS_OK, (uint32_t)n, "");
}

static void on_item(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    struct endpoint *e = user;
    char text[64] = "";
    memcpy(text, payload, n < 60 ? n : 60);
    pthread_mutex_lock(&e->lock);
    e->items++;
    e->item_bytes += n;
    pthread_mutex_unlock(&e->lock);
    note(e, EV_ITEM, conn, stream, KVS_OK, (uint32_t)n, text);
}

static void on_end(void *user, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    note(user, EV_END, conn, stream, end->status, end->pages_sent, end->text);
}

static void on_pause(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n, bool resume)
{
    (void)payload;
    note(user, EV_PAUSE, conn, stream, (kvs_status)n, resume, "");
}

static void on_writable(void *user, net_conn conn, uint32_t stream)
{
    struct endpoint *e = user;
    note(e, EV_WRITABLE, conn, stream, KVS_OK, 0, "");
    if (e->writable != NULL) {
        e->writable(e, conn, stream);
    }
}

/* ---- endpoints ---- */

static void run(void *arg)
{
    kvs_loop_run(((struct endpoint *)arg)->loop);
}

void endpoint_start(struct endpoint *e, const char *id, msg_role role)
{
    struct kvs_error err = {0};
    const struct net_rpc_handlers h = {
        .user = e,
        .check_hello = check_hello,
        .on_up = on_up,
        .on_down = on_down,
        .on_dial_failed = on_dial_failed,
        .on_suspect = on_suspect,
        .on_call = on_call,
        .on_cancel = on_cancel,
        .on_ack = on_ack,
        .on_nack = on_nack,
        .on_item = on_item,
        .on_end = on_end,
        .on_pause = on_pause,
        .on_writable = on_writable,
    };
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->changed, &attr);
    pthread_condattr_destroy(&attr);
    e->events = calloc(EVENTS_MAX, sizeof *e->events);
    e->event_count = e->taken = 0;
    e->items = e->item_bytes = 0;
    if (e->self.protocol_max == 0) {
        e->self.protocol_min = MSG_PROTOCOL_MIN;
        e->self.protocol_max = MSG_PROTOCOL_MAX;
    }
    e->self.epoch = kvs_random_u64();
    e->self.role = role;
    (void)snprintf(e->self.id, sizeof e->self.id, "%s", id);
    assert_int_equal(kvs_loop_create(&e->loop), KVS_OK);
    assert_int_equal(net_rpc_create(e->loop, &e->self, &h, &e->rpc, &err), KVS_OK);
    assert_int_equal(kvs_thread_start(id, run, e, &e->thread), KVS_OK);
}

static void destroy_rpc(void *arg)
{
    struct endpoint *e = arg;
    net_rpc_destroy(e->rpc);
    e->rpc = NULL;
}

void endpoint_stop(struct endpoint *e)
{
    on_loop(e, destroy_rpc, e);
    size_t before = e->event_count; /* nothing may be told after destroy */
    kvs_sleep_us(2000);
    pthread_mutex_lock(&e->lock);
    assert_int_equal(e->event_count, before);
    pthread_mutex_unlock(&e->lock);
    kvs_loop_stop(e->loop);
    kvs_thread_join(e->thread);
    kvs_loop_destroy(e->loop);
    free(e->events);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    memset(e, 0, sizeof *e);
}

struct job {
    struct endpoint *e;
    void (*fn)(void *arg);
    void *arg;
    bool done;
};

static void job_run(void *arg)
{
    struct job *j = arg;
    j->fn(j->arg);
    pthread_mutex_lock(&j->e->lock);
    j->done = true;
    pthread_cond_broadcast(&j->e->changed);
    pthread_mutex_unlock(&j->e->lock);
}

void on_loop(struct endpoint *e, void (*fn)(void *arg), void *arg)
{
    struct job j = {e, fn, arg, false};
    assert_int_equal(kvs_loop_post(e->loop, job_run, &j), KVS_OK);
    pthread_mutex_lock(&e->lock);
    while (!j.done) {
        pthread_cond_wait(&e->changed, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
}

/* Index of the first event of that kind at or after `taken`, waiting for it; EVENTS_MAX when none. Called with the
 * lock held. */
static size_t await(struct endpoint *e, event_kind kind, unsigned limit_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(limit_ms % 1000) * 1000000;
    until.tv_sec += limit_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    for (size_t at = e->taken;; at++) {
        while (at >= e->event_count) {
            if (pthread_cond_timedwait(&e->changed, &e->lock, &until) != 0 && at >= e->event_count) {
                return EVENTS_MAX;
            }
        }
        if (e->events[at].kind == kind) {
            return at;
        }
    }
}

/* What tests give is what is promised; a crowded machine may take longer, and what never comes fails all the same. */
#define CROWDED_MS 30000u

struct event expect(struct endpoint *e, event_kind kind, unsigned limit_ms)
{
    limit_ms = limit_ms < CROWDED_MS ? CROWDED_MS : limit_ms;
    pthread_mutex_lock(&e->lock);
    size_t at = await(e, kind, limit_ms);
    struct event ev = {0};
    if (at < EVENTS_MAX) {
        ev = e->events[at];
        e->taken = at + 1;
    } else {
        for (size_t i = e->taken; i < e->event_count && i < e->taken + 8; i++) {
            fprintf(stderr, "  seen by %s: kind %d conn %llu stream %u status %d text %s\n", e->self.id,
                    e->events[i].kind, (unsigned long long)e->events[i].conn, e->events[i].stream, e->events[i].status,
                    e->events[i].text);
        }
    }
    pthread_mutex_unlock(&e->lock);
    if (ev.kind == 0) {
        fail_msg("%s: no event of kind %d within %u ms", e->self.id, kind, limit_ms);
    }
    return ev;
}

bool happened(struct endpoint *e, event_kind kind, unsigned wait_ms)
{
    pthread_mutex_lock(&e->lock);
    size_t at = await(e, kind, wait_ms);
    pthread_mutex_unlock(&e->lock);
    return at < EVENTS_MAX;
}

size_t count_events(struct endpoint *e, event_kind kind)
{
    size_t n = 0;
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < e->event_count; i++) {
        n += e->events[i].kind == kind;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

/* ---- calls of the API, carried to the loop thread ---- */

struct request {
    struct endpoint *e;
    const char *url, *text;
    char *url_out;
    size_t cap, n;
    net_conn conn;
    uint32_t stream, ms;
    msg_method method;
    const void *bytes;
    kvs_status status;
    struct kvs_error err;
};

static void do_listen(void *arg)
{
    struct request *q = arg;
    q->status = net_rpc_listen(q->e->rpc, q->url, q->url_out, q->cap, &q->err);
}

void listen_on(struct endpoint *e, const char *url, char *url_out, size_t cap)
{
    struct request q = {.e = e, .url = url, .url_out = url_out, .cap = cap};
    on_loop(e, do_listen, &q);
    if (q.status != KVS_OK) {
        fail_msg("listen on %s: %s", url, q.err.text);
    }
}

static void do_dial(void *arg)
{
    struct request *q = arg;
    q->status = net_rpc_dial(q->e->rpc, q->url);
}

kvs_status dial(struct endpoint *e, const char *url)
{
    struct request q = {.e = e, .url = url};
    on_loop(e, do_dial, &q);
    return q.status;
}

static void do_undial(void *arg)
{
    struct request *q = arg;
    net_rpc_undial(q->e->rpc, q->url);
}

void undial(struct endpoint *e, const char *url)
{
    struct request q = {.e = e, .url = url};
    on_loop(e, do_undial, &q);
}

static void do_call(void *arg)
{
    struct request *q = arg;
    q->status = net_rpc_call(q->e->rpc, q->conn, q->method, q->ms, "trace-1", q->bytes, q->n, &q->stream);
}

uint32_t call(struct endpoint *e, net_conn conn, msg_method method, uint32_t ms, const void *body, size_t n)
{
    struct request q = {.e = e, .conn = conn, .method = method, .ms = ms, .bytes = body, .n = n};
    on_loop(e, do_call, &q);
    assert_int_equal(q.status, KVS_OK);
    return q.stream;
}

static void do_item(void *arg)
{
    struct request *q = arg;
    q->status = net_rpc_item(q->e->rpc, q->conn, q->stream, q->bytes, q->n);
}

kvs_status item(struct endpoint *e, net_conn conn, uint32_t stream, const void *payload, size_t n)
{
    struct request q = {.e = e, .conn = conn, .stream = stream, .bytes = payload, .n = n};
    on_loop(e, do_item, &q);
    return q.status;
}

static void do_end(void *arg)
{
    struct request *q = arg;
    struct msg_end end = {.status = q->status, .pages_sent = 7};
    (void)snprintf(end.text, sizeof end.text, "%s", q->text);
    net_rpc_end(q->e->rpc, q->conn, q->stream, &end);
}

void end_call(struct endpoint *e, net_conn conn, uint32_t stream, kvs_status status, const char *text)
{
    struct request q = {.e = e, .conn = conn, .stream = stream, .status = status, .text = text};
    on_loop(e, do_end, &q);
}

static void do_cancel(void *arg)
{
    struct request *q = arg;
    net_rpc_cancel(q->e->rpc, q->conn, q->stream);
}

void cancel(struct endpoint *e, net_conn conn, uint32_t stream)
{
    struct request q = {.e = e, .conn = conn, .stream = stream};
    on_loop(e, do_cancel, &q);
}

static void do_close(void *arg)
{
    struct request *q = arg;
    net_rpc_close(q->e->rpc, q->conn, q->status, q->text);
}

void close_conn(struct endpoint *e, net_conn conn, kvs_status why, const char *text)
{
    struct request q = {.e = e, .conn = conn, .status = why, .text = text};
    on_loop(e, do_close, &q);
}

void connect_pair(struct endpoint *a, struct endpoint *b, const char *url, net_conn *at_a, net_conn *at_b)
{
    char bound[256];
    endpoint_start(a, "decode-0", MSG_ROLE_DECODE);
    endpoint_start(b, "prefill-0", MSG_ROLE_PREFILL);
    listen_on(b, url, bound, sizeof bound);
    assert_int_equal(dial(a, bound), KVS_OK);
    struct event up_a = expect(a, EV_UP, 5000), up_b = expect(b, EV_UP, 5000);
    assert_string_equal(up_a.text, "prefill-0");
    assert_string_equal(up_b.text, "decode-0");
    assert_int_equal(up_a.number, 1);
    assert_int_equal(up_b.number, 0);
    *at_a = up_a.conn;
    *at_b = up_b.conn;
}
