/* prefill.c - the request machine of a source. See prefill.h for the states; this file keeps them per call in few facts:
 *   seq      the prompt in the scheduler; WAITING there is "queued" here; closed when the source says that pages may be unpinned
 *   source   kvt_source: counts messages, knows when END is due and when the pages are free to go
 *   outgoing pages that are complete, in the order in which they leave; `posted` of them were handed out
 * Each event changes facts; settle() then draws the conclusions for every call: hand out what the window allows, END, release. So a late or
 * doubled event cannot skip a conclusion, it only finds nothing to change.
 * SPDX-License-Identifier: Apache-2.0 */
#include "prefill-worker/core/prefill.h"

#include "worker/core/stall.h"

#include <stdlib.h>
#include <string.h>

#define CALLS_MAX 1024u
#define QUEUE_WAIT_US 10000000u

struct page_ref {
    uint32_t block, group;
};

struct call {
    bool live;
    uint32_t generation;
    uint64_t conn, request, xfer;
    uint32_t stream, peer;
    uint64_t arrived_us, deadline_us;
    uint64_t sent_by_us;    /* 0: there is still something to compute */
    uint64_t close_us;      /* given up, but messages are under way: the peer's link is closed then; 0: not so */
    bool closing;           /* PEER_CLOSE went out */
    uint64_t mark, mark_us; /* what had been sent to its peer when that was set, and when */
    wrk_seq_id seq;
    struct kvt_source *source;
    uint32_t token_count, blocks;
    uint8_t *wanted;           /* [block][group]: wanted and not yet in outgoing */
    struct page_ref *outgoing; /* want_count of them at most */
    uint32_t want_count, outgoing_count, posted;
    uint8_t *unsent; /* per message: between SEND_* and SENT */
    bool logits_wanted, logits_ready;
    uint32_t layers_done; /* of the step in flight, as far as handled */
    bool admitted;        /* seen with pages: cached is right, pages found in the cache are in outgoing */
    uint32_t cached;
    bool fetch, fetch_short; /* FETCH; and not all that was wanted is here */
    bool stopped, closed, stream_lost, ended;
    char why[128]; /* END's text when stopped */
    uint32_t chunks, computed;
    uint64_t prefill_us;
};

struct pfw {
    struct wrk_sched *sched;
    uint32_t calls_max, vocab, send_window;
    uint64_t queue_wait_us, call_max_us, stall_us;
    struct call *calls;
    uint8_t peer_up[PFW_PEERS_MAX];
    uint64_t peer_sent[PFW_PEERS_MAX]; /* bytes, in its calls together */
    struct pfw_action *actions;
    size_t action_count, action_next, action_cap;
    bool draining, off; /* off: its role is another */
    struct pfw_stats stats;
};

/* --- create, destroy --- */

kvs_status pfw_create(const struct pfw_config *c, struct pfw **out, struct kvs_error *err)
{
    KVS_ASSERT(c->sched && c->vocab > 0);
    if (c->calls_max == 0 || c->calls_max > CALLS_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "a prefill worker can have 1 to %u calls, not %u", CALLS_MAX,
                        c->calls_max);
    struct pfw *p = calloc(1, sizeof *p);
    if (!p)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the prefill machine");
    p->sched = c->sched;
    p->calls_max = c->calls_max;
    p->vocab = c->vocab;
    p->send_window = c->send_window ? c->send_window : 64;
    p->queue_wait_us = c->queue_wait_us ? c->queue_wait_us : QUEUE_WAIT_US;
    p->call_max_us = c->call_max_us ? c->call_max_us : 600000000;
    p->stall_us = c->stall_us ? c->stall_us : WRK_STALL_US;
    p->calls = calloc(p->calls_max, sizeof *p->calls);
    p->action_cap = (size_t)p->calls_max * (p->send_window + 3) +
                    1; /* per event: a window, DROP, PEER_CLOSE and END of each call, a refusal */
    p->actions = calloc(p->action_cap, sizeof *p->actions);
    if (!p->calls || !p->actions)
        goto fail;
    *out = p;
    return KVS_OK;
fail:
    pfw_destroy(p);
    return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the prefill machine's tables");
}

