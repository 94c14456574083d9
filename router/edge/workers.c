/* workers.c - the router's side of its workers: a connection, a card (from discovery), a model object, then the two long calls, Tokens and
 * Load; then the core may use it.
 *   CONNECTED --card--> MODEL (header streams in, or another worker's is under way) --model--> READY
 *                          `--cannot be understood, or does not fit the model object--> REFUSED (listed with the cause)
 * Anything that breaks closes the connection: the worker dials again and starts anew.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/dispatch_impl.h"

#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ABORT_MS 5000u
#define MODEL_INFO_MS 60000u
#define MODEL_RETRY_US 1000000u

struct rtr_peer *rtr_peer_of(struct rtr_dispatch *d, net_conn conn)
{
    for (uint32_t i = 0; i < d->peer_count; i++)
        if (d->peers[i]->conn == conn)
            return d->peers[i];
    return NULL;
}

static bool decodes(const struct rtr_peer *p)
{
    return p->card.role == MSG_ROLE_DECODE || p->card.role == MSG_ROLE_BOTH;
}

void rtr_peer_up(struct rtr_dispatch *d, net_conn conn, const struct msg_hello *hello)
{
    bool room = d->peer_count < d->peers_max;
    struct rtr_peer *p = room ? calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        net_rpc_close(d->rpc, conn, room ? KVS_SELF_NOMEM : KVS_BUSY_FULL,
                      room ? "the router is out of memory" : "the router's table of workers is full");
        return;
    }
    for (uint32_t i = 0; i < d->peer_count; i++) /* a new life of a worker whose old connection is not yet known to be dead */
        if (strcmp(d->peers[i]->id, hello->id) == 0)
            net_rpc_close(d->rpc, d->peers[i]->conn, KVS_PEER_LOST, "the worker has connected anew");
    p->conn = conn;
    p->epoch = hello->epoch;
    memcpy(p->id, hello->id, sizeof(p->id));
    d->peers[d->peer_count++] = p;
    KVS_INFO("worker connected", "worker=%s role=%s", p->id, msg_role_name(hello->role));
    rtr_peer_greet(d, p);
}

static void leave_core(struct rtr_dispatch *d, struct rtr_peer *p)
{
    if (p->state == RTR_JOIN_READY)
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_WORKER_DOWN, .worker = p->conn});
    p->state = RTR_JOIN_CONNECTED;
    rtr_cache_close(d, p);
    rtr_board_page(d->board, p->id, NULL, 0);
}

void rtr_peer_down(struct rtr_dispatch *d, struct rtr_peer *p, const char *why)
{
    KVS_WARN("worker lost", "worker=%s cause=\"%s\"", p->id, why);
    leave_core(d, p);
    rtr_order_down(d, p->conn);
    for (uint32_t i = 0; i < d->peer_count; i++) {
        if (d->peers[i] == p) {
            d->peers[i] = d->peers[--d->peer_count];
            break;
        }
    }
    free(p->header);
    free(p->calls);
    free(p->load);
    free(p);
}

void rtr_peer_suspect(struct rtr_dispatch *d, struct rtr_peer *p, bool suspect)
{
    p->suspect = suspect;
    if (p->state == RTR_JOIN_READY)
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_SUSPECT, .worker = p->conn, .flag = suspect});
}

/* ---- joining ---- */

static void refuse(struct rtr_dispatch *d, struct rtr_peer *p, const char *why)
{
    leave_core(d, p);
    p->state = RTR_JOIN_REFUSED;
    kvs_format(p->why, sizeof(p->why), "%s", why);
    KVS_ERROR("worker refused", "worker=%s model=%s cause=\"%s\"", p->id, p->card.model, why);
}

static bool open_call(struct rtr_dispatch *d, struct rtr_peer *p, msg_method method, uint32_t remaining_ms, uint32_t *stream)
{
    if (net_rpc_call(d->rpc, p->conn, method, remaining_ms, "", NULL, 0, stream) == KVS_OK)
        return true;
    net_rpc_close(d->rpc, p->conn, KVS_PEER_LOST, "a call could not be sent");
    return false;
}

