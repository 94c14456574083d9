/* edge_nomem_test.c - the router's edge (HTTP, control clients, joining workers) while one allocation of its threads fails, every one in turn.
 * Promised whatever fails: the client gets the whole right answer, an error, or a connection that breaks off, and soon; never a 200 that is
 * not one. The next request is served. Leaks are the address sanitizer's part.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/clock.h"
#include "tests/support/nomem.h"
#include "tests/unit/router/rig.h"
#include "tests/unit/router/rig_ask.h"

#define TEXT "to be routed"
#define STEP_AFTER 20 /* the first ones each, then a sample: a request takes hundreds, most of them jansson's and alike */

struct rig {
    struct rig_router *router;
    struct rig_worker *decode;
    struct rig_script *script;
};

static bool http_only;

static bool is_router(void)
{
    char name[32] = "";
    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    return strncmp(name, "MHD", 3) == 0 || (!http_only && strcmp(name, "rig-router") == 0);
}

static int start(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct rig_options o = {0};
    rtr_config_default(&o.core);
    http_only = false;
    r->script = calloc(1, sizeof(*r->script));
    rig_script_init(r->script, TEXT);
    r->script->token_us = 100;
    r->router = rig_router_start(&o);
    r->decode = rig_worker_start(rig_control_url(r->router), "decode-0", MSG_ROLE_DECODE, NULL, r->script);
    rig_wait_ready(r->router);
    *state = r;
    return 0;
}

static int stop(void **state)
{
    struct rig *r = *state;
    rig_router_stop(r->router);
    rig_worker_stop(r->decode);
    free(r->script);
    free(r);
    return 0;
}

/* An error says so by its status; its text names the cause, if there was memory for a text. */
static void check_error(const struct rig_got *g)
{
    json_error_t e;
    if (g->status != 0 && g->status < 429)
        fail_msg("status %d: %s", g->status, kvs_buf_text(&g->body));
    if (g->status == 0 || g->body.len == 0)
        return;
    json_t *o = json_loadb(kvs_buf_text(&g->body), g->body.len, 0, &e);
    assert_non_null(o);
    assert_true(json_string_length(json_object_get(json_object_get(o, "error"), "message")) > 0);
    json_decref(o);
}

static void check_whole(const struct rig_got *g)
{
    json_error_t e;
    if (g->status != 200) {
        check_error(g);
        return;
    }
    json_t *o = json_loadb(kvs_buf_text(&g->body), g->body.len, 0, &e);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(o, "choices"), 0), "text")), TEXT);
    json_decref(o);
}

static void check_stream(const struct rig_got *g)
{
    char text[1024];
    bool done, error;
    if (g->status != 200) {
        check_error(g);
        return;
    }
    if (g->cut)
        return;
    rig_join_stream(&g->body, text, sizeof(text), &done, &error);
    assert_true(done || error);
    if (!error)
        assert_string_equal(text, TEXT);
}

static void check_page(const struct rig_got *g)
{
    if (g->status == 200)
        assert_true(g->body.len > 10);
    else
        check_error(g);
}

static const char completion[] = "{\"model\":\"tiny\",\"prompt\":\"hello\",\"temperature\":0,\"return_token_ids\":true,\"kvasir\":{\"logits\":true}}";

/* Served again, at the latest when a worker whose stream was given up has come back. */
static void check_next(const struct rig *r, const char *what, int64_t n)
{
    for (int i = 0; i < 3000; i++) {
        struct rig_got g;
        rig_ask(r->router, "POST", "/v1/completions", completion, &g);
        bool good = g.status == 200;
        if (good)
            check_whole(&g);
        kvs_buf_fini(&g.body);
        if (good)
            return;
        kvs_sleep_us(10000);
    }
    fail_msg("%s: nothing is served after allocation %lld failed", what, (long long)n);
}

struct question {
    const char *method, *path, *body;
    void (*check)(const struct rig_got *g);
    int64_t least; /* so many allocations at least, or the test is no test */
};

