/* arena.h - memory of one request or one parse: bump allocation, freed as a whole, bounded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVS_BASE_ARENA_H
#define KVS_BASE_ARENA_H

#include "base/error.h"

struct kvs_arena {
    struct kvs_arena_chunk *chunks; /* newest first, owned */
    size_t used, max;               /* bytes handed out; bound on it */
};

void kvs_arena_init(struct kvs_arena *a, size_t max);
void kvs_arena_fini(struct kvs_arena *a);
/* 16-byte aligned, zero-filled; NULL when the bound or the machine's memory is reached. */
void *kvs_arena_alloc(struct kvs_arena *a, size_t bytes);
void *kvs_arena_array(struct kvs_arena *a, size_t count, size_t size); /* checked product */
char *kvs_arena_dup(struct kvs_arena *a, const void *bytes, size_t n);  /* copy with a NUL after it */

#endif
