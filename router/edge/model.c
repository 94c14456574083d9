/* model.c - see model.h. A model stays in the table once it was seen, also while it has no worker: a request for it is then answered with
 * 503 (come back) instead of 404 (no such thing). Same name with another fingerprint is another object.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/model.h"

#include "sys/clock.h"
#include "sys/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct rtr_models {
    pthread_mutex_t lock;
    struct rtr_model *models[RTR_MODELS_MAX];
    size_t count;
    uint32_t next_key;
};

kvs_status rtr_models_create(struct rtr_models **out)
{
    struct rtr_models *t = calloc(1, sizeof(*t));
    if (!t)
        return KVS_SELF_NOMEM;
    pthread_mutex_init(&t->lock, NULL);
    t->next_key = 1;
    *out = t;
    return KVS_OK;
}

void rtr_model_release(struct rtr_model *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    mdl_tokenizer_destroy(m->tokenizer);
    mdl_template_destroy(m->chat);
    free(m);
}

void rtr_models_destroy(struct rtr_models *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->count; i++)
        rtr_model_release(t->models[i]);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static kvs_status read_header(struct rtr_model *m, const uint8_t *header, size_t n, struct kvs_error *err)
{
    struct mdl_gguf *g = NULL;
    kvs_status s = mdl_gguf_parse(header, n, true, &g, err);
    if (s == KVS_OK)
        s = mdl_card_read(g, &m->card, err);
    if (s == KVS_OK)
        s = mdl_tokenizer_create(g, &m->tokenizer, err);
    if (s == KVS_OK)
        s = mdl_template_create(g, &m->chat, err);
    mdl_gguf_destroy(g);
    return s;
}

kvs_status rtr_models_add(struct rtr_models *t, const struct msg_card *worker, const uint8_t *header, size_t n, struct rtr_model **out,
                          struct kvs_error *err)
{
    if (t->count == RTR_MODELS_MAX)
        return kvs_fail(err, KVS_BUSY_FULL, "this router already holds %d models; start another router for more", RTR_MODELS_MAX);
    struct rtr_model *m = calloc(1, sizeof(*m));
    if (!m)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    atomic_init(&m->refs, 1);
    atomic_init(&m->ready, false);
    memcpy(m->name, worker->model, sizeof(m->name));
    memcpy(m->fingerprint, worker->fingerprint, sizeof(m->fingerprint));
    m->context = worker->context;
    m->created = kvs_wall_s();
    m->key = t->next_key++;
    kvs_status s = read_header(m, header, n, err);
    if (s == KVS_OK && mdl_tokenizer_pre_guessed(m->tokenizer))
        KVS_WARN("pre-tokenizer guessed", "model=%s cause=\"%s\"", m->name, MDL_PRE_GUESSED_TEXT);
    if (s != KVS_OK) {
        rtr_model_release(m);
        return s;
    }
    pthread_mutex_lock(&t->lock);
    t->models[t->count++] = m;
    pthread_mutex_unlock(&t->lock);
    *out = m;
    return KVS_OK;
}

struct rtr_model *rtr_models_of(struct rtr_models *t, const char *name, const uint8_t fingerprint[32])
{
    for (size_t i = 0; i < t->count; i++)
        if (memcmp(t->models[i]->fingerprint, fingerprint, 32) == 0 && strcmp(t->models[i]->name, name) == 0)
            return t->models[i];
    return NULL;
}

struct rtr_model *rtr_models_acquire(struct rtr_models *t, const char *name)
{
    struct rtr_model *m = NULL;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->models[i]->name, name) == 0 && (!m || (!atomic_load(&m->ready) && atomic_load(&t->models[i]->ready))))
            m = t->models[i];
    if (m)
        atomic_fetch_add(&m->refs, 1);
    pthread_mutex_unlock(&t->lock);
    return m;
}

struct rtr_model *rtr_models_at(struct rtr_models *t, size_t i)
{
    struct rtr_model *m = NULL;
    pthread_mutex_lock(&t->lock);
    if (i < t->count) {
        m = t->models[i];
        atomic_fetch_add(&m->refs, 1);
    }
    pthread_mutex_unlock(&t->lock);
    return m;
}

void rtr_models_names(struct rtr_models *t, char *out, size_t cap)
{
    size_t at = 0;
    if (cap)
        out[0] = 0;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->count && at + 1 < cap; i++)
        at += kvs_format(out + at, cap - at, "%s%s", at ? ", " : "", t->models[i]->name);
    pthread_mutex_unlock(&t->lock);
}