struct tally {
    int64_t failures, last;
    uint32_t ok, told, cut;
};

static void fail_each_once(struct rig *r, const struct question *q, struct tally *t)
{
    int64_t n = 0;
    for (bool reached = true; reached; n += n < STEP_AFTER ? 1 : 1 + n / 8) {
        struct rig_got g;
        tst_nomem_arm(n);
        rig_ask(r->router, q->method, q->path, q->body, &g);
        reached = tst_nomem_disarm();
        q->check(&g);
        t->failures += reached;
        t->ok += reached && g.status == 200 && !g.cut;
        t->told += reached && g.status != 0 && g.status != 200;
        t->cut += reached && (g.status == 0 || g.cut);
        kvs_buf_fini(&g.body);
        if (reached)
            check_next(r, q->path, n);
    }
    t->last = n;
}

/* Again, where the few allocations that failed were all those of the router's loop, which has work of its own. */
static void fail_each(struct rig *r, const struct question *q)
{
    struct tally t = {0};
    for (int i = 0; i < 50 && (t.failures < q->least || t.told == 0); i++)
        fail_each_once(r, q, &t);
    print_message("%s: up to allocation %lld; %u went on, %u errors, %u broken off\n", q->path, (long long)t.last, t.ok, t.told, t.cut);
    assert_true(t.failures >= q->least);
    assert_true(t.told > 0);
}

static void test_whole_answer(void **state)
{
    fail_each(*state, &(struct question){"POST", "/v1/completions", completion, check_whole, 25});
}

static void test_stream(void **state)
{
    static const char body[] = "{\"model\":\"tiny\",\"prompt\":[5,6],\"stream\":true,\"stream_options\":{\"include_usage\":true},\"n\":1}";
    fail_each(*state, &(struct question){"POST", "/v1/completions", body, check_stream, 25});
}

/* All that a chat may hold; without memory it is no bad request. */
static void test_params(void **state)
{
    static const char chat[] =
        "{\"model\":\"tiny\",\"stream\":true,\"stop\":[\"x\",\"y\"],\"messages\":["
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\\n\"}]},"
        "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":[1,2]}\"}},"
        "{\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},{\"role\":\"developer\",\"content\":\"c\"}]}";
    int64_t before = tst_nomem_live(), n = 0;
    (void)state;
    tst_nomem_where(NULL);
    for (bool reached = true; reached; n++) {
        struct rtr_params p;
        struct rtr_fault f;
        tst_nomem_arm(n);
        kvs_status s = rtr_params_parse(RTR_CHAT, chat, sizeof(chat) - 1, &p, &f);
        reached = tst_nomem_disarm();
        if (s != (reached ? KVS_SELF_NOMEM : KVS_OK))
            fail_msg("allocation %lld: %s \"%s\"", (long long)n, kvs_status_name(s), f.text);
        rtr_params_fini(&p);
        assert_int_equal(tst_nomem_live(), before);
    }
    tst_nomem_where(is_router);
    assert_true(n > 80);
}

static void test_pages(void **state)
{
    static const struct question pages[] = {
        {"GET", "/metrics", NULL, check_page, 10},      {"GET", "/kvasir/status", NULL, check_page, 1},
        {"GET", "/v1/models", NULL, check_page, 1},     {"GET", "/v1/models/tiny", NULL, check_page, 1},
        {"GET", "/health/ready", NULL, check_page, 1},
    };
    for (size_t i = 0; i < sizeof(pages) / sizeof(*pages); i++)
        fail_each(*state, &pages[i]);
}

/* The allocation that failed may have been that of the worker's stream (the End of a call before): then the order finds no worker, and says so. */
static void check_order(const struct rig_got *g)
{
    if (g->status == 200)
        assert_true(strstr(kvs_buf_text(&g->body), "\"workers\":[{") || strstr(kvs_buf_text(&g->body), "\"role\":"));
    else if (g->status == 404)
        assert_non_null(strstr(kvs_buf_text(&g->body), "connected"));
    else
        check_error(g);
}

