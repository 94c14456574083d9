/* control_test.c - clients on control streams: Generate with ids and with text, refusals, Abort, CANCEL, departure. The same scripted worker
 * stands behind the router as for HTTP.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/checked.h"
#include "net/rpc.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "tests/support/nomem.h"
#include "tests/unit/router/rig.h"

#define TEXT "Once upon a time there was a router."

/* Its loop runs on the test's thread. */
struct client {
    struct kvs_loop *loop;
    struct net_rpc *rpc;
    struct kvs_timer *limit;
    net_conn conn;
    uint32_t generate, abort;
    struct kvs_arena arena;
    char text[8192];
    uint32_t ids, finishes, chunks;
    uint32_t prompt_tokens, completion_tokens;
    bool ended, abort_ended, late;
    struct msg_end end;
    uint32_t stop_after; /* leaves the loop after so many chunks */
};

static kvs_status check(void *user, const struct msg_hello *h, struct kvs_error *err)
{
    (void)user;
    (void)err;
    assert_int_equal(h->role, MSG_ROLE_ROUTER);
    return KVS_OK;
}

static void on_up(void *user, net_conn conn, const struct msg_hello *h, bool dialed, const char *url)
{
    struct client *c = user;
    (void)h;
    (void)dialed;
    (void)url;
    c->conn = conn;
    kvs_loop_stop(c->loop);
}

static void on_down(void *user, net_conn conn, kvs_status why, const char *text)
{
    struct client *c = user;
    (void)conn;
    (void)why;
    (void)text;
    c->conn = 0;
    kvs_loop_stop(c->loop);
}

static void on_call(void *user, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    (void)user;
    (void)conn;
    (void)stream;
    (void)call;
}

static void on_stream(void *user, net_conn conn, uint32_t stream)
{
    (void)user;
    (void)conn;
    (void)stream;
}

static void on_bytes(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    (void)user;
    (void)conn;
    (void)stream;
    (void)payload;
    (void)n;
}

static void on_pause(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n, bool resume)
{
    (void)resume;
    on_bytes(user, conn, stream, payload, n);
}

static void on_item(void *user, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    struct client *c = user;
    struct msg_chunk m;
    struct kvs_error e;
    (void)conn;
    assert_int_equal(stream, c->generate);
    assert_false(c->ended);
    kvs_arena_fini(&c->arena);
    assert_int_equal(msg_chunk_decode(payload, n, &c->arena, &m, &e), KVS_OK);
    size_t at = strlen(c->text);
    assert_true(at + m.text_bytes < sizeof(c->text));
    memcpy(c->text + at, m.text, m.text_bytes);
    c->text[at + m.text_bytes] = 0;
    c->ids += m.token_count;
    c->chunks++;
    if (m.finish != MSG_RUNNING) {
        c->finishes++;
        c->prompt_tokens = m.prompt_tokens;
        c->completion_tokens += m.completion_tokens;
    }
    if (c->stop_after && c->chunks >= c->stop_after)
        kvs_loop_stop(c->loop);
}

static void on_end(void *user, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    struct client *c = user;
    (void)conn;
    if (stream == c->abort) {
        c->abort_ended = true;
        assert_int_equal(end->status, KVS_OK);
        return;
    }
    assert_int_equal(stream, c->generate);
    assert_false(c->ended);
    c->ended = true;
    c->end = *end;
    kvs_loop_stop(c->loop);
}

static void on_limit(void *user, uint64_t now_us)
{
    struct client *c = user;
    (void)now_us;
    c->late = true;
    kvs_loop_stop(c->loop);
}

static void run(struct client *c)
{
    kvs_timer_set(c->limit, kvs_now_us() + 30000000);
    kvs_loop_run(c->loop);
    assert_false(c->late);
}

