/* stop_test.c - the stop-string matcher against a naive look at the whole text, for random texts cut at random places.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "router/core/stop.h"

static void add(struct rtr_stop_set *s, const char *text)
{
    s->len[s->count] = (uint32_t)strlen(text);
    memcpy(s->text[s->count++], text, strlen(text));
}

/* First end of any stop string; the longest that ends there. Length of the text before it, or n. */
static size_t naive_cut(const struct rtr_stop_set *s, const char *t, size_t n, bool *found)
{
    for (size_t end = 1; end <= n; end++) {
        size_t best = 0;
        for (uint32_t i = 0; i < s->count; i++)
            if (s->len[i] <= end && s->len[i] > best && memcmp(t + end - s->len[i], s->text[i], s->len[i]) == 0)
                best = s->len[i];
        if (best) {
            *found = true;
            return end - best;
        }
    }
    *found = false;
    return n;
}

/* Longest tail of t that is a beginning (not all) of a stop string. */
static size_t naive_held(const struct rtr_stop_set *s, const char *t, size_t n)
{
    size_t best = 0;
    for (uint32_t i = 0; i < s->count; i++)
        for (size_t k = 1; k < s->len[i] && k <= n; k++)
            if (k > best && memcmp(t + n - k, s->text[i], k) == 0)
                best = k;
    return best;
}

static void run(struct kvs_rng *r, uint64_t round)
{
    struct rtr_stop_set set;
    struct rtr_stop m;
    struct kvs_buf out;
    char text[300];
    memset(&set, 0, sizeof(set));
    set.count = (uint32_t)kvs_rng_below(r, RTR_STOPS_MAX + 1);
    for (uint32_t i = 0; i < set.count; i++) {
        set.len[i] = 1 + (uint32_t)kvs_rng_below(r, 7);
        for (uint32_t k = 0; k < set.len[i]; k++)
            set.text[i][k] = (char)('a' + kvs_rng_below(r, 3));
    }
    size_t n = (size_t)kvs_rng_below(r, round % 4 ? 12 : sizeof(text)), at = 0;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + kvs_rng_below(r, 3));
    kvs_buf_init(&out, 4096);
    rtr_stop_init(&m, &set);
    bool found;
    size_t cut = naive_cut(&set, text, n, &found);
    while (at < n && !m.found) {
        size_t k = 1 + (size_t)kvs_rng_below(r, n - at);
        assert_int_equal(rtr_stop_push(&m, text + at, k, &out), KVS_OK);
        at += k;
        if (!m.found)
            assert_int_equal(out.len, at - naive_held(&set, text, at));
    }
    assert_int_equal(m.found, found);
    assert_int_equal(rtr_stop_flush(&m, &out), KVS_OK);
    assert_int_equal(out.len, cut);
    if (cut)
        assert_memory_equal(out.data, text, cut);
    kvs_buf_fini(&out);
}

static void test_equals_the_naive_look_for_all_cuts(void **state)
{
    (void)state;
    struct kvs_rng r = {20261129};
    printf("seed %llu\n", (unsigned long long)r.state);
    for (uint64_t i = 0; i < 20000; i++)
        run(&r, i);
}

static void test_a_near_miss_is_sent_whole(void **state)
{
    (void)state;
    struct rtr_stop_set set = {0};
    struct rtr_stop m;
    struct kvs_buf out;
    add(&set, "abab!");
    kvs_buf_init(&out, 100);
    rtr_stop_init(&m, &set);
    assert_int_equal(rtr_stop_push(&m, "xababab", 7, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "xab"); /* "abab" may still become "abab!" */
    assert_int_equal(rtr_stop_push(&m, "?", 1, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "xababab?");
    assert_int_equal(rtr_stop_push(&m, "aba", 3, &out), KVS_OK);
    assert_int_equal(rtr_stop_flush(&m, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "xababab?aba");
    assert_false(m.found);
    kvs_buf_fini(&out);
}

static void test_the_longest_of_those_that_end_together_wins(void **state)
{
    (void)state;
    struct rtr_stop_set set = {0};
    struct rtr_stop m;
    struct kvs_buf out;
    add(&set, "c");
    add(&set, "abc");
    kvs_buf_init(&out, 100);
    rtr_stop_init(&m, &set);
    assert_int_equal(rtr_stop_push(&m, "xxabcyy", 7, &out), KVS_OK);
    assert_true(m.found);
    assert_int_equal(rtr_stop_push(&m, "more", 4, &out), KVS_OK);
    assert_int_equal(rtr_stop_flush(&m, &out), KVS_OK);
    assert_string_equal(kvs_buf_text(&out), "xx");
    kvs_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_naive_look_for_all_cuts),
        cmocka_unit_test(test_a_near_miss_is_sent_whole),
        cmocka_unit_test(test_the_longest_of_those_that_end_together_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
