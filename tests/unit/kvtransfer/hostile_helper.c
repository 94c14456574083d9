/* hostile_helper.c - a peer that speaks UCX well and our protocol badly. It comes up like an honest source (PING and PONG), then sends
 * every kind of message that must be declined, by rendezvous and eagerly, tries to write into the test's memory with a key of its
 * own (its context has RMA; that the same put does write where it may is tried first), and last sends the good pages that were asked for.
 * It writes helper_done: status = messages of the burst that were posted, pages_sent = good pages.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/kvtransfer/peer_helper.h"

#include "base/checked.h"
#include "base/rng.h"
#include "sys/clock.h"
#include "tests/unit/kvtransfer/box.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { AM_PING = 1, AM_PAGE = 2, EPOCH = 1000, BIG = 8 << 20 };
#define EVIL UINT64_C(0x6666666666666666)

struct sent {
    uint8_t header[4000];
};

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static bool pinged, ponged, closed;
static uint64_t ping_generation;
static uint32_t posted, in_flight;
static uint8_t *big;

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "hostile helper: %s\n", what);
    exit(9);
}

static void check(ucs_status_t s, const char *what)
{
    if (s != UCS_OK)
        give_up(what);
}

static ucs_status_t on_ping(void *arg, const void *header, size_t n, void *data, size_t length,
                            const ucp_am_recv_param_t *p)
{
    (void)arg, (void)data, (void)length, (void)p;
    if (n != 24)
        return UCS_OK;
    if (kvs_load_u32(header) == 1) {
        pinged = true;
        ping_generation = kvs_load_u64((const uint8_t *)header + 16);
    } else {
        ponged = true;
    }
    return UCS_OK;
}

static void on_error(void *arg, ucp_ep_h e, ucs_status_t s)
{
    (void)arg, (void)e, (void)s;
    closed = true;
}

static void on_sent(void *request, ucs_status_t s, void *user)
{
    (void)s;
    free(user);
    in_flight--;
    if (request != NULL)
        ucp_request_free(request);
}

static void drain(void)
{
    uint64_t end_us = kvs_now_us() + 10000000;
    while (in_flight > 0 && !closed && kvs_now_us() < end_us)
        ucp_worker_progress(worker);
}

static void am(unsigned id, const void *header, size_t header_bytes, const void *data, size_t n, uint32_t flags)
{
    struct sent *m = malloc(sizeof *m);
    if (m == NULL)
        give_up("no memory");
    memcpy(m->header, header, header_bytes);
    const ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                   UCP_OP_ATTR_FIELD_FLAGS,
                                   .cb.send = on_sent,
                                   .user_data = m,
                                   .flags = flags};
    in_flight++;
    ucs_status_ptr_t r = ucp_am_send_nbx(ep, id, m->header, header_bytes, data, n, &p);
    if (UCS_PTR_IS_ERR(r)) { /* UCX itself refuses some (a header of 4,000 bytes) */
        in_flight--;
        free(m);
        return;
    }
    posted += id != AM_PING; /* and all others, which have no use */
    if (r == NULL)
        on_sent(NULL, UCS_OK, m);
    if (in_flight > 8)
        drain();
}

static void page(const struct kvt_header *h, const void *data, size_t n, uint32_t flags)
{
    uint8_t wire[KVT_HEADER_BYTES];
    kvt_header_encode(h, wire);
    am(AM_PAGE, wire, sizeof wire, data, n, flags);
}

static void ping(uint32_t kind, uint64_t generation)
{
    uint8_t wire[24];
    kvs_store_u32(wire, kind);
    kvs_store_u32(wire + 4, 1);
    kvs_store_u64(wire + 8, EPOCH);
    kvs_store_u64(wire + 16, generation);
    am(AM_PING, wire, sizeof wire, NULL, 0, 0);
}

static void wrong_fields(const struct kvt_header *good, size_t n, uint32_t flags)
{
    struct kvt_header h[10];
    for (int i = 0; i < 10; i++)
        h[i] = *good;
    h[0].version = 9;
    h[1].kind = 7;
    h[2].flags = 1;
    h[3].sink_epoch++;
    h[4].xfer++;
    h[5].nonce ^= 1;
    h[6].block = UINT32_MAX;
    h[7].group = 99;
    h[8].bytes = UINT64_MAX;
    h[9].kind = KVT_LOGITS;
    for (int i = 0; i < 10; i++)
        page(&h[i], big, n, flags);
}

