/* cluster_view.h - what a router says about its cluster (GET /kvasir/status), read once for `status` and `up`.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_CLUSTER_VIEW_H
#define KVS_CLI_CLUSTER_VIEW_H

#include "cli/cli.h"
#include <jansson.h>

/* The parsed object, to be json_decref'd. KVS_PEER_* when no router answers there. */
KVS_MUST_CHECK kvs_status cli_cluster_view(const char *base_url, uint32_t timeout_ms, json_t **out,
                                           struct kvs_error *err);
/* Workers that are ready; linked_out: each decode worker has a link to each prefill worker. */
uint32_t cli_cluster_workers(const json_t *view, bool *linked_out);

/* Workers that came and did not fit, in one line: name, model, when, field and both values. */
void cli_misfit_text(const json_t *misfit, char *out, size_t cap);

/* Below the workers' table: caches, speeds, links, the last placements. */
void cli_status_tables(const json_t *view);

#endif
