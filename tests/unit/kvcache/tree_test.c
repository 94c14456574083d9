/* tree_test.c - the prefix tree against a naive model: a flat list of (whole prefix as ids, pages, age), searched by
 * comparing ids and pruned by sorting. Groups of all four kinds take part. KVASIR_TEST_SEED takes another seed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kvcache/tree.h"
#include "tests/unit/kvcache/failing_alloc.h"

enum { GROUPS = 4, DEPTH = 6, NODES = 24, PAGES = 40, WINDOW = 5, BLOCK = 4 };

struct entry { /* one cached block; ids[] stands for the tokens of the prefix, one number a block */
    uint8_t ids[DEPTH];
    uint32_t depth; /* blocks of the prefix, itself included */
    uint32_t page[GROUPS];
    uint64_t used_us;
    bool live;
};

struct world {
    struct kvc_layout layout;
    struct kvc_pool *pools[GROUPS];
    struct kvc_tree *tree;
    struct entry entry[NODES];
    uint32_t held[GROUPS][PAGES]; /* holders by the model */
    uint64_t now_us;
    struct kvs_rng rng;
};

static void chain_of(const uint8_t *ids, uint32_t n, struct kvc_hash *chain)
{
    struct kvc_hash h = {{1}};
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = ids[i];
        assert_int_equal(kvc_hash_block(&h, &id, 1, NULL, 0, &h), KVS_OK);
        chain[i] = h;
    }
}

static struct entry *model_find(struct world *w, const uint8_t *ids, uint32_t depth)
{
    for (int i = 0; i < NODES; i++)
        if (w->entry[i].live && w->entry[i].depth == depth && memcmp(w->entry[i].ids, ids, depth) == 0)
            return &w->entry[i];
    return NULL;
}

static bool model_held(struct world *w, const struct entry *e)
{
    for (int g = 0; g < GROUPS; g++)
        if (e->page[g] != KVC_BLOCK_NONE && w->held[g][e->page[g]] > 0)
            return true;
    return false;
}

static bool model_leaf(struct world *w, const struct entry *e)
{
    for (int i = 0; i < NODES; i++)
        if (w->entry[i].live && w->entry[i].depth == e->depth + 1 && memcmp(w->entry[i].ids, e->ids, e->depth) == 0)
            return false;
    return true;
}

/* The age at which an entry may go: no victim may be newer than another free leaf. Several may share the oldest age. */
static uint64_t model_oldest(struct world *w, const struct entry *except)
{
    uint64_t oldest = UINT64_MAX;
    for (int i = 0; i < NODES; i++) {
        struct entry *e = &w->entry[i];
        if (e->live && e != except && e->used_us < oldest && model_leaf(w, e) && !model_held(w, e))
            oldest = e->used_us;
    }
    return oldest;
}

static bool model_ok(struct world *w, const uint8_t *ids, uint32_t n)
{
    for (uint32_t i = 1; i <= n; i++) {
        const struct entry *e = model_find(w, ids, i);
        if (e == NULL)
            return false;
        bool in_window = (uint64_t)i * BLOCK >
                         (uint64_t)n * BLOCK - (n * BLOCK > WINDOW ? WINDOW : n * BLOCK); /* its last token counts */
        if (e->page[0] == KVC_BLOCK_NONE || e->page[2] == KVC_BLOCK_NONE ||
            (in_window && e->page[1] == KVC_BLOCK_NONE) || (i == n && e->page[3] == KVC_BLOCK_NONE))
            return false;
    }
    return true;
}

static void model_touch(struct world *w, const uint8_t *ids, uint32_t n)
{
    for (uint32_t i = 1; i <= n; i++)
        model_find(w, ids, i)->used_us = w->now_us;
}

static void random_ids(struct world *w, uint8_t *ids)
{
    for (int i = 0; i < DEPTH; i++)
        ids[i] = (uint8_t)kvs_rng_below(&w->rng, i == 0 ? 3 : 2);
}

/* Which entries did the tree give up? Ask for each one, children before parents; check() then compares the pools. */
static void sync_dropped(struct world *w, uint64_t bound_us, uint32_t *dropped_out)
{
    *dropped_out = 0;
    for (uint32_t d = DEPTH; d >= 1; d--)
        for (int i = 0; i < NODES; i++) {
            struct entry *e = &w->entry[i];
            if (!e->live || e->depth != d)
                continue;
            struct kvc_hash chain[DEPTH];
            chain_of(e->ids, d, chain);
            if (!kvc_tree_has(w->tree, &chain[d - 1])) {
                assert_true(model_leaf(w, e) && !model_held(w, e));
                assert_true(e->used_us <= bound_us);
                e->live = false;
                (*dropped_out)++;
            }
        }
}