static void call_free(struct pfw *p, struct call *c)
{
    if (c->seq != WRK_SEQ_NONE)
        wrk_seq_close(p->sched, c->seq);
    while (c->source &&
           kvt_source_in_flight(c->source) > 0) /* at the machine's end only: the transport is gone by then */
        kvt_source_sent(c->source, KVS_SELF_STOPPING);
    kvt_source_destroy(c->source);
    free(c->wanted);
    free(c->outgoing);
    free(c->unsent);
    *c = (struct call){.generation = c->generation};
}

void pfw_destroy(struct pfw *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; p->calls && i < p->calls_max; i++)
        if (p->calls[i].live)
            call_free(p, &p->calls[i]);
    free(p->calls);
    free(p->actions);
    free(p);
}

/* --- actions --- */

static struct pfw_action *act(struct pfw *p, pfw_action_kind kind, uint32_t user, uint64_t request)
{
    KVS_ASSERT(p->action_count < p->action_cap);
    struct pfw_action *a = &p->actions[p->action_count++];
    *a = (struct pfw_action){.kind = kind, .user = user, .request = request};
    return a;
}

size_t pfw_actions(struct pfw *p, struct pfw_action *out, size_t cap)
{
    size_t n = p->action_count - p->action_next;
    if (n > cap)
        n = cap;
    memcpy(out, p->actions + p->action_next, n * sizeof *out);
    p->action_next += n;
    return n;
}

static void act_end(struct pfw *p, const struct call *c, kvs_status status, uint32_t pages_sent)
{
    struct pfw_action *a = act(p, PFW_ACT_END, (uint32_t)(c - p->calls), c->request);
    a->end.conn = c->conn;
    a->end.stream = c->stream;
    a->end.end = (struct msg_end){.status = status,
                                  .pages_sent = pages_sent,
                                  .prefill_tokens = c->computed,
                                  .cached_tokens = c->cached,
                                  .chunks = c->chunks,
                                  .prefill_us = c->prefill_us};
    if (status != KVS_OK)
        kvs_format(a->end.end.text, sizeof a->end.end.text, "%s", c->why);
}

static struct pfw_action *refuse(struct pfw *p, const struct pfw_event *ev, kvs_status status, const char *text)
{
    struct pfw_action *a = act(p, PFW_ACT_END, 0, ev->call.msg->request);
    a->end.conn = ev->conn;
    a->end.stream = ev->stream;
    a->end.end.status = status;
    kvs_format(a->end.end.text, sizeof a->end.end.text, "%s", text);
    p->stats.refused++;
    return a;
}

/* --- accepting a call --- */

static struct call *find(struct pfw *p, uint64_t conn, uint32_t stream)
{
    for (uint32_t i = 0; i < p->calls_max; i++)
        if (p->calls[i].live && p->calls[i].conn == conn && p->calls[i].stream == stream)
            return &p->calls[i];
    return NULL;
}

