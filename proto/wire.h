/* wire.h - bytes <-> the structs of msg.h, with limits. encode appends to out; decode allocates from the arena.
 * Unknown protobuf fields are ignored (rolling upgrades); a missing required one, a length over its limit, text
 * that is not UTF-8 or an enum out of range is KVS_PEER_PROTOCOL with the field's name in err. Pure.
 * An encode that passes MSG_PAYLOAD_MAX is KVS_REQ_TOO_LARGE (262,144 tokens fit only while their ids are small);
 * one that the peer would not decode is KVS_REQ_INVALID; out then is as it was. An arena of MSG_ARENA_BYTES is
 * enough for any message (KVS_SELF_NOMEM otherwise); most need a few kilobytes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PROTO_WIRE_H
#define KVS_PROTO_WIRE_H

#include "base/arena.h"
#include "base/buf.h"
#include "proto/msg.h"

#define MSG_ARENA_BYTES (32u << 20)

#define MSG_CODEC(name)                                                                                \
    KVS_MUST_CHECK kvs_status msg_##name##_encode(const struct msg_##name *m, struct kvs_buf *out);    \
    KVS_MUST_CHECK kvs_status msg_##name##_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, \
                                                  struct msg_##name *out, struct kvs_error *err);
MSG_CODEC(hello)
MSG_CODEC(call)
MSG_CODEC(generate)
MSG_CODEC(tokens)
MSG_CODEC(prefill)
MSG_CODEC(end)
MSG_CODEC(nack)
MSG_CODEC(abort)
MSG_CODEC(set_role)
MSG_CODEC(pause)
MSG_CODEC(link)
MSG_CODEC(card)
MSG_CODEC(members)
MSG_CODEC(load)
MSG_CODEC(cache_events)
MSG_CODEC(cache_digest)
MSG_CODEC(health)
MSG_CODEC(model_info_piece)
MSG_CODEC(chunk)

#endif
