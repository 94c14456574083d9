/* params.h - the body of POST /v1/chat/completions and /v1/completions, read strictly: a field of the wrong type, out of range, or asking for
 * what this server has not, is refused by name; fields nobody here knows are ignored, but in `kvasir`, which is ours.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_PARAMS_H
#define KVS_ROUTER_EDGE_PARAMS_H

#include "model/template.h"
#include "model/tokenizer.h"
#include "proto/msg.h"
#include "router/core/stop.h"
#include "router/edge/fault.h"

#define RTR_BODY_MAX (4u << 20)
#define RTR_MESSAGES_MAX 4096

typedef enum rtr_kind { RTR_COMPLETION = 0, RTR_CHAT = 1, RTR_CONTROL = 2 /* a client on a control stream */ } rtr_kind;

struct rtr_params {
    rtr_kind kind;
    char model[128];
    bool stream, include_usage, return_ids, logits, ignore_eos;
    uint32_t choices;
    uint32_t max_tokens; /* 0: not given */
    struct msg_sampling sampling;
    bool seed_given;
    struct rtr_stop_set stop;
    msg_placement placement;
    char fetch_worker[MSG_ID_MAX]; /* kvasir.fetch: who is asked first for KV of the prompt; "": nobody */
    char cache_salt[128]; /* separates prefix caches: nothing is shared between different salts; "": none */
    /* the prompt: one of these */
    const char *text;     /* completions: borrowed from json */
    size_t text_len;
    struct mdl_ids ids;   /* completions with ids; owned */
    /* chat: borrowed from json, in the shape that templates know (params_prompt.c) */
    const struct json_t *messages, *tools, *extra; /* the last two may be NULL */
    void *json;           /* json_t of the body; owned */
};

/* body need not be NUL-terminated. On failure *f says what and where. rtr_params_fini in both cases. */
KVS_MUST_CHECK kvs_status rtr_params_parse(rtr_kind kind, const void *body, size_t n, struct rtr_params *out, struct rtr_fault *f);
void rtr_params_fini(struct rtr_params *p);

#endif
