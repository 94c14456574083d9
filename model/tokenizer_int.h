/* tokenizer_int.h - what the tokenizer's own files share; nobody else includes it.
 *
 *   tokenizer.c  the vocabulary: texts, look-up tables, what the file's keys say; accessors
 *   pretok.c     byte-level BPE: text to pieces, by the passes that the file's .pre names (split.h: their matchers, unicode.h: their classes)
 *   merge.c      one piece to ids: merges by priority, the same machine for BPE (ranks) and SPM (scores)
 *   words.c      what words became lately
 *   cuts.c       where text without spaces can be cut
 *   encode.c     mdl_encode: special tokens cut out, the rest handed to the above
 *   detok.c      ids to text as it becomes certain
 *
 * Texts are kept as the raw bytes that a token stands for (space marks and GPT-2's byte mapping undone), so look-ups work on
 * the caller's bytes and nothing is mapped while encoding.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_TOKENIZER_INT_H
#define KVS_MODEL_TOKENIZER_INT_H

#include "model/tokenizer.h"
#include "model/words.h"

#define MDL_NO_ID (-1)
#define MDL_PRIO_NONE UINT32_MAX

enum mdl_token_type {
    MDL_TOKEN_NORMAL = 1,
    MDL_TOKEN_UNKNOWN,
    MDL_TOKEN_CONTROL,
    MDL_TOKEN_USER,
    MDL_TOKEN_UNUSED,
    MDL_TOKEN_BYTE,
};

struct mdl_pair {
    uint64_t key;  /* left id << 32 | right id; MDL_PAIR_EMPTY: free slot */
    uint32_t rank; /* lower merges first */
    int32_t id;    /* what the two become */
};
#define MDL_PAIR_EMPTY UINT64_MAX
#define MDL_PAIR_BITS 4u /* of the filter, for each slot: it fits into a nearer cache than the slots do */

static inline uint64_t mdl_pair_hash(uint64_t key)
{
    key *= 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

/* Tokens that are cut out of the text before anything else, sorted by their bytes. */
struct mdl_specials {
    int32_t *ids;
    uint32_t count;
    uint32_t begin[257];     /* those from begin[b] to begin[b + 1] have b for their first byte */
    uint32_t second[256][8]; /* bit b of second[a]: some text begins with a, b */
};

struct mdl_pretok;

struct mdl_tokenizer {
    bool spm;
    bool pre_guessed;
    bool add_bos, add_eos, space_prefix;
    bool strips; /* special tokens take the white space behind them along (mdl_strips_behind) */
    int32_t bos, eos, unk;
    uint32_t vocab; /* ids below it are tokens; texts from it on are merge results that are no tokens */
    uint8_t *blob;
    size_t blob_len, blob_cap;
    uint32_t *text_end; /* text i is blob[text_end[i] .. text_end[i + 1]) */
    uint32_t text_count, text_cap;
    uint32_t longest; /* bytes of the longest text */
    uint8_t *type;    /* of tokens */
    uint8_t *whole;   /* this token's text, as a piece, encodes to this token alone */
    uint32_t *prio;   /* SPM: scores turned round into ranks, while pairs are made and for texts that no pair makes */
    int32_t byte_id[256];
    int32_t ascii_id[128]; /* SPM: the token of one such character */
    struct mdl_slot {
        uint32_t hash;
        int32_t id; /* MDL_NO_ID: free */
    } * slots;      /* text to id, open addressing */
    uint32_t slot_mask, slot_used;
    struct mdl_pair *pairs;
    uint64_t pair_mask, filter_mask;
    uint64_t *pair_filter; /* a bit by hash: set where a pair is; most that is asked for is none */
    struct mdl_specials special_all, special_user; /* with and without MDL_PARSE_SPECIAL */
    const struct mdl_pretok *pretok;               /* byte-level BPE */
    struct mdl_word_caches *words;
    struct mdl_cuts *cuts;
    unsigned part_mark;     /* MDL_WORD_PART where a part of a piece is not taken for what it would be as a piece */
    uint32_t joins[256][8]; /* SPM: bit b of joins[a]: byte b may follow byte a within a token, or within a character */
};

/* May a token span the place between these two bytes? */
static inline bool mdl_joined(const struct mdl_tokenizer *t, uint8_t a, uint8_t b)
{
    return (t->joins[a][b / 32] >> b % 32 & 1) != 0;
}

/* A flag of mdl_encode for tests: the same ids without caches and short cuts, merged over whole stretches of text. */
#define MDL_ENCODE_PLAIN 0x80000000u

struct mdl_str mdl_text(const struct mdl_tokenizer *t, int32_t id);
bool mdl_strips_behind(const struct mdl_tokenizer *t, int32_t special);
int32_t mdl_text_find(const struct mdl_tokenizer *t, const uint8_t *bytes, size_t n); /* MDL_NO_ID when absent */

/* pretok.c. A piece callback's failure ends the split and is returned. */
enum mdl_pretok_flags {
    MDL_PRETOK_WHOLE = 1, /* a piece that is a token is that token, whatever its merges would make of it */
    MDL_PRETOK_BOS = 2,   /* BOS is added unless the file says otherwise */
};
typedef kvs_status (*mdl_piece_fn)(void *user, const uint8_t *piece, size_t n);
KVS_MUST_CHECK kvs_status mdl_pretok_find(struct mdl_str name, const struct mdl_pretok **out, struct kvs_error *err);
uint32_t mdl_pretok_flags(const struct mdl_pretok *p);
KVS_MUST_CHECK kvs_status mdl_pretok_split(const struct mdl_pretok *p, const uint8_t *text, size_t n, mdl_piece_fn fn,
                                           void *user);
/* For tests. plain: every pass looks at every place of every piece; else *short_cuts grows by the pieces that skipped passes. */
KVS_MUST_CHECK kvs_status mdl_pretok_split_how(const struct mdl_pretok *p, const uint8_t *text, size_t n, bool plain,
                                               size_t *short_cuts, mdl_piece_fn fn, void *user);

/* cuts.c */
struct mdl_cuts *mdl_cuts_create(const struct mdl_tokenizer *t); /* NULL: no memory */
void mdl_cuts_destroy(struct mdl_cuts *c);
/* Bytes up to the first place within the text that no text of the vocabulary spans; n when there is none. 1 <= n. */
size_t mdl_cut_end(const struct mdl_cuts *c, const uint8_t *text, size_t n);

/* merge.c */
struct mdl_symbol {
    uint32_t start;      /* of its bytes in the piece; the next symbol's start ends it */
    uint32_t prev, next; /* MDL_PRIO_NONE: none */
    uint32_t prio;       /* of merging it with the next one */
    int32_t id, merged;  /* its own id, and that of the merge */
};
struct mdl_merger {
    const struct mdl_tokenizer *t;
    struct mdl_symbol *symbols; /* scratch, owned */
    uint64_t *heap;             /* priority << 32 | symbol */
    size_t symbol_cap, heap_cap;
    struct mdl_ids *out;
    size_t ids_max;
    struct kvs_error *err;
};
void mdl_merger_fini(struct mdl_merger *m);
KVS_MUST_CHECK kvs_status mdl_merger_emit(struct mdl_merger *m, int32_t id);
/* Appends the ids of one piece (BPE) or of one stretch of text between special tokens (SPM). */
KVS_MUST_CHECK kvs_status mdl_merger_run(struct mdl_merger *m, const uint8_t *piece, size_t n);

#endif
