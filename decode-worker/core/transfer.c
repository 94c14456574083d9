/* transfer.c - KV from a peer: one transfer of one call, from GRANT to FORGET.
 *
 *   begin: GRANT, CALL_PREFILL ---END---> GRANT_END ---GRANT event---> ACK, SAMPLE                        all landed
 *                |                                      '-----------> NACK or CANCEL, local prefill       something is missing
 *                '--peer down, too slow, call ends--> GRANT_CANCEL (and CANCEL) ---GRANT event---> local, or unfence
 *
 * Pages belong to the port until the GRANT event. Until then the sequence is HELD, or FENCED when its call has ended meanwhile.
 * A fetch is the same with a peer that only sends what it has: it ends in a local prefill of the rest, or, with nothing landed, as if it had
 * not been tried.
 * What a transfer left behind is used only as a run of whole blocks from the start that landed in every group; pages behind it are zeroed
 * again, since a broken receive may have left bytes there and a step multiplies masked positions with what it finds.
 * A source that says KVS_SELF_NUMERIC is believed: the same numbers would come out here.
 * SPDX-License-Identifier: Apache-2.0 */
#include "decode-worker/core/private.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

void dcw__transfer_free(struct dcw_transfer *t)
{
    free(t->wants);
    free(t->missing);
    *t = (struct dcw_transfer){0};
}

static struct dcw_call *find_xfer(struct dcw *d, uint64_t xfer)
{
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (c->live && c->t.open && c->t.xfer == xfer)
            return c;
    }
    return NULL;
}

static void forget(struct dcw *d, struct dcw_call *c)
{
    KVS_ASSERT(c->t.open && !c->t.granted);
    c->t.open = false;
    dcw__act(d, DCW_ACT_FORGET, c)->xfer = c->t.xfer;
}

/* Two 64-bit numbers nobody can guess who does not know the seed; never the same pair twice in a process. */
static void draw_ids(struct dcw *d, struct dcw_transfer *t)
{
    uint32_t key[2] = {(uint32_t)d->seed, (uint32_t)(d->seed >> 32)}, out[4];
    do {
        uint64_t n = d->drawn++;
        uint32_t counter[4] = {(uint32_t)n, (uint32_t)(n >> 32), 0x78666572u, 0};
        kvs_philox4x32(counter, key, out);
        t->xfer = (uint64_t)out[1] << 32 | out[0];
        t->nonce = (uint64_t)out[3] << 32 | out[2];
    } while (t->xfer == 0 || find_xfer(d, t->xfer));
}

static bool find_peer(const struct dcw *d, const char *id, uint32_t *peer_out)
{
    for (uint32_t i = 0; i < DCW_PEERS_MAX; i++)
        if (d->peers[i].up && strcmp(d->peers[i].id, id) == 0) {
            *peer_out = i;
            return true;
        }
    return false;
}

static void go_local(struct dcw *d, struct dcw_call *c, uint32_t computed, bool rezero)
{
    d->stats.fallbacks++;
    c->phase = DCW_LOCAL;
    wrk_seq_ready(d->sched, c->seq, computed, rezero);
}

/* What is cached here leaves too little for a transfer. */
static bool is_nearly_cached(const struct dcw *d, const struct wrk_seq_view *v)
{
    uint32_t n = wrk_sched_layout(d->sched)->block_tokens, last = (v->token_count - 1) / n;
    return last > 0 ? v->shared == last : v->cached > 0;
}

/* What was not found here of all that is needed after so many tokens: all blocks of full and latent groups, a few of the others. */
static bool make_wants(struct dcw *d, struct dcw_call *c, uint32_t tokens)
{
    const struct kvc_layout *l = wrk_sched_layout(d->sched);
    struct wrk_seq_view v = wrk_seq_look(d->sched, c->seq);
    uint32_t blocks = kvc_blocks_for(l, tokens);
    uint64_t count = (uint64_t)(blocks - v.shared) * l->group_count;
    dcw__transfer_free(&c->t);
    if (count + 1 > MSG_WANTS_MAX)
        return false;
    c->t.wants = calloc(count + 1, sizeof *c->t.wants);
    c->t.missing = calloc(count + 1, sizeof *c->t.missing);
    if (!c->t.wants || !c->t.missing)
        return false;
    wrk_seq_land(d->sched, c->seq, tokens);
    for (uint32_t b = v.shared; b < blocks; b++)
        for (uint32_t g = 0; g < l->group_count; g++)
            if (kvc_block_row(v.table, g)[b] != KVC_BLOCK_NONE)
                c->t.wants[c->t.want_count++] = (struct msg_want){.block = b, .group = g};
    c->t.want_end = blocks;
    c->t.wants[c->t.want_count] = (struct msg_want){.block = KVT_LOGITS_BLOCK, .group = KVT_LOGITS_GROUP};
    return true;
}

