/* etcd_nomem_test.c - the client of etcd with every allocation of ours failing in turn (libcurl's own do not): creation, calls of all kinds with
 * a login before them, a watch with an event, an end while things are under way. A call ends once, with its answer or a named error; a watch
 * gives its lines or ends; the next try is served; nothing is left over. The other side is a few lines of HTTP, not etcd.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/etcd.h"
#include "sys/clock.h"
#include "tests/support/nomem.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static _Thread_local bool ours;

static bool counts(void)
{
    return !ours;
}

/* ---- the server ---- */

static bool put(int fd, const char *text)
{
    size_t n = strlen(text);
    return send(fd, text, n, MSG_NOSIGNAL) == (ssize_t)n;
}

static const char *answer_to(const char *head)
{
    if (strstr(head, "/v3/lease/grant")) {
        return "{\"header\":{\"revision\":\"3\"},\"ID\":\"75\",\"TTL\":\"10\"}";
    }
    if (strstr(head, "/v3/auth/authenticate")) {
        return "{\"header\":{\"revision\":\"3\"},\"token\":\"abc.7\"}";
    }
    return "{\"header\":{\"revision\":\"9\"},\"kvs\":[{\"key\":\"Zm9v\",\"mod_revision\":\"5\",\"value\":\"YmFy\"}],\"count\":\"1\"}";
}

static void *serve(void *arg)
{
    int fd = *(int *)arg;
    char b[8192];
    size_t len = 0;
    ours = true;
    free(arg);
    for (;;) {
        ssize_t k = recv(fd, b + len, sizeof b - 1 - len, 0);
        if (k <= 0) {
            break;
        }
        len += (size_t)k;
        b[len] = '\0';
        const char *end = strstr(b, "\r\n\r\n"), *length = strstr(b, "Content-Length: ");
        if (end == NULL || length == NULL || len < (size_t)(end + 4 - b) + strtoul(length + 16, NULL, 10)) {
            continue;
        }
        len = 0;
        if (strstr(b, "/v3/watch")) {
            static const char *const line[] = {"{\"result\":{\"header\":{\"revision\":\"9\"},\"created\":true}}\n",
                                               "{\"result\":{\"header\":{\"revision\":\"10\"},\"events\":[{\"kv\":{\"key\":\"Zm9v\","
                                               "\"mod_revision\":\"10\",\"value\":\"YmFy\"}}]}}\n"};
            (void)put(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for (int i = 0; i < 2; i++) {
                char chunk[512];
                (void)snprintf(chunk, sizeof chunk, "%zx\r\n%s\r\n", strlen(line[i]), line[i]);
                (void)put(fd, chunk);
            }
            continue;
        }
        char whole[1024];
        (void)snprintf(whole, sizeof whole, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(answer_to(b)), answer_to(b));
        (void)put(fd, whole);
    }
    close(fd);
    return NULL;
}

static void *accept_all(void *arg)
{
    int at = *(int *)arg;
    ours = true;
    for (;;) {
        int fd = accept(at, NULL, NULL);
        pthread_t t;
        int *mine = malloc(sizeof *mine);
        if (fd < 0 || mine == NULL) {
            free(mine);
            return NULL;
        }
        *mine = fd;
        if (pthread_create(&t, NULL, serve, mine) == 0) {
            pthread_detach(t);
        }
    }
}

/* ---- the client ---- */

static struct kvs_loop *loop;
static struct kvs_timer *timer;
static struct net_etcd *client;
static char url[64];
static struct {
    bool done, ended, late;
    kvs_status status, end_status;
    uint32_t lines, events, kvs;
    int64_t lease;
} seen;

static void on_line(void *user, const struct net_etcd_watch_line *line)
{
    (void)user;
    seen.lines++;
    seen.events += line->event_count;
    if (seen.events > 0) {
        kvs_loop_stop(loop);
    }
}

static void on_watch_end(void *user, kvs_status why, const char *text)
{
    (void)user;
    assert_true(why != KVS_OK && text != NULL);
    seen.ended = true;
    seen.end_status = why;
    kvs_loop_stop(loop);
}

static void on_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    (void)user;
    assert_false(seen.done);
    assert_true(s == KVS_OK ? answer != NULL : text != NULL);
    seen.done = true;
    seen.status = s;
    if (s == KVS_OK) {
        seen.kvs = answer->kv_count;
        seen.lease = answer->lease;
    }
    kvs_loop_stop(loop);
}

