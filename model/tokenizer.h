/* tokenizer.h - text to ids and back: SentencePiece (SPM) and byte-level BPE, as the GGUF's tokenizer.ggml.* keys say.
 * Immutable after create; any thread may encode (scratch is per call). Time is linear within a small factor, stack is bounded.
 * Invalid UTF-8 is accepted: such bytes are pieces of their own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_TOKENIZER_H
#define KVS_MODEL_TOKENIZER_H

#include "base/buf.h"
#include "model/gguf.h"

struct mdl_tokenizer;

struct mdl_ids {
    int32_t *ids; /* owned */
    size_t count, cap;
};
void mdl_ids_fini(struct mdl_ids *v);
KVS_MUST_CHECK kvs_status mdl_ids_push(struct mdl_ids *v, int32_t id);

/* Copies what it needs: the GGUF's bytes may go away afterwards. An unknown tokenizer model or pre-tokenizer name is an
 * error that names it. */
KVS_MUST_CHECK kvs_status mdl_tokenizer_create(const struct mdl_gguf *g, struct mdl_tokenizer **out, struct kvs_error *err);
void mdl_tokenizer_destroy(struct mdl_tokenizer *t);
/* A byte-level BPE file that does not say how its text is cut (tokenizer.ggml.pre, absent before May 2024): it is cut the
 * way called "default", which may not be how the model was trained. Whoever loads one says so. */
bool mdl_tokenizer_pre_guessed(const struct mdl_tokenizer *t);
#define MDL_PRE_GUESSED_TEXT                                                                                         \
    "the model file has no tokenizer.ggml.pre: text is cut the way called 'default', which may not be how the model " \
    "was trained; answers may be worse than they should be"

enum mdl_encode_flags {
    MDL_ADD_SPECIAL = 1,   /* BOS / EOS where the file asks for them */
    MDL_PARSE_SPECIAL = 2, /* text of control tokens becomes those tokens (chat templates); otherwise only user-defined ones */
};
/* Appends to out. ids_max bounds the total: KVS_REQ_TOO_LONG beyond it. */
KVS_MUST_CHECK kvs_status mdl_encode(const struct mdl_tokenizer *t, const char *text, size_t len, uint32_t flags, size_t ids_max,
                                     struct mdl_ids *out, struct kvs_error *err);

/* A chat's rendered template: control tokens are read, and BOS and EOS added where the file asks for them; but a template that writes
 * BOS itself means that one. */
KVS_MUST_CHECK kvs_status mdl_encode_chat(const struct mdl_tokenizer *t, const char *text, size_t len, size_t ids_max,
                                          struct mdl_ids *out, struct kvs_error *err);

uint32_t mdl_vocab_size(const struct mdl_tokenizer *t);
bool mdl_is_control(const struct mdl_tokenizer *t, int32_t id); /* control and unknown: rendered as nothing unless asked */
/* The raw bytes of one token (space marks and byte mappings undone); "" for ids out of range. Borrowed. */
struct mdl_str mdl_token_bytes(const struct mdl_tokenizer *t, int32_t id);

/* Streaming detokenizer: never splits a UTF-8 sequence; drops SPM's one prefixed space at the very start. */
struct mdl_detok {
    const struct mdl_tokenizer *t;
    uint8_t held[8]; /* an incomplete character */
    uint8_t held_len;
    bool started;    /* something was emitted, or the prefix space is not to be dropped */
    bool special;    /* control tokens are written out */
};
void mdl_detok_init(struct mdl_detok *d, const struct mdl_tokenizer *t, bool special, bool at_text_start);
/* Appends the text that has become certain: always whole, valid UTF-8 (invalid bytes come out as U+FFFD). */
KVS_MUST_CHECK kvs_status mdl_detok_push(struct mdl_detok *d, int32_t id, struct kvs_buf *out);
KVS_MUST_CHECK kvs_status mdl_detok_flush(struct mdl_detok *d, struct kvs_buf *out); /* an incomplete rest becomes one U+FFFD */

#endif
