/* worker.h - one simulated worker process: the real scheduler and role machines, and what stands for its edge.
 * worker.c (life, streams, the loop's turn), sink.c and source.c (the machines' actions; as decode-worker/edge, prefill-worker/edge),
 * port.c (the KV transport, as kvtransfer/port.h), device.c (memory and steps).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_WORKER_H
#define KVS_SIM_WORKER_H

#include "decode-worker/core/decode.h"
#include "prefill-worker/core/prefill.h"
#include "sim/net.h"
#include "worker/core/events.h"
#include "worker/core/fit.h"

#define SIM_SLOTS 96u
#define SIM_LOADS 8u /* routers that hear of our load */
#define SIM_PENDING 512u

typedef enum sim_slot_state { SIM_SLOT_FREE, SIM_SLOT_CONNECTED, SIM_SLOT_UP, SIM_SLOT_CLOSING } sim_slot_state;

struct sim_slot { /* a peer, as worker/edge/peers.c numbers them */
    sim_slot_state state;
    uint64_t conn;
    uint32_t node;
    bool announced;
};

typedef enum sim_grant_state { SIM_GRANT_COMMANDED, SIM_GRANT_IN_PORT, SIM_GRANT_OVER } sim_grant_state;

struct sim_grant { /* a sink, from the command to the event that hands it back */
    sim_grant_state state;
    uint64_t xfer;
    uint32_t slot;
    struct kvt_sink *sink;
    struct wrk_page *page; /* of each want but the logits */
    uint32_t page_count, landed_pages;
    uint64_t first_us, last_us;
};

struct sim_recv { /* a posted receive: whoever has lost track of it, the bytes still come */
    uint64_t number, xfer;
    uint32_t slot, want;
    uint8_t *dest;
    uint64_t bytes;
};

struct sim_send { /* a message that the port has */
    uint64_t cookie, number;
    uint32_t slot;
    uint16_t *watch; /* readers of what it sends */
};

struct sim_xfer {
    uint64_t id;
    uint64_t conn;
    uint32_t stream;
    bool refused, in_port;
    uint8_t *logits;
};

struct sim_row { /* logits kept for a prefill call */
    uint8_t *bytes;
    uint16_t readers;
};

struct sim_worker {
    struct sim *s;
    uint32_t node;
    struct kvc_layout layout;
    uint32_t first_cell[KVC_LAYERS_MAX]; /* number of a layer's first cache */
    uint8_t *slab[KVC_GROUPS_MAX];
    uint16_t *reads[KVC_GROUPS_MAX]; /* per page: sends that read it */
    uint16_t *recvs[KVC_GROUPS_MAX]; /* per page: grants that may write it */
    struct wrk_sched *sched;
    struct pfw *pfw;
    struct dcw *dcw;
    struct sim_slot slot[SIM_SLOTS];
    struct sim_grant **grant;
    uint32_t grant_count, grant_cap;
    struct sim_send *send;
    uint32_t send_count, send_cap;
    struct sim_recv *recv;
    uint32_t recv_count, recv_cap;
    uint64_t number; /* of the last send or receive */
    struct sim_xfer *xfer;
    uint32_t xfer_count, xfer_cap;
    struct dcw_event *pending;
    uint32_t pending_head, pending_count;
    struct msg_end lost_end;
    struct sim_row *row;
    uint64_t port_in_us, port_out_us; /* commands and events keep their order */
    /* device */
    const struct wrk_step *step;
    uint32_t layers_done;
    bool stop_step;
    struct wrk_result *result;
    uint64_t *read; /* per entry of the step */
    uint64_t timer_us, spun_us;
    uint32_t spins;
    struct {
        uint64_t conn; /* 0: none */
        uint32_t stream;
    } load[SIM_LOADS];
    uint64_t load_sequence;
    struct {
        uint64_t conn; /* 0: none */
        uint32_t stream;
        struct wrk_reader reader;
        bool hole; /* the last item was thrown away: only the next one will tell */
    } cache[SIM_LOADS]; /* routers that follow our cache */
    struct wrk_speed speed;
    uint64_t step_begun_us;
    bool draining;
    uint64_t drain_until_us, yield_until_us; /* the latter: has stopped decoding; what nobody has taken by then is handed back */
    uint32_t quiet_reports; /* in a row, while draining */
    uint64_t fenced_since_us;
    uint32_t checks;
};

