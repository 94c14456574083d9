/* tokenizer.c - the vocabulary: every token's bytes, the look-up tables of the encoder, and what the file's keys ask for.
 *
 * Texts lie behind each other in one blob, as the bytes a token stands for: SPM's U+2581 becomes a space and <0x41> the
 * byte; byte-level BPE's 256 printable characters become bytes again. Control and user-defined tokens are kept as written.
 * Which tokens can come out of merging is decided here, by what enters the look-up table: for SPM normal, user-defined and
 * unused ones (as SentencePiece itself does), so that text can never turn into a control token by merging.
 * BPE merges name texts; here they become pairs of ids. A merge may name a text that is no token (never seen, but the
 * format allows it): such texts get ids behind the vocabulary and are written out byte by byte if they survive.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_int.h"
#include "base/checked.h"
#include "base/utf8.h"
#include "model/keys.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define VOCAB_MAX 16777216u
#define TEXT_MAX 65536u /* bytes of one token */

void mdl_ids_fini(struct mdl_ids *v)
{
    free(v->ids);
    memset(v, 0, sizeof *v);
}

kvs_status mdl_ids_push(struct mdl_ids *v, int32_t id)
{
    if (v->count == v->cap) {
        size_t cap = v->cap < 32 ? 64 : v->cap * 2;
        int32_t *grown = realloc(v->ids, cap * sizeof *grown);
        if (grown == NULL)
            return KVS_SELF_NOMEM;
        v->ids = grown;
        v->cap = cap;
    }
    v->ids[v->count++] = id;
    return KVS_OK;
}

struct mdl_str mdl_text(const struct mdl_tokenizer *t, int32_t id)
{
    uint32_t begin = t->text_end[id];
    return (struct mdl_str){(const char *)t->blob + begin, t->text_end[id + 1] - begin};
}

/* Texts and their table. */

static kvs_status add_text(struct mdl_tokenizer *t, const void *bytes, size_t n, struct kvs_error *err)
{
    if (n > TEXT_MAX || t->blob_len + n > INT32_MAX)
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.tokens: token %" PRIu32 " has %zu bytes", t->text_count,
                        n);
    if (t->blob_len + n > t->blob_cap) {
        size_t cap = t->blob_cap * 2 > t->blob_len + n ? t->blob_cap * 2 : t->blob_len + n + 4096;
        uint8_t *grown = realloc(t->blob, cap);
        if (grown == NULL)
            return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
        t->blob = grown;
        t->blob_cap = cap;
    }
    if (t->text_count + 2 > t->text_cap) {
        uint32_t cap = t->text_cap * 2 + 256;
        uint32_t *grown = realloc(t->text_end, cap * sizeof *grown);
        if (grown == NULL)
            return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
        t->text_end = grown;
        t->text_cap = cap;
    }
    if (t->text_count == 0)
        t->text_end[0] = 0;
    if (n > 0)
        memcpy(t->blob + t->blob_len, bytes, n);
    t->blob_len += n;
    t->text_end[++t->text_count] = (uint32_t)t->blob_len;
    t->longest = n > t->longest ? (uint32_t)n : t->longest;
    return KVS_OK;
}

static uint32_t text_hash(const uint8_t *bytes, size_t n)
{
    return (uint32_t)XXH3_64bits(bytes, n);
}

static uint32_t find_slot(const struct mdl_tokenizer *t, uint32_t hash, const uint8_t *bytes, size_t n)
{
    for (uint32_t i = hash & t->slot_mask;; i = (i + 1) & t->slot_mask) {
        const struct mdl_slot *slot = &t->slots[i];
        if (slot->id == MDL_NO_ID)
            return i;
        if (slot->hash != hash)
            continue;
        struct mdl_str s = mdl_text(t, slot->id);
        if (s.len == n && memcmp(s.data, bytes, n) == 0)
            return i;
    }
}

int32_t mdl_text_find(const struct mdl_tokenizer *t, const uint8_t *bytes, size_t n)
{
    return n > t->longest ? MDL_NO_ID : t->slots[find_slot(t, text_hash(bytes, n), bytes, n)].id;
}

