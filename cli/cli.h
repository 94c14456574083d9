/* cli.h - what the commands of `kvasir` share: how one is called, how flags are read, how failures are said.
 * A command gets its own arguments (argv[0] is its name) and returns the exit code: 0, 1 (it failed), 2 (wrong flags).
 * Every failure is one line on stderr, "kvasir: error: CAUSE; REMEDY"; results go to stdout.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_CLI_H
#define KVS_CLI_CLI_H

#include "base/buf.h"
#include "base/error.h"
#include "sys/config.h"

#define CLI_EXIT_FAILED 1
#define CLI_EXIT_USAGE 2
#define CLI_PATH_MAX 1024
#define CLI_IDS_TEXT_MAX (1u << 20) /* "1,2,3": as long as any context that fits a command line */

struct cli_command {
    const char *name;
    const char *summary; /* one line of `kvasir --help` */
    int (*run)(int argc, char **argv);
};

int cli_up(int argc, char **argv);
int cli_generate(int argc, char **argv);
int cli_score(int argc, char **argv);
int cli_chat(int argc, char **argv);
int cli_status(int argc, char **argv);
int cli_drain(int argc, char **argv);
int cli_role(int argc, char **argv);
int cli_cache(int argc, char **argv);
int cli_quantize(int argc, char **argv);
int cli_model(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_worker(int argc, char **argv);
int cli_sim(int argc, char **argv);

/* A short flag and the long one it stands for: {"-n", "--tokens"}. The list ends with {NULL, NULL}. */
struct cli_alias {
    const char *brief, *flag;
};
struct cli_usage {
    const char *text;                /* first lines of --help */
    const struct cli_alias *aliases; /* may be NULL; -h is always there */
    uint32_t positionals_max;
};
#define CLI_GO_ON (-1)
/* Reads flags into config. CLI_GO_ON, or the exit code when --help was printed (0) or the flags are wrong (2, said on stderr).
 * *rest_out: index of the first positional argument (= argc when there is none). */
int cli_flags(const struct kvs_config_row *rows, size_t row_count, void *config, int argc, char **argv,
              const struct cli_usage *usage, int *rest_out);

/* Says err on stderr and returns the exit code that suits its status. */
int cli_failed(const struct kvs_error *err);

#endif