static void become_ready(struct rtr_dispatch *d, struct rtr_peer *p)
{
    if (p->card.context != p->model->context) {
        refuse(d, p, "its --context differs from that of the workers that came before; start all workers of a model with the same one");
        return;
    }
    if (decodes(p) && !p->tokens_stream && !open_call(d, p, MSG_TOKENS, 0, &p->tokens_stream))
        return;
    if (!p->load_stream && !open_call(d, p, MSG_LOAD, 0, &p->load_stream))
        return;
    p->state = RTR_JOIN_READY;
    KVS_INFO("worker ready", "worker=%s role=%s model=%s", p->id, msg_role_name(p->card.role), p->card.model);
    rtr_feed(d, &(struct rtr_event){.type = RTR_EV_WORKER_UP, .worker = p->conn, .model = p->model->key, .card = &p->card});
    rtr_digests_ready(d, p);
    rtr_cache_open(d, p, kvs_now_us());
}

static bool header_under_way(const struct rtr_dispatch *d, const struct rtr_peer *p)
{
    for (uint32_t i = 0; i < d->peer_count; i++) {
        const struct rtr_peer *o = d->peers[i];
        if (o != p && o->info_stream && memcmp(o->card.fingerprint, p->card.fingerprint, 32) == 0 && strcmp(o->card.model, p->card.model) == 0)
            return true;
    }
    return false;
}

static void advance(struct rtr_dispatch *d, struct rtr_peer *p)
{
    if (!p->have_card || p->state == RTR_JOIN_READY || p->state == RTR_JOIN_REFUSED || p->info_stream)
        return;
    p->state = RTR_JOIN_MODEL;
    p->model = rtr_models_of(d->models, p->card.model, p->card.fingerprint);
    if (p->model)
        become_ready(d, p);
    else if (!header_under_way(d, p) && kvs_now_us() >= p->retry_at_us)
        (void)open_call(d, p, MSG_MODEL_INFO, MODEL_INFO_MS, &p->info_stream);
}

static void drop_header(struct rtr_peer *p)
{
    free(p->header);
    p->header = NULL;
    p->header_total = p->header_got = 0;
}

/* The call for its model's header is over without a model; it is made again. */
static void model_later(struct rtr_peer *p)
{
    p->info_stream = 0;
    p->retry_at_us = kvs_now_us() + MODEL_RETRY_US;
    drop_header(p);
}

static void on_piece(struct rtr_dispatch *d, struct rtr_peer *p, const uint8_t *payload, size_t n)
{
    struct msg_model_info_piece piece;
    struct kvs_error e = {0};
    kvs_status s = msg_model_info_piece_decode(payload, n, &d->arena, &piece, &e);
    bool first = !p->header;
    if (s == KVS_OK && first && piece.total > 0 && piece.total <= MSG_MODEL_HEADER_MAX) {
        p->header = malloc(piece.total);
        p->header_total = piece.total;
    }
    if (s == KVS_SELF_NOMEM || (first && p->header_total && !p->header)) { /* its END is for nobody then */
        KVS_WARN("no memory for a piece of a model's header", "worker=%s bytes=%" PRIu64, p->id, p->header_total);
        net_rpc_cancel(d->rpc, p->conn, p->info_stream);
        model_later(p);
        return;
    }
    bool fits = s == KVS_OK && p->header && piece.total == p->header_total && piece.offset == p->header_got &&
                piece.count <= p->header_total - p->header_got;
    if (!fits) {
        net_rpc_close(d->rpc, p->conn, KVS_PEER_PROTOCOL, s != KVS_OK ? e.text : "pieces of the model's header do not fit together");
        return;
    }
    memcpy(p->header + p->header_got, piece.bytes, piece.count);
    p->header_got += piece.count;
}

