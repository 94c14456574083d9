/* edge_test.c - the whole router over HTTP with scripted workers behind it: shapes and headers, streams, departures, slow readers, losses,
 * hostile requests, clients on control streams, and stopping.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/rpc.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "tests/unit/router/rig.h"

#define TEXT "Once upon a time there was a router."

struct rig {
    struct rig_router *router;
    struct rig_worker *decode, *decode2, *prefill;
    struct rig_script *script, *script2, *prefill_script;
};

static struct rig_script *script_new(const char *text)
{
    struct rig_script *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    rig_script_init(s, text);
    return s;
}

/* A life of a worker: its Tokens call was opened, so the router gives it requests from now on. */
struct life {
    struct rig_script *script;
    uint32_t lives;
};

static bool lives_anew(void *arg)
{
    struct life *l = arg;
    return l->script->lives > l->lives;
}

/* Waits until the router has taken the worker in more often than that. */
static void wait_life(struct rig_script *s, uint32_t lives)
{
    struct life l = {s, lives};
    assert_true(rig_wait(lives_anew, &l, 20000));
}

static bool runs_one(void *arg)
{
    return ((struct rig_script *)arg)->running == 1;
}

static bool runs_three(void *arg)
{
    return ((struct rig_script *)arg)->running == 3;
}

static int start(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    r->script = script_new(TEXT);
    r->router = rig_router_start(NULL);
    r->decode = rig_worker_start(rig_control_url(r->router), "decode-0", MSG_ROLE_DECODE, "prefill-0", r->script);
    rig_wait_ready(r->router);
    *state = r;
    return 0;
}

static void add_second_decode(struct rig *r)
{
    r->script2 = script_new(TEXT);
    r->decode2 = rig_worker_start(rig_control_url(r->router), "decode-1", MSG_ROLE_DECODE, NULL, r->script2);
    wait_life(r->script2, 0);
}

static int stop(void **state)
{
    struct rig *r = *state;
    rig_router_stop(r->router);
    rig_worker_stop(r->decode);
    if (r->decode2)
        rig_worker_stop(r->decode2);
    if (r->prefill)
        rig_worker_stop(r->prefill);
    free(r->script);
    free(r->script2);
    free(r->prefill_script);
    free(r);
    return 0;
}

static json_t *body_json(const struct rig_reply *p)
{
    json_error_t e;
    json_t *o = json_loadb(kvs_buf_text(&p->body), p->body.len, JSON_REJECT_DUPLICATES, &e);
    if (!o)
        fail_msg("not JSON (%s): %s", e.text, kvs_buf_text(&p->body));
    return o;
}

static const char *text_at(json_t *o, const char *a, const char *b)
{
    json_t *v = json_object_get(json_object_get(o, a), b);
    return json_is_string(v) ? json_string_value(v) : "";
}

#define COMPLETION(more) "{\"model\":\"tiny\",\"prompt\":\"hello\",\"temperature\":0" more "}"
#define CHAT(more) "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" more "}"

static bool aborted(void *arg)
{
    return ((struct rig_script *)arg)->aborts > 0;
}

static void test_whole_and_stream_agree(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    char text[1024];
    bool done, error;
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(), &p);
    assert_int_equal(p.status, 200);
    assert_non_null(strstr(p.head, "x-request-id: test-1\r\n"));
    assert_non_null(strstr(p.head, "x-kvasir-placement: mode=local prefill=decode-0 decode=decode-0 cached=0 bytes=0 transport=none predicted_ms="));
    assert_non_null(strstr(p.head, " fetch=- first_ms="));
    json_t *o = body_json(&p), *c = json_array_get(json_object_get(o, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(c, "text")), TEXT);
    assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "stop");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "usage"), "completion_tokens")), strlen(TEXT) + 1);
    json_decref(o);
    rig_reply_fini(&p);
    for (uint32_t max = 1; max < 12; max++) {
        char body[256];
        snprintf(body, sizeof(body), "{\"model\":\"tiny\",\"prompt\":[5,6,7],\"stream\":true,\"max_tokens\":%u,\"stop\":\"ont\"}", max);
        rig_request(r->router, "POST", "/v1/completions", body, &p);
        assert_int_equal(p.status, 200);
        assert_non_null(strstr(p.head, "text/event-stream"));
        rig_join_stream(&p.body, text, sizeof(text), &done, &error);
        assert_true(done && !error);
        assert_int_equal(strlen(text), max);
        assert_memory_equal(text, TEXT, max);
        rig_reply_fini(&p);
    }
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(",\"stream\":true,\"stop\":[\"time th\"]"), &p);
    rig_join_stream(&p.body, text, sizeof(text), &done, &error);
    assert_true(done && !error);
    assert_string_equal(text, "Once upon a ");
    rig_reply_fini(&p);
    assert_true(rig_wait(aborted, r->script, 20000)); /* the worker was told to stop */
}

