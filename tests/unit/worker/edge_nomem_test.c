/* edge_nomem_test.c - real worker daemons in this process, with a router, while one allocation of a worker's loop fails, every one in turn:
 * while it starts and joins, and while it serves requests whose prompts are read by the other one.
 * Promised whatever fails: the client gets the right tokens or an error, and soon; the next request is served; pages come back; a worker that
 * cannot start says why and ends. Leaks are the address sanitizer's part.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decode-worker/edge/sink.h"
#include "kvtransfer/port.h"
#include "prefill-worker/edge/source.h"
#include "sys/clock.h"
#include "sys/thread.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/nomem.h"
#include "tests/unit/router/rig_ask.h"
#include "worker/edge/worker.h"

#define STEP_AFTER 24
#define PROMPT_IDS "5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40"

struct daemon {
    const char *thread_name, *name;
    msg_role role;
    char url[MSG_URL_MAX];
    struct kvs_thread *thread;
    _Atomic bool over;
    _Atomic int rc;
};

static char model_file[64];
static char victim[32]; /* whose allocations fail */
static struct rig_router *router;

static bool is_victim(void)
{
    char name[32] = "";
    (void)pthread_getname_np(pthread_self(), name, sizeof name);
    return strcmp(name, victim) == 0;
}

static void run_daemon(void *arg)
{
    static const struct wrk_role_ops *const roles[] = {&pfw_role, &dcw_role};
    struct daemon *d = arg;
    char program[] = "worker", model[] = "--model", name[] = "--name", discovery[] = "--discovery", id[64];
    char *argv[] = {program,
                    model,
                    model_file,
                    name,
                    id,
                    discovery,
                    d->url,
                    (char[]){"--model-name"},
                    (char[]){"tiny"},
                    (char[]){"--transport"},
                    (char[]){"tcp"},
                    (char[]){"--kv-memory"},
                    (char[]){"4M"},
                    (char[]){"--block-tokens"},
                    (char[]){"16"},
                    (char[]){"--sequences"},
                    (char[]){"4"},
                    (char[]){"--queue"},
                    (char[]){"8"},
                    (char[]){"--log-level"},
                    (char[]){"error"},
                    NULL};
    (void)snprintf(id, sizeof id, "%s", d->name);
    d->rc = wrk_main((int)(sizeof argv / sizeof argv[0]) - 1, argv, d->role, roles, 2);
    d->over = true;
}

static void daemon_start(struct daemon *d)
{
    (void)snprintf(d->url, sizeof d->url, "%s", rig_control_url(router));
    d->over = false;
    d->rc = -1;
    assert_int_equal(kvs_thread_start(d->thread_name, run_daemon, d, &d->thread), KVS_OK);
}

static bool is_over(void *arg)
{
    return ((struct daemon *)arg)->over;
}

/* Drains it: it ends by itself. A worker that has just lost its stream hears of it when it is back. */
static void daemon_stop(struct daemon *d)
{
    char path[96];
    (void)snprintf(path, sizeof path, "/kvasir/drain/%s", d->name);
    for (int i = 0; i < 100 && !d->over; i++) {
        struct rig_got g;
        rig_ask(router, "POST", path, NULL, &g);
        kvs_buf_fini(&g.body);
        (void)rig_wait(is_over, d, 300);
    }
    assert_true(d->over);
    kvs_thread_join(d->thread);
}

static bool page_has(const char *path, const char *text)
{
    struct rig_got g;
    rig_ask(router, "GET", path, NULL, &g);
    bool yes = g.status == 200 && strstr(kvs_buf_text(&g.body), text) != NULL;
    kvs_buf_fini(&g.body);
    return yes;
}

static bool linked(void *arg)
{
    (void)arg;
    return page_has("/health/ready", "prefill and decode workers are linked");
}

/* Nor does anybody tell of a link to the other one: the decode worker has forgotten it, too. */
static bool alone(void *arg)
{
    (void)arg;
    return page_has("/health/ready", "decode workers only") && !page_has("/kvasir/status", "prefill-0");
}

