/* place.c - see place.h. What is cached is looked up by the prompt alone: tokens that were emitted since are in no other worker's cache, unless
 * the request moves, and then the worker that it leaves is named. A client that says whom to fetch from is believed in place of the index.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/place.h"

#include <string.h>

kvs_status rtr_placer_choose(struct rtr_policy *p, struct rtr_cached *cached, const struct rtr_fleet *f, struct rtr_req *q, const struct rtr_placing *how,
                             struct rtr_place *out)
{
    const struct rtr_config *c = how->config;
    struct rtr_named named = {.tokens = q->ask.tokens,
                              .token_count = q->ask.token_count,
                              .tenant = q->ask.tenant,
                              .cache_salt = q->ask.cache_salt,
                              .adapter = q->ask.adapter};
    bool begun = rtr_req_emitted(q);
    struct rtr_ask ask = {.model = q->ask.model,
                          .prompt_tokens = rtr_req_tokens(q),
                          .sequences = rtr_req_live(q),
                          .placement = q->ask.placement != MSG_PLACE_AUTO ? q->ask.placement : c->placement,
                          .local_threshold = c->local_threshold,
                          .sequences_max = c->worker_sequences_max,
                          .avoid = how->avoid,
                          .numerics = begun ? q->numerics : NULL,
                          .kv_types = begun ? q->kv_types : NULL,
                          .cached = q->ask.fetch_worker[0] ? NULL : rtr_cached_match(cached, q->ask.model, &named, &q->chains),
                          .no_fetch = q->ask.fetch_worker[0] || q->moved_from[0],
                          .urgent = q->attempt > 0,
                          .step_max_us = c->step_max_us,
                          .queue_max_us = c->prefill_queue_us,
                          .ahead_tokens = how->ahead_tokens,
                          .now_us = how->now_us,
                          .deadline_us = how->arriving ? q->deadline_us : 0};
    return rtr_policy_place(p, f, &ask, out);
}

void rtr_placer_give(struct rtr_req *q, struct rtr_place *place)
{
    struct rtr_worker *reader = place->prefill ? place->prefill : place->decode;
    const struct rtr_option *o = &place->option[0];
    KVS_ASSERT(reader && !q->work && place->option_count > 0);
    rtr_worker_give(reader, place->computed_tokens);
    q->work = place->computed_tokens;
    q->worker_of_work = reader->key;
    memcpy(q->fetch_id, o->fetch, sizeof(q->fetch_id));
    q->fetch_tokens = o->fetch_tokens;
    q->option_count = place->option_count;
    memcpy(q->option, place->option, sizeof(q->option));
}

void rtr_placer_take_back(struct rtr_req *q, const struct rtr_fleet *f)
{
    struct rtr_worker *w = q->work ? rtr_fleet_find(f, q->worker_of_work) : NULL;
    if (w)
        rtr_worker_computed(w, q->work);
    q->work = 0;
}
