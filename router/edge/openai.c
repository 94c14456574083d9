/* openai.c - see openai.h. Shapes as in OpenAI's openapi.yaml; ours beside them (token_ids, kvasir) only when asked for.
 * Every key that OpenAI always sends is there, null where there is nothing: typed clients read them without asking.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/openai.h"

static const char *finish_name(msg_finish f)
{
    return f == MSG_FINISH_LENGTH ? "length" : "stop";
}

static void ids(struct kvs_json *j, const char *key, const struct mdl_ids *v)
{
    kvs_json_key(j, key);
    kvs_json_array(j);
    for (size_t i = 0; i < v->count; i++)
        kvs_json_i64(j, v->ids[i]);
    kvs_json_array_end(j);
}

/* Ours, in a choice. prompt: with the prompt's ids (the choice's first chunk, or the whole answer). */
static void extras(const struct rtr_answer *a, const struct rtr_answer_choice *c, bool prompt, bool own, struct kvs_json *j)
{
    static const struct mdl_ids none = {0};
    if (a->return_ids && prompt)
        ids(j, "prompt_token_ids", &a->prompt);
    if (a->return_ids)
        ids(j, "token_ids", own ? &c->ids : &none);
    if (!a->logits)
        return;
    kvs_json_key(j, "kvasir");
    kvs_json_object(j);
    kvs_json_key(j, "logits");
    kvs_json_array(j);
    for (size_t i = 0; own && i < c->ids.count; i++)
        kvs_json_f32(j, c->logits[i]);
    kvs_json_array_end(j);
    kvs_json_object_end(j);
}

static void head(const struct rtr_answer *a, const char *object, struct kvs_json *j)
{
    kvs_json_object(j);
    kvs_json_field_string(j, "id", a->id);
    kvs_json_field_string(j, "object", object);
    kvs_json_field_u64(j, "created", a->created);
    kvs_json_field_string(j, "model", a->model->name);
}

static void usage(const struct rtr_answer *a, struct kvs_json *j)
{
    uint64_t made = 0;
    for (uint32_t i = 0; i < a->choice_count; i++)
        made += a->choice[i].tokens;
    kvs_json_object(j);
    kvs_json_field_u64(j, "prompt_tokens", a->prompt_tokens);
    kvs_json_field_u64(j, "completion_tokens", made);
    kvs_json_field_u64(j, "total_tokens", a->prompt_tokens + made);
    kvs_json_key(j, "prompt_tokens_details");
    kvs_json_object(j);
    kvs_json_field_u64(j, "cached_tokens", a->cached_tokens);
    kvs_json_object_end(j);
    kvs_json_object_end(j);
}

/* "data: {...choices:[" ... and its end. */
static kvs_status event_begin(const struct rtr_answer *a, struct kvs_json *j, struct kvs_buf *out)
{
    kvs_status s = kvs_buf_puts(out, "data: ");
    kvs_json_begin(j, out);
    head(a, a->kind == RTR_CHAT ? "chat.completion.chunk" : "text_completion", j);
    kvs_json_key(j, "choices");
    kvs_json_array(j);
    return s;
}

static kvs_status event_end(const struct rtr_answer *a, bool with_usage, struct kvs_json *j, struct kvs_buf *out)
{
    kvs_json_array_end(j);
    if (a->include_usage) {
        kvs_json_key(j, "usage");
        if (with_usage)
            usage(a, j);
        else
            kvs_json_null(j);
    }
    kvs_json_object_end(j);
    kvs_status s = kvs_json_end(j);
    return s == KVS_OK ? kvs_buf_puts(out, "\n\n") : s;
}

static void choice_end(struct kvs_json *j, const char *finish)
{
    kvs_json_key(j, "logprobs");
    kvs_json_null(j);
    kvs_json_key(j, "finish_reason");
    if (finish)
        kvs_json_string(j, finish);
    else
        kvs_json_null(j);
}

