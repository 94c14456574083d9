/* etcd.c - see etcd.h: the store, its leases and watches, and its faults. Events of the store belong to no process (SIM_NOBODY).
 * SPDX-License-Identifier: Apache-2.0 */
#include "sim/etcd.h"

#include "sim/env.h"

#include <stdlib.h>
#include <string.h>

#define POLL_US 20000u /* how often what waits for a stopped server looks again */

struct item {
    char *key;
    uint8_t *value;
    uint32_t bytes;
    int64_t revision, lease;
};

struct change { /* history since the last compaction */
    struct item item;
    bool deleted;
};

struct lease {
    int64_t id;
    uint64_t ttl_us, end_us;
};

struct watch {
    uint32_t client, node;
    uint64_t number, last_us; /* last_us: lines keep their order */
    char *prefix;
    int64_t next; /* revision */
    bool ended;   /* canceled: nothing more comes, and it stays open */
};

struct sim_etcd {
    bool up;
    uint32_t era;
    uint64_t hung_until_us, starved_until_us, leaderless_until_us;
    uint64_t blocked_us[SIM_NODES_MAX];
    int64_t revision, compacted;
    struct item *item;
    uint32_t item_count, item_cap;
    struct change *change;
    uint32_t change_count, change_cap;
    struct lease *lease;
    uint32_t lease_count, lease_cap;
    struct watch *watch;
    uint32_t watch_count, watch_cap;
};

static void *room(void *array, uint32_t count, uint32_t *cap, size_t size)
{
    if (count < *cap)
        return array;
    *cap = *cap != 0 ? *cap * 2 : 32;
    array = realloc(array, *cap * size);
    KVS_ASSERT(array != NULL);
    return array;
}

static void *copy_of(const void *bytes, size_t n, bool text)
{
    char *p = malloc(n + 1);
    KVS_ASSERT(p != NULL);
    if (n != 0)
        memcpy(p, bytes, n);
    if (text)
        p[n] = '\0';
    return p;
}

static void item_free(struct item *i)
{
    free(i->key);
    free(i->value);
}

static void watch_drop(struct sim_etcd *e, uint32_t i)
{
    free(e->watch[i].prefix);
    e->watch[i] = e->watch[--e->watch_count];
}

static void history_free(struct sim_etcd *e)
{
    for (uint32_t i = 0; i < e->change_count; i++)
        item_free(&e->change[i].item);
    e->change_count = 0;
}

static void wipe(struct sim_etcd *e)
{
    for (uint32_t i = 0; i < e->item_count; i++)
        item_free(&e->item[i]);
    history_free(e);
    e->item_count = e->lease_count = 0;
    e->revision = 1;
    e->compacted = 0;
}

void sim_etcd_create(struct sim *s)
{
    s->etcd = calloc(1, sizeof *s->etcd);
    KVS_ASSERT(s->etcd != NULL);
    s->etcd->up = true;
    s->etcd->era = 1;
    s->etcd->revision = 1;
}

void sim_etcd_free(struct sim *s)
{
    struct sim_etcd *e = s->etcd;
    if (e == NULL)
        return;
    wipe(e);
    while (e->watch_count > 0)
        watch_drop(e, 0);
    free(e->item);
    free(e->change);
    free(e->lease);
    free(e->watch);
    free(e);
    s->etcd = NULL;
}

/* --- the way to a client --- */

static uint64_t arrival(struct sim *s, uint32_t node)
{
    uint64_t at = sim_in(s, s->set.latency_us / 2, s->set.latency_us * 6);
    return at > s->etcd->blocked_us[node] ? at : s->etcd->blocked_us[node] + sim_draw(s, 1, 2000);
}

