/* detok.c - ids to text, as a stream: what comes out is always whole, valid UTF-8.
 * A token may end inside a character, so up to three bytes are held back until the next token completes them or shows that
 * they were wrong. Wrong bytes become U+FFFD, one for each longest beginning of a character (Unicode 15, section 3.9; what
 * browsers and Python do).
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_int.h"
#include "base/utf8.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

void mdl_detok_init(struct mdl_detok *d, const struct mdl_tokenizer *t, bool special, bool at_text_start)
{
    memset(d, 0, sizeof *d);
    d->t = t;
    d->special = special;
    d->started = !(at_text_start && t->space_prefix);
}

/* How many bytes of an invalid character one U+FFFD stands for. */
static size_t bad_bytes(const uint8_t *p, size_t n)
{
    uint32_t cp;
    size_t k = 1;
    while (k < n && k < 3 && kvs_utf8_decode(p, k + 1, &cp) == -1)
        k++;
    return k;
}

static kvs_status put(struct mdl_detok *d, uint8_t byte, struct kvs_buf *out)
{
    d->held[d->held_len++] = byte;
    /* A byte that does not fit closes what was held and may begin a character itself: at most twice round. */
    while (d->held_len > 0) {
        uint32_t cp;
        int k = kvs_utf8_decode(d->held, d->held_len, &cp);
        if (k == -1)
            return KVS_OK;
        size_t used = k > 0 ? (size_t)k : bad_bytes(d->held, d->held_len);
        kvs_status s = k > 0 ? kvs_buf_append(out, d->held, used) : kvs_buf_puts(out, REPLACEMENT);
        if (s != KVS_OK)
            return s;
        d->held_len = (uint8_t)(d->held_len - used);
        memmove(d->held, d->held + used, d->held_len);
    }
    return KVS_OK;
}

kvs_status mdl_detok_push(struct mdl_detok *d, int32_t id, struct kvs_buf *out)
{
    if (mdl_is_control(d->t, id) && !d->special)
        return KVS_OK;
    struct mdl_str s = mdl_token_bytes(d->t, id);
    size_t at = 0;
    if (!d->started && s.len > 0) {
        at = s.data[0] == ' ' ? 1 : 0;
        d->started = true;
    }
    for (; at < s.len; at++) {
        kvs_status st = put(d, (uint8_t)s.data[at], out);
        if (st != KVS_OK)
            return st;
    }
    return KVS_OK;
}

kvs_status mdl_detok_flush(struct mdl_detok *d, struct kvs_buf *out)
{
    if (d->held_len == 0)
        return KVS_OK;
    d->held_len = 0;
    return kvs_buf_puts(out, REPLACEMENT);
}
