/* wire_call.c - the messages of the stream itself: HELLO, CALL, END, NACK, PAUSE/RESUME, Abort, Role, Link.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire_impl.h"

kvs_status msg_hello_encode(const struct msg_hello *m, struct kvs_buf *out)
{
    Kvasir__V1__Hello w = KVASIR__V1__HELLO__INIT;
    w.protocol_min = m->protocol_min;
    w.protocol_max = m->protocol_max;
    w.id = msg_borrow(m->id);
    w.epoch = m->epoch;
    w.role = (Kvasir__V1__Role)m->role;
    w.fingerprint = msg_fixed_view(m->fingerprint, sizeof m->fingerprint);
    w.numerics = msg_borrow(m->numerics);
    w.auth = msg_borrow(m->auth);
    w.boot_id = msg_fixed_view(m->boot_id, sizeof m->boot_id);
    w.pid_namespace = m->pid_namespace;
    w.uid = m->uid;
    w.pid = m->pid;
    w.probe_address = m->probe_address;
    w.probe_value = m->probe_value;
    return msg_pack_one(&w.base, out);
}

kvs_status msg_hello_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_hello *out,
                            struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__hello__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__Hello *w = (const Kvasir__V1__Hello *)base;
    struct msg_hello m = {
        .protocol_min = w->protocol_min,
        .protocol_max = w->protocol_max,
        .epoch = w->epoch,
        .role = (msg_role)w->role,
        .pid_namespace = w->pid_namespace,
        .uid = w->uid,
        .pid = w->pid,
        .probe_address = w->probe_address,
        .probe_value = w->probe_value,
    };
    if (m.protocol_min == 0 || m.protocol_max < m.protocol_min) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "Hello has no protocol range");
    }
    if (w->role == KVASIR__V1__ROLE__ROLE_UNSPECIFIED) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "Hello has no role");
    }
    s = msg_check_id(w->id, "Hello.id", err);
    if (s == KVS_OK) {
        s = msg_copy_fixed(m.fingerprint, sizeof m.fingerprint, &w->fingerprint, "Hello.fingerprint", err);
    }
    if (s == KVS_OK) {
        s = msg_copy_fixed(m.boot_id, sizeof m.boot_id, &w->boot_id, "Hello.boot_id", err);
    }
    if (s != KVS_OK) {
        return s;
    }
    MSG_COPY_TEXT(m.id, w->id);
    MSG_COPY_TEXT(m.numerics, w->numerics);
    MSG_COPY_TEXT(m.auth, w->auth);
    *out = m;
    return KVS_OK;
}

kvs_status msg_call_encode(const struct msg_call *m, struct kvs_buf *out)
{
    Kvasir__V1__Call w = KVASIR__V1__CALL__INIT;
    w.method = (uint32_t)m->method;
    w.remaining_ms = m->remaining_ms;
    w.trace_id = msg_borrow(m->trace);
    w.body.len = m->body_bytes;
    memcpy(&w.body.data, &m->body, sizeof m->body);
    return msg_pack_one(&w.base, out);
}

kvs_status msg_call_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_call *out,
                           struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__call__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__Call *w = (const Kvasir__V1__Call *)base;
    if (w->method == 0 || w->method > 0xffff) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "Call.method is %u", w->method);
    }
    struct msg_call m = {.method = (msg_method)w->method,
                         .remaining_ms = w->remaining_ms,
                         .body = w->body.data,
                         .body_bytes = (uint32_t)w->body.len};
    MSG_COPY_TEXT(m.trace, w->trace_id);
    *out = m;
    return KVS_OK;
}

kvs_status msg_end_encode(const struct msg_end *m, struct kvs_buf *out)
{
    Kvasir__V1__End w = KVASIR__V1__END__INIT;
    w.status = (uint32_t)m->status;
    w.text = msg_borrow(m->text);
    w.pages_sent = m->pages_sent;
    w.prefill_tokens = m->prefill_tokens;
    w.cached_tokens = m->cached_tokens;
    w.chunks = m->chunks;
    w.prefill_us = m->prefill_us;
    return msg_pack_one(&w.base, out);
}

kvs_status msg_end_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_end *out,
                          struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__end__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__End *w = (const Kvasir__V1__End *)base;
    if (!msg_status_in_range(w->status)) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "End.status is %u", w->status);
    }
    struct msg_end m = {.status = (kvs_status)w->status,
                        .pages_sent = w->pages_sent,
                        .prefill_tokens = w->prefill_tokens,
                        .cached_tokens = w->cached_tokens,
                        .chunks = w->chunks,
                        .prefill_us = w->prefill_us};
    MSG_COPY_TEXT(m.text, w->text);
    *out = m;
    return KVS_OK;
}

/* A list of (block, group) is sent as two packed columns. */
kvs_status msg_nack_encode(const struct msg_nack *m, struct kvs_buf *out)
{
    struct msg_pack p;
    msg_pack_begin(&p, out);
    msg_pack_wants(&p, 1, 2, m->missing, m->count);
    return msg_pack_end(&p, &kvasir__v1__nack__descriptor);
}

