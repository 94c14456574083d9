/* ucx_peer.c - one peer over UCX: its own context, worker and endpoint, so that whatever happens to it stays with it.
 * Only UCP_FEATURE_AM is asked for: with RMA any peer could write anywhere in this process with a key of its own.
 *
 *   open     context + worker, address reported
 *   connect  endpoint in peer-failure mode, PING sent
 *   UP       their PING is here (and answered by PONG) and the PONG to ours is here: both directions carry messages, the lanes are
 *            known. A PING may arrive before connect is called: it is remembered.
 *   close    forced close of the endpoint, progress for up to KVT_CLOSE_US, then the worker and context are destroyed. Measured: after
 *            the death of a peer receives may never complete by themselves; destroying without the forced close aborts the process.
 *
 * PING carries {kind, version, epoch, generation}; the epoch (64 random bits) names the process and its life, so no id is needed.
 * The error callback only sets a flag: closing an endpoint inside a callback races with what UCX is doing around it.
 * The page callback checks first (kvt_accept), exact length included: UCX 1.13 aborts the process when a rendezvous is larger than the
 * buffer it is given. Declined messages return UCS_OK and are dropped by UCX; the sender's request completes all the same.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "kvtransfer/port_private.h"
#include "kvtransfer/ucx_lane.h"
#include "sys/clock.h"
#include "sys/failpoint.h"
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <ucp/api/ucp.h>

#define AM_PING 1u
#define AM_PAGE 2u
#define AM_IDS 65536u /* a message carries 16 bits */
#define PING_BYTES 24u
#define PROGRESS_MAX 64

typedef enum ping_kind { PING = 1, PONG = 2 } ping_kind;

struct ucx_link {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
    int event_fd;
    void *close_request;
    bool close_begun;
    ucs_status_t ep_error; /* set by the error callback, read by step */
    bool ping_seen, pong_sent, pong_seen;
    uint64_t ping_epoch, ping_generation;
    uint8_t ping[PING_BYTES], pong[PING_BYTES]; /* in place until the worker is destroyed */
};

/* ---- messages in ---- */

static void receive_unlink(struct kvt_peer *peer, struct kvt_receive *r)
{
    *(r->prev == NULL ? &peer->receives : &r->prev->next) = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
}

static void receive_end(struct kvt_receive *r, bool received)
{
    struct kvt_grant_rec *g = r->grant;
    uint32_t slot = r->slot;
    receive_unlink(g->peer, r);
    free(r);
    kvt_receive_done(g, slot, received);
}

static void on_received(void *request, ucs_status_t status, size_t length, void *user)
{
    struct kvt_receive *r = user;
    receive_end(r, status == UCS_OK && length == kvt_sink_want(r->grant->sink, r->slot)->bytes);
    ucp_request_free(request);
}

static void receive_rendezvous(struct kvt_peer *peer, struct kvt_grant_rec *g, uint32_t slot, void *descriptor)
{
    struct ucx_link *l = peer->link;
    const struct kvt_want *w = kvt_sink_want(g->sink, slot);
    struct kvt_receive *r = calloc(1, sizeof *r);
    if (r == NULL) {
        kvt_receive_done(g, slot, false);
        return;
    }
    r->grant = g;
    r->slot = slot;
    r->next = peer->receives;
    if (r->next != NULL)
        r->next->prev = r;
    peer->receives = r;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.recv_am = on_received,
                                       .user_data = r};
    ucs_status_ptr_t s = ucp_am_recv_data_nbx(l->worker, descriptor, w->dest, (size_t)w->bytes, &param);
    if (!UCS_PTR_IS_PTR(s)) /* at once, well or not: no callback follows */
        receive_end(r, UCS_PTR_STATUS(s) == UCS_OK);
}

static ucs_status_t on_page(void *arg, const void *header, size_t header_bytes, void *data, size_t length,
                            const ucp_am_recv_param_t *param)
{
    struct kvt_peer *peer = arg;
    struct kvt_grant_rec *g;
    uint32_t slot;
    if (kvt_accept(peer, header, header_bytes, length, &g, &slot) != KVT_ACCEPT)
        return UCS_OK;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        receive_rendezvous(peer, g, slot, data);
        return UCS_OK;
    }
    const struct kvt_want *w = kvt_sink_want(g->sink, slot);
    KVS_ASSERT(w->bytes == length);
    atomic_fetch_add_explicit(&peer->port->eager, 1, memory_order_relaxed);
    memcpy(w->dest, data, length);
    kvt_receive_done(g, slot, true);
    return UCS_OK;
}

