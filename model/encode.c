/* encode.c - text to ids: special tokens are cut out where they stand, what lies between is merged.
 *
 * Special tokens are matched from left to right, at each place the longest. With MDL_PARSE_SPECIAL off only user-defined
 * ones count: the text of a control token in a user's message stays text.
 * SPM: spaces and U+2581 are the same thing, and a stretch of text at the start or after a special token gets a space in
 * front where the file asks for it. SentencePiece merges over all of a stretch; it is cut where no token could span the cut
 * (tokenizer.c, find_joins), which leaves every merge as it was, and BPE's pieces are merged one by one anyway: so both come
 * down to short words, whose ids are remembered (words.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct encoder {
    const struct mdl_tokenizer *t;
    struct mdl_merger merger;
    struct kvs_error *err;
    bool plain;              /* MDL_ENCODE_PLAIN */
    struct mdl_words *words; /* NULL: none */
    const uint8_t *limit;    /* bytes of the text that pieces lie in end here */
};

static kvs_status spell(struct encoder *e, const uint8_t *piece, size_t n)
{
    int32_t id = mdl_text_find(e->t, piece, n);
    if (id != MDL_NO_ID && (uint32_t)id < e->t->vocab && e->t->whole[id] != 0)
        return mdl_merger_emit(&e->merger, id);
    return mdl_merger_run(&e->merger, piece, n);
}

static kvs_status emit_word(struct mdl_merger *m, const struct mdl_word *word)
{
    struct mdl_ids *out = m->out;
    kvs_status st = KVS_OK;
    if (out->cap - out->count >= MDL_WORD_IDS && m->ids_max > out->count && m->ids_max - out->count >= MDL_WORD_IDS) {
        memcpy(out->ids + out->count, word->ids, sizeof word->ids); /* all of them, of which `count` stay */
        out->count += word->count;
        return KVS_OK;
    }
    for (size_t i = 0; st == KVS_OK && i < word->count; i++)
        st = mdl_merger_emit(m, word->ids[i]);
    return st;
}

static kvs_status take_piece(void *user, const uint8_t *piece, size_t n)
{
    struct encoder *e = user;
    uint64_t key[4];
    if (e->words == NULL || n > MDL_WORD_BYTES)
        return spell(e, piece, n);
    mdl_word_key(piece, n, e->limit, key);
    struct mdl_word *set = mdl_words_set(e->words, key, n);
    for (int way = 0; way < 2; way++) {
        if (mdl_word_is(&set[way], key, n)) {
            e->words->hits++;
            set[way].used = 1;
            return emit_word(&e->merger, &set[way]);
        }
    }
    struct mdl_ids *out = e->merger.out;
    size_t before = out->count;
    kvs_status st = spell(e, piece, n);
    e->words->misses++;
    if (st != KVS_OK || out->count - before > MDL_WORD_IDS)
        return st;
    struct mdl_word *word = mdl_words_victim(set);
    word->used = 0;
    memcpy(word->key, key, sizeof word->key);
    memcpy(word->ids, out->ids + before, (out->count - before) * sizeof *word->ids);
    word->count = (uint8_t)(out->count - before);
    word->len = (uint8_t)n;
    return KVS_OK;
}

/* The next place behind `at` that no token spans. */
static size_t word_end(const struct mdl_tokenizer *t, const uint8_t *text, size_t n, size_t at)
{
    size_t end = at + 1;
    while (end < n && mdl_joined(t, text[end - 1], text[end]))
        end++;
    return end;
}

static kvs_status encode_spm(struct encoder *e, const uint8_t *text, size_t n)
{
    uint8_t *copy = malloc(n + 1 + MDL_WORD_BYTES);
    size_t len = 0;
    if (copy == NULL)
        return kvs_fail(e->err, KVS_SELF_NOMEM, "no memory to tokenize %zu bytes", n);
    if (e->t->space_prefix) /* every stretch is the first one or follows a special token */
        copy[len++] = ' ';
    for (size_t i = 0; i < n;) {
        const uint8_t *mark = memchr(text + i, 0xe2, n - i);
        size_t until = mark != NULL ? (size_t)(mark - text) : n;
        memcpy(copy + len, text + i, until - i);
        len += until - i;
        i = until;
        if (n - i >= 3 && text[i + 1] == 0x96 && text[i + 2] == 0x81) {
            copy[len++] = ' ';
            i += 3;
        } else if (i < n) {
            copy[len++] = text[i++];
        }
    }
    memset(copy + len, 0, MDL_WORD_BYTES);
    e->limit = copy + len + MDL_WORD_BYTES;
    kvs_status st = KVS_OK;
    for (size_t at = 0; st == KVS_OK && at < len;) {
        size_t end = e->plain ? len : word_end(e->t, copy, len, at);
        st = take_piece(e, copy + at, end - at);
        at = end;
    }
    free(copy);
    return st;
}

