/* index_test.c - the router's index of cached blocks: by hand, and against a naive list of (worker, block, stamp) that is searched from end to
 * end. The memory cap is checked against the stated bytes, and against what the allocator gave. KVASIR_TEST_SEED takes another seed.
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
#include "router/core/index.h"

enum { WORKERS = 5, NAMES = 60, CAP = 40 };

static uint64_t bytes_for(uint32_t workers, uint64_t locations)
{
    return RTR_INDEX_BASE_BYTES + (uint64_t)workers * RTR_INDEX_WORKER_BYTES + locations * RTR_INDEX_LOCATION_BYTES;
}

static struct rtr_index *made(uint32_t workers, uint64_t locations)
{
    struct rtr_index *ix = NULL;
    assert_int_equal(rtr_index_create(workers, bytes_for(workers, locations), &ix), KVS_OK);
    return ix;
}

static struct kvc_hash name(uint32_t i)
{
    struct kvc_hash h;
    int32_t id = (int32_t)i;
    struct kvc_hash root = {{7}};
    assert_int_equal(kvc_hash_block(&root, &id, 1, NULL, 0, &h), KVS_OK);
    return h;
}

static void names(uint32_t first, uint32_t n, struct kvc_hash *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = name(first + i);
}

static struct rtr_index_stats stats(const struct rtr_index *ix)
{
    struct rtr_index_stats s;
    rtr_index_stats(ix, &s);
    assert_true(rtr_index_consistent(ix));
    return s;
}

static void test_longest_prefix_of_each_worker(void **state)
{
    (void)state;
    struct rtr_index *ix = made(4, 100);
    struct kvc_hash a[6];
    uint32_t got[4] = {9, 9, 9, 9};
    names(0, 6, a);
    assert_int_equal(rtr_index_match(ix, a, 6, got), 0);
    assert_int_equal(got[0] + got[1] + got[2] + got[3], 0);
    rtr_index_add(ix, 0, a, 6);
    rtr_index_add(ix, 2, a, 3);
    rtr_index_add(ix, 3, a + 4, 1); /* a digest's deep end alone: the cache has what is before it */
    assert_int_equal(rtr_index_match(ix, a, 6, got), 6);
    assert_int_equal(got[0], 6);
    assert_int_equal(got[1], 0);
    assert_int_equal(got[2], 3);
    assert_int_equal(got[3], 5);
    assert_int_equal(rtr_index_match(ix, a, 2, got), 2); /* a shorter prompt */
    assert_int_equal(got[0], 2);
    assert_int_equal(got[2], 2);
    assert_int_equal(got[3], 0);
    rtr_index_remove(ix, 0, a + 2, 4);
    rtr_index_remove(ix, 1, a, 6);     /* never told */
    rtr_index_remove(ix, 0, a + 2, 4); /* twice */
    assert_int_equal(rtr_index_match(ix, a, 6, got), 5);
    assert_int_equal(got[0], 2);
    assert_int_equal(rtr_index_worker_blocks(ix, 0), 2);
    rtr_index_drop(ix, 0);
    assert_int_equal(rtr_index_match(ix, a, 6, got), 5);
    assert_int_equal(got[0], 0);
    assert_int_equal(got[2], 3);
    assert_int_equal(stats(ix).locations, 4);
    assert_int_equal(rtr_index_match(ix, a, 0, got), 0);
    rtr_index_destroy(ix);
}

static void test_snapshot_replaces_only_its_worker(void **state)
{
    (void)state;
    struct rtr_index *ix = made(3, 100);
    struct kvc_hash a[6];
    uint32_t got[3];
    names(0, 6, a);
    rtr_index_add(ix, 0, a, 6);
    rtr_index_add(ix, 1, a, 6);
    rtr_index_snapshot_end(ix, 0); /* without a begin */
    assert_int_equal(rtr_index_worker_blocks(ix, 0), 6);
    rtr_index_snapshot_begin(ix, 0);
    rtr_index_add(ix, 0, a, 1);
    (void)rtr_index_match(ix, a, 6, got);
    assert_int_equal(got[0], 6);     /* the old view holds until the new one is whole */
    rtr_index_snapshot_begin(ix, 0); /* anew: what the first one told does not count */
    rtr_index_add(ix, 0, a, 2);
    rtr_index_remove(ix, 0, a + 1, 1);
    rtr_index_snapshot_end(ix, 0);
    (void)rtr_index_match(ix, a, 6, got);
    assert_int_equal(got[0], 1);
    assert_int_equal(got[1], 6);
    assert_int_equal(rtr_index_worker_blocks(ix, 0), 1);
    rtr_index_snapshot_begin(ix, 1); /* an empty cache */
    rtr_index_snapshot_end(ix, 1);
    assert_int_equal(rtr_index_worker_blocks(ix, 1), 0);
    assert_int_equal(stats(ix).locations, 1);
    rtr_index_snapshot_begin(ix, 0); /* the worker dies while it tells: its slot goes to another */
    rtr_index_drop(ix, 0);
    rtr_index_add(ix, 0, a, 3);
    rtr_index_snapshot_end(ix, 0);
    assert_int_equal(rtr_index_worker_blocks(ix, 0), 3);
    rtr_index_destroy(ix);
}

