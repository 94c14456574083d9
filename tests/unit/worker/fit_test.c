/* fit_test.c - steps of a made-up machine with known coefficients, noise and stalls: the fit predicts what that machine would take.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "base/rng.h"
#include "worker/core/fit.h"

struct machine {
    double fixed, token, pair, step, sequence, context;
};

static double takes(const struct machine *m, const struct wrk_step *s)
{
    double t = 0, chunks = 0, singles = 0;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const struct wrk_step_entry *e = &s->entries[i];
        if (e->count == 1) {
            singles++;
            t += m->sequence + m->context * (e->pos + 1.0);
        } else {
            chunks++;
            for (uint32_t k = 0; k < e->count; k++) /* token by token: e->pos + k + 1 positions each */
                t += m->token + m->pair * (e->pos + k + 1.0);
        }
    }
    return t + (chunks > 0 ? m->fixed : m->step);
}

static void make_step(struct kvs_rng *rng, struct wrk_step_entry *e, struct wrk_step *s, int kind)
{
    *s = (struct wrk_step){.entries = e};
    uint32_t singles = kind == 0 ? 1 + (uint32_t)kvs_rng_below(rng, 12) : kind == 2 ? (uint32_t)kvs_rng_below(rng, 6) : 0;
    for (uint32_t i = 0; i < singles; i++)
        e[s->entry_count++] = (struct wrk_step_entry){.count = 1, .pos = (uint32_t)kvs_rng_below(rng, 3000)};
    if (kind > 0)
        e[s->entry_count++] = (struct wrk_step_entry){.count = 2 + (uint32_t)kvs_rng_below(rng, 127), .pos = (uint32_t)kvs_rng_below(rng, 3000)};
}

static double noise(struct kvs_rng *rng)
{
    return 0.95 + 0.1 * (double)kvs_rng_below(rng, 1000) / 1000;
}

static void feed(struct wrk_speed *s, struct kvs_rng *rng, const struct machine *m, uint32_t steps)
{
    struct wrk_step_entry e[16];
    struct wrk_step step;
    for (uint32_t i = 0; i < steps; i++) {
        make_step(rng, e, &step, (int)kvs_rng_below(rng, 3));
        wrk_speed_add(s, &step, takes(m, &step) * noise(rng));
    }
}

/* The worst relative error over steps of both kinds. */
static double worst(const struct wrk_speed *s, struct kvs_rng *rng, const struct machine *m)
{
    struct wrk_step_entry e[16];
    struct wrk_step step;
    struct msg_speed v;
    double bad = 0;
    wrk_speed_tell(s, &v);
    for (int i = 0; i < 200; i++) {
        make_step(rng, e, &step, i % 2);
        double want = takes(m, &step), got = i % 2 ? v.prefill_fixed_s : v.step_fixed_s;
        for (uint32_t k = 0; k < step.entry_count; k++) {
            double n = e[k].count, p = e[k].pos;
            got += i % 2 ? n * v.prefill_token_s + (n * p + n * (n + 1) / 2) * v.prefill_pair_s : v.step_sequence_s + (p + 1) * v.step_context_s;
        }
        double off = fabs(got - want) / want;
        bad = off > bad ? off : bad;
    }
    return bad;
}

static const struct machine small = {2e-4, 1.2e-5, 3e-9, 1.5e-4, 4e-5, 2e-8}, big = {5e-3, 1.6e-3, 4e-7, 8e-3, 2e-3, 3e-6};

static void test_it_learns_the_machine(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct kvs_rng rng;
        rng = (struct kvs_rng){.state = seed};
        struct wrk_speed s = {0};
        feed(&s, &rng, seed % 2 ? &small : &big, 600);
        double off = worst(&s, &rng, seed % 2 ? &small : &big);
        printf("seed %u: at most %.1f %% off\n", (unsigned)seed, off * 100);
        assert_true(off < 0.08);
    }
}

