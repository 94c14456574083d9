/* model.h - a model on disk: one GGUF file, or all parts of one that was split (NAME-00001-of-00003.gguf and so on, in one folder). To whoever
 * reads it both are the same: one set of keys, one table of tensors, one header, one identity.
 * Any thread may read; open, check, take and close are the owner's.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_MODEL_H
#define KVS_MODEL_MODEL_H

#include "model/gguf.h"
#include "model/parts.h"

struct mdl_model {
    struct mdl_gguf *gguf;
    const uint8_t *header; /* bytes before tensor data: the file's own, or made of all parts' */
    size_t header_bytes;
    uint64_t bytes; /* of all files */
    uint32_t part_count;
    struct mdl_file *part; /* mapped, as long as the model is open */
    uint8_t *made;         /* the header that was made, until it is taken */
};

/* Opens and parses. The path of a split model is that of its first part; the others are looked for beside it. Errors name the part, the cause
 * and the remedy. */
KVS_MUST_CHECK kvs_status mdl_model_open(const char *path, struct mdl_model *out, struct kvs_error *err);
/* mdl_file_check of every file. */
KVS_MUST_CHECK kvs_status mdl_model_check(const struct mdl_model *m, struct kvs_error *err);
/* mdl_file_done, with bytes of any of the files. */
void mdl_model_done(const struct mdl_model *m, const uint8_t *bytes, size_t count);
/* The header's bytes to keep (free() them, but only after mdl_model_close: the open model goes on reading them). NULL: no memory. */
uint8_t *mdl_model_take_header(struct mdl_model *m);
void mdl_model_close(struct mdl_model *m); /* also of a zero-filled or closed one */

#endif
