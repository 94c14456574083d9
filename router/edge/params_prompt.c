/* params_prompt.c - reads `messages`, `tools` and `chat_template_kwargs` (chat) and `prompt` (completions: text, ids, or an array
 * that holds one of these).
 * Messages go to the model's template as they came, all their fields, after three changes made in the parsed body: the role
 * developer is system, contents that come in text parts are one string, and a tool call's arguments, which clients send as a string
 * of JSON, are what that string holds (templates write them out again). Tools are shown to the model only when the client says
 * tool_choice "none", since nobody here reads tool calls out of an answer.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/params_prompt.h"

#include "net/json_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};

static kvs_status no_memory(struct rtr_fault *f)
{
    return rtr_fail(f, KVS_SELF_NOMEM, NULL, "out of memory");
}

static kvs_status read_role(json_t *m, size_t i, struct rtr_fault *f)
{
    char param[64];
    snprintf(param, sizeof(param), "messages[%zu].role", i);
    json_t *r = json_object_get(m, "role");
    if (!json_is_string(r))
        return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be a string: system, user, assistant or tool", param);
    for (size_t k = 0; k < sizeof(roles) / sizeof(*roles); k++) {
        if (strcmp(json_string_value(r), roles[k]) != 0)
            continue;
        if (k == 1 && json_string_set(r, "system") != 0) /* OpenAI's newer word for the same */
            return no_memory(f);
        return KVS_OK;
    }
    return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be one of system, developer, user, assistant, tool; got '%.40s'", param,
                    json_string_value(r));
}

/* [{"type":"text","text":...}, ...] becomes one string. */
static kvs_status join_parts(json_t *m, json_t *parts, const char *param, struct rtr_fault *f)
{
    size_t total = 0, at = 0, i;
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
        return no_memory(f);
    json_array_foreach(parts, i, part) {
        json_t *text = json_object_get(part, "text");
        memcpy(all + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    int failed = json_object_set_new(m, "content", json_stringn_nocheck(all, at));
    free(all);
    return failed ? no_memory(f) : KVS_OK;
}

/* Only a message that calls tools may have no content. */
static kvs_status read_content(json_t *m, size_t i, struct rtr_fault *f)
{
    char param[64];
    snprintf(param, sizeof(param), "messages[%zu].content", i);
    json_t *c = json_object_get(m, "content");
    if (json_is_array(c) && json_array_size(c) > 0)
        return join_parts(m, c, param, f);
    if (json_is_string(c) || ((!c || json_is_null(c)) && json_array_size(json_object_get(m, "tool_calls")) > 0))
        return KVS_OK;
    return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be a string or an array of text parts", param);
}

static kvs_status read_tool_calls(json_t *m, size_t i, struct rtr_fault *f)
{
    char param[64];
    json_t *calls = json_object_get(m, "tool_calls"), *call;
    size_t k;
    snprintf(param, sizeof(param), "messages[%zu].tool_calls", i);
    if (!calls || json_is_null(calls))
        return KVS_OK;
    if (!json_is_array(calls))
        return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be an array", param);
    json_array_foreach(calls, k, call) {
        json_t *fn = json_object_get(call, "function"), *args = json_object_get(fn, "arguments");
        if (!json_is_string(json_object_get(fn, "name")))
            return rtr_fail(f, KVS_REQ_INVALID, param, "'%s': each call must have a function with a name", param);
        if (!json_is_string(args))
            continue;
        json_t *o = NULL;
        kvs_status s = KVS_OK;
        if (json_string_length(args) == 0)
            s = (o = json_object()) ? KVS_OK : KVS_SELF_NOMEM;
        else
            s = net_json_load(json_string_value(args), json_string_length(args), 0, NULL, &o);
        if (s == KVS_SELF_NOMEM)
            return no_memory(f);
        if (!json_is_object(o)) {
            json_decref(o);
            return rtr_fail(f, KVS_REQ_INVALID, param, "'%s': a function's arguments must be a JSON object in a string", param);
        }
        if (json_object_set_new(fn, "arguments", o) != 0)
            return no_memory(f);
    }
    return KVS_OK;
}

static kvs_status read_messages(json_t *list, struct rtr_params *p, struct rtr_fault *f)
{
    size_t n = json_array_size(list), i;
    json_t *m;
    if (!json_is_array(list))
        return rtr_fail(f, KVS_REQ_INVALID, "messages", "'messages' is required and must be an array of messages");
    if (n == 0 || n > RTR_MESSAGES_MAX)
        return rtr_fail(f, KVS_REQ_INVALID, "messages", "'messages' must hold 1 to %d messages, not %zu", RTR_MESSAGES_MAX, n);
    json_array_foreach(list, i, m) {
        char param[64];
        snprintf(param, sizeof(param), "messages[%zu]", i);
        if (!json_is_object(m))
            return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be an object with role and content", param);
        kvs_status s = read_role(m, i, f);
        if (s == KVS_OK)
            s = read_content(m, i, f);
        if (s == KVS_OK)
            s = read_tool_calls(m, i, f);
        if (s != KVS_OK)
            return s;
    }
    p->messages = list;
    return KVS_OK;
}

static kvs_status read_tools(json_t *body, struct rtr_params *p, struct rtr_fault *f)
{
    json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice"), *tool;
    size_t i;
    if (!tools || json_is_null(tools) || (json_is_array(tools) && json_array_size(tools) == 0))
        return KVS_OK;
    if (!json_is_string(choice) || strcmp(json_string_value(choice), "none") != 0)
        return rtr_fail(f, KVS_REQ_UNSUPPORTED, "tools",
                        "'tools' needs \"tool_choice\": \"none\": tool calls are not read out of an answer by this server");
    if (!json_is_array(tools))
        return rtr_fail(f, KVS_REQ_INVALID, "tools", "'tools' must be an array of tools");
    json_array_foreach(tools, i, tool)
        if (!json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
            return rtr_fail(f, KVS_REQ_INVALID, "tools", "'tools[%zu]' must be an object with a function that has a name", i);
    p->tools = tools;
    return KVS_OK;
}

kvs_status rtr_params_chat(json_t *body, struct rtr_params *p, struct rtr_fault *f)
{
    json_t *extra = json_object_get(body, "chat_template_kwargs");
    if (extra && !json_is_null(extra) && !json_is_object(extra))
        return rtr_fail(f, KVS_REQ_INVALID, "chat_template_kwargs", "'chat_template_kwargs' must be an object");
    p->extra = json_is_object(extra) ? extra : NULL;
    kvs_status s = read_tools(body, p, f);
    return s == KVS_OK ? read_messages(json_object_get(body, "messages"), p, f) : s;
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
