/* cuts.c - where text that is not ASCII can be cut without changing what merging makes of it.
 *
 * Chinese or Japanese has no spaces: a pre-tokenizer's piece is a sentence, seen once and never again, so its ids cannot be remembered. But
 * what merging makes is always a text of the vocabulary (merge results that are no tokens included). Where no such text spans a place, no merge ever crosses it; either side is merged as if it stood
 * alone, and short parts come again and again.
 *
 * Whether a text spans a place is asked of a table made from all of them: for each place within a text, in front of a character of which either
 * neighbour is no ASCII, up to three bytes on either side ("three" says: three or more). A place in the text to encode is spanned only if one of its nine
 * windows (1 to 3 bytes before, 1 to 3 behind) is in the table. `kinds` tells by the two bytes at the place which of the nine can be; they are then looked up in a field of bits by hash. A bit
 * that is set by another window only means a cut less: nothing that is kept here can make a wrong one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_int.h"
#include "base/checked.h"

#include <stdlib.h>

#define BITS_MIN_LOG 12u
#define BITS_MAX_LOG 23u /* a megabyte */

struct mdl_cuts {
    uint16_t kinds[256][256]; /* bit 3 * (before - 1) + behind - 1 */
    uint32_t log;             /* of the number of bits */
    uint64_t bits[];
};

/* Bytes 0 to 2 of a window stand before the place, 3 to 5 behind it. */
static const uint64_t window_mask[9] = {
    0x00ff0000u | 0xff000000u, 0x00ff0000u | 0xffff000000u, 0x00ff0000u | 0xffffff000000u,
    0x00ffff00u | 0xff000000u, 0x00ffff00u | 0xffff000000u, 0x00ffff00u | 0xffffff000000u,
    0x00ffffffu | 0xff000000u, 0x00ffffffu | 0xffff000000u, 0x00ffffffu | 0xffffff000000u};
/* Kinds that fit where so many bytes are there before and behind. */
static const uint16_t kinds_fit[4][4] = {{0}, {0, 1, 1 | 2, 1 | 2 | 4}, {0, 1 | 8, 033, 077}, {0, 0111, 0333, 0777}};

static uint64_t window_at(const uint8_t *text, size_t before, size_t behind)
{
    if (before >= 3 && behind >= 3)
        return (kvs_load_u32(text - 3) & 0xffffffu) | (uint64_t)(kvs_load_u32(text - 1) >> 8) << 24;
    uint64_t w = 0;
    for (size_t i = 0; i < 3; i++) {
        w |= i < before ? (uint64_t)text[-1 - (ptrdiff_t)i] << (16 - 8 * i) : 0;
        w |= i < behind ? (uint64_t)text[i] << (24 + 8 * i) : 0;
    }
    return w;
}

static uint64_t bit_of(const struct mdl_cuts *c, uint64_t window, unsigned kind)
{
    uint64_t h = ((window & window_mask[kind]) << 4 | kind) * 0x9e3779b97f4a7c15u;
    return (h ^ h >> 29) * 0xff51afd7ed558ccdu >> (64 - c->log);
}

static bool is_place(const uint8_t *text)
{
    return (text[0] & 0xc0) != 0x80 && ((text[0] | text[-1]) & 0x80) != 0;
}

/* All windows of the vocabulary's texts: counted, or entered when c is there. */
static uint64_t each_window(const struct mdl_tokenizer *t, struct mdl_cuts *c)
{
    uint64_t count = 0;
    for (uint32_t id = 0; id < t->text_count; id++) {
        struct mdl_str s = mdl_text(t, (int32_t)id);
        const uint8_t *bytes = (const uint8_t *)s.data;
        if (s.len < 2 || mdl_text_find(t, bytes, s.len) == MDL_NO_ID)
            continue;
        for (size_t k = 1; k < s.len; k++) {
            if (!is_place(bytes + k))
                continue;
            count++;
            if (c == NULL)
                continue;
            size_t before = k < 3 ? k : 3, behind = s.len - k < 3 ? s.len - k : 3;
            unsigned kind = (unsigned)(3 * (before - 1) + behind - 1);
            uint64_t bit = bit_of(c, window_at(bytes + k, before, behind), kind);
            c->kinds[bytes[k - 1]][bytes[k]] |= (uint16_t)(1u << kind);
            c->bits[bit / 64] |= UINT64_C(1) << bit % 64;
        }
    }
    return count;
}

struct mdl_cuts *mdl_cuts_create(const struct mdl_tokenizer *t)
{
    uint64_t count = each_window(t, NULL);
    uint32_t log = BITS_MIN_LOG;
    while (log < BITS_MAX_LOG && UINT64_C(1) << log < 16 * count)
        log++;
    struct mdl_cuts *c = calloc(1, sizeof *c + ((size_t)1 << log) / 8);
    if (c == NULL)
        return NULL;
    c->log = log;
    (void)each_window(t, c);
    return c;
}

void mdl_cuts_destroy(struct mdl_cuts *c)
{
    free(c);
}

static bool spanned(const struct mdl_cuts *c, const uint8_t *text, size_t before, size_t behind)
{
    unsigned kinds = c->kinds[text[-1]][text[0]] & kinds_fit[before < 3 ? before : 3][behind < 3 ? behind : 3];
    if (kinds == 0)
        return false;
    uint64_t window = window_at(text, before, behind);
    for (unsigned kind = 0; kind < 9; kind++) {
        if ((kinds >> kind & 1) == 0)
            continue;
        uint64_t bit = bit_of(c, window, kind);
        if ((c->bits[bit / 64] >> bit % 64 & 1) != 0)
            return true;
    }
    return false;
}

size_t mdl_cut_end(const struct mdl_cuts *c, const uint8_t *text, size_t n)
{
    KVS_ASSERT(n > 0);
    for (size_t at = 1; at < n; at++) {
        if (is_place(text + at) && !spanned(c, text + at, at, n - at))
            return at;
    }
    return n;
}
