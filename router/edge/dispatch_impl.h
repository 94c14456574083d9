/* dispatch_impl.h - inside of dispatch: workers with their calls, jobs (requests with their answers), clients on control streams.
 * Private to edge/{dispatch,workers,jobs,clients}.c. Loop thread only, but for the atomics.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_DISPATCH_IMPL_H
#define KVS_ROUTER_EDGE_DISPATCH_IMPL_H

#include "base/arena.h"
#include "base/map.h"
#include "cluster/discovery.h"
#include "net/rpc.h"
#include "router/edge/answer.h"
#include "router/edge/dispatch.h"
#include "router/edge/orders.h"
#include "router/edge/misfits.h"
#include "router/edge/recent.h"
#include "sys/metrics.h"

#include <stdatomic.h>

#define RTR_TICK_US 100000u
#define RTR_HEAD_AFTER_US 10000000u
#define RTR_COMMENT_EVERY_US 2000000u

struct rtr_call { /* an open Generate call */
    uint32_t stream;
    uint64_t id;
    uint32_t attempt, choice;
};

typedef enum rtr_join { RTR_JOIN_CONNECTED = 0, RTR_JOIN_MODEL, RTR_JOIN_READY, RTR_JOIN_REFUSED } rtr_join;

struct rtr_peer { /* a worker's control connection; its key in the core is conn */
    net_conn conn;
    char id[MSG_ID_MAX];
    uint64_t epoch;
    bool have_card, suspect;
    bool vanished;           /* etcd has lost its key, the stream has not */
    struct msg_card card;
    rtr_join state;
    char why[256];
    struct rtr_model *model; /* borrowed from the table, which keeps it */
    uint32_t info_stream, tokens_stream, load_stream, cache_stream; /* 0: not open */
    bool cache_refused;      /* it does not know the call */
    uint64_t cache_at_us;    /* not called again before */
    uint8_t *header;         /* while it comes */
    uint64_t header_total, header_got;
    uint64_t retry_at_us;
    struct rtr_call *calls;
    uint32_t call_count, call_cap;
    struct msg_load *load;   /* the last one, without its metrics text */
    uint64_t load_at_us;
};

struct rtr_job {
    uint64_t id;
    struct rtr_exchange *x; /* HTTP; NULL: a client on a control stream */
    net_conn conn;
    uint32_t stream;
    uint64_t client_request;
    struct rtr_answer *answer;
    uint64_t arrived_us, first_us, last_us, written_us;
    bool head_sent, paused, placed, failed;
    struct rtr_fault fault;   /* with failed: what to tell instead of what the core says */
    char decode[MSG_ID_MAX];  /* worker of the current attempt */
    struct rtr_placed_row row; /* of the current attempt */
    char placement[640];
    /* control clients: */
    bool blocked;             /* no credit */
    bool ended, cut;          /* the request is over and END waits for what is unsent; which is given up */
    struct rtr_stall stall;
    kvs_status end_status;
    uint64_t end_us;
};

struct rtr_deferred { /* events that came up while the core's actions were performed */
    rtr_event_type type;
    uint64_t worker, id;
    uint32_t attempt, choice;
    bool flag;
    kvs_status status;
    char text[128];
};

