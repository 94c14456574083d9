/* split.h - the hand-written matchers that pre-tokenizers are made of: each does what one regular expression does at one place.
 * A matcher looks at whole, valid UTF-8 from `at` on and returns where its match ends, or 0 for no match there (a match is never empty,
 * so 0 is no end). It reads on from `at` only, as the expressions do: none of them looks behind.
 * The expressions stand in tests/support/pcre_split.c, where PCRE2 runs them as the oracle.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_SPLIT_H
#define KVS_MODEL_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mdl_subject {
    const uint8_t *s;
    size_t n;
    const uint16_t *classes; /* mdl_char_classes() */
    size_t tail;            /* where the white space at its end begins; for mdl_match_last_spaces */
};

struct mdl_look {
    uint32_t c;
    uint32_t len; /* 0 at the end of the text */
    unsigned classes;
};

/* The text is valid UTF-8: lengths and continuation bytes need no second check. */
static inline struct mdl_look mdl_look_at(const struct mdl_subject *x, size_t at)
{
    if (at >= x->n)
        return (struct mdl_look){0, 0, 0};
    const uint8_t *p = x->s + at;
    uint32_t c = p[0], len = 1;
    if (c >= 0xf0) {
        c = (c & 7) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
        len = 4;
    } else if (c >= 0xe0) {
        c = (c & 15) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
        len = 3;
    } else if (c >= 0x80) {
        c = (c & 31) << 6 | (p[1] & 63u);
        len = 2;
    }
    return (struct mdl_look){c, len, x->classes[c]};
}

/* What differs between the expressions of one family. */
struct mdl_match_how {
    unsigned mask;    /* classes of which the run consists */
    unsigned longest; /* characters of a run of numbers; 0: any */
    bool space;       /* one white space in front belongs to it */
    bool slash;       /* a run of punctuation takes slashes along behind it, as it takes line ends */
    bool cased;       /* a word is cut where upper case begins anew */
    bool suffix;      /* contractions end a word instead of standing alone */
};
typedef size_t (*mdl_match_fn)(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how);

size_t mdl_match_gpt2(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how);
size_t mdl_match_words(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how);     /* llama-bpe, qwen2, tekken, gpt-4o */
size_t mdl_match_deepseek3(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how); /* its last pass */
size_t mdl_match_run(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how);
size_t mdl_match_line_end(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how);    /* one of \r \n */
size_t mdl_match_last_spaces(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how); /* up to the text's end */
size_t mdl_match_three_digits(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how);
size_t mdl_match_signs(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how); /* punctuation and $+<=>^~| (slash: and `) */

#endif
