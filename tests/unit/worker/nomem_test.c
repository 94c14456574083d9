/* nomem_test.c - the scheduler with its prefix tree while one allocation fails, every one in turn, OpenSSL's too (it names the blocks): a sequence
 * is opened and computed right, or refused with KVS_SELF_NOMEM and nothing has changed; one whose blocks could not be named takes no part in
 * reuse; the next one does. Pages are in order after each step, and all back at the end; no memory is left behind.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/crypto.h>
#include <string.h>

#include "tests/support/nomem.h"
#include "tests/unit/worker/fake_device.h"
#include "worker/core/events.h"

#define PAGES 40u
#define PROMPT 22u

static struct kvc_layout layout;
static int32_t ids[64];

static void *ssl_malloc(size_t n, const char *file, int line)
{
    (void)file;
    (void)line;
    return tst_nomem_hook_malloc(n);
}

static void *ssl_realloc(void *p, size_t n, const char *file, int line)
{
    (void)file;
    (void)line;
    return tst_nomem_hook_realloc(p, n);
}

static void ssl_free(void *p, const char *file, int line)
{
    (void)file;
    (void)line;
    tst_nomem_hook_free(p);
}

static struct wrk_sched_config config(void)
{
    layout = fake_layout(3, 4, 2);
    return (struct wrk_sched_config){.layout = &layout,
                                     .pages = {PAGES, PAGES},
                                     .seqs_max = 8,
                                     .context = 60,
                                     .chunk_tokens = 16,
                                     .reserve_tokens = 4,
                                     .tree_nodes = 64,
                                     .model = {.numerics = "n", .kv_types = "k=f32,v=f32", .rope = "r"}};
}

static void check(const struct wrk_sched *s)
{
    struct kvs_error err = {.text = ""};
    if (!wrk_sched_consistent(s, &err))
        fail_msg("%s", err.text);
}

static kvs_status open_seq(struct wrk_sched *s, bool pin, wrk_seq_id *id, struct kvs_error *err)
{
    struct wrk_seq_config c = {.owner = pin ? WRK_OWNER_PREFILL : WRK_OWNER_DECODE,
                               .tokens = ids,
                               .token_count = PROMPT,
                               .tokens_max = PROMPT + 6,
                               .logits = pin ? WRK_LOGITS_NONE : WRK_LOGITS_SAMPLE,
                               .tenant = "t"};
    return pin ? wrk_seq_pin(s, &c, id, err) : wrk_seq_open(s, &c, id, err);
}

/* Computes what is open; returns the tokens that were computed. */
static uint32_t run(struct wrk_sched *s, struct fake_kv *kv)
{
    struct wrk_result results[8];
    uint32_t computed = 0;
    const struct wrk_step *step;
    while ((step = wrk_sched_next_step(s)) != NULL) {
        fake_zero(kv, s);
        computed += step->token_count;
        fake_run(kv, s, step, results, NULL);
        assert_true(wrk_sched_step_done(s, step->id, KVS_OK, results));
        check(s);
        for (uint32_t i = 0; i < step->entry_count; i++)
            if (step->entries[i].last)
                wrk_seq_close(s, step->entries[i].seq);
    }
    fake_zero(kv, s);
    return computed;
}

static void test_create(void **state)
{
    struct wrk_sched_config c = config();
    int64_t before = tst_nomem_live(), n = 0;
    (void)state;
    for (bool reached = true; reached; n++) {
        struct wrk_sched *s = NULL;
        struct kvs_error err = {0};
        tst_nomem_arm(n);
        kvs_status st = wrk_sched_create(&c, &s, &err);
        reached = tst_nomem_disarm();
        assert_int_equal(st, reached ? KVS_SELF_NOMEM : KVS_OK);
        assert_true(reached ? err.text[0] != 0 : s != NULL);
        wrk_sched_destroy(s);
        assert_int_equal(tst_nomem_live(), before);
    }
    assert_true(n > 15);
}

static void test_sequences(void **state)
{
    struct wrk_sched_config c = config();
    struct wrk_sched *s;
    struct fake_kv kv;
    uint32_t refused = 0, unnamed = 0;
    wrk_seq_id id;
    (void)state;
    int64_t before = tst_nomem_live();
    assert_int_equal(wrk_sched_create(&c, &s, NULL), KVS_OK);
    fake_kv_init(&kv, &layout, c.pages);
    assert_int_equal(open_seq(s, false, &id, NULL), KVS_OK);
    wrk_sched_admit(s);
    assert_int_equal(run(s, &kv), PROMPT);
    int64_t idle = tst_nomem_live();
    for (int64_t n = 0;; n++) {
        struct kvs_error err = {0};
        tst_nomem_arm(n);
        kvs_status st = open_seq(s, false, &id, &err);
        if (st == KVS_OK)
            wrk_sched_admit(s);
        bool reached = tst_nomem_disarm();
        check(s);
        assert_true(st == KVS_OK || (reached && st == KVS_SELF_NOMEM && err.text[0] != 0));
        refused += st != KVS_OK;
        uint32_t computed = run(s, &kv);
        assert_true(computed == (st != KVS_OK ? 0 : 2) || (reached && computed == PROMPT));
        unnamed += computed == PROMPT;
        assert_int_equal(wrk_sched_pages(s, 0).held, 0);
        assert_int_equal(tst_nomem_live(), idle);
        if (!reached)
            break;
    }
    assert_int_equal(refused, 3); /* tokens, names, block table */
    assert_true(unnamed > 0);
    for (int64_t n = 0;; n++) { /* for others: pinned as it is */
        struct kvs_error err = {0};
        tst_nomem_arm(n);
        kvs_status st = open_seq(s, true, &id, &err);
        bool reached = tst_nomem_disarm();
        check(s);
        assert_true(st == KVS_OK || (reached && (st == KVS_SELF_NOMEM || st == KVS_REQ_NOT_FOUND) && err.text[0] != 0));
        if (st == KVS_OK) {
            assert_int_equal(wrk_seq_look(s, id).cached, 20);
            wrk_seq_close(s, id);
        }
        assert_int_equal(wrk_sched_pages(s, 0).held, 0);
        assert_int_equal(tst_nomem_live(), idle);
        if (!reached)
            break;
    }
    (void)wrk_sched_flush(s);
    check(s);
    for (uint32_t g = 0; g < layout.group_count; g++)
        assert_int_equal(wrk_sched_pages(s, g).free, PAGES);
    wrk_sched_destroy(s);
    fake_kv_fini(&kv);
    assert_int_equal(tst_nomem_live(), before);
}

int main(void)
{
    struct kvc_hash warm;
    struct kvs_rng rng = {3};
    static const uint8_t fingerprint[32];
    const struct kvc_root_fields f = {.fingerprint = {.data = fingerprint, .len = sizeof fingerprint}, .block_tokens = 4};
    if (CRYPTO_set_mem_functions(ssl_malloc, ssl_realloc, ssl_free) != 1 || kvc_hash_root(&f, &warm) != KVS_OK)
        return 1;
    fake_prompt(&rng, ids, 64);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_create), cmocka_unit_test(test_sequences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
