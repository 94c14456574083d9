/* peers.c - see peers.h. Every LINK call has a deadline; a refused or failed link is tried again on a timer for as long as the connection
 * lives, so that the order in which daemons start and learn of each other does not matter.
 * All workers of a model link with each other, whatever their roles: anybody may fetch from anybody, and roles change.
 * SPDX-License-Identifier: Apache-2.0 */
#include "worker/edge/peers.h"

#include "base/arena.h"
#include "cluster/core/registry.h"
#include "kvtransfer/core/wire.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include "sys/log.h"
#include <stdlib.h>
#include <string.h>

#define LINK_CALL_MS 3000u
#define LINK_RETRY_US 200000u

typedef enum slot_state { SLOT_FREE, SLOT_CONNECTED, SLOT_OPENING, SLOT_CONNECTING, SLOT_UP, SLOT_CLOSING } slot_state;

struct slot {
    slot_state state;
    net_conn conn;
    char id[MSG_ID_MAX];
    uint64_t epoch;
    struct kvt_probe probe; /* theirs */
    bool we_dialed;
    bool opened;            /* kvt_peer_open was called: kvt_peer_close is due */
    bool near_ok;           /* our own verdict */
    kvt_lane lane;
    uint32_t link_stream;   /* our LINK call in flight; 0: none */
    bool link_second;       /* it is the address exchange */
    uint32_t owed_stream;   /* their address call waits for our address; 0: none */
    uint8_t address[KVT_ADDRESS_MAX];
    uint32_t address_bytes; /* ours; 0 until KVT_EV_ADDRESS */
    uint64_t retry_us;      /* when to call LINK again; 0: not due */
    bool announced;         /* up was told */
    char transport[16];
};

struct member {
    bool used;
    bool dialed, wanted; /* wanted: it is ours to dial */
    bool told; /* its incompatibility was logged */
    struct msg_card card;
};

struct wrk_peers {
    struct kvs_loop *loop;
    struct net_rpc *rpc;
    struct kvt_port *port;
    struct kvs_timer *timer;
    struct msg_card self;
    struct msg_hello hello;
    wrk_transport transport;
    char router_url[MSG_URL_MAX]; /* dialed by the worker itself */
    struct wrk_peers_events ev;
    struct slot slot[WRK_PEERS_MAX];
    struct member member[WRK_PEERS_MAX];
};

static bool works(msg_role r)
{
    return r == MSG_ROLE_PREFILL || r == MSG_ROLE_DECODE || r == MSG_ROLE_BOTH;
}

static struct member *member_find(struct wrk_peers *p, const char *id)
{
    for (uint32_t i = 0; i < WRK_PEERS_MAX; i++)
        if (p->member[i].used && strcmp(p->member[i].card.id, id) == 0)
            return &p->member[i];
    return NULL;
}

static struct slot *slot_of_conn(struct wrk_peers *p, net_conn conn)
{
    for (uint32_t i = 0; i < WRK_PEERS_MAX; i++)
        if (p->slot[i].state != SLOT_FREE && p->slot[i].state != SLOT_CLOSING && p->slot[i].conn == conn)
            return &p->slot[i];
    return NULL;
}

static uint32_t slot_number(const struct wrk_peers *p, const struct slot *s)
{
    return (uint32_t)(s - p->slot);
}

/* Gives the connection up; on_down of the rpc then takes the slot down. */
static void give_up(struct wrk_peers *p, struct slot *s, kvs_status why, const char *text)
{
    KVS_WARN("peer given up", "peer=%s cause=\"%s\"", s->id, text);
    net_rpc_close(p->rpc, s->conn, why, text);
}

/* UCX aborts on an address that it cannot read, so what is damaged, stale or not made by our like must not reach it. */
static uint64_t address_check(const struct wrk_peers *p, const struct slot *s, const uint8_t *address, uint32_t n)
{
    return kvt_checksum(address, n) ^ p->self.epoch ^ s->epoch;
}

static void put_address(const struct wrk_peers *p, const struct slot *s, struct msg_link *link)
{
    link->address = s->address;
    link->address_bytes = s->address_bytes;
    link->address_check = address_check(p, s, s->address, s->address_bytes);
}

