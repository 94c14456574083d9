/* etcd_taken.h - two clusters of `kvasir up` on one etcd: their daemons have the same names, and the newer one of two has a name.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_ETCD_TAKEN_H
#define KVS_CLI_ETCD_TAKEN_H

#include "cli/up_plan.h"

/* The first daemon of the plan whose name stands in that cluster already; "" when there is none, or etcd does not say. */
void cli_etcd_taken(const char *discovery, const char *cluster, const struct cli_up_plan *plan, char *name_out, size_t cap);

#endif
