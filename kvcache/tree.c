/* tree.c - the prefix tree over block hashes.
 * Owner thread: the loop. A block's hash covers its parent's, so equal hashes mean equal prefixes: nodes are found
 * through one hash table, and a node needs only its parent and the number of its children to be a tree.
 *
 *   oldest ... [b2'] [b1'] [b2] [b1] [b0] newest        one list of all nodes, by age
 *
 * Invariant: a parent stands nearer to the newest end than its children (touching goes from the deepest block up). So
 * walking from the oldest end meets every leaf before its ancestors, and eviction needs no second list. Blocks that
 * follow the same prefix are kin: they hang in a second hash table under their parent's hash (the root's for first
 * blocks), newest first, where a partly equal block is looked for; how far is bounded. A node with a
 * held page stays: its holder's release would otherwise free a page that the tree still offers. Window and state pages
 * nobody holds are taken from blocks that stay: a passed window must not be stuck under a running sequence. The tree never
 * allocates after creation: nodes_max bounds nodes, and a full tree gives up its oldest leaf that nobody holds.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvcache/tree.h"

#include "base/checked.h"
#include <stdlib.h>
#include <string.h>

#define NIL UINT32_MAX

struct kvc_node {
    struct kvc_hash hash;
    uint64_t used_us;
    uint32_t parent, children;
    uint32_t newer, older;       /* list by age */
    uint32_t next;               /* chain of a bucket, or of the free nodes */
    struct kvc_hash parent_hash; /* with has_ids: where it hangs among its kin */
    uint32_t kin_next, kin_prev;
    uint32_t depth; /* blocks of the prefix that it ends; 0: not in use */
    bool has_ids;
    uint64_t kept;  /* stamp of the evictable walk in which something below it stays */
    uint32_t below; /* steps down to the nearest leaf, as of the last strip */
};

/* Owner thread: the loop. */
struct kvc_tree {
    struct kvc_layout layout;
    struct kvc_pool *pools[KVC_GROUPS_MAX];
    struct kvc_node *node; /* [nodes_max], owned */
    uint32_t *page;        /* [nodes_max][group_count], owned */
    uint32_t *bucket;      /* [bucket_mask + 1], owned */
    uint32_t *kin;         /* [bucket_mask + 1], owned: by parent hash */
    int32_t *ids;          /* [nodes_max][block_tokens], owned */
    uint64_t walk;         /* counts evictable walks */
    uint32_t bucket_mask, nodes_max, blocks;
    uint32_t unused, fresh; /* nodes that were in use once; the first that never was: memory that nobody needed yet is not touched */
    uint32_t newest, oldest;
    kvc_tree_change_fn changed;
    void *changed_user;
};

kvs_status kvc_tree_create(const struct kvc_layout *layout, struct kvc_pool *const *pools, uint32_t nodes_max,
                           struct kvc_tree **out)
{
    KVS_ASSERT(layout != NULL && layout->group_count > 0 && layout->group_count <= KVC_GROUPS_MAX);
    KVS_ASSERT(nodes_max > 0 && nodes_max <= 1u << 30);
    struct kvc_tree *t = calloc(1, sizeof *t);
    if (t == NULL)
        return KVS_SELF_NOMEM;
    t->layout = *layout;
    memcpy(t->pools, pools, layout->group_count * sizeof *pools);
    uint32_t buckets = 16;
    while (buckets < nodes_max)
        buckets *= 2;
    t->node = calloc(nodes_max, sizeof *t->node);
    t->page = calloc(nodes_max, layout->group_count * sizeof *t->page);
    t->bucket = malloc(buckets * sizeof *t->bucket);
    t->kin = malloc(buckets * sizeof *t->kin);
    t->ids = calloc(nodes_max, layout->block_tokens * sizeof *t->ids);
    if (t->node == NULL || t->page == NULL || t->bucket == NULL || t->kin == NULL || t->ids == NULL) {
        kvc_tree_destroy(t);
        return KVS_SELF_NOMEM;
    }
    memset(t->bucket, 0xff, buckets * sizeof *t->bucket); /* NIL */
    memset(t->kin, 0xff, buckets * sizeof *t->kin);
    t->bucket_mask = buckets - 1;
    t->nodes_max = nodes_max;
    t->newest = t->oldest = t->unused = NIL;
    *out = t;
    return KVS_OK;
}

