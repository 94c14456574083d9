/* prefill.h - the request machine of a source: PREFILL calls in, pages and logits out. Pure; owner thread: the loop.
 * Drive it as worker/core/sched.h says: pfw_step with one event, then pfw_actions until it returns 0 (asserted at the next pfw_step).
 *
 *   CALL -> QUEUED --pages--> COMPUTING --prompt done--> SENDING --all sent--> END -> ENDED --ACK, NACK, CANCEL--> gone
 *             '-- refused: END at once        any --CANCEL, stream loss, deadline--> no more posts; sends in flight end --> END (when
 *                                             the stream still lives and had none), pages back --> gone
 *
 * Pages whose block was found complete in the prefix tree are handed out first, at admission, in the order of the wants; END tells how many
 * tokens were found (cached_tokens) and how many computed (prefill_tokens).
 * A page is handed out (SEND_PAGE) once its block is complete in its group: when the group's last layer is done in the step that completes
 * the block, blocks rising within a group; the prompt's last partial block likewise in its last step; the logits message last. At most
 * send_window messages of one call are between SEND_* and SENT. Every SEND_* is answered by exactly one SENT (also when the peer closes),
 * or by PEER_CLOSED, which stands for all that are left. Exactly one END per CALL unless PEER_DOWN came first.
 * FETCH is a call that computes nothing: the wanted pages of the known prefix leave at once; END says KVS_REQ_NOT_FOUND when some were not
 * there, and how many tokens are (cached_tokens). It is served while draining, too, so that others can take over what is cached here.
 * Duplicate, late and unknown events are ignored.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_PREFILL_WORKER_CORE_PREFILL_H
#define KVS_PREFILL_WORKER_CORE_PREFILL_H

#include "kvtransfer/core/source.h"
#include "proto/msg.h"
#include "worker/core/sched.h"

#define PFW_PEERS_MAX 256

struct pfw;

struct pfw_config {
    struct wrk_sched *sched; /* borrowed; outlives the machine */
    uint32_t calls_max;      /* queued and running calls, 1 .. 1024 */
    uint32_t vocab;          /* token ids are below it; the logits message has vocab * 4 bytes */
    uint32_t send_window;    /* 0: 64 */
    uint64_t queue_wait_us;  /* longest wait for pages, then END{KVS_BUSY_PAGES}; 0: 10 s; role both: short, peers may wait for each other */
    uint64_t call_max_us;    /* deadline of a call that states none; 0: 600 s */
    uint64_t stall_us;       /* see stall.h: sending too slowly is END{KVS_PEER_TIMEOUT}; 0: WRK_STALL_US */
};

typedef enum pfw_event_kind {
    PFW_EV_TICK,        /* time passed, or the other machine changed the pools */
    PFW_EV_PEER_UP,     /* peer: its transport is up; calls of other peers are refused */
    PFW_EV_PEER_DOWN,   /* peer: its control stream is gone; no END can reach it; sends in flight still report SENT */
    PFW_EV_PEER_CLOSED, /* peer: its transport is closed; nothing reads our pages on its behalf any more */
    PFW_EV_CALL,        /* conn, stream, peer, deadline_us, call */
    PFW_EV_ACK,         /* conn, stream */
    PFW_EV_NACK,        /* conn, stream */
    PFW_EV_CANCEL,      /* conn, stream; after it END is still sent, once */
    PFW_EV_LAYER,       /* step, layers: that many layers of the step are complete (monotonic; may jump) */
    PFW_EV_STEP_DONE,   /* after wrk_sched_step_done */
    PFW_EV_SENT,        /* cookie, status */
    PFW_EV_DRAIN,       /* refuse new calls from now on */
    PFW_EV_ROLE         /* role: what this worker is has changed */
} pfw_event_kind;

struct pfw_event {
    pfw_event_kind kind;
    uint64_t conn;
    uint32_t stream, peer;
    union {
        struct {
            const struct msg_prefill *msg; /* borrowed during pfw_step */
            bool fetch;                    /* FETCH: send what is cached, compute nothing */
            uint64_t deadline_us;          /* absolute; 0: none stated */
        } call;
        struct {
            uint64_t step;
            uint32_t layers;
        } layer;
        struct {
            uint64_t cookie;
            kvs_status status;
        } sent;
        struct {
            bool prefills;          /* false: as DRAIN, until it is true again */
            uint64_t queue_wait_us; /* as in the configuration */
        } role;
    };
};

typedef enum pfw_action_kind {
    PFW_ACT_SEND_PAGE, /* kvt_send(peer, header, address of (group, page), cookie) */
    PFW_ACT_SEND_LOGITS, /* kvt_send(peer, header, the row kept for slot `user`, cookie); the row may be dropped at its SENT */
    PFW_ACT_DROP,        /* kvt_send_drop(peer, header.xfer): nobody wants what has not left yet; each such message still ends with SENT */
    PFW_ACT_PEER_CLOSE,  /* close the link of send.peer: messages that nobody wants do not come to their end; PEER_DOWN, PEER_CLOSED follow */
    PFW_ACT_END          /* net_rpc_end(conn, stream, end) */
} pfw_action_kind;

/* Slot `user` (< calls_max) is the `user` of this call's step entries (WRK_LOGITS_SHIP: keep a copy of that row under the slot; a slot is
 * not given to another call before the sends of the last one are over). A kvt_send that is refused (ring full) is kept by the edge and
 * tried again in order, or reported as SENT with the error. */
struct pfw_action {
    pfw_action_kind kind;
    uint32_t user;
    uint64_t request; /* for log lines */
    union {
        struct {
            uint32_t peer;
            uint32_t group, page; /* SEND_PAGE */
            struct kvt_header header;
            uint64_t cookie;
        } send;
        struct {
            uint64_t conn;
            uint32_t stream;
            struct msg_end end;
        } end;
    };
};

KVS_MUST_CHECK kvs_status pfw_create(const struct pfw_config *c, struct pfw **out, struct kvs_error *err);
void pfw_destroy(struct pfw *p); /* closes its sequences; no step of theirs may be in flight */
void pfw_step(struct pfw *p, const struct pfw_event *ev, uint64_t now_us);
/* Writes up to cap actions in order and forgets them; returns how many, 0: none left. */
size_t pfw_actions(struct pfw *p, struct pfw_action *out, size_t cap);
uint64_t pfw_deadline_us(const struct pfw *p); /* when a TICK is due: 0 now, UINT64_MAX never */

struct pfw_stats {
    uint32_t queued, running;                                         /* calls now */
    uint64_t calls, refused, acked, nacked, cancelled, expired, lost; /* since the start; how calls left */
    uint64_t prefill_tokens, pages_posted, fetches; /* fetches are calls as well */
};
struct pfw_stats pfw_stats(const struct pfw *p);

#endif
