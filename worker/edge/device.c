/* device.c - see device.h. One mutex guards the hand-over; the step itself runs without locks. Layer progress is an atomic number, so that
 * a slow loop sees the newest value and none is lost.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/edge/device.h"

#include "engine/sampler.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/thread.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct wrk_device {
    struct wrk_device_config c;
    struct eng_ctx *ctx;
    struct kvs_thread *thread;
    pthread_mutex_t mutex;
    pthread_cond_t work;
    const struct wrk_step *step; /* under mutex: submitted and not finished */
    bool closing;                /* under mutex */
    bool done;                   /* under mutex: status and results wait for the loop */
    uint64_t step_id;
    kvs_status status;
    uint64_t step_us; /* written before done, read after */
    atomic_bool stop;
    atomic_uint layers; /* complete layers of the step in flight */
    uint32_t layers_told;
    /* device thread, sized for the widest step */
    struct eng_part *parts;
    struct wrk_result *results;
    float *logits;
    void *scratch;
    /* shared by slot discipline: written by the device before done, read by the loop after */
    float *ship;
    void *loop_scratch;
};

static bool on_layer(void *user, uint32_t layer)
{
    struct wrk_device *d = user;
    atomic_store_explicit(&d->layers, layer + 1, memory_order_release);
    (void)KVS_FAILPOINT("device.layer");
    d->c.wake(d->c.wake_user);
    return atomic_load_explicit(&d->stop, memory_order_acquire);
}

static struct eng_sampling sampling_of(const struct msg_sampling *p)
{
    return (struct eng_sampling){.temperature = p->temperature, .top_k = p->top_k, .top_p = p->top_p, .min_p = p->min_p, .seed = p->seed};
}

static void result_from(const struct eng_sample *s, struct wrk_result *r)
{
    r->token = s->id;
    r->logit = s->logit;
    r->logprob = s->logprob;
    r->margin = s->margin;
}

/* What each entry wanted from its last row. */
static void finish_rows(struct wrk_device *d, const struct wrk_step *step)
{
    size_t row = 0;
    for (uint32_t i = 0; i < step->entry_count; i++) {
        const struct wrk_step_entry *e = &step->entries[i];
        struct wrk_result *r = &d->results[i];
        r->status = d->parts[i].status;
        if (e->logits == WRK_LOGITS_NONE)
            continue;
        const float *logits = d->logits + row++ * d->c.vocab;
        if (r->status != KVS_OK)
            continue;
        if (e->logits == WRK_LOGITS_SHIP) {
            KVS_ASSERT(e->user < d->c.ship_rows);
            memcpy(d->ship + (size_t)e->user * d->c.vocab, logits, (size_t)d->c.vocab * sizeof *logits);
            continue;
        }
        struct eng_sampling p = sampling_of(&e->sampling);
        struct eng_sample s = {0};
        r->status = eng_sample_row(logits, d->c.vocab, &p, e->choice, e->position, d->scratch, &s);
        result_from(&s, r);
    }
}

static kvs_status run_step(struct wrk_device *d, const struct wrk_step *step)
{
    memset(d->results, 0, step->entry_count * sizeof *d->results);
    for (uint32_t i = 0; i < step->entry_count; i++) {
        const struct wrk_step_entry *e = &step->entries[i];
        d->parts[i] = (struct eng_part){.ids = e->ids, .count = e->count, .pos = e->pos, .table = e->table,
                                        .logits_from = e->logits == WRK_LOGITS_NONE ? e->count : e->count - 1};
    }
    kvs_status st = eng_forward(d->ctx, d->parts, step->entry_count, d->logits, on_layer, d);
    if (st == KVS_OK)
        finish_rows(d, step);
    return st;
}

static void device_thread(void *arg)
{
    struct wrk_device *d = arg;
    kvs_fp_environment();
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        while (!d->closing && (d->step == NULL || d->done))
            pthread_cond_wait(&d->work, &d->mutex);
        if (d->closing)
            break;
        const struct wrk_step *step = d->step;
        pthread_mutex_unlock(&d->mutex);
        uint64_t begin_us = kvs_now_us();
        kvs_status st = run_step(d, step);
        pthread_mutex_lock(&d->mutex);
        d->step_us = kvs_now_us() - begin_us;
        d->status = st;
        d->done = true;
        d->c.wake(d->c.wake_user);
    }
    pthread_mutex_unlock(&d->mutex);
}

