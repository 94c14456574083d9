/* memory_test.c - pages that a prompt takes, against numbers worked out by hand and against a scheduler that runs such a prompt: it never holds
 * or caches more pages of a group than was predicted, and takes the prompt with the least memory that was named.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "worker/core/memory.h"
#include "worker/core/sched.h"

#define MIB (UINT64_C(1) << 20)

/* A full layer, one with a window of 512, one with a state of 4096 bytes, in three groups; f16, heads of 64 dims: 16 KiB a page of keys. */
static void layout(struct kvc_layout *out)
{
    const struct kvc_layer y[3] = {
        {.count = 1, .cache = {{.kind = KVC_FULL, .kv_heads = 1, .key_dim = 64, .value_dim = 64}}},
        {.count = 1, .cache = {{.kind = KVC_WINDOW, .window = 512, .kv_heads = 1, .key_dim = 64, .value_dim = 64}}},
        {.count = 1, .cache = {{.kind = KVC_STATE, .state_bytes = 4096}}}};
    assert_int_equal(kvc_layout_build(&(struct kvc_layout_config){.layers = 3, .layer = y, .kv_type = KVC_F16}, out, NULL), KVS_OK);
    assert_int_equal(out->group_count, 3);
}

static struct wrk_memory_config config(const struct kvc_layout *l, uint32_t prompt, bool cache)
{
    return (struct wrk_memory_config){
        .sizes = {.layout = l, .memory = 64 * MIB, .context = 32784, .chunk_tokens = 128, .snapshot_blocks = 16, .sequences = 4},
        .prompt_tokens = prompt, .answer_tokens = 16, .vocab = 1000, .prefix_cache = cache};
}

static void test_by_hand(void **state)
{
    (void)state;
    static struct kvc_layout l;
    struct wrk_memory m;
    layout(&l);
    struct wrk_memory_config c = config(&l, 32768, false);
    assert_int_equal(wrk_memory_predict(&c, &m, NULL), KVS_OK);
    assert_true(m.fits);
    assert_int_equal(m.held[0], 513); /* 32784 / 64, rounded up */
    assert_int_equal(m.pages[0], 513);
    assert_int_equal(m.held[1], 13); /* (512 + 128 + 64) / 64 and a block at either end */
    assert_int_equal(m.pages[1], 13);
    assert_int_equal(m.held[2], 2); /* running, and a source's */
    assert_int_equal(m.held_bytes, (513 + 13) * 16384 + 2 * 4096);
    assert_true(m.kv_bytes >= m.held_bytes && m.kv_bytes <= m.held_bytes + 12 * MIB);
    assert_int_equal(m.rows, 44000);
    c = config(&l, 32768, true);
    assert_int_equal(wrk_memory_predict(&c, &m, NULL), KVS_OK);
    assert_int_equal(m.held[1], 13);
    assert_int_equal(m.pages[1], m.pools[1]); /* passed ones stay while there is room: fewer than the prompt's 513 */
    assert_true(m.pools[1] < 513);
    assert_int_equal(m.pages[2], 3 + 32); /* a snapshot every 16 of 513 blocks */
    c = config(&l, 32785, true);
    assert_int_equal(wrk_memory_predict(&c, &m, NULL), KVS_REQ_TOO_LONG);
    c = config(&l, 32768, true);
    c.sizes.memory = 4 * MIB;
    assert_int_equal(wrk_memory_predict(&c, &m, NULL), KVS_OK);
    assert_false(m.fits);
    assert_true(m.kv_bytes <= 4 * MIB); /* never more than there is */
}

struct most {
    uint32_t held[3], touched[3];
};

/* A prompt of n tokens, prefilled for others or for an answer here, with these pools. */
static void run(const struct wrk_memory_config *c, const struct wrk_memory *m, wrk_owner owner, struct most *most)
{
    struct wrk_sched_config sc = {.layout = c->sizes.layout, .seqs_max = 4, .context = c->sizes.context, .chunk_tokens = 128, .reserve_tokens = 16,
                                  .tree_nodes = c->prefix_cache ? 4096 : 0, .snapshot_blocks = 16};
    struct wrk_sched *s;
    wrk_seq_id q;
    struct wrk_page page;
    struct wrk_copy copy;
    const struct wrk_step *step;
    memcpy(sc.pages, m->pools, sizeof sc.pages);
    memset(most, 0, sizeof *most);
    assert_int_equal(wrk_sched_create(&sc, &s, NULL), KVS_OK);
    int32_t *ids = calloc(c->prompt_tokens, sizeof *ids);
    assert_non_null(ids);
    struct wrk_seq_config seq = {.owner = owner, .tokens = ids, .token_count = c->prompt_tokens, .tokens_max = c->prompt_tokens + 16,
                                 .logits = owner == WRK_OWNER_PREFILL ? WRK_LOGITS_SHIP : WRK_LOGITS_SAMPLE};
    assert_int_equal(wrk_seq_open(s, &seq, &q, NULL), KVS_OK);
    wrk_sched_admit(s);
    while ((step = wrk_sched_next_step(s)) != NULL) {
        while (wrk_sched_take_zeros(s, &page, 1) != 0) {
        }
        while (wrk_sched_take_copies(s, &copy, 1) != 0) {
        }
        bool last = step->entries[0].last;
        struct wrk_result r = {.status = KVS_OK};
        for (uint32_t g = 0; g < 3; g++) {
            struct kvc_pool_counts n = wrk_sched_pages(s, g);
            most->held[g] = n.held > most->held[g] ? n.held : most->held[g];
            most->touched[g] = n.held + n.cached > most->touched[g] ? n.held + n.cached : most->touched[g];
        }
        assert_true(wrk_sched_step_done(s, step->id, KVS_OK, &r));
        if (last)
            break;
    }
    assert_int_equal(wrk_seq_look(s, q).computed, c->prompt_tokens);
    wrk_seq_close(s, q);
    wrk_sched_destroy(s);
    free(ids);
}

static void test_a_scheduler_takes_no_more(void **state)
{
    (void)state;
    static struct kvc_layout l;
    static const uint32_t prompts[] = {1, 64, 700, 5000, 32768};
    layout(&l);
    for (uint32_t i = 0; i < 20; i++) {
        struct wrk_memory_config c = config(&l, prompts[i / 4], i % 2);
        wrk_owner owner = i / 2 % 2 ? WRK_OWNER_PREFILL : WRK_OWNER_DECODE;
        struct wrk_memory m;
        struct most seen;
        c.sizes.memory = wrk_memory_least(&c);
        assert_int_equal(wrk_memory_predict(&c, &m, NULL), KVS_OK);
        assert_true(m.fits);
        run(&c, &m, owner, &seen);
        for (uint32_t g = 0; g < 3; g++) {
            assert_in_range(seen.held[g], 1, m.held[g]);
            assert_in_range(seen.touched[g], seen.held[g], m.pages[g]);
        }
        assert_true(seen.held[0] + 1 >= m.held[0]); /* and hardly less: the answer's last block */
        if (c.sizes.memory > MIB) {
            c.sizes.memory -= MIB;
            assert_true(wrk_memory_predict(&c, &m, NULL) != KVS_OK || !m.fits);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_hand), cmocka_unit_test(test_a_scheduler_takes_no_more)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
