/* policy.h - where a request runs: which decode worker, who reads the prompt, and whether cached KV is fetched first. Looks at the fleet,
 * changes nothing in it. Pure.
 *
 * Every pair (decode worker, linked prefill worker or itself) and every fetch of a longer prefix from a linked worker is a candidate; its cost
 * is predicted in seconds (cost.h). Of the candidates the ones with the least time to first token are taken (within 5 % and a millisecond they
 * count as equal), of these the one whose decode worker then has the shortest step, then one that reads the prompt elsewhere (the decode worker
 * stays free for those who come next), then the fewest outstanding tokens, then the fewest turns.
 * Before that come, in this order: a decode worker that is not suspect; the placement that was asked for; streams that stay inside their
 * target for the time of a token.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_POLICY_H
#define KVS_ROUTER_CORE_POLICY_H

#include "router/core/fleet.h"

#define RTR_OPTIONS_MAX 4

struct rtr_ask {
    uint32_t model;
    uint32_t prompt_tokens;
    uint32_t sequences;      /* choices that would run there */
    msg_placement placement; /* of the request, else of the configuration */
    uint32_t local_threshold; /* with AUTO; 0: the cost model decides, else prompts of up to so many tokens stay, longer ones travel */
    uint32_t sequences_max;  /* per decode worker */
    uint64_t avoid;          /* key of a worker that must not be taken again; 0: none */
    const char *numerics, *kv_types; /* only workers of this numerics class; NULL: any */
    const uint32_t *cached;  /* leading blocks that each worker is believed to have, by slot; NULL: nothing is known */
    bool no_fetch;           /* somebody else has said who is asked for KV */
    bool urgent;             /* is not kept waiting for a shorter prefill queue, nor refused */
    uint64_t step_max_us;    /* target for a step of running sequences; 0: none */
    uint64_t queue_max_us;   /* a prefill queue is not joined while it is longer; 0: no limit */
    uint64_t ahead_tokens;   /* prompt tokens of requests that are to be placed before this one */
    uint64_t now_us, deadline_us; /* deadline 0: none */
};

/* One candidate, told by names: what is shown to people. */
struct rtr_option {
    char decode[MSG_ID_MAX], prefill[MSG_ID_MAX], fetch[MSG_ID_MAX]; /* "": local; no fetch */
    uint32_t cached_tokens; /* prompt tokens that need not be computed, fetched ones included */
    uint32_t fetch_tokens;  /* of them: the decode worker gets from `fetch` what it lacks of the first so many */
    bool suspect, unwanted, slow; /* unwanted: not the placement that was asked for; slow: streams miss their target */
    struct rtr_cost cost;
};
struct rtr_place {
    struct rtr_worker *decode;
    struct rtr_worker *prefill; /* NULL: local */
    uint32_t computed_tokens;   /* prompt tokens that its reader has to compute */
    uint32_t option_count;
    struct rtr_option option[RTR_OPTIONS_MAX]; /* [0] is what was chosen, then the next best by time to first token */
    double late_s;              /* > 0 with KVS_BUSY_QUEUE: the first token would come so much after the deadline */
};

struct rtr_policy; /* scratch */
KVS_MUST_CHECK kvs_status rtr_policy_create(uint32_t workers_max, struct rtr_policy **out);
void rtr_policy_destroy(struct rtr_policy *p);

/* KVS_OK; KVS_BUSY_QUEUE: there are workers, all full, or their prefill queues are too long, or (late_s) the deadline cannot be met;
 * KVS_BUSY_NO_WORKER: none takes requests of this model. */
KVS_MUST_CHECK kvs_status rtr_policy_place(struct rtr_policy *p, const struct rtr_fleet *f, const struct rtr_ask *ask, struct rtr_place *out);

#endif
