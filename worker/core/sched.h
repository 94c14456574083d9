/* sched.h - the scheduler of a worker: owns pools and sequences and composes ragged steps. Pure; owner thread: the loop.
 * Both role machines (pfw_, dcw_) share one wrk_sched, so one process may have both roles.
 *
 * Invariants: per group free + cached + held + fenced == total after every call; at most one step is in flight, and what it points to (ids,
 * tables, pages) does not change until wrk_sched_step_done; a WAITING sequence has no page; pages go to the oldest waiting sequence first
 * and never past it (no starvation); a page given out is on the zero list before anybody can use it.
 *
 * The edge's (or simulator's) loop, after every outside event:
 *   1. hand it to the machine it is for (dcw_step / pfw_step; in role both, the other one gets a TICK),
 *   2. wrk_sched_take_zeros until empty and zero these pages, then wrk_sched_take_copies likewise and copy at once, THEN perform the
 *      machine's actions in order until there are none,
 *   3. when no step is in flight: wrk_sched_next_step; zeros and copies again; hand the step to the device,
 *   4. mirror wrk_sched_stop_wanted into the flag that the device's layer callback reads,
 *   5. sleep until the least of the machines' _deadline_us (0 means: TICK it now).
 * When the device is done: wrk_sched_step_done first, then STEP_DONE to each machine, which reads its results with wrk_sched_results.
 * Zeroing may be done by any thread as long as it is finished before the page is granted, or before the step that uses it runs.
 *
 * Order in a step: single tokens of running sequences (longest waiting first when there are more than batch_seqs), then prompt chunks,
 * oldest sequence first, together at most chunk_tokens tokens. So a long prompt delays a running sequence by one chunk at most.
 * Out of pages: a running sequence that cannot grow makes the newest decode sequence give its pages back (maybe itself).
 * Window and state groups have a quota a sequence instead (kinds.c): with it a sequence always finds the few pages of theirs that it needs.
 *
 * Prefix reuse (tree_nodes > 0): a block that is complete in all groups is offered to the prefix tree under its hash chain; admission takes
 * the longest known prefix (all but the last known token at most), shares its pages, and has the head of a partly equal block copied. A
 * page with more than one holder, or known to the tree, is never written (asserted where a step is composed). Cached pages are evicted,
 * least recently used leaf first, before anybody waits or is preempted. A waiting sequence whose prefix is just being computed by another
 * one waits for that (others may pass it meanwhile: what it waits for always makes progress; one that
 * prefills for others waits for no transfer, or two workers could wait for each other).
 *
 * Failpoint decode.preempt is the edge calling wrk_sched_preempt_newest before step 3.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_SCHED_H
#define KVS_WORKER_CORE_SCHED_H

#include "kvcache/layout.h"
#include "kvcache/pool.h"
#include "kvcache/tree.h"
#include "worker/core/seq.h"

struct wrk_sched;

/* What the model's prefixes are named by: the member card's own bytes (design: section 5). NULL: empty. Copied. */
struct wrk_model_id {
    uint8_t fingerprint[32];
    const char *numerics, *kv_types, *rope;
};

struct wrk_sched_config {
    const struct kvc_layout *layout; /* copied */
    uint32_t pages[KVC_GROUPS_MAX];  /* pool size of each group, > 0 */
    uint32_t seqs_max;               /* 1 .. 4096, fenced and waiting ones included: the machines' calls_max together */
    uint32_t batch_seqs;             /* most sequences in a step; 0: seqs_max */
    uint32_t context;                /* tokens a sequence may have */
    uint32_t chunk_tokens;           /* prompt tokens a step; 0: 128 */
    uint32_t reserve_tokens;         /* room beyond the known tokens at admission; 0: 512 */
    uint32_t tree_nodes;             /* prefix tree's bound; 0: no tree, nothing is reused */
    uint32_t snapshot_blocks;        /* state groups: a snapshot for reuse every so many blocks; 0: 16 */
    uint64_t tree_ttl_us;            /* cached KV nobody used for so long is dropped; 0: 72 h */
    struct wrk_model_id model;       /* with a tree */
};

KVS_MUST_CHECK kvs_status wrk_sched_create(const struct wrk_sched_config *c, struct wrk_sched **out,
                                           struct kvs_error *err);
