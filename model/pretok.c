/* pretok.c - byte-level BPE splits text before it merges: by the name in the file, which stands for passes of our own matchers (split.h).
 *
 * A pre-tokenizer is one or more passes; each splits every piece of the one before. What no match covers stays a piece. Each piece of a pass is
 * a subject of its own: look-ahead ends where it ends.
 * Text is checked for UTF-8 once, before; bytes that are no UTF-8 are pieces of their own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_int.h"
#include "base/checked.h"
#include "base/utf8.h"
#include "model/split.h"
#include "model/unicode.h"

#include <string.h>

#define PASSES_MAX 6u

/* The characters with which a match of the pass may begin: the ASCII ones a bit each, the others by class. ANY: whatever. */
struct begins {
    uint64_t bits[2];
    unsigned wide;
    bool any;
};
#define ANY             \
    {                   \
        {0, 0}, 0, true \
    }
#define LINE_END              \
    {                         \
        {0x2400, 0}, 0, false \
    }
#define SPACE                              \
    {                                      \
        {0x100003e00, 0}, MDL_SPACE, false \
    }
#define DIGIT(wide)                          \
    {                                        \
        {0x03ff000000000000, 0}, wide, false \
    }
#define WIDE(wide)          \
    {                       \
        {0, 0}, wide, false \
    }
#define SPACE_LETTER(wide)                                           \
    {                                                                \
        {0x100003e00, 0x07fffffe07fffffe}, MDL_SPACE | (wide), false \
    }
#define SIGN                                                             \
    {                                                                    \
        {0xfc00fffe00000000, 0x78000001f8000001}, MDL_PUNCTUATION, false \
    }
#define SPACE_SIGN                                                                   \
    {                                                                                \
        {0xfc00ffff00003e00, 0x78000001f8000001}, MDL_SPACE | MDL_PUNCTUATION, false \
    }
#define SPACE_SIGN_LETTER                                                        \
    {                                                                            \
        {0xfc00ffff00003e00, 0x7fffffffffffffff}, MDL_SPACE | MDL_WRITTEN, false \
    }

/* What the passes behind this one do to an ASCII match of it: nothing, or nothing unless it holds digits, or anything. */
enum after { AFTER_ANY, AFTER_DIGITS, AFTER_NONE };

struct mdl_pretok {
    uint32_t flags;
    struct pass {
        mdl_match_fn match;
        struct mdl_match_how how;
        struct begins begins;
        enum after after;
    } pass[PASSES_MAX]; /* up to the first without a function */
};

/* `begins` and `after` are short cuts and change no cut: tests/unit/model/fast_path_test.c runs every way with and without them. */
static const struct mdl_pretok
    gpt2 = {0, {{mdl_match_gpt2, {0}, ANY, 0}}},
    one_digit_gpt2 = {0,
                      {{mdl_match_run, {.mask = MDL_NUMBER, .longest = 1}, DIGIT(MDL_NUMBER), AFTER_NONE},
                       {mdl_match_gpt2, {0}, ANY, 0}}},
    words_3 = {0, {{mdl_match_words, {.mask = MDL_LETTER, .longest = 3}, ANY, 0}}},
    llama3 = {MDL_PRETOK_WHOLE | MDL_PRETOK_BOS, {{mdl_match_words, {.mask = MDL_LETTER, .longest = 3}, ANY, 0}}},
    words_1 = {0, {{mdl_match_words, {.mask = MDL_LETTER, .longest = 1}, ANY, 0}}},
    words_1_marks = {0, {{mdl_match_words, {.mask = MDL_LETTER | MDL_MARK, .longest = 1}, ANY, 0}}},
    tekken = {MDL_PRETOK_WHOLE | MDL_PRETOK_BOS,
              {{mdl_match_words, {.cased = true, .longest = 1, .slash = true}, ANY, 0}}},
    gpt4o = {0, {{mdl_match_words, {.cased = true, .suffix = true, .longest = 3, .slash = true}, ANY, 0}}},
    deepseek_llm = {0,
                    {{mdl_match_line_end, {0}, LINE_END, AFTER_NONE},
                     {mdl_match_run, {.space = true, .mask = MDL_CASED}, SPACE_LETTER(MDL_CASED), AFTER_NONE},
                     {mdl_match_run, {.space = true, .mask = MDL_WRITTEN}, SPACE_SIGN_LETTER, AFTER_NONE},
                     {mdl_match_last_spaces, {0}, SPACE, AFTER_NONE},
                     {mdl_match_run, {.mask = MDL_CJK_HANGUL}, WIDE(MDL_CJK_HANGUL), 0},
                     {mdl_match_run, {.mask = MDL_NUMBER}, DIGIT(MDL_NUMBER), 0}}},
    deepseek_coder = {0,
                      {{mdl_match_line_end, {0}, LINE_END, AFTER_NONE},
                       {mdl_match_run, {.space = true, .mask = MDL_LETTER}, SPACE_LETTER(MDL_LETTER), AFTER_NONE},
                       {mdl_match_run, {.space = true, .mask = MDL_PUNCTUATION}, SPACE_SIGN, AFTER_NONE},
                       {mdl_match_run, {.mask = MDL_CJK_HANGUL}, WIDE(MDL_CJK_HANGUL), 0},
                       {mdl_match_run, {.mask = MDL_NUMBER, .longest = 1}, DIGIT(MDL_NUMBER), 0}}},
    deepseek_v3 = {0,
                   {{mdl_match_run, {.mask = MDL_NUMBER, .longest = 3}, DIGIT(MDL_NUMBER), AFTER_NONE},
                    {mdl_match_run, {.mask = MDL_CJK_KANA}, WIDE(MDL_CJK_KANA), 0},
                    {mdl_match_deepseek3, {0}, ANY, 0}}},
    falcon = {0,
              {{mdl_match_signs, {.slash = true}, SIGN, AFTER_NONE},
               {mdl_match_gpt2, {0}, ANY, AFTER_DIGITS},
               {mdl_match_three_digits, {0}, DIGIT(0), 0}}},
    by_default = {0,
                  {{mdl_match_signs, {0}, SIGN, AFTER_NONE},
                   {mdl_match_gpt2, {0}, ANY, AFTER_DIGITS},
                   {mdl_match_run, {.mask = MDL_NUMBER}, DIGIT(MDL_NUMBER), 0},
                   {mdl_match_three_digits, {0}, DIGIT(0), 0}}};

