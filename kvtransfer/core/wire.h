/* wire.h - the header of a KV message and the checksum of a page (design: section 6). Pure.
 * Little-endian, 56 bytes: u16 version, u16 kind, u32 flags, u64 sink_epoch, u64 xfer, u64 nonce, u32 block, u16 group, u16 shard,
 * u64 bytes, u64 checksum. No address ever travels: the receiver looks its page up by (xfer, block, group, shard).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVTRANSFER_CORE_WIRE_H
#define KVS_KVTRANSFER_CORE_WIRE_H

#include "base/error.h"

#define KVT_WIRE_VERSION 1
#define KVT_HEADER_BYTES 56
#define KVT_LOGITS_BLOCK 0xffffffffu
#define KVT_LOGITS_GROUP 0xffffu

typedef enum kvt_kind { KVT_PAGE = 0, KVT_LOGITS = 1 } kvt_kind;

struct kvt_header {
    uint16_t version, kind;
    uint32_t flags;
    uint64_t sink_epoch, xfer, nonce;
    uint32_t block;
    uint16_t group, shard;
    uint64_t bytes, checksum;
};
void kvt_header_encode(const struct kvt_header *h, uint8_t out[KVT_HEADER_BYTES]);
bool kvt_header_decode(const void *bytes, size_t n, struct kvt_header *out); /* false: n is not 56 */
bool kvt_header_known(const struct kvt_header *h); /* version, kind and flags are ours */
/* XXH3-64 over the array of XXH3-64 of each 4 KiB piece (the last may be shorter). */
uint64_t kvt_checksum(const void *bytes, size_t n);

#endif