static void to_client(struct sim *s, uint64_t at_us, uint32_t client, sim_run_fn run, uint64_t a, uint64_t b, void *ptr)
{
    const struct sim_env *env = sim_etcd_port_env(s, client);
    if (env == NULL) {
        free(ptr);
        return;
    }
    sim_post(s, at_us, &(struct sim_event){.run = run, .node = env->node, .life = env->life, .id = client, .a = a, .b = b, .ptr = ptr});
}

static struct sim_etcd_reply *reply_new(const struct sim_etcd *e, uint64_t call, uint32_t kvs, size_t bytes)
{
    struct sim_etcd_reply *r = calloc(1, sizeof *r + kvs * sizeof r->kv[0] + bytes);
    KVS_ASSERT(r != NULL);
    r->call = call;
    r->text = "";
    r->answer.revision = e->revision;
    r->answer.kvs = r->kv;
    r->answer.kv_count = kvs;
    r->answer.token = "";
    return r;
}

static char *put_kv(struct net_etcd_kv *out, const struct item *i, bool deleted, char *at)
{
    size_t n = strlen(i->key) + 1;
    memcpy(at, i->key, n);
    *out = (struct net_etcd_kv){.key = at, .mod_revision = i->revision, .lease = deleted ? 0 : i->lease};
    at += n;
    out->value = (const uint8_t *)at;
    if (deleted)
        return at;
    if (i->bytes != 0)
        memcpy(at, i->value, i->bytes);
    out->value_bytes = i->bytes;
    return at + i->bytes;
}

/* --- watches --- */

static bool in_prefix(const char *key, const char *prefix)
{
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

static void send_line(struct sim *s, struct watch *w, struct sim_etcd_line *l)
{
    uint64_t at = arrival(s, w->node);
    if (at <= w->last_us)
        at = w->last_us + 1;
    w->last_us = at;
    to_client(s, at, w->client, sim_etcd_port_line, w->number, 0, l);
}

static struct sim_etcd_line *line_new(const struct sim_etcd *e, uint32_t events, size_t bytes)
{
    struct sim_etcd_line *l = calloc(1, sizeof *l + events * sizeof l->event[0] + bytes);
    KVS_ASSERT(l != NULL);
    l->line.revision = e->revision;
    l->line.events = l->event;
    l->line.event_count = events;
    return l;
}

static void cancel_watch(struct sim *s, struct watch *w, int64_t compact_revision, const char *reason)
{
    struct sim_etcd_line *l = line_new(s->etcd, 0, 0);
    l->line.canceled = true;
    l->line.compact_revision = compact_revision;
    kvs_format(l->line.reason, sizeof l->line.reason, "%s", reason);
    w->ended = true;
    send_line(s, w, l);
}

static void pump(struct sim *s, struct watch *w)
{
    struct sim_etcd *e = s->etcd;
    uint32_t count = 0;
    size_t bytes = 0;
    if (w->ended || !e->up || e->hung_until_us > s->now_us || e->starved_until_us > s->now_us)
        return; /* what it lags behind may be compacted meanwhile */
    if (w->next <= e->compacted) {
        cancel_watch(s, w, e->compacted, "etcdserver: mvcc: required revision has been compacted");
        return;
    }
    for (uint32_t i = 0; i < e->change_count; i++) {
        const struct item *x = &e->change[i].item;
        if (x->revision < w->next || !in_prefix(x->key, w->prefix))
            continue;
        count++;
        bytes += strlen(x->key) + 1 + x->bytes;
    }
    struct sim_etcd_line *l = count != 0 ? line_new(e, count, bytes) : NULL;
    char *at = l != NULL ? (char *)&l->event[count] : NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->change_count && l != NULL; i++) {
        const struct change *c = &e->change[i];
        if (c->item.revision < w->next || !in_prefix(c->item.key, w->prefix))
            continue;
        l->event[n].deleted = c->deleted;
        at = put_kv(&l->event[n++].kv, &c->item, c->deleted, at);
    }
    w->next = e->revision + 1;
    if (l != NULL)
        send_line(s, w, l);
}

