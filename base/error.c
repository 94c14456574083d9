/* error.c - error text, bounded formatting and the failing assert.
 * One of the two files below the edges that may use stdio (vsnprintf; base/buf.c is the other): cores format through
 * kvs_format and kvs_fail, so that "no stdio.h in cores" can be checked by machine.
 * Error text may quote bytes of a client or a file, so it is cleaned on the way in: one line, valid UTF-8, cut at a whole
 * character. What has to print it later (log, JSON, HTTP) need not ask again.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include "base/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t kvs_vformat(char *out, size_t cap, const char *fmt, va_list args)
{
    if (cap == 0) {
        return 0;
    }
    int n = vsnprintf(out, cap, fmt, args);
    if (n < 0) {
        out[0] = '\0';
        return 0;
    }
    return (size_t)n < cap ? (size_t)n : cap - 1;
}

size_t kvs_format(char *out, size_t cap, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    size_t n = kvs_vformat(out, cap, fmt, args);
    va_end(args);
    return n;
}

kvs_status kvs_vfail(struct kvs_error *err, kvs_status code, const char *fmt, va_list args)
{
    KVS_ASSERT(code != KVS_OK);
    if (err == NULL) {
        return code;
    }
    err->code = code;
    size_t n = kvs_vformat(err->text, sizeof err->text, fmt, args);
    if (n == sizeof err->text - 1) {
        n = kvs_utf8_whole(err->text, n);
    }
    err->text[n] = '\0';
    kvs_utf8_clean(err->text, n);
    return code;
}

kvs_status kvs_fail(struct kvs_error *err, kvs_status code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    kvs_vfail(err, code, fmt, args);
    va_end(args);
    return code;
}

_Noreturn void kvs_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "level=error msg=\"assertion failed\" at=%s:%d condition=\"%s\"\n", file, line, cond);
    fflush(stderr);
    abort();
}