static void client_start(struct client *c, const char *url)
{
    struct msg_hello self = {.protocol_min = 1, .protocol_max = 1, .role = MSG_ROLE_CLIENT, .epoch = 5};
    struct kvs_error e = {0};
    struct net_rpc_handlers h = {.user = c,
                                 .check_hello = check,
                                 .on_up = on_up,
                                 .on_down = on_down,
                                 .on_call = on_call,
                                 .on_cancel = on_stream,
                                 .on_ack = on_stream,
                                 .on_nack = on_bytes,
                                 .on_item = on_item,
                                 .on_end = on_end,
                                 .on_pause = on_pause};
    memset(c, 0, sizeof(*c));
    memcpy(self.id, "a-client", 9);
    kvs_arena_init(&c->arena, 4u << 20);
    assert_int_equal(kvs_loop_create(&c->loop), KVS_OK);
    assert_int_equal(kvs_timer_create(c->loop, on_limit, c, &c->limit), KVS_OK);
    assert_int_equal(net_rpc_create(c->loop, &self, &h, &c->rpc, &e), KVS_OK);
    assert_int_equal(net_rpc_dial(c->rpc, url), KVS_OK);
    run(c);
    assert_true(c->conn != 0);
}

static void client_stop(struct client *c)
{
    net_rpc_destroy(c->rpc);
    kvs_timer_destroy(c->limit);
    kvs_loop_destroy(c->loop);
    kvs_arena_fini(&c->arena);
}

static void call(struct client *c, msg_method method, const struct kvs_buf *body, uint32_t *stream)
{
    assert_int_equal(net_rpc_call(c->rpc, c->conn, method, 0, "trace-7", body->data, body->len, stream), KVS_OK);
}

static void generate(struct client *c, struct msg_generate *g)
{
    struct kvs_buf b;
    kvs_buf_init(&b, 1u << 20);
    if (!g->prompt)
        g->prompt = "";
    g->prompt_bytes = (uint32_t)strlen(g->prompt);
    if (!g->model[0])
        memcpy(g->model, "tiny", 5);
    c->text[0] = 0;
    c->ended = false;
    c->ids = c->finishes = c->chunks = c->completion_tokens = 0;
    assert_int_equal(msg_generate_encode(g, &b), KVS_OK);
    call(c, MSG_GENERATE, &b, &c->generate);
    kvs_buf_fini(&b);
}

struct rig {
    struct rig_router *router;
    struct rig_worker *decode;
    struct rig_script *script;
    struct client client;
};

static int start(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    r->script = calloc(1, sizeof(*r->script));
    rig_script_init(r->script, TEXT);
    r->router = rig_router_start(NULL);
    r->decode = rig_worker_start(rig_control_url(r->router), "decode-0", MSG_ROLE_DECODE, NULL, r->script);
    rig_wait_ready(r->router);
    client_start(&r->client, rig_control_url(r->router));
    *state = r;
    return 0;
}

static int stop(void **state)
{
    struct rig *r = *state;
    client_stop(&r->client);
    rig_router_stop(r->router);
    rig_worker_stop(r->decode);
    free(r->script);
    free(r);
    return 0;
}

static void test_generate_by_text_and_by_ids(void **state)
{
    struct rig *r = *state;
    struct client *c = &r->client;
    const int32_t ids[] = {5, 6, 7, 8};
    struct msg_generate g = {.request = 1, .prompt = "hello", .max_tokens = 100};
    generate(c, &g);
    run(c);
    assert_int_equal(c->end.status, KVS_OK);
    assert_string_equal(c->text, TEXT);
    assert_int_equal(c->ids, strlen(TEXT) + 1);
    assert_int_equal(c->finishes, 1);
    assert_int_equal(c->completion_tokens, strlen(TEXT) + 1);
    g = (struct msg_generate){.request = 1, .tokens = ids, .token_count = 4, .prompt_count = 4, .max_tokens = 6};
    generate(c, &g);
    run(c);
    assert_int_equal(c->end.status, KVS_OK);
    assert_string_equal(c->text, "Once u");
    assert_int_equal(c->prompt_tokens, 4);
    assert_int_equal(r->script->last_max_tokens, 6);
}

