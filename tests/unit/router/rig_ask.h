/* rig_ask.h - a request to a router from which any end is expected: an answer, an error, a connection that breaks off; but an end.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_TESTS_ROUTER_RIG_ASK_H
#define KVS_TESTS_ROUTER_RIG_ASK_H

#include "tests/unit/router/rig.h"

#define RIG_ANSWER_MS 15000 /* without an end for so long it hangs: the test fails */

/* What came back; status 0: the connection broke off before an answer. */
struct rig_got {
    int status;
    bool cut; /* broken off in the middle */
    char head[4096];
    struct kvs_buf body;
};

/* kvs_buf_fini(&out->body) afterwards. */
void rig_ask(const struct rig_router *r, const char *method, const char *path, const char *body, struct rig_got *out);

#endif
