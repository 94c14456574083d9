/* life.c - the router's core from its making to its end, and what can be asked of it meanwhile. All memory is reserved here.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/router_impl.h"

#include <stdlib.h>
#include <string.h>

void rtr_config_default(struct rtr_config *c)
{
    memset(c, 0, sizeof(*c));
    c->requests_max = 1024;
    c->queue_max = 256;
    c->workers_max = 256;
    c->worker_sequences_max = 128;
    c->tokens_max = 4u << 20;
    c->deadline_us = 600ull * 1000000;
    c->placement = MSG_PLACE_AUTO;
    c->step_max_us = 100000;
    c->prefill_queue_us = 1000000;
    c->index_bytes = 64u << 20;
    c->resume = true;
    c->deaths_max = 2;
    c->orphan_us = 2500000;
}

static kvs_status make_parts(struct rtr *r)
{
    const struct rtr_config *c = &r->config;
    kvs_status s = rtr_fleet_init(&r->fleet, c->workers_max);
    if (s == KVS_OK)
        s = rtr_cached_create(c->workers_max, c->index_bytes, &r->cached);
    if (s == KVS_OK)
        s = rtr_policy_create(c->workers_max, &r->policy);
    if (s == KVS_OK)
        s = rtr_admission_init(&r->admission, c->requests_max, c->queue_max, c->tokens_max);
    return s == KVS_OK ? kvs_map_create(c->requests_max, &r->by_id) : s;
}

kvs_status rtr_create(const struct rtr_config *c, struct rtr **out, struct kvs_error *err)
{
    if (!c->requests_max || !c->workers_max || !c->worker_sequences_max || !c->tokens_max || c->deadline_us < 1000)
        return kvs_fail(err, KVS_SELF_CONFIG, "router: limits of requests, workers, sequences, tokens and the deadline must be above zero");
    struct rtr *r = calloc(1, sizeof(*r));
    if (!r)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    r->config = *c;
    r->earliest_us = RTR_NEVER;
    r->rec_max = (size_t)c->requests_max * (RTR_CHOICES_MAX + 4) + 8;
    r->requests = calloc(c->requests_max, sizeof(*r->requests));
    r->over = calloc(c->requests_max, sizeof(*r->over));
    r->recs = calloc(r->rec_max, sizeof(*r->recs));
    kvs_status s = r->requests && r->over && r->recs ? make_parts(r) : KVS_SELF_NOMEM;
    if (s == KVS_OK) {
        *out = r;
        return KVS_OK;
    }
    rtr_destroy(r);
    return s == KVS_SELF_CONFIG ? kvs_fail(err, s, "router: %llu bytes have no room for the index of cached blocks of %u workers",
                                           (unsigned long long)c->index_bytes, c->workers_max)
                                : kvs_fail(err, s, "out of memory");
}

void rtr_destroy(struct rtr *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->requests && i < r->config.requests_max; i++)
        rtr_req_fini(&r->requests[i]);
    free(r->requests);
    free(r->over);
    free(r->recs);
    rtr_fleet_fini(&r->fleet);
    rtr_cached_destroy(r->cached);
    rtr_policy_destroy(r->policy);
    rtr_admission_fini(&r->admission);
    kvs_map_destroy(r->by_id);
    free(r);
}

uint64_t rtr_deadline_us(const struct rtr *r)
{
    return r->earliest_us;
}

void rtr_stats(const struct rtr *r, struct rtr_stats *out)
{
    struct rtr_index_stats ix;
    *out = r->stats;
    rtr_index_stats(rtr_cached_index(r->cached), &ix);
    out->index_blocks = ix.locations;
    out->index_bytes = ix.bytes;
    out->index_dropped = ix.dropped;
    for (uint32_t i = 0; i < r->fleet.workers_max; i++) {
        out->outstanding_tokens += r->fleet.workers[i].decode_tokens + r->fleet.workers[i].prefill_tokens;
        out->sequences += r->fleet.workers[i].sequences;
    }
}

bool rtr_model_ready(const struct rtr *r, uint32_t model, bool *pair_out)
{
    bool ready = false, pair = false;
    for (uint32_t i = 0; i < r->fleet.workers_max; i++) {
        const struct rtr_worker *d = &r->fleet.workers[i];
        if (!d->key || d->model != model || d->draining || !rtr_worker_decodes(d))
            continue;
        ready = true;
        for (uint32_t k = 0; k < r->fleet.workers_max && !pair; k++) {
            const struct rtr_worker *p = &r->fleet.workers[k];
            pair = p->key && p->model == model && rtr_worker_prefills(p) && rtr_worker_linked(d, p);
        }
    }
    if (pair_out)
        *pair_out = pair;
    return ready;
}
