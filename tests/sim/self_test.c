/* self_test.c - the simulator's own promises: a seed replays, seeds differ, scenario files are read strictly, the model is what it says.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sim/oracle.h"
#include "sim/sim.h"
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const busy = "workers prefill 1 decode 2\n"
                                "set kv_double 20\nset kv_late 20\nset doubled 20\nset pages 80\n"
                                "every 10ms request prompt 1..120 answer 1..30 choices 1..2 leave 50 slow 50 stop 50 from 300ms until 1s\n"
                                "every 200ms kill any from 400ms\n"
                                "every 200ms break any any from 400ms\n"
                                "at 900ms heal\n";

static struct sim_report run(const char *text, uint64_t seed)
{
    static struct sim_scenario scenario;
    struct sim_report out;
    struct kvs_error err = {0};
    char why[512] = "";
    assert_int_equal(sim_scenario_parse(text, &scenario, &err), KVS_OK);
    if (!sim_run(&scenario, seed, false, &out, why, sizeof why))
        fail_msg("seed %llu: %s", (unsigned long long)seed, why);
    return out;
}

static void a_seed_replays(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct sim_report a = run(busy, seed), b = run(busy, seed);
        assert_true(a.trace_hash == b.trace_hash);
        assert_memory_equal(a.n, b.n, sizeof a.n);
        assert_true(a.n[SIM_N_faults] > 0 && a.n[SIM_N_pages] > 0 && a.n[SIM_N_tokens] > 0);
    }
}

static void seeds_differ(void **state)
{
    (void)state;
    assert_true(run(busy, 11).trace_hash != run(busy, 12).trace_hash);
}

static void expectations_bite(void **state)
{
    (void)state;
    static struct sim_scenario scenario;
    struct sim_report out;
    struct kvs_error err = {0};
    char why[512] = "";
    const char *text = "every 20ms request from 300ms until 500ms\nexpect errors > 0\n";
    assert_int_equal(sim_scenario_parse(text, &scenario, &err), KVS_OK);
    assert_false(sim_run(&scenario, 1, false, &out, why, sizeof why));
    assert_non_null(strstr(why, "errors > 0"));
    text = "every 20ms request from 300ms until 500ms\ntotal kills > 0\n";
    assert_int_equal(sim_scenario_parse(text, &scenario, &err), KVS_OK);
    assert_true(sim_run(&scenario, 1, false, &out, why, sizeof why));
    assert_false(sim_totals_met(&scenario, &out, why, sizeof why));
    assert_non_null(strstr(why, "kills > 0"));
}

static void a_scenario_is_read_strictly(void **state)
{
    (void)state;
    static struct sim_scenario scenario;
    static const struct {
        const char *text, *line;
    } bad[] = {{"set nothing 1", "line 1"},
               {"# fine\nset pages", "line 2"},
               {"set pages 1..2", "line 1"},
               {"workers prefill 25 decode 26", "line 1"},
               {"at 5ms explode decode-0", "line 1"},
               {"\n\nevery 0ms heal", "line 3"},
               {"at 1s hang decode-0", "line 1"},
               {"at 1s request prompt 9..3", "line 1"},
               {"at 1s request prompt 3 sideways", "line 1"},
               {"expect errors ! 3", "line 1"},
               {"expect nonsense = 3", "line 1"},
               {"at 5ms heal now", "line 1"},
               {"at 5ms role any baker", "line 1"},
               {"at 5ms etcd sleep", "line 1"},
               {"at 5ms etcd cut any", "line 1"},
               {"workers routers 5", "line 1"},
               {"workers routers 2", "etcd"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvs_error err = {0};
        assert_int_equal(sim_scenario_parse(bad[i].text, &scenario, &err), KVS_REQ_INVALID);
        if (strstr(err.text, bad[i].line) == NULL)
            fail_msg("\"%s\": %s", bad[i].text, err.text);
    }
    struct kvs_error err = {0};
    assert_int_equal(sim_scenario_parse("set pages 7 # seven\nat 3ms kill decode-1\nevery 2s hang any for 1ms..2s from 4us until 9s", &scenario, &err), KVS_OK);
    assert_int_equal(scenario.settings.pages, 7);
    assert_int_equal(scenario.settings.kv_drop, 0);
    assert_int_equal(scenario.command_count, 2);
    assert_int_equal(scenario.command[0].at_us, 3000);
    assert_string_equal(scenario.command[0].who[0], "decode-1");
    assert_int_equal(scenario.command[1].every_us, 2000000);
    assert_int_equal(scenario.command[1].duration.low, 1000);
    assert_int_equal(scenario.command[1].duration.high, 2000000);
    assert_int_equal(scenario.command[1].at_us, 4);
    assert_int_equal(scenario.command[1].until_us, 9000000);
}

/* What is printed between the two. */
struct printed {
    char path[32], text[8192];
    int fd, out;
};

static void print_aside(struct printed *p)
{
    kvs_format(p->path, sizeof p->path, "/tmp/kvasir-story-XXXXXX");
    p->fd = mkstemp(p->path);
    p->out = dup(1);
    assert_true(p->fd >= 0 && p->out >= 0);
    fflush(stdout);
    assert_true(dup2(p->fd, 1) == 1);
}

