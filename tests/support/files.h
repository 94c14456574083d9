/* files.h - where tests find data that may be absent, and whole files as heap copies of exactly their size
 * (a sanitizer sees nothing past the end of a mapping); how many files a test has open.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_SUPPORT_FILES_H
#define KVS_TESTS_SUPPORT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool tst_file_exists(const char *path);
/* The sample model: environment KVASIR_TEST_SMOLLM2, else the cache folder. false when it is in neither. */
bool tst_smollm2_path(char *out, size_t cap);
/* Any fetched model: the environment variable, else this file of the cache folder. */
bool tst_model_path(const char *variable, const char *file, char *out, size_t cap);
/* Reads at most max bytes (0: all). The caller frees; NULL when the file cannot be read. */
uint8_t *tst_file_read(const char *path, size_t max, size_t *size_out);
/* How many descriptors this process has open (the one that looks is always one of them). */
int tst_descriptors(void);

#endif
