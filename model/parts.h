/* parts.h - a model that was cut into several GGUF files (llama.cpp's gguf-split, the `gguf` package) becomes one again. Bytes in, bytes out.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_PARTS_H
#define KVS_MODEL_PARTS_H

#include "model/gguf.h"

#define MDL_PARTS_MAX 256u

struct mdl_part {
    const uint8_t *bytes; /* the whole file */
    size_t size;
    const char *name; /* for errors */
};

/* All parts in their order. The header that is made is that of the model before it was split: the first part's keys without split.*, every
 * part's tensors, offsets as if the data stood one behind the other. The model borrows it, and its tensors' data from the parts.
 * Errors name the part. *header_out is the caller's to free, after the model. */
KVS_MUST_CHECK kvs_status mdl_parts_join(const struct mdl_part *parts, uint32_t count, uint8_t **header_out, struct mdl_gguf **out,
                                         struct kvs_error *err);

/* Does a path end in -00002-of-00003.gguf? no_out: 2, from 1 on; count_out: 3; stem_out: bytes before that ending. Each may be NULL. */
bool mdl_part_name(const char *path, uint32_t *no_out, uint32_t *count_out, size_t *stem_out);
/* Turns such a path, in place, into that of another part of the same model; no from 1 on. */
void mdl_part_rename(char *path, uint32_t no);
/* Bytes of a file's name that name the model: without .gguf, and without a part's number. */
size_t mdl_stem(const char *name);

#endif
