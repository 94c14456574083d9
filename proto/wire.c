/* wire.c - packing and unpacking shared by all messages, and the names of methods and roles.
 * Unpacking is protobuf-c's, over the caller's arena (its free does nothing: the arena goes as a whole), and only
 * after msg_scan has found the bytes within all limits. Packing runs the same scan over what was written, so that
 * nothing leaves this process that a peer would close the stream for.
 * Messages with many entries are written entry by entry: in protobuf a repeated message is the sequence of its
 * entries, so no array of protobuf-c structs is ever built to send one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire_impl.h"
#include "proto/frame.h"

static void *arena_alloc(void *data, size_t size)
{
    return kvs_arena_alloc(data, size == 0 ? 1 : size);
}

static void arena_free(void *data, void *pointer)
{
    (void)data;
    (void)pointer;
}

kvs_status msg_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *bytes, size_t n, struct kvs_arena *a,
                      const ProtobufCMessage **out, struct kvs_error *err)
{
    kvs_status s = msg_scan(d, bytes, n, err);
    if (s != KVS_OK) {
        return s;
    }
    ProtobufCAllocator allocator = {.alloc = arena_alloc, .free = arena_free, .allocator_data = a};
    static const uint8_t none[1] = {0};
    ProtobufCMessage *m = protobuf_c_message_unpack(d, &allocator, n, n == 0 ? none : bytes);
    if (m == NULL) {
        /* The scan has passed, so what is left is memory. */
        return kvs_fail(err, KVS_SELF_NOMEM, "%s of %zu bytes does not fit the memory set aside for it", d->short_name,
                        n);
    }
    *out = m;
    return KVS_OK;
}

void msg_pack_begin(struct msg_pack *p, struct kvs_buf *out)
{
    *p = (struct msg_pack){.out = out, .start = out->len, .status = KVS_OK};
}

static uint8_t *pack_room(struct msg_pack *p, size_t n)
{
    uint8_t *at = NULL;
    if (p->status == KVS_OK && (p->out->len - p->start) + n > MSG_PAYLOAD_MAX) {
        p->status = KVS_REQ_TOO_LARGE;
    }
    if (p->status == KVS_OK) {
        p->status = kvs_buf_reserve(p->out, n, &at);
    }
    return p->status == KVS_OK ? at : NULL;
}

void msg_pack_put(struct msg_pack *p, const ProtobufCMessage *m)
{
    if (p->status != KVS_OK) {
        return;
    }
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *at = n == 0 ? NULL : pack_room(p, n);
    if (at != NULL) {
        size_t written = protobuf_c_message_pack(m, at);
        KVS_ASSERT(written == n);
        kvs_buf_commit(p->out, n);
    }
}

static size_t put_varint(uint8_t *at, uint64_t v)
{
    size_t n = 0;
    for (; v >= 0x80; v >>= 7) {
        at[n++] = (uint8_t)(v | 0x80);
    }
    at[n++] = (uint8_t)v;
    return n;
}

void msg_pack_sub(struct msg_pack *p, uint32_t field, const ProtobufCMessage *m)
{
    if (p->status != KVS_OK) {
        return;
    }
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t head[16];
    size_t head_bytes = put_varint(head, (uint64_t)field << 3 | 2);
    head_bytes += put_varint(head + head_bytes, n);
    uint8_t *at = pack_room(p, head_bytes + n);
    if (at != NULL) {
        memcpy(at, head, head_bytes);
        size_t written = protobuf_c_message_pack(m, at + head_bytes);
        KVS_ASSERT(written == n);
        kvs_buf_commit(p->out, head_bytes + n);
    }
}

static size_t varint_bytes(uint32_t v)
{
    size_t n = 1;
    for (; v >= 0x80; v >>= 7) {
        n++;
    }
    return n;
}

void msg_pack_column(struct msg_pack *p, uint32_t field, const uint32_t *first, size_t stride, uint32_t count)
{
    if (p->status != KVS_OK || count == 0) {
        return;
    }
    size_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        n += varint_bytes(first[i * stride]);
    }
    uint8_t head[16];
    size_t head_bytes = put_varint(head, (uint64_t)field << 3 | 2);
    head_bytes += put_varint(head + head_bytes, n);
    uint8_t *at = pack_room(p, head_bytes + n);
    if (at == NULL) {
        return;
    }
    memcpy(at, head, head_bytes);
    at += head_bytes;
    for (uint32_t i = 0; i < count; i++) {
        at += put_varint(at, first[i * stride]);
    }
    kvs_buf_commit(p->out, head_bytes + n);
}

