/* ops_http_test.c - the small HTTP server over plain sockets: its four pages, wrong paths and methods, hostile
 * heads, addresses.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/ops_http.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct net_ops *ops;
static char url[128];
static atomic_bool is_ready, broken;

static kvs_status metrics(void *user, struct kvs_buf *out)
{
    (void)user;
    return atomic_load(&broken) ? KVS_SELF_NOMEM : kvs_buf_puts(out, "kvasir_up 1\n");
}

static bool ready(void *user, char *why_out, size_t cap)
{
    (void)user;
    (void)snprintf(why_out, cap, "no worker yet\n");
    return atomic_load(&is_ready);
}

static int setup(void **state)
{
    (void)state;
    struct kvs_error err;
    const struct net_ops_config c = {.listen = "127.0.0.1:0", .metrics = metrics, .ready = ready};
    return net_ops_start(&c, &ops, url, sizeof url, &err) == KVS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    net_ops_stop(ops);
    return 0;
}

/* Sends text as it stands; the whole answer (until close or 30 s) comes back in a static buffer. */
static const char *ask(const char *text)
{
    static char answer[65536];
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10))};
    struct timeval limit = {30, 0};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
    size_t n = 0;
    ssize_t got;
    while (n + 1 < sizeof answer && (got = recv(fd, answer + n, sizeof answer - 1 - n, 0)) > 0) {
        n += (size_t)got;
    }
    answer[n] = '\0';
    close(fd);
    return answer;
}

static void answers(const char *request, const char *status, const char *part)
{
    const char *text = ask(request);
    char head[64];
    (void)snprintf(head, sizeof head, "HTTP/1.1 %s", status);
    if (strncmp(text, head, strlen(head)) != 0 || strstr(text, part) == NULL) {
        fail_msg("%.60s... was answered with %.400s; wanted %s and %s", request, text, status, part);
    }
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

static void test_pages(void **state)
{
    (void)state;
    assert_int_equal(strncmp(url, "http://127.0.0.1:", 17), 0);
    answers(GET("/metrics"), "200", "kvasir_up 1\n");
    answers(GET("/metrics"), "200", "text/plain; version=0.0.4");
    answers(GET("/health/live"), "200", "live");
    answers(GET("/version"), "200", KVASIR_VERSION);
    answers(GET("/health/ready"), "503", "no worker yet");
    atomic_store(&is_ready, true);
    answers(GET("/health/ready"), "200", "ready");
    answers(GET("/nothing"), "404", "\"error\"");
    answers("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "405", "Allow: GET");
    answers("HEAD /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "200", "Content-Length: 6");
    answers("GET /version HTTP/1.0\r\n\r\n", "200", KVASIR_VERSION);
    atomic_store(&broken, true);
    answers(GET("/metrics"), "500", "self_nomem");
    atomic_store(&broken, false);
}

static void test_hostile_heads_are_refused_and_closed(void **state)
{
    (void)state;
    const char *const bad[] = {
        "GET /version HTTP/1.1\r\n\r\n",
        "POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\ntransfer-encoding: "
        "chunked\r\n\r\n0\r\n\r\n",
        "POST /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "GET /version HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n0123456789",
        "POST /version HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\nhello",
        "POST /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
        "POST /version HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        answers(bad[i], "400", "Connection: close");
    }
    /* libmicrohttpd's own refusals may say it in HTML, but they must refuse */
    const char *text = ask("POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n");
    assert_true(strncmp(text, "HTTP/1.1 4", 10) == 0 || text[0] == '\0');
    text = ask("\x00\x01garbage\r\n\r\n");
    assert_null(strstr(text, "200 OK"));
    answers(GET("/health/live"), "200", "live");
}

/* A body that nobody asked for is not read to its end, which may never come. */
static void test_an_endless_body(void **state)
{
    (void)state;
    const char chunk[] = "5\r\nhello\r\n";
    char text[256];
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10))};
    struct timeval limit = {0, 10000};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), round = 0;
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    const char head[] = "GET /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_int_equal(send(fd, head, sizeof head - 1, MSG_NOSIGNAL), sizeof head - 1);
    for (; round < 2000; round++) {
        if (send(fd, chunk, sizeof chunk - 1, MSG_NOSIGNAL) < 0)
            break;
        ssize_t n = recv(fd, text, sizeof text, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            break;
    }
    close(fd);
    assert_in_range(round, 0, 1999);
}