static void burst(const struct helper_order *o, uint32_t flags)
{
    const size_t n = (size_t)o->page_bytes;
    const struct kvt_header good = {
        .version = KVT_WIRE_VERSION, .sink_epoch = o->sink_epoch, .xfer = o->xfer, .nonce = o->nonce, .bytes = n};
    const size_t length[] = {0, 1, n - 1, n + 1, 2 * n, 4u << 20};
    for (int i = 0; i < 6; i++)
        page(&good, big, length[i], flags);
    wrong_fields(&good, n, flags);
    uint8_t wire[4000] = {0};
    const size_t header[] = {0, 1, 8, 55, 57, 64, 1000, 4000};
    kvt_header_encode(&good, wire);
    for (int i = 0; i < 8; i++)
        am(AM_PAGE, wire, header[i], big, n, flags);
    struct kvs_rng r = {42};
    for (int i = 0; i < 100; i++) {
        for (size_t k = 0; k < KVT_HEADER_BYTES; k += 8)
            kvs_store_u64(wire + k, kvs_rng_next(&r));
        am(AM_PAGE, wire, KVT_HEADER_BYTES, big, n, flags);
    }
    drain();
}

struct willing { /* a worker of our own that lets itself be written to */
    ucp_context_h context;
    ucp_worker_h worker;
    volatile uint64_t word;
};

/* Puts a word where key says it may be put; the same call as against the test. */
static void put_word(ucp_ep_h to, ucp_rkey_h key, uint64_t address, struct willing *who, uint64_t limit_us)
{
    static const uint64_t evil = EVIL;
    const ucp_request_param_t rp = {.op_attr_mask = 0};
    ucs_status_ptr_t r = ucp_put_nbx(to, &evil, sizeof evil, address, key, &rp);
    uint64_t end_us = kvs_now_us() + limit_us;
    while (kvs_now_us() < end_us && (who == NULL || who->word != EVIL)) {
        ucp_worker_progress(worker);
        if (who != NULL)
            ucp_worker_progress(who->worker);
    }
    if (UCS_PTR_IS_PTR(r))
        ucp_request_free(r);
}

/* The control: where it is allowed, this put does write. */
static void put_works(const ucp_params_t *params, const ucp_config_t *config)
{
    static struct willing who;
    const ucp_worker_params_t w = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    const ucp_mem_map_params_t m = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                    .address = &who,
                                    .length = sizeof who};
    ucp_address_t *address;
    ucp_mem_h mem;
    ucp_ep_h to;
    ucp_rkey_h key;
    void *packed;
    size_t n;
    check(ucp_init(params, config, &who.context), "init of the willing");
    check(ucp_worker_create(who.context, &w, &who.worker), "worker of the willing");
    check(ucp_worker_get_address(who.worker, &address, &n), "address of the willing");
    check(ucp_mem_map(who.context, &m, &mem), "memory of the willing");
    check(ucp_rkey_pack(who.context, mem, &packed, &n), "key of the willing");
    const ucp_ep_params_t e = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    check(ucp_ep_create(worker, &e, &to), "endpoint to the willing");
    check(ucp_ep_rkey_unpack(to, packed, &key), "key of the willing");
    put_word(to, key, (uint64_t)(uintptr_t)&who.word, &who, 10000000);
    if (who.word != EVIL)
        give_up("a put does not write even where it may: the attack proves nothing");
}

static void put(uint64_t victim)
{
    static uint8_t own[4096];
    const ucp_mem_map_params_t p = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                    .address = own,
                                    .length = sizeof own};
    ucp_mem_h mem;
    void *packed;
    size_t n;
    ucp_rkey_h key;
    check(ucp_mem_map(context, &p, &mem), "mem_map");
    check(ucp_rkey_pack(context, mem, &packed, &n), "rkey_pack");
    if (ucp_ep_rkey_unpack(ep, packed, &key) != UCS_OK)
        return;
    put_word(ep, key, victim, NULL, 200000);
}

static void good_pages(const struct helper_order *o, struct helper_done *done)
{
    uint8_t *bytes = malloc((size_t)(o->blocks * o->page_bytes));
    if (bytes == NULL)
        give_up("no memory");
    /* An eager send completes before it arrives; the last one goes by rendezvous, so that END follows all pages. */
    for (uint32_t i = 0; i < o->blocks; i++) {
        uint8_t *at = bytes + i * o->page_bytes;
        pattern_fill(at, (size_t)o->page_bytes, o->xfer, i, 0);
        const struct kvt_header h = {.version = KVT_WIRE_VERSION,
                                     .sink_epoch = o->sink_epoch,
                                     .xfer = o->xfer,
                                     .nonce = o->nonce,
                                     .block = i,
                                     .bytes = o->page_bytes,
                                     .checksum = kvt_checksum(at, (size_t)o->page_bytes)};
        page(&h, at, (size_t)o->page_bytes, i % 2 == 0 ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV);
        drain();
        if (o->hostile)
            page(&h, at, (size_t)o->page_bytes, UCP_AM_SEND_FLAG_RNDV); /* once more: a double */
        done->pages_sent++;
    }
    drain();
    free(bytes);
}

