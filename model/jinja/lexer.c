/* lexer.c - template text to tokens, as Jinja2 3.1's lexer does with trim_blocks and lstrip_blocks on.
 * Text runs to the next "{{", "{%" or "{#"; the sign after it decides what happens to the spaces before:
 *   "-" takes all of them away; for blocks and comments, no sign takes the spaces between the line's start and the tag away;
 *   "+" leaves them. After a tag, "-" takes all spaces away, and a block or comment without sign takes one line end.
 * Inside tags a closing mark counts only when all brackets are closed; so {{ {'a': {}} }} works.
 * What counts as a space is Python's list, which is longer than C's.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/jinja/jinja.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

bool jin_lex_fail(struct jin_lexer *l, const char *fmt, ...)
{
    char text[200];
    va_list args;
    va_start(args, fmt);
    kvs_vformat(text, sizeof text, fmt, args);
    va_end(args);
    if (l->status == KVS_OK)
        l->status = kvs_fail(l->err, KVS_SELF_MODEL, "line %u: %s", (unsigned int)l->line, text);
    return false;
}

bool jin_lex_memory(struct jin_lexer *l, size_t wanted)
{
    if (wanted > l->arena->max - l->arena->used || wanted + 16 > l->arena->max - l->arena->used)
        return jin_lex_fail(l, "the template is too large");
    if (l->status == KVS_OK)
        l->status = kvs_fail(l->err, KVS_SELF_NOMEM, "no memory for the chat template");
    return false;
}

static bool at(const struct jin_lexer *l, size_t i, const char *s)
{
    size_t n = strlen(s);
    return i <= l->size && n <= l->size - i && memcmp(l->text + i, s, n) == 0;
}

static size_t skip_space(const struct jin_lexer *l, size_t i)
{
    while (i < l->size) {
        uint32_t cp;
        size_t n = jin_char(l->text + i, l->size - i, &cp);
        if (!jin_is_space(cp))
            break;
        i += n;
    }
    return i;
}

/* Moves on to `to`; counts lines and notes whether a line has just ended. */
static void move(struct jin_lexer *l, size_t to)
{
    for (size_t i = l->at; i < to; i++)
        l->line += l->text[i] == '\n';
    if (to > l->at)
        l->line_starting = l->text[to - 1] == '\n';
    l->at = to;
}

/* The end of a block or comment tag whose mark (2 bytes) stands at i, perhaps after a sign: where the rest begins. */
static size_t after_end(const struct jin_lexer *l, size_t i, char sign, bool trim)
{
    i += 2;
    if (sign == '-')
        return skip_space(l, i);
    return trim && sign != '+' && at(l, i, "\n") ? i + 1 : i;
}

/* Text before a tag that has this sign: how much of it stays. */
static size_t kept(const struct jin_lexer *l, size_t from, size_t to, char sign, bool variable)
{
    struct mdl_str s = {l->text + from, to - from};
    if (sign == '-')
        return jin_strip(s, NULL, false, true).len;
    if (sign == '+' || variable)
        return s.len;
    size_t start = s.len;
    while (start > 0 && s.data[start - 1] != '\n')
        start--;
    if (start == 0 && !l->line_starting)
        return s.len;
    struct mdl_str tail = {s.data + start, s.len - start};
    return tail.len > 0 && jin_strip(tail, NULL, true, false).len == 0 ? start : s.len;
}

static char sign_at(const struct jin_lexer *l, size_t i)
{
    return i < l->size && (l->text[i] == '-' || l->text[i] == '+') ? l->text[i] : 0;
}

/* "{%" SIGN? "raw" "-"? "%}" at i: where the raw text begins; 0: none. */
static size_t raw_begin(const struct jin_lexer *l, size_t i)
{
    if (!at(l, i, "{%"))
        return 0;
    i += 2;
    i = skip_space(l, i + (sign_at(l, i) != 0));
    if (!at(l, i, "raw"))
        return 0;
    i = skip_space(l, i + 3);
    if (at(l, i, "-%}"))
        return skip_space(l, i + 3);
    return at(l, i, "%}") ? i + 2 : 0;
}

/* From the start of raw text: the text up to {% endraw %}. */
static bool raw_text(struct jin_lexer *l, struct jin_token *out)
{
    for (size_t i = l->at; i + 1 < l->size; i++) {
        if (!at(l, i, "{%"))
            continue;
        char sign = sign_at(l, i + 2), end = 0;
        size_t k = skip_space(l, i + 2 + (sign != 0));
        if (!at(l, k, "endraw"))
            continue;
        k = skip_space(l, k + 6);
        end = sign_at(l, k);
        if (!at(l, k + (end != 0), "%}"))
            continue;
        *out = (struct jin_token){JIN_T_DATA, l->line, {l->text + l->at, kept(l, l->at, i, sign, false)}, {0}};
        move(l, after_end(l, k + (end != 0), end, true));
        return true;
    }
    return jin_lex_fail(l, "{%% raw %%} has no end");
}

