/* digest.h - a worker's cache in short, for etcd: prefixes by the hash of their last block, in segments that are written one by one. Pure.
 * An entry is a prefix and its length; whoever keeps the digest chooses which (worker/core/digest.h). Entries fill the lowest segment that has
 * room and stay there, so that a change touches few segments: what comes together goes together. At most entries_max are kept; what is over
 * that is not taken and counted. A digest is a hint: the worker itself has the last word.
 *   put, remove -> segment dirty -> take (clean) -> written;  not written: spoil (dirty again)
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLUSTER_CORE_DIGEST_H
#define KVS_CLUSTER_CORE_DIGEST_H

#include "base/error.h"
#include "proto/msg.h"

#define CLS_DIGEST_SEGMENTS_MAX 32u
#define CLS_DIGEST_ENTRIES_MAX (CLS_DIGEST_SEGMENTS_MAX * MSG_DIGEST_BLOCKS_MAX)

struct cls_digest;

struct cls_digest_stats {
    uint32_t entries, segments; /* segments: that have been in use */
    uint64_t refused;           /* no room */
};

KVS_MUST_CHECK kvs_status cls_digest_create(uint32_t entries_max,
                                            struct cls_digest **out); /* 1 .. CLS_DIGEST_ENTRIES_MAX */
void cls_digest_destroy(struct cls_digest *d);
void cls_digest_put(struct cls_digest *d, const uint8_t hash[MSG_BLOCK_HASH_BYTES],
                    uint32_t blocks); /* known: nothing changes */
void cls_digest_remove(struct cls_digest *d, const uint8_t hash[MSG_BLOCK_HASH_BYTES]);
/* Told anew: mark all, put what is there, drop what was not put since. */
void cls_digest_mark_all(struct cls_digest *d);
void cls_digest_drop_marked(struct cls_digest *d);

bool cls_digest_dirty(const struct cls_digest *d);
/* The next dirty segment, in turn: its number and content, as of now; it counts as clean. false: none. Pointers are good until the next call. */
bool cls_digest_take(struct cls_digest *d, uint32_t *segment_out, struct msg_cache_digest *out);
void cls_digest_spoil(struct cls_digest *d, uint32_t segment); /* it was not written after all */
void cls_digest_spoil_all(struct cls_digest *d); /* what was written is gone: every segment that was ever in use */

void cls_digest_stats(const struct cls_digest *d, struct cls_digest_stats *out);
bool cls_digest_consistent(const struct cls_digest *d); /* for tests */

#endif
