/* process.h - starting other programs: argument vectors only, no shell, no descriptor of ours left open in them, and they end with us.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_PROCESS_H
#define KVS_CLI_PROCESS_H

#include "cli/cli.h"
#include <sys/types.h>

struct cli_spawn {
    const char *const *argv; /* argv[0]: a path, or a name looked up in PATH; NULL-terminated */
    const char *log;         /* stdout and stderr are appended there; NULL: inherited */
    const char *tmpdir;      /* TMPDIR of the child; NULL: inherited */
    bool own_group;          /* a terminal's Ctrl-C reaches only us */
};
/* The child gets SIGKILL when this process dies, whatever kills it. */
KVS_MUST_CHECK kvs_status cli_spawn(const struct cli_spawn *s, pid_t *pid_out, struct kvs_error *err);

/* Runs and waits at most timeout_ms; its standard output (bounded) goes to out, which may be NULL. *code_out: exit code, or 128 + signal.
 * KVS_PEER_TIMEOUT after killing it when the time is up. */
KVS_MUST_CHECK kvs_status cli_run(const char *const *argv, uint32_t timeout_ms, struct kvs_buf *out, int *code_out,
                                  struct kvs_error *err);

/* Path of a program beside this one ("kvasir-router"). */
KVS_MUST_CHECK kvs_status cli_sibling(const char *program, char *out, size_t cap, struct kvs_error *err);
/* Removes a folder and all in it; never follows links. Best effort. */
void cli_remove_tree(const char *path);
/* Makes a folder and its missing parents. */
KVS_MUST_CHECK kvs_status cli_make_dirs(const char *path, struct kvs_error *err);

#endif
