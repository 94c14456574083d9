/* ops_http.h - the small HTTP server of every daemon: GET /metrics, /health/live, /health/ready, /version
 * (libmicrohttpd, one thread).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_OPS_HTTP_H
#define KVS_NET_OPS_HTTP_H

#include "base/buf.h"

struct net_ops;
struct net_ops_config {
    const char *listen;                                     /* "127.0.0.1:0" */
    kvs_status (*metrics)(void *user, struct kvs_buf *out); /* called on the server's thread */
    bool (*ready)(void *user, char *why_out, size_t cap);   /* the same */
    void *user;
};
KVS_MUST_CHECK kvs_status net_ops_start(const struct net_ops_config *c, struct net_ops **out, char *url_out,
                                        size_t url_cap, struct kvs_error *err);
void net_ops_stop(struct net_ops *o);

/* Splits "HOST:PORT" / "[v6]:PORT"; KVS_SELF_CONFIG with the remedy otherwise. */
KVS_MUST_CHECK kvs_status net_parse_listen(const char *text, char *host_out, size_t host_cap, uint16_t *port_out,
                                           struct kvs_error *err);

/* A bound, listening, non-blocking socket with CLOEXEC (for MHD_OPTION_LISTEN_SOCKET) and its URL with the real
 * port; a port in use or a bad text is KVS_SELF_CONFIG with the remedy. */
KVS_MUST_CHECK kvs_status net_listen_socket(const char *listen_text, int *fd_out, char *url_out, size_t url_cap,
                                            struct kvs_error *err);

#endif