static void test_full_drops_the_oldest_and_keeps_where_prompts_end(void **state)
{
    (void)state;
    struct rtr_index *ix = made(2, 10);
    struct kvc_hash a[8], b[8];
    uint32_t got[2];
    names(0, 8, a);
    names(100, 8, b);
    rtr_index_add(ix, 0, a, 4);
    rtr_index_add(ix, 1, b, 6);
    assert_int_equal(stats(ix).locations, 10);
    assert_int_equal(stats(ix).dropped, 0);
    assert_int_equal(rtr_index_match(ix, a, 2, got), 2); /* its second block decides, and becomes the newest */
    rtr_index_add(ix, 1, b + 6, 2); /* two must go: the deep end of a, told first and not asked for */
    assert_int_equal(stats(ix).locations, 10);
    assert_int_equal(stats(ix).dropped, 2);
    assert_int_equal(rtr_index_match(ix, a, 4, got), 2);
    struct kvc_hash c[10];
    names(200, 10, c);
    rtr_index_add(ix, 0, c, 9); /* the nine oldest go: all of b, and the first block of a */
    assert_int_equal(stats(ix).dropped, 11);
    assert_int_equal(rtr_index_match(ix, b, 8, got), 0);
    assert_int_equal(rtr_index_match(ix, a, 1, got), 0);
    assert_int_equal(rtr_index_match(ix, a, 4, got), 2); /* the place where prompts ended is still known */
    assert_int_equal(rtr_index_match(ix, c, 9, got), 9);
    rtr_index_destroy(ix);
}

static void test_bytes_stay_under_the_cap(void **state)
{
    (void)state;
    struct rtr_index *ix = NULL;
    assert_int_equal(RTR_INDEX_LOCATION_BYTES, 36); /* what the documents promise */
    assert_int_equal(rtr_index_create(8, bytes_for(8, 1) - 1, &ix), KVS_SELF_CONFIG);
    assert_null(ix);
    uint64_t cap = 1u << 20;
    assert_int_equal(rtr_index_create(8, cap, &ix), KVS_OK);
    assert_int_equal(stats(ix).locations_max, (cap - bytes_for(8, 0)) / 36);
    assert_int_equal(stats(ix).bytes, bytes_for(8, 0));
    for (uint32_t i = 0; i < 40000; i++) {
        struct kvc_hash h = {{0}};
        uint64_t r = (i + 1) * 0x9e3779b97f4a7c15ull;
        memcpy(h.bytes, &r, sizeof(r));
        rtr_index_add(ix, i % 8, &h, 1);
    }
    struct rtr_index_stats s = stats(ix);
    assert_int_equal(s.locations, s.locations_max);
    assert_int_equal(s.dropped, 40000 - s.locations_max);
    assert_true(s.bytes <= cap && s.bytes > cap - RTR_INDEX_LOCATION_BYTES);
    rtr_index_destroy(ix);
}

/* ---- against a list ---- */

struct fact {
    bool live, told;
    uint64_t stamp;
};
struct model {
    struct fact fact[WORKERS][NAMES];
    uint64_t stamp, dropped;
    bool telling[WORKERS];
};

static uint32_t model_count(const struct model *m, int worker)
{
    uint32_t n = 0;
    for (int w = 0; w < WORKERS; w++)
        for (int i = 0; i < NAMES; i++)
            n += (worker < 0 || worker == w) && m->fact[w][i].live;
    return n;
}