static void call_link(struct wrk_peers *p, struct slot *s, bool second)
{
    struct msg_link link = {.near_ok = s->near_ok, .generation = 1};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    if (second)
        put_address(p, s, &link);
    uint32_t stream = 0;
    kvs_status st = msg_link_encode(&link, &body);
    if (st == KVS_OK)
        st = net_rpc_call(p->rpc, s->conn, MSG_LINK, LINK_CALL_MS, "", body.data, body.len, &stream);
    kvs_buf_fini(&body);
    if (st != KVS_OK) {
        give_up(p, s, st, "link call could not be sent");
        return;
    }
    s->link_stream = stream;
    s->link_second = second;
}

static bool answer_link(struct wrk_peers *p, const struct slot *s, uint32_t stream, bool with_address)
{
    struct msg_link link = {.near_ok = s->near_ok, .generation = 1};
    struct msg_end end = {.status = KVS_OK};
    struct kvs_buf body;
    kvs_buf_init(&body, MSG_PAYLOAD_MAX);
    if (with_address)
        put_address(p, s, &link);
    kvs_status st = msg_link_encode(&link, &body);
    if (st == KVS_OK)
        st = net_rpc_item(p->rpc, s->conn, stream, body.data, body.len);
    kvs_buf_fini(&body);
    end.status = st;
    net_rpc_end(p->rpc, s->conn, stream, &end);
    return st == KVS_OK;
}

static void refuse_link(struct wrk_peers *p, net_conn conn, uint32_t stream, kvs_status why, const char *text)
{
    struct msg_end end = {.status = why};
    kvs_format(end.text, sizeof end.text, "%s", text);
    net_rpc_end(p->rpc, conn, stream, &end);
}

/* Both verdicts are known: choose the lane and open the transport. */
static void open_lane(struct wrk_peers *p, struct slot *s, bool their_near_ok)
{
    bool near = s->near_ok && their_near_ok;
    if (!near && p->transport == WRK_TRANSPORT_SHM) {
        KVS_ERROR("peer not linked", "peer=%s cause=\"--transport shm was asked for, but process_vm_readv does not work %s\" "
                                     "remedy=\"run both workers on one host under one user and pid namespace, or use --transport auto\"",
                  s->id, s->near_ok ? "from the other side" : "from here");
        return;
    }
    s->lane = near ? KVT_LANE_NEAR : KVT_LANE_TCP;
    if (kvt_peer_open(p->port, slot_number(p, s), s->lane) != KVS_OK) {
        give_up(p, s, KVS_BUSY_QUEUE, "transport commands are backed up");
        return;
    }
    s->opened = true;
    s->state = SLOT_OPENING;
}

static bool connect_lane(struct wrk_peers *p, struct slot *s, const struct msg_link *link)
{
    if (link->address_check != address_check(p, s, link->address, link->address_bytes)) {
        give_up(p, s, KVS_PEER_PROTOCOL, "the transport address does not agree with its check");
        return false;
    }
    if (kvt_peer_connect(p->port, slot_number(p, s), s->epoch, link->address, link->address_bytes) != KVS_OK) {
        give_up(p, s, KVS_BUSY_QUEUE, "transport commands are backed up");
        return false;
    }
    s->state = SLOT_CONNECTING;
    return true;
}

/* Starts the verdict exchange when the other's card is known and fits; otherwise the timer asks again. */
static void try_link(struct wrk_peers *p, struct slot *s)
{
    struct member *m = member_find(p, s->id);
    if (m == NULL || m->card.epoch != s->epoch || p->transport == WRK_TRANSPORT_TCP) {
        s->near_ok = false;
    } else {
        s->near_ok = kvt_probe_try(&s->probe);
    }
    if (m == NULL || m->card.epoch != s->epoch) {
        s->retry_us = kvs_now_us() + LINK_RETRY_US;
        return;
    }
    call_link(p, s, false);
}

static void dial(struct wrk_peers *p, struct member *m)
{
    if (m->used && m->wanted && !m->dialed)
        m->dialed = net_rpc_dial(p->rpc, m->card.control_url) == KVS_OK;
}