static kvs_status grow_slots(struct mdl_tokenizer *t, struct kvs_error *err)
{
    if (t->slots != NULL && t->slot_used < t->slot_mask / 2)
        return KVS_OK;
    uint32_t old_count = t->slots != NULL ? t->slot_mask + 1 : 0, count = old_count != 0 ? old_count * 2 : 1024;
    struct mdl_slot *old = t->slots, *slots = malloc(count * sizeof *slots);
    if (slots == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
    for (uint32_t i = 0; i < count; i++)
        slots[i].id = MDL_NO_ID;
    t->slots = slots;
    t->slot_mask = count - 1;
    for (uint32_t i = 0; i < old_count; i++) {
        if (old[i].id == MDL_NO_ID)
            continue;
        uint32_t at = old[i].hash & t->slot_mask;
        while (slots[at].id != MDL_NO_ID)
            at = (at + 1) & t->slot_mask;
        slots[at] = old[i];
    }
    free(old);
    return KVS_OK;
}

/* A text that is there twice belongs to the later id. */
static kvs_status enter_text(struct mdl_tokenizer *t, int32_t id, struct kvs_error *err)
{
    struct mdl_str s = mdl_text(t, id);
    kvs_status st = grow_slots(t, err);
    if (st != KVS_OK || s.len == 0)
        return st;
    uint32_t hash = text_hash((const uint8_t *)s.data, s.len), i = find_slot(t, hash, (const uint8_t *)s.data, s.len);
    t->slot_used += t->slots[i].id == MDL_NO_ID;
    t->slots[i] = (struct mdl_slot){hash, id};
    return KVS_OK;
}

/* From the file's spelling to bytes. out has room for s.len bytes: no spelling is shorter than what it means. */

static size_t spm_bytes(struct mdl_str s, uint8_t *out)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len;) {
        if (s.len - i >= 3 && memcmp(s.data + i, "\xe2\x96\x81", 3) == 0) {
            out[n++] = ' ';
            i += 3;
        } else {
            out[n++] = (uint8_t)s.data[i++];
        }
    }
    return n;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* <0x41>; -1 for anything else. */
static int byte_token(struct mdl_str s)
{
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>')
        return -1;
    int hi = hex_digit(s.data[3]), lo = hex_digit(s.data[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards in order. */
static int gpt2_byte(uint32_t cp)
{
    static const uint8_t gaps[][2] = {{0, 32}, {127, 160}, {173, 173}};
    if (cp < 256) {
        bool gap = cp <= 32 || (cp >= 127 && cp <= 160) || cp == 173;
        return gap ? -1 : (int)cp;
    }
    uint32_t k = cp - 256;
    for (size_t i = 0; i < sizeof gaps / sizeof gaps[0]; i++) {
        uint32_t count = gaps[i][1] - gaps[i][0] + 1u;
        if (k < count)
            return (int)(gaps[i][0] + k);
        k -= count;
    }
    return -1;
}

static size_t bpe_bytes(struct mdl_str s, uint8_t *out)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0;
        int k = kvs_utf8_decode((const uint8_t *)s.data + i, s.len - i, &cp), byte = k > 0 ? gpt2_byte(cp) : -1;
        if (byte < 0) { /* not in that alphabet: an added token, kept as written */
            memcpy(out, s.data, s.len);
            return s.len;
        }
        out[n++] = (uint8_t)byte;
        i += (size_t)k;
    }
    return n;
}

static kvs_status read_token(struct mdl_tokenizer *t, const struct mdl_gguf *g, uint32_t i, uint8_t *scratch,
                             struct kvs_error *err)
{
    struct mdl_str s;
    int64_t type = MDL_TOKEN_NORMAL;
    uint64_t n;
    if (!mdl_gguf_array_str(g, "tokenizer.ggml.tokens", i, &s) || s.len > TEXT_MAX)
        return kvs_fail(err, KVS_SELF_MODEL,
                        "tokenizer.ggml.tokens: entry %" PRIu32 " is no string of at most %u bytes", i, TEXT_MAX);
    if (mdl_gguf_array(g, "tokenizer.ggml.token_type", &n) &&
        (!mdl_gguf_array_i64(g, "tokenizer.ggml.token_type", i, &type) || type < 1 || type > 6))
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.token_type: entry %" PRIu32 " is not 1 to 6", i);
    t->type[i] = (uint8_t)type;
    if (type == MDL_TOKEN_CONTROL || type == MDL_TOKEN_UNKNOWN || type == MDL_TOKEN_USER)
        return add_text(t, s.data, s.len, err);
    if (!t->spm)
        return add_text(t, scratch, bpe_bytes(s, scratch), err);
    int byte = type == MDL_TOKEN_BYTE ? byte_token(s) : -1;
    if (byte < 0)
        return add_text(t, scratch, spm_bytes(s, scratch), err);
    scratch[0] = (uint8_t)byte;
    t->byte_id[byte] = (int32_t)i;
    return add_text(t, scratch, 1, err);
}

/* User-defined tokens first, so that a normal one with the same text wins. */
static kvs_status enter_tokens(struct mdl_tokenizer *t, struct kvs_error *err)
{
    kvs_status st = grow_slots(t, err);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; st == KVS_OK && i < t->vocab; i++) {
            uint8_t type = t->type[i];
            if ((type == MDL_TOKEN_USER) != (round == 0) || type == MDL_TOKEN_CONTROL || type == MDL_TOKEN_UNKNOWN ||
                (t->spm && type == MDL_TOKEN_BYTE))
                continue;
            st = enter_text(t, (int32_t)i, err);
        }
    }
    for (int b = 0; !t->spm && st == KVS_OK && b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        t->byte_id[b] = mdl_text_find(t, &byte, 1);
    }
    return st;
}