static void act_grant(struct dcw *d, struct dcw_call *c)
{
    struct dcw_action *a = dcw__act(d, DCW_ACT_GRANT, c);
    a->peer = c->t.peer;
    a->xfer = c->t.xfer;
    a->grant.sink_epoch = d->epoch;
    a->grant.nonce = c->t.nonce;
    a->grant.wants = c->t.wants;
    a->grant.want_count = c->t.want_count;
    a->grant.table = wrk_seq_look(d->sched, c->seq).table;
    a->grant.logits_bytes = c->t.fetch ? 0 : (uint64_t)d->vocab * 4;
}

static void act_call(struct dcw *d, struct dcw_call *c)
{
    struct wrk_seq_view v = wrk_seq_look(d->sched, c->seq);
    struct dcw_action *a = dcw__act(d, DCW_ACT_CALL_PREFILL, c);
    a->peer = c->t.peer;
    a->xfer = c->t.xfer;
    a->prefill.deadline_us = c->deadline_us;
    a->prefill.fetch = c->t.fetch;
    struct msg_prefill *m = &a->prefill.msg;
    *m = (struct msg_prefill){.request = c->request,
                              .xfer = c->t.xfer,
                              .sink_epoch = d->epoch,
                              .nonce = c->t.nonce,
                              .tokens = v.tokens,
                              .token_count =
                                  c->t.fetch ? c->t.want_end * wrk_sched_layout(d->sched)->block_tokens : v.token_count,
                              .wants = c->t.wants,
                              .want_count = c->t.want_count,
                              .logits = !c->t.fetch,
                              .priority = c->priority};
    memcpy(m->tenant, c->tenant, sizeof m->tenant);
    memcpy(m->cache_salt, c->cache_salt, sizeof m->cache_salt);
}

static void open_transfer(struct dcw *d, struct dcw_call *c, uint32_t peer, bool fetch, uint64_t now_us)
{
    draw_ids(d, &c->t);
    c->t.open = c->t.granted = c->t.calling = true;
    c->t.fetch = fetch;
    c->t.peer = peer;
    c->t.began_us = now_us;
    c->t.due_us = 0;
    c->t.close_us = 0;
    c->t.stalled = c->t.closing = false;
    c->phase = DCW_TRANSFER;
    act_grant(d, c);
    act_call(d, c);
}

/* Whole blocks that the named peer has and this worker has not; the last token is always computed. */
static bool fetch_begin(struct dcw *d, struct dcw_call *c, const struct wrk_seq_view *v, uint64_t now_us)
{
    uint32_t n = wrk_sched_layout(d->sched)->block_tokens, peer;
    uint32_t tokens = c->fetch_tokens < v->token_count - 1 ? c->fetch_tokens : v->token_count - 1;
    c->fetch_tokens = 0; /* once */
    if (tokens / n <= v->shared || !find_peer(d, c->fetch_worker, &peer) || !make_wants(d, c, tokens / n * n))
        return false;
    d->stats.fetches++;
    open_transfer(d, c, peer, true, now_us);
    return true;
}

void dcw__transfer_begin(struct dcw *d, struct dcw_call *c, uint64_t now_us)
{
    uint32_t peer;
    KVS_ASSERT(c->phase == DCW_QUEUED && !c->t.open);
    struct wrk_seq_view v = wrk_seq_look(d->sched, c->seq);
    bool nearly = is_nearly_cached(d, &v);
    if (!nearly && c->fetch_tokens > 0 && fetch_begin(d, c, &v, now_us))
        return;
    if (nearly || !c->remote) {
        c->phase = DCW_LOCAL;
        wrk_seq_ready(d->sched, c->seq, v.computed, c->dirty);
        return;
    }
    if (!find_peer(d, c->prefill_worker, &peer) || !make_wants(d, c, v.token_count)) {
        go_local(d, c, v.computed, c->dirty);
        return;
    }
    open_transfer(d, c, peer, false, now_us);
}

static void grant_cancel(struct dcw *d, struct dcw_call *c)
{
    if (!c->t.granted || c->t.cancelled)
        return;
    c->t.cancelled = true;
    dcw__act(d, DCW_ACT_GRANT_CANCEL, c)->xfer = c->t.xfer;
}

