/* sim.c - `kvasir sim`: the whole cluster in virtual time, from a scenario and a seed (sim/README.md).
 * Exit codes are the other commands': 0, 1 (a promise was broken; trace, cause and replay line are on stdout), 2 (wrong flags or file).
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "sim/drive.h"

#include <stddef.h>

struct sim_config {
    char scenario[CLI_PATH_MAX];
    uint64_t seed, seeds;
    bool trace, quiet;
};
#define ROW(field) offsetof(struct sim_config, field)
static const struct kvs_config_row rows[] = {
    {"sim.scenario", "scenario", KVS_CFG_STRING, "", 0, CLI_PATH_MAX, NULL, "what happens: workers, requests, faults (see sim/scenarios)", ROW(scenario)},
    {"sim.seed", "seed", KVS_CFG_U64, "1", 0, 0, NULL, "the first seed; scenario and seed together determine the run", ROW(seed)},
    {"sim.seeds", "seeds", KVS_CFG_U64, "1", 1, 1e9, NULL, "how many seeds, one after the other", ROW(seeds)},
    {"sim.trace", "trace", KVS_CFG_BOOL, "false", 0, 0, NULL, "print every event", ROW(trace)},
    {"sim.quiet", "quiet", KVS_CFG_BOOL, "false", 0, 0, NULL, "print nothing unless a promise is broken", ROW(quiet)},
};

int cli_sim(int argc, char **argv)
{
    struct sim_config c = {0};
    struct kvs_error err = {0};
    static const struct cli_usage usage = {.text = "usage: kvasir sim --scenario FILE [--seed N] [--seeds COUNT] [--trace] [--quiet]"};
    int rest, code = cli_flags(rows, sizeof rows / sizeof rows[0], &c, argc, argv, &usage, &rest);
    if (code != CLI_GO_ON)
        return code;
    if (c.scenario[0] == '\0') {
        (void)kvs_fail(&err, KVS_SELF_CONFIG, "--scenario is missing: a file as those in sim/scenarios");
        return cli_failed(&err);
    }
    struct sim_drive d = {.program = "kvasir sim", .scenario = c.scenario, .seed = c.seed, .seeds = c.seeds, .trace = c.trace, .quiet = c.quiet};
    code = sim_drive(&d, &err);
    return code == SIM_DRIVE_USAGE ? cli_failed(&err) : code;
}
