/* log.c - one line per event on stderr, logfmt.
 *   time=2026-11-29T23:10:00.123Z level=info process=router msg="worker joined" worker=decode-0 pages_free=64
 * A line is at most 4096 bytes (PIPE_BUF: pipes take it whole) and goes out with one write(2), so lines of several threads
 * and of several processes on one pipe do not mix. A sink that does not take it at once (poll says so) loses the line instead
 * of stopping the daemon; the number of lost lines is reported with the next line that gets through.
 * Control characters and bytes that are not UTF-8 are replaced: what a client sends cannot forge a line.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sys/log.h"

#include "base/utf8.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096 };

static char process[32] = "kvasir";
static _Atomic int level_now = KVS_LOG_INFO;
static _Atomic uint64_t dropped_total;
static uint64_t dropped_told; /* under the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

void kvs_log_init(const char *process_name, kvs_log_level level)
{
    size_t n = kvs_format(process, sizeof process, "%s", process_name);
    kvs_utf8_clean(process, n);
    atomic_store(&level_now, (int)level);
}

bool kvs_log_enabled(kvs_log_level level)
{
    return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

bool kvs_log_level_parse(const char *text, kvs_log_level *out)
{
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strcasecmp(text, level_names[i]) == 0) {
            *out = (kvs_log_level)i;
            return true;
        }
    }
    return false;
}

uint64_t kvs_log_dropped(void)
{
    return atomic_load_explicit(&dropped_total, memory_order_relaxed);
}

static size_t line_start(char *line, size_t cap, kvs_log_level level, const char *words)
{
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    return kvs_format(line, cap, "time=%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ level=%s process=%s msg=\"%s\"",
                      tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                      ts.tv_nsec / 1000000, level_names[level], process, words);
}

/* False: the sink would have blocked or is gone. */
static bool put_line(const char *line, size_t n)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&p, 1, 0) <= 0 || (p.revents & POLLOUT) == 0) {
        return false;
    }
    ssize_t put;
    do {
        put = write(STDERR_FILENO, line, n);
    } while (put < 0 && errno == EINTR);
    return put == (ssize_t)n;
}

static void finish_and_put(char *line, size_t n)
{
    int saved = errno;
    kvs_utf8_clean(line, n);
    line[n] = '\n';
    pthread_mutex_lock(&lock);
    uint64_t dropped = atomic_load_explicit(&dropped_total, memory_order_relaxed);
    bool sink_takes = true;
    if (dropped != dropped_told) {
        char note[256];
        size_t len = line_start(note, sizeof note - 64, KVS_LOG_WARN, "log lines dropped");
        len += kvs_format(note + len, sizeof note - len, " lines=%llu\n", (unsigned long long)(dropped - dropped_told));
        sink_takes = put_line(note, len);
        dropped_told = sink_takes ? dropped : dropped_told;
    }
    if (!sink_takes || !put_line(line, n + 1)) {
        atomic_fetch_add_explicit(&dropped_total, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
}

void kvs_log(kvs_log_level level, const char *words, const char *fmt, ...)
{
    char line[LINE_MAX_BYTES];
    size_t cap = sizeof line - 1; /* room for the line end */
    size_t n = line_start(line, cap, level, words);
    va_list args;
    va_start(args, fmt);
    if (fmt[0] != '\0' && n + 2 < cap) {
        size_t fields = kvs_vformat(line + n + 1, cap - n - 1, fmt, args);
        line[n] = ' ';
        n += fields > 0 ? fields + 1 : 0;
    }
    va_end(args);
    finish_and_put(line, n);
}
