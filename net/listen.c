/* listen.c - reads "HOST:PORT" as users write it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/ops_http.h"
#include <string.h>

static kvs_status refuse(const char *text, struct kvs_error *err)
{
    return kvs_fail(err, KVS_SELF_CONFIG,
                    "\"%.80s\" is no address to listen on: write HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080",
                    text);
}

kvs_status net_parse_listen(const char *text, char *host_out, size_t host_cap, uint16_t *port_out,
                            struct kvs_error *err)
{
    const char *host = text, *colon = strrchr(text, ':');
    size_t host_bytes = colon == NULL ? 0 : (size_t)(colon - text);
    if (colon == NULL) {
        return refuse(text, err);
    }
    if (text[0] == '[') {
        if (host_bytes < 3 || colon[-1] != ']') {
            return refuse(text, err);
        }
        host++;
        host_bytes -= 2;
    } else if (memchr(text, ':', host_bytes) != NULL) {
        return refuse(text, err); /* an IPv6 address wants brackets */
    }
    uint32_t port = 0;
    size_t digits = strlen(colon + 1);
    for (size_t i = 0; i < digits && i < 6; i++) {
        if (colon[1 + i] < '0' || colon[1 + i] > '9') {
            return refuse(text, err);
        }
        port = port * 10 + (uint32_t)(colon[1 + i] - '0');
    }
    if (digits == 0 || digits > 5 || port > 65535 || host_bytes == 0 || host_bytes >= host_cap) {
        return refuse(text, err);
    }
    memcpy(host_out, host, host_bytes);
    host_out[host_bytes] = '\0';
    *port_out = (uint16_t)port;
    return KVS_OK;
}
