/* split.c - where a piece of text ends: the matchers of pre-tokenizers, one character class table and no backtracking.
 *
 * The regular expressions that byte-level BPE vocabularies were made with are alternatives, tried in order. Each function here walks through
 * one family's alternatives in the same order and decides by looking one or two characters ahead; comments name the alternative that a line
 * stands for. Where an expression would back up (optional characters in front, runs of white space that leave one character to the next
 * word), the place to which it backs up is worked out directly. Time is linear in what is matched.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/split.h"
#include "model/unicode.h"

#define BREAKS_WORD (MDL_SPACE | MDL_LETTER | MDL_NUMBER)

/* End of the run of characters that have one of the classes. */
static inline size_t run_of(const struct mdl_subject *x, size_t at, unsigned mask)
{
    for (;;) {
        while (at < x->n && x->s[at] < 0x80 && (x->classes[x->s[at]] & mask) != 0)
            at++;
        if (at >= x->n || x->s[at] < 0x80)
            return at;
        struct mdl_look l = mdl_look_at(x, at);
        if ((l.classes & mask) == 0)
            return at;
        at += l.len;
    }
}

/* End of the run of characters that have none of them. */
static inline size_t run_without(const struct mdl_subject *x, size_t at, unsigned mask)
{
    for (struct mdl_look l = mdl_look_at(x, at); l.len != 0 && (l.classes & mask) == 0; l = mdl_look_at(x, at))
        at += l.len;
    return at;
}

static inline bool is_line_end(uint32_t c)
{
    return c == '\r' || c == '\n';
}

static size_t line_ends(const struct mdl_subject *x, size_t at, bool slash)
{
    while (at < x->n && (is_line_end(x->s[at]) || (slash && x->s[at] == '/')))
        at++;
    return at;
}

