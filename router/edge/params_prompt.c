/* params_prompt.c - reads `messages` (chat) and `prompt` (completions: text, ids, or an array that holds one of these).
 * Texts are borrowed from the parsed body; only contents that come in several text parts are put together in memory of their own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/params_prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const roles[] = {"system", "developer", "user", "assistant"};

static kvs_status read_role(json_t *m, size_t i, struct mdl_message *out, struct rtr_fault *f)
{
    char param[64];
    snprintf(param, sizeof(param), "messages[%zu].role", i);
    json_t *r = json_object_get(m, "role");
    if (!json_is_string(r))
        return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be a string: system, user or assistant", param);
    for (size_t k = 0; k < sizeof(roles) / sizeof(*roles); k++) {
        if (strcmp(json_string_value(r), roles[k]) != 0)
            continue;
        const char *name = k == 1 ? "system" : roles[k]; /* OpenAI's newer word for the same */
        out->role = (struct mdl_str){name, strlen(name)};
        return KVS_OK;
    }
    return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be one of system, developer, user, assistant; got '%.40s'", param,
                    json_string_value(r));
}

/* [{"type":"text","text":...}, ...] */
static kvs_status join_parts(json_t *parts, const char *param, char **joined, struct mdl_message *out, struct rtr_fault *f)
{
    size_t total = 0, i;
    json_t *part;
    json_array_foreach(parts, i, part) {
        json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        if (!json_is_object(part) || !json_is_string(type))
            return rtr_fail(f, KVS_REQ_INVALID, param, "'%s': each part must be an object with a type", param);
        if (strcmp(json_string_value(type), "text") != 0)
            return rtr_fail(f, KVS_REQ_UNSUPPORTED, param, "'%s': only parts of type text are supported, not '%.40s'", param,
                            json_string_value(type));
        if (!json_is_string(text))
            return rtr_fail(f, KVS_REQ_INVALID, param, "'%s': a text part must have a string 'text'", param);
        total += json_string_length(text);
    }
    char *all = malloc(total + 1);
    if (!all)
        return rtr_fail(f, KVS_SELF_NOMEM, NULL, "out of memory");
    size_t at = 0;
    json_array_foreach(parts, i, part) {
        json_t *text = json_object_get(part, "text");
        memcpy(all + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    all[at] = 0;
    *joined = all;
    out->content = (struct mdl_str){all, at};
    return KVS_OK;
}

static kvs_status read_content(json_t *m, size_t i, char **joined, struct mdl_message *out, struct rtr_fault *f)
{
    char param[64];
    snprintf(param, sizeof(param), "messages[%zu].content", i);
    json_t *c = json_object_get(m, "content");
    if (json_is_array(c) && json_array_size(c) > 0)
        return join_parts(c, param, joined, out, f);
    if (!json_is_string(c))
        return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be a string or an array of text parts", param);
    out->content = (struct mdl_str){json_string_value(c), json_string_length(c)};
    return KVS_OK;
}

kvs_status rtr_params_messages(json_t *body, struct rtr_params *p, struct rtr_fault *f)
{
    json_t *list = json_object_get(body, "messages"), *m;
    if (!json_is_array(list))
        return rtr_fail(f, KVS_REQ_INVALID, "messages", "'messages' is required and must be an array of messages");
    size_t n = json_array_size(list), i;
    if (n == 0 || n > RTR_MESSAGES_MAX)
        return rtr_fail(f, KVS_REQ_INVALID, "messages", "'messages' must hold 1 to %d messages, not %zu", RTR_MESSAGES_MAX, n);
    p->messages = calloc(n, sizeof(*p->messages));
    p->joined = calloc(n, sizeof(*p->joined));
    if (!p->messages || !p->joined)
        return rtr_fail(f, KVS_SELF_NOMEM, NULL, "out of memory");
    p->message_count = n;
    json_array_foreach(list, i, m) {
        char param[64];
        snprintf(param, sizeof(param), "messages[%zu]", i);
        if (!json_is_object(m))
            return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be an object with role and content", param);
        kvs_status s = read_role(m, i, &p->messages[i], f);
        if (s == KVS_OK)
            s = read_content(m, i, &p->joined[i], &p->messages[i], f);
        if (s != KVS_OK)
            return s;
    }
    return KVS_OK;
}

static kvs_status read_ids(json_t *list, struct rtr_params *p, struct rtr_fault *f)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return rtr_fail(f, KVS_REQ_INVALID, "prompt", "'prompt': element %zu is not a token id", i);
        if (p->ids.count >= MSG_TOKENS_MAX)
            return rtr_fail(f, KVS_REQ_TOO_LONG, "prompt", "'prompt' has %zu tokens; no model here takes more than %d", json_array_size(list),
                            MSG_TOKENS_MAX);
        if (mdl_ids_push(&p->ids, (int32_t)json_integer_value(v)) != KVS_OK)
            return rtr_fail(f, KVS_SELF_NOMEM, NULL, "out of memory");
    }
    return KVS_OK;
}

kvs_status rtr_params_prompt(json_t *body, struct rtr_params *p, struct rtr_fault *f)
{
    json_t *v = json_object_get(body, "prompt");
    if (json_is_array(v) && (json_is_string(json_array_get(v, 0)) || json_is_array(json_array_get(v, 0)))) {
        if (json_array_size(v) != 1)
            return rtr_fail(f, KVS_REQ_UNSUPPORTED, "prompt", "'prompt' may hold one prompt, not %zu; send one request for each",
                            json_array_size(v));
        v = json_array_get(v, 0);
    }
    if (json_is_string(v)) {
        p->text = json_string_value(v);
        p->text_len = json_string_length(v);
        return KVS_OK;
    }
    if (!json_is_array(v))
        return rtr_fail(f, KVS_REQ_INVALID, "prompt", "'prompt' is required: a string, or an array of token ids");
    if (json_array_size(v) == 0)
        return rtr_fail(f, KVS_REQ_INVALID, "prompt", "'prompt' is an empty array");
    return read_ids(v, p, f);
}
