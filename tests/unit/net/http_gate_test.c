/* http_gate_test.c - what a head is, byte by byte; and the gate: whole heads pass with all their bytes, late, bad and crowding ones do not
 * reach the server behind it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/http_gate.h"
#include "net/http_head.h"
#include "net/ops_http.h"
#include "sys/clock.h"

#define GET "GET / HTTP/1.1\r\nHost: x\r\n"

static void test_heads(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned status;
    } cases[] = {
        {GET "\r\n", 200},
        {GET "\r\nbody follows\x01", 200},
        {"\r\n\r\n" GET "\r\n", 200},
        {"POST /v1/x?a=b HTTP/1.0\r\ncontent-length:  12 \r\nX-Empty:\r\n\r\n", 200},
        {GET "Bytes: \xc3\xa4\xff\tok\r\n\r\n", 200},
        {"", 0},
        {"G", 0},
        {"GET / HTTP/1.1\r", 0},
        {GET, 0},
        {GET "\r", 0},
        {GET "Content-Length: 1", 0},
        {"\x16\x03\x01", 400}, /* TLS: not a byte more is waited for */
        {" GET / HTTP/1.1\r\n\r\n", 400},
        {"GET /\r\n", 400},
        {"GET / HTTP/1.1 \r\n", 400},
        {"GET  / HTTP/1.1\r\n", 400},
        {"GET / /x HTTP/1.1\r\n", 400},
        {"GET / HTTP/1.1\n", 400},
        {"GET / HTTP/2.0\r\n", 505},
        {"GET / HTTP/9.9\r\n", 505},
        {GET "nocolon\r\n", 400},
        {GET "Name : x\r\n", 400},
        {GET ": x\r\n", 400},
        {GET " folded\r\n", 400},
        {GET "Bare: a\rb\r\n", 400},
        {GET "Zero: a\x01\r\n", 400},
        {GET "Content-Length: abc\r\n", 400},
        {GET "Content-Length: -1\r\n", 400},
        {GET "content-LENGTH: 1 2\r\n", 400},
        {GET "Content-Length:\r\n", 400},
        {GET "Content-Length: 99999999999999999999999\r\n", 400},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *why = "";
        unsigned got = net_http_head(cases[i].text, strlen(cases[i].text), &why);
        if (got != cases[i].status)
            fail_msg("case %zu: %u (%s), not %u", i, got, why, cases[i].status);
        if (got >= 400)
            assert_true(why[0] != 0 && strpbrk(why, "\"\\") == NULL);
    }
}

static void test_heads_of_any_piece_and_size(void **state)
{
    (void)state;
    static char big[NET_HEAD_BYTES_MAX + 100];
    const char *why, whole[] = GET "A: b\r\nContent-Length: 3\r\n\r\n";
    for (size_t n = 0; n < sizeof whole - 1; n++) /* every beginning of a good head is merely not whole yet */
        assert_int_equal(net_http_head(whole, n, &why), 0);
    memset(big, 'a', sizeof big);
    memcpy(big, "GET /", 5);
    assert_int_equal(net_http_head(big, NET_HEAD_BYTES_MAX - 1, &why), 0);
    assert_int_equal(net_http_head(big, NET_HEAD_BYTES_MAX, &why), 414);
    memcpy(big, GET "X: ", strlen(GET "X: "));
    assert_int_equal(net_http_head(big, NET_HEAD_BYTES_MAX, &why), 431);
    memcpy(big + NET_HEAD_BYTES_MAX - 5, "\r\n\r\n", 4);
    assert_int_equal(net_http_head(big, NET_HEAD_BYTES_MAX, &why), 200);
    size_t at = strlen(GET);
    for (int i = 0; i < NET_HEAD_LINES_MAX; i++, at += 6)
        memcpy(big + at, "X: y\r\n", 6);
    assert_int_equal(net_http_head(big, at, &why), 431);
}

struct behind {
    _Atomic int places, taken;
    int fd[2048];
};

static bool has_place(void *user)
{
    struct behind *b = user;
    return b->taken < b->places;
}

static void take(void *user, int fd, const struct sockaddr *addr, uint32_t addr_bytes)
{
    struct behind *b = user;
    assert_int_equal(addr->sa_family, AF_INET);
    assert_int_equal(addr_bytes, sizeof(struct sockaddr_in));
    b->fd[b->taken] = fd;
    b->taken++;
}

static struct behind behind;
static uint16_t port;

static struct net_gate *gate_new(uint64_t head_us, int places)
{
    struct net_gate_config c = {.head_us = head_us, .user = &behind, .has_place = has_place, .take = take};
    struct net_gate *g;
    struct kvs_error err;
    char url[64];
    memset(&behind, 0, sizeof behind);
    behind.places = places;
    assert_int_equal(net_listen_socket("127.0.0.1:0", &c.listen_fd, url, sizeof url, &err), KVS_OK);
    port = (uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10);
    assert_int_equal(net_gate_start(&c, &g), KVS_OK);
    return g;
}

static int guest(const char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
    return fd;
}

