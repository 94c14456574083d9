/* keys.h - values of metadata keys as the card, the tokenizer and the chat template read them: one rule for all.
 * What is not there stays as it was; what is there and cannot be read is KVS_SELF_MODEL with the key and the kind of its
 * value, so that no setting is passed over in silence. A number may be of any kind that holds it exactly; a truth value may
 * be 0 or 1. `key` is whole, with its prefix.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_KEYS_H
#define KVS_MODEL_KEYS_H

#include "model/gguf.h"

bool mdl_str_is(struct mdl_str s, const char *text);
/* *there: is the key in the file? Only then *out is set. */
KVS_MUST_CHECK kvs_status mdl_key_f64(const struct mdl_gguf *g, const char *key, bool *there, double *out,
                                      struct kvs_error *err);
KVS_MUST_CHECK kvs_status mdl_key_u64(const struct mdl_gguf *g, const char *key, bool *there, uint64_t *out,
                                      struct kvs_error *err);
KVS_MUST_CHECK kvs_status mdl_key_bool(const struct mdl_gguf *g, const char *key, bool *inout, struct kvs_error *err);
/* *out has no data when the key is absent. */
KVS_MUST_CHECK kvs_status mdl_key_str(const struct mdl_gguf *g, const char *key, struct mdl_str *out,
                                      struct kvs_error *err);
/* A token's id: -1 for none, as which -1 and 4294967295 in the file count too. Absent: `fallback`, where there is such a
 * token. An id outside the vocabulary is an error. */
KVS_MUST_CHECK kvs_status mdl_key_id(const struct mdl_gguf *g, const char *key, int32_t fallback, uint32_t vocab,
                                     int32_t *out, struct kvs_error *err);

#endif
