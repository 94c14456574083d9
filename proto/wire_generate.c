/* wire_generate.c - the messages of generation: Generate and its answers, token batches, Prefill and Fetch.
 * Token ids are packed varints taken over as they lie in the arena, without a copy.
 * SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire_impl.h"
#include <float.h>

static int32_t *borrow_ids(const int32_t *ids)
{
    int32_t *p;
    memcpy(&p, &ids, sizeof p);
    return p;
}

/* Ids from outside index the vocabulary later; a negative one can never be right. */
static kvs_status check_ids(const int32_t *ids, size_t n, const char *field, struct kvs_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0) {
            return kvs_fail(err, KVS_PEER_PROTOCOL, "%s holds the negative id %d", field, ids[i]);
        }
    }
    return KVS_OK;
}

/* What no sampler can use; NaN fails every comparison. */
static kvs_status check_sampling(const Kvasir__V1__SamplingParams *p, struct kvs_error *err)
{
    const char *field = NULL;
    if (p == NULL) {
        return KVS_OK;
    }
    if (!(p->temperature >= 0.0f && p->temperature <= FLT_MAX)) {
        field = "temperature";
    } else if (!(p->top_p >= 0.0f && p->top_p <= 1.0f)) {
        field = "top_p";
    } else if (!(p->min_p >= 0.0f && p->min_p <= 1.0f)) {
        field = "min_p";
    }
    return field == NULL ? KVS_OK : kvs_fail(err, KVS_PEER_PROTOCOL, "SamplingParams.%s is out of range", field);
}

void msg_pack_wants(struct msg_pack *p, uint32_t block_field, uint32_t group_field, const struct msg_want *wants,
                    uint32_t count)
{
    if (count == 0) {
        return;
    }
    msg_pack_column(p, block_field, &wants[0].block, sizeof wants[0] / sizeof(uint32_t), count);
    msg_pack_column(p, group_field, &wants[0].group, sizeof wants[0] / sizeof(uint32_t), count);
}

kvs_status msg_join_wants(struct kvs_arena *a, const uint32_t *blocks, const uint32_t *groups, uint32_t count,
                          const struct msg_want **out, struct kvs_error *err)
{
    struct msg_want *wants = kvs_arena_array(a, count == 0 ? 1 : count, sizeof *wants);
    if (wants == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for a list of %u pages", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        wants[i] = (struct msg_want){.block = blocks[i], .group = groups[i]};
    }
    *out = wants;
    return KVS_OK;
}

kvs_status msg_generate_encode(const struct msg_generate *m, struct kvs_buf *out)
{
    Kvasir__V1__GenerateRequest w = KVASIR__V1__GENERATE_REQUEST__INIT;
    Kvasir__V1__SamplingParams sampling = KVASIR__V1__SAMPLING_PARAMS__INIT;
    sampling.temperature = m->sampling.temperature;
    sampling.top_p = m->sampling.top_p;
    sampling.min_p = m->sampling.min_p;
    sampling.top_k = m->sampling.top_k;
    sampling.seed = m->sampling.seed;
    if (m->token_count > MSG_TOKENS_MAX || m->prompt_bytes > MSG_TOKENS_MAX * 4u) {
        return KVS_REQ_TOO_LARGE;
    }
    if (m->prompt_bytes > 0 && strlen(m->prompt) != m->prompt_bytes) {
        return KVS_REQ_INVALID; /* a NUL inside */
    }
    w.request_id = m->request;
    w.attempt = m->attempt;
    w.choice = m->choice;
    w.n_token_ids = m->token_count;
    w.token_ids = borrow_ids(m->tokens);
    w.prompt_token_count = m->prompt_count;
    w.first_index = m->first_index;
    w.max_tokens = m->max_tokens;
    w.sampling = &sampling;
    w.n_stop_token_ids = m->stop_id_count;
    w.stop_token_ids = borrow_ids(m->stop_ids);
    w.ignore_eos = m->ignore_eos;
    w.return_logits = m->logits;
    w.adapter = msg_borrow(m->adapter);
    w.tenant = msg_borrow(m->tenant);
    w.cache_salt = msg_borrow(m->cache_salt);
    w.trace_id = msg_borrow(m->trace);
    w.priority = m->priority;
    w.placement = (Kvasir__V1__Placement)m->placement;
    w.prefill_worker = msg_borrow(m->prefill_worker);
    w.fetch_worker = msg_borrow(m->fetch_worker);
    w.fetch_tokens = m->fetch_tokens;
    w.model = msg_borrow(m->model);
    w.prompt = msg_borrow(m->prompt_bytes > 0 ? m->prompt : "");
    return msg_pack_one(&w.base, out);
}

