/* wire.c - the 56 bytes before every KV message, and the checksum of what follows them.
 * Decoding checks the length only: what the fields must be is the sink's business (kvt_sink_check), which knows the
 * transfer. The checksum is a hash of the hashes of 4 KiB pieces, so that a GPU can take it in parallel; the array of
 * piece hashes is fed through a stream in small runs, so that a page of any size needs no memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/core/wire.h"

#include "base/checked.h"
#include "kvtransfer/core/piece.h"
#define XXH_STATIC_LINKING_ONLY /* the layout of a stream state: it lives on the stack here */
#include <xxhash.h>

#define PIECE_BYTES 4096u
#define RUN_PIECES 512u /* a 2 MiB page in one run */

_Static_assert(2 + 2 + 4 + 8 + 8 + 8 + 4 + 2 + 2 + 8 + 8 == KVT_HEADER_BYTES, "header fields fill the header");

void kvt_header_encode(const struct kvt_header *h, uint8_t out[KVT_HEADER_BYTES])
{
    KVS_ASSERT(h != NULL && out != NULL);
    kvs_store_u16(out + 0, h->version);
    kvs_store_u16(out + 2, h->kind);
    kvs_store_u32(out + 4, h->flags);
    kvs_store_u64(out + 8, h->sink_epoch);
    kvs_store_u64(out + 16, h->xfer);
    kvs_store_u64(out + 24, h->nonce);
    kvs_store_u32(out + 32, h->block);
    kvs_store_u16(out + 36, h->group);
    kvs_store_u16(out + 38, h->shard);
    kvs_store_u64(out + 40, h->bytes);
    kvs_store_u64(out + 48, h->checksum);
}

bool kvt_header_decode(const void *bytes, size_t n, struct kvt_header *out)
{
    KVS_ASSERT(out != NULL);
    if (n != KVT_HEADER_BYTES || bytes == NULL)
        return false;
    const uint8_t *p = bytes;
    *out = (struct kvt_header){
        .version = kvs_load_u16(p),
        .kind = kvs_load_u16(p + 2),
        .flags = kvs_load_u32(p + 4),
        .sink_epoch = kvs_load_u64(p + 8),
        .xfer = kvs_load_u64(p + 16),
        .nonce = kvs_load_u64(p + 24),
        .block = kvs_load_u32(p + 32),
        .group = kvs_load_u16(p + 36),
        .shard = kvs_load_u16(p + 38),
        .bytes = kvs_load_u64(p + 40),
        .checksum = kvs_load_u64(p + 48),
    };
    return true;
}

bool kvt_header_known(const struct kvt_header *h)
{
    KVS_ASSERT(h != NULL);
    return h->version == KVT_WIRE_VERSION && (h->kind == KVT_PAGE || h->kind == KVT_LOGITS) && h->flags == 0;
}

static uint64_t piece_hash(const void *bytes, size_t n)
{
#ifdef KVT_PIECE_AVX2
    if (__builtin_cpu_supports("avx2"))
        return kvt_piece_avx2(bytes, n);
#endif
    return XXH3_64bits(bytes, n);
}

uint64_t kvt_checksum(const void *bytes, size_t n)
{
    KVS_ASSERT(bytes != NULL || n == 0);
    uint64_t run[RUN_PIECES];
    const uint8_t *p = bytes;
    XXH3_state_t stream;
    bool streaming = false;
    size_t k = 0;
    for (size_t at = 0; at < n; at += PIECE_BYTES) {
        if (k == RUN_PIECES) {
            if (!streaming)
                XXH3_64bits_reset(&stream);
            streaming = true;
            XXH3_64bits_update(&stream, run, sizeof run);
            k = 0;
        }
        size_t piece = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
        kvs_store_u64(&run[k++], piece_hash(p + at, piece));
    }
    if (!streaming)
        return XXH3_64bits(run, k * sizeof *run);
    XXH3_64bits_update(&stream, run, k * sizeof *run);
    return XXH3_64bits_digest(&stream);
}
