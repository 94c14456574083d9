/* frame.c - the 12-byte head of control-stream frames, written and read.
 * The parser looks only at what has arrived: it never asks for more memory because of a length it was told, and it
 * judges the whole head at once, so that a peer that speaks another protocol is cut off by its first twelve bytes.
 * Streams: HELLO, PING, PONG and GOAWAY belong to the connection (stream 0), everything else to a call (stream not
 * 0). Which parity a call must have depends on who dialed, so the connection checks that.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/frame.h"
#include "base/checked.h"

static bool frame_is_for_connection(uint8_t type)
{
    return type == MSG_HELLO || type == MSG_PING || type == MSG_PONG || type == MSG_GOAWAY;
}

/* CREDIT and PING/PONG have exactly one payload length; ACK and CANCEL have none. */
static bool frame_length_fits(uint8_t type, uint32_t length)
{
    switch (type) {
    case MSG_CREDIT: return length == 4;
    case MSG_PING:
    case MSG_PONG: return length == 8;
    case MSG_ACK:
    case MSG_CANCEL: return length == 0;
    default: return length <= MSG_PAYLOAD_MAX;
    }
}

kvs_status msg_frame_parse(const uint8_t *bytes, size_t n, struct msg_frame *out, size_t *used_out)
{
    if (n < MSG_FRAME_BYTES) {
        return KVS_BUSY_AGAIN;
    }
    uint32_t length = kvs_load_u32(bytes);
    uint8_t type = bytes[4];
    uint32_t stream = kvs_load_u32(bytes + 8);
    if (type < MSG_HELLO || type > MSG_GOAWAY || bytes[5] != 0 || kvs_load_u16(bytes + 6) != 0 ||
        !frame_length_fits(type, length) || frame_is_for_connection(type) != (stream == 0)) {
        return KVS_PEER_PROTOCOL;
    }
    if (n - MSG_FRAME_BYTES < length) {
        return KVS_BUSY_AGAIN;
    }
    *out = (struct msg_frame){.length = length, .type = type, .stream = stream, .payload = bytes + MSG_FRAME_BYTES};
    *used_out = MSG_FRAME_BYTES + (size_t)length;
    return KVS_OK;
}

kvs_status msg_frame_append(struct kvs_buf *out, msg_frame_type type, uint32_t stream, const void *payload, uint32_t n)
{
    KVS_ASSERT(frame_length_fits((uint8_t)type, n));
    KVS_ASSERT(frame_is_for_connection((uint8_t)type) == (stream == 0));
    uint8_t *p;
    kvs_status s = kvs_buf_reserve(out, MSG_FRAME_BYTES + (size_t)n, &p);
    if (s != KVS_OK) {
        return s;
    }
    kvs_store_u32(p, n);
    p[4] = (uint8_t)type;
    p[5] = 0;
    kvs_store_u16(p + 6, 0);
    kvs_store_u32(p + 8, stream);
    if (n > 0) {
        memcpy(p + MSG_FRAME_BYTES, payload, n);
    }
    kvs_buf_commit(out, MSG_FRAME_BYTES + (size_t)n);
    return KVS_OK;
}
