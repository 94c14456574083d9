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

#define QUEUE 16u      /* words that wait while their lines are fetched */
#define WORD_BYTES 15u /* longer pieces that are not ASCII are cut */

/* A word to be looked up, or a special token to be put between words. */
struct queued {
    const uint8_t *text; /* NULL: a special token */
    uint32_t n;
    uint32_t mark;
    int32_t id;
    struct mdl_short_word *set; /* of a short word */
    uint64_t key[2];
};

struct encoder {
    const struct mdl_tokenizer *t;
    struct mdl_merger merger;
    struct kvs_error *err;
    bool plain;              /* MDL_ENCODE_PLAIN */
    bool marks;              /* U+2581 occurs in the text */
    struct mdl_words *words; /* NULL: none */
    const uint8_t *limit;    /* bytes of the text that pieces lie in end here */
    uint32_t waiting;
    struct queued queue[QUEUE];
};

static kvs_status spell(struct encoder *e, const uint8_t *piece, size_t n, unsigned mark)
{
    int32_t id = mark == 0 ? mdl_text_find(e->t, piece, n) : MDL_NO_ID;
    if (id != MDL_NO_ID && (uint32_t)id < e->t->vocab && e->t->whole[id] != 0)
        return mdl_merger_emit(&e->merger, id);
    return mdl_merger_run(&e->merger, piece, n);
}

/* All that a remembered word has room for is copied, of which `count` stay. */
static inline kvs_status emit_ids(struct mdl_merger *m, const int32_t *ids, size_t count, size_t room)
{
    struct mdl_ids *out = m->out;
    kvs_status st = KVS_OK;
    if (out->cap - out->count >= room && m->ids_max > out->count && m->ids_max - out->count >= room) {
        memcpy(out->ids + out->count, ids, room * sizeof *ids);
        out->count += count;
        return KVS_OK;
    }
    for (size_t i = 0; st == KVS_OK && i < count; i++)
        st = mdl_merger_emit(m, ids[i]);
    return st;
}

static kvs_status take_long(struct encoder *e, const struct queued *q)
{
    uint64_t key[MDL_LONG_BYTES / 8];
    if (q->n > MDL_LONG_BYTES)
        return spell(e, q->text, q->n, q->mark);
    mdl_word_load(q->text, q->n, e->limit, key, MDL_LONG_BYTES / 8);
    struct mdl_long_word *set = mdl_long_set(e->words, key, q->n);
    for (int way = 0; way < 2; way++) {
        if (mdl_long_is(&set[way], key, q->n, q->mark)) {
            e->words->hits++;
            set[way].used = 1;
            return emit_ids(&e->merger, set[way].ids, set[way].count, MDL_LONG_IDS);
        }
    }
    struct mdl_ids *out = e->merger.out;
    size_t before = out->count;
    kvs_status st = spell(e, q->text, q->n, q->mark);
    size_t count = out->count - before;
    e->words->misses++;
    if (st != KVS_OK || count > MDL_LONG_IDS)
        return st;
    if (q->n <= MDL_SHORT_BYTES && count <= MDL_SHORT_IDS) {
        struct mdl_short_word *word = q->set + mdl_words_victim(&q->set[0].used, &q->set[1].used);
        memcpy(word->key, q->key, sizeof word->key);
        memcpy(word->ids, out->ids + before, count * sizeof *word->ids);
        word->count = (uint8_t)count;
        return KVS_OK;
    }
    struct mdl_long_word *word = set + mdl_words_victim(&set[0].used, &set[1].used);
    memcpy(word->key, key, sizeof word->key);
    memcpy(word->ids, out->ids + before, count * sizeof *word->ids);
    word->count = (uint8_t)count;
    word->len = (uint8_t)(q->n | q->mark);
    return KVS_OK;
}

static inline kvs_status take_word(struct encoder *e, const struct queued *q)
{
    struct mdl_short_word *set = q->set;
    if (q->n <= MDL_SHORT_BYTES) {
        for (int way = 0; way < 2; way++) {
            if (mdl_short_is(&set[way], q->key)) {
                e->words->hits++;
                set[way].used = 1;
                return emit_ids(&e->merger, set[way].ids, set[way].count, MDL_SHORT_IDS);
            }
        }
    }
    return take_long(e, q);
}