static void on_info_end(struct rtr_dispatch *d, struct rtr_peer *p, const struct msg_end *end)
{
    struct kvs_error e = {0};
    struct rtr_model *m = NULL;
    p->info_stream = 0;
    bool whole = end->status == KVS_OK && p->header && p->header_got == p->header_total;
    if (!whole) {
        KVS_WARN("model header did not arrive", "worker=%s status=%s text=\"%s\"", p->id, kvs_status_name(end->status), end->text);
        model_later(p);
        return;
    }
    kvs_status s = rtr_models_add(d->models, &p->card, p->header, p->header_total, &m, &e);
    drop_header(p);
    if (s == KVS_SELF_NOMEM) { /* no fault of the worker's */
        KVS_WARN("no memory for a model's tables", "worker=%s model=%s", p->id, p->card.model);
        model_later(p);
        return;
    }
    if (s != KVS_OK) {
        refuse(d, p, e.text);
        return;
    }
    KVS_INFO("model known", "model=%s arch=%s vocab=%u context=%u", m->name, m->card.arch, m->card.vocab, m->context);
    for (uint32_t i = 0; i < d->peer_count; i++)
        advance(d, d->peers[i]);
}

/* A worker that comes back under the same epoch inside its lease is no news to discovery: its card is remembered here. */
static void remember(struct rtr_dispatch *d, const struct msg_card *card)
{
    uint32_t i = 0;
    while (i < d->member_count && strcmp(d->members[i].id, card->id) != 0)
        i++;
    if (i == MSG_MEMBERS_MAX)
        return;
    d->members[i] = *card;
    d->member_count += i == d->member_count;
}

static void forget(struct rtr_dispatch *d, const struct msg_card *card)
{
    for (uint32_t i = 0; i < d->member_count; i++) {
        if (d->members[i].epoch == card->epoch && strcmp(d->members[i].id, card->id) == 0) {
            d->members[i] = d->members[--d->member_count];
            return;
        }
    }
}

/* What it is or may do is another. One that decodes from now on needs a Tokens call before it is given anything. */
static void card_changed(struct rtr_dispatch *d, struct rtr_peer *p)
{
    KVS_INFO("worker changed", "worker=%s role=%s draining=%d", p->id, msg_role_name(p->card.role), p->card.draining);
    if (decodes(p) && !p->tokens_stream && !open_call(d, p, MSG_TOKENS, 0, &p->tokens_stream))
        return;
    rtr_feed(d, &(struct rtr_event){.type = RTR_EV_WORKER_CARD, .worker = p->conn, .card = &p->card});
}

static void take_card(struct rtr_dispatch *d, struct rtr_peer *p, const struct msg_card *card)
{
    if (p->epoch != card->epoch || strcmp(p->id, card->id) != 0)
        return;
    bool draining = p->card.draining;
    msg_role role = p->card.role;
    p->card = *card;
    p->have_card = true;
    if (p->state == RTR_JOIN_READY && (draining != card->draining || role != card->role))
        card_changed(d, p);
    advance(d, p);
}

void rtr_peer_member(void *dispatch, const struct msg_member *m)
{
    struct rtr_dispatch *d = dispatch;
    if (m->change == MSG_MEMBER_PUT) {
        rtr_misfits_look(&d->misfits, d->members, d->member_count, &m->card, kvs_now_us());
        remember(d, &m->card);
        for (uint32_t i = 0; i < d->peer_count; i++)
            take_card(d, d->peers[i], &m->card);
    } else if (m->change == MSG_MEMBER_GONE) {
        forget(d, &m->card);
        for (uint32_t i = 0; i < d->peer_count; i++) {
            struct rtr_peer *p = d->peers[i];
            if (p->epoch == m->card.epoch && strcmp(p->id, m->card.id) == 0) {
                leave_core(d, p);
                p->have_card = false;
            }
        }
    }
}

