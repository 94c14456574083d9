/* discovery.h - who is in the cluster, behind one op table: `embedded` (the one router keeps the registry), or etcd.
 * Edge; loop thread. A member is reported by on_member with PUT/GONE; SNAPSHOT_END says that the first view is
 * complete.
 * Losing the backend never removes members by itself: on_backend tells, and the last view stays.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLUSTER_DISCOVERY_H
#define KVS_CLUSTER_DISCOVERY_H

#include "net/rpc.h"
#include "proto/msg.h"

struct cls_discovery;

#define CLS_EMBEDDED_MEMBERS_MAX 256  /* a fleet beyond this wants etcd */
#define CLS_EMBEDDED_TTL_US 1000000   /* after the loss of a member's stream; reconnecting takes some 50 ms */
#define CLS_EMBEDDED_GRACE_US 3000000 /* for members that a router does not know yet that was restarted or stopped */

/* Events come from the loop, never from inside a call of this header. The own card comes back as a member, too. */
struct cls_events {
    void *user;
    void (*on_member)(void *user, const struct msg_member *m);
    void (*on_backend)(void *user, bool up, const char *text);
};
struct cls_ops {
    const char *name;                                                         /* "embedded", "etcd" */
    kvs_status (*join)(struct cls_discovery *d, const struct msg_card *card); /* again with the same epoch: an update */
    void (*leave)(struct cls_discovery *d);
    void (*destroy)(struct cls_discovery *d);
};
struct cls_discovery {
    const struct cls_ops *ops;
};

/* Router's side of the embedded backend: serves MSG_REGISTER calls that the owner of the rpc hands over. A second
 * router's registration is refused. Workers register over their control stream; the lease is kept alive by the
 * stream's own heartbeats and ends TTL after loss. */
KVS_MUST_CHECK kvs_status cls_embedded_server_create(struct kvs_loop *loop, struct net_rpc *rpc,
                                                     const struct cls_events *ev, struct cls_discovery **out);
void cls_embedded_server_call(struct cls_discovery *d, net_conn conn, uint32_t stream, const struct msg_call *call);
void cls_embedded_server_cancel(struct cls_discovery *d, net_conn conn, uint32_t stream);
void cls_embedded_server_down(struct cls_discovery *d, net_conn conn);

/* Worker's side: uses the connection to the router (router_conn given by _up) for MSG_REGISTER; re-registers by itself
 * after reconnects. */
KVS_MUST_CHECK kvs_status cls_embedded_client_create(struct kvs_loop *loop, struct net_rpc *rpc,
                                                     const struct cls_events *ev, struct cls_discovery **out);
void cls_embedded_client_up(struct cls_discovery *d, net_conn router_conn);
void cls_embedded_client_down(struct cls_discovery *d, net_conn router_conn);
bool cls_embedded_client_item(struct cls_discovery *d, net_conn conn, uint32_t stream, const uint8_t *payload,
                              size_t n); /* true: was ours */
bool cls_embedded_client_end(struct cls_discovery *d, net_conn conn, uint32_t stream, const struct msg_end *end);

/* etcd: every daemon, routers too, keeps its card under /kvasir/v1/<cluster>/members/<id> on a lease of ttl_us (whole
 * seconds count) and watches all of them. Any number of routers. Events:
 *   GONE  the key is gone (lease ended, or leave()) while etcd is in good health; within ttl_us of a return of etcd, or of
 *         its first word after two thirds of that, it is held back that long, since members that are alive put their keys
 *         again; while etcd is away nobody is GONE. GONE is what etcd says, no more: who
 *         holds a live stream to that member keeps using it until the stream fails, too.
 *   on_backend(false) etcd cannot be reached, has refused our registration, or our name belongs to another process now
 *         (then for good, until that one's key is gone); (true): registered and watching, also again.
 * The first view comes after the first try to register. Cards that do not decode or lie under another's key are left
 * out and counted. After destroy without leave the lease ends by itself. */
#define CLS_ETCD_TTL_US 10000000
#define CLS_ETCD_PREFIX "/kvasir/v1/"
#define CLS_ETCD_MEMBERS CLS_ETCD_PREFIX "%s/members/" /* format: the cluster's name */
struct cls_etcd_stats {
    bool registered, watching, replaced;
    uint32_t members;
    uint64_t ignored, ranges, watches, leases, failures;
    uint64_t silent_watches; /* ended for keeping to themselves what etcd had */
};
struct cls_etcd_config {
    const char *url, *cluster;
    uint64_t ttl_us;
    const char *user, *password; /* of an etcd with authentication; NULL or "" else */
};
KVS_MUST_CHECK kvs_status cls_etcd_create(struct kvs_loop *loop, const struct cls_etcd_config *config,
                                          const struct cls_events *ev, struct cls_discovery **out,
                                          struct kvs_error *err);
void cls_etcd_stats(const struct cls_discovery *d, struct cls_etcd_stats *out);
/* How all daemons call that counter. */
#define CLS_SILENT_WATCHES "kvasir_discovery_silent_watches_total"
#define CLS_SILENT_WATCHES_HELP "Watches of etcd that kept to themselves what etcd had, and were begun anew"
/* The lease on which our card lies now; 0: it lies nowhere. What else hangs on it (digests) is to be put again when it changes. */
int64_t cls_etcd_lease(const struct cls_discovery *d);
/* For the end of a process, whose loop turns no more: leave(), and waits at most wait_ms for etcd to know of it. */
void cls_etcd_leave_now(struct cls_discovery *d, uint32_t wait_ms);

#endif
