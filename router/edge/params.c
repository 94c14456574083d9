/* params.c - see params.h. One small reader a field; the table at the end lists what is refused because we have it not, with the values that
 * mean "off" and are let through (clients send many fields at their defaults).
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/params.h"

#include "net/json_load.h"
#include "router/core/router.h"
#include "router/edge/params_prompt.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- readers: absent and null are "not given" ---- */

static json_t *field(json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    return json_is_null(v) ? NULL : v;
}

static kvs_status read_bool(json_t *o, const char *name, const char *param, bool *out, struct rtr_fault *f)
{
    json_t *v = field(o, name);
    if (!v)
        return KVS_OK;
    if (!json_is_boolean(v))
        return rtr_fail(f, KVS_REQ_INVALID, param, "'%s' must be true or false", param);
    *out = json_is_true(v);
    return KVS_OK;
}

static kvs_status read_int(json_t *o, const char *name, int64_t min, int64_t max, bool *given, int64_t *out, struct rtr_fault *f)
{
    json_t *v = field(o, name);
    *given = v != NULL;
    if (!v)
        return KVS_OK;
    if (!json_is_integer(v))
        return rtr_fail(f, KVS_REQ_INVALID, name, "'%s' must be an integer", name);
    *out = json_integer_value(v);
    if (*out < min || *out > max)
        return rtr_fail(f, KVS_REQ_INVALID, name, "'%s' must be between %lld and %lld, not %lld", name, (long long)min, (long long)max,
                        (long long)*out);
    return KVS_OK;
}

static kvs_status read_float(json_t *o, const char *name, double min, double max, float *out, struct rtr_fault *f)
{
    json_t *v = field(o, name);
    if (!v)
        return KVS_OK;
    if (!json_is_number(v))
        return rtr_fail(f, KVS_REQ_INVALID, name, "'%s' must be a number", name);
    double d = json_number_value(v);
    if (!isfinite(d) || d < min || d > max)
        return rtr_fail(f, KVS_REQ_INVALID, name, "'%s' must be between %g and %g, not %g", name, min, max, d);
    *out = (float)d;
    return KVS_OK;
}

/* ---- fields ---- */

static kvs_status read_model(json_t *o, struct rtr_params *p, struct rtr_fault *f)
{
    json_t *v = field(o, "model");
    if (!v)
        return rtr_fail(f, KVS_REQ_INVALID, "model", "'model' is required; GET /v1/models lists the names");
    if (!json_is_string(v) || json_string_length(v) == 0)
        return rtr_fail(f, KVS_REQ_INVALID, "model", "'model' must be a non-empty string");
    if (json_string_length(v) >= sizeof(p->model))
        return rtr_fail(f, KVS_REQ_UNKNOWN_MODEL, "model", "no model has a name of %zu bytes", json_string_length(v));
    memcpy(p->model, json_string_value(v), json_string_length(v) + 1);
    return KVS_OK;
}

static kvs_status read_max_tokens(json_t *o, struct rtr_params *p, struct rtr_fault *f)
{
    static const char *const names[] = {"max_completion_tokens", "max_tokens"}; /* the newer one wins, as with OpenAI */
    for (size_t i = 0; i < 2; i++) {
        int64_t v = 0;
        bool given;
        if (p->kind == RTR_COMPLETION && i == 0)
            continue;
        kvs_status s = read_int(o, names[i], 1, INT32_MAX, &given, &v, f);
        if (s != KVS_OK)
            return s;
        if (given && !p->max_tokens)
            p->max_tokens = (uint32_t)v;
    }
    return KVS_OK;
}