static kvs_status read_tokens(struct mdl_tokenizer *t, const struct mdl_gguf *g, struct kvs_error *err)
{
    uint64_t n, types;
    if (!mdl_gguf_array(g, "tokenizer.ggml.tokens", &n) || n == 0 || n > VOCAB_MAX)
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.tokens: absent, or not 1 to %u strings", VOCAB_MAX);
    if (mdl_gguf_array(g, "tokenizer.ggml.token_type", &types) && types != n)
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.token_type: %" PRIu64 " entries for %" PRIu64 " tokens",
                        types, n);
    t->vocab = (uint32_t)n;
    t->type = calloc(t->vocab, 1);
    t->whole = calloc(t->vocab, 1);
    uint8_t *scratch = malloc(TEXT_MAX);
    kvs_status st = KVS_OK;
    if (t->type == NULL || t->whole == NULL || scratch == NULL)
        st = kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
    for (uint32_t i = 0; st == KVS_OK && i < t->vocab; i++)
        st = read_token(t, g, i, scratch, err);
    free(scratch);
    return st == KVS_OK ? enter_tokens(t, err) : st;
}

/* SPM: a higher score merges earlier. The bits of a float, turned round, sort as its value does. */
static kvs_status read_scores(struct mdl_tokenizer *t, const struct mdl_gguf *g, struct kvs_error *err)
{
    uint64_t n;
    if (!mdl_gguf_array(g, "tokenizer.ggml.scores", &n) || n != t->vocab)
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.scores: absent, or not one number a token");
    t->prio = calloc(t->vocab, sizeof *t->prio);
    if (t->prio == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
    for (uint32_t i = 0; i < t->vocab; i++) {
        double v;
        if (!mdl_gguf_array_f64(g, "tokenizer.ggml.scores", i, &v) || v != v)
            return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.scores: entry %" PRIu32 " is no number", i);
        float f = (float)v + 0.0f; /* -0 becomes 0 */
        uint32_t bits = kvs_load_u32(&f);
        t->prio[i] = ~((bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u);
    }
    return KVS_OK;
}

/* BPE merges: pairs of texts to pairs of ids. */

static kvs_status text_id(struct mdl_tokenizer *t, const uint8_t *bytes, size_t n, int32_t *out, struct kvs_error *err)
{
    *out = mdl_text_find(t, bytes, n);
    if (*out != MDL_NO_ID)
        return KVS_OK;
    kvs_status st = add_text(t, bytes, n, err);
    if (st != KVS_OK)
        return st;
    *out = (int32_t)(t->text_count - 1);
    return enter_text(t, *out, err);
}

static void put_pair(struct mdl_tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, hash = mdl_pair_hash(key),
             bit = hash >> 32 & t->filter_mask;
    t->pair_filter[bit / 64] |= UINT64_C(1) << bit % 64;
    for (uint64_t i = hash & t->pair_mask;; i = (i + 1) & t->pair_mask) {
        struct mdl_pair *p = &t->pairs[i];
        if (p->key == key)
            return; /* twice: the first, which is the better rank, stays */
        if (p->key == MDL_PAIR_EMPTY) {
            *p = (struct mdl_pair){key, rank, id};
            return;
        }
    }
}

static kvs_status make_pairs(struct mdl_tokenizer *t, uint64_t n, struct kvs_error *err)
{
    uint64_t slots = 1024;
    while (slots < 2 * n)
        slots *= 2;
    t->pair_mask = slots - 1;
    t->pairs = malloc((size_t)slots * sizeof *t->pairs);
    t->filter_mask = slots * MDL_PAIR_BITS - 1;
    t->pair_filter = calloc((size_t)slots * MDL_PAIR_BITS / 64, sizeof *t->pair_filter);
    if (t->pairs == NULL || t->pair_filter == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
    for (uint64_t i = 0; i < slots; i++)
        t->pairs[i].key = MDL_PAIR_EMPTY;
    return KVS_OK;
}

/* SPM merges by text: two neighbours whose texts together are a token. Here every cut of every token into two tokens becomes a pair, so
 * that the encoder compares ids instead of bytes. Counts them when put is false. */
static uint64_t cut_tokens(struct mdl_tokenizer *t, bool put)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < t->vocab; i++) {
        struct mdl_str s = mdl_text(t, (int32_t)i);
        const uint8_t *bytes = (const uint8_t *)s.data;
        if (s.len < 2 || mdl_text_find(t, bytes, s.len) != (int32_t)i)
            continue;
        for (size_t k = 1; k < s.len; k++) {
            if ((bytes[k] & 0xc0) == 0x80) /* never between the bytes of a character */
                continue;
            int32_t left = mdl_text_find(t, bytes, k),
                    right = left < 0 ? MDL_NO_ID : mdl_text_find(t, bytes + k, s.len - k);
            if (right < 0)
                continue;
            count++;
            if (put)
                put_pair(t, left, right, t->prio[i], (int32_t)i);
        }
    }
    return count;
}

static kvs_status pair_tokens(struct mdl_tokenizer *t, struct kvs_error *err)
{
    kvs_status st = make_pairs(t, cut_tokens(t, false), err);
    if (st != KVS_OK)
        return st;
    (void)cut_tokens(t, true);
    for (uint8_t c = 0; c < 128; c++)
        t->ascii_id[c] = mdl_text_find(t, &c, 1);
    return KVS_OK;
}

static kvs_status read_merge(struct mdl_tokenizer *t, const struct mdl_gguf *g, uint32_t rank, uint8_t *scratch,
                             struct kvs_error *err)
{
    struct mdl_str s;
    int32_t left, right, both;
    if (!mdl_gguf_array_str(g, "tokenizer.ggml.merges", rank, &s) || s.len < 3 || s.len > TEXT_MAX)
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.merges: entry %" PRIu32 " is no pair of texts", rank);
    const char *space = memchr(s.data + 1, ' ', s.len - 1);
    if (space == NULL || space == s.data + s.len - 1)
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.merges: entry %" PRIu32 " is no pair of texts", rank);
    struct mdl_str a = {s.data, (size_t)(space - s.data)}, b = {space + 1, s.len - a.len - 1};
    size_t an = bpe_bytes(a, scratch), bn = bpe_bytes(b, scratch + an);
    kvs_status st = text_id(t, scratch, an, &left, err);
    if (st == KVS_OK)
        st = text_id(t, scratch + an, bn, &right, err);
    if (st == KVS_OK)
        st = text_id(t, scratch, an + bn, &both, err);
    if (st == KVS_OK)
        put_pair(t, left, right, rank, both);
    return st;
}

static kvs_status read_merges(struct mdl_tokenizer *t, const struct mdl_gguf *g, struct kvs_error *err)
{
    uint64_t n;
    if (!mdl_gguf_array(g, "tokenizer.ggml.merges", &n) || n > VOCAB_MAX)
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.merges: absent, or more than %u", VOCAB_MAX);
    kvs_status st = make_pairs(t, n, err);
    uint8_t *scratch = malloc(TEXT_MAX);
    if (st == KVS_OK && scratch == NULL)
        st = kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
    for (uint32_t i = 0; st == KVS_OK && i < n; i++)
        st = read_merge(t, g, i, scratch, err);
    free(scratch);
    return st;
}

/* A piece that is a token can be taken whole only if merging would have given just that; found out once, here. */
static kvs_status mark_whole(struct mdl_tokenizer *t, struct kvs_error *err)
{
    if (t->pretok != NULL && (mdl_pretok_flags(t->pretok) & MDL_PRETOK_WHOLE) != 0) {
        t->part_mark = MDL_WORD_PART;
        memset(t->whole, 1, t->vocab);
        return KVS_OK;
    }
    struct mdl_ids ids = {0};
    struct mdl_merger m = {.t = t, .out = &ids, .ids_max = SIZE_MAX, .err = err};
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < t->vocab; i++) {
        struct mdl_str s = mdl_text(t, (int32_t)i);
        if (s.len == 0 || mdl_text_find(t, (const uint8_t *)s.data, s.len) != (int32_t)i)
            continue;
        ids.count = 0;
        st = mdl_merger_run(&m, (const uint8_t *)s.data, s.len);
        if (st == KVS_REQ_INVALID) /* holds a byte that has no token: never reached by merging */
            st = KVS_OK;
        else
            t->whole[i] = ids.count == 1 && ids.ids[0] == (int32_t)i;
    }
    mdl_merger_fini(&m);
    mdl_ids_fini(&ids);
    return st;
}