static void on_timer(void *user, uint64_t now_us)
{
    struct wrk_peers *p = user;
    for (uint32_t i = 0; i < WRK_PEERS_MAX; i++) {
        struct slot *s = &p->slot[i];
        if (s->state == SLOT_CONNECTED && s->we_dialed && s->link_stream == 0 && s->retry_us != 0 && s->retry_us <= now_us) {
            s->retry_us = 0;
            try_link(p, s);
        }
        dial(p, &p->member[i]); /* those for whom there was no memory, or no room */
    }
    kvs_timer_set(p->timer, now_us + LINK_RETRY_US);
}

kvs_status wrk_peers_create(struct kvs_loop *loop, struct net_rpc *rpc, struct kvt_port *port, const struct msg_card *self,
                            const struct msg_hello *hello, wrk_transport transport, const char *router_url, const struct wrk_peers_events *ev,
                            struct wrk_peers **out)
{
    struct wrk_peers *p = calloc(1, sizeof *p);
    if (p == NULL)
        return KVS_SELF_NOMEM;
    p->loop = loop;
    p->rpc = rpc;
    p->port = port;
    p->self = *self;
    p->hello = *hello;
    p->transport = transport;
    kvs_format(p->router_url, sizeof p->router_url, "%s", router_url);
    p->ev = *ev;
    kvs_status st = kvs_timer_create(loop, on_timer, p, &p->timer);
    if (st != KVS_OK) {
        free(p);
        return st;
    }
    kvs_timer_set(p->timer, kvs_now_us() + LINK_RETRY_US);
    *out = p;
    return KVS_OK;
}

void wrk_peers_destroy(struct wrk_peers *p)
{
    if (p == NULL)
        return;
    kvs_timer_destroy(p->timer);
    free(p);
}

/* A dial is one per URL, and other members may have the same: a worker that came back under another name. */
static void stop_dialing(struct wrk_peers *p, struct member *m)
{
    bool shared = false;
    if (!m->dialed)
        return;
    m->dialed = false;
    for (uint32_t i = 0; i < WRK_PEERS_MAX; i++)
        shared = shared || (p->member[i].dialed && strcmp(p->member[i].card.control_url, m->card.control_url) == 0);
    if (!shared)
        net_rpc_undial(p->rpc, m->card.control_url);
}

static kvs_status check_card(const struct wrk_peers *p, const struct msg_card *card, struct kvs_error *err)
{
    if (strcmp(card->control_url, p->self.control_url) == 0 || strcmp(card->control_url, p->router_url) == 0)
        return kvs_fail(err, KVS_PEER_MISMATCH, "%s gives the control URL of %s as its own: %.120s", card->id,
                        strcmp(card->control_url, p->router_url) == 0 ? "the router" : p->self.id, card->control_url);
    return cls_cards_compatible(&p->self, card, err);
}

static void member_put(struct wrk_peers *p, const struct msg_card *card)
{
    if (strcmp(card->id, p->self.id) == 0 || !works(card->role))
        return;
    struct member *m = member_find(p, card->id);
    for (uint32_t i = 0; m == NULL && i < WRK_PEERS_MAX; i++)
        if (!p->member[i].used)
            m = &p->member[i];
    if (m == NULL) {
        KVS_WARN("member ignored", "worker=%s cause=\"more than %d workers\"", card->id, WRK_PEERS_MAX);
        return;
    }
    bool redial = m->used && strcmp(m->card.control_url, card->control_url) != 0;
    if (redial)
        stop_dialing(p, m);
    if (!m->used || m->card.epoch != card->epoch)
        m->told = false;
    m->used = true;
    m->card = *card;
    m->wanted = false;
    struct kvs_error err = {0};
    if (check_card(p, card, &err) != KVS_OK) {
        if (!m->told && strcmp(p->self.model, card->model) != 0) /* it serves another model: no fault of anybody */
            KVS_DEBUG("worker not paired", "worker=%s model=\"%s\" cause=\"%s\"", card->id, card->model, err.text);
        else if (!m->told)
            KVS_ERROR("worker not paired", "worker=%s cause=\"%s\"", card->id, err.text);
        m->told = true;
        return;
    }
    m->wanted = strcmp(p->self.id, card->id) < 0;
    dial(p, m);
}

