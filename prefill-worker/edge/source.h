/* source.h - the prefill role of a worker daemon: PREFILL calls to the pfw core, its actions to transport and control streams.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PREFILL_WORKER_EDGE_SOURCE_H
#define KVS_PREFILL_WORKER_EDGE_SOURCE_H

#include "worker/edge/role.h"

extern const struct wrk_role_ops pfw_role;
/* Serves FETCH only (what is cached here): for a daemon without the prefill role. Stands before the decode role, which takes every CANCEL. */
extern const struct wrk_role_ops pfw_fetch_role;

#endif
