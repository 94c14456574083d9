/* metrics_text.h - sums over a Prometheus page: what `chat --stats` tells about KV transfers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_METRICS_TEXT_H
#define KVS_CLI_METRICS_TEXT_H

#include "base/buf.h"

struct cli_transfer {
    double pages, bytes, seconds; /* of all workers together */
    double exposed;               /* seconds that requests waited for pages after their prefill */
    char transport[16];           /* the one that moved most bytes, "" when none did */
};
/* Sum of a series over all its label sets, those with worker="..." only (the router repeats its workers' pages). */
double cli_metric_sum(const char *page, const char *name);
/* From the text of a router's page. */
void cli_transfer_parse(const char *page, struct cli_transfer *out);
/* GET base/metrics; false when there is no answer. */
bool cli_transfer_read(const char *base, struct cli_transfer *out);

#endif