/* What all transfers from that peer still bring, at most: they share its link. */
static uint64_t bytes_from(const struct dcw *d, uint32_t peer)
{
    const struct kvc_layout *l = wrk_sched_layout(d->sched);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->calls_max; i++) {
        const struct dcw_call *c = &d->calls[i];
        for (uint32_t k = 0; c->live && c->t.granted && c->t.peer == peer && k < c->t.want_count; k++)
            bytes += l->group[c->t.wants[k].group].page_bytes;
    }
    return bytes;
}

/* Given up, by us or by its source; what is under way keeps its pages until it has landed or its link is gone. */
static bool is_given_up(const struct dcw_call *c)
{
    return c->t.granted && (c->t.cancelled || (c->t.ended && c->t.end_status != KVS_OK));
}

/* A peer that announces what it never sends, or a link that carries nothing, must not keep a request, or its pages. */
static void watch_leftovers(struct dcw *d, struct dcw_call *c, uint64_t now_us)
{
    if (c->t.close_us == 0)
        c->t.close_us = now_us + wrk_transfer_us(d->stall_us, bytes_from(d, c->t.peer));
    if (now_us < c->t.close_us || c->t.closing)
        return;
    c->t.closing = true;
    if (d->peers[c->t.peer].up)
        dcw__act(d, DCW_ACT_PEER_CLOSE, c)->peer = c->t.peer;
}

uint64_t dcw__transfer_due_us(const struct dcw_call *c)
{
    if (is_given_up(c))
        return c->t.closing ? UINT64_MAX : c->t.close_us;
    return c->t.granted && c->t.due_us ? c->t.due_us : UINT64_MAX;
}

void dcw__transfer_watch(struct dcw *d, struct dcw_call *c, uint64_t now_us)
{
    if (is_given_up(c)) {
        watch_leftovers(d, c, now_us);
        return;
    }
    if (!c->t.granted || (!c->t.ended && !c->t.fetch))
        return;
    if (!c->t.due_us)
        c->t.due_us = now_us + wrk_transfer_us(d->stall_us, bytes_from(d, c->t.peer));
    if (now_us < c->t.due_us)
        return;
    c->t.stalled = true;
    grant_cancel(d, c);
    watch_leftovers(d, c, now_us);
}

static void call_over(struct dcw *d, struct dcw_call *c, dcw_action_kind kind)
{
    if (!c->t.calling)
        return;
    c->t.calling = false;
    if (!d->peers[c->t.peer].up)
        return;
    struct dcw_action *a = dcw__act(d, kind, c);
    a->peer = c->t.peer;
    a->xfer = c->t.xfer;
}

void dcw__transfer_abandon(struct dcw *d, struct dcw_call *c)
{
    if (!c->t.open) {
        wrk_seq_close(d->sched, c->seq);
        return;
    }
    call_over(d, c, DCW_ACT_CANCEL);
    if (c->t.granted) {
        grant_cancel(d, c);
        wrk_seq_fence(d->sched, c->seq);
        return;
    }
    forget(d, c);
    wrk_seq_close(d->sched, c->seq);
}

void dcw__on_prefill_end(struct dcw *d, uint64_t xfer, const struct msg_end *end)
{
    struct dcw_call *c = find_xfer(d, xfer);
    if (!c || c->t.ended || !c->t.calling)
        return;
    c->t.ended = true;
    c->t.end_status = end->status;
    c->t.stalled |= end->status == KVS_PEER_TIMEOUT;
    c->t.source_us = end->prefill_us;
    c->t.source_cached = end->cached_tokens;
    c->t.source_chunks = end->chunks;
    if (end->status != KVS_OK)
        call_over(d, c, DCW_ACT_CANCEL); /* the source keeps nothing after an error; this closes the stream's books */
    if (!c->t.granted || c->t.cancelled)
        return;
    struct dcw_action *a = dcw__act(d, DCW_ACT_GRANT_END, c);
    a->peer = c->t.peer;
    a->xfer = xfer;
    a->grant_end.status = end->status;
    a->grant_end.pages_sent = end->pages_sent;
}

