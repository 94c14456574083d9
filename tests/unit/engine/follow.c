/* follow.c - see follow.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/files.h"
#include "tests/unit/engine/follow.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t best(const float *logits, uint32_t n)
{
    uint32_t b = 0;
    for (uint32_t i = 1; i < n; i++) {
        b = logits[i] > logits[b] ? i : b;
    }
    return (int32_t)b;
}

struct tally {
    double worst, squares; /* of the steps that are not far off */
    double *all;           /* [steps] */
    uint32_t steps, flips, outliers, prompts_far;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void check_row(const float *row, uint32_t vocab, const struct golden *g, uint32_t step, const struct bounds *b,
                      struct tally *t)
{
    int32_t want = g->ids[g->prompt + step], got = best(row, vocab);
    double d = fabs((double)row[want] - g->logit[step]);
    bool far = d > b->logit || (got != want && !(g->margin[step] < b->margin));
    bool outlier = far && b->outliers > 0;
    double *all = realloc(t->all, (t->steps + 1) * sizeof *all);
    assert_non_null(all);
    t->all = all;
    t->all[t->steps++] = d;
    t->flips += got != want;
    t->outliers += outlier;
    t->squares += outlier ? 0 : d * d;
    t->worst = d > t->worst ? d : t->worst;
    if (far && !outlier) {
        fail_msg("step %u: logit of %d is off by %g; best is %d, the golden's margin %g", step, (int)want, d, (int)got,
                 g->margin[step]);
    }
}

/* Prompt in chunks, then the golden's own tokens one by one (forced: a near tie must not derail the rest). */
static void follow(struct rig *r, const struct golden *g, uint32_t chunk, const struct bounds *b, struct tally *t)
{
    float *row = malloc(r->card.vocab * sizeof *row);
    rig_feed(r, 0, g->ids, g->prompt, 0, chunk, false, row);
    bool outlier = false; /* counted once for a prompt */
    for (uint32_t i = 0; i < g->top_count; i++) {
        double d = fabs((double)row[g->top_id[i]] - g->top_logit[i]);
        bool far = d > b->logit;
        outlier = outlier || far;
        t->worst = d > t->worst ? d : t->worst;
        if (far && !(b->outliers > 0)) {
            fail_msg("after the prompt of %u: logit of %d is off by %g", g->prompt, (int)g->top_id[i], d);
        }
    }
    t->prompts_far += outlier;
    for (uint32_t step = 0; step < g->out; step++) {
        check_row(row, r->card.vocab, g, step, b, t);
        if (step + 1 < g->out) {
            rig_feed(r, 0, g->ids + g->prompt + step, 1, g->prompt + step, 0, false, row);
        }
    }
    free(row);
}

uint32_t follow_file(const char *model, const char *golden, bool exact, const struct rig_options *o, uint32_t chunk,
                     struct bounds b)
{
    size_t size;
    uint32_t count;
    uint8_t *file = tst_file_read(model, 0, &size);
    struct golden *g = golden_read(golden, exact, &count);
    assert_non_null(file);
    assert_non_null(g);
    assert_true(count > 0);
    struct rig r;
    struct tally t = {0};
    rig_open(&r, file, size, o);
    for (uint32_t i = 0; i < count; i++) {
        follow(&r, &g[i], chunk, &b, &t);
    }
    assert_true(t.steps > 0);
    qsort(t.all, t.steps, sizeof *t.all, by_size);
    double median = t.all[t.steps / 2], rms = sqrt(t.squares / (t.steps - t.outliers + 1e-9));
    print_message(
        "%s %s kv %s: %u steps, largest difference %.6f, median %.6f, rms %.6f, other best tokens %u, far off %u "
        "and after %u prompts\n",
        strrchr(golden, '/') + 1, eng_model_isa(r.model), kvc_type_name(o->kv), t.steps, t.worst, median, rms, t.flips,
        t.outliers, t.prompts_far);
    assert_true(t.outliers + t.prompts_far <= b.outliers * t.steps);
    assert_true(b.outliers == 0 || (b.rms > 0 && b.median > 0)); /* who allows outliers says what the others are */
    assert_true((b.rms == 0 || rms <= b.rms) && (b.median == 0 || median <= b.median));
    free(t.all);
    rig_close(&r);
    golden_free(g, count);
    free(file);
    return t.steps;
}