void rtr_peer_greet(struct rtr_dispatch *d, struct rtr_peer *p)
{
    for (uint32_t i = 0; i < d->member_count; i++)
        take_card(d, p, &d->members[i]);
}

/* ---- the long calls ---- */

static void on_tokens(struct rtr_dispatch *d, struct rtr_peer *p, const uint8_t *payload, size_t n)
{
    struct msg_tokens t;
    struct kvs_error e = {0};
    kvs_status s = msg_tokens_decode(payload, n, &d->arena, &t, &e);
    if (s != KVS_OK) { /* whatever the cause: what is lost of a stream is made good by another attempt */
        net_rpc_close(d->rpc, p->conn, s, e.text);
        return;
    }
    for (uint32_t i = 0; i < t.count; i++)
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_TOKEN, .worker = p->conn, .token = &t.entries[i]});
}

static void on_load(struct rtr_dispatch *d, struct rtr_peer *p, const uint8_t *payload, size_t n)
{
    struct kvs_error e = {0};
    if (!p->load)
        p->load = calloc(1, sizeof(*p->load));
    if (!p->load)
        return;
    kvs_status s = msg_load_decode(payload, n, &d->arena, p->load, &e);
    if (s != KVS_OK) {
        free(p->load);
        p->load = NULL;
        if (s != KVS_SELF_NOMEM) /* the next report does as well */
            net_rpc_close(d->rpc, p->conn, s, e.text);
        return;
    }
    rtr_board_page(d->board, p->id, p->load->metrics, p->load->metrics_bytes);
    p->load->metrics = NULL;
    p->load->metrics_bytes = 0;
    p->load_at_us = kvs_now_us();
    if (p->load->role && p->load->role != p->card.role) { /* discovery may say so later, or be away */
        p->card.role = p->load->role;
        card_changed(d, p);
    }
    rtr_feed(d, &(struct rtr_event){.type = RTR_EV_LOAD, .worker = p->conn, .load = p->load});
}

void rtr_peer_item(struct rtr_dispatch *d, struct rtr_peer *p, uint32_t stream, const uint8_t *payload, size_t n)
{
    if (stream == p->tokens_stream)
        on_tokens(d, p, payload, n);
    else if (stream == p->load_stream)
        on_load(d, p, payload, n);
    else if (stream == p->cache_stream)
        rtr_cache_item(d, p, payload, n);
    else if (stream == p->info_stream)
        on_piece(d, p, payload, n);
}

static bool take_call(struct rtr_peer *p, uint32_t stream, struct rtr_call *out)
{
    for (uint32_t i = 0; i < p->call_count; i++) {
        if (p->calls[i].stream != stream)
            continue;
        *out = p->calls[i];
        p->calls[i] = p->calls[--p->call_count];
        return true;
    }
    return false;
}

void rtr_peer_end(struct rtr_dispatch *d, struct rtr_peer *p, uint32_t stream, const struct msg_end *end)
{
    struct rtr_call c;
    if (stream == p->info_stream) {
        on_info_end(d, p, end);
    } else if (stream == p->cache_stream) {
        rtr_cache_end(p, end);
    } else if (stream == p->tokens_stream || stream == p->load_stream) {
        if (stream == p->tokens_stream)
            p->tokens_stream = 0;
        else
            p->load_stream = 0;
        net_rpc_close(d->rpc, p->conn, KVS_PEER_LOST, "the worker ended a call that must stay open");
    } else if (rtr_order_end(d, p->conn, stream, end)) {
        return;
    } else if (take_call(p, stream, &c)) {
        char text[320];
        const char *why = end->text[0] ? end->text : kvs_status_name(end->status);
        if (kvs_is_peer(end->status)) /* say whose fault it is */
            kvs_format(text, sizeof(text), "worker %s: %s", p->id, why);
        else
            kvs_format(text, sizeof(text), "%s", why);
        rtr_feed(d, &(struct rtr_event){.type = RTR_EV_END,
                                        .worker = p->conn,
                                        .id = c.id,
                                        .attempt = c.attempt,
                                        .choice = c.choice,
                                        .status = end->status,
                                        .text = text});
    }
}