/* The loop's own error: it needs memory for its text, and an end without. */
static void check_unknown(const struct rig_got *g)
{
    assert_int_not_equal(g->status, 200);
    if (g->status != 404)
        check_error(g);
}

static void test_orders(void **state)
{
    static const struct question orders[] = {
        {"POST", "/kvasir/role/nobody/both", NULL, check_unknown, 3},
        {"POST", "/kvasir/cache/flush", NULL, check_order, 3},
        {"POST", "/kvasir/role/decode-0/both", NULL, check_order, 3},
    };
    for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++)
        fail_each(*state, &orders[i]);
}

/* The board is made, or not; a page that could not be written is no empty one. */
static void test_board(void **state)
{
    struct kvs_metrics *m = NULL;
    struct rtr_board *b = NULL;
    int64_t before = tst_nomem_live();
    uint32_t unwritten = 0;
    (void)state;
    tst_nomem_where(NULL);
    for (int64_t n = 0;; n++) {
        struct kvs_buf page;
        kvs_buf_init(&page, RTR_PAGE_MAX);
        assert_int_equal(kvs_metrics_create(&m), KVS_OK);
        tst_nomem_arm(n);
        kvs_status s = rtr_board_create(m, "router", &b);
        bool reached = tst_nomem_disarm();
        assert_int_equal(s, reached && n == 0 ? KVS_SELF_NOMEM : KVS_OK);
        if (s == KVS_OK) {
            s = rtr_board_write_status(b, &page);
            assert_int_equal(s, reached ? KVS_SELF_NOMEM : KVS_OK);
            unwritten += s != KVS_OK;
            rtr_board_status(b, &(struct rtr_status_view){.count = 0});
            assert_int_equal(rtr_board_write_status(b, &page), KVS_OK);
            rtr_board_destroy(b);
        }
        kvs_buf_fini(&page);
        kvs_metrics_destroy(m);
        assert_int_equal(tst_nomem_live(), before);
        if (!reached)
            break;
    }
    tst_nomem_where(is_router);
    assert_true(unwritten > 2);
}

/* A body that lacks memory is not too large. */
static void test_big_body(void **state)
{
    struct rig *r = *state;
    struct kvs_buf b;
    kvs_buf_init(&b, 1u << 20);
    assert_int_equal(kvs_buf_puts(&b, "{\"model\":\"tiny\",\"max_tokens\":20,\"prompt\":[5"), KVS_OK);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(kvs_buf_puts(&b, ",6"), KVS_OK);
    assert_int_equal(kvs_buf_puts(&b, "]}"), KVS_OK);
    for (int64_t n = 0; n < 12; n++) {
        struct rig_got g;
        tst_nomem_arm(n);
        rig_ask(r->router, "POST", "/v1/completions", kvs_buf_text(&b), &g);
        assert_true(tst_nomem_disarm());
        check_whole(&g);
        kvs_buf_fini(&g.body);
        check_next(r, "a big body", n);
    }
    kvs_buf_fini(&b);
}

static bool paused(void *arg)
{
    return ((struct rig_script *)arg)->pauses > 0;
}

