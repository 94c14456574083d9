/* follow.h - walks a model along a golden file, its tokens forced, and holds logits and choices to bounds.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ENGINE_FOLLOW_H
#define KVS_TESTS_ENGINE_FOLLOW_H

#include "tests/unit/engine/rig.h"

struct bounds {
    double logit;    /* largest difference allowed */
    double margin;   /* another best token is allowed where the golden's margin is below this */
    double outliers; /* share of the steps that may pass both, */
    double ceiling;  /* but no logit by more than this (with outliers only) */
};

/* Every line of the golden file; fails the running test where a bound is passed, and prints what was seen. Returns the steps followed: tokens
 * of the golden file, which callers hold against the number they know. */
uint32_t follow_file(const char *model, const char *golden, bool exact, const struct rig_options *o, uint32_t chunk,
                     struct bounds b);

#endif