static void test_it_follows_a_machine_that_changes(void **state)
{
    (void)state;
    struct kvs_rng rng;
    rng = (struct kvs_rng){.state = 5};
    struct wrk_speed s = {0};
    struct machine slow = {5e-3, 4.8e-3, 4e-7, 8e-3, 6e-3, 3e-6};
    feed(&s, &rng, &big, 1000);
    assert_true(worst(&s, &rng, &slow) > 0.3);
    feed(&s, &rng, &slow, 2500);
    assert_true(worst(&s, &rng, &slow) < 0.12);
}

static void test_a_stall_hardly_counts(void **state)
{
    (void)state;
    struct kvs_rng rng;
    rng = (struct kvs_rng){.state = 6};
    struct wrk_speed s = {0};
    struct wrk_step_entry e[16];
    struct wrk_step step;
    feed(&s, &rng, &big, 600);
    for (int kind = 0; kind < 2; kind++) {
        make_step(&rng, e, &step, kind);
        wrk_speed_add(&s, &step, 30);
    }
    assert_true(worst(&s, &rng, &big) < 0.1);
}

static void test_what_cannot_be_told_apart_goes_to_each_token(void **state)
{
    (void)state;
    struct wrk_speed s = {0};
    struct wrk_step_entry e = {.count = 128};
    struct wrk_step step = {.entries = &e, .entry_count = 1};
    struct msg_speed v;
    for (int i = 0; i < 50; i++)
        wrk_speed_add(&s, &step, 0.128);
    wrk_speed_tell(&s, &v);
    double all = v.prefill_fixed_s + 128 * v.prefill_token_s + 128.0 * 129 / 2 * v.prefill_pair_s;
    assert_true(fabs(all - 0.128) < 0.001);
    assert_true(v.prefill_fixed_s < 0.002);
    assert_true(v.prefill_fixed_s >= 0 && v.prefill_token_s >= 0 && v.prefill_pair_s >= 0);
    assert_int_equal(v.prefill_samples, 50);
    assert_int_equal(v.step_samples, 0);
}

static void test_nonsense_is_left_out(void **state)
{
    (void)state;
    struct wrk_fit f = {0};
    double c[WRK_FIT_TERMS];
    const double good[] = {1, 2, 3}, bad[] = {1, NAN, 0}, negative[] = {1, -1, 0};
    assert_false(wrk_fit_solve(&f, c));
    wrk_fit_add(&f, good, 0);
    wrk_fit_add(&f, good, -1);
    wrk_fit_add(&f, good, NAN);
    wrk_fit_add(&f, bad, 1);
    wrk_fit_add(&f, negative, 1);
    assert_int_equal(f.samples, 0);
    wrk_fit_add(&f, (const double[]){1, 0, 0}, 0.25);
    assert_true(wrk_fit_solve(&f, c));
    assert_true(fabs(c[0] - 0.25) < 0.001 && c[1] == 0 && c[2] == 0);
}

static void test_a_link(void **state)
{
    (void)state;
    struct wrk_fit f = {0};
    struct msg_peer_link l = {.samples = 0};
    wrk_link_add(&f, 40960, 0.010); /* one size: it is latency */
    wrk_link_tell(&f, &l);
    assert_true(fabs(l.latency_s - 0.010) < 0.0002 && l.byte_s * 40960 < 0.0002);
    f = (struct wrk_fit){0};
    for (uint64_t i = 1; i <= 40; i++)
        wrk_link_add(&f, i * 3000000, 0.004 + (double)(i * 3000000) * 0.4e-9);
    wrk_link_tell(&f, &l);
    assert_true(fabs(l.latency_s - 0.004) < 0.0002);
    assert_true(fabs(l.byte_s - 0.4e-9) < 0.01e-9);
    assert_int_equal(l.samples, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_learns_the_machine),
        cmocka_unit_test(test_it_follows_a_machine_that_changes),
        cmocka_unit_test(test_a_stall_hardly_counts),
        cmocka_unit_test(test_what_cannot_be_told_apart_goes_to_each_token),
        cmocka_unit_test(test_nonsense_is_left_out),
        cmocka_unit_test(test_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
