/* port.c - the transport thread: commands in, events out.
 * The loop thread pushes small commands into a bounded ring and kicks an eventfd; the transport thread owns all peers, drives each one's
 * UCX worker by one epoll over their event descriptors, and pushes events into another ring that the loop drains after config.wake.
 *
 *   loop --commands--> [transport thread: drain, step every peer, arm, epoll] --events--> loop
 *
 * No event is ever dropped: the number of messages and grants that have not ended is bounded when they are accepted (a token taken in
 * kvt_send or kvt_grant and given back when the loop reads the event), a peer produces four events per opening, and the ring of events
 * is larger than all of these together (asserted).
 * A thread that did not run for over a second (SIGSTOP, a suspended machine) counts a stall: the loop must not blame its peers for it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvtransfer/port_private.h"

#include "sys/clock.h"
#include "sys/failpoint.h"
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define COMMANDS 8192u
#define EVENTS 8192u
#define SLEEP_MS 200
#define WINDOW_DEFAULT 8u
#define WINDOW_MIN 4u
#define WINDOW_MAX 16u

_Static_assert(EVENTS > KVT_SENDS_MAX + KVT_GRANTS_MAX + 4 * KVT_PEERS_MAX, "no event is ever dropped");

typedef enum command_kind {
    CMD_OPEN,
    CMD_CONNECT,
    CMD_CLOSE,
    CMD_GRANT,
    CMD_GRANT_END,
    CMD_GRANT_CANCEL,
    CMD_SEND,
    CMD_SEND_DROP
} command_kind;

struct kvt_command {
    command_kind kind;
    uint32_t peer;
    kvt_lane lane;
    kvs_status status;
    uint64_t xfer; /* CONNECT: the remote epoch */
    uint32_t count;
    void *object; /* CONNECT: heap copy of the address; GRANT: sink; SEND: message */
};

/* ---- events ---- */

void kvt_note(struct kvt_port *p, const struct kvt_note *note)
{
    kvs_status st = kvs_ring_push(p->events, note);
    KVS_ASSERT(st == KVS_OK); /* by construction, see above */
    p->notes_pending = true;
}

void kvt_kick(const struct kvt_port *p)
{
    uint64_t one = 1;
    ssize_t n = write(p->kick_fd, &one, sizeof one); /* full: it is kicked already */
    (void)n;
}

static void wake_loop(struct kvt_port *p)
{
    if (!p->notes_pending)
        return;
    p->notes_pending = false;
    if (p->config.wake != NULL)
        p->config.wake(p->config.wake_user);
}

void kvt_peer_error(struct kvt_peer *peer, kvs_status status)
{
    if (peer->error_reported)
        return;
    peer->error_reported = true;
    kvt_note(peer->port, &(struct kvt_note){.kind = KVT_EV_ERROR, .peer = peer->index, .status = status});
}

void kvt_peer_up(struct kvt_peer *peer, const char *transport)
{
    KVS_ASSERT(peer->state == KVT_PEER_CONNECTING && transport != NULL);
    peer->state = KVT_PEER_UP;
    peer->transport = transport;
    kvt_note(peer->port, &(struct kvt_note){.kind = KVT_EV_UP, .peer = peer->index, .transport = transport});
}

/* ---- messages ---- */

void kvt_message_push(struct kvt_message_list *l, struct kvt_message *m)
{
    m->next = NULL;
    m->prev = l->tail;
    *(l->tail == NULL ? &l->head : &l->tail->next) = m;
    l->tail = m;
    l->count++;
}

void kvt_message_unlink(struct kvt_message_list *l, struct kvt_message *m)
{
    KVS_ASSERT(l->count > 0);
    *(m->prev == NULL ? &l->head : &m->prev->next) = m->next;
    *(m->next == NULL ? &l->tail : &m->next->prev) = m->prev;
    l->count--;
}

