/* config_parse.h - private to sys: one value of one row, from text into the config struct.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SYS_CONFIG_PARSE_H
#define KVS_SYS_CONFIG_PARSE_H

#include "sys/config.h"

/* where: what the user wrote and should change ("--block-tokens", "kvasir.conf:3: kv.block_tokens"), for the error line. */
KVS_MUST_CHECK kvs_status kvs_config_assign(const struct kvs_config_row *row, void *config, const char *text,
                                            const char *where, struct kvs_error *err);
/* "1 to 1024", "auto, shm or tcp", ... into out; empty when everything of the type is allowed. */
void kvs_config_range(const struct kvs_config_row *row, char *out, size_t cap);
/* The index of the name nearest to text, for "did you mean"; -1: none is near. */
ptrdiff_t kvs_config_nearest(const char *text, const char *(*name_at)(const void *names, size_t i), const void *names,
                             size_t count);

#endif