static void test_no_max_tokens_means_the_rest_of_the_context(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(), &p);
    assert_int_equal(r->script->last_max_tokens + r->script->last_prompt_tokens, 4096);
    rig_reply_fini(&p);
}

static bool idle_worker(void *arg)
{
    return ((struct rig_script *)arg)->running == 0;
}

static void expect_fault(struct rig *r, const char *method, const char *path, const char *body, int status, const char *param, const char *code)
{
    struct rig_reply p;
    rig_request(r->router, method, path, body, &p);
    json_t *o = body_json(&p);
    if (p.status != status || strcmp(text_at(o, "error", "param"), param) != 0 || strcmp(text_at(o, "error", "code"), code) != 0)
        fail_msg("%s %s -> %d %s", method, path, p.status, kvs_buf_text(&p.body));
    assert_true(text_at(o, "error", "message")[0] != 0 && text_at(o, "error", "type")[0] != 0);
    assert_non_null(strstr(p.head, "application/json"));
    json_decref(o);
    rig_reply_fini(&p);
}

static void test_errors_are_openai_objects(void **state)
{
    struct rig *r = *state;
    expect_fault(r, "GET", "/nowhere", NULL, 404, "", "req_not_found");
    expect_fault(r, "POST", "/v1/nowhere", "{}", 404, "", "req_not_found");
    expect_fault(r, "GET", "/v1/completions", NULL, 405, "", "req_method");
    expect_fault(r, "POST", "/v1/models", "{}", 405, "", "req_method");
    expect_fault(r, "POST", "/v1/completions", "", 400, "", "invalid_value");
    expect_fault(r, "POST", "/v1/completions", "{", 400, "", "invalid_value");
    expect_fault(r, "POST", "/v1/completions", COMPLETION(",\"max_tokens\":\"7\""), 400, "max_tokens", "invalid_value");
    expect_fault(r, "POST", "/v1/completions", "{\"model\":\"other\",\"prompt\":\"x\"}", 404, "model", "model_not_found");
    expect_fault(r, "GET", "/v1/models/other", NULL, 404, "model", "model_not_found");
    expect_fault(r, "POST", "/v1/completions", "{\"model\":\"tiny\",\"prompt\":[1,100000]}", 400, "prompt", "invalid_value");
    expect_fault(r, "POST", "/v1/chat/completions", CHAT(), 400, "messages", "invalid_value"); /* the tiny model has no template */
    struct kvs_buf big;
    kvs_buf_init(&big, 40000);
    assert_int_equal(kvs_buf_puts(&big, "{\"model\":\"tiny\",\"prompt\":[5"), KVS_OK);
    for (int i = 1; i < 4095; i++)
        assert_int_equal(kvs_buf_puts(&big, ",5"), KVS_OK);
    size_t less = big.len;
    assert_int_equal(kvs_buf_puts(&big, ",5]}"), KVS_OK);
    struct rig_reply p;
    rig_request(r->router, "POST", "/v1/completions", kvs_buf_text(&big), &p); /* exactly the context */
    assert_int_equal(p.status, 400);
    assert_non_null(strstr(kvs_buf_text(&p.body), "context_length_exceeded"));
    assert_non_null(strstr(kvs_buf_text(&p.body), "4096"));
    assert_non_null(strstr(kvs_buf_text(&p.body), "4095"));
    rig_reply_fini(&p);
    big.len = less; /* one token less: one of answer fits */
    assert_int_equal(kvs_buf_puts(&big, "],\"max_tokens\":8}"), KVS_OK);
    rig_request(r->router, "POST", "/v1/completions", kvs_buf_text(&big), &p);
    assert_int_equal(p.status, 200);
    assert_non_null(strstr(kvs_buf_text(&p.body), "\"finish_reason\":\"length\""));
    assert_int_equal(r->script->last_max_tokens, 1);
    rig_reply_fini(&p);
    kvs_buf_fini(&big);
}

