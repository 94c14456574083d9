/* etcd_digest.c - see etcd_digest.h. Each of the two has one call under way at most.
 * A segment that another life of the member has left (its lease still runs) carries another epoch and is passed over.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/etcd_digest.h"

#include "net/etcd.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include <stdlib.h>
#include <string.h>

#define EVERY_US 1000000u
#define BODY_MAX (256u << 10)
#define ARENA_MAX (16u << 20)
#define WAITING_MAX MSG_MEMBERS_MAX

static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";

/* ".../cache/<model>/<id>/seg/" */
static void put_prefix(char *out, size_t cap, const char *cluster, const char *model, const char *id)
{
    size_t n = kvs_format(out, cap, "%s%s/cache/", CLS_ETCD_PREFIX, cluster);
    for (const char *c = model; *c; c++)
        n += strchr(plain, *c) ? kvs_format(out + n, cap - n, "%c", *c)
                               : kvs_format(out + n, cap - n, "%%%02X", (unsigned)(uint8_t)*c);
    kvs_format(out + n, cap - n, "/%s/seg/", id);
}

static kvs_status connect_etcd(struct kvs_loop *loop, const struct cls_etcd_config *c, struct net_etcd **out,
                               struct kvs_error *err)
{
    struct net_etcd_events none = {0};
    kvs_status s = net_etcd_create(loop, c->url, &none, out, err);
    if (s == KVS_OK && c->user && c->user[0])
        s = net_etcd_login(*out, c->user, c->password ? c->password : "", err);
    return s;
}

/* ---- writing ---- */

struct cls_digest_writer {
    struct cls_digest_writer_config c;
    struct net_etcd *etcd;
    struct kvs_timer *timer;
    char prefix[4 * MSG_ID_MAX + 3 * 128 + 64];
    uint64_t epoch;
    int64_t lease; /* under which the clean segments were written */
    bool busy;
    uint32_t segment, left; /* under way; how many more in this second */
    size_t bytes;
    struct cls_digest_writer_stats stats;
};

static void write_next(struct cls_digest_writer *w);

static void written(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    struct cls_digest_writer *w = user;
    (void)text;
    (void)answer;
    w->busy = false;
    if (s != KVS_OK) {
        w->stats.failures++;
        cls_digest_spoil(w->c.digest, w->segment);
        return; /* again when the timer says so */
    }
    w->stats.written++;
    w->stats.bytes += w->bytes;
    write_next(w);
}

static kvs_status send_segment(struct cls_digest_writer *w, const struct msg_cache_digest *d)
{
    struct kvs_buf value, body;
    char key[sizeof(w->prefix) + 16];
    kvs_buf_init(&value, MSG_PAYLOAD_MAX);
    kvs_buf_init(&body, BODY_MAX);
    kvs_format(key, sizeof(key), "%s%u", w->prefix, w->segment);
    kvs_status s = msg_cache_digest_encode(d, &value);
    if (s == KVS_OK)
        s = net_etcd_put_put(&body, key, value.data, value.len, w->lease);
    if (s == KVS_OK)
        s = net_etcd_call(w->etcd, NET_ETCD_PUT, &body, written, w);
    w->bytes = value.len;
    kvs_buf_fini(&value);
    kvs_buf_fini(&body);
    return s;
}

static void write_next(struct cls_digest_writer *w)
{
    struct msg_cache_digest d;
    if (w->busy || !w->left || !cls_digest_take(w->c.digest, &w->segment, &d))
        return;
    w->left--;
    d.epoch = w->epoch;
    w->busy = send_segment(w, &d) == KVS_OK;
    if (!w->busy) {
        w->stats.failures++;
        cls_digest_spoil(w->c.digest, w->segment);
    }
}

static void on_timer(void *user, uint64_t now_us)
{
    struct cls_digest_writer *w = user;
    int64_t lease = cls_etcd_lease(w->c.membership);
    w->c.refresh(w->c.user);
    if (lease != w->lease) {
        cls_digest_spoil_all(w->c.digest); /* they went with the old one */
        w->lease = lease;
    }
    w->left = CLS_DIGEST_WRITES;
    if (lease)
        write_next(w);
    kvs_timer_set(w->timer, now_us + EVERY_US);
}

