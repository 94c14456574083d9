/* secret_test.c - the shared key: where it is read, what is no key, and that comparing takes the whole of it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sys/secret.h"

static char path[] = "/tmp/kvasir-secret-XXXXXX";

static void put(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void test_from_file_and_environment(void **state)
{
    (void)state;
    char key[KVS_SECRET_MAX], longest[KVS_SECRET_MAX + 1];
    struct kvs_error err = {0};
    assert_int_equal(unsetenv("KVASIR_AUTH"), 0);
    assert_int_equal(kvs_secret_load("", key, &err), KVS_OK);
    assert_string_equal(key, "");
    put("0123456789abcdef \r\n");
    assert_int_equal(kvs_secret_load(path, key, &err), KVS_OK);
    assert_string_equal(key, "0123456789abcdef");
    assert_int_equal(setenv("KVASIR_AUTH", "from-the-environment", 1), 0);
    assert_int_equal(kvs_secret_load(NULL, key, &err), KVS_OK);
    assert_string_equal(key, "from-the-environment");
    assert_int_equal(kvs_secret_load(path, key, &err), KVS_OK); /* the file is the nearer one */
    assert_string_equal(key, "0123456789abcdef");
    memset(longest, 'k', sizeof longest);
    longest[KVS_SECRET_MAX - 1] = 0;
    put(longest);
    assert_int_equal(kvs_secret_load(path, key, &err), KVS_OK);
    assert_int_equal(strlen(key), KVS_SECRET_MAX - 1);
}

static void test_what_is_no_key(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "\n\n", "0123456789abcde", "0123456789 abcdef", "0123456789abcde\xc3\xa9", "0123456789\tabcdef"};
    char key[KVS_SECRET_MAX], over[KVS_SECRET_MAX + 2];
    struct kvs_error err = {0};
    assert_int_equal(unsetenv("KVASIR_AUTH"), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put(bad[i]);
        assert_int_equal(kvs_secret_load(path, key, &err), KVS_SELF_CONFIG);
        assert_string_equal(key, "");
        assert_non_null(strstr(err.text, path));
    }
    memset(over, 'k', sizeof over);
    over[KVS_SECRET_MAX] = 0;
    put(over);
    assert_int_equal(kvs_secret_load(path, key, &err), KVS_SELF_CONFIG);
    assert_int_equal(kvs_secret_load("/no/such/file", key, &err), KVS_SELF_CONFIG);
    assert_non_null(strstr(err.text, "/no/such/file"));
    assert_int_equal(setenv("KVASIR_AUTH", "short", 1), 0);
    assert_int_equal(kvs_secret_load("", key, &err), KVS_SELF_CONFIG);
    assert_null(strstr(err.text, "short")); /* a key, even a bad one, is not for logs */
}

static void test_equal(void **state)
{
    (void)state;
    assert_true(kvs_secret_equal("0123456789abcdef", "0123456789abcdef"));
    assert_false(kvs_secret_equal("0123456789abcdef", "0123456789abcdeF"));
    assert_false(kvs_secret_equal("x123456789abcdef", "0123456789abcdef"));
    assert_false(kvs_secret_equal("0123456789abcdef", "0123456789abcdef0"));
    assert_false(kvs_secret_equal("0123456789abcdef", ""));
    assert_false(kvs_secret_equal("", ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_file_and_environment),
        cmocka_unit_test(test_what_is_no_key),
        cmocka_unit_test(test_equal),
    };
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    (void)close(fd);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return failed;
}