void kvc_tree_destroy(struct kvc_tree *t)
{
    if (t == NULL)
        return;
    free(t->node);
    free(t->page);
    free(t->bucket);
    free(t->kin);
    free(t->ids);
    free(t);
}

static uint32_t *node_pages(const struct kvc_tree *t, uint32_t n)
{
    return t->page + (size_t)n * t->layout.group_count;
}

static uint32_t *bucket_of(const struct kvc_tree *t, const struct kvc_hash *h)
{
    return &t->bucket[kvs_load_u32(h->bytes) & t->bucket_mask]; /* SHA-256: any bits are good bits */
}

static uint32_t find(const struct kvc_tree *t, const struct kvc_hash *h)
{
    uint32_t n = *bucket_of(t, h);
    while (n != NIL && !kvc_hash_equal(&t->node[n].hash, h))
        n = t->node[n].next;
    return n;
}

static void list_remove(struct kvc_tree *t, uint32_t n)
{
    struct kvc_node *e = &t->node[n];
    *(e->newer == NIL ? &t->newest : &t->node[e->newer].older) = e->older;
    *(e->older == NIL ? &t->oldest : &t->node[e->older].newer) = e->newer;
}

/* Puts n just older than `newer`, or at the newest end when that is NIL. */
static void list_insert(struct kvc_tree *t, uint32_t n, uint32_t newer)
{
    struct kvc_node *e = &t->node[n];
    e->newer = newer;
    e->older = newer == NIL ? t->newest : t->node[newer].older;
    *(e->newer == NIL ? &t->newest : &t->node[e->newer].older) = n;
    *(e->older == NIL ? &t->oldest : &t->node[e->older].newer) = n;
}

/* The path from n up becomes newest, n being the oldest of it. A path already touched at this time keeps its place. */
static void touch(struct kvc_tree *t, uint32_t n, uint64_t now_us)
{
    for (; n != NIL; n = t->node[n].parent) {
        if (t->node[n].used_us < now_us)
            t->node[n].used_us = now_us;
        list_remove(t, n);
        list_insert(t, n, NIL);
    }
}

static int32_t *node_ids(const struct kvc_tree *t, uint32_t n)
{
    return t->ids + (size_t)n * t->layout.block_tokens;
}

static uint32_t *kin_of(const struct kvc_tree *t, const struct kvc_hash *parent)
{
    return &t->kin[kvs_load_u32(parent->bytes) & t->bucket_mask];
}

static void kin_add(struct kvc_tree *t, uint32_t n, const struct kvc_hash *parent, const int32_t *ids)
{
    struct kvc_node *e = &t->node[n];
    uint32_t *first = kin_of(t, parent);
    memcpy(node_ids(t, n), ids, t->layout.block_tokens * sizeof *ids);
    e->parent_hash = *parent;
    e->has_ids = true;
    e->kin_prev = NIL;
    e->kin_next = *first;
    if (*first != NIL)
        t->node[*first].kin_prev = n;
    *first = n;
}

static void kin_remove(struct kvc_tree *t, uint32_t n)
{
    struct kvc_node *e = &t->node[n];
    if (!e->has_ids)
        return;
    *(e->kin_prev == NIL ? kin_of(t, &e->parent_hash) : &t->node[e->kin_prev].kin_next) = e->kin_next;
    if (e->kin_next != NIL)
        t->node[e->kin_next].kin_prev = e->kin_prev;
    e->has_ids = false;
}

static bool node_held(const struct kvc_tree *t, uint32_t n)
{
    for (uint32_t g = 0; g < t->layout.group_count; g++) {
        uint32_t page = node_pages(t, n)[g];
        if (page != KVC_BLOCK_NONE && kvc_pool_holders(t->pools[g], page) > 0)
            return true;
    }
    return false;
}