static void check(struct world *w)
{
    uint32_t live = 0;
    for (int i = 0; i < NODES; i++)
        live += w->entry[i].live;
    assert_int_equal(kvc_tree_blocks(w->tree), live);
    assert_true(kvc_tree_consistent(w->tree));
    for (int g = 0; g < GROUPS; g++) {
        uint32_t held = 0, cached = 0;
        for (int p = 0; p < PAGES; p++)
            held += w->held[g][p] > 0;
        for (int i = 0; i < NODES; i++)
            if (w->entry[i].live && w->entry[i].page[g] != KVC_BLOCK_NONE)
                cached += w->held[g][w->entry[i].page[g]] == 0;
        struct kvc_pool_counts c = kvc_pool_counts(w->pools[g]);
        assert_int_equal(c.held, held);
        assert_int_equal(c.cached, cached);
        assert_int_equal(c.free, PAGES - held - cached);
    }
}

static void do_insert(struct world *w)
{
    uint8_t ids[DEPTH];
    struct kvc_hash chain[DEPTH];
    random_ids(w, ids);
    uint32_t depth = 1 + (uint32_t)kvs_rng_below(&w->rng, DEPTH);
    chain_of(ids, DEPTH, chain);
    uint32_t page[GROUPS], own[GROUPS];
    for (int g = 0; g < GROUPS; g++)
        if (kvc_pool_acquire(w->pools[g], 1, &own[g]) != KVS_OK)
            own[g] = KVC_BLOCK_NONE;
    for (int g = 0; g < GROUPS; g++) {
        bool hole = (g == 1 || g == 3) && kvs_rng_below(&w->rng, 3) == 0;
        page[g] = hole ? KVC_BLOCK_NONE : own[g];
        if (own[g] != KVC_BLOCK_NONE)
            w->held[g][own[g]] = 1;
    }
    struct entry *known = model_find(w, ids, depth), *parent = depth > 1 ? model_find(w, ids, depth - 1) : NULL;
    uint32_t live = kvc_tree_blocks(w->tree);
    uint64_t oldest = model_oldest(w, parent);
    kvs_status s = kvc_tree_insert(w->tree, chain, depth - 1, page, w->now_us);
    if (known != NULL) {
        assert_int_equal(s, KVS_OK);
        for (int g = 0; g < GROUPS; g++)
            if (known->page[g] == KVC_BLOCK_NONE)
                known->page[g] = page[g];
        model_touch(w, ids, depth);
    } else if (depth > 1 && parent == NULL) {
        assert_int_equal(s, KVS_REQ_NOT_FOUND);
    } else if (live == NODES && oldest == UINT64_MAX) {
        assert_int_equal(s, KVS_BUSY_FULL);
    } else {
        assert_int_equal(s, KVS_OK);
        uint32_t dropped;
        sync_dropped(w, oldest, &dropped);
        assert_int_equal(dropped, live == NODES ? 1 : 0);
        struct entry *e = w->entry;
        while (e->live)
            e++;
        memcpy(e->ids, ids, DEPTH);
        memcpy(e->page, page, sizeof page);
        e->depth = depth;
        e->live = true;
        model_touch(w, ids, depth);
    }
    for (int g = 0; g < GROUPS; g++)
        if (own[g] != KVC_BLOCK_NONE &&
            kvs_rng_below(&w->rng, 12) != 0) { /* some stay held for good, until do_release */
            kvc_pool_release(w->pools[g], own[g]);
            w->held[g][own[g]]--;
        }
}

static void do_match(struct world *w)
{
    uint8_t ids[DEPTH];
    struct kvc_hash chain[DEPTH];
    uint32_t out[GROUPS][DEPTH + 1], want = 0;
    random_ids(w, ids);
    chain_of(ids, DEPTH, chain);
    memset(out, 0xee, sizeof out);
    for (uint32_t n = 1; n <= DEPTH; n++)
        want = model_ok(w, ids, n) ? n : want;
    uint32_t n = kvc_tree_match(w->tree, chain, DEPTH, out[0], DEPTH + 1, w->now_us);
    assert_int_equal(n, want);
    if (n > 0)
        model_touch(w, ids, n);
    for (uint32_t i = 0; i < n; i++)
        for (int g = 0; g < GROUPS; g++) {
            uint32_t page = model_find(w, ids, i + 1)->page[g];
            bool in_window = (i + 1) * BLOCK > n * BLOCK - (n * BLOCK > WINDOW ? WINDOW : n * BLOCK);
            if ((g == 1 && !in_window) || (g == 3 && i + 1 != n))
                page = KVC_BLOCK_NONE;
            assert_int_equal(out[g][i], page);
            if (page != KVC_BLOCK_NONE) {
                assert_int_equal(kvc_pool_holders(w->pools[g], page), w->held[g][page] + 1);
                w->held[g][page]++;
            }
        }
}

