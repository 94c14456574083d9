/* pair_random_test.c - three workers' real cores (two with both roles, one source) and real kvt_sinks, under a random order of everything: late
 * control messages, pages in any order, lost, doubled and broken ones, links that break and come back, routers that leave, aborts, pauses,
 * forced preemptions, refused grants. Checked after every event: page equation, no page in two places. Checked for each request: tokens
 * are those of a naive loop, in order, none twice, one END. At rest every page is free or cached. Two of three worlds reuse prefixes:
 * their prompts have heads in common, under three salts of which one is each request's own. The device asserts what it reads (fake_device.h).
 * PAIR_SEED=n runs one seed.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/decode-worker/pair_world.h"

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)kvs_rng_below(&w->rng, n);
}
static bool chance(struct world *w, uint32_t percent)
{
    return !w->calm && below(w, 100) < percent;
}
static struct link *link_of(struct world *w, uint32_t a, uint32_t b)
{
    return a < b ? &w->link[a][b] : &w->link[b][a];
}

/* --- local events of a node --- */

static struct dcw_event *local(struct node *n, dcw_event_kind kind)
{
    assert_true(n->local_count < QUEUE);
    uint32_t i = (n->local_head + n->local_count++) % QUEUE;
    n->local[i] = (struct dcw_event){.kind = kind};
    n->local_missing[i] = NULL;
    return &n->local[i];
}
static void local_end(struct node *n, uint64_t xfer, const struct msg_end *end)
{
    struct dcw_event *e = local(n, DCW_EV_PREFILL_END);
    n->local_end[e - n->local] = *end;
    e->xfer = xfer;
    e->prefill_end = &n->local_end[e - n->local];
}
static void local_lost(struct node *n, uint64_t xfer)
{
    struct msg_end end = {.status = KVS_PEER_LOST};
    local_end(n, xfer, &end);
}

/* --- the port --- */

static void port_settle(struct world *w, struct xfer *x, bool peer_closed)
{
    if (!x->port)
        return;
    kvt_sink_state st = kvt_sink_state_of(x->sink);
    if ((st == KVT_SINK_OPEN && !peer_closed) || kvt_sink_receiving(x->sink) > 0)
        return;
    struct node *n = &w->node[x->node];
    struct dcw_event *e = local(n, DCW_EV_GRANT);
    uint32_t *missing = malloc((x->slots + 1) * sizeof *missing);
    e->xfer = x->xfer;
    e->grant.missing = missing;
    e->grant.missing_count = kvt_sink_missing(x->sink, missing, x->slots + 1);
    e->grant.status = st == KVT_SINK_COMPLETE ? KVS_OK : st == KVT_SINK_FAILED ? KVS_PEER_CORRUPT : KVS_REQ_CANCELLED;
    e->grant.bytes = kvt_sink_landed_bytes(x->sink);
    n->local_missing[e - n->local] = missing;
    x->port = false;
}

static struct xfer *find_xfer(struct world *w, uint64_t id)
{
    for (uint32_t i = 0; i < XFERS; i++)
        if (w->xfer[i].used && w->xfer[i].xfer == id)
            return &w->xfer[i];
    return NULL;
}

static void do_grant(struct world *w, uint32_t node, const struct dcw_action *a)
{
    struct xfer *x = NULL;
    for (uint32_t i = 0; i < XFERS && !x; i++)
        if (!w->xfer[i].used)
            x = &w->xfer[i];
    assert_non_null(x);
    uint32_t n = a->grant.want_count;
    *x = (struct xfer){.used = true, .xfer = a->xfer, .node = node, .peer = a->peer, .slots = n};
    if (chance(w, 5)) { /* the port's ring is full */
        struct dcw_event *e = local(&w->node[node], DCW_EV_GRANT);
        e->xfer = a->xfer;
        e->grant.status = KVS_BUSY_QUEUE;
        return;
    }
    struct kvt_want *wants = calloc(n + 1, sizeof *wants);
    x->page = calloc(n + 1, sizeof *x->page);
    for (uint32_t i = 0; i < n; i++) {
        const struct msg_want *m = &a->grant.wants[i];
        wants[i] =
            (struct kvt_want){.block = m->block, .group = (uint16_t)m->group, .bytes = w->l.group[m->group].page_bytes};
        x->page[i] = kvc_block_row(a->grant.table, m->group)[m->block];
    }
    wants[n] = (struct kvt_want){.block = KVT_LOGITS_BLOCK, .group = KVT_LOGITS_GROUP, .bytes = FAKE_VOCAB * 4};
    struct kvt_sink_config c = {.sink_epoch = node,
                                .xfer = a->xfer,
                                .nonce = a->grant.nonce,
                                .wants = wants,
                                .want_count = n + (a->grant.logits_bytes > 0)};
    assert_int_equal(kvt_sink_create(&c, &x->sink), KVS_OK);
    free(wants);
    x->port = true;
}

