/* source.h - sending end of one transfer, as a pure state machine. Owner: the loop thread (or the simulator).
 * It knows what is wanted, what was handed to the transport, and when END is due: when everything was posted and every send completed
 * (a completion is not delivery), or when the transfer stopped and its last send completed. Pages stay pinned until kvt_source_released.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVTRANSFER_CORE_SOURCE_H
#define KVS_KVTRANSFER_CORE_SOURCE_H

#include "kvtransfer/core/wire.h"

struct kvt_source;

struct kvt_source_config {
    uint64_t sink_epoch, xfer, nonce;
    uint32_t message_count; /* pages and logits that the sink wants */
    uint64_t deadline_us;   /* of the call: unpin then at the latest */
};
KVS_MUST_CHECK kvs_status kvt_source_create(const struct kvt_source_config *c, struct kvt_source **out);
void kvt_source_destroy(struct kvt_source *s);

/* Fills the header of the next message and counts it as posted; KVS_BUSY_AGAIN once the transfer was stopped. */
KVS_MUST_CHECK kvs_status kvt_source_post(struct kvt_source *s, kvt_kind kind, uint32_t block, uint16_t group, uint16_t shard, uint64_t bytes,
                                          struct kvt_header *out);
void kvt_source_sent(struct kvt_source *s, kvs_status status); /* a posted send completed */
void kvt_source_stop(struct kvt_source *s, kvs_status why);    /* CANCEL, abort, numeric error: post nothing more */
/* True once: END{status, pages_sent} is due now. */
bool kvt_source_take_end(struct kvt_source *s, kvs_status *status_out, uint32_t *pages_sent_out);
/* ACK, NACK, CANCEL, stream loss or deadline: the sink needs nothing more. */
void kvt_source_close(struct kvt_source *s);
/* Pages may be unpinned: closed (or past deadline) and no send in flight. */
bool kvt_source_released(const struct kvt_source *s, uint64_t now_us);
uint32_t kvt_source_in_flight(const struct kvt_source *s);

#endif
