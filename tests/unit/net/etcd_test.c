/* etcd_test.c - the etcd client against servers that are no etcd: they cut, stall, lie and flood.
 * A fake server answers every request as its mode says; one thread a connection. What real etcd does is tested in
 * tests/unit/cluster.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/etcd.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the fake ---- */

enum mode {
    FINE,
    GARBAGE,
    FLOOD,
    SILENT,
    CLOSE,
    UNAVAILABLE,
    NO_LEASE,
    REDIRECT,
    NOT_ETCD,
    DENIED,
    WATCH,
    WATCH_FLOOD,
    WATCH_SILENT
};
#define CONNECTIONS_MAX 64

struct fake {
    int fd;
    uint16_t port;
    pthread_t accepting, thread[CONNECTIONS_MAX];
    int conn[CONNECTIONS_MAX];
    atomic_int count, mode, requests;
};
struct served {
    struct fake *f;
    int fd;
};

static bool put(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0) {
            return false;
        }
        text += k;
        n -= (size_t)k;
    }
    return true;
}

static bool reply(int fd, const char *status, const char *body)
{
    char head[256];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
                     status, strlen(body));
    return put(fd, head, (size_t)n) && put(fd, body, strlen(body));
}

/* One request with its body; false: the connection is over. */
static bool read_request(int fd)
{
    char b[8192];
    size_t len = 0;
    for (;;) {
        ssize_t k = recv(fd, b + len, sizeof b - 1 - len, 0);
        if (k <= 0) {
            return false;
        }
        len += (size_t)k;
        b[len] = '\0';
        char *end = strstr(b, "\r\n\r\n"), *length = strstr(b, "Content-Length: ");
        if (end != NULL && length != NULL && len >= (size_t)(end + 4 - b) + strtoul(length + 16, NULL, 10)) {
            return true;
        }
    }
}