/* Prompts of different salts share nothing: each is computed and shipped anew. */
static void generate(uint32_t salt, struct rig_got *g)
{
    char body[512];
    (void)snprintf(body, sizeof body,
                   "{\"model\":\"tiny\",\"prompt\":[" PROMPT_IDS "],\"max_tokens\":4,\"temperature\":0,\"return_token_ids\":true,\"ignore_eos\":true,"
                   "\"cache_salt\":\"s%u\",\"kvasir\":{\"placement\":\"remote\"}}",
                   salt);
    rig_ask(router, "POST", "/v1/completions", body, g);
}

static int64_t tokens_of(const struct rig_got *g)
{
    json_error_t e;
    json_t *o = json_loadb(kvs_buf_text(&g->body), g->body.len, 0, &e);
    json_t *ids = json_object_get(json_array_get(json_object_get(o, "choices"), 0), "token_ids");
    int64_t sum = 0;
    assert_int_equal(json_array_size(ids), 4);
    for (size_t i = 0; i < 4; i++)
        sum = sum * 1000 + json_integer_value(json_array_get(ids, i));
    json_decref(o);
    return sum;
}

static uint32_t salts;

static bool was_remote(const struct rig_got *g)
{
    return strstr(g->head, "mode=remote") != NULL;
}

/* Served again, and the way it was before: streams and links that were given up come back. */
static void check_served(int64_t want, int64_t n)
{
    for (int i = 0; i < 1000; i++) {
        struct rig_got g;
        generate(++salts, &g);
        bool good = g.status == 200 && was_remote(&g);
        if (g.status == 200)
            assert_int_equal(tokens_of(&g), want);
        kvs_buf_fini(&g.body);
        if (good)
            return;
        kvs_sleep_us(10000);
    }
    fail_msg("%s: nothing is served after allocation %lld failed", victim, (long long)n);
}

/* All workers report: nothing is held, nothing fenced. */
static bool pages_are_back(void *arg)
{
    struct rig_got g;
    json_error_t e;
    size_t i, k, groups = 0;
    json_t *w, *p;
    bool back = true;
    (void)arg;
    rig_ask(router, "GET", "/kvasir/status", NULL, &g);
    json_t *o = json_loadb(kvs_buf_text(&g.body), g.body.len, 0, &e);
    json_array_foreach(json_object_get(o, "workers"), i, w)
        json_array_foreach(json_object_get(w, "pages"), k, p) {
            int64_t held = json_integer_value(json_object_get(p, "held")) + json_integer_value(json_object_get(p, "fenced"));
            int64_t rest = json_integer_value(json_object_get(p, "free")) + json_integer_value(json_object_get(p, "cached"));
            assert_int_equal(held + rest, json_integer_value(json_object_get(p, "total")));
            back &= held == 0;
            groups++;
        }
    json_decref(o);
    kvs_buf_fini(&g.body);
    return back && groups >= 2;
}

static void fail_each(const char *who, int64_t want)
{
    uint32_t ok = 0, told = 0, failures = 0;
    int64_t n = 0;
    (void)snprintf(victim, sizeof victim, "%s", who);
    for (bool more = true, reached; more && n < 400; n += n < STEP_AFTER ? 1 : 1 + n / 8) {
        struct rig_got g;
        check_served(want, n);
        tst_nomem_arm(n);
        generate(++salts, &g);
        reached = tst_nomem_disarm();
        if (g.status == 200)
            assert_int_equal(tokens_of(&g), want);
        else if (g.status != 0 && (g.status < 429 || strstr(kvs_buf_text(&g.body), "\"message\":\"") == NULL))
            fail_msg("%s, allocation %lld: status %d, %s", who, (long long)n, g.status, kvs_buf_text(&g.body));
        more = reached || !was_remote(&g);
        failures += reached;
        ok += reached && g.status == 200;
        told += reached && g.status != 200;
        kvs_buf_fini(&g.body);
    }
    check_served(want, n);
    print_message("%s: up to allocation %lld; %u went on, %u errors\n", who, (long long)n, ok, told);
    assert_true(failures >= 12);
    assert_true(rig_wait(linked, NULL, 20000));
    assert_true(rig_wait(pages_are_back, NULL, 20000));
}

static struct daemon prefill = {.thread_name = "w-prefill", .name = "prefill-0", .role = MSG_ROLE_PREFILL};
static struct daemon decode = {.thread_name = "w-decode", .name = "decode-0", .role = MSG_ROLE_DECODE};