static ucs_status_t on_ping(void *arg, const void *header, size_t header_bytes, void *data, size_t length,
                            const ucp_am_recv_param_t *param)
{
    struct kvt_peer *peer = arg;
    struct ucx_link *l = peer->link;
    const uint8_t *p = header;
    (void)data;
    (void)param;
    if (header_bytes != PING_BYTES || length != 0) {
        kvt_decline(peer->port, KVT_DECLINE_HEADER);
        return UCS_OK;
    }
    uint64_t epoch = kvs_load_u64(p + 8), generation = kvs_load_u64(p + 16);
    if (kvs_load_u32(p + 4) != KVT_WIRE_VERSION)
        kvt_decline(peer->port, KVT_DECLINE_VERSION);
    else if (peer->state != KVT_PEER_OPEN && epoch != peer->remote_epoch)
        kvt_decline(peer->port, KVT_DECLINE_EPOCH);
    else if (kvs_load_u32(p) == PING) {
        l->ping_seen = true;
        l->ping_epoch = epoch;
        l->ping_generation = generation;
    } else if (kvs_load_u32(p) == PONG && generation == peer->generation)
        l->pong_seen = peer->state == KVT_PEER_CONNECTING || l->pong_seen;
    return UCS_OK;
}

static ucs_status_t on_stray(void *arg, const void *header, size_t header_bytes, void *data, size_t length,
                             const ucp_am_recv_param_t *param)
{
    struct kvt_peer *peer = arg;
    (void)header;
    (void)header_bytes;
    (void)data;
    (void)length;
    (void)param;
    kvt_decline(peer->port, KVT_DECLINE_HEADER);
    return UCS_OK;
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct kvt_peer *peer = arg;
    (void)ep;
    ((struct ucx_link *)peer->link)->ep_error = status;
}

/* ---- messages out ---- */

static void send_ping(struct kvt_peer *peer, ping_kind kind, uint64_t generation, uint8_t *wire)
{
    struct ucx_link *l = peer->link;
    kvs_store_u32(wire, kind);
    kvs_store_u32(wire + 4, KVT_WIRE_VERSION);
    kvs_store_u64(wire + 8, peer->port->config.epoch);
    kvs_store_u64(wire + 16, generation);
    const ucp_request_param_t param = {.op_attr_mask = 0};
    ucs_status_ptr_t s = ucp_am_send_nbx(l->ep, AM_PING, wire, PING_BYTES, NULL, 0, &param);
    if (UCS_PTR_IS_PTR(s))
        ucp_request_free(s);
    else if (UCS_PTR_STATUS(s) != UCS_OK)
        l->ep_error = UCS_PTR_STATUS(s);
}

static void on_sent(void *request, ucs_status_t status, void *user)
{
    struct kvt_message *m = user;
    kvt_message_unlink(&m->peer->posted, m);
    kvt_message_done(m, status == UCS_OK ? KVS_OK : KVS_PEER_LOST);
    ucp_request_free(request);
}

static void post(struct kvt_peer *peer, struct kvt_message *m)
{
    struct ucx_link *l = peer->link;
    kvt_message_unlink(&peer->queued, m);
    (void)KVS_FAILPOINT("kvt.before_send");
    m->header.checksum = kvt_checksum(m->bytes, (size_t)m->header.bytes);
    if (KVS_FAILPOINT("kvt.corrupt_page"))
        m->header.checksum ^= 0xff;
    kvt_header_encode(&m->header, m->wire);
    if (KVS_FAILPOINT("kvt.drop_send")) {
        kvt_message_done(m, KVS_OK); /* as a message that the other side declined */
        return;
    }
    kvt_message_push(&peer->posted, m);
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                       UCP_OP_ATTR_FIELD_FLAGS,
                                       .cb.send = on_sent,
                                       .user_data = m,
                                       .flags = UCP_AM_SEND_FLAG_RNDV};
    ucs_status_ptr_t s =
        ucp_am_send_nbx(l->ep, AM_PAGE, m->wire, sizeof m->wire, m->bytes, (size_t)m->header.bytes, &param);
    if (UCS_PTR_IS_PTR(s))
        return;
    kvt_message_unlink(&peer->posted, m);
    kvt_message_done(m, UCS_PTR_STATUS(s) == UCS_OK ? KVS_OK : KVS_PEER_LOST);
}

