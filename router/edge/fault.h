/* fault.h - what went wrong with a request, in the words of the API: OpenAI's error object and its HTTP status.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_FAULT_H
#define KVS_ROUTER_EDGE_FAULT_H

#include "base/json.h"

struct rtr_fault {
    kvs_status status;
    char param[96]; /* the field at fault, "" for none */
    char text[512];
    uint32_t retry_after_s; /* 0: no such header */
};

/* Fills *f and returns status. */
kvs_status rtr_fail(struct rtr_fault *f, kvs_status status, const char *param, const char *fmt, ...) KVS_PRINTF(4, 5);
unsigned rtr_fault_http(kvs_status status);      /* 400, 404, 429, 503, ... */
const char *rtr_fault_code(kvs_status status);   /* slug of error.code */
const char *rtr_fault_outcome(kvs_status status); /* label of kvasir_requests_total: ok, invalid, cancelled, deadline, busy, error */
bool rtr_fault_final(kvs_status status);         /* a retry cannot help, though the HTTP status invites one */
/* {"error":{"message":...,"type":...,"param":...,"code":...}} */
KVS_MUST_CHECK kvs_status rtr_fault_write(const struct rtr_fault *f, struct kvs_buf *out);

#endif
