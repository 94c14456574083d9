/* advertise_test.c - which URL goes into the card.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/advertise.h"
#include <stdio.h>
#include <string.h>

static void test_table(void **state)
{
    (void)state;
    static const struct {
        const char *host, *url, *want; /* want NULL: refused */
    } t[] = {
        {"", "tcp://127.0.0.1:5", "tcp://127.0.0.1:5"},
        {"", "ipc:///run/x.sock", "ipc:///run/x.sock"},
        {"", "tcp://0.0.0.0:5", NULL},
        {"", "tcp://[::]:5", NULL},
        {"", "http://0.0.0.0:80", NULL},
        {"h-1.example", "tcp://0.0.0.0:5", "tcp://h-1.example:5"},
        {"10.0.0.7", "http://[::]:80", "http://10.0.0.7:80"},
        {"fe80::1", "tcp://[::]:5", "tcp://[fe80::1]:5"},
        {"h", "ipc:///run/x.sock", "ipc:///run/x.sock"},
        {"h", "tcp://127.0.0.1:5", "tcp://h:5"},
        {"h/x", "tcp://127.0.0.1:5", NULL},
        {"a b", "ipc:///x", NULL},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        char url[64];
        struct kvs_error err = {0};
        (void)snprintf(url, sizeof url, "%s", t[i].url);
        kvs_status s = net_advertise(t[i].host, url, sizeof url, &err);
        if (t[i].want == NULL) {
            assert_int_equal(s, KVS_SELF_CONFIG);
            assert_non_null(strstr(err.text, "--advertise"));
        } else {
            assert_int_equal(s, KVS_OK);
            assert_string_equal(url, t[i].want);
        }
    }
    char small[20] = "tcp://0.0.0.0:5";
    struct kvs_error err = {0};
    assert_int_equal(net_advertise("a-host-with-a-long-name", small, sizeof small, &err), KVS_SELF_CONFIG);
    assert_string_equal(small, "tcp://0.0.0.0:5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
