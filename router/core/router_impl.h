/* router_impl.h - the router core's own struct, shared by router.c (events and actions), missed.c and life.c (creation, questions).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_ROUTER_IMPL_H
#define KVS_ROUTER_CORE_ROUTER_IMPL_H

#include "base/map.h"
#include "router/core/admission.h"
#include "router/core/cached.h"
#include "router/core/fleet.h"
#include "router/core/place.h"
#include "router/core/router.h"

#define RTR_MISSED_MAX 8

struct rec {
    rtr_action_type type;
    kvs_status status;
    uint64_t worker, id;
    uint32_t slot, attempt, choice, retry_s;
    bool flag;
};

struct rtr {
    struct rtr_config config;
    struct rtr_fleet fleet;
    struct rtr_cached *cached; /* what the workers' caches hold */
    struct rtr_policy *policy;
    struct rtr_admission admission;
    struct rtr_req *requests; /* requests_max */
    struct kvs_map *by_id;    /* id -> slot */
    uint32_t *over;           /* slots to free at the next step */
    uint32_t over_count;
    struct rec *recs;
    size_t rec_count, rec_next, rec_max;
    uint64_t now_us;
    uint64_t earliest_us; /* no deadline is before this */
    bool pump;            /* a place may have become free */
    struct msg_token entry;
    char reject_text[256];
    struct rtr_stats stats;
    struct rtr_missed {
        uint32_t model;
        char id[MSG_ID_MAX];
        uint64_t until_us; /* till then one that asks for it may hope that this decode worker comes back */
    } missed[RTR_MISSED_MAX];
    uint32_t missed_next;
};

/* missed.c: decode workers that were lost and may come back. */
uint64_t rtr_restart_us(const struct rtr *r);
uint64_t rtr_missed_until(const struct rtr *r, uint32_t model); /* 0: none of that model is waited for */
void rtr_missed_add(struct rtr *r, const struct rtr_worker *w);
void rtr_missed_back(struct rtr *r, const struct rtr_worker *w); /* a decode worker has come */

#endif