/* Leading tokens whose blocks landed in all groups, from the slots that did not; at most all but one, since the logits need the last. */
static uint32_t usable_tokens(const struct dcw *d, const struct dcw_call *c, const uint32_t *missing,
                              uint32_t missing_count)
{
    const struct kvc_layout *l = wrk_sched_layout(d->sched);
    struct wrk_seq_view v = wrk_seq_look(d->sched, c->seq);
    uint32_t tokens = v.token_count;
    uint64_t blocks = c->t.want_end;
    if (kvc_layout_is_mixed(l)) /* a window or a state is of use at its own end only */
        return v.computed;
    if (missing_count == 0) /* failed, and nobody says what is there but what was found here */
        return v.computed;
    for (uint32_t i = 0; i < missing_count; i++)
        if (missing[i] < c->t.want_count && c->t.wants[missing[i]].block < blocks)
            blocks = c->t.wants[missing[i]].block;
    uint64_t n = blocks * l->block_tokens;
    return n < tokens ? (uint32_t)n : tokens - 1;
}

static void placed_remote(struct dcw *d, struct dcw_call *c, const struct dcw_event *ev, uint64_t now_us)
{
    struct msg_placed *p = &c->placed;
    p->pages = ev->grant.pages;
    p->bytes = ev->grant.bytes;
    p->transfer_us = ev->grant.elapsed_us;
    p->prefill_us = c->t.source_us;
    uint64_t whole = now_us - c->t.began_us;
    p->exposed_us = whole > c->t.source_us ? whole - c->t.source_us : 0;
    /* With more chunks pages travelled while others were computed: how long that took is not to be seen from here. */
    if (ev->grant.status == KVS_OK && c->t.ended && c->t.end_status == KVS_OK &&
        (c->t.fetch || c->t.source_chunks <= 1))
        wrk_link_add(&d->peers[c->t.peer].link, ev->grant.bytes, (double)p->exposed_us * 1e-6);
    if (c->t.stalled) { /* what was measured before is true no more, and routers have to hear of it */
        d->stats.stalled++;
        d->peers[c->t.peer].link = (struct wrk_fit){0};
        wrk_link_add(&d->peers[c->t.peer].link, ev->grant.bytes, (double)p->exposed_us * 1e-6);
    }
    memset(p->transport, 0, sizeof p->transport); /* an earlier transfer's */
    if (ev->grant.pages > 0)
        memcpy(p->transport, d->peers[c->t.peer].transport, sizeof p->transport);
    d->stats.kv_pages += ev->grant.pages;
    d->stats.kv_bytes += ev->grant.bytes;
}

static void act_nack(struct dcw *d, struct dcw_call *c, const uint32_t *missing, uint32_t missing_count)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < missing_count && n <= c->t.want_count; i++)
        if (missing[i] <= c->t.want_count)
            c->t.missing[n++] = c->t.wants[missing[i]];
    bool send = c->t.calling && d->peers[c->t.peer].up;
    call_over(d, c, DCW_ACT_NACK);
    if (!send)
        return;
    struct dcw_action *a = &d->actions[d->action_count - 1];
    a->nack.missing = c->t.missing;
    a->nack.count = n;
}

static void act_sample(struct dcw *d, struct dcw_call *c)
{
    struct dcw_action *a = dcw__act(d, DCW_ACT_SAMPLE, c);
    a->xfer = c->t.xfer;
    a->sample.sampling = c->sampling;
    a->sample.choice = c->choice;
    a->sample.position = wrk_seq_look(d->sched, c->seq).token_count;
}

static void grant_failed(struct dcw *d, struct dcw_call *c, const uint32_t *missing, uint32_t missing_count,
                         uint64_t now_us)
{
    uint32_t kept = usable_tokens(d, c, missing, missing_count);
    if (c->t.ended && c->t.end_status == KVS_OK)
        act_nack(d, c, missing, missing_count);
    else
        call_over(d, c, DCW_ACT_CANCEL);
    forget(d, c);
    if (c->t.ended && c->t.end_status == KVS_SELF_NUMERIC) {
        dcw__fail(d, c, KVS_SELF_NUMERIC, "a number of this sequence is not finite", now_us);
        return;
    }
    struct wrk_seq_view v = wrk_seq_look(d->sched, c->seq);
    c->t.source_cached = v.cached; /* how much of what landed the source had to compute is not known */
    if (kept > v.computed) {
        c->placed.mode = MSG_PLACE_REMOTE;
        memcpy(c->placed.prefill_worker, c->prefill_worker, sizeof c->placed.prefill_worker);
    }
    go_local(d, c, kept, true);
}

/* Room was made for what the first fetch was to bring: what a window needs to go on earlier, and was found here, has been given back by that. */
static bool may_fetch_less(const struct dcw *d, const struct wrk_seq_view *v)
{
    const struct kvc_layout *l = wrk_sched_layout(d->sched);
    bool windows = false;
    for (uint32_t g = 0; g < l->group_count; g++)
        windows = windows || l->group[g].kind == KVC_WINDOW;
    return !windows || v->shared == 0;
}

