/* private.h - the decode machine's own structs, shared by decode.c (events, ends), generate.c (calls and tokens) and transfer.c (KV from peers).
 * Each event changes facts of calls; dcw__settle then draws conclusions for all of them. Calls that ended are freed at the beginning of the
 * next dcw_step, since actions may still point into them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_DECODE_WORKER_CORE_PRIVATE_H
#define KVS_DECODE_WORKER_CORE_PRIVATE_H

#include "decode-worker/core/decode.h"

typedef enum dcw_phase {
    DCW_QUEUED,   /* remote, waits for pages */
    DCW_TRANSFER, /* pages granted to a peer */
    DCW_FIRST,    /* everything landed, SAMPLE is out */
    DCW_LOCAL,    /* the scheduler has it: waiting, prefilling here, or writing */
    DCW_ENDING,   /* no more entries; END when its pages are back or fenced */
    DCW_DEAD      /* to be freed */
} dcw_phase;

struct dcw_transfer {
    bool open;      /* from GRANT to FORGET */
    bool granted;   /* the port has it: no GRANT event yet */
    bool calling;   /* the PREFILL call wants an ACK, NACK or CANCEL from us */
    bool cancelled; /* GRANT_CANCEL went out */
    bool ended;     /* PREFILL_END came */
    bool fetch;     /* of cached blocks below want_end, no logits */
    bool stalled;   /* its pages came too slowly, and it was given up */
    uint32_t want_end;
    uint64_t xfer, nonce;
    uint32_t peer;
    struct msg_want *wants, *missing; /* want_count + 1 each, owned */
    uint32_t want_count;
    kvs_status end_status;
    uint64_t source_us;     /* END's prefill_us */
    uint32_t source_cached; /* END's cached_tokens */
    uint32_t source_chunks; /* END's chunks */
    uint64_t began_us;
    uint64_t due_us; /* all has to be here by then; 0: the source still computes or sends, and looks to that itself */
    uint64_t
        close_us; /* nothing is wanted any more, but messages are under way: the peer's link is closed then; 0: not so */
    bool closing; /* PEER_CLOSE went out */
};

struct dcw_call {
    bool live;
    dcw_phase phase;
    uint32_t generation;
    uint64_t conn, request;
    uint32_t stream, attempt, choice;
    uint32_t next_index, max_tokens, prompt_count;
    struct msg_sampling sampling;
    int32_t stop_ids[DCW_STOP_IDS_MAX];
    uint32_t stop_id_count;
    bool logits;
    bool remote;              /* a peer is to prefill */
    bool dirty;               /* a fetch that failed may have left bytes in its pages */
    bool later;               /* begins anew in the next dcw_step: actions of this one still point into its transfer */
    bool fetched_less;        /* a fetch failed and was tried with less, or may not be any more */
    uint32_t fetch_tokens;    /* 0: nobody to fetch from (any more) */
    uint32_t found_elsewhere; /* leading tokens that are here after a fetch */
    char fetch_worker[MSG_ID_MAX];
    char prefill_worker[MSG_ID_MAX], tenant[MSG_ID_MAX], cache_salt[128];
    int32_t priority;
    uint64_t arrived_us, started_us, deadline_us;
    wrk_seq_id seq;
    uint32_t prefilled_seen;
    struct dcw_transfer t;
    struct msg_placed placed;
    bool placed_sent;
    bool router_lost, end_sent;
    kvs_status end_status;
    char end_text[256];
};

struct dcw_peer {
    bool up;
    char id[MSG_ID_MAX], transport[16];
    struct wrk_fit link; /* of transfers from there */
};
struct dcw_router {
    bool open;
    uint64_t conn;
    uint32_t stream;
};

/* A request that went on elsewhere; its KV is to be fetched from here. */
struct dcw_keep {
    uint64_t conn, request, until_us; /* until_us 0: free */
    uint32_t attempt;
};

struct dcw {
    struct wrk_sched *sched;
    char id[MSG_ID_MAX];
    uint64_t epoch, seed, drawn, call_max_us, stall_us;
    uint32_t calls_max, routers_max, vocab;
    struct dcw_call *calls;
    struct dcw_peer peers[DCW_PEERS_MAX];
    struct dcw_router *routers;
    struct dcw_keep *keeps;        /* calls_max of them */
    uint64_t keep_us, keep_due_us; /* the latter: when the first of them ends */
    struct dcw_action *actions;
    size_t action_count, action_next, action_cap;
    /* entries of this dcw_step in order of events, and the same sorted by router for the TOKENS actions */
    struct msg_token *entries, *sorted;
    uint64_t *entry_conn;
    uint32_t entry_count, entry_cap;
    bool draining, off; /* off: its role is another */
    struct dcw_stats stats;
};

struct dcw_action *dcw__act(struct dcw *d, dcw_action_kind kind, const struct dcw_call *c);
void dcw__act_end(struct dcw *d, uint64_t conn, uint32_t stream, uint64_t request, kvs_status status, const char *text);
struct dcw_router *dcw__router(struct dcw *d, uint64_t conn);
uint64_t dcw__handle(const struct dcw *d, const struct dcw_call *c);

/* generate.c */
void dcw__on_generate(struct dcw *d, const struct dcw_event *ev, uint64_t now_us);
void dcw__on_step_done(struct dcw *d, uint64_t now_us);
void dcw__token(struct dcw *d, struct dcw_call *c, const struct wrk_result *r, uint64_t now_us);
/* The last entry without a token, then ENDING. */
void dcw__fail(struct dcw *d, struct dcw_call *c, kvs_status status, const char *text, uint64_t now_us);
/* ENDING without an entry (abort, router lost, after the last entry). */
void dcw__end(struct dcw *d, struct dcw_call *c, msg_finish finish, kvs_status status, const char *text);

/* transfer.c */
void dcw__transfer_watch(struct dcw *d, struct dcw_call *c, uint64_t now_us);
uint64_t dcw__transfer_due_us(const struct dcw_call *c);                      /* when the watch has to look again */
void dcw__transfer_begin(struct dcw *d, struct dcw_call *c, uint64_t now_us); /* HELD pages: call a peer, or go local */
void dcw__transfer_abandon(struct dcw *d,
                           struct dcw_call *c); /* the call ends: cancel, fence what may still be written */
void dcw__on_prefill_end(struct dcw *d, uint64_t xfer, const struct msg_end *end);
void dcw__on_grant(struct dcw *d, const struct dcw_event *ev, uint64_t now_us);
void dcw__on_sampled(struct dcw *d, const struct dcw_event *ev, uint64_t now_us);
void dcw__on_peer_gone(struct dcw *d, uint32_t peer, bool closed, uint64_t now_us);
void dcw__transfer_free(struct dcw_transfer *t);

#endif
