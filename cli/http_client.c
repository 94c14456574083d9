/* http_client.c - see http_client.h; libcurl does the work. A cluster is spoken to directly: proxies of the environment are for the outside.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/http_client.h"

#include "base/utf8.h"

#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct exchange {
    struct cli_http *h;
    CURL *curl;
    bool stopped, full;
};

static size_t on_body(char *bytes, size_t size, size_t count, void *user)
{
    struct exchange *x = user;
    size_t n = size * count;
    long status = 0;
    (void)curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &status);
    if (x->h->on_bytes && status == 200) {
        if (x->h->on_bytes(x->h->user, bytes, n))
            return n;
        x->stopped = true;
        return 0;
    }
    if (x->h->out && kvs_buf_append(x->h->out, bytes, n) != KVS_OK) {
        x->full = true;
        return 0;
    }
    return n;
}

static size_t on_header(char *bytes, size_t size, size_t count, void *user)
{
    struct exchange *x = user;
    size_t n = size * count;
    static const char name[] = "x-kvasir-placement:";
    if (n > sizeof name - 1 && !strncasecmp(bytes, name, sizeof name - 1)) {
        const char *from = bytes + sizeof name - 1, *end = bytes + n;
        while (from < end && *from == ' ')
            from++;
        while (end > from && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
            end--;
        (void)kvs_format(x->h->placement, sizeof x->h->placement, "%.*s", (int)(end - from), from);
    }
    return n;
}

static kvs_status verdict(const struct exchange *x, CURLcode code, struct kvs_error *err)
{
    if (code == CURLE_OK)
        return KVS_OK;
    if (x->stopped)
        return kvs_fail(err, KVS_REQ_CANCELLED, "stopped");
    if (x->full)
        return kvs_fail(err, KVS_BUSY_FULL, "the answer of %.120s is larger than it may be", x->h->url);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return kvs_fail(err, KVS_PEER_TIMEOUT, "%.120s did not answer within %u ms", x->h->url, x->h->timeout_ms);
    if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
        return kvs_fail(err, KVS_PEER_REFUSED, "no router answers at %.120s (%s); start one with: kvasir up", x->h->url,
                        curl_easy_strerror(code));
    return kvs_fail(err, KVS_PEER_LOST, "%.120s: %s", x->h->url, curl_easy_strerror(code));
}

kvs_status cli_http(struct cli_http *h, struct kvs_error *err)
{
    struct exchange x = {.h = h, .curl = curl_easy_init()};
    if (!x.curl)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    h->placement[0] = '\0';
    h->status = 0;
    struct curl_slist *headers = NULL;
    CURL *c = x.curl;
    (void)curl_easy_setopt(c, CURLOPT_URL, h->url);
    (void)curl_easy_setopt(c, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http");
    (void)curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)(h->connect_ms ? h->connect_ms : 2000));
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)h->timeout_ms);
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(c, CURLOPT_WRITEDATA, &x);
    (void)curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(c, CURLOPT_HEADERDATA, &x);
    if (h->body) {
        headers = curl_slist_append(headers, "content-type: application/json");
        headers = curl_slist_append(headers, "expect:");
        (void)curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE, (long)strlen(h->body));
        (void)curl_easy_setopt(c, CURLOPT_POSTFIELDS, h->body);
    }
    bool own = h->authorization && h->authorization[0];
    if (own || (h->bearer && h->bearer[0])) {
        char line[1100];
        (void)kvs_format(line, sizeof line, "authorization: %s%s", own ? "" : "Bearer ", own ? h->authorization : h->bearer);
        headers = curl_slist_append(headers, line);
    }
    (void)curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    CURLcode code = curl_easy_perform(c);
    (void)curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &h->status);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    return verdict(&x, code, err);
}

kvs_status cli_base_url(const char *text, char *out, size_t cap, struct kvs_error *err)
{
    const char *host = !strncmp(text, "http://", 7) ? text + 7 : text;
    size_t n = strlen(host);
    while (n > 0 && host[n - 1] == '/')
        n--;
    if (n == 0 || memchr(host, '/', n) || strstr(host, "://"))
        return kvs_fail(err, KVS_SELF_CONFIG, "'%.100s' is no router's address; write http://HOST:PORT", text);
    int len = snprintf(out, cap, "http://%.*s", (int)n, host);
    return len > 0 && (size_t)len < cap ? KVS_OK : kvs_fail(err, KVS_SELF_CONFIG, "the router's address is too long");
}

void cli_http_error_text(const struct cli_http *h, const struct kvs_buf *body, char *out, size_t cap)
{
    json_t *root = json_loadb(kvs_buf_text(body), body->len, 0, NULL);
    const char *text = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    (void)kvs_format(out, cap, "HTTP %ld: %.180s", h->status, text ? text : kvs_buf_text(body));
    kvs_utf8_clean(out, strlen(out));
    json_decref(root);
}
