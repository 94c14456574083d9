/* log.h - logfmt lines on stderr: time, level, fixed lower-case words, fields.
 *   KVS_INFO("worker joined", "worker=%s pages_free=%u", id, n);
 * Levels are volume: warn/error = someone looks, info = per object, debug = per request, trace = per page.
 * A line whose fields are empty is written KVS_INFO("ready", "").
 * Any thread. Only edge/ and main.c log; libraries return errors. Lines are written with one write(2); a blocked sink drops and counts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_LOG_H
#define KVS_SYS_LOG_H

#include "base/error.h"

typedef enum kvs_log_level { KVS_LOG_ERROR, KVS_LOG_WARN, KVS_LOG_INFO, KVS_LOG_DEBUG, KVS_LOG_TRACE } kvs_log_level;

void kvs_log_init(const char *process_name, kvs_log_level level); /* before threads start */
bool kvs_log_enabled(kvs_log_level level);
bool kvs_log_level_parse(const char *text, kvs_log_level *out); /* "error".."trace" */
void kvs_log(kvs_log_level level, const char *words, const char *fmt, ...) KVS_PRINTF(3, 4);
uint64_t kvs_log_dropped(void); /* lines lost to a blocked sink so far */

#define KVS_LOG_AT(level, words, ...) (kvs_log_enabled(level) ? kvs_log(level, words, __VA_ARGS__) : (void)0)
#define KVS_ERROR(words, ...) KVS_LOG_AT(KVS_LOG_ERROR, words, __VA_ARGS__)
#define KVS_WARN(words, ...) KVS_LOG_AT(KVS_LOG_WARN, words, __VA_ARGS__)
#define KVS_INFO(words, ...) KVS_LOG_AT(KVS_LOG_INFO, words, __VA_ARGS__)
#define KVS_DEBUG(words, ...) KVS_LOG_AT(KVS_LOG_DEBUG, words, __VA_ARGS__)
#define KVS_TRACE(words, ...) KVS_LOG_AT(KVS_LOG_TRACE, words, __VA_ARGS__)

#endif