/* Before the text that the words lie in goes, and at the end. */
static kvs_status take_waiting(struct encoder *e)
{
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < e->waiting; i++) {
        const struct queued *q = &e->queue[i];
        st = q->text != NULL ? take_word(e, q) : mdl_merger_emit(&e->merger, q->id);
    }
    e->waiting = 0;
    return st;
}

static kvs_status queue_special(struct encoder *e, int32_t id)
{
    if (e->words == NULL)
        return mdl_merger_emit(&e->merger, id);
    e->queue[e->waiting].text = NULL;
    e->queue[e->waiting].id = id;
    return ++e->waiting < QUEUE ? KVS_OK : take_waiting(e);
}

/* Field by field, where it stays: a copy of what was just written in smaller parts would wait for them. */
static inline kvs_status queue_text(struct encoder *e, const uint8_t *text, size_t n, unsigned mark)
{
    struct queued *q = &e->queue[e->waiting];
    q->text = text;
    q->n = (uint32_t)n;
    q->mark = mark;
    if (n <= MDL_SHORT_BYTES) {
        mdl_short_key(text, n, mark, e->limit, q->key);
        q->set = mdl_short_set(e->words, q->key);
        MDL_PREFETCH(q->set);
    }
    return ++e->waiting < QUEUE ? KVS_OK : take_waiting(e);
}

static bool is_wide(const uint8_t *p, size_t n)
{
    uint8_t all = 0;
    for (; n >= 8; p += 8, n -= 8) {
        if ((kvs_load_u64(p) & 0x8080808080808080u) != 0)
            return true;
    }
    for (size_t i = 0; i < n; i++)
        all |= p[i];
    return all >= 0x80;
}

/* Short pieces and those of ASCII are words; others are sentences, perhaps, and cut (cuts.c). */
static kvs_status take_piece(void *user, const uint8_t *piece, size_t n)
{
    struct encoder *e = user;
    if (e->words == NULL)
        return spell(e, piece, n, 0);
    if (n >= INT32_MAX)
        return kvs_fail(e->err, KVS_REQ_TOO_LONG, "the text has %zu bytes in one piece", n);
    if (n <= WORD_BYTES || !is_wide(piece, n))
        return queue_text(e, piece, n, 0);
    kvs_status st = KVS_OK;
    for (size_t at = 0; st == KVS_OK && at < n;) {
        size_t k = mdl_cut_end(e->t->cuts, piece + at, n - at);
        st = queue_text(e, piece + at, k, k < n ? e->t->part_mark : 0);
        at += k;
    }
    return st;
}

/* The next place behind `at` that no token spans. */
static size_t word_end(const struct mdl_tokenizer *t, const uint8_t *text, size_t n, size_t at)
{
    size_t end = at + 1;
    while (end < n && mdl_joined(t, text[end - 1], text[end]))
        end++;
    return end;
}

static kvs_status encode_words(struct encoder *e, const uint8_t *text, size_t n)
{
    kvs_status st = KVS_OK;
    for (size_t at = 0; st == KVS_OK && at < n;) {
        size_t end = e->plain ? n : word_end(e->t, text, n, at);
        st = take_piece(e, text + at, end - at);
        at = end;
    }
    return st;
}

