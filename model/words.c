/* words.c - the caches of words of one tokenizer, and who has which.
 * All are one block, which the system gives zeroed and page by page as it is touched: a cache that no call needed costs address space only.
 * The first free one is taken, so calls that do not overlap share what they have learnt. What one call writes shares no cache line with
 * what another one does.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/words.h"

#include <stdatomic.h>
#include <stdlib.h>

#define LINE 64u

struct mdl_word_caches {
    struct slot {
        struct mdl_words words;
        atomic_bool busy;
        uint8_t pad[LINE - sizeof(struct mdl_words) - sizeof(atomic_bool)];
    } slot[MDL_WORD_CACHES];
    void *block; /* what free() wants: this struct begins at its first whole line */
};
_Static_assert(sizeof(struct slot) == LINE, "a slot fills a cache line");

static size_t line_up(size_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

struct mdl_word_caches *mdl_word_caches_create(void)
{
    size_t shorts = (size_t)MDL_SHORT_SETS * 2, longs = (size_t)MDL_LONG_SETS * 2,
           head = line_up(sizeof(struct mdl_word_caches)),
           each = shorts * sizeof(struct mdl_short_word) + longs * sizeof(struct mdl_long_word);
    uint8_t *block = calloc(1, LINE + head + each * MDL_WORD_CACHES);
    if (block == NULL)
        return NULL;
    uint8_t *at = block + (LINE - (uintptr_t)block % LINE) % LINE;
    struct mdl_word_caches *c = (struct mdl_word_caches *)(void *)at;
    c->block = block;
    at += head;
    for (size_t i = 0; i < MDL_WORD_CACHES; i++, at += each) {
        c->slot[i].words.shorts = (struct mdl_short_word *)(void *)at;
        c->slot[i].words.longs = (struct mdl_long_word *)(void *)(at + shorts * sizeof(struct mdl_short_word));
        atomic_init(&c->slot[i].busy, false);
    }
    return c;
}

void mdl_word_caches_destroy(struct mdl_word_caches *c)
{
    if (c != NULL)
        free(c->block);
}

struct mdl_words *mdl_words_acquire(struct mdl_word_caches *c)
{
    for (size_t i = 0; c != NULL && i < MDL_WORD_CACHES; i++) {
        if (!atomic_exchange_explicit(&c->slot[i].busy, true, memory_order_acquire))
            return &c->slot[i].words;
    }
    return NULL;
}

void mdl_words_release(struct mdl_word_caches *c, struct mdl_words *w)
{
    if (w != NULL) {
        struct slot *s = (struct slot *)(void *)w; /* its first member */
        KVS_ASSERT(s >= c->slot && s < c->slot + MDL_WORD_CACHES);
        atomic_store_explicit(&s->busy, false, memory_order_release);
    }
}

void mdl_words_counts(const struct mdl_word_caches *c, uint64_t *hits, uint64_t *misses)
{
    *hits = *misses = 0;
    for (size_t i = 0; i < MDL_WORD_CACHES; i++) {
        *hits += c->slot[i].words.hits;
        *misses += c->slot[i].words.misses;
    }
}
