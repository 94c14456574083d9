/* metrics_text.c - see metrics_text.h. A page is lines of NAME{LABELS} VALUE; comment lines begin with #.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/metrics_text.h"

#include "cli/http_client.h"

#include <stdlib.h>
#include <string.h>

#define METRICS_MAX (16u << 20)

struct sample {
    const char *labels; /* after '{', or "" */
    size_t labels_len;
    double value;
};

/* The sample of this line when it is of that name. */
static bool sample_of(const char *line, size_t n, const char *name, struct sample *out)
{
    size_t len = strlen(name);
    if (n <= len || memcmp(line, name, len) != 0)
        return false;
    const char *end = line + n, *at = line + len;
    *out = (struct sample){.labels = ""};
    if (*at == '{') {
        const char *close = at;
        while (close < end && *close != '}')
            close++;
        if (close == end)
            return false;
        out->labels = at + 1;
        out->labels_len = (size_t)(close - at - 1);
        at = close + 1;
    }
    if (at >= end || *at != ' ')
        return false;
    out->value = strtod(at, NULL);
    return true;
}

static bool label(const struct sample *s, const char *key, char *out, size_t cap)
{
    char want[64];
    size_t n = kvs_format(want, sizeof want, "%s=\"", key);
    for (size_t i = 0; i + n <= s->labels_len; i++) {
        if (memcmp(s->labels + i, want, n) != 0 || (i > 0 && s->labels[i - 1] != ','))
            continue;
        const char *from = s->labels + i + n, *to = from;
        while (to < s->labels + s->labels_len && *to != '"')
            to++;
        (void)kvs_format(out, cap, "%.*s", (int)(to - from), from);
        return true;
    }
    return false;
}

/* Walks the page's samples of one name: *at is where to go on, NULL at the end. */
static bool next_sample(const char **at, const char *name, struct sample *out)
{
    while (*at && **at) {
        const char *line = *at, *end = strchr(line, '\n');
        *at = end ? end + 1 : NULL;
        if (sample_of(line, end ? (size_t)(end - line) : strlen(line), name, out))
            return true;
    }
    return false;
}

double cli_metric_sum(const char *page, const char *name)
{
    double sum = 0;
    struct sample s;
    char worker[80];
    for (const char *at = page; next_sample(&at, name, &s);)
        if (label(&s, "worker", worker, sizeof worker))
            sum += s.value;
    return sum;
}

void cli_transfer_parse(const char *page, struct cli_transfer *out)
{
    static const char bytes_name[] = "kvasir_kv_transfer_bytes_total";
    *out = (struct cli_transfer){0};
    out->pages = cli_metric_sum(page, "kvasir_kv_transfer_pages_total");
    out->bytes = cli_metric_sum(page, bytes_name);
    out->seconds = cli_metric_sum(page, "kvasir_kv_transfer_seconds_sum");
    out->exposed = cli_metric_sum(page, "kvasir_kv_exposed_seconds_sum");
    struct sample s;
    double most = 0;
    for (const char *at = page; next_sample(&at, bytes_name, &s);) {
        if (s.value > most && label(&s, "transport", out->transport, sizeof out->transport))
            most = s.value;
    }
}

bool cli_transfer_read(const char *base, struct cli_transfer *out)
{
    char url[320];
    (void)kvs_format(url, sizeof url, "%s/metrics", base);
    struct kvs_buf page;
    kvs_buf_init(&page, METRICS_MAX);
    struct cli_http h = {.url = url, .timeout_ms = 3000, .out = &page};
    bool ok = cli_http(&h, NULL) == KVS_OK && h.status == 200;
    if (ok)
        cli_transfer_parse(kvs_buf_text(&page), out);
    kvs_buf_fini(&page);
    return ok;
}