static bool comment(struct jin_lexer *l, size_t body)
{
    for (size_t i = body; i + 1 < l->size; i++) {
        if (l->text[i] == '#' && l->text[i + 1] == '}') {
            char sign = i > body ? sign_at(l, i - 1) : 0;
            move(l, after_end(l, i, sign, true));
            return true;
        }
    }
    return jin_lex_fail(l, "a comment has no end");
}

/* The tag that stands at l->at; a comment gives no token (type DATA, no text). */
static bool open_tag(struct jin_lexer *l, struct jin_token *out)
{
    size_t raw = raw_begin(l, l->at);
    char mark = l->text[l->at + 1];
    size_t body = l->at + 2 + (sign_at(l, l->at + 2) != 0);
    *out = (struct jin_token){.type = JIN_T_DATA, .line = l->line};
    if (raw != 0) {
        move(l, raw);
        return raw_text(l, out);
    }
    if (mark == '#')
        return comment(l, body);
    move(l, body);
    l->where = mark == '{' ? JIN_IN_VAR : JIN_IN_BLOCK;
    out->type = mark == '{' ? JIN_T_VAR_BEGIN : JIN_T_BLOCK_BEGIN;
    return true;
}

static bool text(struct jin_lexer *l, struct jin_token *out)
{
    if (l->tag_due) {
        l->tag_due = false;
        return open_tag(l, out);
    }
    size_t i = l->at;
    while (i + 1 < l->size &&
           !(l->text[i] == '{' && (l->text[i + 1] == '{' || l->text[i + 1] == '%' || l->text[i + 1] == '#')))
        i++;
    bool tag = i + 1 < l->size;
    size_t end = tag ? i : l->size;
    size_t keep = tag ? kept(l, l->at, i, sign_at(l, i + 2), l->text[i + 1] == '{') : end - l->at;
    *out = (struct jin_token){JIN_T_DATA, l->line, {l->text + l->at, keep}, {0}};
    move(l, end);
    l->tag_due = tag;
    return true;
}

/* ---- inside tags ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

/* Digits with single "_" between them. */
static size_t digits(const struct jin_lexer *l, size_t i)
{
    while (i < l->size && (is_digit(l->text[i]) || (l->text[i] == '_' && i + 1 < l->size && is_digit(l->text[i + 1]))))
        i++;
    return i;
}

static size_t exponent(const struct jin_lexer *l, size_t i)
{
    if (i >= l->size || (l->text[i] != 'e' && l->text[i] != 'E'))
        return i;
    size_t k = i + 1 + (sign_at(l, i + 1) != 0);
    return k < l->size && is_digit(l->text[k]) ? digits(l, k) : i;
}

static bool number(struct jin_lexer *l, struct jin_token *out)
{
    size_t whole = digits(l, l->at), end = whole;
    char buf[64];
    size_t n = 0;
    int base = 10;
    if (l->text[l->at] == '0' && l->at + 2 < l->size && (l->text[l->at + 1] | 32) != 'e') {
        char kind = (char)(l->text[l->at + 1] | 32);
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        for (end = base == 10 ? end : l->at + 2; base != 10 && end < l->size && is_word(l->text[end]);)
            end++;
    }
    if (base == 10) {
        bool after_dot = l->at > 0 && l->text[l->at - 1] == '.'; /* a.0.1 */
        if (!after_dot && whole + 1 < l->size && l->text[whole] == '.' && is_digit(l->text[whole + 1]))
            end = digits(l, whole + 1);
        end = after_dot ? end : exponent(l, end);
    }
    for (size_t i = l->at + (base != 10 ? 2 : 0); i < end; i++) {
        if (n + 1 >= sizeof buf)
            return jin_lex_fail(l, "a number is too long");
        if (l->text[i] != '_')
            buf[n++] = l->text[i];
    }
    buf[n] = '\0';
    char *stop = buf;
    if (base == 10 && end > whole) {
        out->type = JIN_T_FLOAT;
        out->number = jin_float(strtod(buf, &stop));
    } else {
        unsigned long long v = strtoull(buf, &stop, base);
        if (v > INT64_MAX)
            return jin_lex_fail(l, "a number is too large");
        out->type = JIN_T_INT;
        out->number = jin_int((int64_t)v);
    }
    if (n == 0 || *stop != '\0')
        return jin_lex_fail(l, "a number is malformed");
    move(l, end);
    return true;
}

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The escape after a backslash at s[i]; writes to out, returns how far it reached, 0 when it is broken. */
static size_t escape(const char *s, size_t n, size_t i, char *out, size_t *len)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[i];
    const char *known = memchr(from, c, sizeof from - 1);
    uint32_t cp = 0;
    if (known != NULL) {
        out[(*len)++] = to[known - from];
        return i + 1;
    }
    if (c == '\n')
        return i + 1;
    size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (count > 0) {
        for (size_t k = 1; k <= count; k++) {
            int d = i + k < n ? hex_digit(s[i + k]) : -1;
            if (d < 0)
                return 0;
            cp = cp << 4 | (uint32_t)d;
        }
        i += count + 1;
    } else if (c >= '0' && c <= '7') {
        for (size_t k = 0; k < 3 && i < n && s[i] >= '0' && s[i] <= '7'; k++)
            cp = cp << 3 | (uint32_t)(s[i++] - '0');
    } else {
        out[(*len)++] = '\\'; /* an unknown escape stays as it is */
        return i;
    }
    int m = kvs_utf8_encode(cp, (uint8_t *)out + *len);
    *len += (size_t)m;
    return m > 0 ? i : 0;
}