/* 's 't 'm 'd 'll 've 're: bytes of it, 0 for none. */
static size_t contraction(const struct mdl_subject *x, size_t at, bool any_case)
{
    if (x->n - at < 2 || x->s[at] != '\'')
        return 0;
    uint8_t fold = any_case ? 0x20 : 0, a = x->s[at + 1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (x->n - at < 3)
        return 0;
    uint8_t b = x->s[at + 2] | fold;
    return (a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e') ? 3 : 0;
}

/* \s+(?!\S)|\s+ at a white space: all of them at the end of the text, else all but the last, but at least one. */
static size_t spaces(const struct mdl_subject *x, size_t at)
{
    size_t last = at, end = at;
    for (struct mdl_look l = mdl_look_at(x, at); l.len != 0 && (l.classes & MDL_SPACE) != 0; l = mdl_look_at(x, end)) {
        last = end;
        end += l.len;
    }
    return end == x->n || last == at ? end : last;
}

/* \s*[\r\n]+: up to the last line end of the run of white space; 0 when there is none in it. */
static size_t lines(const struct mdl_subject *x, size_t at)
{
    size_t end = 0;
    for (struct mdl_look l = mdl_look_at(x, at); l.len != 0 && (l.classes & MDL_SPACE) != 0; l = mdl_look_at(x, at)) {
        at += l.len;
        if (is_line_end(l.c))
            end = at;
    }
    return end;
}

static size_t lines_or_spaces(const struct mdl_subject *x, size_t at)
{
    size_t end = lines(x, at);
    return end != 0 ? end : spaces(x, at);
}

size_t mdl_match_gpt2(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how)
{
    (void)how;
    size_t k = contraction(x, at, false);
    if (k != 0)
        return at + k;
    size_t start = at + (x->s[at] == ' ');
    struct mdl_look l = mdl_look_at(x, start);
    if (l.len == 0 || (l.classes & MDL_SPACE) != 0)
        return spaces(x, at);
    if ((l.classes & MDL_LETTER) != 0)
        return run_of(x, start, MDL_LETTER);
    if ((l.classes & MDL_NUMBER) != 0)
        return run_of(x, start, MDL_NUMBER);
    return run_without(x, start, BREAKS_WORD);
}

static size_t numbers(const struct mdl_subject *x, size_t at, unsigned longest)
{
    struct mdl_look l = mdl_look_at(x, at);
    for (unsigned i = 0; (l.classes & MDL_NUMBER) != 0 && (longest == 0 || i < longest); i++) {
        at += l.len;
        l = mdl_look_at(x, at);
    }
    return at;
}

/* upper* lower+. Marks and caseless letters count as both: where no lower-case letter follows the run of upper case, `lower+` is what
 * the run's last such character gives back. 0: nothing there. */
static size_t lower_word(const struct mdl_subject *x, size_t at)
{
    size_t back = 0;
    struct mdl_look l = mdl_look_at(x, at);
    while ((l.classes & MDL_UPPER) != 0) {
        at += l.len;
        if ((l.classes & MDL_LOWER) != 0)
            back = at;
        l = mdl_look_at(x, at);
    }
    return (l.classes & MDL_LOWER) != 0 ? run_of(x, at, MDL_LOWER) : back;
}

/* [^\r\n\p{L}\p{N}]?upper*lower+|[^\r\n\p{L}\p{N}]?upper+lower*, each first with the character in front, then without. */
static size_t cased_word(const struct mdl_subject *x, size_t at, struct mdl_look l)
{
    bool front = (l.classes & (MDL_LETTER | MDL_NUMBER)) == 0 && !is_line_end(l.c);
    size_t end = front ? lower_word(x, at + l.len) : 0;
    if (end == 0)
        end = lower_word(x, at);
    if (end != 0)
        return end;
    /* Nothing of lower case follows these runs, or the first form would have matched. */
    size_t start = front ? at + l.len : at;
    end = run_of(x, start, MDL_UPPER);
    return end > start ? end : 0;
}

/* [^\r\n\p{L}\p{N}]?letters+ */
static size_t plain_word(const struct mdl_subject *x, size_t at, struct mdl_look l, unsigned letters)
{
    if ((l.classes & letters) != 0)
        return run_of(x, at, letters);
    if ((l.classes & (MDL_LETTER | MDL_NUMBER)) != 0 || is_line_end(l.c))
        return 0;
    size_t start = at + l.len, end = run_of(x, start, letters);
    return end > start ? end : 0;
}

size_t mdl_match_words(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how)
{
    size_t k = how->cased ? 0 : contraction(x, at, true);
    if (k != 0)
        return at + k;
    struct mdl_look l = mdl_look_at(x, at);
    size_t end = how->cased ? cased_word(x, at, l) : plain_word(x, at, l, how->mask);
    if (end != 0)
        return how->suffix ? end + contraction(x, end, true) : end;
    if ((l.classes & MDL_NUMBER) != 0)
        return numbers(x, at, how->longest);
    size_t start = at + (l.c == ' ');
    end = run_without(x, start, BREAKS_WORD | (how->cased ? 0 : how->mask));
    return end > start ? line_ends(x, end, how->slash) : lines_or_spaces(x, at);
}

static bool ascii_letter(uint8_t c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

size_t mdl_match_deepseek3(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how)
{
    (void)how;
    struct mdl_look l = mdl_look_at(x, at);
    unsigned signs = MDL_PUNCTUATION | MDL_SYMBOL, letters = MDL_LETTER | MDL_MARK;
    if (l.c < 0x80 && (l.classes & signs) != 0 && at + 1 < x->n &&
        ascii_letter(x->s[at + 1])) { /* [ASCII sign][A-Za-z]+ */
        for (at++; at < x->n && ascii_letter(x->s[at]);)
            at++;
        return at;
    }
    if ((l.classes & letters) != 0) /* [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ */
        return run_of(x, at, letters);
    if ((l.classes & signs) == 0 && !is_line_end(l.c)) {
        size_t start = at + l.len, end = run_of(x, start, letters);
        if (end > start)
            return end;
    }
    size_t start = at + (l.c == ' '), end = run_of(x, start, signs); /* " ?[\p{P}\p{S}]+[\r\n]*" */
    if (end > start)
        return line_ends(x, end, false);
    return (l.classes & MDL_SPACE) != 0 ? lines_or_spaces(x, at) : 0;
}

static inline bool belongs(const struct mdl_match_how *how, struct mdl_look l)
{
    return l.len != 0 && (l.classes & how->mask) != 0;
}

size_t mdl_match_run(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how)
{
    struct mdl_look l = mdl_look_at(x, at);
    if (how->space && !belongs(how, l) && (l.classes & MDL_SPACE) != 0) {
        at += l.len;
        l = mdl_look_at(x, at);
    }
    size_t end = 0;
    for (unsigned i = 0; belongs(how, l) && (how->longest == 0 || i < how->longest); i++) {
        end = at = how->longest == 0 ? run_of(x, at + l.len, how->mask) : at + l.len;
        l = mdl_look_at(x, at);
    }
    return end;
}

size_t mdl_match_line_end(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how)
{
    (void)how;
    return is_line_end(x->s[at]) ? at + 1 : 0;
}

size_t mdl_match_last_spaces(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how)
{
    (void)how;
    return at >= x->tail ? x->n : 0;
}

static bool digit(const struct mdl_subject *x, size_t at)
{
    return at < x->n && x->s[at] >= '0' && x->s[at] <= '9';
}

size_t mdl_match_three_digits(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how)
{
    (void)how;
    return digit(x, at) && digit(x, at + 1) && digit(x, at + 2) ? at + 3 : 0;
}

static bool is_sign(struct mdl_look l, bool backtick)
{
    switch (l.c) {
    case '$':
    case '+':
    case '<':
    case '=':
    case '>':
    case '^':
    case '~':
    case '|': return true;
    case '`': return backtick;
    default: return (l.classes & MDL_PUNCTUATION) != 0;
    }
}

size_t mdl_match_signs(const struct mdl_subject *x, size_t at, const struct mdl_match_how *how)
{
    size_t start = at;
    for (struct mdl_look l = mdl_look_at(x, at); l.len != 0 && is_sign(l, how->slash); l = mdl_look_at(x, at))
        at += l.len;
    return at > start ? at : 0;
}
