/* router.h - the router's core: requests, choices, workers and where what runs, as a pure state machine.
 * It knows nothing of HTTP, text, sockets or clocks: the edge (and the simulator) turn what happens into events, and perform the actions.
 *
 *   client asks -> EV_REQUEST -> (no place: ACT_REJECT | waits in the queue) -> ACT_GENERATE per choice -> EV_TOKEN... -> ACT_TOKEN...
 *                                                                                 -> all choices ended: ACT_FINISH
 * Rules (each one is checked by the simulator):
 *   - every request given by EV_REQUEST ends exactly once: by ACT_REJECT (never accepted) or by ACT_FINISH, at the latest at its deadline;
 *   - tokens of a choice are delivered in order of index, without a gap, once; duplicates and entries of an earlier attempt are dropped;
 *   - nothing is delivered for a request after its end.
 * All choices of a request run on one decode worker. When that worker is lost, breaks the protocol or hands a sequence back, all choices that
 * are not done go on at another one of the same model and numerics class, in a new attempt with prompt and emitted tokens: the client sees a
 * pause. With no worker left that could take them it is an orphan for orphan_us (a third of that when the worker was silent for 2 s already;
 * restart_us when it crashed, and has not done so under this request before):
 * a worker that comes back, or is started again, goes on with it; otherwise it ends with an error. deaths_max workers that died under a request
 * end it likewise; a worker that comes back under its epoch has not died, only its stream had. A request that comes within orphan_us of the
 * loss of the last worker of its model waits with them. A refusal before the first token is made good
 * once. What runs on a worker that drains, or that no longer decodes, moves as soon as another one has room for it. The next attempt of what a
 * living worker had begun fetches its KV from there (fetch_worker): the Abort of the old one asks it to keep what it has, and a second Abort,
 * when every choice has spoken again or the request has ended, says that this is over.
 * Workers and models are known by keys that the caller chooses (worker: one per control connection, never reused; model: one per model object).
 * Contract: after every rtr_step call rtr_actions until it returns 0, before the next rtr_step. Pointers in events are borrowed during the
 * step; pointers in actions are valid until the next rtr_step. Not thread-safe.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_CORE_ROUTER_H
#define KVS_ROUTER_CORE_ROUTER_H

#include "base/error.h"
#include "proto/msg.h"

#define RTR_CHOICES_MAX 8
#define RTR_STOP_IDS_MAX 16
#define RTR_NEVER UINT64_MAX

struct rtr;

struct rtr_option;

struct rtr_config {
    uint32_t requests_max;         /* accepted at once: running and waiting */
    uint32_t queue_max;            /* of these, waiting for a place on a worker */
    uint32_t workers_max;
    uint32_t worker_sequences_max; /* this router keeps at most so many sequences on one decode worker; more wait here, without pages */
    uint64_t tokens_max;           /* prompt tokens held over all requests */
    uint64_t deadline_us;          /* from EV_REQUEST to the end, unless the request has a nearer one */
    msg_placement placement;       /* AUTO: by the cost model; LOCAL, REMOTE: always so, unless the request says otherwise */
    uint32_t local_threshold;      /* not 0: instead of the cost model, AUTO keeps prompts of up to so many tokens on the decode worker */
    uint64_t step_max_us;          /* target for the time between two tokens: a placement that keeps streams inside comes before one that does not */
    uint64_t prefill_queue_us;     /* requests wait here while the prefill queue that they would join is longer */
    uint64_t index_bytes;          /* most memory of the index of cached blocks */
    bool resume;                   /* requests that have delivered tokens may go on at another worker */
    uint32_t deaths_max;           /* a request under which so many workers died is given up: it may be what kills them */
    uint64_t orphan_us;            /* how long a request outlives the last worker that could serve it; 0: not at all */
    uint64_t restart_us;           /* the same when that one crashed and somebody starts it again; counts when it is longer */
};
void rtr_config_default(struct rtr_config *c);

struct rtr_request {
    uint64_t id; /* chosen by the caller, never reused, not 0; also msg_generate.request */
    uint32_t model;
    uint32_t choices; /* 1..RTR_CHOICES_MAX */
    const int32_t *tokens; /* the prompt; at least one */
    uint32_t token_count;
    uint32_t max_tokens; /* of one choice's answer, at least 1; the caller has capped it by the context */
    struct msg_sampling sampling;
    int32_t stop_ids[RTR_STOP_IDS_MAX];
    uint32_t stop_id_count;
    bool ignore_eos, logits;
    msg_placement placement; /* AUTO: as configured */
    char fetch_worker[MSG_ID_MAX]; /* "": nobody; who is asked first for KV of the prompt */
    int32_t priority;
    uint64_t deadline_us; /* absolute; 0: now + config.deadline_us; never later than that */
    char adapter[MSG_ID_MAX], tenant[MSG_ID_MAX], cache_salt[128], trace[MSG_ID_MAX];
};

