/* admission.h - may this request come in, and who is next: bounds on requests, waiting ones and prompt tokens held; a FIFO of ids.
 * Full is an ordinary answer with a hint when to come back. Pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_ADMISSION_H
#define KVS_ROUTER_CORE_ADMISSION_H

#include "base/error.h"

struct rtr_admission {
    uint32_t requests_max, queue_max;
    uint64_t tokens_max;
    uint32_t requests; /* accepted and not over */
    uint64_t tokens;   /* of their prompts */
    /* Waiting requests, next one first: a ring of slots of the request table. It has room for all requests: queue_max bounds those that come
     * in, not those that had begun to run and have lost their worker. */
    uint32_t *queue;
    uint32_t ring, head, waiting;
    /* Finished requests over the last seconds, to say when a place may be free: an exponential mean of the time between two ends,
     * without the times in which nobody was there. */
    uint64_t last_end_us, busy_since_us, gap_us;
};

KVS_MUST_CHECK kvs_status rtr_admission_init(struct rtr_admission *a, uint32_t requests_max, uint32_t queue_max, uint64_t tokens_max);
void rtr_admission_fini(struct rtr_admission *a);
/* Room for one more request with that many prompt tokens? KVS_OK or KVS_BUSY_QUEUE; changes nothing. */
KVS_MUST_CHECK kvs_status rtr_admission_room(const struct rtr_admission *a, uint32_t prompt_tokens, bool must_wait);
void rtr_admission_enter(struct rtr_admission *a, uint32_t prompt_tokens, uint64_t now_us);
void rtr_admission_leave(struct rtr_admission *a, uint32_t prompt_tokens, uint64_t now_us);
void rtr_admission_wait(struct rtr_admission *a, uint32_t slot);
void rtr_admission_wait_first(struct rtr_admission *a, uint32_t slot); /* before all others: its client is in the middle of an answer */
void rtr_admission_unwait(struct rtr_admission *a, uint32_t slot); /* not waiting: nothing happens */
uint32_t rtr_admission_at(const struct rtr_admission *a, uint32_t index); /* index < waiting, 0 is next */
uint32_t rtr_admission_retry_s(const struct rtr_admission *a); /* 1..60 */

#endif
