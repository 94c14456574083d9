/* etcd_codec.h - bodies of etcd's v3 JSON gateway: requests written, answers read. No sockets, no clock.
 * The gateway's habits: 64-bit integers are strings, bytes are base64, a field at its default is absent (a TTL that is
 * not there is a TTL of 0: the lease is gone). What streams (keepalive, watch) wraps each object in "result" or
 * "error".
 * Answers come from outside: nothing is believed before it was looked at, everything that is kept lies in the caller's
 * arena, and what does not fit is KVS_PEER_PROTOCOL (or KVS_SELF_NOMEM when the arena ends).
 * Decoding takes (bytes, length) of one whole JSON object; a caller bounds that length.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_NET_ETCD_CODEC_H
#define KVS_NET_ETCD_CODEC_H

#include "base/arena.h"
#include "base/buf.h"

#define NET_ETCD_KEY_MAX 1024u
#define NET_ETCD_KVS_MAX 65536u /* entries of one answer or one watch line */

struct net_etcd_kv {
    const char *key; /* NUL-terminated; a key with a NUL inside is dropped when decoding */
    const uint8_t *value;
    size_t value_bytes;
    int64_t mod_revision, lease;
};

struct net_etcd_answer {
    int64_t revision;              /* of the header; 0 when there is none */
    int64_t lease, ttl;            /* lease/grant, lease/keepalive */
    bool succeeded;                /* txn */
    const struct net_etcd_kv *kvs; /* range; txn: of the first range among its responses */
    uint32_t kv_count;
    const char *token; /* auth/authenticate; "" otherwise */
    bool more;         /* range: the limit cut it */
};

struct net_etcd_event {
    bool deleted;
    struct net_etcd_kv kv; /* deleted: key and revision only */
};
struct net_etcd_watch_line {
    bool created, canceled;
    int64_t revision;         /* of the header */
    int64_t compact_revision; /* not 0: events before it are lost, range afresh */
    char reason[128];
    const struct net_etcd_event *events;
    uint32_t event_count;
};

/* Requests: each appends one JSON object. keys are text; an empty value is allowed. */
KVS_MUST_CHECK kvs_status net_etcd_put_grant(struct kvs_buf *out, int64_t ttl_s);
KVS_MUST_CHECK kvs_status net_etcd_put_lease(struct kvs_buf *out, int64_t lease); /* keepalive and revoke */
/* All keys that begin with prefix, at most limit of them (0: all). */
KVS_MUST_CHECK kvs_status net_etcd_put_range(struct kvs_buf *out, const char *prefix, int64_t limit);
KVS_MUST_CHECK kvs_status net_etcd_put_put(struct kvs_buf *out, const char *key, const void *value, size_t n,
                                           int64_t lease);
KVS_MUST_CHECK kvs_status net_etcd_put_delete(struct kvs_buf *out, const char *prefix);
/* Puts key when its mod_revision is still the given one (0: it does not exist), else reads it. */
KVS_MUST_CHECK kvs_status net_etcd_put_swap(struct kvs_buf *out, const char *key, int64_t mod_revision,
                                            const void *value, size_t n, int64_t lease);
KVS_MUST_CHECK kvs_status net_etcd_put_watch(struct kvs_buf *out, const char *prefix, int64_t start_revision);

KVS_MUST_CHECK kvs_status net_etcd_put_login(struct kvs_buf *out, const char *user, const char *password);

/* Answers of lease/grant, lease/keepalive, lease/revoke, kv/put, kv/range, kv/txn. */
KVS_MUST_CHECK kvs_status net_etcd_answer_decode(const void *json, size_t n, struct kvs_arena *a,
                                                 struct net_etcd_answer *out, struct kvs_error *err);
KVS_MUST_CHECK kvs_status net_etcd_watch_decode(const void *json, size_t n, struct kvs_arena *a,
                                                struct net_etcd_watch_line *out, struct kvs_error *err);
/* The error object of an answer that is not 200: its gRPC code (0: none) and text. Never fails. */
int net_etcd_error_decode(const void *json, size_t n, char *text_out, size_t cap);

KVS_MUST_CHECK kvs_status net_base64_append(struct kvs_buf *out, const void *bytes, size_t n);
/* Strict: padded, no white space, no stray bits. */
KVS_MUST_CHECK kvs_status net_base64_decode(const char *text, size_t n, struct kvs_arena *a, uint8_t **out,
                                            size_t *bytes_out);

#endif