static bool string(struct jin_lexer *l, struct jin_token *out)
{
    char quote = l->text[l->at];
    size_t start = l->at + 1, end = start, len = 0;
    while (end < l->size && l->text[end] != quote)
        end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->size)
        return jin_lex_fail(l, "a string has no end");
    const char *s = l->text + start;
    size_t n = end - start;
    out->type = JIN_T_STRING;
    out->text = (struct mdl_str){s, n};
    if (n > 0 && memchr(s, '\\', n) != NULL) {
        /* No escape is shorter than what it stands for: \7 gives 1 byte, \u0800 3, \377 2. */
        char *copy = kvs_arena_alloc(l->arena, n + 4);
        if (copy == NULL)
            return jin_lex_memory(l, n + 4);
        for (size_t i = 0; i < n;) {
            if (s[i] != '\\') {
                copy[len++] = s[i++];
                continue;
            }
            i = escape(s, n, i + 1, copy, &len);
            if (i == 0)
                return jin_lex_fail(l, "a string holds a broken escape");
        }
        out->text = (struct mdl_str){copy, len};
    }
    move(l, end + 1);
    return true;
}

static bool bracket(struct jin_lexer *l, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (l->open == JIN_NEST)
            return jin_lex_fail(l, "brackets are nested more than %d deep", JIN_NEST);
        l->stack[l->open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (l->open == 0 || l->stack[l->open - 1] != c)
            return jin_lex_fail(l, "unexpected '%c'", c);
        l->open--;
    }
    return true;
}

static bool operator(struct jin_lexer *l, struct jin_token *out)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    size_t n = 0;
    for (size_t i = 0; i < sizeof two / sizeof two[0] && n == 0; i++)
        n = at(l, l->at, two[i]) ? 2 : 0;
    if (n == 0 && memchr("+-/*%~[](){}><=.:|,;", l->text[l->at], 20) != NULL)
        n = 1;
    if (n == 0)
        return jin_lex_fail(l, "unexpected character '%.*s'",
                            (int)jin_char(l->text + l->at, l->size - l->at, &(uint32_t){0}), l->text + l->at);
    out->type = JIN_T_OP;
    out->text = (struct mdl_str){l->text + l->at, n};
    if (n == 1 && !bracket(l, l->text[l->at]))
        return false;
    move(l, l->at + n);
    return true;
}

/* The end of the tag, when it stands here. */
static bool close_tag(struct jin_lexer *l, struct jin_token *out)
{
    bool block = l->where == JIN_IN_BLOCK;
    const char *mark = block ? "%}" : "}}";
    char sign = sign_at(l, l->at);
    size_t skip = sign != 0;
    if (l->open > 0 || (sign == '+' && !block) || !at(l, l->at + skip, mark))
        return false;
    out->type = block ? JIN_T_BLOCK_END : JIN_T_VAR_END;
    move(l, after_end(l, l->at + skip, sign, block));
    l->where = JIN_IN_TEXT;
    return true;
}

bool jin_lex(struct jin_lexer *l, struct jin_token *out)
{
    *out = (struct jin_token){.type = JIN_T_EOF, .line = l->line};
    while (l->where == JIN_IN_TEXT) {
        if (l->at >= l->size && !l->tag_due)
            return true;
        if (!text(l, out))
            return false;
        if (out->type != JIN_T_DATA || out->text.len > 0)
            return true;
        *out = (struct jin_token){.type = JIN_T_EOF, .line = l->line};
    }
    if (close_tag(l, out))
        return true;
    move(l, skip_space(l, l->at));
    out->line = l->line;
    if (close_tag(l, out))
        return true;
    if (l->at >= l->size)
        return jin_lex_fail(l, "the template ends inside a tag");
    char c = l->text[l->at];
    if (is_digit(c))
        return number(l, out);
    if (c == '"' || c == '\'')
        return string(l, out);
    if (!is_word(c))
        return operator(l, out);
    size_t end = l->at;
    while (end < l->size && is_word(l->text[end]))
        end++;
    out->type = JIN_T_NAME;
    out->text = (struct mdl_str){l->text + l->at, end - l->at};
    move(l, end);
    return true;
}