static void do_release(struct world *w)
{
    for (int g = 0; g < GROUPS; g++)
        for (uint32_t p = 0; p < PAGES; p++)
            while (w->held[g][p] > 0 && kvs_rng_below(&w->rng, 3) != 0) {
                kvc_pool_release(w->pools[g], p);
                w->held[g][p]--;
            }
}

/* Window and state pages leave blocks that stay, those that are far from every end first. */
static void do_strip(struct world *w, uint32_t g)
{
    uint32_t want = (uint32_t)kvs_rng_below(&w->rng, 4), live = kvc_tree_blocks(w->tree), stripped = 0;
    uint32_t can = kvc_tree_evictable(w->tree, g, want);
    uint32_t freed = kvc_tree_evict(w->tree, g, want);
    assert_int_equal(can, freed);
    assert_int_equal(kvc_tree_blocks(w->tree), live);
    for (int i = 0; i < NODES; i++) {
        uint32_t *page = &w->entry[i].page[g];
        if (!w->entry[i].live || *page == KVC_BLOCK_NONE)
            continue;
        if (!kvc_pool_known(w->pools[g], *page)) {
            assert_int_equal(w->held[g][*page], 0);
            *page = KVC_BLOCK_NONE;
            stripped++;
        } else if (freed < want) {
            assert_true(w->held[g][*page] > 0);
        }
    }
    assert_int_equal(stripped, freed);
}

static void do_evict(struct world *w)
{
    uint32_t g = (uint32_t)kvs_rng_below(&w->rng, GROUPS), want = (uint32_t)kvs_rng_below(&w->rng, 4), dropped;
    if (g == 1 || g == 3) {
        do_strip(w, g);
        return;
    }
    struct kvc_pool_counts before = kvc_pool_counts(w->pools[g]);
    uint32_t can = kvc_tree_evictable(w->tree, g, want);
    uint32_t freed = kvc_tree_evict(w->tree, g, want);
    assert_int_equal(can, freed);
    assert_int_equal(kvc_pool_counts(w->pools[g]).free, before.free + freed);
    assert_true(freed <= want);
    sync_dropped(w, w->now_us, &dropped);
    assert_true(dropped >= freed);
    if (freed < want)
        for (int i = 0; i < NODES; i++) /* stopped early: nothing was left to evict */
            assert_false(w->entry[i].live && model_leaf(w, &w->entry[i]) && !model_held(w, &w->entry[i]));
}

static void do_expire(struct world *w)
{
    uint64_t bound = w->now_us - kvs_rng_below(&w->rng, 60);
    uint32_t dropped;
    uint32_t n = kvc_tree_expire(w->tree, bound);
    sync_dropped(w, bound - 1, &dropped);
    assert_int_equal(dropped, n);
    for (int i = 0; i < NODES; i++) {
        struct entry *e = &w->entry[i];
        assert_false(e->live && e->used_us < bound && model_leaf(w, e) && !model_held(w, e));
    }
}

static void open_world(struct world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->rng.state = seed;
    w->now_us = 1000;
    w->layout = (struct kvc_layout){.block_tokens = BLOCK, .group_count = GROUPS};
    const kvc_kind kind[GROUPS] = {KVC_FULL, KVC_WINDOW, KVC_LATENT, KVC_STATE};
    for (int g = 0; g < GROUPS; g++) {
        w->layout.group[g].kind = kind[g];
        w->layout.group[g].window = kind[g] == KVC_WINDOW ? WINDOW : 0;
        assert_int_equal(kvc_pool_create(PAGES, &w->pools[g]), KVS_OK);
    }
    assert_int_equal(kvc_tree_create(&w->layout, w->pools, NODES, &w->tree), KVS_OK);
}

static void close_world(struct world *w)
{
    kvc_tree_destroy(w->tree);
    for (int g = 0; g < GROUPS; g++)
        kvc_pool_destroy(w->pools[g]);
}