static void describe(const struct kvc_tree *t, uint32_t n, struct kvc_tree_block *out)
{
    const struct kvc_node *e = &t->node[n];
    *out = (struct kvc_tree_block){.hash = e->hash, .depth = e->depth, .children = e->children, .ends = true};
    if (e->parent != NIL)
        out->parent = t->node[e->parent].hash;
    for (uint32_t g = 0; g < t->layout.group_count; g++)
        if (t->layout.group[g].kind == KVC_STATE && node_pages(t, n)[g] == KVC_BLOCK_NONE)
            out->ends = false;
}

static void tell(const struct kvc_tree *t, uint32_t n, bool gone)
{
    struct kvc_tree_block b;
    if (t->changed == NULL)
        return;
    describe(t, n, &b);
    t->changed(t->changed_user, &b, gone);
}

/* Forgets a leaf. Its pages become free, or stay with their holders unmarked. */
static void drop(struct kvc_tree *t, uint32_t n)
{
    struct kvc_node *e = &t->node[n];
    KVS_ASSERT(e->children == 0);
    tell(t, n, true);
    for (uint32_t g = 0; g < t->layout.group_count; g++)
        if (node_pages(t, n)[g] != KVC_BLOCK_NONE)
            kvc_pool_unmark_cached(t->pools[g], node_pages(t, n)[g]);
    uint32_t *link = bucket_of(t, &e->hash);
    while (*link != n) {
        KVS_ASSERT(*link != NIL);
        link = &t->node[*link].next;
    }
    *link = e->next;
    kin_remove(t, n);
    list_remove(t, n);
    if (e->parent != NIL) {
        KVS_ASSERT(t->node[e->parent].children > 0);
        t->node[e->parent].children--;
    }
    e->next = t->unused;
    e->depth = 0;
    t->unused = n;
    t->blocks--;
}

/* Groups whose pages can leave a block that stays: what is left of it still serves longer or shorter prefixes. */
static bool strippable(const struct kvc_tree *t, uint32_t group)
{
    kvc_kind kind = t->layout.group[group].kind;
    return kind == KVC_WINDOW || kind == KVC_STATE;
}

static uint32_t longest_match(const struct kvc_tree *t, const struct kvc_hash *chain, uint32_t blocks)
{
    uint32_t run[KVC_GROUPS_MAX] = {0};
    uint32_t best = 0, parent = NIL;
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t n = find(t, &chain[i]);
        if (n == NIL)
            break;
        KVS_ASSERT(t->node[n].parent == parent); /* equal hash: equal prefix */
        parent = n;
        bool all = true;
        for (uint32_t g = 0; g < t->layout.group_count; g++) {
            run[g] = node_pages(t, n)[g] == KVC_BLOCK_NONE ? 0 : run[g] + 1;
            all = all && run[g] >= i + 1 - kvc_first_needed(&t->layout, &t->layout.group[g], i + 1);
        }
        if (all)
            best = i + 1;
    }
    return best;
}

uint32_t kvc_tree_match(struct kvc_tree *t, const struct kvc_hash *chain, uint32_t blocks, uint32_t *pages_out,
                        uint32_t pages_stride, uint64_t now_us)
{
    KVS_ASSERT(t != NULL && (chain != NULL || blocks == 0));
    uint32_t count = longest_match(t, chain, blocks);
    KVS_ASSERT(count <= pages_stride || count == 0);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *page = node_pages(t, find(t, &chain[i]));
        for (uint32_t g = 0; g < t->layout.group_count; g++) {
            bool needed = i >= kvc_first_needed(&t->layout, &t->layout.group[g], count);
            pages_out[(size_t)g * pages_stride + i] = needed ? page[g] : KVC_BLOCK_NONE;
            if (needed && page[g] != KVC_BLOCK_NONE)
                kvc_pool_share(t->pools[g], page[g]);
        }
    }
    if (count > 0)
        touch(t, find(t, &chain[count - 1]), now_us);
    return count;
}

/* The oldest leaf at or after `from` that nobody holds; NIL: none. */
static uint32_t next_victim(const struct kvc_tree *t, uint32_t from)
{
    while (from != NIL && (t->node[from].children > 0 || node_held(t, from)))
        from = t->node[from].newer;
    return from;
}

static bool ends_here(const struct kvc_tree *t, uint32_t n)
{
    struct kvc_tree_block b;
    describe(t, n, &b);
    return b.ends;
}

