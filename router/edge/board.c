/* board.c - see board.h. Readers never wait for the loop's work, and the loop waits for readers only as long as they copy.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/board.h"

#include "base/json.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGES_MAX 256

struct page {
    char worker[MSG_ID_MAX];
    struct kvs_buf text;
};
struct rtr_board {
    struct kvs_metrics *metrics;
    char name[MSG_ID_MAX];
    uint64_t epoch;
    pthread_mutex_t lock; /* guards all below */
    struct page page[PAGES_MAX];
    size_t pages;
    struct kvs_buf status;
    kvs_status status_made; /* not OK: why it is empty */
    bool ready;
    char why[160];
};

kvs_status rtr_board_create(struct kvs_metrics *metrics, const char *name, struct rtr_board **out)
{
    struct rtr_board *b = calloc(1, sizeof(*b));
    if (!b)
        return KVS_SELF_NOMEM;
    b->metrics = metrics;
    kvs_format(b->name, sizeof(b->name), "%s", name);
    b->epoch = kvs_random_u64();
    pthread_mutex_init(&b->lock, NULL);
    kvs_buf_init(&b->status, RTR_PAGE_MAX);
    kvs_format(b->why, sizeof(b->why), "no worker has joined yet");
    rtr_board_status(b, &(struct rtr_status_view){.count = 0});
    *out = b;
    return KVS_OK;
}

void rtr_board_destroy(struct rtr_board *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->pages; i++)
        kvs_buf_fini(&b->page[i].text);
    kvs_buf_fini(&b->status);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

struct kvs_metrics *rtr_board_metrics(struct rtr_board *b)
{
    return b->metrics;
}

void rtr_board_page(struct rtr_board *b, const char *worker, const char *text, size_t n)
{
    pthread_mutex_lock(&b->lock);
    size_t i = 0;
    while (i < b->pages && strcmp(b->page[i].worker, worker) != 0)
        i++;
    if (!text && i < b->pages) {
        kvs_buf_fini(&b->page[i].text);
        b->page[i] = b->page[--b->pages];
    } else if (text && i < PAGES_MAX) {
        struct page *p = &b->page[i];
        if (i == b->pages) {
            kvs_format(p->worker, sizeof(p->worker), "%s", worker);
            kvs_buf_init(&p->text, MSG_METRICS_MAX);
            b->pages++;
        }
        kvs_buf_clear(&p->text);
        if (kvs_buf_append(&p->text, text, n) != KVS_OK)
            kvs_buf_clear(&p->text);
    }
    pthread_mutex_unlock(&b->lock);
}

static void pages_json(const struct msg_load *l, struct kvs_json *j)
{
    kvs_json_key(j, "pages");
    kvs_json_array(j);
    for (uint32_t g = 0; l && g < l->group_count; g++) {
        kvs_json_object(j);
        const struct {
            const char *key;
            uint32_t n;
        } fields[] = {{"group", g},
                      {"total", l->pages[g].total},
                      {"free", l->pages[g].free},
                      {"cached", l->pages[g].cached},
                      {"held", l->pages[g].held},
                      {"fenced", l->pages[g].fenced}};
        for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
            kvs_json_field_u64(j, fields[i].key, fields[i].n);
        }
        kvs_json_object_end(j);
    }
    kvs_json_array_end(j);
}

static void fingerprint_field(struct kvs_json *j, const uint8_t *bytes)
{
    char hex[65];
    for (size_t i = 0; i < 32; i++)
        kvs_format(hex + 2 * i, sizeof(hex) - 2 * i, "%02x", bytes[i]);
    kvs_json_field_string(j, "fingerprint", hex);
}

static void epoch_field(struct kvs_json *j, uint64_t epoch)
{
    char hex[24];
    kvs_format(hex, sizeof(hex), "%016" PRIx64, epoch);
    kvs_json_field_string(j, "epoch", hex);
}

static void speed_json(const struct msg_speed *s, struct kvs_json *j)
{
    kvs_json_key(j, "speed");
    kvs_json_object(j);
    kvs_json_field_u64(j, "prefill_samples", s->prefill_samples);
    kvs_json_field_f64(j, "prefill_fixed_s", s->prefill_fixed_s);
    kvs_json_field_f64(j, "prefill_token_s", s->prefill_token_s);
    kvs_json_field_f64(j, "prefill_pair_s", s->prefill_pair_s);
    kvs_json_field_u64(j, "step_samples", s->step_samples);
    kvs_json_field_f64(j, "step_fixed_s", s->step_fixed_s);
    kvs_json_field_f64(j, "step_sequence_s", s->step_sequence_s);
    kvs_json_field_f64(j, "step_context_s", s->step_context_s);
    kvs_json_object_end(j);
}