static void test_random_operations_equal_the_model(void **state)
{
    (void)state;
    const char *text = getenv("KVASIR_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 20261130u;
    print_message("KVASIR_TEST_SEED=%llu\n", (unsigned long long)seed);
    struct world w;
    open_world(&w, seed);
    uint32_t matched = 0;
    for (int i = 0; i < 20000; i++) {
        w.now_us += kvs_rng_below(&w.rng, 4); /* sometimes the same time twice */
        switch (kvs_rng_below(&w.rng, 12)) {
        case 0: do_evict(&w); break;
        case 1: do_expire(&w); break;
        case 2:
        case 3: do_release(&w); break;
        case 4:
        case 5: do_match(&w), matched++; break;
        default: do_insert(&w); break;
        }
        check(&w);
    }
    assert_true(matched > 1000);
    kvc_tree_flush(w.tree);
    memset(w.entry, 0, sizeof w.entry);
    check(&w);
    close_world(&w);
}

static void test_oldest_leaf_goes_first(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 1);
    const uint8_t a[] = {0, 0, 0, 0, 0, 0}, b[] = {1, 1, 1, 1, 1, 1};
    struct kvc_hash ca[DEPTH], cb[DEPTH];
    chain_of(a, DEPTH, ca);
    chain_of(b, DEPTH, cb);
    uint32_t pa[3][GROUPS], pb[3][GROUPS], out[GROUPS * DEPTH];
    for (uint32_t i = 0; i < 3; i++)
        for (int g = 0; g < GROUPS; g++) {
            assert_int_equal(kvc_pool_acquire(w.pools[g], 1, &pa[i][g]), KVS_OK);
            assert_int_equal(kvc_pool_acquire(w.pools[g], 1, &pb[i][g]), KVS_OK);
        }
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(kvc_tree_insert(w.tree, ca, i, pa[i], 10), KVS_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(kvc_tree_insert(w.tree, cb, i, pb[i], 20), KVS_OK);
    assert_int_equal(kvc_tree_evict(w.tree, 0, 6), 0); /* all held */
    for (uint32_t i = 0; i < 3; i++)
        for (int g = 0; g < GROUPS; g++) {
            kvc_pool_release(w.pools[g], pa[i][g]);
            kvc_pool_release(w.pools[g], pb[i][g]);
        }
    assert_int_equal(kvc_tree_match(w.tree, ca, 2, out, DEPTH, 30),
                     2); /* a's first two blocks are now newest, and held */
    assert_int_equal(kvc_tree_evict(w.tree, 0, 2), 2);
    assert_false(kvc_tree_has(w.tree, &ca[2])); /* age 10 */
    assert_false(kvc_tree_has(w.tree, &cb[2])); /* age 20, the leaf before its parents */
    assert_true(kvc_tree_has(w.tree, &cb[1]));
    assert_int_equal(kvc_tree_evict(w.tree, 0, 9), 2);
    assert_true(kvc_tree_has(w.tree, &ca[1]));
    assert_false(kvc_tree_has(w.tree, &cb[0]));
    close_world(&w);
}

/* Blocks with ids against a flat list of whole prefixes: the longest head below exactly this prefix and this root, or 0. */
enum { P_BLOCK = 4, P_DEPTH = 3, P_MAX = 64 };
struct plain {
    int32_t ids[P_DEPTH * P_BLOCK];
    uint32_t blocks, root;
    uint32_t page[2];
};
struct partial_world {
    struct kvc_layout layout;
    struct kvc_pool *pools[2];
    struct kvc_tree *tree;
    struct plain entry[P_MAX];
    struct kvs_rng rng;
};

static void partial_chain(uint32_t root, const int32_t *ids, uint32_t n, struct kvc_hash *root_out,
                          struct kvc_hash *chain)
{
    *root_out = (struct kvc_hash){{(uint8_t)(root + 1)}};
    struct kvc_hash h = *root_out;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(kvc_hash_block(&h, ids + (size_t)i * P_BLOCK, P_BLOCK, NULL, 0, &h), KVS_OK);
        chain[i] = h;
    }
}

static struct plain *partial_find(struct partial_world *w, uint32_t root, const int32_t *ids, uint32_t blocks)
{
    for (int i = 0; i < P_MAX; i++) {
        struct plain *e = &w->entry[i];
        if (e->blocks == blocks && e->root == root && memcmp(e->ids, ids, (size_t)blocks * P_BLOCK * sizeof *ids) == 0)
            return e;
    }
    return NULL;
}

