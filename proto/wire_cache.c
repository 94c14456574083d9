/* wire_cache.c - what is told about cached blocks: events on control streams, segments of digests in etcd.
 * Hashes travel as one run of bytes and their numbers as one column; the two must agree in length.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire_impl.h"

static ProtobufCBinaryData view(const uint8_t *bytes, size_t n)
{
    ProtobufCBinaryData b = {n, NULL};
    memcpy(&b.data, &bytes, sizeof bytes); /* drops const: protobuf-c only reads it */
    return b;
}

static kvs_status same_length(const ProtobufCBinaryData *hashes, size_t count, struct kvs_error *err)
{
    if (hashes->len == count * MSG_BLOCK_HASH_BYTES) {
        return KVS_OK;
    }
    return kvs_fail(err, KVS_PEER_PROTOCOL, "%zu bytes of block hashes for %zu blocks", hashes->len, count);
}

kvs_status msg_cache_events_encode(const struct msg_cache_events *m, struct kvs_buf *out)
{
    Kvasir__V1__CacheEvents w = KVASIR__V1__CACHE_EVENTS__INIT;
    if (m->count > MSG_CACHE_BLOCKS_MAX) {
        return KVS_REQ_TOO_LARGE;
    }
    w.first_sequence = m->first_sequence;
    w.snapshot_begin = m->snapshot_begin;
    w.snapshot_end = m->snapshot_end;
    w.hashes = view(m->hashes, (size_t)m->count * MSG_BLOCK_HASH_BYTES);
    struct msg_pack p;
    msg_pack_begin(&p, out);
    msg_pack_put(&p, &w.base);
    msg_pack_column(&p, 5, m->depths, 1, m->count);
    return msg_pack_end(&p, &kvasir__v1__cache_events__descriptor);
}

kvs_status msg_cache_events_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_cache_events *out,
                                   struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__cache_events__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__CacheEvents *w = (const Kvasir__V1__CacheEvents *)base;
    struct msg_cache_events m = {.first_sequence = w->first_sequence,
                                 .snapshot_begin = w->snapshot_begin != 0,
                                 .snapshot_end = w->snapshot_end != 0,
                                 .hashes = w->hashes.data, /* in the arena, as the depths */
                                 .depths = w->depths,
                                 .count = (uint32_t)w->n_depths};
    s = same_length(&w->hashes, w->n_depths, err);
    if (s == KVS_OK) {
        *out = m;
    }
    return s;
}

kvs_status msg_cache_digest_encode(const struct msg_cache_digest *m, struct kvs_buf *out)
{
    Kvasir__V1__CacheDigest w = KVASIR__V1__CACHE_DIGEST__INIT;
    if (m->count > MSG_DIGEST_BLOCKS_MAX) {
        return KVS_REQ_TOO_LARGE;
    }
    w.epoch = m->epoch;
    w.hashes = view(m->hashes, (size_t)m->count * MSG_BLOCK_HASH_BYTES);
    struct msg_pack p;
    msg_pack_begin(&p, out);
    msg_pack_put(&p, &w.base);
    msg_pack_column(&p, 3, m->blocks, 1, m->count);
    return msg_pack_end(&p, &kvasir__v1__cache_digest__descriptor);
}

kvs_status msg_cache_digest_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_cache_digest *out,
                                   struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__cache_digest__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__CacheDigest *w = (const Kvasir__V1__CacheDigest *)base;
    for (size_t i = 0; i < w->n_blocks; i++) {
        if (w->blocks[i] == 0) {
            return kvs_fail(err, KVS_PEER_PROTOCOL, "CacheDigest.blocks: a prefix without a block");
        }
    }
    struct msg_cache_digest m = {
        .epoch = w->epoch, .hashes = w->hashes.data, .blocks = w->blocks, .count = (uint32_t)w->n_blocks};
    s = same_length(&w->hashes, w->n_blocks, err);
    if (s == KVS_OK) {
        *out = m;
    }
    return s;
}
