/* http_strict.c - refuses requests whose length two readers could see differently (request smuggling), and HTTP/1.1
 * without Host.
 * Pure rules over the header list that libmicrohttpd hands out. A name that is no token ("Content-Length :") is
 * refused, since the next reader may drop what makes it strange; a folded line comes as one value already.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/http_strict.h"
#include <microhttpd.h>
#include <string.h>
#include <strings.h>

struct heads {
    unsigned lengths, codings, hosts, strange; /* strange: names that are no token */
    const char *length, *coding, *host;
};

static bool is_token(const char *name)
{
    for (const char *c = name; *c != '\0'; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!plain && strchr("!#$%&'*+-.^_`|~", *c) == NULL) {
            return false;
        }
    }
    return name[0] != '\0';
}

static enum MHD_Result count_head(void *user, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct heads *h = user;
    (void)kind;
    value = value == NULL ? "" : value;
    h->strange += !is_token(key);
    if (strcasecmp(key, "Content-Length") == 0) {
        h->lengths++;
        h->length = value;
    } else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        h->codings++;
        h->coding = value;
    } else if (strcasecmp(key, "Host") == 0) {
        h->hosts++;
        h->host = value;
    }
    return MHD_YES;
}

static bool parse_length(const char *text, uint64_t *out)
{
    uint64_t v = 0;
    size_t n = strlen(text);
    if (n == 0 || n > 18) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        v = v * 10 + (uint64_t)(text[i] - '0');
    }
    *out = v;
    return true;
}

kvs_status net_http_strict(struct MHD_Connection *connection, const char *version, uint64_t body_max,
                           uint64_t *length_out, struct kvs_error *err)
{
    struct heads h = {0};
    uint64_t length = 0;
    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, count_head, &h);
    if (h.strange > 0) {
        return kvs_fail(err, KVS_REQ_INVALID, "a header's name holds a character that names may not have");
    }
    if (h.codings > 0 && strcmp(version, "HTTP/1.0") == 0) {
        return kvs_fail(err, KVS_REQ_INVALID, "Transfer-Encoding in an HTTP/1.0 request");
    }
    if (h.lengths > 1) {
        return kvs_fail(err, KVS_REQ_INVALID, "more than one Content-Length header");
    }
    if (h.lengths == 1 && h.codings > 0) {
        return kvs_fail(err, KVS_REQ_INVALID, "Content-Length beside Transfer-Encoding");
    }
    if (h.codings > 1) {
        return kvs_fail(err, KVS_REQ_INVALID, "more than one Transfer-Encoding header");
    }
    if (h.codings == 1 && strcasecmp(h.coding, "chunked") != 0) {
        return kvs_fail(err, KVS_REQ_UNSUPPORTED, "the only transfer coding understood here is chunked");
    }
    if (h.hosts > 1) {
        return kvs_fail(err, KVS_REQ_INVALID, "more than one Host header");
    }
    if (h.hosts == 0 && strcmp(version, "HTTP/1.0") != 0) {
        return kvs_fail(err, KVS_REQ_INVALID, "no Host header");
    }
    if (h.lengths == 1 && !parse_length(h.length, &length)) {
        return kvs_fail(err, KVS_REQ_INVALID, "Content-Length is no number");
    }
    if (length > body_max) {
        return kvs_fail(err, KVS_REQ_TOO_LARGE, "the body has %llu bytes, at most %llu are allowed",
                        (unsigned long long)length, (unsigned long long)body_max);
    }
    if (length_out != NULL) {
        *length_out = length;
    }
    return KVS_OK;
}