void wrk_peers_member(struct wrk_peers *p, const struct msg_member *m)
{
    if (m->change == MSG_MEMBER_PUT) {
        member_put(p, &m->card);
        return;
    }
    if (m->change != MSG_MEMBER_GONE)
        return;
    struct member *old = member_find(p, m->card.id);
    if (old == NULL || old->card.epoch != m->card.epoch)
        return;
    stop_dialing(p, old);
    memset(old, 0, sizeof *old); /* a live stream to it goes on: the stream, not the view, says whether it lives */
}

kvs_status wrk_peers_check(const struct wrk_peers *p, const struct msg_hello *hello, struct kvs_error *err)
{
    if (strcmp(hello->id, p->self.id) == 0)
        return kvs_fail(err, KVS_PEER_MISMATCH, "%s is the name of this worker", hello->id);
    if (!works(hello->role))
        return kvs_fail(err, KVS_PEER_MISMATCH, "role %s is not a worker's", msg_role_name(hello->role));
    if (memcmp(hello->fingerprint, p->self.fingerprint, sizeof hello->fingerprint) != 0)
        return kvs_fail(err, KVS_PEER_MISMATCH, "model fingerprint differs: %s and %s do not serve the same file", hello->id, p->self.id);
    if (strcmp(hello->numerics, p->self.numerics) != 0)
        return kvs_fail(err, KVS_PEER_MISMATCH, "numerics class differs: %s has \"%s\", %s has \"%s\"", hello->id, hello->numerics, p->self.id,
                        p->self.numerics);
    return KVS_OK;
}

/* Two live processes of one name would push each other out for ever: the one that discovery names stays. */
static bool name_is_taken(struct wrk_peers *p, const struct msg_hello *hello)
{
    const struct member *m = member_find(p, hello->id);
    for (uint32_t i = 0; m != NULL && m->card.epoch != hello->epoch && i < WRK_PEERS_MAX; i++) {
        const struct slot *s = &p->slot[i];
        if (s->state != SLOT_FREE && s->state != SLOT_CLOSING && s->epoch == m->card.epoch && strcmp(s->id, hello->id) == 0)
            return true;
    }
    return false;
}

void wrk_peers_conn_up(struct wrk_peers *p, net_conn conn, const struct msg_hello *hello, bool we_dialed)
{
    struct slot *s = NULL;
    if (name_is_taken(p, hello)) {
        net_rpc_close(p->rpc, conn, KVS_PEER_REFUSED, "another process has this name in the cluster; give each process its own --name");
        return;
    }
    for (uint32_t i = 0; i < WRK_PEERS_MAX; i++) {
        struct slot *old = &p->slot[i];
        if (old->state == SLOT_FREE)
            s = s == NULL ? old : s;
        else if (old->state != SLOT_CLOSING && strcmp(old->id, hello->id) == 0) /* its old stream is not known to be dead yet */
            give_up(p, old, KVS_PEER_LOST, "the worker has connected anew");
    }
    if (s == NULL) {
        net_rpc_close(p->rpc, conn, KVS_BUSY_FULL, "too many workers");
        return;
    }
    memset(s, 0, sizeof *s);
    s->state = SLOT_CONNECTED;
    s->conn = conn;
    s->epoch = hello->epoch;
    s->we_dialed = we_dialed;
    memcpy(s->id, hello->id, sizeof s->id);
    memcpy(s->probe.boot_id, hello->boot_id, sizeof s->probe.boot_id);
    s->probe.pid_namespace = hello->pid_namespace;
    s->probe.uid = hello->uid;
    s->probe.pid = hello->pid;
    s->probe.address = hello->probe_address;
    s->probe.value = hello->probe_value;
    KVS_INFO("peer connected", "peer=%s slot=%u dialed=%d", s->id, slot_number(p, s), we_dialed);
    if (we_dialed)
        try_link(p, s);
}

