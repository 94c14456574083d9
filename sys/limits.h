/* limits.h - what this process takes from its machine.
 * Descriptors: how many it may have open is raised at start, and held against what its settings can ask for.
 * The usual soft limit of 1,024 is for programs that use select(2); ours use epoll, so the hard limit is what counts. A daemon that could run
 * out within its own settings says so when it starts, where somebody looks, and not with the thousandth client.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_LIMITS_H
#define KVS_SYS_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* Of a daemon itself: log, listeners, loops, files; what peers and clients take comes on top. */
#define KVS_DESCRIPTORS_OWN 64u

/* Raises the soft limit to the hard one, which is written to have_out (UINT64_MAX: none). False: that is fewer than needed. */
bool kvs_descriptors_raise(uint64_t needed, uint64_t *have_out);
/* The same at a daemon's start, after kvs_log_init: when it is too few a warning with the remedy; lower: the setting that asks for less. */
void kvs_descriptors_check(uint64_t needed, const char *lower);
/* At a daemon's start: blocks of 128 KiB and more are mappings of their own and go back to the machine when they are freed, as long as it lives.
 * Left alone, glibc's malloc takes the largest block that was ever freed (up to 32 MiB) for the new threshold and serves later ones from its
 * heap; among small blocks that stay, what they leave behind is not given back: a worker whose peers come and go grew by megabytes an hour
 * with nothing lost. With another C library: nothing. */
void kvs_memory_give_back(void);

#endif