/* --- control messages --- */

static void send_control(struct world *w, uint32_t from, uint32_t to, uint64_t conn, struct control_msg m)
{
    struct link *l = link_of(w, from, to);
    uint32_t dir = from < to;
    if (l->conn == 0 || l->conn != conn) {
        free((void *)m.prefill.tokens);
        free((void *)m.prefill.wants);
        return;
    }
    assert_true(l->count[dir] < 256);
    m.conn = conn;
    l->q[dir][(l->head[dir] + l->count[dir]++) % 256] = m;
}

static void do_call(struct world *w, uint32_t node, const struct dcw_action *a)
{
    struct xfer *x = find_xfer(w, a->xfer);
    struct link *l = link_of(w, node, a->peer);
    if (!x->port || l->conn == 0 || chance(w, 3)) {
        local_lost(&w->node[node], a->xfer);
        return;
    }
    struct control_msg m = {.kind = C_CALL,
                            .stream = ++w->stream,
                            .prefill = a->prefill.msg,
                            .fetch = a->prefill.fetch,
                            .deadline = a->prefill.deadline_us};
    size_t tokens = m.prefill.token_count * sizeof(int32_t), wants = m.prefill.want_count * sizeof(struct msg_want);
    m.prefill.tokens = memcpy(malloc(tokens), a->prefill.msg.tokens, tokens);
    m.prefill.wants = memcpy(malloc(wants), a->prefill.msg.wants, wants);
    w->subset += !m.fetch && m.prefill.want_count < kvc_blocks_for(&w->l, m.prefill.token_count) * w->l.group_count;
    x->stream = m.stream;
    x->conn = l->conn;
    x->call_open = true;
    send_control(w, node, a->peer, l->conn, m);
}

static void on_tokens(struct world *w, uint32_t node, const struct dcw_action *a)
{
    assert_int_equal(a->tokens.conn, w->node[node].router);
    for (uint32_t i = 0; i < a->tokens.count; i++) {
        const struct msg_token *e = &a->tokens.entries[i];
        assert_true(e->request < REQUESTS);
        struct request *r = &w->req[e->request];
        assert_true(r->used && !r->ended && !r->last_entry && !r->lost);
        assert_int_equal(e->index, r->next);
        if (e->id >= 0) {
            assert_true(r->next < r->total);
            assert_int_equal(e->id, r->want[r->next]);
            if (e->has_placed) {
                assert_true(e->placed.cached_tokens <= r->prompt && (w->tree || e->placed.cached_tokens == 0));
                assert_true(r->salt < 2 || e->placed.cached_tokens == 0);
                w->cached[0] += e->placed.cached_tokens;
            }
            r->next++;
            w->tokens++;
        }
        r->last_entry = e->finish != MSG_RUNNING;
        if (e->finish == MSG_FINISH_LENGTH)
            assert_int_equal(r->next, r->total);
        else if (r->last_entry)
            assert_true(e->finish == MSG_FINISH_ERROR && (e->error == KVS_REQ_DEADLINE || e->error == KVS_BUSY_PAGES));
        w->errors += e->finish == MSG_FINISH_ERROR;
    }
}

static void on_end(struct world *w, const struct dcw_action *a)
{
    if (a->end.stream >= 900000) /* ABORT's own */
        return;
    struct request *r = &w->req[a->request];
    assert_int_equal(a->end.stream, r->stream);
    assert_true(r->used && !r->ended && !r->lost);
    if (a->end.end.status == KVS_OK)
        assert_true(r->last_entry && r->next == r->total);
    w->aborted += a->end.end.status == KVS_REQ_CANCELLED;
    r->ended = true;
    w->ends++;
}

