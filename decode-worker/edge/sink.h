/* sink.h - the decode role of a worker daemon: GENERATE calls to the dcw core, its actions to transport, control streams and sampler.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_DECODE_WORKER_EDGE_SINK_H
#define KVS_DECODE_WORKER_EDGE_SINK_H

#include "worker/edge/role.h"

extern const struct wrk_role_ops dcw_role;

#endif
