/* template.h - chat messages to prompt text, by the model's own chat template.
 * Known templates are recognised by the SHA-256 of their text; for others and for none, mdl_template_render fails with
 * KVS_REQ_INVALID and the cause. Immutable after create; any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_TEMPLATE_H
#define KVS_MODEL_TEMPLATE_H

#include "base/buf.h"
#include "model/gguf.h"

struct mdl_template;

struct mdl_message {
    struct mdl_str role, content; /* UTF-8 */
};

KVS_MUST_CHECK kvs_status mdl_template_create(const struct mdl_gguf *g, struct mdl_template **out, struct kvs_error *err);
void mdl_template_destroy(struct mdl_template *t);
bool mdl_template_ready(const struct mdl_template *t, char *why_out, size_t why_cap); /* false: why chat cannot work */
KVS_MUST_CHECK kvs_status mdl_template_render(const struct mdl_template *t, const struct mdl_message *messages, size_t count,
                                              bool add_generation_prompt, struct kvs_buf *out, struct kvs_error *err);

#endif