static void perform_decode(struct world *w, uint32_t node, const struct dcw_action *a)
{
    struct node *n = &w->node[node];
    struct xfer *x = find_xfer(w, a->xfer);
    switch (a->kind) {
    case DCW_ACT_GRANT: do_grant(w, node, a); break;
    case DCW_ACT_CALL_PREFILL: do_call(w, node, a); break;
    case DCW_ACT_GRANT_END:
        if (x->port)
            kvt_sink_end(x->sink, a->grant_end.status, a->grant_end.pages_sent);
        port_settle(w, x, false);
        break;
    case DCW_ACT_GRANT_CANCEL:
        if (x->port)
            kvt_sink_cancel(x->sink);
        port_settle(w, x, false);
        break;
    case DCW_ACT_PEER_CLOSE: fail_msg("a life lasts some milliseconds, and patience seconds"); break;
    case DCW_ACT_ACK:
    case DCW_ACT_NACK:
    case DCW_ACT_CANCEL:
        w->acks += a->kind == DCW_ACT_ACK;
        w->nacks += a->kind == DCW_ACT_NACK;
        x->call_open = false;
        send_control(w, node, a->peer, x->conn,
                     (struct control_msg){.kind = a->kind == DCW_ACT_ACK    ? C_ACK
                                                  : a->kind == DCW_ACT_NACK ? C_NACK
                                                                            : C_CANCEL,
                                          .stream = x->stream});
        break;
    case DCW_ACT_SAMPLE: {
        struct dcw_event *e = local(n, DCW_EV_SAMPLED);
        e->call = a->call;
        e->sampled.token = fake_sample(x->row, a->sample.sampling.seed, a->sample.choice, a->sample.position);
        break;
    }
    case DCW_ACT_FORGET:
        assert_false(x->port); /* the port has let go */
        x->used = false;
        if (x->sink)
            kvt_sink_destroy(x->sink);
        free(x->page);
        break;
    case DCW_ACT_TOKENS: on_tokens(w, node, a); break;
    case DCW_ACT_END: on_end(w, a); break;
    }
}

static void perform_prefill(struct world *w, uint32_t node, const struct pfw_action *a)
{
    if (a->kind == PFW_ACT_END) {
        for (uint32_t i = 0; i < NODES; i++)
            if (i != node && link_of(w, node, i)->conn == a->end.conn)
                send_control(w, node, i, a->end.conn,
                             (struct control_msg){.kind = C_END, .stream = a->end.stream, .end = a->end.end});
        return;
    }
    if (a->kind == PFW_ACT_PEER_CLOSE)
        fail_msg("a life lasts some milliseconds, and patience seconds");
    struct kv_msg *m = NULL;
    for (uint32_t i = 0; i < 2048 && !m; i++)
        if (!w->kv[i].used)
            m = &w->kv[i];
    assert_non_null(m);
    *m = (struct kv_msg){.used = true,
                         .from = node,
                         .to = a->send.peer,
                         .cookie = a->send.cookie,
                         .h = a->send.header,
                         .conn = link_of(w, node, a->send.peer)->conn};
    if (a->kind == PFW_ACT_SEND_LOGITS)
        m->row = w->node[node].rows[a->user];
    else
        m->page = a->send.page;
}

static void check(struct world *w)
{
    struct kvs_error err = {.text = ""};
    for (uint32_t i = 0; i < NODES; i++)
        if (w->node[i].s && !wrk_sched_consistent(w->node[i].s, &err))
            fail_msg("node %u: %s", i, err.text);
}

static void step_prefill(struct world *w, uint32_t node, struct pfw_event ev);

static void step_decode(struct world *w, uint32_t node, struct dcw_event ev)
{
    struct node *n = &w->node[node];
    struct dcw_action a[4];
    size_t count;
    if (!n->d)
        return;
    dcw_step(n->d, &ev, w->now);
    fake_zero(&n->kv, n->s);
    while ((count = dcw_actions(n->d, a, 4)) > 0)
        for (size_t i = 0; i < count; i++)
            perform_decode(w, node, &a[i]);
    check(w);
}

static void step_prefill(struct world *w, uint32_t node, struct pfw_event ev)
{
    struct node *n = &w->node[node];
    struct pfw_action a[4];
    size_t count;
    pfw_step(n->p, &ev, w->now);
    fake_zero(&n->kv, n->s);
    while ((count = pfw_actions(n->p, a, 4)) > 0)
        for (size_t i = 0; i < count; i++)
            perform_prefill(w, node, &a[i]);
    check(w);
    if (n->d && dcw_deadline_us(n->d) == 0)
        step_decode(w, node, (struct dcw_event){.kind = DCW_EV_TICK});
}

