/* tree.h - the prefix tree: which blocks are cached, and the longest prefix at which every group is satisfied.
 * Pure bookkeeping over block hashes; pages are marked in the pools. Owner thread: the loop. Bounded by nodes_max.
 *   full, latent groups: every block of the prefix must be there; window W: those of the last W tokens; state: a snapshot exactly there.
 * A block that was inserted with its ids can also serve in part: kvc_tree_partial finds the one that shares the longest head with given
 * tokens, among those that follow the same prefix (so never another tenant's: the root hash is part of the prefix).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_KVCACHE_TREE_H
#define KVS_KVCACHE_TREE_H

#include "kvcache/hash.h"
#include "kvcache/layout.h"
#include "kvcache/pool.h"

struct kvc_tree;

KVS_MUST_CHECK kvs_status kvc_tree_create(const struct kvc_layout *layout, struct kvc_pool *const *pools, uint32_t nodes_max, struct kvc_tree **out);
void kvc_tree_destroy(struct kvc_tree *t); /* leaves the pools alone: flush first when they live on */
/* Longest match of a chain of block hashes, in blocks; pages_out[group][i] for i < result (row stride = pages_stride), each shared for the
 * caller (kvc_pool_share). now_us refreshes the blocks' age. */
uint32_t kvc_tree_match(struct kvc_tree *t, const struct kvc_hash *chain, uint32_t blocks, uint32_t *pages_out, uint32_t pages_stride, uint64_t now_us);
/* Tells the tree that block `index` of the chain is held by these pages (one per group, KVC_BLOCK_NONE allowed). Already known: its age, and pages
 * it lacks in some group are taken over.
 * KVS_REQ_NOT_FOUND: block index - 1 is not in the tree; KVS_BUSY_FULL: no room and every leaf is held. */
KVS_MUST_CHECK kvs_status kvc_tree_insert(struct kvc_tree *t, const struct kvc_hash *chain, uint32_t index, const uint32_t *page_of_group, uint64_t now_us);
/* The same with the block's ids (block_tokens of them) and the chain's root, so that kvc_tree_partial can find it. */
KVS_MUST_CHECK kvs_status kvc_tree_insert_ids(struct kvc_tree *t, const struct kvc_hash *root, const struct kvc_hash *chain, uint32_t index,
                                              const int32_t *ids, const uint32_t *page_of_group, uint64_t now_us);
/* Longest common head, in tokens and at most n, of ids and a block that follows `parent` (a block's hash, or the root); pages_out[group] are
 * that block's pages, each shared for the caller. 0: none, or a group's pages cannot be used in part. Looks at KVC_TREE_KIN_MAX blocks. */
#define KVC_TREE_KIN_MAX 64u
uint32_t kvc_tree_partial(struct kvc_tree *t, const struct kvc_hash *parent, const int32_t *ids, uint32_t n, uint32_t *pages_out, uint64_t now_us);
/* Pages of `group` that kvc_tree_evict could bring, counted up to `enough`. Changes nothing that can be seen. */
uint32_t kvc_tree_evictable(struct kvc_tree *t, uint32_t group, uint32_t enough);
/* Evicts least recently used leaves that nobody holds until `want` pages of `group` came free or none is left. Returns how many.
 * Window and state groups: only pages of that group go, also of inner blocks and of blocks that are held in other groups. */
uint32_t kvc_tree_evict(struct kvc_tree *t, uint32_t group, uint32_t want);
uint32_t kvc_tree_expire(struct kvc_tree *t, uint64_t older_than_us); /* drops leaves last used before; returns blocks dropped */
void kvc_tree_flush(struct kvc_tree *t);
/* One block as it stands in the tree. `ends`: a known prefix may end here (every state group has its snapshot). */
struct kvc_tree_block {
    struct kvc_hash hash, parent; /* parent: zeros with depth 1 */
    uint32_t depth, children;     /* blocks of the prefix that it ends; blocks that follow it */
    bool ends;
};
/* Called whenever a block has come or is about to go (its ancestors are there in both cases), and when one that stays can be an end again or
 * is about to be none any more. One watcher, which may not call the tree. */
typedef void (*kvc_tree_change_fn)(void *user, const struct kvc_tree_block *b, bool gone);
bool kvc_tree_has_states(const struct kvc_tree *t); /* has its layout a state group? */
void kvc_tree_watch(struct kvc_tree *t, kvc_tree_change_fn fn, void *user);
bool kvc_tree_look(const struct kvc_tree *t, const struct kvc_hash *block, struct kvc_tree_block *out); /* false: not there */
/* At most `cap` blocks from place *at on, which begins at 0 and is moved along; returns how many, and 0 only when all places were seen. A
 * block keeps its place while it lives, so a walk in pieces sees every block that is there all the time. */
uint32_t kvc_tree_walk(const struct kvc_tree *t, uint32_t *at, struct kvc_tree_block *out, uint32_t cap);
bool kvc_tree_has(const struct kvc_tree *t, const struct kvc_hash *block); /* known, in whatever groups */
uint32_t kvc_tree_blocks(const struct kvc_tree *t);
uint32_t kvc_tree_pages(const struct kvc_tree *t, uint32_t group); /* pages of a group that blocks refer to, held ones included */
bool kvc_tree_consistent(const struct kvc_tree *t);                 /* walks everything; for tests and sim */

#endif