static void pump_all(struct sim *s)
{
    for (uint32_t i = 0; i < s->etcd->watch_count; i++)
        pump(s, &s->etcd->watch[i]);
}

void sim_etcd_unwatch(struct sim *s, uint32_t client)
{
    for (uint32_t i = s->etcd->watch_count; i-- > 0;)
        if (s->etcd->watch[i].client == client)
            watch_drop(s->etcd, i);
}

/* --- the store --- */

static struct lease *lease_find(struct sim_etcd *e, int64_t id)
{
    for (uint32_t i = 0; i < e->lease_count; i++)
        if (e->lease[i].id == id)
            return &e->lease[i];
    return NULL;
}

static struct item *item_find(struct sim_etcd *e, const char *key)
{
    for (uint32_t i = 0; i < e->item_count; i++)
        if (strcmp(e->item[i].key, key) == 0)
            return &e->item[i];
    return NULL;
}

static void remember(struct sim_etcd *e, const struct item *i, bool deleted)
{
    e->change = room(e->change, e->change_count, &e->change_cap, sizeof *e->change);
    e->change[e->change_count++] = (struct change){
        .deleted = deleted,
        .item = {.key = copy_of(i->key, strlen(i->key), true), .value = copy_of(i->value, deleted ? 0 : i->bytes, false),
                 .bytes = deleted ? 0 : i->bytes, .revision = e->revision, .lease = i->lease}};
}

static void put_item(struct sim_etcd *e, const char *key, const void *value, uint32_t bytes, int64_t lease)
{
    struct item *i = item_find(e, key);
    e->revision++;
    if (i == NULL) {
        e->item = room(e->item, e->item_count, &e->item_cap, sizeof *e->item);
        i = &e->item[e->item_count++];
        *i = (struct item){.key = copy_of(key, strlen(key), true)};
    }
    free(i->value);
    i->value = copy_of(value, bytes, false);
    i->bytes = bytes;
    i->revision = e->revision;
    i->lease = lease;
    remember(e, i, false);
}

/* One transaction: all that match go under one revision. lease 0: those of the prefix. */
static void delete_items(struct sim_etcd *e, int64_t lease, const char *prefix)
{
    bool any = false;
    for (uint32_t i = e->item_count; i-- > 0;) {
        if (lease != 0 ? e->item[i].lease != lease : !in_prefix(e->item[i].key, prefix))
            continue;
        e->revision += !any;
        any = true;
        remember(e, &e->item[i], true);
        item_free(&e->item[i]);
        e->item[i] = e->item[--e->item_count];
    }
}

void sim_etcd_revoke(struct sim *s, int64_t lease)
{
    struct sim_etcd *e = s->etcd;
    struct lease *l = lease_find(e, lease);
    if (l == NULL)
        return;
    *l = e->lease[--e->lease_count];
    delete_items(e, lease, "");
    pump_all(s);
}

static void lease_timer(struct sim *s, struct sim_event *ev)
{
    struct sim_etcd *e = s->etcd;
    struct lease *l = lease_find(e, (int64_t)ev->id);
    if (l == NULL)
        return;
    uint64_t due = l->end_us;
    if (due <= s->now_us && e->up && e->hung_until_us <= s->now_us && e->leaderless_until_us <= s->now_us) {
        sim_note(s, SIM_NOBODY, "etcd: lease %x ends", ev->id);
        sim_count(s, SIM_N_leases_ended, 1);
        sim_etcd_revoke(s, (int64_t)ev->id);
        return;
    }
    due = due > s->now_us ? due + sim_draw(s, 0, 1000000) : s->now_us + POLL_US;
    sim_post(s, due, &(struct sim_event){.run = lease_timer, .node = SIM_NOBODY, .id = ev->id});
}