struct rtr_dispatch {
    struct kvs_loop *loop;
    struct rtr_board *board;
    struct net_rpc *rpc;
    struct cls_discovery *discovery;
    struct rtr_digests *digests; /* with etcd */
    bool etcd;             /* discovery by etcd: this router dials workers and is a member itself, with this card */
    struct msg_card card;
    char advertise[128];
    struct rtr_models *models;
    struct rtr_gone *gone;
    struct rtr *core;
    struct kvs_timer *deadline, *tick;
    atomic_uint_fast64_t next_id;
    atomic_bool draining, stopping; /* nothing new is taken; what runs is ended */
    atomic_uint active; /* submitted by HTTP threads and not yet ended */
    struct rtr_peer **peers;
    uint32_t peer_count, peers_max;
    struct msg_card *members; /* MSG_MEMBERS_MAX. Discovery's view: also of workers whose connection is gone while their lease lives */
    uint32_t member_count;
    bool dial_again;          /* with etcd: a member could not be dialed for want of memory */
    struct rtr_job **jobs;
    uint32_t job_count, jobs_max;
    struct kvs_map *job_by_id; /* id -> index in jobs */
    struct rtr_deferred *deferred; /* a queue with room for what all jobs can bring up: deferred_due */
    size_t deferred_head, deferred_count, deferred_cap, deferred_due;
    bool feeding;
    uint64_t head_after_us, comment_every_us;
    uint64_t client_stall_us, deadline_us; /* neither is 0 */
    uint64_t index_dropped_seen, cache_gaps_seen, silent_watches_seen;
    uint64_t replaced_seen, resumed_seen, moved_seen; /* of the core's counts: what the metrics have already */
    struct rtr_recent recent;
    struct rtr_misfits misfits;
    struct rtr_order *orders; /* orders under way */
    struct kvs_buf scratch; /* one message being encoded, or one piece of answer */
    struct kvs_arena arena; /* one message being decoded */
    struct {
        struct kvs_counter *outcome[6], *placed[2], *prompt_tokens, *answer_tokens, *replaced, *resumed, *moved;
        struct kvs_counter *index_dropped, *cache_gaps, *silent_watches;
        struct kvs_counter *cut[2]; /* by rtr_cut */
        struct kvs_gauge *index_blocks, *index_bytes;
        struct kvs_gauge *running, *waiting, *workers, *members, *discovery_up; /* the last two with etcd only */
        struct kvs_histogram *ttft, *ttft_predicted, *ttft_off, *itl;
    } m;
};

/* dispatch.c */
void rtr_feed(struct rtr_dispatch *d, const struct rtr_event *ev);
void rtr_defer(struct rtr_dispatch *d, const struct rtr_deferred *ev);
/* Room for what a job of so many choices may defer, before it begins: in the midst of the core's actions memory could not be asked for. */
KVS_MUST_CHECK kvs_status rtr_defer_reserve(struct rtr_dispatch *d, uint32_t choices);
void rtr_defer_release(struct rtr_dispatch *d, uint32_t choices);

/* workers.c */
struct rtr_peer *rtr_peer_of(struct rtr_dispatch *d, net_conn conn);
void rtr_peer_up(struct rtr_dispatch *d, net_conn conn, const struct msg_hello *hello);
void rtr_peer_greet(struct rtr_dispatch *d, struct rtr_peer *p); /* looks whether its card is known already */
void rtr_peer_down(struct rtr_dispatch *d, struct rtr_peer *p, const char *why);
void rtr_peer_suspect(struct rtr_dispatch *d, struct rtr_peer *p, bool suspect);
void rtr_peer_item(struct rtr_dispatch *d, struct rtr_peer *p, uint32_t stream, const uint8_t *payload, size_t n);
void rtr_peer_end(struct rtr_dispatch *d, struct rtr_peer *p, uint32_t stream, const struct msg_end *end);
void rtr_peer_member(void *dispatch, const struct msg_member *m);
void rtr_peers_tick(struct rtr_dispatch *d, uint64_t now_us);
void rtr_peers_view(struct rtr_dispatch *d, uint64_t now_us);
void rtr_peer_generate(struct rtr_dispatch *d, const struct rtr_action *a);
void rtr_peer_abort(struct rtr_dispatch *d, const struct rtr_action *a);
void rtr_peer_cancel(struct rtr_dispatch *d, const struct rtr_action *a);
void rtr_peer_pause(struct rtr_dispatch *d, const struct rtr_action *a);

