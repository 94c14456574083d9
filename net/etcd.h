/* etcd.h - a client of etcd's v3 JSON gateway on the event loop. Edge; loop thread only.
 * A call is tried at one endpoint after the other, 1.5 s each, until one of them decides it; it ends exactly once. A
 * call that was sent but not answered may have been carried out: callers use transactions that bear repeating. When to
 * call again after all endpoints failed is the caller's matter.
 * The watch is one POST that does not end by itself: lines come to on_line in order. It ends with on_watch_end when
 * etcd or the network ends it, when a call at the same endpoint has found it dead or hung (a watch alone cannot tell
 * silence from health, so whoever watches also makes calls, such as keepalives), and after what could not be
 * understood, and when memory or descriptors are lacking for it. After net_etcd_unwatch nothing of it comes any more.
 * All callbacks come from the loop, never from inside a call of this header; nothing is called back after
 * net_etcd_destroy, which may not be called from a callback. Answers are bounded (8 MiB): more is an error, not memory.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_ETCD_H
#define KVS_NET_ETCD_H

#include "net/etcd_codec.h"
#include "sys/loop.h"

#define NET_ETCD_ENDPOINTS_MAX 8u
#define NET_ETCD_CALLS_MAX 8u
#define NET_ETCD_TRY_MS 1500u

struct net_etcd;

typedef enum net_etcd_op {
    NET_ETCD_GRANT,
    NET_ETCD_KEEPALIVE,
    NET_ETCD_REVOKE,
    NET_ETCD_RANGE,
    NET_ETCD_PUT,
    NET_ETCD_DELETE,
    NET_ETCD_TXN,
    NET_ETCD_AUTH, /* the client's own */
} net_etcd_op;

/* status: KVS_OK with answer; KVS_REQ_NOT_FOUND (a lease that is gone), KVS_REQ_DENIED, KVS_REQ_INVALID, KVS_BUSY_FULL
 * (etcd's own bounds): etcd decided so; KVS_PEER_*: no endpoint answered as it should, text is the last one's cause;
 * KVS_SELF_*: memory or descriptors are lacking here, and whether etcd has heard of it is not known. */
typedef void (*net_etcd_done_fn)(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer);

struct net_etcd_events {
    void *user;
    void (*on_line)(void *user, const struct net_etcd_watch_line *line);
    void (*on_watch_end)(void *user, kvs_status why, const char *text);
};

bool net_etcd_is_url(const char *url); /* begins with etcd:// */
/* "etcd://HOST:PORT[,HOST:PORT]..."; anything else is KVS_SELF_CONFIG with the remedy. */
KVS_MUST_CHECK kvs_status net_etcd_create(struct kvs_loop *loop, const char *url, const struct net_etcd_events *ev,
                                          struct net_etcd **out, struct kvs_error *err);
/* For an etcd with authentication: a token is fetched before the first call, and anew when etcd knows it no more. Right
 * after create. KVS_SELF_CONFIG when one of the two is too long. */
KVS_MUST_CHECK kvs_status net_etcd_login(struct net_etcd *e, const char *user, const char *password,
                                         struct kvs_error *err);
void net_etcd_destroy(struct net_etcd *e);

/* body is copied. KVS_BUSY_QUEUE: too many calls at once. */
KVS_MUST_CHECK kvs_status net_etcd_call(struct net_etcd *e, net_etcd_op op, const struct kvs_buf *body,
                                        net_etcd_done_fn done, void *user);
/* One watch at a time: an earlier one is dropped in silence. */
KVS_MUST_CHECK kvs_status net_etcd_watch(struct net_etcd *e, const char *prefix, int64_t start_revision);
void net_etcd_unwatch(struct net_etcd *e);

/* Blocks for at most limit_ms: for the end of a process. Best effort at the endpoint that answered last. */
void net_etcd_revoke_now(struct net_etcd *e, int64_t lease, uint32_t limit_ms);

#endif
