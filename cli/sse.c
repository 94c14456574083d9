/* sse.c - the parser of https://html.spec.whatwg.org/multipage/server-sent-events.html, as far as a client of ours needs it:
 * data fields are joined by line ends, a blank line ends an event, comments and other fields are skipped.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/sse.h"

#include <string.h>

#define EVENT_MAX (1u << 20)

void cli_sse_init(struct cli_sse *p, bool (*on_data)(void *, const char *, size_t), void *user)
{
    *p = (struct cli_sse){.on_data = on_data, .user = user};
    kvs_buf_init(&p->line, EVENT_MAX);
    kvs_buf_init(&p->data, EVENT_MAX);
}

void cli_sse_fini(struct cli_sse *p)
{
    kvs_buf_fini(&p->line);
    kvs_buf_fini(&p->data);
}

static kvs_status end_of_line(struct cli_sse *p)
{
    const char *text = kvs_buf_text(&p->line);
    size_t n = p->line.len;
    kvs_status s = KVS_OK;
    if (n == 0) {
        bool go_on = !p->data_seen || p->on_data(p->user, kvs_buf_text(&p->data), p->data.len);
        kvs_buf_clear(&p->data);
        p->data_seen = false;
        return go_on ? KVS_OK : KVS_REQ_CANCELLED;
    }
    if (n >= 5 && !memcmp(text, "data:", 5)) {
        size_t at = n > 5 && text[5] == ' ' ? 6 : 5;
        if (p->data_seen)
            s = kvs_buf_puts(&p->data, "\n");
        if (s == KVS_OK)
            s = kvs_buf_append(&p->data, text + at, n - at);
        p->data_seen = true;
    }
    kvs_buf_clear(&p->line);
    return s;
}

kvs_status cli_sse_feed(struct cli_sse *p, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = bytes[i];
        bool pair = p->cr && c == '\n'; /* CR LF is one line end */
        p->cr = c == '\r';
        if (pair)
            continue;
        kvs_status s = c == '\n' || c == '\r' ? end_of_line(p) : kvs_buf_append(&p->line, &c, 1);
        if (s != KVS_OK)
            return s;
    }
    return KVS_OK;
}
