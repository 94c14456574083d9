/* up_plan.h - what `kvasir up` starts: from its flags to one argument vector a daemon. Pure: no files, no processes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_UP_PLAN_H
#define KVS_CLI_UP_PLAN_H

#include "cli/cli.h"

#define CLI_UP_WORKERS_MAX 32u
#define CLI_UP_ARGS_MAX 48u
#define CLI_UP_DAEMONS_MAX (2u + 2u * CLI_UP_WORKERS_MAX)

struct cli_up_config {
    char model[CLI_PATH_MAX], model_name[128], listen[128], run_dir[CLI_PATH_MAX], kv_memory[32], log_level[16],
        control[256], discovery[256], cluster[64], auth_file[CLI_PATH_MAX];
    uint32_t prefill, decode, threads, transport, kv_type, chunk_tokens, block_tokens, group_layers, context, placement,
        local_threshold;
    uint64_t deadline_us;
    bool etcd, no_restart, prefix_cache;
};
extern const struct kvs_config_row cli_up_rows[];
extern const size_t cli_up_row_count;

struct cli_daemon {
    char name[24]; /* "prefill-0": also the names of its pid file, log and socket */
    char program[CLI_PATH_MAX];
    char socket[128]; /* path of its control socket */
    char text[4096];  /* the arguments' bytes */
    size_t text_used;
    const char *argv[CLI_UP_ARGS_MAX + 1];
    uint32_t argc;
};
struct cli_up_plan {
    struct cli_daemon daemon[CLI_UP_DAEMONS_MAX]; /* router first, then workers, then our own etcd if any */
    uint32_t count, workers;
    bool routers_elsewhere; /* on an etcd that was given other routers may serve with these workers */
};

struct cli_up_paths {
    const char *bin_router, *bin_prefill, *bin_decode;
    const char *model;                   /* resolved */
    const char *model_name;              /* decided */
    const char *listen;                  /* HOST:PORT with a real port */
    const char *run_dir;                 /* with config.etcd: where its data goes */
    const char *etcd_client, *etcd_peer; /* with config.etcd: HOST:PORT of our own etcd */
    const char *socket_dir;              /* short enough for a socket's path */
};
/* Longest folder in which the sockets' paths fit sun_path. */
#define CLI_UP_SOCKET_DIR_MAX 80u

/* KVS_SELF_CONFIG when there are no workers, too many, or something does not fit. */
KVS_MUST_CHECK kvs_status cli_up_plan(const struct cli_up_config *c, const struct cli_up_paths *p,
                                      struct cli_up_plan *out, struct kvs_error *err);

#endif
