/* sched_random_test.c - the scheduler under random orders of everything an owner may do, against a naive record of each sequence: pages add
 * up after every event, no page has two owners, tokens are those of a plain loop, whatever was preempted, paused, stopped or fenced.
 * Half of the lives have a prefix tree; their prompts have heads in common, under three salts. The device sees KV that is not the tokens' own.
 * Runs many short lives from printed seeds; WRK_SEED=n runs one.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/worker/fake_device.h"

#define SEQS 12
#define LONGEST 120

struct record {
    wrk_seq_id id; /* WRK_SEQ_NONE: not in use */
    uint32_t prompt, tokens_max;
    bool hold, fenced;
    uint32_t salt;
    int32_t ids[LONGEST + 1];
    uint32_t count; /* tokens by our own book */
};
struct world {
    struct kvc_layout l;
    struct wrk_sched *s;
    struct fake_kv kv;
    struct kvs_rng rng;
    struct record rec[SEQS];
    struct wrk_result results[SEQS];
    uint32_t pages[KVC_GROUPS_MAX];
    bool tree;
    int32_t heads[3][LONGEST];
    uint64_t now;
    uint64_t finished, landed, preempted, fences, closed_in_flight, cached, evicted, flushed, deferred;
};

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)kvs_rng_below(&w->rng, n);
}

static void check(struct world *w)
{
    struct kvs_error err = {.text = ""};
    if (!wrk_sched_consistent(w->s, &err))
        fail_msg("%s", err.text);
    for (uint32_t g = 0; g < w->l.group_count; g++) {
        struct kvc_pool_counts n = wrk_sched_pages(w->s, g);
        assert_int_equal(n.total, w->pages[g]);
        assert_int_equal(n.free + n.cached + n.held + n.fenced, n.total);
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        struct record *r = &w->rec[i];
        if (r->id == WRK_SEQ_NONE)
            continue;
        struct wrk_seq_view v = wrk_seq_look(w->s, r->id);
        if (v.state == WRK_SEQ_GONE) { /* was closing */
            r->id = WRK_SEQ_NONE;
            continue;
        }
        assert_int_equal(v.token_count, r->count);
        w->deferred += v.deferred;
        assert_true(w->tree || v.cached == 0);
        assert_true(r->salt < 2 || v.cached == 0); /* nobody else has its salt */
        assert_memory_equal(v.tokens, r->ids, r->count * sizeof *r->ids);
    }
}

static void op_open(struct world *w, struct record *r)
{
    uint32_t n = 1 + below(w, 40);
    *r = (struct record){.prompt = n, .count = n, .tokens_max = n + 1 + below(w, 60), .hold = below(w, 4) == 0};
    if (r->tokens_max > LONGEST)
        r->tokens_max = LONGEST;
    fake_prompt(&w->rng, r->ids, n);
    uint32_t same = below(w, n + 1);
    memcpy(r->ids, w->heads[below(w, 3)], same * sizeof *r->ids);
    static const char *const salts[] = {NULL, "salt"};
    char own[32];
    r->salt = below(w, 3);
    kvs_format(own, sizeof own, "own-%llu", (unsigned long long)w->now);
    struct wrk_seq_config c = {.owner = WRK_OWNER_DECODE,
                               .user = (uint32_t)(r - w->rec),
                               .tokens = r->ids,
                               .token_count = n,
                               .tokens_max = r->tokens_max,
                               .hold = r->hold,
                               .logits = WRK_LOGITS_SAMPLE,
                               .cache_salt = r->salt < 2 ? salts[r->salt] : own,
                               .sampling = {.seed = 9}};
    kvs_status st = wrk_seq_open(w->s, &c, &r->id, NULL);
    assert_true(st == KVS_OK || st == KVS_BUSY_PAGES);
    if (st != KVS_OK)
        r->id = WRK_SEQ_NONE;
}

