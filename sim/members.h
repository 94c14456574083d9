/* members.h - who is in the cluster, as one process knows it: the daemons' own discovery (seam.h), embedded or by etcd, and the view that
 * its words add up to.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_SIM_MEMBERS_H
#define KVS_SIM_MEMBERS_H

#include "sim/net.h"

void sim_members_start(struct sim *s, uint32_t node);
void sim_members_stop(struct sim *s, uint32_t node, bool leave); /* leave: it ends in order */
void sim_members_update(struct sim *s, uint32_t node);           /* its card has changed */
void sim_members_conn_up(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node);
void sim_members_conn_down(struct sim *s, uint32_t node, uint64_t conn, uint32_t peer_node);
bool sim_members_call(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n);
void sim_members_cancel(struct sim *s, uint32_t node, uint64_t conn, uint32_t stream);
bool sim_members_item(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const uint8_t *body, size_t n);
bool sim_members_end(struct sim *s, uint32_t node, uint64_t conn, const struct sim_call *call, const struct msg_end *end);
/* The card of that name in this process' view; NULL: none. */
const struct msg_card *sim_members_find(struct sim *s, uint32_t node, const char *id);
/* What is not as it should be when all is well; NULL: nothing. */
const char *sim_members_rest(struct sim *s, uint32_t *node_out);

struct cls_discovery;
struct cls_discovery *sim_members_discovery(struct sim *s, uint32_t node);

/* digests.c: hints in etcd of who has cached what */
void sim_digests_start(struct sim *s, uint32_t node);
void sim_digests_stop(struct sim *s, uint32_t node);
void sim_digests_member(struct sim *s, uint32_t node, const struct msg_member *m);            /* a router has heard of it */
void sim_digests_ready(struct sim *s, uint32_t node, const struct msg_card *card, uint64_t conn); /* a router begins to use it */

/* Told by members.c: a member has come, changed or gone (router.c, worker.c). */
void sim_router_member(struct sim *s, uint32_t node, const struct msg_member *m);
void sim_worker_member(struct sim *s, uint32_t node, const struct msg_member *m);

#endif
