/* error.h - a status with one line of text, filled where the fault is first known, and the assert that stays on.
 * The text names cause and remedy and is safe to show to a client (no addresses, no paths of ours unless the user gave them).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_ERROR_H
#define KVS_BASE_ERROR_H

#include "base/status.h"
#include <stdarg.h>

struct kvs_error {
    kvs_status code;
    char text[256]; /* one line, valid UTF-8, NUL-terminated */
};

/* Fills *err (when not NULL) and returns code, so that callers write: return kvs_fail(err, KVS_..., "..."); */
kvs_status kvs_fail(struct kvs_error *err, kvs_status code, const char *fmt, ...) KVS_PRINTF(3, 4);
kvs_status kvs_vfail(struct kvs_error *err, kvs_status code, const char *fmt, va_list args) KVS_PRINTF(3, 0);

/* States what our own code guarantees; on in release. Bytes from outside get a status, never an assert. */
#define KVS_ASSERT(cond) ((cond) ? (void)0 : kvs_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void kvs_assert_failed(const char *cond, const char *file, int line);

/* Bounded formatting for cores, which may not include stdio.h. Always NUL-terminates; returns the length written (< cap). */
size_t kvs_format(char *out, size_t cap, const char *fmt, ...) KVS_PRINTF(3, 4);
size_t kvs_vformat(char *out, size_t cap, const char *fmt, va_list args) KVS_PRINTF(3, 0);

#endif
