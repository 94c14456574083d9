/* place.h - places requests: asks who has its prompt's blocks, and lets the policy choose; keeps the account of prompt
 * tokens given to readers. Pure; owner: the router's core.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_PLACE_H
#define KVS_ROUTER_CORE_PLACE_H

#include "router/core/cached.h"
#include "router/core/policy.h"
#include "router/core/request.h"

struct rtr_placing {
    const struct rtr_config *config;
    uint64_t avoid;        /* key of a worker; 0: none */
    bool arriving;         /* it may be refused because of its deadline */
    uint64_t ahead_tokens; /* arriving: of the requests that wait before it */
    uint64_t now_us;
};
/* As rtr_policy_place. */
KVS_MUST_CHECK kvs_status rtr_placer_choose(struct rtr_policy *p, struct rtr_cached *cached, const struct rtr_fleet *f, struct rtr_req *q,
                                            const struct rtr_placing *how, struct rtr_place *out);

/* The attempt begins there: its reader is given the work, the explanation is kept. */
void rtr_placer_give(struct rtr_req *q, struct rtr_place *place);
/* The prompt is read, or will not be: nothing happens the second time. */
void rtr_placer_take_back(struct rtr_req *q, const struct rtr_fleet *f);

#endif
