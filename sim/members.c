/* members.c - see members.h. A lease is renewed while its stream lives and ends a TTL after the stream was lost, unless the worker registered
 * again by then; the timer looks four times a TTL. A member whose stream lives must never be told to be gone.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/members.h"

#include "proto/frame.h"
#include "proto/wire.h"
#include "sim/worker.h"

#include <stdlib.h>
#include <string.h>

#define REGISTERED_MAX 64
#define GRACE_US 1000000u
#define ARENA ((size_t)1 << 20)

struct registered {
    uint64_t conn, epoch;
    uint32_t stream;
    char id[MSG_ID_MAX];
};

struct sim_members {
    struct cls_registry *registry;
    struct registered who[REGISTERED_MAX];
    uint32_t count;
};

/* --- the router's side --- */

static void tell(struct sim *s, const struct registered *to, const struct msg_member *members, uint32_t count)
{
    struct msg_members m = {.members = members, .count = count};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_members_encode(&m, &body);
    KVS_ASSERT(st == KVS_OK);
    sim_rpc_item(s, SIM_ROUTER, to->conn, to->stream, &body);
    kvs_buf_fini(&body);
}

/* Is there a newer life of that worker? The old one's stream may not have ended yet. */
static bool replaced(const struct sim_members *m, const char *id)
{
    for (uint32_t i = 0; i < cls_registry_count(m->registry); i++)
        if (strcmp(cls_registry_at(m->registry, i)->id, id) == 0)
            return true;
    return false;
}

static void tell_changes(struct sim *s, struct sim_members *m)
{
    struct msg_member *change = calloc(1, sizeof *change);
    KVS_ASSERT(change != NULL);
    while (cls_registry_next_change(m->registry, change)) {
        bool put = change->change == MSG_MEMBER_PUT;
        sim_count(s, put ? SIM_N_members : SIM_N_expired, 1);
        for (uint32_t i = 0; i < m->count; i++)
            if (!put && m->who[i].epoch == change->card.epoch && !replaced(m, m->who[i].id))
                sim_fail(s, "member %s is told to be gone while its stream lives", m->who[i].id);
        for (uint32_t i = 0; i < m->count; i++)
            tell(s, &m->who[i], change, 1);
    }
    free(change);
}

static void on_timer(struct sim *s, struct sim_event *e)
{
    struct sim_members *m = s->members;
    (void)e;
    for (uint32_t i = 0; i < m->count; i++)
        (void)cls_registry_renew(m->registry, m->who[i].id, m->who[i].epoch, s->now_us);
    cls_registry_tick(m->registry, s->now_us);
    tell_changes(s, m);
    sim_post(s, s->now_us + s->set.lease_us / 4, &(struct sim_event){.run = on_timer, .node = SIM_NOBODY});
}

void sim_members_create(struct sim *s, struct sim_members **out)
{
    struct sim_members *m = calloc(1, sizeof *m);
    KVS_ASSERT(m != NULL);
    kvs_status st = cls_registry_create(SIM_NODES_MAX, s->set.lease_us, &m->registry);
    KVS_ASSERT(st == KVS_OK);
    sim_post(s, s->set.lease_us / 4, &(struct sim_event){.run = on_timer, .node = SIM_NOBODY});
    *out = m;
}

void sim_members_free(struct sim_members *m)
{
    if (m == NULL)
        return;
    cls_registry_destroy(m->registry);
    free(m);
}

static void snapshot(struct sim *s, struct sim_members *m, const struct registered *to)
{
    uint32_t n = cls_registry_count(m->registry);
    struct msg_member *all = calloc(n + 1u, sizeof *all);
    KVS_ASSERT(all != NULL);
    for (uint32_t i = 0; i < n; i++) {
        all[i].change = MSG_MEMBER_PUT;
        all[i].card = *cls_registry_at(m->registry, i);
    }
    all[n].change = MSG_MEMBER_SNAPSHOT_END;
    tell(s, to, all, n + 1);
    free(all);
}

