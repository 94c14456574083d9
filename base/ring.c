/* ring.c - Vyukov's bounded queue, used with many producers and one consumer.
 * Each slot carries a sequence number that says whose turn it is:
 *   seq == pos             free for the producer that claims position pos
 *   seq == pos + 1         filled, waiting for the consumer at pos
 *   seq == pos + slots     free again, one lap later
 * A producer claims a position by compare-and-swap on tail, copies the item, then publishes it by storing seq with release;
 * the consumer's acquire load of seq makes the copy visible. A producer that is descheduled between claim and publish makes
 * the ring look empty from its slot on, until it publishes: whoever wakes the consumer must do so after its own push.
 * Positions count up for ever; 64 bits do not wrap.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/ring.h"

#include "base/checked.h"
#include <stdatomic.h>
#include <stdlib.h>

enum { SLOT_HEAD = 16, LINE = 64 };

struct kvs_ring {
    size_t mask, item_bytes, stride;
    uint8_t *slots; /* owned; each stride bytes: atomic sequence, padding to 16, item */
    uint8_t pad0[LINE];
    _Atomic uint64_t tail; /* next position to claim; producers */
    uint8_t pad1[LINE];
    _Atomic uint64_t head; /* next position to read; written by the consumer only */
    uint8_t pad2[LINE];
};

static _Atomic uint64_t *slot_seq(const struct kvs_ring *r, uint64_t pos)
{
    return (_Atomic uint64_t *)(void *)(r->slots + ((size_t)pos & r->mask) * r->stride);
}

static uint8_t *slot_item(const struct kvs_ring *r, uint64_t pos)
{
    return r->slots + ((size_t)pos & r->mask) * r->stride + SLOT_HEAD;
}

kvs_status kvs_ring_create(size_t slots_pow2, size_t item_bytes, struct kvs_ring **out)
{
    KVS_ASSERT(slots_pow2 >= 2 && (slots_pow2 & (slots_pow2 - 1)) == 0);
    KVS_ASSERT(item_bytes > 0 && item_bytes <= (1u << 20));
    struct kvs_ring *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return KVS_SELF_NOMEM;
    }
    r->mask = slots_pow2 - 1;
    r->item_bytes = item_bytes;
    r->stride = SLOT_HEAD + (item_bytes + SLOT_HEAD - 1) / SLOT_HEAD * SLOT_HEAD;
    r->slots = calloc(slots_pow2, r->stride);
    if (r->slots == NULL) {
        kvs_ring_destroy(r);
        return KVS_SELF_NOMEM;
    }
    for (size_t i = 0; i < slots_pow2; i++) {
        atomic_init(slot_seq(r, i), i);
    }
    atomic_init(&r->tail, 0);
    atomic_init(&r->head, 0);
    *out = r;
    return KVS_OK;
}

void kvs_ring_destroy(struct kvs_ring *r)
{
    if (r == NULL) {
        return;
    }
    free(r->slots);
    free(r);
}

kvs_status kvs_ring_push(struct kvs_ring *r, const void *item)
{
    uint64_t pos = atomic_load_explicit(&r->tail, memory_order_relaxed);
    for (;;) {
        uint64_t seq = atomic_load_explicit(slot_seq(r, pos), memory_order_acquire);
        if (seq == pos) {
            if (atomic_compare_exchange_weak_explicit(&r->tail, &pos, pos + 1, memory_order_relaxed,
                                                      memory_order_relaxed)) {
                break;
            }
        } else if (seq < pos) {
            return KVS_BUSY_QUEUE; /* still holds the item of one lap ago */
        } else {
            pos = atomic_load_explicit(&r->tail, memory_order_relaxed);
        }
    }
    memcpy(slot_item(r, pos), item, r->item_bytes);
    atomic_store_explicit(slot_seq(r, pos), pos + 1, memory_order_release);
    return KVS_OK;
}

bool kvs_ring_pop(struct kvs_ring *r, void *item_out)
{
    uint64_t pos = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint64_t seq = atomic_load_explicit(slot_seq(r, pos), memory_order_acquire);
    if (seq != pos + 1) {
        KVS_ASSERT(seq == pos); /* anything else: a second consumer */
        return false;
    }
    memcpy(item_out, slot_item(r, pos), r->item_bytes);
    atomic_store_explicit(slot_seq(r, pos), pos + r->mask + 1, memory_order_release);
    atomic_store_explicit(&r->head, pos + 1, memory_order_relaxed);
    return true;
}

size_t kvs_ring_count(const struct kvs_ring *r)
{
    /* head first: it only grows, so the difference cannot come out negative. */
    uint64_t head = atomic_load_explicit(&r->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    uint64_t n = tail - head;
    return n > r->mask + 1 ? r->mask + 1 : (size_t)n;
}
