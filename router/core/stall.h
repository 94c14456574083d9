/* stall.h - the rule by which a client that does not read is told from one that reads slowly. The edge reports, from time to time, how much the
 * client has taken since ever and whether anything waits for it; both mean what the carrier can know (TCP: bytes that the other kernel has
 * confirmed; a control stream: bytes for which it has given credit).
 *   - One byte taken, or nothing waiting: the time begins anew. So a slow client that moves is never stalled.
 *   - Time counts only between two looks that both saw something waiting, and at most RTR_STALL_STEP_US a look: while this process itself was
 *     stopped nobody could be seen reading, so that time is not the client's.
 * Thus a client is stalled never before limit_us of not taking, and at the latest two looks after.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_STALL_H
#define KVS_ROUTER_CORE_STALL_H

#include <stdbool.h>
#include <stdint.h>

#define RTR_STALL_STEP_US 2000000u

struct rtr_stall { /* zeroed to begin with */
    uint64_t taken, waited_us, looked_us;
    bool waiting;
};

/* Has the client taken nothing for limit_us (not 0) while something waited for it? */
bool rtr_stall_look(struct rtr_stall *s, uint64_t taken, bool waiting, uint64_t limit_us, uint64_t now_us);

#endif