static void generate_take(struct msg_generate *m, const Kvasir__V1__GenerateRequest *w)
{
    *m = (struct msg_generate){
        .request = w->request_id,
        .attempt = w->attempt,
        .choice = w->choice,
        .tokens = w->token_ids,
        .token_count = (uint32_t)w->n_token_ids,
        .prompt_count = w->prompt_token_count,
        .first_index = w->first_index,
        .max_tokens = w->max_tokens,
        .stop_ids = w->stop_token_ids,
        .stop_id_count = (uint32_t)w->n_stop_token_ids,
        .ignore_eos = w->ignore_eos != 0,
        .logits = w->return_logits != 0,
        .priority = w->priority,
        .placement = (msg_placement)w->placement,
        .fetch_tokens = w->fetch_tokens,
        .prompt = msg_text(w->prompt),
        .prompt_bytes = (uint32_t)strlen(msg_text(w->prompt)),
    };
    if (w->sampling != NULL) {
        m->sampling = (struct msg_sampling){.temperature = w->sampling->temperature,
                                            .top_p = w->sampling->top_p,
                                            .min_p = w->sampling->min_p,
                                            .top_k = w->sampling->top_k,
                                            .seed = w->sampling->seed};
    }
    MSG_COPY_TEXT(m->adapter, w->adapter);
    MSG_COPY_TEXT(m->tenant, w->tenant);
    MSG_COPY_TEXT(m->cache_salt, w->cache_salt);
    MSG_COPY_TEXT(m->trace, w->trace_id);
    MSG_COPY_TEXT(m->prefill_worker, w->prefill_worker);
    MSG_COPY_TEXT(m->fetch_worker, w->fetch_worker);
    MSG_COPY_TEXT(m->model, w->model);
}

kvs_status msg_generate_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_generate *out,
                               struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__generate_request__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__GenerateRequest *w = (const Kvasir__V1__GenerateRequest *)base;
    s = check_ids(w->token_ids, w->n_token_ids, "GenerateRequest.token_ids", err);
    if (s == KVS_OK) {
        s = check_ids(w->stop_token_ids, w->n_stop_token_ids, "GenerateRequest.stop_token_ids", err);
    }
    if (s == KVS_OK) {
        s = check_sampling(w->sampling, err);
    }
    if (s != KVS_OK) {
        return s;
    }
    if (w->prompt_token_count > w->n_token_ids) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "GenerateRequest.prompt_token_count is %u of %zu tokens",
                        w->prompt_token_count, w->n_token_ids);
    }
    generate_take(out, w);
    return KVS_OK;
}

static void entry_fill(const struct msg_token *e, Kvasir__V1__TokenEntry *w, Kvasir__V1__Placed *placed)
{
    w->request_id = e->request;
    w->attempt = e->attempt;
    w->choice = e->choice;
    w->index = e->index;
    w->token_id = e->id;
    w->logit = e->logit;
    w->logprob = e->logprob;
    w->finish_reason = (Kvasir__V1__FinishReason)e->finish;
    w->error = (uint32_t)e->error;
    w->text = msg_borrow(e->text);
    if (e->has_placed) {
        placed->mode = (Kvasir__V1__Placement)e->placed.mode;
        placed->prefill_worker = msg_borrow(e->placed.prefill_worker);
        placed->transport = msg_borrow(e->placed.transport);
        placed->cached_tokens = e->placed.cached_tokens;
        placed->local_prefill_tokens = e->placed.local_prefill_tokens;
        placed->pages = e->placed.pages;
        placed->bytes = e->placed.bytes;
        placed->transfer_us = e->placed.transfer_us;
        placed->prefill_us = e->placed.prefill_us;
        placed->queue_us = e->placed.queue_us;
        placed->exposed_us = e->placed.exposed_us;
        w->placed = placed;
    }
}