/* All that comes until the end, or until ms have passed. */
static size_t hear(int fd, char *out, size_t cap, int ms)
{
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (n + 1 < cap && poll(&p, 1, ms) > 0) {
        ssize_t got = recv(fd, out + n, cap - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    out[n] = '\0';
    return n;
}

static void wait_taken(int n)
{
    for (int i = 0; behind.taken < n; i++) {
        assert_true(i < 30000);
        kvs_sleep_us(1000);
    }
}

static void test_whole_heads_pass_unread(void **state)
{
    (void)state;
    struct net_gate *g = gate_new(0, 100);
    char text[256];
    int fd = guest(GET);
    kvs_sleep_us(50000);
    assert_int_equal(behind.taken, 0);
    assert_int_equal(send(fd, "\r\nand more", 10, 0), 10);
    wait_taken(1);
    size_t n = strlen(GET "\r\nand more");
    for (int i = 0; recv(behind.fd[0], text, sizeof text, MSG_PEEK | MSG_DONTWAIT) < (ssize_t)n; i++) {
        assert_true(i < 30000);
        kvs_sleep_us(1000);
    }
    assert_int_equal(recv(behind.fd[0], text, sizeof text, 0), n);
    assert_memory_equal(text, GET "\r\nand more", n);
    close(fd);
    close(behind.fd[0]);
    net_gate_stop(g);
}

static void test_what_is_no_request_is_told_so_once(void **state)
{
    (void)state;
    char text[2048];
    static const struct {
        const char *text, *status;
    } bad[] = {{GET "Content-Length: abc\r\n\r\nxyz", "HTTP/1.1 400 Bad Request\r\n"},
               {"nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"},
               {"GET / HTTP/3.0\r\n\r\n", "HTTP/1.1 505 "},
               {GET "X:", "HTTP/1.1 408 "}}; /* and then nothing */
    struct net_gate_counters n;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        bool late = i + 1 == sizeof(bad) / sizeof(*bad); /* the others have all the time of the world */
        struct net_gate *g = gate_new(late ? 200000 : 60000000, 1);
        int fd = guest(bad[i].text);
        assert_true(hear(fd, text, sizeof text, 30000) > 0);
        assert_memory_equal(text, bad[i].status, strlen(bad[i].status));
        assert_null(strstr(text + 8, "\nHTTP/1.1 ")); /* one head */
        assert_non_null(strstr(text, "\r\nContent-Type: application/json\r\n"));
        assert_non_null(strstr(text, "\r\nConnection: close\r\n"));
        assert_non_null(strstr(text, "\r\n\r\n{\"error\":{\"message\":\""));
        close(fd);
        net_gate_counters(g, &n);
        assert_int_equal(n.refused, !late);
        assert_int_equal(n.late, late);
        net_gate_stop(g);
    }
    struct net_gate *g = gate_new(60000000, 1);
    int first = guest(GET "\r\n");
    wait_taken(1);
    int second = guest(GET "\r\n");
    assert_true(hear(second, text, sizeof text, 30000) > 0);
    assert_memory_equal(text, "HTTP/1.1 503 ", 13);
    assert_non_null(strstr(text, "Retry-After: "));
    net_gate_counters(g, &n);
    assert_int_equal(n.passed, 1);
    assert_int_equal(n.refused + n.late, 0);
    assert_int_equal(n.full, 1);
    close(first);
    close(second);
    close(behind.fd[0]);
    net_gate_stop(g);
}

/* A byte now and then does not lengthen a guest's stay. */
static void test_trickling_is_late_too(void **state)
{
    (void)state;
    struct net_gate *g = gate_new(500000, 1);
    char text[2048] = "";
    uint64_t start = kvs_now_us();
    int fd = guest("GET /");
    for (int i = 0; i < 200 && text[0] == '\0'; i++) {
        (void)!send(fd, "a", 1, MSG_NOSIGNAL);
        hear(fd, text, sizeof text, 50);
    }
    assert_memory_equal(text, "HTTP/1.1 408 ", 13);
    printf("late after %.2f s of 0.5\n", (double)(kvs_now_us() - start) / 1e6);
    close(fd);
    net_gate_stop(g);
}

/* More half heads than may wait: the oldest make room, and an honest request passes soon. */
static void test_a_crowd_of_half_heads(void **state)
{
    (void)state;
    enum { CROWD = NET_GATE_WAITING_MAX + 200 };
    static int fd[CROWD];
    struct net_gate *g = gate_new(60000000, 2);
    struct net_gate_counters n;
    for (int i = 0; i < CROWD; i++)
        fd[i] = guest("GET / HTTP/1.1\r\nHo");
    uint64_t start = kvs_now_us();
    int honest = guest(GET "\r\n");
    wait_taken(1);
    printf("passed after %.3f s beside %d half heads\n", (double)(kvs_now_us() - start) / 1e6, CROWD);
    net_gate_counters(g, &n);
    assert_int_equal(n.passed, 1);
    assert_true(n.pushed_out >= 200); /* those before it in the kernel's queue came in first */
    assert_true(n.waiting <= NET_GATE_WAITING_MAX);
    for (int i = 0; i < CROWD; i++)
        close(fd[i]);
    for (int i = 0; n.waiting > 0; i++) { /* those that leave are forgotten */
        assert_true(i < 10000);
        kvs_sleep_us(1000);
        net_gate_counters(g, &n);
    }
    close(honest);
    close(behind.fd[0]);
    net_gate_stop(g);
}

int main(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 4096) {
        files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_heads_of_any_piece_and_size),
        cmocka_unit_test(test_whole_heads_pass_unread),
        cmocka_unit_test(test_what_is_no_request_is_told_so_once),
        cmocka_unit_test(test_trickling_is_late_too),
        cmocka_unit_test(test_a_crowd_of_half_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
