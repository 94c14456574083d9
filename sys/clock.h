/* clock.h - monotonic time. Wall-clock time is for log lines and "created" fields only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_CLOCK_H
#define KVS_SYS_CLOCK_H

#include "base/status.h"

uint64_t kvs_now_us(void);      /* CLOCK_MONOTONIC */
uint64_t kvs_now_ns(void);
uint64_t kvs_wall_s(void);      /* seconds since 1970 */
void kvs_sleep_us(uint64_t us);
uint64_t kvs_random_u64(void);  /* from the kernel: epochs, nonces */

#endif
