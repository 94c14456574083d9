/* members.c - membership as this router gets it: it keeps the registry itself (embedded), or etcd does.
 * With etcd the router dials: every worker's control URL stands in its card. A key that vanishes is no proof of death
 * (a lease may be lost while the worker lives): while the stream to that worker is alive it is kept, and forgotten when
 * the stream ends, too. With embedded discovery workers dial and the registry follows the streams by itself.
 * SPDX-License-Identifier: Apache-2.0 */
#include "router/edge/dispatch_impl.h"

#include "net/advertise.h"
#include "net/etcd.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <string.h>
#include <unistd.h>

#define LEAVE_MS 1000u

static bool works(const struct msg_card *card)
{
    return card->role == MSG_ROLE_PREFILL || card->role == MSG_ROLE_DECODE || card->role == MSG_ROLE_BOTH;
}

static const struct msg_card *member_of(const struct rtr_dispatch *d, const char *id)
{
    for (uint32_t i = 0; i < d->member_count; i++)
        if (strcmp(d->members[i].id, id) == 0)
            return &d->members[i];
    return NULL;
}

static bool url_is_used(const struct rtr_dispatch *d, const char *url)
{
    for (uint32_t i = 0; i < d->member_count; i++)
        if (strcmp(d->members[i].control_url, url) == 0)
            return true;
    return false;
}

static struct rtr_peer *live_peer(struct rtr_dispatch *d, const char *id, uint64_t epoch)
{
    for (uint32_t i = 0; i < d->peer_count; i++)
        if (d->peers[i]->epoch == epoch && strcmp(d->peers[i]->id, id) == 0)
            return d->peers[i];
    return NULL;
}

/* One dial a URL: what is dialed already stays as it is. */
static void dial(struct rtr_dispatch *d, const struct msg_card *card)
{
    kvs_status s = net_rpc_dial(d->rpc, card->control_url);
    d->dial_again |= s == KVS_SELF_NOMEM;
    if (s != KVS_OK && s != KVS_SELF_NOMEM)
        KVS_WARN("worker cannot be dialed", "worker=%s url=\"%s\" status=%s", card->id, card->control_url, kvs_status_name(s));
}

static void put(struct rtr_dispatch *d, const struct msg_member *m)
{
    char old_url[MSG_URL_MAX] = "";
    const struct msg_card *old = member_of(d, m->card.id);
    struct rtr_peer *p = live_peer(d, m->card.id, m->card.epoch);
    bool known = old && old->epoch == m->card.epoch;
    if (old)
        memcpy(old_url, old->control_url, sizeof(old_url));
    if (p)
        p->vanished = false;
    rtr_peer_member(d, m);
    if (!known)
        rtr_digests_seen(d, &m->card);
    if (old_url[0] && !url_is_used(d, old_url))
        net_rpc_undial(d->rpc, old_url);
    dial(d, &m->card);
}

static void count_silent_watches(struct rtr_dispatch *d)
{
    struct cls_etcd_stats stats;
    cls_etcd_stats(d->discovery, &stats);
    kvs_counter_add(d->m.silent_watches, stats.silent_watches - d->silent_watches_seen);
    d->silent_watches_seen = stats.silent_watches;
}

void rtr_members_tick(struct rtr_dispatch *d)
{
    if (d->etcd && d->discovery != NULL)
        count_silent_watches(d);
    if (!d->dial_again)
        return;
    d->dial_again = false;
    for (uint32_t i = 0; i < d->member_count; i++)
        dial(d, &d->members[i]);
}

static void gone(struct rtr_dispatch *d, const struct msg_member *m)
{
    char url[MSG_URL_MAX] = "";
    const struct msg_card *old = member_of(d, m->card.id);
    struct rtr_peer *p = live_peer(d, m->card.id, m->card.epoch);
    if (p) {
        KVS_INFO("worker is gone from etcd but answers", "worker=%s", p->id);
        p->vanished = true;
        return;
    }
    if (old && old->epoch == m->card.epoch)
        memcpy(url, old->control_url, sizeof(url));
    rtr_peer_member(d, m);
    rtr_digests_gone(d, &m->card);
    if (url[0] && !url_is_used(d, url))
        net_rpc_undial(d->rpc, url);
}

