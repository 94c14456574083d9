/* wire_impl.h - what the wire_*.c files share: limits, the scan that enforces them, and packing over kvs_buf and
 * kvs_arena.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PROTO_WIRE_IMPL_H
#define KVS_PROTO_WIRE_IMPL_H

#include "base/checked.h"
#include "proto/kvasir.pb-c.h"
#include "proto/wire.h"

/* Most bytes of a string (without NUL) or bytes field, or most entries of a repeated one. Fields without a row may not
 * be used. */
struct msg_limit {
    const char *field;
    uint32_t max;
};
struct msg_limits {
    const ProtobufCMessageDescriptor *message;
    const struct msg_limit *rows;
    size_t row_count;
};
extern const struct msg_limits msg_limits_table[];
extern const size_t msg_limits_count;
bool msg_limit_of(const ProtobufCMessageDescriptor *d, const char *field, uint32_t *max_out);

/* Walks the bytes by the descriptor without allocating: structure, wire types, ranges, UTF-8, enums and every limit. */
KVS_MUST_CHECK kvs_status msg_scan(const ProtobufCMessageDescriptor *d, const uint8_t *bytes, size_t n,
                                   struct kvs_error *err);

/* scan + unpack into the arena. */
KVS_MUST_CHECK kvs_status msg_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *bytes, size_t n,
                                     struct kvs_arena *a, const ProtobufCMessage **out, struct kvs_error *err);

/* An encoder: parts are appended to out; msg_pack_end checks size and limits, and takes everything back when it
 * fails. */
struct msg_pack {
    struct kvs_buf *out;
    size_t start;
    kvs_status status;
};
void msg_pack_begin(struct msg_pack *p, struct kvs_buf *out);
void msg_pack_put(struct msg_pack *p, const ProtobufCMessage *m); /* the fields of m */
void msg_pack_sub(struct msg_pack *p, uint32_t field,
                  const ProtobufCMessage *m); /* m as one entry of a repeated field */
/* count numbers, `stride` numbers apart, as one packed varint field; none when count is 0. */
void msg_pack_column(struct msg_pack *p, uint32_t field, const uint32_t *first, size_t stride, uint32_t count);
KVS_MUST_CHECK kvs_status msg_pack_end(struct msg_pack *p, const ProtobufCMessageDescriptor *d);
KVS_MUST_CHECK kvs_status msg_pack_one(const ProtobufCMessage *m, struct kvs_buf *out); /* begin, put, end */

void msg_copy_text(char *out, size_t cap, const char *text);
const char *msg_text(const char *text); /* NULL becomes "" */
/* A digest field: exactly n bytes, or none (zeros). */
KVS_MUST_CHECK kvs_status msg_copy_fixed(uint8_t *out, size_t n, const ProtobufCBinaryData *b, const char *field,
                                         struct kvs_error *err);
ProtobufCBinaryData msg_fixed_view(const uint8_t *bytes, size_t n); /* none when all zero */
char *msg_borrow(const char *text); /* protobuf-c's structs are not const; packing does not write */

/* Lists of (block, group) travel as two columns of equal length. */
void msg_pack_wants(struct msg_pack *p, uint32_t block_field, uint32_t group_field, const struct msg_want *wants,
                    uint32_t count);
KVS_MUST_CHECK kvs_status msg_join_wants(struct kvs_arena *a, const uint32_t *blocks, const uint32_t *groups,
                                         uint32_t count, const struct msg_want **out, struct kvs_error *err);

bool msg_status_in_range(uint32_t v);
/* Names of processes stand in logs, label values, header fields and discovery keys: nothing that would need quoting. */
KVS_MUST_CHECK kvs_status msg_check_id(const char *id, const char *field, struct kvs_error *err);

#define MSG_COPY_TEXT(dst, src) msg_copy_text(dst, sizeof(dst), src)

#endif
