/* recent.h - the last placements, with what was predicted for each candidate and what came of it: for the status page and the header.
 * Loop thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_RECENT_H
#define KVS_ROUTER_EDGE_RECENT_H

#include "base/json.h"
#include "router/core/policy.h"

#define RTR_RECENT_MAX 16

/* How one request was placed; belongs to its job until its first token, then to the ring. */
struct rtr_placed_row {
    uint64_t id, at_us; /* of its first token */
    uint32_t prompt_tokens;
    uint32_t option_count; /* 0: not placed yet */
    struct rtr_option option[RTR_OPTIONS_MAX]; /* [0] was chosen */
    /* from the first token */
    msg_placement mode;
    uint32_t cached_tokens;
    double measured_s;
};
struct rtr_recent {
    struct rtr_placed_row row[RTR_RECENT_MAX];
    uint32_t next, count;
};

void rtr_recent_add(struct rtr_recent *r, const struct rtr_placed_row *row);
/* An array, the newest first. */
void rtr_recent_json(const struct rtr_recent *r, uint64_t now_us, struct kvs_json *j);
/* " predicted_ms=... first_ms=..." behind the header's first fields; "" when nothing was predicted. */
void rtr_recent_text(const struct rtr_placed_row *row, char *out, size_t cap);

#endif
