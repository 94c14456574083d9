/* limits.h - how many descriptors this process may have open: raised at start, and held against what its settings can ask for.
 * The usual soft limit of 1,024 is for programs that use select(2); ours use epoll, so the hard limit is what counts. A daemon that could run
 * out within its own settings says so when it starts, where somebody looks, and not with the thousandth client.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_LIMITS_H
#define KVS_SYS_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* Raises the soft limit to the hard one, which is written to have_out (UINT64_MAX: none). False: that is fewer than needed. */
bool kvs_descriptors_raise(uint64_t needed, uint64_t *have_out);
/* The same at a daemon's start, after kvs_log_init: when it is too few a warning with the remedy; lower: the setting that asks for less. */
void kvs_descriptors_check(uint64_t needed, const char *lower);

#endif
