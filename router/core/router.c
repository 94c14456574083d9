/* router.c - the router's state machine: events in, a short list of action records out (see router.h for the rules).
 * Invariants:
 *   - a request is in the map exactly while it is WAITING or RUNNING; leaving that is what `finish` does, once, with one FINISH record;
 *   - what a request holds in the fleet's account (charges, sequences) is given back choice by choice, at the latest in `finish`;
 *   - records are expanded to whole actions only in rtr_actions: a step of the largest fleet loss stays small.
 * A worker's loss may touch every request at once, so the record array has room for that (sized in rtr_create).
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/router_impl.h"

#include <string.h>

#define ANSWER_GUESS 512u /* tokens an answer is counted as when its limit is larger: most end before */
#define NO_SLOT UINT32_MAX

static struct rec *push(struct rtr *r, rtr_action_type type, uint64_t id)
{
    KVS_ASSERT(r->rec_count < r->rec_max);
    struct rec *a = &r->recs[r->rec_count++];
    memset(a, 0, sizeof(*a));
    a->type = type;
    a->id = id;
    a->slot = NO_SLOT;
    return a;
}

static uint32_t slot_of(const struct rtr *r, const struct rtr_req *q)
{
    return (uint32_t)(q - r->requests);
}

static struct rtr_req *find(struct rtr *r, uint64_t id)
{
    uint64_t slot;
    return kvs_map_get(r->by_id, id, &slot) ? &r->requests[slot] : NULL;
}

/* ---- the fleet's account ---- */

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void charge(struct rtr_req *q, struct rtr_choice *c, const struct rtr_place *p)
{
    c->prompt_charge = q->ask.token_count + c->count;
    c->answer_charge = smaller(q->ask.max_tokens - c->count, ANSWER_GUESS);
    p->decode->sequences++;
    p->decode->decode_tokens += c->answer_charge;
    if (p->prefill)
        p->prefill->prefill_tokens += c->prompt_charge;
    else
        p->decode->decode_tokens += c->prompt_charge;
}

static void give_back(uint64_t *account, uint32_t *held, uint32_t n)
{
    KVS_ASSERT(*account >= n && *held >= n);
    *account -= n;
    *held -= n;
}

/* The prompt is read: at the first token, or when the choice ends without one. */
static void uncharge_prompt(struct rtr *r, struct rtr_req *q, struct rtr_choice *c)
{
    struct rtr_worker *w = rtr_fleet_find(&r->fleet, q->prefill ? q->prefill : q->decode);
    if (w)
        give_back(q->prefill ? &w->prefill_tokens : &w->decode_tokens, &c->prompt_charge, c->prompt_charge);
    c->prompt_charge = 0;
    rtr_placer_take_back(q, &r->fleet);
    r->pump = true; /* the queue there is shorter */
}

static void uncharge_token(struct rtr *r, struct rtr_req *q, struct rtr_choice *c)
{
    if (c->prompt_charge)
        uncharge_prompt(r, q, c);
    struct rtr_worker *w = c->answer_charge ? rtr_fleet_find(&r->fleet, q->decode) : NULL;
    if (w)
        give_back(&w->decode_tokens, &c->answer_charge, 1);
}

/* The choice no longer runs on its worker (ended, refused, to be aborted, or the worker is gone). */
static void settle(struct rtr *r, struct rtr_req *q, struct rtr_choice *c)
{
    KVS_ASSERT(c->running);
    if (c->prompt_charge)
        uncharge_prompt(r, q, c);
    struct rtr_worker *w = rtr_fleet_find(&r->fleet, q->decode);
    if (w) {
        give_back(&w->decode_tokens, &c->answer_charge, c->answer_charge);
        KVS_ASSERT(w->sequences > 0);
        w->sequences--;
        if (c->spoke)
            rtr_worker_ended(w, c->spoke_at, q->ask.token_count + c->count);
    }
    c->answer_charge = 0;
    c->running = false;
    r->pump = true;
}

/* ---- ends ---- */

