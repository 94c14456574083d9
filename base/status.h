/* status.h - the one result type of Kvasir.
 * A status says who has to act: nobody (OK), the client (REQ), nobody but later (BUSY), another worker (PEER), this process (SELF).
 * The edge turns ranges into HTTP codes: REQ 4xx, BUSY 429, PEER 502/503, SELF 500. Output arguments are set only on KVS_OK.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_STATUS_H
#define KVS_BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVS_MUST_CHECK __attribute__((warn_unused_result))
#define KVS_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

typedef enum kvs_status {
    KVS_OK = 0,
    /* The client's doing: 4xx, a retry of the same request cannot help. */
    KVS_REQ_INVALID = 100,       /* 400 malformed or out of range */
    KVS_REQ_TOO_LONG = 101,      /* 400 context_length_exceeded */
    KVS_REQ_UNKNOWN_MODEL = 102, /* 404 */
    KVS_REQ_NOT_FOUND = 103,     /* 404 path or object */
    KVS_REQ_METHOD = 104,        /* 405 */
    KVS_REQ_UNSUPPORTED = 105,   /* 400/501 a feature that is not there */
    KVS_REQ_TOO_LARGE = 106,     /* 413/431 body or header over its bound */
    KVS_REQ_CANCELLED = 107,     /* the client left or sent Abort */
    KVS_REQ_DEADLINE = 108,      /* 504 the request's time is up */
    KVS_REQ_DENIED = 109,        /* 401/403 */
    /* Full or not yet: an ordinary answer, 429 with Retry-After. */
    KVS_BUSY_PAGES = 200, /* no KV page free */
    KVS_BUSY_QUEUE = 201, /* a bounded queue is full */
    KVS_BUSY_FULL = 202,  /* a bounded buffer or table is full */
    KVS_BUSY_AGAIN = 203, /* nothing to do now, ask again */
    KVS_BUSY_NO_WORKER = 204, /* 503 no worker of the needed role is ready */
    /* Another process: try a different worker. */
    KVS_PEER_LOST = 300,     /* connection gone */
    KVS_PEER_TIMEOUT = 301,  /* silent for too long */
    KVS_PEER_PROTOCOL = 302, /* sent what the protocol forbids */
    KVS_PEER_MISMATCH = 303, /* other model, numerics class, layout or protocol version */
    KVS_PEER_REFUSED = 304,  /* would not take the call */
    KVS_PEER_CORRUPT = 305,  /* checksum wrong */
    /* This process. */
    KVS_SELF_NOMEM = 400,
    KVS_SELF_IO = 401,
    KVS_SELF_CONFIG = 402,      /* flags, environment, file: refuse to start */
    KVS_SELF_MODEL = 403,       /* model file broken or not understood */
    KVS_SELF_NUMERIC = 404,     /* NaN or infinity in a sequence */
    KVS_SELF_UNSUPPORTED = 405, /* this machine or build cannot */
    KVS_SELF_STOPPING = 406,
    KVS_SELF_INTERNAL = 407,
} kvs_status;

/* Fixed lower-case name of a status ("busy_pages"), for logs, metrics and error codes. Never NULL. */
const char *kvs_status_name(kvs_status s);

static inline bool kvs_is_req(kvs_status s) { return s >= 100 && s < 200; }
static inline bool kvs_is_busy(kvs_status s) { return s >= 200 && s < 300; }
static inline bool kvs_is_peer(kvs_status s) { return s >= 300 && s < 400; }
static inline bool kvs_is_self(kvs_status s) { return s >= 400 && s < 500; }

#endif
