/* drive.c - see drive.h: plays a scenario once for each of a range of seeds and says what happened.
 * A run without a moved page fails: it would prove nothing about transfers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/drive.h"

#include "sim/sim.h"
#include "sys/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCENARIO_BYTES_MAX 65536

static const struct sim_drive *drive;
static struct sim_report sum; /* of the runs that are over */

static void replay(uint64_t seed)
{
    printf("replay: %s --scenario %s --seed %llu --trace\n", drive->program, drive->scenario, (unsigned long long)seed);
    fflush(stdout);
}

/* That the failure was found where pages moved and things broke, and not by looking at nothing. */
static void print_seen(const struct sim_report *last)
{
    printf("until then: kv_messages=%llu faults=%llu\n", (unsigned long long)(sum.n[SIM_N_kv_messages] + last->n[SIM_N_kv_messages]),
           (unsigned long long)(sum.n[SIM_N_faults] + last->n[SIM_N_faults]));
}

/* An assertion of a core: what led to it is more useful than a core file. This is a test program: stdio in a handler is accepted. */
static void on_abort(int sig)
{
    (void)signal(sig, SIG_DFL);
    sim_print_current();
    print_seen(sim_current_report());
    printf("FAILED seed %llu: %s\n", (unsigned long long)sim_current_seed(), sig == SIGABRT ? "an assertion failed" : "a fault of the process");
    replay(sim_current_seed());
    (void)raise(sig);
}

static kvs_status load(const char *path, struct sim_scenario *out, struct kvs_error *err)
{
    static char text[SCENARIO_BYTES_MAX];
    struct kvs_error at = {0};
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return kvs_fail(err, KVS_SELF_CONFIG, "%s cannot be opened; --scenario takes a file as those in sim/scenarios", path);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    if (n == sizeof text)
        return kvs_fail(err, KVS_SELF_CONFIG, "%s is longer than a scenario may be (%d bytes)", path, SCENARIO_BYTES_MAX - 1);
    text[n] = '\0';
    if (sim_scenario_parse(text, out, &at) == KVS_OK)
        return KVS_OK;
    return kvs_fail(err, KVS_SELF_CONFIG, "%s: %s", path, at.text);
}

static void print_report(const struct sim_report *r, uint64_t runs, uint64_t wall_us)
{
    printf("%llu runs:", (unsigned long long)runs);
    for (uint32_t i = 0; i < SIM_COUNTER_COUNT; i++)
        if (r->n[i] != 0)
            printf(" %s=%llu", sim_counter_name(i), (unsigned long long)r->n[i]);
    printf(" hash=%016llx\n", (unsigned long long)r->trace_hash);
    printf("%.2f s, %.0f events/s, %.1f times as fast as the clock\n", (double)wall_us * 1e-6, (double)r->n[SIM_N_events] * 1e6 / (double)(wall_us + 1),
           (double)r->n[SIM_N_virtual_ms] * 1e3 / (double)(wall_us + 1));
}

static bool run_one(const struct sim_scenario *s, uint64_t seed, struct sim_report *out)
{
    char why[512] = "";
    if (!sim_run(s, seed, drive->trace, out, why, sizeof why)) {
        print_seen(out);
        printf("FAILED seed %llu: %s\n", (unsigned long long)seed, why);
        replay(seed);
        return false;
    }
    if (out->n[SIM_N_pages] == 0) {
        printf("FAILED seed %llu: no page was moved, so this run proves nothing about transfers\n", (unsigned long long)seed);
        replay(seed);
        return false;
    }
    return true;
}

int sim_drive(const struct sim_drive *d, struct kvs_error *err)
{
    static struct sim_scenario scenario;
    char why[512] = "";
    drive = d;
    memset(&sum, 0, sizeof sum);
    if (load(d->scenario, &scenario, err) != KVS_OK)
        return SIM_DRIVE_USAGE;
    (void)signal(SIGABRT, on_abort);
    (void)signal(SIGSEGV, on_abort);
    uint64_t begun_us = kvs_now_us();
    for (uint64_t i = 0; i < d->seeds; i++) {
        struct sim_report one;
        if (!run_one(&scenario, d->seed + i, &one))
            return SIM_DRIVE_FAILED;
        sim_report_add(&sum, &one);
    }
    if (!d->quiet)
        print_report(&sum, d->seeds, kvs_now_us() - begun_us);
    if (sim_totals_met(&scenario, &sum, why, sizeof why))
        return 0;
    printf("FAILED over all runs: %s\n", why);
    return SIM_DRIVE_FAILED;
}
