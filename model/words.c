/* words.c - the caches of words of one tokenizer, and who has which.
 * All are one block, which the system gives zeroed and page by page as it is touched: a cache that no call needed costs address space only.
 * The first free one is taken, so calls that do not overlap share what they have learnt.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/words.h"

#include <stdatomic.h>
#include <stdlib.h>

#define LINE 64u

struct mdl_word_caches {
    atomic_bool busy[MDL_WORD_CACHES];
    struct mdl_words cache[MDL_WORD_CACHES];
};

struct mdl_word_caches *mdl_word_caches_create(void)
{
    size_t words = (size_t)MDL_WORD_CACHES * MDL_WORD_SETS * 2;
    uint8_t *block = calloc(1, sizeof(struct mdl_word_caches) + LINE + words * sizeof(struct mdl_word));
    if (block == NULL)
        return NULL;
    struct mdl_word_caches *c = (struct mdl_word_caches *)(void *)block;
    size_t skip = sizeof *c + (LINE - (uintptr_t)(block + sizeof *c) % LINE) % LINE;
    for (size_t i = 0; i < MDL_WORD_CACHES; i++) {
        c->cache[i].sets = (struct mdl_word *)(void *)(block + skip) + i * MDL_WORD_SETS * 2;
        atomic_init(&c->busy[i], false);
    }
    return c;
}

void mdl_word_caches_destroy(struct mdl_word_caches *c)
{
    free(c);
}

struct mdl_words *mdl_words_acquire(struct mdl_word_caches *c)
{
    for (size_t i = 0; c != NULL && i < MDL_WORD_CACHES; i++) {
        if (!atomic_exchange_explicit(&c->busy[i], true, memory_order_acquire))
            return &c->cache[i];
    }
    return NULL;
}

void mdl_words_release(struct mdl_word_caches *c, struct mdl_words *w)
{
    if (w != NULL)
        atomic_store_explicit(&c->busy[w - c->cache], false, memory_order_release);
}

void mdl_words_counts(const struct mdl_word_caches *c, uint64_t *hits, uint64_t *misses)
{
    *hits = *misses = 0;
    for (size_t i = 0; i < MDL_WORD_CACHES; i++) {
        *hits += c->cache[i].hits;
        *misses += c->cache[i].misses;
    }
}
