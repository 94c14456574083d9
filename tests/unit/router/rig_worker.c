/* rig_worker.c - the scripted worker of rig.h: registers, streams a model header, takes Generate, speaks tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "net/rpc.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/thread.h"
#include "tests/support/gguf_writer.h"
#include "tests/unit/router/rig.h"

#define SEQS_MAX 256
#define LOAD_US 50000
#define PIECE 3000

struct seq {
    uint32_t stream;
    uint64_t request;
    uint32_t attempt, choice, next, max;
    bool paused, remote, logits, placed;
    char prefill[MSG_ID_MAX];
};
/* Owner thread: its loop's. */
struct rig_worker {
    struct kvs_loop *loop;
    struct net_rpc *rpc;
    struct kvs_thread *thread;
    struct kvs_timer *speak, *report;
    struct rig_script *script;
    net_conn conn;
    uint32_t register_stream, tokens_stream, load_stream;
    struct msg_card card;
    char peer[MSG_ID_MAX];
    uint8_t *header;
    size_t header_bytes;
    struct seq seq[SEQS_MAX];
    uint32_t seqs;
    struct kvs_arena arena;
    struct kvs_buf buf;
};

void rig_script_init(struct rig_script *s, const char *text)
{
    memset(s, 0, sizeof(*s));
    memcpy(s->text, text, strlen(text) + 1);
    s->token_us = 1000;
    s->hang_after = s->die_after = -1;
}

static void send_item(struct rig_worker *w, uint32_t stream, kvs_status made)
{
    assert_int_equal(made, KVS_OK);
    (void)!net_rpc_item(w->rpc, w->conn, stream, w->buf.data, w->buf.len);
    kvs_buf_clear(&w->buf);
}

static void end(struct rig_worker *w, uint32_t stream, kvs_status s, const char *text)
{
    struct msg_end e = {.status = s};
    memcpy(e.text, text, strlen(text) + 1);
    net_rpc_end(w->rpc, w->conn, stream, &e);
}

static void drop_seq(struct rig_worker *w, uint32_t i, kvs_status s)
{
    end(w, w->seq[i].stream, s, s == KVS_OK ? "" : "aborted");
    w->seq[i] = w->seq[--w->seqs];
    w->script->running = w->seqs;
}

static void fill_entry(struct rig_worker *w, struct seq *q, struct msg_token *t)
{
    size_t n = strlen(w->script->text);
    memset(t, 0, sizeof(*t));
    t->request = q->request;
    t->attempt = q->attempt;
    t->choice = q->choice;
    t->index = q->next;
    t->id = q->next < n ? 3 + (uint8_t)w->script->text[q->next] : 2;
    t->logit = 0.5f + (float)q->next;
    t->finish = t->id == 2 ? MSG_FINISH_STOP : q->next + 1 == q->max ? MSG_FINISH_LENGTH : MSG_RUNNING;
    if (!q->placed) { /* of each attempt, as a decode worker does */
        q->placed = true;
        t->has_placed = true;
        t->placed.mode = q->remote ? MSG_PLACE_REMOTE : MSG_PLACE_LOCAL;
        memcpy(t->placed.prefill_worker, q->remote ? q->prefill : w->card.id, MSG_ID_MAX);
        kvs_format(t->placed.transport, sizeof(t->placed.transport), "%s", q->remote ? "shm" : "none");
        t->placed.bytes = q->remote ? 4096 : 0;
    }
    q->next++;
}

static void speak(void *user, uint64_t now_us)
{
    struct rig_worker *w = user;
    struct msg_token *t = calloc(SEQS_MAX, sizeof(*t));
    struct msg_tokens m = {t, 0};
    bool die = false;
    assert_non_null(t);
    for (uint32_t i = w->seqs; i-- > 0;) {
        struct seq *q = &w->seq[i];
        int32_t hang = w->script->hang_after, dead = w->script->die_after;
        die |= dead >= 0 && q->next >= (uint32_t)dead;
        if (q->paused || (hang >= 0 && q->next >= (uint32_t)hang) || die)
            continue;
        fill_entry(w, q, &t[m.count++]);
    }
    for (int32_t k = 0; m.count && k <= w->script->repeat; k++)
        send_item(w, w->tokens_stream, msg_tokens_encode(&m, &w->buf));
    for (uint32_t k = 0; k < m.count; k++)
        for (uint32_t i = w->seqs; t[k].finish != MSG_RUNNING && i-- > 0;)
            if (w->seq[i].request == t[k].request && w->seq[i].choice == t[k].choice)
                drop_seq(w, i, KVS_OK);
    free(t);
    if (die && w->conn)
        net_rpc_close(w->rpc, w->conn, KVS_SELF_STOPPING, "scripted death");
    kvs_timer_set(w->speak, now_us + w->script->token_us);
}

