/* etcd.c - discovery by etcd: our card under a key on a lease, and everybody's cards by range and watch.
 * One machine that asks itself what is due next, one call at a time:
 *   lease none -> GRANT;  a third of the TTL gone -> BEAT;  card not yet there -> PUT;  no view, or an old one -> RANGE;
 *   no watch -> WATCH from the range's revision on.
 * So every recovery is the ordinary way: a lost lease is "lease none", a compacted or broken watch is "no view".
 * The PUT is a transaction on the key's mod_revision: the key of an earlier life of ours is taken over, but once we
 * were registered a foreign epoch under our name means that we have been replaced, and we do not fight for it.
 * Losing etcd removes nobody, also none of whom it was said before that they are missing. After its return what is
 * missing is believed only a TTL later (`trust_us`): it may have come back empty, and the others need a moment to put
 * their keys again. A word of etcd after a silence of most of a TTL is such a return, too, whether a call has failed
 * meanwhile or not: it may have been stopped, and let the leases of all end when it went on.
 * Watch and range are two streams. Revisions put them in order: events up to the range's revision are old, and a range
 * older than an event that was already seen is asked again (without a watch: etcd has lost its data, a new count).
 * Silence of a watch is no proof of health: core/echo.h says when it is to be tried (by a PUT of our card as it is) and when it is dead.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cluster/core/echo.h"
#include "cluster/core/registry.h"
#include "cluster/discovery.h"
#include "net/etcd.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include <stdlib.h>
#include <string.h>

#define BACKOFF_MIN_US 100000u
#define BACKOFF_MAX_US 2000000u
#define REFUSED_RETRY_US 2000000u
#define RANGE_EVERY_US 60000000u
#define SWAPS_MAX 5u
#define HOLES_MAX 5u
#define HOLE_RETRY_US 500000u
#define CARD_BYTES_MAX 65536u

/* Owner thread: the loop's. */
struct client {
    struct cls_discovery base; /* first */
    struct net_etcd *etcd;
    struct cls_events ev;
    struct kvs_timer *timer;
    struct cls_registry *view;
    uint64_t ttl_us;
    char prefix[MSG_ID_MAX + 32], key[2 * MSG_ID_MAX + 32];
    bool started, busy; /* joined once; a call is in flight */
    uint64_t sent_us;   /* when it went out */
    /* registration */
    struct msg_card card;
    uint32_t card_serial, put_serial; /* counts joins; the one whose put is in flight */
    bool joined, dirty, registered, ever_registered, replaced, tried;
    int64_t lease, mod_revision;
    uint64_t lease_end_us, beat_at_us, register_at_us;
    uint32_t swaps;
    /* view */
    bool have_view, watching, watch_created;
    struct cls_echo echo; /* of the watch */
    int64_t view_revision, seen_revision;
    uint64_t range_at_us, trust_us;
    uint32_t late_ranges, holes; /* holes: times in a row that the view had one, memory lacking */
    /* outages */
    bool outage, backend_up;
    uint64_t retry_at_us, backoff_us, heard_us; /* heard_us: etcd's last word; 0: none */
    struct cls_etcd_stats stats;
};

static void advance(struct client *c);

static uint64_t jitter(uint64_t us) /* half to one and a half of it */
{
    return us / 2 + kvs_random_u64() % (us + 1);
}

static void backend(struct client *c, bool up, const char *text)
{
    if (c->backend_up != up) {
        c->backend_up = up;
        if (c->ev.on_backend != NULL) {
            c->ev.on_backend(c->ev.user, up, text);
        }
    }
}

/* The first word after create is "up" or "down" even when nothing was up before. */
static void backend_down(struct client *c, const char *text, bool always)
{
    if (always) {
        c->backend_up = true;
    }
    backend(c, false, text);
}

static void drain(struct client *c)
{
    struct msg_member m;
    while (cls_registry_next_change(c->view, &m)) {
        if (c->ev.on_member != NULL) {
            c->ev.on_member(c->ev.user, &m);
        }
    }
}

/* ---- outages ---- */