/* A sampled token of a sequence whose tokens all have KV. */
static void got_token(struct world *w, struct record *r)
{
    int32_t id = fake_sample(fake_prefix(r->ids, r->count), 9, 0, r->count);
    if (r->count + 1 == r->tokens_max) {
        w->finished++;
        wrk_seq_close(w->s, r->id);
        r->id = WRK_SEQ_NONE;
        return;
    }
    r->ids[r->count++] = id;
    wrk_seq_append(w->s, r->id, id);
}

/* With window or state groups a transfer brings all that was wanted, or counts for nothing. */
static void op_fill_mixed(struct world *w, struct record *r)
{
    struct wrk_seq_view v = wrk_seq_look(w->s, r->id);
    uint32_t n = w->l.block_tokens, most = (r->count - 1) / n;
    if (below(w, 4) == 0) {
        wrk_seq_ready(w->s, r->id, v.computed, false);
        return;
    }
    uint32_t tokens = most > v.shared && below(w, 2) ? (v.shared + 1 + below(w, most - v.shared)) * n : r->count;
    wrk_seq_land(w->s, r->id, tokens);
    if (below(w, 4) == 0 && tokens < r->count) /* once more, for all of it */
        wrk_seq_land(w->s, r->id, tokens = r->count);
    check(w);
    fake_zero(&w->kv, w->s);
    if (below(w, 4) == 0) {
        wrk_seq_fence(w->s, r->id);
        r->fenced = true;
        w->fences++;
        return;
    }
    bool whole = below(w, 3) > 0;
    for (uint32_t g = 0; g < w->l.group_count; g++)
        for (uint32_t b = v.shared; b < v.table->block_count; b++)
            if (kvc_block_row(v.table, g)[b] != KVC_BLOCK_NONE && (b * n < tokens) && (whole || below(w, 2))) {
                assert_true(wrk_page_lands(&w->l, g, b, tokens, tokens < r->count));
                fake_land(&w->kv, v.table, g, b, r->ids, tokens);
            }
    wrk_seq_ready(w->s, r->id, whole ? tokens : v.computed, true);
    assert_int_equal(wrk_seq_look(w->s, r->id).state, whole ? WRK_SEQ_READY : WRK_SEQ_WAITING);
    w->landed += whole;
    if (whole && tokens == r->count)
        got_token(w, r);
}

/* A transfer that brought the first blocks and left rubbish in the rest. */
static void op_fill(struct world *w, struct record *r)
{
    struct wrk_seq_view v = wrk_seq_look(w->s, r->id);
    fake_zero(&w->kv, w->s);
    if (kvc_layout_is_mixed(&w->l)) {
        op_fill_mixed(w, r);
        return;
    }
    if (v.computed > v.shared * w->l.block_tokens) { /* only the last block is missing: nobody asks for a transfer */
        wrk_seq_ready(w->s, r->id, v.computed, false);
        return;
    }
    if (below(w, 3) == 0) {
        wrk_seq_fence(w->s, r->id);
        r->fenced = true;
        w->fences++;
        return;
    }
    uint32_t blocks = below(w, r->count / w->l.block_tokens + 1), kept = blocks * w->l.block_tokens;
    if (blocks < v.shared)
        blocks = v.shared, kept = v.computed;
    if (kept == r->count)
        kept = r->count - 1;
    for (uint32_t g = 0; g < w->l.group_count; g++)
        for (uint32_t p = v.shared * w->l.block_tokens; p < v.table->block_count * w->l.block_tokens; p++)
            if (p < r->count || below(w, 2))
                *fake_cell(&w->kv, v.table, g, p) =
                    p < blocks * w->l.block_tokens ? fake_kv_value(fake_prefix(r->ids, p + 1), g) : FAKE_GARBAGE;
    wrk_seq_ready(w->s, r->id, kept, true);
}

