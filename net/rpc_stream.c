/* rpc_stream.c - calls: a stream id, who began it, what it may still send, when it is over.
 * Ids count up by two on each side and are never reused, so a frame for an id that is gone is a late one (ignored)
 * and a frame for an id that was never given is against the protocol (the stream is closed).
 *
 *   caller: CALL -> ITEM* -> END                                  callee: the same, mirrored
 *           Prefill and Fetch: END -> ACK or NACK                 an entry lives until the last of these
 *           CANCEL at any time, by the caller or its deadline
 *
 * Credit: the callee may have 256 KiB of ITEM payload on its way; the caller gives back what its handler has taken,
 * in halves. One ITEM may overdraw, so that an item larger than the window passes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/rpc_impl.h"
#include "base/checked.h"
#include "base/utf8.h"
#include "sys/clock.h"
#include <stdlib.h>
#include <string.h>

#define CALL_ARENA_BYTES (2u << 20)

/* ---- the table ---- */

static struct call **bucket_of(const struct call_table *t, uint32_t stream)
{
    return &t->bucket[(stream >> 1) & (t->buckets - 1)];
}

struct call *call_find(struct conn *c, uint32_t stream)
{
    if (c->calls.buckets == 0) {
        return NULL;
    }
    for (struct call *k = *bucket_of(&c->calls, stream); k != NULL; k = k->next) {
        if (k->stream == stream) {
            return k;
        }
    }
    return NULL;
}

static kvs_status table_grow(struct call_table *t)
{
    struct call_table wide = {.buckets = t->buckets == 0 ? 16 : t->buckets * 2, .count = t->count};
    wide.bucket = calloc(wide.buckets, sizeof(struct call *));
    if (wide.bucket == NULL) {
        return KVS_SELF_NOMEM;
    }
    for (uint32_t i = 0; i < t->buckets; i++) {
        while (t->bucket[i] != NULL) {
            struct call *k = t->bucket[i];
            t->bucket[i] = k->next;
            k->next = *bucket_of(&wide, k->stream);
            *bucket_of(&wide, k->stream) = k;
        }
    }
    free(t->bucket);
    *t = wide;
    return KVS_OK;
}

static bool needs_ack(msg_method m)
{
    return m == MSG_PREFILL || m == MSG_FETCH;
}

static kvs_status call_add(struct conn *c, uint32_t stream, msg_method method, bool ours, struct call **out)
{
    if (c->calls.count >= RPC_CALLS_MAX) {
        return KVS_BUSY_FULL;
    }
    if (c->calls.count >= c->calls.buckets) {
        kvs_status s = table_grow(&c->calls);
        if (s != KVS_OK) {
            return s;
        }
    }
    struct call *k = calloc(1, sizeof *k);
    if (k == NULL) {
        return KVS_SELF_NOMEM;
    }
    k->stream = stream;
    k->method = method;
    k->ours = ours;
    k->conn = c;
    k->credit = RPC_CREDIT_BYTES;
    k->credited = method != MSG_TOKENS && method != MSG_LOAD && method != MSG_REGISTER;
    k->next = *bucket_of(&c->calls, stream);
    *bucket_of(&c->calls, stream) = k;
    c->calls.count++;
    *out = k;
    return KVS_OK;
}

