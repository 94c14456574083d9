/* log_test.c - the lines that arrive on stderr, which the test replaces by a pipe.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sys/log.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int saved_stderr, pipe_read, pipe_write;

static void pipe_begin(void)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pipe_read = fds[0];
    pipe_write = fds[1];
    assert_int_equal(fcntl(pipe_read, F_SETFL, O_NONBLOCK), 0);
    saved_stderr = dup(2);
    assert_int_equal(dup2(pipe_write, 2), 2);
}

static void pipe_end(void)
{
    assert_int_equal(dup2(saved_stderr, 2), 2);
    close(saved_stderr);
    close(pipe_write);
    close(pipe_read);
}

static size_t drain(char *out, size_t cap)
{
    size_t n = 0;
    ssize_t got;
    while (n < cap - 1 && (got = read(pipe_read, out + n, cap - 1 - n)) > 0) {
        n += (size_t)got;
    }
    out[n] = '\0';
    return n;
}

static void test_line_and_levels(void **state)
{
    (void)state;
    char text[9000];
    kvs_log_init("router", KVS_LOG_INFO);
    assert_true(kvs_log_enabled(KVS_LOG_WARN) && !kvs_log_enabled(KVS_LOG_DEBUG));
    pipe_begin();
    KVS_INFO("worker joined", "worker=%s pages_free=%u", "decode-0", 64u);
    KVS_DEBUG("not shown", "x=%d", 1);
    KVS_ERROR("bare", "");
    drain(text, sizeof text);
    pipe_end();
    assert_int_equal(strncmp(text, "time=20", 7), 0);
    assert_string_equal(text + strlen("time=2026-11-29T23:10:00.123"),
                        strstr(text, "Z level=info process=router msg=\"worker joined\" worker=decode-0 pages_free=64\n"));
    assert_non_null(strstr(text, " level=error process=router msg=\"bare\"\n"));
    assert_null(strstr(text, "not shown"));
}

static void test_fields_cannot_forge_a_line(void **state)
{
    (void)state;
    char text[9000];
    pipe_begin();
    KVS_WARN("odd client", "path=%s", "/x\ntime=0 level=error msg=forged\xFF");
    size_t n = drain(text, sizeof text);
    pipe_end();
    assert_ptr_equal(strchr(text, '\n'), text + n - 1);
    assert_non_null(strstr(text, "/x?time=0 level=error msg=forged?\n"));
}

static void test_long_lines_are_cut(void **state)
{
    (void)state;
    static char big[6000], text[9000];
    memset(big, 'x', sizeof big - 1);
    pipe_begin();
    KVS_WARN("long", "x=%s", big);
    size_t n = drain(text, sizeof text);
    pipe_end();
    assert_in_range(n, 4000, 4096);
    assert_int_equal(text[n - 1], '\n');
}

static void test_a_full_sink_drops_and_counts(void **state)
{
    (void)state;
    static char text[1 << 20];
    uint64_t before = kvs_log_dropped();
    pipe_begin();
    for (int i = 0; i < 2000; i++) { /* a pipe holds 64 KiB; a log that waits would hang here */
        KVS_WARN("filler", "number=%d text=%0100d", i, 0);
    }
    uint64_t dropped = kvs_log_dropped() - before;
    assert_true(dropped > 0 && dropped < 2000);
    drain(text, sizeof text);
    KVS_WARN("after", "");
    drain(text, sizeof text);
    pipe_end();
    char want[64];
    kvs_format(want, sizeof want, "msg=\"log lines dropped\" lines=%llu\n", (unsigned long long)dropped);
    assert_non_null(strstr(text, want));
    assert_non_null(strstr(text, "msg=\"after\"\n"));
    assert_int_equal(kvs_log_dropped() - before, dropped);
}

static void *writer(void *arg)
{
    for (int i = 0; i < 50; i++) {
        KVS_WARN("thread", "id=%s number=%d end=1", (const char *)arg, i);
    }
    return NULL;
}

static void test_lines_of_threads_do_not_mix(void **state)
{
    (void)state;
    static char text[1 << 16];
    pthread_t t[4];
    static char ids[4][2] = {"a", "b", "c", "d"};
    pipe_begin();
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, writer, ids[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(t[i], NULL), 0);
    }
    drain(text, sizeof text);
    pipe_end();
    int lines = 0;
    for (char *line = text; *line != '\0'; lines++) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        assert_int_equal(strncmp(line, "time=", 5), 0);
        assert_int_equal(strncmp(end - 6, " end=1", 6), 0);
        assert_ptr_equal(strstr(line + 1, "time="), end[1] != '\0' ? end + 1 : NULL);
        line = end + 1;
    }
    assert_int_equal(lines, 200);
}

static void test_level_names(void **state)
{
    (void)state;
    kvs_log_level level = KVS_LOG_ERROR;
    assert_true(kvs_log_level_parse("trace", &level));
    assert_int_equal(level, KVS_LOG_TRACE);
    assert_true(kvs_log_level_parse("WARN", &level));
    assert_int_equal(level, KVS_LOG_WARN);
    assert_false(kvs_log_level_parse("loud", &level));
    assert_false(kvs_log_level_parse("", &level));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_and_levels),
        cmocka_unit_test(test_fields_cannot_forge_a_line),
        cmocka_unit_test(test_long_lines_are_cut),
        cmocka_unit_test(test_a_full_sink_drops_and_counts),
        cmocka_unit_test(test_lines_of_threads_do_not_mix),
        cmocka_unit_test(test_level_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
