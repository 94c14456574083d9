/* request.c - see request.h. Emitted ids grow by doubling up to max_tokens: an answer's memory follows its length, not its limit.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/request.h"

#include <stdlib.h>
#include <string.h>

#define REVIVALS_MAX 4u /* a request that makes its worker break the stream again and again ends, too */
#define MOVES_MAX 8u /* a rolling restart of that many workers under one request */

kvs_status rtr_req_init(struct rtr_req *q, const struct rtr_request *ask, uint64_t deadline_us)
{
    KVS_ASSERT(q->state == RTR_REQ_FREE);
    KVS_ASSERT(ask->token_count > 0 && ask->choices >= 1 && ask->choices <= RTR_CHOICES_MAX);
    memset(q, 0, sizeof(*q));
    int32_t *copy = malloc(ask->token_count * sizeof(*copy));
    if (!copy)
        return KVS_SELF_NOMEM;
    memcpy(copy, ask->tokens, ask->token_count * sizeof(*copy));
    q->ask = *ask;
    q->ask.tokens = copy;
    q->deadline_us = deadline_us;
    q->state = RTR_REQ_WAITING;
    return KVS_OK;
}

void rtr_req_fini(struct rtr_req *q)
{
    free((void *)(uintptr_t)q->ask.tokens);
    rtr_chains_fini(&q->chains);
    for (uint32_t i = 0; i < RTR_CHOICES_MAX; i++) {
        free(q->choice[i].emitted);
        free(q->choice[i].joined);
    }
    memset(q, 0, sizeof(*q));
}

uint32_t rtr_req_live(const struct rtr_req *q)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < q->ask.choices; i++)
        live += !q->choice[i].done;
    return live;
}

bool rtr_req_emitted(const struct rtr_req *q)
{
    for (uint32_t i = 0; i < q->ask.choices; i++)
        if (q->choice[i].count)
            return true;
    return false;
}

uint32_t rtr_req_tokens(const struct rtr_req *q)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < q->ask.choices; i++)
        if (!q->choice[i].done && q->choice[i].count > most)
            most = q->choice[i].count;
    return q->ask.token_count + most;
}

kvs_status rtr_choice_append(struct rtr_choice *c, int32_t id, uint32_t max_tokens)
{
    KVS_ASSERT(c->count < max_tokens);
    if (c->count == c->cap) {
        uint32_t cap = c->cap ? c->cap * 2 : 32;
        cap = cap < max_tokens ? cap : max_tokens;
        int32_t *grown = realloc(c->emitted, cap * sizeof(*grown));
        if (!grown)
            return KVS_SELF_NOMEM;
        c->emitted = grown;
        c->cap = cap;
    }
    c->emitted[c->count++] = id;
    return KVS_OK;
}

static kvs_status join(const struct rtr_req *q, struct rtr_choice *c)
{
    uint32_t prompt = q->ask.token_count;
    free(c->joined);
    c->joined = malloc((prompt + (size_t)c->count) * sizeof(*c->joined));
    if (!c->joined)
        return KVS_SELF_NOMEM;
    memcpy(c->joined, q->ask.tokens, prompt * sizeof(*c->joined));
    memcpy(c->joined + prompt, c->emitted, c->count * sizeof(*c->joined));
    return KVS_OK;
}

kvs_status rtr_req_join(struct rtr_req *q)
{
    kvs_status s = KVS_OK;
    for (uint32_t i = 0; i < q->ask.choices && s == KVS_OK; i++)
        if (!q->choice[i].done && q->choice[i].count)
            s = join(q, &q->choice[i]);
    return s;
}

void rtr_req_generate(const struct rtr_req *q, uint32_t choice, struct msg_generate *out)
{
    KVS_ASSERT(choice < q->ask.choices);
    const struct rtr_choice *c = &q->choice[choice];
    const struct rtr_request *a = &q->ask;
    KVS_ASSERT(c->count == 0 || c->joined);
    memset(out, 0, sizeof(*out));
    out->request = a->id;
    out->attempt = q->attempt;
    out->choice = choice;
    out->tokens = c->count ? c->joined : a->tokens;
    out->token_count = a->token_count + c->count;
    out->prompt_count = a->token_count;
    out->first_index = c->count;
    out->max_tokens = a->max_tokens;
    out->sampling = a->sampling;
    out->stop_ids = a->stop_ids;
    out->stop_id_count = a->stop_id_count;
    out->ignore_eos = a->ignore_eos;
    out->logits = a->logits;
    memcpy(out->adapter, a->adapter, sizeof(out->adapter));
    memcpy(out->tenant, a->tenant, sizeof(out->tenant));
    memcpy(out->cache_salt, a->cache_salt, sizeof(out->cache_salt));
    memcpy(out->trace, a->trace, sizeof(out->trace));
    out->priority = a->priority;
    out->placement = q->prefill ? MSG_PLACE_REMOTE : MSG_PLACE_LOCAL;
    memcpy(out->prefill_worker, q->prefill_id, sizeof(out->prefill_worker));
    bool said = q->moved_from[0] || a->fetch_worker[0];
    memcpy(out->fetch_worker, q->moved_from[0] ? q->moved_from : said ? a->fetch_worker : q->fetch_id, sizeof(out->fetch_worker));
    out->fetch_tokens = said ? out->token_count : q->fetch_id[0] ? q->fetch_tokens : 0;
    out->prompt = "";
}

bool rtr_req_try_again(struct rtr_req *q, kvs_status status, bool resume, uint32_t deaths_max)
{
    bool begun = rtr_req_emitted(q);
    if (begun && !resume)
        return false;
    if (status == KVS_SELF_STOPPING)
        return q->moves++ < MOVES_MAX;
    if (kvs_is_peer(status)) {
        q->replaced = true;
        return ++q->deaths < deaths_max;
    }
    if (q->spoke || !(kvs_is_busy(status) || status == KVS_SELF_NOMEM || status == KVS_SELF_IO))
        return false;
    if (begun)
        return q->moves++ < MOVES_MAX;
    bool first = !q->replaced;
    q->replaced = true;
    return first;
}

void rtr_req_lost(struct rtr_req *q)
{
    for (uint32_t i = 0; i < RTR_DEAD_KEPT; i++) {
        if (q->dead_epoch[i] == 0) {
            q->dead_epoch[i] = q->epoch;
            return;
        }
    }
}

void rtr_req_lives(struct rtr_req *q, uint64_t epoch)
{
    for (uint32_t i = 0; epoch != 0 && i < RTR_DEAD_KEPT; i++) {
        if (q->dead_epoch[i] == epoch && q->deaths > 0 && q->revivals < REVIVALS_MAX) {
            q->dead_epoch[i] = 0;
            q->deaths--;
            q->revivals++;
        }
    }
}
