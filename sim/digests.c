/* digests.c - with etcd: workers write digests of their caches, and a router that is new reads them when it first sees a card, long before the
 * worker's stream is up; then its core has them until the worker's own events replace them. Writer, reader and the choice of what stands in a
 * digest are the real ones; what is done with them is as worker/edge/cache.c and router/edge/digests.c do it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/seam.h"

#include "cluster/etcd_digest.h"
#include "sim/client.h"
#include "sim/env.h"
#include "sim/members.h"
#include "sim/worker.h"
#include "worker/core/digest.h"

#include <stdlib.h>
#include <string.h>

#define ENTRIES 1024u
#define STEPS 4096u

struct part { /* a segment that was read before its worker was ready */
    struct part *next;
    char id[MSG_ID_MAX];
    uint64_t epoch;
    uint32_t count;
    uint8_t hashes[];
};

struct sim_digests {
    struct sim_env env;
    /* a worker's */
    struct cls_digest *digest;
    struct wrk_digest follow;
    struct cls_digest_writer *writer;
    /* a router's */
    struct cls_digest_reader *reader;
    struct part *parts;
};

static void refresh(void *user)
{
    struct sim_digests *g = user;
    const struct sim_worker *w = g->env.s->node[g->env.node].worker;
    (void)wrk_digest_follow(&g->follow, wrk_sched_events(w->sched), wrk_sched_tree(w->sched), STEPS, g->digest);
    if (!cls_digest_consistent(g->digest))
        sim_fail(g->env.s, "%s: the digest of its cache is not consistent", g->env.s->node[g->env.node].id);
}

static void feed(struct sim_digests *g, uint64_t conn, const struct msg_cache_digest *m)
{
    sim_count(g->env.s, SIM_N_digest_prefixes, m->count);
    sim_router_feed(g->env.s, g->env.node, &(struct rtr_event){.type = RTR_EV_CACHE, .worker = conn, .digest = m});
}

static void on_digest(void *user, const char *id, uint64_t epoch, const struct msg_cache_digest *m)
{
    struct sim_digests *g = user;
    uint64_t conn = sim_router_conn(g->env.s, g->env.node, id, epoch);
    if (conn != 0) {
        feed(g, conn, m);
        return;
    }
    struct part *p = malloc(sizeof *p + (size_t)m->count * MSG_BLOCK_HASH_BYTES);
    KVS_ASSERT(p != NULL);
    *p = (struct part){.next = g->parts, .epoch = epoch, .count = m->count};
    kvs_format(p->id, sizeof p->id, "%s", id);
    memcpy(p->hashes, m->hashes, (size_t)m->count * MSG_BLOCK_HASH_BYTES);
    g->parts = p;
}

/* conn 0: they are thrown away. */
static void take(struct sim_digests *g, const char *id, uint64_t epoch, uint64_t conn)
{
    for (struct part **at = &g->parts; *at != NULL;) {
        struct part *p = *at;
        if (p->epoch != epoch || strcmp(p->id, id) != 0) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        if (conn != 0)
            feed(g, conn, &(struct msg_cache_digest){.epoch = epoch, .hashes = p->hashes, .count = p->count});
        free(p);
    }
}

void sim_digests_start(struct sim *s, uint32_t node)
{
    const struct cls_etcd_config etcd = {.url = "etcd://model", .cluster = "default", .ttl_us = s->set.lease_us};
    struct sim_digests *g = calloc(1, sizeof *g);
    kvs_status st = KVS_OK;
    KVS_ASSERT(g != NULL);
    s->node[node].digests = g;
    g->env = (struct sim_env){.s = s, .node = node, .life = s->node[node].life};
    if (s->set.etcd && sim_is_router(s, node)) {
        st = cls_digest_reader_create(sim_env_loop(&g->env), &etcd, on_digest, g, &g->reader, NULL);
    } else if (s->set.etcd && wrk_sched_events(s->node[node].worker->sched) != NULL) {
        st = cls_digest_create(ENTRIES, &g->digest);
        KVS_ASSERT(st == KVS_OK);
        const struct cls_digest_writer_config c = {.loop = sim_env_loop(&g->env), .etcd = &etcd, .membership = sim_members_discovery(s, node),
                                                   .card = &s->node[node].card, .digest = g->digest, .refresh = refresh, .user = g};
        st = cls_digest_writer_create(&c, &g->writer, NULL);
    }
    KVS_ASSERT(st == KVS_OK);
}

void sim_digests_stop(struct sim *s, uint32_t node)
{
    struct sim_digests *g = s->node[node].digests;
    if (g == NULL)
        return;
    if (g->writer != NULL)
        cls_digest_writer_destroy(g->writer);
    if (g->reader != NULL)
        cls_digest_reader_destroy(g->reader);
    cls_digest_destroy(g->digest);
    while (g->parts != NULL)
        take(g, g->parts->id, g->parts->epoch, 0);
    free(g);
    s->node[node].digests = NULL;
}

void sim_digests_member(struct sim *s, uint32_t node, const struct msg_member *m)
{
    struct sim_digests *g = s->node[node].digests;
    if (g == NULL || g->reader == NULL)
        return;
    if (m->change == MSG_MEMBER_GONE)
        take(g, m->card.id, m->card.epoch, 0);
    else if (m->card.role != MSG_ROLE_ROUTER && cls_digest_read(g->reader, &m->card) != KVS_OK)
        sim_note(s, node, "a digest is not read: too many at once%u", 0);
}

void sim_digests_ready(struct sim *s, uint32_t node, const struct msg_card *card, uint64_t conn)
{
    if (s->node[node].digests != NULL)
        take(s->node[node].digests, card->id, card->epoch, conn);
}
