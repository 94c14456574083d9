/* answer.h - one request's answer in the making: tokens in; text, and bytes in the shape the client asked for, out.
 * Per choice: detokenizer, stop strings, what is to be told at the end. A stream's bytes are made token by token; a whole answer's at the end.
 * Both go through the same text, so that a stream joined equals the whole. Loop thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_ANSWER_H
#define KVS_ROUTER_EDGE_ANSWER_H

#include "router/core/router.h"
#include "router/edge/model.h"
#include "router/edge/params.h"

struct rtr_answer_choice {
    struct mdl_detok detok;
    struct rtr_stop stop;
    struct kvs_buf text;  /* certain, and not yet written (stream) or all of it (whole) */
    struct mdl_ids ids;   /* likewise; kept only when they are to be told */
    float *logits;        /* as many as ids when asked for */
    size_t logit_cap;
    uint32_t tokens;      /* made, an ending EOS and the tokens of a stop string included */
    bool begun;           /* its first chunk was written */
    msg_finish finish;
};
/* Owner thread: the loop. */
struct rtr_answer {
    rtr_kind kind;
    bool stream, include_usage, return_ids, logits;
    uint32_t choice_count;
    struct rtr_model *model; /* acquired */
    char id[48];
    uint64_t created;
    struct rtr_stop_set stop;
    int32_t stop_ids[RTR_STOP_IDS_MAX];
    uint32_t stop_id_count;
    bool ignore_eos;
    struct mdl_ids prompt; /* kept only when it is to be told */
    uint32_t prompt_tokens, cached_tokens;
    bool placed; /* cached_tokens is known */
    struct rtr_answer_choice choice[RTR_CHOICES_MAX];
};

/* Takes a reference of m. prompt is copied when needed. */
KVS_MUST_CHECK kvs_status rtr_answer_create(const struct rtr_params *p, struct rtr_model *m, uint64_t request, const struct mdl_ids *prompt,
                                            struct rtr_answer **out);
void rtr_answer_destroy(struct rtr_answer *a);

/* One token (or an end without one) of a choice. Streams: appends events to out. *stopped_out: a stop string was found, the choice is over.
 * Tokens of a choice that is over are ignored. */
KVS_MUST_CHECK kvs_status rtr_answer_token(struct rtr_answer *a, const struct msg_token *t, struct kvs_buf *out, bool *stopped_out);
/* All choices have ended well: the usage event and [DONE], or the whole answer. */
KVS_MUST_CHECK kvs_status rtr_answer_done(struct rtr_answer *a, struct kvs_buf *out);

#endif
