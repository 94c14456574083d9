/* stop.c - see stop.h. Byte by byte: the tail grows by one byte, is compared with the stop strings' ends, and is then shortened from the
 * front until it is the beginning of one. The tail is at most one stop string long and there are at most four: plain comparisons do, and a
 * byte that starts no stop string (nearly all of them) costs four of them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/stop.h"

#include <string.h>

void rtr_stop_init(struct rtr_stop *s, const struct rtr_stop_set *set)
{
    KVS_ASSERT(set->count <= RTR_STOPS_MAX);
    memset(s, 0, sizeof(*s));
    s->set = set;
}

/* Length of the longest stop string that ends exactly where the tail ends; 0: none. */
static uint32_t complete(const struct rtr_stop *s)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < s->set->count; i++) {
        uint32_t n = s->set->len[i];
        if (n > best && n <= s->tail_len && memcmp(s->tail + s->tail_len - n, s->set->text[i], n) == 0)
            best = n;
    }
    return best;
}

static bool could_grow(const struct rtr_stop *s, uint32_t from)
{
    uint32_t n = s->tail_len - from;
    for (uint32_t i = 0; i < s->set->count; i++)
        if (n < s->set->len[i] && memcmp(s->tail + from, s->set->text[i], n) == 0)
            return true;
    return false;
}

static kvs_status let_out(struct rtr_stop *s, uint32_t n, struct kvs_buf *out)
{
    kvs_status st = kvs_buf_append(out, s->tail, n);
    if (st != KVS_OK)
        return st;
    memmove(s->tail, s->tail + n, s->tail_len - n);
    s->tail_len -= n;
    return KVS_OK;
}

static kvs_status push_byte(struct rtr_stop *s, uint8_t byte, struct kvs_buf *out)
{
    KVS_ASSERT(s->tail_len < sizeof(s->tail));
    s->tail[s->tail_len++] = byte;
    uint32_t hit = complete(s);
    if (hit) {
        s->found = true;
        kvs_status st = let_out(s, s->tail_len - hit, out);
        s->tail_len = 0;
        return st;
    }
    uint32_t from = 0;
    while (from < s->tail_len && !could_grow(s, from))
        from++;
    return from ? let_out(s, from, out) : KVS_OK;
}

kvs_status rtr_stop_push(struct rtr_stop *s, const void *bytes, size_t n, struct kvs_buf *out)
{
    if (s->found)
        return KVS_OK;
    if (!s->set->count)
        return kvs_buf_append(out, bytes, n);
    const uint8_t *p = bytes;
    kvs_status st = KVS_OK;
    for (size_t i = 0; i < n && st == KVS_OK && !s->found; i++)
        st = push_byte(s, p[i], out);
    return st;
}

kvs_status rtr_stop_flush(struct rtr_stop *s, struct kvs_buf *out)
{
    return s->found ? KVS_OK : let_out(s, s->tail_len, out);
}
