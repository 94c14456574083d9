/* registry.c - members, leases, and what has changed since the owner last asked.
 * Changes are no queue. Each slot knows what is (present, epoch, card) and what the owner was told (told, told_epoch);
 * the difference of the two is what there is to tell. So any amount of churn between two looks costs no memory, a
 * member that came and went unseen is not mentioned at all, and GONE always names an epoch that was told before.
 * Invariant: a slot is free exactly when it is neither present nor told. There are twice as many slots as members,
 * so that members that are gone but not yet told do not take the place of new ones.
 * Tables are walked from end to end: hundreds of members, a few changes a minute.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/core/registry.h"
#include <stdlib.h>
#include <string.h>

struct slot {
    bool present, told, marked;
    uint64_t told_epoch;
    uint64_t end_us;     /* of the lease */
    uint64_t changed_at; /* order of the first change not yet told; 0: none */
    struct msg_card card;
};

/* Owner: the loop thread or the simulator. */
struct cls_registry {
    struct slot *slot; /* owned */
    uint32_t slots, members_max, count;
    uint64_t ttl_us, changes;
};

kvs_status cls_registry_create(uint32_t members_max, uint64_t ttl_us, struct cls_registry **out)
{
    KVS_ASSERT(members_max > 0 && members_max <= MSG_MEMBERS_MAX && ttl_us > 0);
    struct cls_registry *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return KVS_SELF_NOMEM;
    }
    r->members_max = members_max;
    r->slots = members_max * 2;
    r->ttl_us = ttl_us;
    r->slot = calloc(r->slots, sizeof *r->slot);
    if (r->slot == NULL) {
        cls_registry_destroy(r);
        return KVS_SELF_NOMEM;
    }
    *out = r;
    return KVS_OK;
}

void cls_registry_destroy(struct cls_registry *r)
{
    if (r != NULL) {
        free(r->slot);
        free(r);
    }
}

static struct slot *find(const struct cls_registry *r, const char *id)
{
    for (uint32_t i = 0; i < r->slots; i++) {
        struct slot *s = &r->slot[i];
        if ((s->present || s->told) && strcmp(s->card.id, id) == 0) {
            return s;
        }
    }
    return NULL;
}

static struct slot *find_free(const struct cls_registry *r)
{
    for (uint32_t i = 0; i < r->slots; i++) {
        if (!r->slot[i].present && !r->slot[i].told) {
            return &r->slot[i];
        }
    }
    return NULL;
}

static void changed(struct cls_registry *r, struct slot *s)
{
    if (s->changed_at == 0) {
        s->changed_at = ++r->changes;
    }
}

static uint64_t lease_end(const struct cls_registry *r, uint64_t now_us)
{
    return r->ttl_us > UINT64_MAX - now_us ? UINT64_MAX : now_us + r->ttl_us;
}

static bool same_card(const struct msg_card *a, const struct msg_card *b)
{
    bool same = strcmp(a->id, b->id) == 0 && a->role == b->role && a->epoch == b->epoch &&
                strcmp(a->control_url, b->control_url) == 0 && strcmp(a->http_url, b->http_url) == 0 &&
                strcmp(a->model, b->model) == 0 && memcmp(a->fingerprint, b->fingerprint, sizeof a->fingerprint) == 0 &&
                strcmp(a->numerics, b->numerics) == 0 && strcmp(a->layout, b->layout) == 0 &&
                strcmp(a->kv_types, b->kv_types) == 0 && strcmp(a->rope, b->rope) == 0 &&
                a->block_tokens == b->block_tokens && a->context == b->context && a->vocab == b->vocab &&
                a->protocol_min == b->protocol_min && a->protocol_max == b->protocol_max &&
                a->group_count == b->group_count && a->draining == b->draining && a->pid == b->pid;
    for (uint32_t g = 0; same && g < a->group_count; g++) {
        same = a->group[g].page_bytes == b->group[g].page_bytes && a->group[g].pages == b->group[g].pages;
    }
    return same;
}

kvs_status cls_registry_put(struct cls_registry *r, const struct msg_card *card, uint64_t now_us, struct kvs_error *err)
{
    KVS_ASSERT(card->id[0] != '\0' && card->group_count <= MSG_GROUPS_MAX);
    struct slot *s = find(r, card->id);
    bool is_new = s == NULL || !s->present;
    if (is_new && r->count == r->members_max) {
        return kvs_fail(err, KVS_BUSY_FULL, "the cluster has its %u members; more need a larger registry",
                        r->members_max);
    }
    if (s == NULL) {
        s = find_free(r);
        if (s == NULL) {
            return kvs_fail(err, KVS_BUSY_FULL, "too many changes of members at once; try again");
        }
        memset(s, 0, sizeof *s);
    }
    if (is_new || !same_card(&s->card, card)) {
        s->card = *card;
        changed(r, s);
    }
    if (is_new) {
        s->present = true;
        r->count++;
    }
    s->marked = false;
    s->end_us = lease_end(r, now_us);
    return KVS_OK;
}

