/* listen_test.c - HOST:PORT texts, and a port that is taken.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/listen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void test_good_texts_are_split(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        uint16_t port;
    } good[] = {{"127.0.0.1:8080", "127.0.0.1", 8080}, {"localhost:0", "localhost", 0}, {"[::1]:65535", "::1", 65535}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char host[64];
        uint16_t port = 1;
        assert_int_equal(cli_listen_split(good[i].text, host, sizeof host, &port, NULL), KVS_OK);
        assert_string_equal(host, good[i].host);
        assert_int_equal(port, good[i].port);
    }
}

static void test_bad_texts_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       "8080",    ":8080", "host:",   "host:x",          "host:65536",
                                      "::1:80", "[::1:80", "[]:80", "host:-1", "host:99999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char host[64];
        uint16_t port;
        struct kvs_error err = {0};
        assert_int_equal(cli_listen_split(bad[i], host, sizeof host, &port, &err), KVS_SELF_CONFIG);
        assert_non_null(strstr(err.text, "--listen"));
    }
}

static void test_port_in_use_is_said(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    union {
        struct sockaddr_in *in;
        struct sockaddr *any;
    } p = {.in = &at};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, p.any, len), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, p.any, &len), 0);
    char text[64], out[64];
    struct kvs_error err = {0};
    (void)snprintf(text, sizeof text, "127.0.0.1:%u", ntohs(at.sin_port));
    assert_int_equal(cli_listen_check(text, out, sizeof out, &err), KVS_SELF_CONFIG);
    assert_non_null(strstr(err.text, "in use"));
    close(fd);
}

/* Not given to anybody as a free one; who is told to listens there, again and again; and it is in use then. */
static void test_a_held_port(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    union {
        struct sockaddr_in *in;
        struct sockaddr *any;
    } p = {.in = &at};
    char host[64], out[64], again[64];
    uint16_t port;
    int held, one = 1, second;
    struct kvs_error err = {0};
    assert_int_equal(cli_listen_hold("127.0.0.1:0", out, sizeof out, &held, &err), KVS_OK);
    assert_int_equal(cli_listen_split(out, host, sizeof host, &port, &err), KVS_OK);
    at.sin_port = htons(port);
    for (int i = 0; i < 3; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
        assert_int_equal(bind(fd, p.any, sizeof at), 0);
        assert_int_equal(listen(fd, 1), 0);
        assert_int_equal(cli_listen_hold(out, again, sizeof again, &second, &err), KVS_SELF_CONFIG);
        close(fd);
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* who does not share */
    assert_int_not_equal(bind(fd, p.any, sizeof at), 0);
    close(fd);
    close(held);
}

static void test_port_zero_becomes_a_free_one(void **state)
{
    (void)state;
    char out[64];
    assert_int_equal(cli_listen_check("127.0.0.1:0", out, sizeof out, NULL), KVS_OK);
    assert_true(!strncmp(out, "127.0.0.1:", 10) && strcmp(out + 10, "0") != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_texts_are_split),
        cmocka_unit_test(test_bad_texts_are_refused),
        cmocka_unit_test(test_port_in_use_is_said),
        cmocka_unit_test(test_a_held_port),
        cmocka_unit_test(test_port_zero_becomes_a_free_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