static kvs_status read_sampling(json_t *o, struct rtr_params *p, struct rtr_fault *f)
{
    struct msg_sampling *m = &p->sampling;
    m->temperature = 1.0f;
    m->top_p = 1.0f;
    int64_t k = 0, seed = 0;
    bool given;
    kvs_status s = read_float(o, "temperature", 0, 2, &m->temperature, f);
    if (s == KVS_OK)
        s = read_float(o, "top_p", 0, 1, &m->top_p, f);
    if (s == KVS_OK)
        s = read_float(o, "min_p", 0, 1, &m->min_p, f);
    if (s == KVS_OK)
        s = read_int(o, "top_k", -1, INT32_MAX, &given, &k, f); /* -1 and 0: off */
    if (s == KVS_OK)
        s = read_int(o, "seed", INT64_MIN, INT64_MAX, &p->seed_given, &seed, f);
    m->top_k = k > 0 ? (uint32_t)k : 0;
    m->seed = (uint64_t)seed;
    return s;
}

static kvs_status add_stop(json_t *v, const char *param, struct rtr_params *p, struct rtr_fault *f)
{
    struct rtr_stop_set *st = &p->stop;
    if (!json_is_string(v))
        return rtr_fail(f, KVS_REQ_INVALID, param, "'stop' must be a string or an array of strings");
    size_t n = json_string_length(v);
    if (n == 0 || n > RTR_STOP_BYTES_MAX)
        return rtr_fail(f, KVS_REQ_INVALID, param, "a stop string must have 1 to %d bytes", RTR_STOP_BYTES_MAX);
    if (st->count == RTR_STOPS_MAX)
        return rtr_fail(f, KVS_REQ_INVALID, param, "'stop' may hold at most %d strings", RTR_STOPS_MAX);
    memcpy(st->text[st->count], json_string_value(v), n);
    st->len[st->count++] = (uint32_t)n;
    return KVS_OK;
}

static kvs_status read_stop(json_t *o, struct rtr_params *p, struct rtr_fault *f)
{
    json_t *v = field(o, "stop"), *e;
    if (!v)
        return KVS_OK;
    if (!json_is_array(v))
        return add_stop(v, "stop", p, f);
    size_t i;
    kvs_status s = KVS_OK;
    json_array_foreach(v, i, e) {
        s = add_stop(e, "stop", p, f);
        if (s != KVS_OK)
            break;
    }
    return s;
}

static kvs_status read_kvasir(json_t *o, struct rtr_params *p, struct rtr_fault *f)
{
    json_t *k = field(o, "kvasir");
    if (!k)
        return KVS_OK;
    if (!json_is_object(k))
        return rtr_fail(f, KVS_REQ_INVALID, "kvasir", "'kvasir' must be an object");
    const char *name;
    json_t *v;
    json_object_foreach(k, name, v) /* nobody else gives these names a meaning: one that is unknown is misspelt */
        if (strcmp(name, "placement") != 0 && strcmp(name, "fetch") != 0 && strcmp(name, "logits") != 0)
            return rtr_fail(f, KVS_REQ_INVALID, "kvasir", "'kvasir' has placement, fetch and logits, no '%.40s'", name);
    v = field(k, "placement");
    if (v) {
        const char *t = json_is_string(v) ? json_string_value(v) : "";
        if (strcmp(t, "local") == 0)
            p->placement = MSG_PLACE_LOCAL;
        else if (strcmp(t, "remote") == 0)
            p->placement = MSG_PLACE_REMOTE;
        else if (strcmp(t, "auto") != 0)
            return rtr_fail(f, KVS_REQ_INVALID, "kvasir.placement", "'kvasir.placement' must be \"local\", \"remote\" or \"auto\"");
    }
    v = field(k, "fetch");
    if (v && (!json_is_string(v) || json_string_length(v) >= sizeof(p->fetch_worker)))
        return rtr_fail(f, KVS_REQ_INVALID, "kvasir.fetch", "'kvasir.fetch' must be the name of a worker");
    if (v)
        memcpy(p->fetch_worker, json_string_value(v), json_string_length(v) + 1);
    return read_bool(k, "logits", "kvasir.logits", &p->logits, f);
}

static kvs_status read_cache_salt(json_t *o, struct rtr_params *p, struct rtr_fault *f)
{
    json_t *v = field(o, "cache_salt");
    if (!v)
        return KVS_OK;
    size_t n = json_is_string(v) ? json_string_length(v) : 0;
    if (n == 0 || n >= sizeof(p->cache_salt))
        return rtr_fail(f, KVS_REQ_INVALID, "cache_salt", "'cache_salt' must be a string of 1 to %zu bytes", sizeof(p->cache_salt) - 1);
    memcpy(p->cache_salt, json_string_value(v), n + 1);
    return KVS_OK;
}

