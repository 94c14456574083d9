/* nomem_test.c - etcd's JSON and the small HTTP server with its gate, every allocation failing in turn. What fails says KVS_SELF_NOMEM and
 * leaves what was there as it was; an answer is the whole one, or an error, or the end of the connection; nothing is left over; the next try is
 * served. (JSON memory goes through net_json_load, so its parts fail here, too.)
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/etcd_codec.h"
#include "net/http_gate.h"
#include "net/ops_http.h"
#include "sys/clock.h"
#include "tests/support/files.h"
#include "tests/support/nomem.h"
#include <arpa/inet.h>
#include <netinet/in.h>
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

/* ---- etcd's JSON ---- */

static const char range_text[] = "{\"header\":{\"revision\":\"9\"},\"kvs\":[{\"key\":\"Zm9v\",\"mod_revision\":\"5\",\"value\":\"YmFy\"},"
                                 "{\"key\":\"Zm9vYmFy\",\"mod_revision\":\"6\",\"lease\":\"7\",\"value\":\"\"}],\"count\":\"2\"}";
static const char watch_text[] = "{\"result\":{\"header\":{\"revision\":\"9\"},\"events\":[{\"kv\":{\"key\":\"Zm9v\",\"mod_revision\":\"9\","
                                 "\"value\":\"YmFy\"}},{\"type\":\"DELETE\",\"kv\":{\"key\":\"Zm9v\",\"mod_revision\":\"10\"}}]}}";

static kvs_status decode_range(struct kvs_arena *a)
{
    struct net_etcd_answer out;
    struct kvs_error err = {0};
    kvs_status st = net_etcd_answer_decode(range_text, sizeof range_text - 1, a, &out, &err);
    if (st != KVS_OK) {
        assert_true(err.code == st && err.text[0] != '\0');
        return st;
    }
    assert_int_equal(out.kv_count, 2);
    assert_string_equal(out.kvs[0].key, "foo");
    assert_memory_equal(out.kvs[0].value, "bar", 3);
    assert_int_equal(out.kvs[1].lease, 7);
    return st;
}

static kvs_status decode_watch(struct kvs_arena *a)
{
    struct net_etcd_watch_line out;
    struct kvs_error err = {0};
    kvs_status st = net_etcd_watch_decode(watch_text, sizeof watch_text - 1, a, &out, &err);
    if (st != KVS_OK) {
        assert_true(err.code == st && err.text[0] != '\0');
        return st;
    }
    assert_int_equal(out.event_count, 2);
    assert_true(out.events[1].deleted);
    assert_memory_equal(out.events[0].kv.value, "bar", 3);
    return st;
}

static kvs_status decode_error(struct kvs_arena *a)
{
    static const char text[] = "{\"error\":\"etcdserver: requested lease not found\",\"code\":5}";
    char said[64];
    (void)a;
    int code = net_etcd_error_decode(text, sizeof text - 1, said, sizeof said);
    return code == 5 ? KVS_OK : KVS_SELF_NOMEM;
}

static void test_reading(void **state)
{
    static kvs_status (*const reads[])(struct kvs_arena *a) = {decode_range, decode_watch, decode_error};
    (void)state;
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        int64_t live = tst_nomem_live(), n = 0;
        for (bool fired = true; fired; n++) {
            struct kvs_arena a;
            kvs_arena_init(&a, 1u << 20);
            tst_nomem_arm(n);
            ours = false;
            kvs_status st = reads[i](&a);
            ours = true;
            fired = tst_nomem_disarm();
            if (st != (fired ? KVS_SELF_NOMEM : KVS_OK)) {
                fail_msg("reading %zu, allocation %lld: %s", i, (long long)n, kvs_status_name(st));
            }
            assert_int_equal(reads[i](&a), KVS_OK);
            kvs_arena_fini(&a);
            assert_int_equal(tst_nomem_live(), live);
        }
        printf("reading %zu: %lld allocations\n", i, (long long)n - 1);
        assert_true(n > 5);
    }
}

static kvs_status write_all(struct kvs_buf *out)
{
    static const uint8_t value[5000];
    kvs_status st = net_etcd_put_grant(out, 10);
    if (st == KVS_OK) {
        st = net_etcd_put_range(out, "/kvasir/v1/", 0);
    }
    if (st == KVS_OK) {
        st = net_etcd_put_swap(out, "/kvasir/v1/x", 7, value, sizeof value, 9);
    }
    if (st == KVS_OK) {
        st = net_etcd_put_watch(out, "/kvasir/v1/", 8);
    }
    return st == KVS_OK ? net_etcd_put_login(out, "somebody", "secret") : st;
}