kvs_status cls_digest_writer_create(const struct cls_digest_writer_config *c, struct cls_digest_writer **out,
                                    struct kvs_error *err)
{
    struct cls_digest_writer *w = calloc(1, sizeof(*w));
    if (!w)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    w->c = *c;
    w->epoch = c->card->epoch;
    put_prefix(w->prefix, sizeof(w->prefix), c->etcd->cluster, c->card->model, c->card->id);
    w->c.card = NULL;
    w->c.etcd = NULL; /* not ours to keep */
    kvs_status s = connect_etcd(c->loop, c->etcd, &w->etcd, err);
    if (s == KVS_OK && kvs_timer_create(c->loop, on_timer, w, &w->timer) != KVS_OK)
        s = kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    if (s != KVS_OK) {
        cls_digest_writer_destroy(w);
        return s;
    }
    kvs_timer_set(w->timer, kvs_now_us() + EVERY_US);
    *out = w;
    return KVS_OK;
}

void cls_digest_writer_destroy(struct cls_digest_writer *w)
{
    if (!w)
        return;
    if (w->timer)
        kvs_timer_destroy(w->timer);
    net_etcd_destroy(w->etcd);
    free(w);
}

void cls_digest_writer_stats(const struct cls_digest_writer *w, struct cls_digest_writer_stats *out)
{
    *out = w->stats;
}

/* ---- reading ---- */

struct wanted {
    char id[MSG_ID_MAX];
    char model[sizeof(((struct msg_card *)0)->model)];
    uint64_t epoch;
};

struct cls_digest_reader {
    struct net_etcd *etcd;
    struct kvs_timer *timer; /* starts the next one: never from inside an answer */
    cls_digest_fn fn;
    void *user;
    char cluster[MSG_ID_MAX];
    struct wanted wanted[WAITING_MAX]; /* a ring */
    uint32_t first, count;
    bool busy;
};

static void read_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    struct cls_digest_reader *r = user;
    struct wanted w = r->wanted[r->first];
    struct kvs_arena arena;
    (void)text;
    r->busy = false;
    r->first = (r->first + 1) % WAITING_MAX;
    r->count--;
    kvs_timer_set(r->timer, kvs_now_us());
    for (uint32_t i = 0; s == KVS_OK && i < answer->kv_count; i++) {
        struct msg_cache_digest d;
        kvs_arena_init(&arena, ARENA_MAX);
        if (msg_cache_digest_decode(answer->kvs[i].value, answer->kvs[i].value_bytes, &arena, &d, NULL) == KVS_OK &&
            d.epoch == w.epoch)
            r->fn(r->user, w.id, w.epoch, &d);
        kvs_arena_fini(&arena);
    }
}

static void read_next(void *user, uint64_t now_us)
{
    struct cls_digest_reader *r = user;
    const struct wanted *w = &r->wanted[r->first];
    char prefix[4 * MSG_ID_MAX + 3 * 128 + 64];
    struct kvs_buf body;
    if (r->busy || !r->count)
        return;
    put_prefix(prefix, sizeof(prefix), r->cluster, w->model, w->id);
    kvs_buf_init(&body, BODY_MAX);
    r->busy = net_etcd_put_range(&body, prefix, CLS_DIGEST_SEGMENTS_MAX) == KVS_OK &&
              net_etcd_call(r->etcd, NET_ETCD_RANGE, &body, read_done, r) == KVS_OK;
    kvs_buf_fini(&body);
    if (!r->busy) { /* no memory: this one goes without */
        r->first = (r->first + 1) % WAITING_MAX;
        r->count--;
        kvs_timer_set(r->timer, now_us);
    }
}

kvs_status cls_digest_read(struct cls_digest_reader *r, const struct msg_card *card)
{
    if (r->count == WAITING_MAX)
        return KVS_BUSY_FULL;
    struct wanted *w = &r->wanted[(r->first + r->count++) % WAITING_MAX];
    memcpy(w->id, card->id, sizeof(w->id));
    memcpy(w->model, card->model, sizeof(w->model));
    w->epoch = card->epoch;
    kvs_timer_set(r->timer, kvs_now_us());
    return KVS_OK;
}

kvs_status cls_digest_reader_create(struct kvs_loop *loop, const struct cls_etcd_config *etcd, cls_digest_fn fn,
                                    void *user, struct cls_digest_reader **out, struct kvs_error *err)
{
    struct cls_digest_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    r->fn = fn;
    r->user = user;
    kvs_format(r->cluster, sizeof(r->cluster), "%s", etcd->cluster);
    kvs_status s = connect_etcd(loop, etcd, &r->etcd, err);
    if (s == KVS_OK && kvs_timer_create(loop, read_next, r, &r->timer) != KVS_OK)
        s = kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    if (s != KVS_OK) {
        cls_digest_reader_destroy(r);
        return s;
    }
    *out = r;
    return KVS_OK;
}

void cls_digest_reader_destroy(struct cls_digest_reader *r)
{
    if (!r)
        return;
    if (r->timer)
        kvs_timer_destroy(r->timer);
    net_etcd_destroy(r->etcd);
    free(r);
}
