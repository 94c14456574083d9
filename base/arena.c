/* arena.c - bump allocation in chunks that are freed together.
 * For things that die at one moment: all strings of a request, all metadata of a parsed file. Nothing is freed singly.
 *   newest chunk -> older -> oldest;  each: [next, cap, used | bytes ...........]
 * Chunks start at 4 KiB and double up to 256 KiB, so that a small request costs one malloc and a large parse few; what does
 * not fit the next chunk gets a chunk of its own size. The bound counts bytes handed out (rounded to 16), not chunks.
 * Memory is zero because chunks come from calloc and are never handed out twice.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/checked.h"
#include <stdlib.h>

enum { ALIGN = 16, CHUNK_MIN = 4096, CHUNK_MAX = 256 * 1024 };

struct kvs_arena_chunk {
    struct kvs_arena_chunk *next;
    size_t cap, used;
    _Alignas(ALIGN) uint8_t bytes[];
};

void kvs_arena_init(struct kvs_arena *a, size_t max)
{
    *a = (struct kvs_arena){.max = max};
}

void kvs_arena_fini(struct kvs_arena *a)
{
    struct kvs_arena_chunk *c = a->chunks;
    while (c != NULL) {
        struct kvs_arena_chunk *next = c->next;
        free(c);
        c = next;
    }
    kvs_arena_init(a, a->max);
}

static struct kvs_arena_chunk *add_chunk(struct kvs_arena *a, size_t need)
{
    size_t cap = CHUNK_MIN;
    if (a->chunks != NULL) {
        cap = a->chunks->cap < CHUNK_MAX / 2 ? a->chunks->cap * 2 : CHUNK_MAX;
    }
    if (cap < need) {
        cap = need;
    }
    if (cap > SIZE_MAX - sizeof(struct kvs_arena_chunk)) {
        return NULL;
    }
    struct kvs_arena_chunk *c = calloc(1, sizeof *c + cap);
    if (c == NULL) {
        return NULL;
    }
    c->cap = cap;
    c->next = a->chunks;
    a->chunks = c;
    return c;
}

void *kvs_arena_alloc(struct kvs_arena *a, size_t bytes)
{
    KVS_ASSERT(a->used <= a->max);
    if (bytes > SIZE_MAX - ALIGN) {
        return NULL;
    }
    size_t need = bytes == 0 ? ALIGN : (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (need > a->max - a->used) {
        return NULL;
    }
    struct kvs_arena_chunk *c = a->chunks;
    if (c == NULL || need > c->cap - c->used) {
        c = add_chunk(a, need);
        if (c == NULL) {
            return NULL;
        }
    }
    void *p = c->bytes + c->used;
    c->used += need;
    a->used += need;
    KVS_ASSERT(((uintptr_t)p & (ALIGN - 1)) == 0);
    return p;
}

void *kvs_arena_array(struct kvs_arena *a, size_t count, size_t size)
{
    uint64_t bytes = 0;
    if (!kvs_mul_u64(count, size, &bytes) || bytes > SIZE_MAX) {
        return NULL;
    }
    return kvs_arena_alloc(a, (size_t)bytes);
}

char *kvs_arena_dup(struct kvs_arena *a, const void *bytes, size_t n)
{
    if (n == SIZE_MAX) {
        return NULL;
    }
    char *p = kvs_arena_alloc(a, n + 1);
    if (p != NULL && n > 0) {
        memcpy(p, bytes, n);
    }
    return p;
}