static void on_etcd_member(void *user, const struct msg_member *m)
{
    struct rtr_dispatch *d = user;
    struct cls_etcd_stats stats;
    cls_etcd_stats(d->discovery, &stats);
    kvs_gauge_set(d->m.members, stats.members);
    if (m->change == MSG_MEMBER_PUT && works(&m->card))
        put(d, m);
    else if (m->change == MSG_MEMBER_GONE)
        gone(d, m);
}

/* After the loss of a stream: what was held back about its worker. */
void rtr_members_down(struct rtr_dispatch *d, net_conn conn, const char *id, uint64_t epoch, bool vanished)
{
    if (!d->etcd) {
        cls_embedded_server_down(d->discovery, conn);
    } else if (vanished) {
        struct msg_member m = {.change = MSG_MEMBER_GONE, .card = {.epoch = epoch}};
        memcpy(m.card.id, id, sizeof(m.card.id));
        gone(d, &m);
    }
}

static void on_backend(void *user, bool up, const char *text)
{
    struct rtr_dispatch *d = user;
    if (d->etcd)
        kvs_gauge_set(d->m.discovery_up, up);
    if (up || !d->etcd)
        KVS_INFO("discovery", "up=%d text=\"%s\"", up, text ? text : "");
    else
        KVS_WARN("discovery lost", "cause=\"%s\" effect=\"workers that are known stay in use\"", text ? text : "");
}

kvs_status rtr_members_create(struct rtr_dispatch *d, const struct rtr_dispatch_config *c, const struct msg_hello *self, const char *control_url,
                              struct kvs_error *err)
{
    struct cls_events ev = {.user = d, .on_member = d->etcd ? on_etcd_member : rtr_peer_member, .on_backend = on_backend};
    struct msg_card *card = &d->card;
    if (!d->etcd)
        return cls_embedded_server_create(d->loop, d->rpc, &ev, &d->discovery) == KVS_OK ? KVS_OK : kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    struct kvs_metrics *metrics = rtr_board_metrics(d->board);
    d->m.discovery_up = kvs_gauge(metrics, "kvasir_discovery_up", "backend=\"etcd\"", "1 while registered and watching.");
    d->m.silent_watches = kvs_counter(metrics, CLS_SILENT_WATCHES, "", CLS_SILENT_WATCHES_HELP);
    d->m.members = kvs_gauge(metrics, "kvasir_discovery_members", "backend=\"etcd\"", "Members that discovery knows, routers too.");
    kvs_format(d->advertise, sizeof(d->advertise), "%s", c->advertise);
    memcpy(card->id, self->id, sizeof(card->id));
    card->role = MSG_ROLE_ROUTER;
    card->epoch = self->epoch;
    card->pid = self->pid;
    card->protocol_min = MSG_PROTOCOL_MIN;
    card->protocol_max = MSG_PROTOCOL_MAX;
    kvs_format(card->control_url, sizeof(card->control_url), "%s", control_url);
    kvs_status s = net_advertise(c->advertise, card->control_url, sizeof(card->control_url), err);
    struct cls_etcd_config etcd = {.url = c->discovery,
                                   .cluster = c->cluster,
                                   .ttl_us = CLS_ETCD_TTL_US,
                                   .user = c->etcd_user,
                                   .password = c->etcd_password};
    if (s == KVS_OK)
        s = cls_etcd_create(d->loop, &etcd, &ev, &d->discovery, err);
    return s == KVS_OK ? rtr_digests_create(d, &etcd, err) : s;
}

kvs_status rtr_dispatch_announce(struct rtr_dispatch *d, const char *http_url, struct kvs_error *err)
{
    struct msg_card *card = &d->card;
    if (!d->etcd)
        return KVS_OK;
    kvs_format(card->http_url, sizeof(card->http_url), "%s", http_url);
    kvs_status s = net_advertise(d->advertise, card->http_url, sizeof(card->http_url), err);
    if (s == KVS_OK && d->discovery->ops->join(d->discovery, card) != KVS_OK)
        s = kvs_fail(err, KVS_SELF_CONFIG, "--name \"%.63s\" is no name for a member", card->id);
    return s;
}

void rtr_members_destroy(struct rtr_dispatch *d)
{
    rtr_digests_destroy(d);
    if (d->discovery && d->etcd)
        cls_etcd_leave_now(d->discovery, LEAVE_MS);
    if (d->discovery)
        d->discovery->ops->destroy(d->discovery);
}
