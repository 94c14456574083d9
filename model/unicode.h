/* unicode.h - classes of characters, as pre-tokenizers ask for them: general categories and white space.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_MODEL_UNICODE_H
#define KVS_MODEL_UNICODE_H

#include <stdint.h>

enum mdl_char {
    MDL_LETTER = 1,
    MDL_NUMBER = 2,
    MDL_SPACE = 4, /* White_Space: U+180E is not in it */
    MDL_PUNCTUATION = 8,
    MDL_SYMBOL = 16,
    MDL_MARK = 32,
    MDL_UPPER = 64,  /* Lu, Lt, Lm, Lo and marks: may stand in the upper-case part of a word */
    MDL_LOWER = 128, /* Ll, Lm, Lo and marks: may stand in the lower-case part */
    /* Not Unicode's: what expressions spell out as ranges of characters (unicode.c). */
    MDL_CASED = 256,       /* letters with case, in deepseek-llm's */
    MDL_WRITTEN = 512,     /* signs and letters, in deepseek-llm's */
    MDL_CJK_HANGUL = 1024, /* deepseek-llm and deepseek-coder */
    MDL_CJK_KANA = 2048,   /* deepseek-v3 */
};
#define MDL_CHARS 0x110000u

/* Classes of every character; made at the first call, by any thread. */
const uint16_t *mdl_char_classes(void);

#endif
