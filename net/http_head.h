/* http_head.h - judges the bytes of a request's head before libmicrohttpd sees them: it answers what it cannot read with a page of HTML,
 * twice for a bad Content-Length (0.9.75), and without a word for garbage. Pure.
 * Strict: a method, a target and HTTP/1.0 or 1.1 between single spaces; names that are tokens; no folded lines, no bare CR, no control
 * characters; Content-Length is digits. What two readers may see differently beyond that (doubled headers) is http_strict.h's business.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_HTTP_HEAD_H
#define KVS_NET_HTTP_HEAD_H

#include <stddef.h>

#define NET_HEAD_BYTES_MAX 16000 /* fits into the half of 32 KiB that libmicrohttpd reads into at first */
#define NET_HEAD_LINES_MAX 128

/* 0: not whole yet, 200: fine, otherwise the HTTP status of the refusal with its cause in why_out (a constant text). */
unsigned net_http_head(const char *bytes, size_t n, const char **why_out);

#endif