/* --- what may happen --- */

static void tick(struct world *w, uint32_t node)
{
    struct node *n = &w->node[node];
    if (pfw_deadline_us(n->p) <= w->now)
        step_prefill(w, node, (struct pfw_event){.kind = PFW_EV_TICK});
    if (n->d && dcw_deadline_us(n->d) <= w->now)
        step_decode(w, node, (struct dcw_event){.kind = DCW_EV_TICK});
}

static void deliver_local(struct world *w, uint32_t node)
{
    struct node *n = &w->node[node];
    if (n->local_count == 0)
        return;
    uint32_t i = n->local_head;
    struct dcw_event ev = n->local[i];
    n->local_head = (n->local_head + 1) % QUEUE;
    n->local_count--;
    step_decode(w, node, ev);
    if (chance(w, 5))
        step_decode(w, node, ev); /* doubled */
    free(n->local_missing[i]);
    n->local_missing[i] = NULL;
}

static void deliver_control(struct world *w, uint32_t from, uint32_t to)
{
    struct link *l = link_of(w, from, to);
    uint32_t dir = from < to;
    if (l->count[dir] == 0)
        return;
    struct control_msg m = l->q[dir][l->head[dir]];
    l->head[dir] = (l->head[dir] + 1) % 256;
    l->count[dir]--;
    struct pfw_event ev = {.conn = m.conn, .stream = m.stream, .peer = from};
    if (m.kind == C_END) {
        for (uint32_t i = 0; i < XFERS; i++) {
            struct xfer *x = &w->xfer[i];
            if (x->used && x->call_open && x->conn == m.conn && x->stream == m.stream)
                local_end(&w->node[to], x->xfer, &m.end);
        }
        return;
    }
    ev.kind = m.kind == C_CALL   ? PFW_EV_CALL
              : m.kind == C_ACK  ? PFW_EV_ACK
              : m.kind == C_NACK ? PFW_EV_NACK
                                 : PFW_EV_CANCEL;
    ev.call.msg = &m.prefill;
    ev.call.fetch = m.fetch;
    ev.call.deadline_us = m.deadline;
    step_prefill(w, to, ev);
    free((void *)m.prefill.tokens);
    free((void *)m.prefill.wants);
}

static void sent(struct world *w, struct kv_msg *m, kvs_status status)
{
    m->used = false;
    if (m->doubled)
        return;
    step_prefill(w, m->from, (struct pfw_event){.kind = PFW_EV_SENT, .sent = {.cookie = m->cookie, .status = status}});
}

/* A message arrives: checked, its receive posted, or declined. Landing is an event of its own. */
static void deliver_kv(struct world *w, struct kv_msg *m)
{
    struct xfer *x = find_xfer(w, m->h.xfer);
    uint64_t length = m->h.kind == KVT_LOGITS ? FAKE_VOCAB * 4 : w->l.group[m->h.group].page_bytes;
    if (m->conn == 0 || link_of(w, m->from, m->to)->conn != m->conn ||
        chance(w, 2)) { /* lost with its link, or declined */
        sent(w, m, KVS_OK);
        return;
    }
    if (!x || !x->port || kvt_sink_check(x->sink, &m->h, length, &m->slot) != KVT_ACCEPT) {
        sent(w, m, KVS_OK);
        return;
    }
    for (uint32_t i = 0; i < 2048 && chance(w, 5); i++)
        if (!w->kv[i].used) { /* it comes twice */
            w->kv[i] = *m;
            w->kv[i].doubled = true;
            break;
        }
    kvt_sink_begin(x->sink, m->slot, 0);
    m->receiving = true;
}

static void land(struct world *w, struct kv_msg *m, bool ok)
{
    struct xfer *x = find_xfer(w, m->h.xfer);
    assert_true(x && x->port);
    m->receiving = false;
    if (m->h.kind == KVT_LOGITS) {
        x->row = m->row;
    } else {
        uint64_t *dest = fake_page(&w->node[x->node].kv, m->h.group, x->page[m->slot]);
        memcpy(dest, fake_page(&w->node[m->from].kv, m->h.group, m->page), w->l.block_tokens * sizeof *dest);
        if (!ok)
            dest[below(w, w->l.block_tokens)] = FAKE_GARBAGE;
        w->pages += ok;
    }
    kvt_sink_landed(x->sink, m->slot, ok);
    port_settle(w, x, false);
    sent(w, m, ok ? KVS_OK : KVS_PEER_LOST);
}

