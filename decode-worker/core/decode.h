/* decode.h - the request machine of a sink: GENERATE calls in, tokens out; prompts prefilled here or by a peer. Pure; owner: the loop.
 * Drive it as worker/core/sched.h says: dcw_step with one event, then dcw_actions until it returns 0 (asserted at the next dcw_step).
 *
 *   GENERATE -> WAITING (no pages) --pages, local--------------------------------------------> RUNNING --finish--> END
 *                  |  --pages, remote--> TRANSFER (GRANT, CALL_PREFILL) --landed, ACK, SAMPLE--> FIRST --SAMPLED--^
 *                  |                        '-- END with error, bad pages, peer down: what landed in front is kept, the rest is local --^
 *   any --ABORT, CANCEL, deadline, router lost, numeric error--> CLOSING (step in flight or pages fenced) --> END
 *
 * Every accepted call ends with exactly one END action, after its last TOKENS entry, unless its router's connection is gone. A preempted
 * sequence goes back to WAITING inside the scheduler and goes on later; its router sees a pause, no token twice.
 *
 * A transfer has a life of its own (xfer): it begins with GRANT and ends with FORGET; in between the edge delivers exactly one GRANT event
 * (the port has let go of the pages) and, unless CANCEL was asked for, one PREFILL_END (made up with KVS_PEER_* when the stream is lost or the
 * call could not be made). When the edge cannot perform GRANT it reports a GRANT event with that error and does not make the call.
 * Blocks found in the prefix tree here are not asked for: the call carries all tokens and wants the rest. When only the last block is
 * missing (or, of a single block, at most half) the prompt is prefilled here, whatever was asked for. `placed.cached_tokens` are prompt
 * tokens whose KV was not computed for this call: found here, or by the peer (END's cached_tokens) when it prefilled.
 * A prefix that another worker is said to have (fetch_worker) is fetched first: a transfer of its own, without logits. What landed in front
 * is kept and the rest computed here; when nothing did, because less is there, it is tried once more with that (states stand only where their
 * snapshots are); otherwise the call goes on as if nobody had been named.
 * An ABORT with `keep` says that another worker will fetch what this call computed, which stays in the prefix tree: the machine counts it as
 * kept until an ABORT without it, the loss of its router, or keep_us; a worker that drains does not end before.
 * Pages of a cancelled transfer are fenced until its GRANT event (or PEER_CLOSED), END does not wait for that.
 * Duplicate, late and unknown events are ignored: they are looked up by (conn, stream), xfer or call handle.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_DECODE_WORKER_CORE_DECODE_H
#define KVS_DECODE_WORKER_CORE_DECODE_H

#include "kvtransfer/core/sink.h"
#include "proto/msg.h"
#include "worker/core/fit.h"
#include "worker/core/stall.h"
#include "worker/core/sched.h"

#define DCW_PEERS_MAX 256
#define DCW_STOP_IDS_MAX 64

struct dcw;

struct dcw_config {
    struct wrk_sched *sched; /* borrowed; outlives the machine */
    const char *id;          /* this worker's name: prefill_worker of local placements */
    uint64_t epoch;          /* sink_epoch of our transfers */
    uint64_t seed;           /* 64 random bits of this process: xfer ids and nonces are drawn from it (Philox) */
    uint32_t calls_max;   /* GENERATE calls, waiting and draining ones included, 1 .. 4096; more: END{KVS_BUSY_QUEUE} */
    uint32_t routers_max; /* connections with an open TOKENS call; 0: 16 */
    uint32_t vocab;       /* token ids are below it; logits have vocab * 4 bytes */
    uint64_t call_max_us; /* deadline of a call that states none; 0: 600 s */
    uint64_t keep_us;     /* longest time that an ABORT with keep counts; 0: 30 s */
    uint64_t stall_us;    /* see stall.h; here for fetches, and from END to the last page; 0: WRK_STALL_US */
};

typedef enum dcw_event_kind {
    DCW_EV_TICK,        /* time passed, or the other machine changed the pools */
    DCW_EV_GENERATE,    /* conn, stream, generate */
    DCW_EV_CANCEL,      /* conn, stream of a GENERATE or of the TOKENS call (then all of that connection's calls end) */
    DCW_EV_ABORT,       /* conn, stream (of the ABORT call: gets END(OK) at once), abort */
    DCW_EV_TOKENS_OPEN, /* conn, stream: where this router's entries go; without it GENERATE is refused */
    DCW_EV_ROUTER_DOWN, /* conn: connection lost: all its calls end, no END can be sent */
    DCW_EV_PAUSE,       /* conn, request */
    DCW_EV_RESUME,      /* conn, request */
    DCW_EV_PEER_UP,     /* peer, peer_up: it may prefill for us */
    DCW_EV_PEER_DOWN,   /* peer: control stream or transport is broken: nothing can be sent to it any more */
    DCW_EV_PEER_CLOSED, /* peer: its transport is closed: it cannot write into our pages any more */
    DCW_EV_PREFILL_END, /* xfer, prefill_end: END of our PREFILL call */
    DCW_EV_GRANT,       /* xfer, grant: the port let go of the transfer */
    DCW_EV_SAMPLED,     /* call, sampled: answer to SAMPLE */
    DCW_EV_STEP_DONE,   /* after wrk_sched_step_done */
    DCW_EV_DRAIN,       /* refuse new calls from now on */
    DCW_EV_HAND_BACK,   /* end all calls with KVS_SELF_STOPPING: routers go on with them elsewhere */
    DCW_EV_ROLE         /* role: what this worker is has changed */
} dcw_event_kind;

