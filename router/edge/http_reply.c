/* http_reply.c - see http_reply.h. Every error is a JSON error object; every answer carries x-request-id.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/http_reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define STREAM_BLOCK 32768

static bool add(struct MHD_Response *r, const char *name, const char *value)
{
    return MHD_add_response_header(r, name, value) == MHD_YES;
}

static bool add_headers(struct MHD_Response *m, const struct http_req *q, const struct http_reply *r)
{
    char text[16];
    bool ok = add(m, "Content-Type", r->type) && add(m, "x-request-id", q->request_id);
    if (r->allow)
        ok = ok && add(m, "Allow", r->allow);
    if (r->close || http_crowded(q->http))
        ok = ok && add(m, "Connection", "close");
    if (!r->head)
        return ok;
    if (r->head->placement[0])
        ok = ok && add(m, "x-kvasir-placement", r->head->placement);
    if (r->head->final)
        ok = ok && add(m, "x-should-retry", "false");
    if (r->head->stream)
        ok = ok && add(m, "Cache-Control", "no-cache") && add(m, "X-Accel-Buffering", "no");
    if (r->head->retry_after_s) {
        snprintf(text, sizeof(text), "%u", r->head->retry_after_s);
        ok = ok && add(m, "Retry-After", text);
    }
    return ok;
}

static enum MHD_Result queue(struct MHD_Connection *c, const struct http_req *q, const struct http_reply *r, struct MHD_Response *m)
{
    if (!m)
        return MHD_NO;
    enum MHD_Result ok = add_headers(m, q, r) ? MHD_queue_response(c, r->status, m) : MHD_NO;
    MHD_destroy_response(m);
    return ok;
}

enum MHD_Result http_reply_bytes(struct MHD_Connection *c, const struct http_req *q, const struct http_reply *r, uint8_t *bytes, size_t n)
{
    struct MHD_Response *m = bytes ? MHD_create_response_from_buffer(n, bytes, MHD_RESPMEM_MUST_FREE)
                                   : MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!m)
        free(bytes);
    return queue(c, q, r, m);
}

enum MHD_Result http_reply_fault(struct MHD_Connection *c, const struct http_req *q, const struct rtr_fault *f, const char *allow, bool close)
{
    struct kvs_buf b;
    struct rtr_head head = {.final = rtr_fault_final(f->status), .retry_after_s = f->retry_after_s};
    kvs_buf_init(&b, 65536);
    if (rtr_fault_write(f, &b) != KVS_OK) {
        kvs_buf_fini(&b);
        return MHD_NO;
    }
    size_t n = 0;
    uint8_t *bytes = kvs_buf_take(&b, &n);
    struct http_reply r = {.status = rtr_fault_http(f->status), .type = "application/json", .allow = allow, .head = &head, .close = close};
    return http_reply_bytes(c, q, &r, bytes, n);
}

struct stream {
    struct rtr_exchange *x;
    struct rtr_dispatch *dispatch;
    uint64_t id;
};

static ssize_t stream_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct stream *s = cls;
    size_t n = 0;
    bool low = false;
    (void)pos;
    switch (rtr_exchange_read(s->x, buf, max, &n, &low)) {
    case RTR_READ_BYTES:
        if (low)
            rtr_dispatch_reads_again(s->dispatch, s->id);
        return (ssize_t)n;
    case RTR_READ_SUSPENDED: return 0;
    case RTR_READ_END: return MHD_CONTENT_READER_END_OF_STREAM;
    case RTR_READ_DROPPED: break;
    }
    return MHD_CONTENT_READER_END_WITH_ERROR;
}

static void stream_free(void *cls)
{
    struct stream *s = cls;
    rtr_exchange_release(s->x);
    free(s);
}

enum MHD_Result http_reply_stream(struct MHD_Connection *c, struct http_req *q, const struct rtr_head *head)
{
    struct stream *s = malloc(sizeof(*s));
    if (!s)
        return MHD_NO;
    *s = (struct stream){q->x, q->dispatch, q->id};
    rtr_exchange_hold(q->x);
    struct MHD_Response *m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_read, s, stream_free);
    if (!m) {
        stream_free(s);
        return MHD_NO;
    }
    struct http_reply r = {.status = head->http, .type = "text/event-stream; charset=utf-8", .head = head};
    return queue(c, q, &r, m);
}
