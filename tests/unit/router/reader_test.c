/* reader_test.c - the whole router over HTTP with clients that do not read what it sends, and with one that reads slowly (core/stall.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/clock.h"
#include "tests/unit/router/rig.h"

struct rig {
    struct rig_router *router;
    struct rig_worker *decode;
    struct rig_script *script;
};

static struct rig *start(uint64_t stall_us)
{
    struct rig_options o = {.client_stall_us = stall_us};
    struct rig *r = calloc(1, sizeof(*r));
    rtr_config_default(&o.core);
    r->script = calloc(1, sizeof(*r->script));
    rig_script_init(r->script, "");
    memset(r->script->text, 'x', 4000);
    r->script->text[4000] = 0;
    r->script->token_us = 20;
    r->router = rig_router_start(&o);
    r->decode = rig_worker_start(rig_control_url(r->router), "decode-0", MSG_ROLE_DECODE, NULL, r->script);
    rig_wait_ready(r->router);
    return r;
}

static void stop(struct rig *r)
{
    rig_router_stop(r->router);
    rig_worker_stop(r->decode);
    free(r->script);
    free(r);
}

static bool aborted(void *arg)
{
    return ((struct rig_script *)arg)->aborts > 0;
}

static bool idle_worker(void *arg)
{
    return ((struct rig_script *)arg)->running == 0;
}

static double counter(struct rig *r, const char *name)
{
    struct rig_reply p;
    rig_request(r->router, "GET", "/metrics", NULL, &p);
    const char *line = strstr(kvs_buf_text(&p.body), name);
    double value = line ? strtod(line + strlen(name), NULL) : -1;
    rig_reply_fini(&p);
    return value;
}

static bool counts_to(struct rig *r, const char *name, double value)
{
    for (int i = 0; i < 400 && counter(r, name) < value; i++)
        kvs_sleep_us(50000);
    return counter(r, name) == value;
}

static void send_request(int fd, const char *more)
{
    char body[512], head[1024];
    snprintf(body, sizeof(body), "{\"model\":\"tiny\",\"prompt\":\"x\"%s}", more);
    snprintf(head, sizeof(head), "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    rig_send(fd, head);
}

#define LONG_EVENTS ",\"n\":8,\"return_token_ids\":true,\"kvasir\":{\"logits\":true}"
#define STREAM ",\"stream\":true"
#define CUT "kvasir_router_clients_cut_total{reason=\"stalled\"}"

/* A stream with eight choices, and an answer that is no stream; nobody reads. */
static void test_a_client_that_reads_nothing_is_cut(void **state)
{
    (void)state;
    struct rig *r = start(700000);
    struct kvs_buf b;
    int small = 4096;
    kvs_buf_init(&b, 64u << 20);
    int fd = rig_connect(r->router);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    send_request(fd, STREAM LONG_EVENTS);
    assert_true(rig_wait(aborted, r->script, 20000));
    assert_true(rig_wait(idle_worker, r->script, 20000));
    assert_true(counts_to(r, CUT, 1));
    assert_true(counts_to(r, "kvasir_requests_total{outcome=\"cancelled\"}", 1));
    assert_true(rig_read(fd, &b, NULL, 30000)); /* what it had, then a reset, and no end */
    assert_null(strstr(kvs_buf_text(&b), "[DONE]"));
    close(fd);
    /* no stream: the sequences are long over when it turns out that nobody takes the answer */
    for (int i = 0; i < 12; i++) { /* pipelined: some answer does not fit into the kernel beside those before it */
        fd = i ? fd : rig_connect(r->router);
        if (!i)
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
        send_request(fd, LONG_EVENTS);
    }
    assert_true(counts_to(r, CUT, 2));
    close(fd);
    assert_true(rig_wait(idle_worker, r->script, 20000));
    r->script->text[100] = 0;
    struct rig_reply p;
    rig_request(r->router, "POST", "/v1/completions", "{\"model\":\"tiny\",\"prompt\":\"hello\",\"stream\":true}", &p);
    assert_non_null(strstr(kvs_buf_text(&p.body), "[DONE]"));
    rig_reply_fini(&p);
    kvs_buf_fini(&b);
    stop(r);
}

/* Reads for several times the limit, a little at a time: whole, and nobody is cut. */
static void test_a_client_that_reads_slowly_is_not(void **state)
{
    (void)state;
    struct rig *r = start(2000000);
    struct kvs_buf b;
    char piece[65536];
    int fd = rig_connect(r->router), small = 65536;
    kvs_buf_init(&b, 64u << 20);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    send_request(fd, STREAM LONG_EVENTS);
    uint64_t begin = kvs_now_us();
    while (!strstr(b.len > 64 ? (const char *)b.data + b.len - 64 : kvs_buf_text(&b), "[DONE]")) {
        if (kvs_now_us() - begin < 5000000)
            kvs_sleep_us(100000);
        ssize_t n = recv(fd, piece, sizeof(piece), 0);
        assert_true(n > 0);
        assert_int_equal(kvs_buf_append(&b, piece, (size_t)n), KVS_OK);
        (void)kvs_buf_text(&b);
    }
    assert_true(kvs_now_us() - begin > 5000000);
    assert_true(counter(r, CUT) == 0);
    close(fd);
    kvs_buf_fini(&b);
    stop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_client_that_reads_nothing_is_cut), cmocka_unit_test(test_a_client_that_reads_slowly_is_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
