/* cache.c - see cache.h. An item is read with a copy of the reader, which is kept only when the item was taken.
 * Failpoint cache.skip: an item is thrown away as if it had been sent, so that the router sees a hole.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/edge/cache.h"

#include "cluster/etcd_digest.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "sys/failpoint.h"
#include "sys/log.h"
#include "worker/core/digest.h"
#include <stdlib.h>
#include <string.h>

#define CALLS_MAX 16 /* routers */
#define DIGEST_STEPS 16384u /* places of the tree, or events, that are looked at in one turn of a second */

struct wrk_cache {
    struct wrk_worker *w;
    struct {
        net_conn conn; /* 0: free */
        uint32_t stream;
        struct wrk_reader reader;
    } call[CALLS_MAX];
    struct wrk_cache_item item; /* scratch */
    struct wrk_follow events;
    struct kvs_counter *snapshots;
    /* with etcd: */
    struct cls_digest *digest;
    struct wrk_digest follow;
    struct cls_digest_writer *writer;
    struct wrk_follow written, failed;
    struct kvs_gauge *digest_entries;
};

kvs_status wrk_cache_create(struct wrk_worker *w, struct wrk_cache **out)
{
    struct wrk_cache *c = calloc(1, sizeof *c);
    if (c == NULL)
        return KVS_SELF_NOMEM;
    c->w = w;
    struct kvs_metrics *m = wrk_worker_metrics(w);
    c->events.counter = kvs_counter(m, "kvasir_cache_events_total", "", "Blocks that came into the prefix cache or left it.");
    c->snapshots = kvs_counter(m, "kvasir_cache_snapshots_total", "", "Snapshots of the prefix cache begun for routers.");
    *out = c;
    return KVS_OK;
}

static void refresh_digest(void *user)
{
    struct wrk_cache *c = user;
    struct wrk_sched *sched = wrk_worker_sched(c->w);
    struct cls_digest_stats d;
    struct cls_digest_writer_stats st;
    (void)wrk_digest_follow(&c->follow, wrk_sched_events(sched), wrk_sched_tree(sched), DIGEST_STEPS, c->digest);
    cls_digest_stats(c->digest, &d);
    cls_digest_writer_stats(c->writer, &st);
    kvs_gauge_set(c->digest_entries, d.entries);
    wrk_follow(&c->written, st.written);
    wrk_follow(&c->failed, st.failures);
}

kvs_status wrk_cache_publish(struct wrk_cache *c, struct kvs_loop *loop, const struct cls_etcd_config *etcd, struct cls_discovery *discovery,
                             struct kvs_error *err)
{
    struct kvs_metrics *m = wrk_worker_metrics(c->w);
    if (wrk_sched_events(wrk_worker_sched(c->w)) == NULL)
        return KVS_OK; /* no cache, no digest */
    c->digest_entries = kvs_gauge(m, "kvasir_cache_digest_prefixes", "", "Prefixes in this worker's digest.");
    c->written.counter = kvs_counter(m, "kvasir_cache_digest_writes_total", "result=\"ok\"", "Segments of the digest written to etcd.");
    c->failed.counter = kvs_counter(m, "kvasir_cache_digest_writes_total", "result=\"failed\"", "Segments of the digest written to etcd.");
    if (cls_digest_create(CLS_DIGEST_ENTRIES_MAX, &c->digest) != KVS_OK)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    return cls_digest_writer_create(&(struct cls_digest_writer_config){.loop = loop,
                                                                       .etcd = etcd,
                                                                       .membership = discovery,
                                                                       .card = wrk_worker_card(c->w),
                                                                       .digest = c->digest,
                                                                       .refresh = refresh_digest,
                                                                       .user = c},
                                    &c->writer, err);
}

void wrk_cache_destroy(struct wrk_cache *c)
{
    if (c == NULL)
        return;
    cls_digest_writer_destroy(c->writer);
    cls_digest_destroy(c->digest);
    free(c);
}

static void refuse(struct wrk_cache *c, net_conn conn, uint32_t stream, kvs_status st, const char *text)
{
    struct msg_end end = {.status = st};
    kvs_format(end.text, sizeof end.text, "%s", text);
    net_rpc_end(wrk_worker_rpc(c->w), conn, stream, &end);
}

void wrk_cache_call(struct wrk_cache *c, net_conn conn, uint32_t stream)
{
    if (wrk_sched_events(wrk_worker_sched(c->w)) == NULL) {
        refuse(c, conn, stream, KVS_REQ_UNSUPPORTED, "this worker keeps no prefixes");
        return;
    }
    if (wrk_peers_is_peer(wrk_worker_peers(c->w), conn)) {
        refuse(c, conn, stream, KVS_REQ_DENIED, "cache events are for routers");
        return;
    }
    for (uint32_t i = 0; i < CALLS_MAX; i++) {
        if (c->call[i].conn != 0)
            continue;
        c->call[i].conn = conn;
        c->call[i].stream = stream;
        c->call[i].reader = (struct wrk_reader){0};
        return; /* the pump follows */
    }
    refuse(c, conn, stream, KVS_BUSY_FULL, "this worker tells enough routers already");
}

bool wrk_cache_cancel(struct wrk_cache *c, net_conn conn, uint32_t stream)
{
    for (uint32_t i = 0; i < CALLS_MAX; i++) {
        if (c->call[i].conn != conn || c->call[i].stream != stream)
            continue;
        memset(&c->call[i], 0, sizeof c->call[i]);
        refuse(c, conn, stream, KVS_REQ_CANCELLED, "");
        return true;
    }
    return false;
}

void wrk_cache_conn_down(struct wrk_cache *c, net_conn conn)
{
    for (uint32_t i = 0; i < CALLS_MAX; i++)
        if (c->call[i].conn == conn)
            memset(&c->call[i], 0, sizeof c->call[i]);
}

/* One item; false: nothing new, or no credit. */
static bool send_item(struct wrk_cache *c, uint32_t i)
{
    struct wrk_sched *sched = wrk_worker_sched(c->w);
    struct wrk_reader next = c->call[i].reader;
    struct kvs_buf body;
    if (!wrk_events_read(wrk_sched_events(sched), wrk_sched_tree(sched), &next, MSG_CACHE_BLOCKS_MAX, &c->item))
        return false;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_cache_events_encode(&c->item.msg, &body);
    if (st == KVS_OK && !(c->item.msg.count > 0 && !c->item.msg.snapshot_begin && KVS_FAILPOINT("cache.skip")))
        st = net_rpc_item(wrk_worker_rpc(c->w), c->call[i].conn, c->call[i].stream, body.data, body.len);
    kvs_buf_fini(&body);
    if (st == KVS_OK) {
        c->call[i].reader = next;
        kvs_counter_add(c->snapshots, c->item.msg.snapshot_begin);
    } else if (!kvs_is_busy(st)) {
        KVS_DEBUG("cache events not sent", "conn=%llu status=%s", (unsigned long long)c->call[i].conn, kvs_status_name(st));
        refuse(c, c->call[i].conn, c->call[i].stream, st, "");
        memset(&c->call[i], 0, sizeof c->call[i]);
    }
    return st == KVS_OK;
}

void wrk_cache_pump(struct wrk_cache *c)
{
    const struct wrk_events *events = wrk_sched_events(wrk_worker_sched(c->w));
    if (events == NULL)
        return;
    wrk_follow(&c->events, wrk_events_next(events));
    for (uint32_t i = 0; i < CALLS_MAX; i++)
        while (c->call[i].conn != 0 && send_item(c, i)) {}
}
