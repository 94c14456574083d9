/* rpc.c - creation, listening, dialing with paced retries, the tick of heartbeats, and the reaper of dead connections.
 * Dials: one attempt at a time per URL; after a failure or a lost connection the next one waits 50 ms doubling to 2
 * s, of which a random half is left out, so that a fleet that lost its router does not come back as one wave. A
 * connection that stayed up for a second starts the pace anew.
 * Heartbeats: one timer for all connections asks their pulses (core/pulse.h has the rule) ten times a second, after it
 * has taken in what has arrived.
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/rpc_impl.h"

#include "net/advertise.h"
#include "sys/clock.h"
#include <stdlib.h>
#include <string.h>

static void rpc_on_tick(void *user, uint64_t now_us);
static void rpc_on_reap(void *user, uint64_t now_us);

kvs_status net_rpc_create(struct kvs_loop *loop, const struct msg_hello *self, const struct net_rpc_handlers *h,
                          struct net_rpc **out, struct kvs_error *err)
{
    struct net_rpc *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return kvs_fail(err, KVS_SELF_NOMEM, "no memory for control streams");
    }
    r->loop = loop;
    r->self = *self;
    r->h = *h;
    r->rng.state = kvs_random_u64();
    kvs_buf_init(&r->scratch, MSG_PAYLOAD_MAX + 4096);
    kvs_status s = net_io_init(&r->io, loop);
    if (s == KVS_OK) {
        s = kvs_timer_create(loop, rpc_on_tick, r, &r->tick);
    }
    if (s == KVS_OK) {
        s = kvs_timer_create(loop, rpc_on_reap, r, &r->reaper);
    }
    if (s == KVS_OK) { /* a HELLO that we cannot write would only be found out when the first peer comes */
        s = msg_hello_encode(&r->self, &r->scratch);
        kvs_buf_clear(&r->scratch);
    }
    if (s != KVS_OK) {
        net_rpc_destroy(r);
        return kvs_fail(err, s, "cannot set up control streams: %s", kvs_status_name(s));
    }
    r->ticked_us = kvs_now_us();
    kvs_timer_set(r->tick, r->ticked_us + NET_PULSE_LOOK_US);
    *out = r;
    return KVS_OK;
}

static void dial_free(struct dial *d)
{
    net_dialer_destroy(d->dialer);
    kvs_timer_destroy(d->timer);
    free(d);
}

static void linger_free(struct linger *l)
{
    net_link_close(l->link);
    free(l);
}

void net_rpc_destroy(struct net_rpc *r)
{
    if (r == NULL) {
        return;
    }
    for (uint32_t i = 0; i < r->listener_count; i++) {
        net_listener_destroy(r->listener[i]);
    }
    while (r->conns != NULL) { /* before the dials: a connection lets go of its dial */
        conn_free(r->conns);
    }
    while (r->dials != NULL) {
        struct dial *d = r->dials;
        r->dials = d->next;
        dial_free(d);
    }
    while (r->lingers != NULL) {
        struct linger *l = r->lingers;
        r->lingers = l->next;
        linger_free(l);
    }
    kvs_timer_destroy(r->tick);
    kvs_timer_destroy(r->reaper);
    net_io_fini(&r->io);
    kvs_buf_fini(&r->scratch);
    free(r);
}

/* ---- listening ---- */

static bool url_is_known(const char *url)
{
    size_t n = strlen(url);
    return n < MSG_URL_MAX && ((strncmp(url, "tcp://", 6) == 0 && n > 6 && strrchr(url + 6, ':') != NULL) ||
                               (strncmp(url, "ipc://", 6) == 0 && n > 6));
}

kvs_status net_rpc_listen(struct net_rpc *r, const char *url, char *url_out, size_t url_cap, struct kvs_error *err)
{
    if (!url_is_known(url)) {
        return kvs_fail(err, KVS_SELF_CONFIG, "\"%s\" is no control address: write tcp://HOST:PORT or ipc://PATH", url);
    }
    if (r->self.auth[0] == '\0' && !net_url_is_private(url)) {
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "%s can be reached from other machines, where anybody could be a member: give all daemons a "
                        "shared key with --auth-file FILE (or KVASIR_AUTH)",
                        url);
    }
    if (r->listener_count == RPC_LISTENERS_MAX) {
        return kvs_fail(err, KVS_BUSY_FULL, "at most %d control addresses", RPC_LISTENERS_MAX);
    }
    kvs_status s =
        net_listener_create(&r->io, url, url_out, url_cap, conn_accepted, r, &r->listener[r->listener_count], err);
    if (s == KVS_OK) {
        r->listener_count++;
    }
    return s;
}

/* ---- dialing ---- */

static void dial_later(struct dial *d)
{
    uint64_t wait = d->backoff_us / 2 + kvs_rng_below(&d->rpc->rng, d->backoff_us / 2 + 1);
    d->backoff_us = d->backoff_us * 2 < RPC_BACKOFF_MAX_US ? d->backoff_us * 2 : RPC_BACKOFF_MAX_US;
    kvs_timer_set(d->timer, kvs_now_us() + wait);
}

