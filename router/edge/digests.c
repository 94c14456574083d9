/* digests.c - with etcd: what a router that is new can know of the workers' caches before they have told it themselves.
 * The digest of every worker is read when its card is first seen, long before its stream is up, and kept until the worker is ready; then the
 * core has it, until the worker's own events replace it. Bounded: what is over BYTES_MAX is not kept (a digest is a hint).
 * Without etcd there is nothing to read: the one router asks the workers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/dispatch_impl.h"

#include "cluster/etcd_digest.h"
#include "sys/log.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX ((size_t)32 << 20)

struct part { /* a segment */
    struct part *next;
    char id[MSG_ID_MAX];
    uint64_t epoch;
    uint32_t count;
    uint8_t hashes[];
};

struct rtr_digests {
    struct rtr_dispatch *d;
    struct cls_digest_reader *reader;
    struct part *parts;
    size_t bytes;
    struct kvs_counter *read;
};

static size_t part_bytes(uint32_t count)
{
    return sizeof(struct part) + (size_t)count * MSG_BLOCK_HASH_BYTES;
}

static void feed(struct rtr_digests *g, const struct rtr_peer *p, const struct msg_cache_digest *m)
{
    rtr_feed(g->d, &(struct rtr_event){.type = RTR_EV_CACHE, .worker = p->conn, .digest = m});
}

static void on_digest(void *user, const char *id, uint64_t epoch, const struct msg_cache_digest *m)
{
    struct rtr_digests *g = user;
    kvs_counter_add(g->read, m->count);
    for (uint32_t i = 0; i < g->d->peer_count; i++) {
        const struct rtr_peer *p = g->d->peers[i];
        if (p->epoch == epoch && p->state == RTR_JOIN_READY && strcmp(p->id, id) == 0) {
            feed(g, p, m);
            return;
        }
    }
    size_t bytes = part_bytes(m->count);
    struct part *part = m->count && g->bytes + bytes <= BYTES_MAX ? malloc(bytes) : NULL;
    if (!part)
        return;
    *part = (struct part){.next = g->parts, .epoch = epoch, .count = m->count};
    kvs_format(part->id, sizeof(part->id), "%s", id);
    memcpy(part->hashes, m->hashes, (size_t)m->count * MSG_BLOCK_HASH_BYTES);
    g->parts = part;
    g->bytes += bytes;
}

/* Takes a worker's parts out of the list; p NULL: they are thrown away. */
static void take(struct rtr_digests *g, const char *id, uint64_t epoch, const struct rtr_peer *p)
{
    for (struct part **at = &g->parts; *at;) {
        struct part *part = *at;
        if (part->epoch != epoch || strcmp(part->id, id) != 0) {
            at = &part->next;
            continue;
        }
        *at = part->next;
        g->bytes -= part_bytes(part->count);
        if (p)
            feed(g, p, &(struct msg_cache_digest){.epoch = epoch, .hashes = part->hashes, .count = part->count});
        free(part);
    }
}

void rtr_digests_seen(struct rtr_dispatch *d, const struct msg_card *card)
{
    if (d->digests && cls_digest_read(d->digests->reader, card) != KVS_OK)
        KVS_INFO("digest not read", "worker=%s cause=\"too many at once\"", card->id);
}

void rtr_digests_gone(struct rtr_dispatch *d, const struct msg_card *card)
{
    if (d->digests)
        take(d->digests, card->id, card->epoch, NULL);
}

void rtr_digests_ready(struct rtr_dispatch *d, const struct rtr_peer *p)
{
    if (d->digests)
        take(d->digests, p->id, p->epoch, p);
}

kvs_status rtr_digests_create(struct rtr_dispatch *d, const struct cls_etcd_config *etcd, struct kvs_error *err)
{
    struct rtr_digests *g = calloc(1, sizeof(*g));
    if (!g)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    d->digests = g;
    g->d = d;
    g->read = kvs_counter(rtr_board_metrics(d->board), "kvasir_router_digest_prefixes_total", "",
                          "Prefixes read from workers' digests in etcd.");
    return cls_digest_reader_create(d->loop, etcd, on_digest, g, &g->reader, err);
}

void rtr_digests_destroy(struct rtr_dispatch *d)
{
    struct rtr_digests *g = d->digests;
    if (!g)
        return;
    cls_digest_reader_destroy(g->reader);
    while (g->parts) {
        struct part *next = g->parts->next;
        free(g->parts);
        g->parts = next;
    }
    free(g);
    d->digests = NULL;
}
