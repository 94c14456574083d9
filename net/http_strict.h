/* http_strict.h - what libmicrohttpd lets through and an HTTP server must not: refused on the first call of the
 * access handler.
 * (libmicrohttpd 0.9.75 takes two Content-Length headers, Content-Length beside Transfer-Encoding, and HTTP/1.1
 * without Host, "Content-Length : 5" as some other header, and Transfer-Encoding in HTTP/1.0.)
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_HTTP_STRICT_H
#define KVS_NET_HTTP_STRICT_H

#include "base/error.h"

struct MHD_Connection;

/* KVS_OK, or KVS_REQ_INVALID (400) / KVS_REQ_UNSUPPORTED (501, a transfer coding other than chunked) /
 * KVS_REQ_TOO_LARGE (413) with the cause; the answer must then carry "Connection: close", since where the request
 * ends is not known. body_max bounds Content-Length; length_out (may be NULL): its value, 0 when absent. */
KVS_MUST_CHECK kvs_status net_http_strict(struct MHD_Connection *connection, const char *version, uint64_t body_max,
                                          uint64_t *length_out, struct kvs_error *err);

#endif
