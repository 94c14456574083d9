/* registry.h - members of a cluster and their leases, as a pure state machine: the heart of the embedded backend
 * and of the simulator's.
 * The same rules as etcd's: a member lives as long as its lease is kept alive; the lease ends TTL after the last
 * renewal; re-registration with the same epoch keeps the identity, another epoch under the same id replaces it
 * (GONE, then PUT).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_CLUSTER_CORE_REGISTRY_H
#define KVS_CLUSTER_CORE_REGISTRY_H

#include "base/error.h"
#include "proto/msg.h"

#define CLS_FOREVER UINT64_MAX /* as a TTL: leases do not end by themselves (a client's view) */

struct cls_registry;
KVS_MUST_CHECK kvs_status cls_registry_create(uint32_t members_max, uint64_t ttl_us, struct cls_registry **out);
void cls_registry_destroy(struct cls_registry *r);
KVS_MUST_CHECK kvs_status cls_registry_put(struct cls_registry *r, const struct msg_card *card, uint64_t now_us,
                                           struct kvs_error *err);
bool cls_registry_renew(struct cls_registry *r, const char *id, uint64_t epoch,
                        uint64_t now_us); /* false: lease gone, put again */
void cls_registry_leave(struct cls_registry *r, const char *id, uint64_t epoch, uint64_t now_us);
void cls_registry_tick(struct cls_registry *r, uint64_t now_us); /* expires leases */
uint64_t cls_registry_deadline_us(const struct cls_registry *r);
/* For a view that is told anew (reconnected, compacted): mark all, put what is told, then let the leases of those
 * that were not told end at the given time (unless they are put again by then). */
void cls_registry_mark_all(struct cls_registry *r);
void cls_registry_lease_marked(struct cls_registry *r, uint64_t end_us);
/* No lease ends before then: for a view that could not be asked about for a while. */
void cls_registry_hold(struct cls_registry *r, uint64_t until_us);
/* Changes since the last call, in the order in which members began to change; false when there are none. What
 * happened to a member between two calls is told as its net effect: at most GONE (of the epoch that was told
 * before), then PUT. */
bool cls_registry_next_change(struct cls_registry *r, struct msg_member *out);
/* One member's lease ends then, unless it is put again before; nothing happens when it is not there under this epoch. */
void cls_registry_expire_at(struct cls_registry *r, const char *id, uint64_t epoch, uint64_t end_us);
const struct msg_card *cls_registry_find(const struct cls_registry *r, const char *id); /* NULL: not there */
bool cls_registry_has(const struct cls_registry *r, const char *id, uint64_t epoch);
uint32_t cls_registry_count(const struct cls_registry *r);
const struct msg_card *cls_registry_at(const struct cls_registry *r, uint32_t index);

struct cls_difference {
    const char *field; /* static text */
    char a[96], b[96]; /* both values, cut when they are long */
};
/* The first field in which two cards differ that must not; false: they can work together. */
bool cls_cards_differ(const struct msg_card *a, const struct msg_card *b, struct cls_difference *out);
/* May these two work together? Names the first field that differs and both values. */
KVS_MUST_CHECK kvs_status cls_cards_compatible(const struct msg_card *a, const struct msg_card *b,
                                               struct kvs_error *err);

#endif