static void worker_json(const struct rtr_worker_view *w, struct kvs_json *j)
{
    const struct msg_load *l = w->load;
    kvs_json_object(j);
    kvs_json_field_string(j, "id", w->card.id);
    kvs_json_field_string(j, "role", msg_role_name(w->card.role));
    kvs_json_field_u64(j, "pid", w->card.pid);
    epoch_field(j, w->card.epoch);
    kvs_json_field_string(j, "state", w->state);
    kvs_json_field_string(j, "why", w->why ? w->why : "");
    kvs_json_field_string(j, "model", w->card.model);
    kvs_json_field_string(j, "control_url", w->card.control_url);
    kvs_json_field_string(j, "http_url", w->card.http_url);
    kvs_json_field_string(j, "numerics", w->card.numerics);
    kvs_json_field_string(j, "layout", w->card.layout);
    kvs_json_field_string(j, "kv_types", w->card.kv_types);
    kvs_json_field_string(j, "rope", w->card.rope);
    fingerprint_field(j, w->card.fingerprint);
    kvs_json_field_u64(j, "context", w->card.context);
    kvs_json_field_u64(j, "block_tokens", w->card.block_tokens);
    pages_json(l, j);
    kvs_json_field_u64(j, "running", l ? l->running : 0);
    kvs_json_field_u64(j, "waiting", l ? l->waiting : 0);
    kvs_json_field_u64(j, "outstanding_tokens", l ? l->outstanding_tokens : 0);
    kvs_json_field_u64(j, "load_age_ms", l ? w->load_age_ms : 0);
    kvs_json_field_u64(j, "prefill_left", l ? l->prefill_left : 0);
    if (l)
        speed_json(&l->speed, j);
    kvs_json_key(j, "peers");
    kvs_json_array(j);
    for (uint32_t i = 0; l && i < l->peer_count; i++) {
        kvs_json_object(j);
        kvs_json_field_string(j, "id", l->peers[i].id);
        kvs_json_field_string(j, "transport", l->peers[i].transport);
        kvs_json_field_u64(j, "samples", l->peers[i].samples);
        kvs_json_field_f64(j, "latency_s", l->peers[i].latency_s);
        kvs_json_field_f64(j, "byte_s", l->peers[i].byte_s);
        kvs_json_object_end(j);
    }
    kvs_json_array_end(j);
    kvs_json_object_end(j);
}

void rtr_board_status(struct rtr_board *b, const struct rtr_status_view *v)
{
    static const struct rtr_recent none;
    static const struct rtr_misfits nobody;
    struct kvs_json j;
    pthread_mutex_lock(&b->lock);
    kvs_buf_clear(&b->status);
    kvs_json_begin(&j, &b->status);
    kvs_json_object(&j);
    kvs_json_key(&j, "router");
    kvs_json_object(&j);
    kvs_json_field_string(&j, "id", b->name);
    kvs_json_field_u64(&j, "pid", (uint64_t)getpid());
    epoch_field(&j, b->epoch);
    kvs_json_field_string(&j, "version", KVASIR_VERSION);
    kvs_json_field_bool(&j, "ready", b->ready);
    kvs_json_field_u64(&j, "running", v->running);
    kvs_json_field_u64(&j, "waiting", v->waiting);
    kvs_json_field_u64(&j, "index_blocks", v->index_blocks);
    kvs_json_field_u64(&j, "index_bytes", v->index_bytes);
    kvs_json_field_u64(&j, "index_dropped", v->index_dropped);
    kvs_json_object_end(&j);
    kvs_json_key(&j, "workers");
    kvs_json_array(&j);
    for (size_t i = 0; i < v->count; i++)
        worker_json(&v->workers[i], &j);
    kvs_json_array_end(&j);
    kvs_json_key(&j, "misfits");
    rtr_misfits_json(v->misfits ? v->misfits : &nobody, v->now_us, &j);
    kvs_json_key(&j, "placements");
    rtr_recent_json(v->recent ? v->recent : &none, v->now_us, &j);
    kvs_json_object_end(&j);
    b->status_made = kvs_json_end(&j);
    pthread_mutex_unlock(&b->lock);
}

void rtr_board_ready(struct rtr_board *b, bool ready, const char *why)
{
    pthread_mutex_lock(&b->lock);
    b->ready = ready;
    kvs_format(b->why, sizeof(b->why), "%s", why);
    pthread_mutex_unlock(&b->lock);
}

bool rtr_board_is_ready(struct rtr_board *b, char *why_out, size_t cap)
{
    pthread_mutex_lock(&b->lock);
    bool ready = b->ready;
    kvs_format(why_out, cap, "%s", b->why);
    pthread_mutex_unlock(&b->lock);
    return ready;
}

kvs_status rtr_board_write_status(struct rtr_board *b, struct kvs_buf *out)
{
    pthread_mutex_lock(&b->lock);
    kvs_status s = b->status_made;
    if (s == KVS_OK)
        s = kvs_buf_append(out, b->status.data, b->status.len);
    pthread_mutex_unlock(&b->lock);
    return s;
}

kvs_status rtr_board_write_metrics(struct rtr_board *b, struct kvs_buf *out)
{
    const char *labels[PAGES_MAX + 1] = {""};
    struct kvs_buf *pages = calloc(PAGES_MAX + 1, sizeof(*pages));
    if (!pages)
        return KVS_SELF_NOMEM;
    kvs_buf_init(&pages[0], RTR_PAGE_MAX);
    kvs_status s = kvs_metrics_write(b->metrics, &pages[0]);
    pthread_mutex_lock(&b->lock);
    for (size_t i = 0; i < b->pages; i++) {
        pages[i + 1] = b->page[i].text; /* borrowed while the lock is held */
        labels[i + 1] = b->page[i].worker;
    }
    if (s == KVS_OK)
        s = rtr_pages_merge(labels, pages, b->pages + 1, out);
    pthread_mutex_unlock(&b->lock);
    kvs_buf_fini(&pages[0]);
    free(pages);
    return s;
}
