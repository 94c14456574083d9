/* board.h - what the router knows, for readers on other threads: its metrics, its workers' metrics pages, status as JSON. One lock.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_BOARD_H
#define KVS_ROUTER_EDGE_BOARD_H

#include "proto/msg.h"
#include "router/edge/misfits.h"
#include "router/edge/recent.h"
#include "sys/metrics.h"

#define RTR_PAGE_MAX (8u << 20)

struct rtr_board;
struct rtr_worker_view {
    struct msg_card card;
    const char *state;           /* "ready", "joining", "draining", "refused", "suspect" */
    const char *why;             /* with refused */
    const struct msg_load *load; /* NULL: none yet */
    uint64_t load_age_ms;
};

struct rtr_status_view {
    const struct rtr_worker_view *workers;
    size_t count;
    uint32_t running, waiting; /* requests */
    uint64_t index_blocks, index_bytes, index_dropped;
    const struct rtr_recent *recent; /* NULL: none */
    const struct rtr_misfits *misfits; /* NULL: none */
    uint64_t now_us;
};

KVS_MUST_CHECK kvs_status rtr_board_create(struct kvs_metrics *metrics, const char *name, struct rtr_board **out);
void rtr_board_destroy(struct rtr_board *b);
struct kvs_metrics *rtr_board_metrics(struct rtr_board *b);
/* Loop thread. */
void rtr_board_page(struct rtr_board *b, const char *worker, const char *text, size_t n); /* text NULL: the worker is gone */
void rtr_board_status(struct rtr_board *b, const struct rtr_status_view *v);
void rtr_board_ready(struct rtr_board *b, bool ready, const char *why);
/* Any thread. */
bool rtr_board_is_ready(struct rtr_board *b, char *why_out, size_t cap);
KVS_MUST_CHECK kvs_status rtr_board_write_metrics(struct rtr_board *b, struct kvs_buf *out);
KVS_MUST_CHECK kvs_status rtr_board_write_status(struct rtr_board *b, struct kvs_buf *out);

/* Puts several Prometheus pages together: families once, samples of page i labelled worker="labels[i]" (no label where it is ""). */
KVS_MUST_CHECK kvs_status rtr_pages_merge(const char *const *labels, const struct kvs_buf *pages, size_t count, struct kvs_buf *out);

#endif