static const char stream_head[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

static bool chunk(int fd, const char *text, size_t n)
{
    char head[32];
    int k = snprintf(head, sizeof head, "%zx\r\n", n);
    return put(fd, head, (size_t)k) && put(fd, text, n) && put(fd, "\r\n", 2);
}

static void wait_for_hang_up(int fd)
{
    char b[64];
    while (recv(fd, b, sizeof b, 0) > 0) {}
}

static void flood(int fd, const char *first)
{
    static char zeros[65536];
    memset(zeros, ' ', sizeof zeros);
    bool ok = put(fd, stream_head, sizeof stream_head - 1) && chunk(fd, first, strlen(first));
    for (int i = 0; ok && i < 4096; i++) { /* 256 MiB, if anybody takes it */
        ok = chunk(fd, zeros, sizeof zeros);
    }
}

static const char created[] = "{\"result\":{\"header\":{\"revision\":\"1\"},\"created\":true}}\n";
static const char two_lines[] =
    "{\"result\":{\"header\":{\"revision\":\"3\"},\"events\":[{\"kv\":{\"key\":\"YQ==\",\"mod_revision\":\"2\"}},{"
    "\"kv\":{"
    "\"key\":\"Yg==\",\"mod_revision\":\"3\"}}]}}\n{\"result\":{\"header\":{\"revision\":\"4\"},\"events\":[{\"type\":"
    "\"DELETE\",\"kv\":{\"key\":\"YQ==\",\"mod_revision\":\"4\"}}]}}\n";

static void serve_watch(struct fake *f, int fd)
{
    bool ok = put(fd, stream_head, sizeof stream_head - 1) && chunk(fd, created, sizeof created - 1);
    for (size_t i = 0; ok && i < sizeof two_lines - 1; i += 7) { /* lines in small pieces */
        size_t n = sizeof two_lines - 1 - i < 7 ? sizeof two_lines - 1 - i : 7;
        ok = chunk(fd, two_lines + i, n);
        kvs_sleep_us(200);
    }
    while (ok && atomic_load(&f->mode) == WATCH) {
        char b;
        ok = recv(fd, &b, 1, MSG_DONTWAIT) != 0;
        kvs_sleep_us(1000);
    }
    if (atomic_load(&f->mode) == SILENT) {
        wait_for_hang_up(fd);
    }
}

static bool answer(struct fake *f, int fd)
{
    switch (atomic_load(&f->mode)) {
    case FINE: return reply(fd, "200 OK", "{\"header\":{\"revision\":\"7\"}}");
    case GARBAGE: return reply(fd, "200 OK", "{\"header\":");
    case UNAVAILABLE:
        return reply(fd, "503 Service Unavailable", "{\"message\":\"etcdserver: no leader\",\"code\":14}");
    case NO_LEASE:
        return reply(fd, "404 Not Found", "{\"message\":\"etcdserver: requested lease not found\",\"code\":5}");
    case REDIRECT: return reply(fd, "302 Found", "");
    case NOT_ETCD: return reply(fd, "404 Not Found", "404 page not found");
    case DENIED: return reply(fd, "403 Forbidden", "{\"message\":\"etcdserver: permission denied\",\"code\":7}");
    case FLOOD: flood(fd, "{"); return false;
    case WATCH_FLOOD: flood(fd, created); return false;
    case WATCH_SILENT:
        (void)put(fd, stream_head, sizeof stream_head - 1);
        wait_for_hang_up(fd);
        return false;
    case WATCH: serve_watch(f, fd); return false;
    case SILENT: wait_for_hang_up(fd); return false;
    default: return false;
    }
}

static void *serve(void *arg)
{
    struct served s = *(struct served *)arg;
    free(arg);
    while (read_request(s.fd)) {
        atomic_fetch_add(&s.f->requests, 1);
        if (!answer(s.f, s.fd)) {
            break;
        }
    }
    (void)shutdown(s.fd, SHUT_RDWR);
    return NULL;
}

static void *accepting(void *arg)
{
    struct fake *f = arg;
    for (;;) {
        int fd = accept(f->fd, NULL, NULL);
        if (fd < 0) {
            return NULL;
        }
        struct served *s = malloc(sizeof *s);
        int i = atomic_load(&f->count);
        if (s == NULL || i == CONNECTIONS_MAX) {
            abort();
        }
        *s = (struct served){f, fd};
        f->conn[i] = fd;
        if (pthread_create(&f->thread[i], NULL, serve, s) != 0) {
            abort();
        }
        atomic_store(&f->count, i + 1);
    }
}

static void fake_start(struct fake *f, enum mode mode)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    memset(f, 0, sizeof *f);
    atomic_init(&f->mode, mode);
    f->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(f->fd >= 0 && bind(f->fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(f->fd, 16) == 0);
    assert_int_equal(getsockname(f->fd, (struct sockaddr *)&a, &n), 0);
    f->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&f->accepting, NULL, accepting, f), 0);
}

static void fake_stop(struct fake *f)
{
    (void)shutdown(f->fd, SHUT_RDWR);
    (void)pthread_join(f->accepting, NULL);
    (void)close(f->fd);
    for (int i = 0; i < atomic_load(&f->count); i++) {
        (void)shutdown(f->conn[i], SHUT_RDWR);
        (void)pthread_join(f->thread[i], NULL);
        (void)close(f->conn[i]);
    }
}

/* ---- the client ---- */

static struct kvs_loop *loop;
static struct kvs_timer *limit;
static struct net_etcd *client;
static struct {
    bool done, ended, timed_out;
    kvs_status status, why;
    char text[320];
    int64_t revision;
    uint32_t lines, events, deleted, created;
    uint32_t stop_at_events;
} seen;

static void on_limit(void *user, uint64_t now_us)
{
    (void)user;
    (void)now_us;
    seen.timed_out = true;
    kvs_loop_stop(loop);
}

