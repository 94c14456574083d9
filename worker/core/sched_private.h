/* sched_private.h - the scheduler's own structs, shared by sched.c (sequences and pages), kinds.c (window and state
 * groups), prefix.c (reuse) and step.c (steps). Owner thread: the loop.
 * Live sequences hang in one list in the order of their arrival, which never changes: preemption keeps a sequence's place.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_WORKER_CORE_SCHED_PRIVATE_H
#define KVS_WORKER_CORE_SCHED_PRIVATE_H

#include "worker/core/events.h"
#include "worker/core/sched.h"

#define WRK_NIL UINT32_MAX
#define WRK_SEQS_MAX 4096u

struct wrk_seq {
    wrk_seq_state state;
    uint32_t generation; /* 1 .. 0xfffff; the id is generation << 12 | slot */
    wrk_owner owner;
    uint32_t user;
    uint32_t older, newer; /* neighbours in arrival order, WRK_NIL at the ends; `newer` also links free slots */
    uint64_t order;        /* rises with arrival */
    int32_t *tokens;       /* tokens_max of them, owned */
    uint32_t token_count, tokens_max, computed;
    struct kvc_block_table table;
    bool hold, running, paused, in_step;
    wrk_logits logits;
    struct msg_sampling sampling;
    uint32_t choice;
    uint32_t chunks, prefilled, preemptions;
    struct kvc_hash root, *chain; /* names of its full blocks, owned; NULL: takes no part in reuse */
    uint32_t chain_count;         /* names made so far */
    uint32_t offered;             /* leading blocks that the tree was told of */
    uint32_t shared, cached;
    bool deferred;
    uint64_t flushes; /* the scheduler's when it was opened */
    /* kinds.c; entries of block rows, WRK_NIL: none */
    bool has_quota, pinned;
    uint32_t trimmed;  /* window pages that no position from this one on sees were given back */
    uint32_t state_at; /* where the running state is */
    uint32_t kept_at;  /* where a snapshot is that must stay: until it closes (source), until it landed and was offered (sink) */
    uint32_t keep;     /* the prompt's last full block, where a snapshot is wanted */
    uint32_t landing;  /* tokens that a transfer is to bring; 0: none */
};

/* A copy that the edge has not taken yet; its source has a hold of its own. */
struct wrk_pending_copy {
    struct wrk_copy copy;
    uint32_t slot; /* the sequence that owns `to` */
};

/* Scratch of wrk_sched_consistent, one a page: holders found, and the first of them. */
struct wrk_mark {
    uint32_t count, slot, block;
};

/* Pages that have to be zeroed: a ring that has room for every page once, and a flag per page so that it stands there once. */
struct wrk_zeros {
    struct wrk_page *ring;
    size_t cap, head, count;
    uint8_t *flag[KVC_GROUPS_MAX];
};

struct wrk_sched {
    struct kvc_layout layout;
    uint32_t pages[KVC_GROUPS_MAX];
    uint32_t pages_least; /* of the smallest pool of full and latent groups: blocks a sequence can have at most */
    bool mixed, has_state; /* there are window or state groups; there are state groups */
    uint32_t quotas[KVC_GROUPS_MAX];
    uint32_t snapshot_blocks;
    uint32_t seqs_max, batch_seqs, context, chunk_tokens, reserve_tokens;
    struct kvc_pool *pool[KVC_GROUPS_MAX];
    struct kvc_tree *tree;
    struct wrk_events *events; /* of the tree */
    struct wrk_zeros zeros;
    struct wrk_mark *mark[KVC_GROUPS_MAX];
    uint8_t fingerprint[32];
    char numerics[128], kv_types[32], rope[160];
    uint64_t now_us, ttl_us, expired_us, flushes;
    struct wrk_pending_copy *copies;
    size_t copy_count, copy_cap;
    bool
        changed; /* with a tree: since the last wrk_sched_admit something happened that may let a waiting sequence in */

