/* rng.c - Philox4x32-10 and splitmix64.
 * Philox is a keyed bijection of a 128-bit counter: ten rounds of two 32 x 32 -> 64 multiplications whose high halves are
 * mixed with the key. It has no state, so the random number of (seed, choice, position, draw) is the same whichever worker
 * draws it and however often: what makes retry, preemption and migration give the same tokens.
 * splitmix64 is a stream for simulator and tests, where the order of draws is the run itself.
 * Both are checked against published vectors.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"

#include "base/error.h"

void kvs_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

float kvs_rng_unit(uint64_t seed, uint32_t choice, uint32_t position, uint32_t draw)
{
    const uint32_t counter[4] = {choice, position, draw, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    kvs_philox4x32(counter, key, out);
    return (float)(out[0] >> 8) * 0x1p-24f;
}

uint64_t kvs_rng_next(struct kvs_rng *r)
{
    uint64_t z = (r->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t kvs_rng_below(struct kvs_rng *r, uint64_t n)
{
    KVS_ASSERT(n > 0);
    /* 2^64 mod n values at the bottom would make small results likelier: draw again there. */
    uint64_t reject_below = (0 - n) % n;
    uint64_t v;
    do {
        v = kvs_rng_next(r);
    } while (v < reject_below);
    return v % n;
}
