/* sampler_test.c - greedy and drawn tokens against a naive sampler in double precision that sorts everything.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/sampler.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 1000u

struct pair {
    double logit, p;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

/* What the header says, written down plainly. Returns how close u came to a boundary: near ones may round either way. */
static int32_t naive(const float *logits, uint32_t n, const struct eng_sampling *s, double u, double *near_out)
{
    struct pair *c = calloc(n, sizeof *c);
    double z = 0, sum = 0, total = 0, gap = 1;
    for (uint32_t i = 0; i < n; i++) {
        c[i] = (struct pair){.logit = logits[i], .id = (int32_t)i};
    }
    qsort(c, n, sizeof *c, by_logit);
    uint32_t keep = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    for (uint32_t i = 0; i < keep; i++) {
        c[i].p = exp((c[i].logit - c[0].logit) / (double)s->temperature);
        z += c[i].p;
    }
    uint32_t m = 0;
    while (m < keep && (m == 0 || (c[m].p >= (double)s->min_p && (s->top_p >= 1.0f || sum < (double)s->top_p * z)))) {
        sum += c[m].p;
        gap = fmin(gap, fabs(sum / z - (double)s->top_p));
        if (m + 1 < keep && s->min_p > 0) {
            gap = fmin(gap, fabs(c[m + 1].p - (double)s->min_p));
        }
        m++;
    }
    int32_t id = c[m - 1].id;
    for (uint32_t i = 0; i < m; i++) {
        total += c[i].p;
        gap = fmin(gap, fabs(total / sum - u));
        if (total > u * sum) {
            id = c[i].id;
            break;
        }
    }
    *near_out = gap;
    free(c);
    return id;
}

static void fill(float *logits, uint32_t n, uint64_t seed, float spread)
{
    struct kvs_rng r = {.state = seed};
    for (uint32_t i = 0; i < n; i++) {
        float v = (float)(kvs_rng_below(&r, 2000001) / 1e6 - 1.0);
        logits[i] = spread * v * v * v;
    }
}

static void test_draw_equals_naive(void **state)
{
    (void)state;
    static float logits[VOCAB];
    static uint64_t scratch[VOCAB];
    struct kvs_rng r = {.state = 7};
    uint32_t compared = 0, different = 0;
    for (uint32_t i = 0; i < 4000; i++) {
        static const uint32_t ks[] = {0, 1, 5, 40, 5000};
        static const float ps[] = {1.0f, 0.9f, 0.5f, 0.0f}, mins[] = {0.0f, 0.05f, 0.5f},
                           ts[] = {0.3f, 0.7f, 1.0f, 2.0f};
        struct eng_sampling s = {.temperature = ts[kvs_rng_below(&r, 4)],
                                 .top_k = ks[kvs_rng_below(&r, 5)],
                                 .top_p = ps[kvs_rng_below(&r, 4)],
                                 .min_p = mins[kvs_rng_below(&r, 3)],
                                 .seed = kvs_rng_next(&r)};
        fill(logits, VOCAB, kvs_rng_next(&r), 12.0f);
        struct eng_sample out;
        double near;
        assert_int_equal(eng_sample_row(logits, VOCAB, &s, 3, i, scratch, &out), KVS_OK);
        int32_t want = naive(logits, VOCAB, &s, (double)kvs_rng_unit(s.seed, 3, i, 0), &near);
        if (near > 1e-5) {
            compared++;
            different += out.id != want;
        }
        assert_true(out.logit == logits[out.id]);
    }
    assert_int_equal(different, 0);
    assert_true(compared > 3000);
}

static void test_greedy_margin_and_logprob(void **state)
{
    (void)state;
    static float logits[VOCAB];
    fill(logits, VOCAB, 99, 5.0f);
    logits[17] = logits[500] = 9.0f; /* a tie: the lower id */
    logits[3] = -INFINITY;           /* ruled out, not an error */
    struct eng_sampling s = {.temperature = 0, .top_p = 1};
    struct eng_sample out;
    assert_int_equal(eng_sample_row(logits, VOCAB, &s, 0, 0, NULL, &out), KVS_OK);
    assert_int_equal(out.id, 17);
    assert_true(out.margin == 0.0f);
    double z = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        z += exp((double)logits[i] - 9.0);
    }
    assert_true(fabs((double)out.logprob + log(z)) < 1e-5);
    logits[500] = 8.5f;
    assert_int_equal(eng_sample_row(logits, VOCAB, &s, 0, 0, NULL, &out), KVS_OK);
    assert_true(out.margin == 0.5f);
}

static void test_frequencies(void **state)
{
    (void)state;
    const float logits[4] = {0.0f, logf(2.0f), logf(4.0f), -INFINITY};
    uint32_t seen[4] = {0}, n = 70000;
    uint64_t scratch[4];
    for (uint32_t i = 0; i < n; i++) {
        struct eng_sampling s = {.temperature = 1, .top_p = 1, .seed = 5};
        struct eng_sample out;
        assert_int_equal(eng_sample_row(logits, 4, &s, 0, i, scratch, &out), KVS_OK);
        seen[out.id]++;
    }
    assert_in_range(seen[0], 9500, 10500); /* 1/7, 2/7, 4/7 of 70,000; 5 deviations are 465 */
    assert_in_range(seen[1], 19400, 20600);
    assert_in_range(seen[2], 39300, 40700);
    assert_int_equal(seen[3], 0);
}

static void test_bad_rows_and_parameters(void **state)
{
    (void)state;
    float logits[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    uint64_t scratch[8];
    struct eng_sample out;
    struct eng_sampling s = {.temperature = 1, .top_p = 1};
    logits[5] = NAN;
    assert_int_equal(eng_sample_row(logits, 8, &s, 0, 0, scratch, &out), KVS_SELF_NUMERIC);
    logits[5] = INFINITY;
    assert_int_equal(eng_sample_row(logits, 8, &s, 0, 0, scratch, &out), KVS_SELF_NUMERIC);
    for (uint32_t i = 0; i < 8; i++) {
        logits[i] = -INFINITY;
    }
    assert_int_equal(eng_sample_row(logits, 8, &s, 0, 0, scratch, &out), KVS_SELF_NUMERIC);
    logits[2] = 1;
    assert_int_equal(eng_sample_row(logits, 8, &s, 0, 0, scratch, &out), KVS_OK);
    assert_int_equal(out.id, 2);
    s.temperature = NAN;
    assert_int_equal(eng_sample_row(logits, 8, &s, 0, 0, scratch, &out), KVS_REQ_INVALID);
    s = (struct eng_sampling){.temperature = -1, .top_p = 1};
    assert_int_equal(eng_sample_row(logits, 8, &s, 0, 0, scratch, &out), KVS_REQ_INVALID);
    s = (struct eng_sampling){.temperature = 1, .top_p = NAN};
    assert_int_equal(eng_sample_row(logits, 8, &s, 0, 0, scratch, &out), KVS_REQ_INVALID);
    s = (struct eng_sampling){.temperature = 1e-30f, .top_p = 1};
    assert_int_equal(eng_sample_row(logits, 8, &s, 0, 0, scratch, &out), KVS_OK);
    assert_int_equal(out.id, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draw_equals_naive),
        cmocka_unit_test(test_greedy_margin_and_logprob),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_bad_rows_and_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
