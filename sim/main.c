/* main.c - kvasir-sim: the simulator as a program of its own, for tests and mutants; `kvasir sim` is the same for everybody else.
 *
 *   kvasir-sim --scenario FILE [--seed N] [--seeds COUNT] [--trace] [--quiet]
 *
 * Exit status 0: every run kept every promise and met its expectations. 1: one did not. 2: the scenario or the command line is not
 * understood.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/drive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool number(const char *text, uint64_t *out)
{
    char *end;
    *out = strtoull(text, &end, 0);
    return text[0] != '\0' && *end == '\0';
}

static int usage(const char *what)
{
    fprintf(stderr, "kvasir-sim: %s\nusage: kvasir-sim --scenario FILE [--seed N] [--seeds COUNT] [--trace] [--quiet]\n", what);
    return SIM_DRIVE_USAGE;
}

int main(int argc, char **argv)
{
    struct sim_drive d = {.program = "kvasir-sim", .seed = 1, .seeds = 1};
    struct kvs_error err = {0};
    for (int i = 1; i < argc; i++) {
        bool value = i + 1 < argc;
        if (strcmp(argv[i], "--scenario") == 0 && value)
            d.scenario = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0 && value && number(argv[i + 1], &d.seed))
            i++;
        else if (strcmp(argv[i], "--seeds") == 0 && value && number(argv[i + 1], &d.seeds))
            i++;
        else if (strcmp(argv[i], "--trace") == 0)
            d.trace = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            d.quiet = true;
        else
            return usage("an argument is not understood");
    }
    if (d.scenario == NULL)
        return usage("--scenario is missing");
    int code = sim_drive(&d, &err);
    if (code == SIM_DRIVE_USAGE)
        fprintf(stderr, "kvasir-sim: %s\n", err.text);
    return code;
}