static void report_sent(struct kvt_port *p, uint32_t peer, uint64_t cookie, kvs_status status)
{
    kvt_note(p, &(struct kvt_note){.kind = KVT_EV_SENT, .peer = peer, .status = status, .cookie = cookie});
}

void kvt_message_done(struct kvt_message *m, kvs_status status)
{
    report_sent(m->peer->port, m->peer->index, m->cookie, status);
    free(m);
}

static void messages_lost(struct kvt_message_list *l)
{
    while (l->head != NULL) {
        struct kvt_message *m = l->head;
        kvt_message_unlink(l, m);
        kvt_message_done(m, KVS_PEER_LOST);
    }
}

/* ---- commands, on the transport thread ---- */

static void peer_free(struct kvt_peer *peer)
{
    KVS_ASSERT(peer->grants == NULL && peer->receives == NULL && peer->queued.count == 0 && peer->posted.count == 0);
    peer->ops->destroy(peer);
    peer->port->peer[peer->index] = NULL;
    free(peer);
}

static void run_open(struct kvt_port *p, const struct kvt_command *c)
{
    struct kvt_peer *peer = calloc(1, sizeof *peer);
    kvs_status st = KVS_SELF_NOMEM;
    KVS_ASSERT(p->peer[c->peer] == NULL); /* the number is free again after CLOSED only */
    if (peer != NULL) {
        peer->port = p;
        peer->index = c->peer;
        peer->lane = p->config.loopback ? KVT_LANE_LOOPBACK : c->lane;
        peer->generation = ++p->generations;
        peer->ops = p->config.loopback ? &kvt_loopback_ops : &kvt_ucx_ops;
        p->peer[c->peer] = peer;
        st = peer->ops->open(peer);
    }
    if (st == KVS_OK)
        return;
    if (peer != NULL)
        kvt_peer_error(peer, st); /* it stays until the loop closes it */
    else
        kvt_note(p, &(struct kvt_note){.kind = KVT_EV_ERROR, .peer = c->peer, .status = st});
}

static void run_connect(struct kvt_peer *peer, const struct kvt_command *c)
{
    if (peer == NULL || peer->state != KVT_PEER_OPEN || peer->error_reported)
        return; /* the loop has been told */
    peer->remote_epoch = c->xfer;
    peer->connect_us = kvs_now_us();
    peer->state = KVT_PEER_CONNECTING;
    kvs_status st = peer->ops->connect(peer, c->object, c->count);
    if (st != KVS_OK)
        kvt_peer_error(peer, st);
}

static void run_close(struct kvt_port *p, uint32_t index)
{
    struct kvt_peer *peer = p->peer[index];
    if (peer == NULL)
        kvt_note(p, &(struct kvt_note){.kind = KVT_EV_CLOSED, .peer = index});
    else if (peer->state != KVT_PEER_CLOSING) {
        peer->state = KVT_PEER_CLOSING;
        peer->close_us = kvs_now_us();
    }
}

static void run_send(struct kvt_port *p, const struct kvt_command *c)
{
    struct kvt_message *m = c->object;
    struct kvt_peer *peer = p->peer[c->peer];
    if (peer == NULL || peer->state == KVT_PEER_CLOSING) {
        report_sent(p, c->peer, m->cookie, KVS_PEER_LOST);
        free(m);
        return;
    }
    m->peer = peer;
    kvt_message_push(&peer->queued, m);
}

static void run_send_drop(struct kvt_peer *peer, uint64_t xfer)
{
    struct kvt_message *next;
    for (struct kvt_message *m = peer == NULL ? NULL : peer->queued.head; m != NULL; m = next) {
        next = m->next;
        if (m->header.xfer != xfer)
            continue;
        kvt_message_unlink(&peer->queued, m);
        kvt_message_done(m, KVS_REQ_CANCELLED);
    }
}

