/* request.h - one request inside the core: its prompt, its choices and what they emitted, the attempt that runs. Pure data and its helpers.
 *
 *   FREE -> WAITING -> RUNNING -> OVER -> FREE        (OVER: FINISH is among the actions; freed at the next step)
 *              ^----------'  (another attempt, all workers full)
 * An attempt ends with its worker. The next one is given prompt and emitted tokens and goes on at the next index: a sequence's whole state is
 * its parameters, its seed and its tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_REQUEST_H
#define KVS_ROUTER_CORE_REQUEST_H

#include "router/core/cached.h"
#include "router/core/policy.h"
#include "router/core/router.h"

#define RTR_DEAD_KEPT 4
typedef enum rtr_req_state { RTR_REQ_FREE = 0, RTR_REQ_WAITING, RTR_REQ_RUNNING, RTR_REQ_OVER } rtr_req_state;

struct rtr_choice {
    bool running; /* a Generate call of the current attempt is with the decode worker */
    bool done;    /* has its answer; never runs again */
    bool spoke;   /* has delivered a token in the current attempt */
    uint32_t spoke_at; /* the number of its worker's report that came last before that */
    int32_t *emitted; /* owned: answers so far, for deduplication now and for resuming later */
    uint32_t count, cap;
    int32_t *joined;  /* owned: prompt and emitted in one piece, made when an attempt starts with emitted tokens */
    /* what the fleet's account holds for it while it is running */
    uint32_t prompt_charge, answer_charge;
};

struct rtr_req {
    rtr_req_state state;
    struct rtr_request ask; /* ask.tokens is owned here */
    struct rtr_choice choice[RTR_CHOICES_MAX];
    uint64_t deadline_us;
    uint32_t attempt; /* 1 is the first; 0: none yet */
    bool replaced, paused;
    bool spoke;     /* the current attempt has delivered a token */
    uint32_t deaths; /* workers that died (or broke the protocol) under it */
    uint32_t revivals; /* of these: how many turned out to live */
    uint64_t epoch, dead_epoch[RTR_DEAD_KEPT]; /* of the worker of the current attempt; of those of `deaths` whose stream was lost */
    uint64_t orphan_until_us;   /* 0: none. It waits for a worker to come back, and ends then with: */
    kvs_status orphan_status;
    uint32_t moves;  /* times it was handed back or refused after it had begun */
    char numerics[128], kv_types[32]; /* of the attempt that began last */
    uint64_t decode, prefill; /* worker keys; prefill 0: local */
    char prefill_id[MSG_ID_MAX];
    /* placing (place.h) */
    struct rtr_chains chains; /* names of the prompt's blocks */
    uint64_t work, worker_of_work; /* prompt tokens given to that worker to compute, until they are */
    char fetch_id[MSG_ID_MAX];     /* of the current attempt; "": nobody */
    uint32_t fetch_tokens, option_count;
    struct rtr_option option[RTR_OPTIONS_MAX]; /* how it was placed */
    /* A request that moves takes its KV along: the worker that it left, until all of it has spoken at the next one. */
    char moved_from[MSG_ID_MAX]; /* "": nobody */
    uint64_t keeper;             /* that worker's key while it stays for this; 0: nobody does */
    uint32_t keeper_attempt;     /* the attempt that it ran */
    char end_text[256];
};

KVS_MUST_CHECK kvs_status rtr_req_init(struct rtr_req *q, const struct rtr_request *ask, uint64_t deadline_us);
void rtr_req_fini(struct rtr_req *q); /* state FREE, all memory back */
uint32_t rtr_req_live(const struct rtr_req *q);      /* choices that are not done */
bool rtr_req_emitted(const struct rtr_req *q);       /* has any choice emitted a token? */
uint32_t rtr_req_tokens(const struct rtr_req *q);    /* the longest sequence that still runs: prompt and emitted */
KVS_MUST_CHECK kvs_status rtr_choice_append(struct rtr_choice *c, int32_t id, uint32_t max_tokens);
/* Puts prompt and emitted tokens into one piece, for every choice that is to run again. */
KVS_MUST_CHECK kvs_status rtr_req_join(struct rtr_req *q);
/* Everything but remaining time; pointers into q. */
void rtr_req_generate(const struct rtr_req *q, uint32_t choice, struct msg_generate *out);

/* The attempt ended with that status: may there be another one? Counts it. Lost or broken workers: deaths_max of them in a request's life end
 * it (it may be what kills them). Handed back by a worker that stops: some times. Refused before the attempt's first token: once before the
 * request's first token, some times after it (resume: those may go on at all). */
bool rtr_req_try_again(struct rtr_req *q, kvs_status status, bool resume, uint32_t deaths_max);
/* The worker of the current attempt was lost; and one that has this epoch is here (again): if that was one of them, it has not
 * died. That is believed some times in a request's life. */
void rtr_req_lost(struct rtr_req *q);
void rtr_req_lives(struct rtr_req *q, uint64_t epoch);

#endif
