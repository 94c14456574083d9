/* advertise.c - see advertise.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/advertise.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static bool plain_host(const char *host)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:";
    size_t n = strlen(host);
    return n > 0 && n < 200 && strspn(host, allowed) == n;
}

kvs_status net_advertise(const char *host, char *url, size_t cap, struct kvs_error *err)
{
    char out[512];
    const char *at = strstr(url, "://");
    if (host[0] != '\0' && !plain_host(host)) {
        return kvs_fail(err, KVS_SELF_CONFIG, "--advertise \"%.80s\": give a host name or an address, without a port",
                        host);
    }
    if (at == NULL || (strncmp(url, "tcp://", 6) != 0 && strncmp(url, "http://", 7) != 0)) {
        return KVS_OK;
    }
    at += 3;
    const char *port = strrchr(at, ':');
    if (port == NULL) {
        return KVS_OK;
    }
    if (host[0] == '\0') {
        bool every =
            strncmp(at, "0.0.0.0:", 8) == 0 || strncmp(at, "[::]:", 5) == 0 || strncmp(at, "*:", 2) == 0 || port == at;
        return every ? kvs_fail(err, KVS_SELF_CONFIG,
                                "%.120s names every interface: say --advertise HOST, the host or "
                                "address at which others reach this daemon",
                                url)
                     : KVS_OK;
    }
    bool bare_v6 = strchr(host, ':') != NULL;
    size_t n = kvs_format(out, sizeof out, "%.*s%s%s%s%s", (int)(at - url), url, bare_v6 ? "[" : "", host,
                          bare_v6 ? "]" : "", port);
    if (n >= cap || n >= sizeof out - 1) {
        return kvs_fail(err, KVS_SELF_CONFIG, "--advertise \"%.80s\" is too long", host);
    }
    memcpy(url, out, n + 1);
    return KVS_OK;
}

bool net_url_is_private(const char *url)
{
    char host[256];
    struct in_addr a;
    struct in6_addr a6;
    if (strncmp(url, "tcp://", 6) != 0) {
        return strncmp(url, "ipc://", 6) == 0;
    }
    const char *from = url + 6, *end = strrchr(from, ':');
    size_t n = end != NULL ? (size_t)(end - from) : 0;
    if (n >= 2 && from[0] == '[' && from[n - 1] == ']') {
        from++;
        n -= 2;
    }
    if (n >= sizeof host) {
        return false;
    }
    memcpy(host, from, n);
    host[n] = '\0';
    if (inet_pton(AF_INET, host, &a) == 1) {
        return ntohl(a.s_addr) >> 24 == 127;
    }
    return strcmp(host, "localhost") == 0 || (inet_pton(AF_INET6, host, &a6) == 1 && IN6_IS_ADDR_LOOPBACK(&a6));
}
