/* rpc_conn.c - one connection from its first byte to its end: HELLO, frames out of bytes, PING and silence, GOAWAY.
 * The dialer's HELLO goes out at once; the listener answers after its owner has agreed, so that a stranger learns
 * nothing and a refused dialer never believes that it is connected.
 * Frames are parsed where NNG put them; only the part of a frame that is not whole yet is copied and kept.
 * Time limits: HELLO within 3 s, a begun frame within 5 s, some byte every 2 s.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/rpc_impl.h"
#include "base/checked.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/secret.h"
#include <stdlib.h>
#include <string.h>

#define HELLO_ARENA_BYTES 65536
#define IN_KEEP_BYTES 65536

/* ---- sending ---- */

void conn_send(struct conn *c, msg_frame_type type, uint32_t stream, const void *payload, size_t n)
{
    if (c->state == CONN_DEAD || c->rpc->frozen) {
        return;
    }
    if (KVS_FAILPOINT("rpc.drop_frame")) {
        conn_fail(c, KVS_PEER_LOST, "a frame was dropped by a failpoint");
        return;
    }
    if (net_link_queued(c->link) + n > NET_LINK_QUEUE_MAX) {
        conn_fail(c, KVS_BUSY_QUEUE, "the peer does not read: more than 8 MiB wait for it");
        return;
    }
    KVS_ASSERT(n <= MSG_PAYLOAD_MAX);
    kvs_status s = msg_frame_append(net_link_out(c->link), type, stream, payload, (uint32_t)n);
    if (s != KVS_OK) {
        conn_fail(c, s, "no memory for a frame");
        return;
    }
    net_link_flush(c->link);
}

static void conn_send_number(struct conn *c, msg_frame_type type, uint64_t v)
{
    uint8_t bytes[8];
    kvs_store_u64(bytes, v);
    conn_send(c, type, 0, bytes, sizeof bytes);
}

static void conn_send_hello(struct conn *c)
{
    struct kvs_buf *b = &c->rpc->scratch;
    kvs_buf_clear(b);
    if (msg_hello_encode(&c->rpc->self, b) != KVS_OK) {
        conn_fail(c, KVS_SELF_NOMEM, "no memory for HELLO");
        return;
    }
    conn_send(c, MSG_HELLO, 0, b->data, b->len);
}

/* ---- ends ---- */

void conn_linger(struct conn *c)
{
    struct linger *l = calloc(1, sizeof *l);
    if (l == NULL) {
        net_link_close(c->link);
    } else {
        net_link_mute(c->link);
        *l = (struct linger){.link = c->link, .until_us = kvs_now_us() + RPC_LINGER_US, .next = c->rpc->lingers};
        c->rpc->lingers = l;
    }
    c->link = NULL;
}

void conn_fail(struct conn *c, kvs_status why, const char *text)
{
    if (c->state == CONN_DEAD) {
        return;
    }
    c->state = CONN_DEAD;
    c->why = why;
    (void)kvs_format(c->why_text, sizeof c->why_text, "%s", text);
    net_link_close(c->link);
    c->link = NULL;
    rpc_reap_soon(c->rpc);
}

void conn_goaway(struct conn *c, kvs_status why, const char *text)
{
    if (c->state == CONN_DEAD) {
        return;
    }
    struct msg_end end = {.status = why};
    (void)kvs_format(end.text, sizeof end.text, "%s", text);
    struct kvs_buf *b = &c->rpc->scratch;
    kvs_buf_clear(b);
    if (msg_end_encode(&end, b) == KVS_OK) {
        conn_send(c, MSG_GOAWAY, 0, b->data, b->len);
    }
    if (c->state != CONN_DEAD) {
        conn_linger(c);
        conn_fail(c, why, text);
    }
}

static void conn_unlink(struct conn *c)
{
    *(c->prev != NULL ? &c->prev->next : &c->rpc->conns) = c->next;
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    c->prev = c->next = NULL;
}

/* c is no longer in the list of connections. */
static void conn_release(struct conn *c)
{
    net_link_close(c->link);
    calls_end_all(c, false);
    if (c->dial != NULL) {
        c->dial->conn = NULL;
    }
    c->rpc->slot[c->id % RPC_CONNS_MAX] = NULL;
    kvs_buf_fini(&c->in);
    free(c);
}

void conn_free(struct conn *c)
{
    conn_unlink(c);
    conn_release(c);
}

void conn_reap(struct conn *c)
{
    KVS_ASSERT(c->state == CONN_DEAD && c->link == NULL);
    conn_unlink(c);
    calls_end_all(c, true);
    if (c->was_up) {
        TELL(c->rpc, on_down, c->id, c->why, c->why_text);
    }
    struct dial *d = c->dial; /* a handler may have given it up: then it is NULL by now */
    if (d != NULL) {
        c->dial = NULL;
        dial_lost(d, c);
    }
    conn_release(c);
}