static kvs_status encode_plain(struct encoder *e, const uint8_t *text, size_t n)
{
    if (n == 0)
        return KVS_OK;
    if (e->t->spm)
        return encode_spm(e, text, n);
    size_t short_cuts = 0;
    return mdl_pretok_split_how(e->t->pretok, text, n, e->plain, &short_cuts, take_piece, e);
}

/* First index in [lo, hi) of the sorted texts whose byte at depth is not below c; shorter texts come first. */
static uint32_t lower_bound(const struct mdl_tokenizer *t, const int32_t *ids, uint32_t lo, uint32_t hi, size_t depth,
                            int c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        struct mdl_str s = mdl_text(t, ids[mid]);
        if ((s.len > depth ? (uint8_t)s.data[depth] : -1) < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest special token at the head of the text; its length, 0 for none. */
static size_t match_special(const struct mdl_tokenizer *t, const struct mdl_specials *specials, const uint8_t *text,
                            size_t n, int32_t *id_out)
{
    uint32_t lo = 0, hi = specials->count;
    size_t best = 0;
    if (!specials->first[text[0]])
        return 0;
    for (size_t depth = 0; depth < n; depth++) {
        lo = lower_bound(t, specials->ids, lo, hi, depth, text[depth]);
        hi = lower_bound(t, specials->ids, lo, hi, depth, text[depth] + 1);
        if (lo == hi)
            break;
        if (mdl_text(t, specials->ids[lo]).len == depth + 1) {
            best = depth + 1;
            *id_out = specials->ids[lo];
        }
    }
    return best;
}

static kvs_status encode_all(struct encoder *e, const uint8_t *text, size_t n, uint32_t flags)
{
    const struct mdl_tokenizer *t = e->t;
    const struct mdl_specials *specials = (flags & MDL_PARSE_SPECIAL) != 0 ? &t->special_all : &t->special_user;
    size_t plain = 0;
    kvs_status st = KVS_OK;
    if ((flags & MDL_ADD_SPECIAL) != 0 && t->add_bos)
        st = mdl_merger_emit(&e->merger, t->bos);
    for (size_t at = 0; st == KVS_OK && specials->count > 0 && at < n;) {
        int32_t id = MDL_NO_ID;
        size_t len = match_special(t, specials, text + at, n - at, &id);
        if (len == 0) {
            at++;
            while (at < n && !specials->first[text[at]])
                at++;
            continue;
        }
        st = encode_plain(e, text + plain, at - plain);
        if (st == KVS_OK)
            st = mdl_merger_emit(&e->merger, id);
        at += len;
        while (at < n && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r')) && mdl_strips_behind(t, id))
            at++;
        plain = at;
    }
    if (st == KVS_OK)
        st = encode_plain(e, text + plain, n - plain);
    if (st == KVS_OK && (flags & MDL_ADD_SPECIAL) != 0 && t->add_eos)
        st = mdl_merger_emit(&e->merger, t->eos);
    return st;
}

kvs_status mdl_encode(const struct mdl_tokenizer *t, const char *text, size_t len, uint32_t flags, size_t ids_max,
                      struct mdl_ids *out, struct kvs_error *err)
{
    struct encoder e = {.t = t, .err = err, .merger = {.t = t, .out = out, .ids_max = ids_max, .err = err}};
    e.plain = (flags & MDL_ENCODE_PLAIN) != 0;
    e.limit = (const uint8_t *)text + len;
    size_t before = out->count, room = ids_max > before ? ids_max - before : 0;
    /* No token covers more than the longest one does (SPM: three bytes of U+2581 a space): hopeless texts cost nothing. */
    if (len / ((size_t)t->longest * (t->spm ? 3 : 1) + 1) > room)
        return kvs_fail(err, KVS_REQ_TOO_LONG, "the text has more than %zu tokens", ids_max);
    e.words = e.plain ? NULL : mdl_words_acquire(t->words);
    kvs_status st = encode_all(&e, (const uint8_t *)text, len, flags);
    mdl_words_release(t->words, e.words);
    mdl_merger_fini(&e.merger);
    if (st != KVS_OK)
        out->count = before;
    return st;
}