/* ---- life ---- */

static kvs_status set_handler(struct kvt_peer *peer, unsigned id, ucp_am_recv_callback_t fn)
{
    struct ucx_link *l = peer->link;
    const ucp_am_handler_param_t h = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                    UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                      .id = id,
                                      .cb = fn,
                                      .arg = peer};
    return ucp_worker_set_am_recv_handler(l->worker, &h) == UCS_OK ? KVS_OK : KVS_SELF_UNSUPPORTED;
}

/* Every id that can stand in a message gets a handler (1.5 MiB and about a millisecond a peer). UCX 1.13 looks at the entry of an id
 * before it compares the id with the table's length, and leaves entries uninitialized when the table grows: one message with a
 * foreign id could read far outside the table, or be called through whatever the heap held (both seen, under ASan and without).
 * The highest id goes first, so that the table grows once. */
static kvs_status set_handlers(struct kvt_peer *peer)
{
    kvs_status st = KVS_OK;
    for (unsigned id = AM_IDS; id-- > 0 && st == KVS_OK;)
        st = set_handler(peer, id, id == AM_PAGE ? on_page : id == AM_PING ? on_ping : on_stray);
    return st;
}

static kvs_status report_address(struct kvt_peer *peer)
{
    struct ucx_link *l = peer->link;
    ucp_address_t *address;
    size_t n;
    if (ucp_worker_get_address(l->worker, &address, &n) != UCS_OK)
        return KVS_SELF_UNSUPPORTED;
    uint8_t *copy = n > 0 && n <= KVT_ADDRESS_MAX ? malloc(n) : NULL;
    if (copy != NULL)
        memcpy(copy, address, n);
    ucp_worker_release_address(l->worker, address);
    if (copy == NULL)
        return n > KVT_ADDRESS_MAX ? KVS_SELF_UNSUPPORTED : KVS_SELF_NOMEM;
    kvt_note(
        peer->port,
        &(struct kvt_note){.kind = KVT_EV_ADDRESS, .peer = peer->index, .address = copy, .address_bytes = (uint32_t)n});
    return KVS_OK;
}

static kvs_status open_worker(struct kvt_peer *peer)
{
    struct ucx_link *l = peer->link;
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    const ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;
    if (ucp_config_read(kvt_lane_prefix(peer->lane), NULL, &config) != UCS_OK)
        return KVS_SELF_CONFIG;
    ucs_status_t s = ucp_init(&params, config, &l->context);
    ucp_config_release(config);
    if (s != UCS_OK) {
        l->context = NULL;
        return KVS_SELF_UNSUPPORTED;
    }
    if (ucp_worker_create(l->context, &worker, &l->worker) != UCS_OK) {
        l->worker = NULL;
        return KVS_SELF_UNSUPPORTED;
    }
    if (ucp_worker_get_efd(l->worker, &l->event_fd) != UCS_OK) {
        l->event_fd = -1;
        return KVS_SELF_UNSUPPORTED;
    }
    struct epoll_event e = {.events = EPOLLIN, .data.fd = l->event_fd};
    return epoll_ctl(peer->port->epoll_fd, EPOLL_CTL_ADD, l->event_fd, &e) == 0 ? KVS_OK : KVS_SELF_IO;
}

static kvs_status ucx_open(struct kvt_peer *peer)
{
    struct ucx_link *l = peer->link = calloc(1, sizeof *l);
    if (l == NULL)
        return KVS_SELF_NOMEM;
    l->event_fd = -1;
    kvs_status st = open_worker(peer); /* what is half open is closed by ucx_close, when the loop asks for it */
    if (st == KVS_OK)
        st = set_handlers(peer);
    return st == KVS_OK ? report_address(peer) : st;
}

