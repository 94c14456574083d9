/* merge.c - one piece of text to ids, by merging neighbours in order of priority, leftmost first on ties.
 *
 * Symbols (bytes for BPE, characters for SPM) are a linked list in an array; each knows the priority of merging it with
 * the next one. Short pieces are scanned for the best pair again and again; long ones keep a heap of (priority, symbol).
 * Heap entries are not removed when a pair disappears: an entry counts only while its symbol still has that priority.
 * A stale entry that happens to agree is as good as a fresh one, since priority and position are all that decides.
 * So a piece of n bytes takes O(n log n) time, 48 bytes a byte, and no recursion, whatever it holds.
 *
 * The priority of a pair is BPE's rank, or SPM's score of the token that the two texts form, turned round so that lower is better in both;
 * one table by (id, id) holds either.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_int.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_MAX 32u /* longest piece for which scanning beats the heap */
#define NONE MDL_PRIO_NONE

void mdl_merger_fini(struct mdl_merger *m)
{
    free(m->symbols);
    free(m->heap);
    m->symbols = NULL;
    m->heap = NULL;
}

kvs_status mdl_merger_emit(struct mdl_merger *m, int32_t id)
{
    if (m->out->count >= m->ids_max)
        return kvs_fail(m->err, KVS_REQ_TOO_LONG, "the text has more than %zu tokens", m->ids_max);
    kvs_status s = mdl_ids_push(m->out, id);
    return s == KVS_OK ? s : kvs_fail(m->err, s, "no memory for the tokens of the text");
}

static bool reserve(void **p, size_t *cap, size_t n, size_t item)
{
    if (n <= *cap)
        return true;
    size_t want = *cap * 2 > n ? *cap * 2 : n;
    void *grown = realloc(*p, want * item);
    if (grown == NULL)
        return false;
    *p = grown;
    *cap = want;
    return true;
}

static void find_ids(const struct mdl_tokenizer *t, struct mdl_symbol *s, const struct mdl_symbol *next)
{
    s->prio = NONE;
    uint64_t key = (uint64_t)(uint32_t)s->id << 32 | (uint32_t)next->id;
    uint64_t hash = mdl_pair_hash(key), bit = hash >> 32 & t->filter_mask;
    if ((t->pair_filter[bit / 64] >> bit % 64 & 1) == 0)
        return;
    for (uint64_t i = hash & t->pair_mask;; i = (i + 1) & t->pair_mask) {
        const struct mdl_pair *p = &t->pairs[i];
        if (p->key == key) {
            s->prio = p->rank;
            s->merged = p->id;
            return;
        }
        if (p->key == MDL_PAIR_EMPTY)
            return;
    }
}

/* A character that is no token may still be part of one. */
static void find_text(const struct mdl_tokenizer *t, struct mdl_symbol *s, const uint8_t *piece, uint32_t end)
{
    s->prio = NONE;
    if (end - s->start > t->longest)
        return;
    int32_t id = mdl_text_find(t, piece + s->start, end - s->start);
    if (id == MDL_NO_ID)
        return;
    s->prio = t->prio[id];
    s->merged = id;
}

/* Sets the priority of merging symbol i with the next one. */
static void find_pair(struct mdl_merger *m, const uint8_t *piece, uint32_t n, uint32_t i)
{
    struct mdl_symbol *s = &m->symbols[i];
    s->prio = NONE;
    if (s->next == NONE)
        return;
    const struct mdl_symbol *next = &m->symbols[s->next];
    if (s->id >= 0 && next->id >= 0)
        find_ids(m->t, s, next);
    else if (m->t->spm)
        find_text(m->t, s, piece, next->next == NONE ? n : m->symbols[next->next].start);
}

static uint32_t cut_symbols(struct mdl_merger *m, const uint8_t *piece, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < n; count++) {
        uint32_t len = 1, cp;
        struct mdl_symbol *s = &m->symbols[count];
        if (m->t->spm && piece[at] < 0x80) {
            s->id = m->t->ascii_id[piece[at]];
        } else if (m->t->spm) {
            int k = kvs_utf8_decode(piece + at, n - at, &cp);
            len = k > 0 ? (uint32_t)k : 1;
            s->id = mdl_text_find(m->t, piece + at, len);
        } else {
            s->id = m->t->byte_id[piece[at]];
        }
        s->start = at;
        s->prev = count - 1; /* NONE for the first */
        s->next = count + 1;
        at += len;
    }
    m->symbols[count - 1].next = NONE;
    return count;
}

/* Merges symbol i with the next one; priorities of i and of the one before it are set anew. */
static void merge_at(struct mdl_merger *m, const uint8_t *piece, uint32_t n, uint32_t i)
{
    struct mdl_symbol *s = &m->symbols[i];
    struct mdl_symbol *gone = &m->symbols[s->next];
    s->id = s->merged;
    s->next = gone->next;
    gone->prio = NONE;
    if (s->next != NONE)
        m->symbols[s->next].prev = i;
    find_pair(m, piece, n, i);
    if (s->prev != NONE)
        find_pair(m, piece, n, s->prev);
}

