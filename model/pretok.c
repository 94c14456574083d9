/* pretok.c - byte-level BPE splits text before it merges: by the name in the file, by our patterns, through PCRE2.
 *
 * A pre-tokenizer is one or two passes; the second splits every piece of the first. What no pattern matches stays a piece.
 * Each piece of a pass is a subject of its own: look-ahead ends where it ends.
 * The white space of the patterns is spelled out: PCRE2's own \s counts U+180E, the Unicode property that the original
 * tokenizers use does not. Quantifiers are possessive where nothing that follows could want a character back.
 * Text is checked for UTF-8 once, before; every match then runs with PCRE2_NO_UTF_CHECK (a check a match would be
 * quadratic). Bytes that are no UTF-8 are pieces of their own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_int.h"
#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

#define PASSES_MAX 2u
#define SPACE \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define GPT2                                                                                                           \
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^" SPACE "\\p{L}\\p{N}]++|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]" \
                                                                                                                   "+" \
                                                                                                                   "+"
#define DIGIT "\\p{N}"

struct passes {
    const char *pattern[PASSES_MAX];
};
static const struct passes gpt2_passes = {{GPT2, NULL}};
static const struct passes smollm_passes = {{DIGIT, GPT2}};

static const struct {
    const char *name;
    const struct passes *passes;
} names[] = {
    {"gpt-2", &gpt2_passes},       {"phi-2", &gpt2_passes},       {"mpt", &gpt2_passes},
    {"olmo", &gpt2_passes},        {"jina-es", &gpt2_passes},     {"jina-de", &gpt2_passes},
    {"jina-v2-es", &gpt2_passes},  {"jina-v2-de", &gpt2_passes},  {"jina-v2-code", &gpt2_passes},
    {"smollm", &smollm_passes},    {"starcoder", &smollm_passes}, {"refact", &smollm_passes},
    {"command-r", &smollm_passes}, {"exaone", &smollm_passes},    {"codeshell", &smollm_passes},
};
#define NAME_COUNT (sizeof names / sizeof names[0])

struct mdl_pretok {
    pcre2_code *code[PASSES_MAX];
    bool jit[PASSES_MAX];
    uint32_t passes;
};

struct mdl_split {
    const struct mdl_pretok *p;
    pcre2_match_data *match[PASSES_MAX];
    mdl_piece_fn fn;
    void *user;
    struct kvs_error *err;
};

static kvs_status fail_name(struct mdl_str name, struct kvs_error *err)
{
    char shown[40], list[200] = "";
    size_t n = name.len < sizeof shown - 1 ? name.len : sizeof shown - 1, len = 0;
    for (size_t i = 0; i < n; i++)
        shown[i] = name.data[i] > 32 && name.data[i] < 127 ? name.data[i] : '?';
    shown[n] = '\0';
    for (size_t i = 0; i < NAME_COUNT; i++)
        len += kvs_format(list + len, sizeof list - len, "%s%s", i > 0 ? ", " : "", names[i].name);
    return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.pre: '%s' is not known (known: %s)", shown, list);
}

static kvs_status compile(struct mdl_pretok *p, const char *pattern, struct kvs_error *err)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (c == NULL)
        return kvs_fail(err, KVS_SELF_INTERNAL, "PCRE2 error %d at %zu of a pre-tokenizer's pattern", code, (size_t)at);
    /* No JIT (a hardened kernel): the interpreter gives the same answers, slower. */
    p->jit[p->passes] = pcre2_jit_compile(c, PCRE2_JIT_COMPLETE) == 0;
    p->code[p->passes++] = c;
    return KVS_OK;
}