static void run_grant_end(struct kvt_port *p, const struct kvt_command *c)
{
    struct kvt_grant_rec *g = kvt_grant_find(p, c->xfer);
    if (g == NULL)
        return; /* ended already */
    g->end_status = c->status;
    kvt_sink_end(g->sink, c->status, c->count);
    kvt_grant_settle(g);
}

static void run_grant_cancel(struct kvt_port *p, uint64_t xfer)
{
    struct kvt_grant_rec *g = kvt_grant_find(p, xfer);
    if (g == NULL)
        return;
    kvt_sink_cancel(g->sink);
    kvt_grant_settle(g);
}

static void run(struct kvt_port *p, const struct kvt_command *c)
{
    KVS_ASSERT(c->peer < KVT_PEERS_MAX);
    switch (c->kind) {
    case CMD_OPEN: run_open(p, c); break;
    case CMD_CONNECT:
        run_connect(p->peer[c->peer], c);
        free(c->object);
        break;
    case CMD_CLOSE: run_close(p, c->peer); break;
    case CMD_GRANT: kvt_grant_open(p, p->peer[c->peer], c->peer, c->object); break;
    case CMD_GRANT_END: run_grant_end(p, c); break;
    case CMD_GRANT_CANCEL: run_grant_cancel(p, c->xfer); break;
    case CMD_SEND: run_send(p, c); break;
    case CMD_SEND_DROP: run_send_drop(p->peer[c->peer], c->xfer); break;
    }
}

/* A command for the same peer that came earlier and has not run: the grant must not overtake an open. */
static bool must_wait(const struct kvt_port *p, const struct kvt_command *c)
{
    for (uint32_t i = 0; i < p->waiting_count; i++)
        if (p->waiting[i].peer == c->peer)
            return true;
    return false;
}

/* Called from within UCX callbacks: only grants run here, anything else (it may open or close workers) waits for the next round. */
void kvt_take_grants(struct kvt_port *p)
{
    struct kvt_command c;
    while (p->waiting_count < COMMANDS && kvs_ring_pop(p->commands, &c)) {
        if (c.kind == CMD_GRANT && !must_wait(p, &c))
            run(p, &c);
        else
            p->waiting[p->waiting_count++] = c;
    }
}

static bool run_commands(struct kvt_port *p)
{
    struct kvt_command c;
    bool moved = p->waiting_count > 0;
    for (uint32_t i = 0; i < p->waiting_count; i++)
        run(p, &p->waiting[i]); /* none of them takes more from the ring: no message is received here */
    p->waiting_count = 0;
    for (uint32_t n = 0; n < 256 && kvs_ring_pop(p->commands, &c); n++) {
        run(p, &c);
        moved = true;
    }
    return moved;
}

/* ---- the thread ---- */

static bool step_peer(struct kvt_peer *peer, uint64_t now_us)
{
    struct kvt_port *p = peer->port;
    if (peer->state != KVT_PEER_CLOSING) {
        bool moved = peer->ops->step(peer, now_us);
        if (peer->state == KVT_PEER_CONNECTING && now_us - peer->connect_us > KVT_HANDSHAKE_US &&
            now_us > peer->connect_us)
            kvt_peer_error(peer, KVS_PEER_TIMEOUT);
        return moved;
    }
    if (!peer->ops->close(peer, now_us))
        return false;
    /* Nothing can write into our pages on this peer's behalf any more. */
    messages_lost(&peer->posted);
    messages_lost(&peer->queued);
    kvt_grants_lost(peer);
    kvt_note(p, &(struct kvt_note){.kind = KVT_EV_CLOSED, .peer = peer->index});
    peer_free(peer);
    return true;
}