    struct wrk_seq *seqs;
    uint32_t oldest, newest, free_slot;
    uint64_t next_order;

    struct wrk_step_entry *entries; /* batch_seqs */
    struct wrk_step step;
    bool in_flight;
    uint64_t served_order; /* the last running sequence that got its turn when there were too many */
    struct wrk_seq_result *results[WRK_OWNERS];
    uint32_t result_count[WRK_OWNERS];
    uint64_t result_step;
    struct wrk_sched_stats stats; /* the counters of it */
};

struct wrk_seq *wrk__seq(const struct wrk_sched *s, wrk_seq_id id); /* NULL for a stale id */
wrk_seq_id wrk__seq_id(const struct wrk_sched *s, const struct wrk_seq *q);
bool wrk__seq_grow(struct wrk_sched *s, struct wrk_seq *q,
                   uint32_t blocks); /* to that many blocks; false: not enough free pages */
void wrk__seq_preempt(struct wrk_sched *s, struct wrk_seq *q);
struct wrk_seq *wrk__seq_newest(const struct wrk_sched *s);   /* the next victim, or NULL */
void wrk__seq_remove(struct wrk_sched *s, struct wrk_seq *q); /* pages back, slot free */
void wrk__seq_drop_pages(struct wrk_sched *s, struct wrk_seq *q);

void wrk__zero(struct wrk_sched *s, uint32_t group, uint32_t page); /* on the zero list */
void wrk__unzero(struct wrk_sched *s, const struct wrk_seq *q, uint32_t from, uint32_t end); /* off it: pages of blocks [from, end) */

/* kinds.c; all do nothing without window and state groups */
bool wrk__by_quota(const struct wrk_sched *s, uint32_t group);
uint32_t wrk__quota(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t group);
bool wrk__quota_fits(const struct wrk_sched *s, const struct wrk_seq *q, bool alone); /* beside the others, or in an empty worker */
bool wrk__quota_take(struct wrk_sched *s, struct wrk_seq *q);
void wrk__quota_give(struct wrk_sched *s, struct wrk_seq *q);
void wrk__kinds_begin(struct wrk_sched *s, struct wrk_seq *q);    /* it has its first pages */
void wrk__kinds_computed(struct wrk_sched *s, struct wrk_seq *q); /* computed was changed by a step */
uint32_t wrk__kinds_room(const struct wrk_sched *s, const struct wrk_seq *q); /* tokens to the next snapshot */
bool wrk__kinds_offers(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t group, uint32_t block); /* its page is the block's */
void wrk__kinds_advance(struct wrk_sched *s, struct wrk_seq *q, uint32_t count); /* pages for a step over that many tokens */
bool wrk__kinds_landed(struct wrk_sched *s, struct wrk_seq *q, uint32_t computed); /* false: the sequence waits for pages anew */
void wrk__kinds_offered(struct wrk_sched *s, struct wrk_seq *q);
bool wrk__kinds_entry_needed(const struct wrk_sched *s, const struct wrk_seq *q, uint32_t group, uint32_t block, uint32_t end);

/* prefix.c; all do nothing without a tree */
kvs_status wrk__prefix_create(struct wrk_sched *s, const struct wrk_sched_config *c);
void wrk__prefix_open(struct wrk_sched *s, struct wrk_seq *q,
                      const struct wrk_seq_config *c); /* q->chain is allocated */
bool wrk__prefix_awaited(const struct wrk_sched *s,
                         struct wrk_seq *q); /* another sequence computes its next block right now */
bool wrk__prefix_admit(struct wrk_sched *s, struct wrk_seq *q,
                       uint32_t blocks);                        /* pages for that many blocks, known ones shared */
void wrk__prefix_offer(struct wrk_sched *s, struct wrk_seq *q); /* complete blocks to the tree */
void wrk__copy(struct wrk_sched *s, const struct wrk_seq *q, struct wrk_copy copy); /* its source was shared for it */
void wrk__prefix_forget_copies(struct wrk_sched *s, const struct wrk_seq *q);

#endif