static void partial_insert(struct partial_world *w, uint32_t root, const int32_t *ids)
{
    struct kvc_hash r, chain[P_DEPTH];
    uint32_t depth = 1 + (uint32_t)kvs_rng_below(&w->rng, P_DEPTH);
    partial_chain(root, ids, P_DEPTH, &r, chain);
    for (uint32_t b = 0; b < depth; b++) {
        uint32_t page[2];
        if (partial_find(w, root, ids, b + 1))
            continue;
        for (int g = 0; g < 2; g++)
            if (kvc_pool_acquire(w->pools[g], 1, &page[g]) != KVS_OK) {
                assert_int_equal(kvc_tree_evict(w->tree, (uint32_t)g, 1), 1);
                for (int i = 0; i < P_MAX; i++) { /* whoever went */
                    struct plain *e = &w->entry[i];
                    struct kvc_hash er, ec[P_DEPTH];
                    partial_chain(e->root, e->ids, e->blocks, &er, ec);
                    if (e->blocks > 0 && !kvc_tree_has(w->tree, &ec[e->blocks - 1]))
                        e->blocks = 0;
                }
                assert_int_equal(kvc_pool_acquire(w->pools[g], 1, &page[g]), KVS_OK);
            }
        kvs_status s = kvc_tree_insert_ids(w->tree, &r, chain, b, ids + (size_t)b * P_BLOCK, page, 1);
        struct plain *e = w->entry;
        while (e->blocks > 0)
            e++;
        if (s == KVS_OK) {
            *e = (struct plain){.blocks = b + 1, .root = root, .page = {page[0], page[1]}};
            memcpy(e->ids, ids, sizeof e->ids);
        }
        for (int g = 0; g < 2; g++)
            kvc_pool_release(w->pools[g], page[g]);
        if (s != KVS_OK) /* its parent was the one that went */
            return;
    }
}

static uint32_t partial_look(struct partial_world *w, uint32_t root, const int32_t *ids)
{
    struct kvc_hash r, chain[P_DEPTH];
    uint32_t d = (uint32_t)kvs_rng_below(&w->rng, P_DEPTH), n = (uint32_t)kvs_rng_below(&w->rng, P_BLOCK + 1);
    uint32_t want = 0, out[2];
    partial_chain(root, ids, P_DEPTH, &r, chain);
    for (int i = 0; i < P_MAX; i++) {
        const struct plain *e = &w->entry[i];
        uint32_t same = 0;
        if (e->blocks != d + 1 || e->root != root || memcmp(e->ids, ids, (size_t)d * P_BLOCK * sizeof *ids) != 0)
            continue;
        while (same < n && e->ids[d * P_BLOCK + same] == ids[d * P_BLOCK + same])
            same++;
        want = same > want ? same : want;
    }
    uint32_t got = kvc_tree_partial(w->tree, d == 0 ? &r : &chain[d - 1], ids + (size_t)d * P_BLOCK, n, out, 1);
    assert_int_equal(got, want);
    for (int g = 0; got > 0 && g < 2; g++) {
        assert_int_equal(kvc_pool_holders(w->pools[g], out[g]), 1);
        kvc_pool_release(w->pools[g], out[g]);
    }
    return got;
}

static void test_partly_equal_blocks_are_found(void **state)
{
    (void)state;
    const char *text = getenv("KVASIR_TEST_SEED");
    struct partial_world w = {.rng.state = text != NULL ? strtoull(text, NULL, 10) : 20261130u};
    print_message("KVASIR_TEST_SEED=%llu\n", (unsigned long long)w.rng.state);
    w.layout = (struct kvc_layout){.block_tokens = P_BLOCK, .group_count = 2};
    w.layout.group[1].kind = KVC_LATENT;
    for (int g = 0; g < 2; g++)
        assert_int_equal(kvc_pool_create(P_MAX - 8, &w.pools[g]), KVS_OK);
    assert_int_equal(kvc_tree_create(&w.layout, w.pools, P_MAX, &w.tree), KVS_OK);
    uint32_t found[P_BLOCK + 1] = {0};
    for (int i = 0; i < 20000; i++) {
        int32_t ids[P_DEPTH * P_BLOCK];
        uint32_t root = (uint32_t)kvs_rng_below(&w.rng, 2);
        for (int k = 0; k < P_DEPTH * P_BLOCK; k++)
            ids[k] = (int32_t)kvs_rng_below(&w.rng, k < P_BLOCK ? 2 : 3);
        if (kvs_rng_below(&w.rng, 3) == 0)
            partial_insert(&w, root, ids);
        else
            found[partial_look(&w, root, ids)]++;
        assert_true(kvc_tree_consistent(w.tree));
    }
    for (uint32_t n = 0; n <= P_BLOCK; n++)
        assert_true(found[n] > 0);
    kvc_tree_destroy(w.tree);
    kvc_pool_destroy(w.pools[0]);
    kvc_pool_destroy(w.pools[1]);
}

