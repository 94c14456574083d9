/* openai.h - OpenAI's JSON shapes for an answer: chunks of a stream, and the whole. Appends to out.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_OPENAI_H
#define KVS_ROUTER_EDGE_OPENAI_H

#include "router/edge/answer.h"

KVS_MUST_CHECK kvs_status rtr_openai_role(const struct rtr_answer *a, uint32_t choice, struct kvs_buf *out); /* chat: first chunk of a choice */
/* What the choice holds now: text, ids, logits; finish_reason when last. */
KVS_MUST_CHECK kvs_status rtr_openai_chunk(const struct rtr_answer *a, uint32_t choice, bool last, struct kvs_buf *out);
KVS_MUST_CHECK kvs_status rtr_openai_usage(const struct rtr_answer *a, struct kvs_buf *out);
KVS_MUST_CHECK kvs_status rtr_openai_whole(const struct rtr_answer *a, struct kvs_buf *out);
/* An SSE event that holds an error object. */
KVS_MUST_CHECK kvs_status rtr_openai_error_event(const struct rtr_fault *f, struct kvs_buf *out);

#endif