/* SentencePiece merges over the whole text. Where no token can span a place, the merges on either side of it do not see each
 * other, and cutting there changes nothing but the time. Whatever merging makes is a text of the look-up table, so a place between
 * two bytes that stand side by side in none of these is such a place, if it is no place within a character: a byte that continues one
 * counts as joined with anything. In most vocabularies there is one in front of every word; one in which a token spans it is not cut there. */
static void find_joins(struct mdl_tokenizer *t)
{
    for (uint32_t a = 0; a < 256; a++)
        t->joins[a][4] = t->joins[a][5] = UINT32_MAX; /* 0x80 to 0xbf */
    for (uint32_t i = 0; i < t->vocab; i++) {
        struct mdl_str s = mdl_text(t, (int32_t)i);
        const uint8_t *bytes = (const uint8_t *)s.data;
        if (s.len < 2 || mdl_text_find(t, bytes, s.len) == MDL_NO_ID)
            continue;
        for (size_t k = 1; k < s.len; k++)
            t->joins[bytes[k - 1]][bytes[k] / 32] |= 1u << bytes[k] % 32;
    }
}

/* Special tokens, sorted by their bytes: the encoder narrows a range of them byte by byte. */

static int compare_texts(const struct mdl_tokenizer *t, int32_t a, int32_t b)
{
    struct mdl_str x = mdl_text(t, a), y = mdl_text(t, b);
    int d = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    return d != 0 ? d : (x.len > y.len) - (x.len < y.len);
}

