/* long_run_test.c - a long run of one character takes linear time on a small stack, in every vocabulary at hand.
 * Time is judged by the growth from 125,000 to 1,000,000 characters, eight times: a quadratic path would take 64 times as
 * long. The bound is 3 times linear (or 0.1 s), on the best of several runs, because other work shares the machine.
 * Families whose vocabulary is not at hand are cut only: their splitter is what could be quadratic, or recurse.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/tokenizer_int.h"
#include "tests/support/files.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/pcre_split.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES (256u * 1024u)
#define LONG_COUNT 1000000u
#define SHORT_COUNT 125000u

static const char *const runs[] = {"A", "Z", " ", "\n", ".", "\xe6\x97\xa5", "7", "\xff", "ab", " a"};

struct job {
    const struct mdl_tokenizer *t;
    const struct mdl_pretok *pretok; /* not NULL: only cut */
    const char *unit;
    size_t count;
    kvs_status status;
    size_t ids, bytes; /* tokens, and the bytes they stand for */
    double seconds;
};

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void *encode_run(void *arg)
{
    struct job *j = arg;
    struct mdl_ids ids = {0};
    struct kvs_error err = {0};
    size_t unit = strlen(j->unit), n = unit * j->count;
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++)
        text[i] = j->unit[i % unit];
    double start = now();
    j->status = mdl_encode(j->t, text, n, 0, SIZE_MAX, &ids, &err);
    j->seconds = now() - start;
    j->ids = ids.count;
    j->bytes = 0;
    for (size_t i = 0; i < ids.count; i++)
        j->bytes += mdl_token_bytes(j->t, ids.ids[i]).len;
    mdl_ids_fini(&ids);
    free(text);
    return NULL;
}

static kvs_status take_piece(void *user, const uint8_t *piece, size_t n)
{
    struct job *j = user;
    (void)piece;
    j->ids++;
    j->bytes += n;
    return KVS_OK;
}

static void *split_run(void *arg)
{
    struct job *j = arg;
    size_t unit = strlen(j->unit), n = unit * j->count;
    uint8_t *text = malloc(n);
    for (size_t i = 0; i < n; i++)
        text[i] = (uint8_t)j->unit[i % unit];
    j->ids = j->bytes = 0;
    double start = now();
    j->status = mdl_pretok_split(j->pretok, text, n, take_piece, j);
    j->seconds = now() - start;
    free(text);
    return NULL;
}

static void on_small_stack(struct job *j)
{
    pthread_attr_t attr;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, j->pretok != NULL ? split_run : encode_run, j), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_attr_destroy(&attr), 0);
}

static double best_of(struct job *j, int tries)
{
    double best = 1e9;
    for (int i = 0; i < tries; i++) {
        on_small_stack(j);
        best = j->seconds < best ? j->seconds : best;
    }
    return best;
}

static void check_runs(const struct mdl_tokenizer *t, const char *name, size_t prefix, bool all_bytes)
{
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        struct job small = {.t = t, .unit = runs[i], .count = SHORT_COUNT}, big = small;
        big.count = LONG_COUNT;
        if (!all_bytes && strcmp(runs[i], "\xff") == 0) { /* no token for byte 0xff: refused, and soon */
            on_small_stack(&big);
            assert_int_equal(big.status, KVS_REQ_INVALID);
            assert_true(big.seconds < 0.5);
            continue;
        }
        double a = best_of(&small, 3), b = best_of(&big, 1);
        for (int again = 0; again < 3 && b > 3 * 8 * a && b > 0.1; again++)
            b = best_of(&big, 1);
        print_message("%s %zu x %02x: %zu tokens, %.3f s (%.2f times linear)\n", name, (size_t)LONG_COUNT,
                      (unsigned)(uint8_t)runs[i][0], big.ids, b, b / (8 * a));
        assert_int_equal(big.status, KVS_OK);
        assert_int_equal(big.bytes, strlen(runs[i]) * LONG_COUNT + prefix);
        assert_true(b <= 3 * 8 * a || b < 0.1);
    }
}

static struct mdl_tokenizer *from_bytes(const uint8_t *bytes, size_t size)
{
    struct kvs_error err = {0};
    struct mdl_gguf *g;
    struct mdl_tokenizer *t = NULL;
    if (mdl_gguf_parse(bytes, size, true, &g, &err) != KVS_OK || mdl_tokenizer_create(g, &t, &err) != KVS_OK)
        fail_msg("%s", err.text);
    mdl_gguf_destroy(g);
    return t;
}