static kvs_status check_call(const struct pfw *p, const struct pfw_event *ev, struct kvs_error *err)
{
    const struct msg_prefill *m = ev->call.msg;
    if (p->draining && !ev->call.fetch)
        return kvs_fail(err, KVS_SELF_STOPPING, "this prefill worker is draining");
    if (p->off && !ev->call.fetch)
        return kvs_fail(err, KVS_SELF_STOPPING, "this worker does not prefill for others now");
    if (ev->peer >= PFW_PEERS_MAX || !p->peer_up[ev->peer])
        return kvs_fail(err, KVS_PEER_REFUSED, "no transport to the caller is up");
    if (m->adapter[0])
        return kvs_fail(err, KVS_REQ_UNSUPPORTED, "adapters are not offered");
    if (m->token_count == 0)
        return kvs_fail(err, KVS_REQ_INVALID, "a prefill needs tokens");
    if (m->token_count > wrk_sched_context(p->sched))
        return kvs_fail(err, KVS_REQ_TOO_LONG, "%u tokens are more than the context of %u", m->token_count,
                        wrk_sched_context(p->sched));
    for (uint32_t i = 0; i < m->token_count; i++)
        if (m->tokens[i] < 0 || (uint32_t)m->tokens[i] >= p->vocab)
            return kvs_fail(err, KVS_REQ_INVALID, "token %u is outside the vocabulary", i);
    if (ev->call.fetch && m->logits)
        return kvs_fail(err, KVS_REQ_INVALID, "nothing is computed for a fetch, so it has no logits");
    if (m->want_count == 0 && !m->logits)
        return kvs_fail(err, KVS_REQ_INVALID, "nothing is wanted");
    if (m->want_count > MSG_WANTS_MAX)
        return kvs_fail(err, KVS_REQ_INVALID, "%u pages wanted, %u are the most", m->want_count,
                        (unsigned)MSG_WANTS_MAX);
    return KVS_OK;
}

/* The call's own memory; each want once and inside the prompt. */
static kvs_status take_wants(struct pfw *p, struct call *c, const struct msg_prefill *m, bool fetch,
                             struct kvs_error *err)
{
    const struct kvc_layout *l = wrk_sched_layout(p->sched);
    c->blocks = kvc_blocks_for(l, m->token_count);
    c->wanted = calloc((size_t)c->blocks * l->group_count, 1);
    c->outgoing = calloc((size_t)m->want_count + 1, sizeof *c->outgoing);
    c->unsent = calloc((size_t)m->want_count + 1, 1);
    if (!c->wanted || !c->outgoing || !c->unsent)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for %u wanted pages", m->want_count);
    for (uint32_t i = 0; i < m->want_count; i++) {
        const struct msg_want *w = &m->wants[i];
        if (w->block >= c->blocks || w->group >= l->group_count)
            return kvs_fail(err, KVS_REQ_INVALID, "wanted page %u is outside the prompt or the layout", i);
        if (!wrk_page_lands(l, w->group, w->block, m->token_count, fetch))
            return kvs_fail(err, KVS_REQ_INVALID, "wanted page %u of a %s group is not kept", i,
                            kvc_kind_name(l->group[w->group].kind));
        uint8_t *bit = &c->wanted[(size_t)w->block * l->group_count + w->group];
        if (*bit)
            return kvs_fail(err, KVS_REQ_INVALID, "page %u is wanted twice", i);
        *bit = 1;
    }
    c->want_count = m->want_count;
    c->logits_wanted = m->logits;
    return KVS_OK;
}

static void page_done(struct pfw *p, struct call *c, uint32_t block, uint32_t group);

/* Wanted pages of the first `blocks` blocks are complete and leave in the order of the wants. */
static void blocks_found(struct pfw *p, struct call *c, uint32_t blocks)
{
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t g = 0; g < wrk_sched_layout(p->sched)->group_count; g++)
            page_done(p, c, b, g);
}

static kvs_status open_fetch(struct pfw *p, struct call *c, const struct msg_prefill *m,
                             const struct wrk_seq_config *qc, struct kvs_error *err)
{
    kvs_status st = wrk_seq_pin(p->sched, qc, &c->seq, err);
    if (st != KVS_OK)
        return st;
    struct wrk_seq_view v = wrk_seq_look(p->sched, c->seq);
    c->fetch = c->admitted = true;
    c->cached = v.cached;
    if (kvc_layout_is_mixed(wrk_sched_layout(p->sched)) && v.cached < m->token_count) /* of no use in part */
        return kvs_fail(err, KVS_REQ_NOT_FOUND, "%u tokens of these are cached here", v.cached);
    blocks_found(p, c, v.shared);
    c->fetch_short = c->outgoing_count < m->want_count;
    c->want_count = c->outgoing_count;
    p->stats.fetches++;
    return c->want_count > 0 ? KVS_OK : kvs_fail(err, KVS_REQ_NOT_FOUND, "none of the wanted blocks is cached here");
}