static void sort_texts(const struct mdl_tokenizer *t, int32_t *v, int32_t *scratch, uint32_t n)
{
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t lo = 0; lo < n; lo += 2 * width) {
            uint32_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n, a = lo,
                     b = mid;
            for (uint32_t k = lo; k < hi; k++)
                scratch[k] = b >= hi || (a < mid && compare_texts(t, v[a], v[b]) <= 0) ? v[a++] : v[b++];
        }
        memcpy(v, scratch, n * sizeof *v);
    }
}

static void note_second(struct mdl_specials *s, uint8_t first, uint8_t second)
{
    s->second[first][second / 32] |= 1u << second % 32;
}

static kvs_status collect_specials(struct mdl_tokenizer *t, bool user_only, struct mdl_specials *out,
                                   struct kvs_error *err)
{
    int32_t *scratch;
    uint32_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (uint32_t i = 0; i < t->vocab; i++) {
            uint8_t type = t->type[i];
            struct mdl_str s = mdl_text(t, (int32_t)i);
            bool wanted =
                type == MDL_TOKEN_USER || (!user_only && (type == MDL_TOKEN_CONTROL || type == MDL_TOKEN_UNKNOWN));
            if (!wanted || s.len == 0)
                continue;
            if (pass == 1) {
                out->ids[n] = (int32_t)i;
                if (s.len > 1)
                    note_second(out, (uint8_t)s.data[0], (uint8_t)s.data[1]);
                out->begin[(uint8_t)s.data[0] + 1]++;
            }
            n++;
        }
        if (pass == 0) {
            out->ids = calloc((size_t)n + 1, sizeof *out->ids);
            if (out->ids == NULL)
                return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
        }
    }
    out->count = n;
    for (int b = 0; b < 256; b++)
        out->begin[b + 1] += out->begin[b];
    scratch = calloc((size_t)n + 1, sizeof *scratch);
    if (scratch == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the vocabulary");
    sort_texts(t, out->ids, scratch, n);
    free(scratch);
    return KVS_OK;
}