/* More at once than there is room for: who finds none is told so, and when they have left, others are served again. */
static void test_a_burst_beyond_the_limit(void **state)
{
    (void)state;
    enum { GUESTS = 300 };
    static int fd[GUESTS];
    const char get[] = "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10))};
    struct timeval limit = {30, 0};
    unsigned served = 0, told = 0;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int round = 0; round < 3; round++) {
        served = told = 0;
        for (int i = 0; i < GUESTS; i++) {
            fd[i] = socket(AF_INET, SOCK_STREAM, 0);
            assert_int_equal(connect(fd[i], (struct sockaddr *)&at, sizeof at), 0);
            assert_int_equal(setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
        }
        for (int i = 0; i < GUESTS; i++)
            (void)!send(fd[i], get, sizeof get - 1, MSG_NOSIGNAL);
        for (int i = 0; i < GUESTS; i++) {
            char text[64] = "";
            (void)!recv(fd[i], text, sizeof text - 1, 0);
            served += strncmp(text, "HTTP/1.1 200", 12) == 0;
            told += strncmp(text, "HTTP/1.1 503", 12) == 0;
            if (served + told != (unsigned)i + 1)
                fail_msg("guest %d was answered \"%s\"", i, text);
        }
        for (int i = 0; i < GUESTS; i++)
            close(fd[i]);
        bool again = false;
        for (int i = 0; i < 500 && !again; i++, usleep(again ? 0 : 10000))
            again = strncmp(ask(GET("/health/live")), "HTTP/1.1 200", 12) == 0;
        assert_true(again);
    }
    assert_in_range(served, 1, GUESTS);
    assert_int_equal(served + told, GUESTS);
}

/* Guests that stay after their answer do not hold all places. */
static void test_idle_guests_leave_room(void **state)
{
    (void)state;
    enum { GUESTS = 200 };
    static int fd[GUESTS];
    const char get[] = "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10))};
    struct timeval limit = {30, 0};
    unsigned stay = 0;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < GUESTS; i++) {
        char text[400] = "";
        fd[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd[i], (struct sockaddr *)&at, sizeof at), 0);
        assert_int_equal(setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
        assert_int_equal(send(fd[i], get, sizeof get - 1, MSG_NOSIGNAL), sizeof get - 1);
        (void)!recv(fd[i], text, sizeof text - 1, 0);
        if (strncmp(text, "HTTP/1.1 200", 12) != 0)
            fail_msg("guest %d was answered \"%s\"", i, text);
        stay += strstr(text, "Connection: close") == NULL;
    }
    assert_in_range(stay, 32, 57);
    for (int i = 0; i < GUESTS; i++)
        close(fd[i]);
}

static void refused(const char *text)
{
    char host[64];
    uint16_t port;
    struct kvs_error err = {0};
    assert_int_equal(net_parse_listen(text, host, sizeof host, &port, &err), KVS_SELF_CONFIG);
    assert_non_null(strstr(err.text, "HOST:PORT"));
}

static void test_listen_addresses(void **state)
{
    (void)state;
    char host[64];
    uint16_t port;
    struct kvs_error err = {0};
    assert_int_equal(net_parse_listen("127.0.0.1:8080", host, sizeof host, &port, &err), KVS_OK);
    assert_string_equal(host, "127.0.0.1");
    assert_int_equal(port, 8080);
    assert_int_equal(net_parse_listen("[::1]:0", host, sizeof host, &port, &err), KVS_OK);
    assert_string_equal(host, "::1");
    assert_int_equal(net_parse_listen("localhost:65535", host, sizeof host, &port, &err), KVS_OK);
    assert_int_equal(port, 65535);
    const char *const bad[] = {"",        "8080",   ":8080", "host:",   "host:65536",    "host:-1",
                               "host:8x", "::1:80", "[]:80", "[::1]80", "h:999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refused(bad[i]);
    }
    struct net_ops *second;
    char other[64];
    const struct net_ops_config c = {.listen = url + 7};
    assert_int_equal(net_ops_start(&c, &second, other, sizeof other, &err), KVS_SELF_CONFIG);
    assert_non_null(strstr(err.text, "in use"));
    const struct net_ops_config unknown = {.listen = "no.such.host.invalid:1"};
    assert_int_equal(net_ops_start(&unknown, &second, other, sizeof other, &err), KVS_SELF_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_hostile_heads_are_refused_and_closed),
        cmocka_unit_test(test_listen_addresses),
        cmocka_unit_test(test_an_endless_body),
        cmocka_unit_test(test_a_burst_beyond_the_limit),
        cmocka_unit_test(test_idle_guests_leave_room),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
