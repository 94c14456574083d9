/* metrics.h - counters, gauges and histograms, written as Prometheus text (version 0.0.4).
 * Series are created at start (loop thread); updates are atomic and may come from any thread; a handle lives as long as the registry.
 * Creating the same name with the same labels twice returns the same series. Names: kvasir_*, base unit suffix, _total on counters.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_METRICS_H
#define KVS_SYS_METRICS_H

#include "base/buf.h"

struct kvs_metrics;
struct kvs_counter;
struct kvs_gauge;
struct kvs_histogram;

KVS_MUST_CHECK kvs_status kvs_metrics_create(struct kvs_metrics **out);
void kvs_metrics_destroy(struct kvs_metrics *m);

/* labels: text as it stands between the braces, e.g. "group=\"0\",state=\"free\"", or "" for none. NULL only when out of memory. */
struct kvs_counter *kvs_counter(struct kvs_metrics *m, const char *name, const char *labels, const char *help);
struct kvs_gauge *kvs_gauge(struct kvs_metrics *m, const char *name, const char *labels, const char *help);
/* bounds: ascending upper edges, +Inf is added. */
struct kvs_histogram *kvs_histogram(struct kvs_metrics *m, const char *name, const char *labels, const char *help,
                                    const double *bounds, size_t bound_count);
void kvs_counter_add(struct kvs_counter *c, uint64_t n); /* NULL-safe, as all updates */
uint64_t kvs_counter_value(const struct kvs_counter *c);
void kvs_gauge_set(struct kvs_gauge *g, double v);
double kvs_gauge_value(const struct kvs_gauge *g);
void kvs_histogram_observe(struct kvs_histogram *h, double v);

/* Latency edges that suit both a laptop and a cluster (seconds). */
extern const double kvs_latency_bounds[];
extern const size_t kvs_latency_bound_count;

KVS_MUST_CHECK kvs_status kvs_metrics_write(const struct kvs_metrics *m, struct kvs_buf *out);

#endif
