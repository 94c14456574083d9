/* answer.c - see answer.h.
 * Order inside a token: detokenize, look for stop strings, keep the id, write a chunk when something became certain. Ids that belong to text
 * still held back travel with the chunk that is written next. At a choice's end an incomplete character becomes one U+FFFD and what the stop
 * matcher held back comes out, unless a stop string was found.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/answer.h"

#include "router/edge/openai.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHOICE_TEXT_MAX (16u << 20)
#define PIECE_MAX (1u << 20)

static kvs_status keep_ids(struct mdl_ids *to, const struct mdl_ids *from)
{
    kvs_status s = KVS_OK;
    for (size_t i = 0; i < from->count && s == KVS_OK; i++)
        s = mdl_ids_push(to, from->ids[i]);
    return s;
}

kvs_status rtr_answer_create(const struct rtr_params *p, struct rtr_model *m, uint64_t request, const struct mdl_ids *prompt,
                             struct rtr_answer **out)
{
    static const char *const prefix[] = {"cmpl", "chatcmpl", "gen"};
    struct rtr_answer *a = calloc(1, sizeof(*a));
    if (!a)
        return KVS_SELF_NOMEM;
    a->kind = p->kind;
    a->stream = p->stream;
    a->include_usage = p->include_usage;
    a->return_ids = p->return_ids;
    a->logits = p->logits;
    a->ignore_eos = p->ignore_eos;
    a->choice_count = p->choices;
    a->stop = p->stop;
    a->prompt_tokens = (uint32_t)prompt->count;
    a->created = kvs_wall_s();
    a->model = m;
    atomic_fetch_add(&m->refs, 1);
    kvs_format(a->id, sizeof(a->id), "%s-%016" PRIx64, prefix[p->kind], request);
    KVS_ASSERT(m->card.eog_count <= RTR_STOP_IDS_MAX);
    a->stop_id_count = m->card.eog_count;
    memcpy(a->stop_ids, m->card.eog, m->card.eog_count * sizeof(*a->stop_ids));
    for (uint32_t i = 0; i < a->choice_count; i++) {
        /* A chat's answer and a completion both go on after a prompt: the first token's space is text. */
        mdl_detok_init(&a->choice[i].detok, m->tokenizer, false, false);
        rtr_stop_init(&a->choice[i].stop, &a->stop);
        kvs_buf_init(&a->choice[i].text, CHOICE_TEXT_MAX);
    }
    if (a->return_ids && keep_ids(&a->prompt, prompt) != KVS_OK) {
        rtr_answer_destroy(a);
        return KVS_SELF_NOMEM;
    }
    *out = a;
    return KVS_OK;
}

void rtr_answer_destroy(struct rtr_answer *a)
{
    if (!a)
        return;
    for (uint32_t i = 0; i < RTR_CHOICES_MAX; i++) {
        kvs_buf_fini(&a->choice[i].text);
        mdl_ids_fini(&a->choice[i].ids);
        free(a->choice[i].logits);
    }
    mdl_ids_fini(&a->prompt);
    rtr_model_release(a->model);
    free(a);
}

static bool ends_generation(const struct rtr_answer *a, int32_t id)
{
    for (uint32_t i = 0; i < a->stop_id_count; i++)
        if (a->stop_ids[i] == id)
            return true;
    return false;
}

static kvs_status keep(const struct rtr_answer *a, struct rtr_answer_choice *c, const struct msg_token *t)
{
    c->tokens++;
    if (!a->return_ids && !a->logits && a->kind != RTR_CONTROL)
        return KVS_OK;
    if (a->logits && c->ids.count == c->logit_cap) {
        size_t cap = c->logit_cap ? c->logit_cap * 2 : 64;
        float *grown = realloc(c->logits, cap * sizeof(*grown));
        if (!grown)
            return KVS_SELF_NOMEM;
        c->logits = grown;
        c->logit_cap = cap;
    }
    if (a->logits)
        c->logits[c->ids.count] = t->logit;
    return mdl_ids_push(&c->ids, t->id);
}

static kvs_status take_text(struct rtr_answer *a, struct rtr_answer_choice *c, const struct msg_token *t)
{
    struct kvs_buf piece;
    kvs_buf_init(&piece, PIECE_MAX);
    bool silent = t->id < 0 || (t->finish == MSG_FINISH_STOP && ends_generation(a, t->id));
    kvs_status s = silent ? KVS_OK : mdl_detok_push(&c->detok, t->id, &piece);
    if (s == KVS_OK && t->finish != MSG_RUNNING)
        s = mdl_detok_flush(&c->detok, &piece);
    if (s == KVS_OK)
        s = rtr_stop_push(&c->stop, piece.data, piece.len, &c->text);
    if (s == KVS_OK && t->finish != MSG_RUNNING)
        s = rtr_stop_flush(&c->stop, &c->text);
    kvs_buf_fini(&piece);
    return s;
}

static kvs_status write_chunk(struct rtr_answer *a, uint32_t choice, struct kvs_buf *out)
{
    struct rtr_answer_choice *c = &a->choice[choice];
    bool last = c->finish != MSG_RUNNING;
    kvs_status s = KVS_OK;
    if (!c->begun && a->kind == RTR_CHAT)
        s = rtr_openai_role(a, choice, out);
    bool content = c->text.len > 0 || (c->ids.count > 0 && (a->return_ids || a->logits));
    /* Completions carry the prompt's ids in the first chunk, whatever it holds. */
    content |= !c->begun && a->kind == RTR_COMPLETION && a->return_ids && !last;
    if (s == KVS_OK && content && a->kind == RTR_CHAT) {
        s = rtr_openai_chunk(a, choice, false, out);
        kvs_buf_clear(&c->text);
        c->ids.count = 0;
        content = false;
    }
    if (s == KVS_OK && (last || content)) {
        s = rtr_openai_chunk(a, choice, last, out);
        kvs_buf_clear(&c->text);
        c->ids.count = 0;
    }
    c->begun = true;
    return s;
}

kvs_status rtr_answer_token(struct rtr_answer *a, const struct msg_token *t, struct kvs_buf *out, bool *stopped_out)
{
    KVS_ASSERT(t->choice < a->choice_count);
    struct rtr_answer_choice *c = &a->choice[t->choice];
    *stopped_out = false;
    if (c->finish != MSG_RUNNING)
        return KVS_OK;
    /* Further choices find what the first one has computed: what nobody computed for this request is the least of what they found. */
    if (t->has_placed && (!a->placed || t->placed.cached_tokens < a->cached_tokens))
        a->cached_tokens = t->placed.cached_tokens;
    a->placed |= t->has_placed;
    kvs_status s = t->id >= 0 ? keep(a, c, t) : KVS_OK;
    if (s == KVS_OK)
        s = take_text(a, c, t);
    c->finish = t->finish;
    if (c->stop.found) {
        *stopped_out = t->finish == MSG_RUNNING;
        c->finish = MSG_FINISH_STOP;
    }
    if (s == KVS_OK && a->stream && a->kind != RTR_CONTROL)
        s = write_chunk(a, t->choice, out);
    return s;
}

kvs_status rtr_answer_done(struct rtr_answer *a, struct kvs_buf *out)
{
    if (a->kind == RTR_CONTROL)
        return KVS_OK;
    if (!a->stream)
        return rtr_openai_whole(a, out);
    kvs_status s = a->include_usage ? rtr_openai_usage(a, out) : KVS_OK;
    return s == KVS_OK ? kvs_buf_puts(out, "data: [DONE]\n\n") : s;
}