static bool page_has(struct rig *r, const char *path, const char *text)
{
    struct rig_reply p;
    rig_request(r->router, "GET", path, NULL, &p);
    bool yes = p.status == 200 && strstr(kvs_buf_text(&p.body), text) != NULL;
    rig_reply_fini(&p);
    return yes;
}

/* The worker's own page has come, and what the router writes down now and then is written down. */
static bool all_is_told(void *rig)
{
    return page_has(rig, "/metrics", "kvasir_steps_total{worker=\"decode-0\"} 7") && page_has(rig, "/metrics", "kvasir_requests_total{outcome=\"ok\"} 1") &&
           page_has(rig, "/kvasir/status", "\"free\":9") && page_has(rig, "/kvasir/status", "\"measured_s\":");
}

static void test_pages(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    rig_request(r->router, "GET", "/v1/models", NULL, &p);
    json_t *o = body_json(&p);
    assert_int_equal(json_array_size(json_object_get(o, "data")), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id")), "tiny");
    json_decref(o);
    rig_reply_fini(&p);
    const char *ok[] = {"/v1/models/tiny", "/health/live", "/health/ready", "/health", "/version"};
    for (size_t i = 0; i < sizeof(ok) / sizeof(*ok); i++) {
        rig_request(r->router, "GET", ok[i], NULL, &p);
        assert_int_equal(p.status, 200);
        json_decref(body_json(&p));
        rig_reply_fini(&p);
    }
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(), &p);
    rig_reply_fini(&p);
    assert_true(rig_wait(all_is_told, r, 10000));
    rig_request(r->router, "GET", "/metrics", NULL, &p);
    const char *page = kvs_buf_text(&p.body);
    assert_non_null(strstr(page, "kvasir_requests_total{outcome=\"ok\"} "));
    assert_non_null(strstr(page, "kvasir_ttft_seconds_count "));
    assert_non_null(strstr(page, "kvasir_ttft_predicted_seconds_count "));
    assert_non_null(strstr(page, "kvasir_ttft_prediction_error_seconds_count "));
    assert_non_null(strstr(page, "kvasir_steps_total{worker=\"decode-0\"} 7"));
    rig_reply_fini(&p);
    rig_request(r->router, "GET", "/kvasir/status", NULL, &p);
    o = body_json(&p);
    json_t *w = json_array_get(json_object_get(o, "workers"), 0);
    assert_string_equal(json_string_value(json_object_get(w, "id")), "decode-0");
    assert_string_equal(json_string_value(json_object_get(w, "role")), "decode");
    assert_string_equal(json_string_value(json_object_get(w, "state")), "ready");
    assert_int_equal(json_integer_value(json_object_get(w, "pid")), 1234);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(json_object_get(w, "pages"), 0), "free")), 9);
    assert_non_null(json_object_get(json_object_get(w, "speed"), "prefill_token_s"));
    const json_t *row = json_array_get(json_object_get(o, "placements"), 0), *best = json_array_get(json_object_get(row, "candidates"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "mode")), "local");
    assert_true(json_real_value(json_object_get(row, "measured_s")) > 0);
    assert_string_equal(json_string_value(json_object_get(best, "decode")), "decode-0");
    assert_true(json_number_value(json_object_get(best, "ttft_s")) > 0);
    assert_true(json_number_value(json_object_get(row, "predicted_s")) == json_number_value(json_object_get(best, "ttft_s")));
    json_decref(o);
    rig_reply_fini(&p);
}

