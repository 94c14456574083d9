/* http_client.h - GET and POST to a router: bounded answers, a deadline on everything, never through a proxy.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLI_HTTP_CLIENT_H
#define KVS_CLI_HTTP_CLIENT_H

#include "cli/cli.h"

struct cli_http {
    const char *url;     /* whole */
    const char *body;    /* JSON of a POST; NULL: GET */
    const char *bearer;  /* the cluster's key; NULL or "": none is sent */
    const char *authorization; /* instead of bearer: the header's whole value; at most 1 KiB */
    uint32_t timeout_ms; /* for the whole exchange */
    uint32_t connect_ms; /* 0: 2 s */
    struct kvs_buf
        *out; /* the answer's body, up to its bound; with on_bytes only that of an error answer (status not 200) */
    bool (*on_bytes)(void *user, const char *bytes,
                     size_t n); /* NULL, or called with pieces of a 200 answer; false stops */
    void *user;
    char placement[640]; /* out: header x-kvasir-placement, "" when absent */
    long status;         /* out */
    const void *handle;  /* internal */
};
/* KVS_PEER_REFUSED when nobody answers there, KVS_PEER_TIMEOUT, KVS_PEER_LOST when the answer breaks off, KVS_REQ_CANCELLED when on_bytes
 * stopped it. Any HTTP status is KVS_OK: look at h->status. */
KVS_MUST_CHECK kvs_status cli_http(struct cli_http *h, struct kvs_error *err);

/* Makes "http://HOST:PORT" of what a user gave (HOST:PORT, http://..., with or without a trailing slash). */
KVS_MUST_CHECK kvs_status cli_base_url(const char *text, char *out, size_t cap, struct kvs_error *err);
/* The message of an OpenAI error object, or the body's beginning. */
void cli_http_error_text(const struct cli_http *h, const struct kvs_buf *body, char *out, size_t cap);

#endif