static void dial_failed(struct dial *d, kvs_status why, const char *text)
{
    dial_later(d);
    char url[MSG_URL_MAX]; /* the handler may undial */
    memcpy(url, d->url, sizeof url);
    TELL(d->rpc, on_dial_failed, url, why, text);
}

static void dial_done(void *user, nng_stream *stream, int nng_error)
{
    struct dial *d = user;
    if (stream == NULL) {
        dial_failed(d, nng_error == NNG_ETIMEDOUT ? KVS_PEER_TIMEOUT : KVS_PEER_LOST, net_io_error(nng_error));
        return;
    }
    kvs_status s = conn_create(d->rpc, stream, d, &d->conn);
    if (s != KVS_OK) {
        dial_failed(d, s, "too many control streams, or no memory for one more");
    }
}

static void dial_again(void *user, uint64_t now_us)
{
    (void)now_us;
    struct dial *d = user;
    net_dialer_start(d->dialer);
}

void dial_lost(struct dial *d, const struct conn *c)
{
    d->conn = NULL;
    if (c->was_up) {
        if (kvs_now_us() - c->born_us >= RPC_STABLE_US) {
            d->backoff_us = RPC_BACKOFF_MIN_US;
        }
        dial_later(d);
    } else {
        dial_failed(d, c->why, c->why_text);
    }
}

kvs_status net_rpc_dial(struct net_rpc *r, const char *url)
{
    if (!url_is_known(url)) {
        return KVS_SELF_CONFIG;
    }
    for (struct dial *d = r->dials; d != NULL; d = d->next) {
        if (strcmp(d->url, url) == 0) {
            return KVS_OK;
        }
    }
    if (r->dial_count == RPC_DIALS_MAX) {
        return KVS_BUSY_FULL;
    }
    struct dial *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return KVS_SELF_NOMEM;
    }
    d->rpc = r;
    d->backoff_us = RPC_BACKOFF_MIN_US;
    memcpy(d->url, url, strlen(url) + 1);
    kvs_status s = kvs_timer_create(r->loop, dial_again, d, &d->timer);
    if (s == KVS_OK) {
        s = net_dialer_create(&r->io, url, dial_done, d, &d->dialer);
    }
    if (s != KVS_OK) {
        dial_free(d);
        return s;
    }
    d->next = r->dials;
    r->dials = d;
    r->dial_count++;
    for (struct conn *c = r->conns; c != NULL && d->conn == NULL; c = c->next) {
        if (c->state == CONN_UP && c->dial == NULL && strcmp(c->given_up, url) == 0) {
            c->dial = d; /* wanted again before it was over */
            d->conn = c;
            return KVS_OK;
        }
    }
    kvs_timer_set(d->timer, kvs_now_us()); /* from the loop, so that a failure is not told inside this call */
    return KVS_OK;
}

void net_rpc_undial(struct net_rpc *r, const char *url)
{
    for (struct dial **at = &r->dials; *at != NULL; at = &(*at)->next) {
        struct dial *d = *at;
        if (strcmp(d->url, url) != 0) {
            continue;
        }
        *at = d->next;
        r->dial_count--;
        if (d->conn != NULL) {
            d->conn->dial = NULL;
            memcpy(d->conn->given_up, d->url, sizeof d->url);
            if (d->conn->state == CONN_WAIT) {
                conn_fail(d->conn, KVS_SELF_STOPPING, "no longer wanted");
            }
        }
        dial_free(d);
        return;
    }
}

/* ---- time ---- */

static void lingers_tick(struct net_rpc *r, uint64_t now_us)
{
    for (struct linger **at = &r->lingers; *at != NULL;) {
        struct linger *l = *at;
        if (net_link_drained(l->link) || now_us >= l->until_us) {
            *at = l->next;
            linger_free(l);
        } else {
            at = &l->next;
        }
    }
}

static void rpc_on_tick(void *user, uint64_t now_us)
{
    struct net_rpc *r = user;
    net_io_dispatch(&r->io);
    now_us = kvs_now_us() > now_us ? kvs_now_us() : now_us;
    bool away = net_pulse_we_were_away(&r->ticked_us, now_us);
    for (struct conn *c = r->conns, *next; c != NULL && !r->frozen; c = next) {
        next = c->next; /* conn_tick frees nothing; dying ones are freed by the reaper */
        if (away) {
            net_pulse_forgive(&c->pulse, now_us);
            c->frame_us = c->frame_us != 0 ? now_us : 0;
        }
        conn_tick(c, now_us);
    }
    lingers_tick(r, now_us);
    kvs_timer_set(r->tick, kvs_now_us() + NET_PULSE_LOOK_US);
}

void rpc_reap_soon(struct net_rpc *r)
{
    kvs_timer_set(r->reaper, kvs_now_us());
}

static void rpc_on_reap(void *user, uint64_t now_us)
{
    (void)now_us;
    struct net_rpc *r = user;
    for (;;) { /* handlers may make more connections die, so look from the front each time */
        struct conn *c = r->conns;
        while (c != NULL && c->state != CONN_DEAD) {
            c = c->next;
        }
        if (c == NULL) {
            return;
        }
        conn_reap(c);
    }
}