/* The head of a raw request that asks for a stream. */
static void send_stream_request(int fd, const char *more)
{
    char body[512], head[1024];
    snprintf(body, sizeof(body), "{\"model\":\"tiny\",\"prompt\":\"x\",\"stream\":true%s}", more);
    snprintf(head, sizeof(head), "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    rig_send(fd, head);
}

static void test_a_client_that_leaves_is_noticed(void **state)
{
    struct rig *r = *state;
    struct kvs_buf b;
    for (int how = 0; how < 4; how++) { /* before the first token or in mid-stream; close or reset */
        r->script->aborts = 0;
        r->script->hang_after = how & 1 ? 3 : 0;
        int fd = rig_connect(r->router);
        kvs_buf_init(&b, 1u << 20);
        send_stream_request(fd, "");
        if (how & 1)
            assert_true(rig_read(fd, &b, "\"n\"", 20000));
        assert_true(rig_wait(runs_one, r->script, 20000));
        struct linger hard = {1, 0};
        if (how & 2)
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
        uint64_t t = kvs_now_us();
        close(fd);
        assert_true(rig_wait(aborted, r->script, 20000));
        printf("departure %d noticed after %llu us\n", how, (unsigned long long)(kvs_now_us() - t));
        assert_true(rig_wait(idle_worker, r->script, 10000));
        kvs_buf_fini(&b);
    }
    r->script->hang_after = -1;
    struct rig_reply p;
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(), &p); /* and the next one is served */
    assert_int_equal(p.status, 200);
    rig_reply_fini(&p);
}

static bool paused(void *arg)
{
    return ((struct rig_script *)arg)->pauses > 0;
}

static void test_a_slow_reader_pauses_its_sequence(void **state)
{
    struct rig *r = *state;
    struct kvs_buf b;
    char *text = malloc(65536);
    bool done, error;
    memset(r->script->text, 'x', 4000);
    r->script->text[4000] = 0;
    r->script->token_us = 20;
    r->script->hang_after = 3000; /* the last ones are not made before the pause: it would have nothing to hold */
    int fd = rig_connect(r->router), small = 65536;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    /* Many choices' worth of bytes: ids and logits make each event long. */
    send_stream_request(fd, ",\"n\":8,\"return_token_ids\":true,\"kvasir\":{\"logits\":true}");
    assert_true(rig_wait(paused, r->script, 20000));
    r->script->hang_after = -1;
    kvs_buf_init(&b, 64u << 20);
    assert_true(rig_read(fd, &b, "[DONE]", 60000));
    assert_true(r->script->resumes > 0);
    close(fd);
    kvs_buf_fini(&b);
    struct rig_reply p;
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(",\"stream\":true"), &p);
    rig_join_stream(&p.body, text, 65536, &done, &error);
    assert_true(done && !error);
    assert_string_equal(text, r->script->text);
    rig_reply_fini(&p);
    free(text);
}

static void test_a_worker_lost_in_mid_stream_is_an_error_event(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    char text[1024];
    bool done, error;
    uint32_t lives = r->script->lives;
    r->script->die_after = 5;
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(",\"stream\":true"), &p);
    assert_int_equal(p.status, 200);
    rig_join_stream(&p.body, text, sizeof(text), &done, &error);
    assert_true(error && !done);
    assert_string_equal(text, "Once ");
    rig_reply_fini(&p);
    wait_life(r->script, lives); /* it dials again */
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(), &p); /* not a stream: never a 200 after a failure */
    assert_int_equal(p.status, 502);
    rig_reply_fini(&p);
    r->script->die_after = -1;
}

static double counter(struct rig *r, const char *name)
{
    struct rig_reply p;
    rig_request(r->router, "GET", "/metrics", NULL, &p);
    const char *line = kvs_buf_text(&p.body);
    size_t n = strlen(name);
    while (line && !(strncmp(line, name, n) == 0 && line[n] == ' '))
        line = (line = strchr(line, '\n')) ? line + 1 : NULL;
    double value = line ? strtod(line + n, NULL) : -1;
    rig_reply_fini(&p);
    return value;
}

