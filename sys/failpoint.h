/* failpoint.h - named places where tests inject faults: KVASIR_FAILPOINTS_SET="prefill.after_page=kill@3;decode.after_token=error"
 * Format: name=action[@k] with action kill (SIGKILL self), stop (SIGSTOP self), exit, error (returns true), delay:MS; @k: at the k-th hit (1 by default),
 * @k+: from the k-th on. Each fired point is logged ("failpoint fired") and counted in kvs_failpoint_fired(name).
 * Compiled out (KVS_FAILPOINT is false) unless KVASIR_FAILPOINTS is defined; tests/tidy asserts that release lacks the symbol.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_FAILPOINT_H
#define KVS_SYS_FAILPOINT_H

#include "base/error.h"

#ifdef KVASIR_FAILPOINTS
bool kvs_failpoint_hit(const char *name); /* true: the caller takes its error path */
uint64_t kvs_failpoint_fired(const char *name);
/* Replaces the table, for unit tests; KVS_SELF_CONFIG and an empty table when the text is not understood. */
KVS_MUST_CHECK kvs_status kvs_failpoint_set(const char *spec, struct kvs_error *err);
#define KVS_FAILPOINT(name) kvs_failpoint_hit(name)
#else
#define KVS_FAILPOINT(name) false
#endif

#endif