/* A long stream is read only when it was paused; then allocation n fails. It comes to its [DONE], to an error, or is broken off. */
static void read_late(struct rig *r, int64_t n, bool *paused_out, bool *done_out)
{
    static const char body[] = "{\"model\":\"tiny\",\"prompt\":\"x\",\"stream\":true,\"n\":8,\"return_token_ids\":true,\"max_tokens\":4000}";
    char req[512];
    static char piece[1 << 20];
    size_t kept = 0, total = 0;
    int fd = rig_connect(r->router);
    snprintf(req, sizeof(req), "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    r->script->pauses = 0;
    rig_send(fd, req);
    *done_out = false;
    *paused_out = rig_wait(paused, r->script, 20000);
    tst_nomem_arm(n);
    uint64_t until_us = kvs_now_us() + 4 * RIG_ANSWER_MS * 1000ull;
    bool over = !*paused_out;
    while (!over && kvs_now_us() < until_us) { /* what is looked at overlaps by what the end may be cut into */
        struct pollfd ready_fd = {.fd = fd, .events = POLLIN};
        ssize_t k = poll(&ready_fd, 1, RIG_ANSWER_MS) > 0 ? recv(fd, piece + kept, sizeof(piece) - 1 - kept, 0) : -2;
        size_t all = kept + (size_t)(k > 0 ? k : 0);
        piece[all] = 0;
        *done_out = strstr(piece, "data: [DONE]") != NULL;
        over = *done_out || k == 0 || k == -1 || strstr(piece, "\"error\"");
        kept = all > 16 ? 16 : all;
        memmove(piece, piece + all - kept, kept);
        total += (size_t)(k > 0 ? k : 0);
    }
    close(fd);
    if (!over)
        fail_msg("the stream stands still after %zu bytes; %u pauses, %u resumes", total, r->script->pauses, r->script->resumes);
}

static void long_text(struct rig *r)
{
    memset(r->script->text, 'y', 30000);
    r->script->text[30000] = 0;
    r->script->token_us = 10;
}

/* The HTTP thread that has read enough has no memory to say so. */
static void test_reads_again_without_a_note(void **state)
{
    struct rig *r = *state;
    bool was_paused, done, fired = false;
    http_only = true;
    for (int i = 0; i < 5 && !fired; i++) { /* again, where the kernel took so much that the note was out before it could fail */
        long_text(r);
        read_late(r, 0, &was_paused, &done);
        fired = tst_nomem_disarm();
        if (!was_paused) /* the sockets took it all */
            skip();
        assert_true(done);
    }
    assert_true(fired);
}

/* The loop has none to tell the worker so, or for what comes then. */
static void test_reads_again_without_a_resume(void **state)
{
    struct rig *r = *state;
    uint32_t ends = 0;
    for (int64_t n = 0; n < 8; n++) {
        bool was_paused, done;
        long_text(r);
        read_late(r, n, &was_paused, &done);
        (void)tst_nomem_disarm();
        ends += was_paused && done;
        memcpy(r->script->text, TEXT, sizeof(TEXT));
        check_next(r, "reading again", n);
    }
    print_message("%u of 8 streams went on to their end\n", ends);
}

static bool ready(void *arg)
{
    struct rig_got g;
    rig_ask(((struct rig *)arg)->router, "GET", "/health/ready", NULL, &g);
    bool yes = g.status == 200;
    kvs_buf_fini(&g.body);
    return yes;
}


/* The first worker of a model comes: header, tokenizer, template, card, the long calls. */
static void test_join(void **state)
{
    struct rig *r = *state;
    int64_t n = 0;
    uint32_t failures = 0;
    for (bool reached = true; reached; n += n < STEP_AFTER ? 1 : 1 + n / 4) {
        rig_router_stop(r->router);
        rig_worker_stop(r->decode);
        r->router = rig_router_start(NULL);
        tst_nomem_arm(n);
        r->decode = rig_worker_start(rig_control_url(r->router), "decode-0", MSG_ROLE_DECODE, NULL, r->script);
        if (!rig_wait(ready, r, 30000))
            fail_msg("no worker has joined after allocation %lld failed", (long long)n);
        reached = tst_nomem_disarm();
        failures += reached;
        check_next(r, "joining", n);
    }
    print_message("joining: up to allocation %lld\n", (long long)n);
    assert_true(failures > 25);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    signal(SIGPIPE, SIG_IGN);
    tst_nomem_where(is_router);
#define WITH(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params), cmocka_unit_test(test_board), WITH(test_stream), WITH(test_whole_answer), WITH(test_pages), WITH(test_orders),
        WITH(test_big_body),     WITH(test_reads_again_without_a_note), WITH(test_reads_again_without_a_resume),
        WITH(test_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