static void lost(struct client *c, const char *text)
{
    uint64_t now = kvs_now_us();
    uint64_t delay = jitter(c->backoff_us);
    if (c->lease != 0 && c->lease_end_us > now) { /* a lease that may still be saved */
        uint64_t half = (c->lease_end_us - now) / 2;
        delay = delay < half ? delay : half < BACKOFF_MIN_US ? BACKOFF_MIN_US : half;
    }
    c->retry_at_us = now + delay;
    c->backoff_us = c->backoff_us * 2 < BACKOFF_MAX_US ? c->backoff_us * 2 : BACKOFF_MAX_US;
    bool first = !c->outage && c->stats.failures == 0;
    c->stats.failures++;
    c->outage = true;
    backend_down(c, text, first);
}

/* Etcd has said something; whoever is watching makes calls three times a TTL. */
static void heard(struct client *c)
{
    uint64_t now = kvs_now_us();
    bool was_silent = c->outage || (c->heard_us != 0 && now - c->heard_us > c->ttl_us / 3 * 2);
    c->heard_us = now;
    if (was_silent && c->stats.ranges > 0) {
        c->trust_us = now + c->ttl_us;
        cls_registry_hold(c->view, c->trust_us);
    }
}

static void back(struct client *c)
{
    heard(c);
    if (c->outage) {
        c->outage = false;
        c->have_view = false;
        c->beat_at_us = 0; /* does our lease still live? */
    }
    c->backoff_us = BACKOFF_MIN_US;
}

/* ---- registration ---- */

static void refused(struct client *c, const char *text)
{
    c->register_at_us = kvs_now_us() + REFUSED_RETRY_US;
    c->registered = false;
    c->tried = true;
    backend_down(c, text, true);
}

static void we_are_replaced(struct client *c)
{
    c->replaced = true;
    c->registered = false;
    c->lease = 0; /* no key hangs on it any more; it ends by itself */
    backend_down(c, "another process is registered under this name; give each process its own --name", true);
}

static void key_is_gone(struct client *c)
{
    c->registered = false;
    c->replaced = false;
    c->mod_revision = 0;
    c->dirty = true;
}

/* ---- the watch's health ---- */

static void drop_watch(struct client *c)
{
    net_etcd_unwatch(c->etcd);
    c->watching = c->watch_created = false;
}

/* A call was answered. true: the watch is dead, though etcd is well and the watch's end has not been told. */
static bool fell_silent(struct client *c, int64_t revision)
{
    cls_echo_verdict v =
        c->watch_created ? cls_echo_look(&c->echo, revision, kvs_now_us(), c->ttl_us) : CLS_ECHO_FINE;
    c->dirty = c->dirty || (v == CLS_ECHO_ASK && c->registered);
    c->stats.silent_watches += v == CLS_ECHO_DEAD;
    return v == CLS_ECHO_DEAD;
}

/* ---- calls ---- */

/* true: go on with the answer's content. */
static bool settle_call(struct client *c, kvs_status s, const char *text)
{
    c->busy = false;
    if (s == KVS_OK || (!kvs_is_peer(s) && !kvs_is_self(s))) {
        back(c);
        return true;
    }
    lost(c, text);
    advance(c);
    return false;
}

static void revoke_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    (void)user;
    (void)s;
    (void)text;
    (void)answer;
}

static void revoke(struct client *c, int64_t lease)
{
    struct kvs_buf body;
    kvs_buf_init(&body, CARD_BYTES_MAX);
    if (net_etcd_put_lease(&body, lease) == KVS_OK &&
        net_etcd_call(c->etcd, NET_ETCD_REVOKE, &body, revoke_done, c) != KVS_OK) {
        c->stats.failures++; /* then the lease ends by itself */
    }
    kvs_buf_fini(&body);
}

static void grant_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    struct client *c = user;
    if (!settle_call(c, s, text)) {
        return;
    }
    if (s != KVS_OK || answer->lease == 0) {
        refused(c, s != KVS_OK ? text : "etcd granted a lease without a number");
    } else if (!c->joined) {
        revoke(c, answer->lease);
    } else {
        uint64_t ttl_us = answer->ttl > 0 && answer->ttl < 86400 ? (uint64_t)answer->ttl * 1000000 : c->ttl_us;
        c->lease = answer->lease;
        c->lease_end_us = c->sent_us + ttl_us;
        c->beat_at_us = c->sent_us + c->ttl_us / 3;
        c->dirty = true;
        c->stats.leases++;
    }
    advance(c);
}