kvs_status msg_tokens_encode(const struct msg_tokens *m, struct kvs_buf *out)
{
    struct msg_pack p;
    msg_pack_begin(&p, out);
    for (uint32_t i = 0; i < m->count; i++) {
        Kvasir__V1__TokenEntry w = KVASIR__V1__TOKEN_ENTRY__INIT;
        Kvasir__V1__Placed placed = KVASIR__V1__PLACED__INIT;
        entry_fill(&m->entries[i], &w, &placed);
        msg_pack_sub(&p, 1, &w.base);
    }
    return msg_pack_end(&p, &kvasir__v1__token_batch__descriptor);
}

static kvs_status entry_take(const Kvasir__V1__TokenEntry *w, struct msg_token *e, struct kvs_error *err)
{
    if (w->token_id < -1 || !msg_status_in_range(w->error)) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "TokenEntry.%s is out of range",
                        w->token_id < -1 ? "token_id" : "error");
    }
    *e = (struct msg_token){.request = w->request_id,
                            .attempt = w->attempt,
                            .choice = w->choice,
                            .index = w->index,
                            .id = w->token_id,
                            .logit = w->logit,
                            .logprob = w->logprob,
                            .finish = (msg_finish)w->finish_reason,
                            .error = (kvs_status)w->error,
                            .has_placed = w->placed != NULL};
    MSG_COPY_TEXT(e->text, w->text);
    if (w->placed != NULL) {
        const Kvasir__V1__Placed *p = w->placed;
        e->placed = (struct msg_placed){.mode = (msg_placement)p->mode,
                                        .cached_tokens = p->cached_tokens,
                                        .local_prefill_tokens = p->local_prefill_tokens,
                                        .pages = p->pages,
                                        .bytes = p->bytes,
                                        .transfer_us = p->transfer_us,
                                        .prefill_us = p->prefill_us,
                                        .queue_us = p->queue_us,
                                        .exposed_us = p->exposed_us};
        MSG_COPY_TEXT(e->placed.prefill_worker, p->prefill_worker);
        MSG_COPY_TEXT(e->placed.transport, p->transport);
    }
    return KVS_OK;
}

kvs_status msg_tokens_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_tokens *out,
                             struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__token_batch__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__TokenBatch *w = (const Kvasir__V1__TokenBatch *)base;
    struct msg_token *entries = kvs_arena_array(a, w->n_entries == 0 ? 1 : w->n_entries, sizeof *entries);
    if (entries == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for %zu token entries", w->n_entries);
    }
    for (size_t i = 0; i < w->n_entries; i++) {
        s = entry_take(w->entries[i], &entries[i], err);
        if (s != KVS_OK) {
            return s;
        }
    }
    *out = (struct msg_tokens){.entries = entries, .count = (uint32_t)w->n_entries};
    return KVS_OK;
}

