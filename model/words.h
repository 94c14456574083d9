/* words.h - ids of words seen lately: private to the tokenizer.
 *
 * What a piece of text becomes depends on its bytes alone, so it can be remembered. Two tables, since most words are short:
 * a short word (up to 15 bytes and three ids) fills half a cache line, a long one (48 bytes, 19 ids) two lines. The key is the
 * bytes themselves, padded with zeros, and their number with a mark: a hit is exact, not a matter of hashes. Two words may lie at a place; one that was not
 * asked for lately is overwritten first. A tokenizer has a few such caches of fixed size, made with it; a call of mdl_encode has one
 * for itself while it runs, or none when as many calls run at once already. So memory has a bound and nothing is locked.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_WORDS_H
#define KVS_MODEL_WORDS_H

#include "base/checked.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MDL_SHORT_BYTES 15u
#define MDL_SHORT_IDS 3u
#define MDL_SHORT_SETS 32768u /* of two words */
#define MDL_LONG_BYTES 48u
#define MDL_LONG_IDS 19u
#define MDL_LONG_SETS 8192u
#define MDL_WORD_CACHES 4u
#define MDL_WORD_PART 0x80u /* the mark of what was cut out of a piece, where that matters */

struct mdl_short_word {
    uint64_t key[2]; /* 15 bytes, then their number and the mark; 0: free */
    int32_t ids[MDL_SHORT_IDS];
    uint8_t count;
    uint8_t used; /* since it was last passed over */
    uint8_t pad[2];
};
_Static_assert(sizeof(struct mdl_short_word) == 32, "two short words fill a cache line");

struct mdl_long_word {
    uint64_t key[6];
    int32_t ids[MDL_LONG_IDS];
    uint8_t len; /* and the mark; 0: free */
    uint8_t count;
    uint8_t used;
    uint8_t pad;
};
_Static_assert(sizeof(struct mdl_long_word) == 128, "a long word fills two cache lines");

/* Of the call that has acquired it. */
struct mdl_words {
    struct mdl_short_word *shorts; /* [MDL_SHORT_SETS][2] */
    struct mdl_long_word *longs;   /* [MDL_LONG_SETS][2] */
    uint64_t hits, misses;
};

#define MDL_PREFETCH(p) __builtin_prefetch(p, 1)

struct mdl_word_caches;
struct mdl_word_caches *mdl_word_caches_create(void); /* NULL: no memory */
void mdl_word_caches_destroy(struct mdl_word_caches *c);
struct mdl_words *mdl_words_acquire(struct mdl_word_caches *c); /* NULL: all are in use */
void mdl_words_release(struct mdl_word_caches *c, struct mdl_words *w);
void mdl_words_counts(const struct mdl_word_caches *c, uint64_t *hits, uint64_t *misses); /* while no call runs */

/* The word's bytes as `count` numbers, zeros behind them. Bytes before `limit` may be read, past the word too. */
static inline void mdl_word_load(const uint8_t *word, size_t n, const uint8_t *limit, uint64_t *key, size_t count)
{
    static const uint64_t ones[2 * MDL_LONG_BYTES / 8] = {UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                                          UINT64_MAX, UINT64_MAX, UINT64_MAX};
    const uint8_t *mask = (const uint8_t *)ones + MDL_LONG_BYTES - n;
    KVS_ASSERT(n - 1 < 8 * count && 8 * count <= MDL_LONG_BYTES);
    if ((size_t)(limit - word) < 8 * count) {
        memset(key, 0, count * sizeof *key);
        memcpy(key, word, n);
        return;
    }
    for (size_t i = 0; i < count; i++)
        key[i] = kvs_load_u64(word + 8 * i) & kvs_load_u64(mask + 8 * i);
}

/* 1 <= n <= MDL_SHORT_BYTES; mark: 0 or MDL_WORD_PART. */
static inline void mdl_short_key(const uint8_t *word, size_t n, unsigned mark, const uint8_t *limit, uint64_t key[2])
{
    mdl_word_load(word, n, limit, key, 2);
    key[1] |= (uint64_t)(n | mark) << 56;
}

static inline struct mdl_short_word *mdl_short_set(const struct mdl_words *w, const uint64_t key[2])
{
    uint64_t h = key[0] * 0x9e3779b97f4a7c15u + key[1] * 0xc2b2ae3d27d4eb4fu;
    h = (h ^ h >> 32) * 0xff51afd7ed558ccdu;
    return w->shorts + 2 * (h >> 40 & (MDL_SHORT_SETS - 1));
}

static inline bool mdl_short_is(const struct mdl_short_word *word, const uint64_t key[2])
{
    return ((word->key[0] ^ key[0]) | (word->key[1] ^ key[1])) == 0;
}

static inline struct mdl_long_word *mdl_long_set(const struct mdl_words *w, const uint64_t key[6], size_t n)
{
    uint64_t h = n;
    for (int i = 0; i < 6; i++) {
        h = (h ^ key[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return w->longs + 2 * (h * 0xff51afd7ed558ccdu >> 40 & (MDL_LONG_SETS - 1));
}

static inline bool mdl_long_is(const struct mdl_long_word *word, const uint64_t key[6], size_t n, unsigned mark)
{
    uint64_t d = word->len ^ (n | mark);
    for (int i = 0; i < 6; i++)
        d |= word->key[i] ^ key[i];
    return d == 0;
}

/* The one of two words that a new one takes the place of: one that was not used since it was last spared. */
static inline unsigned mdl_words_victim(uint8_t *used0, uint8_t *used1)
{
    if (*used0 == 0)
        return 0;
    *used0 = 0;
    if (*used1 == 0)
        return 1;
    *used1 = 0;
    return 0;
}

#endif