static void beat_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    struct client *c = user;
    if (!settle_call(c, s, text)) {
        return;
    }
    c->beat_at_us = c->sent_us + c->ttl_us / 3;
    if (s == KVS_REQ_NOT_FOUND || (s == KVS_OK && answer->ttl <= 0)) {
        c->lease = 0; /* and the key with it */
        key_is_gone(c);
    } else if (s != KVS_OK) {
        refused(c, text);
    } else {
        c->lease_end_us = c->sent_us + (uint64_t)(answer->ttl < 86400 ? answer->ttl : 86400) * 1000000;
        if (fell_silent(c, answer->revision)) {
            drop_watch(c);
            c->have_view = false;
        }
    }
    advance(c);
}

static kvs_status read_card(const struct client *c, const struct net_etcd_kv *kv, struct kvs_arena *arena,
                            struct msg_card *out)
{
    size_t n = strlen(c->prefix);
    kvs_status s = msg_card_decode(kv->value, kv->value_bytes, arena, out, NULL);
    bool right = s == KVS_OK && strncmp(kv->key, c->prefix, n) == 0 && out->id[0] != '\0' && out->epoch != 0 &&
                 strcmp(kv->key + n, out->id) == 0 && out->group_count <= MSG_GROUPS_MAX;
    return s == KVS_OK && !right ? KVS_PEER_PROTOCOL : s;
}

/* Who holds our key, seen by a swap that failed. */
static void swap_lost(struct client *c, const struct net_etcd_answer *answer)
{
    struct kvs_arena arena;
    struct msg_card holder;
    if (answer->kv_count == 0) {
        c->mod_revision = 0;
        return;
    }
    kvs_arena_init(&arena, MSG_ARENA_BYTES);
    kvs_status s = read_card(c, &answer->kvs[0], &arena, &holder);
    bool foreign = s == KVS_OK && holder.epoch != c->card.epoch;
    kvs_arena_fini(&arena);
    if (s == KVS_SELF_NOMEM) {
        return; /* nobody knows whose it is: the next swap will say */
    }
    if (foreign && c->ever_registered) {
        we_are_replaced(c);
    } else {
        c->mod_revision = answer->kvs[0].mod_revision;
    }
}

static void swap_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    struct client *c = user;
    if (!settle_call(c, s, text)) {
        return;
    }
    if (!c->joined) {
        c->dirty = false;
    } else if (s == KVS_REQ_NOT_FOUND) {
        c->lease = 0;
        c->registered = false;
    } else if (s != KVS_OK) {
        refused(c, text);
    } else if (answer->succeeded) {
        c->mod_revision = answer->revision;
        cls_echo_owed(&c->echo, answer->revision, kvs_now_us());
        c->registered = c->ever_registered = c->tried = true;
        c->dirty = c->put_serial != c->card_serial;
        c->swaps = 0;
    } else if (++c->swaps > SWAPS_MAX) {
        c->swaps = 0;
        refused(c, "the key under this name changes all the time; give each process its own --name");
    } else {
        swap_lost(c, answer);
    }
    advance(c);
}

/* ---- the view ---- */

/* false: there was no memory for it, so the view has a hole. */
static bool take_put(struct client *c, const struct net_etcd_kv *kv, uint64_t now_us)
{
    struct kvs_arena arena;
    struct msg_card card;
    kvs_arena_init(&arena, MSG_ARENA_BYTES);
    kvs_status s = read_card(c, kv, &arena, &card);
    kvs_arena_fini(&arena);
    bool overwritten = strcmp(kv->key, c->key) == 0 && c->joined && c->ever_registered && !c->replaced &&
                       kv->mod_revision > c->mod_revision;
    if (s != KVS_OK && s != KVS_SELF_NOMEM && overwritten) { /* by no member: ours goes over it, but in no hurry, lest two that cannot read
                                                              * each other race */
        c->mod_revision = kv->mod_revision;
        c->dirty = true;
        c->register_at_us = now_us + REFUSED_RETRY_US;
    }
    if (s == KVS_OK) {
        s = cls_registry_put(c->view, &card, now_us, NULL);
    }
    if (s != KVS_OK) {
        c->stats.ignored++;
        return s != KVS_SELF_NOMEM;
    }
    if (overwritten && card.epoch != c->card.epoch) {
        we_are_replaced(c);
    }
    return true;
}

/* Memory was lacking for a card: the members are read again soon. Not for ever: a value may be larger than any card. */
static bool read_again(struct client *c, uint64_t now_us)
{
    if (c->holes >= HOLES_MAX) {
        return false;
    }
    c->holes++;
    c->range_at_us = now_us + HOLE_RETRY_US;
    return true;
}

