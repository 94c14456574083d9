/* pcre_split.h - pre-tokenizers by their published regular expressions, run by PCRE2: the oracle of model/split.c. For tests only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_SUPPORT_PCRE_SPLIT_H
#define KVS_TESTS_SUPPORT_PCRE_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One of each kind: what model/pretok.c knows under other names is the same as one of these. */
extern const char *const tst_pretok_names[];
extern const size_t tst_pretok_count;

struct tst_split;
struct tst_split *tst_split_create(const char *name); /* ends the program when the name is none of them */
void tst_split_destroy(struct tst_split *s);
/* Splits valid UTF-8 into pieces: their ends, at most `cap` of them (the program ends beyond that). Returns how many. */
size_t tst_split_run(struct tst_split *s, const uint8_t *text, size_t n, size_t *ends_out, size_t cap);

#endif
