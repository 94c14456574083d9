/* fleet.h - the workers that a router knows: role, model, state, links, and what this router has given to each.
 * A worker is an entry in a fixed table; its key comes from the caller and is never reused. Pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_FLEET_H
#define KVS_ROUTER_CORE_FLEET_H

#include "router/core/cost.h"

#define RTR_LINKS_MAX 256
#define RTR_NO_SLOT UINT32_MAX

struct rtr_link {
    char id[MSG_ID_MAX];
    uint32_t slot; /* of the worker of that id and model; RTR_NO_SLOT: not here */
    struct rtr_link_cost cost; /* of KV that comes from there, as far as measured */
    struct rtr_measured measured;
};

/* Of a worker's links: what they cost, each by the square of its trust. One that was measured once among many says next to nothing. */
struct rtr_links_sum {
    struct rtr_link_cost cost;
    double weight;
    uint64_t newest_us; /* the latest measurement */
};

struct rtr_worker {
    uint64_t key; /* 0: entry is free */
    uint64_t epoch; /* of the process behind it */
    uint32_t slot;
    uint32_t model;
    char id[MSG_ID_MAX];
    msg_role role;
    bool draining, suspect;
    bool crashed; /* its stream is at its end, and was not given up for silence */
    char numerics[128], kv_types[32]; /* equal: the same tokens bit for bit */
    uint32_t block_tokens; /* 0: not told */
    uint64_t block_bytes;  /* of all groups */
    /* from its load reports */
    uint64_t reported_tokens;
    struct msg_speed speed; /* as far as measured */
    struct rtr_measured prefill, step;
    uint64_t prefill_left, context_tokens, load_at_us;
    uint32_t decoding, chunk_tokens;
    uint32_t reports; /* their number */
    uint32_t ended;   /* of `decoding`: this router's own that have ended since */
    uint64_t ended_context;
    uint32_t link_count;
    struct rtr_link *links; /* the peers it is linked to; owned, grown on demand, at most RTR_LINKS_MAX */
    uint32_t link_cap;
    struct rtr_links_sum links_sum;
    /* this router's own account */
    uint32_t sequences;       /* as decode worker */
    uint64_t decode_tokens;   /* prompt to read here + answers to write */
    uint64_t prefill_tokens;  /* prompts given to it as prefill worker, until their first token */
    uint64_t given;           /* times it was chosen: breaks ties, so that equal workers take turns */
    uint64_t fresh[2];        /* prompt tokens given to compute since its last report, and between the last two */
};

struct rtr_fleet {
    struct rtr_worker *workers; /* workers_max entries */
    uint32_t workers_max, count;
};

KVS_MUST_CHECK kvs_status rtr_fleet_init(struct rtr_fleet *f, uint32_t workers_max);
void rtr_fleet_fini(struct rtr_fleet *f);
struct rtr_worker *rtr_fleet_find(const struct rtr_fleet *f, uint64_t key); /* NULL: unknown */
struct rtr_worker *rtr_fleet_find_id(const struct rtr_fleet *f, const char *id, uint32_t model);
KVS_MUST_CHECK kvs_status rtr_fleet_up(struct rtr_fleet *f, uint64_t key, uint32_t model, const struct msg_card *card);
void rtr_fleet_card(struct rtr_fleet *f, uint64_t key, const struct msg_card *card);
void rtr_fleet_down(struct rtr_fleet *f, uint64_t key);
void rtr_fleet_load(struct rtr_fleet *f, uint64_t key, const struct msg_load *load, uint64_t now_us);
/* Prompt tokens that are to be computed there: as reported, and what was given since. A report may have left before the last prompt came. */
uint64_t rtr_worker_backlog(const struct rtr_worker *w);
void rtr_worker_give(struct rtr_worker *w, uint64_t prompt_tokens);
/* A sequence that spoke after report number spoke_at has ended, or is called off. */
void rtr_worker_ended(struct rtr_worker *w, uint32_t spoke_at, uint64_t context);
void rtr_worker_computed(struct rtr_worker *w, uint64_t prompt_tokens); /* or called off */

bool rtr_worker_decodes(const struct rtr_worker *w);
/* What it decodes is to go on elsewhere: it drains, or its role has changed. */
bool rtr_worker_leaves(const struct rtr_worker *w);
bool rtr_worker_prefills(const struct rtr_worker *w);
/* Either side's report of the link counts: reports are up to 250 ms old and need not arrive together. */
bool rtr_worker_linked(const struct rtr_worker *a, const struct rtr_worker *b);

#endif