static void test_refusals_say_why(void **state)
{
    struct rig *r = *state;
    struct client *c = &r->client;
    struct msg_generate g = {.request = 2, .prompt = "x", .model = "other"};
    generate(c, &g);
    run(c);
    assert_int_equal(c->end.status, KVS_REQ_UNKNOWN_MODEL);
    assert_true(c->end.text[0] != 0);
    const int32_t big[] = {5, 99999};
    g = (struct msg_generate){.request = 3, .tokens = big, .token_count = 2, .prompt_count = 2};
    generate(c, &g);
    run(c);
    assert_int_equal(c->end.status, KVS_REQ_INVALID);
    assert_int_equal(r->script->generates, 0);
}

static bool idle(void *arg)
{
    struct rig_script *s = arg;
    return s->running == 0 && s->aborts > 0;
}

static void test_abort_reaches_the_worker(void **state)
{
    struct rig *r = *state;
    struct client *c = &r->client;
    struct msg_generate g = {.request = 9, .prompt = "x"};
    struct msg_abort a = {.request = 9};
    struct kvs_buf b;
    r->script->hang_after = 4;
    c->stop_after = 1;
    generate(c, &g);
    run(c);
    c->stop_after = 0;
    kvs_buf_init(&b, 1024);
    assert_int_equal(msg_abort_encode(&a, &b), KVS_OK);
    call(c, MSG_ABORT, &b, &c->abort);
    kvs_buf_fini(&b);
    run(c);
    assert_true(c->abort_ended);
    assert_int_equal(c->end.status, KVS_REQ_CANCELLED);
    assert_true(rig_wait(idle, r->script, 20000));
}

static bool one_runs(void *arg)
{
    struct rig_script *s = arg;
    return s->running == 1 && s->aborts == 1;
}

static void test_a_cancelled_call_reaches_the_worker(void **state)
{
    struct rig *r = *state;
    struct client *c = &r->client;
    struct msg_generate g = {.request = 9, .prompt = "x"};
    r->script->hang_after = 4;
    c->stop_after = 1;
    generate(c, &g);
    run(c);
    c->stop_after = 0;
    net_rpc_cancel(c->rpc, c->conn, c->generate);
    c->generate = 0;
    generate(c, &g); /* the same request number is free again; it hangs as well, so only its beginning comes */
    c->stop_after = 1;
    run(c);
    assert_true(rig_wait(one_runs, r->script, 20000));
}

static void test_a_client_that_is_lost_frees_the_worker(void **state)
{
    struct rig *r = *state;
    struct client *c = &r->client, other;
    struct msg_generate g = {.request = 9, .prompt = "x"};
    (void)c;
    r->script->hang_after = 4;
    client_start(&other, rig_control_url(r->router));
    other.stop_after = 1;
    generate(&other, &g);
    run(&other);
    client_stop(&other);
    assert_true(rig_wait(idle, r->script, 20000));
}

static bool stopped(void *arg)
{
    struct rig_script *s = arg;
    return s->running == 0 && s->aborts > 0;
}

/* A client by hand that reads and answers heartbeats. */
struct miser {
    int fd;
    struct kvs_buf in, out;
    struct kvs_arena arena;
    uint64_t item_bytes;
    bool gives; /* credit for what it takes */
    bool ended;
    struct msg_end end;
};

static void miser_send(struct miser *m, msg_frame_type type, uint32_t stream, const void *payload, size_t n)
{
    kvs_buf_clear(&m->out);
    assert_int_equal(msg_frame_append(&m->out, type, stream, payload, (uint32_t)n), KVS_OK);
    assert_int_equal(send(m->fd, m->out.data, m->out.len, MSG_NOSIGNAL), m->out.len);
}

