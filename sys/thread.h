/* thread.h - threads with a name, the pinned floating-point environment of the arithmetic contract, and a start/stop rule:
 * close (no new work), stop (waits), destroy.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_THREAD_H
#define KVS_SYS_THREAD_H

#include "base/error.h"

struct kvs_thread;

/* Starts fn(arg) on a new thread called name (15 bytes at most). Signals but its own faults (SIGBUS, ...) are blocked there; MXCSR is at its default. */
KVS_MUST_CHECK kvs_status kvs_thread_start(const char *name, void (*fn)(void *), void *arg, struct kvs_thread **out);
void kvs_thread_join(struct kvs_thread *t); /* waits and frees; NULL is fine */

/* Round to nearest, no flush to zero, no denormals-are-zero: called at the start of every thread that computes. */
void kvs_fp_environment(void);
uint32_t kvs_cpu_count(void);
uint64_t kvs_memory_available(void); /* bytes: MemAvailable, or the cgroup's limit when lower */
uint64_t kvs_memory_total(void);     /* bytes: what the machine has, or the cgroup's limit when lower; 0: not known */

#endif
