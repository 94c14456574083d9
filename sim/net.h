/* net.h - control streams between nodes, as net/rpc.h offers them to the real edges: reliable and ordered while they live, with latency
 * drawn from the seed; when one breaks, its two ends learn of it at different times, and frames under way are lost from some moment on.
 * A call that was started ends exactly once at the caller (on_end, made up on loss or deadline), unless the caller cancelled it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_NET_H
#define KVS_SIM_NET_H

#include "base/buf.h"
#include "net/core/pulse.h"
#include "sim/world.h"

typedef enum sim_callee { SIM_CALLEE_PENDING, SIM_CALLEE_OPEN, SIM_CALLEE_ENDED, SIM_CALLEE_DONE } sim_callee;

struct sim_call {
    uint32_t stream, caller; /* caller: side of the connection */
    msg_method method;
    bool caller_waits; /* END has not come */
    bool caller_done;  /* nothing more from the caller: END came (Prefill: ACK, NACK), or CANCEL went out */
    sim_callee callee;
    uint64_t deadline_us; /* as the callee sees it; 0: none */
    uint64_t id;          /* the caller's own: request, or xfer */
    uint32_t attempt, choice;
};

struct sim_conn {
    uint64_t id;
    uint32_t node[2], life[2]; /* [0] dialed */
    uint64_t epoch[2];
    bool up[2], over[2];
    uint64_t last_us[2]; /* by sender: arrivals keep their order */
    uint64_t cut_us[2];  /* by sender: what would arrive later is lost */
    uint64_t held_us[2]; /* by sender: what it sends does not arrive before; SIM_FOREVER: never */
    bool given_up[2];    /* this end has hung up */
    struct net_pulse pulse[2]; /* of the other one, as this end hears it */
    uint64_t arrived_us[2];    /* the world's own record of it */
    bool broken;
    uint64_t stall_us; /* KV messages between these two do not move before */
    bool kv_dead;      /* nor ever again */
    uint32_t next_stream[2];
    struct sim_call *call;
    uint32_t call_count, call_cap;
};

struct sim_conn *sim_conn_find(struct sim *s, uint64_t id);
uint32_t sim_conn_side(const struct sim_conn *c, uint32_t node);
void sim_dial_soon(struct sim *s, uint32_t a, uint32_t b, uint64_t low_us, uint64_t high_us);
void sim_conn_break(struct sim *s, struct sim_conn *c);                      /* reset: noticed within 0.1 s on both sides */
void sim_conn_silence(struct sim *s, struct sim_conn *c, uint64_t for_us);   /* partition: what is sent arrives after it, if anybody still listens */
void sim_conn_one_way(struct sim *s, struct sim_conn *c, uint32_t deaf_node); /* nothing reaches this one any more; what it says arrives */
void sim_conn_hang_up(struct sim *s, struct sim_conn *c, uint32_t side); /* this end is over; the other learns of it when word gets there */
void sim_net_killed(struct sim *s, uint32_t node);                           /* its connections end */
void sim_net_free(struct sim *s);
/* Closes it from this side: on_down follows here, later there. */
void sim_conn_close(struct sim *s, uint32_t node, uint64_t conn);

uint32_t sim_rpc_call(struct sim *s, uint32_t node, uint64_t conn, msg_method method, uint32_t remaining_ms, const struct kvs_buf *body,
                      const struct sim_call *own); /* 0: no such connection any more */
void sim_rpc_item(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, const struct kvs_buf *body);
void sim_rpc_end(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, const struct msg_end *end);
void sim_rpc_cancel(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream);
void sim_rpc_ack(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, const struct kvs_buf *nack); /* NULL: ACK */
bool sim_rpc_alive(struct sim *s, uint32_t node, uint64_t conn); /* as far as this node knows */
/* Has nothing been done to this link or its ends for a while that could explain a delay? */
bool sim_conn_calm(const struct sim *s, const struct sim_conn *c);
bool sim_rpc_owes(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream); /* our call there is not over for us */
void sim_rpc_pause(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, const struct kvs_buf *body, bool resume);

/* --- pulse.c --- */
void sim_pulse_begin(struct sim *s, uint32_t node); /* with the process */
void sim_pulse_up(struct sim *s, struct sim_conn *c, uint32_t side);
bool sim_pulse_heard(struct sim *s, struct sim_conn *c, uint32_t side); /* true: it was suspect until now */
void sim_conn_ping(struct sim *s, struct sim_conn *c, uint32_t side);
void sim_conn_suspect(struct sim *s, struct sim_conn *c, uint32_t side, bool suspect); /* tells the process */

/* What the nodes hear (router.c, worker.c). Payloads are borrowed. */
struct sim_handlers {
    void (*up)(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node);
    void (*down)(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node);
    void (*call)(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n);
    void (*cancel)(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream);
    void (*ack)(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream, bool nack);
    void (*item)(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n);
    void (*end)(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const struct msg_end *end);
    void (*pause)(struct sim *s, uint32_t node, uint64_t conn, const uint8_t *body, size_t n, bool resume);
    void (*suspect)(struct sim *s, uint32_t node, uint64_t conn, bool suspect);
};
extern const struct sim_handlers sim_router_handlers, sim_worker_handlers;

#endif
