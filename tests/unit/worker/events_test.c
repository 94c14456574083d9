/* events_test.c - the log of cache events and its readers: several readers of different patience follow a tree that changes at random, each
 * keeping a plain set from the items alone; whenever one has caught up, its set must be the tree's. The tree has a state group, so some of
 * its blocks are no end of a prefix and must not be told. KVASIR_TEST_SEED takes another seed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "worker/core/digest.h"

enum { GROUPS = 2, NODES = 40, PAGES = 64, LOG = 24, WAYS = 3, DEPTH = 4, NAMES = 3 + 9 + 27 + 81, READERS = 3 };

struct follower {
    struct wrk_reader reader;
    uint64_t expected;
    bool has[NAMES], told[NAMES], telling;
    uint32_t snapshots, items, events;
};

struct world {
    struct kvc_layout layout;
    struct kvc_pool *pools[GROUPS];
    struct kvc_tree *tree;
    struct wrk_events *log;
    struct kvc_hash name[NAMES]; /* all prefixes of up to DEPTH blocks */
    uint32_t depth[NAMES];
    int parent[NAMES];
    struct follower f[READERS];
    struct wrk_digest follow;
    struct cls_digest *digest;
    struct kvs_rng rng;
    uint64_t now;
};

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)kvs_rng_below(&w->rng, n);
}

static void open_world(struct world *w, uint64_t seed, bool states)
{
    memset(w, 0, sizeof(*w));
    w->rng.state = seed;
    w->layout = (struct kvc_layout){.block_tokens = 4, .group_count = GROUPS};
    w->layout.group[0].kind = KVC_FULL;
    w->layout.group[1].kind = states ? KVC_STATE : KVC_FULL;
    for (int g = 0; g < GROUPS; g++)
        assert_int_equal(kvc_pool_create(PAGES, &w->pools[g]), KVS_OK);
    assert_int_equal(kvc_tree_create(&w->layout, w->pools, NODES, &w->tree), KVS_OK);
    assert_int_equal(wrk_events_create(LOG, &w->log), KVS_OK);
    kvc_tree_watch(w->tree, wrk_events_note, w->log);
    for (int i = 0; i < NAMES; i++) {
        struct kvc_hash root = {{1}};
        int32_t id = i % WAYS;
        w->parent[i] = i < WAYS ? -1 : i / WAYS - 1;
        w->depth[i] = i < WAYS ? 1 : w->depth[w->parent[i]] + 1;
        assert_int_equal(kvc_hash_block(i < WAYS ? &root : &w->name[w->parent[i]], &id, 1, NULL, 0, &w->name[i]),
                         KVS_OK);
    }
    assert_int_equal(w->depth[NAMES - 1], DEPTH);
}

static void close_world(struct world *w)
{
    kvc_tree_destroy(w->tree);
    wrk_events_destroy(w->log);
    cls_digest_destroy(w->digest);
    for (int g = 0; g < GROUPS; g++)
        kvc_pool_destroy(w->pools[g]);
}

static void do_insert(struct world *w)
{
    int at = (int)below(w, NAMES), path[DEPTH], n = 0;
    struct kvc_hash chain[DEPTH];
    for (int i = at; i >= 0; i = w->parent[i])
        path[n++] = i;
    for (int i = 0; i < n; i++)
        chain[i] = w->name[path[n - 1 - i]];
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        uint32_t page[GROUPS] = {KVC_BLOCK_NONE, KVC_BLOCK_NONE};
        (void)kvc_tree_evict(w->tree, 0, kvc_pool_counts(w->pools[0]).free ? 0 : 1);
        assert_int_equal(kvc_pool_acquire(w->pools[0], 1, &page[0]), KVS_OK);
        bool snapshot = (i % 2 == 1 || w->layout.group[1].kind != KVC_STATE) &&
                        kvc_pool_acquire(w->pools[1], 1, &page[1]) == KVS_OK;
        kvs_status s = kvc_tree_insert(w->tree, chain, i, page, w->now);
        assert_true(s == KVS_OK || s == KVS_BUSY_FULL || s == KVS_REQ_NOT_FOUND);
        kvc_pool_release(w->pools[0], page[0]);
        if (snapshot)
            kvc_pool_release(w->pools[1], page[1]);
    }
}

