/* digest_test.c - the digest's table against a plain set, and what a reader of its segments would know: segments are written when dirty, some
 * writes fail, now and then all is lost; once nothing is dirty the segments together are the set. KVASIR_TEST_SEED takes another seed.
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
#include "cluster/core/digest.h"

enum { NAMES = 3000, MAX = 1300, SEGMENTS = 3 };

struct stored {
    uint32_t count;
    uint16_t name[MSG_DIGEST_BLOCKS_MAX];
    uint32_t blocks[MSG_DIGEST_BLOCKS_MAX];
};
static struct {
    bool has[NAMES], told[NAMES];
    struct stored store[SEGMENTS];
    struct kvs_rng rng;
} w;

static const uint8_t *hash_of(uint32_t name)
{
    static uint8_t h[MSG_BLOCK_HASH_BYTES];
    uint64_t r = (name + 1) * 0x9e3779b97f4a7c15ull;
    memcpy(h, &r, 8);
    memcpy(h + 8, &name, 4);
    return h;
}

static uint32_t name_of(const uint8_t *hash)
{
    uint32_t name;
    memcpy(&name, hash + 8, 4);
    assert_in_range(name, 0, NAMES - 1);
    return name;
}

static uint32_t size(void)
{
    uint32_t n = 0;
    for (int i = 0; i < NAMES; i++)
        n += w.has[i];
    return n;
}

static void put(struct cls_digest *d, uint32_t name)
{
    bool room = size() < MAX;
    cls_digest_put(d, hash_of(name), name + 1);
    w.told[name] = w.has[name] = w.has[name] || room;
}

static void write_one(struct cls_digest *d)
{
    struct msg_cache_digest m;
    uint32_t s;
    if (!cls_digest_take(d, &s, &m))
        return;
    assert_in_range(s, 0, SEGMENTS - 1);
    assert_in_range(m.count, 0, MSG_DIGEST_BLOCKS_MAX);
    if (kvs_rng_below(&w.rng, 4) == 0) {
        cls_digest_spoil(d, s);
        return;
    }
    w.store[s].count = m.count;
    for (uint32_t i = 0; i < m.count; i++) {
        w.store[s].name[i] = (uint16_t)name_of(m.hashes + i * MSG_BLOCK_HASH_BYTES);
        w.store[s].blocks[i] = m.blocks[i];
    }
}

static void check_stored(void)
{
    static bool seen[NAMES];
    memset(seen, 0, sizeof(seen));
    for (int s = 0; s < SEGMENTS; s++)
        for (uint32_t i = 0; i < w.store[s].count; i++) {
            assert_false(seen[w.store[s].name[i]]);
            seen[w.store[s].name[i]] = true;
            assert_int_equal(w.store[s].blocks[i], w.store[s].name[i] + 1);
        }
    assert_memory_equal(seen, w.has, sizeof(seen));
}

static void do_step(struct cls_digest *d)
{
    uint32_t first = (uint32_t)kvs_rng_below(&w.rng, NAMES - 100), n = (uint32_t)kvs_rng_below(&w.rng, 100);
    switch (kvs_rng_below(&w.rng, 10)) {
    case 0:
    case 1:
    case 2:
        for (uint32_t i = 0; i < n; i++)
            put(d, first + i);
        break;
    case 3:
    case 4:
        for (uint32_t i = 0; i < n; i++) {
            cls_digest_remove(d, hash_of(first + i));
            w.has[first + i] = false;
        }
        break;
    case 5:
        if (kvs_rng_below(&w.rng, 10) != 0)
            break;
        cls_digest_mark_all(d); /* told anew: about half of it is still there */
        memset(w.told, 0, sizeof(w.told));
        for (uint32_t i = 0; i < NAMES; i++)
            if (kvs_rng_below(&w.rng, 2) && w.has[i])
                put(d, i);
        cls_digest_drop_marked(d);
        memcpy(w.has, w.told, sizeof(w.has));
        break;
    case 6:
        if (kvs_rng_below(&w.rng, 20) == 0) { /* the lease is gone, and all keys with it */
            memset(w.store, 0, sizeof(w.store));
            cls_digest_spoil_all(d);
        }
        break;
    default: write_one(d);
    }
}

static void test_segments_together_are_the_set(void **state)
{
    (void)state;
    const char *env = getenv("KVASIR_TEST_SEED");
    uint64_t seed = env ? strtoull(env, NULL, 0) : 20261130u;
    printf("seed %llu\n", (unsigned long long)seed);
    memset(&w, 0, sizeof(w));
    w.rng.state = seed;
    struct cls_digest *d = NULL;
    struct cls_digest_stats st;
    assert_int_equal(cls_digest_create(MAX, &d), KVS_OK);
    uint32_t clean = 0;
    for (int i = 0; i < 6000; i++) {
        do_step(d);
        assert_true(cls_digest_consistent(d));
        cls_digest_stats(d, &st);
        assert_int_equal(st.entries, size());
        if (!cls_digest_dirty(d)) {
            clean++;
            check_stored();
        }
    }
    assert_true(clean > 50 && st.refused > 0);
    while (cls_digest_dirty(d))
        write_one(d);
    check_stored();
    cls_digest_destroy(d);
}

static void test_little_changes_touch_few_segments(void **state)
{
    (void)state;
    struct cls_digest *d = NULL;
    struct msg_cache_digest m;
    uint32_t s, dirty = 0;
    assert_int_equal(cls_digest_create(CLS_DIGEST_ENTRIES_MAX, &d), KVS_OK);
    assert_false(cls_digest_take(d, &s, &m));
    for (uint32_t i = 0; i < 4 * MSG_DIGEST_BLOCKS_MAX; i++)
        cls_digest_put(d, hash_of(i % NAMES), 1);
    while (cls_digest_take(d, &s, &m)) {
        assert_int_equal(m.count, MSG_DIGEST_BLOCKS_MAX);
        dirty++;
    }
    assert_int_equal(dirty, 4);
    for (uint32_t i = 600; i < 700; i++) /* what came together goes together, and its room is used again */
        cls_digest_remove(d, hash_of(i));
    for (uint32_t i = 2900; i < 2950; i++)
        cls_digest_put(d, hash_of(i), 1);
    for (uint32_t i = 0; i < 100; i++) /* known: nothing to write */
        cls_digest_put(d, hash_of(i), 1);
    assert_true(cls_digest_take(d, &s, &m));
    assert_int_equal(s, 1);
    assert_int_equal(m.count, MSG_DIGEST_BLOCKS_MAX - 50);
    assert_false(cls_digest_dirty(d));
    cls_digest_destroy(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_together_are_the_set),
        cmocka_unit_test(test_little_changes_touch_few_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