struct ends {
    uint32_t come, gone;
};

static void on_change(void *user, const struct kvc_tree_block *b, bool gone)
{
    struct ends *e = user;
    if (b->ends)
        (*(gone ? &e->gone : &e->come))++;
}

/* A chain of six, window 5 tokens in blocks of 4: a match of six blocks needs the last two windows and the last state. */
static void test_strips_what_no_end_needs_first(void **state)
{
    (void)state;
    struct world w;
    struct ends seen = {0};
    open_world(&w, 1);
    kvc_tree_watch(w.tree, on_change, &seen);
    const uint8_t ids[] = {0, 0, 0, 0, 0, 0};
    struct kvc_hash chain[DEPTH];
    chain_of(ids, DEPTH, chain);
    uint32_t page[DEPTH][GROUPS], out[GROUPS * DEPTH];
    for (uint32_t i = 0; i < DEPTH; i++) {
        for (int g = 0; g < GROUPS; g++)
            assert_int_equal(kvc_pool_acquire(w.pools[g], 1, &page[i][g]), KVS_OK);
        assert_int_equal(kvc_tree_insert(w.tree, chain, i, page[i], 10), KVS_OK);
    }
    assert_int_equal(seen.come, 6);
    assert_int_equal(kvc_tree_evict(w.tree, 1, 6), 0); /* all held */
    for (uint32_t i = 0; i < DEPTH; i++)
        for (int g = 1; g < GROUPS; g += 2) /* a running sequence keeps the full and latent pages and lets the others go */
            kvc_pool_release(w.pools[g], page[i][g]);
    assert_int_equal(kvc_tree_evictable(w.tree, 0, 9), 0);
    assert_int_equal(kvc_tree_evict(w.tree, 1, 3), 3);
    assert_int_equal(kvc_tree_evict(w.tree, 3, 5), 5);
    assert_int_equal(seen.gone, 5);
    assert_int_equal(kvc_tree_match(w.tree, chain, DEPTH, out, DEPTH, 20), 6); /* the longest is still there */
    assert_int_equal(out[3 * DEPTH + 5], page[5][3]);
    assert_int_equal(kvc_tree_match(w.tree, chain, 5, out, DEPTH, 20), 0);
    assert_int_equal(kvc_tree_evict(w.tree, 3, 1), 0); /* matched, so held */
    uint32_t mine[GROUPS] = {KVC_BLOCK_NONE, KVC_BLOCK_NONE, KVC_BLOCK_NONE, KVC_BLOCK_NONE};
    assert_int_equal(kvc_pool_acquire(w.pools[3], 1, &mine[3]), KVS_OK);
    assert_int_equal(kvc_tree_insert(w.tree, chain, 4, mine, 30), KVS_OK); /* block 4 gets a snapshot again */
    assert_int_equal(seen.come, 7);
    assert_int_equal(kvc_tree_match(w.tree, chain, 5, out, DEPTH, 30), 5);
    assert_int_equal(out[3 * DEPTH + 4], mine[3]);
    assert_true(kvc_tree_consistent(w.tree));
    close_world(&w);
}

static void test_create_survives_failing_allocations(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 1);
    int n = 0;
    for (;; n++) {
        struct kvc_tree *t = NULL;
        failing_alloc_arm(n);
        kvs_status s = kvc_tree_create(&w.layout, w.pools, NODES, &t);
        failing_alloc_disarm();
        if (s == KVS_OK) {
            kvc_tree_destroy(t);
            break;
        }
        assert_int_equal(s, KVS_SELF_NOMEM);
        assert_null(t);
    }
    assert_int_equal(n, 6);
    kvc_tree_destroy(NULL);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations_equal_the_model),
        cmocka_unit_test(test_oldest_leaf_goes_first),
        cmocka_unit_test(test_strips_what_no_end_needs_first),
        cmocka_unit_test(test_partly_equal_blocks_are_found),
        cmocka_unit_test(test_create_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
