/* admission.c - see admission.h. The queue is a plain ring; taking one out of the middle (a client that leaves) moves the later ones up:
 * queue_max is in the hundreds, and departures from the queue are rare against tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/admission.h"

#include <stdlib.h>
#include <string.h>

kvs_status rtr_admission_init(struct rtr_admission *a, uint32_t requests_max, uint32_t queue_max, uint64_t tokens_max)
{
    KVS_ASSERT(requests_max > 0);
    memset(a, 0, sizeof(*a));
    a->ring = requests_max;
    a->queue = calloc(a->ring, sizeof(*a->queue));
    if (!a->queue)
        return KVS_SELF_NOMEM;
    a->requests_max = requests_max;
    a->queue_max = queue_max;
    a->tokens_max = tokens_max;
    return KVS_OK;
}

void rtr_admission_fini(struct rtr_admission *a)
{
    free(a->queue);
    memset(a, 0, sizeof(*a));
}

kvs_status rtr_admission_room(const struct rtr_admission *a, uint32_t prompt_tokens, bool must_wait)
{
    if (a->requests >= a->requests_max || (must_wait && a->waiting >= a->queue_max))
        return KVS_BUSY_QUEUE;
    return prompt_tokens > a->tokens_max - a->tokens ? KVS_BUSY_QUEUE : KVS_OK;
}

void rtr_admission_enter(struct rtr_admission *a, uint32_t prompt_tokens, uint64_t now_us)
{
    if (a->requests == 0)
        a->busy_since_us = now_us;
    a->requests++;
    a->tokens += prompt_tokens;
    KVS_ASSERT(a->requests <= a->requests_max);
    KVS_ASSERT(a->tokens <= a->tokens_max);
}

void rtr_admission_leave(struct rtr_admission *a, uint32_t prompt_tokens, uint64_t now_us)
{
    KVS_ASSERT(a->requests > 0);
    KVS_ASSERT(a->tokens >= prompt_tokens);
    a->requests--;
    a->tokens -= prompt_tokens;
    uint64_t from_us = a->last_end_us > a->busy_since_us ? a->last_end_us : a->busy_since_us;
    if (a->last_end_us && now_us >= from_us) {
        uint64_t gap = now_us - from_us;
        a->gap_us = a->gap_us ? a->gap_us - a->gap_us / 8 + gap / 8 : gap;
    }
    a->last_end_us = now_us;
}

static uint32_t *cell(const struct rtr_admission *a, uint32_t index)
{
    return &a->queue[(a->head + index) % a->ring];
}

void rtr_admission_wait(struct rtr_admission *a, uint32_t slot)
{
    KVS_ASSERT(a->waiting < a->ring);
    *cell(a, a->waiting) = slot;
    a->waiting++;
}

void rtr_admission_wait_first(struct rtr_admission *a, uint32_t slot)
{
    KVS_ASSERT(a->waiting < a->ring);
    a->head = (a->head + a->ring - 1) % a->ring;
    a->waiting++;
    *cell(a, 0) = slot;
}

void rtr_admission_unwait(struct rtr_admission *a, uint32_t slot)
{
    uint32_t i = 0;
    while (i < a->waiting && *cell(a, i) != slot)
        i++;
    if (i == a->waiting)
        return;
    if (i == 0) {
        a->head = (a->head + 1) % a->ring;
    } else {
        for (; i + 1 < a->waiting; i++)
            *cell(a, i) = *cell(a, i + 1);
    }
    a->waiting--;
}

uint32_t rtr_admission_at(const struct rtr_admission *a, uint32_t index)
{
    KVS_ASSERT(index < a->waiting);
    return *cell(a, index);
}

uint32_t rtr_admission_retry_s(const struct rtr_admission *a)
{
    uint64_t wait_us = a->gap_us * (a->waiting + 1u);
    uint64_t s = (wait_us + 999999) / 1000000;
    return s < 1 ? 1 : s > 60 ? 60 : (uint32_t)s;
}