static void report(void *user, uint64_t now_us)
{
    struct rig_worker *w = user;
    static const char page[] = "# HELP kvasir_steps_total Steps.\n# TYPE kvasir_steps_total counter\nkvasir_steps_total 7\n";
    struct msg_load *l = calloc(1, sizeof(*l));
    assert_non_null(l);
    l->running = w->seqs;
    l->group_count = 1;
    l->pages[0] = (struct msg_pages){10, 9, 0, 1, 0};
    l->metrics = page;
    l->metrics_bytes = sizeof(page) - 1;
    if (w->peer[0]) {
        l->peer_count = 1;
        memcpy(l->peers[0].id, w->peer, sizeof(w->peer));
        memcpy(l->peers[0].transport, "shm", 4);
    }
    if (w->conn && w->load_stream)
        send_item(w, w->load_stream, msg_load_encode(l, &w->buf));
    free(l);
    kvs_timer_set(w->report, now_us + LOAD_US);
}

static void take_generate(struct rig_worker *w, uint32_t stream, const struct msg_call *call)
{
    struct msg_generate g;
    struct kvs_error e;
    assert_int_equal(msg_generate_decode(call->body, call->body_bytes, &w->arena, &g, &e), KVS_OK);
    w->script->generates++;
    w->script->last_placement = g.placement;
    w->script->last_prompt_tokens = g.prompt_count;
    w->script->last_max_tokens = g.max_tokens;
    if (w->script->refuse || w->seqs == SEQS_MAX) {
        end(w, stream, (kvs_status)w->script->refuse, "scripted refusal");
        return;
    }
    struct seq *q = &w->seq[w->seqs++];
    memset(q, 0, sizeof(*q));
    q->stream = stream;
    q->request = g.request;
    q->attempt = g.attempt;
    q->choice = g.choice;
    q->max = g.max_tokens;
    q->next = g.first_index;
    w->script->last_first_index = g.first_index;
    q->remote = g.placement == MSG_PLACE_REMOTE;
    memcpy(q->prefill, g.prefill_worker, sizeof(q->prefill));
    w->script->running = w->seqs;
}

static void take_abort(struct rig_worker *w, uint32_t stream, const struct msg_call *call)
{
    struct msg_abort a;
    struct kvs_error e;
    assert_int_equal(msg_abort_decode(call->body, call->body_bytes, &w->arena, &a, &e), KVS_OK);
    w->script->aborts++;
    end(w, stream, KVS_OK, "");
    for (uint32_t i = w->seqs; i-- > 0;)
        if (w->seq[i].request == a.request && w->seq[i].attempt <= a.attempt)
            drop_seq(w, i, KVS_REQ_CANCELLED);
}

static void send_header(struct rig_worker *w, uint32_t stream)
{
    for (size_t at = 0; at < w->header_bytes; at += PIECE) {
        size_t n = w->header_bytes - at < PIECE ? w->header_bytes - at : PIECE;
        struct msg_model_info_piece p = {.offset = at, .total = w->header_bytes, .bytes = w->header + at, .count = (uint32_t)n};
        send_item(w, stream, msg_model_info_piece_encode(&p, &w->buf));
    }
    end(w, stream, KVS_OK, "");
}

static void on_call(void *user, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    struct rig_worker *w = user;
    (void)conn;
    kvs_arena_fini(&w->arena);
    switch (call->method) {
    case MSG_MODEL_INFO: send_header(w, stream); break;
    case MSG_TOKENS:
        w->tokens_stream = stream;
        w->script->lives++;
        w->script->tokens_open = true;
        break;
    case MSG_LOAD:
        w->load_stream = stream;
        kvs_timer_set(w->report, kvs_now_us());
        break;
    case MSG_GENERATE: take_generate(w, stream, call); break;
    case MSG_ABORT: take_abort(w, stream, call); break;
    case MSG_CACHE_FLUSH:
    case MSG_DRAIN:
    case MSG_SET_ROLE: end(w, stream, KVS_OK, ""); break;
    default: end(w, stream, KVS_REQ_UNSUPPORTED, "no"); break;
    }
}

static kvs_status check(void *user, const struct msg_hello *h, struct kvs_error *err)
{
    (void)user;
    (void)h;
    (void)err;
    return KVS_OK;
}

static void on_up(void *user, net_conn conn, const struct msg_hello *h, bool dialed, const char *url)
{
    struct rig_worker *w = user;
    (void)h;
    (void)dialed;
    (void)url;
    w->conn = conn;
    kvs_status s = msg_card_encode(&w->card, &w->buf);
    assert_int_equal(s, KVS_OK);
    assert_int_equal(net_rpc_call(w->rpc, conn, MSG_REGISTER, 0, "", w->buf.data, w->buf.len, &w->register_stream), KVS_OK);
    kvs_buf_clear(&w->buf);
}

static void on_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    struct rig_worker *w = user;
    (void)conn;
    (void)why;
    (void)text;
    w->conn = 0;
    w->seqs = 0;
    w->tokens_stream = w->load_stream = 0;
    w->script->running = 0;
    w->script->tokens_open = false;
}

static void on_cancel(void *user, net_conn conn, uint32_t stream)
{
    struct rig_worker *w = user;
    (void)conn;
    w->script->cancels++;
    for (uint32_t i = w->seqs; i-- > 0;)
        if (w->seq[i].stream == stream)
            w->seq[i] = w->seq[--w->seqs];
    w->script->running = w->seqs;
}

