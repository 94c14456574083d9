/* ring.h - bounded queue of fixed-size items between threads: any number of producers, one consumer, no locks.
 * Vyukov's bounded MPMC queue restricted to one consumer. Items are copied in and out. Full and empty are ordinary answers.
 * The ring does not wake anybody: the producer's edge does (eventfd, condition variable).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_RING_H
#define KVS_BASE_RING_H

#include "base/error.h"

struct kvs_ring;

KVS_MUST_CHECK kvs_status kvs_ring_create(size_t slots_pow2, size_t item_bytes, struct kvs_ring **out);
void kvs_ring_destroy(struct kvs_ring *r);
KVS_MUST_CHECK kvs_status kvs_ring_push(struct kvs_ring *r, const void *item); /* KVS_BUSY_QUEUE when full; any thread */
bool kvs_ring_pop(struct kvs_ring *r, void *item_out);                         /* false when empty; consumer thread only */
size_t kvs_ring_count(const struct kvs_ring *r);                               /* a snapshot, for metrics */

#endif