static int64_t grant(struct sim *s, int64_t ttl)
{
    struct sim_etcd *e = s->etcd;
    int64_t id = (int64_t)(kvs_rng_next(&s->rng) >> 2) + 1;
    uint64_t ttl_us = (uint64_t)ttl * 1000000;
    e->lease = room(e->lease, e->lease_count, &e->lease_cap, sizeof *e->lease);
    e->lease[e->lease_count++] = (struct lease){.id = id, .ttl_us = ttl_us, .end_us = s->now_us + ttl_us};
    sim_post(s, s->now_us + ttl_us, &(struct sim_event){.run = lease_timer, .node = SIM_NOBODY, .id = (uint64_t)id});
    return id;
}

static struct sim_etcd_reply *range(const struct sim_etcd *e, const struct sim_etcd_request *r, const char *key, bool exact)
{
    uint32_t count = 0;
    size_t bytes = 0;
    for (uint32_t i = 0; i < e->item_count; i++)
        if (exact ? strcmp(e->item[i].key, key) == 0 : in_prefix(e->item[i].key, key))
            count++, bytes += strlen(e->item[i].key) + 1 + e->item[i].bytes;
    struct sim_etcd_reply *p = reply_new(e, r->call, count, bytes);
    char *at = (char *)&p->kv[count];
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->item_count; i++)
        if (exact ? strcmp(e->item[i].key, key) == 0 : in_prefix(e->item[i].key, key))
            at = put_kv(&p->kv[n++], &e->item[i], false, at);
    return p;
}

static struct sim_etcd_reply *swap(struct sim *s, const struct sim_etcd_request *r)
{
    struct sim_etcd *e = s->etcd;
    const struct item *i = item_find(e, r->data);
    bool put = r->op == SIM_ETCD_PUT || (i != NULL ? i->revision : 0) == r->mod_revision;
    if (put && r->lease != 0 && lease_find(e, r->lease) == NULL) {
        struct sim_etcd_reply *p = reply_new(e, r->call, 0, 0);
        p->status = KVS_REQ_NOT_FOUND;
        p->text = "etcdserver: requested lease not found";
        return p;
    }
    if (!put)
        return range(e, r, r->data, true);
    put_item(e, r->data, r->data + r->key_bytes + 1, r->value_bytes, r->lease);
    struct sim_etcd_reply *p = reply_new(e, r->call, 0, 0);
    p->answer.succeeded = true;
    pump_all(s);
    return p;
}

static struct sim_etcd_reply *keepalive(struct sim *s, const struct sim_etcd_request *r)
{
    struct sim_etcd *e = s->etcd;
    struct lease *l = lease_find(e, r->lease);
    struct sim_etcd_reply *p = reply_new(e, r->call, 0, 0);
    p->answer.lease = r->lease;
    if (l != NULL) {
        l->end_us = s->now_us + l->ttl_us;
        p->answer.ttl = (int64_t)(l->ttl_us / 1000000);
    } else if (sim_chance(s, 500)) {
        p->status = KVS_REQ_NOT_FOUND;
        p->text = "etcdserver: requested lease not found";
    }
    return p;
}

static struct sim_etcd_reply *serve(struct sim *s, const struct sim_etcd_request *r)
{
    struct sim_etcd *e = s->etcd;
    struct sim_etcd_reply *p = NULL;
    switch (r->op) {
    case SIM_ETCD_GRANT: {
        int64_t id = grant(s, r->ttl);
        p = reply_new(e, r->call, 0, 0);
        p->answer.lease = id;
        p->answer.ttl = r->ttl;
        return p;
    }
    case SIM_ETCD_KEEPALIVE: return keepalive(s, r);
    case SIM_ETCD_REVOKE: sim_etcd_revoke(s, r->lease); break;
    case SIM_ETCD_RANGE: return range(e, r, r->data, false);
    case SIM_ETCD_PUT:
    case SIM_ETCD_SWAP: return swap(s, r);
    case SIM_ETCD_DELETE:
        delete_items(e, 0, r->data);
        pump_all(s);
        break;
    case SIM_ETCD_WATCH:
    case SIM_ETCD_LEASE: sim_fail(s, "etcd: a request of kind %d", (int)r->op); break;
    }
    return reply_new(e, r->call, 0, 0);
}