kvs_status msg_prefill_encode(const struct msg_prefill *m, struct kvs_buf *out)
{
    Kvasir__V1__PrefillRequest w = KVASIR__V1__PREFILL_REQUEST__INIT;
    if (m->token_count > MSG_TOKENS_MAX || m->want_count > MSG_WANTS_MAX) {
        return KVS_REQ_TOO_LARGE;
    }
    w.request_id = m->request;
    w.xfer = m->xfer;
    w.sink_epoch = m->sink_epoch;
    w.nonce = m->nonce;
    w.n_token_ids = m->token_count;
    w.token_ids = borrow_ids(m->tokens);
    w.return_logits = m->logits;
    w.adapter = msg_borrow(m->adapter);
    w.tenant = msg_borrow(m->tenant);
    w.cache_salt = msg_borrow(m->cache_salt);
    w.priority = m->priority;
    struct msg_pack p;
    msg_pack_begin(&p, out);
    msg_pack_put(&p, &w.base);
    msg_pack_wants(&p, 6, 7, m->wants, m->want_count);
    return msg_pack_end(&p, &kvasir__v1__prefill_request__descriptor);
}

kvs_status msg_prefill_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_prefill *out,
                              struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__prefill_request__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__PrefillRequest *w = (const Kvasir__V1__PrefillRequest *)base;
    s = check_ids(w->token_ids, w->n_token_ids, "PrefillRequest.token_ids", err);
    if (s != KVS_OK) {
        return s;
    }
    if (w->n_want_blocks != w->n_want_groups) {
        return kvs_fail(err, KVS_PEER_PROTOCOL, "PrefillRequest wants %zu blocks and %zu groups", w->n_want_blocks,
                        w->n_want_groups);
    }
    struct msg_prefill m = {.request = w->request_id,
                            .xfer = w->xfer,
                            .sink_epoch = w->sink_epoch,
                            .nonce = w->nonce,
                            .tokens = w->token_ids,
                            .token_count = (uint32_t)w->n_token_ids,
                            .want_count = (uint32_t)w->n_want_blocks,
                            .logits = w->return_logits != 0,
                            .priority = w->priority};
    s = msg_join_wants(a, w->want_blocks, w->want_groups, m.want_count, &m.wants, err);
    if (s != KVS_OK) {
        return s;
    }
    MSG_COPY_TEXT(m.adapter, w->adapter);
    MSG_COPY_TEXT(m.tenant, w->tenant);
    MSG_COPY_TEXT(m.cache_salt, w->cache_salt);
    *out = m;
    return KVS_OK;
}

kvs_status msg_chunk_encode(const struct msg_chunk *m, struct kvs_buf *out)
{
    Kvasir__V1__GenerateResponse w = KVASIR__V1__GENERATE_RESPONSE__INIT;
    if (m->text_bytes > 0 && strlen(m->text) != m->text_bytes) {
        return KVS_REQ_INVALID;
    }
    w.choice = m->choice;
    w.n_token_ids = m->token_count;
    w.token_ids = borrow_ids(m->token_ids);
    w.text = msg_borrow(m->text_bytes > 0 ? m->text : "");
    w.finish_reason = (Kvasir__V1__FinishReason)m->finish;
    w.prompt_tokens = m->prompt_tokens;
    w.completion_tokens = m->completion_tokens;
    w.cached_tokens = m->cached_tokens;
    return msg_pack_one(&w.base, out);
}

kvs_status msg_chunk_decode(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct msg_chunk *out,
                            struct kvs_error *err)
{
    const ProtobufCMessage *base;
    kvs_status s = msg_unpack(&kvasir__v1__generate_response__descriptor, bytes, n, a, &base, err);
    if (s != KVS_OK) {
        return s;
    }
    const Kvasir__V1__GenerateResponse *w = (const Kvasir__V1__GenerateResponse *)base;
    s = check_ids(w->token_ids, w->n_token_ids, "GenerateResponse.token_ids", err);
    if (s != KVS_OK) {
        return s;
    }
    *out = (struct msg_chunk){.choice = w->choice,
                              .token_ids = w->token_ids,
                              .token_count = (uint32_t)w->n_token_ids,
                              .text = msg_text(w->text),
                              .text_bytes = (uint32_t)strlen(msg_text(w->text)),
                              .finish = (msg_finish)w->finish_reason,
                              .prompt_tokens = w->prompt_tokens,
                              .completion_tokens = w->completion_tokens,
                              .cached_tokens = w->cached_tokens};
    return KVS_OK;
}
