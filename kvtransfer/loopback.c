/* loopback.c - a peer in the same process: a send is a copy into the sink's page, made by the sender's thread.
 * For tests and the simulator's neighbours: same commands, same checks, same events as over UCX, no sockets. Ports find each other
 * through an address {serial of the port, peer number, generation}; a stale address finds nobody.
 * Threads: one lock around each round of every loopback port makes all their state one owner's.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "kvtransfer/port_private.h"
#include "sys/failpoint.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ADDRESS_BYTES 20u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvt_port *ports; /* under lock */

struct loopback_link {
    uint64_t port, generation;
    uint32_t peer;
    bool known; /* connect has been called */
};

void kvt_loopback_lock(void)
{
    int r = pthread_mutex_lock(&lock);
    KVS_ASSERT(r == 0);
}

void kvt_loopback_unlock(void)
{
    int r = pthread_mutex_unlock(&lock);
    KVS_ASSERT(r == 0);
}

void kvt_loopback_register(struct kvt_port *p)
{
    kvt_loopback_lock();
    p->next = ports;
    ports = p;
    kvt_loopback_unlock();
}

void kvt_loopback_unregister(struct kvt_port *p)
{
    kvt_loopback_lock();
    for (struct kvt_port **at = &ports; *at != NULL; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    kvt_loopback_unlock();
}

static kvs_status loopback_open(struct kvt_peer *peer)
{
    uint8_t *address = malloc(ADDRESS_BYTES);
    peer->link = calloc(1, sizeof(struct loopback_link));
    if (address == NULL || peer->link == NULL) {
        free(address);
        return KVS_SELF_NOMEM;
    }
    kvs_store_u64(address, peer->port->serial);
    kvs_store_u64(address + 8, peer->generation);
    kvs_store_u32(address + 16, peer->index);
    kvt_note(peer->port,
             &(struct kvt_note){
                 .kind = KVT_EV_ADDRESS, .peer = peer->index, .address = address, .address_bytes = ADDRESS_BYTES});
    return KVS_OK;
}

/* The other end, if it is still the one that we connected to. */
static struct kvt_peer *other_end(const struct kvt_peer *peer)
{
    const struct loopback_link *l = peer->link;
    struct kvt_port *p = ports;
    while (p != NULL && p->serial != l->port)
        p = p->next;
    struct kvt_peer *other = p == NULL ? NULL : p->peer[l->peer];
    bool same = other != NULL && other->generation == l->generation && other->state != KVT_PEER_CLOSING;
    return same && p->config.epoch == peer->remote_epoch ? other : NULL;
}

static kvs_status loopback_connect(struct kvt_peer *peer, const void *address, size_t n)
{
    struct loopback_link *l = peer->link;
    const uint8_t *a = address;
    if (n != ADDRESS_BYTES || kvs_load_u32(a + 16) >= KVT_PEERS_MAX)
        return KVS_PEER_PROTOCOL;
    *l = (struct loopback_link){
        .port = kvs_load_u64(a), .generation = kvs_load_u64(a + 8), .peer = kvs_load_u32(a + 16), .known = true};
    (void)KVS_FAILPOINT("kvt.wireup");
    struct kvt_peer *other = other_end(peer);
    if (other != NULL)
        kvt_kick(other->port);
    return KVS_OK;
}

/* Both ends point at each other. */
static bool linked(const struct kvt_peer *peer, const struct kvt_peer *other)
{
    const struct loopback_link *l = other->link;
    return l->known && l->port == peer->port->serial && l->generation == peer->generation && l->peer == peer->index &&
           other->remote_epoch == peer->port->config.epoch;
}

static void deliver(struct kvt_message *m, struct kvt_peer *other)
{
    struct kvt_header h = m->header;
    (void)KVS_FAILPOINT("kvt.before_send");
    h.checksum = kvt_checksum(m->bytes, (size_t)h.bytes);
    if (KVS_FAILPOINT("kvt.corrupt_page"))
        h.checksum ^= 0xff;
    if (KVS_FAILPOINT("kvt.drop_send"))
        return;
    kvt_header_encode(&h, m->wire);
    struct kvt_grant_rec *g;
    uint32_t slot;
    if (kvt_accept(other, m->wire, sizeof m->wire, h.bytes, &g, &slot) != KVT_ACCEPT)
        return;
    const struct kvt_want *w = kvt_sink_want(g->sink, slot);
    KVS_ASSERT(w->bytes == h.bytes);
    memcpy(w->dest, m->bytes, (size_t)w->bytes);
    kvt_receive_done(g, slot, true);
}

static bool loopback_step(struct kvt_peer *peer, uint64_t now_us)
{
    (void)now_us;
    struct loopback_link *l = peer->link;
    if (l == NULL || !l->known || peer->error_reported)
        return false;
    struct kvt_peer *other = other_end(peer);
    if (peer->state == KVT_PEER_CONNECTING && other != NULL && linked(peer, other)) {
        kvt_peer_up(peer, "loopback");
        kvt_kick(other->port);
        return true;
    }
    if (peer->state != KVT_PEER_UP)
        return false;
    if (other == NULL) {
        kvt_peer_error(peer, KVS_PEER_LOST);
        return true;
    }
    if (peer->queued.head == NULL)
        return false;
    struct kvt_message *m = peer->queued.head;
    kvt_message_unlink(&peer->queued, m);
    deliver(m, other);
    if (other->port->notes_pending && other->port->config.wake != NULL) {
        other->port->notes_pending = false;
        other->port->config.wake(other->port->config.wake_user);
    }
    kvt_message_done(m, KVS_OK);
    return true;
}

static bool loopback_arm(struct kvt_peer *peer)
{
    (void)peer;
    return true;
}

static bool loopback_close(struct kvt_peer *peer, uint64_t now_us)
{
    (void)now_us;
    const struct loopback_link *l = peer->link;
    struct kvt_peer *other = l != NULL && l->known ? other_end(peer) : NULL;
    if (other != NULL)
        kvt_kick(other->port); /* it will find us gone */
    atomic_fetch_add_explicit(&peer->port->forced_closes, 1, memory_order_relaxed);
    return true;
}

static void loopback_destroy(struct kvt_peer *peer)
{
    free(peer->link);
    peer->link = NULL;
}

const struct kvt_ops kvt_loopback_ops = {loopback_open, loopback_connect, loopback_step,
                                         loopback_arm,  loopback_close,   loopback_destroy};
