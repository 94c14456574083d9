/* buf.c - the growing byte buffer behind HTTP bodies, frames, log fields and JSON.
 * It doubles, but never past the maximum it was born with: what a peer can make us hold is decided where the buffer is
 * created. Full (KVS_BUSY_FULL) and out of memory (KVS_SELF_NOMEM) leave the content as it was.
 * Invariant: cap is 0 while data is NULL; else cap + 1 bytes are allocated and data[len] == 0, so that the content
 * can be read as a C string at any time. This file and error.c are the only ones of base that use stdio.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAP_MIN = 64 };

void kvs_buf_init(struct kvs_buf *b, size_t max)
{
    KVS_ASSERT(max < SIZE_MAX);
    *b = (struct kvs_buf){.max = max};
}

void kvs_buf_fini(struct kvs_buf *b)
{
    free(b->data);
    kvs_buf_init(b, b->max);
}

static kvs_status grow(struct kvs_buf *b, size_t need)
{
    size_t cap = b->cap > CAP_MIN ? b->cap : CAP_MIN;
    while (cap < need) {
        cap = cap > b->max / 2 ? b->max : cap * 2;
    }
    if (cap > b->max) {
        cap = b->max;
    }
    uint8_t *data = realloc(b->data, cap + 1);
    if (data == NULL) {
        return KVS_SELF_NOMEM;
    }
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return KVS_OK;
}

kvs_status kvs_buf_reserve(struct kvs_buf *b, size_t n, uint8_t **out)
{
    KVS_ASSERT(b->len <= b->cap && b->cap <= b->max);
    if (n > b->max - b->len) {
        return KVS_BUSY_FULL;
    }
    if (b->data == NULL || n > b->cap - b->len) {
        kvs_status st = grow(b, b->len + n);
        if (st != KVS_OK) {
            return st;
        }
    }
    *out = b->data + b->len;
    return KVS_OK;
}

void kvs_buf_commit(struct kvs_buf *b, size_t n)
{
    KVS_ASSERT(n <= b->cap - b->len);
    b->len += n;
    if (b->data != NULL) {
        b->data[b->len] = 0;
    }
}

kvs_status kvs_buf_append(struct kvs_buf *b, const void *bytes, size_t n)
{
    if (n == 0) {
        return KVS_OK;
    }
    uint8_t *to = NULL;
    kvs_status st = kvs_buf_reserve(b, n, &to);
    if (st != KVS_OK) {
        return st;
    }
    memcpy(to, bytes, n);
    kvs_buf_commit(b, n);
    return KVS_OK;
}

kvs_status kvs_buf_puts(struct kvs_buf *b, const char *text)
{
    return kvs_buf_append(b, text, strlen(text));
}

kvs_status kvs_buf_printf(struct kvs_buf *b, const char *fmt, ...)
{
    va_list args;
    va_list again;
    va_start(args, fmt);
    va_copy(again, args);
    kvs_status st = KVS_SELF_INTERNAL;
    int n = vsnprintf(NULL, 0, fmt, args);
    if (n >= 0) {
        uint8_t *to = NULL;
        st = kvs_buf_reserve(b, (size_t)n, &to);
        if (st == KVS_OK) {
            (void)vsnprintf((char *)to, (size_t)n + 1, fmt, again);
            kvs_buf_commit(b, (size_t)n);
        }
    }
    va_end(again);
    va_end(args);
    return st;
}

void kvs_buf_consume(struct kvs_buf *b, size_t n)
{
    KVS_ASSERT(n <= b->len);
    if (n == 0) {
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

void kvs_buf_clear(struct kvs_buf *b)
{
    b->len = 0;
    if (b->data != NULL) {
        b->data[0] = 0;
    }
}

const char *kvs_buf_text(const struct kvs_buf *b)
{
    return b->data == NULL ? "" : (const char *)b->data;
}

uint8_t *kvs_buf_take(struct kvs_buf *b, size_t *len_out)
{
    uint8_t *data = b->data;
    *len_out = b->len;
    kvs_buf_init(b, b->max);
    return data;
}
