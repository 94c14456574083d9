/* report.h - what a run has shown, in numbers that expectations name. `faults` is the sum of all kinds that were injected.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_REPORT_H
#define KVS_SIM_REPORT_H

#include "base/error.h"

#define SIM_COUNTERS(X)                                                                                                     \
    X(requests) X(ok) X(errors) X(rejected) X(left) X(deadlines) X(tokens) X(steps) X(pages) X(bytes) X(kv_messages)        \
    X(cut) X(no_router) X(moved) X(fetches) X(fetched_tokens) X(links_lost) X(misfits) X(vanished) X(backend_lost)                            \
    X(etcd_calls) X(etcd_timeouts) X(etcd_watches) X(etcd_faults) X(leases_ended) X(one_ways) X(exits) X(roles) X(slow_workers) X(poisons) X(cache_skips) X(cache_items) X(cache_gaps) X(index_blocks) X(digest_prefixes) X(index_dropped) X(index_full)                       \
    X(remote) X(local) X(fallbacks) X(partial) X(preemptions) X(replaced) X(resumed) X(declined) X(fenced) X(ended_early)              \
    X(stopped_steps) X(late_entries) X(after_heal) X(end_overtook) X(cached_tokens) X(reused_tokens) X(copies) X(evicted) X(flushes) X(acked) X(nacked) X(cancelled)                                                        \
    X(faults) X(kills) X(hangs) X(silences) X(suspicions) X(breaks) X(partitions) X(kv_errors) X(kv_drops) X(kv_corruptions) X(kv_broken)             \
    X(kv_send_errors) X(kv_doubles) X(kv_lates) X(kv_stuck) X(kv_forgeries) X(doubled_events) X(numerics) X(forced_preemptions)         \
    X(grants_refused) X(drains) X(leavers) X(slow_clients) X(stops) X(expired) X(members) X(events) X(virtual_ms) X(slowest_ms)

typedef enum sim_counter {
#define X(name) SIM_N_##name,
    SIM_COUNTERS(X)
#undef X
        SIM_COUNTER_COUNT
} sim_counter;

struct sim_report {
    uint64_t n[SIM_COUNTER_COUNT];
    uint64_t trace_hash;
};

const char *sim_counter_name(uint32_t counter);
bool sim_counter_find(const char *name, uint32_t *out);
void sim_report_add(struct sim_report *sum, const struct sim_report *one);

#endif