static kvs_status open_call(struct pfw *p, struct call *c, const struct msg_prefill *m, bool fetch,
                            struct kvs_error *err)
{
    kvs_status st = take_wants(p, c, m, fetch, err);
    if (st != KVS_OK)
        return st;
    struct wrk_seq_config qc = {.owner = WRK_OWNER_PREFILL,
                                .user = (uint32_t)(c - p->calls),
                                .tokens = m->tokens,
                                .token_count = m->token_count,
                                .tokens_max = m->token_count + 1,
                                .logits = m->logits ? WRK_LOGITS_SHIP : WRK_LOGITS_NONE,
                                .tenant = m->tenant,
                                .cache_salt = m->cache_salt,
                                .adapter = m->adapter};
    st = fetch ? open_fetch(p, c, m, &qc, err) : wrk_seq_open(p->sched, &qc, &c->seq, err);
    if (st != KVS_OK)
        return st;
    struct kvt_source_config sc = {.sink_epoch = m->sink_epoch,
                                   .xfer = m->xfer,
                                   .nonce = m->nonce,
                                   .message_count = c->want_count + (m->logits ? 1 : 0),
                                   .deadline_us = c->deadline_us};
    st = kvt_source_create(&sc, &c->source);
    return st == KVS_OK ? st : kvs_fail(err, st, "no memory for a transfer");
}

static void on_call(struct pfw *p, const struct pfw_event *ev, uint64_t now_us)
{
    struct kvs_error err = {.code = KVS_OK};
    const struct msg_prefill *m = ev->call.msg;
    struct call *c = NULL;
    if (find(p, ev->conn, ev->stream))
        return; /* the same call once more */
    kvs_status st = check_call(p, ev, &err);
    for (uint32_t i = 0; i < p->calls_max && !c; i++)
        if (!p->calls[i].live)
            c = &p->calls[i];
    if (st == KVS_OK && !c)
        st = kvs_fail(&err, KVS_BUSY_QUEUE, "all %u prefill calls of this worker are taken", p->calls_max);
    if (st != KVS_OK) {
        (void)refuse(p, ev, st, err.text);
        return;
    }
    *c = (struct call){.live = true,
                       .generation = c->generation + 1,
                       .conn = ev->conn,
                       .stream = ev->stream,
                       .peer = ev->peer,
                       .request = m->request,
                       .xfer = m->xfer,
                       .arrived_us = now_us,
                       .token_count = m->token_count,
                       .deadline_us = ev->call.deadline_us ? ev->call.deadline_us : now_us + p->call_max_us};
    st = open_call(p, c, m, ev->call.fetch, &err);
    if (st != KVS_OK) {
        uint32_t cached = c->cached; /* a fetch that asked for too much may ask for this */
        call_free(p, c);
        refuse(p, ev, st, err.text)->end.end.cached_tokens = cached;
        return;
    }
    p->stats.calls++;
}

/* --- facts that events change --- */

static void stop(struct pfw *p, struct call *c, kvs_status status, const char *why)
{
    if (c->stopped)
        return;
    c->stopped = true;
    kvs_format(c->why, sizeof c->why, "%s", why);
    kvt_source_stop(c->source, status);
    wrk_seq_stop(p->sched, c->seq);
    if (kvt_source_in_flight(c->source) > 0 && p->peer_up[c->peer]) { /* a peer that is gone takes its queue along */
        struct pfw_action *a = act(p, PFW_ACT_DROP, (uint32_t)(c - p->calls), c->request);
        a->send.peer = c->peer;
        a->send.header.xfer = c->xfer;
    }
}