static void move_kv(struct world *w)
{
    struct kv_msg *m = &w->kv[below(w, 2048)];
    for (uint32_t i = 0; i < 2048 && !m->used; i++)
        m = m == &w->kv[2047] ? w->kv : m + 1;
    if (!m->used)
        return;
    bool broken = link_of(w, m->from, m->to)->conn != m->conn;
    if (!m->receiving)
        deliver_kv(w, m);
    else if (!broken) /* what was posted on a broken link ends with CLOSED */
        land(w, m, !chance(w, 3));
}

static void break_link(struct world *w, uint32_t a, uint32_t b)
{
    struct link *l = link_of(w, a, b);
    uint64_t conn = l->conn;
    if (conn == 0)
        return;
    w->breaks++;
    for (uint32_t dir = 0; dir < 2; dir++)
        for (; l->count[dir] > 0; l->count[dir]--, l->head[dir] = (l->head[dir] + 1) % 256) {
            free((void *)l->q[dir][l->head[dir]].prefill.tokens);
            free((void *)l->q[dir][l->head[dir]].prefill.wants);
        }
    l->conn = 0;
    l->closing[0] = l->closing[1] = true;
    for (uint32_t i = 0; i < XFERS; i++) {
        struct xfer *x = &w->xfer[i];
        if (x->used && x->call_open && x->conn == conn) {
            x->call_open = false;
            local_lost(&w->node[x->node], x->xfer);
        }
    }
    uint32_t pair[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        step_prefill(w, pair[i], (struct pfw_event){.kind = PFW_EV_PEER_DOWN, .peer = pair[1 - i]});
        step_decode(w, pair[i], (struct dcw_event){.kind = DCW_EV_PEER_DOWN, .peer = pair[1 - i]});
    }
}

/* One side's transport is destroyed: its posted receives end broken, then nothing can touch its pages. */
static void close_side(struct world *w, uint32_t self, uint32_t peer)
{
    struct link *l = link_of(w, self, peer);
    bool *closing = &l->closing[self > peer];
    if (!*closing)
        return;
    for (uint32_t i = 0; i < 2048; i++) {
        struct kv_msg *m = &w->kv[i];
        if (m->used && m->to == self && m->from == peer && m->receiving)
            land(w, m, false);
        else if (m->used && m->from == self && m->to == peer && !m->receiving)
            sent(w, m, KVS_PEER_LOST);
    }
    for (uint32_t i = 0; i < XFERS; i++)
        if (w->xfer[i].used && w->xfer[i].node == self && w->xfer[i].peer == peer)
            port_settle(w, &w->xfer[i], true);
    *closing = false;
    while (w->node[self].local_count > 0) /* the port's GRANT events come before CLOSED */
        deliver_local(w, self);
    step_prefill(w, self, (struct pfw_event){.kind = PFW_EV_PEER_CLOSED, .peer = peer});
    step_decode(w, self, (struct dcw_event){.kind = DCW_EV_PEER_CLOSED, .peer = peer});
}

static void raise_link(struct world *w, uint32_t a, uint32_t b)
{
    struct link *l = link_of(w, a, b);
    uint32_t pair[2] = {a, b};
    static const char *const names[NODES] = {"n0", "n1", "n2"};
    if (l->conn != 0 || l->closing[0] || l->closing[1])
        return;
    l->conn = ++w->counter;
    for (int i = 0; i < 2; i++) {
        uint32_t peer = pair[1 - i];
        step_prefill(w, pair[i], (struct pfw_event){.kind = PFW_EV_PEER_UP, .peer = peer});
        step_decode(w, pair[i],
                    (struct dcw_event){
                        .kind = DCW_EV_PEER_UP, .peer = peer, .peer_up = {.id = names[peer], .transport = "tcp"}});
    }
}

