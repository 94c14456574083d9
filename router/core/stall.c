/* stall.c - see stall.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/stall.h"

#include "base/error.h"

bool rtr_stall_look(struct rtr_stall *s, uint64_t taken, bool waiting, uint64_t limit_us, uint64_t now_us)
{
    KVS_ASSERT(limit_us != 0 && now_us >= s->looked_us);
    uint64_t since = now_us - s->looked_us;
    bool moved = taken != s->taken, waited = s->waiting;
    s->taken = taken;
    s->looked_us = now_us;
    s->waiting = waiting;
    if (!waiting || moved || !waited)
        s->waited_us = 0;
    else
        s->waited_us += since < RTR_STALL_STEP_US ? since : RTR_STALL_STEP_US;
    return s->waited_us >= limit_us;
}