static void print_again(struct printed *p)
{
    fflush(stdout);
    assert_true(dup2(p->out, 1) == 1);
    close(p->out);
    ssize_t n = pread(p->fd, p->text, sizeof p->text - 1, 0);
    close(p->fd);
    unlink(p->path);
    assert_true(n > 0);
    p->text[n] = '\0';
}

/* What a run was to show and has not: the story of the request that it was seen at. */
static void an_unmet_expectation_tells_a_story(void **state)
{
    (void)state;
    static struct sim_scenario scenario;
    static struct printed p;
    struct sim_report out;
    char why[512] = "";
    const char *text = "workers prefill 1 decode 1\nset restart_us 0\nevery 20ms request prompt 20..100 answer 10..60 from 400ms until 1200ms\n"
                       "at 800ms kill decode-0\nat 5s heal\nexpect rejected = 0\nexpect errors = 0\n";
    assert_int_equal(sim_scenario_parse(text, &scenario, NULL), KVS_OK);
    print_aside(&p);
    bool good = sim_run(&scenario, 1, false, &out, why, sizeof why);
    print_again(&p);
    assert_false(good);
    assert_non_null(strstr(why, "but it is"));
    assert_non_null(strstr(p.text, "what concerns request "));
    assert_non_null(strstr(p.text, "is over: busy_no_worker"));
    assert_null(strstr(p.text, "is over: ok"));
}

/* A page or a request is named: its story is told, and nothing of the others'. */
static void a_failure_tells_its_story(void **state)
{
    (void)state;
    struct sim s = {.node_count = 2, .router_count = 1};
    static struct printed p;
    const char *text = p.text;
    kvs_format(s.node[0].id, sizeof s.node[0].id, "router");
    kvs_format(s.node[1].id, sizeof s.node[1].id, "decode-0");
    sim_notes_create(&s);
    s.about.node = SIM_NOBODY;
    sim_note(&s, 0, "place request %r", 7);
    sim_note(&s, 1, "grant %t for request %r: %u pages", 0xabc, 7, 3);
    sim_note(&s, 1, "page %g may be written by transfer %t", SIM_PAGE(2, 5), 0xabc);
    sim_note(&s, 1, "page %g may be written by transfer %t", SIM_PAGE(2, 6), 0xdef);
    sim_note(&s, 0, "place request %r", 8);
    sim_note(&s, 0, "request %r is given to %n", 9, 1);
    sim_note(&s, SIM_NOBODY, "%n is killed", 1);
    print_aside(&p);
    sim_about_page(&s, 1, 2, 5);
    sim_print_story(&s);
    print_again(&p);
    sim_notes_free(&s);
    assert_non_null(strstr(text, "page 5 of group 2 of decode-0"));
    assert_non_null(strstr(text, "grant abc for request 7: 3 pages"));
    assert_non_null(strstr(text, "place request 7"));
    assert_non_null(strstr(text, "decode-0 is killed"));
    assert_null(strstr(text, "def"));
    assert_null(strstr(text, "request 8"));
    assert_null(strstr(text, "request 9")); /* though it names the same worker */
}

/* The expected answer depends on everything that a real one depends on. */
static void the_model_depends_on_all_inputs(void **state)
{
    (void)state;
    int32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8}, a[32], b[32];
    struct msg_sampling s = {.temperature = 0.5f, .top_p = 0.9f, .seed = 7}, t;
    uint32_t n = sim_answer(prompt, 8, 5, &s, 0, 32, true, 97, a);
    assert_int_equal(n, 32);
    assert_int_equal(sim_answer(prompt, 8, 5, &s, 0, 16, true, 97, b), 16);
    assert_memory_equal(a, b, 16 * sizeof *a); /* a longer answer goes on where a shorter one ends */
    sim_answer(prompt, 8, 5, &s, 1, 32, true, 97, b);
    assert_memory_not_equal(a, b, sizeof a);
    t = s;
    t.seed = 8;
    sim_answer(prompt, 8, 5, &t, 0, 32, true, 97, b);
    assert_memory_not_equal(a, b, sizeof a);
    t = s;
    t.min_p = 0.1f;
    sim_answer(prompt, 8, 5, &t, 0, 32, true, 97, b);
    assert_memory_not_equal(a, b, sizeof a);
    prompt[0] = 9;
    sim_answer(prompt, 8, 5, &s, 0, 32, true, 97, b);
    assert_memory_not_equal(a, b, sizeof a);
    /* An answer resumed in the middle is the same: prompt and what was emitted make up the history. */
    int32_t longer[24];
    prompt[0] = 1;
    memcpy(longer, prompt, sizeof prompt);
    memcpy(longer + 8, a, 16 * sizeof *a);
    sim_answer(longer, 24, 5, &s, 0, 16, true, 97, b);
    assert_memory_equal(a + 16, b, 16 * sizeof *a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_replays),
        cmocka_unit_test(seeds_differ),
        cmocka_unit_test(expectations_bite),
        cmocka_unit_test(a_scenario_is_read_strictly),
        cmocka_unit_test(a_failure_tells_its_story),
        cmocka_unit_test(an_unmet_expectation_tells_a_story),
        cmocka_unit_test(the_model_depends_on_all_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