static kvs_status read_stream(json_t *o, struct rtr_params *p, struct rtr_fault *f)
{
    kvs_status s = read_bool(o, "stream", "stream", &p->stream, f);
    json_t *v = field(o, "stream_options");
    if (s != KVS_OK || !v)
        return s;
    if (!json_is_object(v))
        return rtr_fail(f, KVS_REQ_INVALID, "stream_options", "'stream_options' must be an object");
    if (!p->stream)
        return rtr_fail(f, KVS_REQ_INVALID, "stream_options", "'stream_options' needs \"stream\": true");
    return read_bool(v, "include_usage", "stream_options.include_usage", &p->include_usage, f);
}

/* ---- what we have not ---- */

typedef enum off_value { OFF_FALSE, OFF_ZERO, OFF_ONE, OFF_EMPTY, OFF_TEXT, OFF_NEVER } off_value;
struct unsupported {
    const char *name;
    off_value off; /* this value (and null) asks for nothing */
    uint32_t kinds; /* bit 1 << rtr_kind */
};
#define BOTH 3u
static const struct unsupported unsupported[] = {
    {"echo", OFF_FALSE, 1},           {"best_of", OFF_ONE, 1},          {"suffix", OFF_EMPTY, 1},
    {"logprobs", OFF_FALSE, BOTH},    {"top_logprobs", OFF_NEVER, 2},   {"prompt_logprobs", OFF_NEVER, BOTH},
    {"logit_bias", OFF_EMPTY, BOTH},  {"presence_penalty", OFF_ZERO, BOTH}, {"frequency_penalty", OFF_ZERO, BOTH},
    {"repetition_penalty", OFF_ONE, BOTH}, {"repeat_penalty", OFF_ONE, BOTH}, {"min_tokens", OFF_ZERO, BOTH},
    {"stop_token_ids", OFF_EMPTY, BOTH},   {"bad_words", OFF_EMPTY, BOTH},    {"allowed_token_ids", OFF_EMPTY, BOTH},
    {"include_stop_str_in_output", OFF_FALSE, BOTH}, {"functions", OFF_EMPTY, 2},
    {"response_format", OFF_TEXT, BOTH},   {"grammar", OFF_EMPTY, BOTH},      {"json_schema", OFF_EMPTY, BOTH},
    {"structured_outputs", OFF_EMPTY, BOTH}, {"guided_json", OFF_EMPTY, BOTH}, {"guided_regex", OFF_EMPTY, BOTH},
    {"guided_choice", OFF_EMPTY, BOTH},    {"guided_grammar", OFF_EMPTY, BOTH}, {"continue_final_message", OFF_FALSE, 2},
    {"audio", OFF_EMPTY, 2},               {"documents", OFF_EMPTY, 2},       {"chat_template", OFF_EMPTY, 2},
};

static bool asks_for_nothing(json_t *v, off_value off)
{
    switch (off) {
    case OFF_FALSE: return json_is_false(v);
    case OFF_ZERO: return json_is_number(v) && json_number_value(v) == 0.0;
    case OFF_ONE: return json_is_number(v) && json_number_value(v) == 1.0;
    case OFF_EMPTY:
        return (json_is_string(v) && json_string_length(v) == 0) || (json_is_array(v) && json_array_size(v) == 0) ||
               (json_is_object(v) && json_object_size(v) == 0);
    case OFF_TEXT: {
        json_t *t = json_object_get(v, "type");
        return json_is_string(t) && strcmp(json_string_value(t), "text") == 0;
    }
    case OFF_NEVER: break;
    }
    return false;
}