/* One round: true when something moved, so that another round should follow before sleeping. */
static bool round_once(struct kvt_port *p, bool *any_peer_out, bool *closing_out)
{
    *any_peer_out = *closing_out = false;
    bool moved = run_commands(p);
    uint64_t now_us = kvs_now_us();
    bool stopping = atomic_load_explicit(&p->stopping, memory_order_acquire);
    for (uint32_t i = 0; i < KVT_PEERS_MAX; i++) {
        if (p->peer[i] == NULL)
            continue;
        if (stopping)
            run_close(p, i);
        moved |= step_peer(p->peer[i], now_us);
        *any_peer_out |= p->peer[i] != NULL;
        *closing_out |= p->peer[i] != NULL && p->peer[i]->state == KVT_PEER_CLOSING;
    }
    return moved;
}

static bool arm_all(struct kvt_port *p)
{
    for (uint32_t i = 0; i < KVT_PEERS_MAX; i++)
        if (p->peer[i] != NULL && !p->peer[i]->ops->arm(p->peer[i]))
            return false;
    return true;
}

static void sleep_until_event(struct kvt_port *p, bool closing)
{
    struct epoll_event e[16];
    int n = epoll_wait(p->epoll_fd, e, 16, closing ? 1 : SLEEP_MS);
    for (int i = 0; i < n; i++)
        if (e[i].data.fd == p->kick_fd) {
            uint64_t v;
            ssize_t got = read(p->kick_fd, &v, sizeof v);
            (void)got;
        }
}

static void transport_thread(void *arg)
{
    struct kvt_port *p = arg;
    uint64_t last_us = kvs_now_us();
    for (;;) {
        bool any, closing;
        if (p->config.loopback)
            kvt_loopback_lock();
        bool moved = round_once(p, &any, &closing);
        wake_loop(p);
        bool sleep = !moved && arm_all(p);
        if (p->config.loopback)
            kvt_loopback_unlock();
        if (!any && !moved && atomic_load_explicit(&p->stopping, memory_order_acquire))
            return;
        if (sleep)
            sleep_until_event(p, closing);
        uint64_t now_us = kvs_now_us();
        if (now_us - last_us > KVT_STALL_US)
            atomic_fetch_add_explicit(&p->stalls, 1, memory_order_relaxed);
        last_us = now_us;
    }
}

/* ---- life of a port ---- */

static kvs_status watch_kick(struct kvt_port *p)
{
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    p->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p->epoll_fd < 0 || p->kick_fd < 0)
        return KVS_SELF_IO;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = p->kick_fd};
    return epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, p->kick_fd, &e) == 0 ? KVS_OK : KVS_SELF_IO;
}

kvs_status kvt_port_create(const struct kvt_port_config *c, struct kvt_port **out, struct kvs_error *err)
{
    static _Atomic uint64_t serials;
    KVS_ASSERT(c != NULL && c->id != NULL && out != NULL);
    if (c->window != 0 && (c->window < WINDOW_MIN || c->window > WINDOW_MAX))
        return kvs_fail(err, KVS_SELF_CONFIG, "transfer window %u is not within %u to %u", c->window, WINDOW_MIN,
                        WINDOW_MAX);
    if (!c->loopback && !kvt_process_prepared())
        return kvs_fail(err, KVS_SELF_CONFIG,
                        "UCX settings are missing from the environment: kvt_prepare_process was not called");
    struct kvt_port *p = calloc(1, sizeof *p);
    if (p == NULL)
        return kvs_fail(err, KVS_SELF_NOMEM, "out of memory");
    p->epoll_fd = p->kick_fd = -1;
    p->config = *c;
    kvs_format(p->id, sizeof p->id, "%s", c->id);
    p->config.id = p->id;
    p->config.window = c->window ? c->window : WINDOW_DEFAULT;
    p->serial = atomic_fetch_add(&serials, 1) + 1;
    kvs_status st = kvs_ring_create(COMMANDS, sizeof(struct kvt_command), &p->commands);
    if (st == KVS_OK)
        st = kvs_ring_create(EVENTS, sizeof(struct kvt_note), &p->events);
    p->waiting = calloc(COMMANDS, sizeof *p->waiting);
    if (st == KVS_OK && p->waiting == NULL)
        st = KVS_SELF_NOMEM;
    if (st == KVS_OK)
        st = kvs_map_create(KVT_GRANTS_MAX, &p->grants);
    if (st == KVS_OK)
        st = watch_kick(p);
    if (st == KVS_OK && c->loopback)
        kvt_loopback_register(p);
    if (st == KVS_OK)
        st = kvs_thread_start("kvt", transport_thread, p, &p->thread);
    if (st != KVS_OK) {
        kvt_port_destroy(p);
        return kvs_fail(err, st, "the KV transport could not start (%s)", kvs_status_name(st));
    }
    *out = p;
    return KVS_OK;
}