/* The sink needs nothing more. how: the counter of the way in which this call left. */
static void close_call(struct pfw *p, struct call *c, kvs_status status, const char *why, uint64_t *how)
{
    if (c->closed)
        return;
    c->closed = true;
    (*how)++;
    if (!c->ended)
        stop(p, c, status, why);
}

static void page_done(struct pfw *p, struct call *c, uint32_t block, uint32_t group)
{
    uint8_t *bit = &c->wanted[(size_t)block * wrk_sched_layout(p->sched)->group_count + group];
    if (!*bit)
        return;
    *bit = 0;
    KVS_ASSERT(c->outgoing_count < c->want_count);
    c->outgoing[c->outgoing_count++] = (struct page_ref){.block = block, .group = group};
}

/* The first look at a call that has pages: what the prefix tree had is complete, and leaves at once. */
static void look_admitted(struct pfw *p, struct call *c)
{
    struct wrk_seq_view v = wrk_seq_look(p->sched, c->seq);
    if (c->admitted || c->stopped || v.state != WRK_SEQ_READY)
        return;
    c->admitted = true;
    c->cached = v.cached;
    blocks_found(p, c, v.shared);
}

/* Pages of the groups whose last layer lies in (layers_done, layers], for the blocks that these tokens complete. */
static void pages_done(struct pfw *p, struct call *c, uint32_t pos, uint32_t count, uint32_t layers)
{
    const struct kvc_layout *l = wrk_sched_layout(p->sched);
    struct wrk_blocks b = wrk_entry_blocks(l, pos, count, pos + count == c->token_count);
    for (uint32_t g = 0; g < l->group_count; g++) {
        uint32_t end = l->group[g].last_layer + 1;
        if (end <= c->layers_done || end > layers)
            continue;
        uint32_t n = pos + count;
        if (l->group[g].kind == KVC_STATE) { /* the state stands behind the last token only */
            if (n == c->token_count || n % l->block_tokens == 0)
                page_done(p, c, kvc_state_block(l, n), g);
            continue;
        }
        for (uint32_t i = b.first; i < b.first + b.count; i++)
            page_done(p, c, i, g);
    }
    if (layers > c->layers_done)
        c->layers_done = layers;
}

static void on_layer(struct pfw *p, const struct pfw_event *ev)
{
    const struct wrk_step *step = wrk_sched_in_flight(p->sched);
    if (!step || step->id != ev->layer.step || ev->layer.layers > wrk_sched_layout(p->sched)->layer_count)
        return;
    for (uint32_t i = 0; i < step->entry_count; i++) {
        const struct wrk_step_entry *e = &step->entries[i];
        if (e->owner != WRK_OWNER_PREFILL || e->user >= p->calls_max)
            continue;
        struct call *c = &p->calls[e->user];
        if (!c->live || c->seq != e->seq)
            continue;
        look_admitted(p, c);
        if (!c->stopped)
            pages_done(p, c, e->pos, e->count, ev->layer.layers);
    }
}

static uint64_t bytes_wanted(const struct pfw *p, const struct call *c)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->outgoing_count; i++)
        bytes += wrk_sched_layout(p->sched)->group[c->outgoing[i].group].page_bytes;
    return bytes;
}

static void sending_begins(const struct pfw *p, struct call *c, uint64_t now_us, uint64_t bytes)
{
    c->mark = p->peer_sent[c->peer];
    c->mark_us = now_us;
    c->sent_by_us = now_us + wrk_transfer_us(p->stall_us, bytes);
}

/* Its time is up. The link may have carried other calls meanwhile; only one that is slow with all of them together is given up. */
static bool link_is_slow(const struct pfw *p, struct call *c, uint64_t now_us)
{
    uint64_t sent = p->peer_sent[c->peer] - c->mark, us = now_us - c->mark_us;
    if (wrk_transfer_us(0, sent) < us)
        return true;
    sending_begins(p, c, now_us, 0);
    return false;
}