static void turn(unsigned limit_ms)
{
    seen.timed_out = false;
    kvs_timer_set(limit, kvs_now_us() + limit_ms * UINT64_C(1000));
    kvs_loop_run(loop);
    kvs_timer_set(limit, UINT64_MAX);
}

static void on_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *a)
{
    (void)user;
    assert_false(seen.done);
    seen.done = true;
    seen.status = s;
    seen.revision = a != NULL ? a->revision : 0;
    (void)snprintf(seen.text, sizeof seen.text, "%s", text);
    kvs_loop_stop(loop);
}

static void on_line(void *user, const struct net_etcd_watch_line *l)
{
    (void)user;
    seen.lines++;
    seen.created += l->created;
    for (uint32_t i = 0; i < l->event_count; i++) {
        seen.events++;
        seen.deleted += l->events[i].deleted;
    }
    if (seen.events == seen.stop_at_events) {
        kvs_loop_stop(loop);
    }
}

static void on_watch_end(void *user, kvs_status why, const char *text)
{
    (void)user;
    assert_false(seen.ended);
    seen.ended = true;
    seen.why = why;
    (void)snprintf(seen.text, sizeof seen.text, "%s", text);
    kvs_loop_stop(loop);
}

static void client_start(const struct fake *a, const struct fake *b)
{
    const struct net_etcd_events ev = {.on_line = on_line, .on_watch_end = on_watch_end};
    struct kvs_error err = {0};
    char url[96];
    int n = snprintf(url, sizeof url, "etcd://127.0.0.1:%u", a->port);
    if (b != NULL) {
        (void)snprintf(url + n, sizeof url - (size_t)n, ",127.0.0.1:%u", b->port);
    }
    memset(&seen, 0, sizeof seen);
    seen.stop_at_events = UINT32_MAX;
    assert_int_equal(kvs_loop_create(&loop), KVS_OK);
    assert_int_equal(kvs_timer_create(loop, on_limit, NULL, &limit), KVS_OK);
    assert_int_equal(net_etcd_create(loop, url, &ev, &client, &err), KVS_OK);
}

static void client_stop(void)
{
    net_etcd_destroy(client);
    kvs_timer_destroy(limit);
    kvs_loop_destroy(loop);
}

static void call(void)
{
    struct kvs_buf body;
    kvs_buf_init(&body, 256);
    assert_int_equal(net_etcd_put_range(&body, "a/", 0), KVS_OK);
    seen.done = false;
    assert_int_equal(net_etcd_call(client, NET_ETCD_RANGE, &body, on_done, NULL), KVS_OK);
    kvs_buf_fini(&body);
    assert_false(seen.done); /* never from inside */
    turn(60000);
    assert_true(seen.done && !seen.timed_out);
}

/* ---- tests ---- */

static void test_urls(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "http://a:1",
                                      "etcd://",
                                      "etcd://host",
                                      "etcd://host:",
                                      "etcd://host:0",
                                      "etcd://host:65536",
                                      "etcd://:2379",
                                      "etcd://a:1,",
                                      "etcd://a:1,,b:2",
                                      "etcd://a:1/path",
                                      "etcd://u:p@a:1",
                                      "etcd://a b:1",
                                      "etcd://a:1x",
                                      "etcd://::1:2379",
                                      "etcd://a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9"};
    static const char *const good[] = {"etcd://a:1", "etcd://a-b.c:65535/", "etcd://[::1]:2379,127.0.0.1:2379"};
    const struct net_etcd_events ev = {.on_line = on_line, .on_watch_end = on_watch_end};
    assert_int_equal(kvs_loop_create(&loop), KVS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvs_error err = {0};
        struct net_etcd *e = NULL;
        if (net_etcd_create(loop, bad[i], &ev, &e, &err) != KVS_SELF_CONFIG) {
            fail_msg("taken: %s", bad[i]);
        }
        assert_non_null(strstr(err.text, "etcd://HOST:PORT"));
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct kvs_error err = {0};
        struct net_etcd *e = NULL;
        if (net_etcd_create(loop, good[i], &ev, &e, &err) != KVS_OK) {
            fail_msg("refused: %s", good[i]);
        }
        net_etcd_destroy(e);
    }
    kvs_loop_destroy(loop);
}