kvs_status mdl_pretok_create(struct mdl_str name, struct mdl_pretok **out, struct kvs_error *err)
{
    const struct passes *passes = NULL;
    for (size_t i = 0; i < NAME_COUNT && passes == NULL; i++) {
        if (name.len == strlen(names[i].name) && memcmp(name.data, names[i].name, name.len) == 0)
            passes = names[i].passes;
    }
    if (passes == NULL)
        return fail_name(name, err);
    struct mdl_pretok *p = calloc(1, sizeof *p);
    if (p == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the pre-tokenizer");
    kvs_status s = KVS_OK;
    for (uint32_t i = 0; s == KVS_OK && i < PASSES_MAX && passes->pattern[i] != NULL; i++)
        s = compile(p, passes->pattern[i], err);
    if (s != KVS_OK) {
        mdl_pretok_destroy(p);
        return s;
    }
    *out = p;
    return KVS_OK;
}

void mdl_pretok_destroy(struct mdl_pretok *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->passes; i++)
        pcre2_code_free(p->code[i]);
    free(p);
}

kvs_status mdl_split_create(const struct mdl_pretok *p, struct mdl_split **out)
{
    struct mdl_split *s = calloc(1, sizeof *s);
    if (s == NULL)
        return KVS_SELF_NOMEM;
    s->p = p;
    for (uint32_t i = 0; i < p->passes; i++) {
        s->match[i] = pcre2_match_data_create(1, NULL);
        if (s->match[i] == NULL) {
            mdl_split_destroy(s);
            return KVS_SELF_NOMEM;
        }
    }
    *out = s;
    return KVS_OK;
}

void mdl_split_destroy(struct mdl_split *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < PASSES_MAX; i++)
        pcre2_match_data_free(s->match[i]);
    free(s);
}

static kvs_status run_pass(struct mdl_split *s, uint32_t pass, const uint8_t *text, size_t n);

/* One level down: the next pass, or the caller. Depth is the number of passes. */
static kvs_status hand_on(struct mdl_split *s, uint32_t pass, const uint8_t *piece, size_t n)
{
    if (n == 0)
        return KVS_OK;
    return pass < s->p->passes ? run_pass(s, pass, piece, n) : s->fn(s->user, piece, n);
}

static kvs_status run_pass(struct mdl_split *s, uint32_t pass, const uint8_t *text, size_t n)
{
    const pcre2_code *code = s->p->code[pass];
    pcre2_match_data *match = s->match[pass];
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
    for (size_t at = 0; at < n;) {
        int rc = s->p->jit[pass] ? pcre2_jit_match(code, text, n, at, PCRE2_NO_UTF_CHECK, match, NULL)
                                 : pcre2_match(code, text, n, at, PCRE2_NO_UTF_CHECK, match, NULL);
        if (rc == PCRE2_ERROR_NOMATCH)
            return hand_on(s, pass + 1, text + at, n - at);
        if (rc < 0)
            return kvs_fail(s->err, KVS_REQ_INVALID, "the text cannot be tokenized: PCRE2 error %d", rc);
        size_t begin = range[0], end = range[1];
        KVS_ASSERT(begin >= at && end > begin && end <= n);
        kvs_status st = hand_on(s, pass + 1, text + at, begin - at);
        if (st == KVS_OK)
            st = hand_on(s, pass + 1, text + begin, end - begin);
        if (st != KVS_OK)
            return st;
        at = end;
    }
    return KVS_OK;
}

/* Length of the valid UTF-8 at the head of the text. */
static size_t valid_head(const uint8_t *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint32_t cp;
        int k = text[at] < 0x80 ? 1 : kvs_utf8_decode(text + at, n - at, &cp);
        if (k <= 0)
            break;
        at += (size_t)k;
    }
    return at;
}

kvs_status mdl_split_run(struct mdl_split *s, const uint8_t *text, size_t n, mdl_piece_fn fn, void *user,
                         struct kvs_error *err)
{
    s->fn = fn;
    s->user = user;
    s->err = err;
    for (size_t at = 0; at < n;) {
        size_t head = valid_head(text + at, n - at);
        kvs_status st = hand_on(s, 0, text + at, head);
        at += head;
        if (st == KVS_OK && at < n)
            st = fn(user, text + at++, 1);
        if (st != KVS_OK)
            return st;
    }
    return KVS_OK;
}
