/* sse.h - takes a server-sent event stream apart: bytes in any pieces, whole "data:" payloads out. Bounded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_SSE_H
#define KVS_CLI_SSE_H

#include "base/buf.h"

struct cli_sse {
    struct kvs_buf line, data;
    bool data_seen;
    bool cr; /* the last byte was a carriage return */
    /* One event's data; false stops the stream.. */
    bool (*on_data)(void *user, const char *data, size_t n);
    void *user;
};
void cli_sse_init(struct cli_sse *p, bool (*on_data)(void *, const char *, size_t), void *user);
void cli_sse_fini(struct cli_sse *p);
/* KVS_REQ_CANCELLED when on_data said stop; KVS_BUSY_FULL when one event passes its bound of 1 MiB. */
KVS_MUST_CHECK kvs_status cli_sse_feed(struct cli_sse *p, const char *bytes, size_t n);

#endif