static void one_page(const struct helper_order *o, uint32_t block, uint64_t wrong, uint32_t flags)
{
    uint8_t *at = calloc(1, (size_t)o->page_bytes);
    if (at == NULL)
        give_up("no memory");
    const struct kvt_header h = {.version = KVT_WIRE_VERSION,
                                 .sink_epoch = o->sink_epoch,
                                 .xfer = o->xfer,
                                 .nonce = o->nonce,
                                 .block = block,
                                 .bytes = o->page_bytes,
                                 .checksum = kvt_checksum(at, (size_t)o->page_bytes) ^ wrong};
    page(&h, at, (size_t)o->page_bytes, flags);
    drain();
    free(at);
}

/* Against a daemon that has granted us a transfer. The last block alone is of no use to it, so our zeros there spoil nothing. */
static void live_pages(const struct helper_order *o)
{
    one_page(o, 0, 1, UCP_AM_SEND_FLAG_RNDV);
    one_page(o, 0, 0, UCP_AM_SEND_FLAG_EAGER); /* it was bad once: not taken again */
    one_page(o, o->blocks - 1, 0, UCP_AM_SEND_FLAG_RNDV);
    one_page(o, o->blocks - 1, 0, UCP_AM_SEND_FLAG_RNDV);
}

/* Until somebody ends this process: announced, fetched in part at most. */
static _Noreturn void stop_in_the_midst(const struct helper_order *o)
{
    const struct kvt_header h = {.version = KVT_WIRE_VERSION,
                                 .sink_epoch = o->sink_epoch,
                                 .xfer = o->xfer,
                                 .nonce = o->nonce,
                                 .bytes = o->page_bytes};
    for (int i = 0; i < 8; i++)
        page(&h, big, i % 2 == 0 ? BIG : (size_t)o->page_bytes, UCP_AM_SEND_FLAG_RNDV);
    ucp_worker_progress(worker);
    for (;;)
        pause();
}

static void open_ucx(struct helper_hello *mine, const char *prefix)
{
    ucp_config_t *config;
    const ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_RMA};
    const ucp_worker_params_t w = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                   .thread_mode = UCS_THREAD_MODE_SINGLE};
    const ucp_am_handler_param_t h = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = AM_PING, .cb = on_ping};
    ucp_address_t *address;
    size_t n;
    check(ucp_config_read(prefix, NULL, &config), "config");
    check(ucp_init(&p, config, &context), "init");
    check(ucp_worker_create(context, &w, &worker), "worker");
    check(ucp_worker_set_am_recv_handler(worker, &h), "handler");
    check(ucp_worker_get_address(worker, &address, &n), "address");
    memcpy(mine->address, address, n);
    mine->address_bytes = (uint32_t)n;
    mine->address_sum = kvt_checksum(address, n);
    put_works(&p, config);
    ucp_config_release(config);
}

int main(int argc, char **argv)
{
    struct helper_hello mine = {.epoch = EPOCH}, theirs;
    kvt_prepare_process(argc, argv);
    big = calloc(1, BIG);
    if (big == NULL)
        give_up("no memory");
    open_ucx(&mine, argc > 1 && strcmp(argv[1], "near") == 0 ? "KVNEAR" : "KVTCP");
    kvt_probe_self(&mine.probe);
    helper_write_fd(1, &mine, sizeof mine);
    if (!helper_read_fd(0, &theirs, sizeof theirs))
        return 3;
    const ucp_ep_params_t e = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                             UCP_EP_PARAM_FIELD_ERR_HANDLER,
                               .address = (const void *)theirs.address,
                               .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                               .err_handler = {on_error, NULL}};
    check(ucp_ep_create(worker, &e, &ep), "endpoint");
    ping(1, 1);
    uint64_t end_us = kvs_now_us() + 10000000;
    for (bool answered = false; !(answered && ponged) && kvs_now_us() < end_us;) {
        ucp_worker_progress(worker);
        if (pinged && !answered) {
            ping(2, ping_generation);
            answered = true;
        }
    }
    struct helper_order o;
    while (helper_read_fd(0, &o, sizeof o)) {
        struct helper_done done = {.xfer = o.xfer};
        posted = 0;
        if (o.hostile == 3)
            stop_in_the_midst(&o);
        if (o.hostile) {
            burst(&o, UCP_AM_SEND_FLAG_RNDV);
            burst(&o, UCP_AM_SEND_FLAG_EAGER);
            for (unsigned id = 0; id < 65536; id = id < 70      ? id + 1
                                                   : id < 30000 ? id * 7
                                                                : id + 7777) /* handlers that nobody set */
                if (id != AM_PING && id != AM_PAGE)
                    am(id, &o, sizeof o, big, 5000, 0);
            drain();
            done.status = posted;
            if (theirs.victim != 0)
                put(theirs.victim);
        }
        if (o.hostile == 2) {
            live_pages(&o);
            done.status = posted;
        } else {
            good_pages(&o, &done);
        }
        helper_write_fd(1, &done, sizeof done);
    }
    _exit(0); /* without closing: an honest end is tested elsewhere */
}