kvs_status rtr_openai_role(const struct rtr_answer *a, uint32_t choice, struct kvs_buf *out)
{
    struct kvs_json j;
    kvs_status s = event_begin(a, &j, out);
    kvs_json_object(&j);
    kvs_json_field_u64(&j, "index", choice);
    kvs_json_key(&j, "delta");
    kvs_json_object(&j);
    kvs_json_field_string(&j, "role", "assistant");
    kvs_json_field_string(&j, "content", "");
    kvs_json_object_end(&j);
    choice_end(&j, NULL);
    extras(a, &a->choice[choice], true, false, &j);
    kvs_json_object_end(&j);
    kvs_status e = event_end(a, false, &j, out);
    return s != KVS_OK ? s : e;
}

kvs_status rtr_openai_chunk(const struct rtr_answer *a, uint32_t choice, bool last, struct kvs_buf *out)
{
    const struct rtr_answer_choice *c = &a->choice[choice];
    struct kvs_json j;
    kvs_status s = event_begin(a, &j, out);
    kvs_json_object(&j);
    kvs_json_field_u64(&j, "index", choice);
    if (a->kind == RTR_CHAT) {
        kvs_json_key(&j, "delta");
        kvs_json_object(&j);
        if (!last) { /* the last chunk of a chat has an empty delta */
            kvs_json_key(&j, "content");
            kvs_json_bytes(&j, c->text.data, c->text.len);
        }
        kvs_json_object_end(&j);
    } else {
        kvs_json_key(&j, "text");
        kvs_json_bytes(&j, c->text.data, c->text.len);
    }
    choice_end(&j, last ? finish_name(c->finish) : NULL);
    extras(a, c, !c->begun && a->kind == RTR_COMPLETION, true, &j);
    kvs_json_object_end(&j);
    kvs_status e = event_end(a, false, &j, out);
    return s != KVS_OK ? s : e;
}

kvs_status rtr_openai_usage(const struct rtr_answer *a, struct kvs_buf *out)
{
    struct kvs_json j;
    kvs_status s = event_begin(a, &j, out);
    kvs_status e = event_end(a, true, &j, out);
    return s != KVS_OK ? s : e;
}

static void whole_choice(const struct rtr_answer *a, uint32_t i, struct kvs_json *j)
{
    const struct rtr_answer_choice *c = &a->choice[i];
    kvs_json_object(j);
    kvs_json_field_u64(j, "index", i);
    if (a->kind == RTR_CHAT) {
        kvs_json_key(j, "message");
        kvs_json_object(j);
        kvs_json_field_string(j, "role", "assistant");
        kvs_json_key(j, "content");
        kvs_json_bytes(j, c->text.data, c->text.len);
        kvs_json_key(j, "refusal");
        kvs_json_null(j);
        kvs_json_object_end(j);
    } else {
        kvs_json_key(j, "text");
        kvs_json_bytes(j, c->text.data, c->text.len);
    }
    choice_end(j, finish_name(c->finish));
    extras(a, c, true, true, j);
    kvs_json_object_end(j);
}

kvs_status rtr_openai_whole(const struct rtr_answer *a, struct kvs_buf *out)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    head(a, a->kind == RTR_CHAT ? "chat.completion" : "text_completion", &j);
    kvs_json_key(&j, "choices");
    kvs_json_array(&j);
    for (uint32_t i = 0; i < a->choice_count; i++)
        whole_choice(a, i, &j);
    kvs_json_array_end(&j);
    kvs_json_key(&j, "usage");
    usage(a, &j);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}

kvs_status rtr_openai_error_event(const struct rtr_fault *f, struct kvs_buf *out)
{
    kvs_status s = kvs_buf_puts(out, "data: ");
    if (s == KVS_OK)
        s = rtr_fault_write(f, out);
    return s == KVS_OK ? kvs_buf_puts(out, "\n\n") : s;
}
