/* pcre_split.c - the expressions as the vocabularies' own tokenizer files give them, with white space spelled out (PCRE2's \s counts U+180E,
 * the property White_Space, which those tokenizers use, does not) and ranges in numbers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/pcre_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PASSES_MAX 6u
#define SPACES \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S "[" SPACES "]"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" S "+(?![^" SPACES "])|" S "+"
#define ANY_CASE "'(?:[sStTmMdD]|[lL][lL]|[vV][eE]|[rR][eE])"
#define TAIL S "*[\\r\\n]+|" S "+(?![^" SPACES "])|" S "+"
#define WORDS(letters, not_letters, numbers) \
    ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" numbers "| ?[^" SPACES not_letters "\\p{N}]+[\\r\\n]*|" TAIL
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix, numbers)                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix \
    "|" numbers "| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define CASED_LETTERS                                                                                                \
    "[\\x{41}-\\x{5a}\\x{61}-\\x{7a}\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"          \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"           \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}" \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"                \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"        \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}"       \
    "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                 \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}"                  \
    "\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}"                  \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"                 \
    "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"                \
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"              \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"      \
    "\\x{1e900}-\\x{1e943}]+"
#define CJK_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

static const struct kind {
    const char *name, *pass[PASSES_MAX];
} kinds[] = {
    {"gpt-2", {GPT2}},
    {"smollm", {"\\p{N}", GPT2}},
    {"llama-bpe", {WORDS("\\p{L}", "\\p{L}", "\\p{N}{1,3}")}},
    {"dbrx", {WORDS("\\p{L}", "\\p{L}", "\\p{N}{1,3}")}},
    {"qwen2", {WORDS("\\p{L}", "\\p{L}", "\\p{N}")}},
    {"qwen35", {WORDS("[\\p{L}\\p{M}]", "\\p{L}\\p{M}", "\\p{N}")}},
    {"tekken", {CASED("", "\\p{N}")}},
    {"gpt-4o", {CASED("(?:" ANY_CASE ")?", "\\p{N}{1,3}")}},
    {"deepseek-llm",
     {"[\\r\\n]", S "?" CASED_LETTERS,
      S "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+", S "+\\z", CJK_HANGUL,
      "\\p{N}+"}},
    {"deepseek-coder", {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", CJK_HANGUL, "\\p{N}"}},
    {"deepseek-v3",
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL}},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
const char *const tst_pretok_names[] = {"gpt-2",          "smollm",      "llama-bpe", "dbrx",   "qwen2",
                                        "qwen35",         "tekken",      "gpt-4o",    "falcon", "deepseek-llm",
                                        "deepseek-coder", "deepseek-v3", "default"};
const size_t tst_pretok_count = sizeof tst_pretok_names / sizeof tst_pretok_names[0];

struct tst_split {
    pcre2_code *code[PASSES_MAX];
    pcre2_match_data *match[PASSES_MAX];
    uint32_t passes;
    const uint8_t *text;
    size_t *ends, count, cap;
};

static void die(const char *what, int code)
{
    (void)fprintf(stderr, "pcre_split: %s (%d)\n", what, code);
    abort();
}

struct tst_split *tst_split_create(const char *name)
{
    const struct kind *k = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        k = strcmp(kinds[i].name, name) == 0 ? &kinds[i] : k;
    struct tst_split *s = calloc(1, sizeof *s);
    if (k == NULL || s == NULL)
        die(name, 0);
    for (; s->passes < PASSES_MAX && k->pass[s->passes] != NULL; s->passes++) {
        int code = 0;
        PCRE2_SIZE at = 0;
        s->code[s->passes] = pcre2_compile((PCRE2_SPTR)k->pass[s->passes], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                           &code, &at, NULL);
        s->match[s->passes] = pcre2_match_data_create(1, NULL);
        if (s->code[s->passes] == NULL)
            die(k->pass[s->passes] + at, code);
        (void)pcre2_jit_compile(s->code[s->passes], PCRE2_JIT_COMPLETE);
    }
    return s;
}

void tst_split_destroy(struct tst_split *s)
{
    for (uint32_t i = 0; i < s->passes; i++) {
        pcre2_code_free(s->code[i]);
        pcre2_match_data_free(s->match[i]);
    }
    free(s);
}

static void pass_over(struct tst_split *s, uint32_t pass, const uint8_t *text, size_t n)
{
    if (n == 0)
        return;
    if (pass == s->passes) {
        if (s->count == s->cap)
            die("too many pieces", 0);
        s->ends[s->count++] = (size_t)(text + n - s->text);
        return;
    }
    for (size_t at = 0; at < n;) {
        int rc = pcre2_match(s->code[pass], text, n, at, PCRE2_NO_UTF_CHECK, s->match[pass], NULL);
        if (rc == PCRE2_ERROR_NOMATCH) {
            pass_over(s, pass + 1, text + at, n - at);
            return;
        }
        if (rc < 0)
            die("match", rc);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->match[pass]);
        size_t begin = range[0], end = range[1];
        pass_over(s, pass + 1, text + at, begin - at);
        pass_over(s, pass + 1, text + begin, end - begin);
        at = end;
    }
}

size_t tst_split_run(struct tst_split *s, const uint8_t *text, size_t n, size_t *ends_out, size_t cap)
{
    s->text = text;
    s->ends = ends_out;
    s->count = 0;
    s->cap = cap;
    pass_over(s, 0, text, n);
    return s->count;
}