void sim_members_register(struct sim *s, struct sim_members *m, uint64_t conn, uint32_t stream, const uint8_t *body, size_t n)
{
    struct kvs_arena arena;
    struct kvs_error err = {0};
    struct msg_card *card = calloc(1, sizeof *card);
    KVS_ASSERT(card != NULL && m->count < REGISTERED_MAX);
    kvs_arena_init(&arena, ARENA);
    kvs_status st = msg_card_decode(body, n, &arena, card, &err);
    if (st == KVS_OK)
        st = cls_registry_put(m->registry, card, s->now_us, &err);
    kvs_arena_fini(&arena);
    if (st != KVS_OK) {
        sim_fail(s, "a worker cannot register: %s", err.text);
    } else {
        tell_changes(s, m); /* to the others; the new one gets everything at once */
        struct registered *r = &m->who[m->count++];
        *r = (struct registered){.conn = conn, .epoch = card->epoch, .stream = stream};
        memcpy(r->id, card->id, sizeof r->id);
        snapshot(s, m, r);
    }
    free(card);
}

void sim_members_down(struct sim_members *m, uint64_t conn)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->who[i].conn == conn)
            m->who[i--] = m->who[--m->count];
}

static bool all_there(const struct sim *s, const struct cls_registry *r)
{
    uint32_t workers = 0;
    for (uint32_t i = 1; i < s->node_count; i++, workers++)
        if (!cls_registry_has(r, s->node[i].id, s->node[i].epoch))
            return false;
    return cls_registry_count(r) == workers;
}

const char *sim_members_rest(const struct sim *s, const struct sim_members *m)
{
    if (!all_there(s, m->registry))
        return "the registry does not hold exactly the workers that run";
    for (uint32_t i = 1; i < s->node_count; i++)
        if (s->node[i].worker != NULL && !all_there(s, s->node[i].worker->view))
            return "a worker's view does not hold exactly the workers that run";
    return NULL;
}

/* --- a worker's side --- */

void sim_view_create(struct cls_registry **out)
{
    kvs_status st = cls_registry_create(SIM_NODES_MAX * 2, CLS_FOREVER, out);
    KVS_ASSERT(st == KVS_OK);
}

uint32_t sim_view_call(struct sim *s, uint32_t node, uint64_t router_conn, struct cls_registry *view)
{
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    kvs_status st = msg_card_encode(&s->node[node].card, &body);
    KVS_ASSERT(st == KVS_OK);
    uint32_t stream = sim_rpc_call(s, node, router_conn, MSG_REGISTER, 0, &body, &(struct sim_call){0});
    kvs_buf_fini(&body);
    cls_registry_mark_all(view);
    return stream;
}

static void look(struct sim *s, struct cls_registry *view)
{
    struct msg_member *change = calloc(1, sizeof *change);
    KVS_ASSERT(change != NULL);
    cls_registry_tick(view, s->now_us);
    while (cls_registry_next_change(view, change))
        ;
    free(change);
}

void sim_view_item(struct sim *s, uint32_t node, struct cls_registry *view, const uint8_t *body, size_t n)
{
    struct kvs_arena arena;
    struct msg_members m;
    struct kvs_error err = {0};
    kvs_arena_init(&arena, ARENA);
    if (msg_members_decode(body, n, &arena, &m, &err) != KVS_OK)
        sim_fail(s, "Register's item does not decode: %s", err.text);
    for (uint32_t i = 0; !s->failed && i < m.count; i++) {
        const struct msg_member *x = &m.members[i];
        if (x->change == MSG_MEMBER_SNAPSHOT_END)
            cls_registry_lease_marked(view, s->now_us + GRACE_US);
        else if (x->change == MSG_MEMBER_GONE)
            cls_registry_leave(view, x->card.id, x->card.epoch, s->now_us);
        else if (cls_registry_put(view, &x->card, s->now_us, &err) != KVS_OK)
            sim_fail(s, "%s cannot remember a member: %s", s->node[node].id, err.text);
    }
    kvs_arena_fini(&arena);
    look(s, view);
}

bool sim_view_knows(struct sim *s, uint32_t node, struct cls_registry *view, uint32_t peer_node)
{
    struct kvs_error err = {0};
    const struct sim_node *peer = &s->node[peer_node];
    look(s, view);
    if (!cls_registry_has(view, peer->id, peer->epoch))
        return false;
    if (cls_cards_compatible(&s->node[node].card, &peer->card, &err) != KVS_OK)
        sim_fail(s, "%s and %s do not fit: %s", s->node[node].id, peer->id, err.text);
    return true;
}