/* ---- actions of the core ---- */

static bool keep_call(struct rtr_peer *p, const struct rtr_call *c)
{
    if (p->call_count == p->call_cap) {
        uint32_t cap = p->call_cap ? p->call_cap * 2 : 16;
        struct rtr_call *grown = realloc(p->calls, cap * sizeof(*grown));
        if (!grown)
            return false;
        p->calls = grown;
        p->call_cap = cap;
    }
    p->calls[p->call_count++] = *c;
    return true;
}

void rtr_peer_generate(struct rtr_dispatch *d, const struct rtr_action *a)
{
    struct rtr_peer *p = rtr_peer_of(d, a->worker);
    struct rtr_call c = {.id = a->id, .attempt = a->attempt, .choice = a->choice};
    kvs_status s = p ? KVS_OK : KVS_PEER_LOST;
    kvs_buf_clear(&d->scratch);
    if (s == KVS_OK)
        s = msg_generate_encode(&a->generate, &d->scratch);
    if (s == KVS_OK)
        s = net_rpc_call(d->rpc, p->conn, MSG_GENERATE, a->remaining_ms, a->generate.trace, d->scratch.data, d->scratch.len, &c.stream);
    if (s == KVS_OK && !keep_call(p, &c)) {
        net_rpc_cancel(d->rpc, p->conn, c.stream);
        s = KVS_SELF_NOMEM;
    }
    if (s == KVS_OK) {
        rtr_job_started(d, a, p->id);
        if (a->attempt > 1)
            KVS_INFO("request goes on elsewhere", "req=%016" PRIx64 " choice=%u attempt=%u worker=%s emitted=%u", a->id, a->choice, a->attempt, p->id,
                     a->generate.first_index);
        return;
    }
    struct rtr_deferred ev = {.type = RTR_EV_END, .worker = a->worker, .id = a->id, .attempt = a->attempt, .choice = a->choice, .status = s};
    kvs_format(ev.text, sizeof(ev.text), "the request could not be handed to worker %s", p ? p->id : "(gone)");
    rtr_defer(d, &ev);
}

void rtr_peer_abort(struct rtr_dispatch *d, const struct rtr_action *a)
{
    struct rtr_peer *p = rtr_peer_of(d, a->worker);
    struct msg_abort m = {.request = a->id, .attempt = a->attempt, .keep = a->flag};
    uint32_t stream;
    if (!p)
        return;
    kvs_buf_clear(&d->scratch);
    if (msg_abort_encode(&m, &d->scratch) != KVS_OK ||
        net_rpc_call(d->rpc, p->conn, MSG_ABORT, ABORT_MS, "", d->scratch.data, d->scratch.len, &stream) != KVS_OK)
        net_rpc_close(d->rpc, p->conn, KVS_PEER_LOST, "an Abort could not be sent"); /* the loss ends all its sequences */
}

void rtr_peer_cancel(struct rtr_dispatch *d, const struct rtr_action *a)
{
    struct rtr_peer *p = rtr_peer_of(d, a->worker);
    for (uint32_t i = 0; p && i < p->call_count; i++) {
        struct rtr_call *c = &p->calls[i], gone;
        if (c->id != a->id || c->attempt != a->attempt || c->choice != a->choice)
            continue;
        net_rpc_cancel(d->rpc, p->conn, c->stream);
        (void)take_call(p, c->stream, &gone);
        return;
    }
}