/* As many as have begun on the worker that dies, and that is not none. */
static bool has_resumed(void *rig)
{
    uint32_t deaths = ((struct rig *)rig)->script->generates;
    return deaths > 0 && (uint32_t)counter(rig, "kvasir_resumed_total") == deaths;
}

static bool has_moved(void *rig)
{
    return counter(rig, "kvasir_resumed_total") > 0;
}

/* The stream whose worker dies after five tokens, with a second worker there: whole, and counted right. */
static void test_a_stream_goes_on_at_another_worker(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    char text[1024], usage[64];
    bool done, error;
    add_second_decode(r);
    for (int i = 0; i < 6 || (r->script->generates == 0 && i < 100); i++) {
        uint32_t before = r->script2->generates, deaths = r->script->generates, lives = r->script->lives;
        r->script->die_after = 5;
        rig_request(r->router, "POST", "/v1/completions", COMPLETION(",\"stream\":true,\"stream_options\":{\"include_usage\":true}"), &p);
        assert_int_equal(p.status, 200);
        rig_join_stream(&p.body, text, sizeof(text), &done, &error);
        assert_true(done && !error);
        assert_string_equal(text, TEXT);
        snprintf(usage, sizeof(usage), "\"completion_tokens\":%zu", strlen(TEXT) + 1);
        assert_non_null(strstr(kvs_buf_text(&p.body), usage));
        rig_reply_fini(&p);
        assert_int_equal(r->script2->generates, before + 1); /* by itself, or after the other one */
        r->script->die_after = -1;
        if (r->script->generates > deaths)
            wait_life(r->script, lives);
    }
    assert_int_equal(r->script2->last_first_index == 5 || r->script2->last_first_index == 0, 1);
    assert_true(rig_wait(has_resumed, r, 10000));
    printf("%u began on the worker that dies, %.0f resumed\n", (unsigned)r->script->generates, counter(r, "kvasir_resumed_total"));
}

/* Two choices and a stop string that the loss cuts in two; not streamed: one whole answer. */
static void test_stop_strings_survive_the_move(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    add_second_decode(r);
    r->script->die_after = 8;
    for (int i = 0; i < 4 || (r->script->generates == 0 && i < 100); i++) {
        rig_request(r->router, "POST", "/v1/completions", COMPLETION(",\"n\":2,\"stop\":[\"upon a\"]"), &p);
        assert_int_equal(p.status, 200);
        json_t *o = body_json(&p), *choices = json_object_get(o, "choices");
        assert_int_equal(json_array_size(choices), 2);
        for (size_t k = 0; k < 2; k++) {
            assert_string_equal(json_string_value(json_object_get(json_array_get(choices, k), "text")), "Once ");
            assert_string_equal(json_string_value(json_object_get(json_array_get(choices, k), "finish_reason")), "stop");
        }
        json_decref(o);
        rig_reply_fini(&p);
        kvs_sleep_us(50000);
    }
    assert_true(r->script->generates > 0);
    assert_true(rig_wait(has_moved, r, 10000));
    r->script->die_after = -1;
}

static void test_a_refusal_goes_to_another_worker_once(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    add_second_decode(r);
    r->script->refuse = KVS_BUSY_PAGES;
    for (int i = 0; i < 4; i++) {
        rig_request(r->router, "POST", "/v1/completions", COMPLETION(), &p);
        assert_int_equal(p.status, 200);
        assert_non_null(strstr(p.head, "decode=decode-1"));
        rig_reply_fini(&p);
    }
    r->script2->refuse = KVS_BUSY_PAGES;
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(), &p);
    assert_int_equal(p.status, 429);
    assert_non_null(strstr(p.head, "Retry-After: "));
    rig_reply_fini(&p);
    r->script->refuse = 0;
}

static void test_doubled_entries_do_not_double_tokens(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    char text[1024];
    bool done, error;
    r->script->repeat = 2;
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(",\"stream\":true"), &p);
    rig_join_stream(&p.body, text, sizeof(text), &done, &error);
    assert_true(done && !error);
    assert_string_equal(text, TEXT);
    rig_reply_fini(&p);
    r->script->repeat = 0;
}

