/* ids.h - "1,2,3" as token ids, checked.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_IDS_H
#define KVS_CLI_IDS_H

#include "cli/cli.h"
#include "model/tokenizer.h"

/* Appends to out. KVS_SELF_CONFIG on anything that is not a comma-separated list of numbers below vocab. */
KVS_MUST_CHECK kvs_status cli_ids_parse(const char *text, uint32_t vocab, struct mdl_ids *out, struct kvs_error *err);

#endif