static void op_end_step(struct world *w)
{
    const struct wrk_step *step = wrk_sched_in_flight(w->s);
    if (!step)
        return;
    if (below(w, kvc_layout_is_mixed(&w->l) ? 60 : 12) == 0) { /* with states it costs everybody its pages */
        fake_zero(&w->kv, w->s);
        fake_spoil(&w->kv, step);
        assert_true(wrk_sched_step_done(w->s, step->id, KVS_REQ_CANCELLED, NULL));
        return;
    }
    fake_zero(&w->kv, w->s);
    fake_run(&w->kv, w->s, step, w->results, NULL);
    assert_true(wrk_sched_step_done(w->s, step->id, KVS_OK, w->results));
    uint32_t n;
    const struct wrk_seq_result *res = wrk_sched_results(w->s, WRK_OWNER_DECODE, &n, NULL);
    for (uint32_t i = 0; i < n; i++) {
        struct record *r = &w->rec[res[i].user];
        assert_int_equal(r->id, res[i].seq);
        if (!res[i].last)
            continue;
        assert_int_equal(res[i].r.token, fake_sample(fake_prefix(r->ids, r->count), 9, 0, r->count));
        got_token(w, r);
    }
}

static void op_close(struct world *w, struct record *r)
{
    if (r->fenced) {
        wrk_seq_unfence(w->s, r->id);
    } else {
        w->closed_in_flight += wrk_seq_look(w->s, r->id).in_step;
        wrk_seq_close(w->s, r->id);
    }
    if (wrk_seq_look(w->s, r->id).state == WRK_SEQ_GONE)
        r->id = WRK_SEQ_NONE;
}

static void one_event(struct world *w)
{
    struct record *r = &w->rec[below(w, SEQS)];
    w->now += below(w, 40000);
    wrk_sched_tell_time(w->s, w->now);
    if (below(w, 200) == 0)
        w->flushed += wrk_sched_flush(w->s);
    wrk_seq_state state = wrk_seq_look(w->s, r->id).state;
    switch (below(w, 10)) {
    case 0:
    case 1:
        if (r->id == WRK_SEQ_NONE)
            op_open(w, r);
        break;
    case 2:
        if (state == WRK_SEQ_HELD)
            op_fill(w, r);
        break;
    case 3:
        if (r->id != WRK_SEQ_NONE && state != WRK_SEQ_CLOSING &&
            (below(w, 6) == 0 || r->fenced || state == WRK_SEQ_FAILED))
            op_close(w, r);
        break;
    case 4:
        if (r->id != WRK_SEQ_NONE && state != WRK_SEQ_FENCED)
            wrk_seq_pause(w->s, r->id, below(w, 4) == 0);
        break;
    case 5:
        if (below(w, 8) == 0)
            w->preempted += wrk_sched_preempt_newest(w->s);
        break;
    case 6: wrk_sched_admit(w->s); break;
    case 7:
    case 8:
        if (wrk_sched_next_step(w->s))
            fake_zero(&w->kv, w->s);
        break;
    default: op_end_step(w); break;
    }
}

