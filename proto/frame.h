/* frame.h - the 12-byte frame of control streams (design: section 6) and its parser. Pure: bytes in, frames out.
 *   u32 length (payload, at most 1 MiB), u8 type, u8 flags (0), u16 zero,
 *   u32 stream (dialer odd, listener even; 0: HELLO PING PONG GOAWAY)
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PROTO_FRAME_H
#define KVS_PROTO_FRAME_H

#include "base/buf.h"

#define MSG_FRAME_BYTES 12
#define MSG_PAYLOAD_MAX (1u << 20)

typedef enum msg_frame_type {
    MSG_HELLO = 1,
    MSG_CALL = 2,
    MSG_ITEM = 3,
    MSG_END = 4,
    MSG_ACK = 5,
    MSG_NACK = 6,
    MSG_CANCEL = 7,
    MSG_CREDIT = 8,
    MSG_PAUSE = 9,
    MSG_RESUME = 10,
    MSG_PING = 11,
    MSG_PONG = 12,
    MSG_GOAWAY = 13,
} msg_frame_type;

struct msg_frame {
    uint32_t length;
    uint8_t type;
    uint32_t stream;
    const uint8_t *payload; /* borrowed from the input */
};
/* Looks at the front of n bytes. KVS_OK: one frame, *used_out bytes long. KVS_BUSY_AGAIN: more bytes are needed.
 * KVS_PEER_PROTOCOL: length, type, flags or stream are against the rules; the stream must be closed. */
KVS_MUST_CHECK kvs_status msg_frame_parse(const uint8_t *bytes, size_t n, struct msg_frame *out, size_t *used_out);
KVS_MUST_CHECK kvs_status msg_frame_append(struct kvs_buf *out, msg_frame_type type, uint32_t stream,
                                           const void *payload, uint32_t n);

#endif