static void take_delete(struct client *c, const struct net_etcd_kv *kv, uint64_t now_us)
{
    const struct msg_card *old = strncmp(kv->key, c->prefix, strlen(c->prefix)) == 0
                                     ? cls_registry_find(c->view, kv->key + strlen(c->prefix))
                                     : NULL;
    if (old != NULL) {
        struct msg_card gone = *old;
        if (now_us < c->trust_us) {
            cls_registry_expire_at(c->view, gone.id, gone.epoch, c->trust_us);
        } else {
            cls_registry_leave(c->view, gone.id, gone.epoch, now_us);
        }
    }
    if (c->joined && strcmp(kv->key, c->key) == 0 && kv->mod_revision > c->mod_revision) {
        key_is_gone(c);
    }
}

static void take_range(struct client *c, const struct net_etcd_answer *answer)
{
    uint64_t now = kvs_now_us();
    bool fresh = !c->have_view, own = false, whole = true;
    cls_registry_mark_all(c->view);
    for (uint32_t i = 0; i < answer->kv_count; i++) {
        own = own || strcmp(answer->kvs[i].key, c->key) == 0;
        whole = take_put(c, &answer->kvs[i], now) && whole;
    }
    c->range_at_us = now + jitter(RANGE_EVERY_US);
    if (whole || !read_again(c, now)) { /* else who is missing may be there */
        c->holes = whole ? 0 : c->holes;
        cls_registry_lease_marked(c->view, now < c->trust_us ? c->trust_us : now);
    }
    cls_registry_tick(c->view, now);
    if (!own && c->joined && (c->registered || c->replaced)) {
        key_is_gone(c); /* one call at a time: this range has seen our put */
    }
    c->view_revision = c->seen_revision = answer->revision;
    c->have_view = true;
    c->stats.ranges++;
    drain(c);
    if (fresh && c->ev.on_member != NULL) {
        struct msg_member end = {.change = MSG_MEMBER_SNAPSHOT_END};
        c->ev.on_member(c->ev.user, &end);
    }
}

static bool is_silent_about(struct client *c, const struct net_etcd_answer *answer)
{
    uint64_t now = kvs_now_us();
    bool silent = fell_silent(c, answer->revision);
    for (uint32_t i = 0; i < answer->kv_count && !silent; i++) {
        cls_echo_owed(&c->echo, answer->kvs[i].mod_revision, now);
    }
    return silent;
}

static void range_done(void *user, kvs_status s, const char *text, const struct net_etcd_answer *answer)
{
    struct client *c = user;
    if (!settle_call(c, s, text)) {
        return;
    }
    if (s != KVS_OK) { /* no permission, for one */
        c->retry_at_us = kvs_now_us() + REFUSED_RETRY_US;
        backend_down(c, text, true);
    } else if (c->watching && answer->revision < c->seen_revision && ++c->late_ranges < 4) {
        c->range_at_us = 0; /* it was overtaken by the watch */
    } else {
        if (c->watching && (answer->revision < c->seen_revision || !c->have_view || is_silent_about(c, answer))) {
            drop_watch(c); /* a new count, a watch from before the outage, or a dead one: begin it anew */
        }
        c->late_ranges = 0;
        take_range(c, answer);
    }
    advance(c);
}

static void on_line(void *user, const struct net_etcd_watch_line *line)
{
    struct client *c = user;
    uint64_t now = kvs_now_us();
    heard(c);
    cls_echo_heard(&c->echo, line->event_count > 0 ? line->events[line->event_count - 1].kv.mod_revision : 0, now);
    if (line->canceled) {
        drop_watch(c);
        c->have_view = false;
        if (line->compact_revision == 0) {
            lost(c, line->reason[0] != '\0' ? line->reason : "etcd canceled the watch");
        }
        advance(c);
        return;
    }
    c->watch_created = c->watch_created || line->created;
    for (uint32_t i = 0; i < line->event_count; i++) {
        const struct net_etcd_event *e = &line->events[i];
        if (e->kv.mod_revision <= c->view_revision) {
            continue; /* older than the range */
        }
        c->seen_revision = e->kv.mod_revision > c->seen_revision ? e->kv.mod_revision : c->seen_revision;
        if (e->deleted) {
            drain(c); /* who came and went within one line was here, too */
            take_delete(c, &e->kv, now);
        } else if (!take_put(c, &e->kv, now)) {
            (void)read_again(c, now);
        }
    }
    drain(c);
    advance(c);
}

