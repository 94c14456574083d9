/* rng.h - random numbers as functions of a key and a counter; nothing hidden, nothing shared.
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 * Sampling uses kvs_rng_unit(seed, choice, position, draw) so that a retry draws the same numbers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_RNG_H
#define KVS_BASE_RNG_H

#include <stdint.h>

void kvs_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1) with 24 bits, exact in f32: key = seed, counter = (choice, position, draw, 0). */
float kvs_rng_unit(uint64_t seed, uint32_t choice, uint32_t position, uint32_t draw);

/* A plain stream for the simulator and tests: splitmix64, state in the caller's hands. */
struct kvs_rng {
    uint64_t state;
};
uint64_t kvs_rng_next(struct kvs_rng *r);
uint64_t kvs_rng_below(struct kvs_rng *r, uint64_t n); /* 0 <= result < n, n > 0 */

#endif
