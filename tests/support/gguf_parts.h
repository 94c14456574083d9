/* gguf_parts.h - cuts a GGUF file into the parts that llama.cpp's gguf-split makes of it, or parts that are wrong.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_SUPPORT_GGUF_PARTS_H
#define KVS_TESTS_SUPPORT_GGUF_PARTS_H

#include "tests/support/gguf_writer.h"

/* What one part holds and says. */
struct tst_part {
    uint32_t first, count;  /* tensors of the whole */
    bool keys;              /* the whole's keys; general.alignment only then */
    uint16_t no, of;        /* split.no, split.count */
    int32_t tensors;        /* split.tensors.count */
    const char *key, *text; /* one more key with a text; NULL: none */
};

/* The part's bytes, of exactly *size_out, the caller's to free. */
uint8_t *tst_part_make(const struct mdl_gguf *whole, const struct tst_part *p, size_t *size_out);
/* Part `no` of `of` with its share of the tensors, as gguf-split writes it; first_empty: the first has keys alone. */
struct tst_part tst_part_of(const struct mdl_gguf *whole, uint16_t no, uint16_t of, bool first_empty);

#endif