static void on_watch_end(void *user, kvs_status why, const char *text)
{
    struct client *c = user;
    (void)why;
    c->watching = c->watch_created = false;
    c->have_view = false;
    lost(c, text);
    advance(c);
}

/* ---- what is due ---- */

static void send_call(struct client *c, net_etcd_op op, const struct kvs_buf *body, kvs_status encoded,
                      net_etcd_done_fn done)
{
    kvs_status s = encoded == KVS_OK ? net_etcd_call(c->etcd, op, body, done, c) : encoded;
    c->busy = s == KVS_OK;
    c->sent_us = kvs_now_us();
    if (s != KVS_OK) {
        lost(c, kvs_status_name(s));
    }
}

static kvs_status encode_swap(struct client *c, struct kvs_buf *body)
{
    struct kvs_buf value;
    kvs_buf_init(&value, CARD_BYTES_MAX);
    kvs_status s = msg_card_encode(&c->card, &value);
    if (s == KVS_OK) {
        s = net_etcd_put_swap(body, c->key, c->mod_revision, value.data, value.len, c->lease);
    }
    kvs_buf_fini(&value);
    c->put_serial = c->card_serial;
    return s;
}

/* Starts the next call; false: nothing to do now. */
static bool start_next(struct client *c, uint64_t now_us)
{
    struct kvs_buf body;
    bool registering = c->joined && !c->replaced && now_us >= c->register_at_us;
    bool view_wanted = c->tried || !c->joined || c->replaced;
    kvs_buf_init(&body, 4 * CARD_BYTES_MAX);
    if (registering && c->lease == 0) {
        send_call(c, NET_ETCD_GRANT, &body, net_etcd_put_grant(&body, (int64_t)(c->ttl_us / 1000000)), grant_done);
    } else if (registering && now_us >= c->beat_at_us) {
        if (KVS_FAILPOINT("etcd.before_keepalive")) {
            lost(c, "failpoint etcd.before_keepalive");
        } else {
            send_call(c, NET_ETCD_KEEPALIVE, &body, net_etcd_put_lease(&body, c->lease), beat_done);
        }
    } else if (registering && c->dirty) {
        send_call(c, NET_ETCD_TXN, &body, encode_swap(c, &body), swap_done);
    } else if (view_wanted && (!c->have_view || now_us >= c->range_at_us)) {
        send_call(c, NET_ETCD_RANGE, &body, net_etcd_put_range(&body, c->prefix, NET_ETCD_KVS_MAX), range_done);
    } else {
        kvs_buf_fini(&body);
        return false;
    }
    kvs_buf_fini(&body);
    return c->busy;
}

static void start_watch(struct client *c)
{
    if (c->have_view && !c->watching) {
        c->stats.watches++;
        int64_t from = KVS_FAILPOINT("etcd.watch_from_the_start") ? 1 : c->view_revision + 1;
        c->watching = net_etcd_watch(c->etcd, c->prefix, from) == KVS_OK;
        cls_echo_start(&c->echo, c->view_revision, kvs_now_us());
        if (!c->watching) {
            lost(c, "out of memory");
        }
    }
}

static uint64_t next_due(const struct client *c)
{
    uint64_t at = c->outage ? UINT64_MAX : cls_registry_deadline_us(c->view), call_at = UINT64_MAX;
    if (!c->started || c->busy) {
        return at;
    }
    if (c->joined && !c->replaced) {
        call_at = c->lease == 0 || c->dirty || c->beat_at_us < c->register_at_us ? c->register_at_us : c->beat_at_us;
    }
    if (c->tried || !c->joined || c->replaced) {
        uint64_t view_at = c->have_view && c->watching ? c->range_at_us : 0;
        call_at = view_at < call_at ? view_at : call_at;
    }
    call_at = call_at < c->retry_at_us ? c->retry_at_us : call_at;
    return call_at < at ? call_at : at;
}

static void advance(struct client *c)
{
    uint64_t now = kvs_now_us();
    if (!c->outage) {
        cls_registry_tick(c->view, now);
    }
    drain(c);
    if (c->started && !c->busy && now >= c->retry_at_us) {
        start_watch(c);
        if (!start_next(c, now)) {
            bool fine =
                c->have_view && c->watch_created && !c->replaced && (!c->joined || (c->registered && !c->dirty));
            if (fine && !c->outage) {
                backend(c, true, "etcd");
            }
        }
    }
    kvs_timer_set(c->timer, next_due(c));
}