static void on_step_done(struct pfw *p, uint64_t now_us)
{
    uint32_t n;
    const struct wrk_seq_result *r = wrk_sched_results(p->sched, WRK_OWNER_PREFILL, &n, NULL);
    for (uint32_t i = 0; i < n; i++, r++) {
        struct call *c = r->user < p->calls_max ? &p->calls[r->user] : NULL;
        if (!c || !c->live || c->seq != r->seq)
            continue;
        look_admitted(p, c);
        if (c->stopped || r->pos + r->count <= c->cached + c->computed)
            continue; /* or told before */
        if (r->r.status != KVS_OK) {
            stop(p, c, r->r.status,
                 r->r.status == KVS_SELF_NUMERIC ? "a number of this sequence is not finite"
                                                 : "the prefill step failed");
            continue;
        }
        pages_done(p, c, r->pos, r->count, wrk_sched_layout(p->sched)->layer_count);
        c->computed += r->count;
        c->chunks++;
        p->stats.prefill_tokens += r->count;
        if (r->last) {
            c->logits_ready = c->logits_wanted;
            c->prefill_us = now_us - c->arrived_us;
            sending_begins(p, c, now_us, bytes_wanted(p, c));
        }
    }
    for (uint32_t i = 0; i < p->calls_max; i++)
        p->calls[i].layers_done = 0; /* the next step counts anew, also when this one was stopped */
}

/* generation (32 bits), slot (10), message (17: wants and logits are at most 65537): a late or doubled SENT names nothing that is unsent. */
static uint64_t cookie_of(const struct pfw *p, const struct call *c, uint32_t message)
{
    return (uint64_t)c->generation << 32 | (uint64_t)(c - p->calls) << 17 | message;
}

static void on_sent(struct pfw *p, uint64_t cookie, kvs_status status)
{
    uint32_t slot = (uint32_t)cookie >> 17, message = (uint32_t)cookie & 0x1ffff;
    if (slot >= p->calls_max)
        return;
    struct call *c = &p->calls[slot];
    if (!c->live || c->generation != cookie >> 32 || message > c->want_count || !c->unsent[message])
        return;
    c->unsent[message] = 0;
    kvt_source_sent(c->source, status);
    if (status != KVS_OK)
        stop(p, c, status, "a page could not be sent");
    else if (message < c->want_count)
        p->peer_sent[c->peer] += wrk_sched_layout(p->sched)->group[c->outgoing[message].group].page_bytes;
}

static void on_peer_gone(struct pfw *p, uint32_t peer, bool transport_closed)
{
    if (peer >= PFW_PEERS_MAX)
        return;
    p->peer_up[peer] = 0;
    for (uint32_t i = 0; i < p->calls_max; i++) {
        struct call *c = &p->calls[i];
        if (!c->live || c->peer != peer)
            continue;
        c->stream_lost = true;
        close_call(p, c, KVS_PEER_LOST, "the caller is gone", &p->stats.lost);
        for (uint32_t m = 0; transport_closed && m <= c->want_count; m++)
            if (c->unsent[m])
                on_sent(p, cookie_of(p, c, m), KVS_PEER_LOST);
    }
}

static void on_stream_event(struct pfw *p, const struct pfw_event *ev)
{
    struct call *c = find(p, ev->conn, ev->stream);
    if (!c)
        return;
    if (ev->kind == PFW_EV_CANCEL)
        close_call(p, c, KVS_REQ_CANCELLED, "cancelled by the caller", &p->stats.cancelled);
    else if (!c->ended)
        close_call(p, c, KVS_PEER_PROTOCOL, "ACK or NACK before END", &p->stats.cancelled);
    else
        close_call(p, c, KVS_OK, "", ev->kind == PFW_EV_ACK ? &p->stats.acked : &p->stats.nacked);
}

/* --- conclusions --- */

