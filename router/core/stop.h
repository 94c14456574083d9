/* stop.h - finds stop strings in a text that comes in pieces, without letting out a byte that may belong to one. Pure.
 * The match that is complete first wins; of several that are complete at the same byte, the longest. So the answer does not depend on how the
 * text was cut into pieces. Held back is only the longest tail that could still grow into a stop string.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_STOP_H
#define KVS_ROUTER_CORE_STOP_H

#include "base/buf.h"

#define RTR_STOPS_MAX 4
#define RTR_STOP_BYTES_MAX 512

struct rtr_stop_set {
    uint32_t count;
    uint32_t len[RTR_STOPS_MAX]; /* 1..RTR_STOP_BYTES_MAX */
    char text[RTR_STOPS_MAX][RTR_STOP_BYTES_MAX];
};
struct rtr_stop {
    const struct rtr_stop_set *set; /* borrowed */
    uint8_t tail[RTR_STOP_BYTES_MAX]; /* held back; a beginning of some stop string */
    uint32_t tail_len;
    bool found;
};

void rtr_stop_init(struct rtr_stop *s, const struct rtr_stop_set *set);
/* Appends to out what is certain. After a match (s->found) nothing comes out any more. */
KVS_MUST_CHECK kvs_status rtr_stop_push(struct rtr_stop *s, const void *bytes, size_t n, struct kvs_buf *out);
/* The text has ended: what was held back is ordinary text after all. */
KVS_MUST_CHECK kvs_status rtr_stop_flush(struct rtr_stop *s, struct kvs_buf *out);

#endif