static void remove_slot(struct cls_registry *r, struct slot *s)
{
    KVS_ASSERT(s->present && r->count > 0);
    s->present = false;
    s->marked = false;
    r->count--;
    if (s->told) {
        changed(r, s);
    } else {
        s->changed_at = 0; /* came and went unseen */
    }
}

bool cls_registry_renew(struct cls_registry *r, const char *id, uint64_t epoch, uint64_t now_us)
{
    struct slot *s = find(r, id);
    if (s == NULL || !s->present || s->card.epoch != epoch || now_us >= s->end_us) {
        return false;
    }
    s->end_us = lease_end(r, now_us);
    return true;
}

void cls_registry_leave(struct cls_registry *r, const char *id, uint64_t epoch, uint64_t now_us)
{
    (void)now_us;
    struct slot *s = find(r, id);
    if (s != NULL && s->present && s->card.epoch == epoch) {
        remove_slot(r, s);
    }
}

void cls_registry_tick(struct cls_registry *r, uint64_t now_us)
{
    for (uint32_t i = 0; i < r->slots; i++) {
        if (r->slot[i].present && r->slot[i].end_us != UINT64_MAX && now_us >= r->slot[i].end_us) {
            remove_slot(r, &r->slot[i]);
        }
    }
}

uint64_t cls_registry_deadline_us(const struct cls_registry *r)
{
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < r->slots; i++) {
        if (r->slot[i].present && r->slot[i].end_us < first) {
            first = r->slot[i].end_us;
        }
    }
    return first;
}

void cls_registry_mark_all(struct cls_registry *r)
{
    for (uint32_t i = 0; i < r->slots; i++) {
        r->slot[i].marked = r->slot[i].present;
    }
}

void cls_registry_lease_marked(struct cls_registry *r, uint64_t end_us)
{
    for (uint32_t i = 0; i < r->slots; i++) {
        struct slot *s = &r->slot[i];
        if (s->present && s->marked) {
            s->marked = false;
            s->end_us = end_us < s->end_us ? end_us : s->end_us; /* told missing twice: the first counts */
        }
    }
}

void cls_registry_hold(struct cls_registry *r, uint64_t until_us)
{
    for (uint32_t i = 0; i < r->slots; i++) {
        struct slot *s = &r->slot[i];
        if (s->present && s->end_us < until_us) {
            s->end_us = until_us;
        }
    }
}

void cls_registry_expire_at(struct cls_registry *r, const char *id, uint64_t epoch, uint64_t end_us)
{
    struct slot *s = find(r, id);
    if (s != NULL && s->present && s->card.epoch == epoch) {
        s->marked = false;
        s->end_us = end_us < s->end_us ? end_us : s->end_us;
    }
}

bool cls_registry_next_change(struct cls_registry *r, struct msg_member *out)
{
    struct slot *s = NULL;
    for (uint32_t i = 0; i < r->slots; i++) {
        if (r->slot[i].changed_at != 0 && (s == NULL || r->slot[i].changed_at < s->changed_at)) {
            s = &r->slot[i];
        }
    }
    if (s == NULL) {
        return false;
    }
    KVS_ASSERT(s->present || s->told);
    memset(out, 0, sizeof *out);
    if (s->told && (!s->present || s->told_epoch != s->card.epoch)) {
        out->change = MSG_MEMBER_GONE;
        memcpy(out->card.id, s->card.id, sizeof out->card.id);
        out->card.epoch = s->told_epoch;
        s->told = false;
        if (!s->present) {
            s->changed_at = 0;
        } /* else its PUT is due next: the slot keeps its turn */
        return true;
    }
    KVS_ASSERT(s->present);
    out->change = MSG_MEMBER_PUT;
    out->card = s->card;
    s->told = true;
    s->told_epoch = s->card.epoch;
    s->changed_at = 0;
    return true;
}

bool cls_registry_has(const struct cls_registry *r, const char *id, uint64_t epoch)
{
    const struct slot *s = find(r, id);
    return s != NULL && s->present && s->card.epoch == epoch;
}

const struct msg_card *cls_registry_find(const struct cls_registry *r, const char *id)
{
    const struct slot *s = find(r, id);
    return s != NULL && s->present ? &s->card : NULL;
}

uint32_t cls_registry_count(const struct cls_registry *r)
{
    return r->count;
}

const struct msg_card *cls_registry_at(const struct cls_registry *r, uint32_t index)
{
    for (uint32_t i = 0; i < r->slots; i++) {
        if (r->slot[i].present && index-- == 0) {
            return &r->slot[i].card;
        }
    }
    return NULL;
}