/* Ends a slot's use; it is free at once when the transport never knew it. */
static void take_down(struct wrk_peers *p, struct slot *s)
{
    uint32_t n = slot_number(p, s);
    bool announced = s->announced;
    s->announced = false;
    if (s->opened) {
        s->state = SLOT_CLOSING;
        if (kvt_peer_close(p->port, n) != KVS_OK)
            KVS_ERROR("peer close not taken", "peer=%s cause=\"transport commands are backed up\"", s->id);
    } else {
        s->state = SLOT_FREE;
    }
    if (announced)
        p->ev.down(p->ev.user, n);
}

bool wrk_peers_conn_down(struct wrk_peers *p, net_conn conn)
{
    struct slot *s = slot_of_conn(p, conn);
    if (s == NULL)
        return false;
    KVS_INFO("peer lost", "peer=%s slot=%u", s->id, slot_number(p, s));
    take_down(p, s);
    return true;
}

static void called_for_verdict(struct wrk_peers *p, struct slot *s, uint32_t stream, const struct msg_link *link)
{
    struct member *m = member_find(p, s->id);
    struct kvs_error err = {0};
    if (m == NULL || m->card.epoch != s->epoch) {
        refuse_link(p, s->conn, stream, KVS_BUSY_AGAIN, "member not known here yet");
        return;
    }
    if (cls_cards_compatible(&p->self, &m->card, &err) != KVS_OK) {
        refuse_link(p, s->conn, stream, KVS_PEER_MISMATCH, err.text);
        return;
    }
    s->near_ok = p->transport != WRK_TRANSPORT_TCP && kvt_probe_try(&s->probe);
    if (answer_link(p, s, stream, false))
        open_lane(p, s, link->near_ok);
}

bool wrk_peers_call(struct wrk_peers *p, net_conn conn, uint32_t stream, const struct msg_call *call)
{
    if (call->method != MSG_LINK)
        return false;
    struct slot *s = slot_of_conn(p, conn);
    struct kvs_arena arena;
    kvs_arena_init(&arena, 1 << 16);
    struct msg_link link;
    struct kvs_error err = {0};
    kvs_status st;
    if (s == NULL || s->we_dialed) {
        refuse_link(p, conn, stream, KVS_PEER_PROTOCOL, "LINK is the dialing worker's call");
    } else if ((st = msg_link_decode(call->body, call->body_bytes, &arena, &link, &err)) != KVS_OK) {
        refuse_link(p, conn, stream, st, err.text);
    } else if (link.address_bytes == 0 && s->state == SLOT_CONNECTED) {
        called_for_verdict(p, s, stream, &link);
    } else if (link.address_bytes != 0 && s->state == SLOT_OPENING && s->owed_stream == 0) {
        if (connect_lane(p, s, &link) && s->address_bytes != 0)
            (void)answer_link(p, s, stream, true);
        else
            s->owed_stream = stream;
    } else {
        refuse_link(p, conn, stream, KVS_PEER_PROTOCOL, "LINK out of order");
    }
    kvs_arena_fini(&arena);
    return true;
}

bool wrk_peers_item(struct wrk_peers *p, net_conn conn, uint32_t stream, const uint8_t *payload, size_t n)
{
    struct slot *s = slot_of_conn(p, conn);
    if (s == NULL || s->link_stream == 0 || s->link_stream != stream)
        return false;
    struct kvs_arena arena;
    kvs_arena_init(&arena, 1 << 16);
    struct msg_link link;
    struct kvs_error err = {0};
    kvs_status st = msg_link_decode(payload, n, &arena, &link, &err);
    if (st != KVS_OK)
        give_up(p, s, st, err.text);
    else if (!s->link_second && s->state == SLOT_CONNECTED)
        open_lane(p, s, link.near_ok);
    else if (s->link_second && s->state == SLOT_OPENING && link.address_bytes != 0)
        (void)connect_lane(p, s, &link);
    else
        give_up(p, s, KVS_PEER_PROTOCOL, "answer to LINK out of order");
    kvs_arena_fini(&arena);
    return true;
}

