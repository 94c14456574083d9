/* listen.c - see listen.h. A port that is held is bound, and nobody listens on it: who is given it by name binds it as well (both with
 * SO_REUSEADDR, as etcd and our daemons do) and listens; the kernel gives it to nobody as a free one, neither before nor while a daemon that
 * died is started again.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cli/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

kvs_status cli_listen_split(const char *text, char *host_out, size_t host_cap, uint16_t *port_out,
                            struct kvs_error *err)
{
    const char *colon = strrchr(text, ':');
    const char *host = text, *end = colon;
    if (!colon || colon == text)
        return kvs_fail(err, KVS_SELF_CONFIG, "--listen '%.80s' is not HOST:PORT; write 127.0.0.1:8080", text);
    if (*host == '[') {
        host++;
        end = colon - 1;
    }
    bool brackets = host != text;
    if (end <= host || (brackets && *end != ']') || (!brackets && memchr(host, ':', (size_t)(end - host))) ||
        (size_t)(end - host) >= host_cap)
        return kvs_fail(err, KVS_SELF_CONFIG, "--listen '%.80s' is not HOST:PORT; write 127.0.0.1:8080 or [::1]:8080",
                        text);
    uint32_t port = 0;
    const char *c = colon + 1;
    if (!*c)
        port = UINT32_MAX;
    for (; *c && port <= UINT16_MAX; c++)
        port = *c >= '0' && *c <= '9' ? port * 10 + (uint32_t)(*c - '0') : UINT32_MAX;
    if (port > UINT16_MAX)
        return kvs_fail(err, KVS_SELF_CONFIG, "--listen '%.80s': the port is a number from 0 to 65535", text);
    (void)kvs_format(host_out, host_cap, "%.*s", (int)(end - host), host);
    *port_out = (uint16_t)port;
    return KVS_OK;
}

static kvs_status bind_there(const struct addrinfo *a, const char *text, uint16_t *port_out, int *fd_out, struct kvs_error *err)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } at;
    socklen_t len = sizeof at;
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return kvs_fail(err, KVS_SELF_IO, "cannot make a socket: %s", strerror(errno));
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool ok = bind(fd, a->ai_addr, a->ai_addrlen) == 0 && getsockname(fd, &at.any, &len) == 0;
    int why = errno;
    if (!ok)
        close(fd);
    if (!ok && why == EADDRINUSE)
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "--listen %.80s is in use by another process; end that one or choose another port", text);
    if (!ok)
        return kvs_fail(err, KVS_SELF_CONFIG, "cannot listen at %.80s: %s; choose another address or port", text,
                        strerror(why));
    *fd_out = fd;
    *port_out = ntohs(a->ai_family == AF_INET6 ? at.v6.sin6_port : at.v4.sin_port);
    return KVS_OK;
}

kvs_status cli_listen_hold(const char *text, char *listen_out, size_t cap, int *fd_out, struct kvs_error *err)
{
    char host[128], service[8];
    uint16_t port;
    kvs_status s = cli_listen_split(text, host, sizeof host, &port, err);
    if (s != KVS_OK)
        return s;
    (void)kvs_format(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int bad = getaddrinfo(host, service, &hints, &list);
    if (bad)
        return kvs_fail(err, KVS_SELF_CONFIG, "--listen %.80s: %s; use an address of this machine", text,
                        gai_strerror(bad));
    s = bind_there(list, text, &port, fd_out, err);
    freeaddrinfo(list);
    if (s == KVS_OK)
        (void)kvs_format(listen_out, cap, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
    return s;
}

kvs_status cli_listen_check(const char *text, char *listen_out, size_t cap, struct kvs_error *err)
{
    int fd;
    kvs_status s = cli_listen_hold(text, listen_out, cap, &fd, err);
    if (s == KVS_OK)
        close(fd);
    return s;
}