struct dcw_event {
    dcw_event_kind kind;
    uint64_t conn;
    uint32_t stream, peer;
    uint64_t xfer, call, request;
    union {
        struct {
            const struct msg_generate *msg; /* borrowed during dcw_step */
            uint64_t deadline_us;           /* absolute; 0: none stated */
        } generate;
        struct {
            uint32_t attempt; /* this one and earlier ones of `request` */
            bool keep;
        } abort;
        struct {
            bool decodes; /* false: as DRAIN, until it is true again */
        } role;
        struct {
            const char *id;        /* its member id (prefill_worker in GENERATE), copied */
            const char *transport; /* label: "shm", "tcp", "loopback", ..., copied */
        } peer_up;
        const struct msg_end *prefill_end; /* borrowed */
        struct {
            kvs_status status; /* KVS_OK: everything wanted has landed and was verified */
            /* slots (index into GRANT's wants; want_count = the logits) that have not landed; none given: nothing landed */
            const uint32_t *missing;
            uint32_t missing_count;
            uint64_t bytes; /* KV bytes and pages landed and verified */
            uint32_t pages;
            uint64_t elapsed_us; /* first message begun to last landed */
        } grant;
        struct wrk_result sampled;
    };
};

typedef enum dcw_action_kind {
    DCW_ACT_GRANT, /* open a sink for the wants and kvt_grant it to the peer; always right before CALL_PREFILL of the same xfer */
    DCW_ACT_CALL_PREFILL, /* net_rpc_call(peer's connection, MSG_PREFILL, ...) */
    DCW_ACT_GRANT_END,    /* kvt_grant_end */
    DCW_ACT_GRANT_CANCEL, /* kvt_grant_cancel; a GRANT event follows */
    DCW_ACT_ACK,          /* net_rpc_ack on the PREFILL call */
    DCW_ACT_NACK,         /* net_rpc_nack; missing */
    DCW_ACT_CANCEL,       /* net_rpc_cancel on the PREFILL call: it is over, also when END has come */
    DCW_ACT_PEER_CLOSE,   /* close the peer's link: messages that nobody wants any more do not come to their end; PEER_DOWN, PEER_CLOSED follow */
    DCW_ACT_SAMPLE, /* sample from the logits that landed for xfer; answer with SAMPLED{call} (at once or later) */
    DCW_ACT_FORGET, /* the xfer is over: drop its logits buffer and stream (after a SAMPLE of it that still runs) */
    DCW_ACT_TOKENS, /* net_rpc_item(conn, stream, entries): one for each router and dcw_step at most */
    DCW_ACT_END     /* net_rpc_end(conn, stream, {status, text}): GENERATE, or ABORT with KVS_OK */
} dcw_action_kind;

/* Pointers stay valid until the next call of dcw_step or wrk_sched_next_step. ACK, NACK and CANCEL for a stream that is gone: do nothing. */
struct dcw_action {
    dcw_action_kind kind;
    uint32_t peer;
    uint64_t xfer;
    uint64_t request; /* for log lines */
    uint64_t call;    /* handle of the GENERATE call */
    union {
        struct {
            uint64_t sink_epoch, nonce;
            /* slot i = wants[i]; the page is kvc_block_row(table, group)[block]; slot want_count = logits */
            const struct msg_want *wants;
            uint32_t want_count;
            const struct kvc_block_table *table;
            uint64_t logits_bytes; /* a buffer of that size belongs to the xfer until FORGET; 0 (FETCH): no logits slot */
        } grant;
        struct {
            struct msg_prefill msg; /* pointers borrowed */
            bool fetch;             /* the method is FETCH: the peer sends what it has and computes nothing */
            uint64_t deadline_us;   /* absolute */
        } prefill;
        struct {
            kvs_status status;
            uint32_t pages_sent;
        } grant_end;
        struct {
            const struct msg_want *missing;
            uint32_t count;
        } nack;
        struct {
            struct msg_sampling sampling;
            uint32_t choice, position;
        } sample;
        struct {
            uint64_t conn;
            uint32_t stream;
            const struct msg_token *entries;
            uint32_t count;
        } tokens;
        struct {
            uint64_t conn;
            uint32_t stream;
            struct msg_end end;
        } end;
    };
};

KVS_MUST_CHECK kvs_status dcw_create(const struct dcw_config *c, struct dcw **out, struct kvs_error *err);
void dcw_destroy(struct dcw *d); /* closes its sequences; no step of theirs may be in flight */
void dcw_step(struct dcw *d, const struct dcw_event *ev, uint64_t now_us);
/* Writes up to cap actions in order and forgets them; returns how many, 0: none left. */
size_t dcw_actions(struct dcw *d, struct dcw_action *out, size_t cap);
uint64_t dcw_deadline_us(const struct dcw *d); /* when a TICK is due: 0 now, UINT64_MAX never */

/* Fills in what transfers from the peer link->id take; false: there is no such peer, or it has sent nothing yet. */
bool dcw_link(const struct dcw *d, struct msg_peer_link *link);

struct dcw_stats {
    uint32_t calls, transfers;  /* now */
    uint32_t kept;              /* aborted requests whose KV somebody is to fetch, now */
    uint64_t accepted, refused; /* since the start */
    uint64_t ended[5]; /* by msg_finish of the last entry (index MSG_FINISH_*; ABORT also for calls without one) */
    uint64_t tokens;   /* entries with a token */
    uint64_t stalled; /* transfers given up, here or by their source, because pages came too slowly */
    uint64_t remote, local, fallbacks; /* how prompts got their KV (fallbacks are counted in local or remote, too) */
    uint64_t local_prefill_tokens;     /* tokens computed in chunks here, recompute after a preemption included */
    uint64_t kv_pages, kv_bytes;       /* landed and verified */
    uint64_t fetches, fetched_tokens;  /* tried; tokens that came by them and were not known here */
};
struct dcw_stats dcw_stats(const struct dcw *d);

#endif