static void on_timer(void *user, uint64_t now_us)
{
    (void)now_us;
    advance(user);
}

/* ---- ops ---- */

static kvs_status etcd_join(struct cls_discovery *d, const struct msg_card *card)
{
    struct client *c = (struct client *)d;
    if (card->id[0] == '\0' || strchr(card->id, '/') != NULL || card->epoch == 0 ||
        card->group_count > MSG_GROUPS_MAX) {
        return KVS_REQ_INVALID;
    }
    c->card = *card;
    c->card_serial++;
    kvs_format(c->key, sizeof c->key, "%s%s", c->prefix, card->id);
    c->joined = c->dirty = c->started = true;
    kvs_timer_set(c->timer, kvs_now_us());
    return KVS_OK;
}

static int64_t forget_registration(struct client *c)
{
    int64_t lease = c->lease;
    c->joined = c->registered = c->ever_registered = c->replaced = c->dirty = false;
    c->lease = c->mod_revision = 0;
    return lease;
}

static void etcd_leave(struct cls_discovery *d)
{
    struct client *c = (struct client *)d;
    int64_t lease = forget_registration(c);
    if (lease != 0) {
        revoke(c, lease);
    }
    kvs_timer_set(c->timer, kvs_now_us());
}

void cls_etcd_leave_now(struct cls_discovery *d, uint32_t wait_ms)
{
    struct client *c = (struct client *)d;
    int64_t lease = forget_registration(c);
    if (lease != 0 && !c->outage) {
        net_etcd_revoke_now(c->etcd, lease, wait_ms);
    }
}

static void etcd_destroy(struct cls_discovery *d)
{
    struct client *c = (struct client *)d;
    if (c != NULL) {
        net_etcd_destroy(c->etcd);
        kvs_timer_destroy(c->timer);
        cls_registry_destroy(c->view);
        free(c);
    }
}

void cls_etcd_stats(const struct cls_discovery *d, struct cls_etcd_stats *out)
{
    const struct client *c = (const struct client *)d;
    *out = c->stats;
    out->registered = c->registered;
    out->watching = c->watch_created;
    out->replaced = c->replaced;
    out->members = cls_registry_count(c->view);
}

int64_t cls_etcd_lease(const struct cls_discovery *d)
{
    const struct client *c = (const struct client *)d;
    return c->registered ? c->lease : 0;
}

static bool plain_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    size_t n = strlen(name);
    return n > 0 && n < MSG_ID_MAX && strspn(name, allowed) == n;
}

static const struct cls_ops etcd_ops = {"etcd", etcd_join, etcd_leave, etcd_destroy};

kvs_status cls_etcd_create(struct kvs_loop *loop, const struct cls_etcd_config *config, const struct cls_events *ev,
                           struct cls_discovery **out, struct kvs_error *err)
{
    uint64_t ttl_us = config->ttl_us;
    if (!plain_name(config->cluster)) {
        return kvs_fail(err, KVS_SELF_CONFIG, "--cluster \"%.63s\": use letters, digits, '-', '_' and '.' only",
                        config->cluster);
    }
    struct client *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    }
    struct net_etcd_events ne = {.user = c, .on_line = on_line, .on_watch_end = on_watch_end};
    c->base.ops = &etcd_ops;
    c->ev = *ev;
    c->ttl_us = ttl_us < 1000000 ? 1000000 : ttl_us / 1000000 * 1000000;
    c->backoff_us = BACKOFF_MIN_US;
    kvs_format(c->prefix, sizeof c->prefix, CLS_ETCD_MEMBERS, config->cluster);
    kvs_status s = net_etcd_create(loop, config->url, &ne, &c->etcd, err);
    if (s == KVS_OK && config->user != NULL && config->user[0] != '\0') {
        s = net_etcd_login(c->etcd, config->user, config->password != NULL ? config->password : "", err);
    }
    if (s == KVS_OK && (cls_registry_create(MSG_MEMBERS_MAX, CLS_FOREVER, &c->view) != KVS_OK ||
                        kvs_timer_create(loop, on_timer, c, &c->timer) != KVS_OK)) {
        s = kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    }
    if (s != KVS_OK) {
        etcd_destroy(&c->base);
        return s;
    }
    *out = &c->base;
    return KVS_OK;
}