/* ---- HELLO ---- */

static kvs_status hello_judge(struct net_rpc *r, const struct msg_hello *hello, struct kvs_error *err)
{
    if (r->self.auth[0] != '\0' && !kvs_secret_equal(r->self.auth, hello->auth)) { /* first: a stranger learns nothing else */
        return kvs_fail(err, KVS_PEER_REFUSED,
                        "this cluster has a shared key, and it was not given: start every daemon with the same --auth-file");
    }
    if (hello->protocol_min > r->self.protocol_max || hello->protocol_max < r->self.protocol_min) {
        return kvs_fail(err, KVS_PEER_MISMATCH, "%s speaks protocol %u to %u, %s %u to %u: bring both to one release",
                        hello->id, hello->protocol_min, hello->protocol_max, r->self.id, r->self.protocol_min,
                        r->self.protocol_max);
    }
    return r->h.check_hello != NULL ? r->h.check_hello(r->h.user, hello, err) : KVS_OK;
}

static void conn_hello(struct conn *c, const struct msg_frame *f)
{
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_hello hello;
    kvs_arena_init(&arena, HELLO_ARENA_BYTES);
    kvs_status s = msg_hello_decode(f->payload, f->length, &arena, &hello, &err);
    kvs_arena_fini(&arena);
    if (s == KVS_OK) {
        s = hello_judge(c->rpc, &hello, &err);
    }
    if (s != KVS_OK) {
        conn_goaway(c, s, err.text[0] != '\0' ? err.text : kvs_status_name(s));
        return;
    }
    if (c->state != CONN_WAIT) {
        return; /* the owner's check closed it */
    }
    if (c->dial == NULL) {
        conn_send_hello(c);
    }
    if (c->state == CONN_WAIT) {
        c->state = CONN_UP;
        c->was_up = true;
        TELL(c->rpc, on_up, c->id, &hello, c->dial != NULL, c->dial != NULL ? c->dial->url : "");
    }
}

static void conn_went_away(struct conn *c, const struct msg_frame *f)
{
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_end end;
    kvs_arena_init(&arena, HELLO_ARENA_BYTES);
    kvs_status s = msg_end_decode(f->payload, f->length, &arena, &end, &err);
    kvs_arena_fini(&arena);
    if (s != KVS_OK) {
        conn_fail(c, s, err.text);
    } else if (end.status == KVS_OK) {
        conn_fail(c, KVS_PEER_LOST, "the peer said goodbye");
    } else {
        conn_fail(c, end.status, end.text);
    }
}

/* ---- bytes to frames ---- */

static void conn_frame(struct conn *c, const struct msg_frame *f)
{
    if (c->state == CONN_WAIT && f->type != MSG_HELLO && f->type != MSG_GOAWAY) {
        conn_goaway(c, KVS_PEER_PROTOCOL, "the first frame must be HELLO");
        return;
    }
    switch (f->type) {
    case MSG_HELLO:
        if (c->state == CONN_UP) {
            conn_goaway(c, KVS_PEER_PROTOCOL, "a second HELLO");
        } else {
            conn_hello(c, f);
        }
        break;
    case MSG_PING: conn_send_number(c, MSG_PONG, kvs_load_u64(f->payload)); break;
    case MSG_PONG: break; /* any byte is a sign of life */
    case MSG_GOAWAY: conn_went_away(c, f); break;
    default: stream_frame(c, f); break;
    }
}

/* Handles all whole frames at the front; returns the bytes used. */
static size_t conn_parse(struct conn *c, const uint8_t *bytes, size_t n)
{
    size_t used = 0;
    while (c->state != CONN_DEAD && !c->rpc->frozen) {
        struct msg_frame f;
        size_t size;
        kvs_status s = msg_frame_parse(bytes + used, n - used, &f, &size);
        if (s == KVS_BUSY_AGAIN) {
            break;
        }
        if (s != KVS_OK) {
            conn_goaway(c, KVS_PEER_PROTOCOL, "these are not frames of this protocol");
            break;
        }
        conn_frame(c, &f);
        used += size;
    }
    return used;
}

static void conn_alive(struct conn *c, uint64_t now_us)
{
    if (net_pulse_heard(&c->pulse, now_us)) {
        TELL(c->rpc, on_suspect, c->id, false);
    }
}