void wrk_sched_destroy(struct wrk_sched *s);
const struct kvc_layout *wrk_sched_layout(const struct wrk_sched *s);
uint32_t wrk_sched_context(const struct wrk_sched *s);
uint32_t wrk_sched_chunk_tokens(const struct wrk_sched *s);
struct kvc_tree *wrk_sched_tree(struct wrk_sched *s); /* NULL without one */
struct wrk_events;
const struct wrk_events *wrk_sched_events(const struct wrk_sched *s); /* of the tree (events.h); NULL without one */
/* Bounds for eng_ctx_options: most tokens and most logits rows (= sequences) in one step. */
uint32_t wrk_sched_batch_tokens(const struct wrk_sched *s);
uint32_t wrk_sched_batch_seqs(const struct wrk_sched *s);

/* --- sequences (called by the owner machines) --- */

/* Opens a WAITING sequence. KVS_BUSY_FULL: no slot; KVS_REQ_TOO_LONG: over the context; KVS_BUSY_PAGES: its known tokens can never fit into
 * this worker's pools; KVS_SELF_NOMEM. err gets the text. No pages yet: wrk_sched_admit gives them. */
KVS_MUST_CHECK kvs_status wrk_seq_open(struct wrk_sched *s, const struct wrk_seq_config *c, wrk_seq_id *out,
                                       struct kvs_error *err);
/* Opens a sequence that holds the pages of the longest known prefix of its tokens, whole blocks, and nothing else: STOPPED, with `shared`
 * blocks, until it is closed. KVS_REQ_NOT_FOUND: not one block is known. Otherwise as wrk_seq_open. */
KVS_MUST_CHECK kvs_status wrk_seq_pin(struct wrk_sched *s, const struct wrk_seq_config *c, wrk_seq_id *out,
                                      struct kvs_error *err);
/* Gives pages to waiting sequences, oldest first, until one does not fit. Called by the machines at the end of each of their steps. */
void wrk_sched_admit(struct wrk_sched *s);
/* True: wrk_sched_admit would give pages to somebody now; with a tree: it might, and it is false after wrk_sched_admit until something changed. */
bool wrk_sched_can_admit(const struct wrk_sched *s);
/* The machines tell the time at the beginning of each of their steps: the tree's ages and its TTL go by it. */
void wrk_sched_tell_time(struct wrk_sched *s, uint64_t now_us);
/* Forgets all cached prefixes; what running sequences hold stays theirs and is not offered again. Returns blocks forgotten. */
uint32_t wrk_sched_flush(struct wrk_sched *s);
struct wrk_seq_view wrk_seq_look(const struct wrk_sched *s, wrk_seq_id id); /* any id; state GONE for a stale one */
/* HELD, before its pages are granted to a peer: entries of window and state groups are made those that a transfer of the first `tokens` tokens
 * brings (all known tokens, or whole blocks of them): want every page at or behind block `shared`. In all layouts these pages leave the zero
 * list: each is overwritten whole, or wrk_seq_ready has to be called with `rezero` (or the pages fenced, or given back). */
void wrk_seq_land(struct wrk_sched *s, wrk_seq_id id, uint32_t tokens);
/* The pages that a source can have for such a transfer. whole: of cached blocks (a fetch), not of a prompt that is computed to its end. */
bool wrk_page_lands(const struct kvc_layout *l, uint32_t group, uint32_t block, uint32_t tokens, bool whole);
/* HELD -> READY, or -> WAITING when wrk_seq_land was told of more than came (window and state groups cannot be used in part): the first `computed` tokens have KV now, at least those found in the tree (computed == token_count: wait for wrk_seq_append). Pages of blocks from
 * computed / block_tokens (rounded up) on are put on the zero list again when `rezero`: a transfer may have left bytes in them. */
void wrk_seq_ready(struct wrk_sched *s, wrk_seq_id id, uint32_t computed, bool rezero);
void wrk_seq_append(struct wrk_sched *s, wrk_seq_id id,
                    int32_t token); /* a sampled token; only when computed == token_count and not full */
void wrk_seq_pause(struct wrk_sched *s, wrk_seq_id id, bool paused);
void wrk_seq_stop(struct wrk_sched *s,
                  wrk_seq_id id); /* never schedule again; keeps its pages; a step with only such sequences stops */
void wrk_seq_close(struct wrk_sched *s, wrk_seq_id id);   /* pages back: at once, or when the step in flight is done */
void wrk_seq_fence(struct wrk_sched *s, wrk_seq_id id);   /* HELD only: pages from held to fenced */
void wrk_seq_unfence(struct wrk_sched *s, wrk_seq_id id); /* FENCED: pages free, sequence gone */

/* --- steps --- */

