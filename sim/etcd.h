/* etcd.h - a model of etcd as its clients meet it: keys with revisions, leases, watches, compaction; and what can befall it.
 *
 *   cluster/etcd.c (real) -> etcd_port.c (its client: calls with a time limit, one watch) -> messages with latency -> etcd.c (the store)
 *
 * What the model keeps of the original: a lease that ends takes its keys with it, up to a second late; a keepalive of a lease that is gone
 * is answered with TTL 0 or "not found"; leases start anew when the server does; a watch from before the compaction is canceled with the
 * revision and stays open; range and watch are two streams, so one may overtake the other; a request may be carried out though its answer is
 * lost, and late, when the server was stopped meanwhile; without a leader nothing is answered and watches end. A partition delays what is on its
 * way (TCP sends it again), so the caller's time limit decides what is lost.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_ETCD_H
#define KVS_SIM_ETCD_H

#include "net/etcd_codec.h"
#include "sim/world.h"

struct sim_etcd;

typedef enum sim_etcd_op {
    SIM_ETCD_GRANT = 1,
    SIM_ETCD_LEASE, /* keepalive and revoke have the same body */
    SIM_ETCD_RANGE,
    SIM_ETCD_PUT,
    SIM_ETCD_DELETE,
    SIM_ETCD_SWAP,
    SIM_ETCD_KEEPALIVE,
    SIM_ETCD_REVOKE,
    SIM_ETCD_WATCH
} sim_etcd_op;

/* A request, as the port's encoders write it into the body: this, then key and value. */
struct sim_etcd_request {
    sim_etcd_op op;
    uint32_t node, client, era; /* era: life of the server that the connection is to */
    uint64_t call;              /* or the watch's number */
    int64_t ttl, lease, mod_revision, limit, from;
    uint32_t key_bytes, value_bytes;
    char data[];
};

struct sim_etcd_reply {
    kvs_status status;
    uint64_t call;
    const char *text;
    struct net_etcd_answer answer;
    struct net_etcd_kv kv[]; /* then their bytes */
};
struct sim_etcd_line {
    struct net_etcd_watch_line line;
    struct net_etcd_event event[];
};

void sim_etcd_create(struct sim *s);
void sim_etcd_free(struct sim *s);

/* --- for the port --- */
uint32_t sim_etcd_era(const struct sim *s);
bool sim_etcd_reachable(const struct sim *s, uint32_t node); /* it would answer now */
void sim_etcd_ask(struct sim *s, struct sim_etcd_request *r); /* takes it */
void sim_etcd_unwatch(struct sim *s, uint32_t client);
void sim_etcd_revoke(struct sim *s, int64_t lease);
/* The store's words to a client: events of its process (etcd_port.c). */
void sim_etcd_port_answer(struct sim *s, struct sim_event *e); /* id: client; ptr: reply */
void sim_etcd_port_line(struct sim *s, struct sim_event *e);   /* id: client, a: watch; ptr: line */
void sim_etcd_port_reset(struct sim *s, struct sim_event *e);  /* id: client; a: watch; 0: its watch and the call b, 0: all of them */
struct sim_env;
struct sim_env *sim_etcd_port_env(struct sim *s, uint32_t client); /* NULL: destroyed */
void sim_etcd_port_free(struct sim *s);

/* --- what befalls it --- */
void sim_etcd_kill(struct sim *s, uint64_t back_us, bool wipe); /* wipe: it comes back without its data */
void sim_etcd_hang(struct sim *s, uint64_t for_us);
void sim_etcd_partition(struct sim *s, uint32_t node, uint64_t for_us);
void sim_etcd_starve(struct sim *s, uint64_t for_us);     /* watches lag behind */
void sim_etcd_leaderless(struct sim *s, uint64_t for_us); /* of three nodes, two are gone */
void sim_etcd_compact(struct sim *s);
void sim_etcd_expire(struct sim *s, uint32_t node); /* the lease of a live process ends, whoever is to blame */
void sim_etcd_deafen(struct sim *s, uint32_t node); /* its watches say nothing more, for good, and it is not told */
void sim_etcd_heal(struct sim *s);

#endif