static void post(struct pfw *p, struct call *c, bool logits)
{
    const struct kvc_layout *l = wrk_sched_layout(p->sched);
    uint32_t message = logits ? c->want_count : c->posted;
    const struct page_ref *r = &c->outgoing[message];
    struct kvt_header h;
    kvs_status st =
        logits
            ? kvt_source_post(c->source, KVT_LOGITS, KVT_LOGITS_BLOCK, KVT_LOGITS_GROUP, 0, (uint64_t)p->vocab * 4, &h)
            : kvt_source_post(c->source, KVT_PAGE, r->block, (uint16_t)r->group, 0, l->group[r->group].page_bytes, &h);
    KVS_ASSERT(st == KVS_OK);
    struct pfw_action *a =
        act(p, logits ? PFW_ACT_SEND_LOGITS : PFW_ACT_SEND_PAGE, (uint32_t)(c - p->calls), c->request);
    a->send.peer = c->peer;
    a->send.header = h;
    a->send.cookie = cookie_of(p, c, message);
    if (!logits) {
        a->send.group = r->group;
        a->send.page = kvc_block_row(wrk_seq_look(p->sched, c->seq).table, r->group)[r->block];
        c->posted++;
        p->stats.pages_posted++;
    }
    c->unsent[message] = 1;
}

static uint64_t largest_page(const struct pfw *p)
{
    const struct kvc_layout *l = wrk_sched_layout(p->sched);
    uint64_t most = 0;
    for (uint32_t g = 0; g < l->group_count; g++)
        most = l->group[g].page_bytes > most ? l->group[g].page_bytes : most;
    return most;
}

static bool has_leftovers(const struct call *c)
{
    return (c->stopped || c->closed) && kvt_source_in_flight(c->source) > 0;
}

/* Nobody wants what is under way any more, but it holds pages, and END back; a link on which it does not come to its end is closed. */
static void watch_leftovers(struct pfw *p, struct call *c, uint64_t now_us)
{
    if (!has_leftovers(c))
        return;
    if (c->close_us == 0)
        c->close_us = now_us + wrk_transfer_us(p->stall_us, kvt_source_in_flight(c->source) * largest_page(p));
    if (now_us < c->close_us || c->closing)
        return;
    c->closing = true;
    if (p->peer_up[c->peer])
        act(p, PFW_ACT_PEER_CLOSE, (uint32_t)(c - p->calls), c->request)->send.peer = c->peer;
}

static void settle(struct pfw *p, struct call *c, uint64_t now_us)
{
    kvs_status status;
    uint32_t sent;
    look_admitted(p, c);
    struct wrk_seq_view v = wrk_seq_look(p->sched, c->seq);
    if (now_us >= c->deadline_us)
        close_call(p, c, KVS_REQ_DEADLINE, "the call's time is up", &p->stats.expired);
    else if (!c->stopped && (v.state == WRK_SEQ_FAILED ||
                             (v.state == WRK_SEQ_WAITING && !v.deferred && now_us - c->arrived_us >= p->queue_wait_us)))
        stop(p, c, KVS_BUSY_PAGES, "no KV pages came free in time");
    else if (!c->stopped && !c->ended && c->sent_by_us && now_us >= c->sent_by_us && link_is_slow(p, c, now_us))
        stop(p, c, KVS_PEER_TIMEOUT, "pages leave too slowly");
    while (!c->stopped && kvt_source_in_flight(c->source) < p->send_window && c->posted < c->outgoing_count)
        post(p, c, false);
    if (!c->stopped && c->logits_ready && c->posted == c->want_count &&
        kvt_source_in_flight(c->source) < p->send_window) {
        c->logits_ready = false;
        post(p, c, true);
    }
    if (kvt_source_take_end(c->source, &status, &sent)) {
        c->ended = true;
        if (status == KVS_OK && c->fetch_short) {
            status = KVS_REQ_NOT_FOUND;
            kvs_format(c->why, sizeof c->why, "%u tokens of these are cached here", c->cached);
        }
        if (!c->stream_lost)
            act_end(p, c, status, sent);
        if (status != KVS_OK) /* the sink answers an error with nothing: it is over for both */
            c->closed = true;
    }
    if (c->closed && c->ended) /* not before END was taken: a closed source has none */
        kvt_source_close(c->source);
    watch_leftovers(p, c, now_us);
    if (c->ended && kvt_source_released(c->source, now_us))
        call_free(p, c);
}