static void test_requests(void **state)
{
    struct rig_got g;
    (void)state;
    daemon_start(&prefill);
    daemon_start(&decode);
    assert_true(rig_wait(linked, NULL, 20000));
    generate(++salts, &g);
    assert_int_equal(g.status, 200);
    int64_t want = tokens_of(&g);
    kvs_buf_fini(&g.body);
    fail_each("w-decode", want);
    fail_each("w-prefill", want);
    assert_true(page_has("/metrics", "kvasir_router_placements_total{mode=\"remote\"}"));
    daemon_stop(&decode);
    daemon_stop(&prefill);
}

static bool parted(void *arg)
{
    return !linked(arg);
}

static bool over_or_linked(void *arg)
{
    return is_over(arg) || linked(NULL);
}

/* From its configuration to its link with the other one: it ends with 1, or it is there. */
static void test_start(void **state)
{
    uint32_t ended = 0, joined = 0;
    int64_t n = 0, seen = 0;
    (void)state;
    (void)snprintf(victim, sizeof victim, "%s", decode.thread_name);
    daemon_start(&prefill);
    for (bool reached = true; reached && n < 4000; n += n < STEP_AFTER ? 1 : 1 + n / 5) {
        assert_true(rig_wait(parted, NULL, 20000)); /* the page no longer speaks of the one before */
        tst_nomem_arm(n);
        daemon_start(&decode);
        if (!rig_wait(over_or_linked, &decode, 20000))
            fail_msg("a worker is not linked and has not ended after allocation %lld failed", (long long)n);
        reached = tst_nomem_disarm();
        seen = tst_nomem_seen();
        if (decode.over) {
            assert_true(reached);
            assert_int_not_equal(decode.rc, 0);
            kvs_thread_join(decode.thread);
            ended++;
            continue;
        }
        joined++;
        daemon_stop(&decode);
        assert_int_equal(decode.rc, 0);
    }
    daemon_stop(&prefill);
    print_message("start: %lld allocations; %u times ended, %u times joined\n", (long long)seen, ended, joined);
    assert_true(ended > 20 && joined > 1);
}

/* Another worker comes: its card, the dial, the exchange of addresses. It is linked in the end, at the latest by another try. */
static void test_link(void **state)
{
    uint32_t failures = 0, misses = 0;
    int64_t n = 0;
    (void)state;
    (void)snprintf(victim, sizeof victim, "%s", decode.thread_name);
    daemon_start(&decode);
    for (bool reached; misses < 3 && n < 60; n += !reached ? 0 : n < 6 ? 1 : 5) { /* what comes late in a link may come after the page says so */
        assert_true(rig_wait(alone, NULL, 20000));
        tst_nomem_arm(n);
        daemon_start(&prefill);
        if (!rig_wait(linked, NULL, 20000))
            fail_msg("no link after allocation %lld failed", (long long)n);
        reached = tst_nomem_disarm();
        failures += reached;
        misses = reached ? 0 : misses + 1;
        daemon_stop(&prefill);
    }
    daemon_stop(&decode);
    print_message("link: up to allocation %lld\n", (long long)n);
    assert_true(failures > 7);
}

static int start(void **state)
{
    (void)state;
    router = rig_router_start(NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rig_router_stop(router);
    return 0;
}

int main(int argc, char **argv)
{
    struct tst_llama_options o = {.layers = 2, .width = 64, .heads = 8, .kv_heads = 4, .ff = 96, .context = 128, .seed = 3};
    size_t size;
    char dir[] = "/tmp/kvasir-nomem-XXXXXX";
    kvt_prepare_process(argc, argv); /* UCX reads its settings when it is loaded */
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (mkdtemp(dir) == NULL)
        return 1;
    (void)snprintf(model_file, sizeof model_file, "%s/tiny.gguf", dir);
    uint8_t *bytes = tst_llama_make(&o, &size);
    FILE *f = fopen(model_file, "wb");
    bool ok = f != NULL && fwrite(bytes, 1, size, f) == size;
    ok = f != NULL && fclose(f) == 0 && ok;
    free(bytes);
    tst_nomem_where(is_victim);
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_requests, start, stop),
                                       cmocka_unit_test_setup_teardown(test_link, start, stop),
                                       cmocka_unit_test_setup_teardown(test_start, start, stop)};
    int failed = ok ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    (void)unlink(model_file);
    (void)rmdir(dir);
    return failed;
}
