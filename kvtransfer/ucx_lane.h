/* ucx_lane.h - which transport carries the pages of an endpoint.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVTRANSFER_UCX_LANE_H
#define KVS_KVTRANSFER_UCX_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <ucp/api/ucp.h>

/* "cma", "tcp", "sysv", "posix", "rdma", "self", or "unknown". */
const char *kvt_ucx_transport(ucp_ep_h ep);
/* The same from the text of ucp_ep_print_info (its form is UCX's own, hence tested apart). */
const char *kvt_ucx_transport_of_text(const char *text);

#endif