typedef enum rtr_event_type {
    RTR_EV_REQUEST = 1, /* request */
    RTR_EV_GONE,        /* id: the client left or sent Abort */
    RTR_EV_CHOICE_STOP, /* id, choice: the edge has found a stop string; what this choice emitted is its answer */
    RTR_EV_PAUSE,       /* id, flag: the client reads slowly (true) or reads again (false) */
    RTR_EV_WORKER_UP,   /* worker, model, card: its control stream is up and its Tokens call is open */
    RTR_EV_WORKER_CARD, /* worker, card: changed (draining, role) */
    RTR_EV_WORKER_DOWN, /* worker: stream lost, or member gone; the key never comes back */
    RTR_EV_SUSPECT,     /* worker, flag: silent for over a second (true); used only when there is no other */
    RTR_EV_LOAD,        /* worker, load */
    RTR_EV_CACHE,       /* worker, cache: an item of its cache events; or digest (its hashes): what etcd says of its cache, until the
                         * first event has come */
    RTR_EV_TOKEN,       /* worker, token: one entry of a Tokens item */
    RTR_EV_END,         /* worker, id, attempt, choice, status, text: END of a Generate call */
    RTR_EV_TIMER,       /* time has passed; deadlines are looked at in every step */
} rtr_event_type;

struct rtr_event {
    rtr_event_type type;
    uint64_t worker;
    uint64_t id;
    uint32_t attempt, choice, model;
    bool flag;
    kvs_status status;
    const char *text;
    const struct rtr_request *request;
    const struct msg_card *card;
    const struct msg_load *load;
    const struct msg_token *token;
    const struct msg_cache_events *cache;
    const struct msg_cache_digest *digest;
};

typedef enum rtr_action_type {
    RTR_ACT_GENERATE = 1, /* worker, generate, remaining_ms, options: call MSG_GENERATE; its END becomes EV_END{id, attempt, choice} */
    RTR_ACT_ABORT,        /* worker, id, attempt, flag: call MSG_ABORT (this attempt and earlier ones, all choices; flag: keep); its END says nothing
                             to the core */
    RTR_ACT_CANCEL,       /* worker, id, attempt, choice: CANCEL that one Generate call; the request's other choices go on */
    RTR_ACT_PAUSE,        /* worker, id, flag: PAUSE (true) or RESUME (false) on the worker's Tokens call */
    RTR_ACT_SNAPSHOT,     /* worker: its cache events have a hole; end that call and call again */
    RTR_ACT_TOKEN,        /* id, choice, token: deliver; token->finish != RUNNING is the choice's end (STOP or LENGTH only) */
    RTR_ACT_FINISH,       /* id, status, text, retry_after_s: the request is over; OK: every choice has ended */
    RTR_ACT_REJECT,       /* the same, for a request that was never accepted */
} rtr_action_type;

struct rtr_action {
    rtr_action_type type;
    uint64_t worker;
    uint64_t id;
    uint32_t attempt, choice;
    bool flag;
    kvs_status status;
    const char *text;        /* "" when OK */
    uint32_t retry_after_s;  /* with KVS_BUSY_*: a hint, at least 1 */
    uint32_t remaining_ms;
    struct msg_generate generate;
    const struct msg_token *token;
    const struct rtr_option *options; /* GENERATE: how it was placed: what was chosen, then the next best (policy.h) */
    uint32_t option_count;
};

struct rtr_stats {
    uint32_t running, waiting;           /* requests */
    uint64_t accepted, rejected, finished_ok, failed, cancelled;
    uint64_t duplicates, late, gaps;     /* token entries dropped: seen before, of another attempt or worker; and holes found */
    uint64_t replaced;                   /* another attempt before the first token */
    uint64_t resumed, moved;             /* another attempt after it: the worker was lost or gave up; the worker drains */
    uint64_t index_blocks, index_bytes, index_dropped; /* of the index of cached blocks: locations, memory, thrown out when it was full */
    uint64_t cache_gaps;                 /* cache events that were missing: a snapshot was asked for */
    uint64_t workers_refused;            /* over workers_max */
    uint64_t outstanding_tokens;         /* given to workers and not yet done, over the whole fleet; 0 when idle */
    uint32_t sequences;                  /* the same, sequences */
};

KVS_MUST_CHECK kvs_status rtr_create(const struct rtr_config *c, struct rtr **out, struct kvs_error *err);
void rtr_destroy(struct rtr *r);
/* Never fails: what cannot be done becomes an action or is counted. Events for unknown requests or workers are ignored. */
void rtr_step(struct rtr *r, const struct rtr_event *ev, uint64_t now_us);
size_t rtr_actions(struct rtr *r, struct rtr_action *out, size_t cap);
uint64_t rtr_deadline_us(const struct rtr *r); /* RTR_NEVER: no timer is needed */

void rtr_stats(const struct rtr *r, struct rtr_stats *out);
/* Is there a decode-capable worker of this model that takes requests? *pair_out (may be NULL): with a linked prefill worker. */
bool rtr_model_ready(const struct rtr *r, uint32_t model, bool *pair_out);

#endif