kvs_status msg_nack_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_nack *out,
                           struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__nack__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__Nack *w = (const Kvasir__V1__Nack *)base;
    if (w->n_missing_blocks != w->n_missing_groups) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "Nack names %zu blocks and %zu groups", w->n_missing_blocks,
                        w->n_missing_groups);
    }
    struct msg_nack m = {.count = (uint32_t)w->n_missing_blocks};
    s = msg_join_wants(a, w->missing_blocks, w->missing_groups, m.count, &m.missing, err);
    if (s == KVS_OK) {
        *out = m;
    }
    return s;
}

kvs_status msg_abort_encode(const struct msg_abort *m, struct kvs_buf *out)
{
    Kvasir__V1__AbortRequest w = KVASIR__V1__ABORT_REQUEST__INIT;
    w.request_id = m->request;
    w.attempt = m->attempt;
    w.keep = m->keep;
    return msg_pack_one(&w.base, out);
}

kvs_status msg_abort_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_abort *out,
                            struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__abort_request__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__AbortRequest *w = (const Kvasir__V1__AbortRequest *)base;
    *out = (struct msg_abort){.request = w->request_id, .attempt = w->attempt, .keep = w->keep != 0};
    return KVS_OK;
}

kvs_status msg_set_role_encode(const struct msg_set_role *m, struct kvs_buf *out)
{
    Kvasir__V1__RoleRequest w = KVASIR__V1__ROLE_REQUEST__INIT;
    w.role = (Kvasir__V1__Role)m->role;
    return msg_pack_one(&w.base, out);
}

kvs_status msg_set_role_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_set_role *out,
                               struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__role_request__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__RoleRequest *w = (const Kvasir__V1__RoleRequest *)base;
    msg_role role = (msg_role)w->role;
    if (role != MSG_ROLE_PREFILL && role != MSG_ROLE_DECODE && role != MSG_ROLE_BOTH) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "RoleRequest.role: a worker is prefill, decode or both");
    }
    *out = (struct msg_set_role){.role = role};
    return KVS_OK;
}

kvs_status msg_pause_encode(const struct msg_pause *m, struct kvs_buf *out)
{
    Kvasir__V1__SequenceRef w = KVASIR__V1__SEQUENCE_REF__INIT;
    w.request_id = m->request;
    return msg_pack_one(&w.base, out);
}

kvs_status msg_pause_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_pause *out,
                            struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__sequence_ref__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    *out = (struct msg_pause){.request = ((const Kvasir__V1__SequenceRef *)base)->request_id};
    return KVS_OK;
}

kvs_status msg_link_encode(const struct msg_link *m, struct kvs_buf *out)
{
    Kvasir__V1__LinkRequest w = KVASIR__V1__LINK_REQUEST__INIT;
    w.near_ok = m->near_ok;
    w.generation = m->generation;
    w.address_check = m->address_check;
    w.address.len = m->address_bytes;
    memcpy(&w.address.data, &m->address, sizeof m->address);
    return msg_pack_one(&w.base, out);
}

kvs_status msg_link_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_link *out,
                           struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__link_request__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__LinkRequest *w = (const Kvasir__V1__LinkRequest *)base;
    *out = (struct msg_link){.near_ok = w->near_ok != 0,
                             .generation = w->generation,
                             .address_check = w->address_check,
                             .address = w->address.data,
                             .address_bytes = (uint32_t)w->address.len};
    return KVS_OK;
}
