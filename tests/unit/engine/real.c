/* real.c - perplexity by the method that ../shared/models/README.md fixes, of our logits in double.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/files.h"
#include "tests/unit/engine/real.h"
#include "tests/unit/engine/rig.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Sum of negative log likelihoods of ids 1 .. n-1 given those before. */
static double nll(struct rig *r, const int32_t *ids, uint32_t n)
{
    double sum = 0;
    float *logits = calloc((size_t)n * r->card.vocab, sizeof *logits);
    rig_feed(r, 0, ids, n, 0, 128, true, logits);
    for (uint32_t i = 0; i + 1 < n; i++) {
        const float *row = logits + (size_t)i * r->card.vocab;
        double max = -INFINITY, z = 0;
        for (uint32_t v = 0; v < r->card.vocab; v++) {
            max = fmax(max, (double)row[v]);
        }
        for (uint32_t v = 0; v < r->card.vocab; v++) {
            z += exp((double)row[v] - max);
        }
        sum -= (double)row[ids[i + 1]] - max - log(z);
    }
    free(logits);
    return sum;
}

void real_perplexity(const char *model, const char *ppl_path)
{
    json_t *ppl = json_load_file(ppl_path, 0, NULL);
    assert_non_null(ppl);
    json_t *contexts = json_object_get(ppl, "contexts");
    size_t size;
    uint8_t *file = tst_file_read(model, 0, &size);
    struct rig r;
    double total = 0, want = 0;
    rig_open(&r, file, size, &(struct rig_options){.kv = KVC_F16, .context = 512, .threads = 2, .batch_tokens = 128});
    for (size_t c = 0; c < json_array_size(contexts); c++) {
        int32_t ids[512];
        json_t *list = json_array_get(contexts, c);
        assert_int_equal(json_array_size(list), 512);
        for (size_t i = 0; i < 512; i++) {
            ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        }
        total += nll(&r, ids, 512);
        want += json_number_value(json_array_get(json_object_get(ppl, "nll_sums_exact"), c));
    }
    print_message("mean negative log likelihood %.6f, exact %.6f\n", total / 2044, want / 2044);
    assert_true(fabs(total - want) <= want * 0.0005);
    rig_close(&r);
    free(file);
    json_decref(ppl);
}