/* A known block takes what it lacks: pages that were stripped, or that its first owner never had. */
static void fill(struct kvc_tree *t, uint32_t n, const uint32_t *page_of_group)
{
    bool ended = ends_here(t, n);
    for (uint32_t g = 0; g < t->layout.group_count; g++) {
        uint32_t *page = &node_pages(t, n)[g], offered = page_of_group[g];
        if (*page != KVC_BLOCK_NONE || offered == KVC_BLOCK_NONE || kvc_pool_known(t->pools[g], offered))
            continue;
        *page = offered;
        kvc_pool_mark_cached(t->pools[g], offered);
    }
    if (!ended && ends_here(t, n))
        tell(t, n, false);
}

static kvs_status insert(struct kvc_tree *t, const struct kvc_hash *root, const struct kvc_hash *chain, uint32_t index,
                         const int32_t *ids, const uint32_t *page_of_group, uint64_t now_us)
{
    KVS_ASSERT(t != NULL && chain != NULL && page_of_group != NULL);
    uint32_t known = find(t, &chain[index]);
    if (known != NIL) {
        fill(t, known, page_of_group);
        touch(t, known, now_us);
        return KVS_OK;
    }
    uint32_t parent = index == 0 ? NIL : find(t, &chain[index - 1]);
    if (index > 0 && parent == NIL)
        return KVS_REQ_NOT_FOUND;
    if (parent != NIL)
        t->node[parent].children++; /* before making room: the parent must not be the victim */
    if (t->unused == NIL && t->fresh == t->nodes_max) {
        uint32_t victim = next_victim(t, t->oldest);
        if (victim == NIL) {
            if (parent != NIL)
                t->node[parent].children--;
            return KVS_BUSY_FULL;
        }
        drop(t, victim);
    }
    uint32_t n = t->unused != NIL ? t->unused : t->fresh++;
    struct kvc_node *e = &t->node[n];
    if (n == t->unused)
        t->unused = e->next;
    uint32_t *bucket = bucket_of(t, &chain[index]);
    *e = (struct kvc_node){.hash = chain[index], .used_us = now_us, .parent = parent, .next = *bucket, .depth = index + 1};
    *bucket = n;
    for (uint32_t g = 0; g < t->layout.group_count; g++) {
        node_pages(t, n)[g] = page_of_group[g];
        if (page_of_group[g] != KVC_BLOCK_NONE)
            kvc_pool_mark_cached(t->pools[g], page_of_group[g]);
    }
    t->blocks++;
    /* A chain inserted at one time costs one step a block; an older path is lifted as a whole. */
    bool fresh = parent != NIL && t->node[parent].used_us >= now_us;
    list_insert(t, n, fresh ? parent : NIL);
    if (!fresh)
        touch(t, n, now_us);
    if (ids != NULL)
        kin_add(t, n, index == 0 ? root : &chain[index - 1], ids);
    tell(t, n, false);
    return KVS_OK;
}

kvs_status kvc_tree_insert(struct kvc_tree *t, const struct kvc_hash *chain, uint32_t index,
                           const uint32_t *page_of_group, uint64_t now_us)
{
    return insert(t, NULL, chain, index, NULL, page_of_group, now_us);
}

kvs_status kvc_tree_insert_ids(struct kvc_tree *t, const struct kvc_hash *root, const struct kvc_hash *chain,
                               uint32_t index, const int32_t *ids, const uint32_t *page_of_group, uint64_t now_us)
{
    KVS_ASSERT(root != NULL && ids != NULL);
    return insert(t, root, chain, index, ids, page_of_group, now_us);
}

/* All pages there: a head of the block can be copied in every group. */
static bool node_whole(const struct kvc_tree *t, uint32_t n)
{
    for (uint32_t g = 0; g < t->layout.group_count; g++)
        if (node_pages(t, n)[g] == KVC_BLOCK_NONE)
            return false;
    return true;
}