bool wrk_peers_end(struct wrk_peers *p, net_conn conn, uint32_t stream, const struct msg_end *end)
{
    struct slot *s = slot_of_conn(p, conn);
    if (s == NULL || s->link_stream == 0 || s->link_stream != stream)
        return false;
    s->link_stream = 0;
    if (end->status == KVS_OK)
        return true;
    if (s->state == SLOT_CONNECTED) { /* not known there yet, or too slow: ask again */
        if (end->status != KVS_BUSY_AGAIN)
            KVS_WARN("link refused", "peer=%s status=%s cause=\"%s\"", s->id, kvs_status_name(end->status), end->text);
        s->retry_us = kvs_now_us() + (end->status == KVS_BUSY_AGAIN ? LINK_RETRY_US : 10 * LINK_RETRY_US);
    } else {
        give_up(p, s, KVS_PEER_REFUSED, end->text);
    }
    return true;
}

static void on_address(struct wrk_peers *p, struct slot *s, const struct kvt_event *ev)
{
    if (s->state != SLOT_OPENING && s->state != SLOT_CONNECTING)
        return;
    KVS_ASSERT(ev->address_bytes <= sizeof s->address);
    memcpy(s->address, ev->address, ev->address_bytes);
    s->address_bytes = ev->address_bytes;
    if (s->we_dialed) {
        call_link(p, s, true);
    } else if (s->owed_stream != 0) {
        uint32_t stream = s->owed_stream;
        s->owed_stream = 0;
        (void)answer_link(p, s, stream, true);
    }
}

void wrk_peers_port_event(struct wrk_peers *p, const struct kvt_event *ev)
{
    if (ev->peer >= WRK_PEERS_MAX)
        return;
    struct slot *s = &p->slot[ev->peer];
    switch (ev->kind) {
    case KVT_EV_ADDRESS: on_address(p, s, ev); break;
    case KVT_EV_UP:
        if (s->state != SLOT_CONNECTING)
            break;
        s->state = SLOT_UP;
        s->announced = true;
        kvs_format(s->transport, sizeof s->transport, "%s", ev->transport != NULL ? ev->transport : "?");
        if (s->lane == KVT_LANE_NEAR && strcmp(s->transport, "tcp") == 0)
            KVS_WARN("peer linked over a slower lane", "peer=%s wanted=near got=%s", s->id, s->transport);
        KVS_INFO("peer linked", "peer=%s slot=%u transport=%s", s->id, ev->peer, s->transport);
        (void)KVS_FAILPOINT("worker.after_link");
        p->ev.up(p->ev.user, ev->peer, s->id, s->epoch, s->transport);
        break;
    case KVT_EV_ERROR:
        if (s->state == SLOT_OPENING || s->state == SLOT_CONNECTING || s->state == SLOT_UP)
            give_up(p, s, ev->status, "the KV transport reported an error");
        break;
    case KVT_EV_CLOSED:
        if (s->state == SLOT_CLOSING) {
            s->state = SLOT_FREE;
            p->ev.closed(p->ev.user, ev->peer);
        }
        break;
    case KVT_EV_GRANT:
    case KVT_EV_SENT: break;
    }
}

void wrk_peers_close(struct wrk_peers *p, uint32_t peer, const char *why)
{
    if (wrk_peers_conn(p, peer) != 0)
        give_up(p, &p->slot[peer], KVS_PEER_TIMEOUT, why);
}

net_conn wrk_peers_conn(const struct wrk_peers *p, uint32_t peer)
{
    return peer < WRK_PEERS_MAX && p->slot[peer].state == SLOT_UP ? p->slot[peer].conn : 0;
}

bool wrk_peers_is_peer(struct wrk_peers *p, net_conn conn)
{
    return slot_of_conn(p, conn) != NULL;
}

uint32_t wrk_peers_by_conn(const struct wrk_peers *p, net_conn conn)
{
    for (uint32_t i = 0; i < WRK_PEERS_MAX; i++)
        if (p->slot[i].state == SLOT_UP && p->slot[i].conn == conn)
            return i;
    return WRK_PEER_NONE;
}

uint32_t wrk_peers_links(const struct wrk_peers *p, struct msg_peer_link *out, uint32_t cap)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < WRK_PEERS_MAX && n < cap; i++) {
        if (p->slot[i].state != SLOT_UP)
            continue;
        memcpy(out[n].id, p->slot[i].id, sizeof out[n].id);
        memcpy(out[n].transport, p->slot[i].transport, sizeof out[n].transport);
        n++;
    }
    return n;
}