static void test_remote_placement_needs_a_linked_prefill_worker(void **state)
{
    struct rig *r = *state;
    struct rig_reply p;
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(",\"kvasir\":{\"placement\":\"remote\"}"), &p);
    assert_int_equal(r->script->last_placement, MSG_PLACE_LOCAL); /* nobody is there to ask */
    rig_reply_fini(&p);
    r->prefill_script = script_new("");
    r->prefill = rig_worker_start(rig_control_url(r->router), "prefill-0", MSG_ROLE_PREFILL, NULL, r->prefill_script);
    for (int i = 0; i < 2000 && r->script->last_placement != MSG_PLACE_REMOTE; i++) {
        rig_request(r->router, "POST", "/v1/completions", COMPLETION(",\"kvasir\":{\"placement\":\"remote\"},\"max_tokens\":2"), &p);
        if (r->script->last_placement == MSG_PLACE_REMOTE)
            assert_non_null(strstr(p.head, "x-kvasir-placement: mode=remote prefill=prefill-0 decode=decode-0 cached=0 bytes=4096 transport=shm"));
        rig_reply_fini(&p);
        kvs_sleep_us(10000);
    }
    assert_int_equal(r->script->last_placement, MSG_PLACE_REMOTE);
    rig_request(r->router, "POST", "/v1/completions", COMPLETION(), &p); /* short: local by itself */
    assert_int_equal(r->script->last_placement, MSG_PLACE_LOCAL);
    rig_reply_fini(&p);
}

static void hostile(struct rig *r, const char *request, int status)
{
    struct kvs_buf b;
    char want[32];
    int fd = rig_connect(r->router);
    kvs_buf_init(&b, 1u << 20);
    rig_send(fd, request);
    assert_true(rig_read(fd, &b, NULL, 20000)); /* the server closes */
    snprintf(want, sizeof(want), "HTTP/1.1 %d ", status);
    if (strncmp(kvs_buf_text(&b), want, strlen(want)) != 0)
        fail_msg("%.80s -> %.200s", request, kvs_buf_text(&b));
    close(fd);
    kvs_buf_fini(&b);
}