void pfw_step(struct pfw *p, const struct pfw_event *ev, uint64_t now_us)
{
    KVS_ASSERT(p->action_next == p->action_count); /* the last event's actions were all taken */
    p->action_next = p->action_count = 0;
    wrk_sched_tell_time(p->sched, now_us);
    switch (ev->kind) {
    case PFW_EV_TICK: break;
    case PFW_EV_PEER_UP:
        if (ev->peer < PFW_PEERS_MAX)
            p->peer_up[ev->peer] = 1;
        break;
    case PFW_EV_PEER_DOWN: on_peer_gone(p, ev->peer, false); break;
    case PFW_EV_PEER_CLOSED: on_peer_gone(p, ev->peer, true); break;
    case PFW_EV_CALL: on_call(p, ev, now_us); break;
    case PFW_EV_ACK:
    case PFW_EV_NACK:
    case PFW_EV_CANCEL: on_stream_event(p, ev); break;
    case PFW_EV_LAYER: on_layer(p, ev); break;
    case PFW_EV_STEP_DONE: on_step_done(p, now_us); break;
    case PFW_EV_SENT: on_sent(p, ev->sent.cookie, ev->sent.status); break;
    case PFW_EV_DRAIN: p->draining = true; break;
    case PFW_EV_ROLE:
        p->off = !ev->role.prefills;
        p->queue_wait_us = ev->role.queue_wait_us ? ev->role.queue_wait_us : QUEUE_WAIT_US;
        break;
    }
    for (uint32_t i = 0; i < p->calls_max; i++)
        if (p->calls[i].live)
            settle(p, &p->calls[i], now_us);
    wrk_sched_admit(p->sched);
    for (uint32_t i = 0; i < p->calls_max; i++) /* what was found in the cache leaves at once */
        if (p->calls[i].live && !p->calls[i].admitted)
            settle(p, &p->calls[i], now_us);
}

uint64_t pfw_deadline_us(const struct pfw *p)
{
    uint64_t least = wrk_sched_can_admit(p->sched) ? 0 : UINT64_MAX;
    for (uint32_t i = 0; i < p->calls_max; i++) {
        const struct call *c = &p->calls[i];
        if (c->live && has_leftovers(c) && !c->closing && c->close_us < least)
            least = c->close_us;
        if (!c->live || c->closed)
            continue;
        if (c->deadline_us < least)
            least = c->deadline_us;
        struct wrk_seq_view v = wrk_seq_look(p->sched, c->seq);
        if (c->stopped)
            continue;
        if (v.state == WRK_SEQ_READY && !c->admitted)
            return 0; /* the other machine let it in */
        if (c->sent_by_us && !c->ended && c->sent_by_us < least)
            least = c->sent_by_us;
        if (v.state == WRK_SEQ_WAITING && !v.deferred && c->arrived_us + p->queue_wait_us < least)
            least = c->arrived_us + p->queue_wait_us;
    }
    return least;
}

struct pfw_stats pfw_stats(const struct pfw *p)
{
    struct pfw_stats out = p->stats;
    for (uint32_t i = 0; i < p->calls_max; i++) {
        if (!p->calls[i].live)
            continue;
        bool queued = wrk_seq_look(p->sched, p->calls[i].seq).state == WRK_SEQ_WAITING;
        out.queued += queued;
        out.running += !queued;
    }
    return out;
}
