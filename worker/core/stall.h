/* stall.h - how slow a link may be. A peer may answer its heartbeats while its pages trickle; prompts are not computed at the pace of such a link.
 * While a source computes there is no hurry; once there is nothing left but to send, pages have to come. Pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_STALL_H
#define KVS_WORKER_CORE_STALL_H

#include <stdint.h>

#define WRK_LEAST_RATE 4000000u /* bytes a second, of all transfers over the link together */
#define WRK_STALL_US 5000000u   /* what a transfer has besides */

/* How long `bytes` may take. */
static inline uint64_t wrk_transfer_us(uint64_t stall_us, uint64_t bytes)
{
    return stall_us + bytes * 1000000 / WRK_LEAST_RATE;
}

#endif
