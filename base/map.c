/* map.c - u64 -> u64 in open addressing with linear probing.
 * All memory is taken at creation, at twice the maximum number of entries (load factor 1/2 at most), so put never allocates
 * and pointers are never moved. Removal shifts the following entries of the cluster back instead of leaving tombstones: a map
 * that lives for weeks keeps its probe lengths.
 * Keys are mixed (splitmix64's finalizer), since ours are counters and addresses; it is no defence against chosen keys, so
 * keys that a stranger can choose belong elsewhere.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <stdlib.h>

struct slot {
    uint64_t key, value;
};

struct kvs_map {
    size_t mask, count, entries_max;
    struct slot *slots; /* owned */
    uint8_t *used;      /* owned; one a slot */
};

static size_t home(const struct kvs_map *m, uint64_t key)
{
    uint64_t z = key;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (size_t)(z ^ (z >> 31)) & m->mask;
}

kvs_status kvs_map_create(size_t entries_max, struct kvs_map **out)
{
    if (entries_max > SIZE_MAX / 64) {
        return KVS_SELF_NOMEM;
    }
    struct kvs_map *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return KVS_SELF_NOMEM;
    }
    size_t slots = 8;
    while (slots < entries_max * 2) {
        slots *= 2;
    }
    m->mask = slots - 1;
    m->entries_max = entries_max;
    m->slots = calloc(slots, sizeof *m->slots);
    m->used = calloc(slots, 1);
    if (m->slots == NULL || m->used == NULL) {
        goto fail;
    }
    *out = m;
    return KVS_OK;
fail:
    kvs_map_destroy(m);
    return KVS_SELF_NOMEM;
}

void kvs_map_destroy(struct kvs_map *m)
{
    if (m == NULL) {
        return;
    }
    free(m->slots);
    free(m->used);
    free(m);
}

/* The slot of key, or the free slot that ends its probe. There is always one: at most half are in use. */
static size_t find(const struct kvs_map *m, uint64_t key)
{
    size_t i = home(m, key);
    while (m->used[i] && m->slots[i].key != key) {
        i = (i + 1) & m->mask;
    }
    return i;
}

kvs_status kvs_map_put(struct kvs_map *m, uint64_t key, uint64_t value)
{
    size_t i = find(m, key);
    if (!m->used[i]) {
        if (m->count == m->entries_max) {
            return KVS_BUSY_FULL;
        }
        m->used[i] = 1;
        m->slots[i].key = key;
        m->count++;
    }
    m->slots[i].value = value;
    return KVS_OK;
}

bool kvs_map_get(const struct kvs_map *m, uint64_t key, uint64_t *value_out)
{
    size_t i = find(m, key);
    if (!m->used[i]) {
        return false;
    }
    if (value_out != NULL) {
        *value_out = m->slots[i].value;
    }
    return true;
}

bool kvs_map_remove(struct kvs_map *m, uint64_t key)
{
    size_t hole = find(m, key);
    if (!m->used[hole]) {
        return false;
    }
    /* An entry may fill the hole when its home does not lie (cyclically) after the hole. */
    for (size_t i = (hole + 1) & m->mask; m->used[i]; i = (i + 1) & m->mask) {
        size_t from_home = (i - home(m, m->slots[i].key)) & m->mask;
        if (from_home >= ((i - hole) & m->mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->used[hole] = 0;
    KVS_ASSERT(m->count > 0);
    m->count--;
    return true;
}

size_t kvs_map_count(const struct kvs_map *m)
{
    return m->count;
}
