/* request.h - one request inside the core: its prompt, its choices and what they emitted, the attempt that runs. Pure data and its helpers.
 *
 *   FREE -> WAITING -> RUNNING -> OVER -> FREE        (OVER: FINISH is among the actions; freed at the next step)
 *              ^----------'  (second attempt, all workers full)
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_REQUEST_H
#define KVS_ROUTER_CORE_REQUEST_H

#include "router/core/router.h"

typedef enum rtr_req_state { RTR_REQ_FREE = 0, RTR_REQ_WAITING, RTR_REQ_RUNNING, RTR_REQ_OVER } rtr_req_state;

struct rtr_choice {
    bool running; /* a Generate call of the current attempt is with the decode worker */
    bool done;    /* has its answer; never runs again */
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
    uint64_t decode, prefill; /* worker keys; prefill 0: local */
    char prefill_id[MSG_ID_MAX];
    char end_text[256];
};

KVS_MUST_CHECK kvs_status rtr_req_init(struct rtr_req *q, const struct rtr_request *ask, uint64_t deadline_us);
void rtr_req_fini(struct rtr_req *q); /* state FREE, all memory back */
uint32_t rtr_req_live(const struct rtr_req *q);      /* choices that are not done */
bool rtr_req_emitted(const struct rtr_req *q);       /* has any choice emitted a token? */
KVS_MUST_CHECK kvs_status rtr_choice_append(struct rtr_choice *c, int32_t id, uint32_t max_tokens);
/* Everything but remaining time; pointers into q. KVS_SELF_NOMEM when prompt and emitted tokens could not be joined. */
KVS_MUST_CHECK kvs_status rtr_req_generate(struct rtr_req *q, uint32_t choice, struct msg_generate *out);

/* Of an END or ERROR before the first token: may another worker do better? */
bool rtr_status_retryable(kvs_status s);

#endif