static void test_what_one_bad_server_comes_to(void **state)
{
    (void)state;
    static const struct {
        enum mode mode;
        kvs_status status;
    } cases[] = {{FINE, KVS_OK},
                 {GARBAGE, KVS_PEER_PROTOCOL},
                 {FLOOD, KVS_PEER_PROTOCOL},
                 {SILENT, KVS_PEER_TIMEOUT},
                 {CLOSE, KVS_PEER_LOST},
                 {UNAVAILABLE, KVS_PEER_LOST},
                 {NO_LEASE, KVS_REQ_NOT_FOUND},
                 {REDIRECT, KVS_PEER_PROTOCOL},
                 {NOT_ETCD, KVS_PEER_PROTOCOL},
                 {DENIED, KVS_REQ_DENIED}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake f;
        fake_start(&f, cases[i].mode);
        client_start(&f, NULL);
        call();
        if (seen.status != cases[i].status) {
            fail_msg("case %zu ended with %s: %s", i, kvs_status_name(seen.status), seen.text);
        }
        assert_true(cases[i].status == KVS_OK ? seen.revision == 7 : seen.text[0] != '\0');
        client_stop();
        fake_stop(&f);
    }
}

static void test_a_good_server_beside_a_bad_one(void **state)
{
    (void)state;
    static const enum mode bad[] = {GARBAGE, FLOOD, SILENT, CLOSE, UNAVAILABLE, REDIRECT, NOT_ETCD};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct fake f, good;
        fake_start(&f, bad[i]);
        fake_start(&good, FINE);
        client_start(&f, &good);
        for (int k = 0; k < 4; k++) {
            call();
            assert_int_equal(seen.status, KVS_OK);
        }
        assert_true(atomic_load(&f.requests) <= 2); /* once found bad, not asked again (curl may resend once) */
        client_stop();
        fake_stop(&f);
        fake_stop(&good);
    }
}

static void test_nobody_listens(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    struct fake f = {.fd = socket(AF_INET, SOCK_STREAM, 0)}; /* bound, so that nobody else gets its port, but deaf */
    assert_int_equal(bind(f.fd, (struct sockaddr *)&a, n), 0);
    assert_int_equal(getsockname(f.fd, (struct sockaddr *)&a, &n), 0);
    f.port = ntohs(a.sin_port);
    client_start(&f, NULL);
    call();
    assert_int_equal(seen.status, KVS_PEER_LOST);
    client_stop();
    close(f.fd);
}

static void test_watch_lines_in_pieces(void **state)
{
    (void)state;
    struct fake f;
    fake_start(&f, WATCH);
    client_start(&f, NULL);
    seen.stop_at_events = 3;
    assert_int_equal(net_etcd_watch(client, "a/", 2), KVS_OK);
    turn(30000);
    assert_true(!seen.timed_out && !seen.ended && seen.created == 1 && seen.lines == 3 && seen.deleted == 1);
    atomic_store(&f.mode, CLOSE);
    turn(30000);
    assert_true(seen.ended && kvs_is_peer(seen.why));
    client_stop();
    fake_stop(&f);
}

static void test_a_watch_that_floods(void **state)
{
    (void)state;
    struct fake f;
    fake_start(&f, WATCH_FLOOD);
    client_start(&f, NULL);
    assert_int_equal(net_etcd_watch(client, "a/", 2), KVS_OK);
    turn(30000);
    assert_true(seen.ended && seen.why == KVS_PEER_PROTOCOL);
    client_stop();
    fake_stop(&f);
}

