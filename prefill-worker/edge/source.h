/* source.h - the prefill role of a worker daemon: PREFILL and FETCH calls to the pfw core, its actions to transport and control
 * streams. It stands before the decode role, which takes every CANCEL.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PREFILL_WORKER_EDGE_SOURCE_H
#define KVS_PREFILL_WORKER_EDGE_SOURCE_H

#include "worker/edge/role.h"

extern const struct wrk_role_ops pfw_role;

#endif
