/* utf8.c - strict UTF-8, one decoder for tokenizer, detokenizer, JSON and error text.
 * The second byte's range depends on the first (Unicode 15, table 3-7); with that range checked, overlong forms, surrogates
 * and values above U+10FFFF cannot occur, and an incomplete beginning can be told from a wrong one byte by byte: that is
 * what streaming needs (hold back, or replace now).
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

/* Length by the first byte, and the allowed range of the second; 0 when no character starts so. */
static int lead(uint8_t b, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (b < 0x80) {
        return 1;
    }
    if (b >= 0xC2 && b <= 0xDF) {
        return 2;
    }
    if (b >= 0xE0 && b <= 0xEF) {
        if (b == 0xE0) {
            *lo = 0xA0;
        } else if (b == 0xED) {
            *hi = 0x9F;
        }
        return 3;
    }
    if (b >= 0xF0 && b <= 0xF4) {
        if (b == 0xF0) {
            *lo = 0x90;
        } else if (b == 0xF4) {
            *hi = 0x8F;
        }
        return 4;
    }
    return 0;
}

int kvs_utf8_decode(const uint8_t *p, size_t n, uint32_t *cp_out)
{
    if (n == 0) {
        return -1;
    }
    uint8_t lo, hi;
    int len = lead(p[0], &lo, &hi);
    if (len <= 1) {
        if (len == 1) {
            *cp_out = p[0];
        }
        return len;
    }
    uint32_t cp = p[0] & (0x7Fu >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) {
            return -1;
        }
        if (p[i] < lo || p[i] > hi) {
            return 0;
        }
        cp = cp << 6 | (p[i] & 0x3Fu);
        lo = 0x80;
        hi = 0xBF;
    }
    *cp_out = cp;
    return len;
}

int kvs_utf8_encode(uint32_t cp, uint8_t out[4])
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xC0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        if (cp >= 0xD800 && cp <= 0xDFFF) {
            return 0;
        }
        out[0] = (uint8_t)(0xE0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (cp & 0x3F));
        return 3;
    }
    if (cp > 0x10FFFF) {
        return 0;
    }
    out[0] = (uint8_t)(0xF0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (cp & 0x3F));
    return 4;
}

bool kvs_utf8_valid(const void *p, size_t n)
{
    const uint8_t *b = p;
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int len = kvs_utf8_decode(b + i, n - i, &cp);
        if (len <= 0) {
            return false;
        }
        i += (size_t)len;
    }
    return true;
}

size_t kvs_utf8_whole(const void *p, size_t n)
{
    const uint8_t *b = p;
    uint32_t cp;
    /* A first byte is never a later byte, so whatever stands before cannot change how these last bytes are read. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        if (kvs_utf8_decode(b + n - back, back, &cp) == -1) {
            return n - back;
        }
    }
    return n;
}

size_t kvs_utf8_bad_len(const void *p, size_t n)
{
    const uint8_t *b = p;
    uint32_t cp;
    size_t len = 1;
    while (len < n && kvs_utf8_decode(b, len, &cp) == -1 && kvs_utf8_decode(b, len + 1, &cp) == -1) {
        len++;
    }
    return len;
}

void kvs_utf8_clean(char *text, size_t n)
{
    uint8_t *b = (uint8_t *)text;
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int len = kvs_utf8_decode(b + i, n - i, &cp);
        if (len <= 0 || cp < 0x20 || (cp >= 0x7F && cp < 0xA0)) {
            b[i] = '?';
            if (len == 2) {
                b[i + 1] = '?';
            }
            len = len == 2 ? 2 : 1;
        }
        i += (size_t)len;
    }
}