void rtr_peer_pause(struct rtr_dispatch *d, const struct rtr_action *a)
{
    struct rtr_peer *p = rtr_peer_of(d, a->worker);
    struct msg_pause m = {.request = a->id};
    if (!p || !p->tokens_stream)
        return;
    kvs_buf_clear(&d->scratch);
    if (msg_pause_encode(&m, &d->scratch) == KVS_OK &&
        net_rpc_pause(d->rpc, p->conn, p->tokens_stream, d->scratch.data, d->scratch.len, !a->flag) == KVS_OK)
        return;
    KVS_WARN(a->flag ? "pause could not be sent" : "resume could not be sent", "worker=%s req=%llu", p->id, (unsigned long long)a->id);
    if (!a->flag) /* it would stand still to its deadline; elsewhere it goes on */
        net_rpc_close(d->rpc, p->conn, KVS_PEER_LOST, "a RESUME could not be sent");
}

/* ---- once in a while ---- */

void rtr_peers_tick(struct rtr_dispatch *d, uint64_t now_us)
{
    for (uint32_t i = 0; i < d->peer_count; i++)
        rtr_cache_open(d, d->peers[i], now_us);
    for (uint32_t i = 0; i < d->peer_count; i++)
        if (d->peers[i]->state == RTR_JOIN_MODEL && now_us >= d->peers[i]->retry_at_us)
            advance(d, d->peers[i]);
}

static const char *state_name(const struct rtr_peer *p)
{
    if (p->state == RTR_JOIN_REFUSED)
        return "refused";
    if (p->state != RTR_JOIN_READY)
        return "joining";
    return p->card.draining ? "draining" : p->suspect ? "suspect" : "ready";
}

static void tell_ready(struct rtr_dispatch *d)
{
    struct rtr_model *m;
    bool any = false, pair = false;
    for (size_t i = 0; (m = rtr_models_at(d->models, i)) != NULL; i++) {
        bool p = false, ready = rtr_model_ready(d->core, m->key, &p);
        atomic_store(&m->ready, ready);
        any |= ready;
        pair |= p;
        rtr_model_release(m);
    }
    bool stopping = atomic_load(&d->draining);
    rtr_board_ready(d->board, any && !stopping,
                    stopping ? "stopping"
                    : pair   ? "prefill and decode workers are linked"
                    : any    ? "decode workers only: prompts are read where answers are written"
                             : "no decode worker is ready");
}

static void follow(struct kvs_counter *counter, uint64_t now, uint64_t *seen)
{
    kvs_counter_add(counter, now - *seen);
    *seen = now;
}

void rtr_peers_view(struct rtr_dispatch *d, uint64_t now_us)
{
    struct rtr_stats st;
    tell_ready(d);
    rtr_stats(d->core, &st);
    rtr_cache_view(d, &st);
    follow(d->m.replaced, st.replaced, &d->replaced_seen);
    follow(d->m.resumed, st.resumed, &d->resumed_seen);
    follow(d->m.moved, st.moved, &d->moved_seen);
    kvs_gauge_set(d->m.running, st.running);
    kvs_gauge_set(d->m.waiting, st.waiting);
    kvs_gauge_set(d->m.workers, d->peer_count);
    struct rtr_worker_view *v = calloc(d->peer_count + 1, sizeof(*v));
    if (!v)
        return;
    for (uint32_t i = 0; i < d->peer_count; i++) {
        const struct rtr_peer *p = d->peers[i];
        v[i].card = p->card;
        memcpy(v[i].card.id, p->id, sizeof(p->id));
        v[i].state = state_name(p);
        v[i].why = p->why;
        v[i].load = p->load;
        v[i].load_age_ms = p->load ? (now_us - p->load_at_us) / 1000 : 0;
    }
    struct rtr_status_view view = {.workers = v,
                                   .count = d->peer_count,
                                   .running = st.running,
                                   .waiting = st.waiting,
                                   .index_blocks = st.index_blocks,
                                   .index_bytes = st.index_bytes,
                                   .index_dropped = st.index_dropped,
                                   .recent = &d->recent,
                                   .misfits = &d->misfits,
                                   .now_us = now_us};
    rtr_board_status(d->board, &view);
    free(v);
}
