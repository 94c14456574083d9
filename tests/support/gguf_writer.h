/* gguf_writer.h - writes GGUF v3 into memory, and makes tiny random llama models for tests that need no real one.
 *
 * A writer is filled in any order (keys, tensors), then finished once; what it returns has exactly the file's size and is
 * the caller's to free. Every failure ends the test program: tests have nothing better to do.
 *
 * tst_llama_make: the same options give the same bytes on every machine (weights from kvs_rng, rounded by plain integer
 * and float arithmetic). Its vocabulary is SPM with TST_LLAMA_VOCAB tokens: 0 <unk>, 1 <s>, 2 </s>, 3..258 the bytes, then
 * the space mark, a to z, and 34 merged pieces; so that any text can be encoded and words give merges.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_SUPPORT_GGUF_WRITER_H
#define KVS_TESTS_SUPPORT_GGUF_WRITER_H

#include "model/card.h"
#include "model/gguf.h"

#define TST_LLAMA_VOCAB 320u

struct tst_gguf;

struct tst_gguf *tst_gguf_create(uint32_t version, uint32_t alignment); /* alignment 0: 32, and no key for it */
void tst_gguf_destroy(struct tst_gguf *w);
void tst_gguf_u32(struct tst_gguf *w, const char *key, uint32_t v);
void tst_gguf_u64(struct tst_gguf *w, const char *key, uint64_t v);
void tst_gguf_f32(struct tst_gguf *w, const char *key, float v);
void tst_gguf_bool(struct tst_gguf *w, const char *key, bool v);
void tst_gguf_str(struct tst_gguf *w, const char *key, const char *v);
void tst_gguf_bytes(struct tst_gguf *w, const char *key, const void *v, size_t n); /* a string of n bytes */
void tst_gguf_strs(struct tst_gguf *w, const char *key, const struct mdl_str *v, uint64_t count);
void tst_gguf_f32s(struct tst_gguf *w, const char *key, const float *v, uint64_t count);
void tst_gguf_i32s(struct tst_gguf *w, const char *key, const int32_t *v, uint64_t count);
/* A key with a value type and bytes of the caller's making, for hostile files. */
void tst_gguf_raw(struct tst_gguf *w, const char *key, uint32_t kind, const void *bytes, size_t n);
/* data: n bytes, copied; the offset is the next multiple of the alignment. */
void tst_gguf_tensor(struct tst_gguf *w, const char *name, uint32_t type, uint32_t dims, const uint64_t *shape,
                     const void *data, size_t n);
/* The file's bytes, malloc'ed with exactly *size_out bytes. Destroys w. header_out may be NULL: bytes before tensor data. */
uint8_t *tst_gguf_finish(struct tst_gguf *w, size_t *size_out, size_t *header_out);
/* Finishes the file and reads its card; what the reader says. */
KVS_MUST_CHECK kvs_status tst_card_read(struct tst_gguf *w, struct mdl_card *c, struct kvs_error *err);

struct tst_llama_options {
    uint32_t layers, width, heads, kv_heads, ff, context;
    uint32_t key_dim; /* 0: width / heads */
    mdl_type type;    /* of all matrices; norms are F32. Beyond those of tst_quantize: random blocks, rows of 32 or 256 */
    bool mixed;       /* type is not asked: each matrix has another, all of them in turn; width and ff multiples of 256 */
    bool untied;      /* with an output.weight */
    uint64_t seed;
};
/* Zero fields get defaults: 2 layers, width 64, 4 heads, 2 KV heads, ff 96, context 512. Rows must fit the type's block. */
uint8_t *tst_llama_make(const struct tst_llama_options *o, size_t *size_out);
/* The SPM keys of that vocabulary alone, into another writer. */
void tst_llama_vocab(struct tst_gguf *w);
/* n weights as blocks of type F32, F16, BF16, Q8_0, Q4_0 or Q4_1 (plain rounding, as the reference quantizers do); returns
 * the bytes written. */
size_t tst_quantize(mdl_type type, const float *x, size_t n, uint8_t *out);

#endif
