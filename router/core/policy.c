/* policy.c - least outstanding tokens, short prompts at home.
 * The decode worker: among those of the model that are up and not draining, one with a free place; not suspect before suspect, then the
 * fewest outstanding tokens (the larger of this router's own account, which is exact but blind to other routers, and the worker's last
 * report, which is up to 250 ms old), then the one chosen least often. When the prompt is to be read elsewhere, workers that have a linked
 * prefill worker come before those that have none: the prompt is the dear part. Nobody linked: local, and the answer says so.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/policy.h"

#include <string.h>

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t outstanding(const struct rtr_worker *w)
{
    return larger(w->decode_tokens + w->prefill_tokens, w->reported_tokens);
}

/* Is a a better choice than b? */
static bool better(const struct rtr_worker *a, const struct rtr_worker *b)
{
    if (a->suspect != b->suspect)
        return !a->suspect;
    uint64_t ta = outstanding(a), tb = outstanding(b);
    if (ta != tb)
        return ta < tb;
    return a->given < b->given;
}

static struct rtr_worker *best_prefill(const struct rtr_fleet *f, const struct rtr_worker *decode)
{
    struct rtr_worker *best = NULL;
    for (uint32_t i = 0; i < f->workers_max; i++) {
        struct rtr_worker *w = &f->workers[i];
        if (!w->key || w == decode || w->model != decode->model || w->draining || w->suspect || !rtr_worker_prefills(w))
            continue;
        if (rtr_worker_linked(decode, w) && (!best || better(w, best)))
            best = w;
    }
    return best;
}

/* What has begun in one numerics class goes on in it: another one would write other tokens. */
static bool fits(const struct rtr_ask *ask, const struct rtr_worker *w)
{
    return !ask->numerics || (strncmp(ask->numerics, w->numerics, sizeof(w->numerics)) == 0 &&
                              strncmp(ask->kv_types, w->kv_types, sizeof(w->kv_types)) == 0);
}

static bool wants_remote(const struct rtr_ask *ask)
{
    if (ask->placement == MSG_PLACE_AUTO)
        return ask->prompt_tokens > ask->local_threshold;
    return ask->placement == MSG_PLACE_REMOTE;
}

kvs_status rtr_policy_place(const struct rtr_fleet *f, const struct rtr_ask *ask, struct rtr_place *out)
{
    KVS_ASSERT(ask->sequences > 0);
    bool remote = wants_remote(ask), any = false;
    struct rtr_place local = {0}, pair = {0};
    for (uint32_t i = 0; i < f->workers_max; i++) {
        struct rtr_worker *w = &f->workers[i];
        if (!w->key || w->key == ask->avoid || w->model != ask->model || w->draining || !rtr_worker_decodes(w) || !fits(ask, w))
            continue;
        any = true;
        /* An idle worker takes any request, also one with more choices than the limit: it could never run otherwise. */
        if (w->sequences && w->sequences + ask->sequences > ask->sequences_max)
            continue;
        if (!local.decode || better(w, local.decode))
            local.decode = w;
        struct rtr_worker *p = remote ? best_prefill(f, w) : NULL;
        if (p && (!pair.decode || better(w, pair.decode))) {
            pair.decode = w;
            pair.prefill = p;
        }
    }
    if (!local.decode)
        return any ? KVS_BUSY_QUEUE : KVS_BUSY_NO_WORKER;
    /* A suspect worker with a link is no reason to leave a healthy one aside. */
    bool take_pair = pair.decode && (!pair.decode->suspect || local.decode->suspect);
    *out = take_pair ? pair : local;
    return KVS_OK;
}