static void miser_start(struct miser *m, const char *url)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct msg_hello self = {.protocol_min = 1, .protocol_max = 1, .role = MSG_ROLE_CLIENT, .epoch = 5, .id = "a-miser"};
    struct msg_generate g = {.request = 9, .prompt = "x", .prompt_bytes = 1, .choice = 8, .model = "tiny"};
    struct msg_call call = {.method = MSG_GENERATE};
    struct kvs_buf b, body;
    memset(m, 0, sizeof(*m));
    kvs_arena_init(&m->arena, 1u << 20);
    kvs_buf_init(&m->in, 4u << 20);
    kvs_buf_init(&m->out, 4u << 20);
    kvs_buf_init(&b, 1u << 20);
    kvs_buf_init(&body, 1u << 20);
    a.sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10));
    m->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(m->fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(msg_hello_encode(&self, &b), KVS_OK);
    miser_send(m, MSG_HELLO, 0, b.data, b.len);
    assert_int_equal(msg_generate_encode(&g, &body), KVS_OK);
    call.body = body.data;
    call.body_bytes = body.len;
    kvs_buf_clear(&b);
    assert_int_equal(msg_call_encode(&call, &b), KVS_OK);
    miser_send(m, MSG_CALL, 1, b.data, b.len);
    kvs_buf_fini(&b);
    kvs_buf_fini(&body);
}

static void miser_frame(struct miser *m, const struct msg_frame *f)
{
    struct kvs_error e = {0};
    assert_int_not_equal(f->type, MSG_GOAWAY);
    if (f->type == MSG_PING)
        miser_send(m, MSG_PONG, 0, f->payload, f->length);
    if (f->type == MSG_ITEM && m->gives) {
        uint8_t bytes[4];
        kvs_store_u32(bytes, f->length);
        miser_send(m, MSG_CREDIT, 1, bytes, sizeof(bytes));
    }
    m->item_bytes += f->type == MSG_ITEM ? f->length : 0;
    if (f->type != MSG_END)
        return;
    assert_int_equal(msg_end_decode(f->payload, f->length, &m->arena, &m->end, &e), KVS_OK);
    m->ended = true;
}

/* Frame by frame, pause_us apart, until END, or as long as us. */
static void miser_run(struct miser *m, uint64_t us, uint64_t pause_us)
{
    uint8_t piece[65536];
    uint64_t end = kvs_now_us() + us;
    while (!m->ended && kvs_now_us() < end) {
        struct msg_frame f;
        size_t used;
        if (msg_frame_parse(m->in.data, m->in.len, &f, &used) == KVS_OK) {
            miser_frame(m, &f);
            kvs_buf_consume(&m->in, used);
            if (f.type == MSG_ITEM && pause_us)
                kvs_sleep_us(pause_us);
            continue;
        }
        struct pollfd p = {.fd = m->fd, .events = POLLIN};
        ssize_t n = poll(&p, 1, 100) > 0 ? recv(m->fd, piece, sizeof(piece), 0) : 0;
        assert_true(n >= 0);
        assert_int_equal(kvs_buf_append(&m->in, piece, (size_t)n), KVS_OK);
    }
}

static void miser_stop(struct miser *m)
{
    close(m->fd);
    kvs_arena_fini(&m->arena);
    kvs_buf_fini(&m->in);
    kvs_buf_fini(&m->out);
}