static void begin_watch(struct sim *s, const struct sim_etcd_request *r)
{
    struct sim_etcd *e = s->etcd;
    if (sim_etcd_port_env(s, r->client) == NULL)
        return;
    e->watch = room(e->watch, e->watch_count, &e->watch_cap, sizeof *e->watch);
    struct watch *w = &e->watch[e->watch_count++];
    *w = (struct watch){.client = r->client, .node = r->node, .number = r->call, .prefix = copy_of(r->data, r->key_bytes, true), .next = r->from};
    struct sim_etcd_line *l = line_new(e, 0, 0);
    l->line.created = true;
    send_line(s, w, l);
    pump(s, w);
}

/* --- requests on their way --- */

static void arrive(struct sim *s, struct sim_event *ev)
{
    struct sim_etcd *e = s->etcd;
    struct sim_etcd_request *r = ev->ptr;
    uint64_t again = 0;
    if (!e->up || r->era != e->era) { /* the connection is gone */
        to_client(s, arrival(s, r->node), r->client, sim_etcd_port_reset, r->op == SIM_ETCD_WATCH ? r->call : 0,
                  r->op == SIM_ETCD_WATCH ? 0 : r->call, NULL);
        return;
    }
    if (e->blocked_us[r->node] > s->now_us)
        again = e->blocked_us[r->node] + sim_draw(s, 1, 2000);
    else if (e->hung_until_us > s->now_us)
        again = s->now_us + POLL_US;
    else if (e->leaderless_until_us > s->now_us && r->op != SIM_ETCD_WATCH)
        return; /* etcd's own limit is longer than the caller's */
    if (again != 0) {
        ev->ptr = NULL;
        sim_post(s, again, &(struct sim_event){.run = arrive, .node = SIM_NOBODY, .ptr = r});
        return;
    }
    if (r->op == SIM_ETCD_WATCH) {
        begin_watch(s, r);
        return;
    }
    struct sim_etcd_reply *p = serve(s, r);
    to_client(s, arrival(s, r->node), r->client, sim_etcd_port_answer, 0, 0, p);
}

void sim_etcd_ask(struct sim *s, struct sim_etcd_request *r)
{
    r->era = s->etcd->era;
    sim_count(s, SIM_N_etcd_calls, 1);
    sim_post(s, arrival(s, r->node), &(struct sim_event){.run = arrive, .node = SIM_NOBODY, .ptr = r});
}

uint32_t sim_etcd_era(const struct sim *s)
{
    return s->etcd->era;
}

bool sim_etcd_reachable(const struct sim *s, uint32_t node)
{
    const struct sim_etcd *e = s->etcd;
    return e->up && e->hung_until_us <= s->now_us && e->leaderless_until_us <= s->now_us && e->blocked_us[node] <= s->now_us;
}

/* --- what befalls it --- */

static void back(struct sim *s, struct sim_event *ev)
{
    struct sim_etcd *e = s->etcd;
    if (e->up || e->era != ev->a)
        return;
    sim_note(s, SIM_NOBODY, "etcd is back, with %u keys", e->item_count);
    e->up = true;
    for (uint32_t i = 0; i < e->lease_count; i++) { /* a new leader gives every lease its whole time */
        e->lease[i].end_us = s->now_us + e->lease[i].ttl_us;
        sim_post(s, e->lease[i].end_us, &(struct sim_event){.run = lease_timer, .node = SIM_NOBODY, .id = (uint64_t)e->lease[i].id});
    }
}

