/* members.h - who is in the cluster, as the embedded backend does it: workers register over their stream to the router, the router's
 * registry keeps their leases and tells everybody. Both ends are the real cls_registry.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_MEMBERS_H
#define KVS_SIM_MEMBERS_H

#include "sim/net.h"

struct sim_members; /* the router's */

/* router's side */
void sim_members_create(struct sim *s, struct sim_members **out);
void sim_members_free(struct sim_members *m);
void sim_members_register(struct sim *s, struct sim_members *m, uint64_t conn, uint32_t stream, const uint8_t *body, size_t n);
void sim_members_down(struct sim_members *m, uint64_t conn);
const char *sim_members_rest(const struct sim *s, const struct sim_members *m); /* what is not as it should be when all is well; NULL: nothing */

/* worker's side; view is a registry whose leases do not end by themselves */
void sim_view_create(struct cls_registry **out);
uint32_t sim_view_call(struct sim *s, uint32_t node, uint64_t router_conn, struct cls_registry *view); /* REGISTER; returns the stream */
void sim_view_item(struct sim *s, uint32_t node, struct cls_registry *view, const uint8_t *body, size_t n);
/* May this worker link with that process? */
bool sim_view_knows(struct sim *s, uint32_t node, struct cls_registry *view, uint32_t peer_node);

#endif
