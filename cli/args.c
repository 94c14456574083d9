/* args.c - flags of every command through sys/config's tables, with the few short flags that people expect (-n, -m, -h).
 * Short flags are turned into their long form before the table sees them, so that the table stays the only truth.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_failed(const struct kvs_error *err)
{
    fprintf(stderr, "kvasir: error: %s\n", err->text[0] ? err->text : kvs_status_name(err->code));
    return err->code == KVS_SELF_CONFIG ? CLI_EXIT_USAGE : CLI_EXIT_FAILED;
}

static const char *long_form(const struct cli_alias *aliases, const char *arg)
{
    if (!strcmp(arg, "-h"))
        return "--help";
    for (const struct cli_alias *a = aliases; a && a->brief; a++)
        if (!strcmp(arg, a->brief))
            return a->flag;
    return NULL;
}

static int print_help(const struct kvs_config_row *rows, size_t row_count, const struct cli_usage *usage)
{
    struct kvs_buf out;
    kvs_buf_init(&out, 1u << 16);
    int code = CLI_EXIT_FAILED;
    if (kvs_config_help(rows, row_count, usage->text, &out) == KVS_OK) {
        fputs(kvs_buf_text(&out), stdout);
        code = 0;
    }
    kvs_buf_fini(&out);
    return code;
}

int cli_flags(const struct kvs_config_row *rows, size_t row_count, void *config, int argc, char **argv,
              const struct cli_usage *usage, int *rest_out)
{
    char **args = calloc((size_t)argc + 1, sizeof *args);
    if (!args) {
        fputs("kvasir: error: out of memory\n", stderr);
        return CLI_EXIT_FAILED;
    }
    for (int i = 0; i < argc; i++) {
        const char *full = i > 0 ? long_form(usage->aliases, argv[i]) : NULL;
        union {
            const char *in;
            char *out;
        } flag = {.in = full}; /* argv's type has no const; nothing writes to it */
        args[i] = full ? flag.out : argv[i];
    }
    struct kvs_error err = {0};
    bool help = false;
    int rest = argc, code = CLI_GO_ON;
    kvs_status s = kvs_config_load(rows, row_count, config, argc, args, &rest, &help, &err);
    memcpy(argv, args, (size_t)argc * sizeof *args); /* flags first now, positionals at the end */
    if (help) {
        code = print_help(rows, row_count, usage);
    } else if (s != KVS_OK) {
        err.code = KVS_SELF_CONFIG;
        code = cli_failed(&err);
    } else if ((uint32_t)(argc - rest) > usage->positionals_max) {
        (void)kvs_fail(&err, KVS_SELF_CONFIG, "unexpected argument '%.64s'; see kvasir %s --help",
                       argv[rest + (int)usage->positionals_max], argv[0]);
        code = cli_failed(&err);
    }
    free(args);
    *rest_out = rest;
    return code;
}
