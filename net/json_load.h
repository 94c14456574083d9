/* json_load.h - reads JSON that comes from outside, also when memory runs out meanwhile.
 * jansson 2.14 by itself does not do that: its scanner goes on without the bytes that it had no memory for, so a text may come out shorter
 * than it is, or an assertion of jansson's ends the process. Here the first allocation that fails ends the reading.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_JSON_LOAD_H
#define KVS_NET_JSON_LOAD_H

#include "base/error.h"

#include <jansson.h>

/* As json_loadb, any thread. KVS_SELF_NOMEM: out of memory, *out and *e say nothing; KVS_REQ_INVALID: no JSON, *e says where. e may be NULL. */
KVS_MUST_CHECK kvs_status net_json_load(const void *text, size_t n, size_t flags, json_error_t *e, json_t **out);

#endif
