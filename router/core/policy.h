/* policy.h - where a request runs: which decode worker, and who reads the prompt. Looks at the fleet, changes nothing. Pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_POLICY_H
#define KVS_ROUTER_CORE_POLICY_H

#include "router/core/fleet.h"

struct rtr_ask {
    uint32_t model;
    uint32_t prompt_tokens;
    uint32_t sequences;      /* choices that would run there */
    msg_placement placement; /* of the request, else of the configuration */
    uint32_t local_threshold;
    uint32_t sequences_max;  /* per decode worker */
    uint64_t avoid;          /* key of a worker that must not be taken again; 0: none */
    const char *numerics, *kv_types; /* only workers of this numerics class; NULL: any */
};

struct rtr_place {
    struct rtr_worker *decode;
    struct rtr_worker *prefill; /* NULL: local */
};

/* KVS_OK; KVS_BUSY_QUEUE: there are workers, all full; KVS_BUSY_NO_WORKER: none takes requests of this model. */
KVS_MUST_CHECK kvs_status rtr_policy_place(const struct rtr_fleet *f, const struct rtr_ask *ask, struct rtr_place *out);

#endif