static const struct {
    const char *name;
    const struct mdl_pretok *pretok;
} names[] = {
    {"gpt-2", &gpt2},
    {"phi-2", &gpt2},
    {"mpt", &gpt2},
    {"olmo", &gpt2},
    {"jais", &gpt2},
    {"jina-es", &gpt2},
    {"jina-de", &gpt2},
    {"jina-v2-es", &gpt2},
    {"jina-v2-de", &gpt2},
    {"jina-v2-code", &gpt2},
    {"gigachat", &gpt2},
    {"trillion", &gpt2},
    {"granite-docling", &gpt2},
    {"smollm", &one_digit_gpt2},
    {"starcoder", &one_digit_gpt2},
    {"refact", &one_digit_gpt2},
    {"command-r", &one_digit_gpt2},
    {"exaone", &one_digit_gpt2},
    {"codeshell", &one_digit_gpt2},
    {"minerva-7b", &one_digit_gpt2},
    {"llama-bpe", &llama3},
    {"llama3", &llama3},
    {"llama-v3", &llama3},
    {"falcon3", &llama3},
    {"falcon-h1", &llama3},
    {"pixtral", &llama3},
    {"midm-2.0", &llama3},
    {"lfm2", &llama3},
    {"dbrx", &words_3},
    {"smaug-bpe", &words_3},
    {"glm4", &words_3},
    {"chatglm-bpe", &words_3},
    {"qwen2", &words_1},
    {"deepseek-r1-qwen", &words_1},
    {"megrez", &words_1},
    {"stablelm2", &words_1},
    {"hunyuan", &words_1},
    {"grok-2", &words_1},
    {"qwen35", &words_1_marks},
    {"tekken", &tekken},
    {"gpt-4o", &gpt4o},
    {"llama4", &gpt4o},
    {"kanana2", &gpt4o},
    {"deepseek-llm", &deepseek_llm},
    {"deepseek-coder", &deepseek_coder},
    {"deepseek-v3", &deepseek_v3},
    {"hunyuan-dense", &deepseek_v3},
    {"falcon", &falcon},
    {"default", &by_default},
};
#define NAME_COUNT (sizeof names / sizeof names[0])

static kvs_status fail_name(struct mdl_str name, struct kvs_error *err)
{
    char shown[40];
    size_t n = name.len < sizeof shown - 1 ? name.len : sizeof shown - 1;
    for (size_t i = 0; i < n; i++)
        shown[i] = name.data[i] > 32 && name.data[i] < 127 ? name.data[i] : '?';
    shown[n] = '\0';
    return kvs_fail(err, KVS_SELF_MODEL,
                    "tokenizer.ggml.pre: '%s' is none of the %zu pre-tokenizers known here (docs/MODELS.md lists them)",
                    shown, NAME_COUNT);
}

kvs_status mdl_pretok_find(struct mdl_str name, const struct mdl_pretok **out, struct kvs_error *err)
{
    for (size_t i = 0; i < NAME_COUNT; i++) {
        if (name.len == strlen(names[i].name) && memcmp(name.data, names[i].name, name.len) == 0) {
            *out = names[i].pretok;
            return KVS_OK;
        }
    }
    return fail_name(name, err);
}

uint32_t mdl_pretok_flags(const struct mdl_pretok *p)
{
    return p->flags;
}

struct split {
    const struct mdl_pretok *p;
    const uint16_t *classes;
    bool plain;         /* without short cuts */
    size_t *short_cuts; /* counted for tests */
    mdl_piece_fn fn;
    void *user;
};

