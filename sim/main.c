/* main.c - kvasir-sim: plays a scenario once for each of a range of seeds and says what happened.
 *
 *   kvasir-sim --scenario FILE [--seed N] [--seeds COUNT] [--trace] [--quiet]
 *
 * Exit status 0: every run kept every promise and met its expectations. 1: one did not (its last notes, the cause, and the command that
 * replays it are printed). 2: the scenario or the command line is not understood.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/sim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCENARIO_BYTES_MAX 65536

static const char *scenario_path;

static void replay(uint64_t seed)
{
    printf("replay: kvasir-sim --scenario %s --seed %llu --trace\n", scenario_path, (unsigned long long)seed);
    fflush(stdout);
}

/* An assertion of a core: what led to it is more useful than a core file. This is a test program: stdio in a handler is accepted. */
static void on_abort(int sig)
{
    (void)signal(sig, SIG_DFL);
    sim_print_current();
    printf("FAILED seed %llu: %s\n", (unsigned long long)sim_current_seed(), sig == SIGABRT ? "an assertion failed" : "a fault of the process");
    replay(sim_current_seed());
    (void)raise(sig);
}

static bool number(const char *text, uint64_t *out)
{
    char *end;
    *out = strtoull(text, &end, 0);
    return text[0] != '\0' && *end == '\0';
}

static int usage(const char *what)
{
    fprintf(stderr, "kvasir-sim: %s\nusage: kvasir-sim --scenario FILE [--seed N] [--seeds COUNT] [--trace] [--quiet]\n", what);
    return 2;
}

static bool load(const char *path, struct sim_scenario *out)
{
    static char text[SCENARIO_BYTES_MAX];
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fprintf(stderr, "kvasir-sim: %s cannot be opened\n", path);
        return false;
    }
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    struct kvs_error err = {0};
    if (sim_scenario_parse(text, out, &err) == KVS_OK)
        return true;
    fprintf(stderr, "kvasir-sim: %s: %s\n", path, err.text);
    return false;
}

static void print_report(const struct sim_report *r, uint64_t runs)
{
    printf("%llu runs:", (unsigned long long)runs);
    for (uint32_t i = 0; i < SIM_COUNTER_COUNT; i++)
        if (r->n[i] != 0)
            printf(" %s=%llu", sim_counter_name(i), (unsigned long long)r->n[i]);
    printf(" hash=%016llx\n", (unsigned long long)r->trace_hash);
}

static int run_all(const struct sim_scenario *s, uint64_t seed, uint64_t seeds, bool trace, bool quiet)
{
    static struct sim_report sum;
    char why[512] = "";
    for (uint64_t i = 0; i < seeds; i++) {
        struct sim_report one;
        if (!sim_run(s, seed + i, trace, &one, why, sizeof why)) {
            printf("FAILED seed %llu: %s\n", (unsigned long long)(seed + i), why);
            replay(seed + i);
            return 1;
        }
        if (one.n[SIM_N_pages] == 0) {
            printf("FAILED seed %llu: no page was moved, so this run proves nothing about transfers\n", (unsigned long long)(seed + i));
            replay(seed + i);
            return 1;
        }
        sim_report_add(&sum, &one);
    }
    if (!quiet)
        print_report(&sum, seeds);
    if (sim_totals_met(s, &sum, why, sizeof why))
        return 0;
    printf("FAILED over all runs: %s\n", why);
    return 1;
}

int main(int argc, char **argv)
{
    static struct sim_scenario scenario;
    uint64_t seed = 1, seeds = 1;
    bool trace = false, quiet = false;
    for (int i = 1; i < argc; i++) {
        bool value = i + 1 < argc;
        if (strcmp(argv[i], "--scenario") == 0 && value)
            scenario_path = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0 && value && number(argv[i + 1], &seed))
            i++;
        else if (strcmp(argv[i], "--seeds") == 0 && value && number(argv[i + 1], &seeds))
            i++;
        else if (strcmp(argv[i], "--trace") == 0)
            trace = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            quiet = true;
        else
            return usage("an argument is not understood");
    }
    if (scenario_path == NULL)
        return usage("--scenario is missing");
    if (!load(scenario_path, &scenario))
        return 2;
    (void)signal(SIGABRT, on_abort);
    (void)signal(SIGSEGV, on_abort);
    return run_all(&scenario, seed, seeds, trace, quiet);
}