/* Which special tokens swallow the white space behind them (their "rstrip" where the tokenizer comes from) stands in no key. Phi-3's do, all
 * but three; its files are known by their name, as in llama.cpp. Its template puts a line end behind every role, which the model never saw. */
static bool named_phi3(const struct mdl_gguf *g)
{
    static const char *const words[] = {"phi3", "phi-3", "phi 3"};
    struct mdl_str name;
    if (!mdl_gguf_str(g, "general.name", &name))
        return false;
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
        size_t n = strlen(words[w]);
        for (size_t at = 0; at + n <= name.len; at++) {
            size_t k = 0;
            while (k < n && (name.data[at + k] >= 'A' && name.data[at + k] <= 'Z' ? name.data[at + k] + 32
                                                                                  : name.data[at + k]) == words[w][k])
                k++;
            if (k == n)
                return true;
        }
    }
    return false;
}

bool mdl_strips_behind(const struct mdl_tokenizer *t, int32_t special)
{
    struct mdl_str s = mdl_text(t, special);
    return t->strips && !mdl_str_is(s, "<s>") && !mdl_str_is(s, "<unk>") && !mdl_str_is(s, "<|endoftext|>");
}

/* Keys. */

static kvs_status read_kind(struct mdl_tokenizer *t, const struct mdl_gguf *g, struct kvs_error *err)
{
    struct mdl_str model, pre;
    kvs_status st = mdl_key_str(g, "tokenizer.ggml.model", &model, err);
    if (st != KVS_OK)
        return st;
    if (model.data == NULL)
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.model: absent");
    t->spm = mdl_str_is(model, "llama");
    if (!t->spm && !mdl_str_is(model, "gpt2")) {
        char shown[40];
        size_t n = model.len < sizeof shown - 1 ? model.len : sizeof shown - 1;
        for (size_t i = 0; i < n; i++)
            shown[i] = model.data[i] > 32 && model.data[i] < 127 ? model.data[i] : '?';
        shown[n] = '\0';
        return kvs_fail(err, KVS_SELF_MODEL, "tokenizer.ggml.model: '%s' is not supported (llama and gpt2 are)", shown);
    }
    if (t->spm)
        return KVS_OK;
    st = mdl_key_str(g, "tokenizer.ggml.pre", &pre, err);
    if (st != KVS_OK)
        return st;
    t->pre_guessed = pre.data == NULL;
    if (t->pre_guessed)
        pre = (struct mdl_str){"default", 7};
    return mdl_pretok_find(pre, &t->pretok, err);
}

