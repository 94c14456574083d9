/* advertise.h - the URL under which others reach what listens here. Pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_ADVERTISE_H
#define KVS_NET_ADVERTISE_H

#include "base/error.h"

/* Puts host in place of the host of a tcp:// or http:// URL (an IPv6 address gets its brackets); ipc:// stays. With host
 * "" nothing changes, but a URL that names every interface ("0.0.0.0", "[::]") is KVS_SELF_CONFIG: nobody can dial
 * that. cap: bytes that url has room for. */
KVS_MUST_CHECK kvs_status net_advertise(const char *host, char *url, size_t cap, struct kvs_error *err);
/* Of a control URL that can be listened on: ipc://, or tcp:// to loopback. Whoever reaches that is on this machine. */
bool net_url_is_private(const char *url);

#endif
