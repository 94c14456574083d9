/* status.c - the printable names of kvs_status.
 * Names are part of the outer face (log lines, metric labels, error codes), so they are spelled out here once rather than
 * derived from the enumerators, and a test compares them with the enum. A value that is none of ours prints as "unknown"
 * instead of asserting: a number may have come from a peer of another version.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

const char *kvs_status_name(kvs_status s)
{
    switch (s) {
    case KVS_OK: return "ok";
    case KVS_REQ_INVALID: return "req_invalid";
    case KVS_REQ_TOO_LONG: return "req_too_long";
    case KVS_REQ_UNKNOWN_MODEL: return "req_unknown_model";
    case KVS_REQ_NOT_FOUND: return "req_not_found";
    case KVS_REQ_METHOD: return "req_method";
    case KVS_REQ_UNSUPPORTED: return "req_unsupported";
    case KVS_REQ_TOO_LARGE: return "req_too_large";
    case KVS_REQ_CANCELLED: return "req_cancelled";
    case KVS_REQ_DEADLINE: return "req_deadline";
    case KVS_REQ_DENIED: return "req_denied";
    case KVS_BUSY_PAGES: return "busy_pages";
    case KVS_BUSY_QUEUE: return "busy_queue";
    case KVS_BUSY_FULL: return "busy_full";
    case KVS_BUSY_AGAIN: return "busy_again";
    case KVS_BUSY_NO_WORKER: return "busy_no_worker";
    case KVS_PEER_LOST: return "peer_lost";
    case KVS_PEER_TIMEOUT: return "peer_timeout";
    case KVS_PEER_PROTOCOL: return "peer_protocol";
    case KVS_PEER_MISMATCH: return "peer_mismatch";
    case KVS_PEER_REFUSED: return "peer_refused";
    case KVS_PEER_CORRUPT: return "peer_corrupt";
    case KVS_SELF_NOMEM: return "self_nomem";
    case KVS_SELF_IO: return "self_io";
    case KVS_SELF_CONFIG: return "self_config";
    case KVS_SELF_MODEL: return "self_model";
    case KVS_SELF_NUMERIC: return "self_numeric";
    case KVS_SELF_UNSUPPORTED: return "self_unsupported";
    case KVS_SELF_STOPPING: return "self_stopping";
    case KVS_SELF_INTERNAL: return "self_internal";
    }
    return "unknown";
}