static void conn_on_bytes(void *user, const uint8_t *bytes, size_t n)
{
    struct conn *c = user;
    c->rpc->frozen = c->rpc->frozen || KVS_FAILPOINT("rpc.freeze");
    if (c->rpc->frozen || c->state == CONN_DEAD) {
        return;
    }
    uint64_t now = kvs_now_us();
    conn_alive(c, now);
    bool begun = c->in.len > 0;
    size_t used;
    kvs_status s = KVS_OK;
    if (begun) {
        s = kvs_buf_append(&c->in, bytes, n);
        used = s == KVS_OK ? conn_parse(c, c->in.data, c->in.len) : 0;
        kvs_buf_consume(&c->in, used);
    } else {
        used = conn_parse(c, bytes, n);
        if (used < n && c->state != CONN_DEAD) {
            s = kvs_buf_append(&c->in, bytes + used, n - used);
        }
    }
    if (s != KVS_OK) {
        conn_fail(c, s, "no memory for a frame");
        return;
    }
    if (c->in.len == 0) {
        c->frame_us = 0;
        if (c->in.cap > IN_KEEP_BYTES) {
            kvs_buf_fini(&c->in);
        }
    } else if (!begun || used > 0) {
        c->frame_us = now;
    }
}

static void conn_on_broken(void *user, int nng_error)
{
    conn_fail(user, nng_error == NNG_ETIMEDOUT ? KVS_PEER_TIMEOUT : KVS_PEER_LOST, net_io_error(nng_error));
}

/* ---- birth and time ---- */

static bool free_slot(const struct net_rpc *r, uint32_t *slot_out)
{
    for (uint32_t i = 0; i < RPC_CONNS_MAX; i++) {
        if (r->slot[i] == NULL) {
            *slot_out = i;
            return true;
        }
    }
    return false;
}

kvs_status conn_create(struct net_rpc *r, nng_stream *stream, struct dial *dial, struct conn **out)
{
    static const struct net_link_events events = {conn_on_bytes, conn_on_broken};
    uint32_t slot;
    struct conn *c = free_slot(r, &slot) ? calloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        nng_stream_close(stream);
        nng_stream_free(stream);
        return KVS_BUSY_FULL;
    }
    c->rpc = r;
    c->dial = dial;
    c->id = ++r->births * RPC_CONNS_MAX + slot;
    c->next_stream = dial != NULL ? 1 : 2;
    c->born_us = kvs_now_us();
    net_pulse_start(&c->pulse, c->born_us);
    kvs_buf_init(&c->in, 2 * MSG_PAYLOAD_MAX);
    kvs_status s = net_link_create(&r->io, stream, &events, c, &c->link);
    if (s != KVS_OK) {
        kvs_buf_fini(&c->in);
        free(c);
        return s;
    }
    r->slot[slot] = c;
    c->next = r->conns;
    if (c->next != NULL) {
        c->next->prev = c;
    }
    r->conns = c;
    if (out != NULL) {
        *out = c; /* before HELLO: what fails from here on is told through the dial */
    }
    net_link_start(c->link);
    if (dial != NULL) {
        conn_send_hello(c);
    }
    return KVS_OK;
}

void conn_accepted(void *rpc, nng_stream *stream, int nng_error)
{
    (void)nng_error; /* the listener tells of streams only */
    kvs_status s = conn_create(rpc, stream, NULL, NULL);
    (void)s; /* full: the stream has been closed, which is all a stranger needs to know */
}

struct conn *conn_find(struct net_rpc *r, net_conn id)
{
    struct conn *c = r->slot[id % RPC_CONNS_MAX];
    return c != NULL && c->id == id && c->state == CONN_UP ? c : NULL;
}

void net_rpc_close(struct net_rpc *r, net_conn conn, kvs_status why, const char *text)
{
    struct conn *c = conn_find(r, conn);
    if (c != NULL) {
        conn_goaway(c, why, text);
    }
}

static void conn_look(struct conn *c, uint64_t now_us)
{
    net_pulse_verdict v = net_pulse_look(&c->pulse, now_us);
    if (v.lost) {
        conn_fail(c, KVS_PEER_TIMEOUT, "silent for 2 s");
    }
    if (v.ping) {
        conn_send_number(c, MSG_PING, now_us);
    }
    if (v.suspect && c->state == CONN_UP) {
        TELL(c->rpc, on_suspect, c->id, true);
    }
}

void conn_tick(struct conn *c, uint64_t now_us)
{
    if (c->state == CONN_DEAD) {
        return;
    }
    if (c->state == CONN_WAIT && now_us - c->born_us > RPC_HELLO_US) {
        conn_fail(c, KVS_PEER_TIMEOUT, "no HELLO within 3 s");
    } else if (c->frame_us != 0 && now_us - c->frame_us > RPC_FRAME_US) {
        conn_fail(c, KVS_PEER_TIMEOUT, "stopped in the middle of a frame");
    } else if (c->state == CONN_UP) {
        conn_look(c, now_us);
    }
}
