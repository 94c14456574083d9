/* fleet.c - see fleet.h. The table is small (tens to some thousands of workers) and is walked; a worker's place in it is found by its key.
 * Invariant: counters of an entry are zero when no request points at it (the request machine gives back what it took).
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/core/fleet.h"

#include <stdlib.h>
#include <string.h>

kvs_status rtr_fleet_init(struct rtr_fleet *f, uint32_t workers_max)
{
    KVS_ASSERT(workers_max > 0);
    memset(f, 0, sizeof(*f));
    f->workers = calloc(workers_max, sizeof(*f->workers));
    if (!f->workers)
        return KVS_SELF_NOMEM;
    f->workers_max = workers_max;
    return KVS_OK;
}

void rtr_fleet_fini(struct rtr_fleet *f)
{
    for (uint32_t i = 0; f->workers && i < f->workers_max; i++)
        free(f->workers[i].links);
    free(f->workers);
    memset(f, 0, sizeof(*f));
}

struct rtr_worker *rtr_fleet_find(const struct rtr_fleet *f, uint64_t key)
{
    for (uint32_t i = 0; key && i < f->workers_max; i++)
        if (f->workers[i].key == key)
            return &f->workers[i];
    return NULL;
}

struct rtr_worker *rtr_fleet_find_id(const struct rtr_fleet *f, const char *id, uint32_t model)
{
    for (uint32_t i = 0; i < f->workers_max; i++) {
        struct rtr_worker *w = &f->workers[i];
        if (w->key && w->model == model && strcmp(w->id, id) == 0)
            return w;
    }
    return NULL;
}

kvs_status rtr_fleet_up(struct rtr_fleet *f, uint64_t key, uint32_t model, const struct msg_card *card)
{
    KVS_ASSERT(key != 0);
    struct rtr_worker *w = rtr_fleet_find(f, key);
    for (uint32_t i = 0; !w && i < f->workers_max; i++)
        if (!f->workers[i].key)
            w = &f->workers[i];
    if (!w)
        return KVS_BUSY_FULL;
    if (!w->key) {
        memset(w, 0, sizeof(*w));
        w->key = key;
        f->count++;
    }
    w->model = model;
    w->role = card->role;
    w->draining = card->draining;
    memcpy(w->id, card->id, sizeof(w->id));
    memcpy(w->numerics, card->numerics, sizeof(w->numerics));
    memcpy(w->kv_types, card->kv_types, sizeof(w->kv_types));
    w->id[sizeof(w->id) - 1] = 0;
    return KVS_OK;
}

void rtr_fleet_card(struct rtr_fleet *f, uint64_t key, const struct msg_card *card)
{
    struct rtr_worker *w = rtr_fleet_find(f, key);
    if (!w)
        return;
    w->role = card->role;
    w->draining = card->draining;
}

void rtr_fleet_down(struct rtr_fleet *f, uint64_t key)
{
    struct rtr_worker *w = rtr_fleet_find(f, key);
    if (!w)
        return;
    free(w->links);
    memset(w, 0, sizeof(*w));
    KVS_ASSERT(f->count > 0);
    f->count--;
}

void rtr_fleet_load(struct rtr_fleet *f, uint64_t key, const struct msg_load *load)
{
    struct rtr_worker *w = rtr_fleet_find(f, key);
    if (!w)
        return;
    w->reported_tokens = load->outstanding_tokens;
    w->draining = load->draining;
    uint32_t n = load->peer_count < RTR_LINKS_MAX ? load->peer_count : RTR_LINKS_MAX;
    if (n > w->link_cap) {
        char(*grown)[MSG_ID_MAX] = realloc(w->links, n * sizeof(*grown));
        if (!grown) {
            w->link_count = 0; /* without the list no remote placement: slower, still right */
            return;
        }
        w->links = grown;
        w->link_cap = n;
    }
    for (uint32_t i = 0; i < n; i++)
        memcpy(w->links[i], load->peers[i].id, MSG_ID_MAX);
    w->link_count = n;
}

bool rtr_worker_decodes(const struct rtr_worker *w)
{
    return w->role == MSG_ROLE_DECODE || w->role == MSG_ROLE_BOTH;
}

bool rtr_worker_prefills(const struct rtr_worker *w)
{
    return w->role == MSG_ROLE_PREFILL || w->role == MSG_ROLE_BOTH;
}

static bool lists(const struct rtr_worker *w, const char *id)
{
    for (uint32_t i = 0; i < w->link_count; i++)
        if (strncmp(w->links[i], id, MSG_ID_MAX) == 0)
            return true;
    return false;
}

bool rtr_worker_linked(const struct rtr_worker *a, const struct rtr_worker *b)
{
    return a != b && (lists(a, b->id) || lists(b, a->id));
}