static void test_hostile_http_is_refused(void **state)
{
    struct rig *r = *state;
    hostile(r, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400);
    hostile(r, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
    hostile(r, "GET /v1/models HTTP/1.1\r\n\r\n", 400);
    hostile(r, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 413);
    assert_int_equal(r->script->generates, 0);
    struct rig_reply p;
    rig_request(r->router, "GET", "/health/live", NULL, &p);
    assert_int_equal(p.status, 200);
    rig_reply_fini(&p);
}

static void test_a_bad_body_leaves_the_connection_usable(void **state)
{
    struct rig *r = *state;
    struct kvs_buf b;
    int fd = rig_connect(r->router);
    kvs_buf_init(&b, 1u << 20);
    rig_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{x");
    assert_true(rig_read(fd, &b, "}}", 20000));
    assert_memory_equal(kvs_buf_text(&b), "HTTP/1.1 400", 12);
    kvs_buf_clear(&b);
    rig_send(fd, "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_true(rig_read(fd, &b, "live", 20000));
    assert_memory_equal(kvs_buf_text(&b), "HTTP/1.1 200", 12);
    kvs_buf_clear(&b);
    rig_send(fd, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 51\r\n\r\n{\"model\":\"tiny\",\"prompt\":\"hello\",\"temperature\":0.0}");
    assert_true(rig_read(fd, &b, "router.", 20000));
    close(fd);
    kvs_buf_fini(&b);
}

static void test_without_workers_503(void **state)
{
    (void)state;
    struct rig_router *router = rig_router_start(NULL);
    struct rig_reply p;
    rig_request(router, "POST", "/v1/completions", COMPLETION(), &p);
    assert_int_equal(p.status, 503);
    assert_non_null(strstr(p.head, "Retry-After: "));
    rig_reply_fini(&p);
    rig_request(router, "GET", "/health/ready", NULL, &p);
    assert_int_equal(p.status, 503);
    rig_reply_fini(&p);
    struct rig_script *s = script_new(TEXT);
    struct rig_worker *w = rig_worker_start(rig_control_url(router), "decode-0", MSG_ROLE_DECODE, NULL, s);
    rig_wait_ready(router);
    rig_worker_stop(w);
    for (int i = 0; i < 10000; i++) { /* known model, nobody there: 503, not 404 */
        rig_request(router, "POST", "/v1/completions", COMPLETION(), &p);
        int status = p.status;
        rig_reply_fini(&p);
        rig_request(router, "GET", "/v1/models/tiny", NULL, &p);
        assert_true(p.status == 503 || p.status == 200);
        bool gone = status == 503 && p.status == 503;
        rig_reply_fini(&p);
        if (gone)
            break;
        assert_true(i < 9999);
        kvs_sleep_us(1000);
    }
    rig_router_stop(router);
    free(s);
}

static void test_deadline_and_queue_full(void **state)
{
    (void)state;
    struct rig_options o = {0};
    rtr_config_default(&o.core);
    o.core.deadline_us = 2000000; /* far enough that the second one meets it in any case */
    o.core.worker_sequences_max = 1;
    o.core.queue_max = 0;
    struct rig_router *router = rig_router_start(&o);
    struct rig_script *s = script_new(TEXT);
    struct rig_worker *w = rig_worker_start(rig_control_url(router), "decode-0", MSG_ROLE_DECODE, NULL, s);
    rig_wait_ready(router);
    s->hang_after = 0;
    int fd = rig_connect(router);
    struct kvs_buf b;
    kvs_buf_init(&b, 1u << 20);
    send_stream_request(fd, "");
    assert_true(rig_wait(runs_one, s, 1500));
    struct rig_reply p;
    rig_request(router, "POST", "/v1/completions", COMPLETION(), &p);
    assert_int_equal(p.status, 429);
    assert_non_null(strstr(p.head, "Retry-After: "));
    rig_reply_fini(&p);
    assert_true(rig_read(fd, &b, "}}", 20000));
    assert_memory_equal(kvs_buf_text(&b), "HTTP/1.1 504", 12);
    assert_true(rig_wait(idle_worker, s, 10000));
    close(fd);
    kvs_buf_fini(&b);
    rig_router_stop(router);
    rig_worker_stop(w);
    free(s);
}

static void test_a_stream_that_waits_gets_its_head_and_comments(void **state)
{
    (void)state;
    struct rig_options o = {.head_after_us = 300000, .comment_every_us = 100000};
    rtr_config_default(&o.core);
    o.core.deadline_us = 1200000;
    struct rig_router *router = rig_router_start(&o);
    struct rig_script *s = script_new(TEXT);
    struct rig_worker *w = rig_worker_start(rig_control_url(router), "decode-0", MSG_ROLE_DECODE, NULL, s);
    rig_wait_ready(router);
    s->hang_after = 0;
    struct rig_reply p;
    rig_request(router, "POST", "/v1/completions", COMPLETION(",\"stream\":true"), &p);
    assert_int_equal(p.status, 200); /* the head is out before the fault is known, so the fault is an event */
    assert_non_null(strstr(p.head, "x-kvasir-placement: mode=- prefill=- decode=decode-0 cached=- bytes=- transport=-"));
    size_t comments = 0;
    for (const char *c = kvs_buf_text(&p.body); (c = strstr(c, ": waiting\n\n")) != NULL; c++)
        comments++;
    printf("%zu comments\n", comments);
    assert_true(comments >= 3);
    assert_non_null(strstr(kvs_buf_text(&p.body), "\"error\""));
    assert_null(strstr(kvs_buf_text(&p.body), "[DONE]"));
    rig_reply_fini(&p);
    for (int i = 0;; i++) { /* no stream: its own status, however late */
        uint32_t lives = s->lives;
        rig_request(router, "POST", "/v1/completions", COMPLETION(), &p);
        if (p.status != 503 || i == 20)
            break;
        rig_reply_fini(&p); /* right only if the worker was lost: a loaded machine kept its thread from its core for 2 s */
        rig_wait_ready(router);
        assert_true(s->lives > lives);
    }
    assert_int_equal(p.status, 504);
    assert_non_null(strstr(p.head, "x-should-retry: false"));
    rig_reply_fini(&p);
    rig_router_stop(router);
    rig_worker_stop(w);
    free(s);
}

#define CROWD 150

/* Many streams at once; every third client leaves in the middle. The others get every byte, and nothing stays behind. */
static void test_a_crowd_of_streams(void **state)
{
    struct rig *r = *state;
    static int fd[CROWD];
    static struct kvs_buf b[CROWD];
    for (int i = 0; i < CROWD; i++) {
        fd[i] = rig_connect(r->router);
        kvs_buf_init(&b[i], 1u << 20);
        send_stream_request(fd[i], "");
    }
    for (int i = 0; i < CROWD; i += 3) {
        assert_true(rig_read(fd[i], &b[i], "data: ", 20000));
        close(fd[i]);
        kvs_buf_fini(&b[i]);
    }
    for (int i = 0; i < CROWD; i++) {
        char want[64];
        size_t at = 0;
        if (i % 3 == 0)
            continue;
        assert_true(rig_read(fd[i], &b[i], "[DONE]", 20000));
        const char *p = kvs_buf_text(&b[i]);
        for (; at < strlen(TEXT); at++) { /* every letter, in order */
            snprintf(want, sizeof(want), "\"text\":\"%c\"", TEXT[at]);
            p = strstr(p, want);
            assert_non_null(p);
            p++;
        }
        close(fd[i]);
        kvs_buf_fini(&b[i]);
    }
    assert_true(rig_wait(idle_worker, r->script, 20000));
    assert_int_equal(r->script->generates, CROWD);
}

static void test_stopping_ends_running_requests(void **state)
{
    (void)state;
    struct rig_router *router = rig_router_start(NULL);
    struct rig_script *s = script_new(TEXT);
    struct rig_worker *w = rig_worker_start(rig_control_url(router), "decode-0", MSG_ROLE_DECODE, NULL, s);
    rig_wait_ready(router);
    s->hang_after = 3;
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = rig_connect(router);
        send_stream_request(fd[i], "");
    }
    assert_true(rig_wait(runs_three, s, 20000));
    rig_router_stop(router);
    for (int i = 0; i < 3; i++) {
        struct kvs_buf b;
        kvs_buf_init(&b, 1u << 20);
        assert_true(rig_read(fd[i], &b, NULL, 20000));
        assert_non_null(strstr(kvs_buf_text(&b), "\"error\""));
        assert_null(strstr(kvs_buf_text(&b), "[DONE]"));
        kvs_buf_fini(&b);
        close(fd[i]);
    }
    rig_worker_stop(w);
    free(s);
}

int main(void)
{
#define WITH(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        WITH(test_whole_and_stream_agree),
        WITH(test_no_max_tokens_means_the_rest_of_the_context),
        WITH(test_errors_are_openai_objects),
        WITH(test_pages),
        WITH(test_a_client_that_leaves_is_noticed),
        WITH(test_a_slow_reader_pauses_its_sequence),
        WITH(test_a_worker_lost_in_mid_stream_is_an_error_event),
        WITH(test_a_stream_goes_on_at_another_worker),
        WITH(test_stop_strings_survive_the_move),
        WITH(test_a_refusal_goes_to_another_worker_once),
        WITH(test_doubled_entries_do_not_double_tokens),
        WITH(test_remote_placement_needs_a_linked_prefill_worker),
        WITH(test_hostile_http_is_refused),
        WITH(test_a_bad_body_leaves_the_connection_usable),
        WITH(test_a_crowd_of_streams),
        cmocka_unit_test(test_a_stream_that_waits_gets_its_head_and_comments),
        cmocka_unit_test(test_without_workers_503),
        cmocka_unit_test(test_deadline_and_queue_full),
        cmocka_unit_test(test_stopping_ends_running_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
