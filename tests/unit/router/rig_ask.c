/* rig_ask.c - see rig_ask.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/router/rig_ask.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sys/clock.h"

static void unchunk(struct rig_got *g, const char *p, const char *end)
{
    for (g->cut = true; p < end;) {
        char *after;
        unsigned long n = strtoul(p, &after, 16);
        const char *data = strstr(after, "\r\n");
        if (!data || data + 2 + n > end)
            return;
        if (n == 0) {
            g->cut = false;
            return;
        }
        assert_int_equal(kvs_buf_append(&g->body, data + 2, n), KVS_OK);
        p = data + 2 + n + 2;
    }
}

void rig_ask(const struct rig_router *r, const char *method, const char *path, const char *body, struct rig_got *g)
{
    struct kvs_buf req, raw;
    int fd = rig_connect(r);
    *g = (struct rig_got){0};
    kvs_buf_init(&req, 64u << 20);
    kvs_buf_init(&raw, 64u << 20);
    kvs_buf_init(&g->body, 64u << 20);
    assert_int_equal(kvs_buf_printf(&req, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", method, path,
                                    body ? strlen(body) : 0),
                     KVS_OK);
    if (body)
        assert_int_equal(kvs_buf_puts(&req, body), KVS_OK);
    rig_send(fd, kvs_buf_text(&req));
    uint64_t begin_us = kvs_now_us();
    (void)rig_read(fd, &raw, NULL, RIG_ANSWER_MS);
    if (kvs_now_us() - begin_us > RIG_ANSWER_MS * 900ull)
        fail_msg("%s %s hangs; so far: %.200s", method, path, kvs_buf_text(&raw));
    close(fd);
    const char *text = kvs_buf_text(&raw), *blank = strstr(text, "\r\n\r\n");
    if (blank) {
        size_t n = (size_t)(blank - text) < sizeof(g->head) ? (size_t)(blank - text) : sizeof(g->head) - 1;
        memcpy(g->head, text, n);
        g->status = (int)strtol(text + strlen("HTTP/1.1 "), NULL, 10);
        if (strstr(text, "Transfer-Encoding: chunked"))
            unchunk(g, blank + 4, text + raw.len);
        else
            assert_int_equal(kvs_buf_puts(&g->body, blank + 4), KVS_OK);
    }
    kvs_buf_fini(&req);
    kvs_buf_fini(&raw);
}
