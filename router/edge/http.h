/* http.h - the HTTP front of the router (libmicrohttpd, epoll, a pool of threads): reads requests strictly, hands them to the loop, writes what
 * comes back. Threads: libmicrohttpd's own; start and stop are for the thread that owns the loop.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_HTTP_H
#define KVS_ROUTER_EDGE_HTTP_H

#include "router/edge/board.h"
#include "router/edge/dispatch.h"

struct rtr_http;
struct rtr_http_config {
    const char *listen; /* "127.0.0.1:8080", port 0: the kernel's choice */
    struct rtr_dispatch *dispatch;
    struct rtr_board *board;
    const char *auth;         /* key that orders to workers need as their bearer; NULL or "": they are taken from loopback only */
    uint32_t threads;         /* 1 or 2 */
    uint32_t connections_max;
    uint64_t body_us;         /* a request's body has so long to arrive, however steadily it trickles; 0: 60 s */
};
/* url_out: "http://127.0.0.1:8080". A port in use is KVS_SELF_CONFIG with the remedy. */
KVS_MUST_CHECK kvs_status rtr_http_start(const struct rtr_http_config *c, struct rtr_http **out, char *url_out, size_t url_cap,
                                         struct kvs_error *err);
/* Any thread: some request's answer is not yet wholly with the kernel. */
bool rtr_http_answering(const struct rtr_http *h);
/* First rtr_dispatch_stop, and the loop until rtr_dispatch_active is 0: a suspended connection cannot be stopped. What is not written is lost. */
void rtr_http_stop(struct rtr_http *h);

#endif