static void test_writing(void **state)
{
    struct kvs_buf good, out;
    (void)state;
    kvs_buf_init(&good, 1u << 20);
    assert_int_equal(write_all(&good), KVS_OK);
    int64_t live = tst_nomem_live(), n = 0;
    for (bool fired = true; fired; n++) {
        kvs_buf_init(&out, 1u << 20);
        tst_nomem_arm(n);
        ours = false;
        kvs_status st = write_all(&out);
        ours = true;
        fired = tst_nomem_disarm();
        assert_int_equal(st, fired ? KVS_SELF_NOMEM : KVS_OK);
        if (!fired) {
            assert_int_equal(out.len, good.len);
            assert_memory_equal(out.data, good.data, good.len);
        }
        kvs_buf_fini(&out);
        assert_int_equal(tst_nomem_live(), live);
    }
    kvs_buf_fini(&good);
    printf("writing: %lld allocations\n", (long long)n - 1);
    assert_true(n > 4);
}

/* ---- the small HTTP server, with its gate ---- */

static char url[128];
static int64_t pages; /* of answers: ours to allocate, libmicrohttpd's to free */

/* Not more than before; whoever counted before may have counted what the server had still to free behind its last answer. */
static bool settles(int64_t live)
{
    for (int i = 0; i < 30000 && tst_nomem_live() > live + pages; i++) {
        kvs_sleep_us(1000);
    }
    return tst_nomem_live() <= live + pages;
}

static kvs_status metrics(void *user, struct kvs_buf *out)
{
    (void)user;
    kvs_status st = KVS_OK;
    for (int i = 0; i < 2000 && st == KVS_OK; i++) {
        st = kvs_buf_puts(out, "kvasir_up 1\n");
    }
    return st;
}

static bool ready(void *user, char *why_out, size_t cap)
{
    (void)user;
    (void)snprintf(why_out, cap, "ready");
    return true;
}

/* The status of the answer; 0: the connection ended without one. */
static int ask(const char *path, size_t *length_out)
{
    static char answer[65536];
    char text[256];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10))};
    struct timeval limit = {30, 0};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    (void)snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
    size_t n = 0;
    ssize_t got;
    while (n + 1 < sizeof answer && (got = recv(fd, answer + n, sizeof answer - 1 - n, 0)) > 0) {
        n += (size_t)got;
    }
    assert_true(got == 0 || n == 0); /* not the time limit */
    answer[n] = '\0';
    close(fd);
    const char *body = strstr(answer, "\r\n\r\n");
    *length_out = body == NULL ? 0 : strlen(body + 4);
    pages += n >= 12;
    return n < 12 ? 0 : (int)strtol(answer + 9, NULL, 10);
}

static const struct net_ops_config config = {.listen = "127.0.0.1:0", .metrics = metrics, .ready = ready};

static void test_server_start(void **state)
{
    (void)state;
    int64_t live = tst_nomem_live() - pages, n = 0;
    int fds = tst_descriptors();
    for (bool fired = true; fired; n++) {
        struct kvs_error err = {0};
        struct net_ops *o = NULL;
        size_t length;
        tst_nomem_arm(n);
        ours = false;
        kvs_status st = net_ops_start(&config, &o, url, sizeof url, &err);
        ours = true;
        fired = tst_nomem_disarm();
        if (st == KVS_OK) {
            assert_int_equal(ask("/health/live", &length), 200);
        } else {
            assert_true(fired && o == NULL && err.text[0] != '\0');
            assert_int_equal(st, KVS_SELF_NOMEM);
        }
        net_ops_stop(o);
        assert_true(settles(live));
        assert_int_equal(tst_descriptors(), fds);
    }
    printf("start: %lld allocations\n", (long long)n - 1);
    assert_true(n > 2);
}

static void test_server_requests(void **state)
{
    static const char *const path[] = {"/metrics", "/health/ready", "/version", "/nothing"};
    static const int status[] = {200, 200, 200, 404};
    struct kvs_error err = {0};
    struct net_ops *o = NULL;
    size_t whole[4], length;
    (void)state;
    assert_int_equal(net_ops_start(&config, &o, url, sizeof url, &err), KVS_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ask(path[i], &whole[i]), status[i]);
    }
    int64_t live = tst_nomem_live() - pages, all = 0;
    for (int i = 0; i < 4; i++) {
        for (int64_t n = 0;; n++, all++) {
            tst_nomem_arm(n);
            int got = ask(path[i], &length);
            bool fired = tst_nomem_disarm();
            if (got == status[i]) {
                assert_int_equal(length, whole[i]); /* nothing is left out of it */
            } else {
                assert_true(fired && (got == 0 || got == 500 || got == 503));
            }
            assert_int_equal(ask(path[i], &length), status[i]);
            assert_int_equal(length, whole[i]);
            if (!fired) {
                break;
            }
        }
    }
    assert_true(settles(live));
    net_ops_stop(o);
    printf("requests: %lld allocations\n", (long long)all);
    assert_true(all > 4);
}

int main(void)
{
    ours = true;
    tst_nomem_where(counts);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reading), cmocka_unit_test(test_writing), cmocka_unit_test(test_server_start),
                                       cmocka_unit_test(test_server_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