kvs_status msg_pack_end(struct msg_pack *p, const ProtobufCMessageDescriptor *d)
{
    size_t n = p->out->len - p->start;
    if (p->status == KVS_OK && n > 0) {
        struct kvs_error err;
        if (msg_scan(d, p->out->data + p->start, n, &err) != KVS_OK) {
            p->status = KVS_REQ_INVALID;
        }
    }
    if (p->status != KVS_OK) {
        p->out->len = p->start;
        if (p->out->data != NULL) {
            p->out->data[p->start] = 0;
        }
    }
    return p->status;
}

kvs_status msg_pack_one(const ProtobufCMessage *m, struct kvs_buf *out)
{
    struct msg_pack p;
    msg_pack_begin(&p, out);
    msg_pack_put(&p, m);
    return msg_pack_end(&p, m->descriptor);
}

const char *msg_text(const char *text)
{
    return text == NULL ? "" : text;
}

void msg_copy_text(char *out, size_t cap, const char *text)
{
    size_t n = strlen(msg_text(text));
    KVS_ASSERT(n < cap); /* the limits table knows the field's size */
    memcpy(out, msg_text(text), n + 1);
}

kvs_status msg_copy_fixed(uint8_t *out, size_t n, const ProtobufCBinaryData *b, const char *field,
                          struct kvs_error *err)
{
    memset(out, 0, n);
    if (b->len != 0 && b->len != n) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "field %s has %zu bytes, not %zu", field, b->len, n);
    }
    if (b->len != 0) {
        memcpy(out, b->data, n);
    }
    return KVS_OK;
}

ProtobufCBinaryData msg_fixed_view(const uint8_t *bytes, size_t n)
{
    ProtobufCBinaryData b = {0, NULL};
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != 0) {
            b.len = n;
            memcpy(&b.data, &bytes, sizeof bytes); /* drops const: protobuf-c only reads it */
            break;
        }
    }
    return b;
}

char *msg_borrow(const char *text)
{
    char *p;
    memcpy(&p, &text, sizeof p);
    return p;
}

bool msg_status_in_range(uint32_t v)
{
    return v == KVS_OK || (v >= 100 && v < 500);
}

kvs_status msg_check_id(const char *id, const char *field, struct kvs_error *err)
{
    for (const char *c = id; *c != '\0'; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '-' ||
                     *c == '_' || *c == '.';
        if (!plain) {
            return kvs_fail(err, KVS_PEER_PROTOCOL, "%s may hold letters, digits, '-', '_' and '.' only", field);
        }
    }
    return id[0] != '\0' ? KVS_OK : kvs_fail(err, KVS_PEER_PROTOCOL, "%s is empty", field);
}

const char *msg_role_name(msg_role r)
{
    switch (r) {
    case MSG_ROLE_ROUTER: return "router";
    case MSG_ROLE_PREFILL: return "prefill";
    case MSG_ROLE_DECODE: return "decode";
    case MSG_ROLE_BOTH: return "both";
    case MSG_ROLE_CLIENT: return "client";
    }
    return "unknown";
}

const char *msg_method_name(msg_method m)
{
    switch (m) {
    case MSG_GENERATE: return "generate";
    case MSG_PREFILL: return "prefill";
    case MSG_FETCH: return "fetch";
    case MSG_TOKENS: return "tokens";
    case MSG_ABORT: return "abort";
    case MSG_HEALTH: return "health_check";
    case MSG_MODEL_INFO: return "get_model_info";
    case MSG_LINK: return "link";
    case MSG_REGISTER: return "register";
    case MSG_LOAD: return "load";
    case MSG_DRAIN: return "drain";
    case MSG_CACHE: return "cache";
    case MSG_SET_ROLE: return "role";
    case MSG_CACHE_FLUSH: return "cache_flush";
    }
    return "unknown";
}
