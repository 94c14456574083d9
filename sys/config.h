/* config.h - one table per daemon {name, type, default, min, max, help, offset}: file, environment, flags and --help come from it.
 * Names are written "kv.block_tokens" in the file (key = value lines, # comments), KVASIR_KV_BLOCK_TOKENS in the environment
 * and --block-tokens (the row's flag) on the command line. Precedence: flag, environment, file (--config FILE), default.
 * A flag of one letter is written -n. Environment names that no row has are left alone (other programs and Kubernetes set some).
 * Unknown keys, flags and bad values refuse to start with one line that names cause and remedy. Read-only after kvs_config_load.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_CONFIG_H
#define KVS_SYS_CONFIG_H

#include "base/buf.h"

typedef enum kvs_config_type {
    KVS_CFG_STRING, /* char field[n], max = n */
    KVS_CFG_NAME,   /* the same, of what stands in keys and addresses as it is: letters, digits, '-', '_' and '.', the first no '-' */
    KVS_CFG_U32,    /* uint32_t */
    KVS_CFG_U64,    /* uint64_t */
    KVS_CFG_SIZE,   /* uint64_t bytes; "512M", "2G", "64K" */
    KVS_CFG_SECONDS, /* uint64_t microseconds; "30", "0.5" */
    KVS_CFG_F32,    /* float */
    KVS_CFG_BOOL,   /* bool; as a flag it takes no value: --flag, --no-flag */
    KVS_CFG_ENUM,   /* uint32_t index into choices "auto|shm|tcp" */
} kvs_config_type;

struct kvs_config_row {
    const char *name;    /* "kv.block_tokens" */
    const char *flag;    /* "block-tokens"; NULL: no flag */
    kvs_config_type type;
    const char *value;   /* default as text; NULL: zero / empty */
    double min, max;     /* numbers; for KVS_CFG_STRING and KVS_CFG_NAME max is the field's size */
    const char *choices; /* KVS_CFG_ENUM: "a|b|c" */
    const char *help;    /* one line */
    size_t offset;       /* into the daemon's config struct */
};

/* Fills config from defaults, file, environment and argv[1..]; argv[0] is ignored. Flags: --name value or --name=value.
 * rest_out (may be NULL): index of the first positional argument, for the CLI; positionals are an error when it is NULL.
 * Flags may stand after positionals: argv is reordered so that positionals come last, in their order; after -- all are positional.
 * min and max are not looked at when both are 0. --help, -h: prints nothing, sets *help_out (may be NULL: then it is unknown)
 * and returns KVS_OK without looking at file, environment and values. */
KVS_MUST_CHECK kvs_status kvs_config_load(const struct kvs_config_row *rows, size_t row_count, void *config, int argc,
                                          char **argv, int *rest_out, bool *help_out, struct kvs_error *err);
KVS_MUST_CHECK kvs_status kvs_config_help(const struct kvs_config_row *rows, size_t row_count, const char *usage, struct kvs_buf *out);
/* Whole number, then nothing, B, K, M, G or T (KB and KiB are the same: powers of 1024). KVS_SELF_CONFIG otherwise. */
KVS_MUST_CHECK kvs_status kvs_parse_size(const char *text, uint64_t *bytes_out);

#endif
