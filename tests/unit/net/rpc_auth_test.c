/* rpc_auth_test.c - who may talk on control streams: with a key on either side only who gives the same comes up, and each side checks; without
 * one nothing but ipc and loopback is listened on.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "net/advertise.h"
#include "rpc_harness.h"

#define KEY "0123456789abcdef"
#define OTHER "0123456789abcdeF"

static struct endpoint a, b;

/* a dials b. */
static void start(const char *key_a, const char *key_b, char *url, size_t cap)
{
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    (void)snprintf(a.self.auth, sizeof a.self.auth, "%s", key_a);
    (void)snprintf(b.self.auth, sizeof b.self.auth, "%s", key_b);
    endpoint_start(&a, "a", MSG_ROLE_DECODE);
    endpoint_start(&b, "b", MSG_ROLE_ROUTER);
    listen_on(&b, "tcp://127.0.0.1:0", url, cap);
    assert_int_equal(dial(&a, url), KVS_OK);
}

static void stop(void)
{
    endpoint_stop(&a);
    endpoint_stop(&b);
}

static void test_the_same_key_comes_up(void **state)
{
    (void)state;
    char url[256];
    start(KEY, KEY, url, sizeof url);
    (void)expect(&a, EV_UP, 5000);
    (void)expect(&b, EV_UP, 5000);
    stop();
}

static void test_another_key_or_none_does_not(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{OTHER, KEY}, {"", KEY}, {KEY, ""}, {KEY, OTHER}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char url[256];
        start(pairs[i][0], pairs[i][1], url, sizeof url);
        /* The listener refuses; one that has no key itself is refused by the dialer, who has one. */
        if (pairs[i][1][0]) {
            struct event failed = expect(&a, EV_DIAL_FAILED, 5000);
            assert_int_equal(failed.status, KVS_PEER_REFUSED);
            assert_non_null(strstr(failed.text, "--auth-file"));
            assert_null(strstr(failed.text, "0123456789")); /* nobody's key is told */
            assert_false(happened(&b, EV_UP, 0));
        } else {
            (void)expect(&b, EV_DOWN, 5000);
        }
        assert_false(happened(&a, EV_UP, 0));
        stop();
    }
}

static kvs_status listened;
static char refusal[256];

static void try_listen(void *arg)
{
    char url[256];
    struct kvs_error err = {0};
    listened = net_rpc_listen(a.rpc, arg, url, sizeof url, &err);
    (void)snprintf(refusal, sizeof refusal, "%s", err.text);
}

static void test_beyond_this_machine_only_with_a_key(void **state)
{
    (void)state;
    static char every[] = "tcp://0.0.0.0:0", loopback[] = "tcp://127.0.0.1:0";
    for (int key = 0; key < 2; key++) {
        memset(&a, 0, sizeof a);
        (void)snprintf(a.self.auth, sizeof a.self.auth, "%s", key ? KEY : "");
        endpoint_start(&a, "a", MSG_ROLE_DECODE);
        on_loop(&a, try_listen, loopback);
        assert_int_equal(listened, KVS_OK);
        on_loop(&a, try_listen, every);
        assert_int_equal(listened, key ? KVS_OK : KVS_SELF_CONFIG);
        if (!key)
            assert_non_null(strstr(refusal, "--auth-file"));
        endpoint_stop(&a);
    }
}

static void test_what_is_private(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        bool want;
    } t[] = {
        {"ipc:///run/x.sock", true},       {"tcp://127.0.0.1:0", true},     {"tcp://127.3.2.1:80", true},  {"tcp://localhost:80", true},
        {"tcp://[::1]:80", true},          {"tcp://0.0.0.0:80", false},     {"tcp://[::]:80", false},      {"tcp://*:80", false},
        {"tcp://10.0.0.1:80", false},      {"tcp://128.0.0.1:80", false},   {"tcp://localhost.x:1", false}, {"tcp://127.0.0.1.x:1", false},
        {"tcp://127.0.0.1@10.0.0.1:1", false}, {"tcp://", false},           {"tls+tcp://127.0.0.1:1", false}, {"", false},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
        if (net_url_is_private(t[i].url) != t[i].want)
            fail_msg("%s", t[i].url);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_key_comes_up),
        cmocka_unit_test(test_another_key_or_none_does_not),
        cmocka_unit_test(test_beyond_this_machine_only_with_a_key),
        cmocka_unit_test(test_what_is_private),
    };
    test_dir_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_dir_remove();
    return failed;
}
