/* misfits.h - workers that came and did not fit those who serve their model: who, in which field, and both values.
 * Such a worker judges itself and ends within milliseconds (worker/edge), so whoever looks at the cluster later would find all in order and
 * a worker missing. The last ones are kept for a while; one that comes back with the right settings is forgotten at once. Loop thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_ROUTER_EDGE_MISFITS_H
#define KVS_ROUTER_EDGE_MISFITS_H

#include "base/json.h"
#include "cluster/core/registry.h"

#define RTR_MISFITS_MAX 16u
#define RTR_MISFITS_KEEP_US 600000000u

struct rtr_misfit {
    char id[MSG_ID_MAX], other[MSG_ID_MAX], model[128];
    uint64_t epoch, at_us;
    struct cls_difference differs; /* a: its own value, b: the other's */
};
struct rtr_misfits {
    struct rtr_misfit row[RTR_MISFITS_MAX]; /* the oldest first */
    uint32_t count;
};

/* A worker has come: is it held against those of its model who were there before? members: discovery's view; its own old life counts not. */
void rtr_misfits_look(struct rtr_misfits *m, const struct msg_card *members, uint32_t member_count, const struct msg_card *card, uint64_t now_us);
/* An array, the newest first; those older than RTR_MISFITS_KEEP_US are left out. */
void rtr_misfits_json(const struct rtr_misfits *m, uint64_t now_us, struct kvs_json *j);

#endif
