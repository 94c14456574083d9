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

static void point_link(const struct rtr_fleet *f, const struct rtr_worker *w, struct rtr_link *l)
{
    const struct rtr_worker *peer = rtr_fleet_find_id(f, l->id, w->model);
    l->slot = peer ? peer->slot : RTR_NO_SLOT;
}

/* Ids stay as reported; which entry they mean changes with the fleet. Those that name this id, or mean this slot, are looked up again. */
static void point_links_of(const struct rtr_fleet *f, const char *id, uint32_t slot)
{
    for (uint32_t i = 0; i < f->workers_max; i++) {
        struct rtr_worker *w = &f->workers[i];
        for (uint32_t k = 0; w->key && k < w->link_count; k++)
            if (w->links[k].slot == slot || strcmp(w->links[k].id, id) == 0)
                point_link(f, w, &w->links[k]);
    }
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
        w->slot = (uint32_t)(w - f->workers);
        f->count++;
    }
    w->model = model;
    w->epoch = card->epoch;
    w->role = card->role;
    w->draining = card->draining;
    memcpy(w->id, card->id, sizeof(w->id));
    memcpy(w->numerics, card->numerics, sizeof(w->numerics));
    memcpy(w->kv_types, card->kv_types, sizeof(w->kv_types));
    w->id[sizeof(w->id) - 1] = 0;
    w->block_tokens = card->block_tokens;
    w->block_bytes = 0;
    for (uint32_t g = 0; g < card->group_count && g < MSG_GROUPS_MAX; g++)
        w->block_bytes += card->group[g].page_bytes;
    point_links_of(f, w->id, w->slot);
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
    uint32_t slot = w->slot;
    free(w->links);
    memset(w, 0, sizeof(*w));
    KVS_ASSERT(f->count > 0);
    f->count--;
    point_links_of(f, "", slot);
}

static void take_link(struct rtr_link *l, const struct msg_peer_link *told, struct rtr_links_sum *sum, uint64_t now_us)
{
    bool measured = rtr_cost_take_link(told, &l->cost);
    rtr_cost_note(&l->measured, measured ? told->samples : 0, now_us);
    double trust = rtr_cost_trust(&l->measured, 0);
    sum->cost.latency_s += trust * trust * l->cost.latency_s;
    sum->cost.byte_s += trust * trust * l->cost.byte_s;
    sum->weight += trust * trust;
    if (trust > 0 && l->measured.at_us > sum->newest_us)
        sum->newest_us = l->measured.at_us;
}

/* The list is compact: one that leaves or comes moves others. What is known of a link goes with its name; entries before `i` are new already. */
static void place_link(struct rtr_worker *w, uint32_t i, const char *id)
{
    for (uint32_t k = i + 1; k < w->link_count; k++)
        if (strncmp(w->links[k].id, id, MSG_ID_MAX) == 0) {
            struct rtr_link moved = w->links[k];
            w->links[k] = w->links[i];
            w->links[i] = moved;
            return;
        }
    if (i < w->link_count && w->link_count < w->link_cap) /* the one that stood here may come further down */
        w->links[w->link_count++] = w->links[i];
    w->links[i] = (struct rtr_link){.slot = RTR_NO_SLOT};
    memcpy(w->links[i].id, id, MSG_ID_MAX);
    w->links[i].id[MSG_ID_MAX - 1] = 0;
}

static void take_links(const struct rtr_fleet *f, struct rtr_worker *w, const struct msg_load *load, uint64_t now_us)
{
    uint32_t n = load->peer_count < RTR_LINKS_MAX ? load->peer_count : RTR_LINKS_MAX;
    w->links_sum = (struct rtr_links_sum){0};
    if (n + 1 > w->link_cap) { /* one to put aside who is moved */
        struct rtr_link *grown = realloc(w->links, (n + 1) * sizeof(*grown));
        if (!grown) {
            w->link_count = 0; /* without the list no remote placement: slower, still right */
            return;
        }
        w->links = grown;
        w->link_cap = n + 1;
    }
    bool same = n == w->link_count;
    for (uint32_t i = 0; i < n; i++) {
        struct rtr_link *l = &w->links[i];
        if (i >= w->link_count || strncmp(l->id, load->peers[i].id, MSG_ID_MAX) != 0) {
            same = false;
            place_link(w, i, load->peers[i].id);
        }
        take_link(l, &load->peers[i], &w->links_sum, now_us);
    }
    w->link_count = n;
    for (uint32_t i = 0; !same && i < n; i++)
        point_link(f, w, &w->links[i]);
}

void rtr_fleet_load(struct rtr_fleet *f, uint64_t key, const struct msg_load *load, uint64_t now_us)
{
    struct rtr_worker *w = rtr_fleet_find(f, key);
    if (!w)
        return;
    w->reported_tokens = load->outstanding_tokens;
    w->draining = load->draining;
    if (load->role)
        w->role = load->role; /* also while discovery is away */
    w->prefill_left = load->prefill_left;
    w->context_tokens = load->context_tokens;
    w->decoding = load->decoding;
    w->chunk_tokens = load->chunk_tokens;
    w->load_at_us = now_us;
    w->reports++;
    w->ended = 0;
    w->ended_context = 0;
    w->fresh[1] = w->fresh[0];
    w->fresh[0] = 0;
    rtr_cost_take_speed(&load->speed, &w->speed);
    rtr_cost_note(&w->prefill, w->speed.prefill_samples, now_us);
    rtr_cost_note(&w->step, w->speed.step_samples, now_us);
    take_links(f, w, load, now_us);
}

uint64_t rtr_worker_backlog(const struct rtr_worker *w)
{
    return (w->prefill_left > w->fresh[1] ? w->prefill_left : w->fresh[1]) + w->fresh[0];
}

void rtr_worker_give(struct rtr_worker *w, uint64_t prompt_tokens)
{
    w->fresh[0] += prompt_tokens;
}

void rtr_worker_ended(struct rtr_worker *w, uint32_t spoke_at, uint64_t context)
{
    if (spoke_at == w->reports) /* no report has counted it */
        return;
    w->ended++;
    w->ended_context += context;
}

void rtr_worker_computed(struct rtr_worker *w, uint64_t prompt_tokens)
{
    for (int i = 1; i >= 0; i--) {
        uint64_t n = w->fresh[i] < prompt_tokens ? w->fresh[i] : prompt_tokens;
        w->fresh[i] -= n;
        prompt_tokens -= n;
    }
}

bool rtr_worker_leaves(const struct rtr_worker *w)
{
    return w->draining || !rtr_worker_decodes(w);
}

bool rtr_worker_decodes(const struct rtr_worker *w)
{
    return w->role == MSG_ROLE_DECODE || w->role == MSG_ROLE_BOTH;
}

bool rtr_worker_prefills(const struct rtr_worker *w)
{
    return w->role == MSG_ROLE_PREFILL || w->role == MSG_ROLE_BOTH;
}

static bool lists(const struct rtr_worker *w, uint32_t slot)
{
    for (uint32_t i = 0; i < w->link_count; i++)
        if (w->links[i].slot == slot)
            return true;
    return false;
}

bool rtr_worker_linked(const struct rtr_worker *a, const struct rtr_worker *b)
{
    return a != b && (lists(a, b->slot) || lists(b, a->slot));
}
