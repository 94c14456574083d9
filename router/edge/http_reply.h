/* http_reply.h - answers of the HTTP front: fixed ones, errors, and those that the loop makes. Private to http.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_HTTP_REPLY_H
#define KVS_ROUTER_EDGE_HTTP_REPLY_H

#include "router/edge/dispatch.h"
#include "router/edge/exchange.h"
#include "router/edge/fault.h"

#include <microhttpd.h>

/* One request on a server thread: the first call of the handler makes it, the completed callback ends it. */
struct http_req {
    struct rtr_http *http;
    struct rtr_dispatch *dispatch;
    struct kvs_buf body;
    uint64_t begun_us;      /* when its head was there: the body has body_us from then */
    size_t dropped;         /* bytes of body that were not kept, and why */
    kvs_status dropped_why;
    bool fatal;             /* answer, then close: the end of this request is not known */
    bool whole;             /* head and body are there: it is being answered */
    struct rtr_exchange *x; /* submitted: the loop makes the answer */
    uint64_t id;
    int fd;                 /* watched for departure; -1: not */
    char request_id[MSG_ID_MAX * 2];
};

struct http_reply {
    unsigned status;
    const char *type;  /* content type */
    const char *allow; /* 405 */
    const struct rtr_head *head; /* more headers; may be NULL */
    bool close;
};

/* From seven eighths of all connections on, answers close theirs: idle ones, a stranger's or a large pool's, can never hold all places. */
bool http_crowded(const struct rtr_http *h);

/* bytes: malloc'ed, taken over (also on failure); NULL with n = 0 for an empty body. */
enum MHD_Result http_reply_bytes(struct MHD_Connection *c, const struct http_req *q, const struct http_reply *r, uint8_t *bytes, size_t n);
enum MHD_Result http_reply_fault(struct MHD_Connection *c, const struct http_req *q, const struct rtr_fault *f, const char *allow, bool close);
/* The stream of q->x; its head is there. */
enum MHD_Result http_reply_stream(struct MHD_Connection *c, struct http_req *q, const struct rtr_head *head);

#endif