static void test_a_watch_that_never_begins(void **state)
{
    (void)state;
    struct fake f;
    fake_start(&f, WATCH_SILENT);
    client_start(&f, NULL);
    assert_int_equal(net_etcd_watch(client, "a/", 2), KVS_OK);
    turn(30000);
    assert_true(seen.ended && seen.why == KVS_PEER_TIMEOUT);
    client_stop();
    fake_stop(&f);
}

static void test_a_call_finds_the_watch_dead(void **state)
{
    (void)state;
    struct fake f;
    fake_start(&f, WATCH);
    client_start(&f, NULL);
    seen.stop_at_events = 3;
    assert_int_equal(net_etcd_watch(client, "a/", 2), KVS_OK);
    turn(30000);
    assert_false(seen.ended);
    atomic_store(&f.mode, SILENT);
    call();
    assert_int_equal(seen.status, KVS_PEER_TIMEOUT);
    if (!seen.ended) {
        turn(30000);
    }
    assert_true(seen.ended);
    client_stop();
    fake_stop(&f);
}

/* The loop takes no watch of a socket, memory lacking: what waits for it is told at once, is nobody else's fault, and begins again well. */
static void test_a_socket_that_cannot_be_watched(void **state)
{
    (void)state;
#ifdef KVASIR_FAILPOINTS
    struct fake f;
    struct kvs_error err;
    fake_start(&f, WATCH);
    client_start(&f, NULL);
    seen.stop_at_events = 3;
    assert_int_equal(kvs_failpoint_set("etcd.unwatched_socket=error", &err), KVS_OK);
    assert_int_equal(net_etcd_watch(client, "a/", 2), KVS_OK);
    turn(30000);
    assert_int_equal(kvs_failpoint_fired("etcd.unwatched_socket"), 1);
    assert_true(seen.ended && seen.why == KVS_SELF_NOMEM && strstr(seen.text, "descriptors") != NULL);
    seen.ended = false;
    assert_int_equal(net_etcd_watch(client, "a/", 2), KVS_OK);
    turn(30000);
    assert_true(!seen.timed_out && !seen.ended && seen.created == 1 && seen.events == 3);
    net_etcd_unwatch(client);
    atomic_store(&f.mode, FINE);
    assert_int_equal(kvs_failpoint_set("etcd.unwatched_socket=error", &err), KVS_OK);
    call();
    assert_int_equal(seen.status, KVS_SELF_NOMEM);
    call();
    assert_int_equal(seen.status, KVS_OK);
    assert_int_equal(kvs_failpoint_set("", &err), KVS_OK);
    client_stop();
    fake_stop(&f);
#else
    skip();
#endif
}

static void test_too_many_calls_and_an_early_end(void **state)
{
    (void)state;
    struct fake f;
    struct kvs_buf body;
    fake_start(&f, SILENT);
    client_start(&f, NULL);
    kvs_buf_init(&body, 256);
    assert_int_equal(net_etcd_put_range(&body, "a/", 0), KVS_OK);
    for (uint32_t i = 0; i < NET_ETCD_CALLS_MAX; i++) {
        assert_int_equal(net_etcd_call(client, NET_ETCD_RANGE, &body, on_done, NULL), KVS_OK);
    }
    assert_int_equal(net_etcd_call(client, NET_ETCD_RANGE, &body, on_done, NULL), KVS_BUSY_QUEUE);
    kvs_buf_fini(&body);
    turn(100);
    client_stop(); /* nothing is called back */
    assert_false(seen.done);
    fake_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_what_one_bad_server_comes_to),
        cmocka_unit_test(test_a_good_server_beside_a_bad_one),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_watch_lines_in_pieces),
        cmocka_unit_test(test_a_watch_that_floods),
        cmocka_unit_test(test_a_watch_that_never_begins),
        cmocka_unit_test(test_a_call_finds_the_watch_dead),
        cmocka_unit_test(test_a_socket_that_cannot_be_watched),
        cmocka_unit_test(test_too_many_calls_and_an_early_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
