/* sink.h - receiving end of one transfer, as a pure state machine. Owner: the transport thread (or the simulator).
 *
 *   open --all wanted landed and END(ok)--> complete          any --cancel--> cancelled
 *   open --END, and a page is neither landed nor being received--> failed (its missing pages are listed for NACK)
 *
 * A page goes wanted -> receiving -> landed | bad (bad ones are not taken again: the transfer ends in NACK). END with a status other
 * than KVS_OK fails the transfer at once. It is reusable as soon as it is not `receiving`. kvt_sink_check runs first on every
 * message and trusts nothing: the caller declines (and counts) whatever is not KVT_ACCEPT.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVTRANSFER_CORE_SINK_H
#define KVS_KVTRANSFER_CORE_SINK_H

#include "kvtransfer/core/wire.h"

typedef enum kvt_verdict {
    KVT_ACCEPT,
    KVT_DECLINE_HEADER,   /* header is not 56 bytes */
    KVT_DECLINE_VERSION,  /* version, kind or flags unknown */
    KVT_DECLINE_EPOCH,
    KVT_DECLINE_XFER,     /* no such transfer */
    KVT_DECLINE_NONCE,
    KVT_DECLINE_CLOSED,   /* cancelled, failed or complete */
    KVT_DECLINE_INDEX,    /* not wanted */
    KVT_DECLINE_DOUBLE,   /* landed already or being received */
    KVT_DECLINE_LENGTH,   /* message length or header bytes are not the page's */
    KVT_DECLINE_CHECKSUM, /* counted after landing */
    KVT_DECLINE_TRANSPORT, /* the receive itself failed */
    KVT_VERDICTS
} kvt_verdict;
const char *kvt_verdict_name(kvt_verdict v); /* label of kvasir_kv_declined_total{reason} */

typedef enum kvt_sink_state { KVT_SINK_OPEN, KVT_SINK_COMPLETE, KVT_SINK_FAILED, KVT_SINK_CANCELLED } kvt_sink_state;

struct kvt_want {
    uint32_t block; /* KVT_LOGITS_BLOCK for the logits message */
    uint16_t group, shard;
    uint64_t bytes;
    void *dest;     /* where it lands; bytes long; not looked at by the state machine */
};
struct kvt_sink;

struct kvt_sink_config {
    uint64_t sink_epoch, xfer, nonce;
    const struct kvt_want *wants; /* copied; (block, group, shard) unique */
    uint32_t want_count;          /* 1 .. 65536 */
};
KVS_MUST_CHECK kvs_status kvt_sink_create(const struct kvt_sink_config *c, struct kvt_sink **out);
void kvt_sink_destroy(struct kvt_sink *s);

/* Full check of a message of `length` payload bytes against this transfer; slot_out on KVT_ACCEPT. Changes nothing. */
kvt_verdict kvt_sink_check(const struct kvt_sink *s, const struct kvt_header *h, uint64_t length, uint32_t *slot_out);
uint64_t kvt_sink_checksum(const struct kvt_sink *s, uint32_t slot); /* what begin was told */
const struct kvt_want *kvt_sink_want(const struct kvt_sink *s, uint32_t slot);
void kvt_sink_begin(struct kvt_sink *s, uint32_t slot, uint64_t checksum);     /* receive posted */
void kvt_sink_landed(struct kvt_sink *s, uint32_t slot, bool ok);              /* receive finished (ok: and verified) */
void kvt_sink_end(struct kvt_sink *s, kvs_status status, uint32_t pages_sent); /* END arrived; it may overtake pages being received */
void kvt_sink_cancel(struct kvt_sink *s);
kvt_sink_state kvt_sink_state_of(const struct kvt_sink *s);
uint32_t kvt_sink_receiving(const struct kvt_sink *s); /* posted and not finished: 0 = every page may be reused */
uint32_t kvt_sink_landed_count(const struct kvt_sink *s);
uint64_t kvt_sink_landed_bytes(const struct kvt_sink *s); /* KV pages only, logits left out */
/* Slots that have not landed (for NACK, or to compute them here); returns the count, writes at most cap. */
uint32_t kvt_sink_missing(const struct kvt_sink *s, uint32_t *slots_out, uint32_t cap);
void kvt_sink_landed_of(const struct kvt_sink *s, uint32_t *pages_out, uint32_t groups); /* KV pages landed, of each group below `groups` */
uint64_t kvt_sink_xfer(const struct kvt_sink *s);

#endif