/* caches.c */
void rtr_cache_metrics(struct rtr_dispatch *d, struct kvs_metrics *m);
void rtr_cache_view(struct rtr_dispatch *d, const struct rtr_stats *st);
void rtr_cache_open(struct rtr_dispatch *d, struct rtr_peer *p, uint64_t now_us); /* when it is due */
void rtr_cache_close(struct rtr_dispatch *d, struct rtr_peer *p);
void rtr_cache_item(struct rtr_dispatch *d, struct rtr_peer *p, const uint8_t *payload, size_t n);
void rtr_cache_end(struct rtr_peer *p, const struct msg_end *end);
void rtr_cache_again(struct rtr_dispatch *d, const struct rtr_action *a);

/* digests.c; nothing happens without etcd */
KVS_MUST_CHECK kvs_status rtr_digests_create(struct rtr_dispatch *d, const struct cls_etcd_config *etcd, struct kvs_error *err);
void rtr_digests_destroy(struct rtr_dispatch *d);
void rtr_digests_seen(struct rtr_dispatch *d, const struct msg_card *card); /* a life of a worker that was not known before */
void rtr_digests_gone(struct rtr_dispatch *d, const struct msg_card *card);
void rtr_digests_ready(struct rtr_dispatch *d, const struct rtr_peer *p);

/* members.c */
KVS_MUST_CHECK kvs_status rtr_members_create(struct rtr_dispatch *d, const struct rtr_dispatch_config *c, const struct msg_hello *self,
                                             const char *control_url, struct kvs_error *err);
void rtr_members_destroy(struct rtr_dispatch *d);
void rtr_members_tick(struct rtr_dispatch *d);
void rtr_members_down(struct rtr_dispatch *d, net_conn conn, const char *id, uint64_t epoch, bool vanished);

/* jobs.c */
struct rtr_job *rtr_job_of(struct rtr_dispatch *d, uint64_t id);
/* Takes the submission's reference of x. Feeds the core. conn, stream: of a control client (x NULL). */
void rtr_job_begin(struct rtr_dispatch *d, struct rtr_submit *s, net_conn conn, uint32_t stream, uint64_t client_request);
void rtr_job_started(struct rtr_dispatch *d, const struct rtr_action *generate, const char *decode);
void rtr_job_token(struct rtr_dispatch *d, uint64_t id, const struct msg_token *t);
void rtr_job_finish(struct rtr_dispatch *d, uint64_t id, kvs_status status, const char *text, uint32_t retry_after_s);
void rtr_job_remove(struct rtr_dispatch *d, struct rtr_job *j);
void rtr_jobs_tick(struct rtr_dispatch *d, uint64_t now_us);
void rtr_jobs_count(struct rtr_dispatch *d, kvs_status outcome); /* a request has ended so */
void rtr_job_pause(struct rtr_dispatch *d, struct rtr_job *j, bool paused);
/* Its client is given up: counted, logged, and the request, if it still runs (j not NULL), ends as cancelled with that text. */
void rtr_job_cut(struct rtr_dispatch *d, struct rtr_job *j, uint64_t id, rtr_cut why, uint64_t waiting_bytes);
/* Ends an exchange with an error object (nothing was sent yet). */
void rtr_exchange_fault(struct rtr_exchange *x, const struct rtr_fault *f);
void rtr_exchange_reply(struct rtr_exchange *x, const char *json); /* 200, whole */

/* clients.c */
void rtr_client_call(struct rtr_dispatch *d, net_conn conn, uint32_t stream, const struct msg_call *call);
void rtr_client_cancel(struct rtr_dispatch *d, net_conn conn, uint32_t stream);
void rtr_client_down(struct rtr_dispatch *d, net_conn conn);
void rtr_client_pause(struct rtr_dispatch *d, net_conn conn, uint32_t stream, bool resume);
void rtr_client_look(struct rtr_dispatch *d, struct rtr_job *j, uint64_t now_us); /* cuts one that takes nothing; j may be gone after it */
void rtr_client_flush(struct rtr_dispatch *d, struct rtr_job *j); /* sends what can be sent; ends the call when all is sent */
void rtr_client_writable(struct rtr_dispatch *d, net_conn conn, uint32_t stream);

#endif
