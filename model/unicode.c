/* unicode.c - the classes of all characters, one byte each, unrolled from the runs that Unicode's database consists of.
 * A megabyte, of which text touches a few pages. Made once, when the first tokenizer is.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/unicode.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

static const struct run {
    uint32_t first;
    uint8_t classes;
} runs[] = {
#include "model/unicode_ranges.inc"
};

static uint8_t table[MDL_CHARS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void)
{
    size_t count = sizeof runs / sizeof runs[0];
    for (size_t i = 0; i < count; i++) {
        uint32_t end = i + 1 < count ? runs[i + 1].first : MDL_CHARS;
        memset(table + runs[i].first, runs[i].classes, end - runs[i].first);
    }
}

const uint8_t *mdl_char_classes(void)
{
    (void)pthread_once(&once, fill);
    return table;
}
