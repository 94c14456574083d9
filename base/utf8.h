/* utf8.h - strict UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_UTF8_H
#define KVS_BASE_UTF8_H

#include "base/status.h"

/* Decodes one character. Returns its length in bytes (1..4), 0 when the bytes are invalid, -1 when they are a proper but
 * incomplete beginning (more bytes could make it valid). *cp_out only when > 0. */
int kvs_utf8_decode(const uint8_t *p, size_t n, uint32_t *cp_out);
int kvs_utf8_encode(uint32_t cp, uint8_t out[4]); /* length, 0 when cp is no character */
bool kvs_utf8_valid(const void *p, size_t n);
/* Length of the longest prefix that does not end inside a character (an invalid byte counts as complete). */
size_t kvs_utf8_whole(const void *p, size_t n);
/* At bytes that do not decode (0 or -1): how many of them one U+FFFD stands for (1..3), by Unicode's "maximal subpart" rule. */
size_t kvs_utf8_bad_len(const void *p, size_t n);
/* Puts '?' in place of control characters (line ends too) and of bytes that are not UTF-8: safe for one line of log or error. */
void kvs_utf8_clean(char *text, size_t n);

#endif