static kvs_status refuse_unsupported(json_t *o, rtr_kind kind, struct rtr_fault *f)
{
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(*unsupported); i++) {
        const struct unsupported *u = &unsupported[i];
        json_t *v = field(o, u->name);
        if (v && (u->kinds & (1u << kind)) && !asks_for_nothing(v, u->off))
            return rtr_fail(f, KVS_REQ_UNSUPPORTED, u->name, "'%s' is not supported by this server; leave it out", u->name);
    }
    return KVS_OK;
}

/* ---- the whole body ---- */

/* jansson says where it stopped; the last key before that is the field at fault when a value or a key was refused (not: broken syntax). */
static void key_before(const char *body, size_t at, char *out, size_t cap)
{
    for (size_t end = at; end-- > 1;) {
        if (body[end] != ':' && end + 1 != at)
            continue;
        size_t q = end;
        while (q > 0 && (body[q - 1] == ' ' || body[q - 1] == '\n' || body[q - 1] == '\t' || body[q - 1] == '\r'))
            q--;
        if (q == 0 || body[q - 1] != '"')
            continue;
        size_t start = q - 1;
        while (start > 0 && body[start - 1] != '"')
            start--;
        if (start > 0 && q - 1 - start < cap)
            kvs_format(out, cap, "%.*s", (int)(q - 1 - start), body + start);
        return;
    }
}

static kvs_status bad_json(const char *body, size_t n, const json_error_t *e, struct rtr_fault *f)
{
    char key[96] = "";
    enum json_error_code code = json_error_code(e);
    size_t at = e->position > 0 && (size_t)e->position <= n ? (size_t)e->position : n;
    if (code == json_error_numeric_overflow || code == json_error_duplicate_key || code == json_error_null_character)
        key_before(body, at, key, sizeof(key));
    const char *why = code == json_error_null_character ? "a string may not hold the character \\u0000; leave it out" : e->text;
    return rtr_fail(f, KVS_REQ_INVALID, key, "the body is not valid JSON: %s (line %d, column %d)", why, e->line, e->column);
}

kvs_status rtr_params_parse(rtr_kind kind, const void *body, size_t n, struct rtr_params *p, struct rtr_fault *f)
{
    json_error_t e;
    int64_t choices = 1;
    bool given;
    memset(p, 0, sizeof(*p));
    memset(f, 0, sizeof(*f));
    p->kind = kind;
    if (n == 0)
        return rtr_fail(f, KVS_REQ_INVALID, NULL, "the body is empty; send a JSON object");
    json_t *o;
    kvs_status s = net_json_load(body, n, JSON_REJECT_DUPLICATES, &e, &o);
    if (s != KVS_OK)
        return s == KVS_SELF_NOMEM ? rtr_fail(f, s, NULL, "out of memory") : bad_json(body, n, &e, f);
    p->json = o;
    if (!json_is_object(o))
        return rtr_fail(f, KVS_REQ_INVALID, NULL, "the body must be a JSON object");
    s = read_model(o, p, f);
    if (s == KVS_OK)
        s = read_stream(o, p, f);
    if (s == KVS_OK)
        s = read_int(o, "n", 1, RTR_CHOICES_MAX, &given, &choices, f);
    p->choices = (uint32_t)choices;
    if (s == KVS_OK)
        s = read_max_tokens(o, p, f);
    if (s == KVS_OK)
        s = read_sampling(o, p, f);
    if (s == KVS_OK)
        s = read_stop(o, p, f);
    if (s == KVS_OK)
        s = read_bool(o, "return_token_ids", "return_token_ids", &p->return_ids, f);
    if (s == KVS_OK)
        s = read_bool(o, "ignore_eos", "ignore_eos", &p->ignore_eos, f);
    if (s == KVS_OK)
        s = read_cache_salt(o, p, f);
    if (s == KVS_OK)
        s = read_kvasir(o, p, f);
    if (s == KVS_OK)
        s = refuse_unsupported(o, kind, f);
    if (s == KVS_OK)
        s = kind == RTR_CHAT ? rtr_params_chat(o, p, f) : rtr_params_prompt(o, p, f);
    return s;
}

void rtr_params_fini(struct rtr_params *p)
{
    mdl_ids_fini(&p->ids);
    json_decref(p->json);
    memset(p, 0, sizeof(*p));
}
