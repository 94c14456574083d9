/* map.h - open-addressing hash map from u64 to u64 with a maximum, for indices into tables.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_MAP_H
#define KVS_BASE_MAP_H

#include "base/error.h"

struct kvs_map;

KVS_MUST_CHECK kvs_status kvs_map_create(size_t entries_max, struct kvs_map **out);
void kvs_map_destroy(struct kvs_map *m);
KVS_MUST_CHECK kvs_status kvs_map_put(struct kvs_map *m, uint64_t key, uint64_t value); /* replaces; KVS_BUSY_FULL at the bound */
bool kvs_map_get(const struct kvs_map *m, uint64_t key, uint64_t *value_out);
bool kvs_map_remove(struct kvs_map *m, uint64_t key);
size_t kvs_map_count(const struct kvs_map *m);

#endif