uint32_t kvc_tree_partial(struct kvc_tree *t, const struct kvc_hash *parent, const int32_t *ids, uint32_t n,
                          uint32_t *pages_out, uint64_t now_us)
{
    KVS_ASSERT(t != NULL && parent != NULL && n <= t->layout.block_tokens);
    for (uint32_t g = 0; g < t->layout.group_count; g++)
        if (t->layout.group[g].kind != KVC_FULL && t->layout.group[g].kind != KVC_LATENT)
            return 0;
    uint32_t best = 0, best_node = NIL, looked = 0;
    for (uint32_t k = *kin_of(t, parent); k != NIL && looked < KVC_TREE_KIN_MAX && best < n; k = t->node[k].kin_next) {
        if (!kvc_hash_equal(&t->node[k].parent_hash, parent))
            continue; /* only shares the bucket */
        looked++;
        uint32_t same = 0;
        while (same < n && node_ids(t, k)[same] == ids[same])
            same++;
        if (same > best && node_whole(t, k)) {
            best = same;
            best_node = k;
        }
    }
    for (uint32_t g = 0; best > 0 && g < t->layout.group_count; g++) {
        pages_out[g] = node_pages(t, best_node)[g];
        kvc_pool_share(t->pools[g], pages_out[g]);
    }
    if (best > 0)
        touch(t, best_node, now_us);
    return best;
}

/* A page of a strippable group that nobody holds. */
static bool can_strip(const struct kvc_tree *t, uint32_t n, uint32_t group)
{
    uint32_t page = node_pages(t, n)[group];
    return page != KVC_BLOCK_NONE && kvc_pool_holders(t->pools[group], page) == 0;
}

uint32_t kvc_tree_evictable(struct kvc_tree *t, uint32_t group, uint32_t enough)
{
    KVS_ASSERT(t != NULL && group < t->layout.group_count);
    uint32_t count = 0;
    t->walk++;
    for (uint32_t n = t->oldest; n != NIL && count < enough; n = t->node[n].newer) { /* children before parents */
        const struct kvc_node *e = &t->node[n];
        if (strippable(t, group))
            count += can_strip(t, n, group);
        else if (e->kept != t->walk && !node_held(t, n))
            count += node_pages(t, n)[group] != KVC_BLOCK_NONE;
        else if (e->parent != NIL)
            t->node[e->parent].kept = t->walk;
    }
    return count;
}

/* Is this page one that no known prefix ends on? below: blocks from n down to the nearest leaf. Window: too far above all ends to be seen
 * from them; state: a snapshot with one continuation, which the next snapshot serves better (forks are what different prompts share). */
static bool seldom_used(const struct kvc_tree *t, uint32_t n, uint32_t group)
{
    const struct kvc_group *g = &t->layout.group[group];
    if (g->kind == KVC_STATE)
        return t->node[n].children == 1;
    return (uint64_t)t->node[n].below * t->layout.block_tokens >= (uint64_t)g->window + t->layout.block_tokens;
}

static void measure_below(struct kvc_tree *t)
{
    for (uint32_t n = t->oldest; n != NIL; n = t->node[n].newer)
        t->node[n].below = t->node[n].children == 0 ? 0 : UINT32_MAX;
    for (uint32_t n = t->oldest; n != NIL; n = t->node[n].newer) { /* children before parents */
        uint32_t parent = t->node[n].parent, below = t->node[n].below + 1;
        if (parent != NIL && below < t->node[parent].below)
            t->node[parent].below = below;
    }
}

/* Takes pages away from blocks that stay, oldest first: those that are of little use, then any. */
static uint32_t strip(struct kvc_tree *t, uint32_t group, uint32_t want)
{
    uint32_t freed = 0;
    measure_below(t);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t n = t->oldest; n != NIL && freed < want; n = t->node[n].newer) {
            if (!can_strip(t, n, group) || (pass == 0 && !seldom_used(t, n, group)))
                continue;
            uint32_t *page = &node_pages(t, n)[group];
            if (t->layout.group[group].kind == KVC_STATE && ends_here(t, n))
                tell(t, n, true); /* no prefix can end here any more */
            kvc_pool_unmark_cached(t->pools[group], *page);
            *page = KVC_BLOCK_NONE;
            freed++;
        }
    return freed;
}