/* Where the text is not what is to be merged: with a space in front, or with spaces for U+2581. */
static kvs_status encode_copy(struct encoder *e, const uint8_t *text, size_t n)
{
    uint8_t *copy = malloc(n + 1 + MDL_LONG_BYTES);
    size_t len = 0;
    if (copy == NULL)
        return kvs_fail(e->err, KVS_SELF_NOMEM, "no memory to tokenize %zu bytes", n);
    if (e->t->space_prefix) /* every stretch is the first one or follows a special token */
        copy[len++] = ' ';
    for (size_t i = 0; i < n;) {
        const uint8_t *mark = e->marks ? memchr(text + i, 0xe2, n - i) : NULL;
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
    memset(copy + len, 0, MDL_LONG_BYTES);
    const uint8_t *limit = e->limit;
    kvs_status st = take_waiting(e);
    e->limit = copy + len + MDL_LONG_BYTES;
    if (st == KVS_OK)
        st = encode_words(e, copy, len);
    if (st == KVS_OK)
        st = take_waiting(e);
    e->limit = limit;
    free(copy);
    return st;
}

static kvs_status encode_plain(struct encoder *e, const uint8_t *text, size_t n)
{
    if (n == 0)
        return KVS_OK;
    if (e->t->spm)
        return e->t->space_prefix || e->marks ? encode_copy(e, text, n) : encode_words(e, text, n);
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
    uint32_t lo = specials->begin[text[0]], hi = specials->begin[text[0] + 1];
    size_t best = 0;
    if (lo == hi)
        return 0;
    if (mdl_text(t, specials->ids[lo]).len == 1) { /* the first of them */
        best = 1;
        *id_out = specials->ids[lo];
    }
    if (n > 1 && (specials->second[text[0]][text[1] / 32] >> text[1] % 32 & 1) == 0)
        return best;
    for (size_t depth = 1; depth < n; depth++) {
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
        st = queue_special(e, t->bos);
    for (size_t at = 0; st == KVS_OK && specials->count > 0 && at < n;) {
        int32_t id = MDL_NO_ID;
        size_t len = match_special(t, specials, text + at, n - at, &id);
        if (len == 0) {
            at++;
            while (at < n && specials->begin[text[at]] == specials->begin[text[at] + 1])
                at++;
            continue;
        }
        st = encode_plain(e, text + plain, at - plain);
        if (st == KVS_OK)
            st = queue_special(e, id);
        at += len;
        while (at < n && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r')) && mdl_strips_behind(t, id))
            at++;
        plain = at;
    }
    if (st == KVS_OK)
        st = encode_plain(e, text + plain, n - plain);
    if (st == KVS_OK && (flags & MDL_ADD_SPECIAL) != 0 && t->add_eos)
        st = queue_special(e, t->eos);
    return st == KVS_OK ? take_waiting(e) : st;
}

static bool has_marks(const uint8_t *text, size_t n)
{
    const uint8_t *end = text + n;
    for (const uint8_t *at = n > 0 ? memchr(text, 0xe2, n) : NULL; at != NULL;
         at = memchr(at, 0xe2, (size_t)(end - at))) {
        if (end - at >= 3 && at[1] == 0x96 && at[2] == 0x81)
            return true;
        if (++at == end)
            break;
    }
    return false;
}

kvs_status mdl_encode(const struct mdl_tokenizer *t, const char *text, size_t len, uint32_t flags, size_t ids_max,
                      struct mdl_ids *out, struct kvs_error *err)
{
    struct encoder e;
    e.t = t;
    e.err = err;
    e.merger = (struct mdl_merger){.t = t, .out = out, .ids_max = ids_max, .err = err};
    e.waiting = 0;
    e.plain = (flags & MDL_ENCODE_PLAIN) != 0;
    e.limit = (const uint8_t *)text + len;
    size_t before = out->count, room = ids_max > before ? ids_max - before : 0;
    /* No token covers more than the longest one does (SPM: three bytes of U+2581 a space): hopeless texts cost nothing. */
    if (len / ((size_t)t->longest * (t->spm ? 3 : 1) + 1) > room)
        return kvs_fail(err, KVS_REQ_TOO_LONG, "the text has more than %zu tokens", ids_max);
    e.marks = t->spm && has_marks((const uint8_t *)text, len);
    e.words = e.plain ? NULL : mdl_words_acquire(t->words);
    kvs_status st = encode_all(&e, (const uint8_t *)text, len, flags);
    mdl_words_release(t->words, e.words);
    mdl_merger_fini(&e.merger);
    if (st != KVS_OK)
        out->count = before;
    return st;
}

kvs_status mdl_encode_chat(const struct mdl_tokenizer *t, const char *text, size_t len, size_t ids_max,
                           struct mdl_ids *out, struct kvs_error *err)
{
    size_t at = out->count;
    kvs_status st = mdl_encode(t, text, len, MDL_ADD_SPECIAL | MDL_PARSE_SPECIAL, ids_max, out, err);
    if (st == KVS_OK && t->add_bos && out->count >= at + 2 && out->ids[at] == t->bos && out->ids[at + 1] == t->bos) {
        out->count--;
        memmove(out->ids + at, out->ids + at + 1, (out->count - at) * sizeof *out->ids);
    }
    return st;
}