static void too_late(void *user, uint64_t now_us)
{
    (void)user;
    (void)now_us;
    seen.late = true;
    kvs_loop_stop(loop);
}

static void turn(void)
{
    kvs_timer_set(timer, kvs_now_us() + 30000000);
    kvs_loop_run(loop);
    if (seen.late) {
        fail_msg("nothing comes: done %d, lines %u, events %u, ended %d; fired %d after %lld", seen.done, seen.lines, seen.events, seen.ended,
                 tst_nomem_fired(), (long long)tst_nomem_seen());
    }
}

/* One call to its end; what it said. */
static kvs_status call(net_etcd_op op)
{
    struct kvs_buf body;
    kvs_buf_init(&body, 1u << 16);
    seen.done = false;
    kvs_status st = op == NET_ETCD_GRANT ? net_etcd_put_grant(&body, 10) : net_etcd_put_range(&body, "/x/", 0);
    if (st == KVS_OK) {
        st = net_etcd_call(client, op, &body, on_done, NULL);
    }
    kvs_buf_fini(&body);
    while (st == KVS_OK && !seen.done) {
        turn();
    }
    return st == KVS_OK ? seen.status : st;
}

static void call_twice(net_etcd_op op)
{
    kvs_status st = call(op);
    if (st != KVS_OK) {
        assert_true(tst_nomem_fired());
        assert_true(st == KVS_SELF_NOMEM || kvs_is_peer(st));
        st = call(op);
    }
    assert_int_equal(st, KVS_OK);
    assert_true(op == NET_ETCD_GRANT ? seen.lease == 75 : seen.kvs == 1);
}

/* A watch until its first event; what was lost on the way shows as its end. */
static bool watch(void)
{
    seen.ended = false;
    seen.events = seen.lines = 0;
    kvs_status st = net_etcd_watch(client, "/x/", 4);
    while (st == KVS_OK && !seen.ended && seen.events == 0) {
        turn();
    }
    return st == KVS_OK && !seen.ended;
}

static void whole(void)
{
    const struct net_etcd_events ev = {.on_line = on_line, .on_watch_end = on_watch_end};
    struct kvs_error err = {0};
    kvs_status st = net_etcd_create(loop, url, &ev, &client, &err);
    if (st != KVS_OK) {
        assert_true(st == KVS_SELF_NOMEM && tst_nomem_fired() && err.text[0] != '\0');
        st = net_etcd_create(loop, url, &ev, &client, &err);
    }
    assert_int_equal(st, KVS_OK);
    assert_int_equal(net_etcd_login(client, "somebody", "secret", &err), KVS_OK);
    call_twice(NET_ETCD_GRANT);
    call_twice(NET_ETCD_RANGE);
    if (!watch()) {
        assert_true(tst_nomem_fired());
        assert_true(watch());
    }
    assert_int_equal(seen.lines, 2);
    net_etcd_destroy(client); /* the watch is under way */
}

static void test_client(void **state)
{
    (void)state;
    int64_t live = tst_nomem_live(), n = 0;
    for (bool fired = true; fired; n++) {
        seen.late = false;
        assert_int_equal(kvs_loop_create(&loop), KVS_OK);
        assert_int_equal(kvs_timer_create(loop, too_late, NULL, &timer), KVS_OK);
        ours = false;
        tst_nomem_arm(n);
        whole();
        fired = tst_nomem_disarm();
        ours = true;
        kvs_timer_destroy(timer);
        kvs_loop_destroy(loop);
        for (int i = 0; i < 30000 && tst_nomem_live() != live; i++) {
            kvs_sleep_us(1000); /* the server's threads see the end of their connections */
        }
        if (tst_nomem_live() != live) {
            fail_msg("allocation %lld: %lld are left over", (long long)n, (long long)(tst_nomem_live() - live));
        }
    }
    printf("%lld allocations\n", (long long)n - 1);
    assert_true(n > 100);
}

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t n = sizeof at;
    pthread_t t;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    static int fd;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&at, n) != 0 || listen(fd, 64) != 0 || getsockname(fd, (struct sockaddr *)&at, &n) != 0 ||
        pthread_create(&t, NULL, accept_all, &fd) != 0) {
        return 1;
    }
    (void)snprintf(url, sizeof url, "etcd://127.0.0.1:%u", (unsigned)ntohs(at.sin_port));
    ours = true;
    tst_nomem_where(counts);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_client)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