static void device(struct world *w, uint32_t node)
{
    struct node *n = &w->node[node];
    const struct wrk_step *st = wrk_sched_in_flight(n->s);
    if (!st) {
        if (chance(w, 4))
            w->preemptions += wrk_sched_preempt_newest(n->s);
        st = wrk_sched_next_step(n->s);
        fake_zero(&n->kv, n->s);
        n->layers = 0;
        if (st)
            fake_run(&n->kv, n->s, st, n->results, n->rows);
        return;
    }
    if (wrk_sched_stop_wanted(n->s) && below(w, 2)) {
        fake_spoil(&n->kv, st);
        assert_true(wrk_sched_step_done(n->s, st->id, KVS_REQ_CANCELLED, NULL));
    } else if (n->layers < w->l.layer_count && below(w, 3)) {
        n->layers += 1 + below(w, w->l.layer_count - n->layers);
        step_prefill(w, node, (struct pfw_event){.kind = PFW_EV_LAYER, .layer = {.step = st->id, .layers = n->layers}});
        return;
    } else {
        assert_true(wrk_sched_step_done(n->s, st->id, KVS_OK, n->results));
    }
    step_prefill(w, node, (struct pfw_event){.kind = PFW_EV_STEP_DONE});
    step_decode(w, node, (struct dcw_event){.kind = DCW_EV_STEP_DONE});
}

static void ask(struct world *w)
{
    if (w->asked == REQUESTS)
        return;
    uint32_t id = w->asked++, node = below(w, 2), peer = below(w, NODES);
    struct request *r = &w->req[id];
    static const char *const names[NODES] = {"n0", "n1", "n2"};
    *r = (struct request){.used = true,
                          .node = node,
                          .stream = 1000 + id,
                          .prompt = 1 + below(w, 50),
                          .max = 1 + below(w, 30),
                          .router = w->node[node].router};
    fake_prompt(&w->rng, r->ids, r->prompt);
    bool fetch = below(w, 3) == 0;
    memcpy(r->ids, w->heads[below(w, 3)], (fetch ? r->prompt : below(w, r->prompt + 1)) * sizeof *r->ids);
    r->salt = fetch || below(w, 5) ? below(w, 2) : 2;
    r->total = fake_answer(r->ids, r->prompt, id, 0, r->max, CONTEXT, -1, r->want);
    r->first = r->next = below(w, 3) ? 0 : below(w, r->total);
    memcpy(r->ids + r->prompt, r->want, r->first * sizeof *r->ids);
    struct msg_generate m = {.request = id,
                             .attempt = 1,
                             .tokens = r->ids,
                             .token_count = r->prompt + r->first,
                             .prompt_count = r->prompt,
                             .first_index = r->first,
                             .max_tokens = r->max,
                             .sampling = {.seed = id},
                             .placement = peer == node ? MSG_PLACE_LOCAL : MSG_PLACE_REMOTE};
    if (r->salt > 0)
        kvs_format(m.cache_salt, sizeof m.cache_salt, r->salt == 1 ? "salt" : "own-%u", id);
    if (peer != node)
        kvs_format(m.prefill_worker, sizeof m.prefill_worker, "%s", names[peer]);
    if (fetch) { /* a hint that may be wrong in every way */
        kvs_format(m.fetch_worker, sizeof m.fetch_worker, "%s", names[below(w, NODES)]);
        m.fetch_tokens = 1 + below(w, m.token_count + 10);
    }
    step_decode(
        w, node,
        (struct dcw_event){.kind = DCW_EV_GENERATE,
                           .conn = r->router,
                           .stream = r->stream,
                           .generate = {.msg = &m, .deadline_us = below(w, 10) ? 0 : w->now + 1 + below(w, 3000)}});
}

static void lose_router(struct world *w, uint32_t node)
{
    struct node *n = &w->node[node];
    for (uint32_t i = 0; i < w->asked; i++)
        if (w->req[i].router == n->router && !w->req[i].ended)
            w->req[i].lost = true;
    step_decode(w, node, (struct dcw_event){.kind = DCW_EV_ROUTER_DOWN, .conn = n->router});
    n->router = 5000 + ++w->counter;
    step_decode(w, node, (struct dcw_event){.kind = DCW_EV_TOKENS_OPEN, .conn = n->router, .stream = 1});
}

static void meddle(struct world *w)
{
    struct request *r = &w->req[below(w, REQUESTS)];
    uint64_t id = (uint64_t)(r - w->req);
    if (!r->used)
        return;
    struct dcw_event ev = {.conn = r->router, .stream = r->stream, .request = id};
    switch (below(w, 6)) {
    case 0:
        ev.kind = DCW_EV_ABORT;
        ev.stream = 900000;
        ev.abort.attempt = 1;
        break;
    case 1: ev.kind = DCW_EV_CANCEL; break;
    case 2: ev.kind = DCW_EV_PAUSE; break;
    default: ev.kind = DCW_EV_RESUME; break;
    }
    step_decode(w, r->node, ev);
}

