/* follow.h - walks a model along a golden file, its tokens forced, and holds logits and choices to bounds.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ENGINE_FOLLOW_H
#define KVS_TESTS_ENGINE_FOLLOW_H

#include "tests/unit/engine/rig.h"

struct bounds {
    double logit;    /* largest difference allowed */
    double margin;   /* another best token is allowed where the golden's margin is below this */
    double outliers; /* share of the steps that may pass both, by whatever another choice of an expert makes of them: */
    double rms;      /* the root mean square of all other differences may not pass this, */
    double median;   /* nor the median of all of them this; 0: not asked for */
};

/* Every line of the golden file; fails the running test where a bound is passed, and prints what was seen. Returns the steps followed: tokens
 * of the golden file, which callers hold against the number they know. */
uint32_t follow_file(const char *model, const char *golden, bool exact, const struct rig_options *o, uint32_t chunk,
                     struct bounds b);

#endif
