/* prompt.c - see prompt.h.
 * A chat's rendered template is read with the model's control words (they are what the template is made of), plain text without them: nobody
 * can smuggle an end of turn into a completion. The context bounds the work: encoding stops when it is passed, but the message needs the real
 * count, so the prompt is then counted up to a multiple of it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/prompt.h"

#include "sys/clock.h"

#include <string.h>

#define RENDERED_MAX (8u << 20)
#define TEMPLATE_US 2000000u /* a real one takes a millisecond; it holds one of the HTTP threads meanwhile */
#define COUNT_MAX (1u << 22) /* ids that we are willing to count for an error message: a body's worth */

static kvs_status translate(const struct kvs_error *e, const char *param, struct rtr_fault *f)
{
    return rtr_fail(f, e->code, param, "%s", e->text);
}

static kvs_status encode(const struct rtr_model *m, const char *text, size_t n, uint32_t flags, struct mdl_ids *out, const char *param,
                         struct rtr_fault *f)
{
    struct kvs_error e = {0};
    kvs_status s = mdl_encode(m->tokenizer, text, n, flags, COUNT_MAX, out, &e);
    return s == KVS_OK ? s : translate(&e, param, f);
}

static bool template_expired(void *user)
{
    return kvs_now_us() >= *(const uint64_t *)user;
}

static kvs_status chat(const struct rtr_model *m, const struct rtr_params *p, struct mdl_ids *out, struct rtr_fault *f)
{
    char why[200] = "";
    if (!mdl_template_ready(m->chat, why, sizeof(why)))
        return rtr_fail(f, KVS_REQ_INVALID, "messages", "model '%.64s' cannot chat: %s", m->name, why);
    struct kvs_buf text;
    struct kvs_error e = {0};
    kvs_buf_init(&text, RENDERED_MAX);
    uint64_t until_us = kvs_now_us() + TEMPLATE_US;
    const struct mdl_chat c = {p->messages, p->tools, p->extra, true, (int64_t)kvs_wall_s(), template_expired, &until_us};
    kvs_status s = mdl_template_render_chat(m->chat, &c, &text, &e);
    if (s == KVS_OK)
        s = mdl_encode_chat(m->tokenizer, kvs_buf_text(&text), text.len, COUNT_MAX, out, &e);
    kvs_buf_fini(&text);
    return s == KVS_OK ? s : translate(&e, "messages", f);
}

static kvs_status take_ids(const struct rtr_model *m, struct rtr_params *p, struct mdl_ids *out, struct rtr_fault *f)
{
    uint32_t vocab = mdl_vocab_size(m->tokenizer);
    for (size_t i = 0; i < p->ids.count; i++)
        if ((uint32_t)p->ids.ids[i] >= vocab)
            return rtr_fail(f, KVS_REQ_INVALID, "prompt", "'prompt': token id %d is not below the vocabulary's size of %u", (int)p->ids.ids[i],
                            vocab);
    *out = p->ids;
    memset(&p->ids, 0, sizeof(p->ids));
    return KVS_OK;
}

kvs_status rtr_prompt(const struct rtr_model *m, struct rtr_params *p, struct mdl_ids *ids_out, uint32_t *max_tokens_out, struct rtr_fault *f)
{
    const char *param = p->kind == RTR_CHAT ? "messages" : "prompt";
    kvs_status s;
    memset(ids_out, 0, sizeof(*ids_out));
    if (p->kind == RTR_CHAT)
        s = chat(m, p, ids_out, f);
    else if (p->ids.count)
        s = take_ids(m, p, ids_out, f);
    else
        s = encode(m, p->text, p->text_len, MDL_ADD_SPECIAL, ids_out, "prompt", f);
    if (s != KVS_OK)
        return s;
    if (ids_out->count == 0)
        return rtr_fail(f, KVS_REQ_INVALID, param, "the prompt is empty and this model has no start token");
    if (ids_out->count >= m->context || ids_out->count > MSG_TOKENS_MAX)
        return rtr_fail(f, KVS_REQ_TOO_LONG, param,
                        "the prompt has %zu tokens; with model '%.64s' it may have at most %u, so that one token of answer fits into the context of %u",
                        ids_out->count, m->name, m->context - 1, m->context);
    uint32_t room = m->context - (uint32_t)ids_out->count;
    *max_tokens_out = p->max_tokens && p->max_tokens < room ? p->max_tokens : room;
    return KVS_OK;
}