static void merge_by_scan(struct mdl_merger *m, const uint8_t *piece, uint32_t n)
{
    for (;;) {
        uint32_t best = NONE, prio = NONE;
        for (uint32_t i = 0; i != NONE; i = m->symbols[i].next) {
            if (m->symbols[i].prio < prio) {
                prio = m->symbols[i].prio;
                best = i;
            }
        }
        if (best == NONE)
            return;
        merge_at(m, piece, n, best);
    }
}

/* A 4-ary heap: half the levels of a binary one, and the four children share a cache line. */
static void heap_up(uint64_t *heap, size_t at)
{
    uint64_t v = heap[at];
    while (at > 0 && heap[(at - 1) / 4] > v) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap[at] = v;
}

static void heap_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t v = heap[at];
    for (;;) {
        size_t first = 4 * at + 1, best = first;
        if (first >= n)
            break;
        for (size_t i = first + 1; i < n && i < first + 4; i++) {
            if (heap[i] < heap[best])
                best = i;
        }
        if (heap[best] >= v)
            break;
        heap[at] = heap[best];
        at = best;
    }
    heap[at] = v;
}

static size_t heap_push(struct mdl_merger *m, size_t n, uint32_t symbol)
{
    if (symbol == NONE || m->symbols[symbol].prio == NONE)
        return n;
    KVS_ASSERT(n < m->heap_cap);
    m->heap[n] = (uint64_t)m->symbols[symbol].prio << 32 | symbol;
    heap_up(m->heap, n);
    return n + 1;
}

static void merge_by_heap(struct mdl_merger *m, const uint8_t *piece, uint32_t n, uint32_t count)
{
    size_t size = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (m->symbols[i].prio != NONE)
            m->heap[size++] = (uint64_t)m->symbols[i].prio << 32 | i;
    }
    for (size_t i = size / 4 + 1; i > 0; i--) {
        if (i - 1 < size)
            heap_down(m->heap, size, i - 1);
    }
    while (size > 0) {
        uint32_t i = (uint32_t)m->heap[0], prio = (uint32_t)(m->heap[0] >> 32);
        m->heap[0] = m->heap[--size];
        heap_down(m->heap, size, 0);
        if (m->symbols[i].prio != prio)
            continue;
        merge_at(m, piece, n, i);
        size = heap_push(m, size, i);
        size = heap_push(m, size, m->symbols[i].prev);
    }
}

static kvs_status emit_bytes(struct mdl_merger *m, const uint8_t *bytes, size_t n)
{
    const struct mdl_tokenizer *t = m->t;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[bytes[i]];
        if (id == MDL_NO_ID || id >= (int32_t)t->vocab)
            id = t->unk;
        /* An unknown token that is really an end-of-text marker (SmolLM2) must not get into a prompt unseen. */
        if (id == MDL_NO_ID || (id == t->unk && t->type[id] != MDL_TOKEN_UNKNOWN && id != t->byte_id[bytes[i]]))
            return kvs_fail(m->err, KVS_REQ_INVALID,
                            "the text holds byte 0x%02x, which this model's vocabulary cannot express", bytes[i]);
        kvs_status s = mdl_merger_emit(m, id);
        if (s != KVS_OK)
            return s;
    }
    return KVS_OK;
}

kvs_status mdl_merger_run(struct mdl_merger *m, const uint8_t *piece, size_t size)
{
    if (size == 0)
        return KVS_OK;
    if (size >= INT32_MAX)
        return kvs_fail(m->err, KVS_REQ_TOO_LONG, "the text has %zu bytes in one piece", size);
    uint32_t n = (uint32_t)size;
    if (!reserve((void **)&m->symbols, &m->symbol_cap, n, sizeof *m->symbols) ||
        (n > SCAN_MAX && !reserve((void **)&m->heap, &m->heap_cap, 2 * size, sizeof *m->heap)))
        return kvs_fail(m->err, KVS_SELF_NOMEM, "no memory to tokenize a piece of %zu bytes", size);
    uint32_t count = cut_symbols(m, piece, n);
    for (uint32_t i = 0; i < count; i++)
        find_pair(m, piece, n, i);
    if (n <= SCAN_MAX)
        merge_by_scan(m, piece, n);
    else
        merge_by_heap(m, piece, n, count);
    for (uint32_t i = 0; i != NONE; i = m->symbols[i].next) {
        const struct mdl_symbol *s = &m->symbols[i];
        uint32_t end = s->next == NONE ? n : m->symbols[s->next].start;
        kvs_status st = s->id >= 0 && s->id < (int32_t)m->t->vocab ? mdl_merger_emit(m, s->id)
                                                                   : emit_bytes(m, piece + s->start, end - s->start);
        if (st != KVS_OK)
            return st;
    }
    return KVS_OK;
}
