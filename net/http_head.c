/* http_head.c - see http_head.h. Line by line; what is seen before the end of the head is refused at once, so that nobody has to wait for
 * the rest of something that is no request.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/http_head.h"
#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { INCOMPLETE = 0, FINE = 200, BAD = 400, LONG_TARGET = 414, TOO_LARGE = 431, VERSION = 505 };

static bool is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static size_t token(const char *at, size_t n)
{
    size_t i = 0;
    while (i < n && is_token_char(at[i])) {
        i++;
    }
    return i;
}

static unsigned refuse(unsigned status, const char *why, const char **why_out)
{
    *why_out = why;
    return status;
}

/* METHOD SP TARGET SP HTTP/1.x */
static unsigned request_line(const char *at, size_t n, const char **why_out)
{
    size_t method = token(at, n);
    if (method == 0 || method == n || at[method] != ' ') {
        return refuse(BAD, "the request does not begin with a method and a space", why_out);
    }
    const char *target = at + method + 1;
    size_t rest = n - method - 1, length = 0;
    while (length < rest && target[length] > ' ' && target[length] != 0x7f) {
        length++;
    }
    if (length == 0 || length == rest || target[length] != ' ') {
        return refuse(BAD, "the request line has no target, or none that ends with a space", why_out);
    }
    const char *version = target + length + 1;
    size_t left = rest - length - 1;
    if (left != 8 || memcmp(version, "HTTP/", 5) != 0) {
        return refuse(BAD, "the request line does not end with the version of HTTP", why_out);
    }
    if (memcmp(version, "HTTP/1.1", 8) != 0 && memcmp(version, "HTTP/1.0", 8) != 0) {
        return refuse(VERSION, "HTTP/1.1 and HTTP/1.0 are spoken here", why_out);
    }
    return FINE;
}

static bool all_digits(const char *at, size_t n)
{
    while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t')) {
        n--;
    }
    while (n > 0 && (*at == ' ' || *at == '\t')) {
        at++;
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        if (at[i] < '0' || at[i] > '9') {
            return false;
        }
    }
    return n > 0 && n <= 18;
}

static unsigned header_line(const char *at, size_t n, const char **why_out)
{
    size_t name = token(at, n);
    if (at[0] == ' ' || at[0] == '\t') {
        return refuse(BAD, "a header is folded over two lines", why_out);
    }
    if (name == 0 || name == n || at[name] != ':') {
        return refuse(BAD, "a header line is no name with a colon behind it", why_out);
    }
    const char *value = at + name + 1;
    size_t length = n - name - 1;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)value[i];
        if ((c < ' ' && c != '\t') || c == 0x7f) {
            return refuse(BAD, "a header holds a control character", why_out);
        }
    }
    if (name == 14 && strncasecmp(at, "Content-Length", 14) == 0 && !all_digits(value, length)) {
        return refuse(BAD, "Content-Length is no number", why_out);
    }
    return FINE;
}

unsigned net_http_head(const char *bytes, size_t n, const char **why_out)
{
    size_t at = 0, lines = 0;
    while (n - at >= 2 && bytes[at] == '\r' && bytes[at + 1] == '\n' && at < 8) {
        at += 2; /* RFC 9112, 2.2: empty lines before the request are skipped */
    }
    for (;;) {
        const char *end = memchr(bytes + at, '\n', n - at);
        if (end == NULL) {
            break;
        }
        size_t length = (size_t)(end - (bytes + at));
        bool with_cr = length > 0 && end[-1] == '\r';
        length -= with_cr;
        if (length == 0 && lines > 0) {
            return (size_t)(end - bytes) < NET_HEAD_BYTES_MAX
                       ? FINE
                       : refuse(TOO_LARGE, "the request's head is too large", why_out);
        }
        if (length == 0 || !with_cr) {
            return refuse(BAD, "the request is not made of lines that end with CR and LF", why_out);
        }
        unsigned s = lines == 0 ? request_line(bytes + at, length, why_out) : header_line(bytes + at, length, why_out);
        if (s != FINE) {
            return s;
        }
        if (++lines > NET_HEAD_LINES_MAX) {
            return refuse(TOO_LARGE, "the request has too many headers", why_out);
        }
        at = (size_t)(end - bytes) + 1;
    }
    if (lines == 0 && n > at && token(bytes + at, n - at) == 0 && bytes[at] != '\r') {
        return refuse(BAD, "the request does not begin with a method and a space", why_out);
    }
    if (n >= NET_HEAD_BYTES_MAX) {
        return lines == 0 ? refuse(LONG_TARGET, "the request's target is too long", why_out)
                          : refuse(TOO_LARGE, "the request's head is too large", why_out);
    }
    return INCOMPLETE;
}