static void on_pause(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n, bool resume)
{
    struct rig_worker *w = user;
    struct msg_pause p;
    struct kvs_error e;
    (void)conn;
    (void)stream;
    kvs_arena_fini(&w->arena);
    assert_int_equal(msg_pause_decode(payload, n, &w->arena, &p, &e), KVS_OK);
    if (resume)
        w->script->resumes++;
    else
        w->script->pauses++;
    for (uint32_t i = 0; i < w->seqs; i++)
        if (w->seq[i].request == p.request)
            w->seq[i].paused = !resume;
}

static void ignore_ack(void *user, net_conn conn, uint32_t stream)
{
    (void)user;
    (void)conn;
    (void)stream;
}

static void ignore_bytes(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    (void)user;
    (void)conn;
    (void)stream;
    (void)payload;
    (void)n;
}

/* Only registration: without it there is no point in staying. */
static void on_end(void *user, net_conn conn, uint32_t stream, const struct msg_end *e)
{
    struct rig_worker *w = user;
    if (stream == w->register_stream && e->status != KVS_OK)
        net_rpc_close(w->rpc, conn, KVS_PEER_REFUSED, "not registered");
}

static void run(void *arg)
{
    kvs_loop_run(((struct rig_worker *)arg)->loop);
}

struct rig_worker *rig_worker_start(const char *control_url, const char *id, msg_role role, const char *linked_to, struct rig_script *script)
{
    struct rig_worker *w = calloc(1, sizeof(*w));
    struct tst_llama_options o = {0};
    struct kvs_error e = {0};
    assert_non_null(w);
    w->script = script;
    w->header = tst_llama_make(&o, &w->header_bytes);
    struct mdl_gguf *g = NULL;
    assert_int_equal(mdl_gguf_parse(w->header, w->header_bytes, false, &g, &e), KVS_OK);
    w->header_bytes = mdl_gguf_header_bytes(g);
    assert_true(w->header_bytes < 200000); /* within a call's first credit: this script does not wait for more */
    mdl_gguf_destroy(g);
    kvs_arena_init(&w->arena, 16u << 20);
    kvs_buf_init(&w->buf, 1u << 20);
    memcpy(w->card.id, id, strlen(id) + 1);
    if (linked_to)
        memcpy(w->peer, linked_to, strlen(linked_to) + 1);
    w->card.role = role;
    w->card.epoch = kvs_random_u64();
    memcpy(w->card.model, "tiny", 5);
    memset(w->card.fingerprint, 7, 32);
    memcpy(w->card.control_url, "tcp://127.0.0.1:1", 18);
    memcpy(w->card.http_url, "http://127.0.0.1:2", 19);
    memcpy(w->card.numerics, "a16", 4);
    memcpy(w->card.layout, "test", 5);
    memcpy(w->card.kv_types, "k=f32,v=f32", 12);
    memcpy(w->card.rope, "none", 5);
    w->card.block_tokens = 64;
    w->card.context = 4096;
    w->card.vocab = TST_LLAMA_VOCAB;
    w->card.protocol_min = w->card.protocol_max = 1;
    w->card.group_count = 1;
    w->card.group[0].page_bytes = 4096;
    w->card.group[0].pages = 10;
    w->card.pid = 1234;
    struct msg_hello self = {.protocol_min = 1, .protocol_max = 1, .role = role, .epoch = w->card.epoch};
    memcpy(self.id, id, strlen(id) + 1);
    memset(self.fingerprint, 7, 32);
    memcpy(self.numerics, "a16", 4);
    struct net_rpc_handlers h = {.user = w,
                                 .check_hello = check,
                                 .on_up = on_up,
                                 .on_down = on_down,
                                 .on_call = on_call,
                                 .on_cancel = on_cancel,
                                 .on_ack = ignore_ack,
                                 .on_nack = ignore_bytes,
                                 .on_item = ignore_bytes,
                                 .on_end = on_end,
                                 .on_pause = on_pause};
    assert_int_equal(kvs_loop_create(&w->loop), KVS_OK);
    assert_int_equal(kvs_timer_create(w->loop, speak, w, &w->speak), KVS_OK);
    assert_int_equal(kvs_timer_create(w->loop, report, w, &w->report), KVS_OK);
    kvs_timer_set(w->speak, kvs_now_us());
    if (net_rpc_create(w->loop, &self, &h, &w->rpc, &e) != KVS_OK)
        fail_msg("%s", e.text);
    assert_int_equal(net_rpc_dial(w->rpc, control_url), KVS_OK);
    assert_int_equal(kvs_thread_start("rig-worker", run, w, &w->thread), KVS_OK);
    return w;
}

void rig_worker_stop(struct rig_worker *w)
{
    kvs_loop_stop(w->loop);
    kvs_thread_join(w->thread);
    net_rpc_destroy(w->rpc);
    kvs_timer_destroy(w->speak);
    kvs_timer_destroy(w->report);
    kvs_loop_destroy(w->loop);
    kvs_arena_fini(&w->arena);
    kvs_buf_fini(&w->buf);
    free(w->header);
    free(w);
}
