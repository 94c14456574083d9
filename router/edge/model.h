/* model.h - model objects: all that the router knows of a model (tokenizer, template, card), and the table they are found in by name.
 * A model object is made on the loop thread from the header bytes that a worker streams (the bytes are not kept), is immutable afterwards
 * except for `ready`, and is counted: HTTP threads hold one while they tokenize. The table has its own lock; any thread may look up.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_MODEL_H
#define KVS_ROUTER_EDGE_MODEL_H

#include "model/card.h"
#include "model/template.h"
#include "model/tokenizer.h"
#include "proto/msg.h"

#include <stdatomic.h>

#define RTR_MODELS_MAX 16

struct rtr_model {
    atomic_uint refs;
    atomic_bool ready; /* a decode-capable worker takes requests */
    uint32_t key;      /* never reused; the core's name for it */
    char name[128];
    uint8_t fingerprint[32];
    uint32_t context; /* of the workers' cards */
    uint64_t created; /* seconds since 1970 */
    struct mdl_card card;
    struct mdl_tokenizer *tokenizer;
    struct mdl_template *chat;
};

struct rtr_models;
KVS_MUST_CHECK kvs_status rtr_models_create(struct rtr_models **out);
void rtr_models_destroy(struct rtr_models *t);
/* Makes a model from header bytes and puts it into the table. */
KVS_MUST_CHECK kvs_status rtr_models_add(struct rtr_models *t, const struct msg_card *worker, const uint8_t *header, size_t n, struct rtr_model **out,
                                         struct kvs_error *err);
struct rtr_model *rtr_models_of(struct rtr_models *t, const char *name, const uint8_t fingerprint[32]); /* borrowed; NULL: not there */
/* By the name users give; of several with that name a ready one. Acquired; NULL: unknown. */
struct rtr_model *rtr_models_acquire(struct rtr_models *t, const char *name);
void rtr_model_release(struct rtr_model *m);
/* The i-th one, acquired; NULL past the end. */
struct rtr_model *rtr_models_at(struct rtr_models *t, size_t i);
/* Text for "unknown model": the names there are. */
void rtr_models_names(struct rtr_models *t, char *out, size_t cap);

#endif
