/* buf.h - a byte buffer that grows up to a maximum it was born with.
 * Owner: whoever embeds the struct; not thread-safe. Full is KVS_BUSY_FULL and leaves the content as it was.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_BUF_H
#define KVS_BASE_BUF_H

#include "base/error.h"

struct kvs_buf {
    uint8_t *data; /* owned; NULL while empty. A NUL always follows the last byte when data is not NULL. */
    size_t len;    /* bytes in use */
    size_t cap;    /* bytes allocated, without the NUL */
    size_t max;    /* len never passes this */
};

void kvs_buf_init(struct kvs_buf *b, size_t max);
void kvs_buf_fini(struct kvs_buf *b); /* frees; the buffer may be used again as empty */
KVS_MUST_CHECK kvs_status kvs_buf_append(struct kvs_buf *b, const void *bytes, size_t n);
KVS_MUST_CHECK kvs_status kvs_buf_puts(struct kvs_buf *b, const char *text);
KVS_MUST_CHECK kvs_status kvs_buf_printf(struct kvs_buf *b, const char *fmt, ...) KVS_PRINTF(2, 3);
/* Makes room for n more bytes and hands out where they go; kvs_buf_commit(n) then takes them in. */
KVS_MUST_CHECK kvs_status kvs_buf_reserve(struct kvs_buf *b, size_t n, uint8_t **out);
void kvs_buf_commit(struct kvs_buf *b, size_t n);
void kvs_buf_consume(struct kvs_buf *b, size_t n); /* drops n bytes from the front */
void kvs_buf_clear(struct kvs_buf *b);             /* len = 0, memory kept */
const char *kvs_buf_text(const struct kvs_buf *b); /* the bytes as a C string, "" when empty */
/* Hands the bytes over (free() them); the buffer is empty afterwards. NULL when it was empty. */
uint8_t *kvs_buf_take(struct kvs_buf *b, size_t *len_out);

#endif
