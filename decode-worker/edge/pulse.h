/* pulse.h - how long the sequences of a decode worker wait for their tokens: time to the first one, and between two.
 * A bounded map from (request, choice) to the time of the last token. Edge, loop thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_DECODE_WORKER_EDGE_PULSE_H
#define KVS_DECODE_WORKER_EDGE_PULSE_H

#include "base/map.h"
#include "proto/msg.h"
#include "sys/metrics.h"

struct dcw_pulse {
    struct kvs_map *last;
    struct kvs_histogram *ttft, *itl;
};

KVS_MUST_CHECK kvs_status dcw_pulse_init(struct dcw_pulse *p, struct kvs_metrics *m, uint32_t sequences_max);
void dcw_pulse_fini(struct dcw_pulse *p);
void dcw_pulse_call(struct dcw_pulse *p, const struct msg_generate *g, uint64_t now_us); /* a GENERATE call came in */
void dcw_pulse_token(struct dcw_pulse *p, const struct msg_token *t, uint64_t now_us);   /* an entry went out */

#endif