static void drop_command(struct kvt_command *c)
{
    if (c->kind == CMD_GRANT)
        kvt_sink_destroy(c->object);
    else
        free(c->object);
}

/* Commands and events that nobody will read: what they carry is ours. */
static void drop_rest(struct kvt_port *p)
{
    struct kvt_command c;
    struct kvt_note n;
    for (uint32_t i = 0; i < p->waiting_count; i++)
        drop_command(&p->waiting[i]);
    while (p->commands != NULL && kvs_ring_pop(p->commands, &c))
        drop_command(&c);
    while (p->events != NULL && kvs_ring_pop(p->events, &n)) {
        kvt_sink_destroy(n.sink);
        free(n.address);
    }
}

void kvt_port_destroy(struct kvt_port *p)
{
    if (p == NULL)
        return;
    atomic_store_explicit(&p->stopping, true, memory_order_release);
    if (p->thread != NULL) {
        kvt_kick(p);
        kvs_thread_join(p->thread);
    }
    if (p->config.loopback)
        kvt_loopback_unregister(p);
    drop_rest(p);
    if (p->epoll_fd >= 0)
        close(p->epoll_fd);
    if (p->kick_fd >= 0)
        close(p->kick_fd);
    free(p->waiting);
    kvs_map_destroy(p->grants);
    kvs_ring_destroy(p->commands);
    kvs_ring_destroy(p->events);
    free(p);
}

/* ---- the loop's side ---- */

static kvs_status push(struct kvt_port *p, const struct kvt_command *c)
{
    KVS_ASSERT(p != NULL && c->peer < KVT_PEERS_MAX);
    kvs_status st = kvs_ring_push(p->commands, c);
    if (st == KVS_OK)
        kvt_kick(p);
    return st;
}

static bool take_token(_Atomic uint32_t *open, uint32_t max)
{
    if (atomic_fetch_add_explicit(open, 1, memory_order_relaxed) < max)
        return true;
    atomic_fetch_sub_explicit(open, 1, memory_order_relaxed);
    return false;
}

static void give_token(_Atomic uint32_t *open)
{
    uint32_t before = atomic_fetch_sub_explicit(open, 1, memory_order_relaxed);
    KVS_ASSERT(before > 0);
}

kvs_status kvt_peer_open(struct kvt_port *p, uint32_t peer, kvt_lane lane)
{
    return push(p, &(struct kvt_command){.kind = CMD_OPEN, .peer = peer, .lane = lane});
}

kvs_status kvt_peer_connect(struct kvt_port *p, uint32_t peer, uint64_t remote_epoch, const void *address, size_t n)
{
    if (address == NULL || n == 0 || n > KVT_ADDRESS_MAX)
        return KVS_PEER_PROTOCOL; /* it came from the peer */
    void *copy = malloc(n);
    if (copy == NULL)
        return KVS_SELF_NOMEM;
    memcpy(copy, address, n);
    kvs_status st =
        push(p, &(struct kvt_command){
                    .kind = CMD_CONNECT, .peer = peer, .xfer = remote_epoch, .object = copy, .count = (uint32_t)n});
    if (st != KVS_OK)
        free(copy);
    return st;
}

