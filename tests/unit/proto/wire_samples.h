/* wire_samples.h - one filled message of each kind, and a table that lets tests treat all codecs alike.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TEST_WIRE_SAMPLES_H
#define KVS_TEST_WIRE_SAMPLES_H

#include "proto/wire_impl.h"

struct sample {
    const char *name;
    const ProtobufCMessageDescriptor *descriptor;
    const uint8_t *golden; /* from make_golden.py */
    size_t golden_bytes;
    kvs_status (*encode_sample)(struct kvs_buf *out);
    kvs_status (*decode)(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct kvs_error *err);
    kvs_status (*decode_encode)(const uint8_t *bytes, size_t n, struct kvs_arena *a, struct kvs_buf *out,
                                struct kvs_error *err);
};
extern const struct sample samples[];
extern const size_t sample_count;

#endif
