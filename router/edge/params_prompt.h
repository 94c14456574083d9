/* params_prompt.h - the fields with a shape of their own: messages (with tools and chat_template_kwargs) and prompt. Private to params.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_PARAMS_PROMPT_H
#define KVS_ROUTER_EDGE_PARAMS_PROMPT_H

#include "router/edge/params.h"

#include <jansson.h>

KVS_MUST_CHECK kvs_status rtr_params_chat(json_t *body, struct rtr_params *p, struct rtr_fault *f);
KVS_MUST_CHECK kvs_status rtr_params_prompt(json_t *body, struct rtr_params *p, struct rtr_fault *f);

#endif