kvs_status kvt_peer_close(struct kvt_port *p, uint32_t peer)
{
    return push(p, &(struct kvt_command){.kind = CMD_CLOSE, .peer = peer});
}

kvs_status kvt_grant(struct kvt_port *p, uint32_t peer, struct kvt_sink *sink)
{
    KVS_ASSERT(sink != NULL);
    if (!take_token(&p->grants_open, KVT_GRANTS_MAX))
        return KVS_BUSY_QUEUE;
    kvs_status st = push(p, &(struct kvt_command){.kind = CMD_GRANT, .peer = peer, .object = sink});
    if (st != KVS_OK)
        give_token(&p->grants_open);
    return st;
}

kvs_status kvt_grant_end(struct kvt_port *p, uint64_t xfer, kvs_status status, uint32_t pages_sent)
{
    return push(p, &(struct kvt_command){.kind = CMD_GRANT_END, .xfer = xfer, .status = status, .count = pages_sent});
}

kvs_status kvt_grant_cancel(struct kvt_port *p, uint64_t xfer)
{
    return push(p, &(struct kvt_command){.kind = CMD_GRANT_CANCEL, .xfer = xfer});
}

kvs_status kvt_send(struct kvt_port *p, uint32_t peer, const struct kvt_header *h, const void *bytes, uint64_t cookie)
{
    KVS_ASSERT(h != NULL && bytes != NULL && h->bytes > 0);
    if (!take_token(&p->sends_open, KVT_SENDS_MAX))
        return KVS_BUSY_QUEUE;
    kvs_status st = KVS_SELF_NOMEM;
    struct kvt_message *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->header = *h;
        m->bytes = bytes;
        m->cookie = cookie;
        st = push(p, &(struct kvt_command){.kind = CMD_SEND, .peer = peer, .object = m});
    }
    if (st != KVS_OK) {
        free(m);
        give_token(&p->sends_open);
    }
    return st;
}

kvs_status kvt_send_drop(struct kvt_port *p, uint32_t peer, uint64_t xfer)
{
    return push(p, &(struct kvt_command){.kind = CMD_SEND_DROP, .peer = peer, .xfer = xfer});
}

bool kvt_port_next(struct kvt_port *p, struct kvt_event *out)
{
    struct kvt_note n;
    KVS_ASSERT(p != NULL && out != NULL);
    if (!kvs_ring_pop(p->events, &n))
        return false;
    out->kind = n.kind;
    out->peer = n.peer;
    out->status = n.status;
    out->transport = n.transport;
    out->cookie = n.cookie;
    out->sink = n.sink;
    out->bytes = n.bytes;
    out->elapsed_us = n.elapsed_us;
    out->pages = n.pages;
    out->address_bytes = n.address_bytes;
    KVS_ASSERT(n.address_bytes <= KVT_ADDRESS_MAX);
    if (n.address_bytes > 0)
        memcpy(out->address, n.address, n.address_bytes);
    free(n.address);
    if (n.kind == KVT_EV_SENT)
        give_token(&p->sends_open);
    if (n.kind == KVT_EV_GRANT)
        give_token(&p->grants_open);
    return true;
}

uint64_t kvt_port_declined(const struct kvt_port *p, kvt_verdict reason)
{
    KVS_ASSERT(p != NULL && reason < KVT_VERDICTS);
    return atomic_load_explicit(&p->declined[reason], memory_order_relaxed);
}

void kvt_port_counters(const struct kvt_port *p, struct kvt_port_counters *out)
{
    KVS_ASSERT(p != NULL && out != NULL);
    out->cut_receives = atomic_load_explicit(&p->cut_receives, memory_order_relaxed);
    out->eager = atomic_load_explicit(&p->eager, memory_order_relaxed);
    out->forced_closes = atomic_load_explicit(&p->forced_closes, memory_order_relaxed);
    out->stalls = atomic_load_explicit(&p->stalls, memory_order_relaxed);
}