static void call_remove(struct call *k)
{
    struct call_table *t = &k->conn->calls;
    struct call **at = bucket_of(t, k->stream);
    while (*at != k) {
        KVS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = k->next;
    t->count--;
    kvs_timer_destroy(k->timer);
    free(k);
}

void calls_end_all(struct conn *c, bool tell)
{
    struct msg_end end = {.status = kvs_is_peer(c->why) ? c->why : KVS_PEER_LOST};
    (void)kvs_format(end.text, sizeof end.text, "%s", c->why_text);
    for (uint32_t i = 0; i < c->calls.buckets; i++) {
        while (c->calls.bucket[i] != NULL) {
            struct call *k = c->calls.bucket[i];
            uint32_t stream = k->stream;
            bool open = k->ours && !k->ended;
            call_remove(k);
            if (tell && open) {
                TELL(c->rpc, on_end, c->id, stream, &end);
            }
        }
    }
    free(c->calls.bucket);
    c->calls = (struct call_table){0};
}

/* ---- caller ---- */

static void call_deadline(void *user, uint64_t now_us)
{
    (void)now_us;
    struct call *k = user;
    struct conn *c = k->conn;
    uint32_t stream = k->stream;
    bool open = !k->ended;
    if (c->state == CONN_DEAD) {
        return; /* the reaper ends it */
    }
    call_remove(k);
    conn_send(c, MSG_CANCEL, stream, NULL, 0);
    if (open) {
        struct msg_end end = {.status = KVS_REQ_DEADLINE, .text = "the call's time is up"};
        TELL(c->rpc, on_end, c->id, stream, &end);
    }
}

static kvs_status encode_call(struct net_rpc *r, msg_method method, uint32_t remaining_ms, const char *trace,
                              const void *body, size_t n)
{
    struct msg_call call = {.method = method, .remaining_ms = remaining_ms, .body = body, .body_bytes = (uint32_t)n};
    if (n > MSG_PAYLOAD_MAX) {
        return KVS_REQ_TOO_LARGE;
    }
    if (trace != NULL) {
        size_t length = strnlen(trace, sizeof call.trace - 1);
        length = kvs_utf8_whole(trace, length);
        memcpy(call.trace, trace, length);
    }
    kvs_buf_clear(&r->scratch);
    return msg_call_encode(&call, &r->scratch);
}

kvs_status net_rpc_call(struct net_rpc *r, net_conn conn, msg_method method, uint32_t remaining_ms, const char *trace,
                        const void *body, size_t n, uint32_t *stream_out)
{
    struct conn *c = conn_find(r, conn);
    if (c == NULL) {
        return KVS_PEER_LOST;
    }
    if (c->next_stream > UINT32_MAX - 2) {
        return KVS_BUSY_FULL; /* two thousand million calls: the next connection counts anew */
    }
    kvs_status s = encode_call(r, method, remaining_ms, trace, body, n);
    if (s != KVS_OK) {
        return s;
    }
    struct call *k;
    s = call_add(c, c->next_stream, method, true, &k);
    if (s != KVS_OK) {
        return s;
    }
    if (remaining_ms > 0) {
        s = kvs_timer_create(r->loop, call_deadline, k, &k->timer);
        if (s != KVS_OK) {
            call_remove(k);
            return s;
        }
        kvs_timer_set(k->timer, kvs_now_us() + (uint64_t)remaining_ms * 1000);
    }
    c->next_stream += 2;
    *stream_out = k->stream;
    conn_send(c, MSG_CALL, k->stream, r->scratch.data,
              r->scratch.len); /* if this kills the connection, on_end follows */
    return KVS_OK;
}

/* The caller's last word on a call: CANCEL, ACK or NACK. */
static void call_finish(struct net_rpc *r, net_conn conn, uint32_t stream, msg_frame_type type, const void *payload,
                        size_t n)
{
    struct conn *c = conn_find(r, conn);
    struct call *k = c != NULL ? call_find(c, stream) : NULL;
    if (k == NULL || !k->ours) {
        return; /* over already */
    }
    KVS_ASSERT(type == MSG_CANCEL || (k->ended && needs_ack(k->method)));
    call_remove(k);
    conn_send(c, type, stream, payload, n);
}

void net_rpc_cancel(struct net_rpc *r, net_conn conn, uint32_t stream)
{
    struct conn *c = r->slot[conn % RPC_CONNS_MAX];
    struct call *k = c != NULL && c->id == conn && c->state == CONN_DEAD ? call_find(c, stream) : NULL;
    if (k != NULL && k->ours) {
        call_remove(k); /* the stream is dead but not yet told: the promise of no on_end holds */
        return;
    }
    call_finish(r, conn, stream, MSG_CANCEL, NULL, 0);
}

void net_rpc_ack(struct net_rpc *r, net_conn conn, uint32_t stream)
{
    call_finish(r, conn, stream, MSG_ACK, NULL, 0);
}

void net_rpc_nack(struct net_rpc *r, net_conn conn, uint32_t stream, const void *payload, size_t n)
{
    call_finish(r, conn, stream, MSG_NACK, payload, n);
}

kvs_status net_rpc_pause(struct net_rpc *r, net_conn conn, uint32_t stream, const void *payload, size_t n, bool resume)
{
    struct conn *c = conn_find(r, conn);
    struct call *k = c != NULL ? call_find(c, stream) : NULL;
    if (k == NULL || !k->ours || k->ended) {
        return KVS_PEER_LOST;
    }
    KVS_ASSERT(k->method == MSG_TOKENS && n <= MSG_PAYLOAD_MAX);
    conn_send(c, resume ? MSG_RESUME : MSG_PAUSE, stream, payload, n);
    return KVS_OK;
}

static void got_item(struct conn *c, struct call *k, const struct msg_frame *f)
{
    bool credited = k->credited;
    if (k->ended) {
        conn_goaway(c, KVS_PEER_PROTOCOL, "an ITEM after END");
        return;
    }
    TELL(c->rpc, on_item, c->id, f->stream, f->payload, f->length);
    k = credited && c->state == CONN_UP ? call_find(c, f->stream) : NULL; /* the handler may have ended it */
    if (k == NULL) {
        return;
    }
    k->taken += f->length;
    if (k->taken >= RPC_CREDIT_BYTES / 2) {
        uint8_t bytes[4];
        kvs_store_u32(bytes, k->taken);
        k->taken = 0;
        conn_send(c, MSG_CREDIT, f->stream, bytes, sizeof bytes);
    }
}

static void got_end(struct conn *c, struct call *k, const struct msg_frame *f)
{
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_end end;
    kvs_arena_init(&arena, 65536);
    kvs_status s = msg_end_decode(f->payload, f->length, &arena, &end, &err);
    kvs_arena_fini(&arena);
    if (s != KVS_OK || k->ended) {
        conn_goaway(c, KVS_PEER_PROTOCOL, s != KVS_OK ? err.text : "a second END");
        return;
    }
    if (needs_ack(k->method)) {
        k->ended = true;
    } else {
        call_remove(k);
    }
    TELL(c->rpc, on_end, c->id, f->stream, &end);
}

/* ---- callee ---- */

kvs_status net_rpc_item(struct net_rpc *r, net_conn conn, uint32_t stream, const void *payload, size_t n)
{
    struct conn *c = conn_find(r, conn);
    if (c == NULL) {
        return KVS_PEER_LOST;
    }
    struct call *k = call_find(c, stream);
    if (k == NULL || k->ours || k->ended) {
        return KVS_REQ_CANCELLED;
    }
    if (n > MSG_PAYLOAD_MAX) {
        return KVS_REQ_TOO_LARGE;
    }
    if (k->credited) {
        if (k->credit <= 0) {
            k->starved = true;
            return KVS_BUSY_QUEUE;
        }
        k->credit -= (int64_t)n;
    }
    conn_send(c, MSG_ITEM, stream, payload, n);
    return c->state == CONN_UP ? KVS_OK : KVS_PEER_LOST;
}

static void send_end(struct conn *c, uint32_t stream, const struct msg_end *end)
{
    struct kvs_buf *b = &c->rpc->scratch;
    kvs_buf_clear(b);
    kvs_status s = msg_end_encode(end, b);
    if (s != KVS_OK) { /* a text that is not UTF-8 must not keep the END back */
        struct msg_end plain = *end;
        plain.text[0] = '\0';
        s = msg_end_encode(&plain, b);
    }
    if (s != KVS_OK) {
        conn_fail(c, s, "no memory for END");
        return;
    }
    conn_send(c, MSG_END, stream, b->data, b->len);
}

void net_rpc_end(struct net_rpc *r, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    struct conn *c = conn_find(r, conn);
    struct call *k = c != NULL ? call_find(c, stream) : NULL;
    if (k == NULL || k->ours) {
        return; /* cancelled, or the stream is gone */
    }
    KVS_ASSERT(!k->ended);
    if (needs_ack(k->method)) {
        k->ended = true;
    } else {
        call_remove(k);
    }
    send_end(c, stream, end);
}

static void got_call(struct conn *c, const struct msg_frame *f)
{
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_call call;
    bool ours = (f->stream & 1) == (c->next_stream & 1);
    if (ours || f->stream <= c->peer_stream) {
        conn_goaway(c, KVS_PEER_PROTOCOL, "a CALL on a stream id that is not the caller's next");
        return;
    }
    c->peer_stream = f->stream;
    kvs_arena_init(&arena, CALL_ARENA_BYTES);
    kvs_status s = msg_call_decode(f->payload, f->length, &arena, &call, &err);
    struct call *k = NULL;
    struct msg_end refusal = {0};
    if (s != KVS_OK) {
        conn_goaway(c, KVS_PEER_PROTOCOL, err.text);
    } else if (call.method < MSG_GENERATE || call.method > MSG_METHOD_LAST || c->rpc->h.on_call == NULL) {
        refusal.status = KVS_REQ_UNSUPPORTED;
        (void)kvs_format(refusal.text, sizeof refusal.text, "method %u is not served here", (unsigned)call.method);
        send_end(c, f->stream, &refusal);
    } else if ((s = call_add(c, f->stream, call.method, false, &k)) != KVS_OK) {
        refusal.status = s;
        (void)kvs_format(refusal.text, sizeof refusal.text, "too many calls on this stream");
        send_end(c, f->stream, &refusal);
    } else {
        TELL(c->rpc, on_call, c->id, f->stream, &call);
    }
    kvs_arena_fini(&arena);
}

uint64_t net_rpc_credited(struct net_rpc *r, net_conn conn, uint32_t stream)
{
    struct conn *c = conn_find(r, conn);
    const struct call *k = c != NULL ? call_find(c, stream) : NULL;
    return k != NULL && !k->ours ? k->credited_bytes : 0;
}

static void got_credit(struct conn *c, struct call *k, const struct msg_frame *f)
{
    k->credited_bytes += kvs_load_u32(f->payload);
    k->credit += kvs_load_u32(f->payload);
    if (k->credit > 4 * (int64_t)RPC_CREDIT_BYTES) {
        k->credit = 4 * (int64_t)RPC_CREDIT_BYTES; /* whoever gives more than it ever took is not believed */
    }
    if (k->starved && k->credit > 0) {
        k->starved = false;
        TELL(c->rpc, on_writable, c->id, f->stream);
    }
}

/* ACK, NACK, CANCEL, CREDIT, PAUSE, RESUME: from the caller about one of its calls. */
static void got_caller_frame(struct conn *c, struct call *k, const struct msg_frame *f)
{
    switch (f->type) {
    case MSG_CREDIT: got_credit(c, k, f); return;
    case MSG_PAUSE:
    case MSG_RESUME:
        if (k->method != MSG_TOKENS) {
            conn_goaway(c, KVS_PEER_PROTOCOL, "PAUSE outside of Tokens");
            return;
        }
        TELL(c->rpc, on_pause, c->id, f->stream, f->payload, f->length, f->type == MSG_RESUME);
        return;
    case MSG_CANCEL:
        call_remove(k);
        TELL(c->rpc, on_cancel, c->id, f->stream);
        return;
    default: break;
    }
    if (!k->ended) {
        conn_goaway(c, KVS_PEER_PROTOCOL, "ACK or NACK before END");
        return;
    }
    call_remove(k);
    if (f->type == MSG_ACK) {
        TELL(c->rpc, on_ack, c->id, f->stream);
    } else {
        TELL(c->rpc, on_nack, c->id, f->stream, f->payload, f->length);
    }
}

void stream_frame(struct conn *c, const struct msg_frame *f)
{
    if (f->type == MSG_CALL) {
        got_call(c, f);
        return;
    }
    bool ours = (f->stream & 1) == (c->next_stream & 1);
    bool from_callee = f->type == MSG_ITEM || f->type == MSG_END;
    if (ours != from_callee || (ours ? f->stream >= c->next_stream : f->stream > c->peer_stream)) {
        conn_goaway(c, KVS_PEER_PROTOCOL, "a frame on a stream id that was never given");
        return;
    }
    struct call *k = call_find(c, f->stream);
    if (k == NULL) {
        return; /* late: the call is over */
    }
    if (f->type == MSG_ITEM) {
        got_item(c, k, f);
    } else if (f->type == MSG_END) {
        got_end(c, k, f);
    } else {
        got_caller_frame(c, k, f);
    }
}