/* Stops what still runs of the current attempt; the worker may be gone, then there is nobody to tell. */
static void stop_attempt(struct rtr *r, struct rtr_req *q)
{
    bool live = false;
    for (uint32_t i = 0; i < q->ask.choices; i++) {
        live |= q->choice[i].running;
        if (q->choice[i].running)
            settle(r, q, &q->choice[i]);
    }
    rtr_placer_take_back(q, &r->fleet);
    if (rtr_fleet_find(&r->fleet, q->decode) && (live || q->keeper == q->decode)) {
        struct rec *a = push(r, RTR_ACT_ABORT, q->ask.id);
        a->worker = q->decode;
        a->attempt = q->attempt;
        a->flag = q->keeper == q->decode && q->keeper_attempt == q->attempt;
    }
}

/* Nobody needs to stay any more for what this request left behind. */
static void release(struct rtr *r, struct rtr_req *q)
{
    if (q->keeper && rtr_fleet_find(&r->fleet, q->keeper)) {
        struct rec *a = push(r, RTR_ACT_ABORT, q->ask.id);
        a->worker = q->keeper;
        a->attempt = q->keeper_attempt;
    }
    q->keeper = 0;
    q->moved_from[0] = 0;
}

/* The next attempt is to fetch from the worker of this one, which is asked to stay for that (with the Abort of this attempt). */
static void take_along(struct rtr *r, struct rtr_req *q)
{
    const struct rtr_worker *w = rtr_fleet_find(&r->fleet, q->decode);
    if (!w || (q->keeper && !q->spoke)) /* or the one before it still has more */
        return;
    release(r, q);
    memcpy(q->moved_from, w->id, sizeof(q->moved_from));
    q->keeper = w->key;
    q->keeper_attempt = q->attempt;
}

static void finish(struct rtr *r, struct rtr_req *q, kvs_status status, const char *text)
{
    KVS_ASSERT(q->state == RTR_REQ_WAITING || q->state == RTR_REQ_RUNNING);
    if (q->state == RTR_REQ_RUNNING) {
        release(r, q);
        stop_attempt(r, q);
        r->stats.running--;
    } else {
        release(r, q);
        rtr_admission_unwait(&r->admission, slot_of(r, q));
        r->stats.waiting--;
    }
    q->state = RTR_REQ_OVER;
    rtr_admission_leave(&r->admission, q->ask.token_count, r->now_us);
    bool removed = kvs_map_remove(r->by_id, q->ask.id);
    KVS_ASSERT(removed);
    kvs_format(q->end_text, sizeof(q->end_text), "%s", text);
    struct rec *a = push(r, RTR_ACT_FINISH, q->ask.id);
    a->slot = slot_of(r, q);
    a->status = status;
    a->retry_s = kvs_is_busy(status) ? rtr_admission_retry_s(&r->admission) : 0;
    KVS_ASSERT(r->over_count < r->config.requests_max);
    r->over[r->over_count++] = a->slot;
    r->pump = true;
    if (status == KVS_OK)
        r->stats.finished_ok++;
    else if (status == KVS_REQ_CANCELLED)
        r->stats.cancelled++;
    else
        r->stats.failed++;
}

/* ---- placing ---- */

static kvs_status choose(struct rtr *r, struct rtr_req *q, uint64_t avoid, struct rtr_place *out)
{
    struct rtr_placing how = {.config = &r->config, .avoid = avoid, .now_us = r->now_us};
    return rtr_placer_choose(r->policy, r->cached, &r->fleet, q, &how, out);
}

/* A request that comes in: it may be told at once that its deadline cannot be met. */
static kvs_status choose_first(struct rtr *r, struct rtr_req *q, struct rtr_place *out)
{
    struct rtr_placing how = {.config = &r->config, .arriving = true, .now_us = r->now_us};
    for (uint32_t i = 0; i < r->admission.waiting; i++) {
        const struct rtr_req *o = &r->requests[rtr_admission_at(&r->admission, i)];
        how.ahead_tokens += o->ask.model == q->ask.model ? o->ask.token_count : 0;
    }
    return rtr_placer_choose(r->policy, r->cached, &r->fleet, q, &how, out);
}

/* What had not begun may go to another numerics class, where what was computed for it is of no use. */
static bool of_use(const struct rtr *r, const struct rtr_req *q, const struct rtr_worker *to)
{
    const struct rtr_worker *from = rtr_fleet_find(&r->fleet, q->keeper);
    return from && strncmp(from->numerics, to->numerics, sizeof(to->numerics)) == 0 && strncmp(from->kv_types, to->kv_types, sizeof(to->kv_types)) == 0;
}