static void shared_vocab(const char *name, size_t prefix, bool all_bytes)
{
    char path[512];
    size_t size = 0;
    snprintf(path, sizeof path, "%s/vocab/ggml-vocab-%s.gguf", KVS_SHARED_DIR, name);
    uint8_t *bytes = tst_file_read(path, 0, &size);
    if (bytes == NULL) {
        print_message("skipped: %s is absent\n", path);
        skip();
    }
    struct mdl_tokenizer *t = from_bytes(bytes, size);
    free(bytes);
    check_runs(t, name, prefix, all_bytes);
    mdl_tokenizer_destroy(t);
}

/* Every family that has an expression of its own; a fourth of the length, since there are many. */
static void test_splitters(void **state)
{
    (void)state;
    for (size_t k = 0; k < tst_pretok_count; k++) {
        const char *name = tst_pretok_names[k], *slowest = "";
        struct job small = {.count = SHORT_COUNT / 4};
        struct kvs_error err = {0};
        double worst = 0;
        if (mdl_pretok_find((struct mdl_str){name, strlen(name)}, &small.pretok, &err) != KVS_OK)
            fail_msg("%s", err.text);
        for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
            small.unit = runs[i];
            struct job big = small;
            big.count = LONG_COUNT / 4;
            double a = best_of(&small, 2), b = best_of(&big, 1);
            for (int again = 0; again < 3 && b > 3 * 8 * a && b > 0.1; again++)
                b = best_of(&big, 1);
            assert_int_equal(big.status, KVS_OK);
            assert_int_equal(big.bytes, strlen(runs[i]) * big.count);
            if (b > worst) {
                worst = b;
                slowest = runs[i];
            }
            if (b > 3 * 8 * a && b >= 0.1)
                fail_msg("%s, run of %02x: %.3f s, and %.4f s for an eighth", name, (unsigned)(uint8_t)runs[i][0], b,
                         a);
        }
        print_message("%s: cut in at most %.3f s (%02x)\n", name, worst, (unsigned)(uint8_t)slowest[0]);
    }
    assert_true(tst_pretok_count >= 10);
}

static void test_gpt2(void **state)
{
    (void)state;
    shared_vocab("gpt-2", 0, true);
}

static void test_starcoder(void **state)
{
    (void)state;
    shared_vocab("starcoder", 0, false);
}

static void test_llama_spm(void **state)
{
    (void)state;
    shared_vocab("llama-spm", 1, true);
}

static void test_phi3(void **state)
{
    (void)state;
    shared_vocab("phi-3", 1, true);
}

static void test_falcon(void **state)
{
    (void)state;
    shared_vocab("falcon", 0, false);
}

static void test_deepseek_llm(void **state)
{
    (void)state;
    shared_vocab("deepseek-llm", 0, false);
}

static void test_deepseek_coder(void **state)
{
    (void)state;
    shared_vocab("deepseek-coder", 0, false);
}

static void test_generated_spm(void **state)
{
    (void)state;
    size_t size;
    struct tst_gguf *w = tst_gguf_create(3, 0);
    tst_llama_vocab(w);
    uint8_t *bytes = tst_gguf_finish(w, &size, NULL);
    struct mdl_tokenizer *t = from_bytes(bytes, size);
    free(bytes);
    check_runs(t, "generated", 1, true);
    /* A text that cannot fit is refused before it is looked at. */
    struct mdl_ids ids = {0};
    struct kvs_error err = {0};
    char *text = calloc(1, 64u << 20);
    double start = now();
    assert_int_equal(mdl_encode(t, text, 64u << 20, 0, 8192, &ids, &err), KVS_REQ_TOO_LONG);
    assert_true(now() - start < 0.05);
    free(text);
    mdl_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated_spm), cmocka_unit_test(test_gpt2),           cmocka_unit_test(test_starcoder),
        cmocka_unit_test(test_llama_spm),     cmocka_unit_test(test_phi3),           cmocka_unit_test(test_falcon),
        cmocka_unit_test(test_deepseek_llm),  cmocka_unit_test(test_deepseek_coder), cmocka_unit_test(test_splitters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