static kvs_status ucx_connect(struct kvt_peer *peer, const void *address, size_t n)
{
    struct ucx_link *l = peer->link;
    (void)n;
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                    .address = address,
                                    .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {on_error, peer}};
    if (ucp_ep_create(l->worker, &params, &l->ep) != UCS_OK) {
        l->ep = NULL;
        return KVS_PEER_LOST;
    }
    (void)KVS_FAILPOINT("kvt.wireup");
    send_ping(peer, PING, peer->generation, l->ping);
    return KVS_OK;
}

static void handshake(struct kvt_peer *peer)
{
    struct ucx_link *l = peer->link;
    if (l->ping_seen && !l->pong_sent && l->ping_epoch == peer->remote_epoch) {
        send_ping(peer, PONG, l->ping_generation, l->pong);
        l->pong_sent = true;
    }
    if (l->pong_sent && l->pong_seen && l->ep_error == UCS_OK)
        kvt_peer_up(peer, kvt_ucx_transport(l->ep));
}

static bool progress(const struct ucx_link *l)
{
    int n = 0;
    while (n < PROGRESS_MAX && ucp_worker_progress(l->worker) != 0)
        n++;
    return n > 0;
}

static bool ucx_step(struct kvt_peer *peer, uint64_t now_us)
{
    struct ucx_link *l = peer->link;
    (void)now_us;
    if (l == NULL || l->worker == NULL)
        return false;
    bool moved = progress(l);
    if (peer->state == KVT_PEER_CONNECTING && l->ep != NULL)
        handshake(peer);
    if (l->ep_error != UCS_OK)
        kvt_peer_error(peer, KVS_PEER_LOST);
    while (peer->state == KVT_PEER_UP && l->ep_error == UCS_OK && peer->queued.head != NULL &&
           peer->posted.count < peer->port->config.window) {
        post(peer, peer->queued.head);
        moved = true;
    }
    return moved;
}

static bool ucx_arm(struct kvt_peer *peer)
{
    const struct ucx_link *l = peer->link;
    return l == NULL || l->worker == NULL || l->event_fd < 0 || ucp_worker_arm(l->worker) != UCS_ERR_BUSY;
}

static void begin_close(struct kvt_peer *peer)
{
    struct ucx_link *l = peer->link;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    l->close_begun = true;
    if (l->ep == NULL)
        return;
    ucs_status_ptr_t s = ucp_ep_close_nbx(l->ep, &param);
    l->ep = NULL;
    l->close_request = UCS_PTR_IS_PTR(s) ? s : NULL;
    atomic_fetch_add_explicit(&peer->port->forced_closes, 1, memory_order_relaxed);
}

/* Nothing refers to our memory afterwards: UCX completes what is left as cancelled, and what it forgot is counted and ended here. */
static void destroy_worker(struct kvt_peer *peer)
{
    struct ucx_link *l = peer->link;
    for (struct kvt_receive *r = peer->receives; r != NULL; r = r->next)
        atomic_fetch_add_explicit(&peer->port->cut_receives, 1, memory_order_relaxed);
    if (l->event_fd >= 0)
        epoll_ctl(peer->port->epoll_fd, EPOLL_CTL_DEL, l->event_fd, NULL);
    if (l->close_request != NULL)
        ucp_request_free(l->close_request);
    if (l->worker != NULL)
        ucp_worker_destroy(l->worker);
    if (l->context != NULL)
        ucp_cleanup(l->context);
    while (peer->receives != NULL)
        receive_end(peer->receives, false);
    l->worker = NULL;
    l->context = NULL;
}

static bool ucx_close(struct kvt_peer *peer, uint64_t now_us)
{
    struct ucx_link *l = peer->link;
    if (l == NULL)
        return true;
    if (!l->close_begun)
        begin_close(peer);
    if (l->worker != NULL)
        progress(l);
    bool closed = l->close_request == NULL || ucp_request_check_status(l->close_request) != UCS_INPROGRESS;
    bool quiet = closed && peer->receives == NULL && peer->posted.count == 0;
    if (!quiet && now_us < peer->close_us + KVT_CLOSE_US)
        return false;
    destroy_worker(peer);
    return true;
}

static void ucx_destroy(struct kvt_peer *peer)
{
    free(peer->link);
    peer->link = NULL;
}

const struct kvt_ops kvt_ucx_ops = {ucx_open, ucx_connect, ucx_step, ucx_arm, ucx_close, ucx_destroy};