static void one_event(struct world *w)
{
    uint32_t a = below(w, NODES), b = (a + 1 + below(w, NODES - 1)) % NODES;
    w->now += 1 + below(w, 4);
    switch (below(w, 12)) {
    case 0:
    case 1: device(w, a); break;
    case 2: deliver_local(w, a); break;
    case 3: deliver_control(w, a, b); break;
    case 4:
    case 5:
    case 6: move_kv(w); break;
    case 7: tick(w, a); break;
    case 8:
        if (chance(w, 25))
            ask(w);
        break;
    case 9:
        if (chance(w, 10))
            meddle(w);
        break;
    case 10:
        if (chance(w, 2))
            break_link(w, a, b);
        if (chance(w, 1))
            lose_router(w, below(w, 2));
        break;
    default:
        if (below(w, 4) == 0)
            close_side(w, a, b);
        if (below(w, 4) == 0)
            raise_link(w, a, b);
        break;
    }
}

static void world_init(struct world *w, uint64_t seed, bool kinds)
{
    w->rng.state = seed;
    w->now = 1000;
    uint32_t layers = 1 + below(w, 4), block_tokens = 1u << below(w, 4);
    uint32_t group_layers = 1 + below(w, layers);
    w->l = kinds ? fake_layout_kinds(&w->rng, layers, block_tokens, group_layers)
                 : fake_layout(layers, block_tokens, group_layers);
    w->tree = below(w, 3) > 0;
    for (int i = 0; i < 3; i++)
        fake_prompt(&w->rng, w->heads[i], CONTEXT);
    memcpy(w->heads[1], w->heads[0], below(w, CONTEXT) * sizeof(int32_t));
    for (uint32_t i = 0; i < NODES; i++) {
        struct node *n = &w->node[i];
        struct wrk_sched_config c = {.layout = &w->l,
                                     .seqs_max = SEQS,
                                     .context = CONTEXT,
                                     .chunk_tokens = 1 + below(w, 40),
                                     .reserve_tokens = 1 + below(w, 20),
                                     .snapshot_blocks = 1 + below(w, 4),
                                     .tree_nodes = w->tree ? 1 + below(w, 200) : 0};
        for (uint32_t g = 0; g < w->l.group_count; g++)
            c.pages[g] = w->l.group[g].kind == KVC_WINDOW || w->l.group[g].kind == KVC_STATE
                             ? fake_few_pages(&w->l, g, CONTEXT, c.chunk_tokens, below(w, 30))
                             : 100 / block_tokens + 1 + below(w, 200 / block_tokens);
        assert_int_equal(wrk_sched_create(&c, &n->s, NULL), KVS_OK);
        fake_kv_init(&n->kv, &w->l, c.pages);
        struct pfw_config pc = {.sched = n->s,
                                .calls_max = SEQS,
                                .vocab = FAKE_VOCAB,
                                .send_window = 1 + below(w, 9),
                                .queue_wait_us = 4000,
                                .call_max_us = 50000};
        assert_int_equal(pfw_create(&pc, &n->p, NULL), KVS_OK);
        if (i == 2)
            continue;
        struct dcw_config dc = {.sched = n->s,
                                .id = i ? "n1" : "n0",
                                .epoch = i,
                                .seed = seed * 2 + i,
                                .calls_max = SEQS,
                                .vocab = FAKE_VOCAB,
                                .call_max_us = 50000};
        assert_int_equal(dcw_create(&dc, &n->d, NULL), KVS_OK);
        n->router = 5000 + ++w->counter;
        step_decode(w, i, (struct dcw_event){.kind = DCW_EV_TOKENS_OPEN, .conn = n->router, .stream = 1});
    }
    raise_link(w, 0, 1);
    raise_link(w, 0, 2);
    raise_link(w, 1, 2);
}

