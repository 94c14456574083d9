/* gguf_int.h - what gguf.c and parts.c share of a parsed file.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_GGUF_INT_H
#define KVS_MODEL_GGUF_INT_H

#include "model/gguf.h"

struct gguf_key {
    struct mdl_str name;
    uint32_t kind, element; /* element: of an array */
    const uint8_t *value;   /* scalar, string length, or the array's first element */
    uint64_t count;         /* of an array */
    uint64_t *strings;      /* owned; offsets from value of each string of a string array */
};

struct mdl_gguf {
    uint32_t version;
    uint64_t header_bytes;
    const uint8_t *keys_end; /* behind the last key's value */
    struct gguf_key *keys;
    uint32_t *keys_by_name; /* indices into keys, sorted */
    uint64_t key_count;
    struct mdl_tensor *tensors;
    uint32_t *tensors_by_name;
    uint64_t tensor_count;
};

/* mdl_gguf_parse that takes a part of a split model, too: what this one file says. */
KVS_MUST_CHECK kvs_status mdl_gguf_read(const uint8_t *bytes, size_t size, bool header_only, struct mdl_gguf **out, struct kvs_error *err);
const struct gguf_key *mdl_gguf_key(const struct mdl_gguf *g, struct mdl_str want);               /* NULL when absent */
const struct mdl_tensor *mdl_gguf_find_tensor(const struct mdl_gguf *g, struct mdl_str want); /* NULL when absent */

#define MDL_TENSORS_MAX 65536u
#define MDL_QUOTE_CAP 72u
/* A name from the file as it may stand in an error text: printable ASCII, cut short. Returns out. */
const char *mdl_quote(struct mdl_str s, char out[MDL_QUOTE_CAP]);

/* split.count: 1 for a file that is whole. An error when it is no count, or more than MDL_PARTS_MAX. */
KVS_MUST_CHECK kvs_status mdl_parts_count(const struct mdl_gguf *g, uint32_t *count_out, struct kvs_error *err);

#endif
