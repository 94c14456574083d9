/* template.c - chat messages to prompt text.
 *
 * Parses the model's template once and runs it for each request. What a request brings becomes values in the run's arena;
 * strings are borrowed from the request. The names that a template finds are those of the model hubs' own renderer, so that
 * the same template with the same messages gives the same bytes (the tests hold text made by it).
 *
 * Roles and contents go in as they are: whoever tokenizes the result with special tokens parsed lets a message's text
 * close its own turn, as every engine with such templates does.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/template.h"

#include "model/jinja/jinja.h"
#include "model/keys.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 4, EXTRA_MAX = 64 };

static const struct {
    const char *name, *key;
} special[TOKENS] = {
    {"bos_token", "tokenizer.ggml.bos_token_id"},
    {"eos_token", "tokenizer.ggml.eos_token_id"},
    {"unk_token", "tokenizer.ggml.unknown_token_id"},
    {"pad_token", "tokenizer.ggml.padding_token_id"},
};

struct mdl_template {
    struct jin_template *program;  /* NULL: why says so */
    struct mdl_str tokens[TOKENS]; /* data NULL: the model has none; owned */
    char why[200];
};

static kvs_status take_tokens(const struct mdl_gguf *g, struct mdl_template *t)
{
    for (size_t i = 0; i < TOKENS; i++) {
        struct mdl_str s;
        struct kvs_error unread = {0}; /* whoever reads the file's card refuses it with that */
        uint64_t count;
        int32_t id;
        if (!mdl_gguf_array(g, "tokenizer.ggml.tokens", &count) || count > INT32_MAX ||
            mdl_key_id(g, special[i].key, -1, (uint32_t)count, &id, &unread) != KVS_OK || id < 0 ||
            !mdl_gguf_array_str(g, "tokenizer.ggml.tokens", (uint64_t)id, &s))
            continue;
        char *copy = malloc(s.len + 1);
        if (copy == NULL)
            return KVS_SELF_NOMEM;
        memcpy(copy, s.data, s.len);
        t->tokens[i] = (struct mdl_str){copy, s.len};
    }
    return KVS_OK;
}