static void model_add(struct model *m, uint32_t worker, uint32_t n)
{
    struct fact *f = &m->fact[worker][n], *oldest = NULL;
    if (!f->live && model_count(m, -1) == CAP) {
        for (int w = 0; w < WORKERS; w++)
            for (int i = 0; i < NAMES; i++)
                if (m->fact[w][i].live && (!oldest || m->fact[w][i].stamp < oldest->stamp))
                    oldest = &m->fact[w][i];
        oldest->live = false;
        m->dropped++;
    }
    *f = (struct fact){true, true, ++m->stamp};
}

static void do_match(struct model *m, struct rtr_index *ix, struct kvs_rng *rng)
{
    uint32_t first = (uint32_t)kvs_rng_below(rng, NAMES), n = (uint32_t)kvs_rng_below(rng, NAMES - first + 1);
    struct kvc_hash chain[NAMES];
    uint32_t got[WORKERS], want[WORKERS] = {0}, longest = 0;
    names(first, n, chain);
    for (uint32_t i = n; i-- > 0;)
        for (uint32_t w = 0; w < WORKERS; w++)
            if (m->fact[w][first + i].live && !want[w])
                want[w] = i + 1;
    for (uint32_t w = 0; w < WORKERS; w++)
        longest = want[w] > longest ? want[w] : longest;
    assert_int_equal(rtr_index_match(ix, chain, n, got), longest);
    assert_memory_equal(got, want, sizeof(want));
    /* The order in which the workers of one block become newer is the index's own affair: take it over by asking for each alone. */
    for (uint32_t i = n; i-- > 0;)
        for (uint32_t w = 0; w < WORKERS; w++)
            if (m->fact[w][first + i].live) {
                rtr_index_add(ix, w, &chain[i], 1);
                m->fact[w][first + i].stamp = ++m->stamp;
                m->fact[w][first + i].told = true;
            }
}

static void do_step(struct model *m, struct rtr_index *ix, struct kvs_rng *rng)
{
    uint32_t w = (uint32_t)kvs_rng_below(rng, WORKERS), first = (uint32_t)kvs_rng_below(rng, NAMES);
    uint32_t n = (uint32_t)kvs_rng_below(rng, NAMES - first < 6 ? NAMES - first + 1 : 7);
    struct kvc_hash h[8];
    names(first, n, h);
    switch (kvs_rng_below(rng, 12)) {
    case 0:
        rtr_index_drop(ix, w);
        memset(m->fact[w], 0, sizeof(m->fact[w]));
        m->telling[w] = false;
        break;
    case 1:
        rtr_index_snapshot_begin(ix, w);
        m->telling[w] = true;
        for (int i = 0; i < NAMES; i++)
            m->fact[w][i].told = false;
        break;
    case 2:
        rtr_index_snapshot_end(ix, w);
        for (int i = 0; m->telling[w] && i < NAMES; i++)
            m->fact[w][i].live = m->fact[w][i].live && m->fact[w][i].told;
        m->telling[w] = false;
        break;
    case 3:
    case 4:
        rtr_index_remove(ix, w, h, n);
        for (uint32_t i = 0; i < n; i++)
            m->fact[w][first + i].live = false;
        break;
    case 5: do_match(m, ix, rng); break;
    default:
        rtr_index_add(ix, w, h, n);
        for (uint32_t i = n; i-- > 0;)
            model_add(m, w, first + i);
    }
}

static void test_against_a_plain_list(void **state)
{
    (void)state;
    const char *env = getenv("KVASIR_TEST_SEED");
    uint64_t seed = env ? strtoull(env, NULL, 0) : 20261130u;
    printf("seed %llu\n", (unsigned long long)seed);
    struct kvs_rng rng = {seed};
    static struct model m;
    memset(&m, 0, sizeof(m));
    struct rtr_index *ix = made(WORKERS, CAP);
    for (int i = 0; i < 20000; i++) {
        do_step(&m, ix, &rng);
        struct rtr_index_stats s = stats(ix);
        assert_int_equal(s.locations, model_count(&m, -1));
        assert_int_equal(s.dropped, m.dropped);
        uint32_t w = (uint32_t)kvs_rng_below(&rng, WORKERS);
        assert_int_equal(rtr_index_worker_blocks(ix, w), model_count(&m, (int)w));
    }
    assert_true(m.dropped > 100);
    rtr_index_destroy(ix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longest_prefix_of_each_worker),
        cmocka_unit_test(test_snapshot_replaces_only_its_worker),
        cmocka_unit_test(test_full_drops_the_oldest_and_keeps_where_prompts_end),
        cmocka_unit_test(test_bytes_stay_under_the_cap),
        cmocka_unit_test(test_against_a_plain_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