static inline uint64_t sim_logits_bytes(const struct sim_worker *w)
{
    return (uint64_t)w->s->set.vocab * 4;
}

/* worker.c */
void sim_worker_create(struct sim *s, uint32_t node);
void sim_worker_destroy(struct sim_worker *w);
void sim_worker_zero(struct sim_worker *w); /* step 2 of the loop: what the scheduler wants zeroed */
void sim_worker_close_peer(struct sim_worker *w, uint32_t peer); /* its link, if it is up */
void sim_worker_turn(struct sim_worker *w); /* steps 3 to 5 */
void sim_worker_post(struct sim_worker *w, uint64_t at_us, sim_run_fn run, uint64_t id, uint64_t a, uint64_t b, void *ptr);
uint32_t sim_worker_slot(const struct sim_worker *w, uint64_t conn); /* an UP slot, or SIM_SLOTS */
void sim_worker_port_error(struct sim_worker *w);                      /* KVT_EV_ERROR on some peer */

/* orders.c */
void sim_orders_tell_role(struct sim_worker *w);
void sim_orders_drain(struct sim_worker *w);
void sim_orders_role(struct sim_worker *w, msg_role role);
bool sim_orders_watch(struct sim_worker *w); /* at every report; true: it has drained and ends */

/* serve.c: what routers are told, as worker/edge/serve.c and cache.c */
void sim_serve_load(struct sim_worker *w, uint64_t conn, uint32_t stream);
void sim_serve_cache(struct sim_worker *w, uint64_t conn, uint32_t stream);
void sim_serve_cancel(struct sim_worker *w, uint64_t conn, uint32_t stream);
void sim_serve_down(struct sim_worker *w, uint64_t conn);
void sim_serve_report(struct sim_worker *w);
void sim_serve_pump(struct sim_worker *w);
bool sim_serve_hole(const struct sim_worker *w); /* a router cannot know better yet */
uint32_t sim_serve_known(const struct sim_worker *w); /* cached blocks that routers are to know of */

/* sink.c, source.c: feed an event to the machine and perform what follows. */
void sim_sink_feed(struct sim_worker *w, const struct dcw_event *ev);
void sim_source_feed(struct sim_worker *w, const struct pfw_event *ev);
bool sim_sink_end(struct sim_worker *w, uint64_t conn, const struct sim_call *call, const struct msg_end *end);
void sim_sink_granted(struct sim_worker *w, struct kvt_sink *sink, kvs_status st, uint32_t pages, uint64_t elapsed_us);
void sim_sink_free(struct sim_worker *w);

/* port.c */
void sim_port_grant(struct sim_worker *w, uint32_t slot, struct kvt_sink *sink, uint32_t want_count);
void sim_port_grant_end(struct sim_worker *w, uint64_t xfer, kvs_status st, uint32_t pages_sent);
void sim_port_grant_cancel(struct sim_worker *w, uint64_t xfer);
void sim_port_send(struct sim_worker *w, uint32_t slot, const struct kvt_header *h, const uint8_t *bytes, uint64_t cookie, uint16_t *watch);
void sim_port_close(struct sim_worker *w, uint32_t slot);
void sim_port_free(struct sim_worker *w);

/* device.c */
uint32_t sim_caches(const struct sim_settings *c); /* of all layers together */
void sim_device_create(struct sim_worker *w);
void sim_device_free(struct sim_worker *w);
uint8_t *sim_page(const struct sim_worker *w, uint32_t group, uint32_t page);
bool sim_page_of(const struct sim_worker *w, const void *address, struct wrk_page *out); /* false: not in the slabs */
void sim_device_zero(struct sim_worker *w, uint32_t group, uint32_t page);
void sim_device_copy(struct sim_worker *w, const struct wrk_copy *copy);
void sim_device_submit(struct sim_worker *w, const struct wrk_step *step);
kvs_status sim_device_sample(struct sim_worker *w, const uint8_t *row, const struct msg_sampling *sampling, uint32_t choice, uint32_t position,
                             struct wrk_result *out);

#endif
