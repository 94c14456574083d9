/* serve.h - the calls that every worker answers whatever its roles: LOAD, MODEL_INFO, CACHE, HEALTH. Edge, loop thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_EDGE_SERVE_H
#define KVS_WORKER_EDGE_SERVE_H

#include "worker/edge/load.h"
#include "worker/edge/worker.h"

struct wrk_serve;

KVS_MUST_CHECK kvs_status wrk_serve_create(struct wrk_worker *w, const struct wrk_loaded *loaded, struct wrk_serve **out);
struct wrk_cache *wrk_serve_cache(struct wrk_serve *s);
void wrk_serve_destroy(struct wrk_serve *s);
bool wrk_serve_call(struct wrk_serve *s, net_conn conn, uint32_t stream, const struct msg_call *call); /* true: was one of these */
bool wrk_serve_cancel(struct wrk_serve *s, net_conn conn, uint32_t stream);
void wrk_serve_conn_down(struct wrk_serve *s, net_conn conn);
void wrk_serve_pump(struct wrk_serve *s);                       /* goes on with MODEL_INFO and CACHE where credit allows */
void wrk_serve_report(struct wrk_serve *s, bool draining);      /* one load report to everybody who asked */
uint64_t wrk_serve_told(const struct wrk_serve *s); /* prompt tokens that were still to be read, as the last report says */

#endif