static void world_fini(struct world *w)
{
    for (uint32_t i = 0; i < NODES; i++) {
        struct node *n = &w->node[i];
        for (uint32_t g = 0; g < w->l.group_count; g++) {
            struct kvc_pool_counts c = wrk_sched_pages(n->s, g);
            assert_int_equal(c.free + c.cached, c.total); /* every page comes back */
        }
        w->evicted += wrk_sched_stats(n->s).evicted_blocks;
        w->cached[1] += n->d ? 0 : wrk_sched_stats(n->s).cached_tokens;
        (void)wrk_sched_flush(n->s);
        for (uint32_t g = 0; g < w->l.group_count; g++) {
            struct kvc_pool_counts c = wrk_sched_pages(n->s, g);
            assert_int_equal(c.free, c.total);
        }
        if (n->d) {
            w->fallbacks += dcw_stats(n->d).fallbacks;
            w->remote += dcw_stats(n->d).remote;
            w->fetches += dcw_stats(n->d).fetches;
            w->fetched += dcw_stats(n->d).fetched_tokens;
            step_decode(w, i, (struct dcw_event){.kind = DCW_EV_TICK});
            assert_int_equal(dcw_stats(n->d).calls, 0);
        }
        dcw_destroy(n->d);
        pfw_destroy(n->p);
        wrk_sched_destroy(n->s);
        n->s = NULL;
        fake_kv_fini(&n->kv);
    }
    for (uint32_t i = 0; i < XFERS; i++)
        assert_false(w->xfer[i].used);
}

static void one_life(uint64_t seed, bool kinds, struct world *total)
{
    struct world *w = calloc(1, sizeof *w);
    world_init(w, seed, kinds);
    for (int i = 0; i < 6000; i++)
        one_event(w);
    w->calm = true; /* faults end: everything must come to rest */
    for (uint64_t id = 0; id < w->asked; id++)
        step_decode(w, w->req[id].node,
                    (struct dcw_event){.kind = DCW_EV_RESUME, .conn = w->req[id].router, .request = id});
    for (int i = 0; i < 60000; i++)
        one_event(w);
    for (uint32_t i = 0; i < w->asked; i++)
        if (!w->req[i].lost && !w->req[i].ended)
            fail_msg("seed %llu: request %u never ended", (unsigned long long)seed, i);
    w->asked = 0;
    world_fini(w);
    total->ends += w->ends;
    total->tokens += w->tokens;
    total->pages += w->pages;
    total->breaks += w->breaks;
    total->fallbacks += w->fallbacks;
    total->remote += w->remote;
    total->preemptions += w->preemptions;
    total->acks += w->acks;
    total->nacks += w->nacks;
    total->errors += w->errors;
    total->aborted += w->aborted;
    total->cached[0] += w->cached[0];
    total->cached[1] += w->cached[1];
    total->evicted += w->evicted;
    total->subset += w->subset;
    total->fetches += w->fetches;
    total->fetched += w->fetched;
    free(w);
}

static void test_random_clusters(void **state)
{
    bool kinds = *state != NULL;
    static struct world t;
    memset(&t, 0, sizeof t);
    const char *one = getenv("PAIR_SEED"), *many = getenv("PAIR_SEEDS");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1, last = one ? first : many ? strtoull(many, NULL, 10) : 60;
    for (uint64_t seed = first; seed <= last; seed++) {
        printf("seed %llu\r", (unsigned long long)seed);
        fflush(stdout);
        one_life(seed, kinds, &t);
    }
    printf("seeds %u..%u: ends %u (aborted %u, errors %u), tokens %u, pages %u, link breaks %u, remote %u, fallbacks "
           "%u, preemptions %u, "
           "ack %u, nack %u\n",
           (unsigned)first, (unsigned)last, (unsigned)t.ends, (unsigned)t.aborted, (unsigned)t.errors,
           (unsigned)t.tokens, (unsigned)t.pages, (unsigned)t.breaks, (unsigned)t.remote, (unsigned)t.fallbacks,
           (unsigned)t.preemptions, (unsigned)t.acks, (unsigned)t.nacks);
    printf("cached prompt tokens %u, found by the source %u, blocks evicted %u, calls for a part %u\n",
           (unsigned)t.cached[0], (unsigned)t.cached[1], (unsigned)t.evicted, (unsigned)t.subset);
    printf("fetches %u, tokens that came by them %u\n", (unsigned)t.fetches, (unsigned)t.fetched);
    if (!one)
        assert_true(t.fetches > 100 && t.fetched > (kinds ? 20 : 100));
    if (!one)
        assert_true(t.cached[0] > 500 && t.cached[1] > 200 && t.evicted > 100 && t.subset > 50);
    if (!one)
        assert_true(t.pages > 1000 && t.breaks > 50 && t.remote > 100 && t.fallbacks > 50 && t.preemptions > 50 &&
                    t.nacks > 20);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_clusters),
        {"test_random_clusters_of_all_kinds", test_random_clusters, NULL, NULL, "all kinds"}};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