uint32_t kvc_tree_evict(struct kvc_tree *t, uint32_t group, uint32_t want)
{
    KVS_ASSERT(t != NULL && group < t->layout.group_count);
    if (strippable(t, group))
        return strip(t, group, want);
    uint32_t freed = 0;
    for (uint32_t n = next_victim(t, t->oldest); n != NIL && freed < want;) {
        uint32_t newer = t->node[n].newer;
        freed += node_pages(t, n)[group] != KVC_BLOCK_NONE;
        drop(t, n);
        n = next_victim(t, newer);
    }
    return freed;
}

uint32_t kvc_tree_expire(struct kvc_tree *t, uint64_t older_than_us)
{
    KVS_ASSERT(t != NULL);
    uint32_t dropped = 0;
    for (uint32_t n = next_victim(t, t->oldest); n != NIL && t->node[n].used_us < older_than_us; dropped++) {
        uint32_t newer = t->node[n].newer;
        drop(t, n);
        n = next_victim(t, newer);
    }
    return dropped;
}

void kvc_tree_flush(struct kvc_tree *t)
{
    KVS_ASSERT(t != NULL);
    while (t->oldest != NIL)
        drop(t, t->oldest); /* children stand before their parents: the oldest is always a leaf */
    KVS_ASSERT(t->blocks == 0);
}

void kvc_tree_watch(struct kvc_tree *t, kvc_tree_change_fn fn, void *user)
{
    KVS_ASSERT(t != NULL);
    t->changed = fn;
    t->changed_user = user;
}

bool kvc_tree_has_states(const struct kvc_tree *t)
{
    KVS_ASSERT(t != NULL);
    for (uint32_t g = 0; g < t->layout.group_count; g++)
        if (t->layout.group[g].kind == KVC_STATE)
            return true;
    return false;
}

bool kvc_tree_look(const struct kvc_tree *t, const struct kvc_hash *block, struct kvc_tree_block *out)
{
    KVS_ASSERT(t != NULL && block != NULL && out != NULL);
    uint32_t n = find(t, block);
    if (n != NIL)
        describe(t, n, out);
    return n != NIL;
}

uint32_t kvc_tree_walk(const struct kvc_tree *t, uint32_t *at, struct kvc_tree_block *out, uint32_t cap)
{
    KVS_ASSERT(t != NULL && at != NULL && cap > 0);
    uint32_t count = 0;
    for (; *at < t->fresh && count < cap; ++*at)
        if (t->node[*at].depth > 0)
            describe(t, *at, &out[count++]);
    return count;
}

bool kvc_tree_has(const struct kvc_tree *t, const struct kvc_hash *block)
{
    KVS_ASSERT(t != NULL && block != NULL);
    return find(t, block) != NIL;
}

uint32_t kvc_tree_blocks(const struct kvc_tree *t)
{
    KVS_ASSERT(t != NULL);
    return t->blocks;
}

uint32_t kvc_tree_pages(const struct kvc_tree *t, uint32_t group)
{
    KVS_ASSERT(t != NULL && group < t->layout.group_count);
    uint32_t count = 0;
    for (uint32_t n = t->oldest; n != NIL; n = t->node[n].newer)
        count += node_pages(t, n)[group] != KVC_BLOCK_NONE;
    return count;
}

static bool node_consistent(const struct kvc_tree *t, uint32_t n)
{
    const struct kvc_node *e = &t->node[n];
    for (uint32_t g = 0; g < t->layout.group_count; g++)
        if (node_pages(t, n)[g] != KVC_BLOCK_NONE && !kvc_pool_known(t->pools[g], node_pages(t, n)[g]))
            return false;
    if (e->parent != NIL && (t->node[e->parent].children == 0 || t->node[e->parent].used_us < e->used_us))
        return false;
    return find(t, &e->hash) == n;
}

bool kvc_tree_consistent(const struct kvc_tree *t)
{
    uint32_t blocks = 0, children = 0, parents = 0;
    for (uint32_t n = t->oldest; n != NIL && blocks <= t->blocks; n = t->node[n].newer, blocks++) {
        if (!node_consistent(t, n))
            return false;
        children += t->node[n].children;
        parents += t->node[n].parent != NIL;
    }
    return blocks == t->blocks && children == parents;
}
