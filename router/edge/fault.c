/* fault.c - see fault.h. The ranges of kvs_status say who has to act, and so do HTTP's classes: one table between the two.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/fault.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

kvs_status rtr_fail(struct rtr_fault *f, kvs_status status, const char *param, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text, sizeof(f->text), fmt, args);
    va_end(args);
    kvs_utf8_clean(f->text, strlen(f->text));
    kvs_format(f->param, sizeof(f->param), "%s", param ? param : "");
    f->status = status;
    return status;
}

unsigned rtr_fault_http(kvs_status s)
{
    switch (s) {
    case KVS_OK: return 200;
    case KVS_REQ_UNKNOWN_MODEL:
    case KVS_REQ_NOT_FOUND: return 404;
    case KVS_REQ_METHOD: return 405;
    case KVS_REQ_TOO_LARGE: return 413;
    case KVS_REQ_CANCELLED: return 499;
    case KVS_REQ_DEADLINE: return 504;
    case KVS_REQ_DENIED: return 403;
    case KVS_BUSY_NO_WORKER:
    case KVS_SELF_STOPPING: return 503;
    case KVS_PEER_TIMEOUT: return 504;
    default: return kvs_is_req(s) ? 400 : kvs_is_busy(s) ? 429 : kvs_is_peer(s) ? 502 : 500;
    }
}

const char *rtr_fault_code(kvs_status s)
{
    switch (s) {
    case KVS_REQ_TOO_LONG: return "context_length_exceeded";
    case KVS_REQ_UNKNOWN_MODEL: return "model_not_found";
    case KVS_REQ_INVALID: return "invalid_value";
    case KVS_REQ_UNSUPPORTED: return "unsupported_parameter";
    default: return kvs_status_name(s);
    }
}

const char *rtr_fault_outcome(kvs_status s)
{
    if (s == KVS_OK)
        return "ok";
    if (s == KVS_REQ_CANCELLED)
        return "cancelled";
    if (s == KVS_REQ_DEADLINE)
        return "deadline";
    return kvs_is_req(s) ? "invalid" : kvs_is_busy(s) ? "busy" : "error";
}

bool rtr_fault_final(kvs_status s)
{
    return s == KVS_REQ_DEADLINE || s == KVS_SELF_NUMERIC || s == KVS_SELF_UNSUPPORTED;
}

static const char *type_of(kvs_status s)
{
    if (s == KVS_REQ_UNKNOWN_MODEL || s == KVS_REQ_NOT_FOUND)
        return "not_found_error";
    if (s == KVS_REQ_DEADLINE)
        return "timeout_error";
    if (kvs_is_req(s))
        return "invalid_request_error";
    if (s == KVS_BUSY_NO_WORKER || s == KVS_SELF_STOPPING)
        return "service_unavailable_error";
    return kvs_is_busy(s) ? "rate_limit_error" : "server_error";
}

kvs_status rtr_fault_write(const struct rtr_fault *f, struct kvs_buf *out)
{
    struct kvs_json j;
    kvs_json_begin(&j, out);
    kvs_json_object(&j);
    kvs_json_key(&j, "error");
    kvs_json_object(&j);
    kvs_json_field_string(&j, "message", f->text);
    kvs_json_field_string(&j, "type", type_of(f->status));
    kvs_json_key(&j, "param");
    if (f->param[0])
        kvs_json_string(&j, f->param);
    else
        kvs_json_null(&j);
    kvs_json_field_string(&j, "code", rtr_fault_code(f->status));
    kvs_json_object_end(&j);
    kvs_json_object_end(&j);
    return kvs_json_end(&j);
}