/* Half-filled on failure: mdl_tokenizer_destroy copes. */
static kvs_status fill(struct mdl_tokenizer *t, const struct mdl_gguf *g, struct kvs_error *err)
{
    kvs_status st = read_kind(t, g, err);
    if (st == KVS_OK)
        st = read_tokens(t, g, err);
    if (st == KVS_OK)
        st = mdl_key_id(g, "tokenizer.ggml.bos_token_id", t->spm ? 1 : MDL_NO_ID, t->vocab, &t->bos, err);
    if (st == KVS_OK)
        st = mdl_key_id(g, "tokenizer.ggml.eos_token_id", t->spm ? 2 : MDL_NO_ID, t->vocab, &t->eos, err);
    if (st == KVS_OK)
        st = mdl_key_id(g, "tokenizer.ggml.unknown_token_id", t->spm ? 0 : MDL_NO_ID, t->vocab, &t->unk, err);
    if (st == KVS_OK)
        st = t->spm ? read_scores(t, g, err) : read_merges(t, g, err);
    if (st == KVS_OK && t->spm)
        st = pair_tokens(t, err);
    if (st == KVS_OK)
        st = mark_whole(t, err);
    if (st == KVS_OK && t->spm)
        find_joins(t);
    if (st == KVS_OK && (t->cuts = mdl_cuts_create(t)) == NULL)
        st = kvs_fail(err, KVS_SELF_NOMEM, "no memory for the tokenizer");
    if (st == KVS_OK)
        st = collect_specials(t, false, &t->special_all, err);
    if (st == KVS_OK)
        st = collect_specials(t, true, &t->special_user, err);
    bool bos = t->spm || (t->pretok != NULL && (mdl_pretok_flags(t->pretok) & MDL_PRETOK_BOS) != 0);
    t->add_bos = bos;
    t->space_prefix = t->spm;
    t->strips = named_phi3(g);
    if (st == KVS_OK)
        st = mdl_key_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err);
    if (st == KVS_OK)
        st = mdl_key_bool(g, "tokenizer.ggml.add_eos_token", &t->add_eos, err);
    if (st == KVS_OK)
        st = mdl_key_bool(g, "tokenizer.ggml.add_space_prefix", &t->space_prefix, err);
    t->space_prefix = t->space_prefix && t->spm;
    t->add_bos = t->add_bos && t->bos != MDL_NO_ID;
    t->add_eos = t->add_eos && t->eos != MDL_NO_ID;
    return st;
}

bool mdl_tokenizer_pre_guessed(const struct mdl_tokenizer *t)
{
    return t->pre_guessed;
}

kvs_status mdl_tokenizer_create(const struct mdl_gguf *g, struct mdl_tokenizer **out, struct kvs_error *err)
{
    struct mdl_tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for the tokenizer");
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = MDL_NO_ID;
    t->words = mdl_word_caches_create();
    kvs_status st = t->words != NULL ? fill(t, g, err) : kvs_fail(err, KVS_SELF_NOMEM, "no memory for the tokenizer");
    if (st != KVS_OK) {
        mdl_tokenizer_destroy(t);
        return st;
    }
    *out = t;
    return KVS_OK;
}

void mdl_tokenizer_destroy(struct mdl_tokenizer *t)
{
    if (t == NULL)
        return;
    free(t->blob);
    free(t->text_end);
    free(t->type);
    free(t->whole);
    free(t->prio);
    free(t->slots);
    free(t->pairs);
    free(t->pair_filter);
    free(t->special_all.ids);
    free(t->special_user.ids);
    mdl_word_caches_destroy(t->words);
    mdl_cuts_destroy(t->cuts);
    free(t);
}

uint32_t mdl_vocab_size(const struct mdl_tokenizer *t)
{
    return t->vocab;
}

bool mdl_is_control(const struct mdl_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab && (t->type[id] == MDL_TOKEN_CONTROL || t->type[id] == MDL_TOKEN_UNKNOWN);
}

struct mdl_str mdl_token_bytes(const struct mdl_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab ? mdl_text(t, id) : (struct mdl_str){"", 0};
}
