/* seq.h - what a sequence is to the scheduler: its tokens, how many of them have KV in pages, and where it stands.
 *
 *                        pages found, hold            wrk_seq_ready
 *   open -> WAITING ------------------------> HELD ------------------> READY <-> (paused)
 *            |   ^  \-- pages found, no hold --------------------------^ |
 *            |   '------------------ preempted (pages back) ------------'   '-> FAILED (can never grow: the pool is too small)
 *   HELD --fence--> FENCED --unfence--> gone          any --stop--> STOPPED          any but FENCED --close--> gone
 *   (closed or preempted pages never leave a step in flight: close is deferred as CLOSING until the step is done)
 *
 * A sequence's whole state is (parameters, tokens); KV can always be made again from them. So preemption is: pages back, computed = 0.
 * The owner machine (prefill-worker/core, decode-worker/core) is told by tag; `user` is the owner's own small number.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_SEQ_H
#define KVS_WORKER_CORE_SEQ_H

#include "base/error.h"
#include "kvcache/block_table.h"
#include "proto/msg.h"

/* Slot number and generation; never 0, a closed sequence's id is not valid any more. */
typedef uint32_t wrk_seq_id;
#define WRK_SEQ_NONE 0u

typedef enum wrk_owner { WRK_OWNER_PREFILL, WRK_OWNER_DECODE, WRK_OWNERS } wrk_owner;

typedef enum wrk_seq_state {
    WRK_SEQ_GONE,    /* no such sequence (closed, or a stale id) */
    WRK_SEQ_WAITING, /* has no pages; they are given oldest sequence first */
    WRK_SEQ_HELD,    /* has pages, which something else fills (a transfer); not scheduled */
    WRK_SEQ_READY,   /* scheduled whenever it has tokens without KV */
    WRK_SEQ_STOPPED, /* has pages, is never scheduled again (sends from its pages may still run) */
    WRK_SEQ_FENCED,  /* its pages are fenced: a broken or cancelled transfer may still write into them */
    WRK_SEQ_CLOSING, /* closed while a step in flight reads its pages */
    WRK_SEQ_FAILED   /* needs more pages than this worker has in all; holds none; close it */
} wrk_seq_state;

/* What the step does with the logits of a sequence's last row. */
typedef enum wrk_logits { WRK_LOGITS_NONE, WRK_LOGITS_SAMPLE, WRK_LOGITS_SHIP } wrk_logits;

struct wrk_seq_config {
    wrk_owner owner;
    uint32_t user;
    const int32_t *tokens; /* copied */
    uint32_t token_count;  /* 1 .. tokens_max */
    uint32_t
        tokens_max; /* length the sequence may grow to; the last token of that length needs no KV; at most the context + 1 */
    bool hold;      /* first pages go to the owner (HELD) instead of the scheduler; forgotten on preemption */
    wrk_logits logits;            /* wanted once all tokens have KV */
    struct msg_sampling sampling; /* with WRK_LOGITS_SAMPLE */
    uint32_t choice;
    const char *tenant, *cache_salt, *adapter; /* part of the prefix's name; NULL: none */
};

/* A look at one sequence (wrk_seq_look). */
struct wrk_seq_view {
    wrk_seq_state state;
    uint32_t user;
    uint32_t token_count; /* tokens known */
    uint32_t computed;    /* leading tokens that have KV in pages */
    uint32_t cached;      /* of them: found in the prefix tree when it got its first pages */
    uint32_t shared;      /* leading blocks whose pages are the tree's: complete and never written */
    bool deferred;        /* WAITING for another sequence to compute its prefix, not for pages */
    uint32_t
        chunks; /* step entries that computed more than a running sequence's single token, since the last (re)start */
    uint32_t prefilled; /* tokens computed in them, over the whole life (recompute included) */
    uint32_t preemptions;
    bool paused, in_step;
    const int32_t *tokens;
    const struct kvc_block_table *table; /* block_count = 0 while it has no pages */
};

#endif
