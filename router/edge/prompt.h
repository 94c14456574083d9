/* prompt.h - from a parsed body and a model to token ids: template, tokenizer, length check. Runs on the thread that read the body; the model
 * object is immutable.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_PROMPT_H
#define KVS_ROUTER_EDGE_PROMPT_H

#include "router/edge/model.h"
#include "router/edge/params.h"

/* Fills ids_out (owned by the caller, also on failure) and the most tokens the answer may have: max_tokens, cut by the context, and the rest of
 * the context when none was given. A prompt that leaves no room for one token is KVS_REQ_TOO_LONG with both numbers. */
KVS_MUST_CHECK kvs_status rtr_prompt(const struct rtr_model *m, struct rtr_params *p, struct mdl_ids *ids_out, uint32_t *max_tokens_out,
                                     struct rtr_fault *f);

#endif
