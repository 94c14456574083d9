/* replay.h - what runs a fuzz target without libFuzzer: files given by name (a corpus, a crash), or damaged inputs, a number of times or for a
 * number of seconds.
 *     fuzz_X FILE...        fuzz_X -n COUNT [SEED]        fuzz_X -t SECONDS [SEED]
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_FUZZ_REPLAY_H
#define KVS_TESTS_FUZZ_REPLAY_H

#include "base/rng.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Makes one damaged input and hands it to the target in memory of exactly its size. */
typedef void (*tst_damage_fn)(struct kvs_rng *rng);
int tst_fuzz_main(int argc, char **argv, tst_damage_fn damage);
/* Hands over a copy of exactly n bytes, so that reading past the end is seen. */
void tst_fuzz_exact(const void *bytes, size_t n);

#endif