kvs_status wrk_device_create(const struct wrk_device_config *c, struct wrk_device **out, struct kvs_error *err)
{
    struct wrk_device *d = calloc(1, sizeof *d);
    if (d == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory for the device");
    d->c = *c;
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->work, NULL);
    kvs_status st = eng_ctx_create(c->model, c->layout, c->kv, &c->options, &d->ctx, err);
    if (st != KVS_OK)
        goto fail;
    size_t seqs = c->options.batch_seqs;
    d->parts = calloc(seqs, sizeof *d->parts);
    d->results = calloc(seqs, sizeof *d->results);
    d->logits = calloc(seqs * c->vocab, sizeof *d->logits);
    d->scratch = calloc(c->vocab, 8);
    d->loop_scratch = calloc(c->vocab, 8);
    d->ship = c->ship_rows == 0 ? NULL : calloc((size_t)c->ship_rows * c->vocab, sizeof *d->ship);
    if (d->parts == NULL || d->results == NULL || d->logits == NULL || d->scratch == NULL || d->loop_scratch == NULL ||
        (c->ship_rows != 0 && d->ship == NULL)) {
        st = kvs_fail(err, KVS_SELF_NOMEM, "out of memory for %zu rows of %u logits", seqs, c->vocab);
        goto fail;
    }
    st = kvs_thread_start("device", device_thread, d, &d->thread);
    if (st != KVS_OK) {
        (void)kvs_fail(err, st, "the device thread could not be started");
        goto fail;
    }
    *out = d;
    return KVS_OK;
fail:
    wrk_device_destroy(d);
    return st;
}

void wrk_device_destroy(struct wrk_device *d)
{
    if (d == NULL)
        return;
    atomic_store(&d->stop, true);
    pthread_mutex_lock(&d->mutex);
    d->closing = true;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mutex);
    kvs_thread_join(d->thread);
    eng_ctx_destroy(d->ctx);
    free(d->parts);
    free(d->results);
    free(d->logits);
    free(d->scratch);
    free(d->loop_scratch);
    free(d->ship);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->mutex);
    free(d);
}

void wrk_device_submit(struct wrk_device *d, const struct wrk_step *step)
{
    KVS_ASSERT(step->entry_count <= d->c.options.batch_seqs && step->token_count <= d->c.options.batch_tokens);
    pthread_mutex_lock(&d->mutex);
    KVS_ASSERT(d->step == NULL && !d->done);
    d->step = step;
    d->step_id = step->id;
    d->layers_told = 0;
    atomic_store(&d->layers, 0);
    atomic_store(&d->stop, false);
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mutex);
}

void wrk_device_stop_step(struct wrk_device *d, bool stop)
{
    atomic_store_explicit(&d->stop, stop, memory_order_release);
}

bool wrk_device_take_layers(struct wrk_device *d, uint64_t *step_out, uint32_t *layers_out)
{
    uint32_t layers = atomic_load_explicit(&d->layers, memory_order_acquire);
    if (layers == d->layers_told)
        return false;
    d->layers_told = layers;
    *step_out = d->step_id;
    *layers_out = layers;
    return true;
}

bool wrk_device_take_done(struct wrk_device *d, uint64_t *step_out, kvs_status *status_out, const struct wrk_result **results_out)
{
    pthread_mutex_lock(&d->mutex);
    bool done = d->done;
    if (done) {
        d->done = false;
        d->step = NULL;
    }
    pthread_mutex_unlock(&d->mutex);
    if (!done)
        return false;
    *step_out = d->step_id;
    *status_out = d->status;
    *results_out = d->results;
    return true;
}

double wrk_device_step_s(const struct wrk_device *d)
{
    return (double)d->step_us * 1e-6;
}

const float *wrk_device_ship_row(const struct wrk_device *d, uint32_t slot)
{
    KVS_ASSERT(slot < d->c.ship_rows);
    return d->ship + (size_t)slot * d->c.vocab;
}

kvs_status wrk_device_sample(struct wrk_device *d, const float *row, const struct msg_sampling *p, uint32_t choice, uint32_t position,
                             struct wrk_result *out)
{
    struct eng_sampling sampling = sampling_of(p);
    struct eng_sample s = {0};
    kvs_status st = eng_sample_row(row, d->c.vocab, &sampling, choice, position, d->loop_scratch, &s);
    memset(out, 0, sizeof *out);
    out->status = st;
    result_from(&s, out);
    return st;
}