/* Keeps what landed in front; nothing did: settle begins anew, without a fetch or with one of less. */
static void fetch_over(struct dcw *d, struct dcw_call *c, const struct dcw_event *ev)
{
    struct wrk_seq_view v = wrk_seq_look(d->sched, c->seq);
    bool whole = ev->grant.status == KVS_OK;
    uint32_t kept = whole ? c->t.want_end * wrk_sched_layout(d->sched)->block_tokens
                          : usable_tokens(d, c, ev->grant.missing, ev->grant.missing_count);
    if (!whole && c->t.ended && c->t.end_status == KVS_OK)
        act_nack(d, c, ev->grant.missing, ev->grant.missing_count);
    else
        call_over(d, c, whole && c->t.ended ? DCW_ACT_ACK : DCW_ACT_CANCEL);
    forget(d, c);
    c->phase = DCW_QUEUED;
    c->dirty = c->later = true;
    if (kept <= v.computed) {
        bool less = c->t.ended && c->t.end_status == KVS_REQ_NOT_FOUND && !c->fetched_less && may_fetch_less(d, &v);
        if (less && c->t.source_cached < c->t.want_end * wrk_sched_layout(d->sched)->block_tokens)
            c->fetch_tokens =
                c->t.source_cached; /* a state stands only where a snapshot is: once more, for what is there */
        c->fetched_less = true;
        return;
    }
    d->stats.fetched_tokens += kept - v.computed;
    c->found_elsewhere = kept;
    c->phase = DCW_LOCAL;
    wrk_seq_ready(d->sched, c->seq, kept, true);
}

void dcw__on_grant(struct dcw *d, const struct dcw_event *ev, uint64_t now_us)
{
    struct dcw_call *c = find_xfer(d, ev->xfer);
    if (!c || !c->t.granted)
        return;
    c->t.granted = false;
    if (c->phase == DCW_ENDING) {
        forget(d, c);
        wrk_seq_unfence(d->sched, c->seq);
        return;
    }
    KVS_ASSERT(c->phase == DCW_TRANSFER);
    placed_remote(d, c, ev, now_us);
    if (c->t.fetch) {
        fetch_over(d, c, ev);
        return;
    }
    if (ev->grant.status != KVS_OK) {
        grant_failed(d, c, ev->grant.missing, ev->grant.missing_count, now_us);
        return;
    }
    call_over(d, c, c->t.ended ? DCW_ACT_ACK : DCW_ACT_CANCEL);
    c->placed.mode = MSG_PLACE_REMOTE;
    memcpy(c->placed.prefill_worker, c->prefill_worker, sizeof c->placed.prefill_worker);
    c->phase = DCW_FIRST;
    act_sample(d, c);
}

bool dcw_link(const struct dcw *d, struct msg_peer_link *link)
{
    uint32_t peer;
    if (!find_peer(d, link->id, &peer) || !d->peers[peer].link.samples)
        return false;
    wrk_link_tell(&d->peers[peer].link, link);
    return true;
}

void dcw__on_sampled(struct dcw *d, const struct dcw_event *ev, uint64_t now_us)
{
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (!c->live || c->phase != DCW_FIRST || dcw__handle(d, c) != ev->call)
            continue;
        forget(d, c);
        c->phase = DCW_LOCAL;
        wrk_seq_ready(d->sched, c->seq, wrk_seq_look(d->sched, c->seq).token_count, false);
        dcw__token(d, c, &ev->sampled, now_us);
        return;
    }
}

void dcw__on_peer_gone(struct dcw *d, uint32_t peer, bool closed, uint64_t now_us)
{
    if (peer >= DCW_PEERS_MAX)
        return;
    d->peers[peer].up = false;
    for (uint32_t i = 0; i < d->calls_max; i++) {
        struct dcw_call *c = &d->calls[i];
        if (!c->live || !c->t.open || !c->t.granted || c->t.peer != peer)
            continue;
        c->t.calling = false;
        if (!closed) {
            grant_cancel(d, c);
            continue;
        }
        /* The port should have let go of it before; without its word nothing counts as landed. */
        struct dcw_event lost = {.kind = DCW_EV_GRANT, .xfer = c->t.xfer, .grant = {.status = KVS_PEER_LOST}};
        uint32_t first = 0;
        lost.grant.missing = &first;
        lost.grant.missing_count = 1;
        dcw__on_grant(d, &lost, now_us);
    }
}