static int name_of(const struct world *w, const uint8_t *hash)
{
    for (int i = 0; i < NAMES; i++)
        if (memcmp(w->name[i].bytes, hash, MSG_BLOCK_HASH_BYTES) == 0)
            return i;
    fail_msg("a hash that nobody inserted");
    return -1;
}

static void apply(struct world *w, struct follower *f, const struct msg_cache_events *m)
{
    if (m->snapshot_begin) {
        memset(f->told, 0, sizeof(f->told));
        f->telling = true;
        f->expected = m->first_sequence;
        f->snapshots++;
    }
    assert_int_equal(m->first_sequence, f->expected);
    assert_true(f->telling || m->count > 0);
    for (uint32_t i = 0; i < m->count; i++) {
        int n = name_of(w, m->hashes + i * MSG_BLOCK_HASH_BYTES);
        assert_true(m->depths[i] == w->depth[n] || (m->depths[i] == 0 && !f->telling));
        assert_int_equal(w->depth[n] % 2, 0); /* blocks without a snapshot are not told */
        f->has[n] = f->told[n] = m->depths[i] != 0;
    }
    f->items++;
    if (!f->telling) {
        f->expected += m->count;
        f->events += m->count;
    }
    if (m->snapshot_end) {
        assert_true(f->telling);
        memcpy(f->has, f->told, sizeof(f->has));
        f->telling = false;
    }
}

/* false: it knows everything; then its set is the tree's. */
static bool do_read(struct world *w, struct follower *f, uint32_t most)
{
    static struct wrk_cache_item item;
    struct wrk_reader before = f->reader;
    if (wrk_events_read(w->log, w->tree, &f->reader, most, &item)) {
        assert_true(item.msg.count <= most);
        if (below(w, 8) == 0) { /* it did not get through: the same again */
            f->reader = before;
            return true;
        }
        apply(w, f, &item.msg);
        return true;
    }
    for (int i = 0; i < NAMES; i++) {
        struct kvc_tree_block b;
        bool there = kvc_tree_look(w->tree, &w->name[i], &b);
        assert_int_equal(there, kvc_tree_has(w->tree, &w->name[i]));
        if (there) {
            assert_int_equal(b.depth, w->depth[i]);
            assert_true(w->parent[i] < 0 || kvc_hash_equal(&b.parent, &w->name[w->parent[i]]));
        }
        if (f->has[i] != (there && b.ends))
            fail_msg("block %d at depth %u: told %d, there %d", i, w->depth[i], f->has[i], there);
    }
    return false;
}

static void test_every_reader_ends_up_with_the_trees_blocks(void **state)
{
    (void)state;
    const char *env = getenv("KVASIR_TEST_SEED");
    uint64_t seed = env ? strtoull(env, NULL, 0) : 20261130u;
    printf("seed %llu\n", (unsigned long long)seed);
    struct world w;
    uint32_t caught_up = 0;
    open_world(&w, seed, true);
    for (int i = 0; i < 30000; i++) {
        w.now++;
        switch (below(&w, 12)) {
        case 0: (void)kvc_tree_evict(w.tree, below(&w, GROUPS), below(&w, 8)); break;
        case 1: (void)kvc_tree_expire(w.tree, w.now > 40 ? w.now - 40 : 0); break;
        case 2:
            if (below(&w, 40) == 0)
                kvc_tree_flush(w.tree);
            break;
        case 3:
        case 4:
        case 5: do_insert(&w); break;
        case 6:
        case 7: /* in small pieces, the tree changing between them */
            (void)do_read(&w, &w.f[0], 1 + below(&w, 3));
            break;
        case 8:
            while (do_read(&w, &w.f[1], 1 + below(&w, 64))) {}
            caught_up++;
            break;
        default: /* reads rarely: falls behind the log */
            if (below(&w, 60) == 0)
                while (do_read(&w, &w.f[2], MSG_CACHE_BLOCKS_MAX)) {}
        }
    }
    for (int r = 0; r < READERS; r++)
        while (do_read(&w, &w.f[r], 5)) {}
    assert_true(caught_up > 1000);
    assert_true(w.f[1].events > 1000 && w.f[2].snapshots > 50);
    printf("snapshots %u %u %u, events %u %u %u\n", w.f[0].snapshots, w.f[1].snapshots, w.f[2].snapshots, w.f[0].events,
           w.f[1].events, w.f[2].events);
    close_world(&w);
}