static void start(struct rtr *r, struct rtr_req *q, struct rtr_place *p)
{
    KVS_ASSERT(p->decode && q->state == RTR_REQ_WAITING);
    if (q->keeper && !of_use(r, q, p->decode))
        release(r, q);
    q->state = RTR_REQ_RUNNING;
    r->stats.running++;
    q->attempt++;
    q->spoke = false;
    q->decode = p->decode->key;
    q->epoch = p->decode->epoch;
    q->orphan_until_us = 0;
    memcpy(q->numerics, p->decode->numerics, sizeof(q->numerics));
    memcpy(q->kv_types, p->decode->kv_types, sizeof(q->kv_types));
    q->prefill = p->prefill ? p->prefill->key : 0;
    memset(q->prefill_id, 0, sizeof(q->prefill_id));
    if (p->prefill) {
        memcpy(q->prefill_id, p->prefill->id, sizeof(q->prefill_id));
        p->prefill->given++;
    }
    p->decode->given++;
    rtr_placer_give(q, p);
    if (rtr_req_join(q) != KVS_OK) {
        finish(r, q, KVS_SELF_NOMEM, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < q->ask.choices; i++) {
        if (q->choice[i].done)
            continue;
        charge(q, &q->choice[i], p);
        q->choice[i].running = true;
        q->choice[i].spoke = false;
        struct rec *a = push(r, RTR_ACT_GENERATE, q->ask.id);
        a->slot = slot_of(r, q);
        a->worker = q->decode;
        a->attempt = q->attempt;
        a->choice = i;
    }
    if (q->paused) {
        struct rec *a = push(r, RTR_ACT_PAUSE, q->ask.id);
        a->worker = q->decode;
        a->flag = true;
    }
}

static void wait_in_queue(struct rtr *r, struct rtr_req *q)
{
    KVS_ASSERT(q->state == RTR_REQ_WAITING);
    if (rtr_req_emitted(q))
        rtr_admission_wait_first(&r->admission, slot_of(r, q));
    else
        rtr_admission_wait(&r->admission, slot_of(r, q));
    r->stats.waiting++;
}

/* The current attempt is over, by itself or by us: the next one. place NULL: when a worker has room. */
static void again(struct rtr *r, struct rtr_req *q, struct rtr_place *place)
{
    stop_attempt(r, q);
    q->state = RTR_REQ_WAITING;
    r->stats.running--;
    if (place)
        start(r, q, place);
    else
        wait_in_queue(r, q);
}

static void count_again(struct rtr *r, const struct rtr_req *q)
{
    (*(rtr_req_emitted(q) ? &r->stats.resumed : &r->stats.replaced))++;
}

/* The worker was lost and nobody else is there. One that was silent has used up most of the time already, and nobody starts it again; nor is a
 * request that may be what kills them kept for long. */
static uint64_t patience_us(const struct rtr *r, const struct rtr_req *q, kvs_status status)
{
    if (status == KVS_PEER_TIMEOUT)
        return r->config.orphan_us / 3;
    return status == KVS_PEER_LOST && q->deaths < r->config.deaths_max ? rtr_restart_us(r) : r->config.orphan_us;
}

/* No worker is left for it; till then one may come back, or be started again. */
static void orphan(struct rtr *r, struct rtr_req *q, kvs_status status, const char *text, uint64_t until_us)
{
    q->orphan_until_us = until_us;
    q->orphan_status = status;
    kvs_format(q->end_text, sizeof(q->end_text), "%s", text);
    if (q->orphan_until_us < r->earliest_us)
        r->earliest_us = q->orphan_until_us;
}

/* The current attempt is lost, refused or handed back. Another worker may go on with it; what is running waits for one even when the queue
 * is full for others. */
static void attempt_failed(struct rtr *r, struct rtr_req *q, kvs_status status, const char *text)
{
    struct rtr_place p;
    bool begun = rtr_req_emitted(q), lost = status == KVS_PEER_LOST || status == KVS_PEER_TIMEOUT;
    bool once_more = rtr_req_try_again(q, status, r->config.resume, r->config.deaths_max);
    bool may_hope = lost && r->config.orphan_us && (r->config.resume || !begun);
    if (lost)
        rtr_req_lost(q);
    if (!once_more && !may_hope) {
        finish(r, q, status, text);
        return;
    }
    kvs_status s = once_more ? choose(r, q, q->decode, &p) : KVS_BUSY_NO_WORKER;
    bool may_wait = (s == KVS_BUSY_QUEUE || (s == KVS_BUSY_NO_WORKER && may_hope)) &&
                    (begun || rtr_admission_room(&r->admission, 0, true) == KVS_OK);
    if (s != KVS_OK && !may_wait) {
        finish(r, q, status, text);
        return;
    }
    if (s == KVS_BUSY_NO_WORKER)
        orphan(r, q, status, text, r->now_us + patience_us(r, q, status));
    else
        count_again(r, q);
    if (begun && !kvs_is_peer(status))
        take_along(r, q); /* it lives, and has what it computed */
    again(r, q, s == KVS_OK ? &p : NULL);
}

/* A worker that drains or no longer decodes: what another one has room for moves there now, with its pages. The rest runs on until it is
 * done or handed back. */
static void move_away(struct rtr *r, uint64_t key)
{
    const struct rtr_worker *w = rtr_fleet_find(&r->fleet, key);
    for (uint32_t i = 0; w && rtr_worker_leaves(w) && w->sequences && r->config.resume && i < r->config.requests_max; i++) {
        struct rtr_req *q = &r->requests[i];
        struct rtr_place p;
        if (q->state != RTR_REQ_RUNNING || q->decode != key || choose(r, q, key, &p) != KVS_OK ||
            !rtr_req_try_again(q, KVS_SELF_STOPPING, true, r->config.deaths_max))
            continue;
        r->stats.moved++;
        take_along(r, q);
        again(r, q, &p);
    }
}

#define MODELS_BLOCKED_MAX 16

/* First come, first served within a model; a model whose workers are full does not hold up the others. */
static void pump_queue(struct rtr *r)
{
    uint32_t blocked[MODELS_BLOCKED_MAX], blocked_count = 0;
    for (uint32_t i = 0; i < r->admission.waiting;) {
        struct rtr_req *q = &r->requests[rtr_admission_at(&r->admission, i)];
        bool skip = false;
        for (uint32_t k = 0; k < blocked_count; k++)
            skip |= blocked[k] == q->ask.model;
        struct rtr_place p;
        if (q->deaths >= r->config.deaths_max) {
            i++; /* an orphan until one of them turns out to live */
            continue;
        }
        kvs_status s = skip ? KVS_BUSY_QUEUE : choose(r, q, q->orphan_until_us ? q->decode : 0, &p); /* not where it was lost */
        if (s == KVS_OK) {
            rtr_admission_unwait(&r->admission, slot_of(r, q));
            r->stats.waiting--;
            if (q->orphan_until_us)
                count_again(r, q);
            start(r, q, &p);
        } else if (s == KVS_BUSY_NO_WORKER && !r->config.orphan_us) {
            finish(r, q, s, "every worker of this model is gone; try again when one is back");
        } else if (s == KVS_BUSY_NO_WORKER) {
            uint64_t hope_us = rtr_missed_until(r, q->ask.model), least_us = r->now_us + r->config.orphan_us;
            if (!q->orphan_until_us)
                orphan(r, q, s, "every worker of this model is gone; try again when one is back", hope_us > least_us ? hope_us : least_us);
            i++;
        } else {
            if (!skip && blocked_count == MODELS_BLOCKED_MAX)
                return;
            if (!skip)
                blocked[blocked_count++] = q->ask.model;
            i++;
        }
    }
}

/* ---- events ---- */

static void reject(struct rtr *r, uint64_t id, kvs_status status, const char *text)
{
    kvs_format(r->reject_text, sizeof(r->reject_text), "%s", text);
    struct rec *a = push(r, RTR_ACT_REJECT, id);
    a->status = status;
    a->retry_s = kvs_is_busy(status) ? rtr_admission_retry_s(&r->admission) : 0;
    r->stats.rejected++;
}

static struct rtr_req *free_slot(struct rtr *r)
{
    for (uint32_t i = 0; i < r->config.requests_max; i++)
        if (r->requests[i].state == RTR_REQ_FREE)
            return &r->requests[i];
    return NULL;
}

static bool ask_is_sound(const struct rtr_request *a)
{
    return a->id != 0 && a->tokens && a->token_count > 0 && a->token_count <= MSG_TOKENS_MAX && a->choices >= 1 &&
           a->choices <= RTR_CHOICES_MAX && a->max_tokens >= 1 && a->stop_id_count <= RTR_STOP_IDS_MAX;
}

static uint64_t deadline_of(const struct rtr *r, const struct rtr_request *a)
{
    uint64_t latest = r->now_us + r->config.deadline_us;
    return a->deadline_us && a->deadline_us < latest ? a->deadline_us : latest;
}

static bool model_waits(const struct rtr *r, uint32_t model)
{
    for (uint32_t i = 0; i < r->admission.waiting; i++) {
        const struct rtr_req *q = &r->requests[rtr_admission_at(&r->admission, i)];
        if (q->ask.model == model && q->deaths < r->config.deaths_max)
            return true;
    }
    return false;
}

#define NO_DECODE_WORKER "no decode worker is ready for this model; try again when one has joined"

static void on_request(struct rtr *r, const struct rtr_request *ask)
{
    KVS_ASSERT(ask_is_sound(ask));
    KVS_ASSERT(find(r, ask->id) == NULL);
    struct rtr_req *q = free_slot(r);
    if (!q || rtr_admission_room(&r->admission, ask->token_count, false) != KVS_OK) {
        reject(r, ask->id, KVS_BUSY_QUEUE, "the router is at its limit of requests; try again later");
        return;
    }
    if (rtr_req_init(q, ask, deadline_of(r, ask)) != KVS_OK) {
        reject(r, ask->id, KVS_SELF_NOMEM, "out of memory");
        return;
    }
    struct rtr_place p;
    kvs_status s = choose_first(r, q, &p);
    /* Nobody overtakes the waiting ones of its model: one with many choices would never find room otherwise. */
    uint64_t hope_us = s == KVS_BUSY_NO_WORKER ? rtr_missed_until(r, ask->model) : 0;
    bool must_wait = s == KVS_BUSY_QUEUE || hope_us || (s == KVS_OK && model_waits(r, ask->model));
    if (s == KVS_BUSY_NO_WORKER && !hope_us) {
        reject(r, ask->id, s, NO_DECODE_WORKER);
    } else if (p.late_s > 0) {
        reject(r, ask->id, s, "the first token cannot come before the request's deadline; try again later, or give it more time");
        r->recs[r->rec_count - 1].retry_s = p.late_s < 60 ? (uint32_t)p.late_s + 1 : 60;
    } else if (must_wait && rtr_admission_room(&r->admission, ask->token_count, true) != KVS_OK) {
        reject(r, ask->id, KVS_BUSY_QUEUE, "all workers are busy and the queue is full; try again later");
    } else if (kvs_map_put(r->by_id, ask->id, slot_of(r, q)) != KVS_OK) {
        reject(r, ask->id, KVS_BUSY_QUEUE, "the router is at its limit of requests; try again later");
    } else {
        rtr_admission_enter(&r->admission, ask->token_count, r->now_us);
        r->stats.accepted++;
        if (q->deadline_us < r->earliest_us)
            r->earliest_us = q->deadline_us;
        if (must_wait)
            wait_in_queue(r, q);
        else
            start(r, q, &p);
        if (hope_us)
            orphan(r, q, s, NO_DECODE_WORKER, hope_us);
        return;
    }
    rtr_req_fini(q);
}

static void deliver(struct rtr *r, struct rtr_req *q, uint32_t choice, const struct msg_token *t)
{
    r->entry = *t;
    /* What the first entry of a later attempt says is about that attempt, not about the prompt. */
    r->entry.has_placed = t->has_placed && t->index == 0;
    struct rec *a = push(r, RTR_ACT_TOKEN, q->ask.id);
    a->choice = choice;
    a->attempt = q->attempt;
}

/* Then everything that was to be fetched has been. */
static bool all_spoke(const struct rtr_req *q)
{
    for (uint32_t i = 0; i < q->ask.choices; i++)
        if (!q->choice[i].done && !q->choice[i].spoke)
            return false;
    return true;
}

static void on_token(struct rtr *r, uint64_t worker, const struct msg_token *t)
{
    struct rtr_req *q = find(r, t->request);
    if (!q || q->state != RTR_REQ_RUNNING || t->attempt != q->attempt || worker != q->decode || t->choice >= q->ask.choices) {
        r->stats.late++;
        return;
    }
    struct rtr_choice *c = &q->choice[t->choice];
    if (c->done || (t->id >= 0 && t->index < c->count)) {
        r->stats.duplicates++;
        return;
    }
    if (t->id >= 0 && (t->index > c->count || c->count >= q->ask.max_tokens)) {
        r->stats.gaps++;
        attempt_failed(r, q, KVS_PEER_PROTOCOL, "the decode worker sent tokens out of order");
        return;
    }
    if (t->id >= 0 && rtr_choice_append(c, t->id, q->ask.max_tokens) != KVS_OK) {
        finish(r, q, KVS_SELF_NOMEM, "out of memory");
        return;
    }
    if (t->id >= 0) {
        uncharge_token(r, q, c);
        const struct rtr_worker *w = rtr_fleet_find(&r->fleet, q->decode);
        if (!c->spoke && w)
            c->spoke_at = w->reports;
        q->spoke = c->spoke = true;
        if (q->keeper && all_spoke(q))
            release(r, q);
    }
    bool failed = t->finish == MSG_FINISH_ERROR || t->finish == MSG_FINISH_ABORT;
    if (t->id >= 0 || !failed)
        deliver(r, q, t->choice, t);
    if (t->finish == MSG_RUNNING)
        return;
    settle(r, q, c);
    if (failed) {
        r->entry.finish = MSG_RUNNING; /* the error travels with FINISH */
        kvs_status why = t->error != KVS_OK ? t->error : KVS_PEER_REFUSED;
        attempt_failed(r, q, why, t->text[0] ? t->text : "the decode worker ended the sequence");
        return;
    }
    c->done = true;
    if (rtr_req_live(q) == 0)
        finish(r, q, KVS_OK, "");
}

/* END of a Generate call. After a finish entry it says nothing new; without one it is a refusal or a break of the protocol. */
static void on_end(struct rtr *r, const struct rtr_event *ev)
{
    struct rtr_req *q = find(r, ev->id);
    if (!q || q->state != RTR_REQ_RUNNING || ev->attempt != q->attempt || ev->worker != q->decode || ev->choice >= q->ask.choices)
        return;
    struct rtr_choice *c = &q->choice[ev->choice];
    if (!c->running)
        return;
    settle(r, q, c);
    if (ev->status == KVS_PEER_LOST || ev->status == KVS_PEER_TIMEOUT) {
        /* The calls of a lost stream end one by one before EV_WORKER_DOWN: nobody else is to be sent there meanwhile. */
        struct rtr_worker *w = rtr_fleet_find(&r->fleet, ev->worker);
        if (w) {
            w->suspect = true;
            w->crashed = ev->status == KVS_PEER_LOST;
        }
    }
    if (ev->status == KVS_OK)
        attempt_failed(r, q, KVS_PEER_PROTOCOL, "the decode worker ended the call without a last token");
    else
        attempt_failed(r, q, ev->status, ev->text && ev->text[0] ? ev->text : kvs_status_name(ev->status));
}

static void on_choice_stop(struct rtr *r, uint64_t id, uint32_t choice)
{
    struct rtr_req *q = find(r, id);
    if (!q || choice >= q->ask.choices || q->choice[choice].done)
        return;
    struct rtr_choice *c = &q->choice[choice];
    c->done = true;
    if (rtr_req_live(q) == 0) {
        finish(r, q, KVS_OK, ""); /* aborts what runs */
    } else if (c->running) {
        settle(r, q, c);
        struct rec *a = push(r, RTR_ACT_CANCEL, id);
        a->worker = q->decode;
        a->attempt = q->attempt;
        a->choice = choice;
    }
}

static void on_pause(struct rtr *r, uint64_t id, bool paused)
{
    struct rtr_req *q = find(r, id);
    if (!q || q->paused == paused)
        return;
    q->paused = paused;
    if (q->state == RTR_REQ_RUNNING) {
        struct rec *a = push(r, RTR_ACT_PAUSE, id);
        a->worker = q->decode;
        a->flag = paused;
    }
}

static uint32_t cache_slot(const struct rtr *r, const struct rtr_worker *w)
{
    return (uint32_t)(w - r->fleet.workers);
}

static void on_worker_up(struct rtr *r, const struct rtr_event *ev)
{
    if (rtr_fleet_up(&r->fleet, ev->worker, ev->model, ev->card) != KVS_OK)
        r->stats.workers_refused++;
    const struct rtr_worker *w = rtr_fleet_find(&r->fleet, ev->worker);
    if (w)
        rtr_cached_up(r->cached, cache_slot(r, w), ev->model, ev->card);
    if (w && rtr_worker_decodes(w))
        rtr_missed_back(r, w);
    for (uint32_t i = 0; w && i < r->config.requests_max; i++)
        if (r->requests[i].state == RTR_REQ_WAITING || r->requests[i].state == RTR_REQ_RUNNING)
            rtr_req_lives(&r->requests[i], w->epoch);
    r->pump = true;
}

static void on_cache(struct rtr *r, const struct rtr_event *ev)
{
    const struct rtr_worker *w = rtr_fleet_find(&r->fleet, ev->worker);
    if (w && ev->digest)
        rtr_cached_digest(r->cached, cache_slot(r, w), ev->digest);
    if (!w || !ev->cache || rtr_cached_events(r->cached, cache_slot(r, w), ev->cache))
        return;
    r->stats.cache_gaps++;
    push(r, RTR_ACT_SNAPSHOT, 0)->worker = ev->worker;
}

static void on_worker_down(struct rtr *r, uint64_t key)
{
    const struct rtr_worker *w = rtr_fleet_find(&r->fleet, key);
    if (!w)
        return;
    rtr_cached_down(r->cached, cache_slot(r, w));
    if (rtr_worker_decodes(w) && !rtr_worker_leaves(w))
        rtr_missed_add(r, w);
    rtr_fleet_down(&r->fleet, key);
    for (uint32_t i = 0; i < r->config.requests_max; i++) {
        struct rtr_req *q = &r->requests[i];
        if (q->keeper == key) { /* nothing is left to fetch */
            q->keeper = 0;
            q->moved_from[0] = 0;
        }
        if (q->state != RTR_REQ_RUNNING)
            continue;
        if (q->prefill == key) { /* the decode worker reads the prompt itself; the charge went with the worker's entry */
            for (uint32_t k = 0; k < q->ask.choices; k++)
                q->choice[k].prompt_charge = 0;
            q->prefill = 0;
            q->work = 0;
        }
        if (q->decode == key)
            attempt_failed(r, q, KVS_PEER_LOST, "the decode worker was lost");
    }
}

static void expire(struct rtr *r)
{
    uint64_t earliest = RTR_NEVER;
    for (uint32_t i = 0; i < r->config.requests_max; i++) {
        struct rtr_req *q = &r->requests[i];
        if (q->state != RTR_REQ_WAITING && q->state != RTR_REQ_RUNNING)
            continue;
        if (r->now_us >= q->deadline_us) {
            bool waiting = q->state == RTR_REQ_WAITING;
            finish(r, q, KVS_REQ_DEADLINE, waiting ? "no worker had a place before the request's deadline" : "the request's deadline has passed");
            continue;
        }
        if (q->orphan_until_us && r->now_us >= q->orphan_until_us) {
            char text[sizeof(q->end_text)];
            memcpy(text, q->end_text, sizeof(text));
            finish(r, q, q->orphan_status, text);
            continue;
        }
        uint64_t next = q->orphan_until_us && q->orphan_until_us < q->deadline_us ? q->orphan_until_us : q->deadline_us;
        if (next < earliest)
            earliest = next;
    }
    r->earliest_us = earliest;
}

static void reap(struct rtr *r)
{
    for (uint32_t i = 0; i < r->over_count; i++)
        rtr_req_fini(&r->requests[r->over[i]]);
    r->over_count = 0;
    r->rec_count = r->rec_next = 0;
}

static void on_event(struct rtr *r, const struct rtr_event *ev)
{
    struct rtr_req *q;
    struct rtr_worker *w;
    switch (ev->type) {
    case RTR_EV_REQUEST: on_request(r, ev->request); break;
    case RTR_EV_GONE:
        q = find(r, ev->id);
        if (q)
            finish(r, q, KVS_REQ_CANCELLED, "the client left");
        break;
    case RTR_EV_CHOICE_STOP: on_choice_stop(r, ev->id, ev->choice); break;
    case RTR_EV_PAUSE: on_pause(r, ev->id, ev->flag); break;
    case RTR_EV_WORKER_UP: on_worker_up(r, ev); break;
    case RTR_EV_CACHE: on_cache(r, ev); break;
    case RTR_EV_WORKER_CARD:
        rtr_fleet_card(&r->fleet, ev->worker, ev->card);
        move_away(r, ev->worker);
        r->pump = true;
        break;
    case RTR_EV_WORKER_DOWN: on_worker_down(r, ev->worker); r->pump = true; break;
    case RTR_EV_SUSPECT:
        w = rtr_fleet_find(&r->fleet, ev->worker);
        if (w)
            w->suspect = ev->flag;
        break;
    case RTR_EV_LOAD:
        rtr_fleet_load(&r->fleet, ev->worker, ev->load, r->now_us);
        move_away(r, ev->worker);
        r->pump = true;
        break;
    case RTR_EV_TOKEN: on_token(r, ev->worker, ev->token); break;
    case RTR_EV_END: on_end(r, ev); break;
    case RTR_EV_TIMER: break;
    }
}

void rtr_step(struct rtr *r, const struct rtr_event *ev, uint64_t now_us)
{
    KVS_ASSERT(r->rec_next == r->rec_count); /* the actions of the last step were taken */
    KVS_ASSERT(now_us >= r->now_us);
    reap(r);
    r->now_us = now_us;
    if (now_us >= r->earliest_us)
        expire(r); /* first: an event that comes too late does not save a request */
    on_event(r, ev);
    if (r->pump && r->admission.waiting)
        pump_queue(r);
    r->pump = false;
}

/* ---- actions ---- */

static void expand(struct rtr *r, const struct rec *a, struct rtr_action *out)
{
    memset(out, 0, sizeof(*out));
    out->type = a->type;
    out->worker = a->worker;
    out->id = a->id;
    out->attempt = a->attempt;
    out->choice = a->choice;
    out->flag = a->flag;
    out->status = a->status;
    out->retry_after_s = a->retry_s;
    out->text = "";
    if (a->type == RTR_ACT_TOKEN)
        out->token = &r->entry;
    else if (a->type == RTR_ACT_REJECT)
        out->text = r->reject_text;
    else if (a->type == RTR_ACT_FINISH)
        out->text = r->requests[a->slot].end_text;
}

/* A Generate that was recorded and then ended in the same step (a deadline, a loss) is not sent at all. */
static bool expand_generate(struct rtr *r, const struct rec *a, struct rtr_action *out)
{
    struct rtr_req *q = &r->requests[a->slot];
    if (q->state != RTR_REQ_RUNNING || q->attempt != a->attempt || !q->choice[a->choice].running)
        return false;
    uint64_t left_ms = q->deadline_us > r->now_us ? (q->deadline_us - r->now_us) / 1000 : 0;
    out->remaining_ms = left_ms < 1 ? 1 : left_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)left_ms;
    rtr_req_generate(q, a->choice, &out->generate);
    out->options = q->option;
    out->option_count = q->option_count;
    return true;
}

size_t rtr_actions(struct rtr *r, struct rtr_action *out, size_t cap)
{
    size_t n = 0;
    while (n < cap && r->rec_next < r->rec_count) {
        const struct rec *a = &r->recs[r->rec_next++];
        expand(r, a, &out[n]);
        if (a->type == RTR_ACT_GENERATE && !expand_generate(r, a, &out[n]))
            continue;
        n++;
    }
    return n;
}
