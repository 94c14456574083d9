/* gguf.h - reads GGUF v2/v3 from (pointer, length); every count, length and offset is checked before use.
 * The parsed object borrows the caller's bytes and copies nothing large: memory use stays below the header's own size + 16 MiB.
 * Immutable after parse, any thread may read. Errors name the field. Source: ggml-org/ggml docs/gguf.md.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_GGUF_H
#define KVS_MODEL_GGUF_H

#include "base/error.h"

/* Numbers of the file format. */
typedef enum mdl_type {
    MDL_F32 = 0, MDL_F16 = 1, MDL_Q4_0 = 2, MDL_Q4_1 = 3, MDL_Q5_0 = 6, MDL_Q5_1 = 7, MDL_Q8_0 = 8,
    MDL_Q2_K = 10, MDL_Q3_K = 11, MDL_Q4_K = 12, MDL_Q5_K = 13, MDL_Q6_K = 14,
    MDL_IQ4_NL = 20, MDL_IQ4_XS = 23, MDL_BF16 = 30, MDL_MXFP4 = 39,
} mdl_type;

/* Weights in a block and bytes of a block; false for a type that we do not know. */
bool mdl_type_block(mdl_type type, uint32_t *weights_out, uint32_t *bytes_out);
const char *mdl_type_name(mdl_type type); /* "Q4_1"; "type 99" forms are the caller's */

struct mdl_str {
    const char *data; /* not NUL-terminated, borrowed from the file's bytes */
    size_t len;
};

struct mdl_tensor {
    struct mdl_str name;
    mdl_type type;
    uint32_t dims;         /* 1..4 */
    uint64_t shape[4];     /* shape[0] is the row length (fastest); unused ones are 1 */
    uint64_t offset;       /* from the start of the tensor data */
    uint64_t bytes;
    const uint8_t *data;   /* NULL when only the header was given */
};

struct mdl_gguf;

/* A part of a split model (split.count > 1) is refused: model/model.h makes one of all parts. header_only: the bytes end at (or after) the end of the header; tensor data may be absent (a router has no model file). */
KVS_MUST_CHECK kvs_status mdl_gguf_parse(const uint8_t *bytes, size_t size, bool header_only, struct mdl_gguf **out, struct kvs_error *err);
void mdl_gguf_destroy(struct mdl_gguf *g);
uint64_t mdl_gguf_header_bytes(const struct mdl_gguf *g); /* bytes before tensor data, alignment padding included */
uint32_t mdl_gguf_version(const struct mdl_gguf *g);

/* Metadata. Each returns false when the key is absent or of another kind. Integers of all widths are widened;
 * a negative value does not convert to unsigned. */
bool mdl_gguf_u64(const struct mdl_gguf *g, const char *key, uint64_t *out);
bool mdl_gguf_f64(const struct mdl_gguf *g, const char *key, double *out); /* f32, f64 */
bool mdl_gguf_bool(const struct mdl_gguf *g, const char *key, bool *out);
/* A number of any integer or float kind, where a double holds it exactly. */
bool mdl_gguf_number(const struct mdl_gguf *g, const char *key, double *out);
/* The name of the value's kind ("u32", "string", "array"); NULL when the key is absent. */
const char *mdl_gguf_kind(const struct mdl_gguf *g, const char *key);
bool mdl_gguf_str(const struct mdl_gguf *g, const char *key, struct mdl_str *out);
/* Arrays: the count, then elements one by one (index < count); strings are found by a table built at parse. */
bool mdl_gguf_array(const struct mdl_gguf *g, const char *key, uint64_t *count_out);
bool mdl_gguf_array_str(const struct mdl_gguf *g, const char *key, uint64_t index, struct mdl_str *out);
bool mdl_gguf_array_f64(const struct mdl_gguf *g, const char *key, uint64_t index, double *out);
bool mdl_gguf_array_i64(const struct mdl_gguf *g, const char *key, uint64_t index, int64_t *out);
/* Walks all metadata keys for `kvasir model info`: false at the end. Renders the value as short text. */
bool mdl_gguf_key_at(const struct mdl_gguf *g, uint64_t index, struct mdl_str *key_out, char *text_out, size_t text_cap);

uint64_t mdl_gguf_tensor_count(const struct mdl_gguf *g);
const struct mdl_tensor *mdl_gguf_tensor_at(const struct mdl_gguf *g, uint64_t index);
const struct mdl_tensor *mdl_gguf_tensor(const struct mdl_gguf *g, const char *name); /* NULL when absent */

#define MDL_FILES_MAX 272u
/* A file on disk, mapped read-only. The mapping lives until mdl_file_close. Anything but a regular file is refused.
 * A mapped file that somebody cuts short would end the process with SIGBUS at the next read. Here it does not: the pages that
 * are gone read as zeros from then on, on every thread, and mdl_file_check says so. Whoever reads through the mapping (parse,
 * weights, fingerprint) calls it afterwards and throws the result away when it fails. At most MDL_FILES_MAX are open at a time.
 * Any thread may read; open, check and close are the owner's. */
struct mdl_file {
    const uint8_t *bytes;
    size_t size;
    int fd;
    uint32_t slot;             /* in the table that the SIGBUS handler reads, plus 1; 0: not open */
    int64_t mtime_s, mtime_ns; /* as it was when opened */
};
KVS_MUST_CHECK kvs_status mdl_file_open(const char *path, struct mdl_file *out, struct kvs_error *err);
/* KVS_SELF_MODEL when the file was changed, cut short, or could not be read since it was opened. */
KVS_MUST_CHECK kvs_status mdl_file_check(const struct mdl_file *f, struct kvs_error *err);
/* Bytes of the mapping that will not be read again soon: they need not stay resident. Reading them again works. */
void mdl_file_done(const struct mdl_file *f, const uint8_t *bytes, size_t count);
void mdl_file_close(struct mdl_file *f); /* also of a zero-filled or closed one */

#endif
