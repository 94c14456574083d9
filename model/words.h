/* words.h - ids of words seen lately: private to the tokenizer.
 *
 * What a piece of text becomes depends on its bytes alone, so it can be remembered. A word of up to 32 bytes and its ids (up to seven) fill one
 * cache line; two lines may hold the same word, and one that was not asked for lately is overwritten first. The key is the
 * bytes themselves, padded with zeros, and their number: a hit is exact, not a matter of hashes. A tokenizer has a few such caches of fixed size, made with it; a call of mdl_encode has one
 * for itself while it runs, or none when as many calls run at once already. So memory has a bound and nothing is locked.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_WORDS_H
#define KVS_MODEL_WORDS_H

#include "base/checked.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MDL_WORD_BYTES 32u
#define MDL_WORD_IDS 7u
#define MDL_WORD_SETS 8192u /* of two words */
#define MDL_WORD_CACHES 4u

struct mdl_word {
    uint64_t key[4];
    int32_t ids[MDL_WORD_IDS];
    uint8_t len; /* 0: free */
    uint8_t count;
    uint8_t used; /* since it was last passed over */
    uint8_t pad;
};
_Static_assert(sizeof(struct mdl_word) == 64, "a word fills a cache line");

/* Of the call that has acquired it. */
struct mdl_words {
    struct mdl_word *sets; /* [MDL_WORD_SETS][2] */
    uint64_t hits, misses;
};

struct mdl_word_caches;
struct mdl_word_caches *mdl_word_caches_create(void); /* NULL: no memory */
void mdl_word_caches_destroy(struct mdl_word_caches *c);
struct mdl_words *mdl_words_acquire(struct mdl_word_caches *c); /* NULL: all are in use */
void mdl_words_release(struct mdl_word_caches *c, struct mdl_words *w);
void mdl_words_counts(const struct mdl_word_caches *c, uint64_t *hits, uint64_t *misses); /* while no call runs */

/* Bytes before `limit` may be read, past the word too. 1 <= n <= MDL_WORD_BYTES. */
static inline void mdl_word_key(const uint8_t *word, size_t n, const uint8_t *limit, uint64_t key[4])
{
    KVS_ASSERT(n - 1 < MDL_WORD_BYTES);
    static const uint64_t ones[8] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    uint8_t copy[MDL_WORD_BYTES] = {0};
    const uint8_t *mask = (const uint8_t *)ones + MDL_WORD_BYTES - n;
    if ((size_t)(limit - word) < MDL_WORD_BYTES)
        word = memcpy(copy, word, n);
    for (int i = 0; i < 4; i++)
        key[i] = kvs_load_u64(word + 8 * i) & kvs_load_u64(mask + 8 * i);
}

static inline struct mdl_word *mdl_words_set(const struct mdl_words *w, const uint64_t key[4], size_t n)
{
    KVS_ASSERT(n - 1 < MDL_WORD_BYTES);
    uint64_t h = (key[0] ^ n) * 0x9e3779b97f4a7c15u + key[1] * 0xc2b2ae3d27d4eb4fu + key[2] * 0x165667b19e3779f9u +
                 key[3] * 0xd6e8feb86659fd93u;
    h = (h ^ h >> 32) * 0xff51afd7ed558ccdu;
    return w->sets + 2 * (h >> 40 & (MDL_WORD_SETS - 1));
}

static inline bool mdl_word_is(const struct mdl_word *word, const uint64_t key[4], size_t n)
{
    return ((word->key[0] ^ key[0]) | (word->key[1] ^ key[1]) | (word->key[2] ^ key[2]) | (word->key[3] ^ key[3]) |
            (word->len ^ n)) == 0;
}

/* The word of the two that a new one takes the place of: one that was not used since it was last spared. */
static inline struct mdl_word *mdl_words_victim(struct mdl_word *set)
{
    for (int way = 0; way < 2; way++) {
        if (set[way].used == 0)
            return &set[way];
        set[way].used = 0;
    }
    return &set[0];
}

#endif