static kvs_status run_pass(const struct split *s, uint32_t pass, const uint8_t *text, size_t n);

/* One level down: the next pass, or the caller. Depth is the number of passes. */
static inline kvs_status hand_on(const struct split *s, uint32_t pass, const uint8_t *piece, size_t n)
{
    if (n == 0)
        return KVS_OK;
    return pass < PASSES_MAX && s->p->pass[pass].match != NULL ? run_pass(s, pass, piece, n) : s->fn(s->user, piece, n);
}

static inline bool is_ascii(const uint8_t *p, size_t n)
{
    uint8_t all = 0;
    for (; n >= 8; p += 8, n -= 8) {
        if ((kvs_load_u64(p) & 0x8080808080808080u) != 0)
            return false;
    }
    for (size_t i = 0; i < n; i++)
        all |= p[i];
    return all < 0x80;
}

/* A match that the passes behind would leave as it is goes to the caller at once. */
static inline kvs_status hand_on_match(const struct split *s, uint32_t pass, const uint8_t *piece, size_t n)
{
    enum after after = s->plain ? AFTER_ANY : s->p->pass[pass].after;
    if (after != AFTER_ANY && is_ascii(piece, n) &&
        (after == AFTER_NONE || (s->classes[piece[n - 1]] & MDL_NUMBER) == 0)) {
        ++*s->short_cuts;
        return s->fn(s->user, piece, n);
    }
    return hand_on(s, pass + 1, piece, n);
}

static size_t last_spaces(const uint8_t *text, size_t n, const uint16_t *classes)
{
    while (n > 0) {
        size_t at = n - 1;
        uint32_t cp = 0;
        while (at > 0 && (text[at] & 0xc0) == 0x80)
            at--;
        if (kvs_utf8_decode(text + at, n - at, &cp) <= 0 || (classes[cp] & MDL_SPACE) == 0)
            break;
        n = at;
    }
    return n;
}

/* The first place from `at` on where the pass could match: others are not even tried. */
static inline size_t next_try(const struct begins *begins, const struct mdl_subject *x, size_t at)
{
    while (at < x->n) {
        uint8_t c = x->s[at];
        if (c < 0x80 && (begins->bits[c / 64] >> c % 64 & 1) == 0) {
            at++;
            continue;
        }
        if (c < 0x80)
            return at;
        struct mdl_look l = mdl_look_at(x, at);
        if ((l.classes & begins->wide) != 0)
            return at;
        at += l.len;
    }
    return at;
}

static kvs_status run_pass(const struct split *s, uint32_t pass, const uint8_t *text, size_t n)
{
    const struct pass *p = &s->p->pass[pass];
    struct mdl_subject x = {.s = text, .n = n, .classes = s->classes};
    kvs_status st = KVS_OK;
    size_t gap = 0; /* where what nothing has matched begins */
    if (p->match == mdl_match_last_spaces)
        x.tail = last_spaces(text, n, x.classes);
    for (size_t at = 0; at < n && st == KVS_OK;) {
        if (!p->begins.any && !s->plain) {
            at = next_try(&p->begins, &x, at);
            if (at == n)
                break;
        }
        size_t end = p->match(&x, at, &p->how);
        if (end == 0) {
            for (at++; at < n && (text[at] & 0xc0) == 0x80;)
                at++;
            continue;
        }
        st = hand_on(s, pass + 1, text + gap, at - gap);
        if (st == KVS_OK)
            st = hand_on_match(s, pass, text + at, end - at);
        at = gap = end;
    }
    return st == KVS_OK ? hand_on(s, pass + 1, text + gap, n - gap) : st;
}

/* Length of the valid UTF-8 at the head of the text. */
static size_t valid_head(const uint8_t *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint32_t cp;
        while (n - at >= 8 && (kvs_load_u64(text + at) & 0x8080808080808080u) == 0)
            at += 8;
        if (at == n)
            break;
        int k = text[at] < 0x80 ? 1 : kvs_utf8_decode(text + at, n - at, &cp);
        if (k <= 0)
            break;
        at += (size_t)k;
    }
    return at;
}

kvs_status mdl_pretok_split_how(const struct mdl_pretok *p, const uint8_t *text, size_t n, bool plain,
                                size_t *short_cuts, mdl_piece_fn fn, void *user)
{
    struct split s = {p, mdl_char_classes(), plain, short_cuts, fn, user};
    for (size_t at = 0; at < n;) {
        size_t head = valid_head(text + at, n - at);
        kvs_status st = hand_on(&s, 0, text + at, head);
        at += head;
        if (st == KVS_OK && at < n)
            st = fn(user, text + at++, 1);
        if (st != KVS_OK)
            return st;
    }
    return KVS_OK;
}

kvs_status mdl_pretok_split(const struct mdl_pretok *p, const uint8_t *text, size_t n, mdl_piece_fn fn, void *user)
{
    size_t short_cuts = 0;
    return mdl_pretok_split_how(p, text, n, false, &short_cuts, fn, user);
}
