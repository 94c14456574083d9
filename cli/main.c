/* main.c - the program `kvasir`: finds the command and hands over.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct cli_command commands[] = {
    {"up", "start a whole cluster on this machine", cli_up},
    {"chat", "talk to a running cluster in the terminal", cli_chat},
    {"status", "workers, caches, speeds, links and the last placements of a running cluster", cli_status},
    {"drain", "let a worker finish or hand over what it has, and end", cli_drain},
    {"role", "make a running worker a prefill worker, a decode worker or both", cli_role},
    {"cache", "let workers forget what they have cached (flush)", cli_cache},
    {"generate", "the engine alone: continue a prompt in this process", cli_generate},
    {"score", "the engine alone: how likely a given text is", cli_score},
    {"quantize", "make a smaller model file from one in F32, F16 or BF16", cli_quantize},
    {"model", "fetch the sample model (pull), list models (list), look into a file (info)", cli_model},
    {"worker", "one worker process with both roles, prefill and decode", cli_worker},
    {"sim", "the whole cluster in virtual time: a scenario of faults, a seed, every promise checked", cli_sim},
    {"doctor", "check this machine and say what to do about each finding", cli_doctor},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_usage(FILE *out)
{
    fputs("kvasir - large language models from a cluster that separates prefill from decode\n\nusage: kvasir COMMAND "
          "[FLAGS]\n\n",
          out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\nkvasir COMMAND --help lists a command's flags; kvasir --version says which build this is.\n", out);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return CLI_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_usage(stdout);
        return 0;
    }
    if (!strcmp(name, "--version") || !strcmp(name, "version")) {
        puts("kvasir " KVASIR_VERSION);
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(name, commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    struct kvs_error err;
    (void)kvs_fail(&err, KVS_SELF_CONFIG, "there is no command '%.40s'; kvasir --help lists them", name);
    return cli_failed(&err);
}