struct wrk_step_entry {
    wrk_seq_id seq;
    wrk_owner owner;
    uint32_t user;
    const int32_t *ids; /* tokens at positions pos .. pos+count-1 */
    uint32_t count, pos;
    const struct kvc_block_table *table;
    bool last; /* these are the last known tokens: the last row's logits are wanted as `logits` says */
    wrk_logits
        logits; /* NONE unless last. SAMPLE: sample with the fields below. SHIP: keep the row for the owner's slot `user` */
    struct msg_sampling sampling;
    uint32_t choice;
    uint32_t position; /* of the token to be sampled = pos + count */
};
struct wrk_step {
    uint64_t id; /* 1, 2, 3, ... */
    const struct wrk_step_entry *entries;
    uint32_t entry_count;
    uint32_t token_count;
    uint32_t logits_count; /* entries whose logits are not NONE */
};
struct wrk_page {
    uint32_t group, page;
};
/* Pages to zero now; returns how many were written, 0: none left. Each page at most once however often it changed hands. */
size_t wrk_sched_take_zeros(struct wrk_sched *s, struct wrk_page *out, size_t cap);

/* Heads of pages to copy now (a state's page: whole) (kvc_page_copy_head), before the next call of any function here but this one: from's hold ends with this call. */
struct wrk_copy {
    uint32_t group, from, to, tokens;
};
size_t wrk_sched_take_copies(struct wrk_sched *s, struct wrk_copy *out, size_t cap);

/* The next step, or NULL: one is in flight, or there is nothing to compute. The step is in flight from here to wrk_sched_step_done. */
const struct wrk_step *wrk_sched_next_step(struct wrk_sched *s);
const struct wrk_step *wrk_sched_in_flight(const struct wrk_sched *s); /* NULL: none */
bool wrk_sched_stop_wanted(const struct wrk_sched *s); /* true: nobody wants the step in flight any more */

struct wrk_result { /* one per entry, in order */
    kvs_status
        status; /* KVS_SELF_NUMERIC for a sequence with NaN; any error: the entry's tokens do not count as computed */
    int32_t token; /* with logits SAMPLE */
    float logit, logprob, margin;
};
/* The device is done with step `id`. status: KVS_OK and results; KVS_REQ_CANCELLED: stopped by the layer callback, nothing was computed (what
 * is still wanted is done again); other errors hit every entry. A step that is not in flight is ignored (returns false). */
bool wrk_sched_step_done(struct wrk_sched *s, uint64_t id, kvs_status status, const struct wrk_result *results);

struct wrk_seq_result { /* what an owner reads after STEP_DONE; sequences closed meanwhile are left out */
    wrk_seq_id seq;
    uint32_t user;
    uint32_t pos, count; /* tokens computed */
    bool last;
    struct wrk_result r;
};
/* Results of the last finished step for one owner, valid until the next wrk_sched_next_step. step_id_out may be NULL. */
const struct wrk_seq_result *wrk_sched_results(const struct wrk_sched *s, wrk_owner owner, uint32_t *count_out,
                                               uint64_t *step_id_out);

/* Preempts the newest decode sequence that is READY; false: none, or a step is in flight. */
bool wrk_sched_preempt_newest(struct wrk_sched *s);

/* Which blocks an entry completes: those whose last token is computed by it; with is_end also the last partial one. */
struct wrk_blocks {
    uint32_t first, count;
};
struct wrk_blocks wrk_entry_blocks(const struct kvc_layout *l, uint32_t pos, uint32_t count, bool is_end);

/* --- numbers --- */

struct kvc_pool_counts wrk_sched_pages(const struct wrk_sched *s, uint32_t group);
struct wrk_sched_stats {
    uint32_t waiting, active, fenced; /* sequences now */
    uint32_t decoding;                /* of them: write an answer */
    uint64_t context_tokens;          /* of those that write: tokens with KV */
    uint64_t prefill_left;            /* prompt tokens that are to be computed here; those of a transfer under way are not */
    uint64_t outstanding_tokens;      /* tokens without KV + tokens that may still be written */
    uint64_t steps, chunks, prefill_tokens, decode_tokens, preemptions; /* since the start */
    uint64_t cached_tokens, evicted_blocks; /* tokens found in the tree at admission; blocks given up for pages */
    uint32_t widest_batch;                  /* most sequences in one step so far */
};
struct wrk_sched_stats wrk_sched_stats(const struct wrk_sched *s);
/* Recounts everything from the sequences and compares with the pools; false and a text when something does not add up. For tests and sim. */
bool wrk_sched_consistent(const struct wrk_sched *s, struct kvs_error *err);

#endif