kvs_status mdl_template_create(const struct mdl_gguf *g, struct mdl_template **out, struct kvs_error *err)
{
    struct mdl_str text;
    struct kvs_error cause = {0};
    struct mdl_template *t = calloc(1, sizeof *t);
    kvs_status s = KVS_OK;
    if (t == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the chat template");
    if (!mdl_gguf_str(g, "tokenizer.chat_template", &text)) {
        kvs_format(t->why, sizeof t->why, "the model file has no chat template; use /v1/completions");
        *out = t;
        return KVS_OK;
    }
    s = take_tokens(g, t);
    if (s == KVS_OK)
        s = jin_parse(text.data, text.len, &t->program, &cause);
    if (s == KVS_OK || s == KVS_SELF_MODEL) {
        if (s != KVS_OK)
            kvs_format(t->why, sizeof t->why, "the model's chat template cannot be used (%s); use /v1/completions",
                       cause.text);
        *out = t;
        return KVS_OK;
    }
    mdl_template_destroy(t);
    return kvs_fail(err, s, "no memory for the chat template");
}

void mdl_template_destroy(struct mdl_template *t)
{
    if (t == NULL)
        return;
    jin_template_destroy(t->program);
    for (size_t i = 0; i < TOKENS; i++)
        free((void *)(uintptr_t)t->tokens[i].data);
    free(t);
}

bool mdl_template_ready(const struct mdl_template *t, char *why_out, size_t why_cap)
{
    if (t->program != NULL)
        return true;
    kvs_format(why_out, why_cap, "%s", t->why);
    return false;
}

/* ---- a request as values ---- */

static bool from_json(struct jin_run *r, const json_t *j, unsigned int depth, struct jin_value *out);

static bool from_array(struct jin_run *r, const json_t *j, unsigned int depth, struct jin_value *out)
{
    if (!jin_list_new(r, json_array_size(j), JIN_A_LIST, out))
        return false;
    for (size_t i = 0; i < out->u.list->count; i++) {
        if (!from_json(r, json_array_get(j, i), depth + 1, &out->u.list->items[i]))
            return false;
    }
    return true;
}

/* Keys of an object differ, so pairs are put in without a search. */
static bool from_object(struct jin_run *r, const json_t *j, unsigned int depth, struct jin_value *out)
{
    json_t *o = (json_t *)(uintptr_t)j; /* iterating changes nothing, but is not declared so */
    size_t count = json_object_size(j);
    if (!jin_dict_new(r, out))
        return false;
    struct jin_dict *d = out->u.dict;
    if (count > 0 && (d->pairs = jin_alloc(r, count, sizeof *d->pairs)) == NULL)
        return false;
    d->cap = count;
    for (void *it = json_object_iter(o); it != NULL && d->count < count; it = json_object_iter_next(o, it)) {
        struct jin_pair *p = &d->pairs[d->count++];
        p->key = jin_text(json_object_iter_key(it));
        if (!from_json(r, json_object_iter_value(it), depth + 1, &p->value))
            return false;
    }
    return true;
}

static bool from_json(struct jin_run *r, const json_t *j, unsigned int depth, struct jin_value *out)
{
    if (depth > JIN_DATA_DEPTH)
        return jin_fail(r, "the messages are nested more than %d deep", JIN_DATA_DEPTH);
    if (!jin_step(r, 1))
        return false;
    switch (json_typeof(j)) {
    case JSON_OBJECT: return from_object(r, j, depth, out);
    case JSON_ARRAY: return from_array(r, j, depth, out);
    case JSON_STRING:
        if (json_string_length(j) > UINT32_MAX)
            return jin_fail(r, "a string is too long");
        *out = jin_str(json_string_value(j), json_string_length(j));
        return true;
    case JSON_INTEGER: *out = jin_int(json_integer_value(j)); return true;
    case JSON_REAL: *out = jin_float(json_real_value(j)); return true;
    case JSON_TRUE:
    case JSON_FALSE: *out = jin_bool(json_is_true(j)); return true;
    default: *out = jin_none(); return true;
    }
}

static bool give(struct jin_run *r, const char *name, const struct jin_value *v)
{
    return jin_set_var(r, &r->globals, (struct mdl_str){name, strlen(name)}, v);
}

static bool give_json(struct jin_run *r, const char *name, const json_t *j)
{
    struct jin_value v = jin_none();
    return (j == NULL || from_json(r, j, 0, &v)) && give(r, name, &v);
}

/* What every template finds. */
static bool give_basics(struct jin_run *r, const struct mdl_template *t, const json_t *tools,
                        bool add_generation_prompt)
{
    struct jin_value v = jin_bool(add_generation_prompt);
    if (!give(r, "add_generation_prompt", &v) || !give_json(r, "tools", tools) || !give_json(r, "documents", NULL))
        return false;
    for (size_t i = 0; i < TOKENS; i++) {
        v = jin_str(t->tokens[i].data, t->tokens[i].len);
        if (t->tokens[i].data != NULL && !give(r, special[i].name, &v))
            return false;
    }
    return true;
}

static bool reserved(const char *name)
{
    static const char *const names[] = {"messages", "tools", "add_generation_prompt", "loop", "caller",
                                        "varargs",  "kwargs"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    for (size_t i = 0; i < TOKENS; i++) {
        if (strcmp(name, special[i].name) == 0)
            return true;
    }
    return jin_function((struct mdl_str){name, strlen(name)}) >= 0;
}

static bool give_extra(struct jin_run *r, const json_t *extra)
{
    json_t *o = (json_t *)(uintptr_t)extra;
    if (extra == NULL || json_is_null(extra))
        return true;
    if (!json_is_object(extra) || json_object_size(extra) > EXTRA_MAX)
        return jin_fail(r, "further names for the template must be an object of at most %d", EXTRA_MAX);
    for (void *it = json_object_iter(o); it != NULL; it = json_object_iter_next(o, it)) {
        const char *name = json_object_iter_key(it);
        if (reserved(name))
            return jin_fail(r, "'%.60s' may not be given as a further name for the template", name);
        if (!give_json(r, name, json_object_iter_value(it)))
            return false;
    }
    return true;
}

static bool give_messages(struct jin_run *r, const struct mdl_message *messages, size_t count)
{
    const struct jin_value role = jin_text("role"), content = jin_text("content");
    struct jin_value list;
    if (!jin_list_new(r, count, JIN_A_LIST, &list))
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct mdl_message *m = &messages[i];
        struct jin_value *to = &list.u.list->items[i];
        if (m->role.len > UINT32_MAX || m->content.len > UINT32_MAX)
            return jin_fail(r, "a message is too long");
        struct jin_value a = jin_str(m->role.data, m->role.len), b = jin_str(m->content.data, m->content.len);
        if (!jin_dict_new(r, to) || !jin_dict_set(r, to->u.dict, &role, &a) ||
            !jin_dict_set(r, to->u.dict, &content, &b))
            return false;
    }
    return give(r, "messages", &list);
}

kvs_status mdl_template_render(const struct mdl_template *t, const struct mdl_message *messages, size_t count,
                               bool add_generation_prompt, struct kvs_buf *out, struct kvs_error *err)
{
    struct jin_run r;
    if (t->program == NULL)
        return kvs_fail(err, KVS_REQ_INVALID, "%s", t->why);
    jin_run_init(&r, out, (int64_t)time(NULL), err);
    bool ok = give_basics(&r, t, NULL, add_generation_prompt) && give_messages(&r, messages, count);
    kvs_status s = ok ? jin_render(&r, t->program) : r.status;
    jin_run_fini(&r);
    return s;
}

kvs_status mdl_template_render_chat(const struct mdl_template *t, const struct mdl_chat *chat, struct kvs_buf *out,
                                    struct kvs_error *err)
{
    struct jin_run r;
    const json_t *tools = chat->tools != NULL && !json_is_null(chat->tools) ? chat->tools : NULL;
    if (t->program == NULL)
        return kvs_fail(err, KVS_REQ_INVALID, "%s", t->why);
    if (!json_is_array(chat->messages) || (tools != NULL && !json_is_array(tools)))
        return kvs_fail(err, KVS_REQ_INVALID, "messages and tools must be arrays");
    jin_run_init(&r, out, chat->now_s, err);
    r.expired = chat->expired;
    r.expired_user = chat->expired_user;
    bool ok = give_basics(&r, t, tools, chat->add_generation_prompt) && give_json(&r, "messages", chat->messages) &&
              give_extra(&r, chat->extra);
    kvs_status s = ok ? jin_render(&r, t->program) : r.status;
    jin_run_fini(&r);
    return s;
}