/* One takes what its first credit allows and gives no more, while its sequences run and when they are over; another one gives little by little. */
static void test_a_client_that_takes_no_chunk_is_cut(void **state)
{
    (void)state;
    struct rig_options o = {.client_stall_us = 2000000}; /* the worker has told all long before */
    struct rig_script *s = calloc(1, sizeof(*s));
    struct miser m;
    struct rig_reply p;
    rtr_config_default(&o.core);
    rig_script_init(s, TEXT);
    memset(s->text, '~', 4080); /* an id of two bytes on the wire: eight choices are more than the first credit of a call */
    s->text[4080] = 0;
    s->token_us = 1;
    struct rig_router *router = rig_router_start(&o);
    struct rig_worker *w = rig_worker_start(rig_control_url(router), "decode-0", MSG_ROLE_DECODE, NULL, s);
    rig_wait_ready(router);
    for (int i = 0; i < 2; i++) {
        s->aborts = 0;
        s->hang_after = i ? -1 : 4000; /* more than its credit: without the cut this one would wait for ever */
        miser_start(&m, rig_control_url(router));
        miser_run(&m, 30000000, 0);
        assert_true(m.ended && m.item_bytes >= 256u << 10 && m.item_bytes < 300u << 10);
        if (i == 0) {
            assert_true(rig_wait(stopped, s, 20000));
            assert_int_equal(m.end.status, KVS_REQ_CANCELLED);
            assert_non_null(strstr(m.end.text, "took nothing for 2 s"));
        } else {
            assert_int_equal(m.end.status, KVS_BUSY_QUEUE);
            assert_int_equal(s->aborts, 0);
        }
        miser_stop(&m);
    }
    miser_start(&m, rig_control_url(router));
    m.gives = true;
    miser_run(&m, 5000000, 10000);
    assert_false(m.ended);
    miser_run(&m, 30000000, 0);
    assert_true(m.ended);
    assert_int_equal(m.end.status, KVS_OK);
    miser_stop(&m);
    rig_request(router, "GET", "/metrics", NULL, &p);
    assert_non_null(strstr(kvs_buf_text(&p.body), "kvasir_router_clients_cut_total{reason=\"stalled\"} 2"));
    rig_reply_fini(&p);
    rig_router_stop(router);
    rig_worker_stop(w);
    free(s);
}

static bool is_router(void)
{
    char name[32] = "";
    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    return strcmp(name, "rig-router") == 0;
}

static void connected(struct client *c)
{
    while (c->conn == 0)
        run(c);
}

/* Each allocation of the router fails in turn: the call ends, with the answer or with an error, or its connection does. */
static void test_each_allocation(void **state)
{
    struct rig *r = *state;
    struct client *c = &r->client;
    uint32_t answers = 0, errors = 0, lost = 0;
    int64_t n = 0;
    for (bool reached = true; reached; n++) {
        struct msg_generate g = {.request = 100 + (uint64_t)n, .prompt = "hello", .max_tokens = 3};
        connected(c);
        tst_nomem_arm(n);
        generate(c, &g);
        run(c);
        reached = tst_nomem_disarm();
        assert_true(c->ended || c->conn == 0);
        assert_true(!c->ended || c->end.status == KVS_OK || (reached && c->end.text[0] != 0));
        if (c->ended && c->end.status == KVS_OK)
            assert_string_equal(c->text, "Onc");
        answers += reached && c->ended && c->end.status == KVS_OK;
        errors += reached && c->ended && c->end.status != KVS_OK;
        lost += reached && !c->ended;
        for (bool served = false; reached && !served;) { /* the worker may be on its way back */
            connected(c);
            g.request += 1000;
            generate(c, &g);
            run(c);
            served = c->ended && c->end.status == KVS_OK;
        }
    }
    print_message("%lld allocations: %u went on, %u errors, %u lost\n", (long long)n - 1, answers, errors, lost);
    assert_true(n > 10 && errors > 3 && answers > 0);
}

int main(void)
{
    tst_nomem_where(is_router);
#define WITH(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        WITH(test_generate_by_text_and_by_ids), WITH(test_refusals_say_why),
        WITH(test_abort_reaches_the_worker),    WITH(test_a_cancelled_call_reaches_the_worker),
        WITH(test_a_client_that_is_lost_frees_the_worker), cmocka_unit_test(test_a_client_that_takes_no_chunk_is_cut),
        WITH(test_each_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
