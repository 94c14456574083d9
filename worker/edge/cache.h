/* cache.h - tells routers what this worker's prefix cache holds: serves the long Cache calls. Loop thread.
 * Each call has a reader of the scheduler's log (worker/core/events.h): a snapshot, then events as they come; one that is slow to give credit
 * falls behind the log and gets another snapshot, so a router can neither hold up the worker nor make it buffer.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_CACHE_H
#define KVS_WORKER_EDGE_CACHE_H

#include "cluster/discovery.h"
#include "worker/edge/worker.h"

struct wrk_cache;

KVS_MUST_CHECK kvs_status wrk_cache_create(struct wrk_worker *w, struct wrk_cache **out);
void wrk_cache_destroy(struct wrk_cache *c);
/* With etcd: keeps this worker's digest there, beside its card. discovery outlives c. */
KVS_MUST_CHECK kvs_status wrk_cache_publish(struct wrk_cache *c, struct kvs_loop *loop, const struct cls_etcd_config *etcd,
                                            struct cls_discovery *discovery, struct kvs_error *err);
void wrk_cache_call(struct wrk_cache *c, net_conn conn, uint32_t stream);
bool wrk_cache_cancel(struct wrk_cache *c, net_conn conn, uint32_t stream); /* true: it was one of these calls */
void wrk_cache_conn_down(struct wrk_cache *c, net_conn conn);
void wrk_cache_pump(struct wrk_cache *c); /* sends what is new, as far as there is credit */

#endif