static void one_life(uint64_t seed, bool kinds, struct world *total)
{
    struct world *w = calloc(1, sizeof *w);
    w->rng.state = seed;
    uint32_t layers = 1 + below(w, 5), block_tokens = 1u << below(w, 4);
    uint32_t group_layers = 1 + below(w, layers);
    w->l = kinds ? fake_layout_kinds(&w->rng, layers, block_tokens, group_layers)
                 : fake_layout(layers, block_tokens, group_layers);
    struct wrk_sched_config c = {.layout = &w->l,
                                 .seqs_max = SEQS,
                                 .batch_seqs = 1 + below(w, SEQS),
                                 .context = LONGEST,
                                 .chunk_tokens = 1 + below(w, 30),
                                 .reserve_tokens = 1 + below(w, 20),
                                 .tree_nodes = below(w, 2) * (1 + below(w, 60)),
                                 .snapshot_blocks = 1 + below(w, 4),
                                 .tree_ttl_us = 1000000 + below(w, 5000000)};
    w->tree = c.tree_nodes > 0;
    for (int i = 0; i < 3; i++)
        fake_prompt(&w->rng, w->heads[i], LONGEST);
    memcpy(w->heads[1], w->heads[0], below(w, LONGEST) * sizeof(int32_t));
    for (uint32_t g = 0; g < w->l.group_count; g++)
        c.pages[g] = w->pages[g] = w->l.group[g].kind == KVC_WINDOW || w->l.group[g].kind == KVC_STATE
                                       ? fake_few_pages(&w->l, g, LONGEST, c.chunk_tokens, below(w, 20))
                                       : 80 / w->l.block_tokens + 2 + below(w, 60 / w->l.block_tokens + 2);
    assert_int_equal(wrk_sched_create(&c, &w->s, NULL), KVS_OK);
    fake_kv_init(&w->kv, &w->l, w->pages);
    for (int i = 0; i < 1500; i++) {
        one_event(w);
        check(w);
    }
    op_end_step(w);
    check(w);
    for (uint32_t i = 0; i < SEQS; i++)
        if (w->rec[i].id != WRK_SEQ_NONE)
            op_close(w, &w->rec[i]);
    fake_zero(&w->kv, w->s);
    check(w);
    for (uint32_t g = 0; g < w->l.group_count; g++) {
        struct kvc_pool_counts n = wrk_sched_pages(w->s, g);
        assert_int_equal(n.free + n.cached, w->pages[g]); /* every page comes back */
    }
    (void)wrk_sched_flush(w->s);
    for (uint32_t g = 0; g < w->l.group_count; g++)
        assert_int_equal(wrk_sched_pages(w->s, g).free, w->pages[g]);
    total->finished += w->finished;
    total->landed += w->landed;
    total->preempted += wrk_sched_stats(w->s).preemptions;
    total->fences += w->fences;
    total->cached += wrk_sched_stats(w->s).cached_tokens;
    total->evicted += wrk_sched_stats(w->s).evicted_blocks;
    total->flushed += w->flushed;
    total->deferred += w->deferred;
    total->closed_in_flight += w->closed_in_flight;
    wrk_sched_destroy(w->s);
    fake_kv_fini(&w->kv);
    free(w);
}

static void random_lives(bool kinds)
{
    struct world total = {.now = 0};
    const char *one = getenv("WRK_SEED");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1, last = one ? first : 300;
    for (uint64_t seed = first; seed <= last; seed++) {
        printf("seed %llu\r", (unsigned long long)seed);
        fflush(stdout);
        one_life(seed, kinds, &total);
    }
    printf("seeds %llu..%llu: %llu finished, %llu preemptions, %llu fences, %llu closed in flight\n",
           (unsigned long long)first, (unsigned long long)last, (unsigned long long)total.finished,
           (unsigned long long)total.preempted, (unsigned long long)total.fences,
           (unsigned long long)total.closed_in_flight);
    printf("tokens found in the tree %llu, blocks evicted %llu, flushed %llu, seen waiting for a prefix %llu\n",
           (unsigned long long)total.cached, (unsigned long long)total.evicted, (unsigned long long)total.flushed,
           (unsigned long long)total.deferred);
    if (!one)
        assert_true(total.cached > 1000 && total.evicted > 100 && total.flushed > 100 && total.deferred > 100);
    if (!one)
        assert_true(!kinds || total.landed > 100);
    if (!one)
        assert_true(total.finished > 100 && total.preempted > 100 && total.fences > 100 &&
                    total.closed_in_flight > 100);
}

static void test_random_lives(void **state)
{
    (void)state;
    random_lives(false);
}

static void test_random_lives_of_all_kinds(void **state)
{
    (void)state;
    random_lives(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_lives), cmocka_unit_test(test_random_lives_of_all_kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
