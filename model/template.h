/* template.h - chat messages to prompt text, by the model's own chat template.
 * The template is a Jinja program in the model's file; it is interpreted (model/jinja) with what the model hubs give it:
 * messages, tools, documents, add_generation_prompt, bos_token and its kind, raise_exception, strftime_now, tojson. It has
 * bounds on steps, memory, depth, output and, where the caller has a clock, time; one that passes them, and one that finds the messages wrong, is
 * KVS_REQ_INVALID, with the template's own words where it has some; out of time is KVS_REQ_DEADLINE, since the machine may have been busy. No template, or one that does not parse: every render
 * fails with KVS_REQ_INVALID and the cause. Immutable after create; any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_TEMPLATE_H
#define KVS_MODEL_TEMPLATE_H

#include "base/buf.h"
#include "model/gguf.h"

struct mdl_template;
struct json_t; /* jansson's */

struct mdl_message {
    struct mdl_str role, content; /* UTF-8 */
};

/* A chat as clients send it. Borrowed during the call, not changed. Nothing may be nested more than 100 deep. */
struct mdl_chat {
    const struct json_t *messages; /* array of objects: role, content (string, null or parts), tool_calls, name, ... */
    const struct json_t *tools;    /* array, or NULL */
    const struct json_t *extra;    /* object, or NULL: further names for the template (chat_template_kwargs); it may not
                                      hold a name that is given otherwise (KVS_REQ_INVALID) */
    bool add_generation_prompt;
    int64_t now_s; /* for strftime_now; seconds since 1970, UTC */
    bool (*expired)(void *user); /* NULL: only steps are bounded. Asked every 50,000 steps; true ends it (KVS_REQ_DEADLINE) */
    void *expired_user;
};

KVS_MUST_CHECK kvs_status mdl_template_create(const struct mdl_gguf *g, struct mdl_template **out, struct kvs_error *err);
void mdl_template_destroy(struct mdl_template *t);
bool mdl_template_ready(const struct mdl_template *t, char *why_out, size_t why_cap); /* false: why chat cannot work */
/* Appends to out; on failure out is as it was. out->max is the bound on the text: KVS_REQ_TOO_LONG. */
KVS_MUST_CHECK kvs_status mdl_template_render(const struct mdl_template *t, const struct mdl_message *messages, size_t count,
                                              bool add_generation_prompt, struct kvs_buf *out, struct kvs_error *err);
KVS_MUST_CHECK kvs_status mdl_template_render_chat(const struct mdl_template *t, const struct mdl_chat *chat, struct kvs_buf *out,
                                                   struct kvs_error *err);

#endif