static void reset_all(struct sim *s)
{
    struct sim_etcd *e = s->etcd;
    while (e->watch_count > 0) {
        to_client(s, arrival(s, e->watch[0].node), e->watch[0].client, sim_etcd_port_reset, 0, 0, NULL);
        watch_drop(e, 0);
    }
}

void sim_etcd_kill(struct sim *s, uint64_t back_us, bool without_data)
{
    struct sim_etcd *e = s->etcd;
    if (!e->up)
        return;
    sim_note(s, SIM_NOBODY, without_data ? "etcd is killed and loses its data, back in %u us" : "etcd is killed, back in %u us", back_us);
    e->up = false;
    e->era++;
    e->hung_until_us = 0;
    reset_all(s);
    if (without_data)
        wipe(e);
    sim_post(s, s->now_us + back_us, &(struct sim_event){.run = back, .node = SIM_NOBODY, .a = e->era});
}

static void wake(struct sim *s, struct sim_event *ev)
{
    (void)ev;
    pump_all(s);
}

void sim_etcd_hang(struct sim *s, uint64_t for_us)
{
    sim_note(s, SIM_NOBODY, "etcd is stopped for %u us", for_us);
    s->etcd->hung_until_us = s->now_us + for_us;
    sim_post(s, s->now_us + for_us, &(struct sim_event){.run = wake, .node = SIM_NOBODY});
}

void sim_etcd_partition(struct sim *s, uint32_t node, uint64_t for_us)
{
    sim_note(s, SIM_NOBODY, "%n does not reach etcd for %u us", node, for_us);
    s->etcd->blocked_us[node] = s->now_us + for_us;
}

void sim_etcd_starve(struct sim *s, uint64_t for_us)
{
    sim_note(s, SIM_NOBODY, "etcd's watches lag for %u us", for_us);
    s->etcd->starved_until_us = s->now_us + for_us;
    sim_post(s, s->now_us + for_us, &(struct sim_event){.run = wake, .node = SIM_NOBODY});
}

void sim_etcd_leaderless(struct sim *s, uint64_t for_us)
{
    sim_note(s, SIM_NOBODY, "etcd has no leader for %u us", for_us);
    s->etcd->leaderless_until_us = s->now_us + for_us;
    for (uint32_t i = 0; i < s->etcd->watch_count; i++)
        if (!s->etcd->watch[i].ended)
            cancel_watch(s, &s->etcd->watch[i], 0, "etcdserver: no leader");
}

void sim_etcd_compact(struct sim *s)
{
    struct sim_etcd *e = s->etcd;
    sim_note(s, SIM_NOBODY, "etcd is compacted at revision %u", e->revision);
    history_free(e);
    e->compacted = e->revision;
}

void sim_etcd_expire(struct sim *s, uint32_t node)
{
    struct sim_etcd *e = s->etcd;
    for (uint32_t i = 0; i < e->item_count; i++) {
        const char *slash = strrchr(e->item[i].key, '/');
        if (strstr(e->item[i].key, "/members/") == NULL || slash == NULL || strcmp(slash + 1, s->node[node].id) != 0)
            continue;
        sim_note(s, SIM_NOBODY, "the lease of %n ends though it is alive", node);
        sim_etcd_revoke(s, e->item[i].lease);
        return;
    }
}

void sim_etcd_deafen(struct sim *s, uint32_t node)
{
    for (uint32_t i = 0; i < s->etcd->watch_count; i++)
        if (s->etcd->watch[i].node == node && !s->etcd->watch[i].ended) {
            sim_note(s, SIM_NOBODY, "a watch of %n falls silent", node);
            s->etcd->watch[i].ended = true;
        }
}

void sim_etcd_heal(struct sim *s)
{
    struct sim_etcd *e = s->etcd;
    e->hung_until_us = e->starved_until_us = e->leaderless_until_us = 0;
    memset(e->blocked_us, 0, sizeof e->blocked_us);
    back(s, &(struct sim_event){.a = e->era});
    pump_all(s);
}