/* What must stand in the digest: with a state group every snapshot, otherwise every block that has not exactly one after it. */
static bool in_digest(const struct world *w, int name, bool states)
{
    struct kvc_tree_block b;
    if (!kvc_tree_look(w->tree, &w->name[name], &b))
        return false;
    uint32_t children = 0;
    for (int i = 0; i < NAMES; i++)
        children += w->parent[i] == name && kvc_tree_has(w->tree, &w->name[i]);
    assert_int_equal(b.children, children);
    return states ? b.ends : children != 1;
}

static void check_digest(struct world *w, bool states)
{
    struct msg_cache_digest m;
    uint32_t s, want = 0, segments = 0;
    for (int i = 0; i < NAMES; i++)
        want += in_digest(w, i, states);
    cls_digest_spoil_all(w->digest);
    for (; cls_digest_take(w->digest, &s, &m); segments++) {
        assert_int_equal(m.count, want);
        for (uint32_t i = 0; i < m.count; i++) {
            int n = name_of(w, m.hashes + i * MSG_BLOCK_HASH_BYTES);
            assert_int_equal(m.blocks[i], w->depth[n]);
            assert_true(in_digest(w, n, states));
        }
    }
    assert_true(segments == 1 || want == 0);
}

static void follow_at_random(bool states, uint64_t seed)
{
    struct world w;
    uint32_t checks = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    open_world(&w, seed, states);
    assert_int_equal(cls_digest_create(MSG_DIGEST_BLOCKS_MAX, &w.digest), KVS_OK);
    for (int i = 0; i < 20000; i++) {
        w.now++;
        switch (below(&w, 10)) {
        case 0: (void)kvc_tree_evict(w.tree, below(&w, GROUPS), below(&w, 8)); break;
        case 1:
            if (below(&w, 40) == 0)
                kvc_tree_flush(w.tree);
            break;
        case 2:
        case 3: do_insert(&w); break;
        default: /* a little at a time, or all; now and then not at all for so long that the log has gone on */
            if (below(&w, 300) == 0)
                for (int k = 0; k < LOG; k++)
                    do_insert(&w);
            if (wrk_digest_follow(&w.follow, w.log, w.tree, 1 + below(&w, 30), w.digest)) {
                check_digest(&w, states);
                checks++;
            }
        }
    }
    assert_true(checks > 1000);
    close_world(&w);
}

static void test_the_digest_follows_the_tree(void **state)
{
    (void)state;
    const char *env = getenv("KVASIR_TEST_SEED");
    uint64_t seed = env ? strtoull(env, NULL, 0) : 20261130u;
    follow_at_random(false, seed);
    follow_at_random(true, seed + 1);
}

static void test_an_empty_cache_is_told_too(void **state)
{
    (void)state;
    struct world w;
    static struct wrk_cache_item item;
    struct wrk_reader r = {0};
    open_world(&w, 1, true);
    assert_true(wrk_events_read(w.log, w.tree, &r, 10, &item));
    assert_true(item.msg.snapshot_begin && item.msg.snapshot_end && item.msg.count == 0);
    assert_false(wrk_events_read(w.log, w.tree, &r, 10, &item));
    close_world(&w);
}

static void test_the_log_keeps_the_last_events(void **state)
{
    (void)state;
    struct wrk_events *e = NULL;
    assert_int_equal(wrk_events_create(4, &e), KVS_OK);
    struct kvc_tree_block b = {.ends = true, .depth = 1}, no_end = {.ends = false, .depth = 1};
    for (uint8_t i = 0; i < 10; i++) {
        b.hash.bytes[0] = i;
        wrk_events_note(e, &b, i % 2);
        wrk_events_note(e, &no_end, false);
    }
    assert_int_equal(wrk_events_next(e), 10);
    assert_int_equal(wrk_events_oldest(e), 6);
    for (uint64_t n = 6; n < 10; n++) {
        assert_int_equal(wrk_events_at(e, n)->hash.bytes[0], n);
        assert_int_equal(wrk_events_at(e, n)->gone, n % 2);
    }
    wrk_events_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_reader_ends_up_with_the_trees_blocks),
        cmocka_unit_test(test_the_digest_follows_the_tree),
        cmocka_unit_test(test_an_empty_cache_is_told_too),
        cmocka_unit_test(test_the_log_keeps_the_last_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
